//! A whole cluster under one seed: the real OSD, client and control code on a simulated world, hurt by
//! faults and watched from outside.
//!
//! This crate belongs to the testing ring. No crate depends on it, and it holds no protocol logic. It calls each node's
//! turn in the order that the seed gives, and carries the messages of the control plane. It compares the answers that
//! users got with the bytes that are there.
//!
//! Invariant: equal seeds give equal trace hashes.

pub mod aim;
pub mod batch;
pub mod check;
pub mod client;
pub mod cluster;
pub mod drive;
pub mod families;
pub mod faults;
pub mod forge;
mod hurt;
pub mod ledger;
mod livelock;
pub mod mail;
pub mod meta;
pub mod observe;
pub mod options;
pub mod overrides;
pub mod process;
pub mod rot;
pub mod run;
pub mod sharing;
pub mod shrink;
mod snapshots;
pub mod stamp;
pub mod states;
mod stranger;
pub mod summary;
pub mod tenants;
pub mod trace;
pub mod tuned;
pub mod workload;
