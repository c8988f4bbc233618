//! `make chaos`: real processes in a storm of faults, under one seed, and a judge of the answers that clients got.
//!
//! Every process reaches every other through a [`proxy`]. Each OSD has a network of its own where the machine permits
//! it ([`netns`]). Daemons of a build with failpoints die at named moments ([`points`]).
//!
//! A round draws some kinds of [`faults`], lets clients work on fresh volumes meanwhile, and then lets everything heal.
//! Afterwards every request must be answered, every PG whole, every replica equal, and the [`history`] linearizable: no
//! acknowledged write is lost, no read is stale, and no write of a fenced client takes effect.
//!
//! Invariant: the seed decides which faults strike; their exact timing is the machine's. A violation is never an
//! artefact of the timing: it is judged from requests and answers alone.

pub mod client;
mod faults;
pub mod history;
mod lost;
pub mod netns;
mod points;
pub mod proxy;
mod report;
mod rot;
pub(crate) mod slow;
mod streams;
mod volume;

use crate::basalt::binary_with_failpoints;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use anyhow::{Context, Result, ensure};
use env::Env;
use env::real::{RealConfig, RealEnv};
use faults::{Active, Kind};
use lost::{Losses, Lost};
use netns::Namespaces;
use points::{Points, Who};
use report::Tally;
use slow::SlowDisks;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use types::rng::Rng;
use volume::Volume;

const VOLUMES: usize = 2;
/// One more than replicas, so that an OSD can be empty.
const OSDS: u32 = 4;
/// Lengths of an OSD's log, in MiB: a small one is destaged every few seconds, and falls short sooner.
const LOG_MIB: [u64; 3] = [32, 64, 256];
/// Duration of a round's storm, in milliseconds.
const ROUND_MS: (u64, u64) = (8_000, 16_000);
/// Time between two faults, in milliseconds.
const GAP_MS: (u64, u64) = (100, 1_500);
/// After the faults have stopped, everything must be well within this. Clients may try to open their volume for twice as
/// long.
const HEAL_MAX: Duration = Duration::from_secs(60);
/// After so many rounds, and at the end of the run, the steps that need calm follow.
const CALM_EVERY: u32 = 8;
const LOOK: Duration = Duration::from_millis(20);

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct ChaosConfig {
    pub base: PathBuf,
    pub seed: u64,
    pub seconds: u64,
    pub keep: bool,
}

/// A cluster, and the faults that strike it.
pub(crate) struct Storm {
    cluster: Cluster,
    volumes: Vec<Volume>,
    rng: Rng,
    slow: Option<SlowDisks>,
    /// Kinds that do not happen in this run.
    without: Vec<Kind>,
    active: Vec<Active>,
    /// Faults of this round that are over: kind, from, to.
    past: Vec<(Kind, u64, u64)>,
    tally: BTreeMap<Kind, Tally>,
    points: Points,
    /// The OSD that this round has lost for good.
    lost: Option<Lost>,
    losses: Losses,
    env: RealEnv,
    /// Time at which this round's storm is over.
    end: u64,
}

/// Runs a storm of so many seconds; returns whether it found no fault.
pub fn run(config: &ChaosConfig) -> Result<bool> {
    let mut summary = report::Summary::default();
    let mut storm = gather(config, &mut summary)?;
    storm.cluster.basalt.wait_healthy(HEAL_MAX)?;
    let start = clock::now();
    while start.elapsed().as_secs() < config.seconds {
        let left = Duration::from_secs(config.seconds).saturating_sub(start.elapsed());
        summary.rounds += 1;
        let round = summary.rounds;
        if let Err(error) = storm.round(round, left, &mut summary) {
            summary.faults.push(format!("round {round}: {error:#}"));
        }
        if round.is_multiple_of(CALM_EVERY) && summary.faults.is_empty() {
            storm.in_calm(&mut summary);
        }
        summary.faults.extend(storm.cluster.panics());
        if !summary.faults.is_empty() {
            break;
        }
    }
    if summary.faults.is_empty() && !summary.rounds.is_multiple_of(CALM_EVERY) {
        storm.in_calm(&mut summary);
    }
    summary.faults.extend(storm.cluster.panics());
    summary.pieces = storm.cluster.sky.as_ref().map_or((0, 0), proxy::Sky::struck);
    summary.replaced = std::mem::take(&mut storm.losses.0);
    storm.cluster.keep = config.keep && !summary.faults.is_empty();
    Ok(summary.print(config.seed, &storm.tally, &storm.points))
}

/// Starts a cluster with every kind of fault that this machine permits. The summary lists the missing kinds.
fn gather(config: &ChaosConfig, summary: &mut report::Summary) -> Result<Storm> {
    let mut rng = Rng::new(config.seed);
    let net = Namespaces::set_up(OSDS);
    let failpoints = binary_with_failpoints();
    let log_bytes = LOG_MIB[rng.below(LOG_MIB.len() as u64) as usize] << 20;
    let shape =
        Shape { osds: OSDS, log_bytes, proxies: Some(config.seed), failpoints: failpoints.is_ok(), ..Shape::default() };
    let mut missing = Vec::new();
    if let Err(why) = &net {
        missing.extend([Kind::NetCut, Kind::NetLoss].map(|kind| (kind, format!("{why:#}"))));
    }
    if let Err(why) = &failpoints {
        missing.extend([Kind::FailOsd, Kind::FailMeta].map(|kind| (kind, format!("{why:#}"))));
    }
    let mut cluster = Cluster::up_within(&config.base, "chaos", shape, net.ok())?;
    let slow = SlowDisks::set_up(&mut cluster);
    if let Err(why) = &slow {
        missing.push((Kind::SlowDisk, format!("{why:#}")));
    }
    missing.iter().for_each(|(kind, why)| println!("not available here: {}: {why}", kind.words()));
    let without = missing.iter().map(|(kind, _)| *kind).collect();
    summary.missing = missing;
    Ok(Storm {
        cluster,
        volumes: Vec::new(),
        rng,
        slow: slow.ok(),
        without,
        active: Vec::new(),
        past: Vec::new(),
        tally: BTreeMap::new(),
        points: Points::default(),
        lost: None,
        losses: Losses::default(),
        env: RealEnv::new(RealConfig::default())?,
        end: 0,
    })
}

impl Storm {
    /// Returns the time of this machine's boot clock, with which clients stamp their lines.
    fn now(&self) -> u64 {
        self.env.now().0
    }

    /// Returns the milliseconds that are left of the storm for a client that starts now.
    fn millis_left(&self) -> u64 {
        (self.end.saturating_sub(self.now()) / 1_000_000).max(500)
    }

    /// Draws an OSD.
    fn any_osd(&mut self) -> u32 {
        let ids = self.cluster.ids();
        ids[self.rng.below(ids.len() as u64) as usize]
    }

    fn start_osd(&mut self, osd: u32) -> Result<()> {
        if self.cluster.osd(osd).pid().is_some() {
            return Ok(());
        }
        self.start(Who::Osd(osd), None)
    }

    fn start_meta(&mut self) -> Result<()> {
        if self.cluster.metas[0].pid().is_some() { Ok(()) } else { self.start(Who::Meta, None) }
    }

    /// Draws an OSD that holds data.
    fn data_osd(&mut self) -> Result<u32> {
        let osds = self.cluster.basalt.data_osds()?;
        let at = self.rng.below(osds.len().max(1) as u64) as usize;
        osds.get(at).copied().context("a PG with data")
    }

    /// Runs the steps between storms: interrupted streams, and rotten blocks.
    fn in_calm(&mut self, summary: &mut report::Summary) {
        if let Err(error) = streams::run(self, summary) {
            return summary.faults.push(format!("streams: {error:#}"));
        }
        if let Err(error) = rot::run(self, summary) {
            summary.faults.push(format!("bit rot: {error:#}"));
        }
    }

    fn round(&mut self, round: u32, left: Duration, summary: &mut report::Summary) -> Result<()> {
        let kinds = Kind::swarm(&mut self.rng, &self.without);
        for n in 0..VOLUMES {
            self.volumes.push(Volume::create(&self.cluster, &format!("r{round}v{n}"))?);
        }
        let length = self.rng.between(ROUND_MS.0, ROUND_MS.1).min(left.as_millis() as u64).max(3000);
        let from = self.now();
        self.end = from + length * 1_000_000;
        let (metas, millis) = (self.cluster.metas_for_daemons(), self.millis_left());
        for volume in &mut self.volumes {
            volume.start(&metas, self.rng.next_u64(), millis)?;
        }
        let names: Vec<&str> = kinds.iter().map(|kind| kind.words()).collect();
        println!("round {round}: {:.1} s of {}", length as f64 / 1000.0, names.join("; "));
        let stormed = self.storm(&kinds);
        // Even after a fault the round is finished: later findings say more about the fault.
        self.heal()?;
        stormed?;
        let healed = clock::now();
        for n in 0..self.volumes.len() {
            let since = clock::now();
            while self.volumes[n].pid().is_none() || !self.volumes[n].finish(HEAL_MAX)? {
                ensure!(since.elapsed() < 2 * HEAL_MAX, "no client could open {} to the end", self.volumes[n].name);
                let seed = self.rng.next_u64();
                self.volumes[n].start(&metas, seed, 500)?;
            }
        }
        self.cluster.must_live()?;
        self.cluster.basalt.wait_healthy(HEAL_MAX)?;
        summary.healed.push(healed.elapsed());
        self.judge(from, summary);
        self.cluster.basalt.verify_deep()?;
        for volume in self.volumes.drain(..) {
            self.cluster.basalt.run(&["volume", "rm", &volume.name, "--now"])?;
        }
        self.past.clear();
        self.lost = None;
        Ok(())
    }

    fn storm(&mut self, kinds: &[Kind]) -> Result<()> {
        let mut next = self.now();
        while self.now() < self.end {
            self.expire(false)?;
            if self.now() >= next {
                self.strike(kinds)?;
                next = self.now() + self.rng.between(GAP_MS.0, GAP_MS.1) * 1_000_000;
            }
            self.look()?;
            clock::pause(LOOK);
        }
        Ok(())
    }

    /// Checks that no process has ended but those that were killed.
    fn look(&mut self) -> Result<()> {
        for who in self.cluster.ids().into_iter().map(Who::Osd).chain([Who::Meta]) {
            if self.points.is_armed(who) {
                self.bury(who)?;
            } else if self.proc(who).pid().is_some() {
                self.proc(who).must_live().context("in the storm")?;
            }
        }
        for n in 0..self.volumes.len() {
            if self.volumes[n].look()? {
                let (metas, millis, seed) = (self.cluster.metas_for_daemons(), self.millis_left(), self.rng.next_u64());
                self.volumes[n].start(&metas, seed, millis)?;
            }
        }
        Ok(())
    }

    fn heal(&mut self) -> Result<()> {
        // A daemon that dies at a failpoint meanwhile adds another fault, and a replacement waits for meta.
        let undone = clock::now();
        while !self.active.is_empty() && undone.elapsed() < HEAL_MAX {
            self.expire(true)?;
            clock::pause(LOOK);
        }
        if let Some(sky) = &self.cluster.sky {
            sky.clear();
        }
        self.start_meta()?;
        self.cluster.ids().into_iter().try_for_each(|osd| self.start_osd(osd))?;
        // The metadata server may still wait for a majority of the OSDs.
        let all: Vec<String> = self.cluster.ids().iter().map(u32::to_string).collect();
        let words: Vec<&str> = ["osd", "in"].into_iter().chain(all.iter().map(String::as_str)).collect();
        let put_in = clock::wait_until("all OSDs to be in", HEAL_MAX, || Ok(self.cluster.basalt.run(&words).is_ok()));
        put_in?;
        self.wait_replaced()
    }

    fn judge(&mut self, from: u64, summary: &mut report::Summary) {
        for volume in &self.volumes {
            let verdict = volume.history.judge();
            summary.requests += verdict.requests;
            summary.sector_operations += verdict.sector_operations;
            summary.unanswered_writes += verdict.unanswered_writes;
            summary.violations += verdict.violations.len();
            summary.faults.extend(verdict.violations.iter().map(|what| format!("{}: {what}", volume.name)));
            for (kind, begin, end) in &self.past {
                let gap = Duration::from_nanos(volume.history.longest_gap((*begin).max(from), *end));
                let tally = self.tally.get_mut(kind).expect("what happened was counted");
                tally.longest_gap = tally.longest_gap.max(gap);
            }
        }
    }
}
