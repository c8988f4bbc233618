//! Merges: what goes to the heir, beside the writes of their round, and over power cuts.

use super::rig::{FAMILY, Key, Plan, Rig, START, bytes_of, chunk, cut_at_steps, of_chunk};
use crate::home::HomeLimits;
use crate::home_api::{At, ChunkMerge, HomeEvent, Piece};
use std::ops::Range;
use types::rng::Rng;
use types::{AU, ChunkKey, GenerationId, IoBuf, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const LEN: u64 = 24 << 20;

/// Chunks of a dissolved generation and of its heir.
fn pair() -> (ChunkKey, ChunkKey) {
    (chunk(1, 0), chunk(2, 0))
}

fn limits() -> HomeLimits {
    HomeLimits { slot_count: Some(512), background_ops_max: 4, reuse_at_once: true, ..HomeLimits::default() }
}

fn rig() -> Rig {
    Rig::new(1, LEN, limits())
}

fn plan(index: u64) -> Plan {
    let mut plan = Plan::states(&[1], index);
    plan.marks.extend([GenerationId(1), GenerationId(2)]);
    plan
}

/// Returns the merge of the pair, with the blocks that it has to copy now.
fn merge(rig: &Rig, marks: bool) -> ChunkMerge {
    let (from, into) = pair();
    let bytes = |block: &u16| (*block, IoBuf::copy_of(&bytes_of(rig.base[&(R1, from, *block)])));
    let copies = rig.home.merge_work(R1, from, into).copies.iter().map(bytes).collect();
    ChunkMerge { replica: R1, from, into, family: FAMILY, hidden: false, marks, copies, clock: rig.home.clock() }
}

fn merging(rig: &Rig, index: u64, marks: bool) -> Plan {
    Plan { merges: vec![merge(rig, marks)], ..plan(index) }
}

/// Checks the whole home, and that nothing of the dissolved chunk is left.
fn check_merged(rig: &mut Rig) {
    rig.home.audit().unwrap();
    rig.check_base(|_| false);
    assert_eq!(of_chunk(&rig.base, R1, pair().0).count(), 0, "the model has merged all");
    assert_eq!(rig.home.chunks(R1).filter(|key| *key == pair().0).count(), 0);
}

fn used_aus(rig: &Rig) -> u32 {
    rig.home.space_use().expect("it is mounted").data_aus
}

fn at(rig: &Rig, blocks: Range<u16>) -> Vec<At> {
    let range = |block: u16| SectorRange::of_blocks(block, 1);
    blocks.flat_map(|block| rig.home.at(R1, pair().1, range(block))).map(|(_, at)| at).collect()
}

#[test]
fn merge_gives_the_heir_what_it_shows() {
    let (from, into) = pair();
    for marks in [true, false] {
        let mut rig = rig();
        // AUs 0 to 4 of the dissolved chunk: to move, to copy, hidden by data, hidden by marks, marks alone.
        let older = plan(1).put(1, from, 0..4, 11).put(1, from, 4..6, 0).put(1, from, 16..24, 12);
        let older = older.put(1, from, 24..26, 0).put(1, from, 32..34, 13).put(1, from, 48..50, 14);
        rig.round(older.put(1, from, 64..66, 0));
        let newer = plan(2).put(1, into, 1..2, 0).put(1, into, 16..17, 21).put(1, into, 17..18, 0);
        rig.round(newer.put(1, into, 32..40, 22).put(1, into, 48..60, 0).put(1, into, 65..66, 0));
        assert_eq!((used_aus(&rig), rig.home.merge_work(R1, from, into).copies), (6, (18..24).collect()));
        let merged = merging(&rig, 3, marks);
        rig.round(merged);
        check_merged(&mut rig);
        let zeros = if marks { At::Zeros } else { At::Open };
        assert_eq!(at(&rig, 0..7), [At::Data, zeros, At::Data, At::Data, zeros, zeros, At::Open]);
        assert_eq!(at(&rig, 16..19), [At::Data, zeros, At::Data]);
        assert_eq!(at(&rig, 23..26), [At::Data, zeros, zeros]);
        assert_eq!((at(&rig, 48..50), at(&rig, 64..67)), (vec![zeros; 2], vec![zeros, zeros, At::Open]));
        assert_eq!(used_aus(&rig), 3, "one moved, two were the heir's");
        rig.disk.power_cut();
        assert_eq!(rig.mount().1, vec![]);
        check_merged(&mut rig);
        let free = rig.home.space_use().expect("it is mounted").free_aus;
        assert_eq!(u64::from(free + 3) * AU, rig.home.stats().capacity_bytes / AU * AU, "no AU is lost");
    }
}

#[test]
fn chunk_that_the_heir_does_not_show_is_dropped() {
    let (from, into) = pair();
    let mut rig = rig();
    rig.round(plan(1).put(1, from, 0..40, 11).put(1, into, 3..4, 12));
    let mut hidden = merging(&rig, 2, true);
    hidden.merges[0].hidden = true;
    rig.round(hidden);
    check_merged(&mut rig);
    assert_eq!((used_aus(&rig), at(&rig, 2..5)), (1, vec![At::Open, At::Data, At::Open]));
}

#[test]
fn merge_without_its_copies_leaves_the_au() {
    let (from, into) = pair();
    let mut rig = rig();
    rig.round(plan(1).put(1, from, 0..4, 11).put(1, from, 16..20, 12).put(1, into, 16..17, 13));
    let mut poor = merging(&rig, 2, true);
    poor.merges[0].copies.pop();
    rig.round(poor);
    rig.check_base(|_| false);
    assert_eq!(of_chunk(&rig.base, R1, from).count(), 4, "the other AU has moved");
    // The chunk has changed since these were read, or they are other bytes.
    let mut late = merging(&rig, 4, true);
    rig.round(plan(3).put(1, from, 40..41, 14));
    late.merges[0].copies.iter_mut().for_each(|(_, buf)| *buf = IoBuf::copy_of(&bytes_of(12)));
    rig.begin(late.clone());
    rig.settle();
    late.merges[0].copies.clear();
    rig.frozen = late;
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    rig.check_base(|_| false);
    let mut other = merging(&rig, 5, true);
    other.merges[0].copies[0].1 = IoBuf::copy_of(&bytes_of(99));
    rig.begin(other.clone());
    rig.settle();
    other.merges[0].copies.remove(0);
    rig.frozen = other;
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    rig.check_base(|_| false);
    let whole = merging(&rig, 6, true);
    rig.round(whole);
    check_merged(&mut rig);
}

#[test]
fn round_that_writes_a_position_leaves_it_to_the_next() {
    let (from, into) = pair();
    let mut rig = rig();
    rig.round(plan(1).put(1, from, 0..8, 11).put(1, from, 16..24, 12).put(1, into, 16..17, 13));
    // An AU would move under the write of block 2; block 18 would be copied over the one that is written.
    let round = merging(&rig, 2, true).put(1, into, 2..3, 20).put(1, into, 18..19, 21);
    rig.round(round.clone());
    rig.check_base(|_| false);
    assert_eq!(of_chunk(&rig.base, R1, from).map(|(block, _)| block).collect::<Vec<_>>(), Vec::from_iter(0..8));
    let rest = merging(&rig, 3, true);
    rig.round(rest);
    check_merged(&mut rig);
    // The same over power cuts: what the last checkpoint names is as it was.
    for steps in 0.. {
        let mut rig = self::rig();
        rig.round(plan(1).put(1, from, 0..8, 11).put(1, from, 16..24, 12).put(1, into, 16..17, 13));
        let round = merging(&rig, 2, true).put(1, into, 2..3, 20).put(1, into, 18..19, 21);
        rig.begin(round.clone());
        (0..steps).for_each(|_| rig.step());
        let done = rig.take_ready().is_some();
        rig.disk.power_cut();
        assert_eq!(rig.mount().1, vec![]);
        rig.check_base(|key| round.blocks.contains_key(key));
        if done {
            break;
        }
    }
}

#[test]
fn merge_frees_nothing_before_its_flip() {
    let (from, into) = pair();
    let mut rig = rig();
    rig.round(plan(1).put(1, from, 0..32, 11).put(1, into, 0..32, 12).put(1, from, 40..41, 13));
    let before = rig.home.free_bytes();
    let round = merging(&rig, 2, true);
    rig.begin(round);
    rig.settle();
    assert_eq!(rig.home.free_bytes(), before);
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    assert_eq!(rig.home.free_bytes(), before + 2 * AU);
    check_merged(&mut rig);
}

#[test]
fn copied_block_is_read_while_its_write_is_in_flight() {
    let (from, into) = pair();
    let mut rig = rig();
    rig.round(plan(1).put(1, from, 0..8, 11).put(1, into, 0..1, 12).put(1, into, 20..21, 13));
    let round = merging(&rig, 2, true);
    rig.begin(round);
    // The device has ended none of the writes.
    assert_eq!(at(&rig, 0..9)[7..], [At::Data, At::Open]);
    let range = SectorRange::new(9, 20);
    rig.submit_read(7, R1, into, &[range]);
    let Some(HomeEvent::ReadDone { ticket: 7, result: Ok(pieces) }) = rig.events.pop() else { panic!("at once") };
    let want = &bytes_of(11).repeat(3)[512..][..20 * 512];
    let got: Vec<u8> = pieces
        .iter()
        .flat_map(|(part, piece)| match piece {
            Piece::Bytes { crcs, payload } => {
                assert!(part.verify(payload, crcs), "CRCs of {part}");
                payload.to_vec()
            }
            Piece::Zeros => panic!("zeros at {part}"),
        })
        .collect();
    assert_eq!(got, want);
    rig.settle();
    let records = rig.take_ready().expect("the round is ready");
    rig.commit(records);
    check_merged(&mut rig);
}

/// Returns random blocks of both chunks.
fn random(rig: &mut Rig, mut plan: Plan, into_alone: bool) -> Plan {
    for _ in 0..rig.rng.between(1, 8) {
        let place = if into_alone || rig.rng.chance(1, 2) { pair().1 } else { pair().0 };
        let first = rig.rng.below(80) + rig.rng.below(2) * 1024;
        for block in first..first + rig.rng.between(1, 24) {
            if rig.rng.chance(3, 4) {
                rig.stamp += 1;
                let stamp = if rig.rng.chance(1, 5) { 0 } else { rig.stamp };
                plan.blocks.insert((R1, place, block as u16), stamp);
            }
        }
    }
    plan
}

/// Returns a home with a random pair, and a round that merges it beside random writes of the heir.
fn prepared(seed: u64) -> (Rig, Plan) {
    let mut rig = rig();
    rig.rng = Rng::new(seed);
    for index in 1..4 {
        let round = random(&mut rig, plan(index), false);
        rig.round(round);
    }
    let marks = rig.rng.chance(1, 2);
    let mut round = merging(&rig, 4, marks);
    if rig.rng.chance(1, 2) {
        round.older.insert(pair().1.generation, vec![pair().0.generation]);
    }
    if rig.rng.chance(1, 2) {
        let rng = &mut rig.rng;
        round.merges[0].copies.retain(|_| !rng.chance(1, 10));
    }
    if rig.rng.chance(2, 3) {
        round = random(&mut rig, round, true);
    }
    (rig, round)
}

/// Whether the round writes the block, or one of the heir whose AU may be that of the block.
fn is_written(round: &Plan, (replica, chunk, block): &Key) -> bool {
    let above = round.older.iter().filter(|(_, older)| older.contains(&chunk.generation)).map(|(id, _)| *id);
    let mut all = above.chain([chunk.generation]);
    all.any(|generation| round.blocks.contains_key(&(*replica, ChunkKey { generation, ..*chunk }, *block)))
}

#[test]
fn merge_beside_writes_equals_a_model_over_power_cuts() {
    let (mut cuts, mut kept) = (0, 0);
    for seed in 0..60 {
        cuts += cut_at_steps(1 + seed as usize % 7, seed % 2 == 0, || prepared(seed), is_written);
        let (mut rig, round) = prepared(seed);
        rig.round(round);
        rig.check_base(|_| false);
        kept += u64::from(of_chunk(&rig.base, R1, pair().0).next().is_some());
        let rest = merging(&rig, 5, true);
        rig.round(rest);
        check_merged(&mut rig);
        assert!(rig.disk.bytes().len() as u64 >= START + LEN);
    }
    assert!(cuts > 200 && kept > 10, "{cuts} cuts, {kept} rounds that left something: the test lost its teeth");
}
