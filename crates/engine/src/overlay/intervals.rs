//! An ordered map of the intervals of one chunk, by their first sectors.
//!
//! The intervals that begin in one AU lie in one list, and these lists lie in the order of their AUs. So random writes find their place
//! with two memory accesses; in one tree of all intervals of a chunk it took one for each level.
//!
//! Invariant: a list is not empty, and ascends. `present` names exactly the AUs that have one.

use crate::payload::Payload;
use crate::space::AuSet;
use std::iter::Flatten;
use std::sync::Arc;
use std::vec;
use types::units::{SECTORS_PER_AU, SECTORS_PER_CHUNK};
use types::{SECTOR, SectorRange};

/// Sectors that one payload, or zeros, cover.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub start: u32,
    pub end: u32,
    pub data: Option<Arc<Payload>>,
}

impl Interval {
    /// Returns the bytes that it refers to.
    pub fn bytes(&self) -> u64 {
        if self.data.is_some() { u64::from(self.end - self.start) * SECTOR } else { 0 }
    }

    pub fn range(&self) -> SectorRange {
        SectorRange::new(self.start, self.end - self.start)
    }
}

#[derive(Debug, Default)]
pub(super) struct IntervalMap {
    present: AuSet,
    lists: Vec<Vec<Interval>>,
    len: usize,
}

/// The number of a list, and a place in it.
type Place = (usize, usize);

impl IntervalMap {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the place of the first interval that begins at `sector` or behind it.
    fn place_at(&self, sector: u32) -> Place {
        if sector >= SECTORS_PER_CHUNK {
            return (self.lists.len(), 0);
        }
        let au = sector / SECTORS_PER_AU;
        let nth = self.present.rank(au);
        if !self.present.contains(au) {
            return (nth, 0);
        }
        let list = &self.lists[nth];
        let at = list.partition_point(|interval| interval.start < sector);
        if at < list.len() { (nth, at) } else { (nth + 1, 0) }
    }

    fn place_before(&self, sector: u32) -> Option<Place> {
        match self.place_at(sector) {
            (0, 0) => None,
            (nth, 0) => Some((nth - 1, self.lists[nth - 1].len() - 1)),
            (nth, at) => Some((nth, at - 1)),
        }
    }

    /// Returns the last interval that begins before `sector`.
    pub fn last_before(&self, sector: u32) -> Option<&Interval> {
        self.place_before(sector).map(|(nth, at)| &self.lists[nth][at])
    }

    pub fn last_before_mut(&mut self, sector: u32) -> Option<&mut Interval> {
        self.place_before(sector).map(|(nth, at)| &mut self.lists[nth][at])
    }

    /// Iterates over the intervals that begin at `sector` or behind it, ascending.
    pub fn beginning_at(&self, sector: u32) -> impl Iterator<Item = &Interval> {
        let (nth, mut at) = self.place_at(sector);
        self.lists[nth..].iter().flat_map(move |list| &list[std::mem::take(&mut at)..])
    }

    /// Adds an interval.
    ///
    /// # Panics
    /// When another one begins at its first sector.
    pub fn insert(&mut self, interval: Interval) {
        let au = interval.start / SECTORS_PER_AU;
        let nth = self.present.rank(au);
        if !self.present.contains(au) {
            self.present.insert(au);
            self.lists.insert(nth, Vec::new());
        }
        let list = &mut self.lists[nth];
        let at = list.partition_point(|other| other.start < interval.start);
        assert!(list.get(at).is_none_or(|other| other.start > interval.start), "two intervals at {}", interval.start);
        list.insert(at, interval);
        self.len += 1;
    }

    /// Removes the first interval that begins in these sectors.
    pub fn remove_first(&mut self, range: SectorRange) -> Option<Interval> {
        let (nth, at) = self.place_at(range.start);
        let list = self.lists.get_mut(nth).filter(|list| list[at].start < range.end())?;
        let interval = list.remove(at);
        if list.is_empty() {
            self.lists.remove(nth);
            self.present.remove(interval.start / SECTORS_PER_AU);
        }
        self.len -= 1;
        Some(interval)
    }

    pub fn into_intervals(self) -> Intervals {
        Intervals { lists: self.lists.into_iter().flatten(), len: self.len }
    }
}

/// The intervals of a layer that is given up, ascending.
#[derive(Debug)]
pub(crate) struct Intervals {
    lists: Flatten<vec::IntoIter<Vec<Interval>>>,
    len: usize,
}

impl Iterator for Intervals {
    type Item = (SectorRange, Option<Arc<Payload>>);

    fn next(&mut self) -> Option<Self::Item> {
        let interval = self.lists.next()?;
        self.len -= 1;
        Some((interval.range(), interval.data))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl ExactSizeIterator for Intervals {}
