//! One io_uring and the byte pipes on it.
//!
//! Memory that the kernel sees is leaked: a probe process makes a handful of buffers, once, and needs them until it
//! ends. So every pointer below is valid for ever.

use super::{FloorError, frame_len, io};
use io_uring::{IoUring, opcode, squeue, types::Fd};
use std::net::TcpStream;
use std::os::fd::{IntoRawFd, RawFd};
use types::IoBufMut;

/// Limit of the bytes that one receive takes.
pub const RECEIVE_LEN: usize = 1 << 20;
/// Limit of the bytes that wait in a pipe: those of one receive and its acknowledgements, on top of all that are in flight.
const QUEUE_LEN: usize = 8 << 20;
const _: () = assert!(QUEUE_LEN >= 2 * RECEIVE_LEN + super::DEPTH_MAX as usize * super::FRAME_LEN);

/// Returns aligned memory for the life of the process.
pub fn memory(len: usize) -> &'static mut [u8] {
    let buf: &'static mut IoBufMut = Box::leak(Box::new(IoBufMut::zeroed(len)));
    buf
}

/// The ring. Completions are (tag, result).
pub struct Ring {
    uring: IoUring,
}

impl Ring {
    pub fn new() -> Result<Ring, FloorError> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(256)
            .map_err(io("io_uring"))?;
        Ok(Ring { uring })
    }

    /// Queues one entry, all of whose memory is leaked (see the head of this file).
    pub fn push(&mut self, entry: &squeue::Entry) -> Result<(), FloorError> {
        // SAFETY: entries are built in this crate's floor only, over memory that is never freed and that
        // its owner does not touch until the completion came.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.uring.submit().map_err(io("io_uring submit"))?;
        }
        Ok(())
    }

    /// Submits everything, waits for one completion at least, and returns all.
    pub fn turn(&mut self, out: &mut Vec<(u64, i32)>) -> Result<(), FloorError> {
        self.uring.submit_and_wait(1).map_err(io("io_uring enter"))?;
        out.extend(self.uring.completion().map(|c| (c.user_data(), c.result())));
        Ok(())
    }
}

/// A connection, with buffers for received bytes, for queued bytes, and for bytes that are being sent.
pub struct Pipe {
    fd: RawFd,
    input: &'static mut [u8],
    filled: usize,
    queued: &'static mut [u8],
    queued_len: usize,
    going: &'static mut [u8],
    going_len: usize,
    gone: usize,
    sending: bool,
    receiving: bool,
    receive_tag: u64,
    send_tag: u64,
}

impl Pipe {
    /// Makes a pipe whose completions carry `tag` for receives and `tag + 1` for sends.
    pub fn new(stream: TcpStream, tag: u64) -> Result<Pipe, FloorError> {
        stream.set_nodelay(true).map_err(io("TCP_NODELAY"))?;
        Ok(Pipe {
            fd: stream.into_raw_fd(),
            input: memory(RECEIVE_LEN),
            filled: 0,
            queued: memory(QUEUE_LEN),
            queued_len: 0,
            going: memory(QUEUE_LEN),
            going_len: 0,
            gone: 0,
            sending: false,
            receiving: false,
            receive_tag: tag,
            send_tag: tag + 1,
        })
    }

    /// Whether everything that one receive of another pipe can bring fits into the queue.
    pub fn has_room(&self) -> bool {
        self.queued_len + 2 * RECEIVE_LEN <= QUEUE_LEN
    }

    /// Receives, unless a receive is under way.
    pub fn receive(&mut self, ring: &mut Ring) -> Result<(), FloorError> {
        if std::mem::replace(&mut self.receiving, true) {
            return Ok(());
        }
        let room = &mut self.input[self.filled..];
        let entry = opcode::Recv::new(Fd(self.fd), room.as_mut_ptr(), room.len() as u32);
        ring.push(&entry.build().user_data(self.receive_tag))
    }

    /// Ends a receive of `count` bytes, and hands each whole frame to `take`.
    pub fn received(&mut self, count: i32, mut take: impl FnMut(&[u8])) {
        self.receiving = false;
        self.filled += usize::try_from(count).expect("the caller has looked for errors");
        let mut rest = &self.input[..self.filled];
        while let Some(frame) = frame_len(rest).and_then(|len| rest.get(..len)) {
            take(frame);
            rest = &rest[frame.len()..];
        }
        let whole = self.filled - rest.len();
        self.input.copy_within(whole..self.filled, 0);
        self.filled -= whole;
    }

    pub fn queue(&mut self, bytes: &[u8]) {
        self.queued[self.queued_len..][..bytes.len()].copy_from_slice(bytes);
        self.queued_len += bytes.len();
    }

    /// Sends the queued bytes, unless a send is under way.
    pub fn flush(&mut self, ring: &mut Ring) -> Result<(), FloorError> {
        if self.sending {
            return Ok(());
        }
        if self.gone == self.going_len {
            if self.queued_len == 0 {
                return Ok(());
            }
            std::mem::swap(&mut self.queued, &mut self.going);
            (self.going_len, self.queued_len, self.gone) = (self.queued_len, 0, 0);
        }
        self.sending = true;
        let rest = &self.going[self.gone..self.going_len];
        let entry = opcode::Send::new(Fd(self.fd), rest.as_ptr(), rest.len() as u32);
        ring.push(&entry.build().user_data(self.send_tag))
    }

    /// Ends a send of `count` bytes.
    pub fn sent(&mut self, count: i32) {
        self.gone += usize::try_from(count).expect("the caller has looked for errors");
        self.sending = false;
    }
}
