//! One PG without a quorum stops no other (§7.6): while it has none, every request that touches other PGs alone is answered
//! within [`WAIT_MAX`].
//!
//! Input: the time for which a PG is known to have no quorum, and the oldest request that touches other PGs alone. Output: the
//! first such request that waits too long.
//!
//! The law holds where nothing else is broken, in runs aimed at `StuckPg`: the other PGs keep their leaders, their members and
//! their logs. Not covered: a client that opens its volumes, because an open needs every PG of the volume (R6); a flush; the logs
//! of the OSDs, which run full only after minutes.

use std::time::Duration;
use types::{PgId, Time};

/// Longest wait. An OSD may handle the PG for one second until its leader steps down, and a client sends a request again after
/// 400 ms of silence; the rest is for queues.
pub const WAIT_MAX: Duration = Duration::from_secs(2);

/// The PG without a quorum, and the longest wait beside it.
#[derive(Default)]
pub struct Isolation {
    /// The PG, and the time from which and to which it has no quorum.
    stuck: Option<(PgId, Time, Time)>,
    longest: Duration,
}

impl Isolation {
    /// Notes that the PG has no quorum between these times.
    pub fn note(&mut self, pg: PgId, since: Time, until: Time) {
        self.stuck = Some((pg, since, until));
    }

    /// Whether a PG of this run has been without a quorum.
    pub fn has_struck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Returns the PG that has no quorum now.
    pub fn stuck(&self, now: Time) -> Option<PgId> {
        self.stuck.filter(|(_, since, until)| (*since..*until).contains(&now)).map(|(pg, ..)| pg)
    }

    /// Returns the longest wait of a request beside the PG.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Looks at the oldest request in flight that touches other PGs alone; `asked`: when it was submitted.
    ///
    /// # Errors
    /// It waits too long.
    pub fn look(&mut self, now: Time, asked: Time) -> Result<(), String> {
        let Some((pg, since, _)) = self.stuck else { return Ok(()) };
        let waits = now.since(since.max(asked));
        self.longest = self.longest.max(waits);
        match waits > WAIT_MAX {
            true => Err(format!("a request has waited for {waits:?} beside pg {pg}, which has no quorum")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    #[test]
    fn request_that_waits_beside_a_pg_without_quorum_is_found() {
        let pg = PgId { pool: PoolId(1), n: 3 };
        let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
        let mut isolation = Isolation::default();
        isolation.look(at(9000), at(0)).expect("every PG has a quorum");
        isolation.note(pg, at(1000), at(6000));
        assert_eq!([500, 1000, 5999, 6000].map(|ms| isolation.stuck(at(ms))), [None, Some(pg), Some(pg), None]);
        isolation.look(at(3000), at(0)).expect("it waits since 1000");
        isolation.look(at(5000), at(3500)).expect("a later one");
        assert!(isolation.look(at(3001), at(0)).expect_err("too long").contains("beside pg 1.3"));
        assert_eq!(isolation.longest(), Duration::from_millis(2001));
    }
}
