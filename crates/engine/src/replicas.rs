//! The replicas of the store, and what their overlays add up to.
//!
//! Invariant: the sums count each replica as it is. All changes go through [`Replicas::get_mut`], whose guard counts the replica again at its
//! end, so that no turn has to visit all replicas.

use crate::replica::Replica;
use crate::space::Need;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use types::ReplicaId;

/// Memory and space that an overlay takes, or all of them do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Payload bytes. A failed replica counts nothing here: no round frees the log of it.
    pub bytes: u64,
    /// Blocks that are covered in part. A failed replica counts nothing here.
    pub partial_blocks: u64,
    pub need: Need,
}

impl Footprint {
    fn of(replica: &Replica) -> Footprint {
        let overlay = &replica.overlay;
        let need = overlay.need();
        match replica.has_failed() {
            true => Footprint { need, ..Footprint::default() },
            false => Footprint { bytes: overlay.bytes(), partial_blocks: overlay.partial_blocks(), need },
        }
    }

    fn add(&mut self, other: Footprint) {
        self.bytes += other.bytes;
        self.partial_blocks += other.partial_blocks;
        self.need.add(other.need);
    }

    fn take(&mut self, other: Footprint) {
        self.bytes -= other.bytes;
        self.partial_blocks -= other.partial_blocks;
        self.need.take(other.need);
    }
}

/// Sums over the replicas.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    footprint: Footprint,
    /// Replicas with dissolved generations.
    dissolving: BTreeSet<ReplicaId>,
}

impl Sums {
    fn add(&mut self, id: ReplicaId, replica: &Replica) {
        self.footprint.add(Footprint::of(replica));
        if replica.lineage.has_dissolved() {
            self.dissolving.insert(id);
        }
    }
}

/// All replicas of the store. Reads go to the map.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_id: BTreeMap<ReplicaId, Replica>,
    sums: Sums,
}

impl Replicas {
    pub fn get_mut(&mut self, id: &ReplicaId) -> Option<ReplicaMut<'_>> {
        let replica = self.by_id.get_mut(id)?;
        let before = (Footprint::of(replica), replica.lineage.has_dissolved());
        Some(ReplicaMut { id: *id, replica, sums: &mut self.sums, before })
    }

    /// Adds a replica.
    ///
    /// # Panics
    /// When the id is in use.
    pub fn insert(&mut self, id: ReplicaId, replica: Replica) {
        self.sums.add(id, &replica);
        assert!(self.by_id.insert(id, replica).is_none(), "{id} is not new");
    }

    pub fn remove(&mut self, id: &ReplicaId) -> Option<Replica> {
        let replica = self.by_id.remove(id)?;
        self.sums.footprint.take(Footprint::of(&replica));
        self.sums.dissolving.remove(id);
        Some(replica)
    }

    /// Returns what the overlays take.
    pub fn footprint(&self) -> Footprint {
        self.sums.footprint
    }

    /// Returns the space that the overlays need at home: the chunks, as last counted, and the data of dissolved generations.
    pub fn need(&self) -> Need {
        let mut need = self.sums.footprint.need;
        need.aus += self.sums.dissolving.iter().map(|id| self.by_id[id].aus_of_dissolved()).sum::<u64>();
        need
    }

    /// Whether the sums are those of the replicas.
    pub fn adds_up(&self) -> bool {
        let mut sums = Sums::default();
        self.by_id.iter().for_each(|(id, replica)| sums.add(*id, replica));
        sums == self.sums
    }
}

impl From<BTreeMap<ReplicaId, Replica>> for Replicas {
    fn from(by_id: BTreeMap<ReplicaId, Replica>) -> Replicas {
        let mut sums = Sums::default();
        by_id.iter().for_each(|(id, replica)| sums.add(*id, replica));
        Replicas { by_id, sums }
    }
}

impl Deref for Replicas {
    type Target = BTreeMap<ReplicaId, Replica>;

    fn deref(&self) -> &BTreeMap<ReplicaId, Replica> {
        &self.by_id
    }
}

/// A replica that may be changed. The sums count it again when this is dropped.
pub(crate) struct ReplicaMut<'a> {
    id: ReplicaId,
    replica: &'a mut Replica,
    sums: &'a mut Sums,
    before: (Footprint, bool),
}

impl Deref for ReplicaMut<'_> {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        self.replica
    }
}

impl DerefMut for ReplicaMut<'_> {
    fn deref_mut(&mut self) -> &mut Replica {
        self.replica
    }
}

impl Drop for ReplicaMut<'_> {
    fn drop(&mut self) {
        let (footprint, dissolves) = self.before;
        let now = Footprint::of(self.replica);
        if now != footprint {
            self.sums.footprint.take(footprint);
            self.sums.footprint.add(now);
        }
        match (dissolves, self.replica.lineage.has_dissolved()) {
            (false, true) => drop(self.sums.dissolving.insert(self.id)),
            (true, false) => drop(self.sums.dissolving.remove(&self.id)),
            _ => {}
        }
    }
}
