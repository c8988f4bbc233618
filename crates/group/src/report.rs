//! Reports of this replica to meta about its PG.

use crate::decision::Decision;
use crate::{Group, GroupLimits};
use types::control::{LeadReport, PgReport};
use types::{ReplicaId, Time};

/// Amounts that wait in a group; for observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupFill {
    /// Writes and orders of meta that wait for their proposal, and the payload of the writes in bytes.
    pub writes: usize,
    pub write_bytes: u64,
    pub attaches: usize,
    /// Reads that wait or run.
    pub reads: usize,
    /// Entries between the commit index and the end of the log; zero unless this replica is a leader that serves.
    pub uncommitted: u64,
}

impl GroupFill {
    /// Returns each amount with its name and its limit.
    pub fn limits(&self, limits: &GroupLimits) -> [(&'static str, u64, u64); 5] {
        [
            ("writes that wait for their proposal", self.writes as u64, limits.queue_ops_max as u64),
            ("bytes that wait for their proposal", self.write_bytes, limits.queue_bytes_max),
            ("attach records that wait", self.attaches as u64, limits.queue_attaches_max as u64),
            ("reads of a PG", self.reads as u64, limits.reads_max as u64),
            ("uncommitted entries", self.uncommitted, limits.uncommitted_entries_max),
        ]
    }
}

impl Group {
    /// Returns the amounts that wait here now.
    pub fn fill(&self) -> GroupFill {
        let (writes, write_bytes, attaches) = self.queue.fill();
        // A replica that has restarted may know of fewer commits than there were.
        let ahead = self.node.last_index().0 - self.node.commit_index().0;
        let uncommitted = if self.serves() { ahead } else { 0 };
        GroupFill { writes, write_bytes, attaches, reads: self.reads.count(), uncommitted }
    }

    /// Returns the ticket of the newest batch, durable or not; for tests.
    pub fn newest_ticket(&self) -> u64 {
        self.node.newest_ticket()
    }

    /// Whether a read that comes at `now` would be answered under the lease; for observers.
    pub fn reads_under_lease(&self, now: Time) -> bool {
        self.lease_holds(now)
    }

    /// Returns the replica that has this one's vote in its term; for observers.
    pub fn voted_for(&self) -> Option<ReplicaId> {
        self.node.voted_for()
    }

    /// Returns the decision state at the applied index; for observers.
    pub fn decides(&self) -> &Decision {
        &self.decision
    }

    /// Makes this replica's report at `now`; the leader's is the source of PG state.
    pub fn report(&self, now: Time) -> PgReport {
        let leading = self.current().map(|leading| {
            let silence_max = self.config.timing.ack_max;
            let mut report =
                LeadReport { active: self.serves(), members: self.decision.members.clone(), ..LeadReport::default() };
            report.active &= now < leading.heard_at() + silence_max;
            for member in self.decision.members.iter().filter(|m| m.replica != self.identity.replica) {
                let ack = leading.acks.iter().find(|ack| ack.replica == member.replica);
                let heard_at = ack.map_or(leading.since, |ack| ack.sent_at.max(leading.since));
                let follower = self.node.follower(member.replica);
                // A learner takes the place of no member that is missing.
                let counts = u8::from(self.decision.members.is_voter(member.replica));
                if now >= heard_at + silence_max {
                    report.followers_silent += counts;
                } else if self.has_contents(now, member.replica)
                    && follower.is_some_and(|f| f.streaming && f.matched.0 + 1 >= self.node.first_index().0)
                {
                    report.followers_in_sync += counts;
                } else {
                    report.followers_behind += counts;
                    report.recovering = true;
                }
            }
            report
        });
        PgReport {
            pg: self.identity.pg,
            replica: self.identity.replica,
            term: self.node.term(),
            applied: self.node.applied(),
            // The floor does not tell of a forced step that is not applied, and the step hides what the log lacks.
            end: (self.quarantine.is_none() && self.whole && !self.is_forcing()).then(|| self.node.durable_end()),
            floor: self.decision.members.floor,
            quarantined: self.quarantine.is_some(),
            repairing: !self.whole,
            lost: Vec::new(),
            unread: Vec::new(),
            hears: self.leader().filter(|osd| *osd != self.config.osd && self.election.hears_leader(now)),
            leading,
        }
    }
}
