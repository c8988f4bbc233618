//! Connecting, and what concerns the whole library.

use crate::abi::{self, ABI_MAJOR, ABI_MINOR, BasaltCluster, OPTIONS_SIZE_MIN, Options};
use crate::errors;
use crate::guard::{self, call};
use crate::mark::Cluster;
use crate::memory;
use crate::registry::CLUSTERS;
use clientthread::{Failure, OnUnavailable, Settings};
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
            on_unavailable: abi::UNAVAILABLE_FREEZE,
            unavailable_wait_ms: 0,
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { memory::read_sized(options, OPTIONS_SIZE_MIN, "options") }?
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
        on_unavailable: on_unavailable(options.on_unavailable, given(options.unavailable_wait_ms))?,
        ..default
    })
}

/// Returns the policy that a program chose, with the bound that it gave.
fn on_unavailable(policy: u32, bound: Option<Duration>) -> Result<OnUnavailable, Failure> {
    let (min, max) = (OnUnavailable::WAIT_MIN.as_millis(), OnUnavailable::WAIT_MAX.as_millis());
    let out_of_range = || Failure::invalid(format!("options.unavailable_wait_ms is not within {min} to {max}"));
    match (policy, bound) {
        (abi::UNAVAILABLE_FREEZE, None) => Ok(OnUnavailable::Freeze),
        (abi::UNAVAILABLE_ERROR, None) => Ok(OnUnavailable::Error),
        (abi::UNAVAILABLE_WAIT, bound) => {
            OnUnavailable::wait(bound.unwrap_or(OnUnavailable::WAIT)).ok_or_else(out_of_range)
        }
        (abi::UNAVAILABLE_FREEZE | abi::UNAVAILABLE_ERROR, Some(_)) => {
            let why = "options.unavailable_wait_ms is set without BASALT_UNAVAILABLE_WAIT";
            Err(Failure::invalid(why.to_owned()))
        }
        _ => Err(Failure::invalid(format!("options.on_unavailable is {policy}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_bound_when_it_is_to_wait() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(on_unavailable(0, None).ok(), Some(OnUnavailable::Freeze));
        assert_eq!(on_unavailable(1, None).ok(), Some(OnUnavailable::Wait(Duration::from_secs(30))));
        assert_eq!(on_unavailable(1, ms(7_500)).ok(), Some(OnUnavailable::Wait(Duration::from_millis(7_500))));
        assert_eq!(on_unavailable(2, None).ok(), Some(OnUnavailable::Error));
        for (policy, bound) in [(0, ms(9_000)), (2, ms(9_000)), (1, ms(4_999)), (1, ms(604_800_001)), (3, None)] {
            assert_eq!(on_unavailable(policy, bound).expect_err("wrong").errno, libc::EINVAL, "{policy} {bound:?}");
        }
    }
}
