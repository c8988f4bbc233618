//! Payloads of the log that lie at home: adopted, released, claimed.

use super::rig::{Plan, Rig, START, chunk};
use crate::home::HomeLimits;
use crate::home_api::Unmap;
use env::DiskKind;
use layout::log::PlacedRun;
use types::{AU, GenerationId, ReplicaId};

const LEN: u64 = 16 << 20;
const R1: ReplicaId = ReplicaId(1);

fn limits() -> HomeLimits {
    HomeLimits { slot_count: Some(256), background_ops_max: 4, ..HomeLimits::default() }
}

/// Returns a home that holds two AUs of a chunk, with stamps 5 and 6.
fn prepared(seed: u64, (kind, volatile): (DiskKind, bool)) -> Rig {
    let mut rig = Rig::on(seed, (kind, 512, volatile), LEN, limits());
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..16, 5).put(1, chunk(1, 0), 16..32, 6));
    rig
}

/// Adds an AU of a chunk with the bytes of a placed payload.
fn adopting(mut plan: Plan, at: u16, unit: u32, stamp: u64) -> Plan {
    plan.adopts.insert((R1, chunk(1, 0), at), unit);
    plan.put(1, chunk(1, 0), 16 * at..16 * at + 16, stamp)
}

fn logged(rig: &Rig) -> Vec<u32> {
    rig.home.placed().flat_map(|(_, units)| units).collect()
}

#[test]
fn adopted_au_is_read_with_its_hash_and_is_not_written_again() {
    let mut rig = prepared(1, (DiskKind::File, true));
    let (free, written) = (rig.home.free_bytes(), rig.home.stats().written_bytes);
    let (over, fresh) = (rig.place(1, 7), rig.place(1, 8));
    rig.home.audit().unwrap();
    let plan = adopting(adopting(Plan::states(&[1], 3), 0, over, 7), 9, fresh, 8);
    rig.begin(plan);
    rig.settle();
    rig.home.audit().unwrap();
    assert_eq!(rig.home.stats().exchanged_bytes, AU, "the AU under one of them is dropped");
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    rig.home.audit().unwrap();
    assert_eq!((rig.home.placed_count(), rig.home.free_bytes()), (0, free - AU));
    assert_eq!(rig.home.stats().exchanged_bytes, 0);
    let pages = rig.home.stats().written_bytes - written;
    assert!(pages <= 6 * 4096, "{pages} bytes: two payloads of 64 KiB were there already");
    rig.check_base(|_| false);
    rig.disk.power_cut();
    assert!(rig.mount().1.is_empty());
    rig.home.audit().unwrap();
    rig.check_base(|_| false);
    // From now on it is an AU like every other.
    rig.round(Plan::states(&[1], 4).put(1, chunk(1, 0), 3..20, 9));
    rig.check_base(|_| false);
}

#[test]
fn unit_that_no_round_adopts_is_free_after_the_flip_and_not_before() {
    let mut rig = prepared(2, (DiskKind::File, true));
    let free = rig.home.free_bytes();
    let (kept, gone) = (rig.place(1, 7), rig.place(1, 8));
    let mut plan = Plan::states(&[1], 3);
    plan.released = vec![(R1, vec![gone])];
    rig.begin(plan);
    rig.settle();
    assert_eq!(rig.home.free_bytes(), free - 2 * AU);
    rig.home.audit().unwrap();
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    assert_eq!((rig.home.free_bytes(), logged(&rig)), (free - AU, vec![kept]));
    rig.home.audit().unwrap();
}

#[test]
fn round_that_is_refused_leaves_placed_payloads_as_they_are() {
    let mut rig = Rig::new(3, (64 << 12) + 24 * AU, HomeLimits { slot_count: Some(64), ..limits() });
    let units = [rig.place(1, 7), rig.place(1, 8)];
    let mut plan = adopting(Plan::states(&[1], 3), 0, units[0], 7);
    plan.released = vec![(R1, vec![units[1]])];
    let fits = plan.clone().put(1, chunk(1, 0), 256..256 + 22 * 16, 9);
    let too_long = plan.put(1, chunk(1, 0), 256..256 + 23 * 16, 9);
    assert!(!rig.try_round(too_long), "23 AUs do not fit beside two logged ones");
    assert_eq!(logged(&rig), units);
    rig.home.audit().unwrap();
    assert!(rig.try_round(fits), "an adopted AU takes no free one");
    assert_eq!((rig.home.placed_count(), rig.home.free_bytes()), (0, AU), "the released one is free");
    rig.home.audit().unwrap();
    rig.check_base(|_| false);
}

/// A round that adopts, releases and cuts, and the payloads that it is about.
struct Interrupted {
    rig: Rig,
    plan: Plan,
    placed: Vec<(u32, u64)>,
}

fn interrupted(seed: u64, disk: (DiskKind, bool)) -> Interrupted {
    let mut rig = prepared(seed, disk);
    rig.round(Plan::states(&[1], 3).put(1, chunk(2, 1), 0..40, 4));
    let placed: Vec<(u32, u64)> = (20..25).map(|stamp| (rig.place(1, stamp), stamp)).collect();
    let mut plan = Plan::states(&[1], 4);
    for (at, (unit, stamp)) in [0, 1, 7].into_iter().zip(&placed) {
        plan = adopting(plan, at, *unit, *stamp);
    }
    plan.released = vec![(R1, placed.iter().map(|(unit, _)| *unit).collect())];
    // The payload of unit 3 was overwritten in part: its blocks are copied.
    plan = plan.put(1, chunk(1, 0), 160..170, placed[3].1).put(1, chunk(1, 0), 170..176, 99);
    plan.unmaps.push(Unmap { replica: R1, generation: GenerationId(2), from_chunk: 1 });
    Interrupted { rig, plan, placed }
}

#[test]
fn round_cut_anywhere_leaves_the_payloads_that_the_log_names() {
    let mut cuts = 0;
    let disks = [(DiskKind::File, true), (DiskKind::Block, true), (DiskKind::Block, false)];
    for (seed, disk) in (0..8).flat_map(|seed| disks.map(|disk| (seed, disk))) {
        for steps in 0.. {
            let Interrupted { mut rig, plan, placed } = interrupted(seed, disk);
            rig.begin(plan.clone());
            (0..steps).for_each(|_| {
                if !rig.is_idle() {
                    rig.step()
                }
            });
            let ready = rig.take_ready().is_some();
            rig.disk.power_cut();
            assert!(rig.mount().1.is_empty(), "seed {seed}, {steps} steps");
            for (unit, stamp) in &placed {
                assert!(rig.has_placed(*unit, *stamp), "seed {seed}, {steps} steps: payload {stamp} has changed");
                assert!(rig.home.claim_placed(R1, &[PlacedRun { unit: *unit, count: 1 }]));
            }
            rig.home.audit().unwrap();
            let redone = plan.clone();
            rig.check_base(|key| redone.blocks.contains_key(key) || redone.drops(key));
            rig.round(plan);
            rig.home.audit().unwrap();
            rig.check_base(|_| false);
            assert_eq!(rig.home.placed_count(), 0);
            cuts += 1;
            if ready {
                break;
            }
        }
    }
    assert!(cuts > 80, "only {cuts} cuts");
}

#[test]
fn adoption_counts_from_the_moment_its_checkpoint_is_durable() {
    for seed in 0..8 {
        let Interrupted { mut rig, plan, placed } = interrupted(seed, (DiskKind::File, true));
        rig.begin(plan.clone());
        rig.settle();
        let records = rig.take_ready().expect("the round is ready");
        rig.disk.power_cut();
        plan.apply(&mut rig.base);
        rig.records = Some(records);
        assert!(rig.mount().1.is_empty());
        rig.home.audit().unwrap();
        rig.check_base(|_| false);
        let claims = placed.iter().map(|(unit, _)| rig.home.claim_placed(R1, &[PlacedRun { unit: *unit, count: 1 }]));
        assert_eq!(claims.collect::<Vec<_>>(), [false, false, false, true, true], "home owns the adopted ones");
    }
}

#[test]
fn claim_of_an_owned_foreign_or_doubled_unit_fails_whole() {
    let mut rig = prepared(4, (DiskKind::File, true));
    let first = ((START + (256 << 12)) / AU) as u32;
    let count = rig.home.geometry.au_count;
    let mut claim = |runs: &[(u32, u32)]| {
        let runs: Vec<PlacedRun> = runs.iter().map(|(unit, count)| PlacedRun { unit: *unit, count: *count }).collect();
        let done = rig.home.claim_placed(R1, &runs);
        rig.home.audit().unwrap();
        (done, rig.home.placed_count())
    };
    assert_eq!(claim(&[(first + 4, 2), (first + 1, 1)]), (false, 0), "home owns AU 1");
    assert_eq!(claim(&[(first + 4, 2), (first - 1, 1)]), (false, 0), "a slot");
    assert_eq!(claim(&[(first + count - 1, 2)]), (false, 0), "behind the last AU");
    assert_eq!(claim(&[(first + 4, 2), (first + 5, 1)]), (false, 0), "one AU twice");
    assert_eq!(claim(&[(first + count - 1, 1), (first + 4, 2)]), (true, 3));
    assert_eq!(claim(&[(first + 5, 1)]), (false, 3), "it is logged already");
}

#[test]
fn placing_leaves_space_to_rounds_overlays_and_everything_else() {
    let mut rig = prepared(5, (DiskKind::File, true));
    let free = rig.home.free_bytes() / AU;
    let margin = u64::from(rig.home.geometry.au_count / 20);
    assert_eq!(rig.home.aus_for_placing(0, 0), free - margin);
    assert_eq!(rig.home.aus_for_placing(7, 100 * AU), free - 107);
    assert_eq!(rig.home.aus_for_placing(free, 0), 0);
    rig.begin(Plan::states(&[1], 3).put(1, chunk(3, 0), 0..64, 9));
    assert!(rig.home.aus_for_placing(0, 0) <= free - margin - 4, "the round takes four");
    rig.settle();
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    rig.home.poison();
    assert_eq!(rig.home.aus_for_placing(0, 0), 0);
}
