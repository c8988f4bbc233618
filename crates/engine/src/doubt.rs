//! Suspect replicas: they may lack entries or votes that they acknowledged, because the log has lost records (R11,
//! ADR 0007).
//!
//! Mount finds them and the OSD's loop queries their peers. The loop calls this file when a group may follow, and when
//! the replica is cleared; records for the log go out.
//!
//! Invariant: a suspect state that the log records outlives every restart until another record clears it.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::{Done, Kept, RESERVED, ReplicaLog, Work};
use crate::replica::{Doubt, Replaced};
use std::collections::VecDeque;
use types::store::{HardState, Persist};
use types::{Index, ReplicaId, Term};

impl Engine {
    /// Whether [`Engine::follow_in_doubt`] may be called now: a replica that lost its home waits for the end of a
    /// round.
    pub fn may_follow_in_doubt(&self, replica: ReplicaId) -> bool {
        self.is_round_idle() || self.replicas.get(&replica).is_none_or(|r| !r.homeless)
    }

    /// Starts the rebuild of a replica that cannot go on from what it has: its peers will bring all of it back, and it
    /// waits to follow from nothing. Until it follows, its log and home stay, and a restart finds it unchanged. Returns
    /// the hard state that it will follow with. `None`: not possible while a round runs, while its contents are being
    /// installed, or while a truncation of its log is queued.
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
        // The replica's old group is gone. Its queued appends are void, and the next group must not see its
        // completions.
        let news = |id: ReplicaId| id == replica;
        self.events.retain(|event| !matches!(event, EngineEvent::Persisted { replica, .. } if news(*replica)));
        let log = self.log.as_mut().expect("a running engine has a log");
        log.set_aside(replica);
        if let Some(batch) = &mut log.in_flight {
            batch.done.retain(|done| !matches!(done, Done::Persisted { replica, .. } if news(*replica)));
        }
        Some(hard_state)
    }

    /// Returns where the log ends that a replica keeps while it waits to be rebuilt. `None`: it has given up its log.
    pub fn kept_log_end(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        let r = self.replicas.get(&replica).filter(|r| r.homeless && r.doubt_unsaid)?;
        let (index, term) = r.log.iter().last().map_or(r.checkpoint, |kept| (kept.index, kept.term));
        Some((term, index))
    }

    /// Whether the replica waits to be rebuilt without its home.
    pub fn is_homeless(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|r| r.homeless)
    }

    /// Whether only the reserved segments of the log are free.
    pub fn is_log_full(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.ring.free() <= RESERVED)
    }

    /// Lets a group of the replica follow from this hard state, now that the positions of its peers are known.
    /// [`crate::EngineEvent::Persisted`] with ticket 0, which no group uses, reports when that state is durable.
    ///
    /// # Panics
    /// When the replica does not wait to follow, or may not follow now.
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
            // The peers hold all that the replica had. Home gives up the rest of it, and a checkpoint records that.
            self.home.as_mut().expect("a running engine has a home").empty(replica);
            (self.maybe_dirty, self.releasing, self.empty_rounds.1) = (true, true, 0);
        }
        self.append(Persist { replica, ticket: 0, hard_state: Some(hard_state), entries: Vec::new() });
    }

    /// Clears the replica: its log reaches its catch-up target, and it is a full member again.
    pub fn doubt_over(&mut self, replica: ReplicaId) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|_| matches!(self.state, State::Running)) else { return };
        assert!(r.doubt != Doubt::Waiting, "no peer was queried about {replica}");
        if std::mem::replace(&mut r.doubt, Doubt::None) == Doubt::Following {
            self.queue(Work::Sure { replica });
        }
    }

    /// Forgets everything of the replica but its term and vote. The entries of its log stay pinned until the record
    /// that voids them is durable.
    pub(crate) fn forget_all(&mut self, replica: ReplicaId) {
        let r = self.replicas.get_mut(&replica).expect("the caller saw it");
        // Entries that queued appends were to replace are voided by the same record: these appends are given up.
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

    /// Truncates the log of a replica that takes no part, from entry `from` on. These entries cannot stay: no peer has
    /// the first one any more, though it is committed, or the log needs the room. The replica keeps the entries before
    /// `from` and waits to follow from there; [`EngineEvent::CutBack`] reports it.
    ///
    /// # Panics
    /// When the entry is applied, or covered by a checkpoint.
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
