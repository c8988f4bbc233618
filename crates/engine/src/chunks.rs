//! Which chunks a replica holds: for streams, and for tools that compare replicas.
//!
//! The loop comes in between turns; nothing changes by it. Invariant: what is listed is a superset of what
//! holds data (a chunk may be covered by zeros alone), and never misses a chunk that does.

use crate::engine::Engine;
use std::collections::BTreeSet;
use types::{ChunkKey, ReplicaId};

impl Engine {
    /// The chunks that may hold data of this replica, as applied now, ascending.
    pub fn chunks(&self, replica: ReplicaId) -> Vec<ChunkKey> {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return Vec::new() };
        let mut all: BTreeSet<ChunkKey> = home.chunks(replica).collect();
        // From the oldest layer to the newest: a cut hides what lies below it, not what its own layer holds.
        for layer in r.overlay.frozen().into_iter().chain([r.overlay.active()]) {
            all.retain(|chunk| layer.cuts.get(&chunk.volume).is_none_or(|from| chunk.index < *from));
            all.extend(layer.chunks.keys().copied());
        }
        all.into_iter().collect()
    }

    /// How many reads were looked up a second time since the mount, because a round rewrote their chunk
    /// meanwhile. Such a read shows what was applied at its second look.
    pub fn reads_looked_up_again(&self) -> u64 {
        self.reads.again
    }
}
