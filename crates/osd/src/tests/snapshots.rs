//! Pages and digests of a PG with snapshots: the chunks of volumes, and those of each generation.

use super::digests::ask;
use super::rig::{LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use std::sync::Arc;
use types::control::{HeldSnapshot, OsdDown};
use types::cut::{Cut, CutEnd, CutItem, SnapshotOrder};
use types::tree::Role;
use types::{ChunkKey, CutId, GenerationId, Index, ReplicaId, SnapshotId, VolumeChunk, VolumeId};

pub(super) const VOLUME: VolumeId = VolumeId(1);
/// The head that the cut begins; the snapshot has its number.
pub(super) const HEAD: GenerationId = GenerationId(12);
pub(super) const SNAPSHOT: SnapshotId = SnapshotId(12);

pub(super) fn key(generation: u64, index: u32) -> ChunkKey {
    ChunkKey { generation: GenerationId(generation), index }
}

pub(super) fn order(rig: &mut Rig, order: SnapshotOrder) {
    let leader = rig.leader(pg(0));
    rig.tell(leader, OsdDown::Snapshots { pg: pg(0), order });
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(20));
}

pub(super) fn cut(rig: &mut Rig) {
    let items: Arc<[CutItem]> = [CutItem { volume: VOLUME, to: HEAD }].into();
    order(rig, SnapshotOrder::Cut(Cut { id: CutId(HEAD.0), created_ms: 1000, items: items.clone() }));
    order(rig, SnapshotOrder::Release { cut: CutId(HEAD.0), end: CutEnd::Release, items });
}

/// Three replicas of a volume with a snapshot of chunks 0 and 1, which was written in chunks 1 and 2 since.
fn with_a_snapshot(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 128);
    rig.write(pg(0), 1, 0, 128);
    cut(&mut rig);
    rig.write(pg(0), 1, 64, 8);
    rig.write(pg(0), 2, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig
}

/// Returns the applied index, the chunks of volumes and those of generations, which are equal on all OSDs.
fn page(rig: &mut Rig) -> (Index, Vec<VolumeChunk>, Vec<(ChunkKey, Role)>) {
    let of = |rig: &mut Rig, i| match ask(rig, i, ToolAsk::Pg { pg: pg(0) }) {
        ToolAnswer::Pg { report, chunks, held, .. } => (report.applied, chunks, held),
        other => panic!("{other:?}"),
    };
    let pages: Vec<_> = rig.all().map(|i| of(rig, i)).collect();
    assert!(pages.iter().all(|page| *page == pages[0]), "{pages:?}");
    pages.into_iter().next().expect("there are OSDs")
}

pub(super) fn digests(rig: &mut Rig, chunk: ChunkKey, at: Index) -> Vec<ToolAnswer> {
    rig.all().map(|i| ask(rig, i, ToolAsk::Digest { pg: pg(0), chunk, at })).collect()
}

/// Checks that all members have these chunks of generations, and the same in each.
fn check_held(rig: &mut Rig, want: &[(ChunkKey, Role)]) {
    let (at, chunks, held) = page(rig);
    assert_eq!(held, want);
    let of_volume: Vec<VolumeChunk> = (0..3).map(|index| VolumeChunk { volume: VOLUME, index }).collect();
    assert_eq!(chunks, of_volume, "a head is no volume of its own, and a chunk of its snapshot is one of the volume");
    for (chunk, _) in want {
        let all = digests(rig, *chunk, at);
        assert!(
            matches!(all[0], ToolAnswer::Digest { .. }) && all.iter().all(|one| *one == all[0]),
            "{chunk}: {all:?}"
        );
    }
}

#[test]
fn page_names_generations_and_counts_their_chunks_for_the_volume() {
    let (snapshot, head) = (Role::Snapshot(VOLUME, SNAPSHOT), Role::Head(VOLUME));
    let want = [(key(1, 0), snapshot), (key(1, 1), snapshot), (key(12, 1), head), (key(12, 2), head)];
    let mut rig = with_a_snapshot(21);
    check_held(&mut rig, &want);
    // One of them takes the tree from its log again, and all put their blocks at home.
    rig.kill(2);
    rig.start(2);
    rig.run(ms(12_000));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    check_held(&mut rig, &want);
}

#[test]
fn removed_snapshot_is_of_no_page_and_has_no_digest() {
    let mut rig = with_a_snapshot(22);
    // All have its blocks at home, where each merges them on its own: one of them slowly.
    rig.run(ms(12_000));
    rig.slow_disk(1, 300);
    order(&mut rig, SnapshotOrder::Remove { volume: VOLUME, snapshot: SNAPSHOT });
    let merged = |rig: &mut Rig, i: usize| {
        let held = rig.osd(i).engine.chunks_for_tools(ReplicaId(i as u64 + 1));
        held.iter().all(|held| held.chunk.generation == HEAD)
    };
    rig.until(LONG, "the others have merged them", |rig| merged(rig, 0) && merged(rig, 2));
    assert!(!merged(&mut rig, 1));
    let want = [0, 1, 2].map(|index| (key(12, index), Role::Head(VOLUME)));
    for _ in 0..2 {
        let at = page(&mut rig).0;
        let all = digests(&mut rig, key(1, 1), at);
        assert!(all.iter().all(|one| *one == ToolAnswer::Ended { at }), "its digests would differ: {all:?}");
        check_held(&mut rig, &want);
        rig.run(ms(5000));
    }
    assert!(merged(&mut rig, 1));
}

#[test]
fn page_has_the_snapshots_of_cuts_that_have_ended() {
    let mut rig = with_a_snapshot(1);
    let snapshots = |rig: &mut Rig| match ask(rig, 0, ToolAsk::Pg { pg: pg(0) }) {
        ToolAnswer::Pg { snapshots, attached, .. } => (snapshots, attached[0].first, attached[0].last),
        other => panic!("{other:?}"),
    };
    let (held, first, last) = snapshots(&mut rig);
    let chunk_count = held[0].chunk_count;
    let expected = HeldSnapshot { volume: VOLUME, snapshot: SNAPSHOT, created_ms: 1000, chunk_count };
    assert_eq!((held, first, last), (vec![expected], GenerationId(1), HEAD));
    // One that may still be taken back is none.
    let items: Arc<[CutItem]> = [CutItem { volume: VOLUME, to: GenerationId(13) }].into();
    let leader = rig.leader(pg(0));
    let cut = SnapshotOrder::Cut(Cut { id: CutId(13), created_ms: 2000, items });
    rig.tell(leader, OsdDown::Snapshots { pg: pg(0), order: cut });
    rig.run(ms(20));
    let (held, _, last) = snapshots(&mut rig);
    assert_eq!((held, last), (vec![expected], GenerationId(13)));
}
