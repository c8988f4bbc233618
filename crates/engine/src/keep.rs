//! Comparison of older contents with a stream's (R12, ADR 0019): what the device holds already is kept, not sent.
//!
//! The OSD's loop asks for a base, reads it, compares it with the leader's digests, and says which AUs to keep.
//! [`Engine::install`] then takes them over with the staged blocks.
//!
//! Invariant: an AU is kept only while no overlay covers a block of it, so that no round writes it. A round that does
//! nevertheless makes home refuse the installation.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::lineage::View;
use crate::overlay::Source;
use crate::read::Asker;
use crate::replica::Replica;
use crate::resolve::Sources;
use std::collections::{BTreeMap, BTreeSet};
use types::{ChunkKey, PgId, ReplicaId, SectorRange, Time};

/// Contents of a removed replica, which stay at home until then, or until the space is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relic {
    pg: PgId,
    until: Time,
}

/// Destroyed replicas of which something is left at home.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Those that no checkpoint has dropped yet.
    pub destroyed: BTreeSet<ReplicaId>,
    /// Those whose contents stay for a while. They are in `destroyed`, too.
    pub relics: BTreeMap<ReplicaId, Relic>,
}

impl Engine {
    /// Destroys a replica as [`Engine::destroy_replica`] does. Its contents at home stay until the given time: a new
    /// replica of the PG may keep parts of them. A restart, or a need for space, ends that.
    pub fn retire_replica(&mut self, replica: ReplicaId, until: Time) {
        let pg = self.replicas.get(&replica).filter(|r| !r.is_filling()).map(|r| r.identity.pg);
        self.destroy_replica(replica);
        let is_whole = self.home.as_ref().is_some_and(|home| home.can_be_base(replica));
        if let Some(pg) = pg.filter(|_| is_whole && matches!(self.state, State::Running)) {
            self.removed.relics.insert(replica, Relic { pg, until });
        }
    }

    /// Returns the destroyed replicas that the next round drops.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = ReplicaId> {
        self.removed.destroyed.iter().copied().filter(|id| !self.removed.relics.contains_key(id))
    }

    /// Gives up all contents of removed replicas. True when there were any.
    pub fn drop_relics(&mut self) -> bool {
        self.retain_relics(|_| false)
    }

    /// Gives up the contents of removed replicas of this PG: the PG is gone.
    pub fn drop_relics_of(&mut self, pg: PgId) {
        self.retain_relics(|relic| relic.pg != pg);
    }

    pub(crate) fn expire_relics(&mut self) {
        let now = self.now;
        self.retain_relics(|relic| now < relic.until);
    }

    fn retain_relics(&mut self, stays: impl Fn(&Relic) -> bool) -> bool {
        let count = self.removed.relics.len();
        self.removed.relics.retain(|_, relic| stays(relic));
        let dropped = self.removed.relics.len() < count;
        if dropped {
            self.destage.changed(true);
        }
        dropped
    }

    /// Forgets relics that an installation has taken over.
    pub(crate) fn forget_taken_relics(&mut self) {
        let home = self.home.as_ref().expect("a running engine has a home");
        self.removed.relics.retain(|id, _| home.can_be_base(*id));
    }

    /// Returns the replica here whose contents a stream to `replica` may keep in part: the replica itself, or an older
    /// one of the same PG that has failed or is removed. Its home is whole and not empty.
    pub fn base_for(&self, replica: ReplicaId) -> Option<ReplicaId> {
        let (home, r) = (self.home.as_ref()?, self.replicas.get(&replica)?);
        let pg = r.identity.pg;
        let failed = self.replicas.iter().filter(|(_, old)| old.identity.pg == pg && old.has_failed());
        let removed = self.removed.relics.iter().filter(|(_, relic)| relic.pg == pg).map(|(id, _)| *id);
        let older = failed.map(|(id, _)| *id).chain(removed).filter(|id| *id < replica && home.can_be_base(*id));
        if home.can_be_base(replica) { Some(replica) } else { older.max() }
    }

    /// Whether home alone counts of this base: it has failed, or is removed.
    pub(crate) fn is_only_home(&self, base: ReplicaId) -> bool {
        self.replicas.get(&base).map_or(self.removed.relics.contains_key(&base), Replica::has_failed)
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
        let is_alone = self.is_at_home_alone((replica, base), chunk, au);
        let home = self.home.as_mut().filter(|_| matches!(self.state, State::Running) && is_alone);
        home.is_some_and(|home| home.keep(replica, base, chunk, au))
    }

    /// Whether the AU's bytes are those at home, whatever was applied: all of its blocks are there under the chunk's own key. An AU of
    /// which another generation shows a block is never kept, and none of a generation that is dissolved in the base, or that the
    /// staged contents have in another family: the checksums of its blocks would be wrong.
    fn is_at_home_alone(&mut self, (to, base): (ReplicaId, ReplicaId), chunk: ChunkKey, au: u32) -> bool {
        let Some(family) = self.staged_family(to, chunk) else { return false };
        let Some(home) = &self.home else { return false };
        let alone = |of: Sources<'_>| {
            if of.lineage.owner_of(chunk) != chunk || of.lineage.family(chunk.generation) != family {
                return false;
            }
            let found = of.resolve(View::Full, chunk, SectorRange::of_au(au)).parts;
            found.iter().all(|f| matches!(f.source, Source::Home(key) if key == chunk))
        };
        match self.replicas.get(&base) {
            Some(old) if !old.has_failed() => alone(old.base_sources(home)),
            None if !self.removed.relics.contains_key(&base) => false,
            _ => self.home_lineage(base).is_ok_and(|lineage| alone(self.home_sources(base, &lineage))),
        }
    }

    /// Whether the staged contents of `replica` keep the AU.
    pub fn keeps(&self, replica: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.home.as_ref().is_some_and(|home| home.keeps(replica, chunk, au))
    }

    /// Keeps the AU no longer: its bytes will be staged from what a read of the base has just returned. False: they may
    /// have changed since they were compared, and the stream is lost.
    pub fn release(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        let spoiled = self.home.as_ref().is_none_or(|home| home.is_spoiled(replica));
        let unchanged = self.is_at_home_alone((replica, base), chunk, au) && !spoiled && self.keeps(replica, chunk, au);
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
