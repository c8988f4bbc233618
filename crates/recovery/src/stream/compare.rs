//! Comparison of a window of older contents with the leader's (R12, ADR 0019).
//!
//! The leader makes digests of its blocks; the follower makes its own and judges each AU of the window. Sans-IO.
//!
//! Invariant: equal digests mean equal bytes. The stream's number is the seed, drawn by the leader's OSD, so a
//! tenant cannot choose two blocks of one digest. CRC32C would not do: data that ends in its own CRC has one CRC.

use bytes::{Bytes, BytesMut};
use types::planted::{Bug, on};
use types::units::{BLOCKS_PER_AU, SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{BLOCK, SectorRange};
use wire::DIGEST_LEN;

const PER_AU: usize = BLOCKS_PER_AU as usize;
const ZEROS: [u8; DIGEST_LEN] = [0; DIGEST_LEN];
/// Digest of a block that is open: it is not sent, and an older generation shows.
const OPEN: [u8; DIGEST_LEN] = [0xff; DIGEST_LEN];
static ZERO_BLOCK: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Whether the block is not all zeros.
pub(crate) fn is_data(block: &[u8]) -> bool {
    block != ZERO_BLOCK
}

/// Returns the digests of whole blocks, one after another. A block of zeros has a digest of zeros.
pub(crate) fn digests(seed: u64, payload: &[u8]) -> Bytes {
    let mut all = BytesMut::with_capacity(payload.len() / BLOCK as usize * DIGEST_LEN);
    for block in payload.chunks_exact(BLOCK as usize) {
        // The values of zeros, and of an open block, are taken.
        all.extend_from_slice(&match is_data(block) {
            true => twox_hash::XxHash3_128::oneshot_with_seed(seed, block).clamp(1, u128::MAX - 1).to_le_bytes(),
            false => ZEROS,
        });
    }
    all.freeze()
}

/// Returns the digests of blocks of which some are a chunk's own; bit 0 is the first. The others are open.
pub(crate) fn digests_of_own(seed: u64, payload: &[u8], own: u128) -> Bytes {
    let mut all = BytesMut::from(&digests(seed, payload)[..]);
    let open = all.chunks_exact_mut(DIGEST_LEN).enumerate().filter(|(n, _)| own >> n & 1 == 0);
    open.for_each(|(_, digest)| digest.copy_from_slice(&OPEN));
    all.freeze()
}

fn digest(all: &[u8], n: usize) -> &[u8] {
    &all[n * DIGEST_LEN..(n + 1) * DIGEST_LEN]
}

/// Whether block `n` of the digests has bytes that are not all zeros.
pub(crate) fn has_data(all: &[u8], n: usize) -> bool {
    let digest = digest(all, n);
    digest != ZEROS && digest != OPEN
}

/// Whether block `n` of the digests is zeros, and not open.
pub(crate) fn is_zeros(all: &[u8], n: usize) -> bool {
    digest(all, n) == ZEROS
}

/// Result of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// AUs of the chunk that are equal as a whole.
    pub equal: Vec<u32>,
    /// Equal blocks in other AUs: their bytes are staged from here.
    pub copy: Vec<SectorRange>,
    /// Blocks that the leader must send; bit 0 is the first of the window.
    pub wants: u128,
    /// Blocks that become zero marks.
    pub zeros: Vec<SectorRange>,
}

/// Compares the leader's digests from sector `start` on, where an AU begins, with ours. `None`: ours cannot be read. `marks`: zeros hide
/// older generations. Then an AU in which not every block has bytes is not kept: ours says of a block what a read of it shows, and not
/// that it is a mark.
pub(crate) fn judge(start: u32, theirs: &[u8], ours: Option<&[u8]>, marks: bool) -> Judged {
    let mut judged = Judged::default();
    let count = theirs.len() / DIGEST_LEN;
    let is_equal = |n: usize| ours.is_some_and(|ours| digest(ours, n) == digest(theirs, n));
    for first in (0..count).step_by(PER_AU) {
        let mut blocks = first..count.min(first + PER_AU);
        let whole = if on(Bug::KeptByFirstBlock) { is_equal(first) } else { blocks.clone().all(is_equal) };
        if marks {
            let zeros = blocks.clone().filter(|n| is_zeros(theirs, *n));
            zeros.for_each(|n| push_block(&mut judged.zeros, start + n as u32 * SECTORS_PER_BLOCK));
        }
        if !blocks.clone().any(|n| has_data(theirs, n)) {
            continue;
        }
        if whole && (!marks || blocks.clone().all(|n| has_data(theirs, n))) {
            judged.equal.push(start / SECTORS_PER_AU + (first / PER_AU) as u32);
            continue;
        }
        for n in blocks.by_ref().filter(|n| has_data(theirs, *n)) {
            match is_equal(n) {
                true => push_block(&mut judged.copy, start + n as u32 * SECTORS_PER_BLOCK),
                false => judged.wants |= 1 << n,
            }
        }
    }
    judged
}

/// Adds the block that begins at sector `at` to the runs.
pub(crate) fn push_block(runs: &mut Vec<SectorRange>, at: u32) {
    match runs.last_mut().filter(|run| run.end() == at) {
        Some(run) => run.count += SECTORS_PER_BLOCK,
        None => runs.push(SectorRange::new(at, SECTORS_PER_BLOCK)),
    }
}

/// Returns the runs of the blocks in `blocks`, whose first bit is the block at sector `start`.
pub(crate) fn runs_of(start: u32, blocks: u128) -> Vec<SectorRange> {
    let mut runs = Vec::new();
    (0..u128::BITS).filter(|n| blocks >> n & 1 == 1).for_each(|n| push_block(&mut runs, start + n * SECTORS_PER_BLOCK));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(stamps: [u8; 48]) -> Vec<u8> {
        stamps.iter().flat_map(|stamp| [*stamp; BLOCK as usize]).collect()
    }

    #[test]
    fn equal_aus_are_kept_and_only_other_blocks_are_wanted() {
        let mut theirs = [1u8; 48];
        (theirs[16..20]).fill(0);
        theirs[40] = 0;
        let mut ours = theirs;
        (ours[33], ours[34], ours[40]) = (9, 0, 7);
        let [a, b] = [theirs, ours].map(|w| digests(7, &window(w)));
        let judged = judge(1024, &a, Some(&b), false);
        assert_eq!(judged.equal, [8, 9], "the second AU has zeros in both");
        assert_eq!(judged.wants, 1 << 33 | 1 << 34, "a block that is zeros there is not wanted");
        let copied: u32 = judged.copy.iter().map(|run| run.count / SECTORS_PER_BLOCK).sum();
        assert_eq!(copied, 13, "16 blocks without two that differ and one that is zeros");
        let all = judge(1024, &a, None, false);
        assert!(all.equal.is_empty() && all.copy.is_empty() && all.wants.count_ones() == 48 - 5);
        assert_eq!(runs_of(8, 0b1011), [SectorRange::new(8, 16), SectorRange::new(32, 8)]);
        assert_ne!(digests(7, &window(theirs)), digests(8, &window(theirs)), "the seed counts");
    }

    #[test]
    fn open_blocks_are_not_wanted_and_zeros_become_marks() {
        let theirs = [1u8; 48];
        let mut ours = theirs;
        ours[5] = 9;
        let own = u128::MAX ^ 0b11 << 4 ^ 1 << 40;
        let mut zeroed = theirs;
        (zeroed[7], zeroed[33]) = (0, 0);
        let a = digests_of_own(7, &window(zeroed), own);
        let b = digests(7, &window(ours));
        let judged = judge(1024, &a, Some(&b), true);
        assert_eq!(judged.equal, [9], "an AU with an open block, or a mark, is not kept as it is");
        assert_eq!(judged.wants, 0, "what differs is open there");
        assert_eq!(judged.zeros, runs_of(1024, 1 << 7 | 1 << 33));
        let copied: u32 = judged.copy.iter().map(|run| run.count / SECTORS_PER_BLOCK).sum();
        assert_eq!(copied, 32 - 2 - 1 - 1 - 1, "open blocks are not copied");
        assert!(!has_data(&a, 4) && !is_zeros(&a, 4));
    }

    /// Blocks of one CRC32C, as ext4's extent blocks are: each ends in the CRC of the rest.
    #[test]
    fn blocks_that_end_in_their_own_crc_have_different_digests() {
        let block = |stamp: u8| {
            let mut block = vec![stamp; BLOCK as usize];
            let crc = types::crc32c(&block[..BLOCK as usize - 4]);
            block[BLOCK as usize - 4..].copy_from_slice(&crc.to_le_bytes());
            block
        };
        assert_eq!(types::crc32c(&block(1)), types::crc32c(&block(2)), "CRC32C cannot tell them apart");
        assert_ne!(digests(7, &block(1)), digests(7, &block(2)));
    }
}
