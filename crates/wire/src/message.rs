//! The messages of the data plane, as rooms see them.

use bytes::Bytes;
use types::{
    ChunkKey, ClusterId, Entry, Epoch, Errno, Incarnation, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange,
    SessionId, Term, VolumeId,
};

/// Who is at the other end of a connection.
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
    /// Whom the dialler thinks it has reached; checked by the other side.
    pub expects: Option<OsdId>,
    pub features: u64,
    /// What the other end may have in flight towards us.
    pub credit_ops: u32,
    pub credit_bytes: u64,
}

/// Answer to a [`Hello`] that cannot be served; the connection closes after it. `code` is a BSLT number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    pub code: u32,
    pub reason: String,
}

/// Everything that a frame can carry after the hellos.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Request(Request),
    Reply(Reply),
    Raft(RaftMsg),
    Listing(Listing),
    ListingEcho(ListingEcho),
    /// The sender has stopped serving these PGs: their promises to it end now (R3).
    Goodbye(Vec<PgId>),
    PassedOn(PassedOn),
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
    /// Chosen by the client, unique on the connection; comes back in the reply.
    pub id: u64,
    pub pg: PgId,
    pub session: SessionId,
    pub epoch: Epoch,
    pub body: RequestBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    /// At most `PART_MAX` bytes; `crcs` holds one CRC32C a fragment.
    Write { chunk: ChunkKey, range: SectorRange, seq: u64, watermark: u64, crcs: Vec<u32>, payload: IoBuf },
    /// The range reads as zeros from then on (trim and write-zeroes); up to a whole chunk.
    Zero { chunk: ChunkKey, range: SectorRange, seq: u64, watermark: u64 },
    /// The client gave up on `seq`: commit it as having no effect, so that it never lands later (R7).
    Skip { volume: VolumeId, seq: u64, watermark: u64 },
    /// At most `PART_MAX` bytes.
    Read { chunk: ChunkKey, range: SectorRange },
    /// Which sectors of the range hold data.
    Extents { chunk: ChunkKey, range: SectorRange },
    /// Whether the sender still holds the volume: `Done` unless an attach record of a higher epoch than the
    /// request's is committed in this PG, else `Failed(Fenced)` (ADR 0008).
    Holder { volume: VolumeId },
    /// To a follower: the sender hears nothing from `leader`, which the follower names as leader. The follower passes
    /// it on over its own link (ADR 0014). The answer `Done` means that it did.
    Unreached { volume: VolumeId, leader: OsdId },
}

/// From a follower to the leader of `pg`: a client with this session of this volume reaches the follower and hears
/// nothing from the leader. The leader may hand over to the follower (ADR 0014).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedOn {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// The leader's, as the follower knows it: in another term the message means nothing.
    pub term: Term,
    pub volume: VolumeId,
    pub session: SessionId,
    pub epoch: Epoch,
}

/// From an OSD to a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub id: u64,
    pub result: Result<ReplyBody, Reject>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReplyBody {
    /// Write, zero, skip: durable on a majority and applied. Holder: still the one.
    Done,
    /// One CRC32C a fragment of the range that was asked for. An unwritten range has an empty `payload`
    /// and no CRCs: all zeros.
    Data {
        crcs: Vec<u32>,
        payload: IoBuf,
    },
    Extents(Vec<Extent>),
}

/// A run of sectors of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub sectors: u32,
    pub data: bool,
}

/// Why an OSD did not do it. Only `Failed` is final; the rest say "not here" or "not now".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    NotLeader {
        hint: Option<OsdId>,
    },
    /// No lease, no quorum, log full, still starting: ask again.
    NotNow,
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
    /// Opaque to the wire, at most [`CONTEXT_MAX`] bytes.
    pub context: Bytes,
    pub entries: Vec<Entry>,
    pub snapshot: Option<SnapshotMeta>,
}

/// The raft messages that cross the wire. Numbers are the wire's, never reused.
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
    Snapshot = 9,
    TimeoutNow = 10,
    ReadIndex = 11,
    ReadIndexResponse = 12,
    TransferLeader = 13,
    Unreachable = 14,
    SnapStatus = 15,
}

/// A raft snapshot without its data, which has travelled before (R12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    pub index: Index,
    pub term: Term,
    pub voters: Vec<ReplicaId>,
    pub learners: Vec<ReplicaId>,
}

/// The renewal frame of one OSD pair (R3): PGs led at the sender, of which the receiver holds a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The sender's clock when it was sent; echoed, never compared between nodes.
    pub sent_at: u64,
    /// All PGs led at the sender, not only those with recent client I/O.
    pub full: bool,
    /// AUs that the sender has spent of what the receiver granted it, since the connection began (R13).
    pub spent_aus: u64,
    pub items: Vec<Listed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub term: Term,
    /// min(match of the receiver, commit).
    pub commit: Index,
}

/// Which items of a listing the receiver has renewed its promise for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingEcho {
    pub sent_at: u64,
    /// AUs of its device that the sender has granted the receiver, since the connection began (R13).
    pub granted_aus: u64,
    /// The sender's device is full: what was granted may be spent, more will not come.
    pub device_full: bool,
    /// What one PG may hold uncommitted in the sender's log, in MiB (R9); 0: not told.
    pub log_share_mib: u8,
    pub renewed: Vec<(PgId, Term)>,
}

/// Part of a stream (R12): the contents of a PG on their way to a follower that is behind the log.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Chosen by the leader's OSD for one stream.
    pub stream: u64,
    pub body: StreamBody,
}

/// `seq` numbers what the leader sends after `Accept`, from 1, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamBody {
    /// Leader: everything that this PG holds will follow.
    Open,
    /// Follower: go on, from nothing. Where it stands now.
    Accept { term: Term, commit: Index },
    /// Leader: contents of a range. An empty payload, without CRCs: zeros, and then up to a whole chunk.
    Blocks { seq: u64, chunk: ChunkKey, range: SectorRange, crcs: Vec<u32>, payload: IoBuf },
    /// Leader: the next piece of the decision state, at most [`STREAM_PIECE_MAX`] bytes.
    Decision { seq: u64, bytes: Bytes },
    /// Leader: all that was sent is the PG exactly as of this applied index.
    End { seq: u64, index: Index, term: Term },
    /// Follower: everything up to `seq` is in its place.
    Ack { seq: u64 },
    /// Follower: the stream is over; everything up to `commit` is durable here.
    Done { term: Term, commit: Index },
    /// Either: nothing comes of it.
    Abort(StreamAbort),
}

/// Why a stream ended early. Numbers are the wire's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamAbort {
    /// The follower has what it needs from the log.
    Needless = 1,
    /// Too many streams at once, or the replica is not ready for one.
    Busy = 2,
    /// The follower's device has no room for a second copy of the PG.
    Full = 3,
    /// The sender no longer leads the PG.
    NotLeader = 4,
    /// Something could not be read, or took too long, or came out of order.
    Failed = 5,
}

impl StreamAbort {
    /// The reason with this number.
    pub fn from_u8(n: u8) -> Option<StreamAbort> {
        use StreamAbort::*;
        [Needless, Busy, Full, NotLeader, Failed].into_iter().find(|reason| *reason as u8 == n)
    }
}

/// Between two replicas of a PG, one of which repairs its log (R11).
#[derive(Clone, Debug, PartialEq)]
pub struct RepairMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Of the PG, as the sender was born into it (R4).
    pub lineage: u64,
    /// Chosen by the one who asks; comes back in the answer, which is as old as the question at most.
    pub round: u32,
    pub body: RepairBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RepairBody {
    /// Who repairs: what is the payload of this entry?
    Fetch { index: Index, term: Term },
    /// Any member: this. `start` is the sector of its chunk at which it begins.
    Payload { index: Index, term: Term, start: u32, crcs: Vec<u32>, payload: IoBuf },
    /// Any member: not from here.
    Lack { index: Index, term: Term, why: Lack },
    /// Whose log has lost records (ADR 0007): how far are you? `index` and `term` are of the last entry that it still
    /// has: whoever leads forgets that it ever had more.
    Doubt { index: Index, term: Term },
    /// A member that is not in doubt: its last entry is `index` of `term`, and `current` is its term.
    Standing { index: Index, term: Term, current: Term },
}

/// Why a member cannot give a payload. Numbers are the wire's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lack {
    /// Its log holds no such entry, and nothing of it is in doubt.
    Other = 1,
    /// It holds the entry, and has lost the payload too.
    Lost = 2,
    /// The entry is applied there, and no longer in its log.
    Freed = 3,
    /// It cannot tell: its own log is in doubt.
    Unsure = 4,
}

impl Lack {
    /// The reason with this number.
    pub fn from_u8(n: u8) -> Option<Lack> {
        use Lack::*;
        [Other, Lost, Freed, Unsure].into_iter().find(|why| *why as u8 == n)
    }
}

/// Between two replicas of one PG: a block that one of them cannot read (R15, ADR 0005).
#[derive(Clone, Debug, PartialEq)]
pub struct MendMsg {
    pub pg: PgId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub lineage: u64,
    /// Chosen by the one who asks; comes back in the answer.
    pub id: u64,
    pub chunk: ChunkKey,
    /// Number of the 4 KiB block in its chunk.
    pub block: u16,
    pub body: MendBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MendBody {
    /// Give the block exactly as of this index. `crc`: its CRC32C, when the one who asks knows it.
    Ask { applied: Index, crc: Option<u32> },
    /// The block as of the index that was asked for, and its CRC32C; zeros when the payload is empty.
    Block { crc: u32, payload: IoBuf },
    /// It cannot be said now what the block was at that index: ask again.
    NotNow,
    /// The block is bad here, too, or is another.
    Damaged,
    /// The replica has no part in its PG now: its log is repaired, it is in doubt, or it is out of service.
    NoPart,
}

/// Largest [`StreamBody::Decision`].
pub const STREAM_PIECE_MAX: usize = 32 << 10;
/// Largest [`RaftMsg::context`].
pub const CONTEXT_MAX: usize = 64;
/// Most voters, and most learners, of a [`SnapshotMeta`].
pub const SNAPSHOT_MEMBERS_MAX: usize = 4 * types::limits::REPLICAS_MAX;
/// Largest [`Refuse::reason`] in bytes; encoding cuts it there.
pub const REASON_MAX: usize = 512;
