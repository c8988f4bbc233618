//! Mutation of inputs, drawn from a seed, without coverage feedback.
//!
//! The driver passes one or two inputs and gets another. Invariant: equal seeds give equal inputs, and an input never
//! grows beyond the target's limit.

use types::rng::Rng;

/// Values that often break decoders.
const MAGIC: [u64; 14] =
    [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0x1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, 1 << 63, u64::MAX];

/// Changes `bytes` a few times, perhaps with a piece of `other` spliced in.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8], len_max: usize) {
    // Mostly one or two changes, so that most of the input keeps its meaning.
    let changes = [1, 1, 1, 2, 2, 3, 5, 9][rng.below(8) as usize];
    for _ in 0..changes {
        once(rng, bytes, other);
    }
    bytes.truncate(len_max);
}

/// Returns a position. One draw in three is from the first 64 bytes, because lengths and counts are there.
fn place(rng: &mut Rng, len: usize) -> usize {
    let bound = if rng.chance(1, 3) { len.min(64) } else { len };
    rng.below(bound.max(1) as u64) as usize
}

fn once(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let len = bytes.len();
    let at = place(rng, len);
    match rng.below(16) {
        _ if len == 0 => bytes.extend((0..rng.between(1, 32)).map(|_| rng.next_u64() as u8)),
        0..=2 => bytes[at] ^= 1 << rng.below(8),
        3 => bytes[at] = rng.next_u64() as u8,
        4 => bytes[at] = bytes[at].wrapping_add(1 + rng.below(8) as u8),
        5 => bytes[at] = bytes[at].wrapping_sub(1 + rng.below(8) as u8),
        6..=8 => magic(rng, bytes, at),
        9 => nudge(rng, bytes, at),
        10 => bytes.truncate(at),
        11 => {
            let count = rng.between(1, 16) as usize;
            let fill = rng.next_u64() as u8;
            bytes.splice(at..at, std::iter::repeat_n(fill, count));
        }
        12 => {
            let end = (at + rng.between(1, 32) as usize).min(len);
            bytes.drain(at..end);
        }
        13 => {
            // A piece of the input is inserted again, as a duplicated record would be.
            let end = (at + rng.between(1, 256) as usize).min(len);
            let piece = bytes[at..end].to_vec();
            let to = place(rng, len);
            bytes.splice(to..to, piece);
        }
        14 => {
            // A piece is copied over another position, as a swapped field would be.
            let end = (at + rng.between(1, 64) as usize).min(len);
            let to = place(rng, len);
            let end_to = (to + end - at).min(len);
            bytes.copy_within(at..at + end_to - to, to);
        }
        _ => splice(rng, bytes, at, other),
    }
}

/// Writes a number of a common width, mostly aligned as fields are.
fn magic(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let width = [1, 2, 4, 8][rng.below(4) as usize];
    let at = if rng.chance(3, 4) { at / width * width } else { at };
    let value = MAGIC[rng.below(MAGIC.len() as u64) as usize];
    let value = if rng.chance(1, 4) { value.wrapping_add(rng.below(5)).wrapping_sub(2) } else { value };
    for (n, byte) in bytes.iter_mut().skip(at).take(width).enumerate() {
        *byte = (value >> (8 * n)) as u8;
    }
}

/// Makes a little-endian number slightly larger or smaller.
fn nudge(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let at = at / 4 * 4;
    if let Some(four) = bytes.get_mut(at..at + 4) {
        let value = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        let by = rng.between(1, 64) as u32;
        let value = if rng.chance(1, 2) { value.wrapping_add(by) } else { value.wrapping_sub(by) };
        four.copy_from_slice(&value.to_le_bytes());
    }
}

fn splice(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize, other: &[u8]) {
    if other.is_empty() {
        return;
    }
    let from = place(rng, other.len());
    let end = (from + rng.between(1, 512) as usize).min(other.len());
    match rng.below(3) {
        0 => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        1 => {
            bytes.splice(at..at, other[from..end].iter().copied());
        }
        _ => {
            let to = (at + end - from).min(bytes.len());
            bytes[at..to].copy_from_slice(&other[from..from + to - at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_inputs_within_the_limit() {
        let (mut a, mut b) = (Rng::new(5), Rng::new(5));
        let (mut x, mut y) = (vec![3; 100], vec![3; 100]);
        for _ in 0..20_000 {
            mutate(&mut a, &mut x, b"another input", 300);
            mutate(&mut b, &mut y, b"another input", 300);
            assert!(x == y && x.len() <= 300);
        }
        let mut from_nothing = Vec::new();
        mutate(&mut a, &mut from_nothing, &[], 300);
        assert!(!from_nothing.is_empty());
    }
}
