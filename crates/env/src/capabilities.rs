//! Capabilities of a disk, as the kernel tells them.
//!
//! Invariant: a value is what the kernel said. Without a word of it the value is `None`, which users see as unknown; no value is guessed.

/// Behaviour of a device's write cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteCache {
    /// Written bytes may be lost until a flush.
    Back,
    /// A completed write is durable.
    Through,
}

/// Lengths of writes that are never torn, in bytes; zeros: there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicWrites {
    pub min_bytes: u64,
    pub max_bytes: u64,
}

/// Properties of the file system that holds the file of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSystem {
    /// Its name in the kernel: `ext4`.
    pub name: Option<String>,
    /// Writes to the file that are never torn.
    pub atomic_writes: Option<AtomicWrites>,
}

/// Properties of a block device, and of the file system of a file on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Name of the block device in the kernel: `nvme0n1p2`. A file has that of its file system.
    pub block_device: Option<String>,
    /// `None` for a block device.
    pub file_system: Option<FileSystem>,
    pub is_rotational: Option<bool>,
    pub write_cache: Option<WriteCache>,
    pub logical_block_bytes: Option<u64>,
    pub physical_block_bytes: Option<u64>,
    /// Zero: the device takes no discards.
    pub discard_granularity_bytes: Option<u64>,
    /// Longest discard; zero: the device takes none.
    pub discard_max_bytes: Option<u64>,
    /// Longest write of zeros without data; zero: the device takes none.
    pub write_zeroes_max_bytes: Option<u64>,
    /// Writes to the block device that are never torn.
    pub atomic_writes: Option<AtomicWrites>,
}
