//! Blocks that heads show of older generations: those that a flatten must copy.

use super::generations::leader;
use super::lineage::{branch, destage, order, quiet, write, zero};
use super::rig::Rig;
use crate::testing::{CHUNKS, Order, SECTORS};
use std::collections::BTreeSet;
use types::store::Inherited;
use types::tree::Role;
use types::units::{SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange, VolumeId};

const R1: ReplicaId = ReplicaId(1);

/// Returns the blocks of each chunk that the walk over a head names.
fn walk(rig: &Rig, head: GenerationId) -> BTreeSet<(u32, u32)> {
    let (mut found, mut from) = (BTreeSet::new(), 0);
    loop {
        match rig.engine.next_inherited(R1, head, from) {
            Inherited::End => return found,
            Inherited::Further(index) => {
                assert!(index > from, "the walk goes on");
                from = index;
            }
            Inherited::Chunk { index, runs } => {
                assert!(index >= from && runs.iter().any(|(_, is)| *is));
                let mut at = 0;
                for (sectors, is) in runs {
                    let blocks = at / SECTORS_PER_BLOCK..(at + sectors) / SECTORS_PER_BLOCK;
                    found.extend(blocks.filter(|_| is).map(|block| (index, block)));
                    at += sectors;
                }
                from = index + 1;
            }
        }
    }
}

/// A block that is not named shows the same without the parent, and one that is named has data of it.
#[test]
fn detached_head_shows_all_that_was_not_named() {
    let (mut heads, mut named, mut differ, mut blocks) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut next = 3;
        let rig = leader(seed, &mut next);
        let model = &rig.models[&R1];
        let with_parent = model.tree.iter().filter(|(_, n)| matches!(n.role, Role::Head(_)) && n.parent.is_some());
        for (head, _) in with_parent {
            let found = walk(&rig, head);
            let mut alone = model.clone();
            alone.tree.detach(head).expect("it is a head");
            heads += 1;
            named += found.len();
            for index in 0..CHUNKS {
                let chunk = ChunkKey { generation: head, index };
                for block in 0..SECTORS / SECTORS_PER_BLOCK {
                    let range = SectorRange::of_blocks(block as u16, 1);
                    let is_equal = model.expected(chunk, range) == alone.expected(chunk, range);
                    let is_named = found.contains(&(index, block));
                    assert!(is_equal || is_named, "seed {seed}: block {block} of {chunk} is not named");
                    (differ, blocks) = (differ + usize::from(!is_equal), blocks + 1);
                }
            }
        }
    }
    assert!(
        heads > 60 && differ > 200 && blocks > 2 * named,
        "{heads} heads, {blocks} blocks: {named} named, {differ} differ"
    );
}

/// A block of which the head has a part is named also when a round has completed it: other replicas may not have done so.
#[test]
fn block_that_a_round_has_completed_is_named() {
    let mut rig = quiet(61);
    write(&mut rig, 0, 2 * SECTORS_PER_AU);
    branch(&mut rig, 2);
    let clone = GenerationId(5);
    order(&mut rig, Order::Begin { volume: VolumeId(5), parent: Some(GenerationId(1)) });
    let first = walk(&rig, clone).len() as u32;
    assert_eq!(first, 2 * SECTORS_PER_AU / SECTORS_PER_BLOCK);
    assert!(walk(&rig, GenerationId(1)).is_empty(), "it has no parent");
    assert!(walk(&rig, GenerationId(9)).is_empty(), "there is no such generation");
    // The head of volume 1 gets a part of a block, a block where the parent has none, and zeros.
    write(&mut rig, 3, 2);
    write(&mut rig, 2 * SECTORS_PER_AU, 8);
    zero(&mut rig, 8, 16);
    for _ in 0..2 {
        let found = walk(&rig, GenerationId(2));
        assert!(found.contains(&(0, 0)) && !found.contains(&(0, 1)) && found.len() as u32 == first - 2);
        destage(&mut rig);
    }
}
