//! Slow disks: each OSD's device file behind a loop device, whose writes a control group limits.
//!
//! Slow disks need root, loop devices and the blkio controller. Without these there are none, and the report says so.
//!
//! Invariant: everything that was set up is taken down again, however the run ends.

use crate::cluster::Cluster;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";

/// The loop devices and groups of a cluster's OSDs, by number from 1.
pub struct SlowDisks {
    /// The loop device of each OSD, its `MAJOR:MINOR`, and its group.
    disks: Vec<(String, String, PathBuf)>,
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
        let mut this = SlowDisks { disks: Vec::new() };
        for osd in 1..=cluster.shape.osds {
            let file = cluster.device(osd).display().to_string();
            let device = sh("losetup", &["--find", "--show", &file])?;
            let group = Path::new(CONTROLLER).join(format!("basalt-chaos-{}-{osd}", std::process::id()));
            this.disks.push((device.clone(), String::new(), group.clone()));
            let number = sh("lsblk", &["--noheadings", "--nodeps", "--output", "MAJ:MIN", &device])?;
            this.disks.last_mut().expect("just pushed").1 = number.trim().to_owned();
            std::fs::create_dir(&group).with_context(|| group.display().to_string())?;
        }
        for (osd, (device, ..)) in (1..).zip(&this.disks) {
            let file = cluster.device(osd).display().to_string();
            let proc = cluster.osd(osd);
            proc.kill();
            let args = proc.spec.args.iter_mut().filter(|arg| **arg == file);
            args.for_each(|arg| arg.clone_from(device));
            proc.start()?;
            this.enter(osd, proc.pid())?;
        }
        Ok(this)
    }

    /// Puts a started OSD into its group.
    pub fn enter(&self, osd: u32, pid: Option<u32>) -> Result<()> {
        let pid = pid.context("it was started")?;
        let path = self.disks[osd as usize - 1].2.join("cgroup.procs");
        std::fs::write(&path, pid.to_string()).with_context(|| path.display().to_string())
    }

    /// Limits the writes of an OSD's device; 0: no limit.
    pub fn limit(&self, osd: u32, bytes_per_s: u64) -> Result<()> {
        let (_, number, group) = &self.disks[osd as usize - 1];
        let path = group.join("blkio.throttle.write_bps_device");
        std::fs::write(&path, format!("{number} {bytes_per_s}")).with_context(|| path.display().to_string())
    }
}

impl Drop for SlowDisks {
    fn drop(&mut self) {
        for (device, _, group) in &self.disks {
            // A device that is still open is detached by its last user.
            let _ = sh("losetup", &["-d", device]);
            if let Ok(text) = std::fs::read_to_string(group.join("cgroup.procs")) {
                for pid in text.lines() {
                    let _ = std::fs::write(Path::new(CONTROLLER).join("cgroup.procs"), pid);
                }
            }
            let _ = std::fs::remove_dir(group);
        }
    }
}
