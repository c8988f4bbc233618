//! The scenarios: each starts its own cluster, hurts it in one way, and reports the outcome.

mod back;
mod backups;
mod bad_input;
mod bank;
mod clients;
mod cuts;
mod damage_each;
mod deltas;
mod devices;
pub(crate) mod difference;
mod full;
mod hurt_each;
mod hybrid;
mod kill_all;
mod metas;
mod names;
mod pgs;
mod postgres;
mod scale;
mod shares;
mod snapshots;
mod steal;
mod streamed_kill;

use crate::clock;
use crate::cluster::Cluster;
use crate::report::Outcome;
use anyhow::Result;
use std::path::PathBuf;

/// Settings of every scenario.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of the clusters; not on tmpfs.
    pub base: PathBuf,
    pub seed: u64,
    /// Number of rounds of the scenario; `None`: its own number.
    pub rounds: Option<u32>,
    /// A short form, for CI.
    pub short: bool,
    /// Keeps the folders of scenarios that failed.
    pub keep: bool,
}

impl Settings {
    fn rounds(&self, full: u32, short: u32) -> u32 {
        self.rounds.unwrap_or(if self.short { short } else { full })
    }
}

type Run = fn(&Settings, &mut Outcome) -> Result<()>;

/// Name, description and function of each scenario.
pub const ALL: &[(&str, &str, Run)] = &[
    ("kill9-each", "kill -9 of each OSD in turn under fio --verify through NBD, restart", hurt_each::kill9),
    ("sigstop-each", "SIGSTOP of each OSD in turn for 3 s under fio --verify through NBD", hurt_each::sigstop),
    ("kill-all", "kill -9 of everything at random moments, restart in random order", kill_all::run),
    ("full-device", "small devices are written until full, then trimmed and deleted from", full::run),
    ("meta-loss", "two metas on etcd: the leading one is killed under load, then all and etcd", metas::run),
    ("bad-input", "nonsense on every port under load; devices that are not ours", bad_input::run),
    (
        "verify-difference",
        "blocks altered, forgotten and rotten on one device each: pg verify names them",
        difference::run,
    ),
    ("client-cut", "a client and the leader are cut from each other, one way each for 30 s, under load", cuts::client),
    ("meta-cut", "an OSD is cut from meta alone for 30 s, under load", cuts::meta),
    ("meta-back", "the records are replaced by an older copy of their file, then by an older backup", back::meta),
    ("device-back", "an OSD's device is replaced by an older copy, and one more OSD dies", back::device),
    ("both-back", "the records and a device are replaced by older copies, and one more OSD dies", back::both),
    ("damage-each", "one device damaged in each way under load: all heals by itself", damage_each::run),
    ("deltas", "an OSD out and in again, 1 % of its data changed meanwhile: at most 5 % is sent", deltas::run),
    ("many-pgs", "pools that come and go, then 1 200 PGs on three OSDs that restart", pgs::run),
    (
        "snapshots",
        "100 snapshots under a verified load: each has what was acknowledged, and nothing later",
        snapshots::run,
    ),
    ("bank", "1 000 snapshots of two volumes at one point, between which money moves: each balances", bank::run),
    ("backups", "backups under load; the cluster is destroyed, and another one gets them back", backups::run),
    (
        "postgres",
        "20 snapshots of PostgreSQL under pgbench: a server on a clone of each recovers, and pg_amcheck is clean",
        postgres::run,
    ),
    (
        "steal",
        "a writer is stopped, loses its volume, and goes on: none of its late writes lands, 100 times",
        steal::run,
    ),
    ("names", "OSDs, an export and metas by host name; OSDs listen on all interfaces", names::run),
    ("clients", "qemu-img, nbdcopy, and ext4 through nbdfuse + loop, on exported volumes", clients::run),
];

/// Scenarios that run by name only: they take long, and their limits mean a release build on a quiet machine.
pub const BY_NAME: &[(&str, &str, Run)] = &[
    (
        "streamed-kill",
        "kill -9 of a leader while another OSD is being streamed to: stalls of a client",
        streamed_kill::run,
    ),
    ("shares", "volumes on one OSD: limits hold, busy ones get equal parts, floors are kept", shares::run),
    ("scale", "1 to 8 OSDs, 32 to 2 000 PGs an OSD, 1 000 open volumes: CPU, memory and times of a start", scale::run),
    ("hybrid", "logs on fast files, homes of 200 IOPS: fast until the dirty limit, then smooth", hybrid::run),
];

/// Returns every scenario.
pub fn known() -> impl Iterator<Item = &'static (&'static str, &'static str, Run)> {
    ALL.iter().chain(BY_NAME)
}

/// Runs one scenario to its outcome; an error on the way is a fault.
pub fn run(name: &str, done: &str, run: Run, settings: &Settings) -> Outcome {
    let mut outcome = Outcome::new(name, done);
    let start = clock::now();
    if let Err(error) = run(settings, &mut outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    outcome.took = start.elapsed();
    outcome
}

/// Takes the closing look at a cluster: no process has panicked or ended, and all replicas are equal.
fn close(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) {
    outcome.faults.extend(cluster.panics());
    if let Err(e) = cluster.must_live() {
        outcome.faults.push(format!("{e:#}"));
    }
    match cluster.basalt.wait_healthy(crate::cluster::READY_MAX).and_then(|_| cluster.basalt.verify_deep()) {
        Ok(text) => outcome.figure(format!("replicas: {text}")),
        Err(e) => outcome.faults.push(format!("{e:#}")),
    }
    cluster.keep = settings.keep && !outcome.passed();
}
