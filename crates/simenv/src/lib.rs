//! The simulated world: clocks, disks and a network under one seed, without threads.
//!
//! This crate belongs to the testing ring. Product crates use it in their tests alone, so the binary `basalt` does not
//! contain it.
//!
//! It takes the operations of services (through [`SimEnv`]), and faults and the passing of time from the simulator
//! (through [`World`]). It returns the same events as the real form, after seeded delays. Time moves in
//! [`World::advance_to`] alone, and a service runs only when the simulator gives its node a turn. Delays are drawn when
//! an operation comes in; the operation takes effect at its delivery.
//!
//! Invariant: equal seeds and equal calls give equal runs, bit for bit ([`World::trace_hash`]).

mod clock;
mod disk;
mod image;
mod lies;
mod net;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod unreadable;
mod watch;
mod world;

pub use clock::{DRIFT_PPM_MAX, NodeClock};
pub use disk::DiskFaults;
pub use lies::{Lie, LieKind};
pub use net::{Cut, NetConfig};
pub use state::{Doom, DoomBy};
pub use trace::FaultCounts;
pub use watch::{DiskWatch, Durable, NetWatch};
pub use world::{DiskImage, NodeId, SimEnv, World};
