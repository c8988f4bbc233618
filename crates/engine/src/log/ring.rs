//! Tracks the live segments of the log, and the place of the next batch.
//!
//! Invariant: live segments are consecutive slots of the ring, oldest first. A slot is given out again only after it
//! was freed, and freeing is strictly oldest first (R9).

use std::collections::{BTreeMap, VecDeque};
use types::ReplicaId;

/// Segments that only votes, hard state, checkpoints, completed blocks and copies may open (R9).
pub(crate) const RESERVED: usize = 2;

/// A live segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub slot: u32,
    /// Number of the segment's first batch.
    pub opened: u64,
    /// The end of the segment's state block is durable.
    pub stated: bool,
    /// Highest index of an entry in this segment, for each replica.
    pub entries: BTreeMap<ReplicaId, u64>,
    /// Highest index of a completed block in this segment, for each replica.
    pub blocks: BTreeMap<ReplicaId, u64>,
}

impl Segment {
    pub fn new(slot: u32, opened: u64) -> Segment {
        Segment { slot, opened, stated: false, entries: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    pub fn note_entry(&mut self, replica: ReplicaId, index: u64) {
        let highest = self.entries.entry(replica).or_insert(index);
        *highest = (*highest).max(index);
    }

    pub fn note_block(&mut self, replica: ReplicaId, index: u64) {
        let highest = self.blocks.entry(replica).or_insert(index);
        *highest = (*highest).max(index);
    }
}

/// Ring of segments, as the head of the file describes.
#[derive(Debug)]
pub(crate) struct Ring {
    start: u64,
    segment_bytes: u64,
    count: u32,
    live: VecDeque<Segment>,
    /// Offset of the next batch in the newest segment.
    head: u64,
    /// Bytes of payloads at home whose records lie in the newest segment. They count as if they lay in it: so the payloads in memory are
    /// never longer than the log, and rounds and reclamation are due as early.
    air: u64,
}

impl Ring {
    pub fn new(start: u64, segment_bytes: u64, count: u32) -> Ring {
        Ring { start, segment_bytes, count, live: VecDeque::new(), head: segment_bytes, air: 0 }
    }

    /// Restores the live segments that a mount found.
    pub fn restore(&mut self, live: VecDeque<Segment>, head: u64, air: u64) {
        assert!(self.live.is_empty() && live.len() <= self.count as usize && head <= self.segment_bytes);
        assert!(live.iter().zip(live.iter().skip(1)).all(|(a, b)| (a.slot + 1) % self.count == b.slot), "{live:?}");
        self.live = live;
        (self.head, self.air) = (head, air);
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn count(&self) -> usize {
        self.count as usize
    }

    pub fn live(&self) -> &VecDeque<Segment> {
        &self.live
    }

    pub fn free(&self) -> usize {
        self.count() - self.live.len()
    }

    /// Bytes left in the newest segment.
    pub fn space(&self) -> u64 {
        (self.segment_bytes - self.head).saturating_sub(self.air)
    }

    /// Counts payloads at home to the newest segment.
    pub fn add_air(&mut self, bytes: u64) {
        self.air += bytes;
    }

    pub fn newest(&self) -> Option<&Segment> {
        self.live.back()
    }

    pub fn newest_mut(&mut self) -> &mut Segment {
        self.live.back_mut().expect("a batch was begun, so a segment is open")
    }

    /// Notes that the state block of this segment is durable.
    pub fn note_stated(&mut self, opened: u64) {
        if let Some(segment) = self.live.iter_mut().rev().find(|s| s.opened == opened) {
            segment.stated = true;
        }
    }

    /// Number of live segments older than the newest one with a durable state block.
    pub fn known_later(&self) -> usize {
        self.live.iter().rposition(|s| s.stated).unwrap_or(0)
    }

    #[cfg(test)]
    pub fn oldest_mut(&mut self) -> &mut Segment {
        self.live.front_mut().expect("a segment is open")
    }

    /// Number of the first batch of the oldest live segment.
    pub fn tail_seq(&self) -> u64 {
        self.live.front().map_or(0, |s| s.opened)
    }

    /// Opens the next slot.
    ///
    /// # Panics
    /// When none is free: the log must never overflow.
    pub fn open(&mut self, seq: u64) {
        assert!(self.free() > 0, "the log overflows");
        let slot = self.live.back().map_or(0, |s| (s.slot + 1) % self.count);
        self.live.push_back(Segment::new(slot, seq));
        (self.head, self.air) = (0, 0);
    }

    /// Takes `len` bytes of the newest segment; returns their offset on the device.
    pub fn take(&mut self, len: u64) -> u64 {
        assert!(len <= self.space(), "a batch of {len} bytes leaves its segment");
        let slot = self.newest().expect("a segment is open").slot;
        let offset = self.offset_of(slot) + self.head;
        self.head += len;
        offset
    }

    /// Closes the newest segment: the next batch opens another one.
    pub fn close_newest(&mut self) {
        self.head = self.segment_bytes;
    }

    pub fn offset_of(&self, slot: u32) -> u64 {
        assert!(slot < self.count);
        self.start + u64::from(slot) * self.segment_bytes
    }

    /// Frees the oldest segment.
    ///
    /// # Panics
    /// When it is also the newest one.
    pub fn free_oldest(&mut self) -> Segment {
        assert!(self.live.len() > 1, "the newest segment is never freed");
        self.live.pop_front().expect("there are at least two")
    }

    /// Bytes from the `from`-th live segment to the head.
    pub fn used_from(&self, from: usize) -> u64 {
        match self.live.len().saturating_sub(from) {
            0 => 0,
            n => (n as u64 - 1) * self.segment_bytes + self.newest_bytes(),
        }
    }

    /// Returns the bytes of the newest segment that are in use.
    pub fn newest_bytes(&self) -> u64 {
        (self.head + self.air).min(self.segment_bytes)
    }
}
