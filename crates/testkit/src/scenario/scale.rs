//! Cost of a cluster as it grows: OSDs, PGs of an OSD, and open volumes with a client process's connections each.
//!
//! Idle CPU is that of 20 s without requests, in percent of a core. An OSD is killed and started: it *serves* when it accepts connections, and
//! then its PGs become active. All processes share the cores of this machine, so rates of more OSDs than cores tell no more than their cost.

use super::Settings;
use super::pgs::wait_active;
use crate::clock;
use crate::cluster::{Cluster, Shape, wait_listening};
use crate::procs::Proc;
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, ensure};
use bench::cpu;
use device::Request;
use std::time::Duration;
use types::{BLOCK, IoBufMut};

const OSDS: [u32; 4] = [1, 2, 4, 8];
const PGS: [u32; 4] = [32, 128, 512, 2_000];
const VOLUMES: u32 = 1_000;
const VOLUMES_SHORT: u32 = 50;
/// PGs of the clusters whose number of PGs does not matter.
const POOL_PGS: u32 = 64;
/// Time for which an idle cluster is watched.
const IDLE: Duration = Duration::from_secs(20);
/// A cluster is left alone before that: elections and the first reports end.
const CALM: Duration = Duration::from_secs(5);
/// Time between two turns of each open volume.
const TURN: Duration = Duration::from_millis(100);
/// Aim of an idle OSD with 128 PGs or fewer: percent of a core, and resident bytes.
const IDLE_PERCENT_MAX: f64 = 1.0;
const IDLE_BYTES_MAX: u64 = 150 << 20;

/// Use of resources by daemons without requests.
struct Idle {
    /// Percent of a core of the busiest OSD.
    osd: f64,
    meta: f64,
    /// Resident bytes of the largest OSD.
    osd_bytes: u64,
    meta_bytes: u64,
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (osd, meta) = (mib(self.osd_bytes), mib(self.meta_bytes));
        write!(f, "idle {:.2} % and {osd} MiB an OSD, {:.2} % and {meta} MiB the metadata server", self.osd, self.meta)
    }
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    for osds in OSDS {
        grown(settings, osds, outcome).with_context(|| format!("{osds} OSDs"))?;
    }
    for pgs in PGS {
        crowded(settings, pgs, outcome).with_context(|| format!("{pgs} PGs an OSD"))?;
    }
    opened(settings, outcome).context("open volumes")
}

/// Returns the use of the daemons while `meanwhile` is called, for [`IDLE`].
fn idle(cluster: &Cluster, mut meanwhile: impl FnMut(Duration) -> Result<()>) -> Result<Idle> {
    let pid = |proc: &Proc| proc.pid().with_context(|| format!("{} does not run", proc.spec.name));
    let osds = cluster.osds.values().map(pid).collect::<Result<Vec<u32>>>()?;
    let metas = cluster.metas.iter().map(pid).collect::<Result<Vec<u32>>>()?;
    meanwhile(CALM)?;
    let before = (cpu::sample(&osds)?, cpu::sample(&metas)?);
    let since = clock::now();
    meanwhile(IDLE)?;
    let after = (cpu::sample(&osds)?, cpu::sample(&metas)?);
    let us = since.elapsed().as_micros() as f64;
    let most = |before: &[cpu::CpuSample], after: &[cpu::CpuSample]| {
        let used = cpu::between(before, after).iter().map(cpu::CpuSample::total_us).max().unwrap_or(0);
        used as f64 * 100.0 / us
    };
    let largest = |procs: &mut dyn Iterator<Item = &Proc>| -> Result<u64> {
        let sizes = procs.map(|proc| Ok(proc.memory()?.0)).collect::<Result<Vec<u64>>>()?;
        sizes.into_iter().max().context("no process")
    };
    Ok(Idle {
        osd: most(&before.0, &after.0),
        meta: most(&before.1, &after.1),
        osd_bytes: largest(&mut cluster.osds.values())?,
        meta_bytes: largest(&mut cluster.metas.iter())?,
    })
}

fn rest(time: Duration) -> Result<()> {
    clock::pause(time);
    Ok(())
}

/// Kills the first OSD and starts it. Returns the times until it serves, and until all PGs are active.
fn restart(cluster: &mut Cluster) -> Result<(Duration, Duration)> {
    let addr = cluster.osd_addr(1);
    cluster.osd(1).kill();
    let since = clock::now();
    cluster.osd(1).start()?;
    wait_listening(cluster.osd(1), addr)?;
    let serves = since.elapsed();
    wait_active(cluster)?;
    Ok((serves, since.elapsed()))
}

fn grown(settings: &Settings, osds: u32, outcome: &mut Outcome) -> Result<()> {
    let replicas = osds.min(3);
    let shape = Shape { osds, replicas, pgs: POOL_PGS, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "scale", shape)?;
    let name = cluster.volume("v", 4 << 30)?;
    let seconds = settings.rounds(10, 2).to_string();
    let args = ["bench", &name, "--op", "randwrite", "--overwrite", "--depth", "32", "--seconds", &seconds];
    // The first load allocates.
    cluster.basalt.json(&args)?;
    let report = cluster.basalt.json(&args)?;
    let iops = report["report"]["writes"]["iops"].as_f64().context("a rate")?;
    let cpu_us = report["cpu_us_per_op"].as_f64().context("CPU time")?;
    let idle = idle(&cluster, rest)?;
    let (serves, active) = restart(&mut cluster)?;
    outcome.figure(format!(
        "{osds} OSDs, {replicas} replicas, {POOL_PGS} PGs: 4 KiB writes at depth 32 {iops:.0} IOPS and {cpu_us:.0} us of CPU each; {idle}; an \
         OSD serves {} ms after its start, all PGs after {} ms",
        serves.as_millis(),
        active.as_millis()
    ));
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn crowded(settings: &Settings, pgs: u32, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { pgs: 1, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "scale", shape)?;
    let count = (pgs - 1).to_string();
    let since = clock::now();
    cluster.basalt.run(&["pool", "create", "many", "--pgs", &count, "--domain", "osd", "--force"])?;
    wait_active(&mut cluster)?;
    let made = since.elapsed();
    let idle = idle(&cluster, rest)?;
    let (serves, active) = restart(&mut cluster)?;
    outcome.figure(format!(
        "{pgs} PGs on each of 3 OSDs: made in {} ms; {idle}; an OSD serves {} ms after its start, all PGs after {} ms",
        made.as_millis(),
        serves.as_millis(),
        active.as_millis()
    ));
    outcome.aim(pgs > 128 || (idle.osd <= IDLE_PERCENT_MAX && idle.osd_bytes <= IDLE_BYTES_MAX), || {
        format!("{pgs} PGs an OSD: {idle}")
    });
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Opens many volumes, each with a client of its own that has connections to the OSDs and to the metadata server.
fn opened(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let count = if settings.short { VOLUMES_SHORT } else { VOLUMES };
    let mut cluster = Cluster::up(&settings.base, "scale", Shape { pgs: POOL_PGS, ..Shape::default() })?;
    let since = clock::now();
    let names = (0..count).map(|n| cluster.volume(&format!("v{n}"), 1 << 30)).collect::<Result<Vec<String>>>()?;
    let made = since.elapsed();
    let since = clock::now();
    let mut sessions = Vec::new();
    for name in &names {
        let mut session = Session::open(cluster.basalt.metas(), name, Open::default())?;
        let request = Request::Write { offset: 0, buf: IoBufMut::new(BLOCK as usize).freeze(), fua: false };
        let answer = session.call(request)?;
        ensure!(answer.is_ok(), "a write to {name}: {answer:?}");
        sessions.push(session);
        // The others renew their leases meanwhile.
        keep(&mut sessions)?;
    }
    let took = since.elapsed();
    let idle = idle(&cluster, |time| {
        let since = clock::now();
        while since.elapsed() < time {
            keep(&mut sessions)?;
            clock::pause(TURN);
        }
        Ok(())
    })?;
    ensure!(sessions.iter().all(|session| session.failure().is_none()), "a volume was lost");
    let files = |osd: &Proc| -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", osd.pid().context("it runs")?))?.count())
    };
    let files = cluster.osds.values().map(files).collect::<Result<Vec<usize>>>()?;
    outcome.figure(format!(
        "{count} volumes made in {} ms, and opened and written in {} ms, which leaves the OSDs with {files:?} open files: {idle}",
        made.as_millis(),
        took.as_millis()
    ));
    let since = clock::now();
    let closed = sessions.into_iter().map(Session::close).collect::<Result<Vec<()>>>()?;
    outcome.figure(format!("{} volumes closed in {} ms", closed.len(), since.elapsed().as_millis()));
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Lets each client do what is due.
fn keep(sessions: &mut [Session]) -> Result<()> {
    for session in sessions {
        let now = session.begin();
        session.finish(now)?;
    }
    Ok(())
}
