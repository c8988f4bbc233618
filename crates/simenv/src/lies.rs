//! Disks that lie: acknowledged writes that are stored nowhere or elsewhere, and reads that return another place's
//! bytes.
//!
//! It takes the places of operations at their delivery, and returns the places where they really go. Invariant: a lie
//! occurs once for each order, and is recorded with the number of later writes near it. So the simulator can tell a gap
//! that later writes reveal from a lost tail that cannot be detected.

use crate::disk::{Disk, DiskFaults};
use crate::trace::FaultCounts;
use types::units::BLOCK;

/// Kind of a disk's lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LieKind {
    /// The write is stored nowhere.
    Phantom,
    /// The write is stored elsewhere.
    Misdirected,
}

/// One write that is not stored where it was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lie {
    pub kind: LieKind,
    pub offset: u64,
    pub len_bytes: u64,
    /// Number of durable writes into [`DiskFaults::watch`] that came after the lie.
    pub durable_after: u64,
    pub(crate) completed_after: u64,
}

impl DiskFaults {
    fn watches(&self, offset: u64) -> bool {
        (self.watch.0..self.watch.1).contains(&offset)
    }
}

/// Counts an order down; returns whether it is due.
pub(crate) fn is_due(order: &mut Option<u64>) -> bool {
    match order {
        Some(0) => {
            *order = None;
            true
        }
        Some(n) => {
            *n -= 1;
            false
        }
        None => false,
    }
}

impl Disk {
    /// Returns the place where a write really goes; `None`: nowhere.
    pub(crate) fn place_of_write(&mut self, offset: u64, len: u64, counts: &mut FaultCounts) -> Option<u64> {
        let (phantom, misdirected) = (is_due(&mut self.faults.phantom_write), is_due(&mut self.faults.misdirect_write));
        if !phantom && !misdirected {
            if self.faults.watches(offset) {
                self.lies.iter_mut().for_each(|lie| lie.completed_after += 1);
            }
            return Some(offset);
        }
        let kind = if phantom { LieKind::Phantom } else { LieKind::Misdirected };
        self.lies_at(offset, len);
        self.lies.push(Lie { kind, offset, len_bytes: len, durable_after: 0, completed_after: 0 });
        if phantom {
            counts.phantoms += 1;
            return None;
        }
        counts.misdirected += 1;
        Some(self.elsewhere(offset, len))
    }

    /// Returns the place that a read really reads.
    pub(crate) fn place_of_read(&mut self, offset: u64, len: u64, counts: &mut FaultCounts) -> u64 {
        if is_due(&mut self.faults.misdirect_read) {
            counts.misread += 1;
            return self.elsewhere(offset, len);
        }
        offset
    }

    /// Returns another place, often near; never the same.
    fn elsewhere(&mut self, offset: u64, len: u64) -> u64 {
        let room = self.size_bytes - len;
        let near = self.rng.between(1, 64) * BLOCK;
        let far = self.rng.between(1, (self.size_bytes / BLOCK).max(2) - 1) * BLOCK;
        let by = if self.rng.chance(1, 2) { near } else { far };
        let to = (offset + by) % self.size_bytes;
        match to {
            to if to != offset && to <= room => to,
            _ if offset >= BLOCK => offset - BLOCK,
            _ => BLOCK.min(room),
        }
    }

    /// Notes that a flush has succeeded: the writes completed near a lie are durable, and reveal it from now on.
    pub(crate) fn flushed_after_lies(&mut self) {
        self.lies.iter_mut().for_each(|lie| lie.durable_after = lie.completed_after);
    }
}
