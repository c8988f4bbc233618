//! The read of one log segment from a device that may fail parts of it (R11).
//!
//! A failed read is split until the pages that cannot be read stand alone. They become zeros and are listed, so that the
//! scan treats them as damaged. Pieces are read one after the other, so a device that fails everywhere is found out after
//! [`UNREADABLE_MAX`] pages.
//!
//! Invariant: pure. Every byte of the result was read, or lies in a listed page.

use layout::log::BATCH_ALIGN;
use std::collections::BTreeSet;
use std::ops::Range;
use types::planted::{Bug, on};
use types::{IoBuf, IoBufMut};

/// Most unreadable pages of one segment that are bad sectors. Beyond them the device, or the path to it, has failed.
pub(crate) const UNREADABLE_MAX: usize = 1024;

/// The bytes of one segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentBytes {
    pub bytes: IoBuf,
    /// Offsets of the pages that the device could not read; their bytes are zeros.
    pub unreadable: BTreeSet<usize>,
}

impl SegmentBytes {
    /// Whether a page of this range could not be read.
    pub fn lacks(&self, range: Range<usize>) -> bool {
        self.unreadable.range(range.start / BATCH_ALIGN * BATCH_ALIGN..range.end).next().is_some()
    }
}

/// A segment that is being read, in one piece or in many, one piece after the other.
#[derive(Debug)]
pub(crate) struct SegmentRead {
    /// Where the pieces go, once the read in one piece has failed.
    whole: Option<IoBufMut>,
    /// The pieces still to read; the last one comes next.
    pieces: Vec<Range<usize>>,
    unreadable: BTreeSet<usize>,
}

impl SegmentRead {
    /// Begins the read of a segment of this length.
    pub fn new(len: usize) -> SegmentRead {
        SegmentRead { whole: None, pieces: std::iter::once(0..len).collect(), unreadable: BTreeSet::new() }
    }

    /// Returns the place of the piece to read next; `None` at the end.
    pub fn next(&self) -> Option<Range<usize>> {
        self.pieces.last().cloned()
    }

    /// Takes the outcome of the piece that came next.
    ///
    /// # Panics
    /// At the end.
    pub fn take(&mut self, buf: IoBufMut, readable: bool) {
        let piece = self.pieces.pop().expect("a piece was read");
        let Some(whole) = &mut self.whole else {
            self.whole = Some(if readable { buf } else { IoBufMut::zeroed(piece.len()) });
            if !readable {
                self.split(piece);
            }
            return;
        };
        match readable {
            true => whole[piece].copy_from_slice(&buf),
            false => self.split(piece),
        }
    }

    /// Splits a piece that cannot be read as one; a single page is given up.
    fn split(&mut self, piece: Range<usize>) {
        if piece.len() <= BATCH_ALIGN {
            self.unreadable.insert(piece.start);
            return;
        }
        let middle = piece.start + (piece.len() / 2).next_multiple_of(BATCH_ALIGN);
        self.pieces.extend([middle..piece.end, piece.start..middle]);
    }

    /// Whether so many pages cannot be read that the device has failed.
    pub fn has_failed(&self) -> bool {
        self.unreadable.len() > UNREADABLE_MAX
    }

    /// Ends the read.
    ///
    /// # Panics
    /// When a piece was not read.
    pub fn finish(self) -> SegmentBytes {
        assert!(self.pieces.is_empty(), "{} pieces are missing", self.pieces.len());
        let whole = self.whole.expect("a piece was taken");
        let mut unreadable = self.unreadable;
        if !unreadable.is_empty() && on(Bug::UnreadableLogAsZeros) {
            unreadable.clear();
        }
        SegmentBytes { bytes: whole.freeze(), unreadable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a segment of ones of which some pages fail; returns the result and the number of reads.
    fn read(pages: usize, fails: impl Fn(usize) -> bool) -> (SegmentBytes, usize) {
        let (mut read, mut reads) = (SegmentRead::new(pages * BATCH_ALIGN), 0);
        while let Some(piece) = read.next() {
            let mut buf = IoBufMut::new(piece.len());
            buf.fill(1);
            let readable = !(piece.start / BATCH_ALIGN..piece.end / BATCH_ALIGN).any(&fails);
            read.take(buf, readable);
            reads += 1;
        }
        (read.finish(), reads)
    }

    #[test]
    fn unreadable_pages_are_zeros_and_listed_and_all_others_are_read() {
        for pages in [1, 7, 64, 1000] {
            for bad in [vec![], vec![0], vec![pages - 1], vec![0, pages / 2, pages - 1], (0..pages).collect()] {
                let (found, _) = read(pages, |page| bad.contains(&page));
                let listed: Vec<usize> = found.unreadable.iter().map(|at| at / BATCH_ALIGN).collect();
                let mut want = bad.clone();
                want.dedup();
                assert_eq!(listed, want);
                for page in 0..pages {
                    let range = page * BATCH_ALIGN..(page + 1) * BATCH_ALIGN;
                    let want = u8::from(!bad.contains(&page));
                    assert!(found.bytes[range.clone()].iter().all(|byte| *byte == want), "page {page} of {pages}");
                    assert_eq!(found.lacks(range), bad.contains(&page));
                }
            }
        }
    }

    #[test]
    fn failing_device_is_found_out_after_a_bounded_number_of_reads() {
        let mut read = SegmentRead::new((64 << 8) * BATCH_ALIGN);
        let mut reads = 0;
        while !read.has_failed() {
            let piece = read.next().expect("it has failed before the end");
            read.take(IoBufMut::new(piece.len()), false);
            reads += 1;
        }
        assert!(reads < 3 * UNREADABLE_MAX, "{reads} reads");
    }
}
