//! Connecting, and what concerns the whole library.

use crate::abi::{ABI_MAJOR, ABI_MINOR, BasaltCluster, Options};
use crate::cluster::Cluster;
use crate::failure::{self, Failure};
use crate::guard::{self, call};
use crate::io_thread::Settings;
use crate::memory;
use crate::registry::CLUSTERS;
use std::ffi::{c_char, c_int};
use std::time::Duration;

const CONNECT_TIMEOUT_MS: u32 = 15_000;
/// Enough to free space, and shorter than the patience of most programs.
const FULL_WAIT_MS: u32 = 20_000;
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
    failure::line_of(result).as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_connect(options: *const Options, cluster: *mut *mut BasaltCluster) -> c_int {
    call(|| {
        memory::not_null(cluster, "cluster")?;
        // SAFETY: the program vouches for the struct and its string.
        let settings = unsafe { settings(options) }?;
        let connected = CLUSTERS.insert(Cluster::connect(settings)?);
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
    let ms = |given: u32, default: u32| Duration::from_millis(u64::from(if given == 0 { default } else { given }));
    Ok(Settings {
        metas: metas(meta)?,
        connect_timeout: ms(options.connect_timeout_ms, CONNECT_TIMEOUT_MS),
        io_timeout: (options.io_timeout_ms > 0).then(|| ms(options.io_timeout_ms, 0)),
        full_wait: if options.full_wait_ms == NO_WAIT {
            Duration::ZERO
        } else {
            ms(options.full_wait_ms, FULL_WAIT_MS)
        },
    })
}

/// Returns the addresses of the metadata servers: the given ones, or those of the environment.
fn metas(given: Option<&str>) -> Result<Vec<String>, Failure> {
    let list = match given {
        Some(list) => list.to_owned(),
        None => std::env::var("BASALT_META")
            .map_err(|_| Failure::invalid("options.meta is null, and the environment has no BASALT_META"))?,
    };
    let is_address = |address: &str| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    let metas: Vec<String> = list.split(',').map(|address| address.trim().to_owned()).collect();
    match metas.iter().find(|address| !is_address(address)) {
        Some(wrong) => Err(Failure::invalid(format!("`{wrong}` is no metadata server: write HOST:PORT,HOST:PORT"))),
        None => Ok(metas),
    }
}

#[cfg(test)]
mod tests {
    use super::metas;

    #[test]
    fn metas_are_a_list_of_hosts_with_ports() {
        assert_eq!(
            metas(Some("a:7300, [fd00::1]:7310")).as_deref(),
            Ok(&["a:7300".into(), "[fd00::1]:7310".into()][..])
        );
        for wrong in ["", "a", "a:", ":1", "a:0", "a:7300,", "a:70000"] {
            assert_eq!(metas(Some(wrong)).expect_err(wrong).errno, libc::EINVAL);
        }
    }
}
