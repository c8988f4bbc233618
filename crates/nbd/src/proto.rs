//! The NBD protocol, sans-IO: the fixed newstyle handshake, request headers, replies.
//!
//! Input: byte slices and the properties of the export. Output: values, bytes to send, or the reason to
//! close. Everything on the wire is big-endian.
//!
//! Invariant: parsers consume only complete units and never allocate by a length that a peer stated.

pub mod handshake;
pub mod reply;
pub mod request;
#[cfg(test)]
mod tests;

pub use handshake::{Handshake, HandshakeError, Progress, Session};
pub use request::{Command, Header, RequestError};

use types::Errno;

/// Smallest unit of offset and length, sent to the client as the minimum block size.
pub const BLOCK_MIN: u32 = types::SECTOR as u32;
/// Requests aligned to this are cheapest: the checksum unit.
pub const BLOCK_PREFERRED: u32 = types::BLOCK as u32;
/// Largest read or write of one request.
pub const REQUEST_LEN_MAX: u32 = device::REQUEST_LEN_MAX as u32;
/// A write that claims more payload than this closes the connection instead of being drained and refused.
pub const PAYLOAD_DRAIN_MAX: u32 = 64 << 20;
/// Longest string that the protocol allows.
pub const STRING_LEN_MAX: usize = 4096;
/// The only supported metadata context, and its id.
pub const CONTEXT_ALLOCATION: &str = "base:allocation";
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

const _: () = assert!(BLOCK_PREFERRED.is_multiple_of(BLOCK_MIN) && REQUEST_LEN_MAX.is_multiple_of(BLOCK_PREFERRED));
const _: () = assert!(REQUEST_LEN_MAX <= PAYLOAD_DRAIN_MAX);

/// `NBD_FLAG_*` of the transmission phase.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Properties of the export, as a client sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// `pool/volume`. The empty name means this export too.
    pub name: String,
    /// One line for display; may be empty.
    pub description: String,
    pub len_bytes: u64,
    pub read_only: bool,
}

impl Export {
    /// Whether a client that requests `name` means this export.
    pub fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the transmission flags. Multi-conn holds because every acknowledgement is durable and
    /// visible to all connections at once, which is more than a flush on each of them would guarantee.
    pub fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// The error values of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum NbdError {
    Perm = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
    Shutdown = 108,
}

impl From<Errno> for NbdError {
    fn from(errno: Errno) -> NbdError {
        match errno {
            Errno::Invalid => NbdError::Invalid,
            Errno::NoSpace => NbdError::NoSpace,
            Errno::ReadOnly => NbdError::Perm,
            Errno::Shutdown => NbdError::Shutdown,
            // The protocol has no value for these: the client must only learn that the bytes are not
            // available.
            Errno::Fenced | Errno::Damaged | Errno::Gone | Errno::TimedOut | Errno::Rehearsed => NbdError::Io,
        }
    }
}

/// Reads big-endian values from the front of a slice.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a length and as many bytes; `None` when they are cut short or longer than a string may be.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > STRING_LEN_MAX { None } else { self.take(len) }
    }
}
