//! The NBD server: a volume as a network block device, for qemu, libnbd, fio, nbd-client and similar
//! clients.
//!
//! Ring 4. Input: the bytes of NBD clients. Output: `device::Request`s and, as they complete, replies.
//! [`proto`] is the protocol alone (sans-IO: bytes in, values and bytes out). [`NbdServer`] drives it over
//! `env`, in the same loop that owns the device: a request needs no second thread. [`kernel`] makes a device of Linux its client.
//!
//! Invariant: no byte sequence from a client panics, and the memory that one connection can occupy is
//! bounded by count and by bytes. The protocol's source is `doc/proto.md` of the NBD project; clauses are
//! cited by the names of its constants.

pub mod kernel;
mod metrics;
pub mod proto;
mod server;

pub use metrics::{ClientMetrics, NbdMetrics, SLOW, rows as metric_rows};
pub use server::{NbdConfig, NbdServer, NbdStats};
