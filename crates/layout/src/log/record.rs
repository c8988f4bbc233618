//! The records of a batch.
//!
//! Each record is a fixed header and a body, both multiples of 8 bytes. Replay takes records in log order: appending
//! (i, t) removes every earlier record at or above i; a copied record fills slot i alone (R9).
//!
//! Invariant: `decode_records` returns exactly what `put` was given, or an error. It never panics, and it reserves no
//! more memory than the bytes it was given justify.

use super::{CHECKPOINT_PART_MAX, CHECKPOINT_PARTS_MAX, DAMAGE_MAX, DECISION_MAX, MAP_MAX};
use bytes::Bytes;
use types::limits::{DESCRIPTOR_MAX, FRAGMENTS_MAX, REPLICAS_MAX};
use types::map::Member;
use types::store::{Crcs, HardState, ReplicaIdentity};
use types::{ChunkKey, EntryKind, Epoch, Index, OsdId, PgId, PoolId, ReplicaId, SectorRange, Term, VolumeId};
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

/// A replica as the state block of a segment stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    pub identity: ReplicaIdentity,
    pub hard_state: HardState,
    /// Decision state of index 0, until a checkpoint has one. It is opaque.
    pub decision: Bytes,
    /// Reason for which the replica is quarantined; empty: it is not.
    pub damage: String,
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

/// All kinds of log records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Append {
        replica: ReplicaId,
        index: Index,
        term: Term,
        kind: EntryKind,
        /// Copied forward from a segment that was about to be freed.
        copied: bool,
        descriptor: Bytes,
        crcs: Crcs,
        payload: PayloadAt,
    },
    /// An entry whose payload this log has lost, copied forward without it: it fills slot `index` alone.
    LostEntry {
        replica: ReplicaId,
        index: Index,
        term: Term,
        kind: EntryKind,
        descriptor: Bytes,
        crcs: Crcs,
        len_bytes: u32,
    },
    /// Truncation: every earlier entry of the replica above `last` is void.
    Cut {
        replica: ReplicaId,
        last: Index,
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
    /// A replica in a state block, or alone when the replica has become damaged.
    ReplicaState(ReplicaRecord),
    /// Part of a state block: replicas that are gone for good.
    Tombstones(Vec<ReplicaId>),
    Block(BlockRecord),
    /// The OSD's last cluster map, opaque to the log: without a reachable meta the OSD finds its peers by it.
    Map(Bytes),
    /// A stream has replaced the replica's contents as of `index`: every earlier entry of it is void. The record occurs
    /// only in the batch that ends the checkpoint of the same index.
    Reset {
        replica: ReplicaId,
        index: Index,
        term: Term,
    },
    /// A mount found a log gap that may have held records of this replica (ADR 0007), which is suspect from here on.
    /// Its log keeps the entries up to `last` that precede the gap, and the appends that follow this record.
    Doubt {
        replica: ReplicaId,
        last: Index,
    },
    /// The replica is suspect still, in a state block; or is so from here on, behind a truncation.
    InDoubt {
        replica: ReplicaId,
    },
    /// The replica is cleared: its log has reached its catch-up target.
    Sure {
        replica: ReplicaId,
    },
    /// Create records may be among the missing records: every replica created on this store is suspect (R4).
    StoreInDoubt,
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
    pub const CUT: u8 = 17;
    pub const DOUBT: u8 = 18;
    pub const IN_DOUBT: u8 = 19;
    pub const SURE: u8 = 20;
    pub const STORE_IN_DOUBT: u8 = 21;
    pub const STATE_MORE: u8 = 22;
    pub const STATE_END: u8 = 23;
    pub const REPLICA_FLOOR: u8 = 24;
}

pub(crate) const FLAG_COPIED: u8 = 1;
pub(crate) const FLAG_VOTED: u8 = 2;
pub(crate) const FLAG_MOUNT: u8 = 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
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

/// Encoders: each appends one record to the record bytes of a batch.
pub mod put {
    use super::*;

    fn open(out: &mut Vec<u8>, kind: u8, flags: u8, (replica, index, term): (u64, u64, u64), at: PayloadAt) -> usize {
        let header = RecordHeader {
            kind,
            flags,
            reserved: 0.into(),
            body_len: 0.into(),
            replica: replica.into(),
            index: index.into(),
            term: term.into(),
            payload_offset: at.offset.into(),
            payload_len: at.len.into(),
        };
        let start = out.len();
        out.extend_from_slice(header.as_bytes());
        start
    }

    fn close(out: &mut Vec<u8>, start: usize) {
        let body_len = (out.len() - start - size_of::<RecordHeader>()) as u32;
        out[start + 4..start + 8].copy_from_slice(&body_len.to_le_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
    }

    fn u32s(out: &mut Vec<u8>, values: &[u32]) {
        for v in values {
            out.extend_from_slice(&v.to_le_bytes());
        }
    }

    fn u64s(out: &mut Vec<u8>, values: &[u64]) {
        for v in values {
            out.extend_from_slice(&v.to_le_bytes());
        }
    }

    /// Puts one raft entry.
    #[allow(clippy::too_many_arguments)] // the fields of the record, in its order
    pub fn append(
        out: &mut Vec<u8>,
        replica: ReplicaId,
        (index, term): (Index, Term),
        kind: EntryKind,
        copied: bool,
        descriptor: &[u8],
        crcs: &Crcs,
        at: PayloadAt,
    ) {
        let flags = if copied { FLAG_COPIED } else { 0 };
        let start = open(out, kind::APPEND, flags, (replica.0, index.0, term.0), at);
        put_entry(out, kind, descriptor, crcs);
        close(out, start);
    }

    /// Puts one raft entry without its payload of `len_bytes`, which is lost.
    pub fn lost_entry(
        out: &mut Vec<u8>,
        replica: ReplicaId,
        (index, term): (Index, Term),
        kind: EntryKind,
        descriptor: &[u8],
        crcs: &Crcs,
        len_bytes: u32,
    ) {
        let start = open(out, kind::LOST_ENTRY, 0, (replica.0, index.0, term.0), PayloadAt::default());
        u32s(out, &[len_bytes]);
        put_entry(out, kind, descriptor, crcs);
        close(out, start);
    }

    /// Puts a truncation: entries above `last` are void.
    pub fn cut(out: &mut Vec<u8>, replica: ReplicaId, last: Index) {
        let start = open(out, kind::CUT, 0, (replica.0, last.0, 0), PayloadAt::default());
        close(out, start);
    }

    fn put_entry(out: &mut Vec<u8>, kind: EntryKind, descriptor: &[u8], crcs: &Crcs) {
        assert!(descriptor.len() <= DESCRIPTOR_MAX && crcs.values.len() <= FRAGMENTS_MAX, "an entry is too large");
        out.extend_from_slice(&[kind as u8, 0]);
        out.extend_from_slice(&(descriptor.len() as u16).to_le_bytes());
        u32s(out, &[crcs.values.len() as u32, crcs.start]);
        u32s(out, &crcs.values);
        out.extend_from_slice(descriptor);
    }

    /// Puts raft's hard state.
    pub fn hard_state(out: &mut Vec<u8>, replica: ReplicaId, hs: HardState) {
        let flags = if hs.vote.is_some() { FLAG_VOTED } else { 0 };
        let start = open(out, kind::HARD_STATE, flags, (replica.0, hs.commit.0, hs.term.0), PayloadAt::default());
        u64s(out, &[hs.vote.unwrap_or_default().0]);
        close(out, start);
    }

    fn replica_record(out: &mut Vec<u8>, kind: u8, r: &ReplicaRecord) {
        let hs = r.hard_state;
        let flags = if hs.vote.is_some() { FLAG_VOTED } else { 0 };
        let id = &r.identity;
        assert!(id.members.len() <= 2 * REPLICAS_MAX, "{} has too many members", id.pg);
        assert!(r.decision.len() <= DECISION_MAX, "decision state of {} is too large", id.replica);
        let damage = cut_text(&r.damage);
        let start = open(out, kind, flags, (id.replica.0, hs.commit.0, hs.term.0), PayloadAt::default());
        u64s(out, &[hs.vote.unwrap_or_default().0]);
        u32s(out, &[id.pg.pool.0, id.pg.n]);
        u64s(out, &[id.lineage, id.conf_epoch.0]);
        u32s(out, &[id.members.len() as u32, r.decision.len() as u32, damage.len() as u32, 0]);
        for member in &id.members {
            u64s(out, &[member.replica.0]);
            u32s(out, &[member.osd.0, 0]);
        }
        out.extend_from_slice(&r.decision);
        out.extend_from_slice(damage.as_bytes());
        close(out, start);
    }

    fn cut_text(text: &str) -> &str {
        let mut end = text.len().min(DAMAGE_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[..end]
    }

    /// Puts the create record of a replica.
    pub fn create(out: &mut Vec<u8>, replica: &ReplicaRecord) {
        replica_record(out, kind::CREATE, replica);
    }

    /// Puts a replica of a state block, or one that has become damaged.
    pub fn replica_state(out: &mut Vec<u8>, replica: &ReplicaRecord) {
        replica_record(out, kind::REPLICA_STATE, replica);
    }

    /// Puts the end of a replica.
    pub fn destroy(out: &mut Vec<u8>, replica: ReplicaId) {
        let start = open(out, kind::DESTROY, 0, (replica.0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts one part of a checkpoint record.
    pub fn checkpoint(out: &mut Vec<u8>, part: &CheckpointPart) {
        assert!(
            part.part < part.parts && part.parts <= CHECKPOINT_PARTS_MAX && part.bytes.len() <= CHECKPOINT_PART_MAX
        );
        let start = open(out, kind::CHECKPOINT, 0, (0, part.id, 0), PayloadAt::default());
        u32s(out, &[part.part, part.parts]);
        out.extend_from_slice(&part.bytes);
        close(out, start);
    }

    /// Puts the first record of a mount.
    pub fn mount(out: &mut Vec<u8>) {
        let start = open(out, kind::MOUNT, 0, (0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the first record of a segment.
    pub fn segment_open(out: &mut Vec<u8>, replicas: u32, mount: bool) {
        let flags = if mount { FLAG_MOUNT } else { 0 };
        let start = open(out, kind::SEGMENT_OPEN, flags, (0, u64::from(replicas), 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the record that continues the state block of the segment.
    pub fn state_more(out: &mut Vec<u8>, mount: bool) {
        let flags = if mount { FLAG_MOUNT } else { 0 };
        let start = open(out, kind::STATE_MORE, flags, (0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the end of the state block.
    pub fn state_end(out: &mut Vec<u8>) {
        let start = open(out, kind::STATE_END, 0, (0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the floor: unknown replicas below `floor` are gone for good.
    pub fn replica_floor(out: &mut Vec<u8>, floor: ReplicaId) {
        let start = open(out, kind::REPLICA_FLOOR, 0, (floor.0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts replicas that are gone for good.
    pub fn tombstones(out: &mut Vec<u8>, replicas: &[ReplicaId]) {
        let start = open(out, kind::TOMBSTONES, 0, (0, 0, 0), PayloadAt::default());
        for replica in replicas {
            u64s(out, &[replica.0]);
        }
        close(out, start);
    }

    /// Puts a reset: all earlier entries of the replica are void, because a stream has brought it to `index`.
    pub fn reset(out: &mut Vec<u8>, replica: ReplicaId, index: Index, term: Term) {
        let start = open(out, kind::RESET, 0, (replica.0, index.0, term.0), PayloadAt::default());
        close(out, start);
    }

    /// Puts a suspect record, for a replica whose log has lost records: see [`Record::Doubt`].
    pub fn doubt(out: &mut Vec<u8>, replica: ReplicaId, last: Index) {
        let start = open(out, kind::DOUBT, 0, (replica.0, last.0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the record that a replica is suspect, without a log gap: see [`Record::InDoubt`].
    pub fn in_doubt(out: &mut Vec<u8>, replica: ReplicaId) {
        let start = open(out, kind::IN_DOUBT, 0, (replica.0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the record that clears a replica.
    pub fn sure(out: &mut Vec<u8>, replica: ReplicaId) {
        let start = open(out, kind::SURE, 0, (replica.0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the record that create records may be lost.
    pub fn store_in_doubt(out: &mut Vec<u8>) {
        let start = open(out, kind::STORE_IN_DOUBT, 0, (0, 0, 0), PayloadAt::default());
        close(out, start);
    }

    /// Puts the last cluster map.
    pub fn map(out: &mut Vec<u8>, map: &[u8]) {
        assert!(map.len() <= MAP_MAX, "a map of {} bytes", map.len());
        let start = open(out, kind::MAP, 0, (0, 0, 0), PayloadAt::default());
        out.extend_from_slice(map);
        close(out, start);
    }

    /// Puts a completed block.
    pub fn block(out: &mut Vec<u8>, block: &BlockRecord) {
        let start = open(out, kind::BLOCK, 0, (block.replica.0, block.index.0, 0), block.payload);
        u64s(out, &[block.chunk.volume.0]);
        u32s(out, &[block.chunk.index, u32::from(block.block), block.crc]);
        close(out, start);
    }
}

/// Reads fixed values off the front of a body.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, what: &'static str) -> Result<T, RecordError> {
        Err(RecordError { at: self.at, what })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        if len > self.bytes.len() {
            return self.fail("the body is too short");
        }
        let (head, tail) = self.bytes.split_at(len);
        self.bytes = tail;
        Ok(head)
    }

    /// Skips bytes without a meaning, which must be zero.
    fn zeros(&mut self, len: usize) -> Result<(), RecordError> {
        match self.take(len)?.iter().all(|b| *b == 0) {
            true => Ok(()),
            false => self.fail("reserved bytes are set"),
        }
    }

    /// Reads the replica that was voted for; zero without the flag is no vote.
    fn vote(&mut self, flags: u8) -> Result<Option<ReplicaId>, RecordError> {
        match (ReplicaId(self.u64()?), flags & FLAG_VOTED != 0) {
            (vote, true) => Ok(Some(vote)),
            (ReplicaId(0), false) => Ok(None),
            _ => self.fail("a vote that was not cast"),
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
}

/// Decodes all records of a batch whose CRC is right.
///
/// # Errors
/// Names the first byte that no encoder of this build produces.
pub fn decode_records(bytes: &[u8], count: u32) -> Result<Vec<Record>, RecordError> {
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
        let mut body = Reader { bytes: &rest[..len], at };
        records.push(decode_one(&header, &mut body)?);
        if !body.bytes.is_empty() {
            return body.fail("the body is too long");
        }
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

fn decode_one(h: &RecordHeader, body: &mut Reader<'_>) -> Result<Record, RecordError> {
    let replica = ReplicaId(h.replica.get());
    let index = Index(h.index.get());
    let term = Term(h.term.get());
    let payload = PayloadAt { offset: h.payload_offset.get(), len: h.payload_len.get() };
    if !payload.offset.is_multiple_of(512) || !payload.len.is_multiple_of(512) {
        return body.fail("a payload is not made of sectors");
    }
    if !uses_only_its_own(h) {
        return body.fail("a field that the kind does not have is set");
    }
    Ok(match h.kind {
        kind::APPEND => {
            let copied = h.flags & FLAG_COPIED != 0;
            let (kind, descriptor, crcs) = decode_entry(body)?;
            if payload.len == 0 && !crcs.values.is_empty() {
                return body.fail("checksums of nothing");
            }
            Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload }
        }
        kind::LOST_ENTRY => decode_lost_entry(body, (replica, index, term))?,
        kind::HARD_STATE => {
            let vote = body.vote(h.flags)?;
            Record::HardState { replica, hard_state: HardState { term, vote, commit: index } }
        }
        kind::CREATE => Record::Create(decode_replica(h, body)?),
        kind::REPLICA_STATE => Record::ReplicaState(decode_replica(h, body)?),
        kind::DESTROY => Record::Destroy { replica },
        kind::CHECKPOINT => {
            let (part, parts) = (body.u32()?, body.u32()?);
            let rest = body.take(body.bytes.len())?;
            if part >= parts || parts > CHECKPOINT_PARTS_MAX || rest.len() > CHECKPOINT_PART_MAX {
                return body.fail("a checkpoint part is out of bounds");
            }
            Record::Checkpoint(CheckpointPart { id: index.0, part, parts, bytes: Bytes::copy_from_slice(rest) })
        }
        kind::MOUNT => Record::Mount,
        kind::SEGMENT_OPEN => match u32::try_from(index.0) {
            Ok(replicas) => Record::SegmentOpen { replicas, mount: h.flags & FLAG_MOUNT != 0 },
            Err(_) => return body.fail("too many replicas"),
        },
        kind::TOMBSTONES => {
            let mut replicas = Vec::with_capacity(body.bytes.len() / 8);
            while !body.bytes.is_empty() {
                replicas.push(ReplicaId(body.u64()?));
            }
            Record::Tombstones(replicas)
        }
        kind::BLOCK => decode_block(body, (replica, index, payload))?,
        kind::MAP => {
            let rest = body.take(body.bytes.len())?;
            if rest.len() > MAP_MAX {
                return body.fail("the map is too large");
            }
            Record::Map(Bytes::copy_from_slice(rest))
        }
        kind::CUT => Record::Cut { replica, last: index },
        kind::RESET => Record::Reset { replica, index, term },
        kind::DOUBT => Record::Doubt { replica, last: index },
        kind::IN_DOUBT => Record::InDoubt { replica },
        kind::SURE => Record::Sure { replica },
        kind::STORE_IN_DOUBT => Record::StoreInDoubt,
        kind::STATE_MORE => Record::StateMore { mount: h.flags & FLAG_MOUNT != 0 },
        kind::STATE_END => Record::StateEnd,
        kind::REPLICA_FLOOR => Record::ReplicaFloor(replica),
        _ => return body.fail("unknown kind"),
    })
}

/// Whether the flags and header fields that the kind does not use are zero.
fn uses_only_its_own(h: &RecordHeader) -> bool {
    let (flags, replica, index, term, payload) = match h.kind {
        kind::APPEND => (FLAG_COPIED, true, true, true, true),
        kind::HARD_STATE | kind::CREATE | kind::REPLICA_STATE => (FLAG_VOTED, true, true, true, false),
        kind::RESET | kind::LOST_ENTRY => (0, true, true, true, false),
        kind::CUT | kind::DOUBT => (0, true, true, false, false),
        kind::BLOCK => (0, true, true, false, true),
        kind::DESTROY | kind::IN_DOUBT | kind::SURE | kind::REPLICA_FLOOR => (0, true, false, false, false),
        kind::CHECKPOINT => (0, false, true, false, false),
        kind::SEGMENT_OPEN => (FLAG_MOUNT, false, true, false, false),
        kind::STATE_MORE => (FLAG_MOUNT, false, false, false, false),
        _ => (0, false, false, false, false),
    };
    h.flags & !flags == 0
        && h.reserved.get() == 0
        && (replica || h.replica.get() == 0)
        && (index || h.index.get() == 0)
        && (term || h.term.get() == 0)
        && (payload || (h.payload_offset.get(), h.payload_len.get()) == (0, 0))
}

fn decode_entry(body: &mut Reader<'_>) -> Result<(EntryKind, Bytes, Crcs), RecordError> {
    let kind = match body.take(1)?[0] {
        0 => EntryKind::Normal,
        1 => EntryKind::ConfChange,
        2 => EntryKind::ConfChangeV2,
        _ => return body.fail("unknown kind of entry"),
    };
    body.zeros(1)?;
    let descriptor_len = usize::from(body.u16()?);
    let crc_count = body.u32()? as usize;
    let start = body.u32()?;
    if crc_count > FRAGMENTS_MAX || descriptor_len > DESCRIPTOR_MAX {
        return body.fail("the entry is too large");
    }
    let mut values = Vec::with_capacity(crc_count);
    for _ in 0..crc_count {
        values.push(body.u32()?);
    }
    let descriptor = Bytes::copy_from_slice(body.take(descriptor_len)?);
    Ok((kind, descriptor, Crcs { start, values }))
}

fn decode_lost_entry(
    body: &mut Reader<'_>,
    (replica, index, term): (ReplicaId, Index, Term),
) -> Result<Record, RecordError> {
    let len_bytes = body.u32()?;
    let (kind, descriptor, crcs) = decode_entry(body)?;
    let range = SectorRange::checked(crcs.start, len_bytes / types::SECTOR as u32);
    if range.is_none_or(|r| r.len_bytes() != len_bytes as usize || r.fragment_count() != crcs.values.len()) {
        return body.fail("checksums of another length");
    }
    Ok(Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes })
}

fn decode_block(
    body: &mut Reader<'_>,
    (replica, index, payload): (ReplicaId, Index, PayloadAt),
) -> Result<Record, RecordError> {
    let chunk = ChunkKey { volume: VolumeId(body.u64()?), index: body.u32()? };
    let block = body.u32()?;
    let crc = body.u32()?;
    if u64::from(block) >= types::CHUNK / types::BLOCK || payload.len != 4096 {
        return body.fail("not a block");
    }
    Ok(Record::Block(BlockRecord { replica, chunk, block: block as u16, index, crc, payload }))
}

fn decode_replica(h: &RecordHeader, body: &mut Reader<'_>) -> Result<ReplicaRecord, RecordError> {
    let vote = body.vote(h.flags)?;
    let pg = PgId { pool: PoolId(body.u32()?), n: body.u32()? };
    let (lineage, conf_epoch) = (body.u64()?, Epoch(body.u64()?));
    let (member_count, decision_len) = (body.u32()? as usize, body.u32()? as usize);
    let damage_len = body.u32()? as usize;
    body.zeros(4)?;
    if member_count > 2 * REPLICAS_MAX || decision_len > DECISION_MAX || damage_len > DAMAGE_MAX {
        return body.fail("the replica's state is too large");
    }
    let mut members = Vec::with_capacity(member_count);
    for _ in 0..member_count {
        members.push(Member { replica: ReplicaId(body.u64()?), osd: OsdId(body.u32()?) });
        body.zeros(4)?;
    }
    let decision = Bytes::copy_from_slice(body.take(decision_len)?);
    let damage = match std::str::from_utf8(body.take(damage_len)?) {
        Ok(text) => text.to_owned(),
        Err(_) => return body.fail("a reason that is not text"),
    };
    let replica = ReplicaId(h.replica.get());
    let hard_state = HardState { term: Term(h.term.get()), vote, commit: Index(h.index.get()) };
    let identity = ReplicaIdentity { pg, replica, lineage, conf_epoch, members };
    Ok(ReplicaRecord { identity, hard_state, decision, damage })
}

#[cfg(test)]
mod tests;
