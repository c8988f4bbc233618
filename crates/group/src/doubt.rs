//! A suspect replica, which may lack entries that it acknowledged (ADR 0007): it follows and does not lead.
//!
//! Input: the log positions of the other members, which the OSD asked for. Output: the action that ends the suspicion.
//!
//! Invariant: a suspect replica does not campaign. It votes for no candidate whose log ends before the
//! catch-up target, and takes a commit index only with the entries that lead up to it.

use crate::{Action, Group};
use types::planted::{Bug, on};
use types::{Index, OsdId, Term, Time};

impl Group {
    /// Makes this replica suspect, from its creation on. `reach` is the catch-up target: the end (term, index) of the furthest
    /// log of all other members, once all of them had handled every message that this replica sent in earlier runs.
    pub fn set_doubt(&mut self, reach: (Term, Index)) {
        assert!(self.leading.is_none(), "a leader is not suspect");
        self.doubt = Some(reach);
    }

    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Returns the log position that a suspect member asks for: the term, and the last entry that is durable here or known to be
    /// committed. Any later entry may vanish with this process, and a suspect member would wait for it in vain.
    pub fn standing(&self) -> (Term, (Term, Index)) {
        // A leader may know that others have committed an entry that its own disk does not hold yet.
        let last = self.durable_end().max(self.node.commit_index());
        let end = self.node.term_at(last).map_or_else(|| self.node.end(), |term| (term, last));
        (self.node.term(), end)
    }

    /// Resets the match of the replica on `from`, which has lost part of its log and ends at `last`.
    pub fn handle_follower_lost(&mut self, from: OsdId, last: Index) {
        let replica = self.replica_on(from).filter(|id| *id != self.identity.replica && self.quarantine.is_none());
        if let Some(replica) = replica.filter(|_| !on(Bug::MatchKeptInDoubt)) {
            self.node.forget_match(replica, last);
        }
    }

    /// Whether a candidate with this last entry may have this replica's vote.
    pub(crate) fn reaches(&self, end: (Term, Index)) -> bool {
        self.doubt.is_none_or(|reach| end >= reach)
    }

    /// Ends the suspicion when the durable log ends at `reach` or behind. Such a log has every entry that this replica can have
    /// helped to commit: raft compares logs for votes in the same way.
    pub(crate) fn judge_doubt(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.doubt.is_some() && self.reaches(self.node.durable_end()) {
            self.doubt = None;
            self.election.deposed(now);
            actions.push(Action::DoubtOver);
        }
    }
}
