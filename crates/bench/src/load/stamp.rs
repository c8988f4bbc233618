//! The stamp in every 4 KiB block of a verified load: its series of runs, its place, and its sequence number.
//!
//! Layout, little-endian: magic 8, volume 8, run 8, device offset 8, sequence 8, zero 4, crc32c 4, words. The crc
//! covers the whole block with the crc as zero. The words are drawn from the sequence, so that a block torn between two
//! writes fails its checksum.

use types::crc;

/// Length of a stamped block.
pub const BLOCK_LEN: usize = types::BLOCK as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"BsltStmp");
const HEAD_LEN: usize = 48;
const CRC_AT: usize = HEAD_LEN - 4;

/// Contents of a stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub volume: u64,
    pub run: u64,
    /// Byte offset on the device.
    pub offset: u64,
    pub sequence: u64,
}

/// Contents of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Stamp(Stamp),
    Zeros,
    /// The magic is there, the checksum is wrong: torn or corrupt.
    Torn,
    /// Bytes that no load wrote.
    Unstamped,
}

/// Fills whole blocks with stamps; `offset` is where `buf` begins on the device.
///
/// # Panics
/// When `buf` is not whole blocks.
pub fn fill(buf: &mut [u8], volume: u64, run: u64, offset: u64, sequence: u64) {
    assert!(buf.len().is_multiple_of(BLOCK_LEN), "{} bytes are no whole blocks", buf.len());
    for (index, block) in buf.chunks_exact_mut(BLOCK_LEN).enumerate() {
        let at = offset + (index * BLOCK_LEN) as u64;
        for (field, value) in block.chunks_exact_mut(8).zip([MAGIC, volume, run, at, sequence, 0]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let mut word = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at;
        for eight in block[HEAD_LEN..].chunks_exact_mut(8) {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            eight.copy_from_slice(&word.to_le_bytes());
        }
        let crc = types::crc32c(block);
        block[CRC_AT..HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Returns the contents of one block.
///
/// # Panics
/// When it is not [`BLOCK_LEN`] long.
pub fn look(block: &[u8]) -> Found {
    assert_eq!(block.len(), BLOCK_LEN, "a stamp fills a block");
    let word = |at: usize| u64::from_le_bytes(*block[at..].first_chunk().expect("inside the block"));
    if word(0) != MAGIC {
        let zeros = block.chunks_exact(8).all(|eight| eight == [0; 8]);
        return if zeros { Found::Zeros } else { Found::Unstamped };
    }
    let stored = u32::from_le_bytes(*block[CRC_AT..].first_chunk().expect("inside the block"));
    let crc = crc::append(crc::append(types::crc32c(&block[..CRC_AT]), &[0; 4]), &block[HEAD_LEN..]);
    if crc != stored {
        return Found::Torn;
    }
    Found::Stamp(Stamp { volume: word(8), run: word(16), offset: word(24), sequence: word(32) })
}
