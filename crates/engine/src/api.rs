//! The words of the engine's door: configuration, events, errors, levels.
//!
//! The loop of an OSD comes in with them and takes them out; nothing here has behaviour of weight.

use env::DiskError;
use layout::superblock::SuperblockError;
use std::time::Duration;
use types::store::{HardState, Recovered};
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange};

/// Settings of one engine. All are per process; what the disk fixes is in its superblock.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// `Token.room` of all operations of this engine.
    pub room: u8,
    /// Bytes of payload that the overlay may hold before it asks for a round and for back-pressure.
    /// Default 256 MiB.
    pub overlay_payload_max: u64,
    /// A round starts when a level of [`Pressure`] passes this. Default 0.5; 0 destages at once.
    pub round_pressure: f32,
    /// Dirty data is destaged after this long without a new one. Default 5 s.
    pub round_idle: Duration,
    /// An idle log is sealed after this long (R11). Default 10 ms.
    pub seal_after: Duration,
    /// Bytes of a segment's state block in one batch, but for a record that is longer by itself. Default and most
    /// [`layout::log::STATE_BATCH_MAX`]; tests and simulations take less.
    pub state_batch_max: usize,
    /// Somebody has looked at the device after it had poisoned the store: mount it, and forget that. Default off.
    pub after_poison: bool,
    /// The device was restored from an older copy, or has lost flushed writes: every replica on it is in doubt from this
    /// mount on (ADR 0012). Default off.
    pub after_restore: bool,
    /// What was freed last is used first, instead of going round the device: whatever is given back too early is
    /// overwritten at once. Only simulations want this. Default off.
    pub reuse_at_once: bool,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            room: 2,
            overlay_payload_max: 256 << 20,
            round_pressure: 0.5,
            round_idle: Duration::from_secs(5),
            seal_after: Duration::from_millis(10),
            state_batch_max: layout::log::STATE_BATCH_MAX,
            after_poison: false,
            after_restore: false,
            reuse_at_once: false,
        }
    }
}

/// What the engine tells its loop.
#[derive(Debug)]
pub enum EngineEvent {
    /// The mount is over; groups may be made. In the order of replica ids.
    Mounted(Vec<Recovered>),
    MountFailed(MountError),
    /// The replica's birth record is durable.
    Created(ReplicaId),
    /// The replica's tombstone is durable.
    Destroyed(ReplicaId),
    /// This map is durable.
    MapKept(bytes::Bytes),
    /// Everything that this replica appended up to and with `ticket` is durable.
    Persisted {
        replica: ReplicaId,
        ticket: u64,
    },
    ReadDone {
        token: u64,
        result: Result<ReadData, ReadError>,
    },
    /// The blocks of this [`crate::Engine::stage`] are written.
    Staged {
        token: u64,
    },
    /// What was staged of this replica had to make room for a round.
    Unstaged {
        replica: ReplicaId,
    },
    /// The replica is what was staged, as of its new K; its group starts anew from this.
    Installed(Box<Recovered>),
    /// There is no room for the installation, or the replica is damaged or gone: the old one stays.
    InstallRefused {
        replica: ReplicaId,
    },
    /// K of these replicas has advanced, durably. `Engine::first_index` may have moved.
    Checkpointed(Vec<(ReplicaId, Index)>),
    /// Every payload that this replica's log had lost is back, durably: its group may be made.
    Refilled {
        replica: ReplicaId,
    },
    /// Of the log of this replica, which takes no part, stands what comes before `from`: it waits to follow from there, as
    /// one in doubt.
    CutBack {
        replica: ReplicaId,
        hard_state: HardState,
        from: Index,
    },
    /// These blocks of home cannot be read, or fail their checksum: [`crate::Engine::mend`] is waited for. `needed`:
    /// the replica cannot go on without them.
    BadBlocks {
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        reason: String,
        needed: bool,
    },
    /// Bytes of this replica that must be there do not verify: it may not vote, acknowledge or serve (R11).
    Damaged {
        replica: ReplicaId,
        reason: String,
    },
    /// The first write or flush has failed: nothing is acknowledged from now on (R15).
    Poisoned(String),
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadData {
    /// Nothing was ever written here.
    Zeros,
    /// One CRC32C a fragment of the range that was asked for.
    Bytes { crcs: Vec<u32>, payload: IoBuf },
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("{chunk} of {replica} fails its checksum: {reason}")]
    Damaged { replica: ReplicaId, chunk: ChunkKey, reason: String },
    /// Blocks of home are bad; [`EngineEvent::BadBlocks`] names them. `range` is what was asked for.
    #[error("{chunk} of {replica} cannot be read: {reason}")]
    BadBlocks { replica: ReplicaId, chunk: ChunkKey, range: SectorRange, reason: String },
    /// The replica is not, or no longer, here.
    #[error("{0} is not on this device")]
    NoReplica(ReplicaId),
    #[error("the store is poisoned")]
    Poisoned,
}

/// Why a mount did not end well. After one of the first three the device holds the same bytes as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// BSLT-3010
    #[error("the store was poisoned, and nobody has vouched for the device since: {reason}")]
    Poisoned { reason: String },
    #[error("the device failed while {during}: {source}")]
    Disk { during: &'static str, source: DiskError },
    #[error("home cannot be loaded: {reason}")]
    Home { reason: String },
    /// Formatting wrote the first batch, so this is damage, not emptiness.
    #[error("there is no valid batch in the log: it is lost")]
    LogLost,
    #[error("the log is full of entries that cannot be destaged")]
    LogFull,
}

/// Levels that the loop turns into back-pressure: at 1.0 no new writes are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Log in use, with what freeing it will append, over what may be used.
    pub log: f32,
    /// Limbo over 2 % of capacity.
    pub limbo: f32,
    /// Overlay payload over its budget.
    pub overlay: f32,
    /// No new device space can be promised.
    pub full: bool,
}

impl Pressure {
    /// The level that rules.
    pub fn max(self) -> f32 {
        self.log.max(self.limbo).max(self.overlay)
    }
}

/// Counters since the mount, and levels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    pub batches: u64,
    pub records: u64,
    /// Bytes of batches, headers and padding included.
    pub log_bytes: u64,
    pub payload_bytes: u64,
    pub flushes: u64,
    pub device_read_bytes: u64,
    pub device_written_bytes: u64,
    pub segments_in_use: u32,
    pub segments: u32,
    pub overlay_bytes: u64,
    pub entries_retained: u64,
    pub rounds: u64,
    pub copied_entries: u64,
    /// Replicas whose home lacked pages at this mount (ADR 0009).
    pub lost_homes: u64,
    /// Lost payloads that came back from peers.
    pub refilled_entries: u64,
    pub completed_blocks: u64,
    /// Blocks that a peer's bytes have replaced.
    pub mended_blocks: u64,
    pub home: crate::seam::HomeStats,
}
