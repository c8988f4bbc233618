//! The pace of admission over a slow home (ADR 0035).
//!
//! Input: how much of the log is used, and how far the running round has come. Output: the rate at which the log may grow; `None`: any.
//!
//! A round frees the log at its end, and what it has written by now is as good as free. The *debt* is what home still has to write. It moves smoothly where the use of the
//! log is a sawtooth: a round counts with what it will free, which is less than all that is used, because the newest segment stays.
//!
//! Below [`FREE_DEBT`] the rate is free. From there on it falls from several times the drain rate of home to nothing at [`DEBT_MAX`], and equals the drain rate in between:
//! there the debt stays.
//!
//! Invariant: [`DEBT_MAX`] is half of the log. A round that begins with a debt of at most that, and as much new data at its end, fit into the log together.

use std::time::Duration;
use types::Time;

/// Debt below which the rate is free, as a share of the log.
const FREE_DEBT: f64 = 0.30;
/// Debt at which nothing more is admitted.
const DEBT_MAX: f64 = 0.50;
/// Share of a round after which its own drain rate counts.
const SAMPLE_SHARE: f64 = 0.002;
/// Time after which it counts at the earliest.
const SAMPLE_TIME: Duration = Duration::from_millis(500);
/// Time for which the rate before a round counts beside its own.
const BEFORE: Duration = Duration::from_secs(5);
/// It counts as at most so many times the round's own.
const FALL_MAX: f64 = 4.0;
/// Bytes of the log from which on a round tells the rate: a small one may last long for another reason.
const SAMPLE_BYTES: u64 = 8 << 20;
/// The least drain rate, in bytes a second: that of a disk with few small writes.
const DRAIN_MIN: f64 = 262144.0;
/// Drain rate of a home that has told none, in bytes a second.
const DRAIN_GUESS: f64 = 2097152.0;

/// The running round as the pace sees it.
#[derive(Clone, Copy, Debug)]
struct Draining {
    began: Time,
    /// When its first write was done, and the share that was written by then.
    writing: Option<(Time, f64)>,
    /// Drain rate as of its begin.
    before: Option<f64>,
    /// Bytes of the log that its end frees.
    bytes: u64,
}

impl Draining {
    /// Returns the drain rate by a share of the round and the time that it took, and by the rate before: the first writes of a round may not be
    /// like the rest. A home that was much faster, at another load, does not count as such: its rate would fill the log.
    fn blend(&self, share: f64, took: Duration) -> f64 {
        let (bytes, took) = (self.bytes as f64 * share, took.as_secs_f64());
        let Some(before) = self.before else { return bytes / took };
        let before = before.min(FALL_MAX * bytes / took);
        (bytes + before * BEFORE.as_secs_f64()) / (took + BEFORE.as_secs_f64())
    }
}

/// The pace of one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pacing {
    round: Option<Draining>,
    /// Bytes of the log that home takes in a second, by the last round that told.
    drain: Option<f64>,
}

impl Pacing {
    /// Notes that a round begins whose end frees so many bytes of the log.
    pub fn begin(&mut self, now: Time, frees: u64) {
        self.round = Some(Draining { began: now, writing: None, before: self.drain, bytes: frees });
    }

    /// Notes that the round has freed its part of the log, or was given up.
    pub fn end(&mut self, now: Time, done: bool) {
        let tells = |round: &Draining| done && now >= round.began + SAMPLE_TIME && round.bytes >= SAMPLE_BYTES;
        if let Some(round) = self.round.take().filter(tells) {
            self.drain = Some(round.blend(1.0, now.since(round.began)));
        }
    }

    /// Measures the drain rate while the round runs.
    fn learn(&mut self, now: Time, progress: f64) {
        let Some(round) = self.round.as_mut().filter(|round| progress > 0.0 && round.bytes >= SAMPLE_BYTES) else {
            return;
        };
        let (since, before) = *round.writing.get_or_insert((now, progress));
        let (took, share) = (now.since(since), progress - before);
        if share >= SAMPLE_SHARE && took >= SAMPLE_TIME {
            self.drain = Some(round.blend(share, took));
        }
    }

    /// Returns how many bytes a second may be admitted. `used` of `usable` bytes of the log are in use, and a share `progress` of the round's
    /// writes is done.
    pub fn rate(&mut self, now: Time, (used, usable): (u64, u64), progress: f64) -> Option<u64> {
        self.learn(now, progress);
        let written = self.round.map_or(0.0, |round| round.bytes as f64 * progress);
        let debt = (used as f64 - written).max(0.0) / usable as f64;
        if debt < FREE_DEBT {
            return None;
        }
        let drain = self.drain.unwrap_or(DRAIN_GUESS).max(DRAIN_MIN);
        let left = ((DEBT_MAX - debt) / (DEBT_MAX - FREE_DEBT)).max(0.0);
        // A home that stands still must not end all proposals before the log is full.
        Some((drain * (2.0 * left).powi(2)).max(drain / 8.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;

    /// A log of 1 GiB in few segments, a home that drains at a steady rate, and clients that send all that is admitted.
    struct Model {
        pacing: Pacing,
        now: Time,
        used: f64,
        /// Used bytes of which home has the contents: the newest segment of the last round was not freed.
        at_home: f64,
        round: Option<Writing>,
        drain: f64,
        /// The first second of a round drains so many times faster.
        burst: f64,
        offered: f64,
    }

    /// A round: bytes to write, bytes that its end frees, and bytes written.
    struct Writing {
        all: f64,
        frees: f64,
        done: f64,
        seconds: f64,
    }

    const LOG: f64 = 1024.0 * MIB;
    const SEGMENT: f64 = LOG / 13.0;
    const STEP: Duration = Duration::from_millis(50);

    impl Model {
        fn new(drain: f64, offered: f64) -> Model {
            let now = Time::ZERO + Duration::from_secs(1);
            Model { pacing: Pacing::default(), now, used: 0.0, at_home: 0.0, round: None, drain, burst: 1.0, offered }
        }

        /// Runs for a second; returns the rate that was admitted.
        fn second(&mut self) -> f64 {
            let mut admitted = 0.0;
            for _ in 0..20 {
                self.now = self.now + STEP;
                let dt = STEP.as_secs_f64();
                if let Some(round) = &mut self.round {
                    round.seconds += dt;
                    round.done += self.drain * dt * if round.seconds <= 1.0 { self.burst } else { 1.0 };
                    if round.done >= round.all {
                        self.used -= round.frees;
                        self.round = None;
                        self.pacing.end(self.now, true);
                    }
                } else if self.used >= 0.25 * LOG {
                    let newest = self.used % SEGMENT;
                    let (all, frees) = (self.used - self.at_home, self.used - newest);
                    self.at_home = newest;
                    self.round = Some(Writing { all, frees, done: 0.0, seconds: 0.0 });
                    self.pacing.begin(self.now, frees as u64);
                }
                let progress = self.round.as_ref().map_or(0.0, |round| round.done / round.all);
                let rate = self.pacing.rate(self.now, (self.used as u64, LOG as u64), progress);
                let rate = rate.map_or(self.offered, |rate| self.offered.min(rate as f64));
                self.used += rate * dt;
                admitted += rate * dt;
                assert!(self.used <= LOG, "the log is never full");
            }
            admitted
        }
    }

    #[test]
    fn rate_is_free_until_the_debt_and_then_goes_over_to_what_home_takes() {
        let cases = [(4.0, 50.0, 1.0), (0.8, 20.0, 1.0), (30.0, 100.0, 1.0), (4.0, 50.0, 3.0), (4.0, 50.0, 0.3)];
        for (drain, offered, burst) in cases {
            let (drain, offered) = (drain * MIB, offered * MIB);
            let mut model = Model { burst, ..Model::new(drain, offered) };
            let fast: Vec<f64> = (0..).map(|_| model.second()).take_while(|rate| *rate > 0.99 * offered).collect();
            let sent = fast.iter().sum::<f64>();
            assert!(sent > 0.25 * LOG, "{} MiB went at once", sent / MIB);
            let (least, most) = if burst == 1.0 { (0.7, 1.3) } else { (0.6, 1.5) };
            // It settles within the time of two rounds, and then stays for five.
            let round = (0.4 * LOG / drain) as usize;
            for _ in 0..2 * round {
                model.second();
            }
            for second in 0..5 * round {
                let rate = model.second();
                assert!((least * drain..most * drain).contains(&rate), "{} MiB/s in second {second}", rate / MIB);
            }
        }
    }

    #[test]
    fn first_paced_round_admits_what_home_takes_and_not_half() {
        let mut model = Model::new(4.0 * MIB, 400.0 * MIB);
        let mut paced = Vec::new();
        while paced.len() < 100 {
            let rate = model.second();
            if rate < 0.5 * model.offered {
                paced.push(rate);
            }
        }
        let least = paced[5..].iter().copied().fold(f64::MAX, f64::min);
        assert!(least > 0.7 * model.drain, "{} MiB/s", least / MIB);
    }

    /// Sequential writes, of which a disk takes many times more, end and random ones follow.
    #[test]
    fn home_that_becomes_much_slower_fills_no_log_and_keeps_its_rate() {
        for fast in [20.0, 150.0, 250.0] {
            let mut model = Model::new(fast * MIB, 2.0 * fast * MIB);
            for _ in 0..30 {
                model.second();
            }
            model.drain = 0.8 * MIB;
            let rates: Vec<f64> = (0..1200).map(|_| model.second()).collect();
            let least = rates[300..].iter().copied().fold(f64::MAX, f64::min);
            assert!(least > 0.5 * model.drain, "{} MiB/s after {fast}", least / MIB);
        }
    }

    #[test]
    fn load_below_the_drain_rate_is_never_paced() {
        let mut model = Model::new(10.0 * MIB, 8.0 * MIB);
        for _ in 0..600 {
            let rate = model.second();
            assert!((rate - model.offered).abs() < MIB / 100.0, "{} MiB/s", rate / MIB);
        }
    }

    #[test]
    fn home_that_stands_still_ends_admission_before_the_log_is_full() {
        let mut model = Model::new(4.0 * MIB, 40.0 * MIB);
        for _ in 0..60 {
            model.second();
        }
        model.drain = 0.0;
        let rates: Vec<f64> = (0..300).map(|_| model.second()).collect();
        assert!(rates[250..].iter().all(|rate| *rate <= 0.6 * MIB), "{:?}", &rates[290..]);
    }
}
