//! The store of a stopped OSD: shown as its OSD would find it, without a write, and changed as its OSD would change it.

use super::disk::Disk;
use super::laws::{run_rounds, write};
use super::rig::Rig;
use crate::offline::log::Survey;
use crate::offline::{Access, Offline, OfflineError};
use crate::testing::{SECTORS, chunks};
use crate::{EngineConfig, MountError, Part, ReadData};
use std::time::Duration;
use types::store::{Effect, Recovered};
use types::{Index, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// A store with data at home and in the log: of R1 in both, of R2 in the log alone.
fn filled(seed: u64) -> Rig {
    let config = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let mut rig = Rig::new(seed, true, config);
    rig.create(1);
    rig.create(2);
    rig.extend(R1, vec![write(0, 100), write(40, 3)]);
    rig.settle();
    rig.commit(R1, u64::MAX);
    run_rounds(&mut rig);
    let effects: Vec<Effect> = (0..12).map(|_| rig.effect()).chain([write(3, 9)]).collect();
    rig.extend(R1, effects.clone());
    rig.extend(R2, effects);
    rig.settle();
    [R1, R2].into_iter().for_each(|replica| rig.commit(replica, u64::MAX));
    rig.extend(R1, vec![Effect::None]);
    rig.turn(64);
    rig
}

/// Applies the entries that the models have applied.
fn apply(store: &mut Offline<'_>, rig: &Rig, recovered: &[Recovered]) {
    for found in recovered {
        let model = &rig.models[&found.identity.replica];
        for entry in found.entries.iter().filter(|entry| entry.index > found.checkpoint.index) {
            if entry.index.0 <= model.applied {
                let effect = model.made[entry.index.0 as usize - 1].effect;
                store.apply(model.replica, (entry.index, entry.term), effect).expect("its payload is there");
            }
        }
    }
}

#[test]
fn read_only_mount_shows_everything_applied_and_writes_nothing() {
    for seed in 1..6 {
        let rig = filled(seed);
        let mut disk = rig.disk.copy();
        let (info, before, writes) = (disk.info.clone(), disk.bytes().to_vec(), disk.writes);
        let (mut store, superblock, recovered) = Offline::mount(&mut disk, &info, Access::Read).expect("it mounts");
        assert_eq!((superblock, recovered.len()), (rig.superblock, 2));
        apply(&mut store, &rig, &recovered);
        let range = SectorRange::new(0, SECTORS);
        for (replica, model) in &rig.models {
            for chunk in chunks() {
                let data = store.read(*replica, chunk, range).expect("it runs").expect("it is whole");
                let bytes = match data {
                    ReadData::Zeros => vec![0; range.len_bytes()],
                    ReadData::Bytes { payload, .. } => payload.to_vec(),
                };
                assert!(bytes == model.expected(chunk, range), "seed {seed}: {chunk} of {replica}");
            }
        }
        store.engine().audit().expect("the books balance");
        let uses = store.engine().replicas_for_tools();
        assert!(uses.iter().all(|of| of.part == Part::Running), "{uses:?}");
        let space = store.engine().space_for_tools().expect("it is mounted");
        let sum = space.data_aus + space.logged_aus + space.free_aus + space.pending_aus;
        assert_eq!(sum, space.au_count, "{space:?}");
        let slots = space.map_slots + space.crc_slots + space.directory_slots + space.decision_slots;
        assert_eq!(slots + space.free_slots + space.pending_slots, space.slot_count, "{space:?}");
        drop(store);
        assert!(disk.bytes() == before && disk.writes == writes, "nothing was written");
    }
}

#[test]
fn removed_replica_stays_gone_and_its_space_is_free() {
    let mut rig = filled(7);
    rig.disk.kill();
    let info = rig.disk.info.clone();
    let (mut store, ..) = Offline::mount(&mut rig.disk, &info, Access::Write).expect("it mounts");
    assert!(matches!(store.destroy(ReplicaId(9)), Err(OfflineError::NoReplica(_))));
    assert!(store.destroy(R1).expect("it runs"), "a checkpoint has released its space");
    drop(store);
    rig.disk.power_cut();
    rig.models.remove(&R1);
    rig.restart_and_check();
    assert!(rig.engine.is_gone(R1) && !rig.engine.is_gone(R2));
    assert!(rig.engine.leftovers_for_tools().is_empty() && rig.engine.chunks_for_tools(R1).is_empty());
}

#[test]
fn replica_that_a_tool_fails_is_failed_for_its_osd() {
    let mut rig = filled(8);
    rig.disk.kill();
    let info = rig.disk.info.clone();
    let (mut store, ..) = Offline::mount(&mut rig.disk, &info, Access::Write).expect("it mounts");
    store.fail(R1, "given up").expect("it runs");
    drop(store);
    rig.disk.power_cut();
    rig.restart();
    let failed: Vec<_> = rig.seen.recovered.iter().filter_map(|found| found.failure.as_ref()).collect();
    assert_eq!(failed.iter().map(|failure| failure.reason.as_str()).collect::<Vec<_>>(), ["given up"]);
}

#[test]
fn store_with_a_mark_is_shown_and_not_changed() {
    let mut rig = filled(9);
    rig.disk.kill();
    let (info, uuid) = (rig.disk.info.clone(), rig.superblock.uuid);
    let mark = |disk: &mut Disk, at: u64| disk.put(at as usize, &layout::poison::encode(uuid, "bad"));
    let mut disk = rig.disk.copy();
    mark(&mut disk, layout::poison::POISON_AT);
    assert!(Offline::mount(&mut disk, &info, Access::Read).is_ok());
    let refused = Offline::mount(&mut disk, &info, Access::Write).err();
    assert!(matches!(refused, Some(OfflineError::Mount(MountError::Poisoned { .. }))), "{refused:?}");
    let mut disk = rig.disk.copy();
    mark(&mut disk, layout::poison::BEHIND_AT);
    assert!(Offline::mount(&mut disk, &info, Access::Read).is_ok());
    assert!(matches!(Offline::mount(&mut disk, &info, Access::Write).err(), Some(OfflineError::Behind { .. })));
}

#[test]
fn survey_of_the_log_finds_every_batch_once_and_in_order() {
    let mut rig = filled(10);
    rig.disk.kill();
    let (info, of) = (rig.disk.info.clone(), rig.superblock);
    let mut survey = Survey::new(&mut rig.disk, &info, &of, true).expect("it reads");
    let bounds = survey.bounds;
    let mut seqs = Vec::new();
    survey
        .visit(&mut rig.disk, &info, &mut |found| {
            assert!(found.batch.records.is_some() && found.copied.is_none());
            seqs.push(found.batch.header.seq);
            true
        })
        .expect("it reads");
    assert!(bounds.last_seq > bounds.tail_seq && bounds.durable_seq < bounds.last_seq, "{bounds:?}");
    assert_eq!(seqs, (bounds.tail_seq..=bounds.last_seq).collect::<Vec<_>>());
}

#[test]
fn flipped_bytes_anywhere_are_no_panic() {
    let mut rig = filled(11);
    rig.disk.kill();
    let info = rig.disk.info.clone();
    let used = rig.disk.bytes().chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let places: Vec<usize> =
        used.map(|(nth, page)| nth * 4096 + page.iter().position(|b| *b != 0).expect("one")).collect();
    for at in places.iter().step_by(places.len() / 60 + 1).flat_map(|at| [*at, at / 4096 * 4096 + 77]) {
        let mut disk = rig.disk.copy();
        disk.flip(at);
        let Ok((mut store, ..)) = Offline::mount(&mut disk, &info, Access::Read) else { continue };
        for replica in [R1, R2] {
            let _ = store.read(replica, chunks()[0], SectorRange::new(0, SECTORS)).expect("the env works");
        }
        assert!(store.engine().replicas_for_tools().iter().all(|of| of.applied >= Index(0)));
    }
}
