//! The outside world: disks, connections, the clock and random numbers, behind one completion-style trait.
//!
//! Ring 2. The loop of a service holds one `Box<dyn Env>`. It collects the operations of a turn and passes them to
//! [`Env::turn`], which submits all of them and returns every completion that has arrived: one kernel entry serves a
//! turn. An operation owns its buffers until its completion returns them, so dropping a waiter drops a result, never
//! memory that the kernel still uses.
//!
//! Two forms implement the trait: [`real`] on io_uring, and the crate `simenv` under a seed, which tests alone use.
//! Services cannot tell them apart.
//!
//! Invariant: no code outside this crate (in rings 0–3) uses a clock, a socket, a file or randomness directly.

mod capabilities;
mod op;
pub mod real;
mod world;

pub use capabilities::{AtomicWrites, Capabilities, FileSystem, WriteCache};
pub use op::{
    ConnId, DiskError, DiskId, DiskInfo, DiskKind, DiskSpec, EnvError, Event, ListenerId, NetAddr, NetError, Op, Token,
};
pub use world::{Env, Waker};
