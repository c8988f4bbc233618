//! Sequence numbers of a session that have taken effect (R7).
//!
//! `decision` calls this module at apply. Invariant: a number is fresh once, on every replica alike. A number below
//! the watermark is remembered as "done", a number 256 or more above it is refused.

use types::limits::SESSION_WINDOW;
use types::planted::{Bug, on};

const WORDS: usize = (SESSION_WINDOW / 64) as usize;

/// State of an entry's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Never seen before: the entry takes effect.
    Fresh,
    /// The entry took effect before, or was given up.
    Duplicate,
    /// The client ran ahead of its own watermark.
    Beyond,
}

/// The watermark, and one bit for each of the 256 numbers from it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Window {
    pub watermark: u64,
    pub bits: [u64; WORDS],
}

impl Window {
    /// Raises the watermark, then notes `seq`.
    pub fn take(&mut self, seq: u64, watermark: u64) -> Seen {
        self.raise(watermark);
        let Some(offset) = seq.checked_sub(self.watermark) else {
            return if on(Bug::DuplicateAppliedTwice) { Seen::Fresh } else { Seen::Duplicate };
        };
        if offset >= SESSION_WINDOW {
            return Seen::Beyond;
        }
        let (word, bit) = ((offset / 64) as usize, 1u64 << (offset % 64));
        if self.bits[word] & bit != 0 && !on(Bug::DuplicateAppliedTwice) {
            return Seen::Duplicate;
        }
        self.bits[word] |= bit;
        Seen::Fresh
    }

    /// Moves the window up; it never moves down.
    fn raise(&mut self, watermark: u64) {
        let by = watermark.saturating_sub(self.watermark);
        if by == 0 {
            return;
        }
        let old = self.bits;
        self.bits = [0; WORDS];
        self.watermark = watermark;
        if by >= SESSION_WINDOW {
            return;
        }
        let by = by - u64::from(on(Bug::WindowOffByOne));
        let (words, bits) = ((by / 64) as usize, by % 64);
        for to in 0..WORDS - words {
            let low = old[to + words] >> bits;
            let high = if bits > 0 && to + words + 1 < WORDS { old[to + words + 1] << (64 - bits) } else { 0 };
            self.bits[to] = low | high;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use types::rng::Rng;

    #[test]
    fn a_number_is_fresh_once_and_only_inside_the_window() {
        let mut w = Window::default();
        for (seq, watermark, want) in [
            (0, 0, Seen::Fresh),
            (0, 0, Seen::Duplicate),
            (255, 0, Seen::Fresh),
            (256, 0, Seen::Beyond),
            (256, 1, Seen::Fresh),
            (0, 0, Seen::Duplicate),
            (255, 1, Seen::Duplicate),
            (64, 64, Seen::Fresh),
            (300, 200, Seen::Fresh),
            (256, 100, Seen::Duplicate),
            (199, 0, Seen::Duplicate),
            (10_000, 10_000, Seen::Fresh),
            (10_000, 0, Seen::Duplicate),
            (9_999, 0, Seen::Duplicate),
            (u64::MAX, 10_000, Seen::Beyond),
        ] {
            assert_eq!(w.take(seq, watermark), want, "seq {seq} watermark {watermark}");
        }
    }

    #[test]
    fn the_window_agrees_with_a_set_of_all_numbers_ever_taken() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut window, mut taken, mut watermark) = (Window::default(), BTreeSet::new(), 0u64);
            for _ in 0..2000 {
                watermark += if rng.chance(1, 8) { rng.below(90) } else { 0 };
                let seq = (watermark + rng.below(300)).saturating_sub(20);
                let want = if seq < watermark || taken.contains(&seq) {
                    Seen::Duplicate
                } else if seq >= watermark + SESSION_WINDOW {
                    Seen::Beyond
                } else {
                    taken.insert(seq);
                    Seen::Fresh
                };
                assert_eq!(window.take(seq, watermark), want, "seed {seed} seq {seq} watermark {watermark}");
            }
        }
    }
}
