//! The contents of home, for tools: space by owner, and the chunks of a replica.
//!
//! It has no input and changes nothing.
//!
//! Invariant: each AU and each slot counts once, so the counts of [`SpaceUse`] add up to the geometry.

use super::{Chunk, Home, State};
use layout::home::CRC_PAGES;
use types::planted::{Bug, on};
use types::units::{BLOCKS_PER_AU, SECTORS_PER_AU};
use types::{ChunkKey, ReplicaId, SectorRange};

/// Space of home by owner. AUs are 64 KiB, slots 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    pub au_count: u32,
    /// AUs that maps of chunks name.
    pub data_aus: u32,
    /// AUs that hold payloads of the log.
    pub logged_aus: u32,
    pub free_aus: u32,
    /// AUs that a round has dropped and no durable checkpoint has released.
    pub pending_aus: u32,
    /// AUs that two owners name.
    pub double_owned_aus: u32,
    pub slot_count: u32,
    pub map_slots: u32,
    pub crc_slots: u32,
    pub directory_slots: u32,
    /// Slots of decision states and of lists of dissolved generations.
    pub decision_slots: u32,
    pub free_slots: u32,
    pub pending_slots: u32,
    pub double_owned_slots: u32,
    /// Runs of adjacent AUs in which the chunks lie: as many as chunks when nothing is fragmented.
    pub runs: u64,
    pub chunks: u64,
}

/// The part of one chunk that home holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkUse {
    pub chunk: ChunkKey,
    pub aus: u32,
    /// Blocks of 4 KiB that hold data.
    pub blocks: u32,
    /// Runs of adjacent AUs, in the order of the chunk.
    pub runs: u32,
    pub crc_pages: u32,
}

fn use_of(key: ChunkKey, chunk: &Chunk) -> ChunkUse {
    let (mut runs, mut before) = (0, None);
    for au in chunk.aus() {
        runs += u32::from(before != Some(au));
        before = Some(au + 1);
    }
    let blocks = chunk.map.iter().map(|slot| slot.valid.count_ones()).sum();
    assert!(blocks <= chunk.aus().count() as u32 * BLOCKS_PER_AU, "blocks of {key}");
    let crc_pages = (0..CRC_PAGES).filter(|n| chunk.pages[1 + n].is_some()).count() as u32;
    ChunkUse { chunk: key, aus: chunk.aus().count() as u32, blocks, runs, crc_pages }
}

impl Home {
    /// Returns the chunks of a replica with data at home, ascending.
    pub fn chunk_uses(&self, replica: ReplicaId) -> impl Iterator<Item = ChunkUse> + '_ {
        let chunks = self.replicas.get(&replica).into_iter().flat_map(|r| r.chunks.iter());
        chunks.map(|(key, chunk)| use_of(*key, chunk))
    }

    /// Returns the index of the first chunk of the same generation from this one on that home has.
    pub fn chunk_from(&self, replica: ReplicaId, from: ChunkKey) -> Option<u32> {
        let end = ChunkKey { index: u32::MAX, ..from };
        self.replicas.get(&replica)?.chunks.range(from..=end).next().map(|(key, _)| key.index)
    }

    /// Returns the blocks of a range, or of the AUs that it touches, that home has as data or as zeros.
    pub fn own_blocks(
        &self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> impl Iterator<Item = u16> + '_ {
        let aus = range.start / SECTORS_PER_AU..range.end().div_ceil(SECTORS_PER_AU);
        let slots = self.chunk(replica, chunk).into_iter().flat_map(move |chunk| {
            aus.clone().map(|au| (au, chunk.map[au as usize])).filter(|(_, slot)| slot.valid != 0 || slot.zeros != 0)
        });
        slots.flat_map(|(au, slot)| {
            let zeros = if on(Bug::ExtentsMissZeros) { 0 } else { slot.zeros };
            let is_own = move |bit: &u32| (slot.valid | zeros) >> bit & 1 == 1;
            (0..BLOCKS_PER_AU).filter(is_own).map(move |bit| (au * BLOCKS_PER_AU + bit) as u16)
        })
    }

    /// Whether home has blocks or marks of a chunk.
    pub fn has_chunk(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.chunk(replica, chunk).is_some()
    }

    /// Counts the AUs of a chunk.
    pub fn aus_of(&self, replica: ReplicaId, chunk: ChunkKey) -> u64 {
        self.chunk(replica, chunk).map_or(0, |chunk| chunk.aus().count() as u64)
    }

    /// Returns the replicas of which home holds pages, ascending, each with its number of AUs and of slots.
    pub fn holders(&self) -> impl Iterator<Item = (ReplicaId, u64, u64)> + '_ {
        self.replicas.iter().map(|(id, replica)| {
            let aus = replica.chunks.values().map(|chunk| chunk.aus().count() as u64).sum();
            (*id, aus, replica.slots().count() as u64)
        })
    }

    /// Sequence number of the last checkpoint; 0 without one.
    pub fn checkpoint_sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the space by owner. `None` before the mount is over.
    pub fn space_use(&self) -> Option<SpaceUse> {
        if !matches!(self.state, State::Open) {
            return None;
        }
        let double = (self.double_owned.aus.len() as u32, self.double_owned.slots.len() as u32);
        let mut found = SpaceUse {
            au_count: self.geometry.au_count,
            logged_aus: self.placed_count() as u32,
            free_aus: self.aus.free_count(),
            pending_aus: self.pending_free.au_count(),
            double_owned_aus: double.0,
            slot_count: self.geometry.slot_count,
            free_slots: self.slots.free_count(),
            pending_slots: self.pending_free.slot_count(),
            double_owned_slots: double.1,
            ..SpaceUse::default()
        };
        let single = |slot: &u32| !self.double_owned.slots.contains(slot);
        let count = |slots: &mut dyn Iterator<Item = u32>| slots.filter(single).count() as u32;
        for replica in self.replicas.values() {
            let paged = replica.decision.pages.iter().chain(&replica.dissolved.pages);
            found.decision_slots += count(&mut paged.map(|ptr| ptr.slot));
            found.directory_slots += count(&mut replica.directory.iter().filter_map(|page| Some(page.ptr?.slot)));
            for (key, chunk) in replica.chunks.iter() {
                found.map_slots += count(&mut chunk.pages[0].iter().map(|ptr| ptr.slot));
                found.crc_slots += count(&mut chunk.pages[1..].iter().flatten().map(|ptr| ptr.slot));
                let of = use_of(*key, chunk);
                found.data_aus += chunk.aus().filter(|au| !self.double_owned.aus.contains(au)).count() as u32;
                (found.runs, found.chunks) = (found.runs + u64::from(of.runs), found.chunks + 1);
            }
        }
        Some(found)
    }
}
