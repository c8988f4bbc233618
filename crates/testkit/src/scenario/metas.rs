//! Two metas on a real etcd: the leading one dies under load; then all of them and etcd do, and I/O goes on.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape, wait_listening};
use crate::http;
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Requests per second of each area.
const RATE: u64 = 200;
const ADMIN_MAX: Duration = Duration::from_secs(5);
/// A gap in completions counts only if it is longer by this than the longest gap in calm.
const NOTICED: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_secs(3);
const GAP_KILLED_MAX: Duration = Duration::from_millis(300);
const ALONE: Duration = Duration::from_secs(5);
/// Time for a restarted OSD to go on without the word of a meta, after 10 s (R17), and to catch up.
const CATCH_UP: Duration = Duration::from_secs(14);

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { metas: 2, etcd: true, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "meta-loss", shape)?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    if let Err(error) = hurt(&mut cluster, &mut load, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn hurt(cluster: &mut Cluster, load: &mut StampedLoad, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    clock::wait_until("1 000 acknowledged writes", READY_MAX, || {
        load.must_be_clean()?;
        Ok(load.witness.known().acked > 1000)
    })?;
    outcome.figure(format!("PGs with segments: {}", cluster.basalt.data_leaders()?.len()));
    let calm = clock::now();
    clock::pause(CALM);
    let calm = load.witness.longest_gap(calm, clock::now());
    outcome.figure(format!("longest gap in calm: {} ms", calm.as_millis()));
    let noticed = calm + NOTICED;
    for _ in 0..settings.rounds(3, 1) {
        leader_dies(cluster, load, outcome, noticed)?;
    }
    everyone_dies(cluster, load, outcome, noticed)?;
    load.must_be_clean()?;
    load.kill()?;
    load.check()?;
    outcome.figure(load.summary());
    Ok(())
}

/// Returns the index of the meta that reports that it leads.
fn leading(cluster: &Cluster) -> Result<usize> {
    let mut found = None;
    clock::wait_until("a meta that leads", READY_MAX, || {
        let leads = |i: &usize| {
            let page = http::get(cluster.meta_http(*i as u32), "/healthz");
            page.is_ok_and(|(code, body)| code == 200 && body.starts_with("leading"))
        };
        found = (0..cluster.metas.len()).find(leads);
        Ok(found.is_some())
    })?;
    found.context("it was found")
}

fn leader_dies(cluster: &mut Cluster, load: &mut StampedLoad, outcome: &mut Outcome, noticed: Duration) -> Result<()> {
    let index = leading(cluster)?;
    let died = clock::now();
    cluster.metas[index].kill();
    // The command changes records, because one that only reads may show old ones.
    let name = format!("main/probe{}", outcome.figures.len());
    let create = ["volume", "create", name.as_str(), "1MiB"];
    clock::wait_until("an admin command", READY_MAX, || Ok(cluster.basalt.output(&create)?.status.success()))?;
    let took = died.elapsed();
    clock::pause(Duration::from_secs(2));
    load.must_be_clean()?;
    let gap = load.witness.longest_gap(died, clock::now());
    outcome.figure(format!(
        "meta.{index} (leading) killed: admin works after {} ms; longest gap in I/O {} ms",
        took.as_millis(),
        gap.as_millis()
    ));
    outcome.need(took <= ADMIN_MAX, || format!("admin commands took {} ms to work again", took.as_millis()));
    outcome.aim(gap <= noticed, || format!("I/O stood still for {} ms when a meta died", gap.as_millis()));
    let addr = cluster.meta_addr(index as u32);
    cluster.metas[index].start()?;
    wait_listening(&mut cluster.metas[index], addr)
}

fn everyone_dies(
    cluster: &mut Cluster,
    load: &mut StampedLoad,
    outcome: &mut Outcome,
    noticed: Duration,
) -> Result<()> {
    let died = clock::now();
    let before = load.witness.known().acked;
    cluster.metas.iter_mut().chain(&mut cluster.etcd).for_each(|proc| proc.kill());
    clock::pause(ALONE);
    progressed(load, before, died, outcome, "all metas and etcd killed", noticed)?;
    // Each OSD dies and comes back without a meta. The next one's death leaves a majority only if the one
    // before serves again.
    for osd in cluster.ids() {
        let (died, before) = (clock::now(), load.witness.known().acked);
        cluster.osd(osd).kill();
        clock::pause(Duration::from_secs(1));
        cluster.osd(osd).start()?;
        clock::pause(CATCH_UP);
        cluster.osd(osd).must_live()?;
        progressed(load, before, died, outcome, &format!("osd.{osd} killed and started without meta"), GAP_KILLED_MAX)?;
    }
    let back = clock::now();
    let etcd = cluster.etcd.as_mut().context("the cluster has an etcd")?;
    etcd.start()?;
    cluster.metas.iter_mut().try_for_each(|meta| meta.start())?;
    clock::wait_until("an admin command", READY_MAX, || {
        Ok(cluster.basalt.output(&["volume", "create", "main/probe-back", "1MiB"])?.status.success())
    })?;
    outcome.figure(format!("metas and etcd started again: admin works after {} ms", back.elapsed().as_millis()));
    Ok(())
}

fn progressed(
    load: &mut StampedLoad,
    before: u64,
    since: Instant,
    outcome: &mut Outcome,
    what: &str,
    aim: Duration,
) -> Result<()> {
    load.must_be_clean().with_context(|| what.to_owned())?;
    let acked = load.witness.known().acked - before;
    let gap = load.witness.longest_gap(since, clock::now());
    outcome.figure(format!("{what}: {acked} writes acknowledged meanwhile, longest gap {} ms", gap.as_millis()));
    if acked == 0 {
        bail!("{what}: I/O stopped");
    }
    outcome.aim(gap <= aim, || format!("{what}: I/O stood still for {} ms", gap.as_millis()));
    Ok(())
}
