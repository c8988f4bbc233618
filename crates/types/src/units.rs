//! Units of space. All are powers of two, and each divides the next.

/// Smallest I/O, and the unit of every offset inside a chunk: 512 bytes.
pub const SECTOR: u64 = 512;
/// Checksum unit: 4 KiB.
pub const BLOCK: u64 = 4 << 10;
/// Allocation unit of device space: 64 KiB.
pub const AU: u64 = 64 << 10;
/// A chunk lies in exactly one PG: 16 MiB.
pub const CHUNK: u64 = 16 << 20;
/// A segment is allocated as a whole, on first write: 1 GiB.
pub const SEGMENT: u64 = 1 << 30;

/// Sectors in a block.
pub const SECTORS_PER_BLOCK: u32 = (BLOCK / SECTOR) as u32;
/// Sectors in a chunk.
pub const SECTORS_PER_CHUNK: u32 = (CHUNK / SECTOR) as u32;
/// Blocks in an AU.
pub const BLOCKS_PER_AU: u32 = (AU / BLOCK) as u32;
/// Sectors in an AU.
pub const SECTORS_PER_AU: u32 = (AU / SECTOR) as u32;
/// AUs in a chunk.
pub const AUS_PER_CHUNK: u32 = (CHUNK / AU) as u32;
/// Chunks in a segment.
pub const CHUNKS_PER_SEGMENT: u32 = (SEGMENT / CHUNK) as u32;

/// Returns the AUs of a device with so many that no write of a client gets: discard, delete, repair and pages that move need them.
pub const fn reserved_aus(aus: u32) -> u32 {
    let part = aus / 50;
    if part < 16 { 16 } else { part }
}

const _: () = assert!(
    BLOCK.is_multiple_of(SECTOR)
        && AU.is_multiple_of(BLOCK)
        && CHUNK.is_multiple_of(AU)
        && SEGMENT.is_multiple_of(CHUNK)
);
const _: () = assert!(BLOCKS_PER_AU == 16, "the valid mask of an AU is 16 bits");
