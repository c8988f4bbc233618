//! State blocks of any number of replicas, over several batches, and the tombstones in them (R9, ADR 0015).

use super::crash::config;
use super::damage::wrap_log;
use super::laws::{run_rounds, write};
use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::{decision_bytes, identity};
use std::time::Duration;
use types::store::DecisionState;
use types::{Index, ReplicaId, Term};

/// Creates replicas 1 to `count`; the last one writes.
fn crowd(seed: u64, count: u64, config: EngineConfig) -> (Rig, ReplicaId) {
    let mut rig = Rig::new(seed, true, config);
    (1..=count).for_each(|id| rig.create(id));
    (rig, ReplicaId(count))
}

#[test]
fn a_state_block_of_any_number_of_replicas_is_written_and_read_back() {
    let (mut rig, writer) = crowd(1, 1500, EngineConfig { round_pressure: 0.2, ..config(0) });
    wrap_log(&mut rig, writer);
    assert_eq!(rig.models[&writer].durable, rig.models[&writer].last(), "the log goes on");
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    let found: Vec<ReplicaId> = rig.seen.recovered.iter().map(|r| r.identity.replica).collect();
    assert_eq!(found, (1..=1500).map(ReplicaId).collect::<Vec<_>>());
    assert!(rig.seen.recovered.iter().all(|r| r.failure.is_none()));
}

#[test]
fn a_crash_in_the_middle_of_a_state_block_loses_no_replica_and_no_vote() {
    let mut cut = 0;
    for seed in 0..14 {
        let small = EngineConfig { round_pressure: 0.2, state_batch_max: 1, ..config(0) };
        let (mut rig, writer) = crowd(seed, 12, small);
        wrap_log(&mut rig, writer);
        // Turns run to a moment at which a block is written in part.
        for _ in 0..4000 {
            if rig.engine.log.as_ref().expect("mounted").state_block.is_some() {
                break;
            }
            let from = rig.models[&writer].last() + 1;
            rig.append(writer, from, vec![write(0, 160)]);
            rig.turn(1);
            rig.commit(writer, u64::MAX);
        }
        (0..seed % 12).for_each(|_| rig.turn(1));
        let log = rig.engine.log.as_ref().expect("mounted");
        cut += u64::from(log.state_block.is_some());
        rig.disk.power_cut();
        rig.restart_and_check();
        // The log continues behind the torn block, wraps, and mounts again.
        wrap_log(&mut rig, writer);
        rig.disk.power_cut();
        rig.restart_and_check();
    }
    assert!(cut > 3, "{cut} crashes were in a block");
}

#[test]
fn log_begins_with_a_whole_state_block_after_a_crash_in_another_one() {
    let mut torn = 0;
    for seed in 0..14 {
        let small = EngineConfig { round_pressure: 0.2, state_batch_max: 1, ..config(0) };
        let (mut rig, writer) = crowd(seed, 12, small);
        wrap_log(&mut rig, writer);
        let turn = |rig: &mut Rig| {
            rig.extend(writer, vec![write(0, 160)]);
            rig.turn(1);
            rig.commit(writer, u64::MAX);
        };
        for _ in 0..4000 {
            if rig.engine.log.as_ref().expect("mounted").state_block.is_some() {
                break;
            }
            turn(&mut rig);
        }
        (0..seed % 12).for_each(|_| rig.turn(1));
        rig.disk.power_cut();
        rig.restart_and_check();
        torn += u64::from(rig.engine.log.as_ref().expect("mounted").ring.newest().is_some_and(|s| !s.stated));
        // An entry without a majority keeps the torn segment while older ones are freed.
        let idle = ReplicaId(1);
        rig.extend(idle, vec![write(0, 8)]);
        for _ in 0..1500 {
            turn(&mut rig);
            let log = rig.engine.log.as_ref().expect("mounted");
            assert!(log.ring.live()[0].stated, "seed {seed}: the log begins with records of unknown replicas");
        }
        rig.disk.power_cut();
        rig.restart_and_check();
    }
    assert!(torn > 3, "{torn} crashes tore a state block");
}

#[test]
fn the_last_whole_state_block_is_not_freed_while_a_later_one_is_written() {
    let small = EngineConfig { round_pressure: 0.2, state_batch_max: 1, ..config(0) };
    let (mut rig, writer) = crowd(3, 12, small);
    for _ in 0..3000 {
        rig.extend(writer, vec![write(0, 160)]);
        rig.turn(1);
        rig.commit(writer, u64::MAX);
        let log = rig.engine.log.as_ref().expect("mounted");
        assert!(log.ring.live().iter().any(|s| s.stated), "no live segment knows all replicas");
    }
    assert!(rig.engine.stats().rounds > 3, "the log went round");
}

#[test]
fn tombstones_below_the_floor_are_dropped_and_their_ids_stay_refused() {
    let quick = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let (mut rig, _) = crowd(4, 2, quick);
    let mut next = 3;
    for _ in 0..25 {
        let ids = next..next + 8;
        next += 8;
        ids.clone().for_each(|id| rig.create(id));
        for id in ids.clone() {
            rig.append(ReplicaId(id), 1, vec![write(0, 8)]);
        }
        rig.settle();
        ids.clone().for_each(|id| rig.commit(ReplicaId(id), 1));
        rig.engine.set_replica_floor(ReplicaId(next));
        run_rounds(&mut rig);
        for id in ids {
            rig.destroy(ReplicaId(id));
        }
        assert!(rig.engine.tombstone_count() >= 8, "until a checkpoint says so they are needed");
        run_rounds(&mut rig);
        assert_eq!(rig.engine.tombstone_count(), 0);
    }
    wrap_log(&mut rig, ReplicaId(1));
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!((3..next).all(|id| rig.engine.is_gone(ReplicaId(id))), "a late order is refused");
    assert!(!rig.engine.is_gone(ReplicaId(1)) && !rig.engine.is_gone(ReplicaId(next)));
    rig.engine.ids.creates_lost = crate::engine::ANY_REPLICA;
    assert!(!rig.engine.is_gone(ReplicaId(3)), "a store that lacks births does not go by the floor");
}

#[test]
fn a_crash_before_a_birth_leaves_no_floor_that_refuses_the_replica() {
    for state_batch_max in [layout::log::STATE_BATCH_MAX, 1] {
        let small = EngineConfig { round_pressure: 0.2, state_batch_max, ..config(0) };
        let (mut rig, writer) = crowd(8, 12, small);
        let unborn = ReplicaId(100);
        let newest = |rig: &Rig| {
            let segment = rig.engine.log.as_ref().expect("mounted").ring.newest().expect("it is open");
            (segment.opened, segment.stated)
        };
        // Fills a segment nearly; work queued before the create record opens the next one.
        while rig.engine.log.as_ref().expect("mounted").ring.space() > 256 << 10 {
            let from = rig.models[&writer].last() + 1;
            rig.append(writer, from, vec![write(0, 160)]);
            rig.settle();
        }
        let (opened, from) = (newest(&rig).0, rig.models[&writer].last() + 1);
        rig.append(writer, from, vec![write(0, 160); 12]);
        let bytes = decision_bytes(unborn, Index(0));
        let decision = DecisionState { replica: unborn, index: Index(0), term: Term(0), bytes };
        rig.engine.create_replica(identity(unborn, 1), decision);
        rig.engine.set_replica_floor(ReplicaId(101));
        for _ in 0..200 {
            if newest(&rig).0 > opened && newest(&rig).1 {
                break;
            }
            rig.turn(1);
        }
        assert!(newest(&rig).0 > opened && newest(&rig).1, "no segment was opened");
        assert!(!rig.engine.replicas[&unborn].born, "the birth record waits behind the state block");
        rig.disk.power_cut();
        rig.restart_and_check();
        assert!(!rig.engine.is_gone(unborn), "meta wants it, and it is refused");
        rig.create(unborn.0);
        rig.engine.set_replica_floor(ReplicaId(101));
        rig.settle();
        assert_eq!(rig.engine.ids.floor, ReplicaId(101), "a birth lets the floor rise");
        // A replica destroyed before its create record is written does not hold the floor.
        let bytes = decision_bytes(ReplicaId(102), Index(0));
        let decision = DecisionState { replica: ReplicaId(102), index: Index(0), term: Term(0), bytes };
        rig.engine.create_replica(identity(ReplicaId(102), 1), decision);
        rig.engine.set_replica_floor(ReplicaId(103));
        assert_eq!(rig.engine.ids.floor, ReplicaId(102));
        rig.engine.destroy_replica(ReplicaId(102));
        assert_eq!(rig.engine.ids.floor, ReplicaId(103));
        rig.settle();
        rig.disk.power_cut();
        rig.restart_and_check();
        assert!(rig.engine.is_gone(ReplicaId(102)) && !rig.engine.is_gone(unborn));
    }
}

#[test]
fn replica_destroyed_in_a_round_keeps_its_tombstone_until_a_checkpoint() {
    for seed in 0..12 {
        let quick = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
        let (mut rig, _) = crowd(seed, 3, quick);
        rig.engine.set_replica_floor(ReplicaId(4));
        for id in 1..=3 {
            rig.append(ReplicaId(id), 1, vec![write(0, 160)]);
        }
        rig.settle();
        (1..=3).for_each(|id| rig.commit(ReplicaId(id), 1));
        run_rounds(&mut rig);
        rig.append(ReplicaId(1), 2, vec![write(0, 160)]);
        rig.settle();
        rig.commit(ReplicaId(1), 2);
        rig.round();
        (0..seed % 4).for_each(|_| rig.turn(1));
        rig.destroy(ReplicaId(2));
        rig.settle();
        wrap_log(&mut rig, ReplicaId(1));
        rig.disk.power_cut();
        rig.restart_and_check();
        assert!(rig.engine.is_gone(ReplicaId(2)) && rig.engine.ids.nameless.is_empty());
        assert_eq!(rig.engine.first_index(ReplicaId(2)), Index(0), "it is not there");
    }
}

#[test]
fn a_store_takes_no_replica_whose_state_would_not_fit_half_a_segment() {
    let (rig, _) = crowd(5, 3, config(0));
    assert!(rig.engine.has_room_for_replica());
    let small = EngineConfig { state_batch_max: 1, ..config(0) };
    let (rig, _) = crowd(6, 130, small);
    assert!(!rig.engine.has_room_for_replica(), "a page each");
}
