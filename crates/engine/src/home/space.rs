//! Free AUs and slots, and those pending free: dropped by an owner and not free yet.
//!
//! `round` takes runs and drops numbers; the flip seals the numbers that a round dropped; reads hold them back. Neither
//! map is ever written to the device: mount derives both from the pages that the checkpoint names.
//!
//! Invariant (R8): a number is in exactly one of three states: free, owned, pending free. It becomes free only when the
//! checkpoint that dropped it is durable and no read that looked it up is in flight.

use std::collections::{BTreeMap, VecDeque};

/// Most free runs that are examined before the longest of them is taken.
const CANDIDATES_MAX: usize = 16;

/// A free map with a second level, so that a full device is searched in microseconds.
pub(super) struct FreeMap {
    /// A set bit means that the number is free.
    words: Vec<u64>,
    /// A set bit means that this word of `words` is not zero.
    summary: Vec<u64>,
    len: u32,
    free: u32,
    /// Start of the next search: allocation goes round the device, so freed runs have time to grow.
    cursor: u32,
    /// The next search starts at the number that was freed last.
    at_once: bool,
}

impl FreeMap {
    /// Creates a map of `len` numbers, all free.
    pub(super) fn new(len: u32, at_once: bool) -> FreeMap {
        let fill = |bits: usize| {
            let mut words = vec![u64::MAX; bits.div_ceil(64)];
            if !bits.is_multiple_of(64) {
                words[bits / 64] = (1 << (bits % 64)) - 1;
            }
            words
        };
        let words = fill(len as usize);
        let summary = fill(words.len());
        FreeMap { words, summary, len, free: len, cursor: 0, at_once }
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free
    }

    pub(super) fn is_free(&self, n: u32) -> bool {
        assert!(n < self.len, "{n} of {}", self.len);
        self.words[n as usize / 64] >> (n % 64) & 1 == 1
    }

    /// Takes this very number; `false` when it is not free (mount: it has another owner).
    pub(super) fn claim(&mut self, n: u32) -> bool {
        let free = self.is_free(n);
        if free {
            let word = n as usize / 64;
            self.words[word] &= !(1 << (n % 64));
            if self.words[word] == 0 {
                self.summary[word / 64] &= !(1 << (word % 64));
            }
            self.free -= 1;
        }
        free
    }

    /// Frees `n`.
    pub(super) fn release(&mut self, n: u32) {
        assert!(!self.is_free(n), "{n} is free already");
        let word = n as usize / 64;
        self.words[word] |= 1 << (n % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.free += 1;
        if self.at_once {
            self.cursor = n;
        }
    }

    /// Takes up to `want` adjacent numbers, at `near` if that is free. `None` only when no number is free.
    pub(super) fn take_run(&mut self, want: u32, near: Option<u32>) -> Option<(u32, u32)> {
        assert!(want > 0, "a run of nothing");
        let start = match near {
            Some(n) if n < self.len && self.is_free(n) => n,
            _ => self.search(want)?,
        };
        let count = self.run_len(start, want);
        for n in start..start + count {
            assert!(self.claim(n), "{n} was free a moment ago");
        }
        self.cursor = (start + count) % self.len;
        Some((start, count))
    }

    /// Finds the first run of at least `want` after the cursor, or the longest of the first few.
    fn search(&self, want: u32) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        let mut at = self.cursor;
        let mut wrapped = false;
        for _ in 0..CANDIDATES_MAX {
            let Some(start) = self.next_free(at) else {
                if wrapped {
                    break;
                }
                (wrapped, at) = (true, 0);
                continue;
            };
            if wrapped && start >= self.cursor {
                break;
            }
            let count = self.run_len(start, want);
            if count >= want {
                return Some(start);
            }
            if best.is_none_or(|(_, longest)| count > longest) {
                best = Some((start, count));
            }
            at = start + count;
        }
        best.map(|(start, _)| start)
    }

    fn next_free(&self, from: u32) -> Option<u32> {
        if from >= self.len {
            return None;
        }
        let word = from as usize / 64;
        let here = self.words[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word as u32 * 64 + here.trailing_zeros());
        }
        let next = word + 1;
        let mut group = next / 64;
        let mut bits = self.summary.get(group)? & (u64::MAX << (next % 64));
        while bits == 0 {
            group += 1;
            bits = *self.summary.get(group)?;
        }
        let word = group * 64 + bits.trailing_zeros() as usize;
        Some(word as u32 * 64 + self.words[word].trailing_zeros())
    }

    /// Returns the length of the free run at `start`, at most `max`.
    fn run_len(&self, start: u32, max: u32) -> u32 {
        let mut count = 0;
        while count < max && start + count < self.len {
            let at = start + count;
            let ones = (self.words[at as usize / 64] >> (at % 64)).trailing_ones();
            count += ones;
            if ones < 64 - at % 64 {
                break;
            }
        }
        count.min(max)
    }
}

/// Numbers that one round has dropped.
#[derive(Default)]
pub(super) struct Dropped {
    pub(super) aus: Vec<u32>,
    pub(super) slots: Vec<u32>,
}

/// Pending-free space: numbers that are dropped and not free yet.
#[derive(Default)]
pub(super) struct PendingFree {
    /// Numbers dropped by the running round, whose checkpoint is not durable.
    open: Dropped,
    /// Numbers dropped by durable rounds, oldest first, each with the lookup clock at its flip.
    sealed: VecDeque<(u64, Dropped)>,
    au_count: u32,
    slot_count: u32,
}

impl PendingFree {
    pub(super) fn drop_au(&mut self, au: u32) {
        self.open.aus.push(au);
        self.au_count += 1;
    }

    pub(super) fn drop_slot(&mut self, slot: u32) {
        self.open.slots.push(slot);
        self.slot_count += 1;
    }

    pub(super) fn au_count(&self) -> u32 {
        self.au_count
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Seals the numbers that a durable checkpoint dropped: they only wait for reads looked up before `clock`.
    pub(super) fn seal(&mut self, clock: u64) {
        let dropped = std::mem::take(&mut self.open);
        if !(dropped.aus.is_empty() && dropped.slots.is_empty()) {
            self.sealed.push_back((clock, dropped));
        }
    }

    /// Releases numbers that may be reused when the oldest read in flight was looked up at `oldest`.
    pub(super) fn release(&mut self, oldest: Option<u64>) -> Option<Dropped> {
        let (clock, _) = self.sealed.front()?;
        if oldest.is_some_and(|looked_up| looked_up < *clock) {
            return None;
        }
        let (_, dropped) = self.sealed.pop_front()?;
        self.au_count -= dropped.aus.len() as u32;
        self.slot_count -= dropped.slots.len() as u32;
        Some(dropped)
    }

    /// Returns all pending-free numbers, for the audit.
    pub(super) fn all(&self) -> impl Iterator<Item = &Dropped> {
        self.sealed.iter().map(|(_, dropped)| dropped).chain([&self.open])
    }
}

/// Reads in flight, counted by the lookup clock at their lookup.
#[derive(Default)]
pub(super) struct Readers(BTreeMap<u64, u32>);

impl Readers {
    pub(super) fn enter(&mut self, clock: u64) {
        *self.0.entry(clock).or_default() += 1;
    }

    pub(super) fn leave(&mut self, clock: u64) {
        let count = self.0.get_mut(&clock).expect("a read leaves once, where it entered");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&clock);
        }
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::rng::Rng;

    #[test]
    fn a_number_is_taken_once_until_it_is_released() {
        for len in [1, 63, 64, 65, 4096, 4097, 70_000] {
            let mut map = FreeMap::new(len, false);
            let mut seen = vec![false; len as usize];
            let mut rng = Rng::new(u64::from(len));
            while let Some((start, count)) = map.take_run(rng.between(1, 256) as u32, None) {
                for n in start..start + count {
                    assert!(!std::mem::replace(&mut seen[n as usize], true), "{n} twice");
                }
            }
            assert!(seen.iter().all(|s| *s) && map.free_count() == 0);
            map.release(len / 2);
            assert_eq!(map.take_run(5, None), Some((len / 2, 1)));
        }
    }

    #[test]
    fn a_run_is_contiguous_where_space_allows() {
        let mut map = FreeMap::new(1024, false);
        assert_eq!(map.take_run(256, None), Some((0, 256)));
        assert_eq!(map.take_run(8, Some(256)), Some((256, 8)));
        assert_eq!(map.take_run(8, Some(0)), Some((264, 8)), "a taken hint is no obstacle");
        for n in [3, 10, 11, 12, 40] {
            map.release(n);
        }
        map.cursor = 0;
        assert_eq!(map.take_run(3, None), Some((10, 3)), "the run that is long enough wins");
    }

    #[test]
    fn random_use_keeps_the_two_levels_equal_to_a_plain_list() {
        let (mut map, mut plain, mut rng) = (FreeMap::new(9000, false), vec![true; 9000], Rng::new(7));
        for _ in 0..20_000 {
            if rng.chance(1, 2) {
                if let Some((start, count)) = map.take_run(rng.between(1, 40) as u32, None) {
                    for n in start..start + count {
                        assert!(std::mem::replace(&mut plain[n as usize], false), "{n} was not free");
                    }
                }
            } else {
                let n = rng.below(9000) as u32;
                if !plain[n as usize] {
                    map.release(n);
                    plain[n as usize] = true;
                }
            }
        }
        assert_eq!(map.free_count() as usize, plain.iter().filter(|f| **f).count());
        assert!((0..9000).all(|n| map.is_free(n) == plain[n as usize]));
    }

    #[test]
    fn what_was_freed_last_is_taken_first_where_that_is_wanted() {
        let mut map = FreeMap::new(64, true);
        assert_eq!(map.take_run(32, None), Some((0, 32)));
        map.release(7);
        assert_eq!(map.take_run(1, None), Some((7, 1)));
        let mut round = FreeMap::new(64, false);
        assert_eq!(round.take_run(32, None), Some((0, 32)));
        round.release(7);
        assert_eq!(round.take_run(1, None), Some((32, 1)), "space is used round the device");
    }

    #[test]
    fn pending_free_waits_for_the_flip_and_for_reads_that_looked_up_before_it() {
        let (mut pending_free, mut readers) = (PendingFree::default(), Readers::default());
        pending_free.drop_au(4);
        readers.enter(1);
        assert!(pending_free.release(None).is_none(), "not durable");
        pending_free.seal(2);
        readers.enter(2);
        assert!(pending_free.release(readers.oldest()).is_none(), "the read of clock 1 may still use it");
        readers.leave(1);
        assert_eq!(pending_free.release(readers.oldest()).unwrap().aus, [4]);
        assert_eq!(pending_free.au_count(), 0);
    }
}
