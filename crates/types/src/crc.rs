//! CRC32C (Castagnoli), the checksum of every fragment, block, record and frame.

/// CRC32C of `bytes`, starting from zero.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues `crc` over `bytes`: `append(crc32c(a), b) == crc32c(a ++ b)`.
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc32c_equals_the_published_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(super::append(super::crc32c(b"1234"), b"56789"), 0xe306_9283);
    }
}
