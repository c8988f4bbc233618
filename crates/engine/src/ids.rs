//! Ids of replicas that were here (R4, ADR 0015, ADR 0017): what tells a new replica from one that may have voted here before.

use crate::engine::{ANY_REPLICA, Engine, State};
use crate::log::Work;
use std::collections::BTreeSet;
use types::ReplicaId;

/// Ids of replicas beyond those that the store has.
#[derive(Debug)]
pub(crate) struct Ids {
    /// Destroyed replicas that the log has to name.
    pub tombstones: BTreeSet<ReplicaId>,
    /// Every replica below this id that meta has for this OSD was created here: an unknown one is gone.
    pub floor: ReplicaId,
    /// The floor that meta sent last. It is above `floor` while a replica below it has no create record in the log.
    pub floor_told: ReplicaId,
    /// Orphaned replicas: home holds them, and the log does not identify them, because their create records are lost.
    pub nameless: BTreeSet<ReplicaId>,
    /// The log may have lost create records of replicas below this id. The highest id: of any replica.
    pub creates_lost: ReplicaId,
    /// The log gap that this mount found, in words.
    pub lost_records: Option<String>,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids {
            tombstones: BTreeSet::new(),
            floor: ReplicaId(0),
            floor_told: ReplicaId(0),
            nameless: BTreeSet::new(),
            creates_lost: ReplicaId(0),
            lost_records: None,
        }
    }
}

impl Engine {
    /// Whether this replica, which is unknown here, may have been created, and may have voted, before the log lost its create
    /// record (R4, ADR 0017).
    pub fn may_have_been_here(&self, replica: ReplicaId) -> bool {
        replica < self.ids.creates_lost
    }

    /// Tells the lowest replica id that meta has not drawn yet. Replicas from there on were never here: an id is drawn once.
    pub fn set_next_replica(&mut self, next: ReplicaId) {
        if matches!(self.state, State::Running) && self.ids.creates_lost == ANY_REPLICA {
            self.ids.creates_lost = next;
            self.queue(Work::CreatesLost);
        }
    }

    /// Names the durable log batches that this mount did not find; `None`: no batch is missing.
    pub fn lost_records(&self) -> Option<&str> {
        self.ids.lost_records.as_deref()
    }

    /// Whether an unknown replica was here and is gone for good: it has a tombstone, or its id is below the floor
    /// (ADR 0015). The check refuses orders of meta that are older than the end of the replica. A store that may have lost
    /// create records ignores the floor.
    pub fn is_gone(&self, replica: ReplicaId) -> bool {
        self.ids.tombstones.contains(&replica)
            || (replica < self.ids.floor && !self.may_have_been_here(replica) && !self.replicas.contains_key(&replica))
    }

    /// Number of tombstones that the log has to carry.
    pub fn tombstone_count(&self) -> usize {
        self.ids.tombstones.len()
    }

    /// Raises the floor: meta reports that every replica below `floor` that it has for this OSD was created here.
    /// Tombstones below the floor are dropped once a checkpoint no longer names their replicas. The floor passes a
    /// replica only when its create record is in the log: a state block may put a floor before records that were queued
    /// earlier (ADR 0015).
    pub fn set_replica_floor(&mut self, floor: ReplicaId) {
        if matches!(self.state, State::Running) {
            self.ids.floor_told = self.ids.floor_told.max(floor);
            self.raise_floor();
        }
    }

    pub(crate) fn raise_floor(&mut self) {
        if self.ids.floor_told <= self.ids.floor {
            return;
        }
        let unborn = self.replicas.iter().find(|(_, r)| !r.born).map(|(id, _)| *id);
        let floor = unborn.map_or(self.ids.floor_told, |id| id.min(self.ids.floor_told));
        if floor > self.ids.floor {
            self.ids.floor = floor;
            self.queue(Work::Floor);
            self.prune_tombstones();
        }
    }

    pub(crate) fn prune_tombstones(&mut self) {
        let (floor, destroyed) = (self.ids.floor, &self.removed.destroyed);
        self.ids.tombstones.retain(|id| *id >= floor || destroyed.contains(id));
    }
}
