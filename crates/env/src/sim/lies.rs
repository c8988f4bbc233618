//! Disks that lie: writes that were acknowledged and are nowhere, or somewhere else; reads that bring
//! another place's bytes.
//!
//! Comes in: places of operations that are delivered. Goes out: where they really go. Invariant: a lie strikes
//! once for each order, and is remembered with what was written near it since, so that the simulator can
//! tell a hole that later writes give away from a lost tail that nobody can see.

use super::disk::{Disk, DiskFaults};
use super::trace::FaultCounts;
use types::units::BLOCK;

/// What a disk did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LieKind {
    /// The write is nowhere.
    Phantom,
    /// The write is elsewhere.
    Misdirected,
}

/// One write that is not where it was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lie {
    pub kind: LieKind,
    pub offset: u64,
    pub len_bytes: u64,
    /// Writes into [`DiskFaults::watch`] that are durable and came after it.
    pub durable_after: u64,
    pub(super) completed_after: u64,
}

impl DiskFaults {
    fn watches(&self, offset: u64) -> bool {
        (self.watch.0..self.watch.1).contains(&offset)
    }
}

/// Counts an order down; whether its time has come.
pub(super) fn is_due(order: &mut Option<u64>) -> bool {
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
    /// Where a write really goes; `None`: nowhere.
    pub(super) fn place_of_write(&mut self, offset: u64, len: u64, counts: &mut FaultCounts) -> Option<u64> {
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

    /// Where a read really looks.
    pub(super) fn place_of_read(&mut self, offset: u64, len: u64, counts: &mut FaultCounts) -> u64 {
        if is_due(&mut self.faults.misdirect_read) {
            counts.misread += 1;
            return self.elsewhere(offset, len);
        }
        offset
    }

    /// Another place, often near; never the same.
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

    /// A flush has succeeded: what was written near a lie gives it away from now on.
    pub(super) fn flushed_after_lies(&mut self) {
        self.lies.iter_mut().for_each(|lie| lie.durable_after = lie.completed_after);
    }
}
