//! Replicas that may lack what they acknowledged, because the log has lost records (R11, ADR 0007).
//!
//! Mount finds them, the loop asks their peers, and comes in when a group may follow and when its doubt is over;
//! records for the log go out.
//!
//! Invariant: a doubt that the log tells of outlives every restart until a record says that it is over.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::{Done, Kept, RESERVED, ReplicaLog, Work};
use crate::replica::{Doubt, Replaced};
use std::collections::VecDeque;
use types::store::{HardState, Persist};
use types::{Index, ReplicaId, Term};

impl Engine {
    /// Whether [`Engine::follow_in_doubt`] may be called now: a replica that lost its home waits for the end of a round.
    pub fn may_follow_in_doubt(&self, replica: ReplicaId) -> bool {
        self.is_round_idle() || self.replicas.get(&replica).is_none_or(|r| !r.homeless)
    }

    /// The replica cannot go on from what it has: its peers are to bring all of it back, and it waits to follow from
    /// nothing. Until it follows, log and home stay as they are, and a restart finds it as it was. Gives what it will
    /// follow with; `None`: not now, while a round runs, its contents are replaced, or a cut of its log waits.
    pub fn begin_anew(&mut self, replica: ReplicaId) -> Option<HardState> {
        let cuts =
            |w: &Work| matches!(w, Work::Cut { replica: r, .. } | Work::Doubt { replica: r, .. } if *r == replica);
        let idle = self.is_round_idle() && !self.log.as_ref()?.pending.iter().any(cuts);
        let r = self.replicas.get_mut(&replica).filter(|r| idle && r.damage.is_none() && !r.installing)?;
        r.doubt_unsaid = !r.says_doubt();
        (r.doubt, r.homeless) = (Doubt::Waiting, true);
        r.bad.clear();
        let hard_state = HardState { commit: Index(0), ..r.hard_state };
        self.drop_overlay(replica);
        self.unstage(replica);
        // Its group is gone: what that wanted to write is void, and the next one must not take its news for its own.
        let news = |id: ReplicaId| id == replica;
        self.events.retain(|event| !matches!(event, EngineEvent::Persisted { replica, .. } if news(*replica)));
        let log = self.log.as_mut().expect("a running engine has a log");
        log.set_aside(replica);
        if let Some(batch) = &mut log.in_flight {
            batch.done.retain(|done| !matches!(done, Done::Persisted { replica, .. } if news(*replica)));
        }
        Some(hard_state)
    }

    /// Whether the log has no room left but for what must not wait.
    pub fn is_log_full(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.ring.free() <= RESERVED)
    }

    /// The peers are known: a group of the replica may follow, from this hard state. [`crate::EngineEvent::Persisted`] of
    /// ticket 0, which no group gives, says when that is durable.
    ///
    /// # Panics
    /// When the replica is not waiting for that, or may not follow now.
    pub fn follow_in_doubt(&mut self, replica: ReplicaId, hard_state: HardState) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|_| matches!(self.state, State::Running)) else { return };
        assert!(r.doubt == Doubt::Waiting && r.damage.is_none(), "{replica} is {:?}", r.doubt);
        if r.homeless && (r.applied, r.checkpoint.0) != (Index(0), Index(0)) {
            self.forget_all(replica);
        }
        let r = self.replicas.get_mut(&replica).expect("it was just there");
        assert!(hard_state.term >= r.hard_state.term && hard_state.commit == r.hard_state.commit, "it forgets a term");
        (r.doubt, r.doubt_unsaid) = (Doubt::Following, false);
        r.bad.clear();
        if std::mem::take(&mut r.homeless) {
            // Its peers have what it had: what is left of its own is given up, and a checkpoint says so.
            self.home.as_mut().expect("a running engine has a home").empty(replica);
            (self.maybe_dirty, self.releasing, self.empty_rounds.1) = (true, true, 0);
        }
        self.append(Persist { replica, ticket: 0, hard_state: Some(hard_state), entries: Vec::new() });
    }

    /// The replica reaches as far as any other did: it is a member like all.
    pub fn doubt_over(&mut self, replica: ReplicaId) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|_| matches!(self.state, State::Running)) else { return };
        assert!(r.doubt != Doubt::Waiting, "nobody was asked about {replica}");
        if std::mem::replace(&mut r.doubt, Doubt::None) == Doubt::Following {
            self.queue(Work::Sure { replica });
        }
    }

    /// Nothing of the replica counts any more but its term and vote. What its log holds is needed until the record that
    /// says so is durable.
    pub(crate) fn forget_all(&mut self, replica: ReplicaId) {
        let r = self.replicas.get_mut(&replica).expect("the caller saw it");
        // What work that was given up was to replace goes with the rest.
        let waiting = r.replaced.iter().position(|replaced| !replaced.begun).unwrap_or(r.replaced.len());
        let mut entries: VecDeque<Kept> = r.replaced.split_off(waiting).into_iter().flat_map(|r| r.entries).collect();
        entries.append(&mut r.log.truncate(r.log.first()));
        let replaces = !entries.is_empty();
        if replaces {
            r.replaced.push_back(Replaced { entries, begun: false });
        }
        r.log = ReplicaLog::new(Index(1));
        r.lost.clear();
        r.doubt_unsaid = false;
        (r.checkpoint, r.applied) = ((Index(0), Term(0)), Index(0));
        r.hard_state.commit = Index(0);
        r.written_hard_state = r.hard_state;
        self.queue(Work::Doubt { replica, last: Index(0), hole: false, replaces });
    }

    /// The replica takes no part, and entry `from` of its log and what follows it cannot stay: nobody has it any more,
    /// though it is committed, or the log needs the room. What stands before it stays, and the replica waits to follow
    /// from there; [`EngineEvent::CutBack`] says so.
    ///
    /// # Panics
    /// When the entry is at home here.
    pub fn cut_back(&mut self, replica: ReplicaId, from: Index) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|r| r.damage.is_none()) else { return };
        assert!(from > r.applied && from > r.checkpoint.0, "{replica} has entry {from} at home");
        let replaces = r.remove_from(from);
        r.lost.clear();
        (r.doubt, r.doubt_unsaid) = (Doubt::Waiting, false);
        let last = Index(from.0 - 1);
        r.hard_state.commit = r.hard_state.commit.min(last);
        r.written_hard_state = r.hard_state;
        let hard_state = r.hard_state;
        self.drop_overlay(replica);
        self.queue(Work::Doubt { replica, last, hole: false, replaces });
        self.events.push(EngineEvent::CutBack { replica, hard_state, from });
    }
}
