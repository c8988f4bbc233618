//! Requests that wait too long, as log lines: one warning at the start of an outage and one line at its end.

use client::Stall;
use std::time::Duration;
use types::Time;
use types::codes;

/// A request that waits longer is an outage.
const LATE: Duration = Duration::from_secs(5);
/// Interval of the checks.
const LOOK: Duration = Duration::from_secs(1);
/// An outage is over when no request was late for this long: longer than the next one needs to become late.
const QUIET: Duration = Duration::from_secs(10);

struct Outage {
    since: Time,
    /// The last time at which a request was late.
    seen: Time,
    full: bool,
}

/// Watches one volume.
pub struct Watch {
    next: Time,
    outage: Option<Outage>,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { next: Time::ZERO, outage: None }
    }

    /// Returns the time of the next check.
    pub fn deadline(&self) -> Time {
        self.next
    }

    /// Checks when it is due. `stall` returns the oldest request that came before a given time.
    pub fn look(&mut self, now: Time, volume: &str, stall: impl FnOnce(Time) -> Option<Stall>) {
        if now < self.next {
            return;
        }
        self.next = now + LOOK;
        let late = Time(now.0.saturating_sub(LATE.as_nanos() as u64));
        match (stall(late), &mut self.outage) {
            (Some(stall), Some(outage)) => {
                outage.seen = now;
                if stall.full && !std::mem::replace(&mut outage.full, stall.full) {
                    warn(now, volume, &stall);
                }
            }
            (Some(stall), None) => {
                warn(now, volume, &stall);
                self.outage = Some(Outage { since: stall.since, seen: now, full: stall.full });
            }
            (None, Some(outage)) if now.since(outage.seen) >= QUIET => {
                let outage_s = outage.seen.since(outage.since).as_secs();
                tracing::info!(volume, outage_s, "no request waits any more");
                self.outage = None;
            }
            (None, _) => {}
        }
    }
}

fn warn(now: Time, volume: &str, stall: &Stall) {
    let waited_s = now.since(stall.since).as_secs();
    let (what, offset, requests) = (stall.what, stall.offset, stall.requests);
    let (pg, osd) = (stall.pg.map(tracing::field::display), stall.osd.map(|osd| osd.0));
    if stall.full {
        let code = codes::label(codes::NO_SPACE_LEFT);
        tracing::warn!(
            code,
            volume,
            what,
            offset,
            pg,
            osd,
            requests,
            waited_s,
            "writes wait: no space left in the pool"
        );
    } else if stall.rehearsed {
        tracing::warn!(volume, what, offset, requests, waited_s, "requests wait: a fault is rehearsed on the volume");
    } else {
        tracing::warn!(volume, what, offset, pg, osd, requests, waited_s, "requests wait for an answer");
    }
}

#[cfg(test)]
mod tests {
    use super::{QUIET, Watch};
    use client::Stall;
    use std::time::Duration;
    use types::Time;

    #[test]
    fn an_outage_begins_with_a_late_request_and_ends_after_a_quiet_time() {
        let stall = |since: Time| Stall {
            since,
            what: "write",
            offset: 0,
            pg: None,
            osd: None,
            full: false,
            rehearsed: false,
            requests: 1,
        };
        let (mut watch, begun) = (Watch::new(), Time(1_000_000_000_000));
        let mut now = begun;
        let look = |watch: &mut Watch, now: Time, late: bool| {
            watch.look(now, "main/v", |before| {
                assert_eq!(now.since(before), Duration::from_secs(5));
                late.then(|| stall(begun))
            });
            watch.outage.is_some()
        };
        assert!(!look(&mut watch, now, false));
        now = watch.deadline();
        assert!(look(&mut watch, now, true));
        let last = now;
        while now.since(last) < QUIET {
            now = watch.deadline();
            assert_eq!(look(&mut watch, now, false), now.since(last) < QUIET, "{:?}", now.since(last));
        }
    }
}
