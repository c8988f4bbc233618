//! ext4 on an exported volume: nbdfuse shows it as a file, a loop device makes a block device of that.
//!
//! Needs root and /dev/fuse. Invariant: everything is taken down again, in order, whatever happens.

use crate::clock;
use crate::cluster::Cluster;
use crate::procs::{Proc, Spec};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A program that takes longer is killed.
const PROGRAM_MAX: &str = "120";
const READY_MAX: Duration = Duration::from_secs(10);

/// Runs a program that must succeed, and returns its output.
pub fn sh(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new("timeout").args(["-s", "KILL", PROGRAM_MAX, program]).args(args).output()?;
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !out.status.success() {
        bail!("`{program} {}`: {}: {}{}", args.join(" "), out.status, text.trim(), errors.trim());
    }
    Ok(text.into_owned())
}

/// Whether this process may make mounts.
pub fn are_possible() -> Result<bool> {
    Ok(sh("id", &["-u"])?.trim() == "0" && Path::new("/dev/fuse").exists())
}

/// A volume with a block device of its own, and perhaps a mounted file system.
pub struct Mounted {
    fuse: Proc,
    folder: PathBuf,
    device: Option<String>,
    mounted: bool,
}

impl Mounted {
    /// Makes a block device of an export of `bytes`. `name` is that of its files in the folder of the cluster.
    pub fn attach(cluster: &Cluster, name: &str, uri: &str, bytes: u64) -> Result<Mounted> {
        let (file, folder) = (cluster.dir.join(format!("{name}.raw")), cluster.dir.join(name));
        std::fs::write(&file, "")?;
        std::fs::create_dir_all(&folder)?;
        let args = vec![file.display().to_string(), uri.to_owned()];
        let log = cluster.dir.join(format!("nbdfuse.{name}.log"));
        let spec = Spec { name: format!("nbdfuse.{name}"), program: "nbdfuse".into(), args, log };
        let mut made = Mounted { fuse: Proc::new(spec), folder, device: None, mounted: false };
        made.fuse.start()?;
        clock::wait_until("nbdfuse to mount", READY_MAX, || {
            made.fuse.must_live()?;
            Ok(std::fs::metadata(&file).is_ok_and(|m| m.len() == bytes))
        })?;
        made.device = Some(sh("losetup", &["--find", "--show", &file.display().to_string()])?.trim().to_owned());
        Ok(made)
    }

    /// Returns the block device.
    ///
    /// # Panics
    /// It was taken down.
    pub fn device(&self) -> &str {
        self.device.as_deref().expect("it is attached")
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes an empty file system.
    pub fn format(&self) -> Result<()> {
        sh("mkfs.ext4", &["-q", "-F", self.device()]).map(drop)
    }

    pub fn mount(&mut self) -> Result<()> {
        sh("mount", &[self.device(), &self.folder.display().to_string()])?;
        self.mounted = true;
        Ok(())
    }

    pub fn unmount(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            let folder = self.folder.display().to_string();
            // Processes of a server that was just ended may still have files open.
            clock::wait_until("the mount to be idle", READY_MAX, || Ok(sh("umount", &[&folder]).is_ok()))?;
        }
        Ok(())
    }

    /// Takes down, in order: file system, loop device, fuse.
    pub fn down(&mut self) -> Result<()> {
        self.unmount()?;
        if let Some(device) = self.device.take() {
            sh("losetup", &["-d", &device])?;
        }
        if self.fuse.pid().is_some() {
            self.fuse.signal("TERM")?;
            self.fuse.finish(READY_MAX)?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = self.down() {
            eprintln!("{}: {e:#}", self.folder.display());
        }
    }
}
