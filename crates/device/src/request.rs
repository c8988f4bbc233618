//! Requests to a block device, and their answers: plain values that frontends, device layers and volumes share.

use types::{Errno, IoBuf, SECTOR, SnapshotId};

/// Largest read or write that a device takes in one request; trims and zeroes may cover the whole device.
pub const REQUEST_LEN_MAX: u64 = 32 << 20;
/// Longest prefix of a range for which one [`Request::Extents`] gives an answer.
pub const EXTENTS_LEN_MAX: u64 = 1 << 30;

/// One request. Offsets and lengths are bytes, multiples of 512; an empty or an outlying range is `Invalid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Returns the bytes of a range, at most [`REQUEST_LEN_MAX`].
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Replaces the bytes of a range, at most [`REQUEST_LEN_MAX`]. A write that is given up may have taken effect.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes. The device keeps a reference until the request has ended.
        buf: IoBuf,
        /// It costs nothing: every acknowledged write is durable.
        fua: bool,
    },
    /// Every write, trim and write-zeroes that has completed by now is durable when it completes.
    Flush,
    /// The range reads as zeros afterwards, and its space may be freed.
    Trim {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The range reads as zeros afterwards. With `no_hole` the zeros are written out, so that the range
    /// has its space and a later write to it finds no full PG; otherwise its space may be freed.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Whether the zeros take their space.
        no_hole: bool,
    },
    /// Asks which parts of the range hold data.
    Extents {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Asks instead which parts may differ from this older snapshot of the device, in units of 4 KiB. No part that differs is missed.
        /// `Gone`: the snapshot was deleted. `Invalid`: the device does not descend from it, or has no snapshots.
        since: Option<SnapshotId>,
    },
}

impl Request {
    /// Returns offset and length in bytes; a flush has none.
    pub fn span(&self) -> Option<(u64, u64)> {
        match *self {
            Request::Read { offset, len }
            | Request::Trim { offset, len }
            | Request::WriteZeroes { offset, len, .. }
            | Request::Extents { offset, len, .. } => Some((offset, len)),
            Request::Write { offset, ref buf, .. } => Some((offset, buf.len() as u64)),
            Request::Flush => None,
        }
    }

    /// Whether the request changes the device.
    pub fn is_write(&self) -> bool {
        matches!(self, Request::Write { .. } | Request::Trim { .. } | Request::WriteZeroes { .. })
    }

    /// Returns the memory that the request and its answer take while it is in flight.
    pub fn held_bytes(&self) -> u64 {
        match self {
            Request::Read { len, .. } => *len,
            Request::Write { buf, .. } => buf.len() as u64,
            _ => 0,
        }
    }
}

/// Result of a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Write, flush, trim, write-zeroes.
    Done,
    /// The bytes, in order, in as many pieces as it took; pieces may alias one shared region of zeros.
    Data(Vec<IoBuf>),
    /// Runs of bytes in order, `true` where data is stored, or where it may differ from the older snapshot; neighbours differ. They cover the range from its
    /// start, wholly or for at least [`EXTENTS_LEN_MAX`] bytes.
    Extents(Vec<(u64, bool)>),
}

impl Answer {
    /// Returns the bytes of a read, in pieces; nothing for other requests.
    pub fn pieces(&self) -> &[IoBuf] {
        match self {
            Answer::Data(pieces) => pieces,
            Answer::Done | Answer::Extents(_) => &[],
        }
    }

    /// Takes the bytes of a read, in pieces; nothing for other requests.
    pub fn into_pieces(self) -> Vec<IoBuf> {
        match self {
            Answer::Data(pieces) => pieces,
            Answer::Done | Answer::Extents(_) => Vec::new(),
        }
    }
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Token of the request, as the caller submitted it.
    pub token: u64,
    /// The answer, or the reason of a failure.
    pub result: Result<Answer, Errno>,
}

/// The device has as many requests in flight as it takes. The request comes back unchanged; submit it again
/// after a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy(pub Request);

/// Checks a request for a device of `len_bytes`.
///
/// # Errors
/// `Invalid` for an empty, misaligned, outlying or too large one, and for one that names snapshot 0; `ReadOnly` for a change to a read-only device.
pub fn check(len_bytes: u64, read_only: bool, request: &Request) -> Result<(), Errno> {
    let Some((offset, len)) = request.span() else { return Ok(()) };
    let aligned = offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
    let inside = offset.checked_add(len).is_some_and(|end| end <= len_bytes);
    let names_none = matches!(request, Request::Extents { since: Some(SnapshotId(0)), .. });
    if len == 0 || !aligned || !inside || names_none || request.held_bytes() > REQUEST_LEN_MAX {
        return Err(Errno::Invalid);
    }
    if read_only && request.is_write() {
        return Err(Errno::ReadOnly);
    }
    Ok(())
}

/// Appends a run of bytes to a list of extents, joining it with a neighbour of its kind.
pub fn push_extent(extents: &mut Vec<(u64, bool)>, len: u64, data: bool) {
    match extents.last_mut() {
        Some((last, kind)) if *kind == data => *last += len,
        _ => extents.push((len, data)),
    }
}
