//! Rounds and reads without failures: against the model, at the limits, over thousands of rounds.

use super::rig::{Key, Plan, Rig, check_piece, chunk};
use crate::home::HomeLimits;
use crate::home_api::{At, HomeEvent, Piece, Unmap};
use env::DiskKind;
use std::collections::BTreeMap;
use types::{AU, BLOCK, GenerationId, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const MIB: u64 = 1 << 20;

fn small(slots: u32) -> HomeLimits {
    HomeLimits { slot_count: Some(slots), background_ops_max: 4, ..HomeLimits::default() }
}

/// Returns some blocks in some chunks; now and then zeros, a cut, a destroyed replica.
pub(super) fn random_plan(rig: &mut Rig, index: u64) -> Plan {
    let mut plan = Plan::states(&[1, 2, 3], index);
    plan.marks.insert(GenerationId(2));
    if rig.rng.chance(1, 12) {
        let replica = ReplicaId(rig.rng.between(1, 2));
        plan.unmaps.push(Unmap {
            replica,
            generation: GenerationId(rig.rng.between(1, 2)),
            from_chunk: rig.rng.below(2) as u32,
        });
    }
    if rig.rng.chance(1, 16) {
        plan.destroyed.push(ReplicaId(3));
        plan.states.pop();
    }
    for _ in 0..rig.rng.between(1, 6) {
        let replica = ReplicaId(rig.rng.between(1, plan.states.len() as u64));
        let place = chunk(rig.rng.between(1, 2), rig.rng.below(2) as u32);
        let first = rig.rng.below(12) * 8 + rig.rng.below(2) * 1024;
        for block in first..first + rig.rng.between(1, 40) {
            if rig.rng.chance(3, 4) {
                rig.stamp += 1;
                let stamp = if rig.rng.chance(1, 5) { 0 } else { rig.stamp };
                plan.blocks.insert((replica, place, block as u16), stamp);
            }
        }
    }
    plan
}

/// Reads in flight: the range that each reads.
type Begun = BTreeMap<u64, (ReplicaId, types::ChunkKey, SectorRange)>;

#[test]
fn reads_beside_rounds_see_one_version_of_each_block() {
    let (mut index, mut retries, mut answers) = (0, 0, 0);
    for seed in 0..12 {
        let mut rig = Rig::new(seed, 24 * MIB, small(512));
        rig.rng = types::rng::Rng::new(seed);
        let (mut begun, mut ticket) = (Begun::new(), 0);
        for _ in 0..2500 {
            if begun.len() < 16 && rig.rng.chance(1, 2) {
                ticket += 1;
                let replica = ReplicaId(rig.rng.between(1, 3));
                let start = rig.rng.below(8 * 100) as u32 + rig.rng.below(2) as u32 * 8192;
                let range = SectorRange::new(start, rig.rng.between(1, 100) as u32);
                let read = (replica, chunk(rig.rng.between(1, 2), rig.rng.below(2) as u32), range);
                begun.insert(ticket, read);
                read_around(&mut rig, ticket, read);
            }
            if !rig.home.round_running() && rig.rng.chance(1, 20) {
                index += 1;
                let plan = random_plan(&mut rig, index);
                rig.begin(plan);
            } else if !rig.is_idle() && rig.rng.chance(2, 5) {
                rig.step();
            }
            if let Some(records) = rig.take_ready() {
                rig.commit(records);
                rig.home.audit().unwrap();
            }
            for event in std::mem::take(&mut rig.events) {
                match event {
                    HomeEvent::ReadRetry { ticket } => {
                        retries += 1;
                        let read = begun[&ticket];
                        read_around(&mut rig, ticket, read);
                    }
                    HomeEvent::ReadDone { ticket, result } => {
                        answers += 1;
                        let (replica, place, _) = begun.remove(&ticket).unwrap();
                        for (range, piece) in result.unwrap() {
                            // The read is checked at its end. It would have been a retry, had a round staged the chunk
                            // since the lookup; a chunk that no round has staged still equals the base.
                            check_piece(range, &piece, |b| rig.base.get(&(replica, place, b)).copied().unwrap_or(0));
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(answers > 5000 && index > 100 && retries > 50, "{answers} answers, {index} rounds, {retries} retries");
}

/// Reads the ranges that the frozen overlay does not cover, as the log side does.
fn read_around(rig: &mut Rig, ticket: u64, (replica, place, range): (ReplicaId, types::ChunkKey, SectorRange)) {
    let covered = |f: &SectorRange| {
        let key: Key = (replica, place, (f.start / 8) as u16);
        rig.frozen.blocks.contains_key(&key) || rig.frozen.drops(&key)
    };
    let ranges: Vec<SectorRange> = range.fragments().filter(|f| !covered(f)).collect();
    rig.submit_read(ticket, replica, place, &ranges);
}

#[test]
fn random_rounds_and_restarts_equal_the_model() {
    for seed in 0..10 {
        let mut rig = Rig::new(seed, 24 * MIB, small(512));
        rig.rng = types::rng::Rng::new(seed + 100);
        for index in 1..60 {
            let plan = random_plan(&mut rig, index);
            rig.round(plan);
            rig.home.audit().unwrap();
            if rig.rng.chance(1, 6) {
                rig.disk.power_cut();
                let (states, damaged) = rig.mount();
                assert!(damaged.is_empty(), "{damaged:?}");
                assert!(states.iter().any(|s| *s == super::rig::state(R1, index)), "state of {R1}");
                rig.home.audit().unwrap();
                rig.check_base(|_| false);
            }
        }
        rig.check_base(|_| false);
    }
}

#[test]
fn thousands_of_rounds_wrap_the_slots_and_leak_nothing() {
    let mut rig = Rig::new(1, 4 * MIB, small(64));
    for index in 1..3000 {
        let block = (index * 7 % 320) as u16;
        rig.round(Plan::states(&[1], index).put(1, chunk(1, 0), [block, block + 1], index));
        if index % 100 == 0 {
            rig.home.audit().unwrap();
        }
    }
    assert_eq!(rig.home.pending_free_bytes(), 0);
    // Map page, CRC page, directory page, two decision pages and two dissolved pages (both are long at this checkpoint index).
    assert_eq!(rig.home.free_slots(), 64 - 7);
    rig.check_base(|_| false);
}

#[test]
fn a_block_is_rewritten_in_place_and_pages_are_not() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..16, 7));
    let before = (rig.home.free_bytes(), rig.home.chunk(R1, chunk(1, 0)).unwrap().map[0].au);
    let pages = rig.home.chunk(R1, chunk(1, 0)).unwrap().pages;
    rig.round(Plan::states(&[1], 4).put(1, chunk(1, 0), [3], 8));
    let now = rig.home.chunk(R1, chunk(1, 0)).unwrap();
    assert_eq!(before, (rig.home.free_bytes(), now.map[0].au));
    assert_eq!(now.pages[0], pages[0], "the map did not change");
    assert_ne!(now.pages[1].unwrap().slot, pages[1].unwrap().slot, "the CRC page moved");
}

#[test]
fn zeros_free_an_au_with_its_last_block_and_a_chunk_with_its_last_au() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    let all = rig.home.free_bytes();
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), [0, 1, 20, 1500], 7));
    assert_eq!(rig.home.free_bytes(), all - 3 * AU);
    rig.round(Plan::states(&[1], 4).put(1, chunk(1, 0), [0, 20], 0));
    assert_eq!(rig.home.free_bytes(), all - 2 * AU);
    rig.check_base(|_| false);
    rig.round(Plan::states(&[1], 6).put(1, chunk(1, 0), [1, 1500], 0));
    assert_eq!((rig.home.free_bytes(), rig.home.free_slots()), (all, 64));
    rig.round(Plan::states(&[1], 8).put(1, chunk(1, 0), [5], 0));
    assert_eq!(rig.home.free_slots(), 64, "zeros where there is nothing cost nothing");
    rig.home.audit().unwrap();
}

#[test]
fn a_dense_chunk_is_written_in_long_runs_with_bounded_depth() {
    let mut rig = Rig::new(1, 40 * MIB, HomeLimits { background_ops_max: 3, ..HomeLimits::default() });
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..4096, 7));
    // 16 data writes, one write of map and CRC pages; the directory page joins these or is written alone.
    assert!(rig.disk.ended <= 16 + 2 + 1, "{} writes", rig.disk.ended);
    assert_eq!((rig.disk.flushes, rig.disk.most_in_flight), (1, 3));
    assert_eq!(rig.disk.longest_bytes as u64, MIB);
    let pieces = rig.read(R1, chunk(1, 0), SectorRange::new(4, 2048)).unwrap();
    assert_eq!(pieces.len(), 2, "a piece is at most one operation");
    check_piece(pieces[0].0, &pieces[0].1, |_| 7);
}

#[test]
fn rotating_disk_gets_few_long_writes_two_at_a_time() {
    let limits = HomeLimits { background_ops_max: 2, elevator: true, ..HomeLimits::default() };
    let mut rig = Rig::new(1, 40 * MIB, limits);
    // Two chunks whose parts take turns on the device.
    for part in 0..4 {
        let blocks = part * 256..(part + 1) * 256;
        let plan = Plan::states(&[1], 2 + 2 * u64::from(part));
        rig.round(plan.put(1, chunk(1, 0), blocks.clone(), 7).put(1, chunk(1, 1), blocks, 8));
    }
    let before = rig.disk.ended;
    rig.round(Plan::states(&[1], 20).put(1, chunk(1, 0), 0..1024, 9).put(1, chunk(1, 1), 0..1024, 10));
    // 8 MiB of data side by side are eight writes, whatever chunks they are of; the pages take a few more.
    let writes = rig.disk.ended - before;
    assert!((8..=12).contains(&writes), "{writes} writes");
    assert_eq!((rig.disk.most_in_flight, rig.disk.longest_bytes as u64), (2, MIB));
    rig.check_base(|_| false);
}

#[test]
fn a_disk_with_4k_alignment_gets_aligned_memory() {
    let mut rig = Rig::on(1, (DiskKind::Block, 4096, false), 16 * MIB, small(64));
    let plan = (1..9).fold(Plan::states(&[1], 2), |plan, stamp| plan.put(1, chunk(1, 0), [stamp as u16], stamp));
    rig.round(plan);
    rig.check_base(|_| false);
    assert_eq!(rig.disk.flushes, 0, "a raw device without a volatile cache needs no flush");
}

#[test]
fn a_round_that_does_not_fit_changes_nothing() {
    let mut rig = Rig::new(1, 2 * MIB, small(64));
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), (0..320).step_by(16), 7));
    let before = (rig.home.free_bytes(), rig.home.free_slots());
    let too_many_aus = Plan::states(&[1], 4).put(1, chunk(1, 1), (0..160).step_by(16), 8);
    assert!(!rig.try_round(too_many_aus));
    assert_eq!(before, (rig.home.free_bytes(), rig.home.free_slots()));
    rig.home.audit().unwrap();
    rig.check_base(|_| false);
    assert!(rig.try_round(Plan::states(&[1], 4).put(1, chunk(1, 0), 0..320, 9)), "in place always fits");
    rig.check_base(|_| false);
}

#[test]
fn slots_run_out_before_memory_does_and_come_back_with_a_cut() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    let mut index = 0;
    while rig.try_round(Plan::states(&[1], index).put(1, chunk(1, index as u32), [0], index + 1)) {
        index += 2;
        assert!(index < 200, "64 slots cannot hold {index} chunks");
    }
    assert!(rig.home.is_full() && rig.home.free_bytes() > 8 * MIB);
    rig.home.audit().unwrap();
    rig.check_base(|_| false);
    let mut cut = Plan::states(&[1], index);
    cut.unmaps.push(Unmap { replica: R1, generation: GenerationId(1), from_chunk: 0 });
    assert!(rig.try_round(cut), "giving up space needs none");
    assert_eq!((rig.home.free_slots(), rig.home.pending_free_bytes()), (64, 0));
    assert!(!rig.home.is_full());
    rig.home.audit().unwrap();
}

#[test]
fn a_directory_of_many_pages_comes_back_and_shrinks() {
    let mut rig = Rig::new(1, 32 * MIB, HomeLimits { slot_count: Some(2048), ..HomeLimits::default() });
    let plan = (0..200).fold(Plan::states(&[1, 2], 2), |p, n| p.put(1, chunk(1, n), [n as u16], u64::from(n) + 1));
    rig.round(plan);
    let (states, damaged) = rig.mount();
    assert_eq!((states.len(), damaged.len()), (2, 0));
    rig.check_base(|_| false);
    let mut cut = Plan::states(&[1], 4);
    cut.unmaps.push(Unmap { replica: R1, generation: GenerationId(1), from_chunk: 10 });
    rig.round(cut);
    rig.mount();
    rig.home.audit().unwrap();
    // Ten chunks have two pages each; the directory has one page.
    assert_eq!(rig.home.free_slots(), 2048 - 21);
    rig.check_base(|_| false);
    rig.round(Plan { destroyed: vec![R1], ..Plan::default() });
    rig.mount();
    assert_eq!(rig.home.free_slots(), 2048);
}

#[test]
fn a_decision_state_that_did_not_change_is_not_written_again() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    rig.round(Plan::states(&[1], 3));
    assert_eq!(rig.home.stats().written_bytes, 2 * BLOCK);
    rig.round(Plan::states(&[], 3));
    assert_eq!(rig.home.stats().written_bytes, 2 * BLOCK);
    assert_eq!(rig.mount().0, vec![super::rig::state(R1, 3)], "an unlisted replica keeps its state");
}

#[test]
fn pending_free_is_held_by_the_flip_and_by_a_read_that_looked_up_before() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..32, 7));
    let free = rig.home.free_bytes();
    rig.submit_read(4, R1, chunk(1, 0), &[SectorRange::new(0, 8)]);
    let mut cut = Plan::states(&[1], 2);
    cut.unmaps.push(Unmap { replica: R1, generation: GenerationId(1), from_chunk: 0 });
    rig.begin(cut);
    assert_eq!(rig.home.free_bytes(), free, "the flip has not come");
    while rig.home.round_running() {
        // The read is held back: other operations run at random until the round is ready.
        rig.step();
        if let Some(records) = rig.take_ready() {
            rig.commit(records);
        }
    }
    let read_done = rig.events.iter().any(|e| matches!(e, HomeEvent::ReadRetry { ticket: 4 }));
    assert_eq!(rig.home.pending_free_bytes() == 0, read_done, "only the read holds pending_free now");
    rig.settle();
    assert_eq!(rig.home.pending_free_bytes(), 0);
    assert_eq!(rig.home.free_bytes(), free + 2 * AU);
    assert!(rig.events.contains(&HomeEvent::ReadRetry { ticket: 4 }), "its chunk has gone");
}

#[test]
fn parts_at_home_name_data_by_blocks_and_tile_the_range() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    rig.round(Plan::states(&[1], 2).put(1, chunk(1, 0), [1, 2, 5], 7));
    let found = rig.home.at(R1, chunk(1, 0), SectorRange::new(4, 40)).into_iter();
    let got: Vec<(u32, u32, bool)> = found.map(|(r, at)| (r.start, r.count, at == At::Data)).collect();
    assert_eq!(got, [(4, 4, false), (8, 16, true), (24, 16, false), (40, 4, true)]);
    assert_eq!(rig.read(R1, chunk(9, 9), SectorRange::CHUNK).unwrap(), [(SectorRange::CHUNK, Piece::Zeros)]);
}

#[test]
fn a_step_of_a_round_verifies_a_bounded_number_of_blocks() {
    let mut rig = Rig::new(1, 16 * MIB, HomeLimits { step_blocks: 8, ..small(64) });
    rig.begin(Plan::states(&[1], 2).put(1, chunk(1, 0), 0..64, 7));
    let mut steps = 1;
    while rig.disk.is_idle() {
        assert!(rig.home.wants_step(), "the round goes on without a completion");
        rig.step();
        steps += 1;
    }
    assert_eq!(steps, 64 / 8 + 1, "eight blocks a step, and one step to place them");
    rig.settle();
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    rig.check_base(|_| false);
}

#[test]
#[should_panic(expected = "under rewrite")]
fn a_read_of_a_block_under_rewrite_is_a_broken_invariant() {
    let mut rig = Rig::new(1, 16 * MIB, small(64));
    rig.begin(Plan::states(&[1], 2).put(1, chunk(1, 0), [3], 7));
    rig.submit_read(1, R1, chunk(1, 0), &[SectorRange::new(26, 1)]);
}
