//! Installation: a stream's contents replace those of a replica as a whole (R12).
//!
//! The OSD's loop stages blocks, in any number of calls, and then asks for the installation as of the snapshot index
//! (S). It begins when no round runs and the log queue holds no work of the replica but its group's entries and copies.
//! Home then gets a round of its own. The batch that ends the round's checkpoint also carries `Reset{S}` and a hard
//! state with commit S.
//!
//! Entries of the replica's group are set aside: they may wait for room that only the installation makes, and the reset
//! would remove them. Copies of the replica's entries are dropped. No round moves the checkpoint index of a replica
//! that waits for its installation. So a log that is more than half full copies that replica's entries forward without
//! end, and the queue is never without such a copy.
//!
//! Invariant: until that batch is durable a crash restores the old replica, whole; from then on the new one. There is
//! no state between, so no record on the device says "installing".

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home_api::{BlockData, Round, RoundState};
use crate::log::{ReplicaLog, Work};
use crate::replica::{Replica, ReplicaState};
use crate::round::{RoundStep, Run};
use std::collections::VecDeque;
use types::failpoint::{Point, pass};
use types::planted::{Bug, on};
use types::store::{DecisionState, HardState, Recovered};
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, Index, IoBuf, ReplicaId, SectorRange, Term};

impl Engine {
    /// Whether a destage round is running: from its begin to its flip.
    pub fn is_round_running(&self) -> bool {
        !matches!(self.round, RoundStep::Idle)
    }

    /// Whether the running round replaces a replica's contents with those of a stream.
    pub fn is_installing_for_tools(&self) -> bool {
        self.replicas.values().any(Replica::is_installing)
    }

    /// Returns the replica whose installation was requested and has not begun.
    pub fn awaits_install_for_tools(&self) -> Option<ReplicaId> {
        self.installs.front().map(|decision| decision.replica)
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
        payload: Option<(IoBuf, Vec<u32>)>,
    ) -> bool {
        let aligned = range.start.is_multiple_of(SECTORS_PER_BLOCK) && range.count.is_multiple_of(SECTORS_PER_BLOCK);
        assert!(aligned, "{range} is not made of blocks");
        let usable = self.replicas.get(&replica).is_some_and(|r| matches!(r.state, ReplicaState::Running) && r.born);
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
        let home = self.home.as_mut().expect("a running engine has a home");
        let staged = home.stage(token, replica, chunk, blocks, &mut self.ops, &mut events);
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
        if self.cancel_install(replica) {
            self.events.push(EngineEvent::InstallRefused { replica });
        }
    }

    /// Cancels an installation that has not begun: without the staged blocks it would leave an empty replica. True when
    /// there was one.
    fn cancel_install(&mut self, replica: ReplicaId) -> bool {
        let count = self.installs.len();
        self.installs.retain(|decision| decision.replica != replica);
        self.installs.len() < count
    }

    /// Makes the staged blocks the replica's contents, exactly as of `decision.index`. All of them were reported
    /// staged. The replica's group neither appends nor applies until [`EngineEvent::Installed`] or
    /// [`EngineEvent::InstallRefused`].
    pub fn install(&mut self, decision: DecisionState) {
        self.installs.push_back(decision);
    }

    /// Begins the next installation, unless a round runs or work of its replica is queued for the log.
    pub(crate) fn begin_install(&mut self) {
        if !matches!(self.round, RoundStep::Idle) {
            return;
        }
        let Some(decision) = self.installs.front() else { return };
        let replica = decision.replica;
        if self.log.as_ref().is_some_and(|log| log.has_work_of(replica)) {
            return;
        }
        let decision = self.installs.pop_front().expect("it has a front");
        let spoiled = self.home.as_ref().is_some_and(|home| home.is_spoiled(replica));
        let usable = |r: &&mut Replica| {
            matches!(r.state, ReplicaState::Running) && decision.index > r.hard_state.commit && !spoiled
        };
        let Some(r) = self.replicas.get_mut(&replica).filter(usable) else {
            self.unstage(replica);
            return self.events.push(EngineEvent::InstallRefused { replica });
        };
        assert!(r.overlay.frozen().is_none(), "no round is running");
        assert!(decision.index > r.applied && r.applied >= r.checkpoint.0, "{replica} goes back to {}", decision.index);
        pass(Point::InstallBegun);
        r.turn(ReplicaState::Installing);
        // The record precedes the checkpoint that empties the base.
        let base = self.home.as_ref().and_then(|home| home.base_of(replica));
        base.into_iter().for_each(|base| self.end_past(base));
        let commit = decision.index;
        let round = RoundState { decision, commit };
        let aside = self.log.as_mut().expect("a running engine has a log").set_aside(replica);
        self.round = RoundStep::Home { run: Run::install(round.clone(), self.horizon, aside) };
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        let round = Round { states: vec![round], installs: vec![replica], ..Round::default() };
        home.begin_round(self.now, round, &mut self.ops, &mut events);
        self.home_events(events);
    }

    /// Gives up an installation that does not fit the device: the old contents stay, and its group's work is queued
    /// again.
    pub(crate) fn install_full(&mut self, replica: ReplicaId, aside: Vec<Work>) {
        let log = self.log.as_mut().expect("a running engine has a log");
        aside.into_iter().rev().for_each(|work| log.pending.push_front(work));
        if let Some(r) = self.replicas.get_mut(&replica).filter(|r| r.is_installing()) {
            r.turn(ReplicaState::Running);
        }
        self.copy_forward();
        self.unstage(replica);
        self.drop_relics();
        self.events.push(EngineEvent::InstallRefused { replica });
    }

    /// Completes an installation whose checkpoint is durable: the replica has the new contents.
    pub(crate) fn installed(&mut self, state: RoundState) {
        let decision = state.decision;
        let Some(r) = self.replicas.get_mut(&decision.replica) else { return };
        let overlay = std::mem::take(&mut r.overlay);
        self.overlay_bytes -= overlay.bytes();
        self.partial_blocks -= overlay.partial_blocks();
        r.bad.clear();
        r.applied = decision.index;
        r.checkpoint = (decision.index, decision.term);
        r.first_decision = bytes::Bytes::new();
        if r.has_failed() {
            return;
        }
        r.turn(ReplicaState::Running);
        assert_eq!((r.log.first().0, r.log.len()), (decision.index.0 + 1, 0), "the log was reset with the batch");
        let (identity, hard_state) = (r.identity.clone(), r.hard_state);
        let before = (decision.index, decision.term);
        let recovered = Recovered {
            identity,
            hard_state,
            checkpoint: decision,
            before,
            entries: Vec::new(),
            lost: Vec::new(),
            failure: None,
        };
        self.events.push(EngineEvent::Installed(Box::new(recovered)));
    }

    /// Drops staged blocks for a round that did not fit into home. False when there were none.
    pub(crate) fn evict_staged(&mut self) -> bool {
        let home = self.home.as_mut().expect("a running engine has a home");
        let evicted = home.evict_staged();
        let some = !evicted.is_empty();
        for replica in evicted {
            let awaited = !on(Bug::InstallOfNothing) && self.cancel_install(replica);
            self.events.push(match awaited {
                true => EngineEvent::InstallRefused { replica },
                false => EngineEvent::Unstaged { replica },
            });
        }
        some
    }
}

/// Reset of a replica's log, in the batch that ends an installation's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reset {
    pub replica: ReplicaId,
    pub index: Index,
    pub term: Term,
}

impl Reset {
    /// Resets the replica while the batch is built: from here on no entry of the old log can reach the new one. Raising
    /// the term forgets no vote that was cast in it; a vote of a lower term does not bind any more.
    pub fn take_effect(self, r: &mut Replica) -> HardState {
        r.log = ReplicaLog::new(Index(self.index.0 + 1));
        r.replaced.clear();
        let mut next = HardState { commit: self.index, ..r.hard_state };
        if next.term < self.term || on(Bug::InstallForgetsVote) {
            (next.term, next.vote) = (self.term.max(next.term), None);
        }
        r.hard_state = next;
        r.written_hard_state = next;
        next
    }
}

impl crate::log::Log {
    /// Takes the queued work of this replica's group out of the queue, in its order, and drops copies of its entries.
    /// The segments that hold these entries stay until the installation ends.
    pub(crate) fn set_aside(&mut self, id: ReplicaId) -> Vec<Work> {
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
            Work::Copy { replica, .. } => *replica == id && on(Bug::InstallAwaitsCopies),
            Work::Persist { .. }
            | Work::Mount
            | Work::RoundMark
            | Work::Checkpoint { .. }
            | Work::Map
            | Work::Floor
            | Work::CreatesLost
            | Work::Seal => false,
        })
    }
}
