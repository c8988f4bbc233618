//! Checksums of data at rest (R11): xxh3-64, seeded by place.
//!
//! CRC32C is affine: blocks that end in their own CRC32C have one CRC32C, whatever their bytes and the seed. A lost write of such
//! a block, for example of an ext4 extent block, leaves bytes that satisfy the CRC of the new ones. xxh3 is not affine. On the wire
//! and in records CRC32C stays: there it protects a transfer.

use crate::{ChunkKey, GenerationId, Index, IoBuf, ReplicaId, Term};
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// The place that seeds the checksum of a block. All generations of a family share it: a block that moves from one to the other keeps
/// its checksum, and a block of another family never has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    pub family: GenerationId,
    /// Index of the chunk.
    pub index: u32,
    pub block: u16,
}

impl BlockPlace {
    pub const fn of(family: GenerationId, chunk: ChunkKey, block: u16) -> BlockPlace {
        BlockPlace { family, index: chunk.index, block }
    }
}

impl ChunkKey {
    /// The place of a block in a generation that began its family. It is right while no generation has a parent.
    pub const fn in_own_family(self, block: u16) -> BlockPlace {
        BlockPlace::of(self.generation, self, block)
    }
}

/// Returns the checksum under which home keeps a block of 4 KiB: the low 32 bits of xxh3-64, seeded by family, chunk and block.
/// Bytes of another place have another checksum.
pub fn block_hash(place: BlockPlace, bytes: &[u8]) -> u32 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&place.family.0.to_le_bytes());
    seed[8..12].copy_from_slice(&place.index.to_le_bytes());
    seed[12..].copy_from_slice(&u32::from(place.block).to_le_bytes());
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&seed), bytes) as u32
}

/// Returns the checksum of the payload area of a log batch: xxh3-64 over `bufs`, one after the other, seeded by the salt of the
/// segment and the number of the batch.
pub fn area_hash(salt: u64, seq: u64, bufs: &[IoBuf]) -> u64 {
    let seed = salt ^ seq;
    // Most batches have one payload, and a hasher costs more than the hash of a small one.
    if let [buf] = bufs {
        return XxHash3_64::oneshot_with_seed(seed, buf);
    }
    let mut hasher = XxHash3_64::with_seed(seed);
    bufs.iter().for_each(|buf| hasher.write(buf));
    hasher.finish()
}

/// Returns the checksum of an entry's payload that lies at home: xxh3-64, seeded by the entry. Older bytes of the same place
/// are those of another entry, and have another checksum.
pub fn entry_hash(replica: ReplicaId, index: Index, term: Term, bytes: &[u8]) -> u64 {
    let mut entry = [0; 24];
    for (at, value) in [replica.0, index.0, term.0].into_iter().enumerate() {
        entry[8 * at..][..8].copy_from_slice(&value.to_le_bytes());
    }
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&entry), bytes)
}

/// Returns xxh3-64 of bytes without a place.
pub fn plain_hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc32c;

    /// Returns a block that ends in its own CRC32C, as ext4 stores extent blocks.
    fn block_with_own_crc(fill: u8) -> Vec<u8> {
        let mut block = vec![fill; 4096];
        let crc = crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    #[test]
    fn blocks_that_end_in_their_own_crc_have_different_hashes() {
        let (old, new) = (block_with_own_crc(1), block_with_own_crc(2));
        assert_eq!(crc32c(&old), crc32c(&new), "CRC32C cannot tell them apart");
        let chunk = ChunkKey { generation: GenerationId(7), index: 3 };
        assert_ne!(block_hash(chunk.in_own_family(9), &old), block_hash(chunk.in_own_family(9), &new));
        let areas = [&old, &new].map(|block| area_hash(5, 6, &[IoBuf::copy_of(block)]));
        assert_ne!(areas[0], areas[1]);
        let entries = [&old, &new].map(|block| entry_hash(ReplicaId(1), Index(2), Term(3), block));
        assert_ne!(entries[0], entries[1]);
    }

    #[test]
    fn hashes_never_change_and_differ_by_place() {
        let (block, place) = ([0x5a; 4096], BlockPlace { family: GenerationId(7), index: 3, block: 9 });
        let others = [
            BlockPlace { family: GenerationId(8), ..place },
            BlockPlace { index: 4, ..place },
            BlockPlace { block: 8, ..place },
        ];
        let here = block_hash(place, &block);
        assert!(others.iter().all(|other| block_hash(*other, &block) != here));
        // The numbers of the first generation: blocks of a volume without snapshots keep their checksums.
        assert_eq!(ChunkKey { generation: GenerationId(7), index: 3 }.in_own_family(9), place);
        let moved = BlockPlace::of(place.family, ChunkKey { generation: GenerationId(9), index: 3 }, 9);
        assert_eq!(block_hash(moved, &block), here, "a generation of the family may take it over");
        assert_eq!(here, 936_481_710, "golden");
        let whole = area_hash(1, 2, &[IoBuf::copy_of(&block)]);
        assert_eq!(whole, area_hash(1, 2, &[IoBuf::copy_of(&block[..512]), IoBuf::copy_of(&block[512..])]));
        assert_ne!(whole, area_hash(1, 1, &[IoBuf::copy_of(&block)]));
        assert_eq!(whole, 1_191_260_734_931_315_776, "golden");
        let entry = |replica, index, term| entry_hash(ReplicaId(replica), Index(index), Term(term), &block);
        let others = [entry(2, 2, 3), entry(1, 3, 3), entry(1, 2, 4)];
        assert!(others.iter().all(|other| *other != entry(1, 2, 3)));
        assert_eq!(entry(1, 2, 3), 4_327_652_957_761_750_918, "golden");
    }
}
