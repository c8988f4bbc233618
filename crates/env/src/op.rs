//! The operations and the events of [`crate::Env`].

use crate::capabilities::Capabilities;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use types::{IoBuf, IoBufMut};

/// Identity of an operation's submitter, chosen by it and returned untouched. `owner` names the part of the loop that
/// owns the operation; `generation` tells apart successive uses of a slab key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub owner: u8,
    pub generation: u32,
    pub key: u32,
}

impl Token {
    pub const fn new(owner: u8, generation: u32, key: u32) -> Token {
        Token { owner, generation, key }
    }
}

/// An open disk of this env.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u32);

/// A listening socket of this env.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u32);

/// A connection of this env. `generation` makes it unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub slot: u32,
    pub generation: u32,
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn{}.{}", self.slot, self.generation)
    }
}

/// Address to listen on or to connect to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NetAddr {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// The peer of an accepted Unix connection has no name.
    Unnamed,
}

impl fmt::Display for NetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetAddr::Tcp(a) => write!(f, "{a}"),
            NetAddr::Unix(p) => write!(f, "unix:{}", p.display()),
            NetAddr::Unnamed => f.write_str("unix:(unnamed)"),
        }
    }
}

/// Specification of a device to open. It is opened with O_DIRECT and locked against a second opener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    pub path: PathBuf,
    /// `--assume-plp`: treat the write cache as non-volatile whatever the device reports.
    pub assume_plp: bool,
    pub read_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    File,
    Block,
}

/// An opened disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    pub id: DiskId,
    pub path: PathBuf,
    pub kind: DiskKind,
    pub size_bytes: u64,
    /// Alignment that memory and offsets need, in bytes; at most 4096.
    pub align_bytes: u32,
    /// Whether written bytes may be lost until a flush (R10). Unknown counts as volatile.
    pub volatile_cache: bool,
    /// Properties that the kernel tells of.
    pub capabilities: Capabilities,
}

/// One operation. Offsets and lengths of disk operations are multiples of `DiskInfo::align_bytes`.
#[derive(Debug)]
pub enum Op {
    /// Fill `buf` wholly; reading past the end of the disk is an error.
    DiskRead { token: Token, disk: DiskId, offset: u64, buf: IoBufMut },
    /// Write all of `bufs` one after the other. With `flush`, a flush of the disk follows, and the completion comes
    /// after it. The flush covers this write and all writes that completed before it.
    DiskWrite { token: Token, disk: DiskId, offset: u64, bufs: Vec<IoBuf>, flush: bool },
    /// When it completes, every write whose completion was seen before its submission is durable.
    DiskFlush { token: Token, disk: DiskId },
    /// The range's contents become unspecified or zero, and its space may be freed.
    DiskDiscard { token: Token, disk: DiskId, offset: u64, len_bytes: u64 },
    /// Completes with [`Event::Connected`].
    Connect { token: Token, addr: NetAddr },
    /// Receive into `bufs` one after the other. It completes when at least `min` bytes are in (more if they had
    /// arrived), or with an error: then the bytes that had come are void. `min` is at least 1 and at most the length of
    /// `bufs`. At most one receive a connection is in flight.
    Recv { token: Token, conn: ConnId, bufs: Vec<IoBufMut>, min: usize },
    /// Send all of `bufs`, at least one byte. At most one send a connection is in flight. A `quiet` send that succeeds
    /// within its own turn does not end it: its event comes with the next one. It is for an owner that would do nothing.
    Send { token: Token, conn: ConnId, bufs: Vec<IoBuf>, quiet: bool },
    /// Closes the connection. Operations in flight on it complete with [`NetError::Closed`], and so do later ones.
    /// Bytes of completed sends still leave. The id is never used again.
    Close { conn: ConnId },
}

/// A completion, or an event without an operation.
#[derive(Debug)]
pub enum Event {
    DiskRead {
        token: Token,
        buf: IoBufMut,
        result: Result<(), DiskError>,
    },
    DiskWrite {
        token: Token,
        result: Result<(), DiskError>,
    },
    DiskFlush {
        token: Token,
        result: Result<(), DiskError>,
    },
    DiskDiscard {
        token: Token,
        result: Result<(), DiskError>,
    },
    Connected {
        token: Token,
        result: Result<ConnId, NetError>,
    },
    /// A listener has a new connection; it stays open until this side closes it.
    Accepted {
        listener: ListenerId,
        conn: ConnId,
        peer: NetAddr,
    },
    /// `Ok(n)`: n bytes in total are in the buffers, from the start.
    Received {
        token: Token,
        conn: ConnId,
        bufs: Vec<IoBufMut>,
        result: Result<usize, NetError>,
    },
    Sent {
        token: Token,
        conn: ConnId,
        result: Result<(), NetError>,
    },
    /// [`crate::Waker::wake`] was called: the loop has to examine the queues of the control plane.
    Woken,
}

/// Why a disk operation failed. All but `OutOfRange` poison the store when they meet a write or flush (R15).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    #[error("input/output error (errno {0})")]
    Io(i32),
    #[error("the device is full")]
    NoSpace,
    #[error("offset {offset} + {len} lies beyond the device")]
    OutOfRange { offset: u64, len: u64 },
}

impl DiskError {
    /// Whether the medium itself does not give the bytes back. Any other error, such as a lack of memory or a path that is
    /// down, tells nothing about them.
    pub fn is_of_medium(&self) -> bool {
        // EIO, ENODATA, EBADMSG, EILSEQ, EREMOTEIO.
        matches!(self, DiskError::Io(5 | 61 | 74 | 84 | 121))
    }
}

/// Why a network operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// This side closed the connection.
    #[error("closed")]
    Closed,
    /// The peer closed or reset the connection.
    #[error("closed by the other side")]
    Lost,
    /// The kernel ended the connection with this errno.
    #[error("{}", broken(*.0))]
    Broken(i32),
    #[error("refused")]
    Refused,
    #[error("unreachable (errno {0})")]
    Unreachable(i32),
    #[error("timed out")]
    TimedOut,
}

/// Describes the errnos that end connections, as an administrator looks them up.
fn broken(errno: i32) -> String {
    match errno {
        libc::ECONNRESET => "reset by the other side (ECONNRESET)".to_owned(),
        libc::EPIPE => "closed by the other side while bytes were sent (EPIPE)".to_owned(),
        libc::ETIMEDOUT => "what was sent was not acknowledged in time (ETIMEDOUT)".to_owned(),
        libc::EHOSTUNREACH => "no route to the host (EHOSTUNREACH)".to_owned(),
        libc::ENETUNREACH => "no route to the network (ENETUNREACH)".to_owned(),
        other => format!("connection lost (errno {other})"),
    }
}

/// Why a disk or a listener could not be opened, or a turn failed as a whole. Each is shown to a user.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    #[error("{path}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    /// BSLT-3001
    #[error(
        "{path}: the file system does not support O_DIRECT (tmpfs and overlay do not); put the device on ext4, xfs or a block device"
    )]
    NoDirectIo { path: PathBuf },
    /// BSLT-3002
    #[error("{path}: another process holds the device's lock, or the device is mounted")]
    Locked { path: PathBuf },
    /// BSLT-1010
    #[error(
        "io_uring is not permitted here ({source}); containers need a seccomp profile that allows it, and sysctl kernel.io_uring_disabled must be 0"
    )]
    NoIoUring { source: std::io::Error },
    #[error("cannot listen on {addr}: {source}")]
    Listen { addr: NetAddr, source: std::io::Error },
    #[error("io_uring failed: {0}")]
    Ring(std::io::Error),
    #[error("the kernel gives no random bytes: {0}")]
    Random(std::io::Error),
}
