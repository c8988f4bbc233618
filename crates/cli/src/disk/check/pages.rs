//! The pages that the last checkpoint names: decision states, directory, maps, checksums; and the owners of slots and AUs.
//!
//! Free space is nowhere on a device: what no page names is free. So space cannot leak, and it is wrong only where two owners
//! name it.
//!
//! Invariant: memory is a bit for each slot and AU, and one chunk.

use super::Report;
use crate::disk::device::Device;
use engine::Superblock;
use indicatif::ProgressBar;
use layout::checkpoint::{Checkpoint, ReplicaRecord};
use layout::home::{self, AUS_PER_CRC_PAGE, CRC_PAGES, DirEntry, Geometry, MapSlots, PAGE, PageId, PageKind, PagePtr};
use std::collections::BTreeSet;
use types::{ChunkKey, IoBuf, ReplicaId};

/// A set of numbers.
struct Owned(Vec<u64>);

impl Owned {
    fn new(count: u32) -> Owned {
        Owned(vec![0; (count as usize).div_ceil(64)])
    }

    /// Enters a number. False: it was there.
    fn enter(&mut self, n: u32) -> bool {
        let word = &mut self.0[n as usize / 64];
        let is_new = *word >> (n % 64) & 1 == 0;
        *word |= 1 << (n % 64);
        is_new
    }
}

struct Walk<'a> {
    device: &'a mut Device,
    home_start: u64,
    geometry: Geometry,
    slots: Owned,
    aus: Owned,
    report: &'a mut Report,
}

/// Checks the pages of all replicas.
pub fn check(device: &mut Device, of: &Superblock, checkpoint: &Checkpoint, report: &mut Report, bar: &ProgressBar) {
    let geometry = checkpoint.geometry;
    let (slots, aus) = (Owned::new(geometry.slot_count), Owned::new(geometry.au_count));
    bar.set_message("pages of replicas");
    bar.set_length(checkpoint.replicas.len() as u64);
    let mut walk = Walk { device, home_start: of.home_start, geometry, slots, aus, report };
    for replica in &checkpoint.replicas {
        walk.replica(replica);
        bar.inc(1);
    }
    report.checked("ownership", u64::from(geometry.slot_count) + u64::from(geometry.au_count));
}

fn part_of(id: PageId) -> &'static str {
    match id.kind {
        PageKind::Map => "map pages",
        PageKind::CrcPage => "checksum pages",
        PageKind::Directory => "directory pages",
        PageKind::Decision => "decision pages",
        PageKind::Dissolved => "dissolved pages",
    }
}

impl Walk<'_> {
    fn replica(&mut self, of: &ReplicaRecord) {
        let id = of.replica;
        for (ptr, n) in of.decision.iter().zip(0..) {
            self.page(PageId::decision(id, n), *ptr);
        }
        for (ptr, n) in of.dissolved.1.iter().zip(0..) {
            self.page(PageId::dissolved(id, n), *ptr);
        }
        let mut known = BTreeSet::new();
        for (ptr, n) in of.directory.iter().zip(0..) {
            let page_id = PageId::directory(id, n);
            let Some(page) = ptr.and_then(|ptr| self.page(page_id, ptr)) else { continue };
            match home::decode_dir_page(page_id, &page, self.geometry) {
                Ok(entries) => entries.into_iter().for_each(|(_, entry)| self.chunk(id, entry, &mut known)),
                Err(error) => self.report.damage("directory pages", format!("{page_id} of {id}: {error}")),
            }
        }
    }

    fn chunk(&mut self, replica: ReplicaId, entry: DirEntry, known: &mut BTreeSet<ChunkKey>) {
        let chunk = entry.chunk;
        if !known.insert(chunk) {
            self.report.damage("directory pages", format!("chunk {chunk} of {replica} is listed twice"));
        }
        let map = entry.pages[0].and_then(|ptr| self.map(PageId::of_chunk(replica, chunk, 0), ptr));
        for n in 0..CRC_PAGES {
            let id = PageId::of_chunk(replica, chunk, 1 + n);
            if let Some(ptr) = entry.pages[1 + n] {
                self.page(id, ptr);
            }
            let Some(map) = &map else { continue };
            let holds = map[n * AUS_PER_CRC_PAGE..(n + 1) * AUS_PER_CRC_PAGE].iter().any(|slot| slot.valid != 0);
            if holds != entry.pages[1 + n].is_some() {
                let what = format!("quarter {n} of chunk {chunk} of {replica}: data without checksums, or the reverse");
                self.report.damage("checksum pages", what);
            }
        }
        for slot in map.iter().flat_map(|map| map.iter()).filter(|slot| slot.valid != 0) {
            if !self.aus.enter(slot.au) {
                let what = format!("AU {} of chunk {chunk} of {replica} has another owner, too", slot.au);
                self.report.damage("ownership", what);
            }
        }
    }

    fn map(&mut self, id: PageId, ptr: PagePtr) -> Option<Box<MapSlots>> {
        let page = self.page(id, ptr)?;
        match home::decode_map_page(id, &page, self.geometry) {
            Ok(map) => Some(Box::new(map)),
            Err(error) => {
                self.report.damage("map pages", format!("{id} of {}: {error}", id.replica));
                None
            }
        }
    }

    /// Reads a page; `None`: it is damaged.
    fn page(&mut self, id: PageId, ptr: PagePtr) -> Option<IoBuf> {
        let part = part_of(id);
        self.report.checked(part, 1);
        if !self.slots.enter(ptr.slot) {
            self.report
                .damage("ownership", format!("slot {} of {id} of {} has another owner, too", ptr.slot, id.replica));
        }
        let read = self.device.read_home(self.home_start + self.geometry.slot_offset(ptr.slot), PAGE);
        let (place, owner) = (format!("{id} in slot {}", ptr.slot), id.replica);
        match read {
            Err(error) => self.report.damage(part, format!("{place} of {owner} cannot be read: {error}")),
            Ok(page) if id.verify(&page, ptr.crc) => return Some(page),
            Ok(_) => self.report.damage(part, format!("{place} of {owner} fails its checksum")),
        }
        None
    }
}
