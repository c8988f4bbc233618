//! Tests of cuts in one PG: each end of a cut, orders that come late or twice, and the checkpoint of an open cut.

use super::*;
use crate::descriptor::{Command, Stamp};
use types::control::{Attach, Base};
use types::map::Member;
use types::store::Effect;
use types::writers::Writers;
use types::{Epoch, GenerationId, OsdId, ReplicaId, SectorRange, SessionId};

const V: VolumeId = VolumeId(1);
const W: VolumeId = VolumeId(2);

/// A PG with the volumes V and W, of 4 chunks each.
fn two_volumes() -> Decision {
    let members = [Member { replica: ReplicaId(11), osd: OsdId(1) }];
    let mut d = Decision::fresh(Epoch(1), &members);
    for (order, volume) in [(1, V), (2, W)] {
        let (session, epoch) = (SessionId(7), Epoch(1));
        let attach = Attach {
            order,
            volume,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 4,
            len_epoch: 0,
            head: GenerationId::first_of(volume),
            base: None,
        };
        assert_eq!(d.decide(&Command::Attach(Box::new(attach))).changes, Some(vec![]), "the store learns the new head");
    }
    d
}

fn items(of: &[(VolumeId, u64)]) -> Arc<[CutItem]> {
    of.iter().map(|(volume, to)| CutItem { volume: *volume, to: GenerationId(*to) }).collect()
}

fn snap(d: &mut Decision, of: &[(VolumeId, u64)]) -> Decided {
    d.decide(&Command::Snap(Cut { id: CutId(of[0].1), created_ms: 5, items: items(of) }))
}

fn end(d: &mut Decision, of: &[(VolumeId, u64)], end: CutEnd) -> Decided {
    d.decide(&Command::Release { cut: CutId(of[0].1), end, items: items(of) })
}

fn write(d: &mut Decision, volume: VolumeId, seq: u64) -> GenerationId {
    let stamp = Stamp { session: SessionId(7), epoch: Epoch(1), seq, watermark: 0 };
    let chunk = VolumeChunk { volume, index: 0 };
    let decided = d.decide(&Command::Write { chunk, range: SectorRange::new(0, 8), stamp });
    let Outcome::Done(Effect::Write { chunk, .. }) = decided.outcome else { panic!("{decided:?}") };
    chunk.generation
}

fn step(step: CutStep) -> Decided {
    Outcome::Cut(step).into()
}

fn refused(refusal: CutRefusal) -> Decided {
    Outcome::NoCut(refusal).into()
}

fn changed(outcome: Outcome, changes: Vec<Change>) -> Decided {
    Decided { outcome, changes: Some(changes) }
}

const fn g(n: u64) -> GenerationId {
    GenerationId(n)
}

#[test]
fn released_cut_leaves_a_snapshot_that_can_be_read_and_removed() {
    let mut d = two_volumes();
    assert_eq!(write(&mut d, V, 0), g(1));
    let of = [(V, 10)];
    assert_eq!(snap(&mut d, &of), changed(Outcome::Cut(CutStep::Snapped), vec![]));
    assert!(d.holds(V) && !d.holds(W));
    assert_eq!(snap(&mut d, &of), step(CutStep::Snapped), "the order came twice");
    assert_eq!(end(&mut d, &of, CutEnd::Release), step(CutStep::Released));
    assert_eq!(end(&mut d, &of, CutEnd::Release), step(CutStep::Released), "the order came twice");
    assert!(!d.holds(V));
    assert_eq!(write(&mut d, V, 1), g(10), "writes go to the new head");
    let at = |index| VolumeChunk { volume: V, index };
    let read = |d: &Decision, index, id| d.in_snapshot(at(index), SnapshotId(id));
    assert_eq!(read(&d, 3, 10), Ok(Some(ChunkKey { generation: g(1), index: 3 })));
    assert_eq!(read(&d, 4, 10), Err(Errno::Invalid), "it lies behind the end that the volume had");
    assert_eq!(read(&d, 0, 9), Err(Errno::Gone), "there is no such snapshot");
    let other = VolumeChunk { volume: W, index: 0 };
    assert_eq!(d.in_snapshot(other, SnapshotId(10)), Err(Errno::Gone), "it is one of another volume");
    let remove = Command::Remove { volume: V, snapshot: SnapshotId(10) };
    let merge = Change::Merge { from: g(1), into: g(10), through: u32::MAX };
    assert_eq!(d.decide(&remove), changed(Outcome::Removed, vec![merge]));
    assert_eq!(d.decide(&remove), Outcome::Removed.into(), "the order came twice");
    assert_eq!(read(&d, 0, 10), Err(Errno::Gone));
}

#[test]
fn only_an_older_snapshot_on_the_path_can_be_compared_with() {
    let mut d = two_volumes();
    for to in [10, 11, 12] {
        snap(&mut d, &[(V, to)]);
        end(&mut d, &[(V, to)], CutEnd::Release);
    }
    let since = |d: &Decision, volume, generation, id| d.ancestor(volume, g(generation), SnapshotId(id));
    assert_eq!(since(&d, V, 12, 10), Ok(Some(g(1))), "the head against the oldest snapshot");
    assert_eq!(since(&d, V, 11, 11), Ok(Some(g(10))), "the third one against the second");
    assert_eq!(since(&d, V, 10, 12), Err(Errno::Invalid), "an older one does not descend from a younger one");
    assert_eq!(since(&d, V, 12, 9), Err(Errno::Gone), "there is no such snapshot");
    assert_eq!(since(&d, W, 2, 10), Err(Errno::Gone), "it is one of another volume");
    d.volumes.get_mut(&W).expect("it is attached").first = g(20);
    assert_eq!(since(&d, W, 2, 10), Ok(None), "the volume came to this PG after it");
    // A rollback to the first snapshot: the others are no ancestors of the new head.
    Arc::make_mut(&mut d.tree).turn_back(g(12), Some(g(1)), g(13)).expect("it is a snapshot");
    assert_eq!(since(&d, V, 13, 10), Ok(Some(g(1))));
    assert_eq!(since(&d, V, 13, 11), Err(Errno::Invalid));
}

#[test]
fn volume_that_came_after_a_snapshot_reads_it_as_zeros() {
    let mut d = two_volumes();
    d.volumes.get_mut(&V).expect("it is attached").first = g(1);
    assert_eq!(d.in_snapshot(VolumeChunk { volume: W, index: 0 }, SnapshotId(2)), Ok(None));
    let absent = VolumeChunk { volume: VolumeId(3), index: 0 };
    assert_eq!(d.in_snapshot(absent, SnapshotId(2)), Err(Errno::Gone));
}

#[test]
fn cut_that_lasts_too_long_leaves_the_heads_as_they_were() {
    let mut d = two_volumes();
    let before = d.tree.clone();
    let of = [(V, 10), (W, 11)];
    snap(&mut d, &of);
    let gone = vec![Change::Discard(g(10)), Change::Discard(g(11))];
    assert_eq!(end(&mut d, &of, CutEnd::TimedOut), changed(Outcome::Cut(CutStep::Lapsed), gone));
    assert_eq!((&d.tree, d.volumes[&V].head, d.cuts.len()), (&before, g(1), 0));
    assert_eq!(end(&mut d, &of, CutEnd::Release), step(CutStep::Lapsed), "meta learns that this PG gave the cut up");
    assert_eq!(snap(&mut d, &of), refused(CutRefusal::Stale), "a Snap that comes late has no effect");
    assert_eq!(write(&mut d, V, 0), g(1));
    assert_eq!(snap(&mut d, &[(V, 12)]).outcome, Outcome::Cut(CutStep::Snapped), "the next cut goes on");
}

#[test]
fn timeout_has_no_effect_behind_the_release() {
    let mut d = two_volumes();
    let of = [(V, 10)];
    snap(&mut d, &of);
    end(&mut d, &of, CutEnd::Release);
    assert_eq!(end(&mut d, &of, CutEnd::TimedOut), step(CutStep::Released));
    assert_eq!(d.tree.snapshot(SnapshotId(10)), Some(g(1)));
}

#[test]
fn abort_without_its_snap_refuses_the_snap() {
    let mut d = two_volumes();
    let of = [(V, 10), (W, 11)];
    assert_eq!(end(&mut d, &of, CutEnd::Abort), step(CutStep::Aborted));
    assert_eq!(snap(&mut d, &of), refused(CutRefusal::Stale));
    assert_eq!(snap(&mut d, &[(W, 11)]), refused(CutRefusal::Stale), "each of its numbers is used");
    assert_eq!(d.volumes[&V].head, g(1));
}

#[test]
fn abort_of_a_released_cut_merges_its_snapshot_away() {
    let mut d = two_volumes();
    let of = [(V, 10)];
    snap(&mut d, &of);
    end(&mut d, &of, CutEnd::Release);
    write(&mut d, V, 0);
    let merge = Change::Merge { from: g(1), into: g(10), through: u32::MAX };
    assert_eq!(end(&mut d, &of, CutEnd::Abort), changed(Outcome::Cut(CutStep::Aborted), vec![merge]));
    assert_eq!(end(&mut d, &of, CutEnd::Abort), step(CutStep::Aborted));
    assert_eq!(write(&mut d, V, 1), g(10), "what was written behind the snapshot stays");
}

#[test]
fn head_that_was_written_in_an_open_cut_is_never_dropped() {
    for how in [CutEnd::TimedOut, CutEnd::Abort] {
        let mut d = two_volumes();
        let of = [(V, 10), (W, 11)];
        snap(&mut d, &of);
        assert_eq!(write(&mut d, V, 0), g(10));
        let merge = Change::Merge { from: g(1), into: g(10), through: u32::MAX };
        assert_eq!(end(&mut d, &of, how).changes, Some(vec![merge, Change::Discard(g(11))]), "{how:?}");
        assert_eq!((d.volumes[&V].head, d.volumes[&W].head), (g(10), g(2)));
    }
}

#[test]
fn cut_takes_all_volumes_that_are_here_or_none() {
    let mut d = two_volumes();
    let before = d.clone();
    snap(&mut d, &[(W, 20)]);
    assert_eq!(snap(&mut d, &[(V, 30), (W, 31)]), refused(CutRefusal::Open), "another cut of W is open");
    assert_eq!(d.volumes[&V], before.volumes[&V]);
    end(&mut d, &[(W, 20)], CutEnd::Release);
    assert_eq!(snap(&mut d, &[(V, 10), (W, 19)]), refused(CutRefusal::Stale), "W knows a later order");
    assert_eq!(d.volumes[&V], before.volumes[&V]);
    let of = [(V, 40), (VolumeId(9), 41)];
    assert_eq!(snap(&mut d, &of).outcome, Outcome::Cut(CutStep::Snapped), "a volume that is not here takes no part");
    assert_eq!(end(&mut d, &of, CutEnd::Release), step(CutStep::Released));
    let absent = [(VolumeId(9), 50)];
    assert_eq!(snap(&mut d, &absent), step(CutStep::Snapped));
    assert_eq!((end(&mut d, &absent, CutEnd::Release), d.cuts.len()), (step(CutStep::Released), 0));
}

#[test]
fn abort_of_another_cut_takes_no_snapshot_of_an_open_one() {
    let mut d = two_volumes();
    let of = [(V, 10)];
    snap(&mut d, &of);
    let foreign = Command::Release { cut: CutId(99), end: CutEnd::Abort, items: items(&of) };
    assert_eq!(d.decide(&foreign), refused(CutRefusal::Open));
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
    assert_eq!(end(&mut d, &of, CutEnd::TimedOut).changes, Some(vec![Change::Discard(g(10))]));
}

#[test]
fn volume_whose_length_is_in_doubt_gets_no_snapshot() {
    let mut d = two_volumes();
    d.volumes.get_mut(&V).expect("it is attached").chunk_count = CHUNKS_KEPT;
    assert_eq!(snap(&mut d, &[(V, 10)]), refused(CutRefusal::Busy));
}

#[test]
fn snapshot_of_an_open_cut_is_not_removed_and_ends_with_its_volume() {
    let mut d = two_volumes();
    let of = [(V, 10), (W, 11)];
    snap(&mut d, &of);
    let remove = Command::Remove { volume: V, snapshot: SnapshotId(10) };
    assert_eq!(d.decide(&remove), refused(CutRefusal::Open));
    let gone = Attach {
        order: 9,
        volume: V,
        writers: Writers::one(SessionId(0), Epoch(2)),
        epoch: Epoch(2),
        chunk_count: 0,
        len_epoch: 0,
        head: GenerationId(0),
        base: None,
    };
    let discards = vec![Change::Discard(g(10)), Change::Discard(g(1))];
    assert_eq!(d.decide(&Command::Attach(Box::new(gone))).changes, Some(discards));
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
    assert_eq!(end(&mut d, &of, CutEnd::TimedOut).changes, Some(vec![Change::Discard(g(11))]));
}

#[test]
fn too_many_open_cuts_are_refused_and_each_is_in_the_checkpoint() {
    let mut d = two_volumes();
    for n in 0..OPEN_CUTS_MAX as u64 + 2 {
        let (session, epoch) = (SessionId(7), Epoch(1));
        let attach = Attach {
            order: 10 + n,
            volume: VolumeId(100 + n),
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 1,
            len_epoch: 0,
            head: GenerationId(100 + n),
            base: None,
        };
        d.decide(&Command::Attach(Box::new(attach)));
        let decided = snap(&mut d, &[(VolumeId(100 + n), 1000 + n)]);
        let fits = n < OPEN_CUTS_MAX as u64;
        let want = if fits { Outcome::Cut(CutStep::Snapped) } else { Outcome::NoCut(CutRefusal::TooMany) };
        assert_eq!(decided.outcome, want, "cut {n}");
    }
    assert_eq!(Decision::decode(&d.encode()), Ok(d));
}

#[test]
fn checkpoint_of_an_open_cut_is_exact_and_no_other_is_read() {
    let mut d = two_volumes();
    snap(&mut d, &[(V, 10), (W, 11)]);
    write(&mut d, V, 0);
    let bytes = d.encode();
    assert_eq!(Decision::decode(&bytes).as_ref(), Ok(&d));
    (0..bytes.len()).for_each(|len| assert!(Decision::decode(&bytes[..len]).is_err(), "cut at {len}"));
    let with = |change: &dyn Fn(&mut Decision)| {
        let mut changed = d.clone();
        change(&mut changed);
        Decision::decode(&changed.encode())
    };
    let item = |d: &mut Decision, nth: usize, volume, to| {
        d.cuts.get_mut(&CutId(10)).expect("it is open")[nth].item = CutItem { volume, to: g(to) };
    };
    let more = |d: &mut Decision| {
        let open = d.cuts[&CutId(10)].clone();
        d.cuts.insert(CutId(12), open);
    };
    for refused in [
        with(&|d| item(d, 0, V, 9)),
        with(&|d| item(d, 0, VolumeId(5), 10)),
        with(&|d| item(d, 1, V, 10)),
        with(&more),
        with(&|d| d.cuts.get_mut(&CutId(10)).expect("it is open").clear()),
        with(&|d| d.volumes.get_mut(&V).expect("it is attached").last = g(9)),
        with(&|d| _ = d.volumes.remove(&V)),
    ] {
        assert_eq!(refused, Err(DecisionError::Shape));
    }
}

#[test]
fn volume_that_comes_after_a_cut_has_a_younger_head() {
    let mut d = two_volumes();
    let late = VolumeId(5);
    let attach = |order, head| {
        let (session, epoch) = (SessionId(7), Epoch(1));
        Command::Attach(Box::new(Attach {
            order,
            volume: late,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 4,
            len_epoch: 0,
            head: g(head),
            base: None,
        }))
    };
    assert_eq!(d.decide(&attach(3, 10)).changes, Some(vec![]));
    assert_eq!(write(&mut d, late, 0), g(10));
    assert_eq!(snap(&mut d, &[(late, 10)]), refused(CutRefusal::Stale), "it was here before the order");
    let read = |d: &Decision, id| d.in_snapshot(VolumeChunk { volume: late, index: 0 }, SnapshotId(id));
    assert_eq!((read(&d, 8), read(&d, 10), read(&d, 11)), (Ok(None), Ok(None), Err(Errno::Gone)));
    // The session of another holder: what is here stays, and a number that is named since may still come.
    assert_eq!(d.decide(&attach(4, 20)).changes, None);
    assert_eq!((write(&mut d, late, 1), read(&d, 20)), (g(10), Err(Errno::Gone)));
    assert_eq!(snap(&mut d, &[(late, 20)]).outcome, Outcome::Cut(CutStep::Snapped));
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
    // A head below the volume's own number comes from no metadata server.
    let mut other = two_volumes();
    other.decide(&attach(3, 4));
    assert_eq!(write(&mut other, late, 0), g(5));
}

/// An attach record without a session that puts a head of the volume on a snapshot.
fn on(order: u64, (volume, head): (VolumeId, u64), base: (VolumeId, u64)) -> Command {
    let base = Some(Base { volume: base.0, snapshot: SnapshotId(base.1), to: g(head) });
    let (session, epoch) = (SessionId(0), Epoch(2));
    Command::Attach(Box::new(Attach {
        order,
        volume,
        writers: Writers::one(session, epoch),
        epoch,
        chunk_count: 4,
        len_epoch: 0,
        head: g(head),
        base,
    }))
}

/// Makes a snapshot of V.
fn snapshot(d: &mut Decision, id: u64) {
    snap(d, &[(V, id)]);
    assert_eq!(end(d, &[(V, id)], CutEnd::Release), step(CutStep::Released));
}

#[test]
fn rollback_puts_a_head_on_the_snapshot_and_ends_the_session() {
    let mut d = two_volumes();
    write(&mut d, V, 0);
    snapshot(&mut d, 10);
    snapshot(&mut d, 11);
    let done = Outcome::Done(Effect::None);
    let turned = d.decide(&on(3, (V, 20), (V, 10)));
    assert_eq!(turned, changed(done, vec![Change::Discard(g(11))]), "the head that was written last goes");
    let attached = &d.volumes[&V];
    assert_eq!((attached.head, attached.first, attached.last), (g(20), g(1), g(20)));
    assert_eq!(d.tree.path(g(20)).map(|(id, _)| id).collect::<Vec<_>>(), [g(20), g(1)]);
    assert_eq!(d.tree.snapshots_of(V).count(), 2, "the younger snapshot stays");
    let stamp = Stamp { session: SessionId(7), epoch: Epoch(1), seq: 1, watermark: 0 };
    let late = Command::Write { chunk: VolumeChunk { volume: V, index: 0 }, range: SectorRange::new(0, 8), stamp };
    assert_eq!(d.decide(&late).outcome, Outcome::Refused(Errno::Fenced));
    assert_eq!(d.decide(&on(3, (V, 20), (V, 10))).outcome, Outcome::StaleOrder { last: 3 });
    assert_eq!(d.decide(&on(4, (V, 20), (V, 10))), done.into(), "another order with the same head changes nothing");
    // A recovery of the records gives the volume a head above all others, and does not know that the rollback has ended.
    let base = Some(Base { volume: V, snapshot: SnapshotId(10), to: g(20) });
    let (session, epoch) = (SessionId(0), Epoch(3));
    let recovered = Attach {
        order: 5,
        volume: V,
        writers: Writers::one(session, epoch),
        epoch,
        chunk_count: 4,
        len_epoch: 0,
        head: g(1 << 20),
        base,
    };
    assert_eq!(d.decide(&Command::Attach(Box::new(recovered))), done.into(), "what was written since stays");
    assert_eq!(snap(&mut d, &[(V, 19)]), refused(CutRefusal::Stale), "a Snap of a time before comes late");
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
    snapshot(&mut d, 21);
    assert_eq!(d.decide(&on(6, (V, 22), (V, 21))), changed(done, vec![Change::Discard(g(21))]));
    assert_eq!(d.tree.path(g(22)).map(|(id, _)| id).collect::<Vec<_>>(), [g(22), g(20), g(1)]);
}

#[test]
fn rollback_waits_for_an_open_cut_and_for_a_snapshot_that_is_there() {
    let mut d = two_volumes();
    snapshot(&mut d, 10);
    snap(&mut d, &[(V, 11)]);
    let before = d.clone();
    assert_eq!(d.decide(&on(3, (V, 20), (V, 10))).outcome, Outcome::Refused(Errno::Invalid));
    assert_eq!(d, before, "the order is not used up");
    end(&mut d, &[(V, 11)], CutEnd::TimedOut);
    assert_eq!(d.decide(&on(3, (V, 20), (V, 9))).outcome, Outcome::Refused(Errno::Gone), "it has no such snapshot");
    assert_eq!(d.decide(&on(3, (V, 20), (V, 10))).changes, Some(vec![Change::Discard(g(10))]));
}

#[test]
fn rollback_to_a_time_before_the_volume_came_shows_zeros() {
    let mut d = two_volumes();
    let (late, order) = (VolumeId(5), 3);
    let attach = Attach {
        order,
        volume: late,
        writers: Writers::one(SessionId(7), Epoch(1)),
        epoch: Epoch(1),
        chunk_count: 4,
        len_epoch: 0,
        head: g(12),
        base: None,
    };
    d.decide(&Command::Attach(Box::new(attach)));
    write(&mut d, late, 0);
    assert_eq!(d.decide(&on(4, (late, 20), (late, 10))).changes, Some(vec![Change::Discard(g(12))]));
    assert_eq!(d.tree.get(g(20)).map(|node| node.parent), Some(None));
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
}

#[test]
fn clone_begins_on_the_snapshot_of_its_parent() {
    let mut d = two_volumes();
    write(&mut d, V, 0);
    snapshot(&mut d, 10);
    let (clone, empty, lost) = (VolumeId(20), VolumeId(21), VolumeId(22));
    assert_eq!(d.decide(&on(3, (clone, 20), (V, 10))).changes, Some(vec![]));
    assert_eq!(d.tree.path(g(20)).map(|(id, _)| id).collect::<Vec<_>>(), [g(20), g(1)]);
    assert_eq!(d.tree.get(g(20)).map(|node| node.family), Some(g(1)), "its blocks have the checksums of the parent");
    // The parent has nothing in this PG, or came later.
    assert_eq!(d.decide(&on(4, (empty, 21), (VolumeId(9), 10))).changes, Some(vec![]));
    assert_eq!(d.tree.get(g(21)).map(|node| node.parent), Some(None));
    assert_eq!(d.decide(&on(5, (lost, 22), (V, 11))).outcome, Outcome::Refused(Errno::Gone));
    assert!(!d.volumes.contains_key(&lost) && d.order == 4);
    assert_eq!(d.decide(&on(5, (clone, 30), (V, 10))).changes, None, "a volume turns back to its own snapshots only");
    let remove = Command::Remove { volume: V, snapshot: SnapshotId(10) };
    assert_eq!(d.decide(&remove), changed(Outcome::Removed, vec![]), "the clone and the head keep it, hidden");
    assert_eq!(Decision::decode(&d.encode()).as_ref(), Ok(&d));
}

/// The store has to learn the tree even when no generation changes.
#[test]
fn abort_of_a_snapshot_with_a_clone_hands_the_tree_over() {
    let mut d = two_volumes();
    snap(&mut d, &[(V, 10)]);
    end(&mut d, &[(V, 10)], CutEnd::Release);
    let clone = VolumeId(3);
    assert!(d.decide(&on(5, (clone, 20), (V, 10))).changes.is_some());
    let before = d.tree.clone();
    assert_eq!(end(&mut d, &[(V, 10)], CutEnd::Abort), changed(Outcome::Cut(CutStep::Aborted), vec![]));
    assert_ne!(d.tree, before, "it is hidden");
}
