//! Beginning and end of leadership, and the election attempts before it (R3).
//!
//! `group` calls this module at every poll. Output: `BecameLeader`, `LostLeadership` and the answers to the
//! waiters of this leader. Invariant: every waiter of a term of leadership is answered when that ends.

use crate::lease::Leading;
use crate::{Action, Group};
use consensus::Role;
use types::{Index, Time};
use wire::Reject;

impl Group {
    /// Brings leadership in line with raft's role.
    pub(crate) fn sync_leadership(&mut self, now: Time, actions: &mut Vec<Action>) {
        let term = self.node.term();
        if self.leading.as_ref().is_some_and(|leading| !self.node.is_leader() || leading.term != term) {
            self.leave_leadership(actions);
            self.election.deposed(now);
        }
        if self.leading.is_none() && self.node.is_leader() && self.quarantine.is_none() {
            let (me, members) = (self.identity.replica, &self.decision.members);
            // Raft has appended its empty entry, and no proposal could come before this leadership began.
            let mut leading = Leading::new(term, self.node.last_index(), now, me, members);
            leading.former = self.heard.filter(|heard| heard.term.0 + 1 == term.0 && heard.complete > Index(0));
            self.leading = Some(leading);
            assert!(self.waiting.is_empty(), "an earlier leadership left waiters behind");
            actions.push(Action::BecameLeader);
        }
    }

    /// Ends leadership and refuses all waiters. Their proposals may still commit under the next leader; the client asks
    /// there again with the same number.
    pub(crate) fn leave_leadership(&mut self, actions: &mut Vec<Action>) {
        if self.leading.take().is_some() {
            actions.push(Action::LostLeadership);
        }
        self.transfer = None;
        let hint = self.hint();
        self.refuse_queue(hint, actions);
        self.holds.clear();
        for (_, waiter) in std::mem::take(&mut self.waiting) {
            waiter.refuse(hint, actions);
        }
        self.reads.refuse_all(Reject::NotLeader { hint }, actions);
    }

    /// Steps down when no majority is heard, campaigns when an attempt is due.
    pub(crate) fn poll_election(&mut self, now: Time, actions: &mut Vec<Action>) {
        if let Some(msg) = self.election.take_deferred(now) {
            self.judge_vote(now, msg, actions);
        }
        if self.quarantine.is_some() {
            return;
        }
        if let Some(leading) = self.current() {
            if now >= leading.heard_at() + self.config.timing.ack_max {
                self.node.step_down();
            }
            return;
        }
        if !self.election.is_due(now) || !self.node.promotable() {
            return;
        }
        // A candidate whose requests wait for its own disk gains nothing by starting over.
        let waits_for_disk = self.node.role() == Role::Candidate && !self.node.has_asked();
        self.election.round(now);
        if !waits_for_disk {
            self.node.campaign();
        }
    }
}
