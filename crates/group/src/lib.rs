//! One placement group: admit, fence, propose, apply, answer, elect.
//!
//! Ring 1. Input: requests, messages, lease renewals and completions from the OSD's loop. Output: [`Action`]s.
//!
//! Invariant: `group` reads no clock, draws no randomness but from its seed, and does no I/O. Replicated state alone
//! decides, at apply (R1). R3 says when to vote, to lead and to serve; R5 says what raft may see.

mod action;
mod admit;
mod apply;
mod config;
pub mod decision;
pub mod descriptor;
mod election;
mod fills;
mod group;
mod hold;
mod leadership;
mod lease;
mod members;
pub mod pairs;
mod peers;
mod pending_payloads;
mod reads;
mod renewal;
mod replay;
mod report;
mod stream;
mod transfer;
mod unreached;
pub mod window;

pub use action::{Action, Origin};
pub use config::{GroupConfig, GroupLimits, Timing};
pub use consensus::NUMBER_MAX;
pub use fills::{FillPart, FillPoint};
pub use group::{Group, GroupError};
pub use members::members_in;
pub use pairs::Pairs;
pub use replay::{Applied, ReplayError, Replayed, Until, replay};
pub use report::GroupFill;
