//! The client side of one volume: split requests, hold overlaps back, number, find the leader, retry, fence.
//!
//! Ring 1, sans-IO. Users' [`device::Request`]s come in, requests to PG leaders go out through a [`Carrier`],
//! replies come back, [`device::Completion`]s go out; questions to meta are values, too. The owner calls
//! [`Volume::poll`] after it has passed in all events.
//!
//! ```text
//! submit → requests ─split→ parts ─overlap→ PG queue ─credit→ leader → reply → part done → request done
//!             │ paused: segment not placed, hole not confirmed, PG has its share of parts
//! ```
//!
//! Users name bytes by volume address. Parts, overlaps and messages use chunk addresses ([`types::stripe`]), so nothing behind the
//! split knows of stripes. A layout maps sectors one to one: two writes share a sector in both address spaces or in none.
//!
//! Invariants:
//! - No byte of a read is returned unless its checksum was verified here, or it is zero.
//! - Two writes in flight never share a sector, so a repetition cannot overtake a later write.
//! - A sequence number is finished only when its write (or its skip) is committed, or was refused by the
//!   only OSD that ever saw it; numbers in flight stay within [`types::limits::SESSION_WINDOW`].
//! - A read of a hole is answered only after a PG or meta has confirmed, after the request came, that it is one.
//! - Memory is bounded by [`VolumeTuning`] and [`limits`]: requests and bytes beyond it are refused with [`device::Busy`].

mod answer;
mod drive;
mod fence_check;
mod ids;
pub mod limiter;
mod limits;
mod meta;
mod overlap;
mod part;
mod pg;
mod policy;
mod rehearsal;
mod ring;
mod segments;
mod split;
mod stall;
mod tuning;
mod unreached;
mod volume;
mod walk;

#[cfg(test)]
mod tests;

pub use ids::{SPACES, space_of};
pub use policy::OnUnavailable;
pub use stall::Stall;
pub use tuning::VolumeTuning;
pub use volume::{Admit, Carrier, SampledWrite, Volume, VolumeConfig, VolumeFill, VolumeOut, VolumeStats};
