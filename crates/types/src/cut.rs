//! Cuts: snapshots of some volumes at one point in all their PGs (R14).
//!
//! Meta orders the begin and the end of a cut in each PG. Between the two the PG holds the changes of the volumes. Both are
//! entries, so each replica decides alike.

use crate::units::CHUNKS_PER_SEGMENT;
use crate::{CutId, GenerationId, OsdId, SectorRange, SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most volumes of one cut.
pub const CUT_ITEMS_MAX: usize = 40;

/// One volume of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutItem {
    pub volume: VolumeId,
    /// The head that the volume gets; the head before it becomes the snapshot.
    pub to: GenerationId,
}

impl CutItem {
    /// The snapshot that the cut makes.
    pub fn snapshot(&self) -> SnapshotId {
        SnapshotId(self.to.0)
    }
}

/// The begin of a cut, as meta orders it from the leader of each PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub id: CutId,
    /// Wall clock of meta.
    pub created_ms: u64,
    /// Ascending by volume, no volume twice; 1 to [`CUT_ITEMS_MAX`]. A PG without a volume takes no part for it.
    pub items: Arc<[CutItem]>,
}

/// The end of a cut in one PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutEnd {
    /// All PGs have made their snapshots.
    Release = 0,
    /// The leader has held the volumes for too long: it gives the cut up while it is open, and has no effect later.
    TimedOut = 1,
    /// Meta gives the cut up in all PGs. It is final: a `Snap` that comes later has no effect.
    Abort = 2,
}

/// State of a cut in a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutStep {
    /// The snapshots exist, and the PG holds the changes of the volumes.
    Snapped,
    /// The snapshots exist, and the changes go on.
    Released,
    /// The PG has no snapshot of this cut: it was held for too long, or its begin has not come, and may still come.
    Lapsed,
    /// The PG has no snapshot of this cut, and will have none.
    Aborted,
}

/// Progress of a flatten in a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlattenStep {
    /// The leader copies what the head shows of older generations: it has looked at `done` of `chunks` chunks.
    Copying { done: u32, chunks: u32 },
    /// The head shows nothing of an older generation, and never will.
    Flat,
}

/// The place behind the end of a volume that is to get shorter, in the chunks of one PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// All chunks from this one on lie behind the end.
    pub from_chunk: u32,
    /// Places in chunks below `from_chunk`, at most [`TAIL_PARTS_MAX`].
    pub parts: Arc<[(u32, SectorRange)]>,
}

/// Most places of a [`Tail`]: all chunks of the last segment of a striped volume.
pub const TAIL_PARTS_MAX: usize = CHUNKS_PER_SEGMENT as usize;

/// State of the place behind the end of a volume in a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailStep {
    /// The volume shows no data there.
    Empty,
    /// The volume shows data in this chunk.
    Data { chunk: u32 },
    /// Chunks below this one were searched, and many had none: ask again from there.
    Searched { next: u32 },
}

/// Reason why a PG has not carried an order about snapshots out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutRefusal {
    #[error("the replica does not lead the PG")]
    NotLeader { hint: Option<OsdId> },
    #[error("the PG is busy")]
    Busy,
    #[error("another cut of the volume is open in the PG")]
    Open,
    #[error("the PG knows a later order of the volume")]
    Stale,
    #[error("the PG knows a later length of the volume, of epoch {len_epoch}")]
    LaterLength { len_epoch: u32, chunk_count: u32 },
    #[error("the PG has as many snapshots or open cuts as it can take")]
    TooMany,
    #[error("the order is none: its volumes must ascend, and have new heads")]
    Invalid,
    #[error("the PG does not have the volume")]
    Absent,
}

/// From meta to the leader of a PG: an order about snapshots. It is repeated until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotOrder {
    Cut(Cut),
    Release {
        cut: CutId,
        end: CutEnd,
        items: Arc<[CutItem]>,
    },
    Remove {
        volume: VolumeId,
        snapshot: SnapshotId,
    },
    /// Copy all that the head of the volume shows of older generations, and end their kinship. It is repeated while the flatten goes on: a
    /// leader that does not hear it for a while stops.
    Flatten {
        volume: VolumeId,
    },
    /// Find data behind the end that a volume is to have. Its length has this epoch, or an earlier one.
    Find {
        volume: VolumeId,
        len_epoch: u32,
        tail: Tail,
    },
    /// Zero a place behind the end of a volume, whose length has this epoch.
    Wipe {
        volume: VolumeId,
        len_epoch: u32,
        chunk: u32,
        range: SectorRange,
    },
}

/// The answer to a [`SnapshotOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAnswer {
    Cut { cut: CutId, result: Result<CutStep, CutRefusal> },
    Removed { volume: VolumeId, snapshot: SnapshotId, result: Result<(), CutRefusal> },
    Flatten { volume: VolumeId, result: Result<FlattenStep, CutRefusal> },
    Found { volume: VolumeId, len_epoch: u32, result: Result<TailStep, CutRefusal> },
    Wiped { volume: VolumeId, len_epoch: u32, chunk: u32, result: Result<(), CutRefusal> },
}

impl SnapshotOrder {
    pub fn refuse(&self, refusal: CutRefusal) -> SnapshotAnswer {
        match *self {
            SnapshotOrder::Cut(Cut { id: cut, .. }) | SnapshotOrder::Release { cut, .. } => {
                SnapshotAnswer::Cut { cut, result: Err(refusal) }
            }
            SnapshotOrder::Remove { volume, snapshot } => {
                SnapshotAnswer::Removed { volume, snapshot, result: Err(refusal) }
            }
            SnapshotOrder::Flatten { volume } => SnapshotAnswer::Flatten { volume, result: Err(refusal) },
            SnapshotOrder::Find { volume, len_epoch, .. } => {
                SnapshotAnswer::Found { volume, len_epoch, result: Err(refusal) }
            }
            SnapshotOrder::Wipe { volume, len_epoch, chunk, .. } => {
                SnapshotAnswer::Wiped { volume, len_epoch, chunk, result: Err(refusal) }
            }
        }
    }
}

/// Whether these may be the items of a cut.
pub fn are_items(items: &[CutItem]) -> bool {
    let ascending = items.windows(2).all(|pair| pair[0].volume < pair[1].volume);
    (1..=CUT_ITEMS_MAX).contains(&items.len()) && ascending && items.iter().all(|item| item.to.0 != 0)
}
