//! The receiving side of a connection: which bytes to receive next, and frames from the received bytes.
//!
//! A receive of a header also takes what has come behind it, so that a short frame costs one receive. Its blocks are
//! copied out of there, each to a buffer of its own length. Blocks that have not come whole are received into their
//! buffers, and the header of the next frame with them.
//!
//! Invariant: no memory is allocated for a frame before its header is verified. The payload block is aligned. While the
//! peer is not known, a receive takes one frame: its memory is small, and a link is up before its first message comes.

use std::ops::Range;
use types::{IoBuf, IoBufMut};
use wire::{FrameKind, HEADER_LEN, Header, WireError};

/// Most bytes behind a header that one receive takes along.
const AHEAD: usize = 32 << 10;
/// From so many missing bytes on a receive takes nothing else: the kernel waits until all of them are there.
const EXACT_MIN: usize = 64 << 10;

/// A received frame; the head block is not verified yet.
pub struct Frame {
    pub header: Header,
    pub head: IoBufMut,
    pub payload: IoBuf,
}

/// A frame whose blocks a receive completes.
struct Rest {
    header: Header,
    /// The head block, when all of it was there before.
    head: Option<IoBufMut>,
    missing: usize,
}

#[derive(Default)]
pub struct Rx {
    /// The first bytes of the next header.
    header: Vec<u8>,
    /// The frame whose header is complete, and whose blocks are not.
    frame: Option<Header>,
    /// Bytes behind a header. Absent while a receive fills it.
    ahead: Option<IoBufMut>,
    /// Those of them that belong to no frame yet.
    left: Range<usize>,
    /// The frame that the receive in flight completes.
    rest: Option<Rest>,
    /// A frame that a receive has completed.
    complete: Option<Frame>,
    /// Bytes of blocks that were copied and not counted yet.
    copied: u64,
    /// Kept from the last receive, to be used again.
    bufs: Vec<IoBufMut>,
    next_header: Option<IoBufMut>,
}

impl Rx {
    /// Returns the next frame of the received bytes, if it is complete. `greeting`: the peer is not known yet.
    ///
    /// # Errors
    /// When a complete header is invalid, or announces a frame that may not come now.
    pub fn frame(&mut self, greeting: bool) -> Result<Option<Frame>, WireError> {
        if let Some(frame) = self.complete.take() {
            return Ok(Some(frame));
        }
        if self.frame.is_none() {
            let mut header = [0; HEADER_LEN];
            let have = self.header.len();
            let n = self.copy_left(&mut header[have..]);
            self.header.extend_from_slice(&header[have..have + n]);
            let Some(bytes) = self.header.first_chunk::<HEADER_LEN>() else { return Ok(None) };
            let header = Header::decode(bytes)?;
            if greeting && header.kind() == FrameKind::Batch {
                return Err(WireError::Unexpected);
            }
            self.header.clear();
            self.frame = Some(header);
        }
        let here = self.left.len();
        let is_here = |header: &mut Header| header.head_len() + header.payload_len() <= here;
        let Some(header) = self.frame.take_if(is_here) else { return Ok(None) };
        let (mut head, mut payload) = blocks(&header);
        self.copy_block(&mut head);
        if let Some(payload) = &mut payload {
            self.copy_block(payload);
        }
        Ok(Some(Frame { header, head, payload: payload.map_or(IoBuf::EMPTY, IoBufMut::freeze) }))
    }

    /// Returns buffers for the next receive, and the least number of bytes that must come. `greeting`: the peer is not
    /// known yet.
    ///
    /// # Panics
    /// When a receive is in flight, or a complete frame was not taken.
    pub fn next(&mut self, greeting: bool) -> (Vec<IoBufMut>, usize) {
        assert!(self.rest.is_none() && self.complete.is_none(), "a receive is in flight, or a frame is here");
        let mut bufs = std::mem::take(&mut self.bufs);
        let Some(header) = self.frame.take() else {
            assert!(self.left.is_empty(), "{} B belong to a frame", self.left.len());
            let missing = HEADER_LEN - self.header.len();
            bufs.push(IoBufMut::new(missing));
            if !greeting {
                bufs.push(self.ahead.take().unwrap_or_else(|| IoBufMut::new(AHEAD)));
            }
            return (bufs, missing);
        };
        let (mut head, mut payload) = blocks(&header);
        let missing = head.len() + header.payload_len() - self.left.len();
        for block in [Some(&mut head), payload.as_mut()].into_iter().flatten() {
            let here = self.copy_block(block);
            block.hide(here);
        }
        let (whole, part) = if head.is_empty() { (Some(head), None) } else { (None, Some(head)) };
        bufs.extend(part);
        bufs.extend(payload);
        if missing < EXACT_MIN {
            bufs.push(self.next_header.take().unwrap_or_else(|| IoBufMut::new(HEADER_LEN)));
        }
        self.rest = Some(Rest { header, head: whole, missing });
        (bufs, missing)
    }

    /// Takes the buffers of a receive with its first `len` bytes filled.
    ///
    /// # Panics
    /// When `len` is below the requested number or above the buffers' length: the env broke its contract.
    pub fn received(&mut self, mut bufs: Vec<IoBufMut>, len: usize) {
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        let Some(Rest { header, head, missing }) = self.rest.take() else {
            let ahead = if bufs.len() > 1 { bufs.pop() } else { None };
            let rest = bufs.pop().expect("a header");
            assert!((rest.len()..=room).contains(&len), "{len} B received where {} were asked for", rest.len());
            self.header.extend_from_slice(&rest);
            self.left = 0..len - rest.len();
            self.ahead = ahead;
            self.bufs = bufs;
            return;
        };
        assert!((missing..=room).contains(&len), "{len} B received where {missing} were asked for");
        if missing < EXACT_MIN {
            let next = bufs.pop().expect("room for a header");
            self.header.extend_from_slice(&next[..len - missing]);
            self.next_header = Some(next);
        }
        let payload = if header.payload_len() > 0 { bufs.pop() } else { None };
        let mut head = head.or_else(|| bufs.pop()).expect("a frame has a head block");
        head.unhide();
        let payload = payload.map_or(IoBuf::EMPTY, |mut payload| {
            payload.unhide();
            payload.freeze()
        });
        self.bufs = bufs;
        self.complete = Some(Frame { header, head, payload });
    }

    /// Returns the number of bytes copied since it was asked last.
    pub fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Fills the front of `block` with bytes that belong to no frame yet; returns how many there were.
    fn copy_left(&mut self, block: &mut [u8]) -> usize {
        let n = block.len().min(self.left.len());
        if let Some(ahead) = self.ahead.as_ref().filter(|_| n > 0) {
            block[..n].copy_from_slice(&ahead[self.left.start..self.left.start + n]);
        }
        self.left.start += n;
        n
    }

    /// Does the same to a block of a frame.
    fn copy_block(&mut self, block: &mut [u8]) -> usize {
        let n = self.copy_left(block);
        self.copied += n as u64;
        n
    }
}

/// Returns memory for the blocks of a frame.
fn blocks(header: &Header) -> (IoBufMut, Option<IoBufMut>) {
    let payload = Some(header.payload_len()).filter(|len| *len > 0);
    (IoBufMut::new(header.head_len()), payload.map(IoBufMut::new))
}
