//! How much memory a piece of work asked for: everything that it allocated, freed or not.
//!
//! Targets come in with the work and a bound. Invariant: the process that measures has one working thread, so
//! what is counted belongs to the work (the driver's watchdog does not allocate).

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn allocated() -> u64 {
    ALLOCATOR.stats().bytes_allocated as u64
}

/// Runs `work`, which may allocate `factor` bytes for each of its `input` bytes, and `extra` besides.
///
/// # Panics
/// When it took more: a length that a peer stated was believed.
pub fn bounded<T>(input: usize, factor: u64, extra: u64, work: impl FnOnce() -> T) -> T {
    let before = allocated();
    let out = work();
    let took = allocated() - before;
    let bound = factor * input as u64 + extra;
    assert!(took <= bound, "{took} bytes allocated for an input of {input}: at most {bound} are justified");
    out
}
