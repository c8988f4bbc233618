//! How many writes of a round may be in flight, so that clients do not wait for it.
//!
//! Input: how long each log batch took, with and without a round, and how much of the log is used. Output: a number of writes. While batches
//! take much longer than they do without a round, it is halved with each; otherwise it rises by one. A log that fills sets a least number,
//! up to all of them, because then clients would wait for the round's end.
//!
//! Invariant: at least one write may be in flight, so each round ends.

use std::ops::Range;
use std::time::Duration;

/// A batch is late when it takes so many times what is usual, and this time more.
const LATE_TIMES: u32 = 2;
const LATE_MORE: Duration = Duration::from_millis(2);
/// Weight of the newest batch in what is usual, as a part of all.
const WEIGHT: u32 = 8;
/// A log that has had no batch for so long waits for nothing.
const IDLE: Duration = Duration::from_millis(20);
/// Use of the log at which the least number begins to rise, and at which it is all of them.
const FILLING: Range<f32> = 0.60..0.75;

/// The controller of one engine.
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    /// Time of a batch without a round; zero before the first.
    usual: Duration,
    /// Writes that may be in flight; 0 before the first batch beside a round: all.
    ops: u32,
}

impl Yielding {
    /// Takes the time of a batch. `ops_max`: the most writes of a round, if one was running.
    pub fn batch_took(&mut self, took: Duration, ops_max: Option<u32>) {
        let Some(ops_max) = ops_max else {
            self.usual = match self.usual.is_zero() {
                true => took,
                false => (self.usual * (WEIGHT - 1) + took) / WEIGHT,
            };
            return;
        };
        let ops = if self.ops == 0 { ops_max } else { self.ops };
        let is_late = took > self.usual * LATE_TIMES + LATE_MORE;
        self.ops = if is_late { (ops / 2).max(1) } else { (ops + 1).min(ops_max) };
    }

    /// Returns how many writes of the round may be in flight, of at most `ops_max`. `used`: the share of the log that is in use; `idle`: for
    /// how long it has had no batch.
    pub fn ops(&mut self, ops_max: u32, used: f32, idle: Duration) -> u32 {
        if self.ops == 0 || idle >= IDLE {
            self.ops = ops_max;
        }
        let filled = (used - FILLING.start) / (FILLING.end - FILLING.start);
        let least = (filled.clamp(0.0, 1.0) * ops_max as f32) as u32;
        self.ops.max(least).clamp(1, ops_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 32;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// A device on which a batch waits for the writes of a round that are in flight, 300 us for each.
    fn batches(yielding: &mut Yielding, count: u32, used: f32) -> (Duration, u32) {
        let (mut longest, mut ops) = (Duration::ZERO, 0);
        for n in 0..count {
            ops = yielding.ops(MAX, used, Duration::ZERO);
            let took = us(1000) + us(300) * ops;
            if n >= count / 2 {
                longest = longest.max(took);
            }
            yielding.batch_took(took, Some(MAX));
        }
        (longest, ops)
    }

    #[test]
    fn a_round_takes_the_whole_device_until_a_batch_is_late() {
        let mut yielding = Yielding::default();
        assert_eq!(yielding.ops(MAX, 0.5, Duration::ZERO), MAX);
        (0..20).for_each(|_| yielding.batch_took(us(1000), None));
        let (longest, ops) = batches(&mut yielding, 200, 0.5);
        assert!(longest <= us(4000) + us(300), "{longest:?}: twice the usual, 2 ms and one write more");
        assert!((4..=11).contains(&ops), "{ops} writes");
    }

    #[test]
    fn a_log_that_fills_or_is_idle_gets_the_whole_device_for_the_round() {
        let mut yielding = Yielding::default();
        (0..20).for_each(|_| yielding.batch_took(us(1000), None));
        batches(&mut yielding, 200, 0.5);
        assert!(yielding.ops(MAX, 0.60, Duration::ZERO) < MAX / 2);
        let half = yielding.ops(MAX, 0.675, Duration::ZERO);
        assert!((MAX / 2 - 1..=MAX / 2 + 1).contains(&half), "{half} writes");
        assert_eq!(yielding.ops(MAX, 0.80, Duration::ZERO), MAX);
        assert_eq!(yielding.ops(MAX, 0.50, IDLE), MAX);
    }

    #[test]
    fn a_device_that_is_slow_by_itself_does_not_stop_a_round() {
        let mut yielding = Yielding::default();
        yielding.batch_took(us(1000), None);
        (0..100).for_each(|_| yielding.batch_took(us(1_000_000), Some(MAX)));
        assert_eq!(yielding.ops(MAX, 0.5, Duration::ZERO), 1, "one write, and then the next");
        let mut slow = Yielding::default();
        (0..100).for_each(|_| slow.batch_took(us(50_000), None));
        (0..100).for_each(|_| slow.batch_took(us(60_000), Some(MAX)));
        assert_eq!(slow.ops(MAX, 0.5, Duration::ZERO), MAX, "batches are as slow without a round");
    }
}
