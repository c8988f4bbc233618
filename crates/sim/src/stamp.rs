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

/// Returns the hash of each sector, without its last eight bytes. The steps of one hash wait for each other, and those of
/// several do not.
fn hashes_of<const N: usize>(sectors: &[[u8; LEN]; N]) -> [u64; N] {
    let mut sums = [0x1234_5678_u64; N];
    for at in (0..LEN - 8).step_by(8) {
        for (sum, sector) in sums.iter_mut().zip(sectors) {
            let word = u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
            *sum = (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    sums
}

fn hashes(sectors: &[[u8; LEN]]) -> impl Iterator<Item = u64> {
    let (groups, rest) = sectors.as_chunks::<4>();
    groups.iter().flat_map(hashes_of).chain(rest.as_chunks::<1>().0.iter().flat_map(hashes_of))
}

/// Fills `out` (one sector); [`seal`] follows.
pub fn write(out: &mut [u8], volume: u64, sector: u64, stamp: u64) {
    fill(out, 0, (volume, sector, stamp));
}

/// Fills `out` (one sector) so that it begins with `head`; [`seal`] follows.
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
}

/// Ends sectors with their hashes.
pub fn seal(bytes: &mut [u8]) {
    let sectors = bytes.as_chunks_mut::<LEN>().0;
    let sums: Vec<u64> = hashes(sectors).collect();
    for (sector, sum) in sectors.iter_mut().zip(sums) {
        sector[LEN - 8..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Returns (volume, sector, stamp) of bytes that look like a stamped sector; only the magic is checked.
pub fn peek(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let at = if bytes.starts_with(&layout::log::MAGIC) { FORGED_AT } else { 0 };
    let word = |i: usize| u64::from_le_bytes(bytes[at + i * 8..at + i * 8 + 8].try_into().expect("eight bytes"));
    (word(0) == MAGIC).then(|| (word(1), word(2), word(3)))
}

/// Returns the stamp of each of some consecutive sectors of one of these volumes; `None` for zeros. An error says that the sector is torn,
/// mixed, or belongs to another place.
pub fn read(bytes: &[u8], volumes: &[u64], first: u64) -> impl Iterator<Item = Result<Option<u64>, String>> {
    let sectors = bytes.as_chunks::<LEN>().0;
    let all = (first..).zip(sectors).zip(hashes(sectors));
    all.map(move |((sector, bytes), hash)| read_one(bytes, volumes, sector, hash))
}

fn read_one(bytes: &[u8; LEN], volumes: &[u64], sector: u64, hash: u64) -> Result<Option<u64>, String> {
    if *bytes == [0; LEN] {
        return Ok(None);
    }
    let sum = u64::from_le_bytes(bytes[LEN - 8..].try_into().expect("eight bytes"));
    let Some((of, at, stamp)) = peek(bytes).filter(|_| sum == hash) else {
        return Err("holds bytes that were not written as one sector".to_owned());
    };
    if !volumes.contains(&of) || at != sector {
        return Err(format!("holds volume {of} sector {at}, written with {stamp}"));
    }
    Ok(Some(stamp))
}

#[cfg(test)]
mod tests {
    fn written(volume: u64, sector: u64, stamp: u64) -> [u8; 512] {
        let mut bytes = [0; 512];
        super::write(&mut bytes, volume, sector, stamp);
        super::seal(&mut bytes);
        bytes
    }

    fn read(bytes: &[u8], volume: u64, sector: u64) -> Result<Option<u64>, String> {
        super::read(bytes, &[volume], sector).next().expect("one sector")
    }

    #[test]
    fn two_stamps_have_two_checksums() {
        assert_ne!(types::crc32c(&written(1, 7, 3)), types::crc32c(&written(1, 7, 4)));
    }

    #[test]
    fn a_mixed_or_foreign_sector_is_recognised() {
        let (mut a, b) = (written(1, 7, 3), written(1, 7, 4));
        assert_eq!(read(&[0; 512], 1, 7), Ok(None));
        assert_eq!(read(&a, 1, 7), Ok(Some(3)));
        assert!(read(&a, 2, 7).is_err());
        assert!(read(&a, 1, 8).is_err());
        a[256..].copy_from_slice(&b[256..]);
        assert!(read(&a, 1, 7).is_err());
    }

    #[test]
    fn sectors_that_are_sealed_together_are_read_alone_and_together() {
        let mut all = [0; 7 * 512];
        for (sector, bytes) in (20..).zip(all.chunks_exact_mut(512)) {
            super::write(bytes, 1, sector, 3);
        }
        super::seal(&mut all);
        for (sector, bytes) in (20..).zip(all.chunks_exact(512)) {
            assert_eq!(bytes, written(1, sector, 3));
        }
        all[5 * 512 + 100] ^= 1;
        all[3 * 512..4 * 512].fill(0);
        let good: Vec<Option<Option<u64>>> = super::read(&all, &[1], 20).map(Result::ok).collect();
        assert_eq!(good, [Some(Some(3)), Some(Some(3)), Some(Some(3)), Some(None), Some(Some(3)), None, Some(Some(3))]);
    }
}
