//! Staging: turns one step of a round into new resident state and into writes.
//!
//! A chunk with its dirty blocks comes in. AUs and slots are taken; the chunk's map, CRCs and directory place change.
//! Writes, coalesced to runs on the device, go to the round's queue.
//!
//! Invariant: a page is written only to a free slot; its old slot becomes pending free. An AU that the chunk owns is
//! kept, and written in place, as long as one of its blocks holds data. An adopted AU is not written. A block has data, a zero mark, or
//! neither.

use super::chunk::{BLOCKS, Chunk, Paged};
use super::round::ReadyWrite;
use super::{Home, aligned};
use crate::home_api::{BlockData, ChunkDirty};
use crate::space::AuSet;
use layout::checkpoint::decision_pages;
use layout::home::{CHUNK_PAGES, CRC_PAGES, CRCS_PER_PAGE, DirEntry, PAGE, PageId, PagePtr};
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{BLOCK, BlockPlace, ChunkKey, GenerationId, IoBuf, IoBufMut, ReplicaId, block_hash};

const PER_AU: usize = BLOCKS_PER_AU as usize;

impl Home {
    /// Puts the dirty blocks of a chunk into their places at home.
    pub(super) fn stage_chunk(&mut self, dirty: ChunkDirty, hashes: Vec<u32>) {
        let ChunkDirty { replica: id, chunk: key, marks, older, blocks, adopts, .. } = dirty;
        assert!(blocks.is_sorted_by(|a, b| a.0 < b.0), "blocks of {key} are not ascending");
        self.spoil(id, key, |au| blocks.iter().any(|(block, _)| u32::from(*block) / BLOCKS_PER_AU == au));
        self.clock += 1;
        let replica = self.replicas.get_mut(&id).expect("the round was checked");
        let held = replica.chunks.remove(&key);
        if held.is_none() && !marks && blocks.iter().all(|(_, data)| *data == BlockData::Zero) {
            return;
        }
        let mut changed = [held.is_none(), false, false, false, false];
        let mut chunk = held.unwrap_or_else(|| Chunk::new(replica.place(key)));
        chunk.touched = self.clock;
        changed[0] |= self.inherit(id, (key, &mut *chunk), &older, &blocks);
        let owned = chunk.map.map(|slot| slot.valid != 0);
        let adopted = AuSet::of(adopts.iter().map(|(at, _)| u32::from(*at)));
        changed[0] |= !adopts.is_empty();
        self.adopt_placed(id, &mut chunk, &adopts);
        let free = self.aus.free_count();
        self.allocate(&mut chunk, &blocks);
        let taken = u64::from(free - self.aus.free_count());
        self.running().taken.aus += taken;
        let mut writes = Vec::with_capacity(blocks.len());
        for ((block, data), hash) in blocks.into_iter().zip(hashes) {
            let block = block as usize;
            let bit = 1u16 << (block % PER_AU);
            let slot = &mut chunk.map[block / PER_AU];
            match data {
                BlockData::Bytes { buf, .. } => {
                    changed[0] |= slot.valid & bit == 0;
                    changed[1 + block / CRCS_PER_PAGE] = true;
                    slot.valid |= bit;
                    slot.zeros &= !bit;
                    let offset = self.geometry.block_offset(slot.au, block as u32 % BLOCKS_PER_AU);
                    chunk.set_hash(block, hash);
                    // The batch of the entry has written a payload that is adopted.
                    if !adopted.contains(block as u32 / BLOCKS_PER_AU) {
                        writes.push((self.region.start + offset, aligned(buf, &self.disk)));
                    }
                }
                BlockData::Zero => {
                    let before = *slot;
                    slot.valid &= !bit;
                    slot.zeros = if marks { slot.zeros | bit } else { slot.zeros & !bit };
                    changed[0] |= *slot != before;
                }
            }
        }
        for (slot, _) in chunk.map.iter_mut().zip(owned).filter(|(slot, owned)| *owned && slot.valid == 0) {
            // Its zero marks stay.
            let au = std::mem::take(&mut slot.au);
            self.drop_au(au);
        }
        let runs = coalesced(writes, self.limits.io_bytes_max);
        self.running().ready.extend(runs);
        self.settle(id, key, chunk, changed);
    }

    /// Gives an AU to every part of the chunk that gets its first block. Adjacent parts get adjacent AUs where space
    /// allows.
    pub(super) fn allocate(&mut self, chunk: &mut Chunk, blocks: &[(u16, BlockData)]) {
        let mut wanted = [false; AUS_PER_CHUNK as usize];
        for (block, _) in blocks.iter().filter(|(_, data)| matches!(data, BlockData::Bytes { .. })) {
            let at = *block as usize / PER_AU;
            wanted[at] = chunk.map[at].valid == 0;
        }
        let mut at = 0;
        let mut near = None;
        while at < wanted.len() {
            if !wanted[at] {
                near = (chunk.map[at].valid != 0).then(|| chunk.map[at].au + 1).or(near);
                at += 1;
                continue;
            }
            let want = wanted[at..].iter().take_while(|wanted| **wanted).count() as u32;
            let (first, count) = self.aus.take_run(want, near).expect("the round was known to fit");
            for n in 0..count {
                chunk.map[at].au = first + n;
                at += 1;
            }
            near = Some(first + count);
        }
    }

    /// Writes the pages that changed, drops those without data, and puts the chunk back if it holds anything.
    pub(super) fn settle(&mut self, id: ReplicaId, key: ChunkKey, mut chunk: Box<Chunk>, changed: [bool; CHUNK_PAGES]) {
        if chunk.is_empty() {
            self.retire(id, key, &chunk);
            return;
        }
        let mut moved = false;
        for (n, changed) in changed.into_iter().enumerate() {
            let gone = n > 0 && !chunk.has_quarter(n - 1);
            if !gone && !changed {
                continue;
            }
            let old = chunk.pages[n].take();
            moved |= old.is_some() || !gone;
            if let Some(ptr) = old {
                self.drop_slot(ptr);
            }
            if gone {
                chunk.crcs[n - 1] = None;
                continue;
            }
            let page_id = PageId::of_chunk(id, key, n);
            let mut page = IoBufMut::new(PAGE);
            match n {
                0 => layout::home::encode_map_page(page_id, self.sequence, &chunk.map, &mut page),
                _ => {
                    let crcs = chunk.crcs[n - 1].as_ref().expect("a quarter with data has CRCs");
                    layout::home::encode_crc_page(crcs, &mut page);
                }
            }
            chunk.pages[n] = Some(self.write_page(page_id, page));
        }
        assert!((0..CRC_PAGES).all(|n| chunk.has_quarter(n) == chunk.pages[1 + n].is_some()), "pages of {key}");
        if moved {
            self.running().dirty_directory.insert((id, chunk.place.page));
        }
        self.replicas.get_mut(&id).expect("it is there").chunks.insert(key, chunk);
    }

    /// Drops a chunk with all that it holds.
    pub(super) fn drop_chunk(&mut self, id: ReplicaId, key: ChunkKey) {
        self.spoil(id, key, |_| true);
        self.clock += 1;
        let replica = self.replicas.get_mut(&id).expect("the round was checked");
        // Two unmaps may name the same chunk.
        if let Some(chunk) = replica.chunks.remove(&key) {
            chunk.aus().for_each(|au| self.drop_au(au));
            self.retire(id, key, &chunk);
        }
    }

    /// Takes an empty chunk, which is no longer among the resident ones, out of the directory.
    pub(super) fn retire(&mut self, id: ReplicaId, key: ChunkKey, chunk: &Chunk) {
        chunk.pages.iter().flatten().for_each(|ptr| self.drop_slot(*ptr));
        self.replicas.get_mut(&id).expect("it is there").unplace(key, chunk.place);
        self.running().dirty_directory.insert((id, chunk.place.page));
    }

    /// Drops a replica whose chunks have been dropped.
    pub(super) fn forget(&mut self, id: ReplicaId) {
        let replica = self.replicas.remove(&id).expect("it was there when the round began");
        assert!(replica.chunks.is_empty(), "{id} still has chunks");
        replica.slots().for_each(|slot| self.drop_slot(PagePtr { slot, crc: 0 }));
        self.running().dirty_directory.retain(|(owner, _)| *owner != id);
    }

    pub(super) fn write_directory_page(&mut self, id: ReplicaId, page: u32) {
        let replica = self.replicas.get_mut(&id).expect("it is there");
        let dir = &mut replica.directory[page as usize];
        let old = dir.ptr.take();
        let places = dir.chunks.iter().enumerate().filter_map(|(at, chunk)| chunk.map(|chunk| (at, chunk)));
        let entries: Vec<(usize, DirEntry)> =
            places.map(|(at, chunk)| (at, DirEntry { chunk, pages: replica.chunks[&chunk].pages })).collect();
        if !entries.is_empty() {
            let page_id = PageId::directory(id, page);
            let mut buf = IoBufMut::new(PAGE);
            let listed = entries.iter().map(|(at, entry)| (*at, entry));
            layout::home::encode_dir_page(page_id, self.sequence, listed, &mut buf);
            let ptr = self.write_page(page_id, buf);
            self.replicas.get_mut(&id).expect("it is there").directory[page as usize].ptr = Some(ptr);
        }
        if let Some(ptr) = old {
            self.drop_slot(ptr);
        }
    }

    pub(super) fn write_decision(&mut self, id: ReplicaId) {
        let replica = self.replicas.get_mut(&id).expect("it is there");
        let (bytes, old) = (replica.state.decision.bytes.clone(), std::mem::take(&mut replica.decision));
        let paged = self.write_paged(&bytes, old, |n| PageId::decision(id, n));
        self.replicas.get_mut(&id).expect("it is there").decision = paged;
    }

    pub(super) fn write_dissolved(&mut self, id: ReplicaId) {
        let replica = self.replicas.get_mut(&id).expect("it is there");
        let (bytes, old) = (replica.state.dissolved.clone(), std::mem::take(&mut replica.dissolved));
        let paged = self.write_paged(&bytes, old, |n| PageId::dissolved(id, n));
        self.replicas.get_mut(&id).expect("it is there").dissolved = paged;
    }

    /// Writes bytes in the place of their old pages.
    fn write_paged(&mut self, bytes: &[u8], old: Paged, id: impl Fn(u32) -> PageId) -> Paged {
        old.pages.into_iter().for_each(|ptr| self.drop_slot(ptr));
        let mut pages = Vec::with_capacity(decision_pages(bytes.len()));
        for (part, n) in bytes.chunks(PAGE).zip(0..) {
            let mut page = IoBufMut::zeroed(PAGE);
            page[..part.len()].copy_from_slice(part);
            pages.push(self.write_page(id(n), page));
        }
        Paged { len: bytes.len() as u32, pages, dirty: false }
    }

    /// Puts a page into a fresh slot, behind the last one where that is free: adjacent pages become one write.
    fn write_page(&mut self, id: PageId, page: IoBufMut) -> PagePtr {
        let crc = id.crc(&page);
        let next_slot = |run: &ReadyWrite, start: u64| ((run.offset + run.bytes - start) / PAGE as u64) as u32;
        let start = self.region.start;
        let near = self.running().pages.as_ref().map(|run| next_slot(run, start));
        let (slot, _) = self.slots.take_run(1, near).expect("the round was known to fit");
        let (offset, bytes_max) = (self.slot_offset(slot), self.limits.io_bytes_max);
        let run = self.running();
        run.taken.slots += 1;
        match &mut run.pages {
            Some(pages) if pages.offset + pages.bytes == offset && pages.bytes < bytes_max => {
                pages.bytes += PAGE as u64;
                pages.bufs.push(page.freeze());
            }
            pages => {
                let fresh = ReadyWrite { offset, bufs: vec![page.freeze()], bytes: PAGE as u64 };
                run.ready.extend(pages.replace(fresh));
            }
        }
        PagePtr { slot, crc }
    }
}

/// Coalesces blocks into writes of runs on the device.
pub(super) fn coalesced(mut blocks: Vec<(u64, IoBuf)>, bytes_max: u64) -> Vec<ReadyWrite> {
    if !blocks.is_sorted_by_key(|(offset, _)| *offset) {
        blocks.sort_unstable_by_key(|(offset, _)| *offset);
    }
    let mut runs: Vec<ReadyWrite> = Vec::new();
    for (offset, buf) in blocks {
        match runs.last_mut().filter(|run| run.offset + run.bytes == offset && run.bytes < bytes_max) {
            Some(run) => {
                run.bytes += BLOCK;
                run.bufs.push(buf);
            }
            None => runs.push(ReadyWrite { offset, bufs: vec![buf], bytes: BLOCK }),
        }
    }
    assert!(runs.iter().all(|run| run.bytes <= bytes_max), "a write is too long");
    runs
}

/// Checks that a block is whole and has the CRC of its bytes; returns its hash. A wrong CRC would make the block unreadable
/// for good once the log has freed the entry; a stop now loses nothing.
pub(super) fn verified((family, chunk): (GenerationId, ChunkKey), block: u16, data: &BlockData) -> u32 {
    assert!(usize::from(block) < BLOCKS, "block {block} of {chunk}");
    let BlockData::Bytes { buf, crc } = data else { return 0 };
    assert_eq!(buf.len(), BLOCK as usize, "block {block} of {chunk} is not whole");
    assert_eq!(types::crc32c(buf), *crc, "block {block} of {chunk} is not what its CRC says");
    block_hash(BlockPlace::of(family, chunk, block), buf)
}
