//! A log with a device of its own: power cuts, devices that do not belong together, and a home that is older than its log.

use super::crash::{self, config, step};
use super::disk::Disk;
use super::rig::{Rig, format_pair};
use crate::testing::params;
use crate::{DevicePart, Disks, EngineConfig, FormatParams, MountError, check_format, format_device};
use env::DiskKind;
use layout::superblock::SuperblockError;
use types::{OsdUuid, Time};

/// Runs histories. Large payloads are not placed, whatever the settings are.
fn check(seeds: std::ops::Range<u64>, make: impl Fn(u64) -> Rig) {
    let mut all = crash::Counts::default();
    seeds.for_each(|seed| all.add(crash::run(make(seed), 8, 400)));
    let crash::Counts { rounds, completed, .. } = all;
    assert!(rounds > 15 && completed > 100, "{rounds} rounds, {completed} blocks: the test lost its teeth");
}

/// Caches that lose what was not flushed: that of the log, and that of home.
const BOTH: (bool, bool, DiskKind) = (true, true, DiskKind::Block);

#[test]
fn data_on_two_devices_survive_power_cuts_on_volatile_caches() {
    check(0..6, |seed| Rig::apart(seed, BOTH, config(seed)));
}

#[test]
fn data_on_two_devices_survive_power_cuts_with_one_volatile_cache() {
    // A log that keeps its cache on power loss before a disk that does not, and the reverse.
    check(100..106, |seed| Rig::apart(seed, (seed % 2 == 0, seed % 2 == 1, DiskKind::Block), config(seed)));
}

#[test]
fn home_on_a_file_survives_power_cuts_beside_a_log_on_a_device() {
    check(200..206, |seed| Rig::apart(seed, (false, false, DiskKind::File), config(seed)));
}

#[test]
fn home_on_a_rotating_disk_survives_power_cuts_behind_its_log() {
    check(300..306, |seed| {
        let config = EngineConfig { hdd_home: true, ..config(seed) };
        Rig::apart(seed, (seed % 2 == 0, true, DiskKind::Block), config)
    });
}

#[test]
fn home_that_is_older_than_its_log_gives_no_old_bytes() {
    let (mut failed, mut whole) = (0, 0);
    for seed in 0..12 {
        let mut rig = Rig::apart(seed, BOTH, config(seed));
        (1..=3).for_each(|id| rig.create(id));
        (0..200).for_each(|_| step(&mut rig));
        rig.settle();
        let older = rig.disk.copy();
        (0..rig.rng().between(1, 300)).for_each(|_| step(&mut rig));
        rig.settle();
        // The home comes back as it was; the log stays.
        let from = rig.disk.home_from.expect("two devices");
        rig.disk.put(from, &older.bytes()[from..]);
        rig.restart();
        assert_eq!(rig.seen.mount_failed, None);
        for found in std::mem::take(&mut rig.seen.recovered) {
            if found.failure.is_some() {
                rig.models.remove(&found.identity.replica);
                failed += 1;
            } else {
                rig.check_recovered(found, false);
                whole += 1;
            }
        }
        // The pages of home hang on the log by their checksums, and the blocks on the pages: what is left is right.
        rig.check_all_sectors();
    }
    assert!(failed > 3 && whole > 3, "{failed} replicas failed, {whole} did not: the test lost its teeth");
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let mut rig = Rig::apart(5, BOTH, EngineConfig::default());
    let refusal = |rig: &mut Rig, disks: Disks| {
        rig.boot(disks);
        rig.settle();
        match rig.seen.mount_failed.take() {
            Some(MountError::Superblock(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let Disks { home, log } = rig.disk.disks();
    let other = |found, expected| SuperblockError::OtherPart { found, expected };
    let alone = refusal(&mut rig, Disks::from(home.clone()));
    assert_eq!(alone, other(DevicePart::Home, DevicePart::Whole));
    let alone = refusal(&mut rig, Disks::from(log.clone()));
    assert_eq!(alone, other(DevicePart::Log, DevicePart::Whole));
    let swapped = refusal(&mut rig, Disks { home: log, log: home });
    assert_eq!(swapped, other(DevicePart::Home, DevicePart::Log));
    // The home of another format of this OSD.
    let Disks { home, .. } = rig.disk.disks();
    let params = FormatParams { part: DevicePart::Home, uuid: OsdUuid([1; 16]), force: true, ..params() };
    format_device(&mut rig.disk, &home, &params, &mut |_, _| {}).expect("it is forced");
    let disks = rig.disk.disks();
    let foreign = refusal(&mut rig, disks);
    assert!(matches!(foreign, SuperblockError::OtherFormat { .. }), "{foreign:?}");
}

#[test]
fn device_of_a_pair_is_not_formatted_without_force() {
    let mut disk = Disk::new(48 << 20, 1, true);
    disk.home_from = Some(18 << 20);
    let superblocks = format_pair(&mut disk);
    assert_eq!(superblocks.iter().map(|s| s.part).collect::<Vec<_>>(), [DevicePart::Log, DevicePart::Home]);
    for (info, part) in disk.disks().each() {
        let params = FormatParams { part, ..params() };
        assert!(check_format(&mut disk, info, &params).is_err(), "{part}");
    }
}

#[test]
fn poisoned_store_is_refused_whichever_device_took_the_mark() {
    for home_fails in [false, true] {
        let mut rig = Rig::apart(7, BOTH, config(1));
        crash::poison(&mut rig);
        // The mark of one of the two devices is lost.
        let from = rig.disk.home_from.expect("two devices");
        let lost = if home_fails { from } else { 0 };
        rig.disk.fill(lost + layout::poison::POISON_AT as usize, layout::poison::POISON_LEN, 0);
        rig.models.clear();
        rig.now = Time(rig.now.0 + 1);
        rig.restart();
        assert!(matches!(rig.seen.mount_failed.take(), Some(MountError::Poisoned { .. })));
    }
}
