//! Failures of real processes, made on purpose and measured: what `make failure-report` runs. And the speed of processes
//! without faults: [`perf`], what `make bench` runs.
//!
//! This crate belongs to the testing ring. A [`scenario`] composes a [`cluster`] of the real binary, hurts it, and
//! returns an [`report::Outcome`]. Only this process knows the acknowledged writes ([`witness`]), and it is never
//! killed. The load itself runs in a child ([`loader`]) that may be killed like everything else.
//!
//! Invariant: everything is drawn from one seed but the timing of the machine; every wait has a deadline; only loopback
//! is used; every child dies with its parent.

pub mod basalt;
pub mod chaos;
pub mod clock;
pub mod cluster;
pub mod devices;
pub mod fio;
pub mod flushes;
pub mod hostile;
pub mod http;
pub mod loader;
pub mod mounted;
pub mod perf;
pub mod procs;
pub mod report;
pub mod scenario;
pub mod session;
pub mod stamped;
pub mod surgeon;
pub mod witness;
