//! A block device as its users see it: submit requests, collect completions.
//!
//! Ring 3. Doors and tools come in with [`Request`]s; a volume (through `client`) or [`Ram`] answers.
//! It is completion-style, like `env`: nothing blocks, nothing calls back; the loop that owns device and
//! door submits, turns, and collects.
//!
//! Invariant: every accepted request is completed exactly once, with its own token; a refused one
//! ([`Busy`]) comes back untouched. No thread, no timer, no I/O of its own.

mod ram;
mod readonly;

pub use ram::Ram;
pub use readonly::ReadOnly;
pub use volume::request::{Answer, Busy, Completion, REQUEST_LEN_MAX, Request};

use types::Time;

/// What a door tells its clients about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `pool/volume`, or what else the user calls it.
    pub name: String,
    pub len_bytes: u64,
    /// Smallest I/O, and the unit of offsets and lengths: 512.
    pub block_min: u32,
    /// I/O in multiples of this, so aligned, avoids read-modify-write: 4096.
    pub block_preferred: u32,
    pub read_only: bool,
}

/// A block device.
pub trait BlockDevice {
    fn info(&self) -> &DeviceInfo;

    /// Takes a request; its end comes out of [`BlockDevice::completions`] with `token`, perhaps at once.
    /// Tokens are the owner's: the device neither reads them nor minds equal ones. A wrong request (empty,
    /// outside, misaligned, a write to a read-only device) is taken, and completes with the error.
    ///
    /// # Errors
    /// [`Busy`] gives the request back when the device's limit of requests or bytes in flight is reached.
    fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy>;

    /// Appends every completion since the last call.
    fn completions(&mut self, out: &mut Vec<Completion>);

    /// When the device wants its loop's next turn at the latest; [`Time::ZERO`] while completions wait to
    /// be collected.
    fn next_deadline(&self) -> Time;
}

/// Why a request is wrong for a device of this length, whatever the device is made of.
///
/// # Errors
/// `Invalid` or `ReadOnly`.
pub fn check(info: &DeviceInfo, request: &Request) -> Result<(), types::Errno> {
    volume::request::check(info.len_bytes, info.read_only, request)
}
