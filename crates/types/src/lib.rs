//! The words of Basalt: ids, units, limits, map values, checksums, buffers.
//!
//! Ring 0. Everyone comes in; nothing goes out: no I/O, no clock, no logging, no async. A limit, an id
//! or a unit is defined here once and nowhere else.
//!
//! Invariant: values only. The one piece of machinery is [`IoBuf`], whose `unsafe` lives in `iobuf`.

pub mod codes;
pub mod control;
pub mod crc;
pub mod errno;
pub mod failpoint;
pub mod ids;
pub mod iobuf;
pub mod limits;
pub mod map;
pub mod planted;
pub mod range;
pub mod rng;
pub mod store;
pub mod time;
pub mod units;

pub use crc::crc32c;
pub use errno::Errno;
pub use ids::{
    ChunkKey, ClusterId, Epoch, Incarnation, Index, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SegmentIndex, SessionId,
    Term, VolumeId,
};
pub use iobuf::{IoBuf, IoBufMut};
pub use range::SectorRange;
pub use store::{Entry, EntryKind};
pub use time::Time;
pub use units::{AU, BLOCK, CHUNK, SECTOR, SEGMENT};
