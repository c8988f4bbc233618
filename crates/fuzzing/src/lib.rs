//! Fuzz targets: plain functions over bytes, one for each decoder, for the engine, and for messages of peers.
//!
//! A target takes any byte string. It returns whether the input was [`Verdict::Taken`], or it panics, and a panic is a
//! find. The same functions are driven twice: by [`drive`] on stable Rust, with a seeded mutator and the committed
//! corpus, and by libFuzzer in `fuzz/`. A target checks more than panics. A decoded value encodes to the same bytes,
//! memory is bounded by the length of the input ([`meter`]), and the engine agrees with a model.
//!
//! Invariant: a target is a pure function of its bytes, so that a find can be replayed. The driver must find the
//! canaries in [`canary`]; a driver that misses one would miss real finds too.

mod admin;
mod backups;
mod canary;
mod client_peer;
pub mod corpus;
pub mod drive;
mod home;
mod line;
mod log;
pub mod meter;
mod mount;
pub mod mutate;
mod nbd_door;
mod osd_peer;
mod raft_peers;
pub mod registry;
mod source;
mod store;
mod store_model;
mod text;
mod volume_peer;
mod wire_frame;

pub use registry::{TARGETS, Target, find};

/// Result of one run of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The input passed the checks: it was decoded, or it did some work.
    Taken,
    /// The input was refused, with an error.
    Refused,
}

impl Verdict {
    /// Returns the verdict for a decoder's result.
    fn of<T, E>(result: &Result<T, E>) -> Verdict {
        if result.is_ok() { Verdict::Taken } else { Verdict::Refused }
    }
}
