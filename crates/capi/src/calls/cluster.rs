//! Connecting, and what concerns the whole library.

use crate::abi::{ABI_MAJOR, ABI_MINOR, BasaltCluster, Options};
use crate::errors;
use crate::guard::{self, call};
use crate::mark::Cluster;
use crate::memory;
use crate::registry::CLUSTERS;
use clientthread::{Failure, Settings};
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

/// `full_wait_ms` of a program whose writes do not wait for space.
const NO_WAIT: u32 = u32::MAX;

#[unsafe(no_mangle)]
pub extern "C" fn basalt_abi_version() -> u32 {
    ABI_MAJOR << 16 | ABI_MINOR
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_last_error() -> *const c_char {
    guard::last_error()
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_strerror(result: c_int) -> *const c_char {
    errors::line_of(result).as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_connect(options: *const Options, cluster: *mut *mut BasaltCluster) -> c_int {
    call(|| {
        memory::not_null(cluster, "cluster")?;
        // SAFETY: the program vouches for the struct and its string.
        let settings = unsafe { settings(options) }?;
        let connected = CLUSTERS.insert(Arc::new(Cluster::connect(settings)?));
        // SAFETY: not null, and the program vouches for the rest.
        unsafe { cluster.write(connected) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_disconnect(cluster: *mut BasaltCluster) -> c_int {
    call(|| {
        CLUSTERS.get(cluster)?.stop()?;
        // The slower of two threads that disconnect is refused here.
        CLUSTERS.remove(cluster)?.join();
        Ok(0)
    })
}

/// # Safety
/// `options` is null, or the struct that the header describes.
unsafe fn settings(options: *const Options) -> Result<Settings, Failure> {
    let options = if options.is_null() {
        Options {
            size: size_of::<Options>(),
            meta: std::ptr::null(),
            connect_timeout_ms: 0,
            io_timeout_ms: 0,
            full_wait_ms: 0,
            reserved: 0,
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { memory::read_sized(options, size_of::<Options>(), "options") }?
    };
    if options.reserved != 0 {
        return Err(Failure::invalid("options.reserved is not 0"));
    }
    // SAFETY: the caller's promise.
    let meta = unsafe { memory::text(options.meta, "options.meta") }?;
    let default = Settings::new(clientthread::metas(meta)?);
    let given = |ms: u32| (ms > 0).then(|| Duration::from_millis(u64::from(ms)));
    let full_wait = if options.full_wait_ms == NO_WAIT { Some(Duration::ZERO) } else { given(options.full_wait_ms) };
    Ok(Settings {
        kind: "libbasalt".to_owned(),
        connect_timeout: given(options.connect_timeout_ms).unwrap_or(default.connect_timeout),
        io_timeout: given(options.io_timeout_ms),
        full_wait: full_wait.unwrap_or(default.full_wait),
        ..default
    })
}
