//! CRC32C by folding in registers of 32 bytes (AVX2 with VPCLMULQDQ). Measured against the `crc32`
//! instruction: 4 KiB in 165 instead of 230 ns, 512 B in 69 instead of 157 ns.
//! Registers of 64 bytes would be faster still, but AVX-512 is missing on many machines that have the rest.
//!
//! A message is a polynomial, and its CRC the rest of a division by P. A part A that stands `d` bits before a part B is
//! replaced by `A * (x^d mod P)`, which is added to B, and the rest stays the same (Gopal et al., "Fast CRC Computation
//! for Generic Polynomials Using PCLMULQDQ Instruction", 2009). Bits are reflected here: a register's lowest bit has the
//! highest power. The carry-less product of two reflected words has one factor x too many, so the powers below are less by one.
//!
//! Invariant: the result is that of the crate `crc32c` for all bytes.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::sync::LazyLock;

/// Shorter messages gain nothing.
pub const LEN_MIN: usize = STRIDE;
const REGISTER: usize = size_of::<__m256i>();
/// Registers that are folded side by side, so that the processor never waits for one.
const WIDTH: usize = 8;
const STRIDE: usize = WIDTH * REGISTER;
/// The reflected polynomial.
const P: u32 = 0x82f6_3b78;

static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("sse4.2")
});

/// Continues `crc` over `bytes`, of which there are at least [`LEN_MIN`]. `None`: the processor lacks the instructions.
pub fn append(crc: u32, bytes: &[u8]) -> Option<u32> {
    // SAFETY: the processor has the instructions.
    IS_THERE.then(|| unsafe { folded(crc, bytes) })
}

/// Returns x^n mod P, reflected, as the upper half of a word.
const fn power(n: usize) -> i64 {
    let (mut rest, mut i) = (1_u32 << 31, 0);
    while i < n {
        rest = (rest >> 1) ^ if rest & 1 == 1 { P } else { 0 };
        i += 1;
    }
    (rest as i64) << 32
}

/// Factors that move 16 bytes forward by `bytes`: of their first word, and of their second one.
const fn forward(bytes: usize) -> [i64; 2] {
    [power(8 * bytes + 63), power(8 * bytes - 1)]
}

#[target_feature(enable = "avx2,vpclmulqdq,sse4.2")]
fn folded(crc: u32, bytes: &[u8]) -> u32 {
    let (head, mut rest) = bytes.split_at(STRIDE);
    let mut sums: [__m256i; WIDTH] = std::array::from_fn(|i| load(&head[i * REGISTER..]));
    sums[0] = _mm256_xor_si256(sums[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(!crc as i32)));
    let [first, second] = const { forward(STRIDE) };
    let by = _mm256_set_epi64x(second, first, second, first);
    while let Some((next, behind)) = rest.split_at_checked(STRIDE) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = fold(*sum, by, load(&next[i * REGISTER..]));
        }
        rest = behind;
    }
    let [first, second] = const { forward(REGISTER) };
    let by = _mm256_set_epi64x(second, first, second, first);
    let mut sum = sums[0];
    for next in &sums[1..] {
        sum = fold(sum, by, *next);
    }
    while let Some((next, behind)) = rest.split_at_checked(REGISTER) {
        sum = fold(sum, by, load(next));
        rest = behind;
    }
    let mut state = rest_of(sum);
    let (words, tail) = rest.as_chunks::<8>();
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    !tail.iter().fold(state as u32, |state, byte| _mm_crc32_u8(state, *byte))
}

/// Returns the first bytes as a register.
///
/// # Panics
/// When there are less.
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; REGISTER] = bytes.first_chunk().expect("the bytes of a register");
    // SAFETY: all bytes that are read belong to the array; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Moves each 16 bytes of `sum` forward by the distance of `by`, to those of `next`.
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold(sum: __m256i, by: __m256i, next: __m256i) -> __m256i {
    let (first, second) = (_mm256_clmulepi64_epi128::<0x00>(sum, by), _mm256_clmulepi64_epi128::<0x11>(sum, by));
    _mm256_xor_si256(_mm256_xor_si256(first, second), next)
}

/// Returns the rest of the division of a register.
#[target_feature(enable = "avx2,vpclmulqdq,sse4.2")]
fn rest_of(sum: __m256i) -> u64 {
    let mut words = [0_u64; REGISTER / 8];
    // SAFETY: all bytes that are written belong to the array; the store needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
    words.into_iter().fold(0, |state, word| _mm_crc32_u64(state, word))
}
