//! The device of an OSD is replaced by an older copy, and the OSDs with newer state are away.
//!
//! osd.1 dies, writes go on, osd.3 is stopped and its device goes back, osd.2 dies. Then osd.1 and osd.3 would be a
//! majority that lacks acknowledged writes.

use super::{RATE, copy, judge, stop_osd, write_on};
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape, wait_listening};
use crate::report::Outcome;
use crate::scenario::Settings;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;

/// Line of an OSD that waits as an older copy.
const WAITS: &str = "waiting: the device is an older copy";
/// Time for which two OSDs may wait for the state of the third one, until the scenario goes on.
const ALONE: Duration = Duration::from_secs(15);

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    outcome.figure("before ADR 0012: 7 205 acknowledged blocks lost, 8 differing extents, silently");
    let mut cluster = Cluster::up(&settings.base, "device-back", Shape { device_bytes: 2 << 30, ..Shape::default() })?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    let ended = heals(&mut cluster, &mut load, outcome).and_then(|()| let_in(&mut cluster, &mut load, outcome));
    if let Err(error) = ended {
        outcome.faults.push(format!("{error:#}"));
    }
    super::super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// The copy waits while its PGs are not served without it, and fails its replicas then. No acknowledged write is lost.
fn heals(cluster: &mut Cluster, load: &mut StampedLoad, outcome: &mut Outcome) -> Result<()> {
    write_on(load, 1000)?;
    let old = cluster.dir.join("old.device");
    stop_osd(cluster, 3)?;
    copy(&cluster.device(3), &old)?;
    cluster.osd(3).start()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    write_on(load, 1000)?;
    cluster.osd(1).kill();
    write_on(load, 1000).context("without osd.1")?;
    stop_osd(cluster, 3)?;
    cluster.osd(2).kill();
    copy(&old, &cluster.device(3))?;
    cluster.osd(1).start()?;
    waits(cluster)?;
    let quiet = load.witness.known().acked;
    clock::pause(ALONE);
    let acked = load.witness.known().acked - quiet;
    outcome.need(acked == 0, || format!("{acked} writes were acknowledged by a minority"));
    let states = cluster.basalt.pgs()?;
    let down = states.iter().filter(|pg| pg["state"].to_string().contains("down")).count();
    outcome.need(down == states.len(), || format!("{down} of {} PGs are called down: {states:?}", states.len()));
    outcome.figure(format!("osd.3 on an older copy, osd.2 dead: it waits, {down} PGs down, no write taken"));

    cluster.osd(2).start()?;
    write_on(load, 500).context("after osd.2 came back")?;
    load.kill()?;
    let since = clock::now();
    cluster.basalt.wait_healthy(READY_MAX).context("with no further command")?;
    outcome.figure(format!("osd.2 back: osd.3 whole after {} ms by itself", since.elapsed().as_millis()));
    let read = judge(load, "with new replicas on osd.3", outcome);
    let said = cluster.basalt.output(&["pg", "verify", "--deep", "--json"])?;
    let said: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let differences: u64 =
        said["pgs"].as_array().context("pgs")?.iter().filter_map(|pg| pg["difference_count"].as_u64()).sum();
    outcome.need(differences == 0, || format!("pg verify finds {differences} differences: {said}"));
    outcome
        .figure(format!("osd.2 back: {read} blocks read back, 0 lost, 0 wrong; pg verify: {differences} differences"));
    // An ordinary start follows.
    stop_osd(cluster, 3)?;
    cluster.osd(3).start()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    Ok(())
}

/// Starts osd.3, and waits until it says that it waits as an older copy.
fn waits(cluster: &mut Cluster) -> Result<()> {
    let said = |cluster: &mut Cluster| cluster.osd(3).log_tail(usize::MAX).matches(WAITS).count();
    let before = said(cluster);
    cluster.osd(3).start()?;
    clock::wait_until("osd.3 to wait as an older copy", READY_MAX, || {
        cluster.osd(3).must_live()?;
        Ok(said(cluster) > before)
    })?;
    Ok(())
}

/// Starts osd.3 once with `--after-restore`, and waits until all PGs are whole. Returns how long that took.
fn after_restore(cluster: &mut Cluster, whole: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<Duration> {
    let since = clock::now();
    cluster.osd(3).spec.args.push("--after-restore".to_owned());
    cluster.osd(3).start()?;
    let addr = cluster.osd_addr(3);
    wait_listening(cluster.osd(3), addr)?;
    whole(cluster)?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    cluster.osd(3).spec.args.pop();
    Ok(since.elapsed())
}

/// Lets osd.3 in by `--after-restore`, with a peer away.
fn let_in(cluster: &mut Cluster, load: &mut StampedLoad, outcome: &mut Outcome) -> Result<()> {
    let text = cluster.basalt.verify_deep()?;
    outcome.figure(format!("replicas: {text}"));
    let older = cluster.dir.join("old.device");
    load.start()?;
    write_on(load, 500)?;
    stop_osd(cluster, 3)?;
    put_back(cluster, &older)?;
    write_on(load, 500)?;
    cluster.osd(1).kill();
    waits(cluster)?;
    stop_osd(cluster, 3)?;
    let took = after_restore(cluster, |cluster| {
        clock::pause(ALONE);
        cluster.osd(1).start()
    })?;
    write_on(load, 500)?;
    load.kill()?;
    let read = judge(load, "after osd.3 was let in without osd.1", outcome);
    outcome.figure(format!(
        "--after-restore with osd.1 dead for {} s: whole after {} ms, {read} blocks read back",
        ALONE.as_secs(),
        took.as_millis()
    ));
    outcome.figure(load.summary());
    // An ordinary start follows.
    stop_osd(cluster, 3)?;
    cluster.osd(3).start()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    Ok(())
}

fn put_back(cluster: &mut Cluster, older: &Path) -> Result<()> {
    ensure!(cluster.osd(3).pid().is_none(), "osd.3 runs");
    copy(older, &cluster.device(3))
}
