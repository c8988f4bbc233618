//! OSDs with a log on a fast file and a home of 200 IOPS: writes run at the fast rate until the dirty limit, and then smoothly at the rate of
//! the homes (ADR 0035).
//!
//! A control group throttles the homes, which are loop devices. The same cluster before that is the measure of *fast*.
//! Needs root, loop devices and the blkio controller; without them the scenario fails and says so.

use super::Settings;
use crate::chaos::slow::SlowDisks;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::devices::Devices;
use crate::flushes::Flushes;
use crate::http::metric;
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, bail, ensure};
use bench::load::{Load, LoadConfig, Pattern};
use std::time::Duration;
use types::{SEGMENT, Time};

const LOG_BYTES: u64 = 128 << 20;
const HOME_IOPS: u64 = 200;
const DEPTH: u32 = 32;
const BLOCK: u32 = 4096;
/// Bytes of writes that are surely below the dirty limit: pacing begins at 30 % of the log, and records take a part of it.
const FAST_BYTES: u64 = LOG_BYTES / 5;
/// Least share of the fast rate until then, in per cent.
const FAST_PERCENT: f64 = 80.0;
/// Time until the rate has gone over to that of the homes.
const SETTLE: Duration = Duration::from_secs(30);
/// Seconds of one look at the paced rate.
const LOOK_S: usize = 5;
/// Least and most of a look, as a share of the mean.
const SMOOTH: (f64, f64) = (0.5, 1.6);
/// Longest pause that the cluster's own background work may cause.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Time within which an OSD has published its levels.
const REPORTED: Duration = Duration::from_secs(3);
const DESTAGED_MAX: Duration = Duration::from_secs(120);

/// Completions of a load.
#[derive(Default)]
struct Seen {
    /// Number of them, by second.
    seconds: Vec<u64>,
    count: u64,
    took: Duration,
    longest_gap: Duration,
}

impl Seen {
    fn rate(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

struct Hybrid {
    cluster: Cluster,
    session: Session,
    seed: u64,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape {
        device_bytes: 2 << 30,
        log_bytes: LOG_BYTES,
        devices: Devices::Loop,
        log_apart: true,
        osd_flags: vec!["--home-class=hdd".to_owned()],
        ..Shape::default()
    };
    let cluster = Cluster::up(&settings.base, "hybrid", shape)?;
    let name = cluster.volume("v", SEGMENT)?;
    let session = Session::open(cluster.basalt.metas(), &name, Open::default())?;
    let mut this = Hybrid { cluster, session, seed: settings.seed };
    let paced = Duration::from_secs(if settings.short { 90 } else { 240 });
    let mut slow = SlowDisks::default();
    if let Err(error) = this.measure(&mut slow, paced, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    // The homes are fast again, so that the closing look need not wait for them.
    drop(slow);
    super::close(&mut this.cluster, settings, outcome);
    Ok(())
}

impl Hybrid {
    fn measure(&mut self, slow: &mut SlowDisks, paced: Duration, outcome: &mut Outcome) -> Result<()> {
        // Space is taken, and connections are made.
        self.write(FAST_BYTES / 4, Duration::from_secs(30))?;
        self.settle()?;
        let flushes = Flushes::start(&self.cluster.dir)?;
        let fast = self.write(FAST_BYTES, Duration::from_secs(60))?;
        self.settle()?;
        for osd in self.cluster.ids() {
            let device = std::fs::read_link(self.cluster.device(osd)).context("the loop device of a home")?;
            slow.adopt(osd, &device.display().to_string())?;
            slow.limit_iops(osd, HOME_IOPS)?;
            slow.enter(osd, self.cluster.osd(osd).pid())?;
        }
        let rounds = self.rounds()?;
        let first = self.write(FAST_BYTES, Duration::from_secs(60))?;
        let percent = 100.0 * first.rate() / fast.rate();
        outcome.figure(format!(
            "until the dirty limit: {:.0} IOPS, {percent:.0} % of the fast rate of {:.0}",
            first.rate(),
            fast.rate()
        ));
        outcome.need(percent >= FAST_PERCENT, || format!("{percent:.0} % of the fast rate, not {FAST_PERCENT:.0}"));
        let over = self.write(u64::MAX, SETTLE)?;
        let seen = self.write(u64::MAX, paced)?;
        let rounds = self.rounds()? - rounds;
        self.judge_smooth(&seen, (rounds, over.rate()), outcome);
        // Pauses of the machine, which a load on fast homes meets as well, are not ours.
        let (own, noise) = (first.longest_gap.max(seen.longest_gap), fast.longest_gap);
        outcome.figure(format!("longest pause: {own:.1?}, on fast homes {noise:.1?}"));
        // Told, not allowed for: whether the disk that has the logs paused, too.
        outcome.figure(flushes.end()?);
        outcome.need(own <= PAUSE_MAX + noise, || format!("a pause of {own:.1?}, on fast homes {noise:.1?}"));
        Ok(())
    }

    fn judge_smooth(&self, seen: &Seen, (rounds, over): (u64, f64), outcome: &mut Outcome) {
        let looks: Vec<f64> =
            seen.seconds.chunks_exact(LOOK_S).map(|look| look.iter().sum::<u64>() as f64 / LOOK_S as f64).collect();
        let mean = looks.iter().sum::<f64>() / looks.len().max(1) as f64;
        let (least, most) = looks.iter().fold((f64::MAX, 0.0f64), |(a, b), look| (a.min(*look), b.max(*look)));
        outcome.figure(format!(
            "behind it: {mean:.0} IOPS on average ({over:.0} while it goes over), {least:.0} to {most:.0} in looks of {LOOK_S} s, over {rounds} destage rounds"
        ));
        let is_smooth = least >= SMOOTH.0 * mean && most <= SMOOTH.1 * mean;
        outcome.need(is_smooth, || format!("a sawtooth: {least:.0} to {most:.0} IOPS around {mean:.0}"));
        outcome.need(mean >= HOME_IOPS as f64 / 4.0, || format!("{mean:.0} IOPS, from homes of {HOME_IOPS}"));
        outcome.need(rounds >= 3, || format!("only {rounds} rounds ended: the time tells nothing"));
    }

    /// Number of destage rounds that have ended on all OSDs.
    fn rounds(&self) -> Result<u64> {
        let of = |osd: &u32| metric(self.cluster.osd_http(*osd), "basalt_osd_destage_rounds_total");
        self.cluster.ids().iter().map(of).sum()
    }

    /// Waits until home has everything.
    fn settle(&mut self) -> Result<()> {
        let https: Vec<_> = self.cluster.ids().into_iter().map(|osd| self.cluster.osd_http(osd)).collect();
        // The gauge is as old as the last report.
        let until = self.session.now() + REPORTED;
        while self.session.begin() < until {
            self.session.finish(until)?;
        }
        clock::wait_until("all data at home", DESTAGED_MAX, || {
            self.session.finish(self.session.now() + Duration::from_millis(200))?;
            self.session.begin();
            let left = https.iter().map(|http| metric(*http, "basalt_osd_overlay_bytes")).sum::<Result<u64>>()?;
            Ok(left == 0)
        })?;
        Ok(())
    }

    /// Writes blocks at random places, so many bytes or so long.
    fn write(&mut self, bytes: u64, most: Duration) -> Result<Seen> {
        self.seed += 1;
        let ops_max = if bytes == u64::MAX { 0 } else { bytes / u64::from(BLOCK) };
        let config = LoadConfig {
            pattern: Pattern::Random,
            read_percent: 0,
            block_bytes: BLOCK,
            depth: DEPTH,
            rate_per_s: 0,
            duration: most,
            ops_max,
            offset_bytes: 0,
            span_bytes: SEGMENT,
            pieces: Vec::new(),
            seed: self.seed,
            verify: false,
            volume: 1,
            run: self.seed,
        };
        let start = self.session.now();
        let mut load = Load::new(config, start)?;
        let (mut seen, mut last, mut next) = (Seen::default(), start, 0u64);
        let mut tokens = std::collections::BTreeMap::new();
        loop {
            let now = self.session.begin();
            if let Some(errno) = self.session.failure() {
                bail!("the volume failed: {errno}");
            }
            let mut done = Vec::new();
            self.session.device().completions(&mut done);
            for completion in &done {
                ensure!(completion.result.is_ok(), "a write failed: {:?}", completion.result);
                let token = tokens.remove(&completion.token).context("a completion of nothing")?;
                load.completed(now, token, &completion.result);
            }
            if !done.is_empty() {
                seen.count(start, last, now, done.len() as u64);
                last = now;
            }
            if load.is_done(now) {
                seen.took = last.since(start);
                return Ok(seen);
            }
            let mut requests = Vec::new();
            load.next_requests(now, &mut requests);
            for (request, token) in requests {
                next += 1;
                tokens.insert(next, token);
                if self.session.device().submit(now, request, next).is_err() {
                    bail!("the device takes fewer requests at once than {DEPTH}");
                }
            }
            self.session.finish(load.next_deadline(now))?;
        }
    }
}

impl Seen {
    fn count(&mut self, start: Time, last: Time, now: Time, count: u64) {
        let second = now.since(start).as_secs() as usize;
        self.seconds.resize(self.seconds.len().max(second + 1), 0);
        self.seconds[second] += count;
        self.count += count;
        self.longest_gap = self.longest_gap.max(now.since(last));
    }
}
