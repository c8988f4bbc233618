//! One placement group: admit, fence, propose, apply, answer, elect.
//!
//! Ring 1. The OSD's loop comes in with requests, messages, listings and completions; [`Action`]s go out.
//!
//! Invariant: `group` reads no clock, draws no randomness but from its seed, and does no I/O. What decides
//! is replicated state, at apply (R1); when to vote, to lead and to serve is R3; what raft may see is R5.

mod action;
mod admit;
mod apply;
mod config;
mod custody;
pub mod decision;
pub mod descriptor;
mod doubt;
mod election;
mod group;
mod lease;
mod listing;
mod office;
pub mod pairs;
mod peers;
mod reads;
mod report;
mod stream;
mod transfer;
mod unreached;
pub mod window;

pub use action::{Action, Origin};
pub use config::{GroupConfig, Timing};
pub use consensus::NUMBER_MAX;
pub use group::{Group, GroupError};
pub use pairs::Pairs;
pub use report::GroupFill;
