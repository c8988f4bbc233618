//! Each OSD in turn is hurt under a verified load through NBD, and comes back: killed, or stopped for a while.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::fio;
use crate::report::Outcome;
use anyhow::{Result, bail};
use std::time::Duration;

/// Requests per second: enough to show a gap, and few enough that the machine is not the limit.
const RATE: u64 = 1000;
/// Length of the volume: one segment, so one PG, so that a stall of the PG stalls the whole load.
const VOLUME: u64 = types::SEGMENT;
/// Time for which an OSD is stopped.
const STOPPED: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(1);
const GAP_KILLED_MAX: Duration = Duration::from_millis(300);
const GAP_STOPPED_MAX: Duration = Duration::from_secs(2);

/// How an OSD is hurt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurt {
    Kill,
    Stop,
}

/// The fault of one OSD, with its times in milliseconds of the wall clock.
struct Trouble {
    osd: u32,
    led: bool,
    hurt_at: u64,
    back_at: u64,
    whole_at: u64,
}

pub fn kill9(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    each(Hurt::Kill, "kill9-each", settings, outcome)
}

pub fn sigstop(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    each(Hurt::Stop, "sigstop-each", settings, outcome)
}

fn each(hurt: Hurt, name: &str, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, name, Shape::default())?;
    let result = under_load(hurt, &mut cluster, settings, outcome);
    if let Err(error) = result {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn under_load(hurt: Hurt, cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let volume = cluster.volume("v", VOLUME)?;
    let uri = cluster.export(&volume)?;
    let rounds = settings.rounds(2, 1);
    let osds = cluster.ids();
    let seconds = u64::from(rounds) * osds.len() as u64 * 6;
    let mut fio = fio::start(&cluster.dir, &uri, RATE, seconds, settings.seed)?;
    clock::wait_until("the first segment", READY_MAX, || Ok(!cluster.basalt.data_leaders()?.is_empty()))?;
    let calm_at = clock::unix_ms();
    clock::pause(CALM);
    let mut troubles = Vec::new();
    for _ in 0..rounds {
        for &osd in &osds {
            if !fio.is_running() {
                let why = fio.finish().err().map_or_else(|| "without an error".to_owned(), |e| format!("{e:#}"));
                bail!("fio ended before all OSDs were hurt: {why}");
            }
            troubles.push(one(hurt, cluster, osd)?);
        }
    }
    let result = fio.finish()?;
    outcome.need(result.errors == 0, || format!("fio counted {} errors", result.errors));
    outcome.need(result.writes == RATE * seconds, || format!("fio wrote {} blocks only", result.writes));
    outcome.figure(format!("fio: {} writes, {} verified reads, {} errors", result.writes, result.reads, result.errors));
    outcome.figure(format!("longest gap in calm: {} ms", result.longest_gap(calm_at, calm_at + 900).as_millis()));
    let aim = if hurt == Hurt::Kill { GAP_KILLED_MAX } else { GAP_STOPPED_MAX };
    for t in &troubles {
        let role = if t.led { "leader" } else { "follower" };
        let gap = result.longest_gap(t.hurt_at, t.back_at);
        let back = result.longest_gap(t.back_at + 1, t.whole_at);
        outcome.figure(format!(
            "osd.{} ({role}): longest gap {} ms, {} ms when it came back; whole again after {} ms",
            t.osd,
            gap.as_millis(),
            back.as_millis(),
            t.whole_at - t.back_at
        ));
        outcome.aim(gap <= aim && back <= aim, || {
            format!(
                "osd.{} ({role}): {} and {} ms, more than {} ms",
                t.osd,
                gap.as_millis(),
                back.as_millis(),
                aim.as_millis()
            )
        });
    }
    outcome.need(troubles.iter().any(|t| t.led) && troubles.iter().any(|t| !t.led), || {
        "no leader, or no follower, was among those that were hurt".into()
    });
    Ok(())
}

fn one(hurt: Hurt, cluster: &mut Cluster, osd: u32) -> Result<Trouble> {
    let led = cluster.basalt.data_leaders()?.contains(&u64::from(osd));
    let hurt_at = clock::unix_ms();
    match hurt {
        Hurt::Kill => {
            cluster.osd(osd).kill();
            clock::pause(2 * CALM);
        }
        Hurt::Stop => {
            cluster.osd(osd).signal("STOP")?;
            clock::pause(STOPPED);
        }
    }
    let back_at = clock::unix_ms();
    match hurt {
        Hurt::Kill => cluster.osd(osd).start()?,
        Hurt::Stop => cluster.osd(osd).signal("CONT")?,
    }
    clock::pause(CALM / 2);
    cluster.must_live()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    let whole_at = clock::unix_ms();
    clock::pause(CALM);
    Ok(Trouble { osd, led, hurt_at, back_at, whole_at })
}
