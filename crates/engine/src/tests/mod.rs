//! Laws of the whole engine, on a disk that loses, tears and reorders, against a plain model.

pub(crate) mod disk;
mod exact;
mod rig;
mod room;

mod allocations;
mod apart;
mod astray;
mod copied;
mod crash;
mod damage;
mod drops;
mod failed;
mod filling;
mod forged;
mod format;
mod generations;
mod inherited;
mod install;
mod laws;
mod lineage;
mod mend;
mod merge;
mod merge_space;
mod offline;
mod placed;
mod placed_crash;
mod placed_mount;
mod progress;
mod reclaim;
mod replaced;
mod space;
mod state;
mod stream;
mod unreadable;
mod usage;
mod yielding;
