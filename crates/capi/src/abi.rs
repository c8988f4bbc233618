//! Types and numbers of the header `include/basalt.h`. The test `abi` compares both.

use std::ffi::{c_char, c_int, c_void};

/// Part of `basalt_abi_version()` that changes when a program must be compiled again.
pub const ABI_MAJOR: u32 = 1;
/// Part that grows with each addition.
pub const ABI_MINOR: u32 = 1;

/// `BASALT_OPEN_RDONLY`.
pub const OPEN_RDONLY: u32 = 1;
/// `BASALT_OPEN_STEAL`.
pub const OPEN_STEAL: u32 = 2;
/// `BASALT_UNAVAILABLE_FREEZE`.
pub const UNAVAILABLE_FREEZE: u32 = 0;
/// `BASALT_UNAVAILABLE_WAIT`.
pub const UNAVAILABLE_WAIT: u32 = 1;
/// `BASALT_UNAVAILABLE_ERROR`.
pub const UNAVAILABLE_ERROR: u32 = 2;
/// Size of `struct basalt_options` in version 1.0.
pub const OPTIONS_SIZE_MIN: usize = std::mem::offset_of!(Options, on_unavailable);
/// `BASALT_WRITE_ZEROES_ALLOCATE`.
pub const WRITE_ZEROES_ALLOCATE: u32 = 1;
/// `BASALT_QUEUE_DEPTH_MAX`.
pub const QUEUE_DEPTH_MAX: u32 = clientthread::QUEUE_DEPTH_MAX;
/// `BASALT_QUEUE_BYTES_MAX`.
pub const QUEUE_BYTES_MAX: u64 = clientthread::QUEUE_BYTES_MAX;
/// `BASALT_IOV_MAX`.
pub const IOV_MAX: c_int = 1024;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _no_fields: [u8; 0],
        }
    )+};
}

handles! {
    /// `struct basalt_cluster`. A pointer to it is a number of the registry, and no address.
    BasaltCluster;
    /// `struct basalt_volume`, likewise.
    BasaltVolume;
    /// `struct basalt_queue`, likewise.
    BasaltQueue;
}

/// `struct basalt_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub size: usize,
    pub meta: *const c_char,
    pub connect_timeout_ms: u32,
    pub io_timeout_ms: u32,
    pub full_wait_ms: u32,
    pub reserved: u32,
    pub on_unavailable: u32,
    pub unavailable_wait_ms: u32,
}

/// `struct basalt_volume_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VolumeInfo {
    pub size: usize,
    pub length_bytes: u64,
    pub block_bytes: u32,
    pub block_preferred_bytes: u32,
    pub request_preferred_bytes: u32,
    pub request_bytes_max: u32,
    pub requests_served: u32,
    pub read_only: u32,
}

/// `struct basalt_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub user_data: *mut c_void,
    pub result: c_int,
    pub reserved: u32,
}
