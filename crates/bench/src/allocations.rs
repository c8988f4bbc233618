//! The allocator of the program: the system's, with a count of its allocations.
//!
//! A thread counts for itself, and adds to the common count after every [`STEP`] allocations: an addition that other threads see costs as much as
//! some allocations.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations of a thread between two additions to the common count.
const STEP: u32 = 256;

static TOTAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// The system's allocator, counted.
pub struct Counted;

/// Returns the number of allocations so far, those of unfinished steps left out.
pub fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

fn count() {
    OWN.with(|own| {
        let next = own.get() + 1;
        own.set(next % STEP);
        if next == STEP {
            TOTAL.fetch_add(u64::from(STEP), Ordering::Relaxed);
        }
    });
}

// SAFETY: every call goes on to the system's allocator unchanged. Counting allocates nothing: the cell needs neither initialisation nor an end.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counted = Counted;

    #[test]
    fn allocations_of_a_thread_are_counted_in_steps() {
        let before = total();
        let kept: Vec<Box<u64>> = (0..4 * u64::from(STEP)).map(Box::new).collect();
        let counted = total() - before;
        assert!(kept.len() as u64 <= counted + u64::from(STEP), "{counted}");
    }
}
