//! The records of snapshots and of the cuts that make them.
//!
//! A cut makes its snapshots in steps: the intent, the order to each PG, and the end. Until its end a snapshot is `cutting`, and its
//! name is taken. A new leader asks the PGs what became of each cut that it finds in `holding`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::cut::CutItem;
use types::{CutId, SnapshotId, VolumeId};

/// Life cycle of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotState {
    /// Its cut has not ended: it may still come to nothing.
    Cutting,
    Ready,
    /// PGs that have it remove it. Its name is free.
    Deleting,
}

impl SnapshotState {
    /// Returns the word of JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            SnapshotState::Cutting => "cutting",
            SnapshotState::Ready => "ready",
            SnapshotState::Deleting => "deleting",
        }
    }
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub volume: VolumeId,
    pub snapshot: SnapshotId,
    /// Its name in the volume.
    pub name: String,
    /// Length of the volume at that time.
    pub len_bytes: u64,
    pub created_ms: u64,
    pub state: SnapshotState,
    /// The cut that makes it, or made it: the other snapshots of that cut are of the same point in time.
    pub cut: CutId,
    /// It cannot be deleted, and its volume neither.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// The administrator that asked for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// State of a cut that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutState {
    /// PGs may hold its volumes, and may have its snapshots.
    Holding,
    /// It is given up: each PG is told until it has answered.
    Aborting,
}

/// A cut that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutRecord {
    pub id: CutId,
    /// Ascending by volume.
    pub items: Vec<CutItem>,
    pub since_ms: u64,
    pub state: CutState,
}

impl CutRecord {
    /// Whether the volume is one of the cut.
    pub fn has(&self, volume: VolumeId) -> bool {
        self.items.iter().any(|item| item.volume == volume)
    }
}
