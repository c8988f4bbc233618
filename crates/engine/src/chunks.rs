//! Which chunks a replica holds: for streams, and for tools that compare replicas.
//!
//! The OSD's loop calls it between turns; it changes nothing. Invariant: the list is a superset of the chunks that hold
//! data. It may name a chunk that only zeros cover; it never misses a chunk with data.

use crate::engine::Engine;
use std::collections::BTreeSet;
use types::{ChunkKey, ReplicaId};

impl Engine {
    /// The chunks that may hold data of this replica, as applied now, ascending. Each is of a live generation: those of dissolved ones count
    /// under their owners.
    pub fn chunks(&self, replica: ReplicaId) -> Vec<ChunkKey> {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return Vec::new() };
        let mut all: BTreeSet<ChunkKey> = home.chunks(replica).collect();
        // Layers are taken from the oldest to the newest: a cut hides the chunks below its layer, not those of its
        // layer.
        for layer in r.overlay.frozen().into_iter().chain([r.overlay.active()]) {
            all.retain(|chunk| layer.unmaps.get(&chunk.generation).is_none_or(|from| chunk.index < *from));
            all.extend(layer.chunks.keys().copied());
        }
        if !r.lineage.is_flat() {
            all = all.into_iter().map(|chunk| r.lineage.owner_of(chunk)).collect();
        }
        all.into_iter().collect()
    }

    /// Number of reads since the mount that were looked up a second time, because a round rewrote their chunk
    /// meanwhile. Such a read returns the state that was applied at its second lookup.
    pub fn reads_looked_up_again(&self) -> u64 {
        self.reads.again
    }
}
