//! The bytes of the log: batches in segments.
//!
//! A batch is `| header area: fixed header, records, zeros to 4 KiB | payload area: payloads, each 512-aligned,
//! zeros to 4 KiB |`. The fixed header carries the CRC of the records, and the records carry the CRCs of the
//! payloads: so one CRC, over the fixed header and the OSD's uuid, ties the whole batch to its place.
//!
//! Invariant: a header verifies only at its own offset, on its own device, in its own use of the segment (salt).

pub(crate) mod record;

pub use record::{BlockRecord, CheckpointPart, PayloadAt, Record, RecordError, ReplicaRecord, decode_records};

use types::{OsdUuid, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a batch.
pub const MAGIC: [u8; 8] = *b"BSLTBTCH";
/// Version of the batch format that this build writes. 1: a state block is one batch. 2: it ends with a record of its own.
pub const BATCH_VERSION: u32 = 2;
/// Alignment of batches and of their two areas.
pub const BATCH_ALIGN: usize = 4096;
/// Length of the fixed header.
pub const FIXED_LEN: usize = 128;
/// Most bytes of a header area.
pub const HEADER_AREA_MAX: usize = 512 << 10;
/// Most bytes of a payload area.
pub const PAYLOAD_AREA_MAX: usize = (1 << 20) + BATCH_ALIGN;
/// Most bytes of one part of a checkpoint record.
pub const CHECKPOINT_PART_MAX: usize = 64 << 10;
/// Most parts of one checkpoint record.
pub const CHECKPOINT_PARTS_MAX: u32 = 64 << 10;
/// Most bytes of a decision state inside a create record or a state block.
pub const RECORD_DECISION_MAX: usize = 64 << 10;
/// Most bytes of a reason why a replica is damaged.
pub const DAMAGE_MAX: usize = 512;
/// Most bytes of a state block in one batch, except a record that is longer by itself.
pub const STATE_BATCH_MAX: usize = 128 << 10;
/// Longest cluster map that an OSD stores: some 1 500 peers.
pub const MAP_MAX: usize = 32 << 10;

const _: () = assert!(RECORD_DECISION_MAX + DAMAGE_MAX + BATCH_ALIGN < STATE_BATCH_MAX && MAP_MAX < STATE_BATCH_MAX);
const _: () = assert!(CHECKPOINT_PART_MAX * 2 + RECORD_DECISION_MAX + BATCH_ALIGN <= HEADER_AREA_MAX);

/// The fixed header of a batch, verified.
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
    /// Random salt, drawn when the segment was opened.
    pub salt: u64,
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
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Disk>() == FIXED_LEN);
pub(crate) const CRC_AT: usize = 12;

impl BatchHeader {
    /// Encodes the fixed header for the device `uuid`.
    pub fn encode(&self, uuid: OsdUuid) -> [u8; FIXED_LEN] {
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
            salt: self.salt.into(),
            mount: self.mount.into(),
            seq: self.seq.into(),
            offset: self.offset.into(),
            durable_seq: self.durable_seq.into(),
            tail_seq: self.tail_seq.into(),
            segment_seq: self.segment_seq.into(),
            reserved: [0; 32],
        };
        let mut bytes = [0; FIXED_LEN];
        bytes.copy_from_slice(disk.as_bytes());
        let crc = types::crc::append(crc32c(&uuid.0), &bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at `offset` of the device `uuid`; `None` when none verifies there.
    pub fn decode(bytes: &[u8], uuid: OsdUuid, offset: u64) -> Option<BatchHeader> {
        let (disk, _) = Disk::read_from_prefix(bytes).ok()?;
        if disk.magic != MAGIC || disk.version.get() != BATCH_VERSION || disk.offset.get() != offset {
            return None;
        }
        let crc = types::crc::append(crc32c(&uuid.0), &bytes[..CRC_AT]);
        let crc = types::crc::append(crc, &[0; 4]);
        if types::crc::append(crc, &bytes[CRC_AT + 4..FIXED_LEN]) != disk.crc.get() {
            return None;
        }
        if disk.flags.get() != 0 || disk.reserved != [0; 32] {
            return None;
        }
        let header = BatchHeader {
            header_len: disk.header_len.get(),
            records_len: disk.records_len.get(),
            record_count: disk.record_count.get(),
            records_crc: disk.records_crc.get(),
            payload_len: disk.payload_len.get(),
            salt: disk.salt.get(),
            mount: disk.mount.get(),
            seq: disk.seq.get(),
            offset,
            durable_seq: disk.durable_seq.get(),
            tail_seq: disk.tail_seq.get(),
            segment_seq: disk.segment_seq.get(),
        };
        header.is_sound().then_some(header)
    }

    fn is_sound(&self) -> bool {
        (self.header_len as usize) <= HEADER_AREA_MAX
            && (self.header_len as usize).is_multiple_of(BATCH_ALIGN)
            && FIXED_LEN + self.records_len as usize <= self.header_len as usize
            && (self.payload_len as usize) <= PAYLOAD_AREA_MAX
            && (self.payload_len as usize).is_multiple_of(BATCH_ALIGN)
            && self.durable_seq < self.seq
            && self.tail_seq <= self.segment_seq
            && self.segment_seq <= self.seq
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BatchHeader {
        BatchHeader {
            header_len: 4096,
            records_len: 80,
            record_count: 2,
            records_crc: 0x1234_5678,
            payload_len: 8192,
            salt: 0x1122_3344_5566_7788,
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
        let uuid = OsdUuid([9; 16]);
        let bytes = sample().encode(uuid);
        assert_eq!(&bytes[..12], b"BSLTBTCH\x02\0\0\0");
        assert_eq!(&bytes[16..20], &4096u32.to_le_bytes());
        assert_eq!(&bytes[40..48], &0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(&bytes[56..64], &900u64.to_le_bytes());
        assert_eq!(&bytes[88..96], &880u64.to_le_bytes());
        assert_eq!(crc32c(&bytes), 590_261_648, "golden");
        assert_eq!(BatchHeader::decode(&bytes, uuid, 1 << 20), Some(sample()));
    }

    #[test]
    fn a_header_with_flags_that_mean_nothing_is_refused() {
        let uuid = OsdUuid([9; 16]);
        for at in [36, 96, FIXED_LEN - 1] {
            let mut bytes = sample().encode(uuid);
            bytes[at] = 1;
            bytes[CRC_AT..CRC_AT + 4].fill(0);
            let crc = types::crc::append(crc32c(&uuid.0), &bytes);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(BatchHeader::decode(&bytes, uuid, 1 << 20), None, "byte {at}");
        }
    }

    #[test]
    fn a_header_verifies_only_on_its_device_and_at_its_place() {
        let uuid = OsdUuid([9; 16]);
        let bytes = sample().encode(uuid);
        assert_eq!(BatchHeader::decode(&bytes, OsdUuid([8; 16]), 1 << 20), None);
        assert_eq!(BatchHeader::decode(&bytes, uuid, 2 << 20), None);
        for at in 0..FIXED_LEN {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(BatchHeader::decode(&bad, uuid, 1 << 20), None, "byte {at}");
        }
        assert_eq!(BatchHeader::decode(&bytes[..100], uuid, 1 << 20), None);
    }
}
