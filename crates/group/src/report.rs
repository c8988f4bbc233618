//! What this replica tells meta about its PG.

use crate::Group;
use crate::decision::Decision;
use types::control::{LeadReport, PgReport};
use types::{ReplicaId, Time};

impl Group {
    /// Whether a read that comes at `now` would be answered under the lease; for observers.
    pub fn reads_under_lease(&self, now: Time) -> bool {
        self.lease_holds(now)
    }

    /// Who has this replica's vote in its term; for observers.
    pub fn voted_for(&self) -> Option<ReplicaId> {
        self.node.voted_for()
    }

    /// Decision state as of what is applied; for observers.
    pub fn decides(&self) -> &Decision {
        &self.decision
    }

    /// The replica's view at `now`; the leader's is the source of PG state.
    pub fn report(&self, now: Time) -> PgReport {
        let leading = self.current().map(|leading| {
            let silence_max = self.config.timing.echo_max;
            let mut report = LeadReport { active: self.serves(), ..LeadReport::default() };
            report.active &= now < leading.heard_at() + silence_max;
            for member in self.decision.members.iter().filter(|m| m.replica != self.identity.replica) {
                let echo = leading.echoes.iter().find(|echo| echo.replica == member.replica);
                let heard_at = echo.map_or(leading.since, |echo| echo.sent_at.max(leading.since));
                let follower = self.node.follower(member.replica);
                if now >= heard_at + silence_max {
                    report.followers_silent += 1;
                } else if follower.is_some_and(|f| f.streaming && f.matched.0 + 1 >= self.node.first_index().0) {
                    report.followers_in_sync += 1;
                } else {
                    report.followers_behind += 1;
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
            quarantined: self.quarantine.is_some(),
            repairing: self.doubt.is_some(),
            lost: Vec::new(),
            lost_from: None,
            leading,
        }
    }
}
