//! What a group wants done. The loop performs actions in the order in which they were given.

use types::control::AttachRefusal;
use types::store::{Effect, Persist};
use types::{ChunkKey, Index, OsdId, ReplicaId, SectorRange, VolumeId};
use wire::{Message, Reply};

/// Whom to answer; opaque to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub u64);

/// One thing for the loop to do. A `Persist` always comes before the sends whose payload it brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Entries of an append carry no payload here: the loop takes it (and the CRCs) from the engine by
    /// (replica, index, term). When the engine has none, the message is dropped and
    /// `handle_unreadable(to)` is called.
    Send {
        to: OsdId,
        message: Message,
    },
    Persist(Persist),
    /// Committed, in index order, each index once.
    Apply {
        replica: ReplicaId,
        index: Index,
        effect: Effect,
    },
    Read {
        read: u64,
        chunk: ChunkKey,
        range: SectorRange,
    },
    Extents {
        read: u64,
        chunk: ChunkKey,
        range: SectorRange,
    },
    Reply {
        origin: Origin,
        reply: Reply,
    },
    Attached {
        order: u64,
        result: Result<(), AttachRefusal>,
    },
    /// Close the connection to this OSD: it sent bytes that fail their checksum or that nobody may send.
    BadPeer {
        osd: OsdId,
        reason: String,
    },
    /// Close this client's connection, for the same reasons.
    BadOrigin {
        origin: Origin,
        reason: String,
    },
    /// The follower there is behind the log: only a stream brings it back. Repeated while it lasts.
    NeedsStream {
        to: OsdId,
    },
    /// R5: this replica takes no further part.
    Quarantined(String),
    /// This replica reaches as far as any other did: it is a member like all.
    DoubtOver,
    BecameLeader,
    /// The first entry of its term is applied: from now on it takes requests.
    Serves,
    LostLeadership,
    /// Leadership goes to `to`, because a client that holds `volume` hears nothing from here.
    Yielded {
        to: OsdId,
        volume: VolumeId,
    },
}
