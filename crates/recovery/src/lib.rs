//! Recovery of a replica from its peers: lost payloads of its log, and bad blocks of home.
//!
//! Ring 1. Input: replicas that lack data, messages of peers, results of the engine, and the facts of a [`View`]. Output:
//! [`Action`]s, which the OSD's loop carries out in their order.
//!
//! Invariant: `recovery` reads no clock and does no I/O. Data of a peer is taken by its checksum alone, and data that no member
//! gives is named, never made up.

mod action;
mod block;
mod payload;
mod query;

pub use action::{Action, Part, View};
pub use block::{BlockKey, BlockRepairs, HeldRead, Named};
pub use payload::{ANY_REPLICA, PayloadRepairs, answer_fetch};
