//! The device of a stopped OSD, opened with the lock that `osd run` takes.
//!
//! Invariant: a device opened for reading is open O_RDONLY, and a device that an OSD serves is refused (BSLT-3002).

use crate::disk_args::DiskDevice;
use crate::errors::{self, UserError};
use crate::role::env_error;
use crate::role::format::format_error;
use crate::role::osd::{superblock_error, superblocks};
use anyhow::Result;
use engine::offline::{self, Access, Offline, OfflineError};
use engine::{Disks, FormatError, MountError, Superblock};
use env::real::{RealConfig, RealEnv};
use env::{DiskInfo, DiskSpec, Env};
use std::path::{Path, PathBuf};
use types::store::Recovered;
use types::{IoBuf, codes};

/// An open device.
pub struct Device {
    pub env: RealEnv,
    pub disks: Disks,
    pub path: PathBuf,
    /// The device of the log: the same path, unless it has one of its own.
    pub log_path: PathBuf,
}

impl Device {
    /// Opens and locks a device, and that of its log.
    ///
    /// # Errors
    /// BSLT-3002 while an OSD has it open, and the errors of a path that cannot be opened.
    pub fn open(store: &DiskDevice, access: Access) -> Result<Device> {
        let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
        let home = open_one(&mut env, &store.device, access)?;
        let path = store.device.clone();
        let Some(log_path) = store.log_device.clone() else {
            return Ok(Device { env, disks: Disks::from(home), log_path: path.clone(), path });
        };
        let log = open_one(&mut env, &log_path, access)?;
        Ok(Device { env, disks: Disks { home, log }, path, log_path })
    }

    /// Reads the superblocks; returns that of the log.
    ///
    /// # Errors
    /// The codes of `osd run` for a device without one, of another version, or of another part of an OSD.
    pub fn superblock(&mut self) -> Result<Superblock> {
        self.superblocks().map(|(log, _)| log)
    }

    /// Does the same, and returns that of home, too.
    pub fn superblocks(&mut self) -> Result<(Superblock, Superblock)> {
        superblocks(&mut self.env, &self.disks, (&self.log_path, &self.path), device_error)
    }

    /// Mounts the store.
    ///
    /// # Errors
    /// BSLT-3013 when it cannot be mounted.
    pub fn mount(&mut self, access: Access) -> Result<(Offline<'_>, Superblock, Vec<Recovered>)> {
        self.superblocks()?;
        let path = &self.path;
        Offline::mount(&mut self.env, self.disks.clone(), access).map_err(|error| offline_error(path, error))
    }

    /// Reads bytes of the device of the log as they are. `offset` and `len` are multiples of 4 KiB.
    ///
    /// # Errors
    /// The device does not give them back.
    pub fn read_log(&mut self, offset: u64, len: usize) -> Result<IoBuf, FormatError> {
        offline::read(&mut self.env, &self.disks.log, offset, len)
    }

    /// Does the same on the device of home.
    ///
    /// # Errors
    /// The device does not give them back.
    pub fn read_home(&mut self, offset: u64, len: usize) -> Result<IoBuf, FormatError> {
        offline::read(&mut self.env, &self.disks.home, offset, len)
    }
}

fn open_one(env: &mut RealEnv, path: &Path, access: Access) -> Result<DiskInfo> {
    let spec = DiskSpec { path: path.to_owned(), assume_plp: false, read_only: access == Access::Read };
    let opened = env.open_disk(&spec).map_err(env_error);
    let stop = || {
        "stop its OSD first (systemctl stop basalt-osd@NAME; basalt dev stop N in a dev cluster), then the same command again"
            .to_owned()
    };
    let opened = opened.map_err(|error| errors::advise(error, codes::DEVICE_IN_USE, stop));
    let look = || format!("ls -l {}", path.display());
    opened.map_err(|error| errors::advise(error, codes::FILE_UNUSABLE, look))
}

/// Returns the error of a device that cannot be read as one of an OSD.
pub fn device_error(path: &Path, error: FormatError) -> anyhow::Error {
    match &error {
        FormatError::Superblock(why) => {
            let (code, next) = superblock_error(path, why);
            let next = if code == codes::DEVICE_NOT_FORMATTED {
                "give the device that `basalt osd run` serves".to_owned()
            } else {
                next
            };
            UserError::new(code, format!("{}: {error}", path.display()), next).into()
        }
        _ => format_error(path, error),
    }
}

/// Returns the error of a store that cannot be used.
pub fn offline_error(path: &Path, error: OfflineError) -> anyhow::Error {
    let device = path.display();
    let (code, next) = match error {
        OfflineError::Env(error) => return env_error(error),
        OfflineError::Device(error) => return device_error(path, error),
        OfflineError::Mount(MountError::Superblock(why)) => return device_error(path, FormatError::Superblock(why)),
        OfflineError::Mount(MountError::Poisoned { .. }) => (
            codes::STORE_POISONED,
            "check the device; if it is sound, start its OSD once with --after-poison".to_owned(),
        ),
        OfflineError::Mount(_) => (codes::MOUNT_FAILED, format!("basalt disk check {device}")),
        OfflineError::Behind { .. } => {
            (codes::DEVICE_BEHIND, "start its OSD: the metadata server decides what becomes of its replicas".to_owned())
        }
        OfflineError::Poisoned(_) => (codes::STORE_POISONED, "check the device: dmesg, smartctl".to_owned()),
        OfflineError::NoReplica(_) => (codes::REPLICA_NOT_HERE, format!("basalt disk ls {device}")),
        OfflineError::Payload { .. } => (codes::REPLICA_DAMAGED, format!("basalt disk check {device}")),
        OfflineError::Stuck { .. } => (
            codes::MOUNT_FAILED,
            format!("see dmesg, and basalt disk usage {device}; an OSD that is started frees space of its log"),
        ),
    };
    UserError::new(code, format!("{device}: {error}"), next).into()
}
