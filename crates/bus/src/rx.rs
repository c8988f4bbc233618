//! The receiving side of a connection: which bytes to receive next, and frames from the received bytes.
//!
//! One receive takes the head block, the payload block and the header of the next frame, each into a
//! buffer of its own, so that a stream of frames costs one receive each and the payload block is aligned.
//! The next header may not have arrived yet, or in part; then a receive of the rest follows.
//!
//! Invariant: no memory is allocated for a frame before its header is verified.

use types::{IoBuf, IoBufMut};
use wire::{FrameKind, HEADER_LEN, Header, WireError};

/// A received frame; the head block is not verified yet.
pub struct Frame {
    pub header: Header,
    pub head: IoBufMut,
    pub payload: IoBuf,
}

#[derive(Default)]
pub struct Rx {
    /// The first `have` bytes of the next header.
    header: Vec<u8>,
    /// The frame that is being received.
    frame: Option<Header>,
    /// Kept from the last receive, to be used again.
    bufs: Vec<IoBufMut>,
    header_buf: Option<IoBufMut>,
}

impl Rx {
    /// Returns buffers for the next receive, and the least number of bytes that must come. `greeting`: the peer is not known yet.
    ///
    /// # Errors
    /// When the complete header is invalid, or announces a frame that may not come now.
    pub fn next(&mut self, greeting: bool) -> Result<(Vec<IoBufMut>, usize), WireError> {
        assert!(self.frame.is_none() && self.bufs.is_empty(), "a receive is in flight");
        let mut bufs = std::mem::take(&mut self.bufs);
        if let Some(bytes) = self.header.first_chunk::<HEADER_LEN>() {
            let header = Header::decode(bytes)?;
            if greeting && header.kind() == FrameKind::Batch {
                return Err(WireError::Unexpected);
            }
            self.header.clear();
            self.frame = Some(header);
            bufs.push(IoBufMut::new(header.head_len()));
            if header.payload_len() > 0 {
                bufs.push(IoBufMut::new(header.payload_len()));
            }
            bufs.push(self.header_buf.take().unwrap_or_else(|| IoBufMut::new(HEADER_LEN)));
            return Ok((bufs, header.head_len() + header.payload_len()));
        }
        let missing = HEADER_LEN - self.header.len();
        bufs.push(IoBufMut::new(missing));
        Ok((bufs, missing))
    }

    /// Takes the buffers of a receive with its first `len` bytes filled; returns a frame, if one is complete.
    ///
    /// # Panics
    /// When `len` is below the requested number or above the buffers' length: the env broke its contract.
    pub fn received(&mut self, mut bufs: Vec<IoBufMut>, len: usize) -> Option<Frame> {
        let last = bufs.pop().expect("every receive has a buffer");
        let Some(header) = self.frame.take() else {
            assert_eq!(len, last.len(), "a header was asked for");
            self.header.extend_from_slice(&last);
            self.bufs = bufs;
            return None;
        };
        let min = header.head_len() + header.payload_len();
        assert!((min..=min + HEADER_LEN).contains(&len), "{len} B received where {min} were asked for");
        self.header.extend_from_slice(&last[..len - min]);
        self.header_buf = Some(last);
        let payload = if header.payload_len() > 0 { bufs.pop().map(IoBufMut::freeze) } else { None };
        let head = bufs.pop().expect("a frame has a head block");
        self.bufs = bufs;
        Some(Frame { header, head, payload: payload.unwrap_or(IoBuf::EMPTY) })
    }
}
