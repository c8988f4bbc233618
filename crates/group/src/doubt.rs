//! A replica that may lack what it acknowledged (ADR 0007): it follows, and has no will of its own.
//!
//! The OSD comes in with how far the other members were when they were asked; out goes the news that the doubt is over.
//!
//! Invariant: while the doubt lasts, this replica stands for no office, votes for nobody whose log ends before the
//! furthest of those, and takes no commit index but with the entries that lead up to it.

use crate::{Action, Group};
use types::planted::{Bug, on};
use types::{Index, OsdId, Term, Time};

impl Group {
    /// From its birth on: `reach` is the end (term, index) of the furthest log of all other members, once all of them had
    /// handled everything that this replica said in earlier lives.
    pub fn set_doubt(&mut self, reach: (Term, Index)) {
        assert!(self.leading.is_none(), "who leads is not in doubt");
        self.doubt = Some(reach);
    }

    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Term, and the last entry that is durable here or known to be committed: what a member in doubt asks for. What is
    /// neither may go with this process, and would then be waited for in vain.
    pub fn standing(&self) -> (Term, (Term, Index)) {
        // A leader may know that others have committed what its own disk does not hold yet.
        let last = self.durable_end().max(self.node.commit_index());
        let end = self.node.term_at(last).map_or_else(|| self.node.end(), |term| (term, last));
        (self.node.term(), end)
    }

    /// The replica on `from` has lost part of its log, and ends at `last`.
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

    /// A log that ends at or behind `reach` has every entry that this replica can have helped to commit: by raft's
    /// own argument for votes, which compares logs in the same way.
    pub(crate) fn judge_doubt(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.doubt.is_some() && self.reaches(self.node.durable_end()) {
            self.doubt = None;
            self.election.deposed(now);
            actions.push(Action::DoubtOver);
        }
    }
}
