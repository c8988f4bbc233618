//! Devices of the OSDs of a cluster: files, or block devices over files.

use anyhow::{Context, Result, ensure};
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::Command;

/// Bytes of one write that fills a file.
const BLOCK: u64 = 4 << 20;

/// Kind of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Sparse files.
    #[default]
    Fresh,
    /// Files that were written once before: they have no holes, as disks have none.
    Written,
    /// Block devices (loop) over files that were written once before. Needs root.
    Loop,
}

impl Devices {
    pub const ALL: [Devices; 3] = [Devices::Fresh, Devices::Written, Devices::Loop];

    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<Devices> {
        Devices::ALL.into_iter().find(|devices| devices.to_string() == name)
    }

    /// Prepares the file of a device; returns the block device over it, if one is wanted.
    ///
    /// # Errors
    /// No space, or no loop device.
    pub fn prepare(self, file: &Path, len_bytes: u64) -> Result<Option<LoopDevice>> {
        if self != Devices::Fresh {
            write_zeros(file, len_bytes)?;
        }
        (self == Devices::Loop).then(|| LoopDevice::over(file)).transpose()
    }
}

impl Display for Devices {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Devices::Fresh => "fresh",
            Devices::Written => "written",
            Devices::Loop => "loop",
        })
    }
}

/// A loop device; dropping it detaches it.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: String,
}

impl LoopDevice {
    /// Attaches a device that passes requests on without a cache of its own.
    fn over(file: &Path) -> Result<LoopDevice> {
        let file = file.display().to_string();
        let path = run("losetup", &["--find", "--show", "--direct-io=on", &file])?;
        Ok(LoopDevice { path: path.trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A device that is still open is detached by its last user.
        let _ = run("losetup", &["-d", &self.path]);
    }
}

/// Makes a file of zeros that has its space. No page of it stays in the page cache: requests past the cache would drop them one by one.
fn write_zeros(file: &Path, len_bytes: u64) -> Result<()> {
    ensure!(len_bytes.is_multiple_of(BLOCK), "{len_bytes} bytes are no multiple of {BLOCK}");
    let (to, count, block) = (format!("of={}", file.display()), len_bytes / BLOCK, format!("bs={BLOCK}"));
    let count = format!("count={count}");
    let args = ["if=/dev/zero", &to, &block, &count, "oflag=direct", "conv=fsync", "status=none"];
    run("dd", &args).with_context(|| format!("a device takes {} GiB of disk", len_bytes >> 30))?;
    Ok(())
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| format!("{program} is needed"))?;
    ensure!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
