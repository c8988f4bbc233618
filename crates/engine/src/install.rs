//! Installation: a stream's contents become those of a replica that is being filled (R12, R16).
//!
//! The OSD's loop stages blocks, in any number of calls, and then asks for the installation. It begins when no round runs, and is
//! a round of its own: home drops the old contents and adopts the staged ones, as of the checkpoint index at which the replica's
//! log begins. A staged block may show later entries. These are applied here when the installation begins, so the overlay covers what
//! they have changed; and the commit index that is durable with the checkpoint makes a mount apply them again.
//!
//! A replica whose present log counts is installed exactly as of an index, and its log begins there with the checkpoint of that
//! round. That is the way of a PG of which no majority is known to have all contents: until the end the old contents count.
//!
//! Invariant: until the checkpoint of that round is durable, the replica is what it was; from then on it is whole.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home_api::{BlockData, ChunkDirty, Round, RoundState};
use crate::lineage::Lineage;
use crate::log::{Log, Work};
use crate::replica::{Replica, ReplicaState, Stages};
use crate::replicas::ReplicaMut;
use crate::round::{RoundStep, Run};
use std::collections::VecDeque;
use std::sync::Arc;
use types::failpoint::{Point, pass};
use types::planted::{Bug, on};
use types::store::DecisionState;
use types::tree::Tree;
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, CrcList, GenerationId, IoBuf, ReplicaId, SectorRange};

/// An installation that waits for its round.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    replica: ReplicaId,
    /// The log begins at this state with the installation.
    begins: Option<DecisionState>,
}

/// Orders that concern the contents of streams and wait for the running round (R12, R16).
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Replicas whose log is to begin behind the index of a stream.
    pub fills: VecDeque<DecisionState>,
    pub installs: VecDeque<Install>,
}

impl Engine {
    /// Whether a destage round is running: from its begin to its flip.
    pub fn is_round_running(&self) -> bool {
        !matches!(self.destage.round, RoundStep::Idle)
    }

    /// Whether the running round replaces a replica's contents with those of a stream.
    pub fn is_installing_for_tools(&self) -> bool {
        self.destage.round.installs().is_some()
    }

    /// Returns the replica whose installation was requested and has not begun.
    pub fn awaits_install_for_tools(&self) -> Option<ReplicaId> {
        self.streams.installs.front().map(|install| install.replica)
    }

    /// Stages whole blocks beside the contents of the replica: `payload` with one CRC a block, or zeros. Ends with
    /// [`EngineEvent::Staged`]. False: there is no room, or the blocks of the last stream are not freed yet.
    ///
    /// # Panics
    /// When the range is not made of whole blocks, or the payload is not the range's.
    pub fn stage(
        &mut self,
        token: u64,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        payload: Option<(IoBuf, CrcList)>,
    ) -> bool {
        let aligned = range.start.is_multiple_of(SECTORS_PER_BLOCK) && range.count.is_multiple_of(SECTORS_PER_BLOCK);
        assert!(aligned, "{range} is not made of blocks");
        let usable = self
            .replicas
            .get(&replica)
            .is_some_and(|r| r.born && matches!(r.state, ReplicaState::Running | ReplicaState::Filling { .. }));
        if !usable || !matches!(self.state, State::Running) {
            return false;
        }
        let numbers = (range.start / SECTORS_PER_BLOCK) as u16..(range.end() / SECTORS_PER_BLOCK) as u16;
        let blocks = match payload {
            None => numbers.map(|block| (block, BlockData::Zero)).collect(),
            Some((payload, crcs)) => {
                assert_eq!((payload.len(), crcs.len()), (range.len_bytes(), range.fragment_count()), "{range}");
                let slice = |n: usize| payload.slice(n * BLOCK as usize..(n + 1) * BLOCK as usize);
                let block = |(n, (block, crc))| (block, BlockData::Bytes { buf: slice(n), crc });
                numbers.zip(crcs).enumerate().map(block).collect()
            }
        };
        let mut events = Vec::new();
        let (family, marks) = self.replicas.get_mut(&replica).expect("it is usable").stages_as(chunk);
        let home = self.home.as_mut().expect("a running engine has a home");
        let adopts = Vec::new();
        let dirty = ChunkDirty { replica, chunk, family, marks, older: Vec::new(), blocks, adopts };
        let staged = home.stage(token, dirty, &mut self.ops, &mut events);
        let is_full = !staged && home.is_staging_full();
        self.home_events(events);
        if is_full {
            self.drop_relics();
        }
        staged
    }

    /// Drops the staged blocks of the replica, unless it is being installed. An installation that has not begun is
    /// refused.
    pub fn unstage(&mut self, replica: ReplicaId) {
        if let Some(home) = &mut self.home {
            home.unstage(replica);
        }
        self.replicas.get_mut(&replica).into_iter().for_each(|mut r| r.stages = Stages::default());
        self.look_for_merges();
        if self.cancel_install(replica) {
            self.events.push(EngineEvent::InstallRefused { replica });
        }
    }

    /// Cancels an installation that has not begun: without the staged blocks it would leave an empty replica. True when
    /// there was one.
    pub(crate) fn cancel_install(&mut self, replica: ReplicaId) -> bool {
        let count = self.streams.installs.len();
        self.streams.installs.retain(|install| install.replica != replica);
        self.streams.installs.len() < count
    }

    /// Makes the staged blocks the contents of a replica that is being filled, as of its checkpoint index. All of them were reported
    /// staged, and what they show of later entries is applied here: the overlay lies above it. Ends with
    /// [`EngineEvent::Installed`] or [`EngineEvent::InstallRefused`]; the group goes on meanwhile.
    pub fn install(&mut self, replica: ReplicaId) {
        self.streams.installs.push_back(Install { replica, begins: None });
    }

    /// Makes the staged blocks the contents of a replica, exactly as of `decision.index`, and has its log begin there; until then its
    /// present log counts. The group neither appends nor applies until [`EngineEvent::Begun`] or [`EngineEvent::InstallRefused`].
    pub fn install_as_of(&mut self, decision: DecisionState) {
        self.streams.installs.push_back(Install { replica: decision.replica, begins: Some(decision) });
    }

    /// Begins the next installation, unless a round runs or work of its replica is queued for the log.
    pub(crate) fn begin_install(&mut self) {
        if !matches!(self.destage.round, RoundStep::Idle) {
            return;
        }
        let Some(Install { replica, begins }) = self.streams.installs.front().cloned() else { return };
        if begins.is_some() && self.log.as_ref().is_some_and(|log| log.has_work_of(replica)) {
            return;
        }
        self.streams.installs.pop_front();
        let spoiled = self.home.as_ref().is_some_and(|home| home.is_spoiled(replica));
        let first = self.replicas.get(&replica).map(|r| &r.first_decision);
        let tree = begins.as_ref().map(|decision| &decision.bytes).or(first).map(|bytes| Tree::of_decision(bytes));
        let Some(Ok(tree)) = tree else { return self.refuse_install(replica) };
        let fits = |r: &ReplicaMut<'_>| match (&begins, &r.state) {
            _ if !r.stages.fit(&tree) => false,
            (None, _) => r.is_filling() && r.fills_from.is_some(),
            (Some(decision), ReplicaState::Running) => decision.index > r.hard_state.commit,
            // It has kept its log until now: nothing in it is above the new beginning, or the log goes on.
            (Some(decision), ReplicaState::Filling { .. }) => {
                decision.index > r.applied && decision.index >= r.log.last() || r.begins_later(decision)
            }
            _ => false,
        };
        let usable = !spoiled && !self.is_beginning(replica);
        let Some(mut r) = self.replicas.get_mut(&replica).filter(fits).filter(|_| usable) else {
            return self.refuse_install(replica);
        };
        pass(Point::InstallBegun);
        r.stages = Stages::default();
        let (index, term) = r.checkpoint;
        let bytes = r.first_decision.clone();
        let (decision, commit) = match &begins {
            Some(decision) => (decision.clone(), decision.index),
            // The staged blocks show entries up to the applied index: a mount applies them before anything is read.
            None => (DecisionState { replica, index, term, bytes }, r.written_hard_state.commit.max(r.applied)),
        };
        let is_older = begins.is_none() && r.written_hard_state.commit < commit;
        let fills = r.is_filling();
        drop(r);
        let aside = match begins {
            None => Vec::new(),
            Some(_) => {
                if !fills {
                    let overlay = self.take_overlay(replica);
                    let mut r = self.replicas.get_mut(&replica).expect("it was just there");
                    r.bad.clear();
                    r.set_older(overlay);
                }
                self.log.as_mut().expect("a running engine has a log").set_aside(replica)
            }
        };
        if is_older {
            self.queue(Work::Commit { replica, commit });
        }
        let home = self.home.as_mut().expect("a running engine has a home");
        // The others are of generations that have ended since, or that its log begins.
        home.retain_staged(replica, |generation| tree.get(generation).is_some());
        let base = home.base_of(replica);
        // The record precedes the checkpoint that empties the base.
        base.into_iter().for_each(|base| self.end_past(base));
        // A stream brings the blocks of live generations.
        let round = RoundState { decision, commit, dissolved: bytes::Bytes::new() };
        let begins = begins.is_some().then_some(aside);
        self.destage.round = RoundStep::Home { run: Run::install(round.clone(), self.destage.horizon, begins) };
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        let round = Round { states: vec![round], installs: vec![replica], ..Round::default() };
        home.begin_round(self.now, round, &mut events);
        self.home_events(events);
    }

    fn refuse_install(&mut self, replica: ReplicaId) {
        self.unstage(replica);
        self.events.push(EngineEvent::InstallRefused { replica });
    }

    /// Whether zeros that are staged for this chunk hide blocks of older generations.
    pub fn stages_marks(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.replicas.get(&replica).is_some_and(|r| r.stage_lineage().shows_older(chunk))
    }

    /// Returns the family that a chunk has in the contents that are staged for the replica.
    pub(crate) fn staged_family(&mut self, replica: ReplicaId, chunk: ChunkKey) -> Option<GenerationId> {
        self.replicas.get_mut(&replica).map(|mut r| r.stages_as(chunk).0)
    }

    /// Takes the generations of the next blocks from this decision state of the leader. False: it is none.
    pub fn stage_as_of(&mut self, replica: ReplicaId, decision: &[u8]) -> bool {
        let lineage = Lineage::decode(decision, &[]).ok().map(Arc::new);
        let is_one = lineage.is_some();
        if let (Some(mut r), Some(lineage)) = (self.replicas.get_mut(&replica), lineage) {
            r.stages.lineage = Some(lineage);
        }
        is_one
    }

    /// Gives up an installation that does not fit the device. `aside`: the old contents of a replica that was not being filled stay,
    /// and its group's work is queued again.
    pub(crate) fn install_full(&mut self, replica: ReplicaId, aside: Option<Vec<Work>>) {
        if let Some(aside) = aside {
            let log = self.log.as_mut().expect("a running engine has a log");
            aside.into_iter().rev().for_each(|work| log.pending.push_front(work));
            // One that was being filled goes on so.
            if let Some(mut r) = self.replicas.get_mut(&replica).filter(|r| r.is_filling() && r.fills_from.is_none()) {
                let ReplicaState::Filling { older, .. } = std::mem::replace(&mut r.state, ReplicaState::Running) else {
                    unreachable!("seen above")
                };
                (r.overlay, r.lineage) = (older.overlay, older.lineage);
            }
        }
        self.copy_forward();
        self.unstage(replica);
        self.drop_relics();
        self.events.push(EngineEvent::InstallRefused { replica });
    }

    /// Completes an installation whose checkpoint is durable: the replica has the new contents, which show entries up to the commit
    /// index of `state`. `begun`: its log began with it.
    pub(crate) fn installed(&mut self, state: RoundState, begun: bool) {
        let RoundState { decision, commit, .. } = state;
        let Some(mut r) = self.replicas.get_mut(&decision.replica) else { return };
        (r.fills_from, r.first_decision, r.shows) = (None, bytes::Bytes::new(), commit);
        if r.has_failed() {
            return;
        }
        r.turn(ReplicaState::Running);
        drop(r);
        // A round can free the log of it now.
        self.destage.k_lags = true;
        let replica = decision.replica;
        match begun {
            true => {
                // Entries of a log that was filled before lie below the new contents.
                drop(self.take_overlay(replica));
                self.log_begun(decision);
            }
            false => self.events.push(EngineEvent::Installed { replica }),
        }
        self.judge_all_space(replica);
    }

    /// Drops staged blocks for a round that did not fit into home. False when there were none.
    pub(crate) fn evict_staged(&mut self) -> bool {
        let home = self.home.as_mut().expect("a running engine has a home");
        let evicted = home.evict_staged();
        let some = !evicted.is_empty();
        for replica in evicted {
            let is_awaited = self.streams.installs.iter().any(|install| install.replica == replica);
            let awaited = is_awaited && !on(Bug::InstallOfNothing) && self.cancel_install(replica);
            self.events.push(match awaited {
                true => EngineEvent::InstallRefused { replica },
                false => EngineEvent::Unstaged { replica },
            });
        }
        some
    }
}

impl Stages {
    /// Whether what is staged is right for this tree: blocks of a generation that was not known count for a first one alone. A tree that
    /// lacks the generation gets none of them.
    fn fit(&self, tree: &Tree) -> bool {
        self.alone.iter().all(|id| tree.get(*id).is_none_or(|node| node.family == *id))
    }
}

impl Replica {
    /// Returns the generations as of the point of the stream that fills the replica.
    fn stage_lineage(&self) -> Arc<Lineage> {
        if let Some(lineage) = &self.stages.lineage {
            return lineage.clone();
        }
        let begun = self.fills_from.map(|_| Lineage::decode(&self.first_decision, &[]));
        begun.and_then(Result::ok).map_or_else(|| self.lineage.clone(), Arc::new)
    }

    /// Returns the family of a chunk that is staged, and whether its zeros are marks.
    fn stages_as(&mut self, chunk: ChunkKey) -> (GenerationId, bool) {
        let lineage = self.stage_lineage();
        if lineage.node(chunk.generation).is_none() {
            self.stages.alone.insert(chunk.generation);
        }
        let place = (lineage.family(chunk.generation), lineage.shows_older(chunk));
        self.stages.lineage = Some(lineage);
        place
    }
}

impl Log {
    /// Takes the queued work of this replica's group out of the queue, in its order, and drops copies of its entries.
    /// The segments that hold these entries stay until the installation ends.
    fn set_aside(&mut self, id: ReplicaId) -> Vec<Work> {
        self.pending.retain(|work| !matches!(work, Work::Copy { replica, .. } if *replica == id));
        let of = |work: &Work| matches!(work, Work::Persist { replica, .. } if *replica == id);
        let (aside, rest): (VecDeque<_>, _) = std::mem::take(&mut self.pending).into_iter().partition(of);
        self.pending = rest;
        aside.into()
    }

    /// Whether the queue holds work of this replica other than its group's entries and copies.
    fn has_work_of(&self, id: ReplicaId) -> bool {
        // A batch in flight precedes all work queued now, so only queued work counts.
        self.pending.iter().any(|work| match work {
            Work::Commit { replica, .. }
            | Work::Create { replica }
            | Work::Destroy { replica }
            | Work::Failed { replica, .. }
            | Work::Block { replica, .. } => *replica == id,
            _ => false,
        })
    }
}
