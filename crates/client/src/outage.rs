//! Outages of a volume whose requests fail, for the log: one line for the begin, one for the end.
//!
//! Invariant: the end counts every request that failed since the last turn without an outage, also those that failed when it was found.

use std::time::Duration;
use types::Time;

/// The present outage, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Time>,
    /// Requests that had failed before it.
    failed_before: u64,
}

/// A change to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Begun,
    Ended { after: Duration, requests: u64 },
}

impl Outage {
    /// Takes the state at the end of a turn of the loop, with the number of requests that have failed so far.
    pub fn turn(&mut self, now: Time, is_out: bool, failed: u64) -> Option<Change> {
        match self.since {
            None if is_out => {
                self.since = Some(now);
                Some(Change::Begun)
            }
            Some(since) if !is_out => {
                let requests = failed - self.failed_before;
                *self = Outage { since: None, failed_before: failed };
                Some(Change::Ended { after: now.since(since), requests })
            }
            None => {
                self.failed_before = failed;
                None
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_fail_when_the_outage_is_found_count() {
        let at = |s| Time::ZERO + Duration::from_secs(s);
        let mut outage = Outage::default();
        assert_eq!(outage.turn(at(1), false, 3), None);
        assert_eq!(outage.turn(at(2), true, 7), Some(Change::Begun), "four have failed in the turn that found it");
        assert_eq!(outage.turn(at(3), true, 8), None);
        assert_eq!(outage.turn(at(9), false, 8), Some(Change::Ended { after: Duration::from_secs(7), requests: 5 }));
        outage.turn(at(10), true, 8);
        assert_eq!(outage.turn(at(11), false, 8), Some(Change::Ended { after: Duration::from_secs(1), requests: 0 }));
    }
}
