//! A run of sectors inside one chunk, and its division into fragments.

use crate::units::{SECTOR, SECTORS_PER_AU, SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use std::fmt;

/// `count` sectors from `start`, inside one chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorRange {
    pub start: u32,
    pub count: u32,
}

impl SectorRange {
    /// A range that is not empty and lies inside a chunk; `None` for anything else (a peer may ask for it).
    pub fn checked(start: u32, count: u32) -> Option<SectorRange> {
        let end = start.checked_add(count)?;
        (count > 0 && end <= SECTORS_PER_CHUNK).then_some(SectorRange { start, count })
    }

    /// Makes the range as [`SectorRange::checked`] does, for values of this process.
    ///
    /// # Panics
    /// When the range is empty or leaves the chunk.
    pub fn new(start: u32, count: u32) -> SectorRange {
        match SectorRange::checked(start, count) {
            Some(range) => range,
            None => panic!("sectors {start}+{count} do not lie in a chunk"),
        }
    }

    /// Counts the AUs that the range touches.
    pub fn au_count(self) -> u32 {
        self.end().div_ceil(SECTORS_PER_AU) - self.start / SECTORS_PER_AU
    }

    /// Returns the sectors of an AU of a chunk.
    ///
    /// # Panics
    /// When the chunk has no such AU.
    pub fn of_au(au: u32) -> SectorRange {
        SectorRange::new(au * SECTORS_PER_AU, SECTORS_PER_AU)
    }

    /// Returns the sectors of so many blocks of a chunk, beginning with `first`.
    ///
    /// # Panics
    /// When the chunk has no such blocks.
    pub fn of_blocks(first: u16, count: u16) -> SectorRange {
        SectorRange::new(u32::from(first) * SECTORS_PER_BLOCK, u32::from(count) * SECTORS_PER_BLOCK)
    }

    /// The whole chunk.
    pub const CHUNK: SectorRange = SectorRange { start: 0, count: SECTORS_PER_CHUNK };

    /// Returns the first sector after the range.
    pub fn end(self) -> u32 {
        self.start + self.count
    }

    /// Returns the length in bytes.
    pub fn len_bytes(self) -> usize {
        self.count as usize * SECTOR as usize
    }

    /// Returns the offset of the first byte inside the chunk.
    pub fn offset_bytes(self) -> u64 {
        u64::from(self.start) * SECTOR
    }

    /// Whether the two ranges share a sector.
    pub fn overlaps(self, other: SectorRange) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns the sectors in both, if any.
    pub fn intersect(self, other: SectorRange) -> Option<SectorRange> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| SectorRange { start, count: end - start })
    }

    /// Whether `other` lies wholly inside.
    pub fn contains(self, other: SectorRange) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Counts the aligned blocks that the range touches: the number of its fragments.
    pub fn fragment_count(self) -> usize {
        let first = self.start / SECTORS_PER_BLOCK;
        let last = (self.end() - 1) / SECTORS_PER_BLOCK;
        (last - first + 1) as usize
    }

    /// Iterates over the fragments, in order: the part of the range inside each aligned block.
    pub fn fragments(self) -> impl Iterator<Item = SectorRange> {
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= self.end() {
                return None;
            }
            let block_end = (at / SECTORS_PER_BLOCK + 1) * SECTORS_PER_BLOCK;
            let end = block_end.min(self.end());
            let fragment = SectorRange { start: at, count: end - at };
            at = end;
            Some(fragment)
        })
    }

    /// Computes the CRC32C of every fragment of `payload`, which holds exactly this range.
    pub fn fragment_crcs(self, payload: &[u8]) -> crate::CrcList {
        assert_eq!(payload.len(), self.len_bytes(), "payload of {self}");
        let mut crcs = crate::CrcList::with_capacity(self.fragment_count());
        crcs.extend(self.fragments().map(|f| crate::crc32c(&payload[fragment_bytes(self.start, f)])));
        crcs
    }

    /// Whether `payload` holds exactly this range with exactly these CRCs.
    pub fn verify(self, payload: &[u8], crcs: &[u32]) -> bool {
        payload.len() == self.len_bytes()
            && crcs.len() == self.fragment_count()
            && self.fragments().zip(crcs).all(|(f, crc)| crate::crc32c(&payload[fragment_bytes(self.start, f)]) == *crc)
    }
}

/// Returns the place of fragment `f` in a payload that begins at sector `base`.
pub fn fragment_bytes(base: u32, f: SectorRange) -> std::ops::Range<usize> {
    let start = (f.start - base) as usize * SECTOR as usize;
    start..start + f.len_bytes()
}

impl fmt::Display for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.count)
    }
}

impl fmt::Debug for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_tile_the_range_and_stop_at_block_borders() {
        for (start, count, want) in [
            (0, 8, vec![(0, 8)]),
            (7, 2, vec![(7, 1), (8, 1)]),
            (3, 13, vec![(3, 5), (8, 8)]),
            (32760, 8, vec![(32760, 8)]),
        ] {
            let range = SectorRange::new(start, count);
            let got: Vec<_> = range.fragments().map(|f| (f.start, f.count)).collect();
            assert_eq!(got, want, "{range}");
            assert_eq!(range.fragment_count(), want.len());
        }
    }

    #[test]
    fn ranges_outside_a_chunk_are_refused() {
        assert_eq!(SectorRange::checked(32768, 1), None);
        assert_eq!(SectorRange::checked(0, 0), None);
        assert_eq!(SectorRange::checked(u32::MAX, 2), None);
        assert!(SectorRange::checked(0, 32768).is_some());
    }
}
