//! Token buckets: whether an operation may go under the limits of a volume, and when the next one may.
//!
//! A bucket fills at a rate up to its depth, and each operation takes its cost out. An operation goes while the level is above
//! zero, whatever it costs, so a large one leaves a debt and no rate is too small for one. Levels are exact: the unit is a token
//! times a nanosecond. The average over a long time is therefore the rate, however often the owner looks.
//!
//! Invariant: sans-I/O. The owner passes the time in, and no bucket needs a timer of its own.

use super::{LimitKind, QosLimits, RateLimit};
use crate::time::Time;
use std::time::Duration;

const NANOS: i128 = 1_000_000_000;
/// Longest time that a debt lasts. Leaders that each admit one large operation of a volume with a low limit owe minutes: 16 of them
/// 512 KiB each at 64 KiB/s are 128 s. Only a wrong report of another process can owe more than this.
const DEBT_MAX: Duration = Duration::from_secs(3_600);

/// Cost of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub ops: u32,
    pub bytes: u64,
}

/// Whether an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Read,
    Write,
}

/// How strictly limits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictness {
    /// Time for which a bucket fills beyond its rate: what an idle volume may take at once.
    pub depth: Duration,
    /// Addition to each rate, in thousandths.
    pub slack_permille: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    kind: LimitKind,
    /// Whether it holds a burst to its peak; otherwise it holds the average.
    is_peak: bool,
    /// Tokens per second, in thousandths.
    rate_permille: i128,
    depth: i128,
    level: i128,
}

impl LimitKind {
    fn counts(self, direction: Direction) -> bool {
        match self {
            LimitKind::Iops | LimitKind::Bandwidth => true,
            LimitKind::ReadIops | LimitKind::ReadBandwidth => direction == Direction::Read,
            LimitKind::WriteIops | LimitKind::WriteBandwidth => direction == Direction::Write,
            LimitKind::FloorIops | LimitKind::FloorBandwidth => false,
        }
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX >> 64)
}

impl Bucket {
    fn new(kind: LimitKind, is_peak: bool, rate: u64, above: (u64, u32), how: Strictness) -> Bucket {
        let permille = |rate: u64| i128::from(rate.max(1)) * i128::from(1000 + how.slack_permille);
        let rate_permille = permille(rate);
        let above = if above.0 == 0 { 0 } else { permille(above.0).saturating_mul(i128::from(above.1) * NANOS) };
        let depth = rate_permille.saturating_mul(nanos(how.depth)).saturating_add(above).max(1);
        Bucket { kind, is_peak, rate_permille, depth, level: depth }
    }

    fn fill(&mut self, time: Duration) {
        let gain = self.rate_permille.saturating_mul(nanos(time));
        self.level = self.level.saturating_add(gain).min(self.depth);
    }

    fn tokens(&self, cost: Cost) -> i128 {
        let tokens = if self.kind.is_bytes() { i128::from(cost.bytes) } else { i128::from(cost.ops) };
        tokens * 1000 * NANOS
    }

    fn take(&mut self, cost: Cost) {
        let least = -self.rate_permille.saturating_mul(nanos(DEBT_MAX));
        self.level = self.level.saturating_sub(self.tokens(cost)).max(least);
    }

    fn give_back(&mut self, cost: Cost) {
        self.level = self.level.saturating_add(self.tokens(cost)).min(self.depth);
    }

    /// Returns the time until the level is above zero.
    fn wait(&self) -> Duration {
        if self.level > 0 {
            return Duration::ZERO;
        }
        let nanos = (-self.level) / self.rate_permille + 1;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The buckets of one volume, at most two for each of its limits.
#[derive(Clone, Debug)]
pub struct Buckets {
    limits: QosLimits,
    how: Strictness,
    buckets: Vec<Bucket>,
    filled_at: Time,
}

fn buckets_of(kind: LimitKind, limit: RateLimit, how: Strictness) -> impl Iterator<Item = Bucket> {
    let above = limit.burst.saturating_sub(limit.rate);
    let average = Bucket::new(kind, false, limit.rate, (above, limit.burst_seconds), how);
    let peak = (above > 0).then(|| Bucket::new(kind, true, limit.burst, (0, 0), how));
    std::iter::once(average).chain(peak)
}

impl Buckets {
    /// Makes full buckets.
    pub fn new(now: Time, limits: QosLimits, how: Strictness) -> Buckets {
        let ceilings = limits.iter().filter(|(kind, _)| !kind.is_floor());
        let buckets = ceilings.flat_map(|(kind, limit)| buckets_of(kind, limit, how)).collect();
        Buckets { limits, how, buckets, filled_at: now }
    }

    /// Whether there is no ceiling.
    pub fn are_none(&self) -> bool {
        self.buckets.is_empty()
    }

    pub fn limits(&self) -> &QosLimits {
        &self.limits
    }

    /// Changes the limits. A bucket that stays keeps its level, so a change gives nothing away.
    pub fn change(&mut self, now: Time, limits: QosLimits) {
        self.fill(now);
        let mut new = Buckets::new(now, limits, self.how);
        for bucket in &mut new.buckets {
            let before = self.buckets.iter().find(|b| (b.kind, b.is_peak) == (bucket.kind, bucket.is_peak));
            let Some(before) = before else { continue };
            // A debt is at most the time that the volume had to wait and at most the tokens that it owed: a lower rate does not
            // lengthen the time, and a higher one shortens it.
            bucket.level = match before.level {
                level if level < 0 => (level / before.rate_permille).saturating_mul(bucket.rate_permille).max(level),
                level => level.min(bucket.depth),
            };
        }
        *self = new;
    }

    fn fill(&mut self, now: Time) {
        let time = now.since(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        if !time.is_zero() {
            self.buckets.iter_mut().for_each(|bucket| bucket.fill(time));
        }
    }

    /// Returns the time until an operation of this direction may go; zero: it may now.
    pub fn wait(&mut self, now: Time, direction: Direction) -> Duration {
        self.fill(now);
        let counted = self.buckets.iter().filter(|bucket| bucket.kind.counts(direction));
        counted.map(Bucket::wait).max().unwrap_or(Duration::ZERO)
    }

    /// Takes the cost of operations out, also when they leave a debt.
    pub fn take(&mut self, now: Time, direction: Direction, cost: Cost) {
        self.fill(now);
        self.buckets.iter_mut().filter(|bucket| bucket.kind.counts(direction)).for_each(|bucket| bucket.take(cost));
    }

    /// Gives back the cost of operations that were not carried out.
    pub fn give_back(&mut self, direction: Direction, cost: Cost) {
        self.buckets
            .iter_mut()
            .filter(|bucket| bucket.kind.counts(direction))
            .for_each(|bucket| bucket.give_back(cost));
    }
}

#[cfg(test)]
mod tests;
