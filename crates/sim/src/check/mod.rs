//! Observers: they look at the system from outside, after the fact, and know nothing of how it works.

mod blocks;
pub mod bounds;
pub mod claims;
pub mod decisions;
pub mod device;
pub mod durable;
pub mod frames;
pub mod isolation;
pub mod leaders;
pub mod limits;
pub mod linear;
pub mod promotions;
pub mod raft;
pub mod replicas;
pub mod silence;
pub mod stores;
