//! Merge of dissolved generations, on this device alone: which chunks the next round moves to their heirs, and the blocks for it.
//!
//! While no round runs, a walk over the chunks of dissolved generations makes a plan. Home reads the blocks that must be copied, and
//! verifies them. Then the plan is ready, and the next round takes it. Each round is small, and nothing is written to the log
//! but its checkpoint.
//!
//! Invariants: only the generation nearest to an heir is merged, and of it no chunk of which the overlay has blocks (M3). A generation
//! leaves the list of a replica with the first checkpoint that begins without anything of it, at home or in the overlay (M5). A replica
//! without dissolved generations costs nothing.

use crate::engine::Engine;
use crate::home::Home;
use crate::home_api::ChunkMerge;
use crate::lineage::Lineage;
use crate::replica::{Replica, ReplicaState};
use crate::round::Run;
use layout::dissolved::Dissolved;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::limits::DISSOLVED_LEN_MAX;
use types::store::ReadData;
use types::units::{BLOCKS_PER_AU, SECTORS_PER_BLOCK};
use types::{BLOCK, ChunkKey, GenerationId, IoBuf, ReplicaId, SectorRange, Time};

/// Most reads of a merge in flight: foreground reads may find so many before them.
const READS_MAX: usize = 4;
/// Most chunks of a plan, and the share of the free slots, as a divisor, that their pages may take.
const CHUNKS_MAX: usize = 64;
const SLOTS_SHARE: u32 = 8;
/// Most slots that the merge of a chunk takes, with those of the directory.
const CHUNK_SLOTS: u32 = 8;
/// Most blocks of a chunk that a round copies: a step of home verifies all of them.
const CHUNK_BLOCKS_MAX: usize = 256;
/// Most chunks that a step of the walk looks at.
const WALK_MAX: usize = 2048;
/// Interval between the end of a round and one that only merges.
const GAP: Duration = Duration::from_millis(200);
/// Pause after a round that could not merge anything of its plan.
const PAUSE: Duration = Duration::from_secs(5);
/// Level of the log above which nothing is planned or read.
const LOG_MAX: f32 = 0.75;

/// A chunk that the next round merges.
#[derive(Debug)]
struct Planned {
    replica: ReplicaId,
    from: ChunkKey,
    heir: GenerationId,
    /// Blocks that were read.
    copies: Vec<(u16, IoBuf)>,
    clock: u64,
}

/// State of the merges of this device.
#[derive(Debug, Default)]
pub(crate) struct Merges {
    /// The walk may find something.
    due: bool,
    /// The OSD's loop holds merges back.
    held: bool,
    not_before: Time,
    /// The chunk at which the walk goes on.
    walked: Option<(ReplicaId, ChunkKey)>,
    /// The walk has begun at the first chunk, and no round has ended since; whether it has found anything.
    is_whole_walk: bool,
    has_found: bool,
    /// Number of the plan: reads of an earlier one do not count.
    number: u64,
    plan: Vec<Planned>,
    /// Reads of the plan that are not begun, and the number of those in flight.
    left: VecDeque<(ReplicaId, ChunkKey, SectorRange)>,
    reading: usize,
    /// A round would take a generation from a list.
    forgets: bool,
    /// Bytes of the list of dissolved generations of each replica that has one.
    lists: BTreeMap<ReplicaId, usize>,
    /// Chunks of heirs in the running round, and the AUs that were merged before it.
    running: Option<(Vec<(ReplicaId, ChunkKey)>, u64)>,
}

impl Merges {
    /// Whether a round would merge something now.
    pub fn is_ready(&self) -> bool {
        let is_read = self.left.is_empty() && self.reading == 0;
        !self.held && is_read && (self.forgets || !self.plan.is_empty())
    }

    /// How near the longest list of dissolved generations is to half of its limit.
    pub fn level(&self) -> f32 {
        let longest = self.lists.values().max().copied().unwrap_or(0);
        longest as f32 / (DISSOLVED_LEN_MAX / 2) as f32
    }

    /// Whether rounds to come may free space.
    pub fn may_free(&self) -> bool {
        self.due
    }

    /// Notes that the running round changes nothing.
    pub fn round_full(&mut self) {
        self.running = None;
    }

    /// Whether the plan has a chunk of this replica, and is ready.
    pub fn takes(&self, replica: ReplicaId) -> bool {
        self.is_ready() && self.plan.iter().any(|chunk| chunk.replica == replica)
    }

    /// Drops the plan: no round takes it.
    pub fn give_up(&mut self) {
        self.end_plan();
        self.due = false;
    }

    fn end_plan(&mut self) {
        self.number += 1;
        self.plan.clear();
        self.left.clear();
        (self.reading, self.forgets) = (0, false);
    }
}

/// Room that a plan has left.
struct Budget {
    blocks: usize,
    chunks: usize,
    walk: usize,
}

/// A dissolved generation that is merged next, of one heir of a replica.
struct Next<'a> {
    replica: ReplicaId,
    r: &'a Replica,
    heir: GenerationId,
    dissolved: Dissolved,
}

/// Chunks of a plan, the reads for them, and whether a list is to be shortened.
#[derive(Default)]
struct Found {
    plan: Vec<Planned>,
    left: VecDeque<(ReplicaId, ChunkKey, SectorRange)>,
    forgets: bool,
}

impl Replica {
    /// Whether a round may merge chunks of the replica.
    fn merges(&self, home: &Home) -> bool {
        let runs = matches!(self.state, ReplicaState::Running) && self.destages();
        runs && self.lineage.has_dissolved() && !home.is_streamed(self.identity.replica)
    }

    /// Whether a chunk has to wait: the overlay has blocks of it (M3), or a cut of the heir's chunk. The cut came before the generation was
    /// dissolved, and until its checkpoint it would hide what the heir gets.
    fn keeps_waiting(&self, from: ChunkKey, into: ChunkKey) -> bool {
        self.overlay.has_chunk(from) || self.overlay.hides(into)
    }

    /// Whether this store keeps nothing of a dissolved generation.
    fn lacks(&self, home: &Home, generation: GenerationId) -> bool {
        let at_home = home.chunks_of(self.identity.replica, generation, 0).next().is_some();
        !at_home && !self.overlay.has_blocks_of(generation)
    }
}

impl Engine {
    /// Sets whether the OSD's loop holds merges back: a stream of some replica runs. A plan that was made waits. While the loop lacks space
    /// to grant, merges go on.
    pub fn hold_merges(&mut self, held: bool) {
        self.destage.merges.held = held && !self.destage.space_wanted;
    }

    /// Notes that the lists of dissolved generations of a replica may have changed, or whether they count.
    pub(crate) fn note_heirs(&mut self, replica: ReplicaId) {
        let counts = self.replicas.get(&replica).filter(|r| r.destages() && r.lineage.has_dissolved());
        match counts {
            Some(r) => {
                self.destage.merges.due = true;
                self.destage.merges.lists.insert(replica, r.lineage.dissolved_len());
            }
            None => drop(self.destage.merges.lists.remove(&replica)),
        }
    }

    /// Takes generations of which the store keeps nothing from the lists of a replica. True when there were any.
    pub(crate) fn forget_merged(&mut self, replica: ReplicaId) -> bool {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return false };
        if !r.lineage.has_dissolved() {
            return false;
        }
        let gone: Vec<GenerationId> = r.lineage.heirs().into_keys().filter(|id| r.lacks(home, *id)).collect();
        if gone.is_empty() {
            return false;
        }
        let before = r.reaches();
        std::sync::Arc::make_mut(&mut r.lineage).forget(|id| gone.binary_search(&id).is_ok());
        drop(r);
        self.judge_reached(replica, &before);
        self.note_heirs(replica);
        true
    }

    /// Most reads for merges in flight: a rotating disk has two requests of background work at most.
    fn reads_max(&self) -> usize {
        if self.config.hdd_home { READS_MAX.min(crate::mount::HDD_OPS_MAX as usize) } else { READS_MAX }
    }

    fn may_merge(&self) -> bool {
        self.destage.merges.due
            && !self.destage.merges.held
            && !self.destage.held
            && self.is_round_idle()
            && self.now >= self.destage.merges.not_before
            && self.pressure().log < LOG_MAX
    }

    /// Does one bounded step of the plan.
    pub(crate) fn step_merges(&mut self) {
        if !self.may_merge() {
            return;
        }
        if self.destage.merges.plan.is_empty() && !self.destage.merges.forgets {
            self.plan_merges();
        }
        while self.destage.merges.reading < self.reads_max()
            && let Some((replica, chunk, range)) = self.destage.merges.left.pop_front()
        {
            // M3: a block that was repaired meanwhile is in the overlay.
            let whole = |r: &Replica| !r.has_failed() && !r.overlay.has_chunk(chunk);
            let home = self.home.as_ref().expect("a running engine has a home");
            if self.replicas.get(&replica).is_some_and(whole) && home.has_data(replica, chunk, range) {
                self.destage.merges.reading += 1;
                self.read_for_merge(self.destage.merges.number, replica, chunk, range);
            }
        }
    }

    /// Time at which a plan has a step to do, while no completion begins it.
    pub(crate) fn merge_deadline(&self) -> Time {
        let merges = &self.destage.merges;
        if merges.is_ready() && self.is_round_idle() && !self.destage.held {
            return self.merge_round_at();
        }
        let plans = merges.plan.is_empty() && !merges.forgets;
        let reads = !merges.left.is_empty() && merges.reading < self.reads_max();
        match merges.due && !merges.held && !self.destage.held && self.is_round_idle() && (plans || reads) {
            true if self.pressure().log < LOG_MAX => merges.not_before.max(self.now),
            _ => Time::NEVER,
        }
    }

    /// Time of the next round that only merges.
    pub(crate) fn merge_round_at(&self) -> Time {
        self.destage.last_round + GAP
    }

    /// Whether a round that only merges is to begin.
    pub(crate) fn is_merge_round_due(&self, now: Time) -> bool {
        self.destage.merges.is_ready() && now >= self.merge_round_at()
    }

    /// Walks over the chunks of dissolved generations, and makes a plan of what it finds.
    fn plan_merges(&mut self) {
        let home = self.home.as_ref().expect("a running engine has a home");
        let chunks = (home.free_slots() / SLOTS_SHARE / CHUNK_SLOTS).max(1) as usize;
        let blocks = (self.config.steps.merge_bytes / BLOCK).max(1) as usize;
        let mut budget = Budget { blocks, chunks: chunks.min(CHUNKS_MAX), walk: WALK_MAX };
        let from = self.destage.merges.walked;
        let first = from.map_or(ReplicaId(0), |(id, _)| id);
        let mut found = Found::default();
        let mut stopped = None;
        for (id, r) in self.replicas.range(first..).filter(|(_, r)| r.merges(home)) {
            let mut next: Vec<_> = r.lineage.nearest().collect();
            next.sort_unstable_by_key(|(_, d)| d.generation);
            let from = from.filter(|(replica, _)| replica == id).map(|(_, chunk)| chunk);
            for (heir, dissolved) in next {
                let next = Next { replica: *id, r, heir, dissolved };
                stopped = stopped.or_else(|| next.walk(home, from, &mut budget, &mut found));
            }
        }
        let Found { plan, left, forgets } = found;
        self.destage.merges.end_plan();
        let merges = &mut self.destage.merges;
        let (began, found_now) = (from.is_none(), !plan.is_empty() || forgets);
        merges.is_whole_walk |= began;
        merges.has_found = found_now || (merges.has_found && !began);
        // A walk that began in the middle, or found something, is followed by another one. Else nothing is merged before a round ends.
        merges.due = stopped.is_some() || merges.has_found || !merges.is_whole_walk;
        merges.is_whole_walk &= stopped.is_some();
        (self.destage.merges.plan, self.destage.merges.left, self.destage.merges.forgets) = (plan, left, forgets);
        self.destage.merges.walked = stopped;
    }

    /// Takes blocks that home has read for a plan.
    pub(crate) fn merge_read(
        &mut self,
        plan: u64,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        data: ReadData,
    ) {
        let is_it = |planned: &&mut Planned| planned.replica == replica && planned.from == chunk;
        let planned = self.destage.merges.plan.iter_mut().find(is_it).filter(|_| plan == self.destage.merges.number);
        if let (Some(planned), ReadData::Bytes { payload, .. }) = (planned, data) {
            let first = (range.start / SECTORS_PER_BLOCK) as u16;
            let slice = |n: usize| payload.slice(n * BLOCK as usize..(n + 1) * BLOCK as usize);
            planned.copies.extend((0..range.fragment_count()).map(|n| (first + n as u16, slice(n))));
        }
        self.merge_read_ended(plan);
    }

    /// Notes that a read for a plan has ended, with or without the blocks.
    pub(crate) fn merge_read_ended(&mut self, plan: u64) {
        if plan == self.destage.merges.number {
            self.destage.merges.reading -= 1;
        }
    }

    /// Returns the merges of the round that is handed over now, and ends the plan.
    pub(crate) fn take_merges(&mut self, run: &Run) -> Vec<ChunkMerge> {
        if !self.destage.merges.is_ready() {
            return Vec::new();
        }
        let home = self.home.as_ref().expect("a running engine has a home");
        let mut plan = std::mem::take(&mut self.destage.merges.plan);
        plan.retain(|planned| self.replicas.get(&planned.replica).is_some_and(|r| r.merges(home)));
        // The plan may have become ready after the round began without the replica.
        let (taken, rest): (Vec<_>, Vec<_>) = plan.into_iter().partition(|p| run.lineage_of(p.replica).is_some());
        let fits = |planned: Planned| {
            let (r, lineage) = (&self.replicas[&planned.replica], run.lineage_of(planned.replica)?);
            planned.merge(r, lineage)
        };
        let merges: Vec<ChunkMerge> = taken.into_iter().filter_map(fits).collect();
        (self.destage.merges.plan, self.destage.merges.forgets) = (rest, false);
        let heirs: Vec<_> = merges.iter().map(|merge| (merge.replica, merge.into)).collect();
        self.destage.merges.running = (!heirs.is_empty()).then(|| (heirs, self.home_stats().merged_aus));
        merges
    }

    /// Lets the walk begin again, when there are dissolved generations: what kept a chunk waiting may be over.
    pub(crate) fn look_for_merges(&mut self) {
        self.destage.merges.due = self.replicas.values().any(|r| r.lineage.has_dissolved());
        self.destage.merges.is_whole_walk = false;
    }

    /// Notes that a round has ended. Returns the chunks of heirs into which it merged.
    pub(crate) fn merges_committed(&mut self) -> Vec<(ReplicaId, ChunkKey)> {
        self.look_for_merges();
        let Some((heirs, before)) = self.destage.merges.running.take() else { return Vec::new() };
        if self.home_stats().merged_aus == before {
            self.destage.merges.not_before = self.now + PAUSE;
        }
        heirs
    }

    /// Forgets bad blocks that home does not hold any more: their chunk is merged, or dropped.
    pub(crate) fn forget_bad_of_gone(&mut self, replica: ReplicaId) {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return };
        r.bad.retain(|(chunk, block)| home.hash_of(replica, *chunk, *block).is_some());
    }
}

impl Next<'_> {
    /// Adds the chunks of the generation to the plan, from the one at which an earlier walk stopped. Returns the chunk at which this
    /// walk stops, because it has no more budget.
    fn walk(
        &self,
        home: &Home,
        from: Option<ChunkKey>,
        budget: &mut Budget,
        found: &mut Found,
    ) -> Option<(ReplicaId, ChunkKey)> {
        let id = self.dissolved.generation;
        found.forgets |= self.r.lacks(home, id);
        let first = match from {
            Some(chunk) if chunk.generation > id => return None,
            Some(chunk) if chunk.generation == id => chunk.index,
            _ => 0,
        };
        for chunk in home.chunks_of(self.replica, id, first) {
            if budget.walk == 0 || budget.chunks == 0 || budget.blocks == 0 {
                return Some((self.replica, chunk));
            }
            budget.walk -= 1;
            if !self.r.keeps_waiting(chunk, ChunkKey { generation: self.heir, ..chunk }) {
                self.look_at(home, chunk, budget, found);
            }
        }
        None
    }

    /// Adds a chunk to the plan, if a round can merge something of it.
    fn look_at(&self, home: &Home, chunk: ChunkKey, budget: &mut Budget, found: &mut Found) {
        let into = ChunkKey { generation: self.heir, ..chunk };
        let hidden = chunk.index >= self.dissolved.through;
        let work = if hidden { Default::default() } else { home.merge_work(self.replica, chunk, into) };
        let per_au = BLOCKS_PER_AU as u16;
        let mut left = budget.blocks.min(CHUNK_BLOCKS_MAX);
        let before = left;
        for blocks in work.copies.chunk_by(|a, b| a / per_au == b / per_au) {
            // One that waits for its repair is merged later, with its AU.
            if left == 0 || blocks.iter().any(|block| self.r.bad.contains(&(chunk, *block))) {
                continue;
            }
            left = left.saturating_sub(blocks.len());
            let runs = blocks.chunk_by(|a, b| a + 1 == *b);
            let reads = runs.map(|run| SectorRange::of_blocks(run[0], run.len() as u16));
            found.left.extend(reads.map(|range| (self.replica, chunk, range)));
        }
        budget.blocks -= before - left;
        if hidden || work.moves || left < before {
            budget.chunks -= 1;
            let (replica, from, heir) = (self.replica, chunk, self.heir);
            found.plan.push(Planned { replica, from, heir, copies: Vec::new(), clock: home.clock() });
        }
    }
}

impl Planned {
    /// Returns the merge as of the lineage of a round; `None`: the chunk has to wait.
    fn merge(mut self, r: &Replica, lineage: &Lineage) -> Option<ChunkMerge> {
        let dissolved = lineage.nearest_to(self.heir).filter(|d| d.generation == self.from.generation)?;
        let into = ChunkKey { generation: self.heir, ..self.from };
        if r.keeps_waiting(self.from, into) {
            return None;
        }
        self.copies.sort_unstable_by_key(|(block, _)| *block);
        Some(ChunkMerge {
            replica: self.replica,
            from: self.from,
            into,
            family: lineage.family(self.heir),
            hidden: self.from.index >= dissolved.through,
            marks: lineage.shows_others(into, self.from.generation),
            copies: self.copies,
            clock: self.clock,
        })
    }
}
