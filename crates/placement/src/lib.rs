//! Places replicas on OSDs and segments in PGs.
//!
//! Ring 1. `control` passes plain values (OSDs, policy, loads) and receives sets of OSDs and chosen PGs.
//! [`place_pgs`] makes PGs for a pool, [`choose_pg`] finds the PG for a new segment, [`choose_columns`] those of a striped one,
//! [`leaving_moves`] and [`balancing_moves`] plan which replicas move.
//!
//! Invariant: pure and deterministic: equal input gives equal output. This crate reads no clock, draws no random numbers and
//! keeps no map of the cluster. Two members of a PG never share a failure domain.

mod leaders;
mod moves;
mod pgs;
mod segments;

pub use leaders::{LeaderMove, LedPg, leader_moves};
pub use moves::{Place, PlacedPg, ReplicaMove, balancing_moves, leaving_moves};
pub use pgs::{Domain, Load, Osd, Policy, Refusal, WEIGHT_ONE, loads_of, place_pgs, scatter_width};
pub use segments::{PgChoice, SEGMENTS_TOGETHER_MIN, choose_columns, choose_pg};
