//! The destage controller: when a round begins, what it takes, and what follows its checkpoint.
//!
//! Steps: freeze (`begin_round`); complete the blocks that are covered in part (R2); wait until everything so far is
//! durable; hand whole blocks to home; log home's records as a checkpoint; flip: drop the frozen layers, advance the
//! checkpoint index (K). Each call of `step_round` does a bounded piece.
//!
//! Invariant: home gets a block only after the log alone could redo it. The checkpoint index moves only when its
//! checkpoint is durable.

use crate::ReadData;
use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home::Home;
use crate::home_api::{BlockData, ChunkDirty, Round, RoundState, Unmap};
use crate::lineage::Lineage;
use crate::log::Work;
use crate::overlay::{Cover, Layer, Source, block_range};
use crate::payload::Payload;
use crate::read::{Part, join};
use crate::replica::Replica;
use bytes::Bytes;
use layout::log::CheckpointPart;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use types::failpoint::{Point, pass};
use types::planted::{Bug, on};
use types::store::{Crcs, DecisionState};
use types::{ChunkKey, Index, ReplicaId, SectorRange, Time};

/// Most rounds of no replica in a row while the log opens no segment.
const EMPTY_ROUNDS_MAX: u32 = 2;

/// Step of the running round.
#[derive(Debug)]
pub(crate) enum RoundStep {
    Idle,
    Completing {
        run: Run,
        left: VecDeque<(ReplicaId, ChunkKey, u16)>,
        reading: usize,
    },
    /// The mark is queued behind everything that must be durable.
    Marking {
        run: Run,
    },
    HandingOver {
        run: Run,
        /// Chunks, and the block from which on each is to be handed over.
        left: VecDeque<(ReplicaId, ChunkKey, u16)>,
        chunks: Vec<ChunkDirty>,
    },
    /// Home writes the round.
    Home {
        run: Run,
    },
    /// The checkpoint records are queued.
    Recording {
        run: Run,
        begun: Option<u64>,
    },
}

impl RoundStep {
    /// Returns the replica that the running round installs.
    pub fn installs(&self) -> Option<ReplicaId> {
        match self {
            RoundStep::Home { run } | RoundStep::Recording { run, .. } => run.install,
            _ => None,
        }
    }

    /// Returns the lineage from which the running round completes blocks of this replica.
    pub fn lineage_of(&self, replica: ReplicaId) -> Option<&Lineage> {
        let RoundStep::Completing { run, .. } = self else { return None };
        run.lineages.get(&replica).map(|lineage| &**lineage)
    }

    /// Whether the running round moves the checkpoint index of this replica.
    pub fn takes(&self, replica: ReplicaId) -> bool {
        match self {
            RoundStep::Idle => false,
            RoundStep::Completing { run, .. }
            | RoundStep::Marking { run }
            | RoundStep::HandingOver { run, .. }
            | RoundStep::Home { run }
            | RoundStep::Recording { run, .. } => run.states.contains_key(&replica),
        }
    }
}

/// Parameters of a round.
#[derive(Debug)]
pub(crate) struct Run {
    states: BTreeMap<ReplicaId, RoundState>,
    /// Lineages as of the checkpoint indexes of these states, of the replicas that the round destages.
    lineages: BTreeMap<ReplicaId, Arc<Lineage>>,
    destroyed: BTreeSet<ReplicaId>,
    horizon: u64,
    /// Logged AUs that no entry needs once the checkpoint is durable, as of the mark: every record that voids their entries precedes it.
    released: BTreeMap<ReplicaId, Vec<u32>>,
    /// The round only replaces this replica's contents (R12).
    install: Option<ReplicaId>,
    /// The round takes only replicas of which it merges something.
    only_merges: bool,
    /// Log work that the group of the installed replica had queued, if its log begins with the installation.
    begins: Option<Vec<Work>>,
}

impl Run {
    /// Creates a round that installs and destages nothing: `horizon` stays as it was.
    pub fn install(state: RoundState, horizon: u64, begins: Option<Vec<Work>>) -> Run {
        let replica = state.decision.replica;
        let (states, destroyed) = (BTreeMap::from([(replica, state)]), BTreeSet::new());
        let (lineages, released) = (BTreeMap::new(), BTreeMap::new());
        Run { states, lineages, destroyed, horizon, released, install: Some(replica), only_merges: false, begins }
    }

    /// Returns the lineage as of the checkpoint index of a replica that the round destages.
    pub fn lineage_of(&self, replica: ReplicaId) -> Option<&Lineage> {
        self.states.get(&replica).and_then(|_| self.lineages.get(&replica)).map(|lineage| &**lineage)
    }

    /// Returns the checkpoint index that this replica gets.
    pub fn index_of(&self, replica: ReplicaId) -> Option<Index> {
        self.states.get(&replica).map(|state| state.decision.index)
    }

    fn begins(&self) -> Option<DecisionState> {
        let replica = self.begins.as_ref().and(self.install)?;
        Some(self.states[&replica].decision.clone())
    }

    /// Takes a replica out of the round. False when it was not in it.
    pub fn leave(&mut self, replica: ReplicaId) -> bool {
        self.states.remove(&replica).is_some()
    }
}

impl Engine {
    pub(crate) fn is_round_idle(&self) -> bool {
        matches!((&self.state, &self.destage.round), (State::Running, RoundStep::Idle))
    }

    /// Whether any replica is dirty, found by a full search; `maybe_dirty` is the cheap form.
    pub(crate) fn find_dirty(&self) -> bool {
        debug_assert!(self.replicas.adds_up(), "all changes of a replica are counted");
        self.dropped().next().is_some() || self.replicas.values().any(|r| r.destages() && r.is_dirty())
    }

    fn is_pressed(&self) -> bool {
        self.pressure().log >= self.config.round_pressure && (self.destage.maybe_dirty || self.frees_log())
    }

    /// Whether a round would free the tail: the last round did not pass it, or entries were applied since.
    fn frees_log(&self) -> bool {
        let log = self.log.as_ref().expect("a running engine has a log");
        let live = log.ring.live();
        let Some(tail) = live.get(self.tail.passed).filter(|_| self.tail.passed + 1 < live.len()) else { return false };
        self.destage.k_lags || tail.opened >= log.checkpoint_segment.min(self.destage.horizon)
    }

    /// Sets whether the OSD's loop holds rounds back. While it does, no round is wanted and none sets a deadline.
    pub fn hold_rounds(&mut self, held: bool) {
        self.destage.held = held;
    }

    /// Whether the OSD's loop should collect the decision states of all groups and call [`Engine::begin_round`].
    pub fn wants_round(&self, now: Time) -> bool {
        if self.destage.held || !self.is_round_idle() || now < self.destage.last_round + self.destage.gap() {
            return false;
        }
        self.wants_destage(now) || self.is_merge_round_due(now)
    }

    /// Whether all dirty replicas are due.
    fn wants_destage(&self, now: Time) -> bool {
        let since = self.destage.idle_since();
        self.is_pressed()
            || (now >= since + self.config.round_idle && self.destage.maybe_dirty)
            || (now >= self.freeing_at() && self.frees_space())
    }

    pub(crate) fn round_deadline(&self) -> Time {
        match &self.destage.round {
            RoundStep::Idle if self.destage.held => Time::NEVER,
            RoundStep::Idle if self.is_pressed() => self.destage.last_round + self.destage.gap(),
            RoundStep::Idle if self.frees_space() => self.freeing_at(),
            RoundStep::Idle if self.destage.maybe_dirty => {
                (self.destage.idle_since() + self.config.round_idle).max(self.destage.last_round + self.destage.gap())
            }
            // The next turn has a step to do.
            RoundStep::HandingOver { .. } => self.now,
            RoundStep::Home { .. } if self.home.as_ref().is_some_and(Home::wants_step) => self.now,
            // All reads of the step found zeros: no completion and no batch will start the next step.
            RoundStep::Completing { left, reading: 0, .. } if !left.is_empty() && !self.has_blocks_queued() => self.now,
            _ => Time::NEVER,
        }
    }

    fn has_blocks_queued(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.pending.iter().any(|w| matches!(w, Work::Block { .. })))
    }

    /// Begins a round over everything applied by now. `states` is exact as of each group's applied index (R1). A
    /// replica without a state keeps its checkpoint index and stays dirty.
    ///
    /// # Panics
    /// When a state's index is not the applied index here.
    pub fn begin_round(&mut self, now: Time, states: Vec<DecisionState>) {
        self.now = now;
        if !self.is_round_idle() {
            return;
        }
        let (mut kept, mut lineages) = (BTreeMap::new(), BTreeMap::new());
        // After a round that did not fit, merges come first: they take no space, and free some.
        let only_merges = self.is_merge_round_due(now) && (self.destage.refused || !self.wants_destage(now));
        // After a round that did not fit, a smaller share of the replicas is taken, in turn.
        let (before, from): (Vec<_>, Vec<_>) = states.into_iter().partition(|s| s.replica < self.destage.from);
        for decision in from.into_iter().chain(before) {
            if kept.len() == self.destage.replicas_max {
                break;
            }
            if self.needs_bad_block(decision.replica) {
                continue;
            }
            if !self.replicas.get(&decision.replica).is_some_and(Replica::destages) {
                continue;
            }
            let merges = self.forget_merged(decision.replica) || self.destage.merges.takes(decision.replica);
            let r = &self.replicas[&decision.replica];
            assert_eq!(decision.index, r.applied, "{} is not as of what was applied", decision.replica);
            let is_clean = decision.index == r.checkpoint.0 && r.overlay.active().is_empty();
            if !merges && (is_clean || only_merges) {
                continue;
            }
            let replica = decision.replica;
            lineages.insert(replica, r.lineage.clone());
            let as_it_is = self.state_at_home(replica).filter(|_| only_merges);
            kept.insert(replica, as_it_is.unwrap_or_else(|| self.freeze(decision)));
        }
        if self.brings_nothing(kept.is_empty()) {
            (self.destage.last_round, self.destage.last_destage) = (now, now);
            return self.destage.merges.give_up();
        }
        if on(Bug::LogReusedEarly) {
            let log = self.log.as_mut().expect("a running engine has a log");
            log.checkpoint_segment = log.ring.newest().map_or(0, |s| s.opened);
            self.find_freeable();
        }
        let (mut horizon, newest) = (self.destage.horizon, self.log.as_ref().and_then(|log| log.ring.newest()));
        if !only_merges {
            horizon = newest.map_or(0, |segment| segment.opened);
            self.destage.takes_all();
        }
        if let Some(log) = self.log.as_ref().filter(|_| !only_merges) {
            let used = log.ring.used_from(self.tail.freeable);
            self.destage.pacing.begin(now, used.saturating_sub(log.ring.newest_bytes()));
        }
        let left = kept.keys().flat_map(|id| self.partial_of(*id)).collect();
        let (destroyed, released) = (self.dropped().collect(), BTreeMap::new());
        let run =
            Run { states: kept, lineages, destroyed, horizon, released, install: None, only_merges, begins: None };
        self.destage.round = RoundStep::Completing { run, left, reading: 0 };
    }

    /// Freezes what a replica has applied; returns its state for the round.
    fn freeze(&mut self, decision: DecisionState) -> RoundState {
        let replica = decision.replica;
        let mut r = self.replicas.get_mut(&replica).expect("the round takes it");
        r.overlay.freeze();
        if on(Bug::LogReusedEarly) {
            r.checkpoint = (decision.index, decision.term);
        }
        let commit = r.written_hard_state.commit.max(decision.index);
        let dissolved = r.lineage.dissolved_bytes();
        let commits = r.written_hard_state.commit < decision.index;
        drop(r);
        if commits && !on(Bug::CommitNotLogged) {
            // R2: a commit at or above the new checkpoint index is durable before home is touched.
            self.queue(Work::Commit { replica, commit });
        }
        RoundState { decision, commit, dissolved }
    }

    /// Returns the state of a replica as of its checkpoint index, for a round that only merges. `None`: the tree has changed since, so what it
    /// merges may not be dissolved there.
    fn state_at_home(&self, replica: ReplicaId) -> Option<RoundState> {
        let r = self.replicas.get(&replica).filter(|r| r.tree_index <= r.checkpoint.0)?;
        let state = self.home.as_ref()?.state(replica).filter(|state| state.decision.index == r.checkpoint.0)?;
        Some(RoundState { dissolved: r.lineage.dissolved_bytes(), ..state.clone() })
    }

    /// Whether this round of no replica would free nothing. The first ones free the space and segments retired by the
    /// previous round. Another one only writes records, which would take the log's room from useful ones.
    fn brings_nothing(&mut self, empty: bool) -> bool {
        let newest = self.log.as_ref().and_then(|log| log.ring.newest()).map_or(0, |s| s.opened);
        let (in_segment, count) = self.destage.empty_rounds;
        self.destage.empty_rounds = match empty && self.dropped().next().is_none() {
            false => (newest, 0),
            true if in_segment != newest => (newest, 1),
            true => (newest, (count + 1).min(EMPTY_ROUNDS_MAX + 1)),
        };
        self.destage.empty_rounds.1 > EMPTY_ROUNDS_MAX
    }

    /// Returns the blocks of the frozen layer that are covered in part.
    fn partial_of(&self, replica: ReplicaId) -> Vec<(ReplicaId, ChunkKey, u16)> {
        let frozen = self.replicas[&replica].overlay.frozen();
        let chunks = frozen.into_iter().flat_map(|layer| &layer.chunks);
        chunks.flat_map(|(key, chunk)| chunk.partial().map(|block| (replica, *key, block))).collect()
    }

    /// Does one bounded step.
    pub(crate) fn step_round(&mut self) {
        match &self.destage.round {
            RoundStep::Completing { .. } => self.step_completing(),
            RoundStep::HandingOver { .. } => self.step_handing_over(),
            RoundStep::Home { .. } => {
                self.bound_round();
                let mut events = Vec::new();
                self.home.as_mut().expect("a running engine has a home").step_round(&mut self.ops, &mut events);
                self.home_events(events);
            }
            _ => {}
        }
    }

    /// Lets home have as many writes in flight as delay the log little. A log on a device of its own does not wait for them.
    fn bound_round(&mut self) {
        if self.disks.are_apart() {
            return;
        }
        let log = self.log.as_ref().expect("a running engine has a log");
        let is_idle = log.in_flight.is_none() && log.pending.is_empty();
        let idle = if is_idle { self.now.since(log.idle_since) } else { Duration::ZERO };
        let used = self.log_use().map_or(0.0, |(used, usable)| used as f32 / usable as f32);
        let home = self.home.as_mut().expect("a running engine has a home");
        home.bound_round(self.destage.yielding.ops(home.round_ops_limit(), used, idle));
    }

    fn step_completing(&mut self) {
        let log = self.log.as_ref().expect("a running engine has a log");
        let steps = self.config.steps;
        let first = log.pending.iter().take(steps.completed_queue_max);
        let queued = first.filter(|w| matches!(w, Work::Block { .. })).count();
        let mut room = steps.completed_queue_max.saturating_sub(queued);
        while room > 0 {
            let RoundStep::Completing { left, reading, .. } = &mut self.destage.round else { return };
            if *reading >= self.config.completing_max() {
                return;
            }
            let Some((replica, chunk, block)) = left.pop_front() else { break };
            *reading += 1;
            room -= 1;
            self.read_for_completion(replica, chunk, block_range(block));
        }
        let RoundStep::Completing { left, reading, .. } = &self.destage.round else { return };
        if left.is_empty() && *reading == 0 {
            let RoundStep::Completing { mut run, .. } = std::mem::replace(&mut self.destage.round, RoundStep::Idle)
            else {
                unreachable!("seen above")
            };
            run.released = self.unnamed(&run);
            self.destage.round = RoundStep::Marking { run };
            if on(Bug::HomeBeforeDurable) {
                return self.round_marked();
            }
            self.queue(Work::RoundMark);
        }
    }

    /// Takes a block that was read whole for completion.
    pub(crate) fn block_read(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, data: ReadData) {
        let RoundStep::Completing { run, reading, .. } = &mut self.destage.round else {
            panic!("a completion outside its phase")
        };
        *reading -= 1;
        let index = run.states.get(&replica).map(|s| s.decision.index);
        let (Some(mut r), Some(index)) = (self.replicas.get_mut(&replica), index) else { return };
        if r.has_failed() {
            return;
        }
        let payload = match data {
            ReadData::Zeros => None,
            ReadData::Bytes { crcs, payload } => {
                assert_eq!((crcs.len(), payload.len()), (1, range.len_bytes()), "a block is read whole");
                Some(Arc::new(Payload::new(payload, Crcs { start: range.start, values: crcs })))
            }
        };
        r.overlay.complete(chunk, range, payload.clone());
        drop(r);
        if let Some(payload) = payload.filter(|_| !on(Bug::CompletedBlockNotLogged)) {
            self.stats.completed_blocks += 1;
            let block = (range.start / types::units::SECTORS_PER_BLOCK) as u16;
            self.queue(Work::Block { replica, chunk, block, index, payload });
        }
    }

    /// Notes that a block could not be read: its replica has left the round or is gone, and the round goes on without
    /// it.
    pub(crate) fn block_unreadable(&mut self) {
        if let RoundStep::Completing { reading, .. } = &mut self.destage.round {
            *reading -= 1;
        }
    }

    /// Begins the hand-over: everything that the round needs in the log is durable.
    pub(crate) fn round_marked(&mut self) {
        let RoundStep::Marking { run } = std::mem::replace(&mut self.destage.round, RoundStep::Idle) else {
            panic!("a mark outside its phase")
        };
        let mut left = VecDeque::new();
        for id in run.states.keys() {
            let frozen = self.replicas.get(id).filter(|r| !r.has_failed()).and_then(|r| r.overlay.frozen());
            left.extend(frozen.into_iter().flat_map(|layer| layer.chunks.keys()).map(|chunk| (*id, *chunk, 0)));
        }
        self.destage.round = RoundStep::HandingOver { run, left, chunks: Vec::new() };
    }

    fn step_handing_over(&mut self) {
        let mut budget = self.config.steps.round_blocks;
        while budget > 0 {
            let RoundStep::HandingOver { run, left, chunks } = &mut self.destage.round else { return };
            let Some((replica, chunk, from)) = left.pop_front() else { return self.hand_over() };
            let r = self.replicas.get(&replica).filter(|r| !r.has_failed());
            let Some(frozen) = r.and_then(|r| r.overlay.frozen()) else { continue };
            if from == 0 {
                let adopts = frozen.chunks[&chunk].adoptable().collect();
                let lineage = &run.lineages[&replica];
                let (family, marks) = (lineage.family(chunk.generation), lineage.shows_older(chunk));
                let older = if frozen.hides(chunk) { Vec::new() } else { lineage.older_of(chunk).collect() };
                chunks.push(ChunkDirty { replica, chunk, family, marks, older, blocks: Vec::new(), adopts });
            }
            let dirty = chunks.last_mut().expect("its first part has begun it");
            let before = dirty.blocks.len();
            match whole_blocks(frozen, chunk, from, budget, &mut dirty.blocks) {
                Ok(next) => {
                    budget -= dirty.blocks.len() - before;
                    next.into_iter().for_each(|from| left.push_front((replica, chunk, from)));
                }
                Err(at) => self.fail(replica, format!("sectors {at} of {chunk} were damaged in memory")),
            }
        }
    }

    fn hand_over(&mut self) {
        let RoundStep::HandingOver { mut run, mut chunks, .. } =
            std::mem::replace(&mut self.destage.round, RoundStep::Idle)
        else {
            unreachable!("the caller saw it")
        };
        // Replicas destroyed or failed since the freeze leave the round.
        let stays = |id: &ReplicaId| self.replicas.get(id).is_some_and(|r| !r.has_failed());
        // Their checkpoint index does not move.
        run.released.retain(|id, _| !run.states.contains_key(id) || stays(id));
        run.states.retain(|id, _| stays(id));
        chunks.retain(|c| run.states.contains_key(&c.replica));
        let mut unmaps = Vec::new();
        for replica in run.states.keys() {
            let frozen = self.replicas[replica].overlay.frozen();
            let of = frozen.into_iter().flat_map(|layer| &layer.unmaps);
            unmaps.extend(of.map(|(generation, from)| Unmap {
                replica: *replica,
                generation: *generation,
                from_chunk: *from,
            }));
        }
        for (id, state) in run.states.iter_mut().filter(|_| on(Bug::StampAtRoundEnd)) {
            (state.decision.index, state.commit) = (self.replicas[id].applied, self.replicas[id].applied);
        }
        let states = run.states.values().cloned().collect();
        let destroyed = run.destroyed.iter().copied().collect();
        let (installs, released) = (Vec::new(), std::mem::take(&mut run.released).into_iter().collect());
        let merges = self.take_merges(&run);
        self.destage.round = RoundStep::Home { run };
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        home.begin_round(
            self.now,
            Round { states, unmaps, chunks, merges, destroyed, installs, released },
            &mut events,
        );
        self.home_events(events);
    }

    /// Logs home's records as the checkpoint.
    pub(crate) fn round_ready(&mut self, mut records: Vec<Bytes>) {
        let RoundStep::Home { run } = std::mem::replace(&mut self.destage.round, RoundStep::Idle) else {
            panic!("records outside their phase")
        };
        if records.is_empty() {
            records.push(Bytes::new());
        }
        let log = self.log.as_mut().expect("a running engine has a log");
        log.checkpoint_id += 1;
        let (id, parts) = (log.checkpoint_id, records.len() as u32);
        let begins = run.begins();
        for (part, bytes) in (0..).zip(records) {
            let begins = begins.clone().filter(|_| part + 1 == parts);
            self.queue(Work::Checkpoint { part: CheckpointPart { id, part, parts, bytes }, begins });
        }
        self.destage.round = RoundStep::Recording { run, begun: None };
    }

    /// Gives up a round that does not fit: its layers thaw, and the next try takes fewer replicas.
    pub(crate) fn round_full(&mut self) {
        let RoundStep::Home { run } = std::mem::replace(&mut self.destage.round, RoundStep::Idle) else {
            panic!("a verdict outside its phase")
        };
        self.destage.merges.round_full();
        self.destage.pacing.end(self.now, false);
        if let Some(replica) = run.install {
            return self.install_full(replica, run.begins);
        }
        for id in run.states.keys() {
            let Some(mut r) = self.replicas.get_mut(id) else { continue };
            r.overlay.thaw();
        }
        run.states.keys().for_each(|id| self.judge_all_space(*id));
        // Contents of removed replicas are dropped first, then staged blocks of streams; only without both the device counts
        // as full.
        let stuck = !(self.drop_relics() || self.evict_staged());
        self.destage.did_not_fit(self.now, run.states.len(), run.states.keys().next().copied(), stuck);
    }

    /// Notes the segment in which the first part of the checkpoint is durable.
    pub(crate) fn checkpoint_begun(&mut self, segment: u64) {
        let RoundStep::Recording { begun, .. } = &mut self.destage.round else {
            panic!("a checkpoint outside its phase")
        };
        *begun = Some(segment);
    }

    /// Flips: the checkpoint is durable.
    pub(crate) fn checkpointed(&mut self, id: u64) {
        let RoundStep::Recording { run, begun } = std::mem::replace(&mut self.destage.round, RoundStep::Idle) else {
            panic!("a checkpoint outside its phase")
        };
        pass(if run.install.is_some() { Point::InstallDurable } else { Point::CheckpointDurable });
        let log = self.log.as_mut().expect("a running engine has a log");
        assert_eq!(id, log.checkpoint_id, "one checkpoint at a time");
        log.checkpoint_segment = begun.expect("the first part came before the last");
        self.home.as_mut().expect("a running engine has a home").round_committed(self.now);
        let (mut advanced, mut rebased) = (Vec::new(), Vec::new());
        for (replica, state) in run.states {
            if run.install.is_some() {
                advanced.push((replica, state.decision.index));
                self.installed(state, run.begins.is_some());
                continue;
            }
            let Some(mut r) = self.replicas.get_mut(&replica) else { continue };
            assert!(state.decision.index >= r.checkpoint.0, "K of {replica} goes back");
            r.checkpoint = (state.decision.index, state.decision.term);
            (r.shows, r.first_decision) = (state.commit, Bytes::new());
            let frozen = r.overlay.take_frozen();
            rebased.extend(frozen.iter().flat_map(|layer| r.overlay.over(layer)).map(|chunk| (replica, chunk)));
            frozen.into_iter().for_each(|layer| self.drops.add_layer(layer));
            // Their heirs inherit less, or more, than while dissolved generations had blocks in the frozen layer.
            if r.lineage.has_dissolved() {
                rebased.extend(r.overlay.active().chunks.keys().map(|chunk| (replica, *chunk)));
            }
            drop(r);
            advanced.push((replica, state.decision.index));
            self.forget_bad_of_gone(replica);
        }
        self.destage.round_releases = false;
        rebased.extend(self.merges_committed());
        rebased.into_iter().for_each(|(replica, chunk)| self.judge_space(replica, chunk));
        for gone in run.destroyed {
            self.removed.destroyed.remove(&gone);
        }
        self.forget_taken_relics();
        self.prune_tombstones();
        self.destage.pacing.end(self.now, run.install.is_none() && !run.only_merges);
        self.destage.horizon = run.horizon;
        self.destage.maybe_dirty = self.find_dirty();
        self.destage.last_round = self.now;
        self.stats.rounds += 1;
        match run.install {
            Some(replica) => self.note_heirs(replica),
            None if run.only_merges => {}
            None => (self.destage.replicas_max, self.destage.refused) = (usize::MAX, false),
        }
        match run.only_merges {
            // It has dropped what was destroyed.
            true => self.destage.releasing &= self.destage.maybe_dirty,
            false => self.destage.last_destage = self.now,
        }
        self.find_freeable();
        self.copy_forward();
        self.reclaim();
        self.events.push(EngineEvent::Checkpointed(advanced));
    }
}

/// Appends up to `max` dirty blocks of one chunk from `from` on, all of them whole by now. Returns the next one.
fn whole_blocks(
    frozen: &Layer,
    chunk: ChunkKey,
    from: u16,
    max: usize,
    blocks: &mut Vec<(u16, BlockData)>,
) -> Result<Option<u16>, SectorRange> {
    let layer = &frozen.chunks[&chunk];
    let end = blocks.len() + max;
    for (block, cover) in layer.blocks_from(from) {
        if blocks.len() == end {
            return Ok(Some(block));
        }
        let range = block_range(block);
        let data = match cover {
            Cover::Zeros => BlockData::Zero,
            Cover::Data(payload) => {
                let crc = payload.crc_of(range).ok_or(range)?;
                BlockData::Bytes { buf: payload.slice(range), crc }
            }
            Cover::Parts => {
                let parts = layer.lookup(range).into_iter().map(|f| match f.source {
                    Source::Data(payload) => (f.range, Part::Data(payload)),
                    Source::Zeros => (f.range, Part::Zeros),
                    Source::Open | Source::Hidden | Source::Home(_) => {
                        panic!("block {block} of {chunk} is not complete")
                    }
                });
                match join(range, parts.collect())? {
                    ReadData::Zeros => BlockData::Zero,
                    ReadData::Bytes { crcs, payload } => BlockData::Bytes { buf: payload, crc: crcs[0] },
                }
            }
        };
        blocks.push((block, data));
    }
    Ok(None)
}
