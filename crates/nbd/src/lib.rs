//! The NBD door: a volume as a network block device, for qemu, libnbd, fio, nbd-client and their kin.
//!
//! Ring 4. In come the bytes of NBD clients; out go `device::Request`s and, as they complete, replies.
//! [`proto`] is the protocol alone (sans-IO: bytes in, values and bytes out); [`NbdServer`] is the part of
//! a loop that drives it over `env`, in the very loop that owns the device: no thread hop a request.
//!
//! Invariant: no byte sequence from a client panics, and what one connection can make us hold is bounded
//! by count and by bytes. The protocol's source is `doc/proto.md` of the NBD project; clauses are cited
//! by the names of its constants.

mod door;
mod metrics;
pub mod proto;

pub use door::{NbdConfig, NbdServer, NbdStats};
pub use metrics::{ClientMetrics, NbdMetrics, SLOW, rows as metric_rows};
