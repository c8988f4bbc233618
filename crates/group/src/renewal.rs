//! Lease renewal: the leader's message, the follower's promise, and the acknowledgement that carries the lease (R3).
//!
//! `pairs` decides on the time; this module handles one item for one PG. Invariant: a follower renews only when it
//! is in the leader's term with that leader; an acknowledgement counts only in the term that it names.

use crate::lease::Heard;
use crate::{Action, Group};
use types::planted::{Bug, on};
use types::{Index, OsdId, Term, Time};
use wire::{Contents, RenewalItem};

impl Group {
    /// Whether this replica has all its contents; false while a stream brings them.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Handles one item of a lease renewal. True when the promise was renewed: the acknowledgement
    /// then names this PG and the term.
    pub fn handle_renewal_item(
        &mut self,
        now: Time,
        from: OsdId,
        item: RenewalItem,
        _full: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        let ours = item.to == self.identity.replica && item.pg == self.identity.pg;
        if self.quarantine.is_some() || !ours || !self.may_be_from(from, item.from) {
            return false;
        }
        let agrees = |group: &Group| group.node.term() == item.term && group.node.leader() == Some(item.from);
        if !agrees(self) || item.commit > self.node.commit_index() {
            // This replica may also be ahead in term: raft then tells the sender.
            let heartbeat = self.node.heartbeat(item.from, item.term, item.commit);
            let result = self.node.step(&heartbeat);
            self.stepped(result, actions);
        }
        let renewed = self.quarantine.is_none() && agrees(self);
        if renewed {
            self.election.renewed(now, item.from);
            self.heard = Some(Heard { term: item.term, leader: item.from, complete: item.complete });
        }
        renewed
    }

    /// Handles a follower's acknowledgement of the lease renewal that was sent at `sent_at`.
    pub fn handle_lease_ack(
        &mut self,
        now: Time,
        from: OsdId,
        sent_at: Time,
        (term, contents): (Term, Contents),
        actions: &mut Vec<Action>,
    ) {
        let Some(replica) = self.replica_on(from) else { return };
        if sent_at > now || self.current().is_none_or(|leading| leading.term != term) {
            return;
        }
        let Some(follower) = self.node.follower(replica) else { return };
        let sent_at = if on(Bug::LeaseFromArrival) { now } else { sent_at };
        let last = self.node.last_index();
        let (me, members) = (self.identity.replica, &self.decision.members);
        let leading = self.leading.as_mut().expect("it was just seen");
        // From now on its own acknowledgements count.
        leading.former = leading.former.filter(|former| former.leader != replica);
        let ack = leading.acknowledged(replica, sent_at, me, members);
        if sent_at > ack.fills_since && sent_at >= ack.sent_at {
            ack.contents = contents;
        }
        let silence_max = self.config.timing.ack_max;
        leading.end_blindness(me, members, now, silence_max);
        let ack = leading.ack_of(replica);
        let stuck = follower.matched < last && follower.matched == ack.matched;
        ack.idle_acks = if stuck { ack.idle_acks + 1 } else { 0 };
        ack.matched = follower.matched;
        // The answer to a heartbeat is raft's only occasion to send again.
        if follower.matched < last && (!follower.streaming || ack.idle_acks >= self.config.timing.idle_acks_max) {
            ack.idle_acks = 0;
            let response = self.node.heartbeat_response(replica);
            let result = self.node.step(&response);
            self.stepped(result, actions);
        }
        if contents != Contents::Whole && self.whole {
            actions.push(Action::NeedsStream { to: from });
        }
    }

    /// Returns a leader's item for the replica on `osd`, and whether it belongs in every renewal. During a transfer
    /// there is no item: it would renew promises that a lease release has ended. Nor is there one while the only voter of a
    /// PG leads in a term that its device does not hold yet (R5).
    pub fn renewal_item_for(&self, now: Time, osd: OsdId) -> Option<(RenewalItem, bool)> {
        let leading = self.current().filter(|_| self.transfer.is_none() && self.node.has_durable_vote())?;
        let to = self.replica_on(osd)?;
        let follower = self.node.follower(to).filter(|_| to != self.identity.replica)?;
        let mut commit = follower.matched.min(self.node.commit_index());
        if commit < self.node.commit_index() && on(Bug::CommitBeyondMatch) {
            commit = self.node.commit_index();
        }
        let complete = if self.whole { self.durable_commit() } else { Index(0) };
        let (pg, from) = (self.identity.pg, self.identity.replica);
        let item = RenewalItem { pg, from, to, term: leading.term, commit, complete };
        let behind = follower.matched < self.node.last_index() || !follower.streaming;
        let io = self.last_io.is_some_and(|at| now.since(at) < self.config.timing.active);
        Some((item, io || behind))
    }
}
