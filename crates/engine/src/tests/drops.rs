//! Turns are bounded: so many blocks of a round are handed over, so many entries and intervals dropped, however long the log is.

use super::damage::config;
use super::rig::Rig;
use crate::drops::QUEUE_SHARE;
use crate::round::RoundStep;
use crate::testing::{SECTORS, chunks};
use crate::{EngineConfig, EngineStats, StepLimits};
use types::store::Effect;
use types::{ReplicaId, SectorRange};

const R: ReplicaId = ReplicaId(1);
const DROPS_MAX: usize = 8;
const ROUND_BLOCKS: usize = 3;
/// Blocks that [`fill`] writes.
const BLOCKS: usize = 4 * SECTORS as usize / 16;

/// Entries and intervals in memory, wherever they are.
fn held(rig: &Rig) -> (usize, usize) {
    let (entries, intervals) = rig.engine.drops.parts();
    let overlays: usize = rig.engine.replicas.values().map(|r| r.overlay.interval_count()).sum();
    (rig.engine.stats().entries_retained as usize + entries, overlays + intervals)
}

/// The most that a turn may drop when everything is to be dropped.
fn turn_max(rig: &Rig) -> usize {
    let (entries, intervals) = held(rig);
    DROPS_MAX.max((entries + intervals) / QUEUE_SHARE)
}

/// Writes every other block, again and again, until the log is nearly full.
fn fill(rig: &mut Rig) -> EngineStats {
    rig.engine.hold_rounds(true);
    while rig.engine.pressure().log < 0.9 {
        let from = rig.models[&R].last() + 1;
        let blocks = (0..SECTORS / 16).map(|n| SectorRange::new(n * 16, 8));
        let writes = chunks().map(|chunk| blocks.clone().map(move |range| Effect::Write { chunk, range }));
        rig.append(R, from, writes.into_iter().flatten().collect());
        rig.turn(16);
        rig.commit(R, u64::MAX);
    }
    rig.settle();
    rig.commit(R, u64::MAX);
    rig.engine.hold_rounds(false);
    rig.engine.stats()
}

/// Runs turns until nothing is left to drop; returns the most that one of them has dropped.
fn drain(rig: &mut Rig, done: impl Fn(&Rig) -> bool) -> (usize, usize) {
    let mut most = (0, 0);
    let mut before = held(rig);
    for _ in 0..20_000 {
        rig.turn(4);
        let now = held(rig);
        most = (most.0.max(before.0.saturating_sub(now.0)), most.1.max(before.1.saturating_sub(now.1)));
        if done(rig) && rig.engine.drops.is_empty() {
            return most;
        }
        assert!(done(rig) || !rig.engine.drops.is_empty() || rig.engine.is_round_running(), "nothing goes on");
        before = now;
    }
    panic!("the drops do not end");
}

#[test]
fn round_and_freed_segments_are_dropped_a_bounded_part_in_each_turn() {
    let steps = StepLimits { drops_max: DROPS_MAX, round_blocks: ROUND_BLOCKS, ..StepLimits::default() };
    let mut rig = Rig::new(3, true, EngineConfig { steps, ..config() });
    rig.create(R.0);
    let before = fill(&mut rig);
    assert!(before.entries_retained > 200, "{before:?}");
    let max = turn_max(&rig);
    rig.round();
    let mut turns = 0;
    while !matches!(rig.engine.destage.round, RoundStep::Home { .. }) {
        turns += usize::from(matches!(rig.engine.destage.round, RoundStep::HandingOver { .. }));
        rig.turn(4);
    }
    assert!(turns >= BLOCKS / ROUND_BLOCKS, "{BLOCKS} blocks were handed over in {turns} turns");
    let rounds = before.rounds + 1;
    let most = drain(&mut rig, |rig| rig.engine.stats().rounds >= rounds);
    assert!(most.0 <= max && most.1 <= max, "{most:?} in one turn");
    let after = rig.engine.stats();
    assert!(after.segments_in_use <= before.segments / 2, "{after:?}");
    assert!(after.entries_retained < before.entries_retained, "{after:?}");
    rig.check_all_sectors();
}

#[test]
fn destroyed_replica_is_dropped_a_bounded_part_in_each_turn() {
    let steps = StepLimits { drops_max: DROPS_MAX, ..StepLimits::default() };
    let mut rig = Rig::new(4, true, EngineConfig { steps, ..config() });
    rig.create(R.0);
    let before = fill(&mut rig);
    let max = turn_max(&rig);
    rig.engine.destroy_replica(R);
    rig.models.remove(&R);
    assert_eq!(rig.engine.drops.parts().0, before.entries_retained as usize);
    let most = drain(&mut rig, |_| true);
    assert!(most.0 > 0 && most.0 <= max && most.1 <= max, "{most:?} in one turn");
}
