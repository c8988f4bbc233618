//! Replicas that may lack what they acknowledged, because the log has lost records (R11, ADR 0007).
//!
//! Mount finds them, the loop asks their peers, and comes in when a group may follow and when its doubt is over;
//! records for the log go out.
//!
//! Invariant: a doubt that the log tells of outlives every restart until a record says that it is over.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::Work;
use crate::replica::Doubt;
use types::store::{HardState, Persist};
use types::{Index, ReplicaId};

impl Engine {
    /// Whether [`Engine::follow_in_doubt`] may be called now: a replica that lost its home waits for the end of a round.
    pub fn may_follow_in_doubt(&self, replica: ReplicaId) -> bool {
        self.is_round_idle() || self.replicas.get(&replica).is_none_or(|r| !r.homeless)
    }

    /// The peers are known: a group of the replica may follow, from this hard state. [`crate::EngineEvent::Persisted`] of
    /// ticket 0, which no group gives, says when that is durable.
    ///
    /// # Panics
    /// When the replica is not waiting for that, or may not follow now.
    pub fn follow_in_doubt(&mut self, replica: ReplicaId, hard_state: HardState) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|_| matches!(self.state, State::Running)) else { return };
        assert!(r.doubt == Doubt::Waiting && r.damage.is_none(), "{replica} is {:?}", r.doubt);
        assert!(hard_state.term >= r.hard_state.term && hard_state.commit == r.hard_state.commit, "it forgets a term");
        r.doubt = Doubt::Following;
        if std::mem::take(&mut r.homeless) {
            // Its peers have what it had: what is left of its own is given up, and a checkpoint says so.
            self.home.as_mut().expect("a running engine has a home").empty(replica);
            (self.maybe_dirty, self.releasing) = (true, true);
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
        r.doubt = Doubt::Waiting;
        let last = Index(from.0 - 1);
        r.hard_state.commit = r.hard_state.commit.min(last);
        r.written_hard_state = r.hard_state;
        let hard_state = r.hard_state;
        self.drop_overlay(replica);
        self.queue(Work::Doubt { replica, last, hole: false, replaces });
        self.events.push(EngineEvent::CutBack { replica, hard_state, from });
    }
}
