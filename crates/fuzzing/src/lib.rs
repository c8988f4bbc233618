//! Fuzz targets: plain functions over bytes, one for every decoder, for the engine, and for what peers say.
//!
//! In comes any byte string; out goes whether it was [`Verdict::Taken`], or a panic, which is a find. The same
//! functions are driven twice: by [`drive`] on stable, with a seeded mutator and the committed corpus, and by
//! libFuzzer in `fuzz/`. A target judges more than panics: what was decoded, encoded again, gives the same
//! bytes; memory is bounded by the length of the input ([`meter`]); the engine agrees with a model.
//!
//! Invariant: a target is a pure function of its bytes, so that a find can be replayed; the canaries in
//! [`canary`] must be found, or the driver is blind.

mod admin;
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

/// What a target made of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It got behind the checks: decoded, or did some work.
    Taken,
    /// It was refused, with an error.
    Refused,
}

impl Verdict {
    /// Of a decoder's result.
    fn of<T, E>(result: &Result<T, E>) -> Verdict {
        if result.is_ok() { Verdict::Taken } else { Verdict::Refused }
    }
}
