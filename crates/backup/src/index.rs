//! The index of a segment (1 GiB): which blocks of it hold data, and in which pieces.
//!
//! Invariant: runs do not overlap. A block that no run has reads as zeros.

use crate::format::ObjectId;
use std::collections::BTreeMap;
use std::ops::Range;

/// Place of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of blocks.
    pub count: u32,
    /// The piece that has them.
    pub piece: ObjectId,
    /// Number of the first one in the piece.
    pub at: u32,
}

/// The blocks of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    runs: BTreeMap<u32, Place>,
}

impl Index {
    /// Returns the runs with their first blocks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        self.runs.iter().map(|(start, place)| (*start, *place))
    }

    /// Counts the runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether no block holds data.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Counts the blocks with data.
    pub fn blocks(&self) -> u64 {
        self.runs.values().map(|place| u64::from(place.count)).sum()
    }

    /// Returns the pieces, ascending, each once.
    pub fn pieces(&self) -> Vec<ObjectId> {
        let mut pieces: Vec<ObjectId> = self.runs.values().map(|place| place.piece).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces
    }

    /// The blocks of the range read as zeros from now on.
    pub fn clear(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // The run that begins before the range may reach into it, and behind it.
        if let Some((start, place)) = self.runs.range(..range.start).next_back().map(|(start, place)| (*start, *place))
        {
            let end = start + place.count;
            if end > range.start {
                self.runs.insert(start, Place { count: range.start - start, ..place });
            }
            self.keep_tail(start, place, range.end);
        }
        let within: Vec<u32> = self.runs.range(range.clone()).map(|(start, _)| *start).collect();
        for start in within {
            if let Some(place) = self.runs.remove(&start) {
                self.keep_tail(start, place, range.end);
            }
        }
    }

    /// Keeps what a run has behind `end`.
    fn keep_tail(&mut self, start: u32, place: Place, end: u32) {
        if start + place.count > end && end > start {
            let gone = end - start;
            self.runs.insert(end, Place { count: place.count - gone, at: place.at + gone, ..place });
        }
    }

    /// Puts a run in the place of what is there. It joins the run before it where it goes on with that in the same piece.
    pub fn insert(&mut self, start: u32, place: Place) {
        self.clear(start..start + place.count);
        if let Some((before, run)) = self.runs.range_mut(..start).next_back()
            && *before + run.count == start
            && run.piece == place.piece
            && run.at + run.count == place.at
        {
            run.count += place.count;
            return;
        }
        self.runs.insert(start, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::rng::Rng;

    const BLOCKS: usize = 64;

    #[test]
    fn index_follows_a_map_of_single_blocks() {
        let mut rng = Rng::new(5);
        for _ in 0..300 {
            let mut index = Index::default();
            let mut model: Vec<Option<(ObjectId, u32)>> = vec![None; BLOCKS];
            for _ in 0..40 {
                let start = rng.below(BLOCKS as u64) as u32;
                let count = rng.between(1, BLOCKS as u64 - u64::from(start)) as u32;
                let range = start as usize..(start + count) as usize;
                if rng.chance(1, 3) {
                    index.clear(start..start + count);
                    model[range].fill(None);
                } else {
                    let (piece, at) = (ObjectId([rng.below(3) as u8; 32]), rng.below(900) as u32);
                    index.insert(start, Place { count, piece, at });
                    (range).zip(at..).for_each(|(n, at)| model[n] = Some((piece, at)));
                }
                let mut found = vec![None; BLOCKS];
                let mut end = 0;
                for (start, place) in index.iter() {
                    assert!(start >= end && place.count > 0, "runs overlap");
                    end = start + place.count;
                    (start..end).zip(place.at..).for_each(|(n, at)| found[n as usize] = Some((place.piece, at)));
                }
                assert_eq!(found, model);
                assert_eq!(index.blocks(), model.iter().flatten().count() as u64);
            }
        }
    }

    #[test]
    fn run_that_goes_on_in_its_piece_is_one_run() {
        let mut index = Index::default();
        let piece = ObjectId([1; 32]);
        index.insert(0, Place { count: 4, piece, at: 0 });
        index.insert(4, Place { count: 4, piece, at: 4 });
        index.insert(8, Place { count: 4, piece, at: 0 });
        assert_eq!(index.len(), 2);
        index.clear(3..3);
        assert_eq!(index.len(), 2, "an empty range changes nothing");
    }
}
