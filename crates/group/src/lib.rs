//! One placement group: admit, fence, propose, apply, answer, elect.

mod action;
mod config;
mod group;

pub use action::{Action, Origin};
pub use config::{GroupConfig, Timing};
pub use group::{Group, GroupError};
