//! The frame header: 64 bytes, the same in every version for ever, so that the version of any peer can be named.
//!
//! Input: the 64 bytes that `bus` has received. Output: a [`Header`] whose lengths were checked against the limits
//! before memory is allocated for them. [`Header`] has no public constructor, so every [`Header`] outside this
//! module was verified.

use types::crc32c;
use types::limits::{FRAME_LEN_MAX, FRAME_PAYLOAD_MAX, FRAME_RECORDS_MAX};
use types::units::SECTOR;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a frame header.
pub const HEADER_LEN: usize = 64;
/// Largest head block: the rest of a frame with a full payload block.
pub const HEAD_LEN_MAX: usize = FRAME_LEN_MAX - FRAME_PAYLOAD_MAX - HEADER_LEN;
/// Largest head block of a hello or a refusal: bounds the memory that an unknown peer can make this process allocate.
pub const GREETING_HEAD_MAX: usize = 1 << 10;
/// Version of hello and refuse frames: no version is agreed on yet. Their layout only ever grows at the end.
pub const VERSION_GREETING: u16 = 0;
/// Oldest version of batch frames that this program speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest version of batch frames that this program speaks.
pub const VERSION_MAX: u16 = 1;

pub(crate) const MAGIC: [u8; 4] = *b"BSLT";

const _: () = assert!(HEADER_LEN + HEAD_LEN_MAX + FRAME_PAYLOAD_MAX == FRAME_LEN_MAX);
const _: () = assert!(FRAME_PAYLOAD_MAX.is_multiple_of(SECTOR as usize));
const _: () = assert!(VERSION_GREETING < VERSION_MIN && VERSION_MIN <= VERSION_MAX);
const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

/// Kind of a frame. Numbers are the wire's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Hello = 1,
    Refuse = 2,
    Batch = 3,
}

/// The header's layout on the wire; little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    magic: [u8; 4],
    version: U16,
    kind: u8,
    flags: u8,
    head_len: U32,
    payload_len: U32,
    record_count: U32,
    head_crc: U32,
    reserved: [u8; 36],
    /// CRC32C of the 60 bytes before it.
    header_crc: U32,
}

/// A frame header whose CRC, version field, kind and lengths are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: FrameKind,
    version: u16,
    head_len: usize,
    payload_len: usize,
    record_count: usize,
    head_crc: u32,
}

/// Reason why bytes are not a frame. Each closes the connection that they came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("not a Basalt frame (it begins with {0:02x?})")]
    Magic([u8; 4]),
    #[error("the frame header fails its checksum")]
    HeaderCrc,
    #[error("the head block fails its checksum")]
    HeadCrc,
    #[error("unknown frame kind {0}")]
    FrameKind(u8),
    #[error("frame version {0} is not spoken here")]
    Version(u16),
    #[error("reserved bytes or flags of the {0} are set")]
    Reserved(&'static str),
    #[error("{what} of {value} is out of bounds (at most {max})")]
    Limit { what: &'static str, value: u64, max: u64 },
    #[error("unknown record kind {0}")]
    RecordKind(u8),
    #[error("{what} has the unknown value {value}")]
    Value { what: &'static str, value: u64 },
    #[error("the {0} record is cut short")]
    Truncated(&'static str),
    #[error("{0} bytes too many in a record or block")]
    Trailing(usize),
    #[error("sectors {start}+{count} do not lie in a chunk, or are too many for the request")]
    Range { start: u32, count: u32 },
    #[error("{count} blocks from block {block} on are no run of a chunk")]
    Run { block: u32, count: u32 },
    #[error("{crcs} checksums do not fit a payload of {payload_len} B")]
    Crcs { crcs: usize, payload_len: usize },
    #[error("the frame is of another kind than the state of the connection allows")]
    Unexpected,
    #[error("text is not UTF-8")]
    Text,
}

impl Header {
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Returns the version in which the rest of the frame is written.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the bytes of the head block; never zero.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Returns the bytes of the payload block; a multiple of 512, zero in greetings.
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Returns the messages in the head block; 1 in greetings.
    pub fn record_count(&self) -> usize {
        self.record_count
    }

    /// Makes the header of a frame that this process sends.
    ///
    /// # Panics
    /// When the frame breaks a limit: the caller did not check it.
    pub(crate) fn new(kind: FrameKind, version: u16, record_count: usize, payload_len: usize, head: &[u8]) -> Header {
        let header = Header { kind, version, head_len: head.len(), payload_len, record_count, head_crc: crc32c(head) };
        if let Err(e) = header.check() {
            panic!("a frame of our own breaks a limit: {e}");
        }
        header
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let narrow = |v: usize| U32::new(u32::try_from(v).expect("limits fit in 32 bits"));
        let mut raw = RawHeader {
            magic: MAGIC,
            version: U16::new(self.version),
            kind: self.kind as u8,
            flags: 0,
            head_len: narrow(self.head_len),
            payload_len: narrow(self.payload_len),
            record_count: narrow(self.record_count),
            head_crc: U32::new(self.head_crc),
            reserved: [0; 36],
            header_crc: U32::ZERO,
        };
        raw.header_crc = U32::new(crc32c(&raw.as_bytes()[..HEADER_LEN - 4]));
        zerocopy::transmute!(raw)
    }

    /// Reads and verifies a header.
    ///
    /// # Errors
    /// When the bytes are no header, or announce a frame beyond the limits. No memory was allocated.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, WireError> {
        let raw: &RawHeader = zerocopy::transmute_ref!(bytes);
        if raw.magic != MAGIC {
            return Err(WireError::Magic(raw.magic));
        }
        if raw.header_crc.get() != crc32c(&bytes[..HEADER_LEN - 4]) {
            return Err(WireError::HeaderCrc);
        }
        if raw.flags != 0 || raw.reserved != [0; 36] {
            return Err(WireError::Reserved("frame header"));
        }
        let kind = match raw.kind {
            1 => FrameKind::Hello,
            2 => FrameKind::Refuse,
            3 => FrameKind::Batch,
            other => return Err(WireError::FrameKind(other)),
        };
        let header = Header {
            kind,
            version: raw.version.get(),
            head_len: raw.head_len.get() as usize,
            payload_len: raw.payload_len.get() as usize,
            record_count: raw.record_count.get() as usize,
            head_crc: raw.head_crc.get(),
        };
        header.check()?;
        Ok(header)
    }

    /// Checks the limits of the kind of frame, which hold for sender and receiver.
    fn check(&self) -> Result<(), WireError> {
        let greeting = self.kind != FrameKind::Batch;
        if greeting != (self.version == VERSION_GREETING) {
            return Err(WireError::Version(self.version));
        }
        let (head_max, payload_max, records_max) = match greeting {
            true => (GREETING_HEAD_MAX, 0, 1),
            false => (HEAD_LEN_MAX, FRAME_PAYLOAD_MAX, FRAME_RECORDS_MAX),
        };
        let within = |what, value: usize, min: usize, max: usize| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(WireError::Limit { what, value: value as u64, max: max as u64 }),
        };
        within("a head block", self.head_len, 1, head_max)?;
        within("a payload block", self.payload_len, 0, payload_max)?;
        within("a record count", self.record_count, 1, records_max)?;
        match self.payload_len.is_multiple_of(SECTOR as usize) {
            true => Ok(()),
            false => Err(WireError::Trailing(self.payload_len % SECTOR as usize)),
        }
    }

    /// Whether `head` is the head block that this header announces.
    ///
    /// # Errors
    /// When its length or its CRC differs.
    pub(crate) fn check_head(&self, head: &[u8]) -> Result<(), WireError> {
        if head.len() != self.head_len {
            return Err(WireError::Truncated("head"));
        }
        if crc32c(head) != self.head_crc {
            return Err(WireError::HeadCrc);
        }
        Ok(())
    }
}
