//! Resident tables of one replica and its chunks: map, CRC tables, places of their pages.
//!
//! They are plain arrays: 2 KiB of map for each chunk, 4 KiB of CRCs for each quarter that holds data. Every resident
//! page has a slot on the device, so the slot area bounds this memory (run-length maps and eviction come later).
//!
//! Invariant: a chunk is resident exactly when it holds an AU or a zero mark; a quarter has a CRC table exactly when it holds an AU;
//! each chunk has one place in its replica's directory.

use super::chunks::Chunks;
use crate::home_api::{At, RoundState};
use crate::space::AuSet;
use layout::home::{
    AUS_PER_CRC_PAGE, CHUNK_PAGES, CRC_PAGES, CRCS_PER_PAGE, CrcTable, DIR_ENTRIES, MapSlot, MapSlots, PagePtr,
};
use std::collections::BTreeSet;
use types::ChunkKey;
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};

/// Blocks of a chunk.
pub(super) const BLOCKS: usize = (AUS_PER_CHUNK * BLOCKS_PER_AU) as usize;

/// A set of blocks of one chunk.
#[derive(Clone)]
pub(super) struct BlockSet([u64; BLOCKS / 64]);

impl BlockSet {
    pub(super) fn new() -> BlockSet {
        BlockSet([0; BLOCKS / 64])
    }

    pub(super) fn insert(&mut self, block: usize) {
        self.0[block / 64] |= 1 << (block % 64);
    }

    pub(super) fn contains(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }
}

/// Place of a chunk in its replica's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirPlace {
    pub(super) page: u32,
    pub(super) position: u8,
}

/// The part of a chunk (16 MiB of a generation) that home holds.
pub(super) struct Chunk {
    pub(super) map: MapSlots,
    pub(super) crcs: [Option<Box<CrcTable>>; CRC_PAGES],
    /// Slots of the map page and the CRC pages.
    pub(super) pages: [Option<PagePtr>; CHUNK_PAGES],
    pub(super) place: DirPlace,
    /// Lookup clock at which a round last staged the chunk: reads of an earlier clock are looked up again.
    pub(super) touched: u64,
}

impl Chunk {
    pub(super) fn new(place: DirPlace) -> Box<Chunk> {
        let map = [MapSlot::default(); AUS_PER_CHUNK as usize];
        Box::new(Chunk { map, crcs: [const { None }; CRC_PAGES], pages: [None; CHUNK_PAGES], place, touched: 0 })
    }

    /// Whether `block` holds data.
    pub(super) fn is_valid(&self, block: usize) -> bool {
        self.map[block / BLOCKS_PER_AU as usize].valid >> (block % BLOCKS_PER_AU as usize) & 1 == 1
    }

    /// Returns the contents of `block` here.
    pub(super) fn at(&self, block: usize) -> At {
        let slot = self.map[block / BLOCKS_PER_AU as usize];
        match 1 << (block % BLOCKS_PER_AU as usize) {
            bit if slot.valid & bit != 0 => At::Data,
            bit if slot.zeros & bit != 0 => At::Zeros,
            _ => At::Open,
        }
    }

    /// Returns the AU of a block that holds data, and the block's number in it.
    pub(super) fn place_of(&self, block: usize) -> (u32, u32) {
        assert!(self.is_valid(block), "block {block} holds no data");
        (self.map[block / BLOCKS_PER_AU as usize].au, block as u32 % BLOCKS_PER_AU)
    }

    /// Returns the checksum of a block that holds data ([`types::block_hash`]).
    pub(super) fn hash_of(&self, block: usize) -> u32 {
        assert!(self.is_valid(block), "block {block} holds no data");
        let table = self.crcs[block / CRCS_PER_PAGE].as_ref().expect("a quarter with data has CRCs");
        table[block % CRCS_PER_PAGE]
    }

    pub(super) fn set_hash(&mut self, block: usize, hash: u32) {
        let table = self.crcs[block / CRCS_PER_PAGE].get_or_insert_with(|| Box::new([0; CRCS_PER_PAGE]));
        table[block % CRCS_PER_PAGE] = hash;
    }

    /// Returns the positions of the AUs that the chunk owns.
    pub(super) fn au_set(&self) -> AuSet {
        AuSet::from_flags(self.map.each_ref().map(|slot| slot.valid != 0))
    }

    /// Returns the AUs that the chunk owns.
    pub(super) fn aus(&self) -> impl Iterator<Item = u32> {
        self.map.iter().filter(|slot| slot.valid != 0).map(|slot| slot.au)
    }

    /// Whether it holds neither data nor a zero mark.
    pub(super) fn is_empty(&self) -> bool {
        self.map.iter().all(|slot| slot.valid == 0 && slot.zeros == 0)
    }

    /// Whether quarter `n` holds an AU.
    pub(super) fn has_quarter(&self, n: usize) -> bool {
        self.map[n * AUS_PER_CRC_PAGE..(n + 1) * AUS_PER_CRC_PAGE].iter().any(|slot| slot.valid != 0)
    }
}

/// One page of a replica's directory.
pub(super) struct DirPage {
    pub(super) ptr: Option<PagePtr>,
    pub(super) chunks: Box<[Option<ChunkKey>; DIR_ENTRIES]>,
}

impl DirPage {
    pub(super) fn new(ptr: Option<PagePtr>) -> DirPage {
        DirPage { ptr, chunks: Box::new([None; DIR_ENTRIES]) }
    }

    fn has_room(&self) -> bool {
        self.chunks.iter().any(Option::is_none)
    }
}

/// Bytes of a replica in pages without a head.
#[derive(Default)]
pub(super) struct Paged {
    pub(super) len: u32,
    pub(super) pages: Vec<PagePtr>,
    /// The bytes differ from the pages: they have changed since, or were never written.
    pub(super) dirty: bool,
}

/// One replica, as far as a checkpoint names it.
pub(super) struct Replica {
    pub(super) state: RoundState,
    /// Pages of the decision state.
    pub(super) decision: Paged,
    /// Pages of the list of dissolved generations.
    pub(super) dissolved: Paged,
    pub(super) directory: Vec<DirPage>,
    /// Directory pages with room.
    pub(super) open_pages: BTreeSet<u32>,
    pub(super) chunks: Chunks,
    /// A page of the replica is lost (R11). Its data is neither served nor changed; the replica is destroyed or
    /// emptied.
    pub(super) damage: Option<String>,
}

impl Replica {
    pub(super) fn new(state: RoundState) -> Replica {
        let dissolved = Paged { dirty: !state.dissolved.is_empty(), ..Paged::default() };
        Replica {
            state,
            decision: Paged { dirty: true, ..Paged::default() },
            dissolved,
            directory: Vec::new(),
            open_pages: BTreeSet::new(),
            chunks: Chunks::default(),
            damage: None,
        }
    }

    /// Gives a new chunk its place in the directory.
    pub(super) fn place(&mut self, chunk: ChunkKey) -> DirPlace {
        let page = self.open_pages.first().copied().unwrap_or_else(|| {
            self.directory.push(DirPage::new(None));
            let page = self.directory.len() as u32 - 1;
            self.open_pages.insert(page);
            page
        });
        let dir = &mut self.directory[page as usize];
        let position = dir.chunks.iter().position(Option::is_none).expect("an open page has room");
        dir.chunks[position] = Some(chunk);
        if !dir.has_room() {
            self.open_pages.remove(&page);
        }
        DirPlace { page, position: position as u8 }
    }

    /// Clears the place of a chunk that is dropped.
    pub(super) fn unplace(&mut self, chunk: ChunkKey, place: DirPlace) {
        let cell = &mut self.directory[place.page as usize].chunks[place.position as usize];
        assert_eq!(*cell, Some(chunk), "directory place of {chunk}");
        *cell = None;
        self.open_pages.insert(place.page);
    }

    /// Returns every slot that the replica owns.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        let chunks = self.chunks.values().flat_map(|chunk| chunk.pages.iter().flatten());
        let directory = self.directory.iter().filter_map(|page| page.ptr.as_ref());
        chunks.chain(directory).chain(&self.decision.pages).chain(&self.dissolved.pages).map(|ptr| ptr.slot)
    }
}
