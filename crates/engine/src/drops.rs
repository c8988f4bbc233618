//! Memory that is given back a bounded part in each turn.
//!
//! A round that ends leaves about as many intervals behind as the log had entries, and a freed segment thousands of entries.
//! To drop an entry and its interval takes about 0.3 µs: all at once they would hold a turn for tens of milliseconds.
//!
//! Invariant: nothing here can be read any more. A turn drops the more the longer the queue is: the queue stays below
//! `QUEUE_SHARE` times what a turn adds, or a turn takes `drops_max`.

use crate::log::Kept;
use crate::overlay::{ChunkLayer, Intervals, Layer, Overlay};
use crate::replica::Replica;
use std::collections::VecDeque;

/// Share of the queue, as a divisor, that a turn drops.
pub(crate) const QUEUE_SHARE: usize = 128;

/// The queue of memory that is to be dropped.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    entries: VecDeque<Kept>,
    chunks: VecDeque<Intervals>,
    /// Number of intervals in `chunks`.
    intervals: usize,
}

impl Drops {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries and intervals that wait.
    pub fn len(&self) -> usize {
        self.entries.len() + self.intervals
    }

    #[cfg(test)]
    pub fn parts(&self) -> (usize, usize) {
        (self.entries.len(), self.intervals)
    }

    pub fn add_entries(&mut self, entries: impl Iterator<Item = Kept>) {
        self.entries.extend(entries);
    }

    pub fn add_layer(&mut self, layer: Layer) {
        for chunk in layer.chunks.into_values().map(ChunkLayer::into_intervals) {
            self.intervals += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    pub fn add_overlay(&mut self, overlay: Overlay) {
        overlay.into_layers().for_each(|layer| self.add_layer(layer));
    }

    pub fn add_replica(&mut self, replica: Replica) {
        self.add_overlay(replica.overlay);
        self.add_entries(replica.log.into_entries());
    }

    /// Drops up to `max` entries and intervals, or a part of a long queue.
    pub fn step(&mut self, max: usize) {
        let mut left = max.max(self.len() / QUEUE_SHARE);
        while left > 0
            && let Some(chunk) = self.chunks.front_mut()
        {
            match chunk.next() {
                Some(_) => (self.intervals, left) = (self.intervals - 1, left - 1),
                None => drop(self.chunks.pop_front()),
            }
        }
        self.entries.drain(..left.min(self.entries.len()));
    }
}
