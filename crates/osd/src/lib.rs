//! The storage daemon: one loop that owns an engine, a bus and the groups of its PGs.
//!
//! Ring 3. Input: messages and completions by [`Osd::wait`], commands of meta by [`Osd::handle_control`].
//! Output: log batches, frames, replies and reports. The same code runs on the real env and in the simulator.
//!
//! Invariant: a turn has one fixed order (persist before send, apply before reply), and no message leaves before
//! that order allows it.

mod actions;
mod ask;
mod config;
mod control;
mod counting;
mod devices;
mod failure;
mod flattens;
mod force;
mod fullness;
mod let_in;
mod limits;
mod log_share;
mod metrics;
mod node;
mod pace;
mod pgs;
mod recover;
mod reports;
mod requests;
mod service_time;
mod shares;
mod space;
mod stats;
mod stop;
mod tools;
mod traced;
mod tuning;

#[cfg(test)]
mod tests;

pub use ask::{ToolAnswer, ToolAsk};
pub use config::OsdConfig;
pub use devices::DeviceReport;
pub use let_in::Restart;
pub use metrics::{OsdMetrics, rows as metric_rows};
pub use node::{Osd, OsdError, Phase};
pub use recovery::{FlattenTuning, PARTS, RepairTuning, StreamTuning};
pub use service_time::ServiceTime;
pub use tuning::{OsdTuning, SpaceTuning};
