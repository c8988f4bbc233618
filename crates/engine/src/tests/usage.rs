//! Space by volume, against the tree of the model and against what deletions really free.

use super::generations::leader;
use super::lineage::{branch, destage, finish_merges, key, order, quiet, write, zero};
use super::rig::Rig;
use crate::testing::Order;
use types::tree::Role;
use types::units::SECTORS_PER_AU;
use types::usage::{SnapshotUsage, Usage};
use types::{GenerationId, ReplicaId, SnapshotId, VolumeId};

const R1: ReplicaId = ReplicaId(1);
const V1: VolumeId = VolumeId(1);

fn usage(rig: &Rig, volume: VolumeId) -> Usage {
    let (mut sum, mut next, mut pages) = (Usage::default(), Some(0), 0);
    while let Some(from) = next {
        let (page, then) = rig.engine.usage(R1, volume, from);
        sum.add(&page);
        assert!(then.is_none_or(|then| then > from), "a page goes on");
        (next, pages) = (then, pages + 1);
    }
    assert!(pages < 100);
    sum
}

/// Returns the figures of the only snapshot.
fn of_snapshot(usage: &Usage, id: u64) -> (u64, u64) {
    let SnapshotUsage { stored, frees } = usage.snapshots.get(&SnapshotId(id)).copied().unwrap_or_default();
    (stored, frees)
}

#[test]
fn space_is_counted_from_the_log_as_from_home() {
    let mut rig = quiet(51);
    write(&mut rig, 0, 3 * SECTORS_PER_AU);
    branch(&mut rig, 2);
    write(&mut rig, 8, 8);
    zero(&mut rig, SECTORS_PER_AU, SECTORS_PER_AU);
    for at_home in [false, true] {
        if at_home {
            destage(&mut rig);
        }
        let found = usage(&rig, V1);
        assert_eq!((found.allocated, found.exclusive, found.stored), (2, 1, 4), "the second AU shows zeros");
        assert_eq!((found.removed, found.reclaimable), (0, 0));
        // The first AU goes to the one of the head, the second is hidden, the third moves to the head.
        assert_eq!(of_snapshot(&found, 2), (3, 2));
        assert_eq!(usage(&rig, VolumeId(7)), Usage::default());
    }
}

#[test]
fn clone_shares_the_space_of_its_parent() {
    let mut rig = quiet(52);
    write(&mut rig, 0, 2 * SECTORS_PER_AU);
    branch(&mut rig, 2);
    let clone = VolumeId(5);
    order(&mut rig, Order::Begin { volume: clone, parent: Some(GenerationId(1)) });
    destage(&mut rig);
    let (parent, cloned) = (usage(&rig, V1), usage(&rig, clone));
    assert_eq!((parent.allocated, parent.exclusive, parent.stored), (2, 0, 2));
    assert_eq!((cloned.allocated, cloned.exclusive, cloned.stored), (2, 0, 0));
    assert_eq!(of_snapshot(&parent, 2), (2, 0), "volume and clone need it");
    order(&mut rig, Order::Remove(GenerationId(1)));
    let parent = usage(&rig, V1);
    assert_eq!((parent.removed, parent.stored, parent.snapshots.len()), (2, 2, 0), "it is hidden");
}

/// The space that is foretold for a deletion is what the deletion frees.
#[test]
fn deletion_of_a_snapshot_frees_what_was_foretold() {
    let (mut tried, mut freed, mut kept) = (0, 0, 0);
    for seed in 100..150 {
        let mut next = 3;
        let mut rig = leader(seed, &mut next);
        finish_merges(&mut rig);
        let tree = rig.models[&R1].tree.clone();
        let volumes: Vec<VolumeId> = tree.iter().map(|(_, node)| node.role.volume()).collect();
        let stored = |rig: &Rig| -> u64 {
            let mut of: Vec<VolumeId> = volumes.clone();
            of.dedup();
            of.sort();
            of.dedup();
            of.into_iter().map(|volume| usage(rig, volume).stored).sum()
        };
        // A hidden parent may go with it, and free more.
        let alone = |parent: Option<GenerationId>| {
            !parent.and_then(|id| tree.get(id)).is_some_and(|node| matches!(node.role, Role::Hidden(_)))
        };
        let found = tree.iter().find_map(|(id, node)| match node.role {
            Role::Snapshot(volume, name) if alone(node.parent) => Some((id, volume, name)),
            _ => None,
        });
        let Some((id, volume, name)) = found else { continue };
        let before = (stored(&rig), of_snapshot(&usage(&rig, volume), name.0));
        order(&mut rig, Order::Remove(id));
        finish_merges(&mut rig);
        let after = stored(&rig);
        let (held, frees) = before.1;
        assert_eq!(before.0 - after, frees, "seed {seed}: {id} of {held} AUs");
        assert_eq!(usage(&rig, volume).reclaimable, 0, "seed {seed}: all is merged");
        tried += 1;
        freed += frees;
        kept += held - frees;
    }
    assert!(tried > 15 && freed > 20 && kept > 20, "{tried} deletions freed {freed} AUs and kept {kept}");
}

#[test]
fn space_that_waits_for_a_merge_is_told() {
    let mut rig = quiet(53);
    write(&mut rig, 0, SECTORS_PER_AU);
    branch(&mut rig, 2);
    write(&mut rig, 0, SECTORS_PER_AU);
    destage(&mut rig);
    order(&mut rig, Order::Remove(GenerationId(1)));
    let found = usage(&rig, V1);
    assert_eq!((found.stored, found.reclaimable), (1, 1));
    finish_merges(&mut rig);
    let found = usage(&rig, V1);
    assert_eq!((found.stored, found.reclaimable), (1, 0));
    assert!(rig.engine.chunks(R1).iter().all(|chunk| *chunk == key(2, 0)));
}
