//! Synchronous requests: an asynchronous one with a queue of its own, and a wait.

use crate::abi::BasaltVolume;
use crate::calls::aio::{Io, submit};
use crate::guard::call;
use crate::mark::{Queue, deliver};
use crate::memory::Buffers;
use crate::registry::VOLUMES;
use clientthread::Failure;
use std::ffi::{c_int, c_void};

/// Submits a request and waits for its end.
///
/// # Safety
/// The buffers are usable until this returns.
unsafe fn perform(volume: *mut BasaltVolume, io: impl FnOnce() -> Result<Io, Failure>) -> c_int {
    call(|| {
        let (volume, queue) = (VOLUMES.get(volume)?, Queue::new(1)?);
        // SAFETY: the caller's promise.
        unsafe { submit(&volume, &queue, 0, io()?) }?;
        for finished in queue.take(1, 1, None)? {
            // SAFETY: the caller's promise.
            let (_, outcome) = unsafe { deliver(finished) };
            outcome.map_err(|errno| volume.failure(errno))?;
        }
        Ok(0)
    })
}

/// Returns one buffer as a vector.
fn one(buffer: *mut c_void, length: usize) -> libc::iovec {
    libc::iovec { iov_base: buffer, iov_len: length }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_pread(
    volume: *mut BasaltVolume,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> c_int {
    // SAFETY: the vector has one element, and the program vouches for its buffer.
    unsafe { perform(volume, || Ok(Io::Read { offset, buffers: Buffers::new(&one(buffer, length), 1)? })) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_pwrite(
    volume: *mut BasaltVolume,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as above; a write only reads the buffer.
    unsafe { perform(volume, || Ok(Io::Write { offset, buffers: Buffers::new(&one(buffer.cast_mut(), length), 1)? })) }
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_flush(volume: *mut BasaltVolume) -> c_int {
    // SAFETY: a flush has no buffers.
    unsafe { perform(volume, || Ok(Io::Flush)) }
}
