//! Test harness of the engine: typed operations, and a reference model that judges each answer.
//!
//! The tests of this crate and the fuzz target `engine` drive a [`Harness`]. They bring the disk, its faults and the
//! passing of time. The feature `testing` makes the module public; a product build leaves it out.
//!
//! Invariant: the harness asks of the engine only what a group may ask. Failures are panics of assertions.

mod harness;
mod model;

pub use harness::{Asked, BadBlocks, DISK_LEN, FailedRead, Harness, IDS, Seen, chunks, identity, params};
pub use model::{Applied, CHUNKS, Made, Model, Order, SECTORS, decision_bytes};
