//! Inheritance: writes that take AUs of dissolved generations, over power cuts, and on a device without a free one.

use super::rig::{Key, Plan, Rig, chunk, cut_at_steps, of_chunk};
use crate::home::HomeLimits;
use crate::home_api::At;
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const LEN: u64 = 24 << 20;

fn limits() -> HomeLimits {
    HomeLimits { slot_count: Some(512), background_ops_max: 4, reuse_at_once: true, ..HomeLimits::default() }
}

/// A round in which the third generation is the heir of the first two.
fn plan(index: u64) -> Plan {
    let mut plan = Plan::states(&[1], index);
    plan.marks.extend([1, 2, 3].map(GenerationId));
    plan.older.insert(GenerationId(3), vec![GenerationId(2), GenerationId(1)]);
    plan.older.insert(GenerationId(2), vec![GenerationId(1)]);
    plan
}

/// A round before the generations are dissolved.
fn before(index: u64) -> Plan {
    Plan { older: Default::default(), ..plan(index) }
}

fn used_aus(rig: &Rig) -> u32 {
    rig.home.audit().unwrap();
    rig.home.space_use().expect("it is mounted").data_aus
}

fn at(rig: &Rig, key: ChunkKey, block: u16) -> At {
    rig.home.at(R1, key, SectorRange::of_blocks(block, 1))[0].1
}

#[test]
fn first_data_of_a_place_takes_the_au_of_an_older_generation() {
    let [oldest, middle, newest] = [1, 2, 3].map(|generation| chunk(generation, 0));
    let mut rig = Rig::new(1, LEN, limits());
    rig.round(before(1).put(1, oldest, 0..8, 11).put(1, oldest, 16..32, 12).put(1, oldest, 40..41, 13));
    // Block 1 is hidden by the one in the middle, block 2 by the newest.
    rig.round(before(2).put(1, middle, 1..2, 0).put(1, newest, 2..3, 0).put(1, middle, 40..42, 14));
    assert_eq!(used_aus(&rig), 4);
    rig.round(plan(3).put(1, newest, 3..4, 15).put(1, newest, 16..32, 16).put(1, newest, 41..42, 17));
    assert_eq!(used_aus(&rig), 4, "each of them has taken one");
    rig.check_base(|_| false);
    let of = |rig: &Rig, key| of_chunk(&rig.base, R1, key).map(|(block, _)| block).collect::<Vec<_>>();
    assert_eq!(of(&rig, oldest), [40], "the nearest one has an AU there");
    assert_eq!(of(&rig, middle), [1], "its mark stays");
    assert_eq!([0, 1, 2, 3, 4].map(|block| at(&rig, newest, block))[1..3], [At::Open, At::Zeros]);
    rig.disk.power_cut();
    assert_eq!(rig.mount().1, vec![]);
    rig.check_base(|_| false);
}

#[test]
fn au_that_the_round_writes_for_its_generation_is_not_taken() {
    let (older, newer) = (chunk(2, 0), chunk(3, 0));
    let mut rig = Rig::new(2, LEN, limits());
    rig.round(before(1).put(1, older, 0..4, 11));
    rig.round(plan(2).put(1, older, 2..3, 12).put(1, newer, 2..3, 13));
    rig.check_base(|_| false);
    assert_eq!(used_aus(&rig), 2);
    // One that the round empties is not there any more.
    rig.round(plan(3).put(1, older, 0..4, 0).put(1, newer, 20..21, 14));
    rig.round(plan(4).put(1, older, 20..21, 15));
    rig.round(plan(5).put(1, older, 20..21, 0).put(1, newer, 20..21, 16));
    rig.check_base(|_| false);
    assert_eq!(used_aus(&rig), 2);
}

#[test]
fn heir_overwrites_a_device_without_a_free_au() {
    let mut rig = Rig::new(3, LEN, limits());
    let mut index = 1;
    let mut next = |rig: &mut Rig, plan: Plan| {
        index += 1;
        rig.try_round(Plan { states: vec![(R1, index)], ..plan })
    };
    // One block of each AU, chunk by chunk until there is no AU left.
    let places = |generation, n: u16| before(0).put(1, chunk(generation, u32::from(n / 64)), [n % 64 * 16], 21);
    let count = (0..1000).take_while(|n| next(&mut rig, places(1, *n))).count() as u16;
    assert_eq!((rig.home.free_bytes(), u32::from(count)), (0, used_aus(&rig)));
    for n in 0..count {
        let mut over = plan(0).put(1, chunk(3, u32::from(n / 64)), [n % 64 * 16 + n % 2], 22);
        over.older.insert(GenerationId(3), vec![GenerationId(1)]);
        assert!(next(&mut rig, over), "place {n}");
    }
    rig.check_base(|_| false);
    assert_eq!((rig.home.free_bytes(), u32::from(count)), (0, used_aus(&rig)));
    assert_eq!(rig.home.chunks(R1).filter(|key| key.generation == GenerationId(1)).count(), 0, "nothing is left");
}

/// Returns a round of random blocks of these generations.
fn random(rig: &mut Rig, mut plan: Plan, generations: &[u64]) -> Plan {
    for _ in 0..rig.rng.between(1, 10) {
        let key = chunk(generations[rig.rng.below(generations.len() as u64) as usize], 0);
        let first = rig.rng.below(80) + rig.rng.below(2) * 1024;
        for block in first..first + rig.rng.between(1, 20) {
            rig.stamp += 1;
            let stamp = if rig.rng.chance(1, 4) { 0 } else { rig.stamp };
            plan.blocks.insert((R1, key, block as u16), stamp);
        }
    }
    plan
}

/// Returns a home with three random generations, and a round behind the removal of two.
fn prepared(seed: u64) -> (Rig, Plan) {
    let mut rig = Rig::new(seed, LEN, limits());
    rig.rng = types::rng::Rng::new(seed);
    for index in 1..4 {
        let round = random(&mut rig, before(index), &[1, 1, 2, 3]);
        rig.round(round);
    }
    // Most rounds write the heir alone; in some the log still has blocks of a dissolved one.
    let written: &[u64] = if rig.rng.chance(1, 3) { &[2, 3, 3] } else { &[3] };
    let round = random(&mut rig, plan(4), written);
    (rig, round)
}

/// Whether the round may have written in place of this block.
fn is_written(round: &Plan, (replica, key, block): &Key) -> bool {
    let mut heirs = (key.generation.0..4).map(|generation| chunk(generation, key.index));
    heirs.any(|heir| round.blocks.contains_key(&(*replica, heir, *block)))
}

#[test]
fn inheritance_equals_a_model_over_power_cuts() {
    let (mut cuts, mut inherited) = (0, 0);
    for seed in 0..60 {
        cuts += cut_at_steps(1 + seed as usize % 5, seed % 2 == 0, || prepared(seed), is_written);
        let (mut rig, round) = prepared(seed);
        let older = |rig: &Rig| of_chunk(&rig.base, R1, chunk(1, 0)).filter(|(_, stamp)| *stamp > 0).count();
        let had = older(&rig);
        rig.round(round);
        rig.home.audit().unwrap();
        rig.check_base(|_| false);
        inherited += had - older(&rig);
        let last = random(&mut rig, plan(5), &[3]);
        rig.round(last);
        rig.home.audit().unwrap();
        rig.check_base(|_| false);
    }
    assert!(cuts > 200 && inherited > 500, "{cuts} cuts, {inherited} blocks: the test lost its teeth");
}
