//! Targets that must fail, each in its own way. A driver that misses one of them would miss real finds too.
//!
//! All inputs carry a checksum, so the canaries also prove that the checksums of mutated inputs are corrected.
//! Layout: CRC32C of the rest, four bytes | a kind | a little-endian length of two bytes | …

use crate::{Verdict, meter};
use types::rng::Rng;

/// Returns the part after the checksum, if the checksum is right.
fn behind(data: &[u8]) -> Option<&[u8]> {
    let (crc, rest) = data.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == types::crc32c(rest) && rest.len() >= 8).then_some(rest)
}

pub fn seed(_: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    fix(&mut bytes);
    bytes
}

#[allow(clippy::ptr_arg)] // one type for all targets, and some change the length
pub fn fix(data: &mut Vec<u8>) {
    if let Some((crc, rest)) = data.split_first_chunk_mut::<4>() {
        *crc = types::crc32c(rest).to_le_bytes();
    }
}

/// Panics on a value that only a mutation produces.
pub fn panics(data: &[u8]) -> Verdict {
    let Some(rest) = behind(data) else { return Verdict::Refused };
    assert!(rest[0] != 0xff, "the canary sings");
    Verdict::Taken
}

/// Trusts a length that the input states.
pub fn allocates(data: &[u8]) -> Verdict {
    let Some(rest) = behind(data) else { return Verdict::Refused };
    let stated = usize::from(u16::from_le_bytes([rest[1], rest[2]]));
    let held = meter::bounded(data.len(), 64, 4096, || Vec::<u64>::with_capacity(stated));
    assert!(held.capacity() >= stated);
    Verdict::Taken
}

/// Recurses as deep as the input says, until the stack overflows. Nothing in the process can report that.
pub fn recurses(data: &[u8]) -> Verdict {
    let Some(rest) = behind(data) else { return Verdict::Refused };
    let stated = u64::from(u16::from_le_bytes([rest[1], rest[2]])) << 12;
    if depth(stated) == 1 { Verdict::Refused } else { Verdict::Taken }
}

fn depth(left: u64) -> u64 {
    let frame = std::hint::black_box([left; 8]);
    if left == 0 { frame[0] } else { depth(frame[7] - 1) + frame[3] % 2 }
}

/// Never returns on a value that only a mutation produces.
pub fn hangs(data: &[u8]) -> Verdict {
    let Some(rest) = behind(data) else { return Verdict::Refused };
    let mut waits = rest[0] == 0xff;
    while std::hint::black_box(waits) {
        waits = std::hint::black_box(true);
    }
    Verdict::Taken
}
