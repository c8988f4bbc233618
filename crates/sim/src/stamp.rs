//! Stamps: the simulator writes one into each sector, so that a read can say which write it saw.
//!
//! The 512 bytes are: magic, volume, sector, stamp, then bytes drawn from the stamp, then a hash over all of it. The
//! hash is no CRC32C: bytes that end with their own CRC all have the same CRC, and the system's checksums would tell no
//! two sectors apart.
//!
//! A sector that mixes two writes, belongs elsewhere, or holds old bytes of a reused AU does not decode as the
//! requested sector.
//!
//! A forged sector (see `forge`) begins with the head of a log batch; its stamp lies behind that.

use types::rng::Rng;
use types::units::SECTOR;

const MAGIC: u64 = 0x6d69_735f_746c_6173;
const LEN: usize = SECTOR as usize;
/// Offset of the stamp in a forged sector.
pub const FORGED_AT: usize = 256;
/// Number of bytes of a sector that are enough to [`peek`].
pub const PEEK_LEN: usize = FORGED_AT + 32;

fn hash(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, word: &[u8]| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    bytes.chunks_exact(8).fold(0x1234_5678, fold)
}

/// Fills `out` (one sector).
pub fn write(out: &mut [u8], volume: u64, sector: u64, stamp: u64) {
    fill(out, 0, (volume, sector, stamp));
}

/// Fills `out` (one sector) so that it begins with `head`.
pub fn forge(out: &mut [u8], volume: u64, sector: u64, stamp: u64, head: &[u8]) {
    assert!(head.len() <= FORGED_AT && head.starts_with(&layout::log::MAGIC), "the head of a batch");
    out[..FORGED_AT].fill(0);
    out[..head.len()].copy_from_slice(head);
    fill(out, FORGED_AT, (volume, sector, stamp));
}

fn fill(out: &mut [u8], at: usize, (volume, sector, stamp): (u64, u64, u64)) {
    assert_eq!(out.len(), LEN, "one sector");
    for (i, word) in [MAGIC, volume, sector, stamp].into_iter().enumerate() {
        out[at + i * 8..at + i * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = Rng::new(stamp ^ sector.rotate_left(32));
    for chunk in out[at + 32..LEN - 8].chunks_exact_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let sum = hash(&out[..LEN - 8]);
    out[LEN - 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Returns (volume, sector, stamp) of bytes that look like a stamped sector; only the magic is checked.
pub fn peek(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let at = if bytes.starts_with(&layout::log::MAGIC) { FORGED_AT } else { 0 };
    let word = |i: usize| u64::from_le_bytes(bytes[at + i * 8..at + i * 8 + 8].try_into().expect("eight bytes"));
    (word(0) == MAGIC).then(|| (word(1), word(2), word(3)))
}

/// Returns the stamp of one sector; `None` for zeros.
///
/// # Errors
/// The sector is torn, mixed, or belongs to another place.
pub fn read(bytes: &[u8], volume: u64, sector: u64) -> Result<Option<u64>, String> {
    assert_eq!(bytes.len(), LEN, "one sector");
    if bytes.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let sum = u64::from_le_bytes(bytes[LEN - 8..].try_into().expect("eight bytes"));
    let Some((of, at, stamp)) = peek(bytes).filter(|_| sum == hash(&bytes[..LEN - 8])) else {
        return Err("holds bytes that were not written as one sector".to_owned());
    };
    if (of, at) != (volume, sector) {
        return Err(format!("holds volume {of} sector {at}, written with {stamp}"));
    }
    Ok(Some(stamp))
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_stamps_have_two_checksums() {
        let (mut a, mut b) = ([0u8; 512], [0u8; 512]);
        super::write(&mut a, 1, 7, 3);
        super::write(&mut b, 1, 7, 4);
        assert_ne!(types::crc32c(&a), types::crc32c(&b));
    }

    #[test]
    fn a_mixed_or_foreign_sector_is_recognised() {
        let (mut a, mut b) = ([0u8; 512], [0u8; 512]);
        assert_eq!(super::read(&a, 1, 7), Ok(None));
        super::write(&mut a, 1, 7, 3);
        super::write(&mut b, 1, 7, 4);
        assert_eq!(super::read(&a, 1, 7), Ok(Some(3)));
        assert!(super::read(&a, 2, 7).is_err());
        assert!(super::read(&a, 1, 8).is_err());
        a[256..].copy_from_slice(&b[256..]);
        assert!(super::read(&a, 1, 7).is_err());
    }
}
