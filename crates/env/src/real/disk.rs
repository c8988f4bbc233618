//! Opening a disk: direct I/O, the lock, its size, its alignment, whether its cache is volatile.
//!
//! It takes a [`DiskSpec`] and returns the open file and its properties. A property that cannot be determined is
//! assumed to be the dangerous one: an unknown cache is volatile (R10).

use super::{after_predecessor, probe, sys};
use crate::capabilities::{Capabilities, WriteCache};
use crate::op::{DiskId, DiskInfo, DiskKind, DiskSpec, EnvError};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use types::IoBufMut;
use types::iobuf::ALIGN;

const ALIGN_MIN: u32 = 512;
/// Major number of loop devices.
const LOOP_MAJOR: u32 = 7;
/// An open disk. The lock is released with the file.
pub(super) struct Disk {
    pub file: File,
    pub size_bytes: u64,
    pub read_only: bool,
}

pub(super) fn open(spec: &DiskSpec, id: DiskId) -> Result<(Disk, DiskInfo), EnvError> {
    let failed = |source: io::Error| EnvError::Open { path: spec.path.clone(), source };
    let kind = match std::fs::metadata(&spec.path).map_err(failed)?.file_type() {
        t if t.is_block_device() => DiskKind::Block,
        t if t.is_file() => DiskKind::File,
        _ => return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"))),
    };
    let mut flags = libc::O_DIRECT | libc::O_CLOEXEC;
    if kind == DiskKind::Block && !spec.read_only {
        // On a block device, O_EXCL refuses one that is mounted or claimed by the kernel.
        flags |= libc::O_EXCL;
    }
    let file = locked(spec, flags)?;
    // The device node of a block device may be on a devtmpfs.
    if kind == DiskKind::File && sys::is_in_memory(&file).map_err(failed)? {
        return Err(EnvError::NoDirectIo { path: spec.path.clone() });
    }
    let metadata = file.metadata().map_err(failed)?;
    let (size_bytes, device) = match kind {
        DiskKind::File => (metadata.len(), metadata.dev()),
        DiskKind::Block => (sys::block_device_len(&file).map_err(failed)?, metadata.rdev()),
    };
    let align_bytes = alignment(spec, &file, kind, size_bytes)?;
    let capabilities = probe::capabilities(&file, kind, device);
    let volatile_cache = !spec.assume_plp && has_volatile_cache(device, &capabilities);
    let path = spec.path.clone();
    let info = DiskInfo { id, path, kind, size_bytes, align_bytes, volatile_cache, capabilities };
    Ok((Disk { file, size_bytes, read_only: spec.read_only }, info))
}

/// Opens and locks the device; waits for a predecessor that still holds the lock.
fn locked(spec: &DiskSpec, flags: i32) -> Result<File, EnvError> {
    after_predecessor(|| open_and_lock(spec, flags), |e| matches!(e, EnvError::Locked { .. }))
}

fn open_and_lock(spec: &DiskSpec, flags: i32) -> Result<File, EnvError> {
    let failed = |source: io::Error| EnvError::Open { path: spec.path.clone(), source };
    let file = OpenOptions::new().read(true).write(!spec.read_only).custom_flags(flags).open(&spec.path).map_err(
        |e| match e.raw_os_error() {
            Some(libc::EINVAL) => EnvError::NoDirectIo { path: spec.path.clone() },
            // O_EXCL reports EBUSY on a block device.
            Some(libc::EBUSY) => EnvError::Locked { path: spec.path.clone() },
            _ => failed(e),
        },
    )?;
    sys::lock(&file, spec.read_only).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => EnvError::Locked { path: spec.path.clone() },
        _ => failed(e),
    })?;
    Ok(file)
}

/// Determines the alignment that direct I/O needs here, by asking the kernel and by one read.
fn alignment(spec: &DiskSpec, file: &File, kind: DiskKind, size_bytes: u64) -> Result<u32, EnvError> {
    let refused = || EnvError::NoDirectIo { path: spec.path.clone() };
    let told = match (sys::direct_io_align(file), kind) {
        (Some((0, _) | (_, 0)), _) => return Err(refused()),
        (Some((memory, offset)), _) => Some(memory.max(offset)),
        (None, DiskKind::Block) => sys::block_device_sector(file).ok(),
        (None, DiskKind::File) => None,
    };
    let candidates = match told {
        Some(align) => vec![align.max(ALIGN_MIN)],
        None => vec![ALIGN_MIN, ALIGN as u32],
    };
    for align in candidates {
        if align as usize > ALIGN || !align.is_power_of_two() {
            break;
        }
        if size_bytes < u64::from(align) {
            return Ok(align);
        }
        let mut probe = IoBufMut::new(align as usize);
        match sys::read_at(file, &mut probe, 0) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            // A disk that cannot be read reports that again when its bytes are needed.
            _ => return Ok(align),
        }
    }
    Err(refused())
}

/// Whether bytes written to this device may vanish with the power before a flush.
fn has_volatile_cache(device: u64, capabilities: &Capabilities) -> bool {
    // A loop device reports neither the page cache nor the disk under its file.
    libc::major(device) == LOOP_MAJOR || capabilities.write_cache != Some(WriteCache::Through)
}
