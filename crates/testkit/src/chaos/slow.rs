//! Slow disks: each OSD's device file behind a loop device, whose writes a control group limits.
//!
//! Slow disks need root, loop devices and the blkio controller. Without these there are none, and the report says so.
//!
//! Invariant: everything that was set up is taken down again, however the run ends.

use crate::cluster::Cluster;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";

/// The loop devices and groups of a cluster's OSDs, by id.
#[derive(Default)]
pub struct SlowDisks(BTreeMap<u32, Disk>);

struct Disk {
    device: String,
    /// `MAJOR:MINOR` of the device.
    number: String,
    group: PathBuf,
}

fn sh(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    if !out.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

impl SlowDisks {
    /// Moves every OSD onto a loop device over its file.
    ///
    /// # Errors
    /// The machine lacks something; then the OSDs run as before.
    pub fn set_up(cluster: &mut Cluster) -> Result<SlowDisks> {
        if !Path::new(CONTROLLER).join("blkio.throttle.write_bps_device").exists() {
            bail!("no blkio controller at {CONTROLLER}");
        }
        let mut this = SlowDisks::default();
        for osd in cluster.ids() {
            this.add(osd, &cluster.device(osd))?;
        }
        for osd in cluster.ids() {
            let file = cluster.device(osd).display().to_string();
            let proc = cluster.osd(osd);
            proc.kill();
            let args = proc.spec.args.iter_mut().filter(|arg| **arg == file);
            args.for_each(|arg| arg.clone_from(&this.0[&osd].device));
            proc.start()?;
            this.enter(osd, proc.pid())?;
        }
        Ok(this)
    }

    /// Makes the loop device and the group of an OSD. Returns the loop device.
    pub fn add(&mut self, osd: u32, file: &Path) -> Result<String> {
        let device = sh("losetup", &["--find", "--show", &file.display().to_string()])?;
        self.adopt(osd, &device)?;
        Ok(device)
    }

    /// Makes the group of an OSD on a loop device, and takes the device over.
    pub fn adopt(&mut self, osd: u32, device: &str) -> Result<()> {
        let group = Path::new(CONTROLLER).join(format!("basalt-chaos-{}-{osd}", std::process::id()));
        // It is known from here on, so that it is taken down whatever follows.
        let disk = Disk { device: device.to_owned(), number: String::new(), group: group.clone() };
        let disk = self.0.entry(osd).insert_entry(disk).into_mut();
        disk.number = sh("lsblk", &["--noheadings", "--nodeps", "--output", "MAJ:MIN", device])?.trim().to_owned();
        std::fs::create_dir(&group).with_context(|| group.display().to_string())
    }

    /// Takes down the loop device and the group of an OSD that is gone.
    pub fn remove(&mut self, osd: u32) {
        drop(self.0.remove(&osd));
    }

    /// Puts a started OSD into its group.
    pub fn enter(&self, osd: u32, pid: Option<u32>) -> Result<()> {
        let pid = pid.context("it was started")?;
        let path = self.0[&osd].group.join("cgroup.procs");
        std::fs::write(&path, pid.to_string()).with_context(|| path.display().to_string())
    }

    /// Limits the writes of an OSD's device; 0: no limit.
    pub fn limit(&self, osd: u32, bytes_per_s: u64) -> Result<()> {
        self.throttle(osd, "write_bps_device", bytes_per_s)
    }

    /// Limits the requests of an OSD's device, reads and writes each; 0: no limit.
    pub fn limit_iops(&self, osd: u32, per_s: u64) -> Result<()> {
        self.throttle(osd, "read_iops_device", per_s)?;
        self.throttle(osd, "write_iops_device", per_s)
    }

    fn throttle(&self, osd: u32, what: &str, per_s: u64) -> Result<()> {
        let Disk { number, group, .. } = &self.0[&osd];
        let path = group.join(format!("blkio.throttle.{what}"));
        std::fs::write(&path, format!("{number} {per_s}")).with_context(|| path.display().to_string())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A device that is still open is detached by its last user.
        let _ = sh("losetup", &["-d", &self.device]);
        if let Ok(text) = std::fs::read_to_string(self.group.join("cgroup.procs")) {
            for pid in text.lines() {
                let _ = std::fs::write(Path::new(CONTROLLER).join("cgroup.procs"), pid);
            }
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}
