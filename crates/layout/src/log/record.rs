//! The records of a batch.
//!
//! Each record is a fixed header and a body, both multiples of 8 bytes. Replay takes records in log order: appending
//! (i, t) removes every earlier record at or above i; a copied record fills slot i alone (R9).
//!
//! A kind of record is a variant of [`Record`], a number in `kind`, and an arm each in [`Record::encode`] and
//! `decode_one`.
//!
//! Invariant: `decode_records` returns exactly the records that were encoded, or an error. It never panics, and it
//! reserves no more memory than the bytes it was given justify.

use super::{CHECKPOINT_PART_MAX, CHECKPOINT_PARTS_MAX, MAP_MAX, REASON_MAX, RECORD_DECISION_MAX, RUNS_MAX};
use bytes::Bytes;
use std::borrow::Cow;
use std::mem;
use types::limits::{DESCRIPTOR_MAX, FRAGMENTS_MAX, REPLICAS_MAX};
use types::map::Member;
use types::store::{Crcs, Failure, HardState, ReplicaIdentity};
use types::units::SECTORS_PER_AU;
use types::{
    ChunkKey, CrcList, EntryKind, Epoch, GenerationId, Index, OsdId, PgId, PoolId, ReplicaId, SectorRange, Term,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Place of a payload inside the payload area of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PayloadAt {
    /// A multiple of 512.
    pub offset: u32,
    /// A multiple of 512; 0: no payload.
    pub len: u32,
}

/// Adjacent AUs of home that hold a part of an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacedRun {
    /// Offset on the device, in AUs: it is known before the geometry of home is.
    pub unit: u32,
    pub count: u32,
}

/// A replica as the state block of a segment stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    pub identity: ReplicaIdentity,
    pub hard_state: HardState,
    /// Decision state of index 0, or of the index in `fills_from`, until a checkpoint has one. It is opaque.
    pub decision: Bytes,
    /// The log begins behind this entry, and a stream brings the contents as of it. Until a checkpoint of this index is durable,
    /// the replica's contents at home are older ones.
    pub fills_from: Option<(Index, Term)>,
    /// The replica has failed. The reason is not empty, and cut to [`REASON_MAX`] bytes.
    pub failure: Option<Failure>,
}

/// A block that was completed before destaging (R2): local, no raft entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub block: u16,
    /// The block includes the effects of all entries up to this index.
    pub index: Index,
    pub crc: u32,
    pub payload: PayloadAt,
}

/// One part of a checkpoint record; valid only when all parts are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPart {
    /// Grows with every checkpoint of the device.
    pub id: u64,
    pub part: u32,
    pub parts: u32,
    pub bytes: Bytes,
}

/// All kinds of log records. A record to be encoded borrows the command and the CRCs of its entry; a decoded record owns
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Append {
        replica: ReplicaId,
        index: Index,
        term: Term,
        kind: EntryKind,
        /// Copied forward from a segment that was about to be freed.
        copied: bool,
        descriptor: Cow<'a, [u8]>,
        crcs: Cow<'a, Crcs>,
        payload: PayloadAt,
    },
    /// An entry whose payload lies in AUs of home, in the order of the runs. Its range begins and ends with an AU of its chunk.
    Placed {
        replica: ReplicaId,
        index: Index,
        term: Term,
        kind: EntryKind,
        /// Copied forward: its payload was placed by an earlier batch.
        copied: bool,
        descriptor: Cow<'a, [u8]>,
        crcs: Cow<'a, Crcs>,
        /// [`types::entry_hash`] of the payload.
        hash: u64,
        runs: Vec<PlacedRun>,
    },
    /// An entry whose payload this log has lost, copied forward without it: it fills slot `index` alone.
    LostEntry {
        replica: ReplicaId,
        index: Index,
        term: Term,
        kind: EntryKind,
        descriptor: Cow<'a, [u8]>,
        crcs: Cow<'a, Crcs>,
        len_bytes: u32,
    },
    HardState {
        replica: ReplicaId,
        hard_state: HardState,
    },
    Create(ReplicaRecord),
    Destroy {
        replica: ReplicaId,
    },
    Checkpoint(CheckpointPart),
    /// First record of a mount, whose number is in the batch header.
    Mount,
    /// First record of a segment. A state block of so many replicas follows, perhaps over several batches. `mount`: a
    /// mount writes it, before its mount record.
    SegmentOpen {
        replicas: u32,
        mount: bool,
    },
    /// First record of a batch that continues the state block of the segment.
    StateMore {
        mount: bool,
    },
    /// The state block of the segment is complete: no older record is needed to know which replicas live.
    StateEnd,
    /// Floor of replica ids: meta reported that every lower id of this OSD was created here, so an unknown one is gone.
    ReplicaFloor(ReplicaId),
    /// A replica in a state block, or alone when it has failed.
    ReplicaState(ReplicaRecord),
    /// Part of a state block: replicas that are gone for good.
    Tombstones(Vec<ReplicaId>),
    Block(BlockRecord),
    /// The OSD's last cluster map, opaque to the log: without a reachable meta the OSD finds its peers by it.
    Map(Bytes),
    /// The replica's log begins behind `index`: every earlier entry of it is void. Its state record follows, with the decision
    /// state there; a stream brings the contents.
    Reset {
        replica: ReplicaId,
        index: Index,
        term: Term,
    },
    /// The replica has failed, and its log up to `last` is one that it had (ADR 0023): of its entries before the first log gap, if
    /// there is one. Its state record follows.
    Past {
        replica: ReplicaId,
        last: Index,
    },
    /// A forced recovery goes on from the failed replica: it takes part again. The record shares a batch with the forced step.
    Revived {
        replica: ReplicaId,
    },
    /// Create records of replicas below this id may be among the records that are missing before this one: an unknown replica may
    /// have been here (R4). `restated`, in a state block: missing before an earlier such record.
    CreatesLost {
        below: ReplicaId,
        restated: bool,
    },
}

/// Why bytes are not records. The batch's CRC is right, so the cause is a bug or a newer build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log record at byte {at}: {what}")]
pub struct RecordError {
    pub at: usize,
    pub what: &'static str,
}

/// Kinds on disk, never reused.
pub(crate) mod kind {
    pub const APPEND: u8 = 1;
    pub const HARD_STATE: u8 = 2;
    pub const CREATE: u8 = 3;
    pub const DESTROY: u8 = 4;
    pub const CHECKPOINT: u8 = 5;
    pub const MOUNT: u8 = 6;
    pub const SEGMENT_OPEN: u8 = 7;
    pub const REPLICA_STATE: u8 = 8;
    pub const TOMBSTONES: u8 = 9;
    pub const BLOCK: u8 = 10;
    pub const RESET: u8 = 11;
    pub const MAP: u8 = 12;
    pub const LOST_ENTRY: u8 = 16;
    pub const PAST: u8 = 18;
    pub const REVIVED: u8 = 20;
    pub const CREATES_LOST: u8 = 21;
    pub const STATE_MORE: u8 = 22;
    pub const STATE_END: u8 = 23;
    pub const REPLICA_FLOOR: u8 = 24;
    pub const PLACED: u8 = 25;
}

pub(crate) const FLAG_COPIED: u8 = 1;
pub(crate) const FLAG_VOTED: u8 = 2;
pub(crate) const FLAG_MOUNT: u8 = 4;
pub(crate) const FLAG_PAST: u8 = 8;
pub(crate) const FLAG_RESTATED: u8 = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct RecordHeader {
    kind: u8,
    flags: u8,
    reserved: U16,
    body_len: U32,
    replica: U64,
    index: U64,
    term: U64,
    payload_offset: U32,
    payload_len: U32,
}

const _: () = assert!(size_of::<RecordHeader>() == 40);

impl RecordHeader {
    fn new(kind: u8, replica: u64, index: u64, term: u64) -> RecordHeader {
        RecordHeader { kind, replica: replica.into(), index: index.into(), term: term.into(), ..Default::default() }
    }

    fn flag(self, flag: u8, is_set: bool) -> RecordHeader {
        RecordHeader { flags: self.flags | if is_set { flag } else { 0 }, ..self }
    }

    fn payload(self, at: PayloadAt) -> RecordHeader {
        RecordHeader { payload_offset: at.offset.into(), payload_len: at.len.into(), ..self }
    }
}

impl Record<'_> {
    /// Appends the record to the record bytes of a batch.
    ///
    /// # Panics
    /// When a part of the record is longer than the format allows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let body = start + size_of::<RecordHeader>();
        out.resize(body, 0);
        let mut header = match self {
            Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload } => {
                encode_entry(out, *kind, descriptor, crcs);
                let header = RecordHeader::new(kind::APPEND, replica.0, index.0, term.0);
                header.flag(FLAG_COPIED, *copied).payload(*payload)
            }
            Record::Placed { replica, index, term, kind, copied, descriptor, crcs, hash, runs } => {
                encode_place(out, *hash, runs);
                encode_entry(out, *kind, descriptor, crcs);
                RecordHeader::new(kind::PLACED, replica.0, index.0, term.0).flag(FLAG_COPIED, *copied)
            }
            Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes } => {
                u32s(out, &[*len_bytes]);
                encode_entry(out, *kind, descriptor, crcs);
                RecordHeader::new(kind::LOST_ENTRY, replica.0, index.0, term.0)
            }
            Record::HardState { replica, hard_state } => encode_hard_state(out, kind::HARD_STATE, *replica, hard_state),
            Record::Create(replica) => encode_replica(out, kind::CREATE, replica),
            Record::ReplicaState(replica) => encode_replica(out, kind::REPLICA_STATE, replica),
            Record::Destroy { replica } => RecordHeader::new(kind::DESTROY, replica.0, 0, 0),
            Record::Checkpoint(CheckpointPart { id, part, parts, bytes }) => {
                assert!(part < parts && *parts <= CHECKPOINT_PARTS_MAX && bytes.len() <= CHECKPOINT_PART_MAX);
                u32s(out, &[*part, *parts]);
                out.extend_from_slice(bytes);
                RecordHeader::new(kind::CHECKPOINT, 0, *id, 0)
            }
            Record::Mount => RecordHeader::new(kind::MOUNT, 0, 0, 0),
            Record::SegmentOpen { replicas, mount } => {
                RecordHeader::new(kind::SEGMENT_OPEN, 0, u64::from(*replicas), 0).flag(FLAG_MOUNT, *mount)
            }
            Record::StateMore { mount } => RecordHeader::new(kind::STATE_MORE, 0, 0, 0).flag(FLAG_MOUNT, *mount),
            Record::StateEnd => RecordHeader::new(kind::STATE_END, 0, 0, 0),
            Record::ReplicaFloor(floor) => RecordHeader::new(kind::REPLICA_FLOOR, floor.0, 0, 0),
            Record::Tombstones(replicas) => {
                replicas.iter().for_each(|replica| u64s(out, &[replica.0]));
                RecordHeader::new(kind::TOMBSTONES, 0, 0, 0)
            }
            Record::Block(BlockRecord { replica, chunk, block, index, crc, payload }) => {
                u64s(out, &[chunk.generation.0]);
                u32s(out, &[chunk.index, u32::from(*block), *crc]);
                RecordHeader::new(kind::BLOCK, replica.0, index.0, 0).payload(*payload)
            }
            Record::Map(map) => {
                assert!(map.len() <= MAP_MAX, "a map of {} bytes", map.len());
                out.extend_from_slice(map);
                RecordHeader::new(kind::MAP, 0, 0, 0)
            }
            Record::Reset { replica, index, term } => RecordHeader::new(kind::RESET, replica.0, index.0, term.0),
            Record::Past { replica, last } => RecordHeader::new(kind::PAST, replica.0, last.0, 0),
            Record::Revived { replica } => RecordHeader::new(kind::REVIVED, replica.0, 0, 0),
            Record::CreatesLost { below, restated } => {
                RecordHeader::new(kind::CREATES_LOST, below.0, 0, 0).flag(FLAG_RESTATED, *restated)
            }
        };
        header.body_len = ((out.len() - body) as u32).into();
        out[start..body].copy_from_slice(header.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
    }
}

fn decode_one(from: &mut Reader<'_>) -> Result<Record<'static>, RecordError> {
    Ok(match from.header.kind {
        kind::APPEND => {
            let (replica, index, term) = (from.replica(), from.index(), from.term());
            let (copied, payload) = (from.flag(FLAG_COPIED), from.payload()?);
            let (kind, descriptor, crcs) = decode_entry(from)?;
            if payload.len == 0 && !crcs.values.is_empty() {
                return from.fail("checksums of nothing");
            }
            let (descriptor, crcs) = (Cow::Owned(descriptor), Cow::Owned(crcs));
            Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload }
        }
        kind::PLACED => decode_placed(from)?,
        kind::LOST_ENTRY => decode_lost_entry(from)?,
        kind::HARD_STATE => Record::HardState { replica: from.replica(), hard_state: decode_hard_state(from)? },
        kind::CREATE => Record::Create(decode_replica(from)?),
        kind::REPLICA_STATE => Record::ReplicaState(decode_replica(from)?),
        kind::DESTROY => Record::Destroy { replica: from.replica() },
        kind::CHECKPOINT => {
            let (id, part, parts) = (from.index().0, from.u32()?, from.u32()?);
            let bytes = from.rest();
            if part >= parts || parts > CHECKPOINT_PARTS_MAX || bytes.len() > CHECKPOINT_PART_MAX {
                return from.fail("a checkpoint part is out of bounds");
            }
            Record::Checkpoint(CheckpointPart { id, part, parts, bytes: Bytes::copy_from_slice(bytes) })
        }
        kind::MOUNT => Record::Mount,
        kind::SEGMENT_OPEN => match u32::try_from(from.index().0) {
            Ok(replicas) => Record::SegmentOpen { replicas, mount: from.flag(FLAG_MOUNT) },
            Err(_) => return from.fail("too many replicas"),
        },
        kind::STATE_MORE => Record::StateMore { mount: from.flag(FLAG_MOUNT) },
        kind::STATE_END => Record::StateEnd,
        kind::REPLICA_FLOOR => Record::ReplicaFloor(from.replica()),
        kind::TOMBSTONES => {
            let mut replicas = Vec::with_capacity(from.body.len() / 8);
            while !from.body.is_empty() {
                replicas.push(ReplicaId(from.u64()?));
            }
            Record::Tombstones(replicas)
        }
        kind::BLOCK => decode_block(from)?,
        kind::MAP => {
            let map = from.rest();
            if map.len() > MAP_MAX {
                return from.fail("the map is too large");
            }
            Record::Map(Bytes::copy_from_slice(map))
        }
        kind::RESET => Record::Reset { replica: from.replica(), index: from.index(), term: from.term() },
        kind::PAST => Record::Past { replica: from.replica(), last: from.index() },
        kind::REVIVED => Record::Revived { replica: from.replica() },
        kind::CREATES_LOST => Record::CreatesLost { below: from.replica(), restated: from.flag(FLAG_RESTATED) },
        _ => return from.fail("unknown kind"),
    })
}

fn u32s(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}

fn u64s(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}

fn encode_entry(out: &mut Vec<u8>, kind: EntryKind, descriptor: &[u8], crcs: &Crcs) {
    assert!(descriptor.len() <= DESCRIPTOR_MAX && crcs.values.len() <= FRAGMENTS_MAX, "an entry is too large");
    out.extend_from_slice(&[kind as u8, 0]);
    out.extend_from_slice(&(descriptor.len() as u16).to_le_bytes());
    u32s(out, &[crcs.values.len() as u32, crcs.start]);
    u32s(out, &crcs.values);
    out.extend_from_slice(descriptor);
}

/// Returns the kind of the entry, its descriptor and its checksums.
fn decode_entry(from: &mut Reader<'_>) -> Result<(EntryKind, Vec<u8>, Crcs), RecordError> {
    let kind = match from.take(1)?[0] {
        0 => EntryKind::Normal,
        1 => EntryKind::ConfChange,
        2 => EntryKind::ConfChangeV2,
        _ => return from.fail("unknown kind of entry"),
    };
    from.zeros(1)?;
    let descriptor_len = usize::from(from.u16()?);
    let crc_count = from.u32()? as usize;
    let start = from.u32()?;
    if crc_count > FRAGMENTS_MAX || descriptor_len > DESCRIPTOR_MAX {
        return from.fail("the entry is too large");
    }
    let mut values = CrcList::with_capacity(crc_count);
    for _ in 0..crc_count {
        values.push(from.u32()?);
    }
    let descriptor = from.take(descriptor_len)?.to_vec();
    Ok((kind, descriptor, Crcs { start, values }))
}

fn encode_place(out: &mut Vec<u8>, hash: u64, runs: &[PlacedRun]) {
    assert!((1..=RUNS_MAX).contains(&runs.len()), "{} runs", runs.len());
    u64s(out, &[hash]);
    u32s(out, &[runs.len() as u32, 0]);
    runs.iter().for_each(|run| u32s(out, &[run.unit, run.count]));
}

fn decode_placed(from: &mut Reader<'_>) -> Result<Record<'static>, RecordError> {
    let (replica, index, term) = (from.replica(), from.index(), from.term());
    let (copied, hash, run_count) = (from.flag(FLAG_COPIED), from.u64()?, from.u32()? as usize);
    from.zeros(4)?;
    if !(1..=RUNS_MAX).contains(&run_count) {
        return from.fail("a payload of too few or too many runs");
    }
    let (mut runs, mut aus) = (Vec::with_capacity(run_count), 0u32);
    for _ in 0..run_count {
        let run = PlacedRun { unit: from.u32()?, count: from.u32()? };
        if run.count == 0 || run.count as usize > RUNS_MAX || run.unit.checked_add(run.count).is_none() {
            return from.fail("a run is out of bounds");
        }
        aus += run.count;
        runs.push(run);
    }
    let (kind, descriptor, crcs) = decode_entry(from)?;
    let range = SectorRange::checked(crcs.start, aus.saturating_mul(SECTORS_PER_AU));
    let is_of_aus = range.is_some_and(|r| r.start % SECTORS_PER_AU == 0 && r.fragment_count() == crcs.values.len());
    if !is_of_aus {
        return from.fail("checksums of another range");
    }
    let (descriptor, crcs) = (Cow::Owned(descriptor), Cow::Owned(crcs));
    Ok(Record::Placed { replica, index, term, kind, copied, descriptor, crcs, hash, runs })
}

fn decode_lost_entry(from: &mut Reader<'_>) -> Result<Record<'static>, RecordError> {
    let (replica, index, term) = (from.replica(), from.index(), from.term());
    let len_bytes = from.u32()?;
    let (kind, descriptor, crcs) = decode_entry(from)?;
    let range = SectorRange::checked(crcs.start, len_bytes / types::SECTOR as u32);
    if range.is_none_or(|r| r.len_bytes() != len_bytes as usize || r.fragment_count() != crcs.values.len()) {
        return from.fail("checksums of another length");
    }
    let (descriptor, crcs) = (Cow::Owned(descriptor), Cow::Owned(crcs));
    Ok(Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes })
}

fn decode_block(from: &mut Reader<'_>) -> Result<Record<'static>, RecordError> {
    let (replica, index, payload) = (from.replica(), from.index(), from.payload()?);
    let chunk = ChunkKey { generation: GenerationId(from.u64()?), index: from.u32()? };
    let block = from.u32()?;
    let crc = from.u32()?;
    if u64::from(block) >= types::CHUNK / types::BLOCK || payload.len != 4096 {
        return from.fail("not a block");
    }
    Ok(Record::Block(BlockRecord { replica, chunk, block: block as u16, index, crc, payload }))
}

fn encode_hard_state(out: &mut Vec<u8>, kind: u8, replica: ReplicaId, hs: &HardState) -> RecordHeader {
    u64s(out, &[hs.vote.unwrap_or_default().0]);
    RecordHeader::new(kind, replica.0, hs.commit.0, hs.term.0).flag(FLAG_VOTED, hs.vote.is_some())
}

/// Decodes the hard state; a vote of zero without the flag is no vote.
fn decode_hard_state(from: &mut Reader<'_>) -> Result<HardState, RecordError> {
    let vote = match (ReplicaId(from.u64()?), from.flag(FLAG_VOTED)) {
        (vote, true) => Some(vote),
        (ReplicaId(0), false) => None,
        _ => return from.fail("a vote that was not cast"),
    };
    Ok(HardState { term: from.term(), vote, commit: from.index() })
}

fn encode_replica(out: &mut Vec<u8>, kind: u8, r: &ReplicaRecord) -> RecordHeader {
    let id = &r.identity;
    assert!(id.members.len() <= 2 * REPLICAS_MAX, "{} has too many members", id.pg);
    assert!(r.decision.len() <= RECORD_DECISION_MAX, "decision state of {} is too large", id.replica);
    let failure = r.failure.as_ref();
    let reason = failure.map_or("", |f| &f.reason[..f.reason.floor_char_boundary(REASON_MAX)]);
    assert!(failure.is_none() || !reason.is_empty(), "{} has failed without a reason", id.replica);
    let is_past = failure.is_some_and(|f| f.is_past);
    let header = encode_hard_state(out, kind, id.replica, &r.hard_state);
    u32s(out, &[id.pg.pool.0, id.pg.n]);
    u64s(out, &[id.conf_epoch.0]);
    u32s(out, &[id.members.len() as u32, r.decision.len() as u32, reason.len() as u32, 0]);
    let (index, term) = r.fills_from.unwrap_or_default();
    assert!(r.fills_from.is_none() || index.0 > 0, "{} is filled from entry 0", id.replica);
    u64s(out, &[index.0, term.0]);
    for member in &id.members {
        u64s(out, &[member.replica.0]);
        u32s(out, &[member.osd.0, 0]);
    }
    out.extend_from_slice(&r.decision);
    out.extend_from_slice(reason.as_bytes());
    header.flag(FLAG_PAST, is_past)
}

fn decode_replica(from: &mut Reader<'_>) -> Result<ReplicaRecord, RecordError> {
    let (replica, hard_state) = (from.replica(), decode_hard_state(from)?);
    let pg = PgId { pool: PoolId(from.u32()?), n: from.u32()? };
    let conf_epoch = Epoch(from.u64()?);
    let (member_count, decision_len) = (from.u32()? as usize, from.u32()? as usize);
    let reason_len = from.u32()? as usize;
    from.zeros(4)?;
    let fills_from = match (Index(from.u64()?), Term(from.u64()?)) {
        (Index(0), Term(0)) => None,
        (Index(0), _) => return from.fail("a replica that is filled from entry 0"),
        place => Some(place),
    };
    if member_count > 2 * REPLICAS_MAX || decision_len > RECORD_DECISION_MAX || reason_len > REASON_MAX {
        return from.fail("the replica's state is too large");
    }
    let mut members = Vec::with_capacity(member_count);
    for _ in 0..member_count {
        members.push(Member { replica: ReplicaId(from.u64()?), osd: OsdId(from.u32()?) });
        from.zeros(4)?;
    }
    let decision = Bytes::copy_from_slice(from.take(decision_len)?);
    let is_past = from.flag(FLAG_PAST);
    let failure = match std::str::from_utf8(from.take(reason_len)?) {
        Ok("") if is_past => return from.fail("a failure without a reason"),
        Ok("") => None,
        Ok(text) => Some(Failure { reason: text.to_owned(), is_past }),
        Err(_) => return from.fail("a reason that is not text"),
    };
    let identity = ReplicaIdentity { pg, replica, conf_epoch, members };
    Ok(ReplicaRecord { identity, hard_state, decision, fills_from, failure })
}

/// Takes the fields of a header and the front of a body. A field that no call has taken must be zero at the end.
struct Reader<'a> {
    header: RecordHeader,
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, what: &'static str) -> Result<T, RecordError> {
        Err(RecordError { at: self.at, what })
    }

    fn replica(&mut self) -> ReplicaId {
        ReplicaId(mem::take(&mut self.header.replica).get())
    }

    fn index(&mut self) -> Index {
        Index(mem::take(&mut self.header.index).get())
    }

    fn term(&mut self) -> Term {
        Term(mem::take(&mut self.header.term).get())
    }

    fn flag(&mut self, flag: u8) -> bool {
        let is_set = self.header.flags & flag != 0;
        self.header.flags &= !flag;
        is_set
    }

    fn payload(&mut self) -> Result<PayloadAt, RecordError> {
        let offset = mem::take(&mut self.header.payload_offset).get();
        let len = mem::take(&mut self.header.payload_len).get();
        match offset.is_multiple_of(512) && len.is_multiple_of(512) {
            true => Ok(PayloadAt { offset, len }),
            false => self.fail("a payload is not made of sectors"),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let Some((head, tail)) = self.body.split_at_checked(len) else {
            return self.fail("the body is too short");
        };
        self.body = tail;
        Ok(head)
    }

    fn rest(&mut self) -> &'a [u8] {
        mem::take(&mut self.body)
    }

    /// Skips bytes without a meaning, which must be zero.
    fn zeros(&mut self, len: usize) -> Result<(), RecordError> {
        match self.take(len)?.iter().all(|b| *b == 0) {
            true => Ok(()),
            false => self.fail("reserved bytes are set"),
        }
    }

    fn u16(&mut self) -> Result<u16, RecordError> {
        let b = self.take(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        let low = u64::from(self.u32()?);
        Ok(low | u64::from(self.u32()?) << 32)
    }

    fn finish(self) -> Result<(), RecordError> {
        let RecordHeader { kind, body_len, .. } = self.header;
        let all_taken = RecordHeader { kind, body_len, ..Default::default() };
        if self.header.as_bytes() != all_taken.as_bytes() {
            return self.fail("a field that the kind does not have is set");
        }
        if !self.body.is_empty() {
            return self.fail("the body is too long");
        }
        Ok(())
    }
}

/// Decodes all records of a batch whose CRC is right.
///
/// # Errors
/// Names the first byte that no encoder of this build produces.
pub fn decode_records(bytes: &[u8], count: u32) -> Result<Vec<Record<'static>>, RecordError> {
    let header_len = size_of::<RecordHeader>();
    let mut records = Vec::with_capacity((count as usize).min(bytes.len() / header_len));
    let mut at = 0;
    while at < bytes.len() {
        let (header, rest) =
            RecordHeader::read_from_prefix(&bytes[at..]).map_err(|_| RecordError { at, what: "cut short" })?;
        let len = header.body_len.get() as usize;
        if len > rest.len() {
            return Err(RecordError { at, what: "the body leaves the batch" });
        }
        let mut reader = Reader { header, body: &rest[..len], at };
        records.push(decode_one(&mut reader)?);
        reader.finish()?;
        let end = (header_len + len).next_multiple_of(8);
        let padding = bytes.get(at + header_len + len..at + end);
        if padding.is_none_or(|zeros| zeros.iter().any(|b| *b != 0)) {
            return Err(RecordError { at, what: "a record is not filled up with zeros" });
        }
        at += end;
    }
    if records.len() != count as usize {
        return Err(RecordError { at, what: "the count is wrong" });
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
