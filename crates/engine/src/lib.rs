//! The store of one OSD: one log and one home for all of its replicas.
//!
//! Ring 2. The OSD's loop passes in appends, committed effects, reads and completions; operations for the env and
//! [`EngineEvent`]s go out. Inside: `log` (batches, segments, mount scan, retention), `overlay` (applied but not
//! destaged), `round` (the destage controller), [`home`] (map, CRC pages, slots, space).
//!
//! Invariant: nothing is acknowledged before it is durable. No bytes are returned unverified. Home is written only with
//! what the log can redo.

mod api;
mod chunks;
mod contents;
mod delta;
mod destage;
mod disks;
mod drops;
mod engine;
mod failure;
mod fill;
mod format;
mod group_commit;
pub mod home;
pub mod home_api;
mod ids;
mod inherited;
mod install;
mod inventory;
mod keep;
mod lineage;
mod log;
mod mend;
mod merge;
mod mount;
mod mount_places;
pub mod offline;
mod overlay;
mod pacing;
mod payload;
mod placed;
mod poison;
mod progress;
mod read;
mod reclaim;
mod refill;
mod replica;
mod replicas;
mod resolve;
mod round;
mod space;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod usage;
mod yielding;

pub use api::{EngineConfig, EngineEvent, EngineStats, MountError, Pressure, StepLimits};
pub use contents::{Contents, Foreign, LogRoom};
pub use disks::Disks;
pub use engine::{CREATE_LOST, Engine};
pub use fill::FillRoom;
pub use format::{
    DeviceContents, FormatError, FormatParams, begin_format, behind_mark, check_format, finish_format, format_device,
    format_image, inspect, mark_behind, read_superblock,
};
pub use home::{ChunkUse, SpaceUse};
pub use inventory::{ChunkHeld, LogUse, Part, ReplicaUse};
pub use layout::log::{MAP_MAX, SaltKey};
pub use layout::superblock::{Part as DevicePart, Superblock};
pub use progress::RoundLeft;
pub use space::Space;
pub use types::store::{ReadData, ReadError};

#[cfg(test)]
mod tests;
