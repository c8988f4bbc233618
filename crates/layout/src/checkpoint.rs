//! The bytes of a checkpoint record: the root of home, opaque to the log.
//!
//! A checkpoint is self-contained: for each replica it names the checkpoint index (K), the slots of the decision state
//! and the slots of *all* its directory pages. No earlier record is needed, so a log segment is freed without a look at
//! home (ADR 0002). The record is split into parts that fit a log record each; only all parts together are a
//! checkpoint.
//!
//! Invariant: [`Checkpoint::decode`] accepts only a whole, unmixed, verified set of parts.

use crate::home::{Geometry, PAGE, PagePtr, RawPagePtr};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::limits::{DECISION_LEN_MAX, DISSOLVED_LEN_MAX};
use types::{Index, ReplicaId, Term};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the record.
pub const CHECKPOINT_VERSION: u16 = 2;
/// Longest body of one part; with its header it fits a log record.
pub const PART_BODY_MAX: usize = (32 << 10) - 64;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"BCKP");

const _: () = assert!(size_of::<RawPart>() == 48);
const _: () = assert!(size_of::<RawHead>() == 48);
const _: () = assert!(size_of::<RawReplica>() == 64);

/// Content of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub geometry: Geometry,
    /// Sequence number, which grows by one with every round of this home.
    pub sequence: u64,
    /// Replicas, ascending by id.
    pub replicas: Vec<ReplicaRecord>,
}

/// State of one replica in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    pub replica: ReplicaId,
    /// Checkpoint index (K) and its term.
    pub index: Index,
    pub term: Term,
    /// Commit index, at or above the checkpoint index and durable in the log before this record.
    pub commit: Index,
    pub decision_len: u32,
    /// One slot for each 4 KiB of decision state.
    pub decision: Vec<PagePtr>,
    /// Bytes of the list of dissolved generations, and one slot for each 4 KiB of it.
    pub dissolved: (u32, Vec<PagePtr>),
    /// Directory pages by number; `None` for one without entries.
    pub directory: Vec<Option<PagePtr>>,
}

/// Why records are not a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("a part of the checkpoint record is malformed or fails its checksum")]
    Part,
    #[error("parts of the checkpoint record are missing or of different checkpoints")]
    Mixed,
    #[error("checkpoint format version {0} is not known here")]
    Version(u16),
    #[error("the checkpoint record contradicts itself")]
    Value,
}

/// Header of every part. The CRC covers this header, with the field itself zero, and the body.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPart {
    magic: U32,
    version: U16,
    reserved: U16,
    sequence: U64,
    part: U32,
    part_count: U32,
    body_len: U32,
    crc: U32,
    reserved2: [U64; 2],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    slot_count: U32,
    au_count: U32,
    replica_count: U32,
    flags: U32,
    reserved: [U64; 4],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReplica {
    replica: U64,
    index: U64,
    term: U64,
    commit: U64,
    decision_len: U32,
    directory_pages: U32,
    dissolved_len: U32,
    reserved: [U32; 5],
}

/// Finds the newest whole checkpoint among the parts of a log, in the order of the log.
///
/// Memory: the parts of two checkpoints.
#[derive(Debug, Default)]
pub struct NewestCheckpoint {
    whole: Option<(u64, Vec<Bytes>)>,
    /// The checkpoint whose parts come: its number, its count of parts, and the parts by number.
    coming: Option<(u64, u32, BTreeMap<u32, Bytes>)>,
}

impl NewestCheckpoint {
    /// Takes a part: number of its checkpoint, its own number, the count of parts, its bytes.
    pub fn take(&mut self, id: u64, part: u32, parts: u32, bytes: &Bytes) {
        if self.coming.as_ref().is_none_or(|(coming, count, _)| (*coming, *count) != (id, parts)) {
            self.coming = Some((id, parts, BTreeMap::new()));
        }
        let Some((_, _, found)) = &mut self.coming else { return };
        found.insert(part, bytes.clone());
        if found.len() as u64 == u64::from(parts) && self.whole.as_ref().is_none_or(|(whole, _)| *whole <= id) {
            self.whole = Some((id, found.values().cloned().collect()));
        }
    }

    /// Decodes the newest whole checkpoint; `None` when there is none.
    ///
    /// # Errors
    /// Those of [`Checkpoint::decode`].
    pub fn decode(&self) -> Option<Result<Checkpoint, CheckpointError>> {
        self.whole.as_ref().map(|(_, parts)| Checkpoint::decode(parts))
    }
}

/// Returns the slots that a decision state, or a list of dissolved generations, of `len` bytes takes.
pub fn decision_pages(len: usize) -> usize {
    len.div_ceil(PAGE)
}

impl Checkpoint {
    /// Returns the parts, in order.
    ///
    /// # Panics
    /// When the slots of a replica's decision state, or of its dissolved list, do not match the length.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut body = Vec::new();
        let head = RawHead {
            slot_count: U32::new(self.geometry.slot_count),
            au_count: U32::new(self.geometry.au_count),
            replica_count: U32::new(self.replicas.len() as u32),
            flags: U32::ZERO,
            reserved: [U64::ZERO; 4],
        };
        body.extend_from_slice(head.as_bytes());
        for r in &self.replicas {
            assert_eq!(decision_pages(r.decision_len as usize), r.decision.len(), "decision slots of {}", r.replica);
            let (dissolved_len, dissolved) = &r.dissolved;
            assert_eq!(decision_pages(*dissolved_len as usize), dissolved.len(), "dissolved slots of {}", r.replica);
            assert!(r.commit >= r.index, "{}: commit {} below K {}", r.replica, r.commit, r.index);
            let raw = RawReplica {
                replica: U64::new(r.replica.0),
                index: U64::new(r.index.0),
                term: U64::new(r.term.0),
                commit: U64::new(r.commit.0),
                decision_len: U32::new(r.decision_len),
                directory_pages: U32::new(r.directory.len() as u32),
                dissolved_len: U32::new(*dissolved_len),
                reserved: [U32::ZERO; 5],
            };
            body.extend_from_slice(raw.as_bytes());
            let paged = r.decision.iter().chain(dissolved).copied().map(Some);
            for ptr in paged.chain(r.directory.iter().copied()) {
                body.extend_from_slice(RawPagePtr::new(ptr).as_bytes());
            }
        }
        let part_count = body.len().div_ceil(PART_BODY_MAX) as u32;
        body.chunks(PART_BODY_MAX).zip(0..).map(|(bytes, part)| self.part(bytes, part, part_count)).collect()
    }

    fn part(&self, body: &[u8], part: u32, part_count: u32) -> Bytes {
        let mut head = RawPart {
            magic: U32::new(MAGIC),
            version: U16::new(CHECKPOINT_VERSION),
            reserved: U16::ZERO,
            sequence: U64::new(self.sequence),
            part: U32::new(part),
            part_count: U32::new(part_count),
            body_len: U32::new(body.len() as u32),
            crc: U32::ZERO,
            reserved2: [U64::ZERO; 2],
        };
        head.crc = U32::new(types::crc::append(types::crc32c(head.as_bytes()), body));
        [head.as_bytes(), body].concat().into()
    }

    /// Decodes the checkpoint that `parts`, in order, form.
    ///
    /// # Errors
    /// A [`CheckpointError`]; never a panic, whatever the bytes.
    pub fn decode(parts: &[Bytes]) -> Result<Checkpoint, CheckpointError> {
        let mut body = Vec::new();
        let mut sequence = None;
        for (n, part) in parts.iter().enumerate() {
            let (of, count, bytes) = decode_part(part, n)?;
            if count as usize != parts.len() || *sequence.get_or_insert(of) != of {
                return Err(CheckpointError::Mixed);
            }
            // Every part but the last is full: a body is split in one way only.
            let is_last = n + 1 == parts.len();
            if bytes.is_empty() || bytes.len() > PART_BODY_MAX || !is_last && bytes.len() < PART_BODY_MAX {
                return Err(CheckpointError::Part);
            }
            body.extend_from_slice(bytes);
        }
        let sequence = sequence.ok_or(CheckpointError::Mixed)?;
        let mut rest = body.as_slice();
        let head: &RawHead = take(&mut rest)?;
        let geometry = Geometry { slot_count: head.slot_count.get(), au_count: head.au_count.get() };
        if head.flags.get() != 0 || head.reserved != [U64::ZERO; 4] {
            return Err(CheckpointError::Value);
        }
        let mut replicas: Vec<ReplicaRecord> = Vec::new();
        for _ in 0..head.replica_count.get() {
            let replica = decode_replica(&mut rest, geometry)?;
            if replicas.last().is_some_and(|last| last.replica >= replica.replica) {
                return Err(CheckpointError::Value);
            }
            replicas.push(replica);
        }
        if !rest.is_empty() {
            return Err(CheckpointError::Value);
        }
        Ok(Checkpoint { geometry, sequence, replicas })
    }
}

/// Returns sequence, part count and body of part `n`.
fn decode_part(part: &[u8], n: usize) -> Result<(u64, u32, &[u8]), CheckpointError> {
    let (head, body) = RawPart::read_from_prefix(part).map_err(|_| CheckpointError::Part)?;
    if head.magic.get() != MAGIC {
        return Err(CheckpointError::Part);
    }
    if head.version.get() != CHECKPOINT_VERSION {
        return Err(CheckpointError::Version(head.version.get()));
    }
    let mut blank = head;
    let crc = std::mem::replace(&mut blank.crc, U32::ZERO).get();
    if blank.body_len.get() as usize != body.len() || types::crc::append(types::crc32c(blank.as_bytes()), body) != crc {
        return Err(CheckpointError::Part);
    }
    if blank.reserved != U16::ZERO || blank.reserved2 != [U64::ZERO; 2] {
        return Err(CheckpointError::Value);
    }
    if blank.part.get() as usize != n {
        return Err(CheckpointError::Mixed);
    }
    Ok((blank.sequence.get(), blank.part_count.get(), body))
}

fn decode_replica(rest: &mut &[u8], geometry: Geometry) -> Result<ReplicaRecord, CheckpointError> {
    let raw: &RawReplica = take(rest)?;
    let (decision_len, dissolved_len) = (raw.decision_len.get(), raw.dissolved_len.get());
    if decision_len as usize > DECISION_LEN_MAX
        || dissolved_len as usize > DISSOLVED_LEN_MAX
        || raw.directory_pages.get() > geometry.slot_count
        || raw.commit.get() < raw.index.get()
        || raw.reserved != [U32::ZERO; 5]
    {
        return Err(CheckpointError::Value);
    }
    let mut pointers = |count: usize| {
        let mut list = Vec::new();
        for _ in 0..count {
            let raw = *take::<RawPagePtr>(rest)?;
            let ptr = raw.get();
            if !raw.is_sound() || ptr.is_some_and(|p| p.slot >= geometry.slot_count) {
                return Err(CheckpointError::Value);
            }
            list.push(ptr);
        }
        Ok(list)
    };
    let decision = pointers(decision_pages(decision_len as usize))?;
    let dissolved = pointers(decision_pages(dissolved_len as usize))?;
    let directory = pointers(raw.directory_pages.get() as usize)?;
    Ok(ReplicaRecord {
        replica: ReplicaId(raw.replica.get()),
        index: Index(raw.index.get()),
        term: Term(raw.term.get()),
        commit: Index(raw.commit.get()),
        decision_len,
        decision: all_there(decision)?,
        dissolved: (dissolved_len, all_there(dissolved)?),
        directory,
    })
}

/// Pages of bytes have no gap.
fn all_there(pages: Vec<Option<PagePtr>>) -> Result<Vec<PagePtr>, CheckpointError> {
    pages.into_iter().collect::<Option<Vec<_>>>().ok_or(CheckpointError::Value)
}

fn take<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(rest: &mut &'a [u8]) -> Result<&'a T, CheckpointError> {
    let (value, tail) = T::ref_from_prefix(rest).map_err(|_| CheckpointError::Value)?;
    *rest = tail;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pages: u32) -> Checkpoint {
        let ptr = |n: u32| PagePtr { slot: n, crc: n.wrapping_mul(0x0101_0101) };
        let replica = |id: u64, len: u32| ReplicaRecord {
            replica: ReplicaId(id),
            index: Index(100 + id),
            term: Term(3),
            commit: Index(120 + id),
            decision_len: len,
            decision: (0..decision_pages(len as usize) as u32).map(ptr).collect(),
            dissolved: (len / 2, (0..decision_pages(len as usize / 2) as u32).map(|n| ptr(n + 20)).collect()),
            directory: (0..pages).map(|n| (n != 1).then(|| ptr(n + 50))).collect(),
        };
        let geometry = Geometry { slot_count: 1 << 20, au_count: 1 << 22 };
        Checkpoint { geometry, sequence: 9, replicas: vec![replica(4, 0), replica(7, 5000), replica(9, 4096)] }
    }

    #[test]
    fn a_checkpoint_comes_back_from_one_part_or_many() {
        for pages in [0, 3, 20_000] {
            let want = sample(pages);
            let parts = want.encode();
            assert_eq!(parts.len() > 1, pages > 1000);
            assert!(parts.iter().all(|p| p.len() <= 32 << 10));
            assert_eq!(Checkpoint::decode(&parts).unwrap(), want);
        }
        let empty = Checkpoint { replicas: Vec::new(), ..sample(0) };
        assert_eq!(Checkpoint::decode(&empty.encode()).unwrap(), empty);
    }

    #[test]
    fn golden_checkpoint_keeps_its_bytes() {
        let part = &sample(3).encode()[0];
        assert_eq!(part[..8], *b"BCKP\x02\x00\x00\x00");
        assert_eq!(part[8..28], *b"\x09\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x60\x01\0\0");
        assert_eq!(part[48..60], *b"\x00\x00\x10\x00\x00\x00\x40\x00\x03\x00\x00\x00");
        assert_eq!(types::crc32c(part), GOLDEN_SUM);
    }

    #[test]
    fn the_newest_checkpoint_counts_of_which_all_parts_are_there() {
        let mut newest = NewestCheckpoint::default();
        assert!(newest.decode().is_none());
        let (old, new) = (sample(20_000), Checkpoint { sequence: 10, ..sample(20_000) });
        let (old_parts, new_parts) = (old.encode(), new.encode());
        let count = old_parts.len() as u32;
        (0..count).zip(&old_parts).for_each(|(n, bytes)| newest.take(1, n, count, bytes));
        (1..count).zip(&new_parts[1..]).for_each(|(n, bytes)| newest.take(2, n, count, bytes));
        assert_eq!(newest.decode(), Some(Ok(old)), "a part of the second one is missing");
        newest.take(2, 0, count, &new_parts[0]);
        assert_eq!(newest.decode(), Some(Ok(new)));
    }

    const GOLDEN_SUM: u32 = 1_120_456_815;

    #[test]
    fn an_incomplete_mixed_or_altered_set_of_parts_is_no_checkpoint() {
        let parts = sample(20_000).encode();
        assert_eq!(Checkpoint::decode(&[]), Err(CheckpointError::Mixed));
        assert_eq!(Checkpoint::decode(&parts[..parts.len() - 1]), Err(CheckpointError::Mixed));
        assert_eq!(Checkpoint::decode(&parts[1..]), Err(CheckpointError::Mixed));
        let mut mixed = parts.clone();
        mixed[1] = Checkpoint { sequence: 10, ..sample(20_000) }.encode()[1].clone();
        assert_eq!(Checkpoint::decode(&mixed), Err(CheckpointError::Mixed));
    }

    /// Returns `bytes` with length and checksum corrected.
    fn resealed(mut bytes: Vec<u8>) -> Bytes {
        let body_len = (bytes.len() - 48) as u32;
        bytes[24..28].copy_from_slice(&body_len.to_le_bytes());
        bytes[28..32].fill(0);
        let crc = types::crc32c(&bytes);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes.into()
    }

    #[test]
    fn checkpoint_encoding_is_canonical() {
        // Fuzzing found that reserved bytes, a checksum of no page, and a body split elsewhere were accepted.
        let want = sample(3);
        let part = &want.encode()[0];
        for bit in 0..part.len() * 8 {
            let mut bytes = part.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let told = (24..32).contains(&(bit / 8));
            let got = Checkpoint::decode(&[resealed(bytes)]);
            assert!(told || got.as_ref() != Ok(&want), "bit {bit} means nothing");
        }
        let parts = sample(20_000).encode();
        let (first, second) = parts[0].split_at(parts[0].len() - 8);
        let (head, body) = parts[1].split_at(48);
        let mut elsewhere = parts.clone();
        elsewhere[0] = resealed(first.to_vec());
        elsewhere[1] = resealed([head, second, body].concat());
        assert_eq!(Checkpoint::decode(&elsewhere), Err(CheckpointError::Part));
    }

    #[test]
    fn every_flipped_byte_of_a_checkpoint_is_noticed() {
        let parts = sample(3).encode();
        for at in 0..parts[0].len() {
            let mut bytes = parts[0].to_vec();
            bytes[at] ^= 0x40;
            assert!(Checkpoint::decode(&[bytes.into()]).is_err(), "byte {at}");
        }
        for len in 0..parts[0].len() {
            assert!(Checkpoint::decode(&[parts[0].slice(..len)]).is_err(), "cut at {len}");
        }
    }
}
