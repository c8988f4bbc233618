//! Programs of users on an exported volume: qemu-img, nbdcopy, and ext4 through nbdfuse and a loop device.

use super::Settings;
use crate::cluster::{Cluster, Shape};
use crate::hostile;
use crate::mounted::{self, Mounted, sh};
use crate::report::Outcome;
use anyhow::{Context, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use types::rng::Rng;

const VOLUME: u64 = 256 << 20;

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "clients", Shape::default())?;
    if let Err(error) = images(&mut cluster, settings.seed, outcome).and_then(|()| file_system(&mut cluster, outcome)) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Returns the workspace, for something real to store.
fn sources() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("the crate lies in a workspace")?.to_path_buf())
}

/// Copies a qcow2 image with sources and noise onto a volume, and back.
fn images(cluster: &mut Cluster, seed: u64, outcome: &mut Outcome) -> Result<()> {
    let volume = cluster.volume("image", VOLUME)?;
    let uri = cluster.export(&volume)?;
    let at = |name: &str| cluster.dir.join(name).display().to_string();
    let (raw, image, back) = (at("image.raw"), at("image.qcow2"), at("back.raw"));
    let mib = format!("{}M", VOLUME >> 20);
    sh("truncate", &["-s", &mib, &raw])?;
    sh("mke2fs", &["-q", "-F", "-t", "ext4", "-d", &sources()?.display().to_string(), &raw])?;
    // The second quarter is noise, so that not all of the image compresses to nothing or is a hole.
    let noise = hostile::noise(&mut Rng::new(seed), (VOLUME / 4) as usize);
    std::fs::File::options().write(true).open(&raw)?.write_all_at(&noise, VOLUME / 4)?;
    sh("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &raw, &image])?;
    sh("nbdinfo", &[&uri])?;
    sh("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", &image, &uri])?;
    sh("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &image, &uri])?;
    sh("nbdcopy", &[&uri, &back])?;
    sh("cmp", &[&raw, &back])?;
    let map = sh("nbdinfo", &["--map", "--totals", &uri])?;
    let holes: Vec<&str> = map.lines().filter(|line| line.contains("hole")).collect();
    outcome.need(!holes.is_empty(), || format!("a volume that is mostly empty shows no hole: {map}"));
    outcome.figure(format!("qcow2 of {} MiB onto a volume: compare, nbdcopy and cmp agree", VOLUME >> 20));
    outcome.figure(format!("holes: {}", holes.first().unwrap_or(&"").trim()));
    Ok(())
}

fn file_system(cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    if !mounted::are_possible()? {
        outcome.skip("ext4 through nbdfuse and loop needs root and /dev/fuse");
        return Ok(());
    }
    let volume = cluster.volume("fs", VOLUME)?;
    let uri = cluster.export(&volume)?;
    let mut mount = Mounted::attach(cluster, "mnt", &uri, VOLUME)?;
    mount.format()?;
    mount.mount()?;
    let (device, target) = (mount.device().to_owned(), mount.folder().display().to_string());
    let source = sources()?;
    let (tar, list) = (cluster.dir.join("sources.tar"), cluster.dir.join("sums"));
    let (tar, list) = (tar.display().to_string(), list.display().to_string());
    sh("tar", &["-C", &source.display().to_string(), "-cf", &tar, "."])?;
    sh("tar", &["-C", &target, "-xf", &tar])?;
    // The sums are of the archive's contents, not of the bytes that were read back from the volume.
    let original = cluster.dir.join("original");
    std::fs::create_dir_all(&original)?;
    sh("tar", &["-C", &original.display().to_string(), "-xf", &tar])?;
    let sum = format!("cd {} && find . -type f -print0 | xargs -0 sha256sum > {list}", original.display());
    sh("bash", &["-euo", "pipefail", "-c", &sum])?;
    let files = std::fs::read_to_string(&list)?.lines().count();
    outcome.need(files > 20, || format!("only {files} files were unpacked"));
    mount.unmount()?;
    sh("fsck.ext4", &["-f", "-n", &device]).context("fsck after the first unmount")?;
    // The file system is mounted again, with nothing of it cached.
    mount.mount()?;
    let verify = format!("cd {target} && sha256sum --quiet -c {list}");
    sh("bash", &["-euo", "pipefail", "-c", &verify]).context("sums of what was unpacked")?;
    mount.unmount()?;
    sh("fsck.ext4", &["-f", "-n", &device]).context("fsck at the end")?;
    mount.down()?;
    outcome.figure(format!("ext4 on nbdfuse and loop: {files} files unpacked, sums right after a remount, fsck clean"));
    Ok(())
}
