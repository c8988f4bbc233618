//! A writer that is stopped (SIGSTOP) at full load loses its volume, and goes on later: none of its writes may land then.
//!
//! Each round another client takes the volume over, writes all that the first one writes to, and reads it back when the first one has gone on
//! and ended. In some rounds an OSD is killed and started in between, so its fence has to come from its device.

use super::Settings;
use crate::basalt;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::procs::{Proc, Spec};
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, ensure};
use device::{Answer, Request};
use std::time::Duration;
use types::IoBuf;
use types::rng::Rng;

const SPAN: u64 = 4 << 20;
const PIECE: u64 = 512 << 10;
/// Longest time until a writer that goes on has found out that it lost the volume.
const FENCED_MAX: Duration = Duration::from_secs(20);
/// Most writers that are stopped before they hold the volume.
const EARLY_MAX: u32 = 20;
/// One of so many rounds restarts an OSD.
const RESTARTS: u32 = 5;

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "steal", Shape::default())?;
    if let Err(error) = rounds(&mut cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn rounds(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let volume = cluster.volume("v", 1 << 30)?;
    let mut rng = Rng::new(settings.seed);
    let (rounds, mut restarts) = (settings.rounds(100, 8), 0);
    let (mut round, mut early) = (0, 0);
    while round < rounds {
        let mut writer = writer(cluster, &volume)?;
        clock::pause(Duration::from_millis(rng.between(20, 250)));
        writer.signal("STOP")?;
        let mut thief = Session::open(cluster.basalt.metas(), &volume, Open::default())?;
        let byte = 1 + (round % 250) as u8;
        for offset in (0..SPAN).step_by(PIECE as usize) {
            let buf = IoBuf::copy_of(&vec![byte; PIECE as usize]);
            thief
                .call(Request::Write { offset, buf, fua: false })?
                .with_context(|| format!("round {round}: a write"))?;
        }
        if round % RESTARTS == RESTARTS - 1 {
            let all = cluster.ids();
            let osd = all[rng.below(all.len() as u64) as usize];
            cluster.osd(osd).kill();
            cluster.osd(osd).start()?;
            cluster.basalt.wait_healthy(READY_MAX)?;
            restarts += 1;
        }
        writer.signal("CONT")?;
        let status = writer.finish(FENCED_MAX).with_context(|| format!("round {round}: the writer goes on"))?;
        let said = writer.log_tail(20);
        if said.contains("BSLT-2021") && early < EARLY_MAX {
            // It was stopped before the answer to its open: it has not written.
            early += 1;
            thief.close()?;
            continue;
        }
        ensure!(
            !status.success() && said.contains("BSLT-5002"),
            "round {round}: the writer ended with {status}: {said}"
        );
        for offset in (0..SPAN).step_by(PIECE as usize) {
            let answer =
                thief.call(Request::Read { offset, len: PIECE })?.with_context(|| format!("round {round}: a read"))?;
            let Answer::Data(pieces) = answer else { anyhow::bail!("round {round}: a read answers {answer:?}") };
            let late = pieces.iter().flat_map(|piece| piece.iter()).filter(|b| **b != byte).count();
            ensure!(late == 0, "round {round}: {late} bytes at {offset} are of a writer that lost the volume");
        }
        thief.close()?;
        round += 1;
    }
    outcome.figure(format!("{rounds} volumes taken over, {restarts} with an OSD restarted in between: 0 late writes"));
    Ok(())
}

/// Starts a writer, and waits until it holds the volume.
fn writer(cluster: &Cluster, volume: &str) -> Result<Proc> {
    let words = ["bench", volume, "--op", "randwrite", "--block", "4KiB", "--depth", "32", "--span", "4MiB"];
    let rest = ["--seconds", "600", "--overwrite", "--steal"];
    let mut args: Vec<String> = words.iter().chain(&rest).map(|word| (*word).to_owned()).collect();
    args.push(cluster.basalt.meta_flag());
    let log = cluster.dir.join("writer.log");
    let _ = std::fs::remove_file(&log);
    let mut writer = Proc::new(Spec { name: "writer".into(), program: basalt::binary()?, args, log });
    writer.start()?;
    let holder = format!("pid {}", writer.pid().context("it runs")?);
    clock::wait_until("the writer to hold the volume", READY_MAX, || {
        writer.must_live()?;
        let info = cluster.basalt.json(&["volume", "info", volume])?;
        Ok(info["holder"]["name"].as_str().is_some_and(|name| name.contains(&holder)))
    })?;
    Ok(writer)
}
