//! Laws of the engine, each in one short test.

use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::chunks;
use env::Op;
use std::time::Duration;
use types::store::Effect;
use types::{ReplicaId, SectorRange, Time};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

pub(super) fn write(start: u32, count: u32) -> Effect {
    Effect::Write { chunk: chunks()[0], range: SectorRange::new(start, count) }
}

#[test]
fn nothing_is_acknowledged_before_its_flush() {
    let mut rig = Rig::new(1, true, EngineConfig::default());
    rig.create(1);
    rig.extend(R1, vec![write(0, 8)]);
    let (mut ops, mut out) = (Vec::new(), Vec::new());
    rig.engine.end_turn(rig.now, &mut ops, &mut out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(ops.len(), 1);
    let Op::DiskWrite { flush, bufs, .. } = &ops[0] else { panic!("{ops:?}") };
    assert!(*flush, "a volatile cache is flushed");
    let sent = rig.models[&R1].entry(1).payload;
    let kept = rig.engine.payload(R1, types::Index(1), types::Term(1)).expect("from the moment of append");
    assert_eq!(kept.0, sent);
    assert_eq!(bufs[1].as_ptr(), kept.0.as_ptr(), "the payload goes to the disk from where it is");
    // A second append goes into the next batch, which waits for the first.
    rig.extend(R1, vec![write(8, 8)]);
    let mut more = Vec::new();
    rig.engine.end_turn(rig.now, &mut more, &mut out);
    assert!(more.is_empty() && out.is_empty(), "one batch in flight");
    rig.disk.submit(&mut ops);
    let done = rig.disk.step().expect("the write");
    rig.engine.handle_event(rig.now, done, &mut more, &mut out);
    assert!(matches!(out.as_slice(), [crate::EngineEvent::Persisted { .. }]), "{out:?}");
}

#[test]
fn the_log_wraps_many_times_while_one_group_never_commits() {
    let config = EngineConfig { round_pressure: 0.3, ..EngineConfig::default() };
    let mut rig = Rig::new(2, true, config);
    rig.create(1);
    rig.create(2);
    rig.extend(R2, (0..20).map(|n| write(n * 8 % 192, 8)).collect());
    rig.settle();
    for n in 0..4000u32 {
        while rig.engine.pressure().max() >= 1.0 {
            rig.turn(8);
        }
        rig.extend(R1, vec![write(n * 32 % 160, 32), write(n * 7 % 150, 3)]);
        rig.turn(2);
        rig.commit(R1, u64::MAX);
        if n % 1500 == 1499 {
            rig.settle();
            rig.disk.power_cut();
            rig.restart_and_check();
        }
    }
    rig.settle();
    let stats = rig.engine.stats();
    assert!(
        rig.seen.log_bytes + stats.log_bytes > 4 * (16 << 20),
        "{} bytes of log",
        rig.seen.log_bytes + stats.log_bytes
    );
    assert!(stats.copied_entries > 0 && stats.segments_in_use <= 16);
    assert_eq!(rig.engine.first_index(R2).0, 1, "what was not committed is carried along");
    assert!(rig.engine.first_index(R1).0 > 1000, "what home has is let go");
    rig.commit(R2, 20);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn a_full_log_holds_payload_back_but_neither_votes_nor_rounds() {
    let config =
        EngineConfig { round_pressure: 100.0, round_idle: Duration::from_secs(1000), ..EngineConfig::default() };
    let mut rig = Rig::new(9, true, config);
    rig.create(1);
    rig.create(2);
    for n in 0..250 {
        // The writes are unaligned: completing the blocks needs log, too.
        rig.extend(R1, vec![write(n % 8 + 1, 160)]);
        rig.turn(4);
        rig.commit(R1, u64::MAX);
    }
    rig.settle();
    assert!(rig.models[&R1].durable < 250, "the log is smaller than what was appended");
    assert!(rig.engine.pressure().log >= 1.0, "{:?}", rig.engine.pressure());
    rig.extend(R2, vec![Effect::None]);
    rig.settle();
    assert_eq!(rig.models[&R2].durable, 1, "what has no payload goes into the reserve");
    rig.engine.config.round_pressure = 0.3;
    run_rounds(&mut rig);
    rig.commit(R1, u64::MAX);
    run_rounds(&mut rig);
    assert_eq!(rig.models[&R1].durable, 250, "a round made room");
    rig.commit(R1, 250);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn an_append_larger_than_a_batch_is_acknowledged_once_and_whole() {
    let mut rig = Rig::new(3, true, EngineConfig::default());
    rig.create(1);
    rig.extend(R1, (0..40).map(|_| write(0, 160)).collect());
    rig.extend(R1, (0..3).map(|_| write(0, 8)).collect());
    rig.settle();
    assert_eq!(rig.models[&R1].durable, 43);
    assert!(rig.engine.stats().batches > 5);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn an_idle_log_is_sealed_once_and_then_rests() {
    let mut rig = Rig::new(4, true, EngineConfig::default());
    rig.create(1);
    rig.extend(R1, vec![write(0, 8)]);
    rig.turn(16);
    let before = rig.engine.stats().batches;
    let due = rig.engine.next_deadline();
    assert!(due <= rig.now + Duration::from_millis(10), "{due:?} after {:?}", rig.now);
    rig.now = due;
    rig.turn(16);
    assert_eq!(rig.engine.stats().batches, before + 1, "the seal");
    for _ in 0..100 {
        rig.now = rig.now + Duration::from_millis(50);
        rig.turn(16);
    }
    assert_eq!(rig.engine.stats().batches, before + 1, "no write without work");
}

#[test]
fn the_first_failed_write_poisons_and_nothing_is_acknowledged_after() {
    let mut rig = Rig::new(5, true, EngineConfig::default());
    rig.create(1);
    rig.extend(R1, vec![write(0, 8)]);
    rig.settle();
    rig.disk.fail_after(0);
    rig.extend(R1, vec![write(0, 8)]);
    rig.turn(16);
    assert!(rig.poisoned);
    rig.disk.fails = 0..0;
    rig.extend(R1, vec![write(0, 8)]);
    let writes = rig.disk.writes;
    for _ in 0..50 {
        rig.turn(16);
    }
    assert_eq!(rig.models[&R1].durable, 1);
    assert_eq!(rig.disk.writes, writes, "a poisoned store writes nothing");
}

#[test]
fn mark_of_an_older_copy_that_cannot_be_erased_poisons_the_store() {
    for fails in [false, true] {
        let mut rig = Rig::new(5, true, EngineConfig::default());
        if fails {
            rig.disk.fail_after(0);
        }
        rig.engine.erase_behind_mark();
        rig.turn(16);
        assert_eq!(rig.poisoned, fails, "a mark that stays fails every new replica at the next start");
    }
}

#[test]
fn a_destroyed_replica_leaves_a_tombstone_and_its_space() {
    let config = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let mut rig = Rig::new(6, true, config);
    rig.create(1);
    rig.create(2);
    let empty = rig.engine.stats().home.used_bytes;
    rig.extend(R1, vec![write(0, 160)]);
    rig.settle();
    rig.commit(R1, 1);
    run_rounds(&mut rig);
    assert!(rig.engine.stats().home.used_bytes > empty, "home holds it");
    rig.destroy(R1);
    rig.settle();
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(rig.engine.is_gone(R1) && !rig.engine.is_gone(R2));
    run_rounds(&mut rig);
    assert_eq!(rig.engine.stats().home.used_bytes, empty, "its space came back");
}

pub(super) fn run_rounds(rig: &mut Rig) {
    for _ in 0..40 {
        rig.now = rig.now + Duration::from_millis(10);
        rig.turn(16);
    }
    rig.settle();
}

#[test]
fn home_gives_back_what_rounds_took() {
    let config = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let mut rig = Rig::new(7, true, config);
    rig.create(1);
    for n in 0..20 {
        let effects = (0..4).map(|_| rig.effect()).chain([write(n * 5, 3)]).collect();
        rig.extend(R1, effects);
        rig.settle();
        rig.commit(R1, u64::MAX);
        run_rounds(&mut rig);
    }
    assert!(rig.seen.checkpoints >= 10 && rig.engine.stats().overlay_bytes == 0, "all is in home");
    assert!(rig.engine.stats().completed_blocks > 0, "blocks were completed");
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn a_full_home_is_reported_and_a_cut_makes_room_again() {
    let config = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let mut rig = Rig::new(8, true, config);
    rig.create(1);
    // One block in each AU of chunk after chunk: home's AUs run out long before its bytes.
    let generation = chunks()[0].generation;
    let mut chunk = 0;
    while !rig.engine.pressure().full && chunk < 64 {
        let key = types::ChunkKey { generation, index: chunk };
        let effects = (0..64).map(|n| Effect::Write { chunk: key, range: SectorRange::new(n * 128, 8) }).collect();
        put_wide(&mut rig, effects);
        run_rounds(&mut rig);
        chunk += 1;
    }
    assert!(rig.engine.pressure().full, "{:?}", rig.engine.stats().home);
    put_wide(&mut rig, vec![Effect::Unmap { generation, from_chunk: 0 }]);
    run_rounds(&mut rig);
    assert!(!rig.engine.pressure().full, "{:?}", rig.engine.stats().home);
}

/// Appends, commits and applies without the model's sectors (their range is smaller).
pub(super) fn put_wide(rig: &mut Rig, effects: Vec<Effect>) {
    rig.extend(R1, effects.clone());
    rig.settle();
    let g = rig.models.get_mut(&R1).expect("created");
    g.hard_state.commit = types::Index(g.durable);
    for effect in effects {
        g.applied += 1;
        rig.engine.apply(R1, types::Index(g.applied), effect);
    }
}

#[test]
fn chunks_come_from_home_and_overlay_and_a_cut_hides_those_below_it() {
    let mut rig = Rig::new(21, true, EngineConfig::default());
    rig.create(1);
    let [a, b, ..] = chunks();
    let at = |chunk| Effect::Write { chunk, range: SectorRange::new(0, 8) };
    rig.extend(R1, vec![at(a)]);
    rig.settle();
    rig.commit(R1, 1);
    rig.round();
    rig.settle();
    assert_eq!(rig.engine.chunks(R1), vec![a], "home holds it");
    rig.extend(R1, vec![at(b)]);
    rig.settle();
    rig.commit(R1, 2);
    let mut both = vec![a, b];
    both.sort_unstable();
    assert_eq!(rig.engine.chunks(R1), both, "home and overlay");
    rig.extend(R1, vec![Effect::Unmap { generation: a.generation, from_chunk: 0 }, at(a)]);
    rig.settle();
    rig.commit(R1, 4);
    let left: Vec<_> = both.into_iter().filter(|c| *c == a || c.generation != a.generation).collect();
    assert_eq!(rig.engine.chunks(R1), left, "what was written after the cut is there");
    rig.round();
    rig.settle();
    assert_eq!(rig.engine.chunks(R1), left, "a round changes nothing");
    assert_eq!(rig.engine.chunks(R2), Vec::new(), "a replica that is not here holds nothing");
}

#[test]
fn round_that_completes_only_zeros_proceeds_without_a_wakeup() {
    let mut rig = Rig::new(4, true, EngineConfig::default());
    rig.create(1);
    let chunk = |index| types::ChunkKey { index, ..chunks()[0] };
    let zero = |n: u32| Effect::Zero { chunk: chunk(n / 20), range: SectorRange::new(n % 20 * 8 + 1, 2) };
    rig.extend(R1, (0..3000).map(zero).collect());
    rig.settle();
    rig.commit(R1, u64::MAX);
    rig.round();
    while rig.seen.checkpoints == 0 {
        rig.turn(0);
        if !rig.disk.is_idle() {
            rig.turn(16);
            continue;
        }
        let waits = rig.engine.next_deadline() != Time::NEVER;
        assert!(waits || rig.seen.checkpoints > 0, "the round waits for nothing");
    }
    rig.restart_and_check();
}

#[test]
fn a_round_that_the_loop_holds_back_is_no_deadline() {
    let config = EngineConfig { round_pressure: 0.0, ..EngineConfig::default() };
    let mut rig = Rig::new(5, true, config);
    rig.create(1);
    rig.settle();
    rig.extend(R1, vec![write(0, 8)]);
    rig.engine.hold_rounds(true);
    rig.settle();
    rig.commit(R1, 1);
    // The log is sealed, too.
    (0..20).for_each(|_| rig.turn(16));
    let late = rig.now + Duration::from_secs(60);
    assert!(!rig.engine.wants_round(late));
    assert_eq!(rig.engine.next_deadline(), Time::NEVER, "a loop that cannot begin one must not turn on the spot");
    rig.engine.hold_rounds(false);
    assert!(rig.engine.wants_round(late) && rig.engine.next_deadline() <= late);
}

#[test]
fn work_that_comes_after_the_end_of_a_turn_needs_no_event_to_be_written() {
    let mut rig = Rig::new(41, true, EngineConfig::default());
    rig.create(1);
    rig.settle();
    rig.extend(R1, vec![write(0, 8)]);
    assert!(rig.engine.next_deadline() <= rig.now, "no batch is in flight whose end would wake the loop");
    rig.turn(0);
    assert!(rig.engine.next_deadline() > rig.now);
    rig.extend(R1, vec![write(8, 8)]);
    assert!(rig.engine.next_deadline() > rig.now, "the end of the batch in flight wakes the loop");
}

#[test]
fn idle_engine_begins_no_round() {
    let config = EngineConfig { round_pressure: 0.0, ..EngineConfig::default() };
    let mut rig = Rig::new(12, true, config);
    rig.create(1);
    rig.extend(R1, vec![write(0, 8), Effect::None]);
    rig.settle();
    rig.commit(R1, 2);
    run_rounds(&mut rig);
    let before = rig.seen.checkpoints;
    assert!(before > 0, "what was written went home at once");
    for _ in 0..100 {
        rig.now = rig.now + Duration::from_millis(500);
        rig.turn(16);
    }
    assert_eq!(rig.seen.checkpoints, before, "a checkpoint of what the last one said");
    assert_eq!(rig.engine.next_deadline(), Time::NEVER);
}

#[test]
fn the_last_map_survives_power_cuts_and_the_log_that_it_was_written_to() {
    let config = EngineConfig { round_pressure: 0.3, ..EngineConfig::default() };
    let mut rig = Rig::new(11, true, config);
    rig.create(1);
    rig.engine.set_map("1=old".into());
    rig.engine.set_map("1=new".into());
    rig.settle();
    rig.restart();
    assert_eq!(&rig.engine.map()[..], b"1=new");
    for n in 0..3000u32 {
        while rig.engine.pressure().max() >= 1.0 {
            rig.turn(8);
        }
        rig.extend(R1, vec![write(n * 8 % 192, 8)]);
        let last = rig.models[&R1].last();
        rig.commit(R1, last);
        rig.turn(4);
    }
    rig.settle();
    rig.restart();
    assert_eq!(&rig.engine.map()[..], b"1=new", "every segment's state block carries it");
}
