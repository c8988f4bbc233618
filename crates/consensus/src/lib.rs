//! One raft group, with the `raft` crate hidden: values in, values out.
//!
//! Ring 1. Input: peers' messages, proposals and reports of durable batches, from `group`. Output: a [`Ready`] with
//! messages that may leave now, a [`types::store::Persist`], committed entries and
//! read states. Entries are descriptors; payload bytes never pass through this crate, only their lengths.
//!
//! Invariant: raft never sees an impossible value (R5). Messages of peers are checked in [`check`], and
//! state read from a disk in [`start`], because raft answers both with a panic. This crate reads no clock: raft's
//! ticks are never called, so its own random election timeout has no effect.

mod check;
mod convert;
mod node;
mod ready;
mod start;
mod storage;
#[cfg(test)]
mod tests;

pub use check::{Ignored, StepError, Violation};
pub use node::{Config, Follower, Node, Role};
pub use ready::{Committed, ReadState, Ready};
pub use start::{Start, StartError};

/// Highest term and index that a peer may name: far beyond any real one, and far from overflow.
pub const NUMBER_MAX: u64 = u64::MAX / 4;
/// Most entries of one append message.
pub const MSG_ENTRIES_MAX: usize = 1024;
/// Most descriptor bytes of one append message.
pub const MSG_DESCRIPTORS_MAX: usize = 128 << 10;
/// Most payload of one append message, so that it fits in one frame.
pub const MSG_PAYLOAD_MAX: u64 = types::limits::FRAME_PAYLOAD_MAX as u64;

const _: () = assert!(types::limits::PART_MAX <= MSG_PAYLOAD_MAX);
const _: () = assert!(MSG_ENTRIES_MAX < types::limits::FRAME_RECORDS_MAX);
