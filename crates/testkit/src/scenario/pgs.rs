//! Pools are created and removed, and three OSDs hold many PGs: no OSD may end (ADR 0015).

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape, wait_listening};
use crate::report::{Outcome, spread};
use crate::session::{Open, Session};
use anyhow::{Context, Result, ensure};
use bench::load::stamp;
use device::{Answer, Request};
use std::time::Duration;
use types::IoBufMut;

/// PGs of the large pool: with three replicas on three OSDs each OSD holds all of them.
const MANY: u32 = 1_200;
const MANY_SHORT: u32 = 500;
/// Longest time until PGs serve after an OSD was started.
const ACTIVE_MAX: Duration = Duration::from_secs(180);
const CYCLES: u32 = 25;
const CYCLES_SHORT: u32 = 5;
/// Number of PGs of each pool that is created and removed.
const POOL_PGS: &str = "64";
const VOLUMES: u64 = 4;
const PIECE: u64 = 64 << 10;

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    outcome.figure("before ADR 0015: 4096 PGs ended two OSDs, the cycles one");
    let mut cluster = Cluster::up(&settings.base, "many-pgs", Shape::default())?;
    let ended = refused(&cluster, outcome)
        .and_then(|()| cycles(&mut cluster, settings, outcome))
        .and_then(|()| many(&mut cluster, settings, outcome));
    if let Err(error) = ended {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn refused(cluster: &Cluster, outcome: &mut Outcome) -> Result<()> {
    let said = cluster.basalt.refusal(&["pool", "create", "huge", "--pgs", "4096", "--domain", "osd"])?;
    outcome.need(said.contains("--force"), || format!("the refusal names no --force: {said}"));
    outcome.figure(format!("4096 PGs on 3 OSDs: {}", said.lines().next().unwrap_or("")));
    Ok(())
}

/// Waits until every PG serves. Returns how long that took.
pub(super) fn wait_active(cluster: &mut Cluster) -> Result<Duration> {
    let mut left = 0;
    let waited = clock::wait_until("all PGs to be active", ACTIVE_MAX, || {
        cluster.must_live()?;
        let pgs = cluster.basalt.pgs()?;
        left = pgs.iter().filter(|pg| pg["state"] != serde_json::json!(["active"])).count();
        if left > 0 {
            clock::pause(Duration::from_millis(200));
        }
        Ok(left == 0)
    });
    waited.with_context(|| format!("{left} PGs are not active"))
}

fn many(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let count = if settings.short { MANY_SHORT } else { MANY };
    let since = clock::now();
    cluster.basalt.run(&["pool", "create", "many", "--pgs", &count.to_string(), "--domain", "osd", "--force"])?;
    wait_active(cluster)?;
    outcome.figure(format!("{count} PGs on 3 OSDs with --force: active after {} ms", since.elapsed().as_millis()));
    for n in 1..=3 {
        let (since, addr) = (clock::now(), cluster.osd_addr(n));
        cluster.osd(n).kill();
        cluster.osd(n).start()?;
        wait_listening(cluster.osd(n), addr)?;
        let listening = since.elapsed();
        wait_active(cluster)?;
        outcome.figure(format!(
            "osd.{n} killed and started with {count} PGs: serves after {} ms, all active after {} ms",
            listening.as_millis(),
            since.elapsed().as_millis()
        ));
    }
    let since = clock::now();
    cluster.basalt.run(&["pool", "rm", "many"])?;
    outcome.figure(format!("pool of {count} PGs removed after {} ms", since.elapsed().as_millis()));
    Ok(())
}

/// Creates, writes, reads and removes a pool with volumes, again and again.
fn cycles(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let count = settings.rounds(CYCLES, CYCLES_SHORT);
    let mut times = Vec::new();
    for cycle in 1..=count {
        let since = clock::now();
        one_cycle(cluster, u64::from(cycle)).with_context(|| format!("cycle {cycle}"))?;
        cluster.must_live().with_context(|| format!("cycle {cycle}"))?;
        times.push(since.elapsed());
    }
    // The log and the list of tombstones must be readable afterwards.
    for n in 1..=3 {
        let addr = cluster.osd_addr(n);
        cluster.osd(n).kill();
        cluster.osd(n).start()?;
        wait_listening(cluster.osd(n), addr)?;
        cluster.basalt.wait_healthy(READY_MAX)?;
    }
    outcome.figure(format!(
        "{count} pools of {POOL_PGS} PGs with {VOLUMES} volumes made, written, read, removed: {} each; no OSD ended",
        spread(&times)
    ));
    Ok(())
}

fn one_cycle(cluster: &Cluster, cycle: u64) -> Result<()> {
    let pool = format!("cycle{cycle}");
    ensure!(pool != POOL, "a pool of its own");
    cluster.basalt.run(&["pool", "create", &pool, "--pgs", POOL_PGS, "--domain", "osd"])?;
    for n in 0..VOLUMES {
        let name = format!("{pool}/v{n}");
        cluster.basalt.run(&["volume", "create", &name, "1GiB"])?;
        let mut session = Session::open(cluster.basalt.metas(), &name, Open::default())?;
        let mut buf = IoBufMut::new(PIECE as usize);
        stamp::fill(&mut buf, n, cycle, 0, 1);
        let written = session.call(Request::Write { offset: 0, buf: buf.freeze(), fua: true })?;
        ensure!(written == Ok(Answer::Done), "a write to {name}: {written:?}");
        let Ok(Answer::Data(read)) = session.call(Request::Read { offset: 0, len: PIECE })? else {
            anyhow::bail!("a read of {name} failed");
        };
        let mut same = IoBufMut::new(PIECE as usize);
        stamp::fill(&mut same, n, cycle, 0, 1);
        let read: Vec<u8> = read.iter().flat_map(|piece| piece.iter().copied()).collect();
        ensure!(read == same[..], "{name} does not hold what was written");
        session.close()?;
    }
    for n in 0..VOLUMES {
        cluster.basalt.run(&["volume", "rm", &format!("{pool}/v{n}"), "--now"])?;
    }
    cluster.basalt.run(&["pool", "rm", &pool])?;
    Ok(())
}
