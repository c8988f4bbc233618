//! Snapshots in a whole cluster: a test cuts volumes in the place of meta, whose records do not know of it.

use crate::rot::{Members, at_rest, begun, come_to_rest, compare, pass};
use control::Records;
use sim::cluster::Cluster;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::control::OsdDown;
use types::cut::{Cut, CutEnd, CutItem, SnapshotOrder};
use types::tree::{Role, Tree};
use types::{CutId, GenerationId, PgId, SnapshotId, VolumeId};

/// The first new head: it is above the ids of all volumes.
const FIRST: u64 = 1 << 20;

fn trees(cluster: &Cluster, pg: PgId) -> Vec<Arc<Tree>> {
    cluster.running().filter_map(|(_, osd)| osd.tree_for_tools(pg)).collect()
}

fn order(cluster: &mut Cluster, pgs: &Members, order: &SnapshotOrder) {
    pgs.iter().for_each(|(pg, _)| cluster.order(*pg, &OsdDown::Snapshots { pg: *pg, order: order.clone() }));
    pass(cluster, Duration::from_millis(30));
}

/// Returns the snapshots that all members of the PGs have.
fn snapshots(cluster: &Cluster, pgs: &Members) -> BTreeSet<(PgId, VolumeId, SnapshotId)> {
    let of_tree = |pg: PgId, tree: &Tree| -> BTreeSet<_> {
        let named = tree.iter().filter_map(|(_, node)| match node.role {
            Role::Snapshot(volume, id) => Some((pg, volume, id)),
            _ => None,
        });
        named.collect()
    };
    let of_pg = |pg: PgId| {
        let all: Vec<BTreeSet<_>> = trees(cluster, pg).iter().map(|tree| of_tree(pg, tree)).collect();
        all.into_iter().reduce(|a, b| &a & &b).unwrap_or_default()
    };
    pgs.iter().flat_map(|(pg, _)| of_pg(*pg)).collect()
}

/// Makes a snapshot of each volume in all PGs that have it. A cut may be given up under load, and is tried again.
fn cut(cluster: &mut Cluster, volumes: &[VolumeId], pgs: &Members) -> BTreeSet<(PgId, VolumeId, SnapshotId)> {
    for n in 0..100 {
        let to = |nth: usize| GenerationId(FIRST + n * 100 + nth as u64);
        let item = |(nth, volume): (usize, &VolumeId)| CutItem { volume: *volume, to: to(nth) };
        let items: Arc<[CutItem]> = volumes.iter().enumerate().map(item).collect();
        let id = CutId(to(0).0);
        order(cluster, pgs, &SnapshotOrder::Cut(Cut { id, created_ms: 1000, items: items.clone() }));
        order(cluster, pgs, &SnapshotOrder::Release { cut: id, end: CutEnd::Release, items });
        let made = snapshots(cluster, pgs);
        let of_volume = |volume: &VolumeId| made.iter().any(|(_, of, _)| of == volume);
        if volumes.iter().all(of_volume) {
            return made;
        }
    }
    panic!("no cut of {volumes:?} succeeds");
}

#[test]
fn replicas_are_compared_in_the_snapshot_and_in_the_head() {
    let (mut cluster, volumes, pgs) = at_rest(3);
    let before = compare(&mut cluster, &volumes, &pgs).expect("the replicas are equal");
    assert!(before > 0, "something was written");
    let made = cut(&mut cluster, &volumes, &pgs);
    assert_eq!(compare(&mut cluster, &volumes, &pgs), Ok(2 * before), "each head shows all of its snapshot");
    for (pg, volume, snapshot) in made {
        cluster.order(pg, &OsdDown::Snapshots { pg, order: SnapshotOrder::Remove { volume, snapshot } });
    }
    pass(&mut cluster, Duration::from_secs(2));
    assert!(snapshots(&cluster, &pgs).is_empty());
    assert_eq!(compare(&mut cluster, &volumes, &pgs), Ok(before), "the blocks are those of the heads");
    cluster.failure().expect("all is well");
}

#[test]
fn recovery_of_records_takes_no_head_for_a_lost_volume() {
    let (mut cluster, volumes) = begun(4, |_| {});
    pass(&mut cluster, Duration::from_millis(300));
    let pgs: Members = {
        let records = cluster.meta.records().expect("meta is up");
        records.pgs.values().map(|pg| (pg.pg, pg.members.iter().map(|m| m.osd).collect())).collect()
    };
    cut(&mut cluster, &volumes, &pgs);
    come_to_rest(&mut cluster);
    let heads = pgs.iter().flat_map(|(pg, _)| trees(&cluster, *pg)).filter(|tree| {
        let is_new = |id: GenerationId| id.0 >= FIRST;
        tree.iter().any(|(id, node)| is_new(id) && matches!(node.role, Role::Head(_)))
    });
    assert!(heads.count() > 0, "there are new heads");
    let found = cluster.found(cluster.meta.records().expect("meta is up"));
    assert!(found.volumes.is_empty() && found.segments.is_empty() && found.doubtful.is_empty(), "{found:?}");
    let lost = cluster.found(&Records::default()).volumes;
    assert_eq!(lost.iter().map(|lost| lost.volume).collect::<Vec<_>>(), volumes, "the volumes, and nothing else");
}
