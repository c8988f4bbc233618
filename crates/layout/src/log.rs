//! The bytes of the log: batches in segments.
//!
//! A batch is `| header area: fixed header, records, copy, zeros to 4 KiB | payload area: payloads, each 512-aligned,
//! zeros to 4 KiB |`. The fixed header carries the CRC of the records, and the records carry the CRCs of the
//! payloads: so one CRC, over the fixed header and the OSD's uuid, ties the whole batch to its place.
//!
//! The copy is the fixed header and the records of the batch before: they survive the loss of their own pages (ADR 0021).
//!
//! Invariant: a header verifies only at its own offset, on its own device, with the salt of its segment.

mod area;
pub(crate) mod record;
pub(crate) mod salt;
mod walk;

pub use area::{BadPayload, payload_of, verified_area};
pub use record::{
    BlockRecord, CheckpointPart, PayloadAt, PlacedRun, Record, RecordError, ReplicaRecord, decode_records,
};
pub use salt::{LogIdentity, SaltKey};
pub use walk::{SeenBatch, walk};

use std::ops::Range;
use types::planted::{Bug, on};
use types::{IoBuf, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a batch.
pub const MAGIC: [u8; 8] = *b"BSLTBTCH";
/// Version of the batch format that this build writes. 1: a state block is one batch. 2: it ends with a record of its own.
/// 3: a batch copies the records of the batch before, and has a checksum of its payload area. 4: create records do not name a timeline.
/// 5: the payload of an entry may lie at home.
pub const BATCH_VERSION: u32 = 5;
/// Alignment of batches and of their two areas.
pub const BATCH_ALIGN: usize = 4096;
/// Length of the fixed header.
pub const FIXED_LEN: usize = 128;
/// Most bytes of a header area.
pub const HEADER_AREA_MAX: usize = 512 << 10;
/// Most bytes of the records of one batch: the header area holds them and those of the batch before.
pub const RECORDS_MAX: usize = HEADER_AREA_MAX / 2 - FIXED_LEN;
/// Most bytes of a payload area.
pub const PAYLOAD_AREA_MAX: usize = (1 << 20) + BATCH_ALIGN;
/// Most runs of AUs that hold one payload: each AU may lie alone.
pub const RUNS_MAX: usize = (types::limits::PART_MAX / types::AU) as usize;
/// Most bytes of one part of a checkpoint record.
pub const CHECKPOINT_PART_MAX: usize = 64 << 10;
/// Most parts of one checkpoint record.
pub const CHECKPOINT_PARTS_MAX: u32 = 64 << 10;
/// Most bytes of a decision state inside a create record or a state block.
pub const RECORD_DECISION_MAX: usize = 64 << 10;
/// Most bytes of the reason for which a replica has failed.
pub const REASON_MAX: usize = 512;
/// Most bytes of a state block in one batch, except a record that is longer by itself.
pub const STATE_BATCH_MAX: usize = 128 << 10;
/// Bytes of the key of the salts.
pub const SALT_KEY_LEN: usize = 16;
/// Longest cluster map that an OSD stores: some 1 500 peers.
pub const MAP_MAX: usize = 32 << 10;

const _: () = assert!(RECORD_DECISION_MAX + REASON_MAX + BATCH_ALIGN < STATE_BATCH_MAX && MAP_MAX < STATE_BATCH_MAX);
const _: () = assert!(CHECKPOINT_PART_MAX * 2 + RECORD_DECISION_MAX + BATCH_ALIGN <= RECORDS_MAX);
const _: () = assert!(2 * (FIXED_LEN + RECORDS_MAX) <= HEADER_AREA_MAX);

/// The fixed header of a batch, verified. Its salt follows from `segment_seq` and the identity of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Bytes of the header area, a multiple of 4 KiB.
    pub header_len: u32,
    /// Bytes of records behind the fixed header.
    pub records_len: u32,
    pub record_count: u32,
    pub records_crc: u32,
    /// Bytes of the payload area, a multiple of 4 KiB.
    pub payload_len: u32,
    /// Bytes behind the records that copy the batch before: its fixed header and its records. 0: no copy.
    pub copy_len: u32,
    /// CRC32C of these bytes; 0: no copy.
    pub copy_crc: u32,
    /// xxh3-64 of the payload area ([`types::area_hash`]); 0: no payload area.
    pub payload_hash: u64,
    /// Number of the mount that wrote the batch.
    pub mount: u64,
    /// Number of the batch; batches of a device are numbered without gaps.
    pub seq: u64,
    /// Offset on the device at which the batch begins.
    pub offset: u64,
    /// Every batch up to this one was durable when this batch was built.
    pub durable_seq: u64,
    /// Number of the first batch of the oldest live segment.
    pub tail_seq: u64,
    /// Number of the first batch of this segment.
    pub segment_seq: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Disk {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the OSD's uuid and then this header with this field zero.
    crc: U32,
    header_len: U32,
    records_len: U32,
    record_count: U32,
    records_crc: U32,
    payload_len: U32,
    flags: U32,
    salt: U64,
    mount: U64,
    seq: U64,
    offset: U64,
    durable_seq: U64,
    tail_seq: U64,
    segment_seq: U64,
    copy_len: U32,
    copy_crc: U32,
    payload_hash: U64,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<Disk>() == FIXED_LEN);
pub(crate) const CRC_AT: usize = 12;

impl BatchHeader {
    /// Returns the header of a batch of one page whose records have no payloads. Its place and its numbers are zero.
    pub fn of_records(records: &[u8], record_count: u32) -> BatchHeader {
        BatchHeader {
            header_len: BATCH_ALIGN as u32,
            records_len: records.len() as u32,
            record_count,
            records_crc: crc32c(records),
            payload_len: 0,
            copy_len: 0,
            copy_crc: 0,
            payload_hash: 0,
            mount: 0,
            seq: 0,
            offset: 0,
            durable_seq: 0,
            tail_seq: 0,
            segment_seq: 0,
        }
    }

    /// Encodes the fixed header for `log`.
    pub fn encode(&self, log: &LogIdentity) -> [u8; FIXED_LEN] {
        let disk = Disk {
            magic: MAGIC,
            version: BATCH_VERSION.into(),
            crc: 0.into(),
            header_len: self.header_len.into(),
            records_len: self.records_len.into(),
            record_count: self.record_count.into(),
            records_crc: self.records_crc.into(),
            payload_len: self.payload_len.into(),
            flags: 0.into(),
            salt: log.salt_key.salt(self.segment_seq).into(),
            mount: self.mount.into(),
            seq: self.seq.into(),
            offset: self.offset.into(),
            durable_seq: self.durable_seq.into(),
            tail_seq: self.tail_seq.into(),
            segment_seq: self.segment_seq.into(),
            copy_len: self.copy_len.into(),
            copy_crc: self.copy_crc.into(),
            payload_hash: self.payload_hash.into(),
            reserved: [0; 16],
        };
        let mut bytes = [0; FIXED_LEN];
        bytes.copy_from_slice(disk.as_bytes());
        let crc = types::crc::append(crc32c(&log.uuid.0), &bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of `log` at `offset` of the device; `None` when none verifies there.
    pub fn decode(bytes: &[u8], log: &LogIdentity, offset: u64) -> Option<BatchHeader> {
        BatchHeader::decode_of_any_place(bytes, log).filter(|header| header.offset == offset)
    }

    fn decode_of_any_place(bytes: &[u8], log: &LogIdentity) -> Option<BatchHeader> {
        let (disk, _) = Disk::read_from_prefix(bytes).ok()?;
        if disk.magic != MAGIC || disk.version.get() != BATCH_VERSION {
            return None;
        }
        let crc = types::crc::append(crc32c(&log.uuid.0), &bytes[..CRC_AT]);
        let crc = types::crc::append(crc, &[0; 4]);
        if types::crc::append(crc, &bytes[CRC_AT + 4..FIXED_LEN]) != disk.crc.get() {
            return None;
        }
        if disk.flags.get() != 0 || disk.reserved != [0; 16] {
            return None;
        }
        if disk.salt.get() != log.salt_key.salt(disk.segment_seq.get()) && !on(Bug::ForgedHeaderBelieved) {
            return None;
        }
        let header = BatchHeader {
            header_len: disk.header_len.get(),
            records_len: disk.records_len.get(),
            record_count: disk.record_count.get(),
            records_crc: disk.records_crc.get(),
            payload_len: disk.payload_len.get(),
            copy_len: disk.copy_len.get(),
            copy_crc: disk.copy_crc.get(),
            payload_hash: disk.payload_hash.get(),
            mount: disk.mount.get(),
            seq: disk.seq.get(),
            offset: disk.offset.get(),
            durable_seq: disk.durable_seq.get(),
            tail_seq: disk.tail_seq.get(),
            segment_seq: disk.segment_seq.get(),
        };
        header.is_sound().then_some(header)
    }

    fn is_sound(&self) -> bool {
        (self.header_len as usize) <= HEADER_AREA_MAX
            && (self.header_len as usize).is_multiple_of(BATCH_ALIGN)
            && self.records_len as usize <= RECORDS_MAX
            && FIXED_LEN + self.records_len as usize + self.copy_len as usize <= self.header_len as usize
            && self.is_copy_sound()
            && (self.payload_len as usize) <= PAYLOAD_AREA_MAX
            && (self.payload_len as usize).is_multiple_of(BATCH_ALIGN)
            && (self.payload_len > 0 || self.payload_hash == 0)
            && self.durable_seq < self.seq
            && self.tail_seq <= self.segment_seq
            && self.segment_seq <= self.seq
    }

    /// A copy proves that the batch before was durable, because this one was built after its flush.
    fn is_copy_sound(&self) -> bool {
        match self.copy_len as usize {
            0 => self.copy_crc == 0,
            len => {
                let follows = self.durable_seq.checked_add(1) == Some(self.seq);
                (FIXED_LEN..=FIXED_LEN + RECORDS_MAX).contains(&len) && follows
            }
        }
    }

    /// Bytes of the whole batch on the device.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.header_len) + u64::from(self.payload_len)
    }

    /// Returns the record bytes of a whole batch, if they are complete and match their CRC.
    pub fn records<'a>(&self, batch: &'a [u8]) -> Option<&'a [u8]> {
        let records = batch.get(FIXED_LEN..FIXED_LEN + self.records_len as usize)?;
        (crc32c(records) == self.records_crc).then_some(records)
    }

    /// Returns the checksum of a payload area that consists of these bytes, one after the other, in `log`.
    pub fn hash_of(&self, log: &LogIdentity, area: &[IoBuf]) -> u64 {
        if self.payload_len == 0 { 0 } else { types::area_hash(log.salt_key.salt(self.segment_seq), self.seq, area) }
    }

    /// Returns the header of the batch before, and its place in this `batch`: its fixed header and its records lie there.
    /// `None` when there is no copy, or when the bytes are not the copy of the batch before this one.
    pub fn copied(&self, batch: &[u8], log: &LogIdentity) -> Option<(BatchHeader, Range<usize>)> {
        let at = FIXED_LEN + self.records_len as usize;
        let place = at..at + self.copy_len as usize;
        let copy = batch.get(place.clone()).filter(|copy| !copy.is_empty())?;
        if crc32c(copy) != self.copy_crc {
            return None;
        }
        let before = BatchHeader::decode_of_any_place(copy, log)?;
        let whole = FIXED_LEN + before.records_len as usize == copy.len() && before.records(copy).is_some();
        (whole && before.precedes(self)).then_some((before, place))
    }

    /// Whether this is the header of the batch before `next`.
    fn precedes(&self, next: &BatchHeader) -> bool {
        let meets = match self.segment_seq == next.segment_seq {
            true => self.offset.checked_add(self.len_bytes()) == Some(next.offset),
            false => next.seq == next.segment_seq && self.segment_seq < next.segment_seq,
        };
        self.seq.checked_add(1) == Some(next.seq) && self.mount <= next.mount && meets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::OsdUuid;

    const LOG: LogIdentity = LogIdentity { uuid: OsdUuid([9; 16]), salt_key: SaltKey::new([4; SALT_KEY_LEN]) };

    #[test]
    fn highest_numbers_are_no_sound_header_and_no_panic() {
        for header in [BatchHeader { durable_seq: u64::MAX, ..sample() }, BatchHeader { seq: u64::MAX, ..sample() }] {
            let bytes = header.encode(&LOG);
            assert_eq!(BatchHeader::decode(&bytes, &LOG, header.offset), None, "{header:?}");
        }
        assert!(!BatchHeader { seq: u64::MAX, ..sample() }.precedes(&sample()));
    }

    fn sample() -> BatchHeader {
        BatchHeader {
            header_len: 4096,
            records_len: 80,
            record_count: 2,
            records_crc: 0x1234_5678,
            payload_len: 8192,
            copy_len: 200,
            copy_crc: 0x8765_4321,
            payload_hash: 0x0102_0304_0506_0708,
            mount: 3,
            seq: 900,
            offset: 1 << 20,
            durable_seq: 899,
            tail_seq: 100,
            segment_seq: 880,
        }
    }

    #[test]
    fn batch_header_bytes_never_change() {
        let bytes = sample().encode(&LOG);
        assert_eq!(&bytes[..12], b"BSLTBTCH\x05\0\0\0");
        assert_eq!(&bytes[16..20], &4096u32.to_le_bytes());
        assert_eq!(&bytes[40..48], &LOG.salt_key.salt(880).to_le_bytes());
        assert_eq!(&bytes[56..64], &900u64.to_le_bytes());
        assert_eq!(&bytes[88..96], &880u64.to_le_bytes());
        assert_eq!(crc32c(&bytes), 1_738_907_895, "golden");
        assert_eq!(BatchHeader::decode(&bytes, &LOG, 1 << 20), Some(sample()));
    }

    #[test]
    fn a_header_with_flags_that_mean_nothing_is_refused() {
        for at in [36, 112, FIXED_LEN - 1] {
            let mut bytes = sample().encode(&LOG);
            bytes[at] = 1;
            bytes[CRC_AT..CRC_AT + 4].fill(0);
            let crc = types::crc::append(crc32c(&LOG.uuid.0), &bytes);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(BatchHeader::decode(&bytes, &LOG, 1 << 20), None, "byte {at}");
        }
    }

    /// Returns the header of a batch that copies the batch of `sample`, and its header area; `change` sets other fields.
    fn holder(change: impl FnOnce(&mut BatchHeader, &mut Vec<u8>)) -> (BatchHeader, Vec<u8>) {
        let records = [7; 80];
        let before = BatchHeader { records_crc: crc32c(&records), ..sample() };
        let mut copy = [&before.encode(&LOG)[..], &records].concat();
        let offset = before.offset + before.len_bytes();
        let mut header = BatchHeader { records_len: 0, seq: 901, durable_seq: 900, offset, ..before };
        change(&mut header, &mut copy);
        (header.copy_len, header.copy_crc) = (copy.len() as u32, crc32c(&copy));
        (header, [&[0; FIXED_LEN][..], &copy].concat())
    }

    #[test]
    fn copy_counts_only_for_the_batch_right_before_its_holder() {
        let (header, bytes) = holder(|_, _| {});
        let (before, place) = header.copied(&bytes, &LOG).expect("it was copied");
        assert_eq!((before.seq, before.offset, place), (900, 1 << 20, FIXED_LEN..FIXED_LEN + 208));
        assert!(header.is_sound());
        let refused: [fn(&mut BatchHeader, &mut Vec<u8>); 8] = [
            |header, _| header.seq = 902,
            |header, _| header.mount = 2,
            |header, _| header.offset += 4096,
            |header, _| header.segment_seq = 881,
            |_, copy| copy[FIXED_LEN + 5] ^= 1,
            |_, copy| copy[60] ^= 1,
            |_, copy| copy.extend([0; 8]),
            |_, copy| copy.truncate(FIXED_LEN + 72),
        ];
        for (nth, change) in refused.into_iter().enumerate() {
            let (header, bytes) = holder(change);
            assert_eq!(header.copied(&bytes, &LOG), None, "change {nth}");
        }
        let (header, bytes) = holder(|header, _| (header.segment_seq, header.offset) = (901, 0));
        assert!(header.copied(&bytes, &LOG).is_some(), "the holder opens another segment");
        let (header, mut bytes) = holder(|_, _| {});
        *bytes.last_mut().expect("not empty") ^= 1;
        assert_eq!(header.copied(&bytes, &LOG), None, "other bytes than those that the holder names");
        assert_eq!(header.copied(&bytes[..FIXED_LEN + 100], &LOG), None);
        let foreign = LogIdentity { uuid: OsdUuid([8; 16]), ..LOG };
        assert_eq!(header.copied(&bytes, &foreign), None);
        assert!(!BatchHeader { durable_seq: 899, ..header }.is_sound(), "a copy is of a durable batch");
    }

    #[test]
    fn a_header_verifies_only_on_its_device_and_at_its_place() {
        let bytes = sample().encode(&LOG);
        let foreign = LogIdentity { uuid: OsdUuid([8; 16]), ..LOG };
        assert_eq!(BatchHeader::decode(&bytes, &foreign, 1 << 20), None);
        assert_eq!(BatchHeader::decode(&bytes, &LOG, 2 << 20), None);
        for at in 0..FIXED_LEN {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(BatchHeader::decode(&bad, &LOG, 1 << 20), None, "byte {at}");
        }
        assert_eq!(BatchHeader::decode(&bytes[..100], &LOG, 1 << 20), None);
    }

    #[test]
    fn header_with_all_fields_right_and_another_salt_is_refused() {
        let forger = LogIdentity { salt_key: SaltKey::new([5; SALT_KEY_LEN]), ..LOG };
        let forged = sample().encode(&forger);
        assert!(BatchHeader::decode(&forged, &forger, 1 << 20).is_some(), "all else is right");
        assert_eq!(BatchHeader::decode(&forged, &LOG, 1 << 20), None);
        // The salt of another segment of the same log is no better.
        let mut moved = sample().encode(&LOG);
        let other = BatchHeader { segment_seq: 879, ..sample() }.encode(&LOG);
        moved[40..48].copy_from_slice(&other[40..48]);
        moved[CRC_AT..CRC_AT + 4].fill(0);
        let crc = types::crc::append(crc32c(&LOG.uuid.0), &moved);
        moved[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(BatchHeader::decode(&moved, &LOG, 1 << 20), None);
        let (header, mut bytes) = holder(|_, _| {});
        let (before, _) = header.copied(&bytes, &LOG).expect("it was copied");
        bytes[FIXED_LEN..2 * FIXED_LEN].copy_from_slice(&before.encode(&forger));
        let header = BatchHeader { copy_crc: crc32c(&bytes[FIXED_LEN..]), ..header };
        assert_eq!(header.copied(&bytes, &LOG), None, "nor in a copy");
    }
}
