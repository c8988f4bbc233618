//! Decisions about a flatten: copies into a head of what it shows of older generations, and the end of its kinship.
//!
//! A copy is a write of the bytes that the head shows at its place in the log. Only the leader knows that, so it proposes no copy behind a
//! change of the same sectors (`crate::fills`). Here it is decided that the head is still the same one.
//!
//! Invariant: no copy takes effect during a cut, because a cut that is taken back discards the blocks of its head.

use super::{Decided, Decision, Outcome};
use std::sync::Arc;
use types::store::Effect;
use types::tree::Role;
use types::{ChunkKey, Errno, GenerationId, SectorRange, VolumeChunk, VolumeId};

impl Decision {
    /// Returns the head of a volume that a flatten may work on.
    pub fn fillable(&self, volume: VolumeId) -> Option<GenerationId> {
        let head = self.volumes.get(&volume)?.head;
        (!self.holds(volume)).then_some(head)
    }

    /// Whether the head of the volume stands on a generation that is no snapshot of the volume itself.
    pub fn stands_on_other(&self, volume: VolumeId) -> bool {
        let head = self.volumes.get(&volume).and_then(|attached| self.tree.get(attached.head));
        let parent = head.and_then(|head| self.tree.get(head.parent?));
        parent.is_some_and(|parent| !matches!(parent.role, Role::Snapshot(of, _) if of == volume))
    }

    /// Whether the head of the volume stands on nothing.
    pub fn is_flat(&self, volume: VolumeId) -> bool {
        let head = self.volumes.get(&volume).and_then(|attached| self.tree.get(attached.head));
        head.is_some_and(|node| node.parent.is_none())
    }

    /// Copies into a head.
    pub(super) fn fill(&mut self, chunk: VolumeChunk, head: GenerationId, range: SectorRange) -> Outcome {
        let count = self.volumes.get(&chunk.volume).map_or(0, |attached| attached.chunk_count);
        if self.fillable(chunk.volume) != Some(head) || chunk.index >= count {
            return Outcome::Refused(Errno::Invalid);
        }
        Outcome::Done(Effect::Write { chunk: ChunkKey { generation: head, index: chunk.index }, range })
    }

    /// Takes the parent from a head.
    pub(super) fn detach(&mut self, volume: VolumeId, head: GenerationId) -> Decided {
        let may = self.fillable(volume) == Some(head) && self.stands_on_other(volume);
        if !may {
            return Outcome::Refused(Errno::Invalid).into();
        }
        let changes = Arc::make_mut(&mut self.tree).detach(head).expect("it is a head");
        Decided { outcome: Outcome::Done(Effect::None), changes: Some(changes) }
    }
}
