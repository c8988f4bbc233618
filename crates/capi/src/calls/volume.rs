//! Volumes: open, close, and their properties.

use crate::abi::{BasaltCluster, BasaltVolume, OPEN_RDONLY, OPEN_STEAL, VolumeInfo};
use crate::guard::call;
use crate::memory;
use crate::registry::{CLUSTERS, VOLUMES};
use client::ClientTuning;
use clientthread::{Access, Failure};
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use types::limits::PART_MAX;

/// Size of the struct in the first version of the header.
const INFO_SIZE_MIN: usize = 40;
const _: () = assert!(size_of::<VolumeInfo>() == INFO_SIZE_MIN);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_open(
    cluster: *mut BasaltCluster,
    name: *const c_char,
    flags: u32,
    volume: *mut *mut BasaltVolume,
) -> c_int {
    call(|| {
        memory::not_null(volume, "volume")?;
        // SAFETY: the program vouches for the string.
        let name = unsafe { memory::text(name, "name") }?.ok_or_else(|| Failure::invalid("name is a null pointer"))?;
        let (is_reader, steals) = (flags & OPEN_RDONLY != 0, flags & OPEN_STEAL != 0);
        if flags & !(OPEN_RDONLY | OPEN_STEAL) != 0 || (is_reader && steals) {
            return Err(Failure::invalid(format!("flags are {flags:#x}: BASALT_OPEN_RDONLY or BASALT_OPEN_STEAL")));
        }
        let access = match (is_reader, steals) {
            (true, _) => Access::Read,
            (false, false) => Access::Write,
            (false, true) => Access::Steal,
        };
        let opened = VOLUMES.insert(Arc::new(CLUSTERS.get(cluster)?.open(name, access)?));
        // SAFETY: not null, and the program vouches for the rest.
        unsafe { volume.write(opened) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn basalt_close(volume: *mut BasaltVolume) -> c_int {
    // The handle goes first: of two threads that close it, one is refused.
    call(|| VOLUMES.remove(volume)?.close().map(|()| 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn basalt_volume_info(volume: *mut BasaltVolume, info: *mut VolumeInfo) -> c_int {
    call(|| {
        let volume = VOLUMES.get(volume)?;
        let value = VolumeInfo {
            size: size_of::<VolumeInfo>(),
            length_bytes: volume.info().len_bytes,
            block_bytes: volume.info().block_min,
            block_preferred_bytes: volume.info().block_preferred,
            request_preferred_bytes: PART_MAX as u32,
            request_bytes_max: device::REQUEST_LEN_MAX as u32,
            requests_served: ClientTuning::default().volume.requests_max as u32,
            read_only: u32::from(volume.info().read_only),
        };
        // SAFETY: the program vouches for the struct.
        unsafe { memory::write_sized(info, &value, INFO_SIZE_MIN, "info") }?;
        Ok(0)
    })
}
