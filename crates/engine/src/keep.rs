//! Comparison of older contents with a stream's (R12, ADR 0019): what the device holds already is kept, not sent.
//!
//! The OSD's loop asks for a base, reads it, compares it with the leader's digests, and says which AUs to keep.
//! [`Engine::install`] then takes them over with the staged blocks.
//!
//! Invariant: an AU is kept only while no overlay covers a block of it, so that no round writes it. A round that does
//! nevertheless makes home refuse the installation.

use crate::engine::{Engine, State};
use crate::overlay::Source;
use crate::read::Asker;
use crate::replica::Replica;
use types::units::SECTORS_PER_AU;
use types::{ChunkKey, ReplicaId, SectorRange};

/// Returns the sectors of an AU of a chunk.
fn au_range(au: usize) -> SectorRange {
    SectorRange::new(au as u32 * SECTORS_PER_AU, SECTORS_PER_AU)
}

impl Engine {
    /// Returns the replica here whose contents a stream to `replica` may keep in part: the replica itself, or a failed older
    /// one of the same PG. Its home is whole and not empty.
    pub fn base_for(&self, replica: ReplicaId) -> Option<ReplicaId> {
        let (home, r) = (self.home.as_ref()?, self.replicas.get(&replica)?);
        let failed = |(id, old): &(&ReplicaId, &Replica)| {
            **id < replica && old.identity.pg == r.identity.pg && old.damage.is_some() && home.can_be_base(**id)
        };
        match home.can_be_base(replica) {
            true => Some(replica),
            false => self.replicas.iter().rev().find(failed).map(|(id, _)| *id),
        }
    }

    /// Reads the base's contents as they are now: of a failed replica, its home. [`crate::EngineEvent::ReadDone`] follows,
    /// perhaps at once. Blocks that cannot be read are no event of their own.
    pub fn read_base(&mut self, token: u64, base: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        self.start_read(Asker::Base(token), base, chunk, range);
    }

    /// Keeps the AU of the base, whose bytes are those of the stream at this moment. False: it is not at home alone, and its
    /// bytes must be staged.
    pub fn keep(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: usize) -> bool {
        let usable = |id: &ReplicaId| self.replicas.get(id).filter(|r| !r.installing);
        let (Some(_), Some(old)) = (usable(&replica), usable(&base)) else { return false };
        let found = old.overlay.lookup(chunk, au_range(au));
        // The overlay of a failed replica is in no round.
        let uncovered = old.damage.is_some() || found.iter().all(|f| matches!(f.source, Source::Home));
        let home = self.home.as_mut().filter(|_| matches!(self.state, State::Running) && uncovered);
        home.is_some_and(|home| home.keep(replica, base, chunk, au))
    }

    /// Whether the staged contents of `replica` keep the AU.
    pub fn keeps(&self, replica: ReplicaId, chunk: ChunkKey, au: usize) -> bool {
        self.home.as_ref().is_some_and(|home| home.keeps(replica, chunk, au))
    }

    /// Keeps the AU no longer.
    pub fn unkeep(&mut self, replica: ReplicaId, chunk: ChunkKey, au: usize) {
        if let Some(home) = &mut self.home {
            home.unkeep(replica, chunk, au);
        }
    }
}
