//! Space of home that may still be granted (R13), and the AUs that a chunk has already.
//!
//! The log side subtracts the needs of its overlay. Invariant: the AUs and slots that a running round has taken count
//! as free until the flip, because the overlay still counts them as needed.

use super::Home;
use crate::space::{FreeSpace, Held};
use types::units::{SECTORS_PER_BLOCK, reserved_aus};
use types::{ChunkKey, ReplicaId, SectorRange};

impl Home {
    /// Returns the AUs that home holds of this chunk, as staged by now.
    pub fn held(&self, replica: ReplicaId, chunk: ChunkKey) -> Held {
        let Some(chunk) = self.chunk(replica, chunk) else { return Held::default() };
        Held { listed: true, aus: chunk.au_set(), ..Held::default() }
    }

    /// Whether home holds this AU of the chunk.
    pub fn holds(&self, replica: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.chunk(replica, chunk).is_some_and(|chunk| chunk.map[au as usize].valid != 0)
    }

    /// Whether home holds data in these sectors of the chunk.
    pub fn has_data(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> bool {
        let blocks = range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK);
        self.chunk(replica, chunk).is_some_and(|chunk| blocks.into_iter().any(|block| chunk.is_valid(block as usize)))
    }

    /// Returns the AUs and slots beyond the reserve, which serves discard, delete, pages that move, completion and
    /// repair.
    pub fn room(&self) -> FreeSpace {
        let taken = self.round.as_ref().map(|round| round.taken).unwrap_or_default();
        let aus = u64::from(self.aus.free_count()) + taken.aus;
        let slots = u64::from(self.slots.free_count()) + taken.slots;
        FreeSpace {
            aus: aus.saturating_sub(u64::from(reserved_aus(self.geometry.au_count))),
            slots: slots.saturating_sub(u64::from(self.geometry.slot_count / 4)),
        }
    }
}
