//! Comparison of older contents with a stream's (R12, ADR 0019): what the device holds already is kept, not sent.
//!
//! The OSD's loop asks for a base, reads it, compares it with the leader's digests, and says which AUs to keep.
//! [`Engine::install`] then takes them over with the staged blocks.
//!
//! Invariant: an AU is kept only while no overlay covers a block of it, so that no round writes it. A round that does
//! nevertheless makes home refuse the installation.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::overlay::Source;
use crate::read::Asker;
use crate::replica::Replica;
use crate::space::au_range;
use types::{ChunkKey, ReplicaId, SectorRange};

impl Engine {
    /// Returns the replica here whose contents a stream to `replica` may keep in part: the replica itself, or a failed
    /// older one of the same PG. Its home is whole and not empty.
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

    /// Reads the base's contents as they are now: of a failed replica, its home. [`EngineEvent::ReadDone`] follows, perhaps
    /// at once. Blocks that cannot be read raise no [`EngineEvent::BadBlocks`].
    pub fn read_base(
        &mut self,
        token: u64,
        base: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        out: &mut Vec<EngineEvent>,
    ) {
        self.start_read(Asker::Base(token), base, chunk, range);
        out.append(&mut self.events);
    }

    /// Keeps the AU of the base, whose bytes are those of the stream at this moment. False: its bytes are not at home
    /// alone, and must be staged.
    pub fn keep(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        let is_alone = self.replicas.contains_key(&replica) && self.is_at_home_alone(base, chunk, au);
        let home = self.home.as_mut().filter(|_| matches!(self.state, State::Running) && is_alone);
        home.is_some_and(|home| home.keep(replica, base, chunk, au))
    }

    /// Whether the AU's bytes are those at home, whatever was applied. The overlay of a failed replica does not count.
    fn is_at_home_alone(&self, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.replicas.get(&base).filter(|old| !old.installing).is_some_and(|old| {
            let found = old.overlay.lookup(chunk, au_range(au));
            old.damage.is_some() || found.iter().all(|f| matches!(f.source, Source::Home))
        })
    }

    /// Whether the staged contents of `replica` keep the AU.
    pub fn keeps(&self, replica: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.home.as_ref().is_some_and(|home| home.keeps(replica, chunk, au))
    }

    /// Keeps the AU no longer: its bytes will be staged from what a read of the base has just returned. False: they may
    /// have changed since they were compared, and the stream is lost.
    pub fn release(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        let spoiled = self.home.as_ref().is_none_or(|home| home.is_spoiled(replica));
        let unchanged = self.is_at_home_alone(base, chunk, au) && !spoiled && self.keeps(replica, chunk, au);
        self.unkeep(replica, chunk, au);
        unchanged
    }

    /// Keeps the AU no longer: other contents are staged in its place.
    pub fn unkeep(&mut self, replica: ReplicaId, chunk: ChunkKey, au: u32) {
        if let Some(home) = &mut self.home {
            home.unkeep(replica, chunk, au);
        }
    }
}
