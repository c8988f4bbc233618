//! Generations in the whole engine: snapshots, clones and removals against a plain model, over crashes and rounds.

use super::crash::{config, end_life};
use super::laws::run_rounds;
use super::rig::Rig;
use crate::testing::{CHUNKS, Order, SECTORS};
use crate::{Contents, EngineConfig};
use env::Op;
use std::time::Duration;
use types::store::{BlockCopy, Effect};
use types::tree::Role;
use types::units::SECTORS_PER_BLOCK;
use types::{BlockPlace, ChunkKey, GenerationId, Index, IoBuf, ReplicaId, SectorRange, VolumeId, block_hash, crc32c};

pub(super) const R1: ReplicaId = ReplicaId(1);
pub(super) const V1: VolumeId = VolumeId(1);
/// Generations that a history makes: each keeps its space until it is merged.
const GENERATIONS_MAX: u64 = 14;

pub(super) fn key(generation: u64, index: u32) -> ChunkKey {
    ChunkKey { generation: GenerationId(generation), index }
}

/// Begins a store whose rounds begin on demand alone, with volume 1.
pub(super) fn quiet(seed: u64) -> Rig {
    let config =
        EngineConfig { round_pressure: 100.0, round_idle: Duration::from_secs(1000), ..EngineConfig::default() };
    let mut rig = Rig::new(seed, true, config);
    rig.create(1);
    order(&mut rig, Order::Begin { volume: V1, parent: None });
    rig
}

pub(super) fn apply_all(rig: &mut Rig) {
    rig.settle();
    rig.commit(R1, u64::MAX);
}

pub(super) fn order(rig: &mut Rig, order: Order) {
    rig.order(R1, vec![order]);
    apply_all(rig);
}

pub(super) fn branch(rig: &mut Rig, to: u64) {
    order(rig, Order::Branch { volume: V1, to: GenerationId(to) });
}

/// Writes to the head of volume 1.
pub(super) fn write(rig: &mut Rig, start: u32, count: u32) {
    let effect = Effect::Write { chunk: key(1, 0), range: SectorRange::new(start, count) };
    rig.extend(R1, vec![effect]);
    apply_all(rig);
}

pub(super) fn zero(rig: &mut Rig, start: u32, count: u32) {
    let effect = Effect::Zero { chunk: key(1, 0), range: SectorRange::new(start, count) };
    rig.extend(R1, vec![effect]);
    apply_all(rig);
}

pub(super) fn destage(rig: &mut Rig) {
    rig.round();
    rig.settle();
    check_space(rig);
}

/// Checks the counts of space, and what observers see, while no round runs.
pub(super) fn check_space(rig: &Rig) {
    rig.engine.audit().expect("the books balance");
    assert_eq!(rig.engine.recount_space(), rig.engine.counted_space());
    let bytes = rig.disk.bytes();
    let read = |at: u64| IoBuf::copy_of(&bytes[at as usize..at as usize + 4096]);
    let Some(seen) = rig.engine.contents_for_tools(R1, read) else { return };
    let seen = seen.expect("every block is the one that its checksum names");
    let model = &rig.models[&R1];
    let mut want = Contents::new();
    for (chunk, sectors) in &model.sectors {
        let family = model.tree.get(chunk.generation).expect("it is live").family;
        for (block, own) in (0..).zip(sectors.chunks(SECTORS_PER_BLOCK as usize)) {
            let bytes = model.expected(*chunk, SectorRange::of_blocks(block, 1));
            if own.iter().any(Option::is_some) && bytes.iter().any(|b| *b != 0) {
                want.insert((*chunk, block), block_hash(BlockPlace::of(family, *chunk, block), &bytes));
            }
        }
    }
    let differs = |at: &&(ChunkKey, u16)| seen.get(at) != want.get(at);
    let differ: Vec<_> = seen.keys().chain(want.keys()).filter(differs).collect();
    assert!(differ.is_empty(), "blocks {differ:?} are others; {:?}", rig.engine.replicas[&R1].lineage);
    check_owners(rig);
}

/// Checks that each chunk at home belongs to a generation of the tree, or to a dissolved one.
fn check_owners(rig: &Rig) {
    let (home, r) = (rig.engine.home.as_ref().expect("mounted"), &rig.engine.replicas[&R1]);
    let heirs = r.lineage.heirs();
    let tree = &rig.models[&R1].tree;
    let is_owned = |key: &ChunkKey| tree.get(key.generation).is_some() || heirs.contains_key(&key.generation);
    let strays: Vec<ChunkKey> = home.chunks(R1).filter(|key| !is_owned(key)).collect();
    let cut = |key: &ChunkKey| r.overlay.active().hides(*key);
    assert!(strays.iter().all(cut), "{strays:?} belong to no generation");
}

/// Runs rounds until all dissolved generations are merged and forgotten.
pub(super) fn finish_merges(rig: &mut Rig) {
    for _ in 0..200 {
        if !rig.engine.replicas[&R1].lineage.has_dissolved() {
            // A round drops the generations that were discarded.
            destage(rig);
            return check_merged(rig);
        }
        rig.now = rig.now + Duration::from_millis(210);
        rig.turn(16);
        rig.settle();
    }
    panic!("{:?} is not merged", rig.engine.replicas[&R1].lineage);
}

/// Checks that nothing of a dissolved generation is left.
fn check_merged(rig: &mut Rig) {
    rig.settle();
    check_space(rig);
    let home = rig.engine.home.as_ref().expect("mounted");
    let tree = &rig.models[&R1].tree;
    assert!(home.chunks(R1).all(|key| tree.get(key.generation).is_some()), "a chunk is left");
    assert_eq!(home.state(R1).map(|state| state.dissolved.len()), Some(0), "the checkpoint has no list");
}

pub(super) fn random_order(rig: &mut Rig, next: &mut u64) {
    let tree = rig.models[&R1].tree.clone();
    let of = |is: fn(Role) -> bool| -> Vec<(GenerationId, VolumeId)> {
        tree.iter().filter(|(_, node)| is(node.role)).map(|(id, node)| (id, node.role.volume())).collect()
    };
    let (heads, snapshots) = (of(|role| matches!(role, Role::Head(_))), of(|role| matches!(role, Role::Snapshot(..))));
    let rng = rig.rng();
    let Some((head, volume)) = (!heads.is_empty()).then(|| heads[rng.below(heads.len() as u64) as usize]) else {
        return;
    };
    let snapshot = (!snapshots.is_empty()).then(|| snapshots[rng.below(snapshots.len() as u64) as usize]);
    let kind = rng.below(10);
    let count = rng.below(u64::from(CHUNKS)) as u32;
    let fresh = *next < GENERATIONS_MAX;
    let to = GenerationId(*next);
    let orders = match (kind, snapshot) {
        (0..=3, _) if fresh => vec![Order::Branch { volume, to }],
        (4, Some((parent, _))) if fresh => vec![Order::Begin { volume: VolumeId(to.0), parent: Some(parent) }],
        (5, Some((snapshot, volume))) if fresh => vec![Order::TurnBack { volume, snapshot, to }],
        (6, _) if heads.len() > 2 => vec![Order::Remove(head)],
        (7, _) => {
            // A head is detached when it shows nothing of its parent.
            let chunk = |index| ChunkKey { generation: GenerationId::first_of(volume), index };
            let whole = |index| Effect::Write { chunk: chunk(index), range: SectorRange::new(0, SECTORS) };
            rig.extend(R1, (0..CHUNKS).map(whole).collect());
            vec![Order::Detach(volume)]
        }
        (8, _) => {
            // A volume that gets shorter loses the blocks of its head behind the new end, too.
            let generation = GenerationId::first_of(volume);
            rig.extend(R1, vec![Effect::Unmap { generation, from_chunk: count }]);
            vec![Order::Shorten { volume, count }]
        }
        (_, Some((id, _))) => vec![Order::Remove(id)],
        _ => return,
    };
    *next += u64::from(kind <= 5 && fresh);
    rig.order(R1, orders);
}

/// Returns a random effect in the head of any volume.
pub(super) fn effect(rig: &mut Rig) -> Effect {
    let effect = rig.effect();
    let tree = &rig.models[&R1].tree;
    let volumes: Vec<GenerationId> = tree
        .iter()
        .filter(|(_, node)| matches!(node.role, Role::Head(_)))
        .map(|(_, node)| GenerationId::first_of(node.role.volume()))
        .collect();
    if volumes.is_empty() {
        return Effect::None;
    }
    let generation = volumes[rig.rng().below(volumes.len() as u64) as usize];
    let index = rig.rng().below(u64::from(CHUNKS)) as u32;
    let zeros = rig.rng().chance(1, 5);
    let chunk = ChunkKey { generation, index };
    match effect {
        Effect::Write { range, .. } if zeros => Effect::Zero { chunk, range },
        Effect::Write { range, .. } => Effect::Write { chunk, range },
        Effect::Zero { range, .. } => Effect::Zero { chunk, range },
        Effect::Unmap { from_chunk, .. } => Effect::Unmap { generation, from_chunk },
        Effect::None => Effect::None,
    }
}

pub(super) fn step(rig: &mut Rig, next: &mut u64) {
    match rig.rng().below(12) {
        0..=3 => {
            if rig.engine.pressure().max() >= 1.0 {
                return;
            }
            let effects = (0..rig.rng().between(1, 4)).map(|_| effect(rig)).collect();
            rig.extend(R1, effects);
        }
        4..=5 => rig.commit(R1, u64::MAX),
        6 => {
            let keys = rig.models[&R1].keys();
            let chunk = keys[rig.rng().below(keys.len() as u64) as usize];
            let start = rig.rng().below(u64::from(SECTORS)) as u32;
            let count = rig.rng().between(1, u64::from(SECTORS - start)) as u32;
            rig.read(R1, chunk, SectorRange::new(start, count));
        }
        // Rounds that only merge have a pause between them.
        7 if rig.rng().chance(1, 4) => rig.now = rig.now + Duration::from_millis(100),
        7 if rig.rng().chance(1, 4) => random_order(rig, next),
        _ => {
            let completions = rig.rng().below(6);
            rig.turn(completions);
        }
    }
}

/// Counts of the histories.
#[derive(Default)]
struct Met {
    rounds: u64,
    completed: u64,
    dissolved: u64,
    again: u64,
    merged: u64,
}

fn live(seed: u64, met: &mut Met) {
    let mut config = config(seed);
    config.steps.merge_bytes = [4 << 20, 4 << 12][(seed / 3) as usize % 2];
    let mut rig = Rig::with_long_segments(seed, !seed.is_multiple_of(3), 1 << 20, config);
    rig.create(1);
    rig.order(R1, vec![Order::Begin { volume: V1, parent: None }, Order::Begin { volume: VolumeId(2), parent: None }]);
    apply_all(&mut rig);
    let mut next = 3;
    for _ in 0..6 {
        for _ in 0..rig.rng().between(1, 500) {
            step(&mut rig, &mut next);
        }
        met.again += rig.engine.reads_looked_up_again();
        met.merged += rig.engine.stats().home.merged_aus;
        end_life(&mut rig);
        check_space(&rig);
        met.dissolved += rig.engine.replicas[&R1].lineage.dissolved_bytes().len() as u64;
    }
    apply_all(&mut rig);
    finish_merges(&mut rig);
    met.merged += rig.engine.stats().home.merged_aus;
    rig.disk.power_cut();
    rig.restart_and_check();
    check_merged(&mut rig);
    met.rounds += rig.seen.checkpoints;
    met.completed += rig.seen.completed_blocks;
}

#[test]
fn reads_through_generations_equal_a_model_in_every_life() {
    let mut met = Met::default();
    (0..40).for_each(|seed| live(seed, &mut met));
    let Met { rounds, completed, dissolved, again, merged } = met;
    let counts = format!("{rounds} rounds, {completed} blocks, {dissolved} bytes, {again} reads, {merged} AUs");
    assert!(merged > 500, "{counts}: the test lost its teeth");
    assert!(rounds > 100 && completed > 500 && dissolved > 500 && again > 10, "{counts}: the test lost its teeth");
}

#[test]
fn partial_block_is_completed_from_the_parent() {
    let mut rig = quiet(1);
    write(&mut rig, 0, 16);
    destage(&mut rig);
    branch(&mut rig, 2);
    write(&mut rig, 3, 2);
    zero(&mut rig, 9, 2);
    let need = rig.engine.counted_space();
    assert_eq!((need.aus, need.slots), (1, 3), "the rest of both blocks comes from the parent");
    // The head goes on while the blocks are completed: the parent of its next head is in no lineage of the round.
    rig.round();
    branch(&mut rig, 3);
    write(&mut rig, 4, 2);
    rig.settle();
    assert_eq!(rig.engine.stats().completed_blocks, 2);
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
    destage(&mut rig);
    rig.check_all_sectors();
    assert_eq!(rig.engine.recount_space(), Default::default());
}

#[test]
fn read_is_looked_up_again_when_an_open_block_becomes_data() {
    for head_is_at_home in [false, true] {
        let mut rig = quiet(2);
        write(&mut rig, 0, 8);
        destage(&mut rig);
        branch(&mut rig, 2);
        if head_is_at_home {
            write(&mut rig, 64, 8);
            destage(&mut rig);
        }
        // The read of the parent's block waits at the device.
        rig.read(R1, key(2, 0), SectorRange::new(0, 8));
        rig.end_turn();
        let (mut reads, rest): (Vec<Op>, _) =
            std::mem::take(&mut rig.ops).into_iter().partition(|op| matches!(op, Op::DiskRead { .. }));
        rig.ops = rest;
        assert_eq!(reads.len(), 1, "the block is the parent's");
        rig.models.get_mut(&R1).expect("created").reading = 0;
        write(&mut rig, 0, 8);
        destage(&mut rig);
        rig.models.get_mut(&R1).expect("created").reading = 1;
        let before = rig.checked_reads;
        rig.disk.submit(&mut reads);
        rig.settle();
        assert_eq!((rig.engine.reads_looked_up_again(), rig.checked_reads), (1, before + 1));
    }
}

#[test]
fn dissolved_generation_in_the_log_is_completed_through_its_heir() {
    for crash in [false, true] {
        let mut rig = quiet(3);
        write(&mut rig, 0, 24);
        destage(&mut rig);
        branch(&mut rig, 2);
        write(&mut rig, 3, 2);
        branch(&mut rig, 3);
        write(&mut rig, 9, 2);
        order(&mut rig, Order::Remove(GenerationId(2)));
        order(&mut rig, Order::Remove(GenerationId(1)));
        rig.check_all_sectors();
        if crash {
            rig.disk.power_cut();
            rig.restart_and_check();
        }
        destage(&mut rig);
        assert_eq!(rig.engine.stats().completed_blocks, 2);
        rig.check_all_sectors();
        // The log has no entry above the checkpoint: the list comes from the dissolved pages.
        rig.disk.power_cut();
        rig.restart_and_check();
        check_space(&rig);
        // All goes with the head.
        let empty = 0;
        order(&mut rig, Order::Remove(GenerationId(3)));
        destage(&mut rig);
        destage(&mut rig);
        assert_eq!(rig.engine.stats().home.used_bytes, empty);
    }
}

#[test]
fn volume_that_was_shorter_shows_nothing_of_its_snapshot_behind_its_end() {
    let mut rig = quiet(4);
    let far = |start| Effect::Write { chunk: key(1, 2), range: SectorRange::new(start, 8) };
    rig.extend(R1, vec![far(0), far(8)]);
    apply_all(&mut rig);
    destage(&mut rig);
    branch(&mut rig, 2);
    rig.order(R1, vec![Order::Shorten { volume: V1, count: 2 }]);
    apply_all(&mut rig);
    // A part of a block behind the end, and a discard that has nothing to hide.
    let range = SectorRange::new(8, 8);
    rig.extend(
        R1,
        vec![
            Effect::Write { chunk: key(1, 2), range: SectorRange::new(3, 2) },
            Effect::Zero { chunk: key(1, 2), range },
        ],
    );
    apply_all(&mut rig);
    rig.check_all_sectors();
    destage(&mut rig);
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn discards_over_a_parent_count_the_slots_of_their_marks() {
    let mut rig = quiet(5);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    let used = rig.engine.home.as_ref().expect("mounted").free_slots();
    branch(&mut rig, 2);
    zero(&mut rig, 0, 8);
    zero(&mut rig, 16, 8);
    let need = rig.engine.counted_space();
    assert_eq!((need.aus, need.slots), (0, 2), "a map page and its place in the directory");
    assert_eq!(rig.engine.recount_space(), need);
    let free = |rig: &Rig| rig.engine.home.as_ref().expect("mounted").free_slots();
    rig.round();
    rig.extend(R1, vec![Effect::Zero { chunk: key(1, 0), range: SectorRange::new(32, 8) }]);
    while rig.models[&R1].durable < rig.models[&R1].last() {
        rig.turn(1);
    }
    assert!(rig.engine.is_round_running());
    rig.commit(R1, u64::MAX);
    assert_eq!(rig.engine.counted_space(), need, "the running round lists the chunk");
    rig.settle();
    destage(&mut rig);
    destage(&mut rig);
    assert!(free(&rig) < used, "the chunk of marks has a page");
    assert_eq!(rig.engine.counted_space(), Default::default());
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn new_allocation_units_are_those_that_the_delta_lacks() {
    let mut rig = quiet(6);
    let au = |nth: u32| SectorRange::new(128 * nth, 128);
    let new = |rig: &Rig, generation, nth| rig.engine.new_aus(R1, key(generation, 0), au(nth));
    write(&mut rig, 0, 384);
    destage(&mut rig);
    branch(&mut rig, 2);
    assert_eq!((new(&rig, 1, 0), new(&rig, 2, 0)), (0, 1), "the first write of a head takes a unit");
    write(&mut rig, 0, 8);
    assert_eq!(new(&rig, 2, 0), 0);
    zero(&mut rig, 128, 128);
    assert_eq!(new(&rig, 2, 1), 1);
    destage(&mut rig);
    order(&mut rig, Order::Remove(GenerationId(1)));
    let now = [new(&rig, 2, 0), new(&rig, 2, 1), new(&rig, 2, 2)];
    assert_eq!(now, [0, 1, 0], "what was dissolved is the heir's, but for what the heir hides");
    zero(&mut rig, 256, 128);
    assert_eq!(new(&rig, 2, 2), 1);
}

#[test]
fn entry_that_only_changes_the_tree_is_followed_by_a_round() {
    let mut rig = quiet(7);
    write(&mut rig, 0, 128);
    destage(&mut rig);
    let used = rig.engine.stats().home.used_bytes;
    rig.engine.config.round_idle = Duration::from_millis(5);
    // The entry is applied while a round runs that does not know it.
    write(&mut rig, 0, 8);
    rig.round();
    rig.order(R1, vec![Order::Remove(GenerationId(1))]);
    rig.turn(1);
    while rig.models[&R1].durable < rig.models[&R1].last() {
        rig.turn(1);
    }
    rig.commit(R1, u64::MAX);
    run_rounds(&mut rig);
    assert!(used > 0 && rig.engine.stats().home.used_bytes == 0, "{} bytes", rig.engine.stats().home.used_bytes);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn bad_block_of_a_snapshot_is_named_by_its_own_generation() {
    let mut rig = quiet(8);
    write(&mut rig, 0, 16);
    destage(&mut rig);
    let home = rig.superblock.home_start as usize;
    let second = rig.models[&R1].expected(key(1, 0), SectorRange::new(8, 8));
    branch(&mut rig, 2);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| *page == second).expect("it is at home") * 4096;
    rig.disk.flip(home + at + 5);
    rig.read(R1, key(2, 0), SectorRange::new(0, 16));
    rig.engine.now = rig.now;
    rig.seen.bad.clear();
    while rig.seen.bad.is_empty() {
        rig.end_turn();
        rig.disk.submit(&mut rig.ops);
        if let Some(event) = rig.disk.step() {
            rig.handle_event(event);
        }
    }
    assert_eq!(rig.bad_blocks(), [(R1, key(1, 0), SectorRange::new(8, 8))]);
    assert_eq!(rig.seen.failed_reads.len(), 1);
    rig.seen.failed_reads.clear();
    // A round would need the bad block only for a part of it in the head.
    assert!(!rig.engine.needs_bad_block(R1));
    write(&mut rig, 9, 2);
    assert!(rig.engine.needs_bad_block(R1));
    write(&mut rig, 8, 8);
    assert!(!rig.engine.needs_bad_block(R1));
}

#[test]
fn mended_block_of_a_snapshot_does_not_cover_that_of_the_head() {
    let mut rig = quiet(9);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    let whole = SectorRange::new(0, 8);
    let old = rig.models[&R1].expected(key(1, 0), whole);
    branch(&mut rig, 2);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    let home = rig.superblock.home_start as usize;
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| *page == old).expect("it is at home") * 4096;
    rig.disk.flip(home + at + 5);
    rig.read(R1, key(1, 0), whole);
    rig.settle();
    let copy = BlockCopy { low: Index(1), high: Index(1), data: Some((IoBuf::copy_of(&old), crc32c(&old))) };
    assert_eq!(rig.engine.mend(R1, key(1, 0), 0, &copy), Ok(()));
    // The copy lies in the overlay, and the block of the head at home.
    rig.check_all_sectors();
    destage(&mut rig);
    rig.check_all_sectors();
}
