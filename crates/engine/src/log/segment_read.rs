//! The read of one log segment from a device that may fail parts of it (R11).
//!
//! A failed read is split until the pages that cannot be read stand alone. They become zeros and are listed, so that the
//! scan treats them as damaged. A device that fails everywhere is not split for ever: see [`LONE_MAX`].
//!
//! Invariant: pure. Every byte of the result was read, or lies in a listed page.

use layout::log::BATCH_ALIGN;
use std::collections::BTreeSet;
use std::ops::Range;
use types::{IoBuf, IoBufMut};

/// Number of unreadable pages in one segment up to which failed reads are split to single pages.
const LONE_MAX: usize = 1024;
/// Beyond that number a failed read of at most this length is given up as a whole.
const COARSE_LEN: usize = 1 << 20;

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

/// A segment that is being read, in one piece or in many.
#[derive(Debug)]
pub(crate) struct SegmentRead {
    len: usize,
    /// Where the pieces go, once the read in one piece has failed.
    whole: Option<IoBufMut>,
    pieces: Vec<Range<usize>>,
    left: usize,
    unreadable: BTreeSet<usize>,
}

impl SegmentRead {
    /// Begins the read of a segment. Its first piece, number 0, is the whole segment.
    pub fn new(len: usize) -> SegmentRead {
        let pieces = std::iter::once(0..len).collect();
        SegmentRead { len, whole: None, pieces, left: 1, unreadable: BTreeSet::new() }
    }

    /// Returns the place of a piece in the segment.
    pub fn piece(&self, nth: usize) -> Range<usize> {
        self.pieces[nth].clone()
    }

    /// Takes the outcome of a piece. Returns the numbers of the pieces to read next.
    pub fn take(&mut self, nth: usize, buf: IoBufMut, readable: bool) -> Range<usize> {
        let piece = self.piece(nth);
        let end = self.pieces.len();
        self.left -= 1;
        if readable && piece.len() == self.len {
            self.whole = Some(buf);
            return end..end;
        }
        let whole = self.whole.get_or_insert_with(|| IoBufMut::zeroed(self.len));
        if readable {
            whole[piece].copy_from_slice(&buf);
            return end..end;
        }
        let smallest = if self.unreadable.len() < LONE_MAX { BATCH_ALIGN } else { COARSE_LEN };
        if piece.len() <= smallest {
            self.unreadable.extend(piece.step_by(BATCH_ALIGN));
            return end..end;
        }
        let middle = piece.start + (piece.len() / 2).next_multiple_of(BATCH_ALIGN);
        self.pieces.extend([piece.start..middle, middle..piece.end]);
        self.left += 2;
        end..end + 2
    }

    /// Whether every piece was read or given up.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Ends the read.
    ///
    /// # Panics
    /// When a piece is still being read.
    pub fn finish(self) -> SegmentBytes {
        assert!(self.is_done(), "{} pieces are missing", self.left);
        let whole = self.whole.expect("a piece was taken");
        SegmentBytes { bytes: whole.freeze(), unreadable: self.unreadable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a segment of ones of which some pages fail; returns the result and the number of reads.
    fn read(pages: usize, fails: impl Fn(usize) -> bool) -> (SegmentBytes, usize) {
        let mut read = SegmentRead::new(pages * BATCH_ALIGN);
        let (mut next, mut reads) = (vec![0], 0);
        while let Some(nth) = next.pop() {
            let piece = read.piece(nth);
            let mut buf = IoBufMut::new(piece.len());
            buf.fill(1);
            let readable = !(piece.start / BATCH_ALIGN..piece.end / BATCH_ALIGN).any(&fails);
            next.extend(read.take(nth, buf, readable));
            reads += 1;
        }
        assert!(read.is_done());
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
    fn device_that_fails_everywhere_costs_a_bounded_number_of_reads() {
        let pages = 64 << 8;
        let (found, reads) = read(pages, |_| true);
        assert_eq!(found.unreadable.len(), pages);
        assert!(reads < 4 * LONE_MAX, "{reads} reads of {pages} pages");
    }
}
