//! Asynchronous requests, and what the synchronous ones share with them.

use crate::abi::{BasaltQueue, BasaltVolume, WRITE_ZEROES_ALLOCATE};
use crate::guard::call;
use crate::mark::{Mark, Queue, Volume};
use crate::memory::Buffers;
use crate::registry::{QUEUES, VOLUMES};
use clientthread::Failure;
use device::Request;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A request in the program's terms.
pub enum Io {
    Read { offset: u64, buffers: Buffers },
    Write { offset: u64, buffers: Buffers },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, allocates: bool },
}

impl Io {
    /// Checks range and right before any memory is taken. Only a range decides, so a read stands for a write.
    fn check(&self, volume: &Volume) -> Result<(), Failure> {
        let request = match *self {
            Io::Flush => Request::Flush,
            Io::Read { offset, ref buffers } | Io::Write { offset, ref buffers } => {
                Request::Read { offset, len: buffers.len() }
            }
            Io::Discard { offset, len } => Request::Trim { offset, len },
            Io::WriteZeroes { offset, len, .. } => Request::WriteZeroes { offset, len, no_hole: false },
        };
        volume.check(&request)?;
        if volume.info().read_only && matches!(self, Io::Write { .. }) {
            return Err(volume.failure(types::Errno::ReadOnly));
        }
        Ok(())
    }
}

/// Hands a request to the volume; its event will be in `queue`.
///
/// # Safety
/// The buffers of a write are readable. Those of a read stay writable until the event is taken.
pub unsafe fn submit(volume: &Volume, queue: &Arc<Queue>, user: usize, io: Io) -> Result<(), Failure> {
    io.check(volume)?;
    let admit = |bytes, target| queue.admit(Mark { user, target }, bytes);
    let (request, ticket) = match io {
        Io::Read { offset, buffers } => {
            let len = buffers.len();
            (Request::Read { offset, len }, admit(len, Some(buffers))?)
        }
        Io::Write { offset, buffers } => {
            let ticket = admit(buffers.len(), None)?;
            // SAFETY: the caller's promise.
            let buf = unsafe { buffers.gather() };
            (Request::Write { offset, buf, fua: false }, ticket)
        }
        Io::Flush => (Request::Flush, admit(0, None)?),
        Io::Discard { offset, len } => (Request::Trim { offset, len }, admit(0, None)?),
        Io::WriteZeroes { offset, len, allocates } => {
            (Request::WriteZeroes { offset, len, no_hole: allocates }, admit(0, None)?)
        }
    };
    volume.send(request, ticket)
}

/// The body of every function below.
///
/// # Safety
/// The same as of [`submit`].
unsafe fn start(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    user: *mut c_void,
    io: impl FnOnce() -> Result<Io, Failure>,
) -> c_int {
    call(|| {
        let (volume, queue) = (VOLUMES.get(volume)?, QUEUES.get(queue)?);
        // SAFETY: the caller's promise.
        unsafe { submit(&volume, &queue, user.expose_provenance(), io()?) }?;
        Ok(0)
    })
}

/// Returns an error unless all bits of `flags` are known.
fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    if flags & !known != 0 {
        return Err(Failure::invalid(format!("flags are {flags:#x}; this call knows {known:#x}")));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_aio_readv(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    offset: u64,
    iov: *const libc::iovec,
    iovcnt: c_int,
    flags: u32,
    user_data: *mut c_void,
) -> c_int {
    let io = || {
        check_flags(flags, 0)?;
        // SAFETY: the program vouches for the vector.
        Ok(Io::Read { offset, buffers: unsafe { Buffers::new(iov, iovcnt) }? })
    };
    // SAFETY: the program vouches for the buffers until it has taken the event.
    unsafe { start(volume, queue, user_data, io) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_aio_writev(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    offset: u64,
    iov: *const libc::iovec,
    iovcnt: c_int,
    flags: u32,
    user_data: *mut c_void,
) -> c_int {
    let io = || {
        check_flags(flags, 0)?;
        // SAFETY: the program vouches for the vector.
        Ok(Io::Write { offset, buffers: unsafe { Buffers::new(iov, iovcnt) }? })
    };
    // SAFETY: the program vouches for the buffers during this call.
    unsafe { start(volume, queue, user_data, io) }
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_aio_flush(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    flags: u32,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: a flush has no buffers.
    unsafe { start(volume, queue, user_data, || check_flags(flags, 0).map(|()| Io::Flush)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_aio_discard(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    offset: u64,
    length: u64,
    flags: u32,
    user_data: *mut c_void,
) -> c_int {
    let io = || check_flags(flags, 0).map(|()| Io::Discard { offset, len: length });
    // SAFETY: a discard has no buffers.
    unsafe { start(volume, queue, user_data, io) }
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_aio_write_zeroes(
    volume: *mut BasaltVolume,
    queue: *mut BasaltQueue,
    offset: u64,
    length: u64,
    flags: u32,
    user_data: *mut c_void,
) -> c_int {
    let io = || {
        check_flags(flags, WRITE_ZEROES_ALLOCATE)?;
        Ok(Io::WriteZeroes { offset, len: length, allocates: flags & WRITE_ZEROES_ALLOCATE != 0 })
    };
    // SAFETY: zeroes have no buffers.
    unsafe { start(volume, queue, user_data, io) }
}
