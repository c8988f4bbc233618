//! The messages of the data plane, as other crates see them.

use crate::record::ExtentRecord;
use bytes::Bytes;
use types::limits::PART_MAX;
use types::{
    ChunkKey, ClusterId, CrcList, Entry, Epoch, Errno, Incarnation, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange,
    SessionId, SnapshotId, Term, VolumeChunk, VolumeId,
};

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Osd(OsdId),
    /// A client process; the number is its incarnation.
    Client(Incarnation),
}

/// First frame in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version_min: u16,
    pub version_max: u16,
    pub cluster: ClusterId,
    pub peer: Peer,
    pub incarnation: Incarnation,
    /// The OSD that the dialler expects at this address; the other side checks it.
    pub expects: Option<OsdId>,
    pub features: u64,
    /// Requests and bytes that the other end may have in flight towards the sender.
    pub credit_ops: u32,
    pub credit_bytes: u64,
}

/// Answer to a [`Hello`] that cannot be served; the connection closes after it. `code` is a BSLT number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    pub code: u32,
    pub reason: String,
}

/// Every message that a frame can carry after the hellos.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Request(Request),
    Reply(Reply),
    Raft(RaftMsg),
    LeaseRenewal(LeaseRenewal),
    LeaseAck(LeaseAck),
    /// Lease release: the sender no longer serves these PGs, so the receiver's promises to it end now (R3).
    LeaseRelease(Vec<PgId>),
    PassedOn(PassedOn),
    /// I/O of limited volumes that the sender admitted since its last message of this kind, at most [`USED_MAX`] volumes.
    Used(Vec<Used>),
    /// Proof that a link carries bytes both ways. The bus asks with `answer: false` and answers by itself.
    Ping {
        answer: bool,
    },
    Stream(StreamMsg),
    Repair(RepairMsg),
    Mend(MendMsg),
}

/// From a client to the leader of `pg`.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Chosen by the client, unique on the connection, and repeated in the reply.
    pub id: u64,
    pub pg: PgId,
    pub session: SessionId,
    pub epoch: Epoch,
    pub body: RequestBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    /// At most `PART_MAX` bytes; `crcs` holds one CRC32C a fragment.
    Write { chunk: VolumeChunk, range: SectorRange, seq: u64, watermark: u64, crcs: CrcList, payload: IoBuf },
    /// The range reads as zeros from then on (trim and write-zeroes). It has at most a whole chunk.
    Zero { chunk: VolumeChunk, range: SectorRange, seq: u64, watermark: u64 },
    /// The client gave up on `seq`: commit it without effect, so that its write never lands later (R7).
    Skip { volume: VolumeId, seq: u64, watermark: u64 },
    /// At most `PART_MAX` bytes, of the volume or of one of its snapshots.
    Read { chunk: VolumeChunk, range: SectorRange, snapshot: Option<SnapshotId> },
    /// Asks which sectors of the range hold data, in the volume or in one of its snapshots.
    /// Asks which sectors hold data; with `since`, which blocks may differ from those of that older snapshot of the volume.
    Extents { chunk: VolumeChunk, range: SectorRange, snapshot: Option<SnapshotId>, since: Option<SnapshotId> },
    /// Fence check: asks whether the sender still holds the volume. `Done`, unless an attach record with a higher epoch than
    /// the request's is committed in this PG; then `Failed(Fenced)` (ADR 0008).
    FenceCheck { volume: VolumeId },
    /// To a follower: the sender hears nothing from `leader`, which the follower names as leader. The follower forwards this
    /// to the leader over its own link (ADR 0014), and answers `Done` when it did.
    Unreached { volume: VolumeId, leader: OsdId },
}

impl RequestBody {
    /// Returns the bytes of credit that a request takes: the payload that it brings, or the most that its reply brings
    /// (a client must not be able to order more than the link's queue can hold).
    pub fn cost(&self) -> usize {
        match self {
            RequestBody::Write { payload, .. } => payload.len(),
            RequestBody::Read { range, .. } => range.len_bytes(),
            RequestBody::Extents { range, .. } => extents_cost(*range),
            RequestBody::Zero { .. }
            | RequestBody::Skip { .. }
            | RequestBody::FenceCheck { .. }
            | RequestBody::Unreached { .. } => 0,
        }
    }
}

/// Returns the same for a request for extents: a range has at most one for each sector.
pub fn extents_cost(range: SectorRange) -> usize {
    range.count as usize * size_of::<ExtentRecord>()
}

/// From a follower to the leader of `pg`: a client with this session of this volume reaches the follower and hears nothing
/// from the leader. The leader may transfer leadership to the follower (ADR 0014).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedOn {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// The leader's term, as the follower knows it; a leader of another term ignores the message.
    pub term: Term,
    pub volume: VolumeId,
    pub session: SessionId,
    pub epoch: Epoch,
}

/// I/O of one volume that an OSD admitted as a leader (ADR 0032).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub volume: VolumeId,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_ops: u32,
    pub write_ops: u32,
}

/// Most volumes of one [`Message::Used`].
pub const USED_MAX: usize = 1_024;

/// From an OSD to a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub id: u64,
    pub result: Result<ReplyBody, Reject>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReplyBody {
    /// Write, zero, skip: the entry is durable on a majority and applied. Fence check: the sender still holds the volume.
    Done,
    /// Data of a read, with one CRC32C for each fragment of the requested range. An unwritten range has an empty `payload`
    /// and no CRCs: it reads as zeros.
    Data {
        crcs: CrcList,
        payload: IoBuf,
    },
    Extents(Vec<Extent>),
}

/// A run of sectors that all hold data, or all hold none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub sectors: u32,
    pub data: bool,
}

/// Reason why an OSD did not execute a request. Only `Failed` is final; the client sends the request again after any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    NotLeader {
        hint: Option<OsdId>,
    },
    /// A leader that has not applied an entry of its term yet, or a member that cannot pass on the report of an unreached leader
    /// now: the client asks this OSD and the others in turn.
    NotReady,
    /// A leader that serves, with a full queue or with no space granted by a member yet: the client stays and sends again.
    Busy,
    /// A leader that holds the volume to its rate: the client stays, and sends to this PG again after `wait_us` microseconds.
    Throttled {
        wait_us: u32,
    },
    /// This OSD holds no replica of the PG.
    NoSuchPg,
    Failed(Errno),
}

/// A raft message between two replicas of one PG.
#[derive(Clone, Debug, PartialEq)]
pub struct RaftMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub term: Term,
    pub kind: RaftKind,
    pub log_term: Term,
    pub index: Index,
    pub commit: Index,
    pub commit_term: Term,
    pub reject: bool,
    pub reject_hint: Index,
    /// At most [`CONTEXT_MAX`] bytes, opaque to the wire.
    pub context: Bytes,
    pub entries: Vec<Entry>,
}

/// The raft messages that cross the wire. Numbers are the wire's, never reused; 9 and 11 to 15 were reserved and never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RaftKind {
    Append = 1,
    AppendResponse = 2,
    Vote = 3,
    VoteResponse = 4,
    PreVote = 5,
    PreVoteResponse = 6,
    Heartbeat = 7,
    HeartbeatResponse = 8,
    TimeoutNow = 10,
}

/// The lease renewal of one pair of OSDs (R3): PGs led at the sender of which the receiver holds a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// The sender's clock at sending; acknowledged, never compared between nodes.
    pub sent_at: u64,
    /// True when it lists all PGs led at the sender, not only those with recent client I/O.
    pub full: bool,
    /// AUs that the sender has spent of the receiver's grants, since the connection began (R13).
    pub spent_aus: u64,
    pub items: Vec<RenewalItem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalItem {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub term: Term,
    /// min(match of the receiver, commit).
    pub commit: Index,
    /// Up to here the sender has all contents and all committed entries, durably. Zero: it lacks contents.
    pub complete: Index,
}

/// The items of a lease renewal for which the receiver has renewed its promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAck {
    pub sent_at: u64,
    /// AUs of its device that the sender has granted to the receiver, since the connection began (R13).
    pub granted_aus: u64,
    /// The sender's device is full: existing grants may be spent, no more will follow.
    pub device_full: bool,
    /// Most MiB that one PG may leave uncommitted in the sender's log (R9); 0: unknown.
    pub log_share_mib: u8,
    /// Rate at which the sender's log may grow, because its home takes no more, in units of 4 KiB a second; 0: any (ADR 0035).
    pub pace: u16,
    /// The PGs, the terms of their leaders, and the state of the sender's contents.
    pub renewed: Vec<(PgId, Term, Contents)>,
}

/// State of a replica's contents of its PG (R16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    Whole,
    /// A stream has still to bring them. `room_kib`: KiB of entries that its log takes meanwhile. `is_short`: that is less than
    /// half of its share.
    Filling {
        room_kib: u32,
        is_short: bool,
    },
}

/// Part of a stream (R12), which copies the contents of a PG to a follower that is behind the log.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Chosen by the leader's OSD for one stream.
    pub stream: u64,
    pub body: StreamBody,
}

/// Body of a [`StreamMsg`]. `seq` numbers the leader's messages after `Accept`, from 1, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamBody {
    /// Leader: the whole contents of this PG will follow. `needed`: the PG commits nothing until the follower takes entries.
    Open { needed: bool },
    /// Follower: send, from the beginning. Carries the follower's term, its commit index, and the end of its log in that term.
    /// `compare`: it has older contents, and the leader sends digests of its own first. `fills_from`: the index behind which its log
    /// begins, while it lacks contents; else 0.
    Accept { term: Term, commit: Index, end: Index, compare: bool, fills_from: Index },
    /// Leader: digests of the blocks from `start` (in sectors) on, [`DIGEST_LEN`] bytes each; zeros for a block of zeros.
    Digests { seq: u64, chunk: ChunkKey, start: u32, digests: Bytes },
    /// Follower: of the blocks whose digests came with `seq` it needs these; bit 0 is the first one.
    Wants { seq: u64, blocks: u128 },
    /// Leader: contents of a range. An empty payload without CRCs means zeros; such a range has at most a whole chunk.
    Blocks { seq: u64, chunk: ChunkKey, range: SectorRange, crcs: CrcList, payload: IoBuf },
    /// Leader: the next piece of the decision state, at most [`STREAM_PIECE_MAX`] bytes.
    Decision { seq: u64, bytes: Bytes },
    /// Leader: the follower's log begins behind this applied index, at the decision state that was sent before. `End` and more
    /// contents may follow, or another `Fill`.
    Fill { seq: u64, index: Index, term: Term },
    /// Leader: all contents are sent. They show entries up to this applied index.
    End { seq: u64, index: Index, term: Term },
    /// Follower: everything up to `seq` is stored.
    Ack { seq: u64 },
    /// Follower: its log begins there, durably; everything up to `commit` is durable here.
    Filling { term: Term, commit: Index },
    /// Follower: the stream is finished, and it has all contents; everything up to `commit` is durable here.
    Done { term: Term, commit: Index },
    /// Either side: the stream ends without effect.
    Abort(StreamAbort),
}

/// Reason why a stream ended early. Numbers are the wire's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamAbort {
    /// The follower gets all that it needs from the log.
    Needless = 1,
    /// Too many streams run at once, or the replica is not ready for one.
    Busy = 2,
    /// The follower's device has no space for a second copy of the PG.
    Full = 3,
    /// The sender no longer leads the PG.
    NotLeader = 4,
    /// A read failed, a message came out of order, or the stream took too long.
    Failed = 5,
}

impl StreamAbort {
    /// Returns the reason with this number.
    pub fn from_u8(n: u8) -> Option<StreamAbort> {
        use StreamAbort::*;
        [Needless, Busy, Full, NotLeader, Failed].into_iter().find(|reason| *reason as u8 == n)
    }
}

/// Payload repair between two replicas of a PG, one of which has lost payloads of its log (R11).
#[derive(Clone, Debug, PartialEq)]
pub struct RepairMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub body: RepairBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RepairBody {
    /// From a replica under payload repair: asks for the payload of this entry.
    Fetch { index: Index, term: Term },
    /// From any member: the payload. `start` is the sector of its chunk at which it begins.
    Payload { index: Index, term: Term, start: u32, crcs: CrcList, payload: IoBuf },
    /// From any member: this member cannot answer the query.
    Lack { index: Index, term: Term, why: Lack },
}

/// Reason why a member cannot give the payload of an entry. Numbers are the wire's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lack {
    /// Its log holds no such entry.
    Other = 1,
    /// It holds the entry, but has lost the payload too.
    Lost = 2,
    /// The member has applied the entry of this index, and its log does not hold the entry that the query names.
    Freed = 3,
    /// Unknown: the member has failed.
    Unsure = 4,
    /// Unknown: the replica was removed for good, and no other one on its OSD knows more.
    Gone = 5,
}

impl Lack {
    /// Returns the reason with this number.
    pub fn from_u8(n: u8) -> Option<Lack> {
        use Lack::*;
        [Other, Lost, Freed, Unsure, Gone].into_iter().find(|why| *why as u8 == n)
    }
}

/// Block repair between two replicas of one PG, one of which cannot read a run of blocks (R15, ADR 0022).
#[derive(Clone, Debug, PartialEq)]
pub struct MendMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Chosen by the replica that asks, and repeated in the answer.
    pub id: u64,
    pub chunk: ChunkKey,
    /// Number of the first 4 KiB block in its chunk.
    pub block: u16,
    /// Blocks of the run, which ends in the same chunk: 1 to [`MEND_BLOCKS_MAX`].
    pub count: u16,
    pub body: MendBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MendBody {
    /// Asks for the member's copy of the blocks, as they are. Of one block it may give another copy that has this checksum of home: what
    /// entries of its log make of its own copy, or of the older one that comes along, if it is not empty.
    Ask { hash: u32, older: IoBuf },
    /// The blocks as of one applied index of the sender, in `low..=high`, and the CRC32C of each; zeros when both lists are empty. Index 0:
    /// of an unknown one.
    Blocks { low: Index, high: Index, crcs: CrcList, payload: IoBuf },
    /// The member cannot read the blocks now: ask again.
    NotNow,
    /// At least one of the blocks is bad here, too.
    Damaged,
    /// The replica takes no part in its PG now: its log is being repaired, or it has failed.
    NoPart,
}

/// Most blocks of a [`MendMsg`].
pub const MEND_BLOCKS_MAX: u16 = (PART_MAX / types::BLOCK) as u16;
/// Bytes of the digest of a block.
pub const DIGEST_LEN: usize = 16;
/// Largest [`StreamBody::Decision`].
pub const STREAM_PIECE_MAX: usize = 32 << 10;
/// Largest [`RaftMsg::context`].
pub const CONTEXT_MAX: usize = 64;
/// Largest [`Refuse::reason`] in bytes; encoding cuts it there.
pub const REASON_MAX: usize = 512;
