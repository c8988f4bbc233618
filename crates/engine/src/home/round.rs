//! One destage round: from whole blocks in memory to the records of a checkpoint.
//!
//! A [`Round`] comes in. Data goes to the place of each block (or to fresh AUs), pages go to fresh slots, and one flush
//! makes both durable. [`HomeEvent::RoundReady`] then goes out with the records that name the pages. Blocks are verified,
//! and chunks staged, one after the other in [`Home::step_round`], as completions make room: a turn does a bounded part
//! of the work, and the device sees a bounded queue.
//!
//! Invariant: before the first write, the round is known to fit. Data that the last checkpoint names is overwritten
//! only inside blocks of this round, which the log redoes (R2).

use super::chunk::{BlockSet, Replica};
use super::inherit::Heirs;
use super::queue;
use super::stage::verified;
use super::{Home, HomeLimits, InFlight};
use crate::home_api::{BlockData, ChunkDirty, ChunkMerge, HomeEvent, Round, RoundState};
use env::{DiskError, Op};
use layout::checkpoint::{Checkpoint, ReplicaRecord, decision_pages};
use layout::home::{CRCS_PER_PAGE, DIR_ENTRIES};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::failpoint::{Point, pass};
use types::limits::{DECISION_LEN_MAX, DISSOLVED_LEN_MAX};
use types::planted::{Bug, on};
use types::units::BLOCKS_PER_AU;
use types::{ChunkKey, GenerationId, IoBuf, ReplicaId, Time};

/// A write that is ready to be submitted.
pub(super) struct ReadyWrite {
    pub(super) offset: u64,
    pub(super) bufs: Vec<IoBuf>,
    pub(super) bytes: u64,
}

/// Least cost of staging or dropping a chunk whose blocks are verified, in blocks that are verified.
const CHUNK_COST: u32 = 64;

/// Logged AUs that one step drops.
const RELEASE_STEP: usize = 1024;

/// A step of a round.
enum Work {
    /// Drops the chunk with all that it holds.
    Drop(ReplicaId, ChunkKey),
    /// Moves the kept AUs of the first replica's chunk into the second one's staged chunk, and drops the rest.
    TakeOver(ReplicaId, ReplicaId, ChunkKey),
    /// Moves a staged chunk into the replica, whose old chunks have been dropped.
    Adopt(ReplicaId, ChunkKey),
    /// Drops the replica's directory and decision state; its chunks have been dropped.
    Forget(ReplicaId),
    /// Moves a chunk of a dissolved generation to its heir, of which the round writes these blocks.
    Merge(Box<ChunkMerge>, Option<Box<BlockSet>>),
    /// Puts blocks into their places, once all are verified: so many have a hash here.
    Write(ChunkDirty, Vec<u32>),
    /// Drops logged AUs that no chunk has adopted; all chunks are staged.
    Release(ReplicaId, Vec<u32>),
    /// Finds the directory pages and decision states to write, after all chunks are staged.
    Roots,
    Directory(ReplicaId, u32),
    Decision(ReplicaId),
    Dissolved(ReplicaId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Writing,
    Flushing,
    /// The log side has the records.
    Ready,
}

/// A round that is running.
pub(super) struct RoundRun {
    phase: Phase,
    started: Time,
    work: VecDeque<Work>,
    pub(super) ready: VecDeque<ReadyWrite>,
    /// Pages of adjacent slots that wait to become one write.
    pub(super) pages: Option<ReadyWrite>,
    /// All writes of the round are in `ready`, in their order on the disk.
    is_ordered: bool,
    /// Cost of all writes of an ordered round, and of those that are done.
    costs: (u64, u64),
    ops_in_flight: u32,
    bytes_in_flight: u64,
    /// Blocks that the overlay answers for until the flip.
    rewritten: BTreeMap<(ReplicaId, ChunkKey), Box<BlockSet>>,
    /// Chunks of dissolved generations that the round merges.
    merging: BTreeSet<(ReplicaId, ChunkKey)>,
    /// Blocks that the round copies to heirs: until the flip they are read from here, because their writes may be in flight.
    pub(super) copied: BTreeMap<(ReplicaId, ChunkKey), BTreeMap<u16, IoBuf>>,
    pub(super) dirty_directory: BTreeSet<(ReplicaId, u32)>,
    /// Upper bound of the AUs that the round takes, from its beginning to its end.
    pub(super) aus_promised: u64,
    /// AUs and slots that the round has taken by now.
    pub(super) taken: crate::space::FreeSpace,
    /// AUs dropped in exchange for logged ones.
    pub(super) exchanged: u64,
    pub(super) installs: Vec<ReplicaId>,
}

impl RoundRun {
    /// Whether the device takes another write of the round.
    fn has_room(&self, limits: &HomeLimits, reads: bool) -> bool {
        let yields = limits.elevator && reads;
        self.ops_in_flight == 0
            || !yields
                && self.ops_in_flight < limits.background_ops_max
                && self.bytes_in_flight < limits.round_bytes_max
    }

    /// Whether its writes may be submitted: in ascending order only when all of them are known.
    fn may_write(&self, limits: &HomeLimits) -> bool {
        !limits.elevator || self.is_ordered
    }

    /// Puts all writes into their order on the disk.
    fn order(&mut self, bytes_max: u64) {
        self.ready.extend(self.pages.take());
        self.ready = queue::ascending(std::mem::take(&mut self.ready), bytes_max);
        self.costs.0 = self.ready.iter().map(|write| queue::cost(write.bytes)).sum();
        self.is_ordered = true;
    }

    /// Returns the blocks of the chunk that this round has staged.
    pub(super) fn rewritten(&self, replica: ReplicaId, chunk: ChunkKey) -> Option<&BlockSet> {
        self.rewritten.get(&(replica, chunk)).map(|blocks| &**blocks)
    }

    /// Whether this round merges the chunk into that of an heir.
    pub(super) fn merges(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.merging.contains(&(replica, chunk))
    }
}

/// Most space that a round takes.
#[derive(Default)]
struct Demand {
    aus: u64,
    slots: u64,
}

impl Home {
    pub(super) fn start_round(&mut self, now: Time, mut round: Round, out: &mut Vec<HomeEvent>) {
        let damaged = |id: &ReplicaId| self.replicas.get(id).is_some_and(|r| r.damage.is_some());
        round.states.retain(|s| !damaged(&s.decision.replica));
        round.unmaps.retain(|c| !damaged(&c.replica));
        round.chunks.retain(|c| !damaged(&c.replica));
        round.installs.retain(|id| !damaged(id));
        round.released.retain(|(id, _)| !damaged(id));
        round.merges.retain(|merge| !damaged(&merge.replica));
        self.check_round(&round);
        let mut demand = self.demand(&round);
        if !self.has_room_for(&demand) && !round.merges.is_empty() {
            // Merges must not be the reason why a round finds no room.
            round.merges.clear();
            demand = self.demand(&round);
        }
        if !self.has_room_for(&demand) {
            out.push(HomeEvent::RoundFull);
            return;
        }
        let mut work = VecDeque::new();
        for id in &round.destroyed {
            let Some(replica) = self.replicas.get(id) else { continue };
            work.extend(replica.chunks.keys().map(|chunk| Work::Drop(*id, *chunk)));
            work.push_back(Work::Forget(*id));
        }
        for cut in &round.unmaps {
            let held = self.replicas.get(&cut.replica).into_iter();
            let keys = held.flat_map(|r| chunks_from(r, cut.generation, cut.from_chunk));
            work.extend(keys.map(|chunk| Work::Drop(cut.replica, chunk)));
        }
        round.installs.iter().for_each(|id| self.plan_install(*id, &mut work));
        let merging = round.merges.iter().map(|merge| (merge.replica, merge.from)).collect();
        let merges = std::mem::take(&mut round.merges);
        work.extend(merges_of(merges, &round.chunks));
        work.extend(round.chunks.into_iter().map(|dirty| Work::Write(dirty, Vec::new())));
        for (replica, units) in round.released {
            work.extend(units.chunks(RELEASE_STEP).map(|part| Work::Release(replica, part.to_vec())));
        }
        work.push_back(Work::Roots);
        round.states.into_iter().for_each(|state| self.take_state(state));
        self.sequence += 1;
        self.round = Some(RoundRun {
            phase: Phase::Writing,
            started: now,
            work,
            ready: VecDeque::new(),
            pages: None,
            is_ordered: false,
            costs: (0, 0),
            ops_in_flight: 0,
            bytes_in_flight: 0,
            rewritten: BTreeMap::new(),
            merging,
            copied: BTreeMap::new(),
            dirty_directory: BTreeSet::new(),
            aus_promised: demand.aus,
            taken: Default::default(),
            exchanged: 0,
            installs: round.installs,
        });
    }

    /// Adds the work of an installation.
    fn plan_install(&self, id: ReplicaId, work: &mut VecDeque<Work>) {
        let base = self.base_of(id);
        let kept: BTreeSet<ChunkKey> = self.kept_keys(id).collect();
        let mut new = self.staged_keys(id);
        // A failed base first: what it does not lend is dropped. The new contents are newer than all that it had.
        for old in base.filter(|base| *base != id).into_iter().chain([id]) {
            for chunk in self.replicas.get(&old).into_iter().flat_map(|r| r.chunks.keys().copied()) {
                work.push_back(match base == Some(old) && kept.contains(&chunk) {
                    true => Work::TakeOver(old, id, chunk),
                    false => Work::Drop(old, chunk),
                });
                // One chunk after the other, so that a step does not change the tables of all.
                work.extend((old == id && new.remove(&chunk)).then_some(Work::Adopt(id, chunk)));
            }
            work.extend((old != id).then_some(Work::Forget(old)));
        }
        work.extend(new.into_iter().map(|chunk| Work::Adopt(id, chunk)));
    }

    /// Takes the state of a replica as of the coming checkpoint.
    fn take_state(&mut self, state: RoundState) {
        let replica = self.replicas.entry(state.decision.replica).or_insert_with(|| Replica::new(state.clone()));
        replica.decision.dirty |=
            replica.state.decision.bytes != state.decision.bytes && !on(Bug::DecisionNotCheckpointed);
        replica.dissolved.dirty |= replica.state.dissolved != state.dissolved;
        replica.state = state;
    }

    /// Checks the caller's contract: a round that breaks it must not reach the device.
    fn check_round(&self, round: &Round) {
        let mut replicas: BTreeSet<ReplicaId> = self.replicas.keys().copied().collect();
        for state in &round.states {
            let id = state.decision.replica;
            assert!(state.commit >= state.decision.index, "{id}: commit below K");
            assert!(state.decision.bytes.len() <= DECISION_LEN_MAX, "{id}: decision state too long");
            assert!(state.dissolved.len() <= DISSOLVED_LEN_MAX, "{id}: list of dissolved generations too long");
            let last = self.replicas.get(&id).map(|r| r.state.decision.index);
            assert!(last.is_none_or(|k| k <= state.decision.index), "{id}: K goes back");
            replicas.insert(id);
        }
        for id in &round.destroyed {
            replicas.remove(id);
        }
        for state in &round.states {
            assert!(replicas.contains(&state.decision.replica), "{} is destroyed", state.decision.replica);
        }
        for id in &round.installs {
            self.check_install(*id);
            assert!(round.states.iter().any(|s| s.decision.replica == *id), "{id} is installed without a state");
            let other = round.chunks.iter().any(|c| c.replica == *id) || round.unmaps.iter().any(|c| c.replica == *id);
            assert!(!other, "{id} is installed and changed");
        }
        let mut seen = BTreeSet::new();
        assert!(round.chunks.is_sorted_by_key(|dirty| (dirty.replica, dirty.chunk)), "older generations come first");
        for dirty in &round.chunks {
            assert!(dirty.older.iter().all(|older| *older < dirty.chunk.generation), "{:?} above", dirty.older);
            assert!(replicas.contains(&dirty.replica), "{} has no state", dirty.replica);
            assert!(seen.insert((dirty.replica, dirty.chunk)), "{} of {} twice", dirty.chunk, dirty.replica);
        }
        self.check_placed(round);
        for ChunkMerge { replica, from, into, .. } in &round.merges {
            assert!(replicas.contains(replica), "{replica} has no state");
            assert!(from.generation < into.generation && from.index == into.index, "{from} is merged into {into}");
            // M3: what is destaged into the older chunk is merged later.
            assert!(seen.insert((*replica, *from)), "{from} of {replica} is merged and written, or merged twice");
        }
    }

    fn has_room_for(&self, demand: &Demand) -> bool {
        demand.aus <= u64::from(self.aus.free_count()) && demand.slots <= u64::from(self.slots.free_count())
    }

    /// Returns an upper bound of the round's space, before anything is changed.
    fn demand(&self, round: &Round) -> Demand {
        let mut demand = Demand::default();
        // For each replica: directory entries that change, and those of them that are new.
        let mut entries: BTreeMap<ReplicaId, (u64, u64)> = BTreeMap::new();
        for cut in &round.unmaps {
            let gone =
                self.replicas.get(&cut.replica).map_or(0, |r| chunks_from(r, cut.generation, cut.from_chunk).count());
            entries.entry(cut.replica).or_default().0 += gone as u64;
        }
        let heirs = Heirs::of(round);
        for dirty in &round.chunks {
            let is_cut = round.unmaps.iter().any(|cut| cut.drops(dirty.replica, dirty.chunk));
            let inherited = self.inheritance(round, &heirs, dirty);
            let sources = inherited.values().collect::<BTreeSet<_>>().len() as u64;
            let held = self.chunk(dirty.replica, dirty.chunk).filter(|_| !is_cut);
            let (mut quarters, mut last_au) = (0u8, usize::MAX);
            for (block, _) in dirty.blocks.iter().filter(|(_, data)| matches!(data, BlockData::Bytes { .. })) {
                let au = *block as usize / BLOCKS_PER_AU as usize;
                quarters |= 1 << (*block as usize / CRCS_PER_PAGE);
                let adopted = || dirty.adopts.binary_search_by_key(&(au as u16), |(at, _)| *at).is_ok();
                let has_place = || adopted() || inherited.contains_key(&au);
                let fresh = au != last_au && held.is_none_or(|chunk| chunk.map[au].valid == 0) && !has_place();
                demand.aus += u64::from(fresh);
                last_au = au;
            }
            demand.slots += 1 + u64::from(quarters.count_ones()) + sources;
            let entry = entries.entry(dirty.replica).or_default();
            *entry = (entry.0 + 1 + sources, entry.1 + u64::from(held.is_none()));
        }
        // A merge takes no AU: an AU moves, or blocks go to one that the heir has.
        for merge in &round.merges {
            let is_new = self.chunk(merge.replica, merge.into).is_none();
            demand.slots += self.merge_demand(merge);
            let entry = entries.entry(merge.replica).or_default();
            *entry = (entry.0 + 2, entry.1 + u64::from(is_new));
        }
        for id in &round.installs {
            let (pages, new) = self.install_demand(*id);
            let old = self.replicas.get(id).map_or(0, |r| r.chunks.len() as u64);
            demand.slots += pages;
            entries.insert(*id, (old + new, new));
        }
        for (id, (changed, new)) in entries {
            let pages = self.replicas.get(&id).map_or(0, |r| r.directory.len() as u64);
            demand.slots += changed.min(pages + new.div_ceil(DIR_ENTRIES as u64));
        }
        for state in &round.states {
            let held = self.replicas.get(&state.decision.replica);
            if held.is_none_or(|r| r.decision.dirty || r.state.decision.bytes != state.decision.bytes) {
                demand.slots += decision_pages(state.decision.bytes.len()) as u64;
            }
            if held.is_none_or(|r| r.dissolved.dirty || r.state.dissolved != state.dissolved) {
                demand.slots += decision_pages(state.dissolved.len()) as u64;
            }
        }
        demand
    }

    /// Whether [`Home::step_round`] has work to do: the round is to be staged further, and the device takes more.
    pub fn wants_step(&self) -> bool {
        let reads = !self.reads.is_empty();
        let waits = |run: &RoundRun| match self.limits.elevator {
            true => !run.work.is_empty(),
            false => !run.work.is_empty() && run.ready.is_empty() && run.has_room(&self.round_limits(), reads),
        };
        !self.poisoned && self.round.as_ref().is_some_and(waits)
    }

    /// Sets how many writes of the round may be in flight.
    pub(crate) fn bound_round(&mut self, ops_max: u32) {
        assert!(ops_max > 0, "a round would not end");
        self.round_ops_max = ops_max;
    }

    /// Returns the most that [`Home::bound_round`] may set.
    pub(crate) fn round_ops_limit(&self) -> u32 {
        self.limits.background_ops_max
    }

    fn round_limits(&self) -> HomeLimits {
        let background_ops_max = self.limits.background_ops_max.min(self.round_ops_max);
        HomeLimits { background_ops_max, ..self.limits }
    }

    /// Stages a part of the running round, about `step_blocks` blocks, and submits its writes.
    pub fn step_round(&mut self, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        let mut left = self.limits.step_blocks;
        while left > 0 && self.wants_step() {
            let work = self.running().work.pop_front().expect("there is work");
            left = left.saturating_sub(self.perform(work, left));
            self.pump_round(ops, out);
        }
    }

    /// Submits writes while there is room; moves to the next phase when all is done.
    fn pump_round(&mut self, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        while !self.poisoned {
            let (limits, reads) = (self.round_limits(), !self.reads.is_empty());
            let run = self.running();
            if limits.elevator && !run.is_ordered && run.work.is_empty() {
                run.order(limits.io_bytes_max);
            }
            if !run.may_write(&limits) || !run.has_room(&limits, reads) {
                return;
            }
            if let Some(write) = run.ready.pop_front() {
                run.ops_in_flight += 1;
                run.bytes_in_flight += write.bytes;
                self.stats.written_bytes += write.bytes;
                let token = self.token(InFlight::RoundWrite { bytes: write.bytes });
                let (offset, bufs) = (write.offset, write.bufs);
                ops.push(Op::DiskWrite { token, disk: self.disk.id, offset, bufs, flush: false });
            } else if !run.work.is_empty() {
                return;
            } else if let Some(pages) = run.pages.take() {
                run.ready.push_back(pages);
            } else if run.ops_in_flight == 0 {
                self.all_written(ops, out);
                return;
            } else {
                return;
            }
        }
    }

    /// Returns the share of the running round's writes that is done, by what they cost a rotating disk; zero before all are known.
    pub fn round_progress(&self) -> f64 {
        let share = |run: &RoundRun| if run.is_ordered { run.costs.1 as f64 / run.costs.0.max(1) as f64 } else { 0.0 };
        self.round.as_ref().map_or(0.0, share)
    }

    /// Measures the rest of the running round: the value changes with every step and every completion of the round.
    pub(crate) fn round_left(&self) -> [u64; 3] {
        let left = |run: &RoundRun| {
            let (phase, ops) = (run.phase as u64, u64::from(run.ops_in_flight));
            let verified = if let Some(Work::Write(_, hashes)) = run.work.front() { hashes.len() } else { 0 };
            [(run.work.len() as u64) << 16 | verified as u64, run.ready.len() as u64, phase << 32 | ops]
        };
        self.round.as_ref().map_or([0; 3], left)
    }

    pub(super) fn running(&mut self) -> &mut RoundRun {
        self.round.as_mut().expect("a round is running")
    }

    /// Performs a piece of work, or a part of it; returns what it costs, in blocks.
    fn perform(&mut self, work: Work, blocks_max: u32) -> u32 {
        match work {
            Work::Write(dirty, mut hashes) if hashes.len() < dirty.blocks.len() => {
                let first = hashes.len();
                let part = dirty.blocks[first..].iter().take(blocks_max as usize);
                hashes.extend(part.map(|(block, data)| verified((dirty.family, dirty.chunk), *block, data)));
                let cost = hashes.len() - first;
                self.running().work.push_front(Work::Write(dirty, hashes));
                return cost as u32;
            }
            Work::Drop(replica, chunk) => self.drop_chunk(replica, chunk),
            Work::TakeOver(base, replica, chunk) => self.take_over(base, replica, chunk),
            Work::Adopt(replica, chunk) => self.adopt(replica, chunk),
            Work::Forget(replica) => self.forget(replica),
            Work::Write(dirty, hashes) => {
                let mut blocks = Box::new(BlockSet::new());
                dirty.blocks.iter().for_each(|(block, _)| blocks.insert(*block as usize));
                self.running().rewritten.insert((dirty.replica, dirty.chunk), blocks);
                let cost = CHUNK_COST.max(dirty.blocks.len() as u32 / 8);
                self.stage_chunk(dirty, hashes);
                return cost;
            }
            Work::Merge(merge, written) => return self.merge_chunk(*merge, written.as_deref()),
            Work::Release(replica, units) => self.release_placed(replica, &units),
            Work::Roots => {
                let run = self.round.as_mut().expect("a round is running");
                let pages = std::mem::take(&mut run.dirty_directory);
                run.work.extend(pages.into_iter().map(|(replica, page)| Work::Directory(replica, page)));
                for (id, replica) in &self.replicas {
                    run.work.extend(replica.decision.dirty.then_some(Work::Decision(*id)));
                    run.work.extend(replica.dissolved.dirty.then_some(Work::Dissolved(*id)));
                }
            }
            Work::Directory(replica, page) => self.write_directory_page(replica, page),
            Work::Decision(replica) => self.write_decision(replica),
            Work::Dissolved(replica) => self.write_dissolved(replica),
        }
        CHUNK_COST
    }

    pub(super) fn round_write_done(
        &mut self,
        bytes: u64,
        result: Result<(), DiskError>,
        ops: &mut Vec<Op>,
        out: &mut Vec<HomeEvent>,
    ) {
        let run = self.running();
        run.ops_in_flight -= 1;
        run.bytes_in_flight -= bytes;
        run.costs.1 += queue::cost(bytes);
        match result {
            Ok(()) => self.pump_round(ops, out),
            Err(source) => self.fail("writing home", source, out),
        }
    }

    /// Flushes the data and pages that were written: no durable record names the pages before that.
    fn all_written(&mut self, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        let run = self.running();
        assert_eq!((run.phase, run.ops_in_flight, run.bytes_in_flight), (Phase::Writing, 0, 0));
        run.phase = Phase::Flushing;
        pass(Point::HomeWritten);
        if !self.needs_flush() || on(Bug::HomeWithoutFlush) {
            self.round_ready(out);
            return;
        }
        self.stats.flushes += 1;
        let token = self.token(InFlight::RoundFlush);
        ops.push(Op::DiskFlush { token, disk: self.disk.id });
    }

    pub(super) fn round_flush_done(&mut self, result: Result<(), DiskError>, out: &mut Vec<HomeEvent>) {
        match result {
            Err(source) if !on(Bug::FlushErrorIgnored) => self.fail("flushing home", source, out),
            _ if self.poisoned => {}
            _ => self.round_ready(out),
        }
    }

    fn round_ready(&mut self, out: &mut Vec<HomeEvent>) {
        let run = self.running();
        assert_eq!(run.phase, Phase::Flushing, "a round is ready once");
        run.phase = Phase::Ready;
        pass(if run.installs.is_empty() { Point::HomeFlushed } else { Point::InstallFlushed });
        let replicas = self.replicas.values().map(|r| ReplicaRecord {
            replica: r.state.decision.replica,
            index: r.state.decision.index,
            term: r.state.decision.term,
            commit: r.state.commit,
            decision_len: r.decision.len,
            decision: r.decision.pages.clone(),
            dissolved: (r.dissolved.len, r.dissolved.pages.clone()),
            directory: r.directory.iter().map(|page| page.ptr).collect(),
        });
        let checkpoint = Checkpoint { geometry: self.geometry, sequence: self.sequence, replicas: replicas.collect() };
        out.push(HomeEvent::RoundReady { records: checkpoint.encode() });
    }

    pub(super) fn flip(&mut self, now: Time) {
        let run = self.round.take().expect("a round is running");
        assert_eq!(run.phase, Phase::Ready, "only what is ready is committed");
        assert!(!self.poisoned, "a poisoned store commits nothing");
        self.stats.rounds += 1;
        self.stats.round_us += now.since(run.started).as_micros() as u64;
        for id in run.installs {
            // The staged contents may have been empty.
            self.staging.remove(&id);
        }
        self.pending_free.seal(self.clock);
        self.release_pending_free();
    }
}

/// Returns the work of merges, each with the blocks that the round writes to the chunk of the heir.
fn merges_of(merges: Vec<ChunkMerge>, chunks: &[ChunkDirty]) -> Vec<Work> {
    if merges.is_empty() {
        return Vec::new();
    }
    let dirty: BTreeMap<_, _> = chunks.iter().map(|dirty| ((dirty.replica, dirty.chunk), dirty)).collect();
    let written = |merge: &ChunkMerge| {
        let dirty = dirty.get(&(merge.replica, merge.into))?;
        let mut blocks = Box::new(BlockSet::new());
        dirty.blocks.iter().for_each(|(block, _)| blocks.insert(usize::from(*block)));
        Some(blocks)
    };
    let with_written = |merge: ChunkMerge| {
        let blocks = written(&merge);
        Work::Merge(Box::new(merge), blocks)
    };
    merges.into_iter().map(with_written).collect()
}

/// Returns the chunks of `generation` from `from` on that the replica holds.
pub(super) fn chunks_from(replica: &Replica, generation: GenerationId, from: u32) -> impl Iterator<Item = ChunkKey> {
    let range = ChunkKey { generation, index: from }..=ChunkKey { generation, index: u32::MAX };
    replica.chunks.range(range).map(|(key, _)| *key)
}
