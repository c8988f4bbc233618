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
static ZERO_BLOCK: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Whether the block is not all zeros.
pub(crate) fn is_data(block: &[u8]) -> bool {
    block != ZERO_BLOCK
}

/// Returns the digests of whole blocks, one after another. A block of zeros has a digest of zeros.
pub(crate) fn digests(seed: u64, payload: &[u8]) -> Bytes {
    let mut all = BytesMut::with_capacity(payload.len() / BLOCK as usize * DIGEST_LEN);
    for block in payload.chunks_exact(BLOCK as usize) {
        // The value of zeros is taken.
        all.extend_from_slice(&match is_data(block) {
            true => twox_hash::XxHash3_128::oneshot_with_seed(seed, block).max(1).to_le_bytes(),
            false => ZEROS,
        });
    }
    all.freeze()
}

fn digest(all: &[u8], n: usize) -> &[u8] {
    &all[n * DIGEST_LEN..(n + 1) * DIGEST_LEN]
}

/// Whether block `n` of the digests is not all zeros.
pub(crate) fn has_data(all: &[u8], n: usize) -> bool {
    digest(all, n) != ZEROS
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
}

/// Compares the leader's digests from sector `start` on, where an AU begins, with ours. `None`: ours cannot be read.
pub(crate) fn judge(start: u32, theirs: &[u8], ours: Option<&[u8]>) -> Judged {
    let mut judged = Judged::default();
    let count = theirs.len() / DIGEST_LEN;
    let is_equal = |n: usize| ours.is_some_and(|ours| digest(ours, n) == digest(theirs, n));
    for first in (0..count).step_by(PER_AU) {
        let mut blocks = first..count.min(first + PER_AU);
        let whole = if on(Bug::KeptByFirstBlock) { is_equal(first) } else { blocks.clone().all(is_equal) };
        if !blocks.clone().any(|n| has_data(theirs, n)) {
            continue;
        }
        if whole {
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
        let judged = judge(1024, &a, Some(&b));
        assert_eq!(judged.equal, [8, 9], "the second AU has zeros in both");
        assert_eq!(judged.wants, 1 << 33 | 1 << 34, "a block that is zeros there is not wanted");
        let copied: u32 = judged.copy.iter().map(|run| run.count / SECTORS_PER_BLOCK).sum();
        assert_eq!(copied, 13, "16 blocks without two that differ and one that is zeros");
        let all = judge(1024, &a, None);
        assert!(all.equal.is_empty() && all.copy.is_empty() && all.wants.count_ones() == 48 - 5);
        assert_eq!(runs_of(8, 0b1011), [SectorRange::new(8, 16), SectorRange::new(32, 8)]);
        assert_ne!(digests(7, &window(theirs)), digests(8, &window(theirs)), "the seed counts");
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
