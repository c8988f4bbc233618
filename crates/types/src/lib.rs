//! Basic values of Basalt: ids, units, limits, map values, checksums, buffers.
//!
//! Ring 0. Every crate may use it. It does no I/O, reads no clock, logs nothing and has no async code. Ids, units and limits
//! that crates share are defined here and nowhere else.
//!
//! Invariant: values only, with two exceptions. The `unsafe` of [`IoBuf`] lives in `iobuf`, and that of the CRC in `crc/fold`.
//! The test switches of `planted` and `failpoint` are state of the process, and are compiled out of default builds.

pub mod codes;
mod compression;
pub mod config;
pub mod control;
pub mod crc;
pub mod cut;
pub mod errno;
pub mod failpoint;
pub mod faults;
pub mod hash;
pub mod ids;
pub mod iobuf;
pub mod limits;
pub mod map;
pub mod planted;
pub mod qos;
pub mod range;
pub mod rng;
pub mod store;
pub mod stripe;
pub mod time;
pub mod tree;
pub mod units;
pub mod usage;
mod when_full;
pub mod writers;

pub use compression::Compression;
pub use crc::{CrcList, crc32c};
pub use errno::Errno;
pub use hash::{BlockPlace, area_hash, block_hash, entry_hash};
pub use ids::{
    ChunkKey, ClusterId, CutId, Epoch, GenerationId, Incarnation, Index, OsdId, OsdUuid, PgId, PoolId, ReplicaId,
    SegmentIndex, SessionId, SnapshotId, Term, VolumeChunk, VolumeId,
};
pub use iobuf::{IoBuf, IoBufMut};
pub use qos::{LimitKind, QosLimits, RateLimit};
pub use range::SectorRange;
pub use store::{Entry, EntryKind};
pub use stripe::Stripe;
pub use time::Time;
pub use units::{AU, BLOCK, CHUNK, SECTOR, SEGMENT};
pub use when_full::WhenFull;
