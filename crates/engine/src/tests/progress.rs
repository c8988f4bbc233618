//! Reports of a destage stall: none while a round makes progress, however slow (docs/operate.md).

use super::damage::config;
use super::rig::Rig;
use crate::testing::chunks;
use env::DiskError;
use std::time::Duration;
use types::store::{DecisionState, Effect};
use types::{ReplicaId, SectorRange};

const IDS: [u64; 3] = [1, 2, 3];

/// Fills the log to more than half: all three replicas have data to destage in every chunk.
fn press(rig: &mut Rig) {
    rig.engine.hold_rounds(true);
    while rig.engine.pressure().log < 0.6 {
        for id in IDS.map(ReplicaId) {
            let from = rig.models[&id].last() + 1;
            let write = |chunk| Effect::Write { chunk, range: SectorRange::new(0, 96) };
            rig.append(id, from, chunks().map(write).to_vec());
            rig.turn(16);
            rig.commit(id, u64::MAX);
        }
    }
    rig.settle();
    for id in IDS.map(ReplicaId) {
        rig.commit(id, u64::MAX);
    }
    rig.engine.hold_rounds(false);
}

/// Runs `count` seconds, with a look each, and `completions` completions of the disk in each.
fn seconds(rig: &mut Rig, count: u64, completions: u64) {
    for _ in 0..count {
        rig.now = rig.now + Duration::from_secs(1);
        rig.turn(completions);
    }
}

#[test]
fn slow_round_is_progress_and_a_stalled_one_is_reported_until_poison() {
    let mut rig = Rig::new(1, true, config());
    IDS.into_iter().for_each(|id| rig.create(id));
    press(&mut rig);
    rig.round();
    let began = rig.now;
    while rig.engine.is_round_running() {
        seconds(&mut rig, 4, 0);
        rig.turn(1);
        assert_eq!(rig.engine.destage_stuck(), None, "{:?} into the round", rig.now.since(began));
    }
    assert!(rig.now.since(began) > Duration::from_secs(30), "{:?}", rig.now.since(began));
    press(&mut rig);
    rig.round();
    seconds(&mut rig, 3, 1);
    seconds(&mut rig, 9, 0);
    assert_eq!(rig.engine.destage_stuck(), None);
    // The round goes on without completions until its writes in flight are as many as the device may have.
    seconds(&mut rig, 6, 0);
    let reason = rig.engine.destage_stuck().expect("nothing moves").to_owned();
    assert!(reason.contains("its destage round makes no progress"), "{reason}");
    seconds(&mut rig, 2, 1);
    assert_eq!(rig.engine.destage_stuck(), None, "it moves again");
    seconds(&mut rig, 15, 0);
    assert!(rig.engine.destage_stuck().is_some());
    rig.engine.poison("a test", DiskError::Io(5));
    assert_eq!(rig.engine.destage_stuck(), None, "the poison says it all");
}

#[test]
fn a_replica_that_whole_rounds_leave_out_is_named_although_rounds_run() {
    let mut rig = Rig::new(2, true, config());
    IDS.into_iter().for_each(|id| rig.create(id));
    press(&mut rig);
    let left_out = ReplicaId(2);
    for _ in 0..40 {
        rig.engine.hold_rounds(true);
        rig.extend(ReplicaId(1), vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
        rig.turn(16);
        rig.commit(ReplicaId(1), u64::MAX);
        let states: Vec<DecisionState> = rig.models.values().map(|g| g.decision()).collect();
        let states = states.into_iter().filter(|state| state.replica != left_out).collect();
        rig.engine.begin_round(rig.now, states);
        rig.engine.hold_rounds(false);
        // Most looks fall into a round.
        seconds(&mut rig, 1, 1);
        rig.engine.hold_rounds(true);
        rig.settle();
        rig.engine.hold_rounds(false);
        if rig.engine.destage_stuck().is_some() {
            break;
        }
    }
    let reason = rig.engine.destage_stuck().expect("it is left out").to_owned();
    assert!(reason.contains("pg 1.2 ") && reason.contains("destage rounds do not include it"), "{reason}");
}
