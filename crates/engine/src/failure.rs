//! Failed replicas: they may lack entries or votes that they acknowledged, or have lost pages of home (R4, R11, ADR 0023).
//!
//! Mount finds them, and so does the running engine; the OSD's loop fails those whose payloads no peer has. A failed replica
//! takes no part in its PG and is replaced under a new id. A forced recovery may revive one whose log and home are those of an
//! earlier moment of it: its past.
//!
//! Invariant: a failure that the log records outlives every restart, until the batch that holds the forced step ends it.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::{Kept, Work};
use crate::overlay::Overlay;
use crate::replica::ReplicaState;
use std::collections::VecDeque;
use types::planted::{Bug, on};
use types::store::{DecisionState, Failure, Persist, Recovered};
use types::{Index, ReplicaId, Term};

impl Engine {
    /// Returns why the replica has failed, if it has.
    pub fn failure(&self, replica: ReplicaId) -> Option<Failure> {
        self.replicas.get(&replica)?.failure().cloned()
    }

    /// Fails a replica whose contents are no state that it had. Its log is not kept; what is left of it is given to peers. It
    /// stays failed over restarts. [`EngineEvent::Failed`] follows.
    pub fn fail(&mut self, replica: ReplicaId, reason: String) {
        self.fail_as(replica, Failure { reason, is_past: false }, None);
    }

    /// Fails a replica under repair that goes on without its entries from `from` on: its log before them is its past, and stays
    /// until the log needs the room. Payloads of the others are given to peers as long as this process lives.
    /// [`EngineEvent::Failed`] follows.
    ///
    /// # Panics
    /// When a checkpoint covers the entry, or the replica takes part.
    pub fn fail_before(&mut self, replica: ReplicaId, from: Index, reason: String) {
        self.fail_as(replica, Failure { reason, is_past: true }, Some(from));
    }

    fn fail_as(&mut self, replica: ReplicaId, mut failure: Failure, from: Option<Index>) {
        let Some(mut r) = self.replicas.get_mut(&replica).filter(|r| !r.has_failed()) else { return };
        tracing::error!(replica = replica.0, reason = failure.reason, "a replica has failed");
        let (mut replaces, mut keeps_blocks) = (false, false);
        if let Some(from) = from {
            // Installed contents may show entries that are given up: then they are no state that the replica had.
            failure.is_past = from > r.shows;
            // Completed blocks that a mount has found are as of an index at or below the commit index.
            keeps_blocks = from > r.hard_state.commit;
            assert!(!r.may_take_part() && from > r.checkpoint.0, "{replica} gives up entry {from}");
            replaces = r.remove_from(from);
            r.given_up = r.replaced.back().filter(|_| replaces).map_or_else(VecDeque::new, |gone| gone.entries.clone());
            r.hard_state.commit = r.hard_state.commit.min(r.log.last().max(r.checkpoint.0));
            r.written_hard_state = r.hard_state;
        }
        let tells = r.born && matches!(self.state, State::Running);
        drop(r);
        let last = from.filter(|_| failure.is_past).map(|from| Index(from.0 - 1));
        // A failed replica is not read or destaged any more. Its past may need blocks that a round was to redo.
        let overlay = self.take_overlay(replica);
        match self.replicas.get_mut(&replica).filter(|_| keeps_blocks) {
            Some(mut r) => r.overlay = overlay,
            None => self.drops.add_overlay(overlay),
        }
        if tells && !on(Bug::FailureNotLogged) {
            self.queue(Work::Failed { replica, last, replaces });
        }
        let r = self.replicas.get_mut(&replica);
        r.expect("it was just there").turn(ReplicaState::Failed(failure.clone()));
        self.note_heirs(replica);
        self.unstage(replica);
        self.events.push(EngineEvent::Failed { replica, failure });
    }

    /// Gives up the entries of a failed replica above its checkpoint index: the log needs the room. What it has at home stays.
    pub(crate) fn shorten_past(&mut self, replica: ReplicaId) {
        let mut r = self.replicas.get_mut(&replica).expect("the caller saw it");
        if r.shows > r.checkpoint.0 {
            drop(r);
            return self.end_past(replica);
        }
        let last = r.checkpoint.0;
        let replaces = r.remove_from(Index(last.0 + 1));
        r.hard_state.commit = r.checkpoint.0;
        r.written_hard_state = r.hard_state;
        r.overlay = Overlay::default();
        drop(r);
        self.queue(Work::Failed { replica, last: Some(last), replaces });
    }

    /// Ends the past of a failed replica, parts of whose home go over to a successor: what is left is no state that it had.
    pub(crate) fn end_past(&mut self, replica: ReplicaId) {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        if let ReplicaState::Failed(failure) = &mut r.state
            && std::mem::take(&mut failure.is_past)
        {
            drop(r);
            self.queue(Work::Failed { replica, last: None, replaces: false });
        }
    }

    /// Returns the last entry of the log of a failed replica that a forced recovery can go on from.
    pub fn past_end(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        let r = self.replicas.get(&replica).filter(|r| r.failure().is_some_and(|failure| failure.is_past))?;
        let (index, term) = r.log.iter().last().map_or(r.checkpoint, |kept| (kept.index, kept.term));
        Some((term, index))
    }

    /// Lets a failed replica take part again, for a forced recovery, and returns the state that its group starts from. The device
    /// says that it has failed until [`Engine::append_and_revive`] gives the forced step; [`Engine::fail_again`] takes the
    /// revival back. `None`: its contents are no state that it had.
    pub fn revive(&mut self, replica: ReplicaId) -> Option<Recovered> {
        self.past_end(replica).filter(|_| matches!(self.state, State::Running))?;
        let mut r = self.replicas.get_mut(&replica).filter(|r| !r.held_decision.is_empty())?;
        r.revived = r.failure().cloned();
        r.turn(ReplicaState::Running);
        let (index, term) = r.checkpoint;
        let recovered = Recovered {
            identity: r.identity.clone(),
            hard_state: r.hard_state,
            checkpoint: DecisionState { replica, index, term, bytes: r.held_decision.clone() },
            before: r.checkpoint,
            entries: r.log.iter().filter(|kept| kept.index > index).map(Kept::entry).collect(),
            lost: Vec::new(),
            failure: None,
            fills: false,
        };
        drop(r);
        self.note_heirs(replica);
        Some(recovered)
    }

    /// Takes a revival back, before anything was appended.
    pub fn fail_again(&mut self, replica: ReplicaId) {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        if let Some(failure) = r.revived.take() {
            r.turn(ReplicaState::Failed(failure));
            drop(r);
            self.note_heirs(replica);
        }
    }

    /// Does what [`Engine::append`] does for the forced step of a revived replica: the record that ends its failure shares a batch
    /// with the last entry.
    ///
    /// # Panics
    /// For the reasons of [`Engine::append`].
    pub fn append_and_revive(&mut self, persist: Persist) {
        self.append_with(persist, true);
    }
}
