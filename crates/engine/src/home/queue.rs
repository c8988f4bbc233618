//! The order in which the writes of a round go to a rotating disk (ADR 0035).
//!
//! Input: all writes of a round, in the order of staging. Output: the same bytes at the same places in ascending order, adjacent writes joined. So the
//! disk crosses its surface once for a round.
//!
//! Invariant: no two writes of a round overlap, so every order of them leaves the same bytes. The round's flush follows the last of them, as in any other order (R8).

use super::round::ReadyWrite;
use std::collections::VecDeque;
use types::planted::{Bug, on};

/// Cost of a write on a rotating disk that has no bytes, in units of the time that it takes for [`COST_BYTES`].
const SEEK_COST: u64 = 8;
const COST_BYTES: u64 = 128 << 10;

/// Returns what a write costs the disk.
pub(super) fn cost(bytes: u64) -> u64 {
    SEEK_COST + bytes.div_ceil(COST_BYTES)
}

/// Sorts the writes of a round by their place, and joins adjacent ones up to `bytes_max`.
///
/// # Panics
/// When two of them overlap.
pub(super) fn ascending(writes: VecDeque<ReadyWrite>, bytes_max: u64) -> VecDeque<ReadyWrite> {
    let mut writes = Vec::from(writes);
    writes.sort_unstable_by_key(|write| write.offset);
    let mut joined: VecDeque<ReadyWrite> = VecDeque::with_capacity(writes.len());
    for write in writes {
        match joined.back_mut() {
            Some(last) if adjoins(last, &write) && last.bytes + write.bytes <= bytes_max => {
                last.bytes += write.bytes;
                last.bufs.extend(write.bufs);
            }
            last => {
                let overlaps = last.is_some_and(|last| last.offset + last.bytes > write.offset);
                assert!(!overlaps || on(Bug::WritesJoinedOverGap), "two writes of a round at {}", write.offset);
                joined.push_back(write);
            }
        }
    }
    joined
}

/// Whether `next` begins where `last` ends.
fn adjoins(last: &ReadyWrite, next: &ReadyWrite) -> bool {
    let end = last.offset + last.bytes;
    end == next.offset || (on(Bug::WritesJoinedOverGap) && end + types::BLOCK == next.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::IoBuf;
    use types::rng::Rng;

    const BLOCK: u64 = types::BLOCK;

    fn write(at: u64, blocks: u64) -> ReadyWrite {
        let buf = |n: u64| IoBuf::copy_of(&[(at + n) as u8; BLOCK as usize]);
        ReadyWrite { offset: at * BLOCK, bufs: (0..blocks).map(buf).collect(), bytes: blocks * BLOCK }
    }

    fn places(writes: &VecDeque<ReadyWrite>) -> Vec<(u64, u64)> {
        writes.iter().map(|write| (write.offset / BLOCK, write.bytes / BLOCK)).collect()
    }

    #[test]
    fn writes_go_up_and_adjacent_ones_are_one() {
        let writes = [write(40, 2), write(9, 1), write(10, 2), write(3, 1), write(42, 1), write(5, 1)];
        let ordered = ascending(writes.into(), 1 << 20);
        assert_eq!(places(&ordered), [(3, 1), (5, 1), (9, 3), (40, 3)]);
        let blocks = ordered[2].bufs.iter().map(|buf| buf[0]).collect::<Vec<_>>();
        assert_eq!(blocks, [9, 10, 11], "each block keeps its place");
    }

    #[test]
    fn joined_write_is_at_most_as_long_as_the_limit() {
        let ordered = ascending((0..7).map(|n| write(n, 1)).collect(), 3 * BLOCK);
        assert_eq!(places(&ordered), [(0, 3), (3, 3), (6, 1)]);
        let long = ascending([write(2, 5), write(0, 2)].into(), 3 * BLOCK);
        assert_eq!(places(&long), [(0, 2), (2, 5)], "a write is never cut");
    }

    #[test]
    fn bytes_and_places_are_those_of_the_writes_in_any_order() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let mut at = 0;
            let mut writes = Vec::new();
            while writes.len() < 40 {
                at += rng.below(3);
                let blocks = rng.between(1, 5);
                writes.push(write(at, blocks));
                at += blocks;
            }
            for n in (1..writes.len()).rev() {
                writes.swap(n, rng.below(n as u64 + 1) as usize);
            }
            let image = |writes: &[ReadyWrite]| {
                let mut image = vec![0u8; 300];
                for write in writes {
                    for (n, buf) in write.bufs.iter().enumerate() {
                        image[(write.offset / BLOCK) as usize + n] = buf[0];
                    }
                }
                image
            };
            let before = image(&writes);
            let ordered = Vec::from(ascending(writes.into(), 16 * BLOCK));
            assert_eq!(image(&ordered), before);
            assert!(ordered.is_sorted_by_key(|write| write.offset));
            assert!(ordered.iter().all(|write| write.bytes == write.bufs.iter().map(|b| b.len() as u64).sum::<u64>()));
        }
    }

    #[test]
    #[should_panic(expected = "two writes of a round")]
    fn overlapping_writes_have_no_order() {
        ascending([write(4, 2), write(5, 1)].into(), 1 << 20);
    }
}
