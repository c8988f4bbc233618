//! Values that a group passes to its engine, and that it gets back at a restart. Both crates use them and neither owns
//! them, so they are defined here.

use crate::crc::CrcList;
use crate::ids::{ChunkKey, Epoch, GenerationId, Index, PgId, ReplicaId, Term};
use crate::iobuf::IoBuf;
use crate::map::{Member, Membership};
use crate::range::SectorRange;
use bytes::Bytes;

/// One raft entry: a descriptor that raft sees, and a payload that it does not (design §3, step 4).
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub term: Term,
    pub index: Index,
    pub kind: EntryKind,
    /// At most `DESCRIPTOR_MAX` bytes.
    pub descriptor: Bytes,
    /// Empty, or the bytes of the command that the descriptor holds.
    pub payload: IoBuf,
    /// CRC32C of each fragment of the payload; travels to the disk unchanged.
    pub crcs: Crcs,
}

/// Fragment CRCs of a payload, with the range that says where the fragments lie.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Crcs {
    /// First sector of the payload inside its chunk: fixes the block borders.
    pub start: u32,
    pub values: CrcList,
}

/// Raft's kinds of entry. Numbers are those of the wire and the disk, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Normal = 0,
    ConfChange = 1,
    ConfChangeV2 = 2,
}

/// Raft's durable state besides its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HardState {
    pub term: Term,
    pub vote: Option<ReplicaId>,
    pub commit: Index,
}

/// One replica's share of a log batch. Appending entry (i, t) removes every earlier record at or above i.
#[derive(Clone, Debug, PartialEq)]
pub struct Persist {
    pub replica: ReplicaId,
    /// The engine returns this ticket when everything here (and everything of this replica before it) is durable.
    pub ticket: u64,
    pub hard_state: Option<HardState>,
    pub entries: Vec<Entry>,
}

/// An entry whose payload does not verify in the local log, while its record does (R11), so its checksums are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub index: Index,
    pub term: Term,
    pub len_bytes: u32,
    pub crcs: Crcs,
}

impl Lost {
    /// Whether `payload` holds the bytes that were lost.
    pub fn is(&self, payload: &[u8]) -> bool {
        let range = SectorRange::checked(self.crcs.start, (payload.len() / crate::SECTOR as usize) as u32);
        payload.len() == self.len_bytes as usize && range.is_some_and(|r| r.verify(payload, &self.crcs.values))
    }
}

/// Content of one slot in a replica's log.
#[derive(Clone, Debug, PartialEq)]
pub enum Holding {
    /// The entry's payload, with its checksums.
    Payload(IoBuf, Crcs),
    /// The entry is here, and its payload is lost here too.
    Lost,
    /// The slot holds another entry, an entry without payload, or none; the log was never without it.
    Other,
    /// The log begins above the slot.
    Freed,
    /// Unknown: there is no such replica, or it has failed.
    Unsure,
}

/// A peer's copy of one block, as of one applied index of that peer, which is in `low..=high`.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockCopy {
    pub low: Index,
    pub high: Index,
    /// The bytes of the block and their CRC32C; `None`: zeros.
    pub data: Option<(IoBuf, u32)>,
}

/// Reason why a copy does not repair a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MendRefusal {
    #[error("home's copy of the block is not needed any more")]
    NotNeeded,
    #[error("the copy may be older than the checkpoint index")]
    Behind,
    /// The copy may be taken later.
    #[error("the copy may hold entries that are not applied here")]
    Ahead,
    #[error("the bytes of the copy are not one block, or do not match their checksum")]
    Bytes,
    #[error("the copy differs from the block that home's checksum names")]
    Differs,
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadData {
    /// Nothing was ever written here.
    Zeros,
    /// One CRC32C a fragment of the range that was asked for.
    Bytes { crcs: CrcList, payload: IoBuf },
}

/// The next step of a walk over the chunks of a head, for the leader that copies what it shows of older generations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// Runs of sectors that tile the chunk, `true` where a block is to be copied.
    Chunk { index: u32, runs: Vec<(u32, bool)> },
    /// There is no such block below this index; the walk goes on there.
    Further(u32),
    /// There is none from the beginning of this step on.
    End,
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("{chunk} of {replica} fails its checksum: {reason}")]
    Damaged { replica: ReplicaId, chunk: ChunkKey, reason: String },
    /// Blocks of home are bad; the engine's event `BadBlocks` names them. `range` is the range that was read.
    #[error("{chunk} of {replica} cannot be read: {reason}")]
    BadBlocks { replica: ReplicaId, chunk: ChunkKey, range: SectorRange, reason: String },
    /// The replica is not on this device, or no longer.
    #[error("{0} is not on this device")]
    NoReplica(ReplicaId),
    #[error("the store has failed")]
    Poisoned,
}

/// A block in the delta of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It has bytes.
    Data,
    /// It reads as zeros, and hides older generations.
    Zeros,
    /// Nothing: an older generation shows, or zeros.
    Open,
}

/// The delta of a chunk: the blocks of its generation, over those of generations that are dissolved into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkDelta {
    /// Runs of sectors that tile the chunk. A block that is owned in part counts as a whole.
    pub runs: Vec<(u32, Own)>,
    /// Another generation shows where the chunk's own has nothing. False: no block counts as zeros, and what is open is zeros.
    pub is_deep: bool,
}

/// The effect of a committed entry on the bytes of its PG, decided at apply (R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: empty entry, duplicate, fenced, attach record.
    None,
    /// The entry's payload becomes the contents of the range.
    Write { chunk: ChunkKey, range: SectorRange },
    /// The range reads as zeros.
    Zero { chunk: ChunkKey, range: SectorRange },
    /// Chunks of the generation from this index on cease to exist (0: the volume is deleted).
    Unmap { generation: GenerationId, from_chunk: u32 },
}

/// A replica's create record, written when it is created and kept by every segment's state block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    pub pg: PgId,
    pub replica: ReplicaId,
    pub conf_epoch: Epoch,
    /// Members at creation, with their OSDs. A replica that joined the PG later is none of them.
    pub members: Vec<Member>,
}

impl ReplicaIdentity {
    /// Whether the PG has had other members than at its creation, as these show. Recovery then must not count the members at
    /// creation (ADR 0016).
    pub fn has_other_members(&self, now: &Membership) -> bool {
        now.epoch != self.conf_epoch || self.members.iter().all(|m| m.replica != self.replica)
    }
}

/// Decision state of one replica exactly at `index` (R1): what a checkpoint stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionState {
    pub replica: ReplicaId,
    /// Applied index, and its term. A commit index at or above it is durable or is written with this.
    pub index: Index,
    pub term: Term,
    /// Encoded by `group`, opaque to the engine.
    pub bytes: Bytes,
}

/// A replica as mount found it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    pub identity: ReplicaIdentity,
    pub hard_state: HardState,
    /// Checkpoint index, its term and the decision state at it. A fresh replica has index 0 and empty bytes.
    pub checkpoint: DecisionState,
    /// Index before the first of `entries`, and its term (raft's truncated state). At most the checkpoint index.
    pub before: (Index, Term),
    /// All retained entries, contiguous and ascending; every payload is present but those of `lost`.
    pub entries: Vec<Entry>,
    /// Entries above the checkpoint index whose payload the log has lost, ascending.
    /// The replica is `repairing` until each is back.
    pub lost: Vec<Lost>,
    /// The replica has failed (R4, R11): it may not vote, acknowledge or serve.
    pub failure: Option<Failure>,
    /// A stream has still to bring its contents as of the checkpoint index (R16): it votes and acknowledges, but neither serves nor
    /// leads.
    pub fills: bool,
}

/// Why a replica has failed. It takes no part in its PG any more, and is replaced under a new id (ADR 0023).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    /// Its log up to some entry, and its home, are those of an earlier moment of it. A forced recovery can go on from these.
    pub is_past: bool,
}
