//! The values that pass between the two halves of the engine: the log side (log, overlay, rounds) and
//! [`crate::home`].
//!
//! The log side comes in with reads of what the overlay does not cover and with rounds of whole blocks;
//! home answers with verified bytes and with the records of a checkpoint, which are opaque to the log.
//!
//! Invariant: home never sees a block that is not whole, nor one whose entries and commit are not durable
//! in the log (R2); the log never sees bytes of home that were not verified.

use bytes::Bytes;
use env::{DiskError, Token};
use types::store::DecisionState;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, VolumeId};

/// Set in `Token.key` of every operation of home; clear in those of the log side.
pub const HOME_KEY_BIT: u32 = 1 << 31;

/// Makes the tokens of home's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeTokens {
    pub room: u8,
}

impl HomeTokens {
    /// A token with home's own `key` (below [`HOME_KEY_BIT`]).
    pub fn token(self, generation: u32, key: u32) -> Token {
        assert!(key < HOME_KEY_BIT, "key {key} reaches into the other half's range");
        Token::new(self.room, generation, key | HOME_KEY_BIT)
    }

    /// Home's key of one of its tokens.
    pub fn key(token: Token) -> u32 {
        assert!(token.key & HOME_KEY_BIT != 0, "{token:?} is not home's");
        token.key & !HOME_KEY_BIT
    }
}

/// The part of the device that home owns: slots, then data AUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeRegion {
    /// Byte offset on the device, a multiple of 64 KiB.
    pub start: u64,
    /// Length, a multiple of 64 KiB.
    pub len_bytes: u64,
}

/// One whole 4 KiB block.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockData {
    /// 4 KiB, and their CRC32C as it came from the client or was computed over verified bytes. Often a slice of
    /// a receive buffer: aligned to 512 bytes in memory, not to more.
    Bytes { buf: IoBuf, crc: u32 },
    /// Reads as zeros: home drops the block.
    Zero,
}

/// The dirty blocks of one chunk, ascending by number (0..4096), each at most once.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkDirty {
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub blocks: Vec<(u16, BlockData)>,
}

/// What a checkpoint says of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundState {
    /// Exact as of K = `decision.index`.
    pub decision: DecisionState,
    /// Durable in the log, at or above K.
    pub commit: Index,
}

/// One destage round: the atomic step from the last checkpoint to the next.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Round {
    /// A replica that is not listed keeps its K and its decision state.
    pub states: Vec<RoundState>,
    /// Take effect first: these chunks lose everything that home holds of them.
    pub cuts: Vec<Cut>,
    /// Take effect after the cuts (blocks of a cut chunk were written after the cut).
    pub chunks: Vec<ChunkDirty>,
    /// Everything of these replicas goes.
    pub destroyed: Vec<ReplicaId>,
    /// What was staged of these replicas replaces everything that home holds of them (R12). No cuts and no
    /// chunks of theirs are in the same round.
    pub installs: Vec<ReplicaId>,
}

/// Chunks of `volume` from `from_chunk` on cease to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub replica: ReplicaId,
    pub volume: VolumeId,
    pub from_chunk: u32,
}

/// Part of the answer to a read.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Home holds nothing here.
    Zeros,
    /// Verified: `crcs` has one CRC32C a fragment of the piece's range (for a whole block the stored one).
    Bytes { crcs: Vec<u32>, payload: IoBuf },
}

/// Why home could not produce verified bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HomeReadError {
    /// The block's bytes do not match the CRC that was current when the read looked it up.
    #[error("block {block} of {chunk} fails its checksum")]
    Damaged { chunk: ChunkKey, block: u16 },
    /// The sectors are those of one operation: each of its blocks may be the bad one.
    #[error("reading {range} of {chunk} failed: {source}")]
    Disk { chunk: ChunkKey, range: SectorRange, source: DiskError },
}

/// What home tells the log side.
#[derive(Clone, Debug, PartialEq)]
pub enum HomeEvent {
    /// The map, the CRC pages and the decision states are loaded. One state for each replica of the checkpoint
    /// (a replica that was never in a checkpoint is not listed).
    /// `damaged`: replicas of which a page is lost, and which (R11); their states are listed when readable.
    Mounted { states: Vec<RoundState>, damaged: Vec<(ReplicaId, String)> },
    /// What the last checkpoint names cannot be read or does not verify.
    MountFailed { reason: String },
    /// Pieces tile the asked range in order. Lookups (place and expected CRC) were taken when `read` was called.
    ReadDone { ticket: u64, result: Result<Vec<(SectorRange, Piece)>, HomeReadError> },
    /// The blocks of this [`crate::home::Home::stage`] are in their places; durable with the next flush.
    Staged { ticket: u64 },
    /// A round changed the chunk since the read looked it up: run the whole read again, overlay first (R8).
    ReadRetry { ticket: u64 },
    /// All data, CRC pages, map and decision slots of the round are durable; these records, once durable in the
    /// log, make them current. Each is at most [`layout::log::CHECKPOINT_PART_MAX`] bytes.
    RoundReady { records: Vec<Bytes> },
    /// The round does not fit the device. Nothing of it will become current; the log side keeps it.
    RoundFull,
    /// A write or flush failed: the store is poisoned (R15).
    Failed { during: &'static str, source: DiskError },
}

/// Counters and levels of home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeStats {
    pub free_bytes: u64,
    pub limbo_bytes: u64,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    /// Rounds that flipped, and the time that they took from their begin.
    pub rounds: u64,
    pub round_us: u64,
    /// No further AU can be promised (R13).
    pub full: bool,
}
