//! The order in which a request becomes pieces, one for each part.
//!
//! A write goes by volume address, because each part is a slice of the user's buffer. Other requests go by chunk address:
//! units that are neighbours in a column are one piece, also when other columns lie between them in the volume. So a trim of
//! whole stripes costs a piece for each chunk, as without stripes, and a read one message for 512 KiB of a column.
//! Without stripes both orders are the same.
//!
//! Invariant: a piece lies in one chunk, and with payload it crosses no aligned 512 KiB border, in both address spaces.

use crate::volume::Kind;
use std::ops::Range;
use types::limits::PART_MAX;
use types::{CHUNK, IoBuf, Stripe};

/// A run of bytes of a request that becomes one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Chunk addresses.
    pub start: u64,
    pub end: u64,
    /// Volume address of the first byte.
    pub from: u64,
}

impl Piece {
    pub fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// Returns the piece behind `last` of a request for `range` of the volume, or its first piece; `None` behind the last one.
pub(crate) fn next_piece(stripe: Stripe, kind: &Kind, range: &Range<u64>, last: Option<Piece>) -> Option<Piece> {
    if matches!(kind, Kind::Write { .. }) {
        let from = last.map_or(range.start, |last| last.from + last.len());
        let end = range.end.min(stripe.unit_end(from)).min((from / PART_MAX + 1) * PART_MAX);
        let start = stripe.chunk_address(from);
        return (from < range.end).then(|| Piece { start, end: start + (end - from), from });
    }
    let border = match kind {
        Kind::Read(_) | Kind::Write { .. } | Kind::Fill => PART_MAX,
        Kind::Zero | Kind::Extents { .. } => CHUNK,
    };
    let run = stripe.run_from(range, last.map_or(0, |last| last.end))?;
    let end = run.end.min((run.start / border + 1) * border);
    Some(Piece { start: run.start, end, from: stripe.volume_address(run.start) })
}

/// Returns the border at which the answer to a read is cut into buffers: each lies in one piece.
fn buffer_border(stripe: Stripe) -> u64 {
    stripe.unit_bytes().min(PART_MAX)
}

/// Returns the buffers of the answer to a read, empty yet.
pub(crate) fn buffers(stripe: Stripe, range: &Range<u64>) -> Vec<IoBuf> {
    let border = buffer_border(stripe);
    vec![IoBuf::EMPTY; ((range.end - 1) / border - range.start / border + 1) as usize]
}

/// Puts the bytes of a piece, `run` by chunk address, into the buffers of the read of the volume from `start` on.
pub(crate) fn scatter(stripe: Stripe, start: u64, run: Range<u64>, bytes: &IoBuf, buffers: &mut [IoBuf]) {
    assert_eq!(bytes.len() as u64, run.end - run.start, "bytes of a piece");
    let border = buffer_border(stripe);
    let mut at = run.start;
    while at < run.end {
        let end = run.end.min((at / border + 1) * border);
        let buffer = stripe.volume_address(at) / border - start / border;
        buffers[buffer as usize] = bytes.slice((at - run.start) as usize..(end - run.start) as usize);
        at = end;
    }
}

/// Extents of one piece: the chunk address of its first byte, and its runs of data and of holes.
pub(crate) type PieceExtents = (u64, Vec<(u64, bool)>);

/// Puts the extents of all pieces into the order of volume addresses, as (length, data). Neighbours of a kind are joined.
pub(crate) fn join_extents(stripe: Stripe, range: &Range<u64>, pieces: &[PieceExtents]) -> Vec<(u64, bool)> {
    // Pieces come by chunk address, so the ends ascend.
    let mut runs: Vec<(u64, bool)> = Vec::new();
    for (start, extents) in pieces {
        let mut end = *start;
        for (len, data) in extents {
            end += len;
            runs.push((end, *data));
        }
    }
    let (mut joined, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let place = stripe.chunk_address(at);
        let (run_end, data) = runs[runs.partition_point(|(end, _)| *end <= place)];
        let len = (run_end - place).min(stripe.unit_end(at) - at).min(range.end - at);
        device::push_extent(&mut joined, len, data);
        at += len;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn pieces(stripe: Stripe, kind: &Kind, range: Range<u64>) -> Vec<Piece> {
        let first = next_piece(stripe, kind, &range, None);
        std::iter::successors(first, |last| next_piece(stripe, kind, &range, Some(*last))).collect()
    }

    fn spans(kind: &Kind, range: Range<u64>) -> Vec<(u64, u64)> {
        pieces(Stripe::NONE, kind, range).into_iter().map(|p| (p.start, p.end)).collect()
    }

    fn write() -> Kind {
        Kind::Write { offset: 0, buf: IoBuf::EMPTY }
    }

    #[test]
    fn payload_is_cut_at_aligned_half_mebibytes_and_zeroes_at_chunks() {
        assert_eq!(spans(&write(), 0..4 * K), [(0, 4 * K)]);
        let cut = [(511 * K, 512 * K), (512 * K, 1024 * K), (1024 * K, 1025 * K)];
        assert_eq!(spans(&write(), 511 * K..1025 * K), cut);
        assert_eq!(spans(&Kind::Fill, 511 * K..1025 * K), cut);
        let zeroes = spans(&Kind::Zero, CHUNK - 512..2 * CHUNK);
        assert_eq!(zeroes, [(CHUNK - 512, CHUNK), (CHUNK, 2 * CHUNK)]);
        for range in [0..512, 512 * K - 512..512 * K + 512, K..33 * 1024 * K] {
            let read = Kind::Read(Vec::new());
            assert_eq!(spans(&read, range.clone()).len(), buffers(Stripe::NONE, &range).len());
        }
    }

    #[test]
    fn sequential_mebibyte_has_pieces_in_every_column() {
        for (unit, count) in [(64 * K, 4), (4 * K, 64), (512 * K, 2), (16 * K, 64)] {
            let stripe = Stripe::new(unit, count).expect("a layout");
            let pieces = pieces(stripe, &write(), 7 << 20..8 << 20);
            let mut columns: Vec<u32> = pieces.iter().map(|p| stripe.column_of((p.start / CHUNK) as u32)).collect();
            columns.sort_unstable();
            columns.dedup();
            assert_eq!(columns.len() as u32, count);
            assert_eq!(pieces.iter().map(Piece::len).sum::<u64>(), 1 << 20);
            assert!(pieces.windows(2).all(|p| p[0].from + p[0].len() == p[1].from), "a write goes by volume address");
        }
    }

    #[test]
    fn trim_of_whole_stripes_costs_no_more_pieces_than_without() {
        let stripe = Stripe::new(4 * K, 16).expect("a layout");
        assert_eq!(pieces(stripe, &Kind::Zero, 0..2 << 30).len(), 128);
        assert_eq!(pieces(stripe, &Kind::Zero, 0..128 * K).len(), 16);
        assert_eq!(pieces(stripe, &Kind::Fill, 0..16 << 20).len(), 32, "half mebibytes of columns");
    }

    #[test]
    fn extents_of_columns_are_joined_by_volume_address() {
        let stripe = Stripe::new(4 * K, 2).expect("a layout");
        let column = 512 << 20;
        let pieces = [(4 * K, vec![(8 * K, true)]), (column, vec![(8 * K, true), (4 * K, false)])];
        // Units 1 to 5: the second column has units 1, 3 and 5, the first one 2 and 4.
        let joined = join_extents(stripe, &(4 * K..24 * K), &pieces);
        assert_eq!(joined, [(16 * K, true), (4 * K, false)]);
    }
}
