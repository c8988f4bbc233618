//! Plants damage on an OSD's device: differences that every checksum approves of, plain rot, and lost pages of log, home and
//! superblock.
//!
//! Input: the path of a device whose OSD is stopped. The block is found as a mount finds it: superblock, last
//! checkpoint of the log, directory, map, CRC page.
//!
//! No page above needs a change. A page's CRC is known to its parent, but map and CRC pages have bytes without meaning:
//! the sequence of a map page, or the entry of a block that holds no data. Four such bytes, chosen right, give the
//! altered page the CRC of the old one.
//!
//! Invariant: exactly one block or page differs afterwards, or two pages of neighbouring log batches; everything else is as
//! it was.

pub mod log;

use anyhow::{Context, Result, bail, ensure};
use layout::checkpoint::{Checkpoint, NewestCheckpoint};
use layout::home::{self, CRCS_PER_PAGE, DirEntry, Geometry, MapSlots, PAGE, PageId, PagePtr};
use layout::log::Record;
use layout::superblock::{SUPERBLOCK_LEN, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use types::units::{BLOCK, BLOCKS_PER_AU};
use types::{ChunkKey, ReplicaId, block_hash, crc32c};

/// Offset in a map page's header of the checkpoint that first named the page: for people, never checked.
const MAP_SEQUENCE_AT: usize = 32;

/// Damage to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// The block has other bytes, and the checksum of those bytes.
    Altered,
    /// The map says that the block was never written.
    Forgotten,
    /// One bit is flipped, and the checksum shows it.
    Rotten,
}

/// A device as its last checkpoint describes it.
pub struct Device {
    file: File,
    home_start: u64,
    geometry: Geometry,
    chunks: Vec<(ReplicaId, DirEntry)>,
}

/// One chunk of one replica.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    replica: ReplicaId,
    entry: DirEntry,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.entry.chunk, self.replica)
    }
}

impl Device {
    /// Reads the layout of a device. On a device in use the layout may be out of date at once.
    pub fn open(path: &Path) -> Result<Device> {
        let file = File::options().read(true).write(true).open(path).with_context(|| path.display().to_string())?;
        let superblock = superblock(&file)?;
        let checkpoint = last_checkpoint(&log::scan(&file, &superblock)?)?;
        let (home_start, geometry) = (superblock.home_start, checkpoint.geometry);
        let mut device = Device { file, home_start, geometry, chunks: Vec::new() };
        for replica in &checkpoint.replicas {
            let pages = replica.directory.iter().zip(0..).filter_map(|(ptr, n)| ptr.map(|ptr| (n, ptr)));
            for (n, ptr) in pages {
                let id = PageId::directory(replica.replica, n);
                let entries = home::decode_dir_page(id, &device.page(id, ptr)?, geometry)?;
                device.chunks.extend(entries.into_iter().map(|(_, entry)| (replica.replica, entry)));
            }
        }
        Ok(device)
    }

    /// Returns the place of this chunk at home, if it is there.
    pub fn find(&self, chunk: ChunkKey) -> Option<Place> {
        let found = self.chunks.iter().find(|(_, entry)| entry.chunk == chunk);
        found.map(|(replica, entry)| Place { replica: *replica, entry: *entry })
    }

    /// Returns the number of blocks of the chunk that hold data.
    pub fn blocks(&self, place: &Place) -> Result<u32> {
        Ok(self.map(place)?.1.iter().map(|slot| slot.valid.count_ones()).sum())
    }

    /// Returns a chunk with its first block that holds data.
    ///
    /// # Errors
    /// Home is empty.
    pub fn any(&self) -> Result<(Place, usize)> {
        for (replica, entry) in &self.chunks {
            let place = Place { replica: *replica, entry: *entry };
            let slots = self.map(&place)?.1;
            if let Some(au) = slots.iter().position(|slot| slot.valid != 0) {
                return Ok((place, au * BLOCKS_PER_AU as usize + slots[au].valid.trailing_zeros() as usize));
            }
        }
        bail!("home is empty")
    }

    /// Overwrites the map page of a chunk.
    pub fn harm_map(&self, place: &Place) -> Result<()> {
        let ptr = place.entry.pages[0].context("a listed chunk has a map")?;
        self.file.write_all_at(&[0xa5; PAGE], self.home_start + self.geometry.slot_offset(ptr.slot))?;
        self.file.sync_all().context("the damage is to stay")
    }

    /// Damages a block.
    pub fn harm(&self, place: &Place, block: usize, harm: Harm) -> Result<()> {
        let (mut page, mut slots) = self.map(place)?;
        let (au, bit) = (block / BLOCKS_PER_AU as usize, block as u32 % BLOCKS_PER_AU);
        ensure!(slots[au].valid & (1 << bit) != 0, "block {block} of {} holds no data", place.entry.chunk);
        if harm == Harm::Forgotten {
            slots[au].valid &= !(1 << bit);
            ensure!(slots[au].valid != 0, "the AU of block {block} would hold nothing any more");
            let before = page.clone();
            // The sequence in the header stays, because it is not checked.
            let sequence = u64::from_le_bytes(*page[MAP_SEQUENCE_AT..].first_chunk().expect("inside the header"));
            home::encode_map_page(PageId::of_chunk(place.replica, place.entry.chunk, 0), sequence, &slots, &mut page);
            return self.replace(place, 0, &before, page);
        }
        let offset = self.home_start + self.geometry.block_offset(slots[au].au, bit);
        let mut bytes = read(&self.file, offset, BLOCK as usize)?;
        bytes[100] ^= 0x10;
        self.file.write_all_at(&bytes, offset)?;
        if harm == Harm::Altered {
            let n = 1 + block / CRCS_PER_PAGE;
            let ptr = place.entry.pages[n].context("data has CRCs")?;
            let mut page = self.page(PageId::of_chunk(place.replica, place.entry.chunk, n), ptr)?;
            let last = slots[n * CRCS_PER_PAGE / BLOCKS_PER_AU as usize - 1];
            ensure!(last.valid >> (BLOCKS_PER_AU - 1) == 0, "the last block of quarter {} holds data", n - 1);
            let before = page.clone();
            let at = block % CRCS_PER_PAGE * 4;
            page[at..at + 4]
                .copy_from_slice(&block_hash(place.entry.chunk.in_own_family(block as u16), &bytes).to_le_bytes());
            self.replace(place, n, &before, page)?;
        }
        self.file.sync_all().context("the damage is to stay")
    }

    fn map(&self, place: &Place) -> Result<(Vec<u8>, MapSlots)> {
        let id = PageId::of_chunk(place.replica, place.entry.chunk, 0);
        let page = self.page(id, place.entry.pages[0].context("a listed chunk has a map")?)?;
        let slots = home::decode_map_page(id, &page, self.geometry)?;
        Ok((page, slots))
    }

    fn page(&self, id: PageId, ptr: PagePtr) -> Result<Vec<u8>> {
        let page = read(&self.file, self.home_start + self.geometry.slot_offset(ptr.slot), PAGE)?;
        ensure!(id.verify(&page, ptr.crc), "{id} in slot {} fails its checksum", ptr.slot);
        Ok(page)
    }

    /// Writes page `n` of a chunk over the old one, with the old one's CRC.
    fn replace(&self, place: &Place, n: usize, before: &[u8], mut page: Vec<u8>) -> Result<()> {
        let ptr = place.entry.pages[n].context("it was read")?;
        keep_crc(before, &mut page, if n == 0 { MAP_SEQUENCE_AT } else { PAGE - 4 });
        let id = PageId::of_chunk(place.replica, place.entry.chunk, n);
        ensure!(id.verify(&page, ptr.crc), "{id} did not keep its CRC");
        self.file.write_all_at(&page, self.home_start + self.geometry.slot_offset(ptr.slot))?;
        self.file.sync_all().context("the damage is to stay")
    }
}

/// Chooses the four bytes of `page` at `at` so that its CRC, whatever its salt, is that of `before`.
///
/// A CRC is linear. Trying each of the 32 bits shows its effect on the CRC, and elimination finds the bits that
/// together have the wanted effect. The initial value of a page's CRC does not matter to differences.
fn keep_crc(before: &[u8], page: &mut [u8], at: usize) {
    let zero = crc32c(&vec![0; page.len()]);
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for bit in 0..32 {
        let mut one = vec![0; page.len()];
        one[at..at + 4].copy_from_slice(&(1u32 << bit).to_le_bytes());
        let reduced = rows.iter().fold((crc32c(&one) ^ zero, 1u32 << bit), reduce);
        assert_ne!(reduced.0, 0, "32 bits next to each other change a CRC in 32 ways");
        rows.push(reduced);
    }
    let wanted = crc32c(before) ^ crc32c(page);
    let (rest, bits) = rows.iter().fold((wanted, 0), reduce);
    assert_eq!(rest, 0, "32 ways reach every CRC");
    let old = u32::from_le_bytes(*page[at..].first_chunk().expect("four bytes"));
    page[at..at + 4].copy_from_slice(&(old ^ bits).to_le_bytes());
}

/// Takes `row` out of `value` if it has the row's highest bit.
fn reduce(value: (u32, u32), row: &(u32, u32)) -> (u32, u32) {
    let highest = 1 << (31 - row.0.leading_zeros());
    if value.0 & highest == 0 { value } else { (value.0 ^ row.0, value.1 ^ row.1) }
}

fn read(file: &File, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).with_context(|| format!("{len} bytes at {offset}"))?;
    Ok(bytes)
}

/// Reads the superblock of a device: the first copy, or the last one.
fn superblock(file: &File) -> Result<Superblock> {
    let [first, last] = Superblock::offsets(file.metadata()?.len());
    Ok(Superblock::choose(&read(file, first, SUPERBLOCK_LEN)?, &read(file, last, SUPERBLOCK_LEN)?)?)
}

/// Returns the offsets at which a copy of the superblock does not verify.
pub fn bad_superblocks(path: &Path) -> Result<Vec<u64>> {
    let file = File::open(path)?;
    let mut bad = Vec::new();
    for offset in Superblock::offsets(file.metadata()?.len()) {
        if Superblock::decode(&read(&file, offset, SUPERBLOCK_LEN)?).is_err() {
            bad.push(offset);
        }
    }
    Ok(bad)
}

/// Overwrites the first copy of the superblock.
pub fn harm_superblock(path: &Path) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&[0xa5; SUPERBLOCK_LEN], 0)?;
    file.sync_all().context("the damage is to stay")
}

/// Returns the newest checkpoint in the log of which all parts are there.
fn last_checkpoint(batches: &[log::Batch]) -> Result<Checkpoint> {
    let mut ordered: Vec<&log::Batch> = batches.iter().collect();
    ordered.sort_by_key(|batch| batch.header.seq);
    let mut newest = NewestCheckpoint::default();
    for record in ordered.iter().flat_map(|batch| &batch.records) {
        if let Record::Checkpoint(part) = record {
            newest.take(part.id, part.part, part.parts, &part.bytes);
        }
    }
    Ok(newest.decode().context("the log holds no checkpoint yet")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_page_keeps_its_salted_crc_by_four_bytes_of_it() {
        let before: Vec<u8> = (0..PAGE).map(|n| (n * 7) as u8).collect();
        let id = PageId::directory(ReplicaId(9), 3);
        for at in [32, PAGE - 4] {
            let mut page = before.clone();
            page[40..44].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
            assert_ne!(id.crc(&page), id.crc(&before));
            keep_crc(&before, &mut page, at);
            assert_eq!(id.crc(&page), id.crc(&before));
            assert_eq!(page[40..44], 0xdead_beef_u32.to_le_bytes());
        }
    }
}
