//! What the simulator writes into a sector, so that a read can say which write it saw.
//!
//! 512 bytes: magic, volume, sector, stamp, then bytes drawn from the stamp, then a hash over all of it. Not a
//! CRC32C: bytes that end with their own CRC all have the same CRC, and the system's checksums would tell
//! no two sectors apart.
//! A sector that mixes two writes, belongs elsewhere, or holds old bytes of a reused AU does not decode as
//! the sector that was asked for.

use types::rng::Rng;
use types::units::SECTOR;

const MAGIC: u64 = 0x6d69_735f_746c_6173;
const LEN: usize = SECTOR as usize;

fn hash(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, word: &[u8]| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    bytes.chunks_exact(8).fold(0x1234_5678, fold)
}

/// Fills `out` (one sector).
pub fn write(out: &mut [u8], volume: u64, sector: u64, stamp: u64) {
    assert_eq!(out.len(), LEN, "one sector");
    for (i, word) in [MAGIC, volume, sector, stamp].into_iter().enumerate() {
        out[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = Rng::new(stamp ^ sector.rotate_left(32));
    for chunk in out[32..LEN - 8].chunks_exact_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let sum = hash(&out[..LEN - 8]);
    out[LEN - 8..].copy_from_slice(&sum.to_le_bytes());
}

/// (volume, sector, stamp) of bytes that look like a sector of ours; nothing but the magic is checked.
pub fn peek(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    (word(0) == MAGIC).then(|| (word(1), word(2), word(3)))
}

/// The stamp that one sector carries; `None` for zeros.
///
/// # Errors
/// What is wrong with it: it was torn, mixed, or belongs to another place.
pub fn read(bytes: &[u8], volume: u64, sector: u64) -> Result<Option<u64>, String> {
    assert_eq!(bytes.len(), LEN, "one sector");
    if bytes.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC || word(LEN / 8 - 1) != hash(&bytes[..LEN - 8]) {
        return Err("holds bytes that nobody wrote as one sector".to_owned());
    }
    if word(1) != volume || word(2) != sector {
        return Err(format!("holds volume {} sector {}, written with {}", word(1), word(2), word(3)));
    }
    Ok(Some(word(3)))
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
