//! Where replicas and segments go.
//!
//! Ring 1. `control` comes in with plain values (OSDs, policy, loads); sets of OSDs and picked PGs go
//! out. [`place_pgs`] makes PGs for a pool, [`choose_pg`] finds the PG for a new segment.
//!
//! Invariant: pure and deterministic: equal input gives equal output, no clock, no dice, no map of the
//! cluster kept here. Two members of a PG never share a failure domain.

mod leaders;
mod pgs;
mod segments;

pub use leaders::{LeaderMove, LedPg, leader_moves};
pub use pgs::{Domain, Load, Osd, Policy, Refusal, WEIGHT_ONE, loads_of, place_pgs, scatter_width};
pub use segments::{PgChoice, SEGMENTS_TOGETHER_MIN, choose_pg};
