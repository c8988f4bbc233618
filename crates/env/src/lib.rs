//! The outside world: disks, connections, the clock and the dice, behind one completion-style trait.
//!
//! Ring 2. A room's loop holds one `Box<dyn Env>`; it collects the operations of a turn and hands them
//! over in [`Env::turn`], which submits all of them and returns every completion that has arrived: one
//! kernel entry serves a turn. An operation owns its buffers until its completion gives them back, so
//! dropping a waiter drops a result, never memory that the kernel still uses.
//!
//! Two forms: [`real`] on io_uring, [`sim`] under a seed. Rooms cannot tell them apart.
//!
//! Invariant: nothing outside this crate (in rings 0–3) touches a clock, a socket, a file or randomness.

mod op;
pub mod real;
pub mod sim;
mod world;

pub use op::{
    ConnId, DiskError, DiskId, DiskInfo, DiskKind, DiskSpec, EnvError, Event, ListenerId, NetAddr, NetError, Op, Token,
};
pub use world::{Env, Waker};
