//! Failed replicas of this OSD (R4, R11, ADR 0023): their groups end, and none is made.
//!
//! The engine finds them at mount and while it runs. This OSD fails a replica whose group cannot go on, and one that lacks
//! payloads that no member has. Meta gets a report, and replaces them.
//!
//! Invariant: a replica that the engine knows as failed has no group. A group whose replica fails in a turn is not polled any
//! more in that turn, so that the engine gets no entry of it.

use crate::node::{Osd, Touch};
use crate::pgs::State;
use types::planted::{Bug, on};
use types::store::Failure;
use types::{Index, OsdId, ReplicaId};
use wire::{Message, RaftKind, RaftMsg};

impl Osd {
    /// Fails a replica of which nothing is kept. Its group answers all requests that wait.
    pub(crate) fn fail_replica(&mut self, replica: ReplicaId, reason: String) {
        self.engine.fail(replica, reason.clone());
        self.replica_failed(replica, Failure { reason, is_past: false });
    }

    /// Ends the part of a replica that the engine has failed. Its waiting requests are answered: each would keep its client's
    /// credit for ever.
    pub(crate) fn replica_failed(&mut self, replica: ReplicaId, failure: Failure) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        // The engine knows best: it may have failed the replica before, for another reason.
        let failure = self.engine.failure(replica).unwrap_or(failure);
        if self.pgs.has_group(slot) {
            // A group that waits for an installation ends, too.
            self.pgs.resume(slot);
            let reason = failure.reason.clone();
            self.with_slot(slot, Touch::Never, |group, _, actions| group.end(reason, actions));
            self.pgs.get_mut(slot).group_ended_at = self.now;
        }
        self.recovery.payloads.forget(replica);
        let held = self.pgs.get_mut(slot);
        if !matches!(held.state, State::Failed(_)) {
            tracing::error!(pg = %held.identity.pg, replica = replica.0, reason = failure.reason,
                "a replica has failed: it takes no part in its PG any more, and is to be replaced");
        }
        held.state = State::Failed(failure);
        self.meta.report_soon(self.now);
    }

    /// Drops entries for a failed replica. It acknowledges nothing, unless that bug is planted.
    pub(crate) fn drop_append(&mut self, slot: usize, from: OsdId, append: RaftMsg) {
        if self.pgs.get(slot).identity.replica == append.to && on(Bug::FailedAcknowledges) {
            let index = Index(append.index.0 + append.entries.len() as u64);
            let (kind, entries, commit) = (RaftKind::AppendResponse, Vec::new(), Index(0));
            let answer = RaftMsg { from: append.to, to: append.from, kind, index, commit, entries, ..append };
            self.send_peer(slot, from, Message::Raft(answer));
        }
    }

    /// Ends the group in a slot when the engine has failed its replica in this turn, and the event is still to come.
    pub(crate) fn heed_failure(&mut self, slot: usize) {
        let Some(replica) = self.pgs.group(slot).map(|group| group.identity().replica) else { return };
        if let Some(failure) = self.engine.failure(replica) {
            self.replica_failed(replica, failure);
        }
    }
}
