//! Busy polling: a thread that soon gets its next completion looks for it instead of sleeping, which saves the wake of a core.
//!
//! It is opt-in and bounded, and it adapts: waits that end within the bound double the time of polling, and one that takes longer ends it. So
//! a process does not poll while its waits are longer than the bound, as those of an idle one are.

use std::time::Duration;

/// The first polls after a short wait last so many times less than the bound.
const FIRST: u32 = 8;

/// Time for which the next wait begins with polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BusyPoll {
    /// Zero: never.
    max: Duration,
    window: Duration,
}

impl BusyPoll {
    pub fn new(max: Duration) -> BusyPoll {
        BusyPoll { max, window: Duration::ZERO }
    }

    pub fn is_on(&self) -> bool {
        !self.max.is_zero()
    }

    pub fn window(&self) -> Duration {
        self.window
    }

    /// Notes how long a wait took, polling included.
    pub fn note(&mut self, waited: Duration) {
        self.window = match waited <= self.max {
            true => (self.window * 2).clamp(self.max / FIRST, self.max),
            false => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_let_it_poll_up_to_the_bound_and_a_long_one_ends_that() {
        let us = Duration::from_micros;
        let mut poll = BusyPoll::new(us(80));
        assert_eq!(poll.window(), Duration::ZERO);
        let windows = [80, 30, 1, 80, 5].map(|waited| {
            poll.note(us(waited));
            poll.window()
        });
        assert_eq!(windows, [10, 20, 40, 80, 80].map(us));
        poll.note(us(81));
        assert_eq!(poll.window(), Duration::ZERO);
    }

    #[test]
    fn without_a_bound_it_is_off() {
        let mut poll = BusyPoll::new(Duration::ZERO);
        poll.note(Duration::ZERO);
        assert!(!poll.is_on() && poll.window().is_zero());
    }
}
