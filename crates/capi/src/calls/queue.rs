//! Completion queues.

use crate::abi::{BasaltQueue, Event};
use crate::guard::call;
use crate::mark::{Queue, deliver, result_of};
use crate::memory;
use crate::registry::QUEUES;
use clientthread::Failure;
use std::ffi::{c_int, c_uint};
use std::time::Duration;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_queue_create(depth: c_uint, queue: *mut *mut BasaltQueue) -> c_int {
    call(|| {
        memory::not_null(queue, "queue")?;
        let created = QUEUES.insert(Queue::new(depth)?);
        // SAFETY: not null, and the program vouches for the rest.
        unsafe { queue.write(created) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_queue_destroy(queue: *mut BasaltQueue) -> c_int {
    call(|| {
        QUEUES.get(queue)?.close()?;
        QUEUES.remove(queue).map(|_| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_queue_fd(queue: *mut BasaltQueue) -> c_int {
    call(|| QUEUES.get(queue)?.descriptor())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_queue_wait(
    queue: *mut BasaltQueue,
    events: *mut Event,
    min: c_uint,
    max: c_uint,
    timeout: *const libc::timespec,
) -> c_int {
    call(|| {
        memory::not_null(events, "events")?;
        // SAFETY: the program vouches for the struct.
        let patience = unsafe { patience(timeout) }?;
        let max = max.min(c_int::MAX as c_uint) as usize;
        let taken = QUEUES.get(queue)?.take(min as usize, max, patience)?;
        let count = taken.len();
        for (at, finished) in taken.into_iter().enumerate() {
            // SAFETY: the buffers of a request belong to the library until its event is taken, so says the header.
            let (user, outcome) = unsafe { deliver(finished) };
            let user_data = std::ptr::with_exposed_provenance_mut(user);
            let event = Event { user_data, result: result_of(outcome), reserved: 0 };
            // SAFETY: at most `max` events were taken, and the program vouches for so many places.
            unsafe { events.add(at).write(event) };
        }
        Ok(count as c_int)
    })
}

/// Returns the longest wait; `None` for a null pointer.
///
/// # Safety
/// A pointer that is not null points to a timespec.
unsafe fn patience(timeout: *const libc::timespec) -> Result<Option<Duration>, Failure> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let libc::timespec { tv_sec, tv_nsec } = unsafe { timeout.read() };
    let (seconds, nanos) =
        (u64::try_from(tv_sec).ok(), u32::try_from(tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000));
    match (seconds, nanos) {
        (Some(seconds), Some(nanos)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Failure::invalid(format!("timeout is {tv_sec} s and {tv_nsec} ns"))),
    }
}
