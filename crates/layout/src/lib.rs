//! Every byte that Basalt puts on a disk: versions, checksums, encoders and decoders.
//!
//! Ring 0. `engine` passes in values to encode and bytes to decode. Structs are fixed little-endian (`zerocopy`);
//! variable data is a sequence of such structs with explicit lengths.
//!
//! Invariant: decoding never panics and accepts nothing that encoding does not produce; a number, once given a meaning,
//! never gets another.

pub mod checkpoint;
pub mod dissolved;
pub mod home;
pub mod intent;
pub mod log;
pub mod poison;
pub mod superblock;
#[cfg(test)]
mod testing;
