//! R17, nothing goes back in time unnoticed: records, a device, or both are replaced by an older copy of themselves.
//!
//! Every written block carries a stamp; the contents of a volume afterwards are compared with the acknowledged writes.

mod both;
mod device;
mod meta;

pub use both::run as both;
pub use device::run as device;
pub use meta::run as meta;

use crate::clock;
use crate::cluster::{Cluster, READY_MAX, wait_listening};
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Requests per second of each area of a load.
const RATE: u64 = 200;
/// Longest time in which a process refuses, or ends.
const END_MAX: Duration = Duration::from_secs(60);

/// Copies a file, and keeps its holes.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").args(["--sparse=always"]).args([from, to]).status()?;
    ensure!(status.success(), "cp {} {}: {status}", from.display(), to.display());
    Ok(())
}

fn redb(cluster: &Cluster) -> PathBuf {
    cluster.dir.join("meta.0/meta.redb")
}

/// Starts the meta and waits until it leads.
fn start_meta(cluster: &mut Cluster) -> Result<()> {
    let addr = cluster.meta_addr(0);
    cluster.metas[0].start()?;
    wait_listening(&mut cluster.metas[0], addr)?;
    clock::wait_until("a meta that leads", READY_MAX, || {
        Ok(cluster.basalt.output(&["status"])?.status.code() != Some(1))
    })?;
    Ok(())
}

/// Puts a copy of the records in their place.
fn put_records_back(cluster: &mut Cluster, records: &Path) -> Result<()> {
    cluster.metas[0].kill();
    copy(records, &redb(cluster))?;
    start_meta(cluster)
}

/// Ends an OSD with SIGTERM.
pub(super) fn stop_osd(cluster: &mut Cluster, n: u32) -> Result<()> {
    cluster.osd(n).signal("TERM")?;
    let ended = cluster.osd(n).finish(END_MAX)?;
    ensure!(ended.success(), "osd.{n} ended with {ended}");
    Ok(())
}

/// Waits until `count` more writes are acknowledged.
pub(super) fn write_on(load: &mut StampedLoad, count: u64) -> Result<()> {
    let from = load.witness.known().acked;
    clock::wait_until("writes", END_MAX, || {
        load.must_be_clean()?;
        Ok(load.witness.known().acked >= from + count)
    })?;
    Ok(())
}

/// Runs a load on a volume, and stops it after so many writes.
fn write_once(load: &mut StampedLoad, count: u64) -> Result<()> {
    load.config.rate_per_s = RATE;
    load.start()?;
    write_on(load, count)?;
    load.kill()
}

/// Reads every block of a volume back; a wrong block is a fault. Returns the number of blocks read.
fn judge(load: &mut StampedLoad, what: &str, outcome: &mut Outcome) -> u64 {
    let before = load.witness.known().checked;
    if let Err(error) = load.check() {
        outcome.faults.push(format!("{what}: {error:#}"));
    }
    load.witness.known().checked - before
}

/// Waits until so many OSDs have reported and `meta recover --dry-run` reports this standing.
fn wait_standing(cluster: &Cluster, standing: &str, osds: usize) -> Result<serde_json::Value> {
    let mut last = serde_json::Value::Null;
    clock::wait_until(&format!("the standing {standing:?} of the records"), READY_MAX, || {
        let out = cluster.basalt.output(&["meta", "recover", "--dry-run", "--json"])?;
        last = serde_json::from_slice(&out.stdout).unwrap_or_default();
        let heard = last["osds"].as_array().map_or(0, |all| all.iter().filter(|osd| osd["heard"] == true).count());
        Ok(heard >= osds && last["standing"] == standing)
    })
    .with_context(|| last.to_string())?;
    Ok(last)
}
