//! Decisions about snapshots: the begin and the end of a cut, the removal of a snapshot, and reads of one (R14).
//!
//! A cut is *open* between its `Snap` and its `Release`. The leader proposes no change of its volumes meanwhile. A cut that is given up
//! while it is open is taken back: the heads are as before, and no block moves. One that is given up later leaves generations that
//! merge, so the heads of a volume may differ from PG to PG. The name of a snapshot is the same in all.
//!
//! Invariant: all volumes of a cut that the PG has get their snapshots, or none does. A number that an order has named is never
//! used again (`Attached::last`), so a `Snap` that comes late has no effect.

use super::{Attached, Decided, Decision, DecisionError, Outcome, short};
use bytes::{Buf, BufMut, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::control::CHUNKS_KEPT;
use types::cut::{CUT_ITEMS_MAX, Cut, CutEnd, CutItem, CutRefusal, CutStep};
use types::planted::{Bug, on};
use types::tree::{Change, Role, Tree, TreeRefusal};
use types::{ChunkKey, CutId, Errno, GenerationId, SnapshotId, VolumeChunk, VolumeId};

/// Most open cuts in one PG.
pub const OPEN_CUTS_MAX: usize = 64;
const ITEM_LEN: usize = 8 + 8 + 1;
/// Most bytes of the open cuts in a decision state.
pub(super) const CUTS_LEN_MAX: usize = 2 + OPEN_CUTS_MAX * (8 + 2 + CUT_ITEMS_MAX * ITEM_LEN);

/// One volume of an open cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenItem {
    pub item: CutItem,
    /// A change of the volume has taken effect behind the `Snap`. No leader that holds proposes one.
    pub written: bool,
}

/// The open cuts of a PG.
pub type OpenCuts = BTreeMap<CutId, Vec<OpenItem>>;

impl Decision {
    /// Whether the PG holds the changes of this volume.
    pub fn holds(&self, volume: VolumeId) -> bool {
        self.cuts.values().flatten().any(|open| open.item.volume == volume)
    }

    /// Notes that a change of the volume has taken effect.
    pub(super) fn note_written(cuts: &mut OpenCuts, volume: VolumeId) {
        let its = cuts.values_mut().flatten().filter(|open| open.item.volume == volume);
        its.for_each(|open| open.written = true);
    }

    /// The chunk in a snapshot of its volume. `None`: zeros, because the volume came to this PG after the snapshot.
    ///
    /// # Errors
    /// The volume has no attach record here, the snapshot is gone, or the chunk lies behind its end.
    pub fn in_snapshot(&self, chunk: VolumeChunk, id: SnapshotId) -> Result<Option<ChunkKey>, Errno> {
        let Some(generation) = self.generation_of(chunk.volume, id)? else { return Ok(None) };
        let is_in = self.tree.get(generation).is_some_and(|node| chunk.index < node.chunk_count);
        is_in.then_some(Some(ChunkKey { generation, index: chunk.index })).ok_or(Errno::Invalid)
    }

    /// Returns the generation of a snapshot that `generation` is to be compared with. `Ok(None)`: the volume had no data in this PG then.
    ///
    /// # Errors
    /// `Gone`: the snapshot was deleted. `Invalid`: the generation does not descend from it, as after a rollback to an older one.
    pub fn ancestor(
        &self,
        volume: VolumeId,
        generation: GenerationId,
        since: SnapshotId,
    ) -> Result<Option<GenerationId>, Errno> {
        let Some(older) = self.generation_of(volume, since)? else { return Ok(None) };
        let descends = self.tree.get(generation).is_some() && self.tree.path(generation).any(|(id, _)| id == older);
        descends.then_some(Some(older)).ok_or(Errno::Invalid)
    }

    /// Returns the generation of a snapshot. `Ok(None)`: the volume came to this PG after it.
    fn generation_of(&self, volume: VolumeId, id: SnapshotId) -> Result<Option<GenerationId>, Errno> {
        let attached = self.volumes.get(&volume).ok_or(Errno::Gone)?;
        let of_volume =
            |generation: &GenerationId| self.tree.get(*generation).is_some_and(|n| n.role.volume() == volume);
        match self.tree.snapshot(id).filter(of_volume) {
            Some(generation) => Ok(Some(generation)),
            None if id.0 <= attached.first.0 => Ok(None),
            None => Err(Errno::Gone),
        }
    }

    /// Begins a cut.
    pub(super) fn snap(&mut self, cut: &Cut) -> Decided {
        let here: Vec<CutItem> =
            cut.items.iter().copied().filter(|item| self.volumes.contains_key(&item.volume)).collect();
        let refuse = |refusal| Decided::from(Outcome::NoCut(refusal));
        if let Some(open) = self.cuts.get(&cut.id) {
            let same = open.iter().map(|open| open.item).eq(here);
            return if same { Outcome::Cut(CutStep::Snapped).into() } else { refuse(CutRefusal::Stale) };
        }
        if here.iter().any(|item| item.to <= self.volumes[&item.volume].last) {
            return refuse(CutRefusal::Stale);
        }
        if here.iter().any(|item| self.holds(item.volume)) {
            return refuse(CutRefusal::Open);
        }
        // During a recovery of the records no length of the volume is known.
        if here.iter().any(|item| self.volumes[&item.volume].chunk_count == CHUNKS_KEPT) {
            return refuse(CutRefusal::Busy);
        }
        if here.is_empty() {
            return Outcome::Cut(CutStep::Snapped).into();
        }
        if self.cuts.len() >= OPEN_CUTS_MAX {
            return refuse(CutRefusal::TooMany);
        }
        let mut tree = Tree::clone(&self.tree);
        for item in &here {
            let Attached { head, chunk_count, .. } = self.volumes[&item.volume];
            match tree.branch(item.volume, head, item.to, chunk_count, cut.created_ms) {
                Ok(()) => {}
                Err(TreeRefusal::Full) => return refuse(CutRefusal::TooMany),
                // Only in bytes of a peer another volume has this generation.
                Err(_) => return refuse(CutRefusal::Stale),
            }
        }
        for item in &here {
            let attached = self.volumes.get_mut(&item.volume).expect("it is here");
            (attached.head, attached.last) = (item.to, item.to);
        }
        self.tree = Arc::new(tree);
        self.cuts.insert(cut.id, here.into_iter().map(|item| OpenItem { item, written: false }).collect());
        Decided { outcome: Outcome::Cut(CutStep::Snapped), changes: Some(Vec::new()) }
    }

    /// Ends a cut.
    pub(super) fn release(&mut self, cut: CutId, end: CutEnd, items: &[CutItem]) -> Decided {
        match (end, self.cuts.remove(&cut)) {
            (CutEnd::Release, Some(_)) => Outcome::Cut(CutStep::Released).into(),
            (CutEnd::TimedOut, None) if on(Bug::TimeoutAfterRelease) => {
                let changes = items.iter().filter_map(|item| self.drop_snapshot(*item)).flatten().collect();
                Decided { outcome: Outcome::Cut(CutStep::Lapsed), changes: Some(changes) }
            }
            (CutEnd::Release | CutEnd::TimedOut, None) => Outcome::Cut(self.stands(items)).into(),
            (CutEnd::TimedOut, Some(open)) => {
                Decided { outcome: Outcome::Cut(CutStep::Lapsed), changes: Some(self.take_back(&open)) }
            }
            (CutEnd::Abort, open) => {
                let mut changes = open.map(|open| self.take_back(&open));
                // An order of a sound meta names no item of another open cut. Its snapshot must not go alone.
                if items.iter().any(|item| self.is_open(item.volume, item.snapshot())) {
                    return Decided { outcome: Outcome::NoCut(CutRefusal::Open), changes };
                }
                for item in items {
                    let Some(attached) = self.volumes.get_mut(&item.volume) else { continue };
                    attached.last = attached.last.max(item.to);
                    if let Some(removed) = self.drop_snapshot(*item) {
                        changes.get_or_insert_default().extend(removed);
                    }
                }
                Decided { outcome: Outcome::Cut(CutStep::Aborted), changes }
            }
        }
    }

    /// Removes the snapshot of a volume that a cut has made. `None`: there is none. Without a change of generations the tree has changed all
    /// the same: the snapshot has a clone, and is hidden.
    fn drop_snapshot(&mut self, item: CutItem) -> Option<Vec<Change>> {
        let generation = self.snapshot_of(item.volume, item.snapshot())?;
        Some(Arc::make_mut(&mut self.tree).remove(generation).expect("it is a snapshot"))
    }

    /// Takes an open cut back.
    fn take_back(&mut self, open: &[OpenItem]) -> Vec<Change> {
        let mut changes = Vec::new();
        for OpenItem { item, written } in open {
            let attached = self.volumes.get_mut(&item.volume).expect("a volume of an open cut is attached");
            let tree = Arc::make_mut(&mut self.tree);
            let from = tree.snapshot(item.snapshot()).expect("the snapshot of an open cut is in the tree");
            let undone = (!written).then(|| tree.undo_branch(item.to).ok()).flatten();
            match undone {
                Some(undone) => {
                    attached.head = from;
                    changes.extend(undone);
                }
                None => changes.extend(tree.remove(from).expect("it is a snapshot")),
            }
        }
        changes
    }

    /// State of a cut that is not open: released when the snapshots of all its volumes here exist.
    fn stands(&self, items: &[CutItem]) -> CutStep {
        let exists = |item: &CutItem| {
            !self.volumes.contains_key(&item.volume) || self.snapshot_of(item.volume, item.snapshot()).is_some()
        };
        if items.iter().all(exists) { CutStep::Released } else { CutStep::Lapsed }
    }

    fn snapshot_of(&self, volume: VolumeId, id: SnapshotId) -> Option<GenerationId> {
        let generation = self.tree.snapshot(id)?;
        self.tree.get(generation).is_some_and(|node| node.role.volume() == volume).then_some(generation)
    }

    fn is_open(&self, volume: VolumeId, id: SnapshotId) -> bool {
        self.cuts.values().flatten().any(|open| open.item.volume == volume && open.item.snapshot() == id)
    }

    /// Removes a snapshot.
    pub(super) fn remove_snapshot(&mut self, volume: VolumeId, id: SnapshotId) -> Decided {
        if self.is_open(volume, id) {
            return Outcome::NoCut(CutRefusal::Open).into();
        }
        let changes = self
            .snapshot_of(volume, id)
            .map(|generation| Arc::make_mut(&mut self.tree).remove(generation).expect("it is a snapshot"));
        Decided { outcome: Outcome::Removed, changes }
    }

    /// Ends a volume, with all that it holds here. Generations that clones need stay.
    pub(super) fn end(&mut self, volume: VolumeId) -> Option<Vec<Change>> {
        let Attached { head, .. } = self.volumes.remove(&volume)?;
        self.cuts.values_mut().for_each(|open| open.retain(|open| open.item.volume != volume));
        self.cuts.retain(|_, open| !open.is_empty());
        Some(Arc::make_mut(&mut self.tree).end(head).expect("the head of a volume is in the tree"))
    }

    pub(super) fn encode_cuts(&self, out: &mut BytesMut) {
        if on(Bug::CutsNotCheckpointed) {
            return out.put_u16_le(0);
        }
        out.put_u16_le(self.cuts.len() as u16);
        for (cut, open) in &self.cuts {
            out.put_u64_le(cut.0);
            out.put_u16_le(open.len() as u16);
            for OpenItem { item, written } in open {
                out.put_u64_le(item.volume.0);
                out.put_u64_le(item.to.0);
                out.put_u8(u8::from(*written));
            }
        }
    }

    /// Reads the open cuts.
    ///
    /// # Errors
    /// The bytes are not those of [`Self::encode_cuts`] for these volumes and this tree.
    pub(super) fn decode_cuts(&mut self, bytes: &mut &[u8]) -> Result<(), DecisionError> {
        let shape = DecisionError::Shape;
        let count = usize::from(bytes.try_get_u16_le().map_err(short)?);
        if count > OPEN_CUTS_MAX {
            return Err(shape);
        }
        for _ in 0..count {
            let cut = CutId(bytes.try_get_u64_le().map_err(short)?);
            let len = usize::from(bytes.try_get_u16_le().map_err(short)?);
            let ascending = self.cuts.last_key_value().is_none_or(|(last, _)| *last < cut);
            if !ascending || !(1..=CUT_ITEMS_MAX).contains(&len) || bytes.remaining() < len * ITEM_LEN {
                return Err(shape);
            }
            let mut open: Vec<OpenItem> = Vec::with_capacity(len);
            for _ in 0..len {
                let item = CutItem { volume: VolumeId(bytes.get_u64_le()), to: GenerationId(bytes.get_u64_le()) };
                let written = bytes.get_u8();
                let in_order = open.last().is_none_or(|last| last.item.volume < item.volume);
                if !in_order || written > 1 || self.holds(item.volume) || !self.may_be_open(item) {
                    return Err(shape);
                }
                open.push(OpenItem { item, written: written == 1 });
            }
            self.cuts.insert(cut, open);
        }
        Ok(())
    }

    /// Whether the volume has its head and its snapshot from this item.
    fn may_be_open(&self, item: CutItem) -> bool {
        let parent = self.tree.get(item.to).and_then(|node| node.parent);
        let is_head = self.volumes.get(&item.volume).is_some_and(|attached| attached.head == item.to);
        is_head && parent.is_some() && parent == self.snapshot_of(item.volume, item.snapshot())
    }

    /// Whether each node of the tree fits to the attach records.
    pub(super) fn fits_tree(&self) -> bool {
        let fits = |(id, role): (GenerationId, Role)| match role {
            Role::Head(volume) => self.volumes.get(&volume).is_some_and(|attached| attached.head == id),
            Role::Snapshot(volume, name) => self.volumes.get(&volume).is_some_and(|attached| name.0 <= attached.last.0),
            Role::Hidden(_) => true,
        };
        self.tree.iter().all(|(id, node)| fits((id, node.role)))
    }
}

#[cfg(test)]
mod tests;
