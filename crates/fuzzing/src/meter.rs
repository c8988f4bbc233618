//! Memory that a piece of work asked for: the sum of its allocations, freed or not.
//!
//! Targets pass the work and a bound. Invariant: the measuring process has one working thread, so the counted bytes
//! belong to the work (the driver's watchdog does not allocate).

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn allocated() -> u64 {
    ALLOCATOR.stats().bytes_allocated as u64
}

/// Runs `work`, which may allocate `factor` bytes for each of its `input` bytes, plus `extra` bytes.
///
/// # Panics
/// Panics if the work allocated more, which means that it trusted a length in the input.
pub fn bounded<T>(input: usize, factor: u64, extra: u64, work: impl FnOnce() -> T) -> T {
    let before = allocated();
    let out = work();
    let took = allocated() - before;
    let bound = factor * input as u64 + extra;
    assert!(took <= bound, "{took} bytes allocated for an input of {input}: at most {bound} are justified");
    out
}
