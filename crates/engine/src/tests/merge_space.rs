//! Space beside merges (R13): members that merge at different times grant alike, and none is spent beyond what it has.

use super::crash::config;
use super::laws::put_wide;
use super::lineage::{R1, V1, apply_all, branch, destage, finish_merges, order, quiet, write, zero};
use super::rig::Rig;
use crate::testing::{CHUNKS, Order, SECTORS};
use std::time::Duration;
use types::rng::Rng;
use types::store::Effect;
use types::tree::Role;
use types::units::{AUS_PER_CHUNK, SECTORS_PER_AU};
use types::{ChunkKey, GenerationId, SectorRange, VolumeId};

/// Returns the heads of a store's tree.
fn heads(rig: &Rig) -> Vec<(GenerationId, VolumeId)> {
    let tree = &rig.models[&R1].tree;
    let heads = tree.iter().filter(|(_, node)| matches!(node.role, Role::Head(_)));
    heads.map(|(id, node)| (id, node.role.volume())).collect()
}

/// Returns the units of all heads, each with the number of units that a write of it takes from the grants.
fn new_aus(rig: &Rig) -> Vec<(ChunkKey, u32, u32)> {
    let chunks = heads(rig).into_iter().flat_map(|(generation, _)| (0..CHUNKS).map(move |index| (generation, index)));
    let all = chunks.flat_map(|(generation, index)| {
        (0..SECTORS / SECTORS_PER_AU).map(move |au| (ChunkKey { generation, index }, au))
    });
    all.map(|(chunk, au)| (chunk, au, rig.engine.new_aus(R1, chunk, SectorRange::of_au(au)))).collect()
}

/// Checks that units which heads may take without a grant are there, or are deducted from what is granted.
fn check_deducted(rig: &Rig) {
    let (home, r) = (rig.engine.home.as_ref().expect("mounted"), &rig.engine.replicas[&R1]);
    let takes = |(chunk, au, new): &(ChunkKey, u32, u32)| {
        let older: Vec<GenerationId> = r.lineage.older_of(*chunk).collect();
        let in_log =
            older.iter().any(|generation| r.overlay.has_data(ChunkKey { generation: *generation, ..*chunk }, *au));
        let inherits = !in_log && home.inheritable(R1, *chunk, &older).contains(*au);
        *new == 0 && !inherits && !home.holds(R1, *chunk, *au) && !r.overlay.has_data(*chunk, *au)
    };
    let ungranted = new_aus(rig).iter().filter(|unit| takes(unit)).count() as u64;
    // The reserve of a device this small is 16 units.
    let free = home.free_bytes() / types::AU - 16;
    let spent = free - rig.engine.space().available_aus.min(free) - rig.engine.counted_space().aus.min(free);
    assert!(spent >= ungranted, "{ungranted} units may be taken, and {spent} are deducted");
}

/// Returns the next entries of a history: effects, or one order.
fn next(rng: &mut Rng, rig: &Rig, fresh: &mut u64) -> Result<Vec<Effect>, Order> {
    let heads = heads(rig);
    let (_, volume) = heads[rng.below(heads.len() as u64) as usize];
    let tree = &rig.models[&R1].tree;
    let snapshots: Vec<GenerationId> =
        tree.iter().filter(|(_, node)| matches!(node.role, Role::Snapshot(..))).map(|(id, _)| id).collect();
    if rng.chance(1, 8) && *fresh < 60 {
        *fresh += 1;
        return Err(Order::Branch { volume, to: GenerationId(*fresh) });
    }
    if rng.chance(1, 5) && !snapshots.is_empty() {
        return Err(Order::Remove(snapshots[rng.below(snapshots.len() as u64) as usize]));
    }
    let chunk = ChunkKey { generation: GenerationId::first_of(volume), index: rng.below(u64::from(CHUNKS)) as u32 };
    let start = rng.below(u64::from(SECTORS / 8)) as u32 * 8;
    let range = SectorRange::new(start, (rng.between(1, 12) as u32 * 8).min(SECTORS - start));
    Ok(vec![if rng.chance(1, 3) { Effect::Zero { chunk, range } } else { Effect::Write { chunk, range } }])
}

#[test]
fn no_device_is_spent_beyond_what_it_has() {
    let (mut differed, mut merged) = (0, 0);
    for seed in 0..10 {
        // Three members: one merges at once, one late, one never.
        let mut rigs: Vec<Rig> = (0..3).map(|n| Rig::new(seed * 3 + n, true, config(seed * 3))).collect();
        for rig in &mut rigs {
            rig.create(1);
            rig.order(R1, vec![Order::Begin { volume: V1, parent: None }]);
            apply_all(rig);
        }
        let (mut rng, mut fresh) = (Rng::new(seed), 1);
        for step in 0..120 {
            let entries = next(&mut rng, &rigs[0], &mut fresh);
            for (n, rig) in rigs.iter_mut().enumerate() {
                rig.engine.hold_merges(n == 2 || n == 1 && step % 40 < 30);
                match entries.clone() {
                    Ok(effects) => rig.extend(R1, effects),
                    Err(order) => rig.order(R1, vec![order]),
                }
                apply_all(rig);
                check_deducted(rig);
                if step % (n as u64 + 2) == 0 {
                    rig.now = rig.now + Duration::from_millis(210);
                    rig.turn(3);
                    check_deducted(rig);
                }
            }
            let of: Vec<_> = rigs.iter().map(new_aus).collect();
            assert!(of[0] == of[1] && of[0] == of[2], "seed {seed}, step {step}: members grant differently");
            let lens = |rig: &Rig| rig.engine.replicas[&R1].lineage.heirs().len();
            differed += u64::from(lens(&rigs[0]) != lens(&rigs[2]));
        }
        for rig in &mut rigs {
            merged += rig.engine.stats().home.merged_aus;
            rig.engine.hold_merges(false);
            finish_merges(rig);
            check_deducted(rig);
        }
    }
    assert!(differed > 100 && merged > 100, "{differed} differences, {merged} units: the test lost its teeth");
}

/// Returns a write of a block of each of the first units of volume 1.
fn writes(generation: u64, count: u64) -> Vec<(ChunkKey, SectorRange)> {
    let write = |n: u32| {
        let chunk = ChunkKey { generation: GenerationId(generation), index: n / AUS_PER_CHUNK };
        (chunk, SectorRange::new(n % AUS_PER_CHUNK * SECTORS_PER_AU + n % 3 * 8, 8))
    };
    (0..count as u32).map(write).collect()
}

#[test]
fn heir_overwrites_a_full_device_while_merges_are_held() {
    let (mut rig, count) = filled(4, 8);
    let left = |rig: &Rig| rig.engine.space().free_aus - rig.engine.space().dirty_new_aus;
    let put = |rig: &mut Rig, some: &[(ChunkKey, SectorRange)]| {
        put_wide(rig, some.iter().map(|(chunk, range)| Effect::Write { chunk: *chunk, range: *range }).collect());
    };
    let round = |rig: &mut Rig| {
        rig.round();
        rig.settle();
        rig.engine.audit().expect("the books balance");
        assert_eq!(rig.engine.recount_space(), rig.engine.counted_space());
        assert!(!rig.engine.space().refused);
    };
    let before = (rig.engine.stats().home.used_bytes, left(&rig));
    assert_eq!(before.1, 8, "a second AU for each does not fit");
    branch(&mut rig, 2);
    order(&mut rig, Order::Remove(GenerationId(1)));
    assert_eq!(left(&rig), 8, "the removal takes nothing");
    for some in writes(2, count).chunks(100) {
        let new: u32 = some.iter().map(|(chunk, range)| rig.engine.new_aus(R1, *chunk, *range)).sum();
        put(&mut rig, some);
        assert_eq!((new, left(&rig)), (0, 8), "no write needs a grant");
        round(&mut rig);
    }
    assert_eq!((rig.engine.stats().home.used_bytes, left(&rig)), before);
    assert_eq!(rig.engine.stats().home.merged_aus, 0);
    rig.engine.hold_merges(false);
    for _ in 0..40 {
        rig.now = rig.now + Duration::from_millis(210);
        rig.turn(16);
        rig.settle();
    }
    assert!(!rig.engine.replicas[&R1].lineage.has_dissolved());
    assert_eq!(rig.engine.stats().home.used_bytes, before.0);
}

/// Fills a quiet store with a block in each unit of generation 1, up to `left` units.
fn filled(seed: u64, left: u64) -> (Rig, u64) {
    let mut rig = quiet(seed);
    rig.engine.hold_merges(true);
    let count = rig.engine.space().free_aus - left;
    for some in writes(1, count).chunks(100) {
        put_wide(&mut rig, some.iter().map(|(chunk, range)| Effect::Write { chunk: *chunk, range: *range }).collect());
        rig.round();
        rig.settle();
    }
    (rig, count)
}

#[test]
fn zeros_in_the_log_count_before_an_heir_writes_in_their_place() {
    let (mut rig, count) = filled(5, 8);
    let zero = |(chunk, range): (ChunkKey, SectorRange)| Effect::Zero { chunk, range };
    put_wide(&mut rig, writes(1, count).into_iter().map(zero).collect());
    branch(&mut rig, 2);
    order(&mut rig, Order::Remove(GenerationId(1)));
    let mut admitted = 0;
    for (chunk, range) in writes(2, count) {
        let new = u64::from(rig.engine.new_aus(R1, chunk, range));
        assert_eq!(new, 1, "the zeros are as good as at home");
        if new <= rig.engine.space().available_aus {
            put_wide(&mut rig, vec![Effect::Write { chunk, range }]);
            admitted += 1;
        }
    }
    assert_eq!(rig.engine.recount_space(), rig.engine.counted_space());
    assert!((1..=8).contains(&admitted), "{admitted} of {count}");
    rig.round();
    rig.settle();
    assert!(!rig.engine.space().refused);
    rig.engine.audit().expect("the books balance");
}

#[test]
fn removal_during_a_round_leaves_counts_that_equal_a_recount() {
    for zeros in [false, true] {
        let mut rig = quiet(6);
        rig.engine.hold_merges(true);
        let range = SectorRange::new(0, 8);
        write(&mut rig, 0, 8);
        if zeros {
            destage(&mut rig);
            zero(&mut rig, 0, 8);
        }
        // The entries are durable, and applied when the round is under way: what it has of the generation is not at home yet, or still there.
        rig.order(R1, vec![Order::Branch { volume: V1, to: GenerationId(2) }]);
        rig.order(R1, vec![Order::Remove(GenerationId(1))]);
        let chunk = ChunkKey { generation: GenerationId(1), index: 0 };
        rig.extend(R1, vec![Effect::Write { chunk, range: SectorRange::new(16, 8) }]);
        rig.settle();
        rig.round();
        rig.commit(R1, u64::MAX);
        assert!(rig.engine.is_round_running());
        rig.settle();
        assert_eq!(rig.engine.recount_space(), rig.engine.counted_space(), "zeros {zeros}");
        let head = ChunkKey { generation: GenerationId(2), ..chunk };
        assert_eq!(rig.engine.new_aus(R1, head, range), 0);
        destage(&mut rig);
        rig.check_all_sectors();
    }
}

#[test]
fn unit_of_a_dissolved_generation_in_the_log_is_deducted_twice() {
    let mut rig = quiet(1);
    let range = SectorRange::new(0, SECTORS_PER_AU);
    write(&mut rig, 0, 8);
    branch(&mut rig, 2);
    order(&mut rig, Order::Remove(GenerationId(1)));
    let chunk = ChunkKey { generation: GenerationId(2), index: 0 };
    assert_eq!(rig.engine.new_aus(R1, chunk, range), 0, "another member may have merged it");
    assert_eq!((rig.engine.counted_space().aus, rig.engine.space().dirty_new_aus), (1, 2));
    check_deducted(&rig);
    write(&mut rig, 16, 8);
    assert_eq!(rig.engine.counted_space().aus, 2);
    check_deducted(&rig);
    destage(&mut rig);
    finish_merges(&mut rig);
    assert_eq!(rig.engine.stats().home.used_bytes, types::AU);
}

#[test]
fn unit_with_hidden_blocks_alone_is_new_before_and_after_the_merge() {
    let mut rig = quiet(2);
    rig.engine.hold_merges(true);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    branch(&mut rig, 2);
    zero(&mut rig, 0, 8);
    destage(&mut rig);
    order(&mut rig, Order::Remove(GenerationId(1)));
    let chunk = ChunkKey { generation: GenerationId(2), index: 0 };
    let new = |rig: &Rig| rig.engine.new_aus(R1, chunk, SectorRange::new(64, 8));
    assert_eq!(new(&rig), 1);
    rig.engine.hold_merges(false);
    finish_merges(&mut rig);
    assert_eq!(new(&rig), 1);
}

#[test]
fn snapshot_costs_no_count_of_the_chunks_in_the_log() {
    let mut rig = quiet(3);
    (0..CHUNKS).for_each(|index| {
        let chunk = ChunkKey { generation: GenerationId(1), index };
        rig.extend(R1, vec![Effect::Zero { chunk, range: SectorRange::new(3, 2) }]);
    });
    apply_all(&mut rig);
    let r = &rig.engine.replicas[&R1];
    assert_eq!(r.reaches(), [(GenerationId(1), 0)]);
    branch(&mut rig, 2);
    assert_eq!(rig.engine.replicas[&R1].reaches(), [(GenerationId(1), 0)], "no chunk is counted again");
    let chunk = ChunkKey { generation: GenerationId(1), index: 0 };
    rig.extend(R1, vec![Effect::Zero { chunk, range: SectorRange::new(3, 2) }]);
    apply_all(&mut rig);
    assert_eq!(rig.engine.counted_space().aus, 1, "the rest of a block of the head comes from the snapshot");
    order(&mut rig, Order::Detach(V1));
    assert_eq!(rig.engine.counted_space().aus, 0, "it shows nothing older any more");
    assert_eq!(rig.engine.counted_space(), rig.engine.recount_space());
}
