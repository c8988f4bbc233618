//! Bytes that the streams of one OSD may read: a rate that yields to other I/O of the devices. Sans-IO.
//!
//! A stream that saturates a device delays every log flush, and an election takes several flushes. So the rate is halved when I/O
//! waits. It doubles every half second until the first cut, and grows slowly after that.
//!
//! Invariant: the rate stays between an eighth of its limit and the limit.

use std::time::Duration;
use types::Time;

/// The first and least rate, as a part of the limit.
const LEAST: u64 = 8;
/// Interval between two cuts: the first one has to show.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// Time in which a rate that was never cut doubles.
const DOUBLED_IN: Duration = Duration::from_millis(500);
/// Time in which a rate that was cut grows from nothing to the limit.
const FULL_IN: Duration = Duration::from_secs(8);

/// Bytes that may be read for streams now.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: u64,
    rate: u64,
    pub tokens: i64,
    filled_at: Time,
    /// Time of the last cut; `None` when the rate was not cut since it began.
    cut_at: Option<Time>,
}

impl Budget {
    /// Returns the budget of an OSD without streams.
    pub fn new(limit: u64) -> Budget {
        Budget { limit, rate: limit / LEAST, ..Budget::default() }
    }

    /// Sets the limit, and the rate to it.
    pub fn set_limit(&mut self, limit: u64) {
        (self.limit, self.rate, self.cut_at) = (limit, limit, None);
    }

    /// Begins again, before the first of several streams.
    pub fn begin(&mut self, now: Time) {
        (self.rate, self.cut_at, self.filled_at) = (self.limit / LEAST, None, now);
        if self.tokens >= 0 {
            self.tokens = most(self.rate);
        }
    }

    /// Adds the tokens earned since the last call. `waits`: I/O waits for the device at this moment. `pressed`: rounds that free the
    /// log need the device.
    pub fn fill(&mut self, now: Time, waits: bool, pressed: bool) {
        let nanos = now.since(self.filled_at).as_nanos();
        if waits && self.cut_at.is_none_or(|at| now >= at + CUT_EVERY) {
            self.cut_at = Some(now);
            self.rate = (self.rate / 2).max(self.limit / LEAST);
        }
        let rate = if pressed { self.rate / 4 } else { self.rate }.max(1);
        let earned = i64::try_from(nanos * u128::from(rate) / 1_000_000_000).unwrap_or(i64::MAX);
        // When less than a token was earned, the time is kept.
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(most(rate));
            self.filled_at = now;
            self.rate = if waits { self.rate } else { self.grown(nanos) };
        }
    }

    fn grown(&self, nanos: u128) -> u64 {
        let grown = match self.cut_at {
            None => u128::from(self.rate) * nanos / DOUBLED_IN.as_nanos(),
            Some(_) => u128::from(self.limit) * nanos / FULL_IN.as_nanos(),
        };
        self.rate.saturating_add(u64::try_from(grown).unwrap_or(u64::MAX)).min(self.limit)
    }

    /// Returns the time at which there are tokens again.
    pub fn ready_at(&self) -> Time {
        let short = (1 - self.tokens).max(1) as u64;
        // Rounded up: a deadline before the token would make the loop spin.
        self.filled_at + Duration::from_nanos(short.saturating_mul(4_000_000_000).div_ceil(self.rate.max(1)))
    }
}

/// Returns the most tokens that are kept at this rate.
fn most(rate: u64) -> i64 {
    (rate / 16) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64 << 20;

    /// Runs for some milliseconds and returns the bytes that were granted, of which all are used.
    fn run(budget: &mut Budget, now: &mut Time, ms: u64, waits: bool) -> u64 {
        let mut used = 0;
        for _ in 0..ms {
            *now = *now + Duration::from_millis(1);
            budget.fill(*now, waits, false);
            used += budget.tokens.max(0) as u64;
            budget.tokens = budget.tokens.min(0);
        }
        used
    }

    #[test]
    fn the_rate_yields_to_io_that_waits_and_grows_again() {
        let (mut budget, mut now) = (Budget::new(LIMIT), Time(1_000_000_000));
        budget.begin(now);
        let first = run(&mut budget, &mut now, 100, false);
        assert!((LIMIT / 50..LIMIT / 40).contains(&first), "{first} bytes in the first 100 ms");
        run(&mut budget, &mut now, 3000, false);
        let full = run(&mut budget, &mut now, 100, false);
        assert!((LIMIT / 11..=LIMIT / 10).contains(&full), "{full} bytes in 100 ms at the limit");
        run(&mut budget, &mut now, 1, true);
        let half = run(&mut budget, &mut now, 100, false);
        assert!((LIMIT / 21..LIMIT / 19).contains(&half), "{half} bytes in 100 ms after one cut");
        run(&mut budget, &mut now, 5000, true);
        let least = run(&mut budget, &mut now, 10, false);
        assert!((LIMIT / 820..LIMIT / 750).contains(&least), "{least} bytes in 10 ms at the least rate");
        run(&mut budget, &mut now, 4000, false);
        let again = run(&mut budget, &mut now, 100, false);
        assert!((LIMIT / 16..LIMIT / 15).contains(&again), "{again} bytes in 100 ms, 4 s later");
    }

    #[test]
    fn a_stream_that_begins_has_few_tokens() {
        let (mut budget, mut now) = (Budget::new(LIMIT), Time(1_000_000_000));
        budget.begin(now);
        run(&mut budget, &mut now, 5000, false);
        now = now + Duration::from_secs(100);
        budget.fill(now, false, false);
        assert_eq!(budget.tokens as u64, LIMIT / 16);
        budget.begin(now);
        assert_eq!(budget.tokens as u64, LIMIT / 128);
        budget.tokens = -1;
        assert!(budget.ready_at() > now);
    }
}
