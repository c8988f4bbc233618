//! Home: the place of blocks after destaging. Map, CRC pages, slots, directory, allocator, pending-free space.
//!
//! The log side passes in reads of ranges that its overlay does not cover, and rounds of whole blocks. Verified pieces,
//! the records of a checkpoint and device operations go out. `docs/adr/0002-home-writes.md` explains why a round may
//! write a block in place, and pages only elsewhere.
//!
//! Invariant: data that the last durable checkpoint names is changed only inside blocks that the log redoes.
//!
//! Memory: one resident page for each slot in use, so at most the slot area (1/64 of home), plus a bit for each AU and
//! slot. In flight: the reads that were requested, and at most `round_bytes_max` of a round. Home has no deadline of
//! its own and acts only inside its calls; [`Home::wants_step`] says when the next step of a round is due.

mod audit;
mod chunk;
mod chunks;
mod grants;
mod inherit;
mod install;
mod inventory;
mod keep;
mod merge;
mod mount;
mod placed;
mod queue;
mod read;
mod round;
mod space;
mod stage;
mod table;
#[cfg(test)]
mod tests;

pub use inventory::{ChunkUse, SpaceUse};

use crate::home_api::{At, HomeEvent, HomeRegion, HomeStats, HomeTokens, Piece, Round, RoundState};
use bytes::Bytes;
use chunk::{BLOCKS, Chunk, Replica};
use env::{DiskError, DiskInfo, DiskKind, Event, Op};
use layout::home::{Geometry, PagePtr};
use space::{FreeMap, PendingFree, Readers};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use table::Table;
use types::planted::{Bug, on};
use types::units::{SECTORS_PER_AU, SECTORS_PER_BLOCK, reserved_aus};
use types::{AU, BLOCK, ChunkKey, GenerationId, IoBuf, ReplicaId, SectorRange, Time};

/// Limits of the work that home keeps in flight, and settings of its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeLimits {
    /// Most operations of a round, or of a mount, in flight at once: foreground I/O may find so many queued before it.
    pub background_ops_max: u32,
    /// Most bytes of a round in flight at once; one write may exceed it when nothing else is in flight.
    pub round_bytes_max: u64,
    /// Most bytes of a single operation.
    pub io_bytes_max: u64,
    /// The disk rotates: the writes of a round go in ascending order, and one at a time while blocks are read.
    pub elevator: bool,
    /// Blocks of a round that one step verifies.
    pub step_blocks: u32,
    /// Slots of a home without a checkpoint; `None` computes them from its size.
    pub slot_count: Option<u32>,
    /// The allocator takes the space that was freed last.
    pub reuse_at_once: bool,
}

impl Default for HomeLimits {
    fn default() -> HomeLimits {
        HomeLimits {
            background_ops_max: 32,
            round_bytes_max: 4 << 20,
            io_bytes_max: 1 << 20,
            elevator: false,
            step_blocks: 256,
            slot_count: None,
            reuse_at_once: false,
        }
    }
}

/// Purpose of an operation in flight.
enum InFlight {
    MountRead(mount::MountRead),
    /// Piece `piece` of read `read`, of blocks of this chunk.
    Read {
        read: u32,
        piece: u32,
        chunk: ChunkKey,
    },
    RoundWrite {
        bytes: u64,
    },
    RoundFlush,
    StageWrite {
        job: u32,
    },
}

enum State {
    /// The home is not mounted yet.
    Closed,
    Mounting(Box<mount::Mount>),
    Open,
}

/// The home of all replicas of one OSD.
pub struct Home {
    disk: DiskInfo,
    region: HomeRegion,
    geometry: Geometry,
    tokens: HomeTokens,
    limits: HomeLimits,
    state: State,
    replicas: BTreeMap<ReplicaId, Replica>,
    aus: FreeMap,
    slots: FreeMap,
    pending_free: PendingFree,
    /// Double-owned AUs and slots: two owners claimed them at mount. They are never free again in this process.
    double_owned: DoubleOwned,
    /// AUs with payloads of the log.
    placed: placed::Placed,
    in_flight: Table<InFlight>,
    reads: Table<read::Read>,
    readers: Readers,
    /// Lookup clock: it moves whenever a round stages a chunk.
    clock: u64,
    round: Option<round::RoundRun>,
    /// Most writes of the round in flight now; at most [`HomeLimits::background_ops_max`].
    round_ops_max: u32,
    /// Staged contents of streams (R12).
    staging: BTreeMap<ReplicaId, install::Staging>,
    stage_jobs: Table<install::StageJob>,
    /// Sequence number of the last checkpoint that was begun.
    sequence: u64,
    poisoned: bool,
    stats: HomeStats,
}

#[derive(Default)]
struct DoubleOwned {
    aus: BTreeSet<u32>,
    slots: BTreeSet<u32>,
}

impl Home {
    /// Creates a home that is not mounted yet. Formatting writes nothing: without a checkpoint, home is empty.
    ///
    /// # Panics
    /// When the region is too small (`layout::home::HOME_LEN_MIN`) or misaligned: the caller has checked the
    /// superblock.
    pub fn new(disk: DiskInfo, region: HomeRegion, tokens: HomeTokens, limits: HomeLimits) -> Home {
        assert!(region.start.is_multiple_of(AU) && region.len_bytes.is_multiple_of(AU), "{region:?} is misaligned");
        assert!(region.start + region.len_bytes <= disk.size_bytes, "{region:?} leaves the disk");
        assert!(BLOCK.is_multiple_of(u64::from(disk.align_bytes)), "alignment {}", disk.align_bytes);
        assert!(limits.background_ops_max > 0 && limits.io_bytes_max >= BLOCK && limits.step_blocks > 0);
        let geometry = match limits.slot_count {
            Some(slots) => Geometry::with_slots(region.len_bytes, slots),
            None => Geometry::of(region.len_bytes),
        };
        let geometry = geometry.unwrap_or_else(|| panic!("{region:?} is too small for a home"));
        Home {
            disk,
            region,
            geometry,
            tokens,
            limits,
            state: State::Closed,
            replicas: BTreeMap::new(),
            aus: FreeMap::new(geometry.au_count, limits.reuse_at_once),
            slots: FreeMap::new(geometry.slot_count, limits.reuse_at_once),
            pending_free: PendingFree::default(),
            double_owned: DoubleOwned::default(),
            placed: placed::Placed::default(),
            in_flight: Table::new(),
            reads: Table::new(),
            readers: Readers::default(),
            clock: 1,
            round: None,
            round_ops_max: limits.background_ops_max,
            staging: BTreeMap::new(),
            stage_jobs: Table::new(),
            sequence: 0,
            poisoned: false,
            stats: HomeStats::default(),
        }
    }

    /// Returns the bytes of the device that home owns.
    pub fn region(&self) -> Range<u64> {
        self.region.start..self.region.start + self.region.len_bytes
    }

    /// Loads the pages that the last valid checkpoint names (`None`: a fresh home). Ends with [`HomeEvent::Mounted`] or
    /// [`HomeEvent::MountFailed`].
    pub fn start_mount(
        &mut self,
        _now: Time,
        checkpoint: Option<Vec<Bytes>>,
        ops: &mut Vec<Op>,
        out: &mut Vec<HomeEvent>,
    ) {
        assert!(matches!(self.state, State::Closed), "home mounts once");
        self.mount(checkpoint, ops, out);
    }

    /// Handles the completion of an operation whose token is home's.
    pub fn handle_event(&mut self, _now: Time, event: Event, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        let token = match &event {
            Event::DiskRead { token, .. } | Event::DiskWrite { token, .. } | Event::DiskFlush { token, .. } => *token,
            other => panic!("{other:?} is nothing that home asked for"),
        };
        let what = self.in_flight.take(token.generation, HomeTokens::key(token));
        match (what, event) {
            (InFlight::MountRead(page), Event::DiskRead { buf, result, .. }) => {
                self.mount_read_done(page, buf, result, ops, out);
            }
            (InFlight::Read { read, piece, chunk }, Event::DiskRead { buf, result, .. }) => {
                self.read_done(read, (chunk, piece), buf.freeze(), result, out);
            }
            (InFlight::RoundWrite { bytes }, Event::DiskWrite { result, .. }) => {
                self.round_write_done(bytes, result, ops, out);
            }
            (InFlight::StageWrite { job }, Event::DiskWrite { result, .. }) => self.stage_write_done(job, result, out),
            (InFlight::RoundFlush, Event::DiskFlush { result, .. }) => self.round_flush_done(result, out),
            (_, event) => panic!("{event:?} is not the completion of what was asked for"),
        }
    }

    /// Reads `ranges` (ascending, disjoint, not covered by the overlay) as they are now. Ends with
    /// [`HomeEvent::ReadDone`] or [`HomeEvent::ReadRetry`], at once when no block has to be read. `family`: that of the chunks'
    /// generations, which seeds the checksums. `looked`: chunks of younger generations that are open in some range; the read is looked
    /// up again when a round changes one of them, too.
    ///
    /// # Panics
    /// When a range contains a block that the running round rewrites: the overlay holds it whole.
    pub fn read(
        &mut self,
        ticket: u64,
        replica: ReplicaId,
        (family, looked): (GenerationId, &[ChunkKey]),
        ranges: &[(ChunkKey, SectorRange)],
        ops: &mut Vec<Op>,
        out: &mut Vec<HomeEvent>,
    ) {
        assert!(matches!(self.state, State::Open), "a read before the mount is over");
        self.start_read(ticket, replica, (family, looked), ranges, ops, out);
    }

    /// Returns the parts of `range` and what home holds of each, in order, tiling it. It holds whole blocks.
    pub fn at(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(SectorRange, At)> {
        let Some(chunk) = self.chunk(replica, chunk) else { return vec![(range, At::Open)] };
        let mut runs: Vec<(SectorRange, At)> = Vec::new();
        for fragment in range.fragments() {
            let at = chunk.at((fragment.start / SECTORS_PER_BLOCK) as usize);
            match runs.last_mut() {
                Some((run, of)) if *of == at => run.count += fragment.count,
                _ => runs.push((fragment, at)),
            }
        }
        runs
    }

    /// Returns the number of generations, of whatever volume, of which home holds something in this chunk index.
    pub fn generation_count(&self, replica: ReplicaId, index: u32) -> usize {
        self.replicas.get(&replica).map_or(0, |r| r.chunks.count_at(index))
    }

    /// Returns the generations of which home holds data or zeros in an AU of `range` of this chunk index, the newest first.
    pub fn generations_at(
        &self,
        replica: ReplicaId,
        index: u32,
        range: SectorRange,
    ) -> impl Iterator<Item = GenerationId> + '_ {
        let aus = range.start / SECTORS_PER_AU..=(range.end() - 1) / SECTORS_PER_AU;
        self.replicas.get(&replica).into_iter().flat_map(move |r| r.chunks.taken(index, aus.clone()))
    }

    /// Returns the state of a replica as of the last checkpoint, or of the coming one.
    pub fn state(&self, replica: ReplicaId) -> Option<&RoundState> {
        self.replicas.get(&replica).map(|r| &r.state)
    }

    /// Returns the checksum of a block ([`types::block_hash`]) according to the current map; `None`: home holds no data there, or the
    /// running round merges the chunk, so that a copy of the block would come too late.
    pub fn hash_of(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> Option<u32> {
        if self.round.as_ref().is_some_and(|round| round.merges(replica, chunk)) {
            return None;
        }
        let chunk = self.chunk(replica, chunk)?;
        chunk.is_valid(block.into()).then(|| chunk.hash_of(block.into()))
    }

    /// Returns the chunks of this replica that hold data, ascending.
    pub fn chunks(&self, replica: ReplicaId) -> impl Iterator<Item = ChunkKey> + '_ {
        self.replicas.get(&replica).into_iter().flat_map(|r| r.chunks.keys().copied())
    }

    /// Begins a round. R2 holds for each new checkpoint index (K): entries up to K, a commit at or above K and every
    /// completed block are durable in the log. From now until the flip the overlay answers for every block of the
    /// round. A replica that mount found damaged keeps its state and gets no data. Ends with [`HomeEvent::RoundReady`],
    /// [`HomeEvent::RoundFull`] (nothing has changed) or [`HomeEvent::Failed`].
    ///
    /// # Panics
    /// When a round is running.
    pub fn begin_round(&mut self, now: Time, round: Round, out: &mut Vec<HomeEvent>) {
        assert!(matches!(self.state, State::Open), "a round before the mount is over");
        assert!(self.round.is_none(), "a round is running");
        if !self.poisoned {
            self.start_round(now, round, out);
        }
    }

    /// Flips: the records of the last [`HomeEvent::RoundReady`] are durable in the log.
    ///
    /// # Panics
    /// When no round is ready.
    pub fn round_committed(&mut self, now: Time) {
        self.flip(now);
    }

    /// Stops all writes of home, because the store has failed (R15). Reads go on.
    pub fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Whether a round has begun and has not flipped.
    pub fn round_running(&self) -> bool {
        self.round.is_some()
    }

    /// Returns the number of free slots. A round over `c` chunks takes at most `6 c` of them, and those of the decision
    /// states that changed.
    pub fn free_slots(&self) -> u32 {
        self.slots.free_count()
    }

    /// Bytes of AUs that are free now, without those pending free.
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.aus.free_count()) * AU
    }

    /// Bytes that are pending free: dropped, and not to be reused yet.
    pub fn pending_free_bytes(&self) -> u64 {
        u64::from(self.pending_free.au_count()) * AU + u64::from(self.pending_free.slot_count()) * BLOCK
    }

    /// Returns the AUs that may be granted to leaders (R13), without those pending free and without the reserve that
    /// serves discard, delete, slots and repair. A new AU may cost three slots: map page, CRC page, directory page.
    pub fn grantable_aus(&self) -> u32 {
        let aus = self.aus.free_count().saturating_sub(reserved_aus(self.geometry.au_count));
        let slots = self.slots.free_count().saturating_sub(self.geometry.slot_count / 4);
        aus.min(slots / 3)
    }

    /// Whether no further AU can be granted.
    pub fn is_full(&self) -> bool {
        self.grantable_aus() == 0
    }

    /// Returns the counters and levels.
    pub fn stats(&self) -> HomeStats {
        HomeStats {
            free_bytes: self.free_bytes(),
            pending_free_bytes: self.pending_free_bytes(),
            exchanged_bytes: self.round.as_ref().map_or(0, |round| round.exchanged) * AU,
            logged_bytes: self.placed_count() * AU,
            used_bytes: u64::from(self.geometry.au_count) * AU
                - self.free_bytes()
                - u64::from(self.pending_free.au_count()) * AU,
            capacity_bytes: u64::from(self.geometry.au_count) * AU,
            full: self.is_full(),
            ..self.stats
        }
    }

    fn chunk(&self, replica: ReplicaId, chunk: ChunkKey) -> Option<&Chunk> {
        self.replicas.get(&replica)?.chunks.get(&chunk).map(|chunk| &**chunk)
    }

    /// Whether home must be flushed. R10: a file needs a flush even without a volatile cache: its extents may be
    /// unwritten.
    fn needs_flush(&self) -> bool {
        self.disk.volatile_cache || self.disk.kind == DiskKind::File
    }

    /// Registers an operation; returns its token.
    fn token(&mut self, what: InFlight) -> env::Token {
        let (generation, key) = self.in_flight.insert(what);
        self.tokens.token(generation, key)
    }

    fn slot_offset(&self, slot: u32) -> u64 {
        self.region.start + self.geometry.slot_offset(slot)
    }

    /// Makes a slot pending free, unless it is double-owned: then its other owner may still use it.
    fn drop_slot(&mut self, ptr: PagePtr) {
        if !self.double_owned.slots.contains(&ptr.slot) {
            if on(Bug::SlotReusedEarly) {
                return self.slots.release(ptr.slot);
            }
            self.pending_free.drop_slot(ptr.slot);
        }
    }

    fn drop_au(&mut self, au: u32) {
        if !self.double_owned.aus.contains(&au) {
            if on(Bug::AuReusedEarly) {
                return self.aus.release(au);
            }
            self.pending_free.drop_au(au);
        }
    }

    /// Frees the numbers that no read in flight and no checkpoint needs.
    fn release_pending_free(&mut self) {
        while let Some(dropped) = self.pending_free.release(self.readers.oldest()) {
            dropped.aus.into_iter().for_each(|au| self.aus.release(au));
            dropped.slots.into_iter().for_each(|slot| self.slots.release(slot));
        }
    }

    /// Poisons home at the first failed write or flush (R15).
    fn fail(&mut self, during: &'static str, source: DiskError, out: &mut Vec<HomeEvent>) {
        if !std::mem::replace(&mut self.poisoned, true) {
            out.push(HomeEvent::Failed { during, source });
        }
    }
}

/// Returns `buf`, or an aligned copy where the disk cannot take it from its place in memory.
fn aligned(buf: IoBuf, disk: &DiskInfo) -> IoBuf {
    if buf.is_aligned(disk.align_bytes as usize) { buf } else { IoBuf::copy_of(&buf) }
}

const _: () = assert!(BLOCKS * SECTORS_PER_BLOCK as usize == SectorRange::CHUNK.count as usize);
const _: () = assert!(size_of::<Piece>() <= 64, "pieces are moved by value");
