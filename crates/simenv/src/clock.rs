//! A node's boot clock: an offset and a rate against the world's time.
//!
//! Invariant: it never runs backwards inside one boot; a power cut starts it again.

use types::Time;

/// Widest drift that the simulator draws, in parts per million (design: ±30 %).
pub const DRIFT_PPM_MAX: i64 = 300_000;
const MILLION: i64 = 1_000_000;

/// A node's clock, as a line through the world's time.
#[derive(Clone, Copy, Debug)]
pub struct NodeClock {
    base_global: Time,
    base_local: Time,
    rate_ppm: i64,
}

impl NodeClock {
    /// Creates a clock that shows `local` at the world's `global` and gains `rate_ppm` from then on.
    pub fn new(global: Time, local: Time, rate_ppm: i64) -> NodeClock {
        assert!(rate_ppm > -MILLION, "a clock that stands or runs backwards");
        NodeClock { base_global: global, base_local: local, rate_ppm }
    }

    /// Returns how much the clock gains, in parts per million.
    pub fn rate_ppm(&self) -> i64 {
        self.rate_ppm
    }

    fn per_million(&self) -> u128 {
        (MILLION + self.rate_ppm) as u128
    }

    /// Returns the time that the node sees at the world's `global`.
    pub fn local(&self, global: Time) -> Time {
        let elapsed = u128::from(global.0.saturating_sub(self.base_global.0));
        let shown = elapsed * self.per_million() / MILLION as u128;
        Time(self.base_local.0.saturating_add(u64::try_from(shown).unwrap_or(u64::MAX)))
    }

    /// Returns the first moment of the world at which the node sees `local` or more.
    pub fn global(&self, local: Time) -> Time {
        if local == Time::NEVER {
            return Time::NEVER;
        }
        let ahead = u128::from(local.0.saturating_sub(self.base_local.0));
        let elapsed = (ahead * MILLION as u128).div_ceil(self.per_million());
        Time(self.base_global.0.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drifting_clock_reaches_a_deadline_at_the_first_moment_and_not_before() {
        for ppm in [-DRIFT_PPM_MAX, -1, 0, 1, 17, DRIFT_PPM_MAX] {
            let clock = NodeClock::new(Time(1_000), Time(77_000), ppm);
            for local in [77_000, 77_001, 80_000, 1_000_000_007] {
                let global = clock.global(Time(local));
                assert!(clock.local(global) >= Time(local), "{ppm} {local}");
                if global > Time(1_000) {
                    assert!(clock.local(Time(global.0 - 1)) < Time(local), "{ppm} {local}");
                }
            }
            assert_eq!(clock.global(Time::NEVER), Time::NEVER);
        }
    }
}
