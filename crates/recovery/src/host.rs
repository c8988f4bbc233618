//! The OSD as recovery sees it: facts, a few steps that are answered at once, and the actions that the loop carries out.

use crate::block::{BlockKey, HeldRead};
use crate::digest::DigestAnswer;
use crate::flatten::{Copied, FillRead};
use crate::stream::{BaseRead, PartRead};
use std::sync::Arc;
use std::time::Duration;
use types::map::{Member, Membership};
use types::store::{BlockCopy, ChunkDelta, DecisionState, ReadData, ReadError};
use types::tree::Tree;
use types::{
    BlockPlace, ChunkKey, CrcList, GenerationId, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time,
    VolumeChunk, VolumeId,
};
use wire::Message;

/// The result of a read.
pub type ReadResult = Result<ReadData, ReadError>;

/// Blocks with a checksum each; `None`: zeros.
pub type Staged = Option<(IoBuf, CrcList)>;

/// The OSD at this moment.
pub trait Host {
    /// Queues an action. The loop carries actions out in their order when the call of `recovery` has returned.
    fn act(&mut self, action: Action);

    fn now(&self) -> Time;

    /// Whether a connection to the OSD is up.
    fn reaches(&self, osd: OsdId) -> bool;

    /// Whether a leader of the PG was heard lately.
    fn is_led(&self, pg: PgId) -> bool;

    /// Whether the log has room for payloads that come back.
    fn can_refill(&self) -> bool;

    /// Returns the part of a local replica in its PG.
    fn part(&self, replica: ReplicaId) -> Option<Part>;

    /// Whether a block that was bad still has to be repaired.
    fn needs_block(&self, block: BlockKey) -> bool;

    /// Whether a destage round of the replica would have to read this block.
    fn delays_destage(&self, block: BlockKey) -> bool;

    /// Returns the applied index of a replica of which these blocks can be read, beginning with `first`.
    fn reads_as_of(&self, first: BlockKey, count: u16) -> Option<Index>;

    /// Returns the checksum that home keeps of a block.
    fn hash_of(&self, block: BlockKey) -> Option<u32>;

    /// Returns the block that the entries of a replica that is being filled make of an older copy. `None`: they do not touch it.
    fn over_older(&self, block: BlockKey, older: &IoBuf) -> Option<IoBuf>;

    /// Whether the group of this replica waits for this read.
    fn is_reading(&self, replica: ReplicaId, read: u64) -> bool;

    /// Whether the log holds proposals back.
    fn is_log_full(&self) -> bool;

    /// Whether rounds that free the log need the device.
    fn is_pressed(&self) -> bool;

    /// Returns for how long the log has waited for its device.
    fn log_wait(&self) -> Duration;

    /// Returns the replica of the PG here that has all contents, and the follower on `osd`.
    fn pair_with(&self, pg: PgId, osd: OsdId) -> Option<(ReplicaId, ReplicaId)>;

    /// Returns the state of a local replica that leads and has all contents, as far as this follower needs it.
    fn lead(&self, replica: ReplicaId, follower: ReplicaId) -> Option<Lead>;

    /// Returns the applied state of a local replica.
    fn decision(&self, replica: ReplicaId) -> Option<DecisionState>;

    /// Returns the applied state if the log of the follower, whose last entry is `end` at most (`None`: unknown), may begin there. From here on the
    /// follower does not count as one with all its contents.
    fn fill_state(&mut self, replica: ReplicaId, follower: ReplicaId, end: Option<Index>) -> Option<DecisionState>;

    fn chunks(&self, replica: ReplicaId) -> Vec<ChunkKey>;

    /// Returns the delta of a chunk of a live generation.
    fn delta(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkDelta;

    /// Returns the generations of a local replica as applied.
    fn tree(&self, replica: ReplicaId) -> Option<Arc<Tree>>;

    /// Whether the present contents of a local replica are contents for a log that begins at this index: its tree is the same since, or
    /// each of its generations is the first of its volume.
    fn has_tree_since(&self, replica: ReplicaId, index: Index) -> bool;

    /// Whether a peer that asks for these blocks learns nothing here: they are open in their generation, and the peer has merged more, or
    /// less.
    fn is_open(&self, first: BlockKey, count: u16) -> bool;

    /// Returns the chunk of a live generation that has the blocks of this one.
    fn owner_of(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkKey;

    /// Returns the chunk of a volume to which the blocks of this one belong.
    fn volume_chunk(&self, replica: ReplicaId, chunk: ChunkKey) -> VolumeChunk;

    /// Returns the place that seeds the checksum of a block.
    fn place_of(&self, block: BlockKey) -> BlockPlace;

    /// Returns the chunks of other generations in which a read of this one may find its blocks.
    fn older_of(&self, replica: ReplicaId, chunk: ChunkKey) -> Vec<ChunkKey>;

    /// Whether a read of the chunk finds this block at home in another one.
    fn shows_block(&self, chunk: ChunkKey, block: BlockKey) -> bool;

    /// Counts the reads that a destage round sent to a second look.
    fn reads_looked_up_again(&self) -> u64;

    /// Returns the state of the group of a local replica that has one.
    fn follow(&self, replica: ReplicaId) -> Option<Follow>;

    /// Returns the replica here whose contents a stream to this one is compared with.
    fn base_for(&self, replica: ReplicaId) -> Option<ReplicaId>;

    /// Whether `peer` is a member of the PG of a local replica, or may be one that the replica does not know yet.
    fn is_member(&self, replica: ReplicaId, peer: Member) -> bool;

    /// Whether these bytes are a decision state that a replica can start from.
    fn can_start_from(&self, replica: ReplicaId, bytes: &[u8]) -> bool;

    /// Whether the AU of the base is kept.
    fn keeps(&self, replica: ReplicaId, chunk: ChunkKey, au: u32) -> bool;

    /// Keeps an AU of the base, if it can be kept.
    fn keep(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool;

    /// Keeps the AU no longer. True when its bytes are known to be those that were compared.
    fn release(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool;

    /// Keeps the AU no longer: other contents replace it.
    fn unkeep(&mut self, replica: ReplicaId, chunk: ChunkKey, au: u32);

    /// Stages blocks; [`crate::Streams::handle_staged`] takes the token when they are written. False:
    /// the device is full.
    fn stage(&mut self, token: u64, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, data: Staged) -> bool;

    /// Whether zeros that are staged for this chunk hide blocks of older generations.
    fn stages_marks(&self, replica: ReplicaId, chunk: ChunkKey) -> bool;

    /// Takes the generations of the next blocks from this decision state of the leader. False: it is none.
    fn stage_as_of(&mut self, replica: ReplicaId, decision: &[u8]) -> bool;

    /// Drops what is staged and kept for a replica.
    fn unstage(&mut self, replica: ReplicaId);
}

/// A local replica that leads and has all contents, and one of its followers.
#[derive(Clone, Debug, PartialEq)]
pub struct Lead {
    pub term: Term,
    pub applied: Index,
    /// The first entry that can be sent from the log.
    pub first: Index,
    /// The log cannot bring the follower's next entry.
    pub is_behind: bool,
    /// The follower's log is known to go on from this one, and to have everything up to here.
    pub matched: Option<Index>,
    /// The PG cannot commit without the follower.
    pub needs_follower: bool,
    /// The follower's log may begin before its contents come, unless it has more entries than it seems.
    pub may_fill: bool,
    /// The follower is known to have all its contents.
    pub has_contents: bool,
    /// Payload that the follower's log still takes, in bytes, and whether less than half of its share is left.
    pub room: Option<(u64, bool)>,
    /// The rest of the payload that the PG may propose, in bytes; `None`: it has no pace.
    pub pace: Option<u64>,
    /// Blocks of the leader are bad.
    pub has_bad_blocks: bool,
}

impl Lead {
    /// Whether the PG waits for a follower that counts as soon as its log has begun, or that counts already (R16).
    pub(crate) fn counts_at_once(&self) -> bool {
        self.needs_follower && (self.may_fill || self.room.is_some())
    }
}

/// The group of a local replica, as a stream to it needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Follow {
    pub pg: PgId,
    pub term: Term,
    /// The last entry that is both durable and known to be committed.
    pub commit: Index,
    pub applied: Index,
    /// The last entry of its log, durable or not.
    pub end: Index,
    /// It is elected, and may not have taken over yet.
    pub is_elected: bool,
    /// It leads.
    pub leads: bool,
    /// It waits until its log begins at another index.
    pub is_paused: bool,
    /// The index behind which its log begins, if it lacks contents; or zero.
    pub fills_from: Index,
}

/// A read, as its result names it.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// A key of the reads of block repair.
    Block(usize),
    /// Such a key, for a block of the base of a replica that is being filled.
    BaseBlock(usize),
    /// A part of a running digest.
    Digest { key: usize, part: usize },
    /// Contents for a follower.
    Part(PartRead),
    /// Older contents of a replica here.
    Base(BaseRead),
    /// A place that a flatten copies.
    Fill(FillRead),
}

/// The part of a local replica in its PG.
pub struct Part {
    pub pg: PgId,
    pub members: Membership,
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
    /// The peer sent bytes that no peer sends: its connection is closed.
    BadPeer {
        osd: OsdId,
        reason: String,
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
    /// Read blocks of a replica at its applied index, or older contents ([`Read::Base`]).
    Read {
        read: Read,
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
    /// The PG may propose so many bytes of payload from now on; `None`: any number.
    SetPace {
        replica: ReplicaId,
        pace: Option<u64>,
    },
    /// Earlier reports of the follower about its contents do not count.
    NoteFilling {
        replica: ReplicaId,
        follower: ReplicaId,
    },
    /// Make the staged blocks the contents of a replica.
    Install {
        replica: ReplicaId,
    },
    /// Do the same exactly as of this state, at which the log begins then. The group is paused until then.
    InstallAsOf(DecisionState),
    /// Answer a query of a tool.
    AnswerTool {
        id: u64,
        answer: DigestAnswer,
    },
    /// Propose copies of a place; [`crate::Flattens::handle_filled`] takes the end of each.
    ProposeFill {
        replica: ReplicaId,
        fill: u64,
        chunk: ChunkKey,
        parts: Vec<Copied>,
    },
    /// Propose the end of the kinship of a head.
    Detach {
        replica: ReplicaId,
        volume: VolumeId,
        head: GenerationId,
    },
    /// Have the log of a replica begin behind the index of this state. The group is paused until then.
    Fill(DecisionState),
}
