//! Finds a node that takes steps for ever while simulated time stands still.
//!
//! Many steps at one moment are no livelock while a destage round moves: with a drawn step of one block, a round takes each block of a volume
//! that was wiped in a step of its own.

use engine::RoundLeft;

/// Number of steps at one moment in which no destage round moves that are still no livelock.
const STILL_STEPS_MAX: u32 = 200_000;
/// Number of all steps at one moment that are still no livelock. A round may take, block by block, the 64 chunks of each generation that was wiped in each of three
/// volumes.
const STEPS_AT_ONCE_MAX: u32 = 16 * 3 * 64 * 4096;
/// Number of steps at one moment between two looks at the rounds.
const STEPS_PER_ROUND_LOOK: u32 = 1024;

/// Counters of the steps at one moment.
#[derive(Debug, Default)]
pub(crate) struct Livelock {
    steps: u32,
    /// The rest of each OSD's round at the last look, and the step at which a look last saw a change.
    rounds: Vec<RoundLeft>,
    moved: u32,
}

impl Livelock {
    /// Counts a step after which simulated time `stands` still, or not. `rounds`: what is left of each OSD's round.
    pub fn stepped(&mut self, stands: bool, rounds: impl FnOnce() -> Vec<RoundLeft>) -> Result<(), String> {
        if !stands {
            *self = Livelock::default();
            return Ok(());
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_ROUND_LOOK) {
            let rounds = rounds();
            if rounds != self.rounds {
                (self.rounds, self.moved) = (rounds, self.steps);
            }
        }
        if self.steps - self.moved > STILL_STEPS_MAX || self.steps > STEPS_AT_ONCE_MAX {
            return Err(format!(
                "a node turns without progress: {} steps, and rounds moved at the {}th",
                self.steps, self.moved
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many steps at one moment `rounds` count as a livelock.
    fn steps_until_livelock(rounds: impl Fn(u64) -> RoundLeft) -> u64 {
        let mut livelock = Livelock::default();
        (1..)
            .find(|step| livelock.stepped(true, || vec![None, rounds(*step)]).is_err())
            .expect("each livelock is found")
    }

    #[test]
    fn steps_without_a_round_or_with_one_that_stands_still_are_a_livelock() {
        let looks = u64::from(STILL_STEPS_MAX + STEPS_PER_ROUND_LOOK);
        assert_eq!(steps_until_livelock(|_| None), looks + 1);
        assert_eq!(steps_until_livelock(|_| Some([3, 64, 4096, 0])), looks + 1);
        assert_eq!(steps_until_livelock(|step| Some([3, 0, 600_000_u64.saturating_sub(step), 0])).div_ceil(looks), 4);
    }

    #[test]
    fn a_round_that_moves_is_none_until_no_round_needs_so_many_steps() {
        assert_eq!(steps_until_livelock(|step| Some([3, step, 0, 0])), u64::from(STEPS_AT_ONCE_MAX) + 1);
        let mut livelock = Livelock::default();
        for step in 0..2 * STEPS_AT_ONCE_MAX {
            assert!(livelock.stepped(step % STILL_STEPS_MAX != 0, || vec![None]).is_ok(), "time moves between");
        }
    }
}
