//! Replicas that take no part, and the log space that their entries take (R8, ADR 0023).

use super::damage::{damage_of, one_batch, seal, wrap_log};
use super::failed::{OTHER, R, new};
use super::rig::Rig;
use crate::testing::{Model, chunks};
use types::store::Effect;
use types::{Index, SectorRange};

/// Makes R wait for a payload, with two thirds of the log above its checkpoint index; returns its model.
fn repaired_in_a_full_log(seed: u64) -> (Rig, Model) {
    let mut rig = new(seed);
    one_batch(&mut rig, R);
    rig.commit(R, 1);
    rig.round();
    rig.settle();
    let at = one_batch(&mut rig, R);
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    while rig.engine.stats().segments_in_use < 10 {
        rig.extend(R, vec![effect]);
        rig.turn(16);
    }
    seal(&mut rig);
    rig.disk.flip(at + 4096 + 9);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(damage_of(&rig), [(R, true), (OTHER, false)]);
    let waits = rig.models.remove(&R).expect("created");
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    (rig, waits)
}

#[test]
fn full_log_fails_a_replica_under_repair_which_keeps_its_past_at_home() {
    let (mut rig, _) = repaired_in_a_full_log(9);
    wrap_log(&mut rig, OTHER);
    assert_eq!(rig.models[&OTHER].durable, rig.models[&OTHER].last(), "the log goes on");
    let (replica, failure) = rig.seen.failed.pop().expect("its entries had to go");
    assert_eq!((replica, failure.is_past, rig.seen.failed.len()), (R, true, 0));
    for _ in 0..2 {
        assert_eq!(rig.engine.past_end(R).map(|(_, index)| index), Some(Index(1)), "what is at home stays");
        rig.disk.power_cut();
        rig.restart();
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == R).expect("it is there");
        assert_eq!((found.failure.as_ref(), found.checkpoint.index), (Some(&failure), Index(1)));
        assert_eq!((found.entries.iter().filter(|e| e.index > Index(1)).count(), found.lost.len()), (0, 0));
    }
}

#[test]
fn crash_while_the_log_truncates_a_replica_costs_no_past() {
    let mut told = 0;
    for seed in 0..24 {
        let (mut rig, _) = repaired_in_a_full_log(seed);
        let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
        for n in 0.. {
            if !rig.seen.failed.is_empty() {
                break;
            }
            rig.extend(OTHER, vec![effect]);
            rig.turn((n + seed) % 3);
            rig.commit(OTHER, u64::MAX);
        }
        (0..seed / 3).for_each(|_| rig.turn(1));
        rig.disk.power_cut();
        rig.restart();
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == R).expect("it is there");
        assert_eq!(found.checkpoint.index, Index(1), "seed {seed}");
        assert!(found.failure.as_ref().is_none_or(|failure| failure.is_past), "seed {seed}: {:?}", found.failure);
        told += u64::from(found.failure.is_some());
    }
    assert!(told > 0 && told < 24, "some were in time to say so: {told}");
}

#[test]
fn rounds_that_take_no_replica_do_not_fill_the_log() {
    let mut rig = new(13);
    one_batch(&mut rig, R);
    rig.commit(R, 1);
    let before = rig.engine.stats();
    for _ in 0..200 {
        // The round gets no state of the replica, as when it waits for a block.
        rig.now = rig.now + std::time::Duration::from_secs(1);
        rig.engine.begin_round(rig.now, Vec::new());
        rig.settle();
    }
    assert!(rig.engine.stats().rounds <= before.rounds + 2, "{} rounds", rig.engine.stats().rounds);
    assert_eq!(rig.engine.stats().segments_in_use, before.segments_in_use);
    rig.round();
    rig.settle();
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.recovered[0].checkpoint.index, Index(1), "one that takes it does");
}

#[test]
fn truncated_replica_is_not_truncated_again_while_its_record_waits() {
    let (mut rig, _) = repaired_in_a_full_log(14);
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    for _ in 0..400 {
        // The turns run one by one: the log is examined again before the record is in a batch.
        let from = rig.models[&OTHER].last() + 1;
        rig.append(OTHER, from, vec![effect]);
        rig.engine.copy_forward();
        rig.engine.make_room();
        rig.engine.copy_forward();
        rig.engine.make_room();
        rig.turn(8);
        rig.commit(OTHER, u64::MAX);
    }
    rig.settle();
    assert_eq!(rig.seen.failed.len(), 1, "once");
    // No segment holds the record of the truncation any more.
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.engine.past_end(R).map(|(_, index)| index), Some(Index(1)));
}

#[test]
fn segments_that_may_be_freed_are_room_in_the_log() {
    let (mut rig, _) = repaired_in_a_full_log(17);
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    while !rig.engine.tail.no_room {
        rig.extend(OTHER, vec![effect]);
        rig.turn(8);
        rig.commit(OTHER, u64::MAX);
        assert!(rig.seen.failed.is_empty(), "the log was full unseen");
    }
    // The entries of a segment that was freed are being dropped, and the next one waits for them.
    rig.engine.tail.freeable += 1;
    rig.engine.make_room();
    assert!(!rig.engine.tail.no_room && !rig.engine.replicas[&R].has_failed(), "it was decided before");
    rig.engine.copy_forward();
    assert!(!rig.engine.tail.no_room, "there is room");
    rig.engine.tail.freeable -= 1;
    rig.engine.copy_forward();
    assert!(rig.engine.tail.no_room);
}

#[test]
fn failed_replica_keeps_its_log_until_the_log_needs_the_room() {
    let (mut rig, _) = repaired_in_a_full_log(15);
    let lost = rig.engine.lost(R)[0].index;
    let log = &rig.engine.replicas[&R].log;
    let behind = log.get(Index(lost.0 + 1)).map(|kept| (kept.index, kept.term)).expect("it is not the last one");
    rig.engine.fail_before(R, lost, "no peer has it".to_owned());
    rig.settle();
    let holding = rig.engine.holding(R, behind.0, behind.1);
    assert!(
        matches!(holding, types::store::Holding::Payload(..)),
        "another member under repair may need it: {holding:?}"
    );
    assert_eq!(rig.engine.past_end(R).map(|(_, index)| index.0 + 1), Some(lost.0));
    rig.settle();
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.engine.past_end(R).map(|(_, index)| index.0 + 1), Some(lost.0), "the rest is given up for good");
    wrap_log(&mut rig, OTHER);
    assert_eq!(rig.models[&OTHER].durable, rig.models[&OTHER].last(), "the log goes on");
    assert_eq!(rig.engine.reads_as_of(R, chunks()[0], SectorRange::CHUNK), None);
}

#[test]
fn full_log_truncates_a_replica_that_holds_it_by_a_completed_block() {
    let (mut rig, _) = repaired_in_a_full_log(16);
    // A round that a crash interrupted has completed a block of R in the tail; its entries have been carried forward.
    let log = rig.engine.log.as_mut().expect("mounted");
    log.ring.oldest_mut().note_block(R, 2);
    let newest = log.ring.newest_mut().opened;
    let mut r = rig.engine.replicas.get_mut(&R).expect("it is there");
    r.hard_state.commit = Index(2);
    for index in r.log.first().0..=r.log.last().0 {
        r.log.get_mut(Index(index)).expect("it is kept").segment = newest;
        log.ring.newest_mut().note_entry(R, index);
    }
    drop(r);
    wrap_log(&mut rig, OTHER);
    assert!(!rig.seen.failed.is_empty(), "its entries had to go");
    assert_eq!(rig.models[&OTHER].durable, rig.models[&OTHER].last(), "the log goes on");
}
