//! Limits of I/O hold (ADR 0032): the leaders of a limited volume serve at most its rate times the time and a stated overshoot,
//! whichever of them lead and whatever its clients hold to.
//!
//! Input: each change of the limit, and counts of all OSDs from time to time. Output: the first count that is too high.
//!
//! The law holds where nothing but the leaders changes, in runs aimed at `LimitedVolumes`: an OSD that starts again has full buckets,
//! and OSDs without a path to each other hold the limit each for itself.

use std::time::Duration;
use types::Time;

/// Time in which each OSD and the holder hear of a change: keepalives leave every two seconds.
const SETTLE: Duration = Duration::from_millis(3_000);
/// Overshoot of each OSD, as time of the rate: the depth of a bucket, the time between two messages, and that of a message.
const OVERSHOOT: Duration = Duration::from_millis(500 + 200 + 300);
/// Requests in flight that one OSD may have admitted before the count began.
const IN_FLIGHT: u64 = 32;

/// The limit in force, in operations per second.
#[derive(Default)]
pub struct Limits {
    rate: Option<(u64, Time)>,
    /// When the count began, and the requests that were served by then.
    from: Option<(Time, u64)>,
}

impl Limits {
    /// Notes that an administrator has set this rate.
    pub fn note(&mut self, now: Time, rate: u64) {
        (self.rate, self.from) = (Some((rate, now)), None);
    }

    /// Returns when the limit was set last.
    pub fn set_at(&self) -> Option<Time> {
        self.rate.map(|(_, at)| at)
    }

    /// Looks at the number of requests that `osds` OSDs have served.
    ///
    /// # Errors
    /// It is too high.
    pub fn look(&mut self, now: Time, served: u64, osds: u64) -> Result<(), String> {
        let Some((rate, at)) = self.rate else { return Ok(()) };
        if now < at + SETTLE {
            return Ok(());
        }
        let (since, before) = *self.from.get_or_insert((now, served));
        let (time, served) = (now.since(since), served - before);
        let during = |time: Duration| u64::try_from(u128::from(rate) * time.as_millis() / 1000).unwrap_or(u64::MAX);
        let max = during(time) * 101 / 100 + osds * (during(OVERSHOOT) + IN_FLIGHT);
        match served > max {
            true => Err(format!("{served} requests in {time:?} of a volume with {rate} IOPS; at most {max}")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn count_above_the_rate_and_its_overshoot_is_found() {
        let mut limits = Limits::default();
        limits.look(at(0), 9_000, 3).expect("there is no limit");
        limits.note(at(1_000), 100);
        limits.look(at(2_000), 9_999, 3).expect("the change is on its way");
        limits.look(at(4_000), 10_000, 3).expect("the count begins");
        // 10 s of 101 a second, and of each of three OSDs a second and 32 requests.
        limits.look(at(14_000), 11_406, 3).expect("the overshoot is used up");
        assert!(limits.look(at(14_000), 11_407, 3).expect_err("one more").contains("1407 requests in 10s"));
        limits.note(at(14_000), 400);
        limits.look(at(15_000), 20_000, 3).expect("another limit is on its way");
        assert_eq!(limits.set_at(), Some(at(14_000)));
    }
}
