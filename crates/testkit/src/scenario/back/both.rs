//! The records and the device of an OSD go back together: the records do not know that the device is old.
//!
//! The OSDs with newer state are away at first, like in the scenario of the device alone.

use super::{RATE, copy, judge, put_records_back, redb, start_meta, stop_osd, wait_standing, write_on, write_once};
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::report::Outcome;
use crate::scenario::Settings;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result};
use std::time::Duration;

/// A time that is longer than an OSD waits for meta's answer before it goes on by itself.
const ALONE: Duration = Duration::from_secs(20);

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "both-back", Shape { device_bytes: 2 << 30, ..Shape::default() })?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    if let Err(error) = went_back(&mut cluster, &mut load, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn went_back(cluster: &mut Cluster, load: &mut StampedLoad, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    write_on(load, 1000)?;
    let (records, device) = (cluster.dir.join("copy.redb"), cluster.dir.join("old.device"));
    stop_osd(cluster, 3)?;
    cluster.metas[0].kill();
    copy(&redb(cluster), &records)?;
    copy(&cluster.device(3), &device)?;
    start_meta(cluster)?;
    cluster.osd(3).start()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    let mut new = StampedLoad::with_areas(cluster, "new", settings.seed + 1, 2)?;
    write_once(&mut new, 200)?;
    write_on(load, 500)?;
    cluster.osd(1).kill();
    write_on(load, 1000).context("without osd.1")?;
    load.kill()?;
    stop_osd(cluster, 3)?;
    cluster.osd(2).kill();
    copy(&device, &cluster.device(3))?;
    cluster.metas[0].kill();
    cluster.osd(1).start()?;
    cluster.osd(3).start()?;
    put_records_back(cluster, &records)?;
    wait_standing(cluster, "behind", 1)?;

    // A majority of osd.1 and osd.3 would lack what osd.2 and osd.3 acknowledged.
    clock::pause(ALONE);
    let serving = serving(cluster)?;
    outcome.need(serving == 0, || format!("{serving} PGs serve from osd.1 and the older copy of osd.3"));
    for force in [&[][..], &["--force"]] {
        let said = cluster.basalt.refusal(&[&["meta", "recover"], force].concat())?;
        outcome.need(said.contains("BSLT-2031"), || format!("a recovery by the word of one OSD of three: {said}"));
    }
    outcome.figure(format!("records and osd.3 older, osd.2 dead: {serving} PGs serve, no recovery (BSLT-2031)"));

    cluster.osd(2).start()?;
    wait_standing(cluster, "behind", 2)?;
    clock::wait_until("the recovery", READY_MAX, || Ok(cluster.basalt.output(&["meta", "recover"])?.status.success()))?;
    let read = judge(load, "with osd.2 back", outcome);
    outcome.figure(format!("osd.2 back and the records recovered: {read} blocks read back"));
    let since = clock::now();
    cluster.basalt.wait_healthy(READY_MAX).context("osd.3 fails its replicas by itself")?;
    outcome.figure(format!("osd.3 let in with its replicas failed: whole after {} ms", since.elapsed().as_millis()));
    judge(load, "at the end", outcome);
    outcome.figure(load.summary());
    Ok(())
}

/// Returns the number of PGs that have a leader with a quorum, as meta reports them.
fn serving(cluster: &Cluster) -> Result<usize> {
    let pgs = cluster.basalt.pgs()?;
    Ok(pgs.iter().filter(|pg| !pg["leader"].is_null() && !pg["state"].to_string().contains("down")).count())
}
