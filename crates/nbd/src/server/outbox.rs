//! Replies that wait for the next send: heads in one run of bytes, data as shared buffers.
//!
//! Invariant: the data of reads is never copied. A reply's charge (one request, its bytes) is held until
//! the send that carries it has completed.

use crate::proto::{Header, reply, request};
use std::ops::Range;
use types::{IoBuf, IoBufMut};

/// A hole smaller than this is sent as data: a chunk costs the client more than the bytes.
const HOLE_MIN: usize = 4096;

enum Part {
    /// A range of `head`.
    Head(Range<usize>),
    Data(IoBuf),
}

/// Charges that a send releases when it has completed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Charge {
    pub requests: u32,
    pub bytes: u64,
}

/// Returns how many bytes a request is charged for.
pub fn charged_bytes(header: &Header) -> u64 {
    if matches!(header.kind, request::CMD_READ | request::CMD_WRITE) { u64::from(header.len) } else { 0 }
}

/// The replies of one connection.
#[derive(Default)]
pub struct Outbox {
    /// Reply heads are appended here.
    pub head: Vec<u8>,
    /// Bytes of `head` before this offset are named by `parts`.
    cut: usize,
    parts: Vec<Part>,
    charge: Charge,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.head.is_empty()
    }

    /// Counts the reply to `header` as written: its charge is released by the next send.
    pub fn finish(&mut self, header: &Header) {
        self.charge.requests += 1;
        self.charge.bytes += charged_bytes(header);
    }

    /// Writes the reply of a successful read, without chunks.
    pub fn read_simple(&mut self, header: &Header, pieces: Vec<IoBuf>) {
        check_len(header, &pieces);
        reply::simple(&mut self.head, header.cookie, None);
        pieces.into_iter().for_each(|piece| self.data(piece));
    }

    /// Writes the reply of a successful read in chunks: runs of data, and holes where the device reports
    /// zeros. With `whole` it is one chunk of data.
    pub fn read_chunks(&mut self, header: &Header, pieces: Vec<IoBuf>, whole: bool) {
        check_len(header, &pieces);
        let is_hole = |piece: &IoBuf| !whole && piece.len() >= HOLE_MIN && piece.is_shared_zeros();
        let mut offset = header.offset;
        let end = header.offset + u64::from(header.len);
        let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).peekable();
        let mut run: Vec<IoBuf> = Vec::new();
        while let Some(first) = pieces.next() {
            let hole = is_hole(&first);
            let mut len = first.len();
            run.push(first);
            while let Some(next) = pieces.next_if(|next| is_hole(next) == hole) {
                len += next.len();
                run.push(next);
            }
            let done = offset + len as u64 == end;
            if hole {
                reply::offset_hole(&mut self.head, header.cookie, done, offset, len as u32);
                run.clear();
            } else {
                reply::offset_data(&mut self.head, header.cookie, done, offset, len as u32);
                run.drain(..).for_each(|piece| self.data(piece));
            }
            offset += len as u64;
        }
    }

    fn data(&mut self, piece: IoBuf) {
        self.cut_head();
        self.parts.push(Part::Data(piece));
    }

    fn cut_head(&mut self) {
        if self.cut < self.head.len() {
            self.parts.push(Part::Head(self.cut..self.head.len()));
            self.cut = self.head.len();
        }
    }

    /// Takes everything that waits: buffers to send in order, and the charge that the send releases.
    pub fn take(&mut self) -> (Vec<IoBuf>, Charge) {
        self.cut_head();
        let mut heads = IoBufMut::new(self.head.len());
        heads.copy_from_slice(&self.head);
        let heads = heads.freeze();
        let bufs = self
            .parts
            .drain(..)
            .map(|part| match part {
                Part::Head(range) => heads.slice(range),
                Part::Data(data) => data,
            })
            .collect();
        self.head.clear();
        self.cut = 0;
        (bufs, std::mem::take(&mut self.charge))
    }
}

fn check_len(header: &Header, pieces: &[IoBuf]) {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    assert!(len == header.len as usize, "the device answered a read of {} bytes with {len}", header.len);
}
