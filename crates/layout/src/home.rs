//! The bytes of home: geometry, map pages, CRC pages, directory pages.
//!
//! ```text
//! | slot 0 | slot 1 | … 4 KiB each | AU 0 | AU 1 | … 64 KiB each |
//! ```
//! A slot holds one page. A page is found only through its parent, which names the slot *and* the page's CRC:
//! checkpoint record → directory pages → map page and CRC pages of each chunk → blocks. CRC pages have no header (64
//! AUs × 16 blocks × 4 B fill them), so a page's CRC is salted with the page's identity. A page of another chunk, or
//! of another place in this one, never verifies.
//!
//! Invariant: a page is decoded only after [`PageId::verify`]; decoding accepts only what encoding produces.

use crate::home::PageKind::{CrcPage, Decision, Directory, Dissolved, Map};
use types::ids::ChunkKey;
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{AU, BLOCK, GenerationId, ReplicaId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a page and of a slot.
pub const PAGE: usize = BLOCK as usize;
/// Version of the pages' formats.
pub const HOME_VERSION: u16 = 2;
/// AUs of one chunk whose block CRCs share a CRC page.
pub const AUS_PER_CRC_PAGE: usize = 64;
/// CRC pages of one chunk.
pub const CRC_PAGES: usize = AUS_PER_CHUNK as usize / AUS_PER_CRC_PAGE;
/// CRCs in one CRC page.
pub const CRCS_PER_PAGE: usize = AUS_PER_CRC_PAGE * BLOCKS_PER_AU as usize;
/// Pages of one chunk: its map page, then its CRC pages.
pub const CHUNK_PAGES: usize = 1 + CRC_PAGES;
/// Chunks that one directory page names.
pub const DIR_ENTRIES: usize = 72;
/// One page in this many of home is a slot. Dense data needs one slot for 12.8 AUs (5 a chunk); this share is one for
/// 4, which leaves room for copy-on-write and for sparse chunks. It also bounds home's memory.
pub const SLOT_SHARE: u64 = 64;
/// Fewest slots of a home.
pub const SLOTS_MIN: u64 = 256;
/// Smallest home.
pub const HOME_LEN_MIN: u64 = 16 << 20;

pub(crate) const MAGIC_MAP: u32 = u32::from_le_bytes(*b"BMAP");
pub(crate) const MAGIC_DIR: u32 = u32::from_le_bytes(*b"BDIR");
pub(crate) const ENTRY_USED: u32 = 1;
pub(crate) const NO_SLOT: u32 = u32::MAX;

const _: () = assert!(CRCS_PER_PAGE * 4 == PAGE);
const _: () = assert!(size_of::<PageHead>() == 64);
const _: () = assert!(size_of::<RawMapSlot>() == 8 && size_of::<PageHead>() + 8 * AUS_PER_CHUNK as usize <= PAGE);
const _: () = assert!(size_of::<RawDirEntry>() == 56);
const _: () = assert!(size_of::<PageHead>() + size_of::<RawDirEntry>() * DIR_ENTRIES == PAGE);
const _: () = assert!(AU.is_multiple_of(PAGE as u64) && HOME_LEN_MIN / PAGE as u64 >= 2 * SLOTS_MIN);

/// Number of slots and AUs of a home: fixed when its first checkpoint is written, kept in every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub slot_count: u32,
    pub au_count: u32,
}

impl Geometry {
    /// Computes the geometry of a new home of `len_bytes`; `None` when it is smaller than [`HOME_LEN_MIN`], or larger
    /// than slot and AU numbers can address.
    pub fn of(len_bytes: u64) -> Option<Geometry> {
        if len_bytes < HOME_LEN_MIN {
            return None;
        }
        let slots = (len_bytes / PAGE as u64 / SLOT_SHARE).max(SLOTS_MIN);
        Geometry::with_slots(len_bytes, u32::try_from(slots).ok()?)
    }

    /// Computes the geometry as [`Geometry::of`], with a slot count of the caller's choice, rounded up to whole AUs.
    pub fn with_slots(len_bytes: u64, slot_count: u32) -> Option<Geometry> {
        let slots_per_au = (AU / PAGE as u64) as u32;
        let slot_count = slot_count.checked_next_multiple_of(slots_per_au)?;
        let au_bytes = len_bytes.checked_sub(u64::from(slot_count) * PAGE as u64)?;
        let au_count = u32::try_from(au_bytes / AU).ok()?;
        (au_count > 0 && slot_count < NO_SLOT).then_some(Geometry { slot_count, au_count })
    }

    /// Bytes that slots and AUs take.
    pub fn len_bytes(self) -> u64 {
        u64::from(self.slot_count) * PAGE as u64 + u64::from(self.au_count) * AU
    }

    /// Offset of a slot from the start of home.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn slot_offset(self, slot: u32) -> u64 {
        assert!(slot < self.slot_count, "slot {slot} of {}", self.slot_count);
        u64::from(slot) * PAGE as u64
    }

    /// Offset of a block of an AU from the start of home.
    ///
    /// # Panics
    /// When there is no such AU or block.
    pub fn block_offset(self, au: u32, block: u32) -> u64 {
        assert!(au < self.au_count && block < BLOCKS_PER_AU, "block {block} of AU {au} of {}", self.au_count);
        u64::from(self.slot_count) * PAGE as u64 + u64::from(au) * AU + u64::from(block) * BLOCK
    }
}

/// Slot of a page, and the salted CRC that its bytes must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePtr {
    pub slot: u32,
    pub crc: u32,
}

/// Kind of a page. The numbers are stored on disk and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Places of the AUs of one chunk.
    Map = 1,
    /// CRCs of the blocks of a quarter of a chunk.
    CrcPage = 2,
    /// Pages of a replica's chunks.
    Directory = 3,
    /// Part of a replica's decision state.
    Decision = 4,
    /// Part of a replica's list of dissolved generations.
    Dissolved = 5,
}

/// Identity of a page: salts its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId {
    pub kind: PageKind,
    pub replica: ReplicaId,
    /// Zero for pages that do not belong to a chunk.
    pub chunk: ChunkKey,
    /// Number of the page among its kind: quarter of the chunk, directory page, part of the decision state or of the list of dissolved generations.
    pub n: u32,
}

pub(crate) const NO_CHUNK: ChunkKey = ChunkKey { generation: GenerationId(0), index: 0 };

impl PageId {
    /// Identity of page `n` of a chunk: 0 is its map page, 1.. are its CRC pages.
    ///
    /// # Panics
    /// When a chunk has no page `n`.
    pub fn of_chunk(replica: ReplicaId, chunk: ChunkKey, n: usize) -> PageId {
        assert!(n < CHUNK_PAGES, "page {n} of a chunk");
        let (kind, n) = if n == 0 { (Map, 0) } else { (CrcPage, n as u32 - 1) };
        PageId { kind, replica, chunk, n }
    }

    pub fn directory(replica: ReplicaId, n: u32) -> PageId {
        PageId { kind: Directory, replica, chunk: NO_CHUNK, n }
    }

    pub fn decision(replica: ReplicaId, n: u32) -> PageId {
        PageId { kind: Decision, replica, chunk: NO_CHUNK, n }
    }

    pub fn dissolved(replica: ReplicaId, n: u32) -> PageId {
        PageId { kind: Dissolved, replica, chunk: NO_CHUNK, n }
    }

    /// Returns the CRC that `page` has when it is this one.
    pub fn crc(self, page: &[u8]) -> u32 {
        assert_eq!(page.len(), PAGE, "a page");
        let salt = RawSalt {
            replica: U64::new(self.replica.0),
            volume: U64::new(self.chunk.generation.0),
            chunk: U32::new(self.chunk.index),
            n: U32::new(self.n),
            kind: U32::new(self.kind as u32),
            reserved: U32::ZERO,
        };
        types::crc::append(types::crc32c(salt.as_bytes()), page)
    }

    /// Whether `page` is this page with this CRC.
    pub fn verify(self, page: &[u8], crc: u32) -> bool {
        page.len() == PAGE && self.crc(page) == crc
    }
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Map => write!(f, "map page of {}", self.chunk),
            CrcPage => write!(f, "CRC page {} of {}", self.n, self.chunk),
            Directory => write!(f, "directory page {}", self.n),
            Decision => write!(f, "decision page {}", self.n),
            Dissolved => write!(f, "dissolved page {}", self.n),
        }
    }
}

/// Place of one AU of a chunk. `valid` has a bit for each block that holds data; without any bit there is no AU. `zeros` has a bit for
/// each block with a zero mark: it reads as zeros and hides the block of the parent. A block is never in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSlot {
    pub au: u32,
    pub valid: u16,
    pub zeros: u16,
}

/// The AUs of one chunk.
pub type MapSlots = [MapSlot; AUS_PER_CHUNK as usize];
/// The block CRCs of a quarter of a chunk.
pub type CrcTable = [u32; CRCS_PER_PAGE];

/// Entry of a directory page for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub chunk: ChunkKey,
    /// Map page, then CRC pages; a chunk that is listed has a map page.
    pub pages: [Option<PagePtr>; CHUNK_PAGES],
}

/// Why a page that verifies is refused nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("format version {0} is not known here")]
    Version(u16),
    #[error("the header is not that of the page asked for")]
    Identity,
    #[error("a field has a value that is never written")]
    Value,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSalt {
    replica: U64,
    volume: U64,
    chunk: U32,
    n: U32,
    kind: U32,
    reserved: U32,
}

/// Header of map and directory pages.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageHead {
    magic: U32,
    version: U16,
    entry_count: U16,
    replica: U64,
    volume: U64,
    chunk: U32,
    n: U32,
    /// The checkpoint that first named this page, for the examination of a disk.
    sequence: U64,
    reserved: [U64; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawMapSlot {
    au: U32,
    valid: U16,
    zeros: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawPagePtr {
    slot: U32,
    crc: U32,
}

impl RawPagePtr {
    pub(crate) fn new(ptr: Option<PagePtr>) -> RawPagePtr {
        let ptr = ptr.unwrap_or(PagePtr { slot: NO_SLOT, crc: 0 });
        RawPagePtr { slot: U32::new(ptr.slot), crc: U32::new(ptr.crc) }
    }

    pub(crate) fn get(self) -> Option<PagePtr> {
        (self.slot.get() != NO_SLOT).then(|| PagePtr { slot: self.slot.get(), crc: self.crc.get() })
    }

    /// Whether [`RawPagePtr::new`] can produce it: an absent page has no checksum.
    pub(crate) fn is_sound(self) -> bool {
        self.slot.get() != NO_SLOT || self.crc.get() == 0
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDirEntry {
    volume: U64,
    chunk: U32,
    flags: U32,
    pages: [RawPagePtr; CHUNK_PAGES],
}

/// Returns the header that `id` must have.
fn head(magic: u32, id: PageId, entry_count: usize, sequence: u64) -> PageHead {
    PageHead {
        magic: U32::new(magic),
        version: U16::new(HOME_VERSION),
        entry_count: U16::new(entry_count as u16),
        replica: U64::new(id.replica.0),
        volume: U64::new(id.chunk.generation.0),
        chunk: U32::new(id.chunk.index),
        n: U32::new(id.n),
        sequence: U64::new(sequence),
        reserved: [U64::ZERO; 3],
    }
}

/// Returns the body behind the header of `id`, when the header is right.
fn body(magic: u32, id: PageId, entry_count: usize, page: &[u8]) -> Result<&[u8], PageError> {
    assert_eq!(page.len(), PAGE, "a page");
    let (got, body) = PageHead::ref_from_prefix(page).map_err(|_| PageError::Value)?;
    if got.magic.get() == magic && got.version.get() != HOME_VERSION {
        return Err(PageError::Version(got.version.get()));
    }
    let want = head(magic, id, entry_count, got.sequence.get());
    if got.as_bytes() != want.as_bytes() {
        return Err(PageError::Identity);
    }
    Ok(body)
}

/// Fills `page` with the map of a chunk.
pub fn encode_map_page(id: PageId, sequence: u64, slots: &MapSlots, page: &mut [u8]) {
    assert_eq!((id.kind, page.len()), (Map, PAGE), "a map page");
    page.fill(0);
    let (head_bytes, rest) = page.split_at_mut(size_of::<PageHead>());
    head_bytes.copy_from_slice(head(MAGIC_MAP, id, slots.len(), sequence).as_bytes());
    for (raw, slot) in rest.chunks_exact_mut(size_of::<RawMapSlot>()).zip(slots) {
        let value = RawMapSlot { au: U32::new(slot.au), valid: U16::new(slot.valid), zeros: U16::new(slot.zeros) };
        raw.copy_from_slice(value.as_bytes());
    }
}

/// Decodes the map of a chunk from a verified page.
///
/// # Errors
/// A [`PageError`] when header or values are wrong.
pub fn decode_map_page(id: PageId, page: &[u8], geometry: Geometry) -> Result<MapSlots, PageError> {
    let body = body(MAGIC_MAP, id, AUS_PER_CHUNK as usize, page)?;
    let mut slots = [MapSlot::default(); AUS_PER_CHUNK as usize];
    for (slot, bytes) in slots.iter_mut().zip(body.chunks_exact(size_of::<RawMapSlot>())) {
        let raw = RawMapSlot::ref_from_bytes(bytes).map_err(|_| PageError::Value)?;
        *slot = MapSlot { au: raw.au.get(), valid: raw.valid.get(), zeros: raw.zeros.get() };
        let well_formed = if slot.valid == 0 { slot.au == 0 } else { slot.au < geometry.au_count };
        if !well_formed || slot.valid & slot.zeros != 0 {
            return Err(PageError::Value);
        }
    }
    let behind = &body[slots.len() * size_of::<RawMapSlot>()..];
    if behind.iter().any(|b| *b != 0) {
        return Err(PageError::Value);
    }
    Ok(slots)
}

/// Fills `page` with block CRCs.
pub fn encode_crc_page(crcs: &CrcTable, page: &mut [u8]) {
    assert_eq!(page.len(), PAGE, "a CRC page");
    for (raw, crc) in page.chunks_exact_mut(4).zip(crcs) {
        raw.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Decodes the block CRCs of a verified page.
pub fn decode_crc_page(page: &[u8]) -> Box<CrcTable> {
    assert_eq!(page.len(), PAGE, "a CRC page");
    let mut crcs = Box::new([0; CRCS_PER_PAGE]);
    for (crc, raw) in crcs.iter_mut().zip(page.chunks_exact(4)) {
        *crc = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
    }
    crcs
}

/// Fills `page` with a directory page; an entry keeps its position for as long as its chunk lives.
pub fn encode_dir_page<'a>(
    id: PageId,
    sequence: u64,
    entries: impl Iterator<Item = (usize, &'a DirEntry)>,
    page: &mut [u8],
) {
    assert_eq!((id.kind, page.len()), (Directory, PAGE), "a directory page");
    page.fill(0);
    let (head_bytes, rest) = page.split_at_mut(size_of::<PageHead>());
    head_bytes.copy_from_slice(head(MAGIC_DIR, id, DIR_ENTRIES, sequence).as_bytes());
    for (position, entry) in entries {
        assert!(entry.pages[0].is_some(), "{} has no map page", entry.chunk);
        let raw = RawDirEntry {
            volume: U64::new(entry.chunk.generation.0),
            chunk: U32::new(entry.chunk.index),
            flags: U32::new(ENTRY_USED),
            pages: entry.pages.map(RawPagePtr::new),
        };
        let at = position * size_of::<RawDirEntry>();
        rest[at..at + size_of::<RawDirEntry>()].copy_from_slice(raw.as_bytes());
    }
}

/// Decodes the entries of a verified directory page, with their positions.
///
/// # Errors
/// A [`PageError`] when header or values are wrong.
pub fn decode_dir_page(id: PageId, page: &[u8], geometry: Geometry) -> Result<Vec<(usize, DirEntry)>, PageError> {
    let body = body(MAGIC_DIR, id, DIR_ENTRIES, page)?;
    let mut entries = Vec::new();
    for (position, bytes) in body.chunks_exact(size_of::<RawDirEntry>()).enumerate() {
        let raw = RawDirEntry::ref_from_bytes(bytes).map_err(|_| PageError::Value)?;
        if raw.flags.get() == 0 {
            if bytes.iter().any(|b| *b != 0) {
                return Err(PageError::Value);
            }
            continue;
        }
        let pages = raw.pages.map(RawPagePtr::get);
        let in_range =
            pages.iter().flatten().all(|p| p.slot < geometry.slot_count) && raw.pages.iter().all(|p| p.is_sound());
        if raw.flags.get() != ENTRY_USED || pages[0].is_none() || !in_range {
            return Err(PageError::Value);
        }
        let chunk = ChunkKey { generation: GenerationId(raw.volume.get()), index: raw.chunk.get() };
        entries.push((position, DirEntry { chunk, pages }));
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "home_tests.rs"]
mod tests;
