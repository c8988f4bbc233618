//! An operation in flight: the memory that the kernel points to, its progress, its next submission.
//!
//! It takes an operation with its buffers, later its completions. It produces entries for the ring, and returns the
//! buffers at the end. Partial reads, writes, receives and sends are continued here, unseen by the services. Invariant:
//! everything that an entry points to (buffers, iovecs, message header, address) is owned by the flight and does not
//! move while `awaiting > 0`.

use super::ring::Ring;
use super::sys::SockAddr;
use crate::op::{ConnId, DiskError, EnvError, NetError, Token};
use io_uring::{opcode, squeue, types as uring};
use std::os::fd::{OwnedFd, RawFd};
use types::failpoint::{self, Point};
use types::{IoBuf, IoBufMut};

/// Most iovecs that the kernel takes at once.
const IOV_MAX: usize = 1024;
/// Largest read or write of a disk: the kernel moves so much in one operation without splitting it.
const DISK_LEN_MAX: usize = 1 << 30;
/// Spare message headers kept for reuse.
const SPARE_MAX: usize = 256;

/// Upper byte of `user_data`: the kind of the completion.
pub(super) mod tag {
    pub const OP: u8 = 1;
    pub const SYNC: u8 = 2;
    pub const WAKE: u8 = 3;
    pub const ACCEPT: u8 = 4;
    pub const CANCEL: u8 = 5;
}

/// `tag:8 | generation:24 | key:32`.
pub(super) fn user_data(tag: u8, generation: u32, key: usize) -> u64 {
    let key = u32::try_from(key).expect("fewer than 2^32 operations are in flight");
    u64::from(tag) << 56 | u64::from(generation & 0xff_ffff) << 32 | u64::from(key)
}

/// The inverse of [`user_data`].
pub(super) fn split_user_data(data: u64) -> (u8, u32, usize) {
    ((data >> 56) as u8, (data >> 32) as u32 & 0xff_ffff, data as u32 as usize)
}

/// Memory for a vectored call; its address must not change while the kernel uses it.
pub(super) struct Vectors {
    iov: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Vectors {
    fn new() -> Box<Vectors> {
        // SAFETY: all-zero bytes are a valid msghdr (null pointers, zero lengths).
        let header = unsafe { std::mem::zeroed() };
        Box::new(Vectors { iov: Vec::new(), header })
    }

    /// Loads the first `IOV_MAX` parts; returns whether these were all.
    fn load(&mut self, parts: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        self.iov.clear();
        let mut all = true;
        for (ptr, len) in parts {
            if self.iov.len() == IOV_MAX {
                all = false;
                break;
            }
            self.iov.push(libc::iovec { iov_base: ptr.cast(), iov_len: len });
        }
        all
    }

    fn message(&mut self) -> *mut libc::msghdr {
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len() as _;
        &raw mut self.header
    }
}

/// A pool of [`Vectors`], so that vectored operations do not allocate.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "the kernel holds the address of what is handed out")]
pub(super) struct Spares(Vec<Box<Vectors>>);

impl Spares {
    fn take(&mut self) -> Box<Vectors> {
        self.0.pop().unwrap_or_else(Vectors::new)
    }

    pub fn give(&mut self, vectors: Option<Box<Vectors>>) {
        if let Some(vectors) = vectors
            && self.0.len() < SPARE_MAX
        {
            self.0.push(vectors);
        }
    }
}

/// Memory that the kernel reads from or writes to.
trait Part {
    fn memory(&mut self) -> (*mut u8, usize);
}

impl Part for IoBuf {
    fn memory(&mut self) -> (*mut u8, usize) {
        // The kernel only reads this memory: shared buffers are used in writes and sends alone.
        (self.as_ptr().cast_mut(), self.len())
    }
}

impl Part for IoBufMut {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

/// Position in a list of buffers, up to which bytes were moved.
pub(super) struct Cursor {
    index: usize,
    offset: usize,
    left: usize,
}

impl Cursor {
    pub fn new<B: std::ops::Deref<Target = [u8]>>(bufs: &[B]) -> Cursor {
        Cursor { index: 0, offset: 0, left: bufs.iter().map(|b| b.len()).sum() }
    }

    fn advance<B: std::ops::Deref<Target = [u8]>>(&mut self, bufs: &[B], n: usize) {
        assert!(n <= self.left, "the kernel moved {n} of {} bytes", self.left);
        self.left -= n;
        self.offset += n;
        while self.index < bufs.len() && self.offset >= bufs[self.index].len() {
            self.offset -= bufs[self.index].len();
            self.index += 1;
        }
    }

    /// Returns the memory that is left to move; its parts are not empty.
    fn parts<'a, B: Part>(&self, bufs: &'a mut [B]) -> impl Iterator<Item = (*mut u8, usize)> + use<'a, B> {
        let mut skip = self.offset;
        bufs[self.index..]
            .iter_mut()
            .map(move |b| {
                let (ptr, len) = b.memory();
                let off = std::mem::take(&mut skip);
                // Only the first part is entered in its middle, and `off` is below the length of that part.
                (ptr.wrapping_add(off), len - off)
            })
            .filter(|(_, len)| *len > 0)
    }
}

/// Kind of an operation, with its token and buffers.
pub(super) enum Body {
    Read {
        token: Token,
        offset: u64,
        buf: IoBufMut,
        done: usize,
    },
    Write {
        token: Token,
        offset: u64,
        bufs: Vec<IoBuf>,
        cursor: Cursor,
        flush: bool,
    },
    Flush {
        token: Token,
    },
    Discard {
        token: Token,
        offset: u64,
        len_bytes: u64,
    },
    Connect {
        token: Token,
        socket: OwnedFd,
        addr: Box<SockAddr>,
    },
    Recv {
        token: Token,
        conn: ConnId,
        bufs: Vec<IoBufMut>,
        cursor: Cursor,
        got: usize,
        min: usize,
    },
    /// `quiet_in`: number of the turn that its success does not end.
    Send {
        token: Token,
        conn: ConnId,
        bufs: Vec<IoBuf>,
        cursor: Cursor,
        quiet_in: u64,
    },
}

/// One operation in flight.
pub(super) struct Flight {
    pub generation: u32,
    /// The disk's or connection's descriptor; its owner keeps it open while the flight exists.
    pub fd: RawFd,
    /// Number of outstanding completions of the last submission.
    pub awaiting: u8,
    /// A write and its flush are in the ring, and one completion stands for both.
    quiet: bool,
    pub body: Body,
    pub vectors: Option<Box<Vectors>>,
    result: i32,
    sync_result: i32,
}

/// Next step of a flight after its completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Bytes are left to move: submit again.
    Again,
    /// The operation has ended with zero, or with this errno.
    Done(i32),
}

impl Flight {
    pub fn new(generation: u32, fd: RawFd, body: Body) -> Flight {
        let len = match &body {
            Body::Read { buf, .. } => buf.len(),
            Body::Write { cursor, .. } => cursor.left,
            _ => 0,
        };
        assert!(len <= DISK_LEN_MAX, "{len} B in one operation");
        Flight { generation, fd, awaiting: 0, quiet: false, body, vectors: None, result: 0, sync_result: 0 }
    }

    /// Takes a completion of this flight; `Some` when it was the last one of the submission.
    pub fn absorb(&mut self, tag: u8, result: i32) -> Option<Step> {
        assert!(self.awaiting > 0, "a completion that is not awaited");
        self.awaiting -= 1;
        match tag {
            tag::SYNC => self.sync_result = result,
            _ => self.result = result,
        }
        if let (true, Body::Write { cursor, .. }) = (self.quiet, &self.body) {
            // Only a failed or short write has a completion; its flush was then cancelled without one.
            match tag {
                tag::SYNC => self.result = i32::try_from(cursor.left).expect("at most `DISK_LEN_MAX`"),
                _ => self.sync_result = -libc::ECANCELED,
            }
        }
        (self.awaiting == 0).then(|| self.step())
    }

    fn step(&mut self) -> Step {
        let moved = usize::try_from(self.result).unwrap_or(0);
        let again = matches!(-self.result, libc::EINTR | libc::EAGAIN);
        match &mut self.body {
            // A failed flush is never repeated (R15), whatever the reason.
            Body::Flush { .. } | Body::Connect { .. } => Step::Done(-self.result.min(0)),
            Body::Discard { .. } => match -self.result {
                libc::EINTR | libc::EAGAIN => Step::Again,
                // Discarding is best effort; a device that does not support it keeps the bytes.
                libc::EOPNOTSUPP => Step::Done(0),
                errno => Step::Done(errno.max(0)),
            },
            Body::Write { cursor, flush, .. } if cursor.left == 0 => {
                assert!(*flush, "a written write is only submitted again for its flush");
                Step::Done(-self.result.min(0))
            }
            _ if again => Step::Again,
            _ if self.result < 0 => Step::Done(-self.result),
            Body::Read { buf, done, .. } => {
                *done += moved;
                assert!(*done <= buf.len(), "the kernel read more than was asked");
                match (moved, *done == buf.len()) {
                    (_, true) => Step::Done(0),
                    (0, false) => Step::Done(libc::EIO),
                    _ => Step::Again,
                }
            }
            Body::Write { bufs, cursor, flush, .. } => {
                cursor.advance(bufs, moved);
                match (cursor.left, *flush) {
                    (0, false) => Step::Done(0),
                    (0, true) if self.sync_result == -libc::ECANCELED => {
                        failpoint::pass(Point::LogWritten);
                        Step::Again
                    }
                    (0, true) => Step::Done(-self.sync_result.min(0)),
                    _ if moved == 0 => Step::Done(libc::EIO),
                    _ => Step::Again,
                }
            }
            Body::Recv { bufs, cursor, got, min, .. } => {
                cursor.advance(bufs, moved);
                *got += moved;
                match moved {
                    _ if *got >= *min => Step::Done(0),
                    0 => Step::Done(END),
                    _ => Step::Again,
                }
            }
            Body::Send { bufs, cursor, .. } => {
                cursor.advance(bufs, moved);
                if cursor.left == 0 { Step::Done(0) } else { Step::Again }
            }
        }
    }

    /// Submits the rest of the operation.
    pub fn submit(&mut self, key: usize, ring: &mut Ring, spares: &mut Spares) -> Result<(), EnvError> {
        let data = user_data(tag::OP, self.generation, key);
        let fd = uring::Fd(self.fd);
        (self.awaiting, self.quiet) = (1, false);
        let entry = match &mut self.body {
            Body::Read { offset, buf, done, .. } => {
                let rest = &mut buf[*done..];
                let len = u32::try_from(rest.len()).expect("a read is smaller than 4 GiB");
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(*offset + *done as u64).build()
            }
            Body::Write { .. } => return self.submit_write(key, ring, spares),
            Body::Flush { .. } => sync(fd),
            Body::Discard { offset, len_bytes, .. } => opcode::Fallocate::new(fd, *len_bytes)
                .offset(*offset)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Body::Connect { addr, .. } => opcode::Connect::new(fd, addr.as_ptr(), addr.len()).build(),
            Body::Recv { bufs, cursor, got, min, .. } => {
                // All bytes are wanted: the kernel gathers them.
                let flags = if *min - *got == cursor.left { libc::MSG_WAITALL } else { 0 };
                match only_one(cursor.parts(bufs)) {
                    Some((ptr, len)) => opcode::Recv::new(fd, ptr, len).flags(flags).build(),
                    None => {
                        let vectors = self.vectors.get_or_insert_with(|| spares.take());
                        vectors.load(cursor.parts(bufs));
                        opcode::RecvMsg::new(fd, vectors.message()).flags(flags as u32).build()
                    }
                }
            }
            Body::Send { bufs, cursor, .. } => {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                match only_one(cursor.parts(bufs)) {
                    Some((ptr, len)) => opcode::Send::new(fd, ptr, len).flags(flags).build(),
                    None => {
                        let vectors = self.vectors.get_or_insert_with(|| spares.take());
                        vectors.load(cursor.parts(bufs));
                        opcode::SendMsg::new(fd, vectors.message()).flags(flags as u32).build()
                    }
                }
            }
        };
        ring.push(&entry.user_data(data))
    }

    /// Submits the write, with its flush linked behind it when this submission covers the rest of the write.
    fn submit_write(&mut self, key: usize, ring: &mut Ring, spares: &mut Spares) -> Result<(), EnvError> {
        let data = user_data(tag::OP, self.generation, key);
        let fd = uring::Fd(self.fd);
        let Body::Write { offset, bufs, cursor, flush, .. } = &mut self.body else {
            panic!("submit_write is for writes");
        };
        if cursor.left == 0 {
            return ring.push(&sync(fd).user_data(data));
        }
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let at = *offset + (total - cursor.left) as u64;
        let (write, all) = match only_one(cursor.parts(bufs)) {
            Some((ptr, len)) => (opcode::Write::new(fd, ptr, len).offset(at).build(), true),
            None => {
                let vectors = self.vectors.get_or_insert_with(|| spares.take());
                let all = vectors.load(cursor.parts(bufs));
                (opcode::Writev::new(fd, vectors.iov.as_ptr(), vectors.iov.len() as u32).offset(at).build(), all)
            }
        };
        if *flush && all && failpoint::is_armed(Point::LogWritten) {
            // Write and flush are submitted separately, so that the failpoint lies between them; `step` then submits
            // the flush.
            self.sync_result = -libc::ECANCELED;
            return ring.push(&write.user_data(data));
        }
        if !(*flush && all) {
            return ring.push(&write.user_data(data));
        }
        self.quiet = ring.quiet_links();
        self.awaiting = if self.quiet { 1 } else { 2 };
        let skip = if self.quiet { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        let write = write.flags(squeue::Flags::IO_LINK | skip).user_data(data);
        let flush = sync(fd).user_data(user_data(tag::SYNC, self.generation, key));
        ring.push_pair(&[write, flush])
    }

    /// Whether the operation waits for a peer, so that it must be cancelled to end.
    pub fn is_network(&self) -> bool {
        matches!(self.body, Body::Connect { .. } | Body::Recv { .. } | Body::Send { .. })
    }
}

fn sync(fd: uring::Fd) -> squeue::Entry {
    opcode::Fsync::new(fd).flags(uring::FsyncFlags::DATASYNC).build()
}

/// Returns the only part, if there is exactly one and its length fits.
fn only_one(mut parts: impl Iterator<Item = (*mut u8, usize)>) -> Option<(*mut u8, u32)> {
    let (ptr, len) = parts.next()?;
    if parts.next().is_some() {
        return None;
    }
    Some((ptr, u32::try_from(len).ok()?))
}

/// Converts an errno of a disk operation.
pub(super) fn disk_error(errno: i32) -> Result<(), DiskError> {
    match errno {
        0 => Ok(()),
        libc::ENOSPC | libc::EDQUOT => Err(DiskError::NoSpace),
        other => Err(DiskError::Io(other)),
    }
}

/// Value in place of an errno when the peer ended the stream in good order.
const END: i32 = i32::MAX;

/// Converts an errno of an established connection.
pub(super) fn stream_error(errno: i32) -> Result<(), NetError> {
    match errno {
        0 => Ok(()),
        END => Err(NetError::Lost),
        libc::ECANCELED => Err(NetError::Closed),
        errno => Err(NetError::Broken(errno)),
    }
}

/// Converts an errno of a connect.
pub(super) fn connect_error(errno: i32) -> Result<(), NetError> {
    match errno {
        0 => Ok(()),
        libc::ECONNREFUSED => Err(NetError::Refused),
        libc::ETIMEDOUT => Err(NetError::TimedOut),
        libc::ECANCELED => Err(NetError::Closed),
        other => Err(NetError::Unreachable(other)),
    }
}
