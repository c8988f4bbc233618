//! One chunk in one layer: an interval map from sectors to bytes or zeros.
//!
//! Invariant: intervals are disjoint and not empty. `partial` names exactly the blocks with some sectors covered and
//! some not. `data` names exactly the AUs that hold bytes.

use crate::payload::Payload;
use crate::space::{AuSet, Need};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;
use types::units::{SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{SECTOR, SectorRange};

/// Source of a run of sectors.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Data(Arc<Payload>),
    Zeros,
    /// Not covered here.
    Home,
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

#[derive(Clone, Debug)]
struct Interval {
    end: u32,
    data: Option<Arc<Payload>>,
}

#[derive(Debug, Default)]
pub(crate) struct ChunkLayer {
    intervals: BTreeMap<u32, Interval>,
    partial: BTreeSet<u16>,
    bytes: u64,
    data: AuSet,
    /// Space that `data` needs at home, as last counted.
    pub(super) need: Need,
}

fn weight(start: u32, end: u32, data: &Option<Arc<Payload>>) -> u64 {
    if data.is_some() { u64::from(end - start) * SECTOR } else { 0 }
}

impl ChunkLayer {
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

    /// Replaces `range` with `data`.
    pub fn insert(&mut self, range: SectorRange, data: Option<Arc<Payload>>) {
        let (start, end, holds) = (range.start, range.end(), data.is_some());
        self.bytes += weight(start, end, &data);
        let last = self.intervals.range_mut(..end).next_back().filter(|(_, interval)| interval.end > start);
        match last {
            // The same sectors again: the map keeps its form.
            Some((at, interval)) if (*at, interval.end) == (start, end) => {
                self.bytes -= weight(start, end, &interval.data);
                interval.data = data;
                return self.note_data(range, holds);
            }
            Some(_) => self.clear(range),
            None => {}
        }
        let before = self.intervals.insert(start, Interval { end, data });
        assert!(before.is_none(), "an interval survived at {start}");
        self.note_partial(range);
        self.note_data(range, holds);
    }

    /// Whether some of these sectors are covered.
    pub fn touches(&self, range: SectorRange) -> bool {
        self.intervals.range(..range.end()).next_back().is_some_and(|(_, interval)| interval.end > range.start)
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
        let from = self.intervals.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        self.intervals.range(from..range.end()).any(|(_, i)| i.end > range.start && i.data.is_some())
    }

    /// Removes all cover of `range`, splitting intervals that cross its ends.
    fn clear(&mut self, range: SectorRange) {
        let (start, end) = (range.start, range.end());
        let left = self.intervals.range(..start).next_back().map(|(at, i)| (*at, i.end));
        if let Some((at, old_end)) = left
            && old_end > start
        {
            let old = self.intervals.get_mut(&at).expect("it was just found");
            old.end = start;
            let data = old.data.clone();
            self.bytes -= weight(start, old_end, &data);
            if old_end > end {
                self.bytes += weight(end, old_end, &data);
                self.intervals.insert(end, Interval { end: old_end, data });
            }
        }
        while let Some((at, old_end)) = self.intervals.range(start..end).next().map(|(at, i)| (*at, i.end)) {
            let old = self.intervals.remove(&at).expect("it was just found");
            self.bytes -= weight(at, old_end, &old.data);
            if old_end > end {
                self.bytes += weight(end, old_end, &old.data);
                self.intervals.insert(end, Interval { end: old_end, data: old.data });
            }
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
        !self.lookup(block_range(block)).iter().any(|f| matches!(f.source, Source::Home))
    }

    /// Returns the sources that cover `range`, in order and complete.
    pub fn lookup(&self, range: SectorRange) -> Vec<Found> {
        let mut found = Vec::new();
        let mut at = range.start;
        let from = self.intervals.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, interval) in self.intervals.range(from..range.end()) {
            if interval.end <= at {
                continue;
            }
            if *start > at {
                found.push(Found { range: SectorRange::new(at, start - at), source: Source::Home });
                at = *start;
            }
            let end = interval.end.min(range.end());
            let source = interval.data.as_ref().map_or(Source::Zeros, |data| Source::Data(data.clone()));
            found.push(Found { range: SectorRange::new(at, end - at), source });
            at = end;
        }
        if at < range.end() {
            found.push(Found { range: SectorRange::new(at, range.end() - at), source: Source::Home });
        }
        found
    }

    /// Returns the blocks with covered sectors, ascending, from `from` on, and what covers each.
    pub fn blocks_from(&self, from: u16) -> impl Iterator<Item = (u16, Cover<'_>)> {
        let sector = u32::from(from) * SECTORS_PER_BLOCK;
        let first =
            self.intervals.range(..sector).next_back().filter(|(_, i)| i.end > sector).map_or(sector, |(at, _)| *at);
        let mut next = from;
        self.intervals.range(first..).flat_map(move |(start, interval)| {
            let low = ((start / SECTORS_PER_BLOCK) as u16).max(next);
            let high = ((interval.end - 1) / SECTORS_PER_BLOCK) as u16;
            next = next.max(high + 1);
            let inside = SectorRange::new(*start, interval.end - start);
            (low..high + 1).map(move |block| match &interval.data {
                _ if !inside.contains(block_range(block)) => (block, Cover::Parts),
                Some(payload) => (block, Cover::Data(payload)),
                None => (block, Cover::Zeros),
            })
        })
    }

    pub fn into_intervals(self) -> Intervals {
        Intervals(self.intervals.into_iter())
    }

    #[cfg(test)]
    pub fn interval_count(&self) -> usize {
        self.intervals.len()
    }
}

/// The intervals of a layer that is given up, ascending.
#[derive(Debug)]
pub(crate) struct Intervals(btree_map::IntoIter<u32, Interval>);

impl Iterator for Intervals {
    type Item = (SectorRange, Option<Arc<Payload>>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(start, i)| (SectorRange::new(start, i.end - start), i.data))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Intervals {}

/// The sectors of a block.
pub(crate) fn block_range(block: u16) -> SectorRange {
    SectorRange::of_blocks(block, 1)
}
