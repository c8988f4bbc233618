//! Power cuts at every moment of a round, and failed writes.

use super::rig::{Key, Plan, Rig, chunk};
use super::rounds::random_plan;
use crate::home::HomeLimits;
use crate::home_api::{HomeEvent, Unmap};
use env::DiskKind;
use types::rng::Rng;
use types::{GenerationId, ReplicaId};

const LEN: u64 = 24 << 20;

fn limits() -> HomeLimits {
    HomeLimits { slot_count: Some(512), background_ops_max: 4, ..HomeLimits::default() }
}

/// Returns a home with some history, and the round that will be interrupted.
fn prepared(seed: u64, kind: DiskKind, volatile: bool) -> (Rig, Plan) {
    prepared_with(limits(), seed, kind, volatile)
}

/// Does the same with these limits.
fn prepared_with(limits: HomeLimits, seed: u64, kind: DiskKind, volatile: bool) -> (Rig, Plan) {
    let mut rig = Rig::on(seed, (kind, 512, volatile), LEN, limits);
    rig.rng = Rng::new(seed);
    for index in 1..6 {
        let plan = random_plan(&mut rig, index);
        rig.round(plan);
    }
    let mut plan = random_plan(&mut rig, 7);
    let cut = Unmap { replica: ReplicaId(2), generation: GenerationId(2), from_chunk: 1 };
    plan.unmaps.push(cut);
    // Some blocks are certainly rewritten in place, and some are not touched.
    let held: Vec<Key> = rig.base.keys().copied().filter(|key| !plan.drops(key)).step_by(3).collect();
    for key in held {
        rig.stamp += 1;
        plan.blocks.insert(key, rig.stamp);
    }
    (rig, plan)
}

/// Begins the round and cuts the power after `steps`; returns the records if it was ready before.
fn cut_after(rig: &mut Rig, plan: &Plan, steps: usize) -> Option<Vec<bytes::Bytes>> {
    rig.begin(plan.clone());
    for _ in 0..steps {
        if rig.is_idle() {
            break;
        }
        rig.step();
    }
    let ready = rig.take_ready();
    rig.disk.power_cut();
    ready
}

#[test]
fn a_round_that_is_cut_anywhere_leaves_the_last_checkpoint_whole() {
    cut_anywhere(limits(), 40);
}

#[test]
fn rounds_in_ascending_order_survive_power_cuts() {
    cut_anywhere(HomeLimits { elevator: true, background_ops_max: 2, ..limits() }, 20);
}

/// Cuts rounds after each of their steps, so many times at least.
fn cut_anywhere(limits: HomeLimits, cuts_min: u32) {
    let mut cuts = 0;
    for (seed, stride, kind, volatile) in
        [(1, 1, DiskKind::File, true), (2, 4, DiskKind::Block, true), (3, 4, DiskKind::Block, false)]
    {
        for steps in (0..).step_by(stride) {
            let (mut rig, plan) = prepared_with(limits, seed, kind, volatile);
            let ready = cut_after(&mut rig, &plan, steps);
            let done = ready.is_some();
            // The checkpoint never became durable: the old one counts, ready or not.
            let (states, damaged) = rig.mount();
            assert!(damaged.is_empty(), "seed {seed}, {steps} steps: {damaged:?}");
            assert!(states.iter().all(|s| s.decision.index.0 < 7));
            rig.home.audit().unwrap();
            // Entries that the log redoes are in the overlay again; every other block is unchanged.
            let redone = plan.clone();
            rig.check_base(|key| redone.blocks.contains_key(key) || redone.drops(key));
            rig.round(plan);
            rig.home.audit().unwrap();
            rig.check_base(|_| false);
            cuts += 1;
            if done {
                break;
            }
        }
    }
    assert!(cuts > cuts_min, "only {cuts} cuts");
}

#[test]
fn a_round_is_whole_from_the_moment_its_checkpoint_is_durable() {
    for seed in 0..12 {
        let (mut rig, plan) = prepared(seed, DiskKind::File, true);
        let records = cut_after(&mut rig, &plan, usize::MAX).expect("the round is ready");
        plan.apply(&mut rig.base);
        rig.records = Some(records);
        let (states, damaged) = rig.mount();
        assert!(damaged.is_empty() && states.iter().any(|s| s.decision.index.0 == 7), "{damaged:?}");
        rig.home.audit().unwrap();
        rig.check_base(|_| false);
    }
}

#[test]
fn what_a_checkpoint_dropped_is_not_reused_before_the_next_one_is_durable() {
    // The home is so tight that a round only fits into space that an earlier round freed.
    let mut rig = Rig::new(5, 2 << 20, HomeLimits { slot_count: Some(64), ..limits() });
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..256, 7));
    let mut swap = Plan::states(&[1], 4).put(1, chunk(2, 0), 0..256, 8);
    swap.unmaps.push(Unmap { replica: ReplicaId(1), generation: GenerationId(1), from_chunk: 0 });
    assert!(!rig.try_round(swap.clone()), "the old AUs are named by the checkpoint in force");
    rig.check_base(|_| false);
    let mut cut = swap.clone();
    cut.blocks.clear();
    rig.round(cut);
    swap.unmaps.clear();
    assert!(rig.try_round(swap), "after the flip they are free");
    rig.check_base(|_| false);
}

#[test]
fn what_a_round_drops_is_not_free_before_its_flip() {
    let mut rig = Rig::new(5, LEN, limits());
    let plan = Plan::states(&[1], 3).put(1, chunk(1, 0), 0..64, 7).put(1, chunk(1, 1), [0], 8);
    rig.round(plan);
    let before = (rig.home.free_bytes(), rig.home.free_slots());
    // Three AUs and a chunk are dropped; map, CRC and directory pages and a decision state move.
    rig.begin(Plan::states(&[1], 4).put(1, chunk(1, 0), 16..64, 0).put(1, chunk(1, 1), [0], 0));
    rig.settle();
    let records = rig.take_ready().expect("the round is ready");
    // One map page and one directory page were taken, and no slot came back.
    assert_eq!((rig.home.free_bytes(), rig.home.free_slots()), (before.0, before.1 - 2));
    rig.home.audit().unwrap();
    rig.commit(records);
    // The two pages replaced, map and CRC page of the chunk, and two decision pages come back.
    assert_eq!((rig.home.free_bytes(), rig.home.free_slots()), (before.0 + 4 * types::AU, before.1 + 4));
}

#[test]
fn a_tight_home_survives_rounds_that_never_become_durable() {
    let mut lost = 0;
    for seed in 0..6 {
        let tight = HomeLimits { slot_count: Some(64), ..limits() };
        let mut rig = Rig::new(seed, (64 << 12) + 24 * types::AU, tight);
        rig.rng = Rng::new(seed);
        for index in 1..80 {
            let mut plan = Plan::states(&[1, 2], index);
            for _ in 0..rig.rng.between(2, 10) {
                let first = rig.rng.below(8) as u16 * 16 + rig.rng.below(2) as u16 * 1024;
                let place = chunk(1, rig.rng.below(2) as u32);
                let replica = rig.rng.between(1, 2);
                rig.stamp += 1;
                let stamp = if rig.rng.chance(1, 2) { 0 } else { rig.stamp };
                plan = plan.put(replica, place, first..first + 16, stamp);
            }
            if rig.rng.chance(1, 2) {
                rig.try_round(plan);
            } else if cut_after(&mut rig, &plan, usize::MAX).is_some() {
                lost += 1;
                assert_eq!(rig.mount().1, vec![]);
                rig.home.audit().unwrap();
                rig.check_base(|key| plan.blocks.contains_key(key));
                // The log redoes the lost round, until it is destaged.
                rig.round(plan);
            } else {
                assert_eq!(rig.mount().1, vec![], "a full home is whole");
            }
        }
        rig.check_base(|_| false);
    }
    assert!(lost > 60, "only {lost} rounds were lost");
}

#[test]
fn the_first_failed_write_or_flush_poisons_and_nothing_is_written_after() {
    let (mut rig, plan) = prepared(9, DiskKind::File, true);
    let before = rig.disk.ended;
    rig.begin(plan);
    rig.settle();
    let total = rig.disk.ended - before;
    for n in 0..total {
        let (mut rig, plan) = prepared(9, DiskKind::File, true);
        rig.disk.fails = before + n..before + n + 1;
        rig.begin(plan.clone());
        rig.settle();
        assert!(matches!(rig.events[..], [HomeEvent::Failed { .. }]), "{n}: {:?}", rig.events);
        rig.events.clear();
        let ended = rig.disk.ended;
        rig.check_base(|key| plan.blocks.contains_key(key) || plan.drops(key));
        assert_eq!(rig.disk.ended, ended);
        rig.disk.power_cut();
        assert!(rig.mount().1.is_empty());
        rig.check_base(|key| plan.blocks.contains_key(key) || plan.drops(key));
    }
}
