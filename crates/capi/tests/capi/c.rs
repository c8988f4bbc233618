//! The functions of the header with Rust's types, for tests: every pointer that a test passes is a live one.
#![allow(unsafe_code)]

use basalt::abi::{BasaltCluster, BasaltQueue, BasaltVolume, Event, Options, VolumeInfo};
use basalt::calls::{aio, cluster, queue, sync, volume};
use std::ffi::{CStr, CString, c_int};

/// Handles cross threads as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub usize);

impl Handle {
    pub fn of<T>(pointer: *mut T) -> Handle {
        Handle(pointer.addr())
    }

    pub fn to<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }
}

pub fn last_error() -> String {
    // SAFETY: the text is this thread's, and no call fails meanwhile.
    unsafe { CStr::from_ptr(cluster::basalt_last_error()) }.to_string_lossy().into_owned()
}

/// Returns the handle, or the result and the text of the failure.
fn made<T>(result: c_int, handle: *mut T) -> Result<Handle, (c_int, String)> {
    if result == 0 { Ok(Handle::of(handle)) } else { Err((result, last_error())) }
}

pub fn connect(meta: &str, connect_timeout_ms: u32, io_timeout_ms: u32) -> Result<Handle, (c_int, String)> {
    let meta = CString::new(meta).expect("no NUL");
    let size = size_of::<Options>();
    let options = Options {
        size,
        meta: meta.as_ptr(),
        connect_timeout_ms,
        io_timeout_ms,
        full_wait_ms: 0,
        reserved: 0,
        on_unavailable: 0,
        unavailable_wait_ms: 0,
    };
    let mut handle: *mut BasaltCluster = std::ptr::null_mut();
    // SAFETY: both pointers are of this frame.
    let result = unsafe { cluster::basalt_connect(&options, &mut handle) };
    made(result, handle)
}

pub fn disconnect(handle: Handle) -> c_int {
    cluster::basalt_disconnect(handle.to())
}

pub fn open(cluster: Handle, name: &str, flags: u32) -> Result<Handle, (c_int, String)> {
    let name = CString::new(name).expect("no NUL");
    let mut handle: *mut BasaltVolume = std::ptr::null_mut();
    // SAFETY: both pointers are of this frame.
    let result = unsafe { volume::basalt_open(cluster.to(), name.as_ptr(), flags, &mut handle) };
    made(result, handle)
}

pub fn close(handle: Handle) -> c_int {
    volume::basalt_close(handle.to())
}

pub fn info(handle: Handle) -> VolumeInfo {
    // SAFETY: every field may be zero.
    let mut info: VolumeInfo = unsafe { std::mem::zeroed() };
    info.size = size_of::<VolumeInfo>();
    // SAFETY: the struct is of this frame, and has its size.
    assert_eq!(unsafe { volume::basalt_volume_info(handle.to(), &mut info) }, 0, "{}", last_error());
    info
}

pub fn queue(depth: u32) -> Handle {
    let mut handle: *mut BasaltQueue = std::ptr::null_mut();
    // SAFETY: the pointer is of this frame.
    let result = unsafe { queue::basalt_queue_create(depth, &mut handle) };
    made(result, handle).expect("a queue")
}

pub fn destroy(handle: Handle) -> c_int {
    queue::basalt_queue_destroy(handle.to())
}

/// Takes events, as (user data, result).
pub fn wait(queue: Handle, min: u32, max: u32, timeout_ms: Option<u64>) -> Result<Vec<(usize, c_int)>, c_int> {
    let none = Event { user_data: std::ptr::null_mut(), result: 0, reserved: 0 };
    let mut events = vec![none; max as usize];
    let time =
        timeout_ms.map(|ms| libc::timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: there are `max` places. The tests keep the buffers of reads until their events are taken.
    let count = unsafe { queue::basalt_queue_wait(queue.to(), events.as_mut_ptr(), min, max, time) };
    let taken = usize::try_from(count).map_err(|_| count)?;
    Ok(events[..taken].iter().map(|event| (event.user_data.addr(), event.result)).collect())
}

/// Starts a read into `buffer`, which the caller keeps until the event. The vector cuts it at `cut`.
pub fn read(volume: Handle, queue: Handle, offset: u64, buffer: &mut [u8], cut: usize, user: usize) -> c_int {
    let iov = vector(buffer.as_mut_ptr(), buffer.len(), cut);
    let user = std::ptr::without_provenance_mut(user);
    // SAFETY: the vector is of this frame, and the caller keeps the buffer.
    unsafe { aio::basalt_aio_readv(volume.to(), queue.to(), offset, iov.as_ptr(), 2, 0, user) }
}

/// Starts a write.
pub fn write(volume: Handle, queue: Handle, offset: u64, buffer: &[u8], cut: usize, user: usize) -> c_int {
    let iov = vector(buffer.as_ptr().cast_mut(), buffer.len(), cut);
    let user = std::ptr::without_provenance_mut(user);
    // SAFETY: the vector is of this frame, and a write only reads during the call.
    unsafe { aio::basalt_aio_writev(volume.to(), queue.to(), offset, iov.as_ptr(), 2, 0, user) }
}

fn vector(start: *mut u8, len: usize, cut: usize) -> [libc::iovec; 2] {
    let cut = cut.min(len);
    [
        libc::iovec { iov_base: start.cast(), iov_len: cut },
        libc::iovec { iov_base: start.wrapping_add(cut).cast(), iov_len: len - cut },
    ]
}

pub fn discard(volume: Handle, queue: Handle, offset: u64, length: u64, user: usize) -> c_int {
    aio::basalt_aio_discard(volume.to(), queue.to(), offset, length, 0, std::ptr::without_provenance_mut(user))
}

pub fn write_zeroes(volume: Handle, queue: Handle, range: (u64, u64), flags: u32, user: usize) -> c_int {
    let user = std::ptr::without_provenance_mut(user);
    aio::basalt_aio_write_zeroes(volume.to(), queue.to(), range.0, range.1, flags, user)
}

pub fn pread(volume: Handle, buffer: &mut [u8], offset: u64) -> c_int {
    // SAFETY: the call waits for the end of the read.
    unsafe { sync::basalt_pread(volume.to(), buffer.as_mut_ptr().cast(), buffer.len(), offset) }
}

pub fn pwrite(volume: Handle, buffer: &[u8], offset: u64) -> c_int {
    // SAFETY: the buffer lives through the call.
    unsafe { sync::basalt_pwrite(volume.to(), buffer.as_ptr().cast(), buffer.len(), offset) }
}

pub fn flush(volume: Handle) -> c_int {
    sync::basalt_flush(volume.to())
}
