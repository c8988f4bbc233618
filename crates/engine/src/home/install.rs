//! Staged contents: blocks of a stream (R12), kept beside the replica's contents until one round replaces these.
//!
//! Blocks come in and are written to fresh AUs at once; no page on the device names them. A round with the replica in
//! `Round::installs` then drops every old chunk, writes pages for the staged ones, and flips.
//!
//! Invariant: until that flip the last checkpoint and all that it names are unchanged. A crash leaves no trace, because
//! the free map is derived from the pages that the checkpoint names. An AU is staged in one chunk of one replica, and
//! is free again only when no write to it is in flight.

use super::chunk::{Chunk, DirPlace};
use super::round::ReadyWrite;
use super::stage::{coalesced, verified};
use super::{Home, InFlight, aligned};
use crate::home_api::{BlockData, ChunkDirty, HomeEvent};
use env::{DiskError, Op};
use layout::home::{CHUNK_PAGES, CRC_PAGES, PagePtr};
use std::collections::{BTreeMap, BTreeSet};
use types::planted::{Bug, on};
use types::units::BLOCKS_PER_AU;
use types::{ChunkKey, GenerationId, ReplicaId};

const PER_AU: usize = BLOCKS_PER_AU as usize;
/// Place of a chunk that is not in the directory yet.
pub(super) const NOWHERE: DirPlace = DirPlace { page: u32::MAX, position: 0 };

/// Staged contents of one replica.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) chunks: BTreeMap<ChunkKey, Box<Chunk>>,
    /// Space of older contents that becomes theirs.
    pub(super) kept: Option<super::keep::Kept>,
    writes_in_flight: u32,
    /// The contents are given up; their space is free when the last write has ended.
    pub(super) dying: bool,
}

/// One call of [`Home::stage`] whose writes are in flight.
pub(super) struct StageJob {
    ticket: u64,
    replica: ReplicaId,
    waiting: u32,
}

impl Home {
    /// Stages whole blocks beside the contents of their replica; ends with [`HomeEvent::Staged`]. False, without any
    /// effect: there is no room for them, the blocks of an earlier stream are not freed yet, or the store is poisoned.
    ///
    /// The caller never stages a block while an earlier write of it is in flight.
    pub fn stage(&mut self, ticket: u64, dirty: ChunkDirty, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) -> bool {
        let (replica, key, blocks) = (dirty.replica, dirty.chunk, &dirty.blocks);
        assert!(dirty.adopts.is_empty(), "a stream adopts nothing of the log");
        assert!(blocks.is_sorted_by(|a, b| a.0 < b.0), "blocks of {key} are not ascending");
        let busy = self.staging.get(&replica).is_some_and(|s| s.dying) || self.is_installing(replica);
        if self.poisoned || busy {
            return false;
        }
        let kept = blocks.iter().find(|(block, _)| self.keeps(replica, key, u32::from(*block) / BLOCKS_PER_AU));
        assert!(kept.is_none(), "a block of {key} is staged in kept space");
        let staging = self.staging.entry(replica).or_default();
        let mut chunk = staging.chunks.remove(&key).unwrap_or_else(|| Chunk::new(NOWHERE));
        let fits = aus_wanted(&chunk, blocks) <= self.aus_for_staging();
        let mut writes = Vec::new();
        if fits {
            self.allocate(&mut chunk, blocks);
            writes = self.put_blocks(&mut chunk, dirty);
        }
        let staging = self.staging.get_mut(&replica).expect("made above");
        if !chunk.is_empty() {
            staging.chunks.insert(key, chunk);
        }
        if !fits {
            return false;
        }
        if writes.is_empty() {
            out.push(HomeEvent::Staged { ticket });
            return true;
        }
        staging.writes_in_flight += writes.len() as u32;
        let (_, job) = self.stage_jobs.insert(StageJob { ticket, replica, waiting: writes.len() as u32 });
        for write in writes {
            self.stats.written_bytes += write.bytes;
            let token = self.token(InFlight::StageWrite { job });
            let (offset, bufs) = (write.offset, write.bufs);
            ops.push(Op::DiskWrite { token, disk: self.disk.id, offset, bufs, flush: false });
        }
        true
    }

    /// Returns the number of AUs that staging may take. It takes none that a running round counts on, and leaves a
    /// twentieth of the device to foreground writes.
    fn aus_for_staging(&self) -> u32 {
        let promised = self.round.as_ref().map_or(0, |round| round.aus_promised);
        let kept = u64::from((self.geometry.au_count / 20).max(16));
        u64::from(self.aus.free_count()).saturating_sub(kept + promised) as u32
    }

    /// Whether a piece of a stream may find no space.
    pub fn is_staging_full(&self) -> bool {
        u64::from(self.aus_for_staging()) <= types::limits::PART_MAX / types::AU
    }

    /// Enters the blocks into map and CRC tables; returns their writes, coalesced.
    fn put_blocks(&mut self, chunk: &mut Chunk, dirty: ChunkDirty) -> Vec<ReadyWrite> {
        let (place, marks) = ((dirty.family, dirty.chunk), dirty.marks);
        let mut writes = Vec::with_capacity(dirty.blocks.len());
        for (block, data) in dirty.blocks {
            let hash = verified(place, block, &data);
            let block = block as usize;
            let bit = 1u16 << (block % PER_AU);
            let slot = &mut chunk.map[block / PER_AU];
            match data {
                BlockData::Bytes { buf, .. } => {
                    slot.valid |= bit;
                    slot.zeros &= !bit;
                    let offset = self.geometry.block_offset(slot.au, block as u32 % BLOCKS_PER_AU);
                    chunk.set_hash(block, hash);
                    writes.push((self.region.start + offset, aligned(buf, &self.disk)));
                }
                BlockData::Zero => {
                    slot.zeros = if marks { slot.zeros | bit } else { slot.zeros & !bit };
                    let had_data = slot.valid & bit != 0;
                    slot.valid &= !bit;
                    if had_data && slot.valid == 0 {
                        self.aus.release(std::mem::take(&mut slot.au));
                    }
                }
            }
        }
        for n in 0..CRC_PAGES {
            if !chunk.has_quarter(n) {
                chunk.crcs[n] = None;
            }
        }
        coalesced(writes, self.limits.io_bytes_max)
    }

    pub(super) fn stage_write_done(&mut self, job: u32, result: Result<(), DiskError>, out: &mut Vec<HomeEvent>) {
        if let Err(source) = result {
            self.fail("writing home", source, out);
        }
        let running = self.stage_jobs.get_mut(job);
        let replica = running.replica;
        running.waiting -= 1;
        let ticket = running.ticket;
        if running.waiting == 0 {
            self.stage_jobs.remove(job);
            out.push(HomeEvent::Staged { ticket });
        }
        let staging = self.staging.get_mut(&replica).expect("it waits for its writes");
        staging.writes_in_flight -= 1;
        if staging.dying {
            self.free_staging(replica);
        }
    }

    /// Gives up the staged contents, except while a round installs them.
    pub fn unstage(&mut self, replica: ReplicaId) {
        if self.is_installing(replica) {
            return;
        }
        if let Some(staging) = self.staging.get_mut(&replica) {
            staging.dying = true;
            if on(Bug::AuReusedEarly) {
                let chunks = std::mem::take(&mut staging.chunks);
                chunks.values().flat_map(|chunk| chunk.aus()).for_each(|au| self.aus.release(au));
            }
            self.free_staging(replica);
        }
    }

    /// Drops everything that home holds of this replica, of which pages are lost. The next checkpoint does not name the
    /// replica, and its AUs and slots are free when that checkpoint is durable. AUs and slots named only by an unreadable page
    /// are in the free map already: a later mount that could read that page again would find two owners.
    ///
    /// # Panics
    /// While a round runs: its records may name the replica.
    pub fn empty(&mut self, replica: ReplicaId) {
        assert!(self.round.is_none(), "{replica} is emptied during a round");
        let Some(gone) = self.replicas.remove(&replica) else { return };
        gone.chunks.keys().for_each(|key| self.spoil(replica, *key, |_| true));
        gone.slots().for_each(|slot| self.drop_slot(PagePtr { slot, crc: 0 }));
        gone.chunks.values().flat_map(|chunk| chunk.aus()).for_each(|au| self.drop_au(au));
    }

    /// Gives up all staged contents that no round installs; returns their replicas.
    pub fn evict_staged(&mut self) -> Vec<ReplicaId> {
        let takes_space = |s: &Staging| !s.dying && !s.chunks.is_empty();
        let all = self.staging.iter().filter(|(id, s)| takes_space(s) && !self.is_installing(**id));
        let victims: Vec<ReplicaId> = all.map(|(id, _)| *id).collect();
        victims.iter().for_each(|id| self.unstage(*id));
        victims
    }

    /// Gives up staged chunks, and kept AUs, of generations that do not stay. No write to them is in flight.
    pub fn retain_staged(&mut self, replica: ReplicaId, stays: impl Fn(GenerationId) -> bool) {
        let Some(staging) = self.staging.get_mut(&replica) else { return };
        let ended: Vec<ChunkKey> = staging.chunks.keys().filter(|key| !stays(key.generation)).copied().collect();
        let chunks: Vec<Box<Chunk>> = ended.iter().filter_map(|key| staging.chunks.remove(key)).collect();
        staging.kept.iter_mut().for_each(|kept| kept.retain(&stays));
        chunks.iter().flat_map(|chunk| chunk.aus()).for_each(|au| self.aus.release(au));
    }

    fn free_staging(&mut self, replica: ReplicaId) {
        let idle = self.staging.get(&replica).is_some_and(|s| s.writes_in_flight == 0);
        if idle && let Some(staging) = self.staging.remove(&replica) {
            staging.chunks.values().flat_map(|chunk| chunk.aus()).for_each(|au| self.aus.release(au));
        }
    }

    pub(super) fn is_installing(&self, replica: ReplicaId) -> bool {
        self.round.as_ref().is_some_and(|round| round.installs.contains(&replica))
    }

    /// Checks the caller's contract: staged contents are whole, and no write to them is in flight.
    pub(super) fn check_install(&self, replica: ReplicaId) {
        let idle = self.staging.get(&replica).is_none_or(|s| s.writes_in_flight == 0 && !s.dying);
        assert!(idle && !self.is_spoiled(replica), "{replica} is installed while it is written");
    }

    /// Returns the slots that the pages of the staged chunks take, and the number of these chunks.
    pub(super) fn install_demand(&self, replica: ReplicaId) -> (u64, u64) {
        let Some(staging) = self.staging.get(&replica) else { return (0, 0) };
        let keys = self.staged_keys(replica);
        let pages = |key: &ChunkKey| {
            let (chunk, kept) = (staging.chunks.get(key), self.kept_quarters(replica, *key));
            1 + (0..CRC_PAGES).filter(|n| kept[*n] || chunk.is_some_and(|c| c.has_quarter(*n))).count() as u64
        };
        (keys.iter().map(pages).sum(), keys.len() as u64)
    }

    /// Returns the chunks that the replica will have: those with staged blocks, and those with kept AUs.
    pub(super) fn staged_keys(&self, replica: ReplicaId) -> BTreeSet<ChunkKey> {
        let staged = self.staging.get(&replica).into_iter().flat_map(|s| s.chunks.keys().copied());
        staged.chain(self.kept_keys(replica)).collect()
    }

    /// Moves a staged chunk into the replica, whose old chunks have been dropped.
    pub(super) fn adopt(&mut self, id: ReplicaId, key: ChunkKey) {
        self.clock += 1;
        let staging = self.staging.get_mut(&id).expect("it is being installed");
        let mut chunk = staging.chunks.remove(&key).expect("it was listed when the round began");
        let replica = self.replicas.get_mut(&id).expect("the round was checked");
        assert!(!replica.chunks.contains_key(&key), "{key} of {id} was to be dropped first");
        chunk.touched = self.clock;
        chunk.place = replica.place(key);
        self.settle(id, key, chunk, [true; CHUNK_PAGES]);
    }
}

/// Returns the number of AUs that the blocks would take.
fn aus_wanted(chunk: &Chunk, blocks: &[(u16, BlockData)]) -> u32 {
    let (mut wanted, mut last) = (0, usize::MAX);
    for (block, _) in blocks.iter().filter(|(_, data)| matches!(data, BlockData::Bytes { .. })) {
        let au = *block as usize / PER_AU;
        wanted += u32::from(au != last && chunk.map[au].valid == 0);
        last = au;
    }
    wanted
}
