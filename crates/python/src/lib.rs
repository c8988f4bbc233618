//! The extension module of the Python package `basalt`: `basalt._native`.
//!
//! Ring 4. The classes that a program sees are in Python (`python/basalt`). This crate has what they stand on: a cluster and its
//! volumes ([`clientthread`]), buffers, waiting without the lock of the interpreter (GIL), and a queue for event loops.
//!
//! Invariants:
//! - The library's threads never touch an object of Python and never take the GIL: a completion waits in a queue until a thread of
//!   the program takes it.
//! - No call waits with the GIL held, and a wait in the main thread ends at a signal whose handler raises.
//! - A child of a `fork` gets an error from every call, before any lock.

mod admin;
mod buffers;
mod cluster;
mod errors;
mod queue;
mod views;
mod volume;
mod wait;

use pyo3::prelude::*;

/// The module.
#[pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::cluster::{Cluster, Opening};
    #[pymodule_export]
    use crate::queue::{Completion, Queue};
    #[pymodule_export]
    use crate::volume::Volume;
    #[pymodule_export]
    const REQUEST_BYTES_MAX: u64 = device::REQUEST_LEN_MAX;
    #[pymodule_export]
    const EXTENTS_BYTES_MAX: u64 = device::EXTENTS_LEN_MAX;
    #[pymodule_export]
    const QUEUE_BYTES_MAX: u64 = clientthread::QUEUE_BYTES_MAX;
    #[pymodule_export]
    const QUEUE_DEPTH_MAX: u32 = clientthread::QUEUE_DEPTH_MAX;
}
