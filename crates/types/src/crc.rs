//! CRC32C (Castagnoli), the checksum of every fragment, block, record and frame.

#[cfg(target_arch = "x86_64")]
mod fold;

/// CRC32C values in order; up to four need no memory of their own.
pub type CrcList = smallvec::SmallVec<[u32; 4]>;

/// CRC32C of `bytes`, starting from zero.
pub fn crc32c(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// Continues `crc` over `bytes`: `append(crc32c(a), b) == crc32c(a ++ b)`.
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= fold::LEN_MIN
        && let Some(crc) = fold::append(crc, bytes)
    {
        return crc;
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use crate::rng::Rng;

    #[test]
    fn crc32c_equals_the_published_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(super::append(super::crc32c(b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn crc32c_of_every_length_and_place_equals_that_of_the_crate() {
        let mut rng = Rng::new(1);
        let bytes: Vec<u8> = (0..70_000).map(|_| rng.next_u64() as u8).collect();
        let check = |from: usize, len: usize, crc| {
            let bytes = &bytes[from..from + len];
            assert_eq!(super::append(crc, bytes), crc32c::crc32c_append(crc, bytes), "{len} bytes behind {crc:x}");
        };
        for len in 0..1500 {
            check(len % 67, len, 0);
            check(len % 64, len, rng.next_u64() as u32);
        }
        for len in [2048, 4092, 4096, 4097, 8191, 65_536, 66_000] {
            check(1, len, u32::MAX);
        }
    }
}
