//! Types of the engine's interface: configuration, events, errors, pressure levels, counters.
//!
//! The OSD's loop passes them in and receives them; nothing here has behaviour of weight.

use crate::home::HomeLimits;
use env::DiskError;
use layout::superblock::SuperblockError;
use std::time::Duration;
use types::store::{Failure, ReadData, ReadError, Recovered};
use types::{ChunkKey, Index, ReplicaId, SectorRange, Time};

/// Limits of one step of background work. Every value is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Reads of blocks that a round completes, in flight at once. Default 32.
    pub completing_max: usize,
    /// Completed blocks that wait for the log: a round may put so many before the next client batch. Default 64.
    pub completed_queue_max: usize,
    /// Blocks of a round that one step hands over to home, or that home verifies. Default 256.
    pub round_blocks: usize,
    /// Entries that are copied forward in one step. Default 256.
    pub copy_entries: usize,
    /// Entries and intervals that a turn drops after a round or with a freed segment; more when many wait. Default 256.
    pub drops_max: usize,
    /// Bytes of dissolved generations that a round copies to their heirs; AUs that move do not count. Default 4 MiB.
    pub merge_bytes: u64,
    /// [`HomeLimits::background_ops_max`].
    pub home_ops_max: u32,
    /// [`HomeLimits::io_bytes_max`]; at least one block.
    pub home_io_bytes_max: u64,
}

impl Default for StepLimits {
    fn default() -> StepLimits {
        let home = HomeLimits::default();
        StepLimits {
            completing_max: 32,
            completed_queue_max: 64,
            round_blocks: 256,
            copy_entries: 256,
            drops_max: 256,
            merge_bytes: 4 << 20,
            home_ops_max: home.background_ops_max,
            home_io_bytes_max: home.io_bytes_max,
        }
    }
}

/// Settings of one engine. All are per process; settings that the disk fixes are in its superblock.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// `Token.owner` of all operations of this engine.
    pub owner: u8,
    /// A round starts when a level of [`Pressure`] passes this. Default 0.5; 0 destages at once.
    pub round_pressure: f32,
    /// Dirty data is destaged after this long without a new one. Default 5 s.
    pub round_idle: Duration,
    /// An idle log is sealed after this long (R11). Default 10 ms.
    pub seal_after: Duration,
    /// Bytes of a segment's state block in one batch, but for a record that is longer by itself. Default and most
    /// [`layout::log::STATE_BATCH_MAX`]; tests and simulations take less.
    pub state_batch_max: usize,
    /// An administrator has examined the device that poisoned the store: mount it, and erase the poison mark. Default
    /// off.
    pub after_poison: bool,
    /// The device was restored from an older copy, or has lost flushed writes: every replica on it has failed from this
    /// mount on (ADR 0012). Default off.
    pub after_restore: bool,
    /// The mount number is above this one: meta knows a later state of this device. Default 0.
    pub mount_above: u64,
    /// The allocator reuses the space that was freed last, instead of going round the device. Space that is freed too
    /// early is then overwritten at once. Only simulations want this. Default off.
    pub reuse_at_once: bool,
    /// Smallest payload, in bytes, that is written once, to its place at home: one that begins and ends with an AU of its chunk.
    /// Default none: every payload goes into the log and is written again by a round. Values below an AU mean an AU.
    pub redirect_min: Option<u64>,
    /// Home is a rotating disk, and the log has a device of its own: rounds are large and go over the disk in one direction, and admission is
    /// paced by what home takes (ADR 0035). Default off.
    pub hdd_home: bool,
    /// Sizes of background steps. Tests and simulations take less.
    pub steps: StepLimits,
}

impl EngineConfig {
    /// Most reads in flight of blocks that a round completes.
    pub(crate) fn completing_max(&self) -> usize {
        let max = if self.hdd_home { crate::mount::HDD_OPS_MAX as usize } else { usize::MAX };
        self.steps.completing_max.min(max)
    }
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            owner: 2,
            round_pressure: 0.5,
            round_idle: Duration::from_secs(5),
            seal_after: Duration::from_millis(10),
            state_batch_max: layout::log::STATE_BATCH_MAX,
            after_poison: false,
            after_restore: false,
            mount_above: 0,
            reuse_at_once: false,
            redirect_min: None,
            hdd_home: false,
            steps: StepLimits::default(),
        }
    }
}

/// Events that the engine reports to the OSD's loop.
#[derive(Debug)]
pub enum EngineEvent {
    /// The mount is over; groups may be made. In the order of replica ids.
    Mounted(Vec<Recovered>),
    MountFailed(MountError),
    /// The replica's create record is durable.
    Created(ReplicaId),
    /// The replica's tombstone is durable.
    Destroyed(ReplicaId),
    /// This map is durable.
    MapKept(bytes::Bytes),
    /// Everything that this replica appended up to and including `ticket` is durable.
    Persisted {
        replica: ReplicaId,
        ticket: u64,
        /// When the engine submitted the batch that ended the ticket.
        batch_begun: Time,
    },
    ReadDone {
        token: u64,
        result: Result<ReadData, ReadError>,
    },
    /// The blocks of this call of [`crate::Engine::stage`] are written.
    Staged {
        token: u64,
    },
    /// The blocks staged for this replica were dropped to make room for a destage round.
    Unstaged {
        replica: ReplicaId,
    },
    /// The replica's log begins behind the checkpoint index of this state, durably: its group restarts from here. A stream has still to
    /// bring the contents of one that is being filled.
    Begun(Box<Recovered>),
    /// The log of the replica stays as it is.
    FillRefused {
        replica: ReplicaId,
    },
    /// The staged contents are the replica's, durably: it is whole.
    Installed {
        replica: ReplicaId,
    },
    /// The installation was refused: there is no room, or the replica has failed or is gone. The replica is not whole.
    InstallRefused {
        replica: ReplicaId,
    },
    /// The checkpoint index of these replicas has advanced, durably.
    Checkpointed(Vec<(ReplicaId, Index)>),
    /// The log has freed a segment with entries of these replicas: [`crate::Engine::first_index`] may have risen.
    Freed(Vec<ReplicaId>),
    /// Every payload that this replica's log had lost is back and durable: its group may be created.
    Refilled {
        replica: ReplicaId,
    },
    /// These blocks of home cannot be read, or fail their checksum; they wait for [`crate::Engine::mend`]. `needed`: they
    /// fail their checksum, or a round needs them, so a replica without peers cannot go on.
    BadBlocks {
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        reason: String,
        needed: bool,
    },
    /// This replica has failed: it may not vote, acknowledge or serve (R4, R11).
    Failed {
        replica: ReplicaId,
        failure: Failure,
    },
    /// The first write or flush has failed: the engine acknowledges nothing from now on (R15).
    Poisoned(String),
}

/// Why a mount failed. After one of the first two the device holds the same bytes as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// BSLT-3010
    #[error("the store has failed, and its device has not been declared sound since: {reason}")]
    Poisoned { reason: String },
    #[error("the device failed while {during}: {source}")]
    Disk { during: &'static str, source: DiskError },
    #[error("the data area cannot be loaded: {reason}")]
    Home { reason: String },
    /// Formatting wrote the first batch, so a log without a valid batch is damaged, not empty.
    #[error("the log is lost: it holds no valid batch")]
    LogLost,
    #[error("the log is full of entries that cannot be destaged")]
    LogFull,
}

/// Levels that the OSD's loop turns into back-pressure: at 1.0 it admits no new writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Bytes of the log in use, with those that freeing it will append, over the usable bytes.
    pub log: f32,
    /// Space that is pending free, over 2 % of capacity.
    pub pending_free: f32,
    /// Length of the longest list of dissolved generations, over half of its limit: merges have to shorten it.
    pub dissolved: f32,
    /// No new device space can be promised.
    pub full: bool,
}

impl Pressure {
    /// The highest level.
    pub fn max(self) -> f32 {
        self.log.max(self.pending_free).max(self.dissolved)
    }
}

/// Counters since the mount, and levels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    pub batches: u64,
    pub records: u64,
    /// Bytes of batches, headers and padding included.
    pub log_bytes: u64,
    /// Payloads of batches; below, those of them that are placed at home.
    pub payload_bytes: u64,
    pub placed_bytes: u64,
    /// Bytes that were copied in memory: payloads that the device does not take as they lie, and reads from several places.
    pub copied_bytes: u64,
    pub flushes: u64,
    pub device_read_bytes: u64,
    pub device_written_bytes: u64,
    pub segments_in_use: u32,
    pub segments: u32,
    pub overlay_bytes: u64,
    pub entries_retained: u64,
    /// Entries and intervals of finished rounds and freed segments that are still in memory.
    pub drops_waiting: u64,
    pub rounds: u64,
    pub copied_entries: u64,
    /// Replicas whose home lacked pages at this mount (ADR 0009).
    pub lost_homes: u64,
    /// Payloads above a checkpoint index that this mount did not find, of replicas that have not failed.
    pub lost_payloads: u64,
    /// Lost payloads that came back from peers.
    pub refilled_entries: u64,
    pub completed_blocks: u64,
    /// Blocks that a peer's bytes have replaced.
    pub mended_blocks: u64,
    pub home: crate::home_api::HomeStats,
}
