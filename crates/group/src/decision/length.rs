//! Decisions about the length of a volume: the number of chunks that it has in a PG.
//!
//! A shorter length comes with an attach record whose `len_epoch` is higher. The entry that takes it also drops the own blocks of the head
//! behind the end, and hides those of its parent there, so chunks that come back later are empty. What lies behind the end in the last chunk
//! is zeroed by entries of their own, because a chunk may have many such places.
//!
//! Invariant: a record from before a shrink never lengthens a volume, and a record with a lower number of chunks under the same epoch, which
//! comes from older records of meta, costs no data.

use super::{Attached, Decision, Outcome};
use std::cmp::Ordering;
use std::sync::Arc;
use types::control::{Attach, CHUNKS_KEPT};
use types::planted::{Bug, on};
use types::store::Effect;
use types::tree::Change;
use types::{ChunkKey, Errno, GenerationId, SectorRange, VolumeChunk};

/// Returns the epoch of the length and the number of chunks behind an attach record.
pub(super) fn after(attach: &Attach, old: Option<&Attached>) -> (u32, u32) {
    let Some(known) = old.filter(|old| old.chunk_count != CHUNKS_KEPT) else {
        return (attach.len_epoch, attach.chunk_count);
    };
    let (kept, longer) = (known.chunk_count, known.chunk_count.max(attach.chunk_count));
    match attach.len_epoch.cmp(&known.len_epoch) {
        // The records of meta do not know the length.
        _ if attach.chunk_count == CHUNKS_KEPT => (known.len_epoch, kept),
        Ordering::Greater => (attach.len_epoch, attach.chunk_count),
        Ordering::Equal => (known.len_epoch, longer),
        Ordering::Less => (known.len_epoch, if on(Bug::ShrinkUndone) { longer } else { kept }),
    }
}

/// Whether a volume that is here gets shorter. One whose length was not known had no session.
pub(super) fn is_shorter(old: Option<&Attached>, chunk_count: u32) -> bool {
    old.is_some_and(|old| old.chunk_count != CHUNKS_KEPT && chunk_count < old.chunk_count)
}

impl Decision {
    /// Carries out on the tree that a volume has only `chunk_count` chunks, or gets a head on a longer snapshot.
    pub(super) fn shorten(
        &mut self,
        old: Option<&Attached>,
        (head, chunk_count): (GenerationId, u32),
        changes: &mut Option<Vec<Change>>,
    ) {
        let is_new = old.is_none_or(|old| old.head != head);
        let parent = self.tree.get(head).and_then(|node| self.tree.get(node.parent?));
        let is_below = parent.is_some_and(|parent| parent.chunk_count > chunk_count);
        let hides = is_shorter(old, chunk_count) || is_new && is_below;
        if !hides {
            return;
        }
        Arc::make_mut(&mut self.tree).shorten(head, chunk_count).expect("it is a head");
        let changes = changes.get_or_insert_default();
        if !is_new {
            changes.push(Change::Shorten { generation: head, from_chunk: chunk_count });
        }
    }

    /// Zeroes a place behind the end of a volume.
    pub(super) fn wipe(&mut self, chunk: VolumeChunk, range: SectorRange, len_epoch: u32) -> Outcome {
        let Some(attached) = self.volumes.get(&chunk.volume) else { return Outcome::Refused(Errno::Gone) };
        let may = attached.len_epoch == len_epoch && chunk.index < attached.chunk_count;
        if !may || self.holds(chunk.volume) {
            return Outcome::Refused(Errno::Invalid);
        }
        Outcome::Done(Effect::Zero { chunk: ChunkKey { generation: attached.head, index: chunk.index }, range })
    }
}
