//! Records that reclamation waits for (R9, R11): a crash after any write leaves a log that shows a loss or records it.

use super::damage::{config, hide};
use super::failed::{OTHER, R, found, one};
use super::laws::write;
use super::rig::Rig;
use crate::EngineConfig;
use crate::log::{Log, RESERVED};
use crate::round::RoundStep;
use layout::log::BATCH_ALIGN;
use types::{Index, ReplicaId};

/// The first replica of every state block.
const FIRST: ReplicaId = ReplicaId(1);
/// It has no peer.
const ALONE: ReplicaId = ReplicaId(200);
const PAGE: u64 = BATCH_ALIGN as u64;

/// Returns a config with which no round begins by itself, and each replica takes one batch of a state block.
fn held() -> EngineConfig {
    EngineConfig { round_pressure: 100.0, state_batch_max: 1, ..config() }
}

fn new(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, true, held());
    [FIRST, R].into_iter().for_each(|replica| rig.create(replica.0));
    rig.create_replica(ALONE, 0);
    rig.settle();
    rig
}

fn log(rig: &Rig) -> &Log {
    rig.engine.log.as_ref().expect("mounted")
}

fn put(rig: &mut Rig) {
    rig.extend(OTHER, vec![write(0, 160)]);
    rig.turn(16);
    rig.commit(OTHER, u64::MAX);
}

/// Writes batches of a page until so many pages of the newest segment are left.
fn leave(rig: &mut Rig, pages: u64) {
    // A reserved segment takes no payload.
    while log(rig).ring.space() > 32 * PAGE && log(rig).ring.free() >= RESERVED {
        put(rig);
    }
    while log(rig).ring.space() > pages * PAGE {
        let from = rig.models[&OTHER].last() + 1;
        rig.append(OTHER, from, Vec::new());
        rig.turn(16);
    }
    assert_eq!(log(rig).ring.space(), pages * PAGE);
}

/// Writes entries of `OTHER` until so many segments are in use. Each of them is opened by a mount, so no state block
/// behind a gap vouches for the create records.
fn fill(rig: &mut Rig, segments: usize) {
    while rig.engine.stats().segments_in_use < segments as u32 {
        leave(rig, 1);
        rig.disk.power_cut();
        rig.restart_and_check();
    }
}

/// Returns a log with a gap in its first segment, of which a checkpoint covers everything: a mount may free more than
/// half of it. So many segments are free, and so many pages of the newest one.
fn gapped(seed: u64, free: usize, pages: u64) -> Rig {
    let mut rig = new(seed);
    one(&mut rig, ALONE);
    one(&mut rig, R);
    let lost = one(&mut rig, R);
    rig.create(OTHER.0);
    let segments = log(&rig).ring.count() - free.max(RESERVED);
    fill(&mut rig, segments);
    if free < RESERVED {
        // The records of the round open a reserved segment.
        leave(&mut rig, 1);
    }
    rig.commit(ALONE, 1);
    rig.commit(R, 2);
    // A mount does not count what this process has freed: it frees nothing.
    rig.engine.log.as_mut().expect("mounted").untold = 1;
    rig.round();
    while rig.seen.checkpoints == 0 {
        rig.turn(1);
    }
    leave(&mut rig, pages);
    hide(&mut rig, lost);
    rig.disk.power_cut();
    rig
}

/// Mounts a copy of the rig's disk after a power cut.
fn crashed(rig: &Rig, probe: &mut Rig) {
    probe.disk = rig.disk.copy();
    probe.disk.power_cut();
    probe.restart();
    assert_eq!(probe.seen.mount_failed, None);
}

fn has_failed(rig: &Rig, replica: ReplicaId) -> bool {
    let found = rig.seen.recovered.iter().find(|r| r.identity.replica == replica).expect("it comes back");
    found.failure.is_some()
}

/// Notes what a mount of this log must go on to know.
fn check_losses(rig: &Rig, creates_lost: bool) {
    assert!(found(rig, R).1, "R may have voted in the gap");
    assert!(has_failed(rig, ALONE), "it may have lost entries");
    assert_eq!(rig.engine.may_have_been_here(ReplicaId(1000)), creates_lost, "create records may be in the gap");
}

/// Mounts a log with a gap and writes until it is free of the gap. Each write may be the last one before a crash.
fn outlive(free: usize, pages: u64) {
    let (mut rig, mut probe) = (gapped(1, free, pages), Rig::new(2, true, held()));
    rig.models.retain(|id, _| *id == OTHER);
    let info = rig.disk.info.clone();
    rig.boot(info);
    let (mut mounted, mut ended, mut in_block, mut without) = (false, rig.disk.ended, 0, 0);
    for _ in 0..4000 {
        let is_told = mounted && log(&rig).untold == 0;
        if without == 6 || free < RESERVED && is_told {
            break;
        }
        if rig.seen.mounted && !std::mem::replace(&mut mounted, true) {
            assert_eq!(log(&rig).ring.free(), free, "the mount frees nothing");
            let other = rig.seen.recovered.iter().position(|r| r.identity.replica == OTHER).expect("it is there");
            let other = rig.seen.recovered.swap_remove(other);
            rig.check_recovered(other, false);
        }
        if mounted && rig.models[&OTHER].tickets.len() < 2 {
            rig.extend(OTHER, vec![write(0, 160)]);
        }
        rig.turn(1);
        if std::mem::replace(&mut ended, rig.disk.ended) < rig.disk.ended {
            crashed(&rig, &mut probe);
            check_losses(&probe, free >= RESERVED);
            in_block += u64::from(log(&rig).state_block.is_some());
            without += u64::from(probe.engine.lost_records().is_none());
        }
    }
    let is_enough = in_block > 2 && without == 6 || free < RESERVED;
    assert!(is_enough, "{in_block} crashes in a state block, {without} mounts without the gap");
    rig.settle();
    assert_eq!(rig.models[&OTHER].durable, rig.models[&OTHER].last(), "the log goes on");
    assert!(log(&rig).ring.free() > RESERVED, "it was freed");
}

#[test]
fn crash_after_any_write_of_a_mount_forgets_no_loss_that_it_found() {
    // Behind the mount record there is room for no record of a loss, for some of them, or for all.
    [2, 3, 4, 8].into_iter().for_each(|pages| outlive(4, pages));
}

#[test]
fn losses_that_a_mount_of_a_full_log_found_are_told_in_the_reserve() {
    for (free, pages) in [(2, 2), (2, 4), (1, 2), (1, 4)] {
        outlive(free, pages);
    }
}

/// Makes the next mount find that the last batch may have been durable.
fn spoil_end(rig: &mut Rig) {
    let ring = &log(rig).ring;
    let end = ring.offset_of(ring.newest().expect("open").slot) + ring.segment_bytes() - ring.space();
    rig.disk.unreadable = Some(end as usize);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
}

#[test]
fn full_log_is_mounted_however_often_its_end_is_damaged() {
    let mut rig = new(6);
    rig.create(OTHER.0);
    let segments = log(&rig).ring.count() - RESERVED;
    fill(&mut rig, segments);
    (0..12).for_each(|_| spoil_end(&mut rig));
    assert_eq!(log(&rig).ring.free(), RESERVED, "they went on in the same segment");
}

#[test]
fn segment_of_which_no_batch_is_left_is_not_free() {
    let mut rig = new(7);
    rig.create(OTHER.0);
    let segments = log(&rig).ring.count() - RESERVED;
    fill(&mut rig, segments);
    let (middle, len) = (log(&rig).ring.offset_of(2), log(&rig).ring.segment_bytes());
    rig.disk.fill(middle as usize, len as usize, 0);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    assert_eq!(log(&rig).ring.free(), RESERVED);
    assert!(found(&rig, OTHER).1, "it has lost entries");
}

#[test]
fn segments_that_were_freed_before_a_crash_stay_free() {
    let mut rig = new(6);
    rig.create(OTHER.0);
    let segments = log(&rig).ring.count() - 4;
    fill(&mut rig, segments);
    rig.commit(OTHER, u64::MAX);
    rig.round();
    rig.settle();
    let free = log(&rig).ring.free();
    assert!(free > 4, "the round freed some");
    spoil_end(&mut rig);
    assert!(log(&rig).ring.free() + 1 >= free);
}

/// Ends a replica with an acknowledged entry in the first segment while a checkpoint that covers the segment is written.
/// The record of its end opens a segment.
fn ending(end: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = new(4);
    rig.create(OTHER.0);
    one(&mut rig, R);
    let segments = log(&rig).ring.count() - 4;
    fill(&mut rig, segments);
    rig.round();
    loop {
        rig.turn(0);
        let is_recording =
            matches!(rig.engine.destage.round, RoundStep::Recording { .. }) && log(&rig).in_flight.is_some();
        if is_recording && log(&rig).pending.is_empty() {
            break;
        }
        rig.turn(1);
    }
    end(&mut rig);
    rig.engine.log.as_mut().expect("mounted").ring.close_newest();
    rig
}

#[test]
fn replica_keeps_its_entries_until_its_failure_or_its_end_is_durable() {
    for destroyed in [false, true] {
        let mut rig = ending(|rig| match destroyed {
            true => rig.destroy(R),
            false => rig.engine.fail(R, "terms do not rise".to_owned()),
        });
        let (mut probe, mut in_block, mut ended) = (Rig::new(5, true, held()), 0, rig.disk.ended);
        let is_told = |probe: &Rig| match destroyed {
            true => probe.engine.is_gone(R),
            false => has_failed(probe, R),
        };
        for _ in 0..40 {
            rig.turn(1);
            if std::mem::replace(&mut ended, rig.disk.ended) < rig.disk.ended {
                crashed(&rig, &mut probe);
                let last = probe.engine.replicas.get(&R).map(|r| r.log.last());
                assert!(last == Some(Index(1)) || is_told(&probe), "it lacks an entry that it acknowledged");
                in_block += u64::from(log(&rig).state_block.is_some());
            }
        }
        assert!(in_block > 2 && is_told(&probe), "{in_block} crashes in a state block");
        assert!(log(&rig).ring.free() > 4, "the log was freed");
    }
}
