//! Space that a volume takes: counts of allocation units (AUs, 64 KiB) in one replica of one PG, which add up over PGs.

use crate::SnapshotId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Space of a volume and its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// AUs in which the volume shows data.
    pub allocated: u64,
    /// Those of them that belong to the volume alone; the others it shares with its snapshots, or with the parent of a clone.
    pub exclusive: u64,
    /// AUs of the volume, of its snapshots, and of removed snapshots that clones need.
    pub stored: u64,
    /// AUs of removed snapshots that clones or other snapshots need.
    pub removed: u64,
    /// AUs that become free when the blocks of deleted snapshots have been merged.
    pub reclaimable: u64,
    /// Those of each snapshot that has any.
    pub snapshots: BTreeMap<SnapshotId, SnapshotUsage>,
}

/// Space of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUsage {
    /// AUs of the snapshot.
    pub stored: u64,
    /// Those of them that its deletion frees.
    pub frees: u64,
}

impl Usage {
    /// Adds the space in another PG, or in other chunks.
    pub fn add(&mut self, other: &Usage) {
        self.allocated += other.allocated;
        self.exclusive += other.exclusive;
        self.stored += other.stored;
        self.removed += other.removed;
        self.reclaimable += other.reclaimable;
        for (id, of) in &other.snapshots {
            let sum = self.snapshots.entry(*id).or_default();
            sum.stored += of.stored;
            sum.frees += of.frees;
        }
    }
}
