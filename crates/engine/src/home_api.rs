//! Home API: the values that pass between the two halves of the engine, the log side (log, overlay, rounds) and
//! [`crate::home`].
//!
//! The log side passes in reads of ranges that the overlay does not cover, and rounds of whole blocks. Home answers
//! with verified bytes and with the records of a checkpoint, which are opaque to the log.
//!
//! Invariant: home never gets a block that is not whole, or one whose entries and commit are not durable in the log
//! (R2). The log side never gets unverified bytes of home.

use bytes::Bytes;
use env::{DiskError, Token};
use types::store::DecisionState;
use types::{ChunkKey, CrcList, GenerationId, Index, IoBuf, ReplicaId, SectorRange, Term};

/// Bit that is set in `Token.key` of every operation of home, and clear in those of the log side.
pub const HOME_KEY_BIT: u32 = 1 << 31;

/// Creates the tokens of home's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeTokens {
    pub owner: u8,
}

impl HomeTokens {
    /// Returns a token with home's own `key` (below [`HOME_KEY_BIT`]).
    pub fn token(self, generation: u32, key: u32) -> Token {
        assert!(key < HOME_KEY_BIT, "key {key} reaches into the other half's range");
        Token::new(self.owner, generation, key | HOME_KEY_BIT)
    }

    /// Returns home's key of one of its tokens.
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
    /// 4 KiB and their CRC32C, as it came from the client or was computed over verified bytes. The buffer is often a
    /// slice of a receive buffer: aligned to 512 bytes in memory, not to more.
    Bytes { buf: IoBuf, crc: u32 },
    /// The block reads as zeros: home drops it, and marks it where the chunk has marks.
    Zero,
}

/// The dirty blocks of one chunk, ascending by number (0..4096), each at most once.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkDirty {
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    /// Seeds the checksums of the blocks.
    pub family: GenerationId,
    /// A parent shows where the chunk is open: blocks of zeros become zero marks.
    pub marks: bool,
    /// Dissolved generations that show below the chunk, the newest first: where the chunk gets its first data, their AUs are taken before
    /// free ones. None while the round cuts the chunk: until its checkpoint the cut hides what the chunk has at home.
    pub older: Vec<GenerationId>,
    pub blocks: Vec<(u16, BlockData)>,
    /// Numbers (0..256) of AUs of the chunk, ascending, and the units of the device that hold their bytes already: payloads of the
    /// log. All blocks of such an AU are in `blocks`, and home does not write them.
    pub adopts: Vec<(u16, u32)>,
}

/// State of one replica in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundState {
    /// Decision state, exact as of the checkpoint index (K), `decision.index`.
    pub decision: DecisionState,
    /// Commit index that is durable in the log, at or above the checkpoint index. The contents show no later entry.
    pub commit: Index,
    /// The list of dissolved generations as of the checkpoint index, opaque to home. At most `DISSOLVED_LEN_MAX` bytes.
    pub dissolved: Bytes,
}

/// One destage round: the atomic step from the last checkpoint to the next.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Round {
    /// A replica that is not listed keeps its checkpoint index and its decision state.
    pub states: Vec<RoundState>,
    /// Chunks that lose everything that home holds of them; unmaps take effect first.
    pub unmaps: Vec<Unmap>,
    /// Dirty blocks, which take effect after the unmaps: blocks of a cut chunk were written after the cut.
    pub chunks: Vec<ChunkDirty>,
    /// Chunks of dissolved generations that go to their heirs. They take effect behind the unmaps and before the dirty blocks.
    pub merges: Vec<ChunkMerge>,
    /// Replicas whose contents home drops.
    pub destroyed: Vec<ReplicaId>,
    /// Replicas whose staged blocks replace everything that home holds of them (R12). The round has no unmaps and no
    /// chunks of these replicas.
    pub installs: Vec<ReplicaId>,
    /// Units of the device that held payloads of the log: entries that need them no longer count once the checkpoint is durable. Home
    /// drops those that the round does not adopt.
    pub released: Vec<(ReplicaId, Vec<u32>)>,
}

/// The merge of a chunk of a dissolved generation into that of its heir. No layer of the overlay has blocks of `from`. An AU stays
/// where it is when the round writes the place of it, or when a block that must be copied is not in `copies`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkMerge {
    pub replica: ReplicaId,
    pub from: ChunkKey,
    pub into: ChunkKey,
    /// That of both generations: it seeds the checksums.
    pub family: GenerationId,
    /// The heir does not show the chunk: all of it is dropped.
    pub hidden: bool,
    /// Other generations show where both are open: zero marks are needed.
    pub marks: bool,
    /// Whole blocks of `from`, ascending, as read from home.
    pub copies: Vec<(u16, IoBuf)>,
    /// [`crate::home::Home::clock`] before they were read: they count while `from` is as it was.
    pub clock: u64,
}

/// The chunks of `generation` from `from_chunk` on cease to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    pub replica: ReplicaId,
    pub generation: GenerationId,
    pub from_chunk: u32,
}

impl Unmap {
    /// Whether this chunk of the replica ceases to exist.
    pub fn drops(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.replica == replica && self.generation == chunk.generation && self.from_chunk <= chunk.index
    }
}

/// Contents of a block at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Data,
    /// The block has a zero mark.
    Zeros,
    /// Nothing: the parent shows.
    Open,
}

/// Part of the answer to a read.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Home holds no data here.
    Zeros,
    /// Verified bytes: `crcs` has one CRC32C for each fragment of the piece's range.
    Bytes { crcs: CrcList, payload: IoBuf },
}

/// Why home could not return verified bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HomeReadError {
    /// The bytes of these blocks, ascending, do not match the CRCs that were current when the read looked them up.
    #[error("{} fail their checksums", named(blocks))]
    Damaged { blocks: Vec<(ChunkKey, u16)> },
    /// One operation read these sectors: each of their blocks may be the bad one.
    #[error("reading {range} of {chunk} failed: {source}")]
    Disk { chunk: ChunkKey, range: SectorRange, source: DiskError },
}

/// Names blocks by their chunks.
fn named(blocks: &[(ChunkKey, u16)]) -> String {
    let of_chunk = |run: &[(ChunkKey, u16)]| {
        let numbers: Vec<u16> = run.iter().map(|(_, block)| *block).collect();
        format!("blocks {numbers:?} of {}", run[0].0)
    };
    blocks.chunk_by(|a, b| a.0 == b.0).map(of_chunk).collect::<Vec<_>>().join(" and ")
}

/// A replica of which home has lost pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHome {
    pub replica: ReplicaId,
    /// Its checkpoint index, with the term.
    pub checkpoint: (Index, Term),
    pub reason: String,
}

/// Events that home reports to the log side.
#[derive(Clone, Debug, PartialEq)]
pub enum HomeEvent {
    /// The map, the CRC pages and the decision states are loaded. `states`: one for each replica of the checkpoint; a
    /// replica that was never in a checkpoint is not listed. `damaged`: replicas that lost a page, and which page
    /// (R11); their states are listed when readable.
    Mounted { states: Vec<RoundState>, damaged: Vec<LostHome> },
    /// The records of the last checkpoint cannot be decoded, or do not fit the device.
    MountFailed { reason: String },
    /// Pieces tile the requested range in order. Lookups (place and expected CRC) were made when `read` was called.
    ReadDone { ticket: u64, result: Result<Vec<(SectorRange, Piece)>, HomeReadError> },
    /// The blocks of this [`crate::home::Home::stage`] are written; the next flush makes them durable.
    Staged { ticket: u64 },
    /// A round changed the chunk since the read looked it up: run the whole read again, overlay first (R8).
    ReadRetry { ticket: u64 },
    /// All data, CRC pages, map and decision slots of the round are durable. These records make them current, once
    /// durable in the log. Each is at most [`layout::log::CHECKPOINT_PART_MAX`] bytes.
    RoundReady { records: Vec<Bytes> },
    /// The round does not fit the device. Nothing of it will become current; the log side keeps its data.
    RoundFull,
    /// A write or flush failed: the store is poisoned (R15).
    Failed { during: &'static str, source: DiskError },
}

/// Counters and levels of home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeStats {
    pub free_bytes: u64,
    pub pending_free_bytes: u64,
    /// Bytes of these that the running round has dropped in exchange for AUs that the log had taken.
    pub exchanged_bytes: u64,
    /// Bytes of AUs that hold payloads of the log.
    pub logged_bytes: u64,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    /// AUs of dissolved generations, and positions with zero marks alone, that went to an heir or were dropped.
    pub merged_aus: u64,
    /// Rounds that flipped; below, the time that they took from their begin.
    pub rounds: u64,
    pub round_us: u64,
    /// No further AU can be granted (R13).
    pub full: bool,
}
