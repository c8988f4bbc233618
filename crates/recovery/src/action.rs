//! Facts that the loop gives, and actions that it carries out.

use crate::block::{BlockKey, HeldRead};
use types::map::{Member, Membership};
use types::store::{BlockCopy, ReplicaIdentity};
use types::{ChunkKey, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time};
use wire::Message;

/// Facts of the OSD at this moment.
pub trait View {
    fn now(&self) -> Time;

    /// Whether a connection to the OSD is up.
    fn reaches(&self, osd: OsdId) -> bool;

    /// Whether a leader of the PG was heard lately.
    fn is_led(&self, pg: PgId) -> bool;

    /// Whether the log has room for payloads that come back.
    fn can_refill(&self) -> bool;

    /// Returns the part of a local replica in its PG.
    fn part(&self, replica: ReplicaId) -> Option<Part<'_>>;

    /// Whether a block that was bad still has to be repaired.
    fn needs_block(&self, block: BlockKey) -> bool;

    /// Whether a destage round of the replica would have to read this block.
    fn delays_destage(&self, block: BlockKey) -> bool;

    /// Returns the applied index of a replica whose contents can be read.
    fn reads_as_of(&self, replica: ReplicaId) -> Option<Index>;

    /// Whether the group of this replica waits for this read.
    fn is_reading(&self, replica: ReplicaId, read: u64) -> bool;

    /// Whether the log holds proposals back.
    fn is_log_full(&self) -> bool;
}

/// The part of a local replica in its PG.
pub struct Part<'a> {
    pub identity: &'a ReplicaIdentity,
    pub members: &'a Membership,
    /// The other members, on other OSDs: of two on one OSD the newest.
    pub others: Vec<Member>,
    /// Its group runs.
    pub runs: bool,
}

/// One step that the OSD's loop carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Send {
        to: OsdId,
        message: Message,
    },
    /// The peer sent bytes that fail their checksum: its connection is closed.
    BadPeer {
        osd: OsdId,
    },
    /// Give this payload, which matches the replica's own record, to the engine.
    Refill {
        replica: ReplicaId,
        index: Index,
        term: Term,
        payload: IoBuf,
    },
    /// The replica fails. Its log before the entry `from` is its past.
    FailBefore {
        replica: ReplicaId,
        from: Index,
        reason: String,
    },
    /// The replica fails, and has no past.
    Fail {
        replica: ReplicaId,
        reason: String,
    },
    /// Read blocks of a replica; [`crate::BlockRepairs::handle_read`] takes the result under this key.
    Read {
        key: usize,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    },
    /// Offer a copy to the engine; [`crate::BlockRepairs::handle_mended`] takes its verdict.
    Mend {
        key: BlockKey,
        copy: BlockCopy,
    },
    /// The engine does not know the block as bad any more.
    ForgetBlock(BlockKey),
    /// Start a client's read again.
    StartRead(HeldRead),
    /// Fail a client's read: its block is damaged.
    FailRead {
        replica: ReplicaId,
        read: u64,
    },
    /// Hand the PG over to a member on another OSD than these, if one is up.
    HandOver {
        replica: ReplicaId,
        avoid: Vec<OsdId>,
    },
    /// Report to meta soon: what is known of lost data has changed.
    Report,
}
