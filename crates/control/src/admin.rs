//! Requests of administrators and their answers. The answers are also the JSON of the command line.

mod faults;
mod pools;
mod writers;

pub use faults::{FaultAdd, FaultView};
pub use pools::{PoolCreate, PoolSet, PoolView, QuotaChange};
pub use writers::{HolderView, WriterName};

use crate::events::Event;
use crate::health::Check;
pub use crate::plan::{CutAsk, SnapshotChange};
use crate::records::StoredItem;
use crate::settings::SettingView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use types::WhenFull;
use types::control::Watermarks;
use types::qos::QosChange;
use types::{
    ClusterId, CutId, Epoch, Index, OsdId, OsdUuid, PgId, QosLimits, ReplicaId, SegmentIndex, SessionId, SnapshotId,
    Stripe, Term, VolumeId,
};

/// A query or command of an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAsk {
    Status,
    /// Shows what the records lack and OSDs remember (R17); without `dry_run` the watermarks move above it. With `segments` or
    /// `holds`, these go into the records, and the watermarks stay.
    MetaRecover(RecoverAsk),
    /// All records at one moment.
    MetaBackup,
    /// Draws an OSD id for a device that is being formatted. Nothing is registered.
    OsdReserve,
    OsdRegister(OsdRegister),
    /// Removes an OSD that is down and holds no PG.
    OsdRemove {
        osd: OsdId,
    },
    OsdList,
    /// Sets membership and intent of OSDs.
    OsdSet(OsdSet),
    /// Settings of the cluster.
    ConfigList,
    /// Changes a setting; `None` gives it its default.
    ConfigSet {
        name: String,
        value: Option<String>,
    },
    PoolCreate(PoolCreate),
    PoolList,
    PoolSet(PoolSet),
    PoolRename {
        name: String,
        new: String,
    },
    PoolRemove {
        name: String,
    },
    /// PGs of one pool, or of all when `pool` is empty.
    PgList {
        pool: String,
    },
    /// Moves the replica of a PG to another OSD, behind the moves of this PG that were asked for before.
    PgMove(PgMove),
    /// Gives up the moves of a PG; one whose joint phase has begun ends as ordered.
    PgMoveCancel {
        pg: PgId,
    },
    /// Makes one replica of a PG without a majority its only member, or says what that would cost (ADR 0020).
    PgForce(PgForce),
    VolumeCreate {
        name: String,
        len_bytes: u64,
        stripe: Stripe,
        text: VolumeText,
    },
    /// Volumes of one pool, or of all when `pool` is empty.
    VolumeList {
        pool: String,
    },
    VolumeInfo {
        name: String,
    },
    VolumeRemove(VolumeRemove),
    VolumeClone(VolumeClone),
    /// Copies into a clone all that it shows of its parent, or stops that.
    VolumeFlatten {
        name: String,
        cancel: bool,
    },
    /// Rehearses a fault on a volume (ADR 0037).
    VolumeFaultAdd {
        name: String,
        fault: FaultAdd,
    },
    /// Ends one fault of a volume, or all of them.
    VolumeFaultRemove {
        name: String,
        id: Option<u32>,
    },
    /// Fences writers of a volume.
    VolumeFence {
        name: String,
        which: WriterName,
    },
    /// Gives a volume another name in its pool: `new`, or `pool/new`.
    VolumeRename {
        name: String,
        new: String,
    },
    VolumeSet {
        name: String,
        text: VolumeText,
    },
    /// Gives a volume another length while it is used.
    VolumeResize {
        name: String,
        to: Resizing,
    },
    /// Makes snapshots of some volumes at one point in time.
    SnapshotCreate(CutAsk),
    /// One snapshot, those of one volume, of the volumes of one pool, or all when `of` is empty.
    SnapshotList {
        of: String,
    },
    /// Deletes `pool/volume@snapshot`; with `detach` although it has clones.
    SnapshotRemove {
        name: String,
        detach: bool,
    },
    /// Gives a volume the contents of its snapshot `pool/volume@snapshot` again; with `force` even while a holder lives.
    SnapshotRollback {
        name: String,
        force: bool,
    },
    SnapshotSet {
        name: String,
        change: SnapshotChange,
    },
    /// Volumes in the trash of one pool, or of all when `pool` is empty.
    TrashList {
        pool: String,
    },
    /// Gives a volume of the trash back, under `name` if that is set. `which` is its id, or the only one that had this name.
    TrashRestore {
        which: String,
        name: Option<String>,
    },
    /// Deletes a volume of the trash.
    TrashPurge {
        which: String,
    },
    /// Mutes a check for `for_ms`, or until it is unmuted: the check no longer counts.
    HealthMute {
        code: String,
        for_ms: Option<u64>,
    },
    HealthUnmute {
        code: String,
    },
    /// Lists events with a number above `after` and at most `age_ms_max` old, the oldest first.
    Events {
        after: u64,
        age_ms_max: Option<u64>,
    },
}

/// Registers a device, at the end of its format. A repeated request with the same uuid gets the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdRegister {
    /// The reserved id that the superblock carries; `None` draws one.
    pub osd: Option<OsdId>,
    pub uuid: OsdUuid,
    pub host: String,
    pub rack: String,
    pub zone: String,
    pub capacity_bytes: u64,
    pub device_class: Option<String>,
    /// The OSD whose replicas it takes over.
    pub replaces: Option<OsdId>,
}

/// Membership, device class and intent of OSDs; a field that is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdSet {
    pub osds: Vec<OsdId>,
    pub is_in: Option<bool>,
    pub drain: Option<bool>,
    pub device_class: Option<String>,
    /// Change nothing: only say what would move.
    pub dry_run: bool,
}

impl AdminAsk {
    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            AdminAsk::Status
                | AdminAsk::MetaBackup
                | AdminAsk::OsdList
                | AdminAsk::ConfigList
                | AdminAsk::PoolList
                | AdminAsk::PgList { .. }
                | AdminAsk::VolumeList { .. }
                | AdminAsk::VolumeInfo { .. }
                | AdminAsk::TrashList { .. }
                | AdminAsk::SnapshotList { .. }
                | AdminAsk::Events { .. }
        )
    }
}

impl OsdSet {
    /// Sets one OSD.
    pub fn one(osd: OsdId, is_in: Option<bool>, drain: Option<bool>) -> OsdSet {
        OsdSet { osds: vec![osd], is_in, drain, ..OsdSet::default() }
    }
}

/// A replica that is to move, by the present plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    pub pg: PgId,
    pub from: OsdId,
    /// Absent while no OSD can take it.
    pub to: Option<OsdId>,
    /// An estimate: what an average replica on its OSD uses.
    pub bytes: u64,
}

/// The move of a replica from one OSD to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgMove {
    pub pg: PgId,
    pub from: OsdId,
    pub to: OsdId,
    /// Change nothing: only say what would move, or why it cannot.
    pub dry_run: bool,
}

/// The forced recovery of a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgForce {
    pub pg: PgId,
    /// The OSD whose replica is kept; `None`: the one with the furthest log.
    pub osd: Option<OsdId>,
    /// Change nothing: only say what would be lost.
    pub dry_run: bool,
    /// Go on although acknowledged writes may be lost.
    pub accept_loss: bool,
}

/// Outcome of a forced recovery: the replica that is kept, and the writes that may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForceView {
    pub pg: PgId,
    /// OSD of the replica that is kept.
    pub keep: OsdId,
    /// Whether its log is known to have every acknowledged write.
    pub lossless: bool,
    pub members: Vec<ForceMemberView>,
    /// Volumes with data in the PG; `volumes` names the first 100.
    pub volume_count: u64,
    pub volumes: Vec<String>,
    /// How many of them are open for writing. Unless `lossless` is set, these sessions end.
    pub sessions: u64,
    /// Whether the recovery was ordered: false with `dry_run`.
    pub ordered: bool,
}

/// A member of a PG that is to be recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForceMemberView {
    pub osd: OsdId,
    pub replica: ReplicaId,
    pub up: bool,
    /// `whole`, `down`, `failed`, `repairing`, `not reported`.
    pub state: String,
    /// Term and index of the last entry of its log; absent when the PG cannot go on from it.
    pub end: Option<(Term, Index)>,
}

/// The removal of a volume: to the trash, or for good with `now`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRemove {
    pub name: String,
    /// Remove it even while a holder lives.
    pub force: bool,
    pub now: bool,
    /// Delete its snapshots with it. In the trash a volume keeps them.
    pub snapshots: bool,
    /// Delete it although it has clones: they keep what they show.
    pub detach: bool,
}

/// A new volume with the contents of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeClone {
    /// `pool/volume@snapshot`.
    pub snapshot: String,
    /// `pool/volume`, in the same pool.
    pub name: String,
    pub text: VolumeText,
}

/// Changes of the description, the labels and the I/O limits of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeText {
    /// `None`: it stays.
    pub description: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Keys of labels that go.
    pub removed_labels: Vec<String>,
    pub limits: QosChange,
    /// Policy of writes while the pool is full; `None`: it stays.
    pub when_full: Option<WhenFull>,
    /// Whether it may have several writers at a time; `None`: that stays, and a new volume has one.
    pub multi_writer: Option<bool>,
}

/// The answer to an [`AdminAsk`].
#[allow(clippy::large_enum_variant)] // short-lived
#[derive(Clone, Debug, PartialEq)]
pub enum AdminAnswer {
    Status(Status),
    OsdRegistered {
        cluster: ClusterId,
        osd: OsdId,
    },
    Osds(Vec<OsdView>),
    Done,
    /// The moves that follow from a change of OSDs.
    Moves(Vec<PlannedMove>),
    Forced(ForceView),
    Config(Vec<SettingView>),
    Recovery(StoreRecovery),
    Backup(Vec<StoredItem>),
    PoolCreated {
        pool: PoolView,
        warning: Option<String>,
    },
    Pools(Vec<PoolView>),
    Pgs(Vec<PgView>),
    Pool(PoolView),
    Volume(VolumeView),
    Volumes(Vec<VolumeView>),
    /// The volume is in the trash.
    Trashed(TrashView),
    Trash(Vec<TrashView>),
    Snapshots(Vec<SnapshotView>),
    /// These were made, or changed.
    SnapshotsChanged(Vec<SnapshotView>),
    Events(EventsPage),
}

/// Some events, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsPage {
    pub events: Vec<Event>,
    /// The number of the newest event of the cluster: there is more when the page ends below it.
    pub last: u64,
}

/// One page about the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub cluster: ClusterId,
    /// `ok`, `waiting` (reports are missing), `degraded` (data is served, something needs care), `down` (some data is not
    /// served).
    pub health: String,
    /// Problems, one line each; `checks` lists them by code.
    pub problems: Vec<String>,
    /// Checks that hold, worst first, with the muted ones.
    #[serde(default)]
    pub checks: Vec<Check>,
    pub map_epoch: Epoch,
    pub osds: u32,
    pub osds_up: u32,
    pub osds_in: u32,
    /// OSDs that are registered and never started. They are not in the other counts, nor in the capacity.
    #[serde(default)]
    pub osds_new: u32,
    pub pools: u32,
    pub volumes: u32,
    pub segments: u64,
    pub pgs: u32,
    pub pgs_active: u32,
    pub pgs_degraded: u32,
    pub pgs_down: u32,
    /// PGs that are not judged yet: a new meta leads, or they are new.
    #[serde(default)]
    pub pgs_waiting: u32,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Since when this meta leads, in milliseconds of the Unix clock.
    pub leading_since_ms: u64,
    /// Version of the leading meta.
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub recovery: Recovery,
    #[serde(default)]
    pub moves: Moves,
    #[serde(default)]
    pub io: IoRates,
}

/// Replicas that move to other OSDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    pub running: u32,
    /// Planned, or asked for, and not begun.
    pub waiting: u32,
    /// Replicas that have to leave their OSD, and that no OSD can take.
    pub unplaced: u32,
    /// Moves of PGs that do not serve: they go on when the PG does.
    #[serde(default)]
    pub blocked: u32,
    /// Bytes of all of them, as far as is known: an estimate where the move has not begun.
    pub left_bytes: u64,
    /// Time left at the present rate; absent when nothing is sent.
    pub eta_ms: Option<u64>,
}

/// Progress of the replicas that are behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// PGs with a follower that is behind.
    pub pgs: u32,
    /// Followers that a stream brings up to date, or that wait for one.
    pub streams: u32,
    /// Bytes that the running streams still have to send, as far as is known.
    pub left_bytes: u64,
    pub bytes_per_s: u64,
    /// Time left at the present rate; absent when nothing is sent.
    pub eta_ms: Option<u64>,
}

/// Client I/O of the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoRates {
    pub reads_per_s: u64,
    pub read_bytes_per_s: u64,
    pub writes_per_s: u64,
    pub write_bytes_per_s: u64,
}

/// Difference between a metadata store that went back in time and what OSDs remember (R17).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreRecovery {
    pub cluster: ClusterId,
    /// `sound`, `waiting` (for a majority of the OSDs), `behind`.
    pub standing: String,
    /// Reasons why it is behind, one line each.
    pub reasons: Vec<String>,
    /// The watermarks were moved by this command.
    pub moved: bool,
    pub records: Watermarks,
    /// The highest that any OSD remembers.
    pub highest: Watermarks,
    /// The watermarks after this command, or after it without `--dry-run`.
    pub after: Watermarks,
    pub osds: Vec<RecoveryOsd>,
    /// Replicas that OSDs hold and the records do not know.
    pub replicas: Vec<RecoveryReplica>,
    /// Volumes with a holder in the records, whose hold a recovery ends.
    pub held: u64,
    /// Volumes that cannot be opened before the recovery is finished.
    pub recovering: u64,
}

/// A recovery of records that went back in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoverAsk {
    pub dry_run: bool,
    /// OSDs whose memory no longer counts: they are lost, or were restored.
    pub without: Vec<OsdId>,
    /// The standing that the administrator was shown. When the present one differs, nothing is changed.
    pub standing: String,
    /// PGs in which sessions from before the recovery are to be fenced.
    pub attached: Vec<FoundAttach>,
    /// Columns to be put back, all that were found of a segment in one request ([`crate::found::segment_batches`]).
    pub segments: Vec<FoundSegment>,
    /// Numbers of chunks of volumes that the records have shorter.
    pub lengths: Vec<FoundLength>,
    /// Snapshots to be put into the records, or to be deleted, at most [`SEGMENTS_PER_ASK_MAX`](types::control::SEGMENTS_PER_ASK_MAX).
    pub snapshots: Vec<FoundSnapshot>,
    /// All sessions are fenced and all segments are put back: volumes may be opened again.
    pub finish: bool,
}

impl RecoverAsk {
    /// Whether the request puts something back, or ends the recovery.
    pub fn repairs(&self) -> bool {
        self.finish || !self.attached.is_empty() || !self.segments.is_empty() || !self.snapshots.is_empty()
    }
}

/// A snapshot that the records and the PGs do not both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundSnapshot {
    pub volume: VolumeId,
    pub snapshot: SnapshotId,
    pub created_ms: u64,
    /// Number of chunks of the volume at that time.
    pub chunk_count: u32,
    /// A PG has deleted it, or given its cut up: it is to go from the others, and from the records.
    pub ended: bool,
}

/// A PG that has an attach record of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FoundAttach {
    pub volume: VolumeId,
    pub pg: PgId,
}

/// The number of chunks of a volume, as its PGs know it: a later length of the volume under the same epoch needs no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundLength {
    pub volume: VolumeId,
    pub chunk_count: u32,
    pub len_epoch: u32,
}

/// The length that a volume is to get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resizing {
    pub len_bytes: u64,
    /// It may be shorter.
    pub shrink: bool,
    /// Data behind a shorter end goes.
    pub discard: bool,
    /// A client that does not stop to use what is behind a shorter end loses the volume.
    pub force: bool,
}

impl Resizing {
    /// A length that is not shorter.
    pub fn to(len_bytes: u64) -> Resizing {
        Resizing { len_bytes, ..Resizing::default() }
    }
}

/// A column of a segment whose data a PG holds; without stripes a segment is one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FoundSegment {
    pub volume: VolumeId,
    pub segment: SegmentIndex,
    pub column: u32,
    pub pg: PgId,
}

/// Watermarks that one OSD remembers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryOsd {
    pub osd: OsdId,
    /// Whether the records know this OSD; the recovery registers others again.
    pub known: bool,
    /// Whether this leader heard its Hello.
    pub heard: bool,
    pub remembers: Watermarks,
}

/// A replica that the records do not know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReplica {
    pub osd: OsdId,
    pub pg: PgId,
    pub replica: ReplicaId,
}

/// One OSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdView {
    pub osd: OsdId,
    pub uuid: OsdUuid,
    /// `up`, `down`, `unknown` (a new meta leads and has not heard the OSD yet), `new` (registered, never started).
    pub live: String,
    pub is_in: bool,
    pub drain: bool,
    pub full: bool,
    pub poisoned: Option<String>,
    pub addr: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub host: String,
    pub rack: String,
    pub zone: String,
    pub weight: u32,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    pub pgs: u32,
    pub leads: u32,
    pub heard_ms_ago: Option<u64>,
    /// Version that the OSD named when it connected; empty until then.
    #[serde(default)]
    pub version: String,
    /// Whether it is out because it was down for too long.
    #[serde(default)]
    pub auto_out: bool,
    /// The OSD whose replicas it takes over.
    #[serde(default)]
    pub replaces: Option<OsdId>,
    /// Absent: it has none, so it holds replicas of pools that ask for none.
    #[serde(default)]
    pub device_class: Option<String>,
}

/// One PG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgView {
    pub pg: PgId,
    /// `waiting` (for reports), `creating`, `active`, `degraded`, `recovering`, `repairing`, `inconsistent`, `down`.
    pub state: Vec<String>,
    pub leader: Option<OsdId>,
    pub members: Vec<PgMemberView>,
    pub conf_epoch: Epoch,
    /// The change of the members that is under way, or waits.
    #[serde(default)]
    pub change: Option<PgChangeView>,
    pub segments: u32,
    /// Extents of volumes, in words, of which no replica has a good copy, or none that is available, with the OSDs that may have
    /// one.
    #[serde(default)]
    pub lost: Vec<String>,
}

/// The move of a replica to another OSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgChangeView {
    pub from: OsdId,
    pub to: OsdId,
    /// `queued`, `creating`, `learner` (its data is copied), `joint` (both sets of members decide), `ending`, `cancelling`.
    pub step: String,
    /// Moves of the same PG that wait.
    pub queued: u32,
    /// `command`, `failed` (the replica), `leaving` (its OSD is out, drained or replaced), `balance`.
    #[serde(default)]
    pub reason: String,
}

/// One member of a PG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgMemberView {
    pub osd: OsdId,
    pub replica: ReplicaId,
    pub up: bool,
    pub quarantined: bool,
    /// Whether its log is being repaired from its peers.
    #[serde(default)]
    pub repairing: bool,
    pub term: u64,
    pub applied: u64,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeView {
    pub volume: VolumeId,
    /// `pool/volume`.
    pub name: String,
    pub len_bytes: u64,
    /// Bytes of allocated segments.
    pub allocated_bytes: u64,
    /// `ready`, `cloning`, `deleting`.
    pub state: String,
    pub epoch: Epoch,
    /// The last of `writers`, if there is one; session 0: none.
    pub session: SessionId,
    pub holder: Option<HolderView>,
    /// The clients that have it open for writing, in the order of their opens.
    #[serde(default)]
    pub writers: Vec<HolderView>,
    /// Clients that a command fences: not each of its PGs refuses them yet.
    #[serde(default)]
    pub being_fenced: Vec<HolderView>,
    /// Whether it may have several at a time.
    #[serde(default)]
    pub multi_writer: bool,
    pub created_ms: u64,
    /// `None`: the volume is not striped.
    #[serde(default)]
    pub stripe: Option<Stripe>,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The length that a resize gives it.
    #[serde(default)]
    pub resize_bytes: Option<u64>,
    /// The step that a shrink has reached: `client` while the holder has not confirmed it, `search`, `chunks`, `wipe`.
    #[serde(default)]
    pub shrink_step: Option<String>,
    /// The limits that are in force, and whose they are: `volume`, `pool`, or `none` when nothing is limited by default.
    #[serde(default)]
    pub limits: QosLimits,
    #[serde(default)]
    pub limits_of: String,
    /// Policy of its writes while the pool is full: `client`, `wait` or `error`.
    #[serde(default)]
    pub when_full: WhenFull,
    /// Number of its snapshots.
    #[serde(default)]
    pub snapshots: u32,
    /// The snapshot to which it is being turned back.
    #[serde(default)]
    pub rollback_to: Option<String>,
    /// The snapshot with whose contents it began, as `pool/volume@snapshot`; by its ids when it is gone.
    #[serde(default)]
    pub parent: Option<String>,
    /// Number of its ancestors.
    #[serde(default)]
    pub depth: u32,
    /// Number of its clones.
    #[serde(default)]
    pub clones: u32,
    /// It gets copies of all that it shows of its parent.
    #[serde(default)]
    pub flatten: Option<FlattenView>,
    /// Faults that are rehearsed on it.
    #[serde(default)]
    pub faults: Vec<FaultView>,
}

/// Progress of a flatten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlattenView {
    pub since_ms: u64,
    pub by: String,
    pub percent: u32,
    /// PGs of the volume, and those of them that need the parent no longer; 0: the metadata server has only begun to ask.
    pub pgs: u32,
    pub flat_pgs: u32,
}

/// One volume in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashView {
    pub volume: VolumeId,
    /// `pool/volume`, as it was called.
    pub name: String,
    pub len_bytes: u64,
    /// Bytes of allocated segments.
    pub allocated_bytes: u64,
    /// `trashed`, `deleting`.
    pub state: String,
    /// Since when it is there, and when its deletion begins, in milliseconds of the Unix clock.
    pub since_ms: u64,
    pub until_ms: u64,
    /// Whether that time has come.
    pub expired: bool,
    /// The administrator that removed it.
    pub by: String,
    pub description: String,
    pub labels: BTreeMap<String, String>,
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotView {
    pub volume: VolumeId,
    pub snapshot: SnapshotId,
    /// `pool/volume@snapshot`.
    pub name: String,
    /// Length of the volume at that time.
    pub len_bytes: u64,
    pub created_ms: u64,
    /// `cutting`, `ready`, `deleting`.
    pub state: String,
    /// Snapshots of one cut are of the same point in time.
    pub cut: CutId,
    pub protected: bool,
    /// The administrator that asked for it.
    pub by: String,
    pub description: String,
    pub labels: BTreeMap<String, String>,
    /// Number of its clones.
    #[serde(default)]
    pub clones: u32,
}
