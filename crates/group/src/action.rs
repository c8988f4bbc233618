//! Actions that a group asks for. The loop performs them in the order in which they were given.

use std::sync::Arc;
use types::control::AttachRefusal;
use types::cut::SnapshotAnswer;
use types::store::{Effect, Persist};
use types::tree::{Change, Tree};
use types::{ChunkKey, GenerationId, Index, OsdId, ReplicaId, SectorRange, VolumeId};
use wire::{Message, Reply};

/// Sender of a request, for its reply; opaque to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub u64);

/// One action for the loop. A `Persist` always comes before the sends whose payload it brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Entries of an append carry no payload here: the loop takes it (and the CRCs) from the engine by
    /// (replica, index, term). When the engine has none, the loop drops the message and
    /// calls `handle_unreadable(to)`.
    Send {
        to: OsdId,
        message: Message,
    },
    Persist(Persist),
    /// A committed entry; entries come in index order, each index once, as this or as `Tree`.
    Apply {
        replica: ReplicaId,
        index: Index,
        effect: Effect,
    },
    /// A committed entry that makes, ends or freezes generations, and has no other effect.
    Tree {
        replica: ReplicaId,
        index: Index,
        tree: Arc<Tree>,
        changes: Vec<Change>,
    },
    Read {
        read: u64,
        origin: Origin,
        chunk: ChunkKey,
        range: SectorRange,
    },
    Extents {
        read: u64,
        chunk: ChunkKey,
        range: SectorRange,
        /// Not the data of the chunk counts, but the blocks that may differ from those of this generation, an older one on its path.
        since: Option<GenerationId>,
    },
    Reply {
        origin: Origin,
        reply: Reply,
    },
    Attached {
        order: u64,
        result: Result<(), AttachRefusal>,
    },
    /// The answer to an order about snapshots.
    Snapshots(SnapshotAnswer),
    /// A part of a place that [`crate::Group::propose_fill`] took has ended; not `ok`: it was not copied.
    Filled {
        fill: u64,
        ok: bool,
    },
    /// Close the connection to this OSD: it sent bytes that fail their checksum or that no member may send.
    BadPeer {
        osd: OsdId,
        reason: String,
    },
    /// Close this client's connection, for the same reasons.
    BadOrigin {
        origin: Origin,
        reason: String,
    },
    /// The follower on this OSD is behind the log: only a stream brings it back. Repeated while that lasts.
    NeedsStream {
        to: OsdId,
    },
    /// R5: this replica takes no further part in its PG.
    Quarantined(String),
    BecameLeader,
    /// The first entry of this leader's term is applied: from now on it takes requests.
    Serves,
    LostLeadership,
    /// A membership step was applied.
    MembersChanged,
    /// Leadership goes to `to`, because a client that holds `volume` hears nothing from this leader.
    Yielded {
        to: OsdId,
        volume: VolumeId,
    },
}
