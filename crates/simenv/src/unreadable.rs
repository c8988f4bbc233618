//! Sectors that a device cannot read: every read that touches one fails with EIO, until the sector is stored again.
//!
//! It takes the sectors that a schedule damages and the writes that are stored, and tells which reads fail. Invariant:
//! a write heals the sectors that it covers when it is durable. While it waits in the cache, the cache answers.

use crate::disk::{Disk, EIO};
use crate::trace::FaultCounts;
use env::DiskError;
use std::ops::Range;
use types::units::SECTOR;

/// Numbers of the sectors from `offset` on; both are made of sectors.
fn sectors(offset: u64, len: u64) -> Range<u64> {
    offset / SECTOR..(offset + len) / SECTOR
}

impl Disk {
    /// Makes sectors unreadable.
    pub(crate) fn damage(&mut self, offset: u64, len: u64) {
        assert!(offset + len <= self.size_bytes, "damage beyond the disk");
        self.unreadable.extend(sectors(offset, len));
    }

    /// Returns the error of a read of this range, if it touches an unreadable sector.
    pub(crate) fn unreadable_at(&self, offset: u64, len: u64, counts: &mut FaultCounts) -> Option<DiskError> {
        let fails = self.is_unreadable(offset, len);
        counts.unreadable += u64::from(fails);
        fails.then_some(DiskError::Io(EIO))
    }

    /// Whether a read of this range fails.
    pub(crate) fn is_unreadable(&self, offset: u64, len: u64) -> bool {
        self.unreadable.range(sectors(offset, len)).any(|sector| !self.caches(*sector))
    }

    /// Notes that a write of this range is stored for good.
    pub(crate) fn note_stored(&mut self, offset: u64, len: u64) {
        if !self.unreadable.is_empty() {
            let stored = sectors(offset, len);
            self.unreadable.retain(|sector| !stored.contains(sector));
        }
    }
}
