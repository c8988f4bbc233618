//! The records of a cluster: the persistent state of meta.
//!
//! Keys are paths, values are JSON with a version, so that an operator can dump and read them. Ids come
//! from counters and are never reused.

mod held;
mod loads;
mod pg;
mod pool;
mod snapshot;
mod volume;
mod watch;

use crate::events::{EVENTS_MAX, Event};
use crate::refusal::refuse;
use crate::settings::ConfigRecord;
use placement::WEIGHT_ONE;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use types::codes;
use types::control::{Refusal, Watermarks};
use types::map::OsdAddr;
use types::units::CHUNKS_PER_SEGMENT;
use types::{
    ClusterId, CutId, Epoch, Incarnation, OsdId, OsdUuid, PgId, PoolId, QosLimits, SegmentIndex, SnapshotId, VolumeId,
};

pub use held::{Held, Holder, Holding};
pub use loads::{PgLoad, VolumeLoad};
pub use pg::{ChangeReason, ChangeRecord, ForceRecord, PgRecord};
pub use pool::{PoolQuota, PoolRecord, PoolState};
pub use snapshot::{CutRecord, CutState, SnapshotRecord, SnapshotState};
pub use volume::{FaultRecord, Faults, Flatten, Resize, Rollback, Shrink, Trash, VolumeRecord, VolumeState};
pub use watch::{MuteRecord, WatchRecord};

/// Version of every record that this program writes.
const RECORD_VERSION: u32 = 1;

/// The cluster itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: ClusterId,
    pub created_ms: u64,
}

/// The next id of each kind, and the version of the address map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersRecord {
    pub next_osd: u32,
    pub next_pool: u32,
    pub next_replica: u64,
    pub next_volume: u64,
    pub next_session: u64,
    pub map_epoch: Epoch,
    /// Rises with every transaction that an answer or a command rests on (R17).
    #[serde(default)]
    pub revision: u64,
    /// These records come from a backup: nothing is changed before `basalt meta recover`.
    #[serde(default)]
    pub restored: bool,
    /// Floor of volume epochs: a new epoch is above it. A recovery raises it above the epochs that lost records gave out.
    #[serde(default)]
    pub epoch_floor: Epoch,
    /// Ranges (from, below) of replica ids that lost records gave out. A replica among them is never ordered away, because
    /// these records cannot know whether it is still a member.
    #[serde(default)]
    pub lost_replicas: Vec<(u64, u64)>,
    /// The revision of the last recovery. Positions of devices that were recorded before it may be too old to judge by.
    #[serde(default)]
    pub recovered_at: u64,
    /// The least revision that a device must remember when its recorded position is older than that recovery.
    #[serde(default)]
    pub proof: u64,
}

impl CountersRecord {
    /// Returns the watermarks that OSDs keep (R17).
    pub fn watermarks(&self) -> Watermarks {
        Watermarks {
            revision: self.revision,
            next_osd: self.next_osd,
            next_pool: self.next_pool,
            next_replica: self.next_replica,
            next_volume: self.next_volume,
            next_session: self.next_session,
            map_epoch: self.map_epoch.0,
        }
    }
}

impl Default for CountersRecord {
    fn default() -> CountersRecord {
        CountersRecord {
            next_osd: 1,
            next_pool: 1,
            next_replica: 1,
            next_volume: 1,
            next_session: 1,
            map_epoch: Epoch(1),
            revision: 0,
            restored: false,
            epoch_floor: Epoch(0),
            lost_replicas: Vec::new(),
            recovered_at: 0,
            proof: 0,
        }
    }
}

/// A storage daemon, with membership and intent as separate fields. Liveness is no part of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdRecord {
    pub id: OsdId,
    pub uuid: OsdUuid,
    pub host: String,
    pub rack: String,
    pub zone: String,
    pub capacity_bytes: u64,
    pub weight: u32,
    pub is_in: bool,
    pub drain: bool,
    /// Last known address; `None` before the first start.
    pub addr: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub incarnation: Incarnation,
    pub poisoned: Option<Poisoned>,
    pub created_ms: u64,
    /// Whether the OSD is an elector: a change stands when a majority of the electors remember its revision (R17). An OSD
    /// becomes one after its first Hello.
    #[serde(default)]
    pub elector: bool,
    /// Mount number of the last run, and a log position that its device has reached (R17).
    #[serde(default)]
    pub mount: u64,
    #[serde(default)]
    pub log_seq: u64,
    /// The revision of the records when this position was taken.
    #[serde(default)]
    pub judged_at: u64,
    /// It is out because it was down for too long: it is in again when it comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto_out: bool,
    /// Since when it neither reports nor leads PGs that serve, in milliseconds of the Unix clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_since_ms: Option<u64>,
    /// The OSD whose replicas it takes over, until that one is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<OsdId>,
    /// Kind of its devices, as `ssd`; pools may ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
}

impl OsdRecord {
    /// Returns a registered OSD that has not started: it is in, and takes its full share. `place` is host, rack and zone.
    /// Its position is recorded at its first Hello.
    pub fn new(id: OsdId, uuid: OsdUuid, place: [String; 3], capacity_bytes: u64, created_ms: u64) -> OsdRecord {
        let [host, rack, zone] = place;
        OsdRecord {
            id,
            uuid,
            host,
            rack,
            zone,
            capacity_bytes,
            weight: WEIGHT_ONE,
            is_in: true,
            drain: false,
            addr: None,
            http: None,
            incarnation: Incarnation(0),
            poisoned: None,
            created_ms,
            elector: false,
            mount: 0,
            log_seq: 0,
            judged_at: 0,
            auto_out: false,
            down_since_ms: None,
            replaces: None,
            device_class: None,
        }
    }

    /// Whether its replicas have to move to other OSDs.
    pub fn leaves(&self) -> bool {
        !self.is_in || self.drain
    }

    /// Whether replicas of a pool that asks for this device class may come to it.
    pub fn is_of(&self, class: Option<&str>) -> bool {
        class.is_none() || self.device_class.as_deref() == class
    }

    /// Whether replicas of a pool that asks for this device class have to leave it. An OSD that was registered again after a loss
    /// of records has no class: its replicas stay.
    pub fn is_wrong_for(&self, class: Option<&str>) -> bool {
        !self.is_of(class) && self.device_class.is_some()
    }

    /// Whether the OSD was formatted and has never started.
    pub fn is_new(&self) -> bool {
        self.addr.is_none()
    }
}

/// The stop of an OSD's store in one run (R15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poisoned {
    pub incarnation: Incarnation,
    pub reason: String,
}

/// A segment: 1 GiB of a volume. While it is `pending`, the attach record that lets it be written is not known to be
/// committed in each of its PGs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRecord {
    pub volume: VolumeId,
    pub index: SegmentIndex,
    /// PG of the first column; of the whole segment without stripes.
    pub pg: PgId,
    /// PGs of the further columns, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_pgs: Vec<PgId>,
    pub pending: bool,
}

impl SegmentRecord {
    /// Makes a segment whose columns lie in `pgs`, in order.
    ///
    /// # Panics
    /// Without a PG.
    pub fn new(volume: VolumeId, index: SegmentIndex, pgs: &[PgId], pending: bool) -> SegmentRecord {
        let (first, more) = pgs.split_first().expect("a segment has a column");
        SegmentRecord { volume, index, pg: *first, more_pgs: more.to_vec(), pending }
    }

    /// Iterates over the PGs of its columns, in order.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> + Clone {
        std::iter::once(self.pg).chain(self.more_pgs.iter().copied())
    }

    /// Returns the number of chunks in each of its columns.
    pub fn chunks_per_column(&self) -> u32 {
        CHUNKS_PER_SEGMENT / (1 + self.more_pgs.len() as u32).min(CHUNKS_PER_SEGMENT)
    }
}

/// The key of a record in the store, printed with fixed width, so that keys sort as ids do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Cluster,
    Counters,
    Osd(OsdId),
    Pool(PoolId),
    Pg(PgId),
    Volume(VolumeId),
    Segment(VolumeId, SegmentIndex),
    Snapshot(VolumeId, SnapshotId),
    Cut(CutId),
    /// A place in the ring of events.
    Event(u32),
    Watch,
    /// A code of `health::RULES`.
    Mute(&'static str),
    Config,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Cluster => f.write_str("cluster"),
            Key::Counters => f.write_str("counters"),
            Key::Osd(id) => write!(f, "osd/{:08x}", id.0),
            Key::Pool(id) => write!(f, "pool/{:08x}", id.0),
            Key::Pg(pg) => write!(f, "pg/{:08x}/{:08x}", pg.pool.0, pg.n),
            Key::Volume(id) => write!(f, "volume/{:016x}", id.0),
            Key::Segment(id, index) => write!(f, "segment/{:016x}/{:08x}", id.0, index.0),
            Key::Snapshot(id, snapshot) => write!(f, "snapshot/{:016x}/{:016x}", id.0, snapshot.0),
            Key::Cut(id) => write!(f, "cut/{:016x}", id.0),
            Key::Event(slot) => write!(f, "event/{slot:04}"),
            Key::Watch => f.write_str("watch"),
            Key::Mute(code) => write!(f, "mute/{code}"),
            Key::Config => f.write_str("config"),
        }
    }
}

/// Any record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // short-lived: records are kept in maps of their own
pub enum Record {
    Cluster(ClusterRecord),
    Counters(CountersRecord),
    Osd(OsdRecord),
    Pool(PoolRecord),
    Pg(PgRecord),
    Volume(VolumeRecord),
    Segment(SegmentRecord),
    Snapshot(SnapshotRecord),
    Cut(CutRecord),
    Event(Event),
    Watch(WatchRecord),
    Mute(MuteRecord),
    Config(ConfigRecord),
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    serde_json::to_vec(&Versioned { v: RECORD_VERSION, body }).expect("records are plain data")
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, LoadError> {
    let bad = |source| LoadError::Malformed { key: key.to_string(), source };
    let versioned: Versioned<T> = serde_json::from_slice(value).map_err(bad)?;
    if versioned.v > RECORD_VERSION {
        return Err(LoadError::Newer { key: key.to_string(), v: versioned.v });
    }
    Ok(versioned.body)
}

impl Record {
    /// Returns the key that the record is stored under.
    pub fn key(&self) -> Key {
        match self {
            Record::Cluster(_) => Key::Cluster,
            Record::Counters(_) => Key::Counters,
            Record::Osd(r) => Key::Osd(r.id),
            Record::Pool(r) => Key::Pool(r.id),
            Record::Pg(r) => Key::Pg(r.pg),
            Record::Volume(r) => Key::Volume(r.id),
            Record::Segment(r) => Key::Segment(r.volume, r.index),
            Record::Snapshot(r) => Key::Snapshot(r.volume, r.snapshot),
            Record::Cut(r) => Key::Cut(r.id),
            Record::Event(r) => Key::Event(r.slot()),
            Record::Watch(_) => Key::Watch,
            Record::Mute(r) => Key::Mute(crate::health::find_rule(&r.code).map_or("?", |rule| rule.code)),
            Record::Config(_) => Key::Config,
        }
    }

    /// Returns the stored bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Record::Cluster(r) => encode(r),
            Record::Counters(r) => encode(r),
            Record::Osd(r) => encode(r),
            Record::Pool(r) => encode(r),
            Record::Pg(r) => encode(r),
            Record::Volume(r) => encode(r),
            Record::Segment(r) => encode(r),
            Record::Snapshot(r) => encode(r),
            Record::Cut(r) => encode(r),
            Record::Event(r) => encode(r),
            Record::Watch(r) => encode(r),
            Record::Mute(r) => encode(r),
            Record::Config(r) => encode(r),
        }
    }

    fn decode(key: &str, value: &[u8]) -> Result<Record, LoadError> {
        let record = match key.split('/').next().unwrap_or("") {
            "cluster" => Record::Cluster(decode(key, value)?),
            "counters" => Record::Counters(decode(key, value)?),
            "osd" => Record::Osd(decode(key, value)?),
            "pool" => Record::Pool(decode(key, value)?),
            "pg" => Record::Pg(decode(key, value)?),
            "volume" => Record::Volume(decode(key, value)?),
            "segment" => Record::Segment(decode(key, value)?),
            "snapshot" => Record::Snapshot(decode(key, value)?),
            "cut" => Record::Cut(decode(key, value)?),
            "event" => Record::Event(decode(key, value)?),
            "watch" => Record::Watch(decode(key, value)?),
            "mute" => Record::Mute(decode(key, value)?),
            "config" => Record::Config(decode(key, value)?),
            _ => return Err(LoadError::UnknownKey { key: key.to_string() }),
        };
        if record.key().to_string() != key {
            return Err(LoadError::WrongPlace { key: key.to_string() });
        }
        Ok(record)
    }
}

/// One change to the records.
#[allow(clippy::large_enum_variant)] // short-lived, and nearly all are puts
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(Record),
    Delete(Key),
}

/// The stored records cannot be used. Nothing is changed then: an operator must look.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("record {key} is malformed")]
    Malformed { key: String, source: serde_json::Error },
    #[error("record {key} has version {v}, newer than this program knows")]
    Newer { key: String, v: u32 },
    #[error("there is a record {key} of a kind that this program does not know")]
    UnknownKey { key: String },
    #[error("record {key} carries another id than its key")]
    WrongPlace { key: String },
    #[error("there are two records {key}")]
    Twice { key: String },
    #[error("the store holds no cluster record")]
    NoCluster,
}

/// One stored item: key, value, and how often it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    pub key: String,
    pub value: Vec<u8>,
    pub version: u64,
}

/// All records, in memory, with the indexes that are derived from them.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub cluster: Option<ClusterRecord>,
    pub counters: CountersRecord,
    pub osds: BTreeMap<OsdId, OsdRecord>,
    pub pools: BTreeMap<PoolId, PoolRecord>,
    pub pgs: BTreeMap<PgId, PgRecord>,
    pub volumes: BTreeMap<VolumeId, VolumeRecord>,
    pub segments: BTreeMap<(VolumeId, SegmentIndex), SegmentRecord>,
    pub snapshots: BTreeMap<(VolumeId, SnapshotId), SnapshotRecord>,
    /// Cuts that have not ended.
    pub cuts: BTreeMap<CutId, CutRecord>,
    /// The newest `EVENTS_MAX`, by number.
    pub events: BTreeMap<u64, Event>,
    pub watch: WatchRecord,
    pub mutes: BTreeMap<&'static str, MuteRecord>,
    pub config: ConfigRecord,
    pool_names: BTreeMap<String, PoolId>,
    volume_names: BTreeMap<(PoolId, String), VolumeId>,
    /// Parent, snapshot, and clone of it.
    clones: BTreeSet<(VolumeId, SnapshotId, VolumeId)>,
    loads: loads::Loads,
    pub(crate) versions: BTreeMap<String, u64>,
}

impl Records {
    /// Returns the records in these items of a store.
    ///
    /// # Errors
    /// When an item is one that this program does not understand: it must not guess.
    pub fn load(items: impl IntoIterator<Item = StoredItem>) -> Result<Records, LoadError> {
        let mut records = Records::default();
        for item in items {
            let record = Record::decode(&item.key, &item.value)?;
            // A store has each key once; a damaged backup file may have one twice.
            if records.versions.insert(item.key.clone(), item.version).is_some() {
                return Err(LoadError::Twice { key: item.key });
            }
            records.apply(&Write::Put(record));
        }
        if records.cluster.is_none() {
            return Err(LoadError::NoCluster);
        }
        Ok(records)
    }

    /// Returns all records as a store holds them.
    pub fn items(&self) -> Vec<StoredItem> {
        let mut records: Vec<Record> = self.cluster.iter().cloned().map(Record::Cluster).collect();
        records.push(Record::Counters(self.counters.clone()));
        records.extend(self.osds.values().cloned().map(Record::Osd));
        records.extend(self.pools.values().cloned().map(Record::Pool));
        records.extend(self.pgs.values().cloned().map(Record::Pg));
        records.extend(self.volumes.values().cloned().map(Record::Volume));
        records.extend(self.segments.values().cloned().map(Record::Segment));
        records.extend(self.snapshots.values().cloned().map(Record::Snapshot));
        records.extend(self.cuts.values().cloned().map(Record::Cut));
        records.extend(self.events.values().cloned().map(Record::Event));
        records.extend(self.mutes.values().cloned().map(Record::Mute));
        records.push(Record::Watch(self.watch.clone()));
        records.extend((!self.config.values.is_empty()).then(|| Record::Config(self.config.clone())));
        let version = |key: &str| self.versions.get(key).copied().unwrap_or(0);
        let item = |r: &Record| {
            let key = r.key().to_string();
            StoredItem { version: version(&key), value: r.encode(), key }
        };
        records.iter().map(item).collect()
    }

    /// Returns the cluster's id.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster.as_ref().expect("loaded records have a cluster").id
    }

    /// Applies one change. Its version follows when its transaction is closed.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Put(record) => self.put(record.clone()),
            Write::Delete(key) => self.delete(*key),
        }
    }

    fn put(&mut self, record: Record) {
        match record {
            Record::Cluster(r) => self.cluster = Some(r),
            Record::Counters(r) => self.counters = r,
            Record::Osd(r) => {
                self.osds.insert(r.id, r);
            }
            Record::Pool(r) => {
                if let Some(before) = self.pools.get(&r.id).filter(|before| before.name != r.name) {
                    self.pool_names.remove(&before.name);
                }
                self.pool_names.insert(r.name.clone(), r.id);
                self.pools.insert(r.id, r);
            }
            Record::Pg(r) => {
                self.pgs.insert(r.pg, r);
            }
            Record::Volume(r) => {
                self.forget_volume(r.id);
                self.volume_names.insert((r.pool, r.name.clone()), r.id);
                if let Some(base) = r.clone_of {
                    self.clones.insert((base.volume, base.snapshot, r.id));
                }
                self.volumes.insert(r.id, r);
            }
            Record::Segment(r) => {
                if let Some(before) = self.segments.get(&(r.volume, r.index)) {
                    assert!(before.pgs().eq(r.pgs()), "a segment never changes its PGs");
                    self.loads.remove(before);
                }
                self.loads.add(&r);
                self.segments.insert((r.volume, r.index), r);
            }
            Record::Snapshot(r) => {
                self.snapshots.insert((r.volume, r.snapshot), r);
            }
            Record::Cut(r) => {
                self.cuts.insert(r.id, r);
            }
            Record::Event(r) => {
                self.events.remove(&r.seq.wrapping_sub(EVENTS_MAX));
                self.events.insert(r.seq, r);
            }
            Record::Watch(r) => self.watch = r,
            Record::Config(r) => self.config = r,
            Record::Mute(r) => {
                if let Some(rule) = crate::health::find_rule(&r.code) {
                    self.mutes.insert(rule.code, r);
                }
            }
        }
    }

    fn forget_volume(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.remove(&id) else { return };
        self.volume_names.remove(&(volume.pool, volume.name));
        if let Some(base) = volume.clone_of {
            self.clones.remove(&(base.volume, base.snapshot, id));
        }
    }

    fn delete(&mut self, key: Key) {
        match key {
            Key::Cluster | Key::Counters | Key::Event(_) | Key::Watch | Key::Config => panic!("{key} is never deleted"),
            Key::Osd(id) => {
                self.osds.remove(&id);
            }
            Key::Pool(id) => {
                if let Some(pool) = self.pools.remove(&id) {
                    self.pool_names.remove(&pool.name);
                }
            }
            Key::Pg(pg) => {
                assert_eq!(self.segments_in(pg), 0, "{pg} goes while segments are in it");
                self.pgs.remove(&pg);
            }
            Key::Volume(id) => {
                assert!(self.segments_of(id).next().is_none(), "{id} goes before its segments");
                assert!(self.snapshots_of(id).next().is_none(), "{id} goes before its snapshots");
                self.forget_volume(id);
            }
            Key::Mute(code) => {
                self.mutes.remove(code);
            }
            Key::Segment(id, index) => {
                if let Some(segment) = self.segments.remove(&(id, index)) {
                    self.loads.remove(&segment);
                }
            }
            Key::Snapshot(id, snapshot) => {
                self.snapshots.remove(&(id, snapshot));
            }
            Key::Cut(id) => {
                self.cuts.remove(&id);
            }
        }
    }

    /// Returns the number of the newest event; zero before the first.
    pub fn last_event(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// Finds a pool by name.
    ///
    /// # Errors
    /// BSLT-2010, or BSLT-2014 for a malformed name.
    pub fn pool(&self, name: &str) -> Result<&PoolRecord, Refusal> {
        crate::names::checked("pool", name)?;
        let found = self.pool_names.get(name).and_then(|id| self.pools.get(id));
        found.ok_or_else(|| refuse(codes::POOL_UNKNOWN, format!("pool {name:?} does not exist")))
    }

    /// Whether a pool has this name.
    pub fn has_pool(&self, name: &str) -> bool {
        self.pool_names.contains_key(name)
    }

    /// Finds a volume by `pool/volume`.
    ///
    /// # Errors
    /// BSLT-2010, BSLT-2011, BSLT-2014.
    pub fn volume(&self, full: &str) -> Result<&VolumeRecord, Refusal> {
        let (pool, name) = crate::names::split(full)?;
        let pool = self.pool(pool)?.id;
        self.volume_in(pool, name).ok_or_else(|| {
            let trashed = self.trash_of(pool).any(|(_, trash)| trash.name == name);
            let trashed = if trashed { "; the trash holds one that had this name (`basalt trash ls`)" } else { "" };
            refuse(codes::VOLUME_UNKNOWN, format!("volume {full:?} does not exist{trashed}"))
        })
    }

    /// Finds a volume of a pool by its own name.
    pub fn volume_in(&self, pool: PoolId, name: &str) -> Option<&VolumeRecord> {
        self.volume_names.get(&(pool, name.to_string())).and_then(|id| self.volumes.get(id))
    }

    /// Returns `pool/volume`; of a volume in the trash with the name that it had.
    pub fn full_name(&self, volume: &VolumeRecord) -> String {
        let pool = self.pools.get(&volume.pool).map_or("?", |p| p.name.as_str());
        format!("{pool}/{}", volume.shown_name())
    }

    /// Returns the limits that are in force for a volume: its own, or those of its pool.
    pub fn limits_of(&self, volume: &VolumeRecord) -> QosLimits {
        let pool = || self.pools.get(&volume.pool).map_or(QosLimits::NONE, |pool| pool.limits);
        volume.limits.unwrap_or_else(pool)
    }

    /// Returns the segments of a volume, ascending.
    pub fn segments_of(&self, volume: VolumeId) -> impl DoubleEndedIterator<Item = &SegmentRecord> {
        self.segments_from(volume, SegmentIndex(0))
    }

    /// Returns the segments of a volume from this one on, ascending.
    pub fn segments_from(
        &self,
        volume: VolumeId,
        first: SegmentIndex,
    ) -> impl DoubleEndedIterator<Item = &SegmentRecord> {
        self.segments.range((volume, first)..=(volume, SegmentIndex(u32::MAX))).map(|(_, s)| s)
    }

    /// Returns the clones of a volume, or of one of its snapshots, with those that are being deleted.
    pub fn clones_of(
        &self,
        volume: VolumeId,
        snapshot: Option<SnapshotId>,
    ) -> impl Iterator<Item = &VolumeRecord> + Clone {
        let first = (volume, snapshot.unwrap_or(SnapshotId(0)), VolumeId(0));
        let last = (volume, snapshot.unwrap_or(SnapshotId(u64::MAX)), VolumeId(u64::MAX));
        self.clones.range(first..=last).map(|(.., clone)| &self.volumes[clone])
    }

    /// Whether a volume has no segments, and gets none by itself: no PG must know it.
    pub fn is_in_no_pg(&self, volume: &VolumeRecord) -> bool {
        !volume.cloning && self.segments_of(volume.id).next().is_none()
    }

    /// Returns the snapshots of a volume, the oldest first, with those that are being made or deleted.
    pub fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &SnapshotRecord> + Clone {
        self.snapshots.range((volume, SnapshotId(0))..=(volume, SnapshotId(u64::MAX))).map(|(_, s)| s)
    }

    /// Returns the cut of this volume that has not ended.
    pub fn cut_of(&self, volume: VolumeId) -> Option<&CutRecord> {
        self.cuts.values().find(|cut| cut.has(volume))
    }

    /// Returns the number of segments that lie in a PG wholly or with a column.
    pub fn segments_in(&self, pg: PgId) -> u32 {
        self.load_of(pg).segments
    }

    /// Returns the share of the allocated segments that lies in a PG.
    pub fn load_of(&self, pg: PgId) -> PgLoad {
        self.loads.of_pg(pg)
    }

    /// Returns the PGs of a volume with its share in each, ascending.
    pub fn loads_of(&self, volume: VolumeId) -> impl Iterator<Item = (PgId, VolumeLoad)> + '_ {
        self.loads.of_volume(volume)
    }

    /// Returns the share of a volume's segments that lies in a PG.
    pub fn load_of_volume(&self, volume: VolumeId, pg: PgId) -> VolumeLoad {
        self.loads.of_volume_in(volume, pg)
    }

    /// Whether replicas of a pool have to leave an OSD: it is out or drained, or of another device class than the pool asks for.
    pub fn must_leave(&self, pool: PoolId, osd: &OsdRecord) -> bool {
        let class = self.pools.get(&pool).and_then(|pool| pool.device_class.as_deref());
        osd.leaves() || osd.is_wrong_for(class)
    }

    /// Returns the PGs of a pool, ascending.
    pub fn pgs_of(&self, pool: PoolId) -> impl Iterator<Item = &PgRecord> {
        self.pgs.range(PgId { pool, n: 0 }..=PgId { pool, n: u32::MAX }).map(|(_, pg)| pg)
    }

    /// Returns the volumes of a pool that are in the trash, or are deleted from there.
    pub fn trash_of(&self, pool: PoolId) -> impl Iterator<Item = (&VolumeRecord, &Trash)> {
        self.volumes_of(pool).filter_map(|volume| volume.trash.as_ref().map(|trash| (volume, trash)))
    }

    /// Returns the volumes of a pool, with those in the trash.
    pub fn volumes_of(&self, pool: PoolId) -> impl Iterator<Item = &VolumeRecord> {
        self.volume_names
            .range((pool, String::new())..)
            .take_while(move |((p, _), _)| *p == pool)
            .filter_map(|(_, id)| self.volumes.get(id))
    }

    /// Returns the address map: OSDs that have started at least once.
    pub fn addresses(&self) -> Vec<OsdAddr> {
        self.osds.values().filter_map(|o| o.addr.map(|addr| OsdAddr { osd: o.id, addr })).collect()
    }
}

/// Prepares a backup for its store: nothing is changed on it before `basalt meta recover` (R17).
///
/// # Errors
/// When the items are no records of a cluster.
pub fn restored(mut items: Vec<StoredItem>) -> Result<Vec<StoredItem>, LoadError> {
    let records = Records::load(items.iter().cloned())?;
    let counters = Record::Counters(CountersRecord { restored: true, ..records.counters });
    let key = counters.key().to_string();
    items.retain(|item| item.key != key);
    items.push(StoredItem { key, value: counters.encode(), version: 1 });
    Ok(items)
}

/// Returns the first transaction of a cluster: its id and its counters.
pub fn new_cluster(id: ClusterId, created_ms: u64) -> crate::Txn {
    let mut batch = crate::batch::Batch::default();
    batch.add(Write::Put(Record::Cluster(ClusterRecord { id, created_ms })));
    batch.add(Write::Put(Record::Counters(CountersRecord::default())));
    batch.close(&mut BTreeMap::new())
}
