//! Numbers that are given out in order and come back in any order, and the lowest one that is not back.
//!
//! They are the sequence numbers of a PG; the lowest is the watermark (R7).

use std::collections::VecDeque;

/// Invariant: every number below `low` is back; `back[0]`, if there is one, is not.
#[derive(Debug)]
pub(crate) struct Ring {
    low: u64,
    back: VecDeque<bool>,
}

impl Ring {
    /// Makes a ring of numbers from 1.
    pub fn new() -> Ring {
        Ring { low: 1, back: VecDeque::new() }
    }

    /// Returns the lowest number that is not back; the next one to be given when all are.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Returns the next number that will be given out.
    pub fn next(&self) -> u64 {
        self.low + self.back.len() as u64
    }

    pub fn give(&mut self) -> u64 {
        let number = self.next();
        self.back.push_back(false);
        number
    }

    pub fn take_back(&mut self, number: u64) {
        assert!(number >= self.low && number < self.next(), "{number} is not out: {}..{}", self.low, self.next());
        let at = (number - self.low) as usize;
        assert!(!self.back[at], "{number} came back twice");
        self.back[at] = true;
        while self.back.front() == Some(&true) {
            self.back.pop_front();
            self.low += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_mark_waits_for_the_oldest_number() {
        let mut ring = Ring::new();
        assert_eq!([ring.give(), ring.give(), ring.give()], [1, 2, 3]);
        ring.take_back(2);
        assert_eq!((ring.low(), ring.next()), (1, 4));
        ring.take_back(1);
        assert_eq!((ring.low(), ring.next()), (3, 4));
        ring.take_back(3);
        assert_eq!((ring.low(), ring.next()), (4, 4));
    }
}
