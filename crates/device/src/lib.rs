//! A block device from its user's side: submit requests, collect completions.
//!
//! Ring 0. Frontends and tools submit [`Request`]s; a volume (through `client`) or [`Ram`] completes them.
//! The interface is completion-style, like `env`: no call blocks, and there are no callbacks. The loop
//! that owns device and frontend submits, turns, and collects.
//!
//! Invariant: every accepted request is completed exactly once, with its own token; a refused one
//! ([`Busy`]) comes back unchanged. A device has no thread, no timer and no I/O of its own.

#![warn(missing_docs)]

mod ram;
mod readonly;
mod request;

pub use ram::Ram;
pub use readonly::ReadOnly;
pub use request::{
    Answer, Busy, Completion, EXTENTS_LEN_MAX, REQUEST_LEN_MAX, Request, check as check_range, push_extent,
};

use types::Time;

/// Properties of a device, as a frontend reports them to its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `pool/volume`, or another name that the user chose.
    pub name: String,
    /// Length in bytes, a multiple of `block_min`.
    pub len_bytes: u64,
    /// Smallest I/O, and the unit of offsets and lengths: 512.
    pub block_min: u32,
    /// I/O that is aligned to multiples of this avoids read-modify-write: 4096.
    pub block_preferred: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Other clients may write to it meanwhile.
    pub shared: bool,
}

/// A block device.
pub trait BlockDevice {
    /// Returns the properties of the device.
    fn info(&self) -> &DeviceInfo;

    /// Takes a request; its completion comes out of [`BlockDevice::completions`] with `token`, perhaps at
    /// once. The caller chooses tokens: the device neither reads them nor needs them to be unique. A wrong
    /// request (empty, outside, misaligned, a write to a read-only device) is taken, and completes with
    /// the error.
    ///
    /// # Errors
    /// [`Busy`] gives the request back when the device's limit of requests or bytes in flight is reached.
    fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy>;

    /// Appends every completion since the last call.
    fn completions(&mut self, out: &mut Vec<Completion>);

    /// Returns when the device needs its loop's next turn at the latest; [`Time::ZERO`] while completions
    /// wait to be collected.
    fn next_deadline(&self) -> Time;
}

/// Returns the error of a request that is wrong for any device of this length.
///
/// # Errors
/// `Invalid` or `ReadOnly`.
pub fn check(info: &DeviceInfo, request: &Request) -> Result<(), types::Errno> {
    request::check(info.len_bytes, info.read_only, request)
}
