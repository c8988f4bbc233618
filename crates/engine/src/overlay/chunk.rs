//! One chunk in one layer: an interval map from sectors to bytes or zeros.
//!
//! Invariant: intervals are disjoint and not empty. `partial` names exactly the blocks with some sectors covered and
//! some not. `data` names exactly the AUs that hold bytes.

use super::intervals::{Interval, IntervalMap, Intervals};
use crate::payload::Payload;
use crate::space::{AuSet, Need};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::planted::{Bug, on};
use types::units::{BLOCKS_PER_AU, SECTORS_PER_AU, SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{ChunkKey, SectorRange};

/// Source of a run of sectors.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Data(Arc<Payload>),
    Zeros,
    /// Not covered here.
    Open,
    /// Not covered, and nothing below counts of this generation: a layer has cut the chunk.
    Hidden,
    /// Home holds the bytes in this chunk, or nothing shows.
    Home(ChunkKey),
}

#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub range: SectorRange,
    pub source: Source,
}

/// The cover of a block in a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cover<'a> {
    /// One payload covers all of it.
    Data(&'a Arc<Payload>),
    Zeros,
    /// Several intervals, or none for some sectors.
    Parts,
}

#[derive(Debug, Default)]
pub(crate) struct ChunkLayer {
    intervals: IntervalMap,
    partial: BTreeSet<u16>,
    bytes: u64,
    data: AuSet,
    /// Space that `data` needs at home, as last counted.
    pub(super) need: Need,
}

impl ChunkLayer {
    pub fn is_empty(&self) -> bool {
        self.intervals.len() == 0
    }

    /// Payload bytes that the intervals refer to.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn partial_blocks(&self) -> u64 {
        self.partial.len() as u64
    }

    pub fn is_partial(&self, block: u16) -> bool {
        self.partial.contains(&block)
    }

    pub fn partial(&self) -> impl Iterator<Item = u16> + '_ {
        self.partial.iter().copied()
    }

    /// AUs in which some sectors have bytes.
    pub fn data(&self) -> AuSet {
        self.data
    }

    /// AUs that the chunk will have at home because of this layer. `shows_older`: a block that is covered in part gets the rest of its
    /// bytes from an older generation.
    pub fn takes(&self, shows_older: bool) -> AuSet {
        if !shows_older {
            return self.data;
        }
        self.data.or(AuSet::of(self.partial.iter().map(|block| u32::from(*block) / BLOCKS_PER_AU)))
    }

    /// Replaces `range` with `data`.
    pub fn insert(&mut self, range: SectorRange, data: Option<Arc<Payload>>) {
        let new = Interval { start: range.start, end: range.end(), data };
        let holds = new.data.is_some();
        self.bytes += new.bytes();
        let last = self.intervals.last_before_mut(new.end).filter(|interval| interval.end > new.start);
        match last {
            // The same sectors again: the map keeps its form.
            Some(interval) if (interval.start, interval.end) == (new.start, new.end) => {
                self.bytes -= interval.bytes();
                *interval = new;
                return self.note_data(range, holds);
            }
            Some(_) => self.clear(range),
            None => {}
        }
        self.intervals.insert(new);
        self.note_partial(range);
        self.note_data(range, holds);
    }

    /// Whether some of these sectors are covered.
    pub fn touches(&self, range: SectorRange) -> bool {
        self.intervals.last_before(range.end()).is_some_and(|interval| interval.end > range.start)
    }

    /// Returns the parts of the intervals that share sectors with a range, whole: data or zeros.
    pub fn covered(&self, range: SectorRange) -> impl Iterator<Item = SectorRange> + '_ {
        self.over(range.start, range.end()).map(Interval::range)
    }

    fn note_data(&mut self, range: SectorRange, holds: bool) {
        for au in range.start / SECTORS_PER_AU..=(range.end() - 1) / SECTORS_PER_AU {
            if holds {
                self.data.insert(au);
            } else if self.data.contains(au) && !self.finds_data(au) {
                self.data.remove(au);
            }
        }
    }

    /// Whether some sectors of this AU have bytes, according to the intervals.
    pub fn finds_data(&self, au: u32) -> bool {
        let range = SectorRange::of_au(au);
        self.over(range.start, range.end()).any(|interval| interval.data.is_some())
    }

    /// Iterates over the intervals that share sectors with `start..end`, ascending.
    fn over(&self, start: u32, end: u32) -> impl Iterator<Item = &Interval> {
        let first = self.intervals.last_before(start).filter(|interval| interval.end > start);
        let from = first.map_or(start, |interval| interval.start);
        self.intervals.beginning_at(from).take_while(move |interval| interval.start < end)
    }

    /// Removes all cover of `range`, splitting intervals that cross its ends.
    fn clear(&mut self, range: SectorRange) {
        let left = self.intervals.last_before_mut(range.start).filter(|interval| interval.end > range.start);
        if let Some(left) = left {
            let cut = Interval { start: range.start, ..left.clone() };
            left.end = range.start;
            self.give_up(cut, range);
        }
        while let Some(interval) = self.intervals.remove_first(range) {
            self.give_up(interval, range);
        }
    }

    /// Gives up an interval that begins in `range`, but for its part behind it.
    fn give_up(&mut self, interval: Interval, range: SectorRange) {
        self.bytes -= interval.bytes();
        if interval.end > range.end() {
            let rest = Interval { start: range.end(), ..interval };
            self.bytes += rest.bytes();
            self.intervals.insert(rest);
        }
    }

    fn note_partial(&mut self, range: SectorRange) {
        let first = (range.start / SECTORS_PER_BLOCK) as u16;
        let last = ((range.end() - 1) / SECTORS_PER_BLOCK) as u16;
        if !self.partial.is_empty() {
            let covered: Vec<u16> = self.partial.range(first..=last).copied().collect();
            for block in covered {
                self.partial.remove(&block);
            }
        }
        let aligned = range.start.is_multiple_of(SECTORS_PER_BLOCK) && range.end().is_multiple_of(SECTORS_PER_BLOCK);
        if aligned {
            return;
        }
        for block in [first, last] {
            if !self.covers(block) {
                self.partial.insert(block);
            }
        }
    }

    fn covers(&self, block: u16) -> bool {
        !self.lookup(block_range(block)).iter().any(|f| matches!(f.source, Source::Open))
    }

    /// Returns the sources that cover `range`, in order and complete.
    pub fn lookup(&self, range: SectorRange) -> Vec<Found> {
        let mut found = Vec::new();
        let mut at = range.start;
        for interval in self.over(range.start, range.end()) {
            if interval.start > at {
                found.push(Found { range: SectorRange::new(at, interval.start - at), source: Source::Open });
                at = interval.start;
            }
            let end = interval.end.min(range.end());
            let source = interval.data.as_ref().map_or(Source::Zeros, |data| Source::Data(data.clone()));
            found.push(Found { range: SectorRange::new(at, end - at), source });
            at = end;
        }
        if at < range.end() {
            found.push(Found { range: SectorRange::new(at, range.end() - at), source: Source::Open });
        }
        found
    }

    /// Returns the blocks with covered sectors, ascending, from `from` on, and what covers each.
    pub fn blocks_from(&self, from: u16) -> impl Iterator<Item = (u16, Cover<'_>)> {
        let sector = u32::from(from) * SECTORS_PER_BLOCK;
        let mut next = from;
        self.over(sector, SECTORS_PER_CHUNK).flat_map(move |interval| {
            let low = ((interval.start / SECTORS_PER_BLOCK) as u16).max(next);
            let high = ((interval.end - 1) / SECTORS_PER_BLOCK) as u16;
            next = next.max(high + 1);
            let inside = interval.range();
            (low..high + 1).map(move |block| match &interval.data {
                _ if !inside.contains(block_range(block)) => (block, Cover::Parts),
                Some(payload) => (block, Cover::Data(payload)),
                None => (block, Cover::Zeros),
            })
        })
    }

    /// Returns the AUs of the chunk that one placed payload covers as a whole, ascending, and the units of the device that hold
    /// them. An AU with any other sector in it is never among them: its unit stays as the log needs it.
    pub fn adoptable(&self) -> impl Iterator<Item = (u16, u32)> {
        self.intervals.beginning_at(0).flat_map(|interval| {
            let aus = match on(Bug::PlaceAdoptedInPart) {
                true => interval.start / SECTORS_PER_AU..interval.end.div_ceil(SECTORS_PER_AU),
                false => interval.start.div_ceil(SECTORS_PER_AU)..interval.end / SECTORS_PER_AU,
            };
            let payload = interval.data.as_ref().filter(|payload| payload.place().is_some());
            payload
                .into_iter()
                .flat_map(move |payload| aus.clone().filter_map(|au| Some((au as u16, payload.unit_of(au)?))))
        })
    }

    pub fn into_intervals(self) -> Intervals {
        self.intervals.into_intervals()
    }

    #[cfg(test)]
    pub fn interval_count(&self) -> usize {
        self.intervals.len()
    }
}

/// The sectors of a block.
pub(crate) fn block_range(block: u16) -> SectorRange {
    SectorRange::of_blocks(block, 1)
}
