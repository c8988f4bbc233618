//! Messages between the control plane and the data plane. They are plain values: gRPC carries them between
//! processes (`api`), the simulator passes them directly.
//!
//! An OSD and meta exchange them over one stream; a client asks and meta answers.

use crate::cut::{SnapshotAnswer, SnapshotOrder};
use crate::faults::ToldFault;
use crate::ids::{
    ClusterId, Epoch, GenerationId, Incarnation, Index, OsdId, OsdUuid, PgId, ReplicaId, SegmentIndex, SessionId,
    SnapshotId, Term, VolumeChunk, VolumeId,
};
use crate::map::{ForceMembers, MemberChange, Membership, OsdAddr, PgMap};
use crate::qos::QosLimits;
use crate::stripe::Stripe;
use crate::when_full::WhenFull;
use crate::writers::Writers;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// From an OSD to the leading meta.
#[derive(Clone, Debug, PartialEq)]
pub enum OsdUp {
    Hello(OsdHello),
    Heartbeat(OsdHeartbeat),
    /// Answer to [`OsdDown::Attach`].
    Attached {
        pg: PgId,
        order: u64,
        result: Result<(), AttachRefusal>,
    },
    /// Answer to [`OsdDown::Remember`]: this is durable on the device.
    Remembers(Watermarks),
    /// Answer to [`OsdDown::Snapshots`].
    Snapshots {
        pg: PgId,
        answer: SnapshotAnswer,
    },
}

/// Highest revision and ids that the records of a cluster have reached (R17). An OSD keeps the highest that meta sent it. A
/// metadata store behind what a majority of the OSDs keep has gone back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Watermarks {
    /// Rises with every transaction that an answer or a command rests on.
    pub revision: u64,
    /// The lowest id of each kind that was never allocated.
    pub next_osd: u32,
    pub next_pool: u32,
    pub next_replica: u64,
    pub next_volume: u64,
    pub next_session: u64,
    pub map_epoch: u64,
}

impl Watermarks {
    /// Returns the higher of both, field by field.
    pub fn max(self, other: Watermarks) -> Watermarks {
        Watermarks {
            revision: self.revision.max(other.revision),
            next_osd: self.next_osd.max(other.next_osd),
            next_pool: self.next_pool.max(other.next_pool),
            next_replica: self.next_replica.max(other.next_replica),
            next_volume: self.next_volume.max(other.next_volume),
            next_session: self.next_session.max(other.next_session),
            map_epoch: self.map_epoch.max(other.map_epoch),
        }
    }
}

/// First message of the stream. An OSD gets its id and uuid when its device is formatted.
#[derive(Clone, Debug, PartialEq)]
pub struct OsdHello {
    pub cluster: ClusterId,
    pub osd: OsdId,
    pub uuid: OsdUuid,
    pub incarnation: Incarnation,
    pub addr: SocketAddr,
    pub http: Option<SocketAddr>,
    pub capacity_bytes: u64,
    /// Failure domains; `None` keeps what is registered.
    pub host: Option<String>,
    pub rack: Option<String>,
    pub zone: Option<String>,
    /// Version of the OSD's program; shown to operators and used for nothing else.
    pub version: String,
    pub replicas: Vec<(PgId, ReplicaId)>,
    /// The highest that meta ever sent this OSD (R17).
    pub seen: Watermarks,
    pub device: DevicePosition,
}

/// Position of a device in its own history (R17, ADR 0012). A device whose position is behind the recorded one is an older
/// copy, or has lost flushed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DevicePosition {
    /// Number of this mount; grows by one at each start on the same device.
    pub mount: u64,
    /// Number of the last log batch that this mount found.
    pub log_seq: u64,
    /// Number of the last log batch that is durable now.
    pub durable_seq: u64,
    /// Every replica on the device has failed, durably: an administrator started the OSD with `--after-restore`, or meta ordered
    /// it ([`OsdDown::FailReplicas`]).
    pub restored: bool,
    /// The device carries the mark of an older copy. Each start advances its position, so that tells nothing any more.
    pub behind: bool,
    /// A metadata server has let this very process in before, so its device cannot have gone back since.
    pub let_in: bool,
}

/// Sent every second, and at once when a leader or a flag changes. The first heartbeat of a stream lists all PGs in `pgs`; a
/// later one lists only those that changed since the one before.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct OsdHeartbeat {
    pub used_bytes: u64,
    pub free_bytes: u64,
    pub full: bool,
    /// The reason why the store stopped (R15), once it has.
    pub poisoned: Option<String>,
    /// Set while destaging makes no progress under pressure: names the PG and the cause.
    pub destage_stuck: Option<String>,
    /// Set while a device takes twice its normal service time or more: names the device and its times.
    pub slow_device: Option<String>,
    pub pgs: Vec<PgReport>,
    /// Peers that this OSD cannot reach.
    pub unreachable: Vec<OsdId>,
    pub io: IoTotals,
    pub recovery: RecoveryTotals,
    /// Number of the last durable log batch.
    pub log_seq: u64,
}

/// Client I/O since the OSD started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IoTotals {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
}

/// Totals of the streams that an OSD sends to followers that are behind the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RecoveryTotals {
    /// Running streams, and followers that wait for one.
    pub streams: u32,
    /// Bytes sent since the OSD started, and bytes that followers had already.
    pub done_bytes: u64,
    /// Bytes that the running streams still have to send or to compare, as far as is known.
    pub left_bytes: u64,
}

/// Report of one replica about its PG. `leading` is `None` on followers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PgReport {
    pub pg: PgId,
    pub replica: ReplicaId,
    pub term: Term,
    pub applied: Index,
    /// Term and index of the last durable entry of its log; of a failed replica, the end of the log of an earlier moment that it
    /// still has. `None`: its contents are no state that the PG ever had, so no forced recovery can start from it (ADR 0020).
    pub end: Option<(Term, Index)>,
    /// Floor of its members: that of the last forced recovery that it has applied; 0 without one.
    pub floor: ReplicaId,
    /// R4: this replica has failed: it may lack a part of what it acknowledged, and it neither votes, acknowledges nor serves.
    pub quarantined: bool,
    /// R11: the log of this replica is being repaired from its peers; until then it neither votes nor serves.
    pub repairing: bool,
    /// Contents of which no member has a good copy, at most [`LOST_REPORTED_MAX`] of them: the PG is `inconsistent`.
    pub lost: Vec<LostExtent>,
    /// Contents of which no reachable member has a good copy, at most [`LOST_REPORTED_MAX`] of them. Members that are away or
    /// out of service may have one.
    pub unread: Vec<LostExtent>,
    /// On a follower: the leader whose lease renewals it receives, in `term`. From this meta knows that a PG serves although its
    /// leader's own reports do not arrive.
    pub hears: Option<OsdId>,
    pub leading: Option<LeadReport>,
}

/// Most extents that one report names.
pub const LOST_REPORTED_MAX: usize = 32;

/// Bytes of a volume that were written, and of which no queried member has a good copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostExtent {
    pub chunk: VolumeChunk,
    /// Offset inside the chunk.
    pub offset_bytes: u32,
    pub len_bytes: u32,
}

impl std::fmt::Display for LostExtent {
    /// Names the chunk: only the records of the volume, with its stripe layout, tell the address in the volume.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (chunk, from) = (self.chunk, self.offset_bytes);
        write!(f, "volume {} chunk {} bytes {from}..{}", chunk.volume.0, chunk.index, from + self.len_bytes)
    }
}

/// The leader's view of its PG: the source of the PG's state.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LeadReport {
    pub active: bool,
    /// Members at the leader's applied index.
    pub members: Membership,
    /// Numbers of followers: matched, behind, and silent.
    pub followers_in_sync: u8,
    pub followers_behind: u8,
    pub followers_silent: u8,
    pub recovering: bool,
}

/// Reason why an attach did not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRefusal {
    /// Not the leader; ask `hint` if given.
    NotLeader { hint: Option<OsdId> },
    /// The PG has seen this order or a later one: meta must read again and allocate a new one (R6).
    StaleOrder { last: u64 },
    /// The group has no quorum now, or the log or the device is full.
    Busy,
    /// The PG does not have the snapshot on which the head is to stand.
    NoBase,
}

/// From the leading meta to an OSD.
#[derive(Clone, Debug, PartialEq)]
pub enum OsdDown {
    /// There is a new stream. The carrier (`api::osd_link`, the simulator) makes this message; meta never sends it. The OSD
    /// answers with Hello, then with a heartbeat of all PGs. Messages that were queued before it are lost.
    Connected,
    /// The stream is accepted; `osds` is the whole address map.
    Welcome { map_epoch: Epoch, osds: Vec<OsdAddr> },
    /// The address map changed.
    Osds { map_epoch: Epoch, osds: Vec<OsdAddr> },
    /// This replica belongs on this OSD: create it if it does not exist. Idempotent. `created` holds the members at the PG's
    /// creation; a replica that comes later is none of them.
    EnsureReplica { created: PgMap, replica: ReplicaId },
    /// OSDs that hold other replicas of this OSD's PGs: keep connections to them. A replica may know its present members only when
    /// it is connected to one of them.
    Peers(Vec<OsdId>),
    /// Bring this change of the members forward in the PG that you lead (ADR 0016). Repeated until a report shows its end.
    ChangeMembers { pg: PgId, change: MemberChange },
    /// Make `force.keep`, a replica of this OSD, the only member of the PG (ADR 0020). Repeated until a report shows it.
    ForceMembers { pg: PgId, force: ForceMembers },
    /// This replica is no longer a member of any PG (pool removed): drop its data, keep a tombstone.
    /// `keep`: its contents may stay for a while. A new replica of the PG may come here, and be compared with them.
    DropReplica { pg: PgId, replica: ReplicaId, keep: bool },
    /// Every replica below this id that belongs on this OSD was reported by it (ADR 0015). A replica below it that the OSD does
    /// not know is never to be created there. The floor never falls.
    ReplicaFloor(ReplicaId),
    /// Commit this attach record in the PG that you lead (R6); also fence, delete, resize.
    Attach { pg: PgId, attach: Attach },
    /// Carry out this order about snapshots in the PG that you lead (R14).
    Snapshots { pg: PgId, order: SnapshotOrder },
    /// Limits of the I/O of volumes (ADR 0032): a part of the list of all limited ones, which comes with each stream, or changes. A volume
    /// without limits is limited no longer.
    Limits { part: LimitsPart, volumes: Vec<(VolumeId, QosLimits)> },
    /// Hand leadership of the PG to this member's OSD.
    TransferLeader { pg: PgId, to: OsdId },
    /// Keep this on the device, then answer [`OsdUp::Remembers`] (R17).
    Remember(Watermarks),
    /// The records of meta went back in time (R17). With `hold`, because other OSDs remember more, an OSD that has not been
    /// welcomed yet does not serve before a recovery. Otherwise it goes on as without meta.
    Behind { reason: String, hold: bool },
    /// The device is older than its last report, and its PGs are served without it: every replica on it fails, to be replaced
    /// by a new one (R4). The next mount has a number above `mount`: no older state of the device can reach it.
    FailReplicas { reason: String, mount: u64 },
    /// The cluster does not know this OSD, or knows another incarnation of it: stop. BSLT-2041: the device is older than its last
    /// report, and PGs of it are not served without it, or the records are not trusted yet.
    Refused { code: u32, reason: String },
}

/// Place of limits in the list of all; with neither flag they are changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsPart {
    pub begins: bool,
    pub goes_on: bool,
    /// Volumes that the list does not name are limited no longer.
    pub ends: bool,
}

impl LimitsPart {
    /// Whether the limits belong to the list of all.
    pub fn is_list(self) -> bool {
        self.begins || self.goes_on || self.ends
    }
}

/// Most volumes of one [`OsdDown::Limits`].
pub const LIMITS_PER_MESSAGE: usize = 1_024;

/// The attach record of one volume in one PG (R6). It is decision state: it takes effect when it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Per PG, allocated in meta's transaction; only grows.
    pub order: u64,
    pub volume: VolumeId,
    /// All sessions that may write; none: the volume is fenced.
    pub writers: Writers,
    /// The epoch of the newest open or close: at or above those of the writers.
    pub epoch: Epoch,
    /// Number of chunks of the volume; chunks at or above it do not exist. Zero: the volume is deleted.
    pub chunk_count: u32,
    /// Orders the lengths of the volume: it rises with each step of a shrink. Under the same number a volume gets only longer, and records
    /// with a lower one, from before a shrink, do not lengthen it again.
    pub len_epoch: u32,
    /// The head with which the volume comes to a PG that does not have it: at or above every number that an order of the volume has named.
    /// So snapshots that are older than its presence there show zeros, and an order of a cut that comes late has no effect.
    pub head: GenerationId,
    /// The snapshot on which `head` stands. A volume that comes to the PG begins on it. A volume whose orders have named only numbers below
    /// [`Base::to`] turns back to it. `None`: the head of a volume that is there stays.
    pub base: Option<Base>,
}

impl Attach {
    /// Returns the session of the record when it is that of a volume that is not shared: of its newest open, or zero. `None`: there are
    /// several writers, or the newest has gone and another one stays.
    pub fn only_session(&self) -> Option<SessionId> {
        match self.writers.as_slice() {
            [] => Some(SessionId(0)),
            [only] if only.epoch == self.epoch => Some(only.session),
            _ => None,
        }
    }
}

/// A snapshot that another head is put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub volume: VolumeId,
    pub snapshot: SnapshotId,
    /// The number of the head when it was first put there. A PG in which an order has named it, or a higher one, has done so.
    pub to: GenerationId,
}

/// The number of chunks in the attach record of a volume whose length is in doubt: more than any volume has, so a PG drops none.
pub const CHUNKS_KEPT: u32 = u32::MAX;

/// A volume with an attach record in a PG, for the comparison of recovered records with PGs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedVolume {
    pub volume: VolumeId,
    pub epoch: Epoch,
    /// 0: the OSD does not say.
    pub chunk_count: u32,
    /// The epoch of this number of chunks.
    pub len_epoch: u32,
    /// The head with which it came to the PG, and the highest generation that an order has named there.
    pub first: GenerationId,
    pub last: GenerationId,
}

/// A snapshot in a PG, for the same comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSnapshot {
    pub volume: VolumeId,
    pub snapshot: SnapshotId,
    pub created_ms: u64,
    /// Number of chunks of the volume at that time.
    pub chunk_count: u32,
}

/// From a client to the leading meta.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAsk {
    /// Open `pool/volume`, or `pool/volume@snapshot` for reading. Exclusive for writing; `steal` fences the holder.
    Open { name: String, write: bool, steal: bool, holder: String },
    /// Asks for the PGs of these segments. Meta allocates missing ones if `allocate` is set and `session` is the writer's.
    Segments { volume: VolumeId, session: SessionId, epoch: Epoch, segments: Vec<SegmentIndex>, allocate: bool },
    /// Asks for these PGs again: addresses and members may have changed.
    Refresh { pgs: Vec<PgId> },
    /// The holder is alive; it sends this every 2 s. `unreached` names OSDs of this volume that the client cannot reach, at most
    /// [`UNREACHED_MAX`] of them. `len_bytes`: no request of this client is behind this length, and none will be, until a metadata server
    /// tells a later length than that of `len_epoch`; 0: the client does not say.
    Keepalive { volume: VolumeId, session: SessionId, unreached: Vec<OsdId>, len_epoch: u32, len_bytes: u64 },
    /// The holder is done: the attach record becomes one without a session.
    Close { volume: VolumeId, session: SessionId },
}

/// The answer to a [`ClientAsk`].
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAnswer {
    Opened(Opened),
    /// `pending`: segments that have a place, and of whose PGs one has not committed the attach record of the volume yet. They are not
    /// among `segments`, and are asked for again after a pause.
    Segments {
        segments: Vec<SegmentPlace>,
        pending: Vec<SegmentIndex>,
        view: MapView,
    },
    Refreshed(MapView),
    /// The holder is known. `len_bytes`: the length of its volume that it may use; 0: the metadata server does not say. Of two lengths, that
    /// with the higher `len_epoch` is later; under the same one a volume only grows. `limits`: those of its I/O that are in force now.
    /// `faults`: all that are rehearsed on it. `when_full`: what its writes do while the pool is full.
    Alive {
        len_epoch: u32,
        len_bytes: u64,
        limits: QosLimits,
        faults: Vec<ToldFault>,
        when_full: WhenFull,
    },
    Closed,
    Refused(Refusal),
}

/// Most segments that one [`ClientAsk::Segments`] may name.
pub const SEGMENTS_PER_ASK_MAX: usize = 32;
/// Most PGs that one [`ClientAsk::Refresh`] may name.
pub const PGS_PER_ASK_MAX: usize = 4096;
/// Most OSDs that one [`ClientAsk::Keepalive`] names.
pub const UNREACHED_MAX: usize = 16;
/// A holder may be replaced without `steal` when no keepalive of it arrived for this long, in milliseconds.
pub const HOLDER_LEASE_MS: u64 = 10_000;
/// The same limit for a holder whose connection to meta has ended, in milliseconds. It is longer than a living holder needs
/// to come back with a keepalive.
pub const HOLDER_RETURN_MS: u64 = 3_000;
/// Interval of a holder's keepalives, in milliseconds.
pub const KEEPALIVE_MS: u64 = 2_000;
const _: () = assert!(HOLDER_RETURN_MS > KEEPALIVE_MS && HOLDER_RETURN_MS < HOLDER_LEASE_MS);

/// An open volume. `segments` lists the allocated segments. Any other reads as zeros, and the client asks for it with
/// [`ClientAsk::Segments`] before its first write. `session` 0: opened read-only.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    pub cluster: ClusterId,
    pub volume: VolumeId,
    /// The snapshot that was opened, in place of the volume as it is. It is read-only, and segments that are not listed are none of it.
    pub snapshot: Option<SnapshotId>,
    pub session: SessionId,
    pub epoch: Epoch,
    pub len_epoch: u32,
    pub len_bytes: u64,
    pub stripe: Stripe,
    /// Limits of its I/O. The holder hears of changes with [`ClientAnswer::Alive`].
    pub limits: QosLimits,
    /// Faults that are rehearsed on it; none on a snapshot. The holder hears of changes in the same way.
    pub faults: Vec<ToldFault>,
    /// Policy of its writes while the pool is full. The holder hears of changes in the same way.
    pub when_full: WhenFull,
    /// Other sessions may write meanwhile.
    pub multi_writer: bool,
    pub write: bool,
    pub segments: Vec<SegmentPlace>,
    pub view: MapView,
}

/// A segment and the PGs of its columns, in order. A segment without PGs is not allocated and reads as zeros; any other has one
/// for each column of the volume's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    pub segment: SegmentIndex,
    pub pgs: Vec<PgId>,
}

/// The part of the cluster map that an answer needs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MapView {
    pub pgs: Vec<PgMap>,
    /// Leader of each PG as meta last heard; a hint.
    pub leaders: Vec<(PgId, OsdId)>,
    pub osds: Vec<OsdAddr>,
}

/// A refusal that a user will read: stable code, failure, cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("BSLT-{code}: {message}")]
pub struct Refusal {
    /// A code of [`codes`](crate::codes).
    pub code: u32,
    pub message: String,
}
