//! Outcomes of a failed request, in terms that every frontend can translate.

use crate::codes;

/// The outcome of a failed client request. Frontends map it to their protocol; `code` is what a user sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Errno {
    /// The request itself is wrong: out of range, misaligned, unknown flag.
    #[error("invalid request")]
    Invalid = 1,
    /// Another opener has taken the volume, or a recovery of meta ended all sessions: no write of this one lands any more.
    #[error(
        "fenced: this session may not write any more (the volume was taken over, or `meta recover` ended all sessions)"
    )]
    Fenced = 2,
    /// No device space is left in the PG.
    #[error("no space left in the pool")]
    NoSpace = 3,
    /// Stored bytes fail their checksum and no good copy was found.
    #[error("stored data is damaged")]
    Damaged = 4,
    /// The volume was opened read-only.
    #[error("read-only")]
    ReadOnly = 5,
    /// The volume, or the snapshot, is gone.
    #[error("no such volume or snapshot")]
    Gone = 6,
    /// The user gave a time limit, and it passed.
    #[error("timed out")]
    TimedOut = 7,
    /// The process is shutting down.
    #[error("shutting down")]
    Shutdown = 8,
    /// A fault that an administrator rehearses: nothing was done.
    #[error("a rehearsed fault")]
    Rehearsed = 9,
}

impl Errno {
    /// Returns the Linux errno.
    pub fn os(self) -> i32 {
        match self {
            Errno::Invalid => 22,
            Errno::Fenced => 116,
            Errno::NoSpace => 28,
            Errno::Damaged | Errno::Rehearsed => 5,
            Errno::ReadOnly => 30,
            Errno::Gone => 2,
            Errno::TimedOut => 110,
            Errno::Shutdown => 108,
        }
    }

    /// All outcomes.
    pub const ALL: [Errno; 9] = {
        use Errno::*;
        [Invalid, Fenced, NoSpace, Damaged, ReadOnly, Gone, TimedOut, Shutdown, Rehearsed]
    };

    /// Returns the number of the error code that a user sees.
    pub fn code(self) -> u32 {
        match self {
            Errno::Invalid => codes::BAD_USAGE,
            Errno::Fenced => codes::VOLUME_TAKEN_OVER,
            Errno::NoSpace => codes::NO_SPACE_LEFT,
            Errno::Damaged => codes::DATA_DAMAGED,
            Errno::ReadOnly => codes::READ_ONLY,
            Errno::Gone => codes::VOLUME_UNKNOWN,
            Errno::Rehearsed => codes::FAULT_REHEARSED,
            Errno::TimedOut | Errno::Shutdown => codes::REQUESTS_NOT_ANSWERED,
        }
    }

    /// Decodes the number on the wire; `None` for a value that this version does not know.
    pub fn from_u8(v: u8) -> Option<Errno> {
        Errno::ALL.into_iter().find(|e| *e as u8 == v)
    }
}
