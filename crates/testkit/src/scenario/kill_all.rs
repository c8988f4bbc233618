//! All processes are killed at once, again and again; every acknowledged write must be there afterwards.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::procs::Proc;
use crate::report::{Outcome, spread};
use crate::stamped::{AREAS, CHECK_MAX, SPAN, StampedLoad};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};
use types::rng::Rng;

/// Lengths of the writes, drawn for each life of the loader.
const BLOCKS: [u32; 4] = [4 << 10, 4 << 10, 16 << 10, 128 << 10];

struct Rounds {
    cluster: Cluster,
    load: StampedLoad,
    rng: Rng,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let rounds = settings.rounds(20, 3);
    let cluster = Cluster::up(&settings.base, "kill-all", Shape::default())?;
    let load = StampedLoad::new(&cluster, "v", settings.seed)?;
    let mut this = Rounds { cluster, load, rng: Rng::new(settings.seed) };
    if let Err(error) = this.all(rounds, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut this.cluster, settings, outcome);
    Ok(())
}

impl Rounds {
    fn all(&mut self, rounds: u32, outcome: &mut Outcome) -> Result<()> {
        start_loader(&mut self.load, &mut self.rng)?;
        let mut started = clock::now();
        let (mut first, mut verified, mut early) = (Vec::new(), Vec::new(), 0);
        for round in 1..=rounds {
            // One kill in five comes while the cluster is still coming up.
            if round > 1 && self.rng.chance(1, 5) {
                early += 1;
                clock::pause(Duration::from_millis(self.rng.between(0, 1500)));
            } else {
                let (to_first, to_verified) = self.wait_verified(started).with_context(|| format!("round {round}"))?;
                if round > 1 {
                    first.push(to_first);
                    verified.push(to_verified);
                }
                clock::pause(Duration::from_millis(self.rng.between(200, 2500)));
                self.cluster.must_live().with_context(|| format!("round {round}"))?;
            }
            self.kill_all();
            self.load.hear_out().with_context(|| format!("round {round}"))?;
            started = self.restart_all()?;
        }
        let (to_first, to_verified) = self.wait_verified(started).context("after the last round")?;
        first.push(to_first);
        verified.push(to_verified);
        self.load.kill()?;
        self.load.check().context("at rest")?;
        outcome.figure(format!("{rounds} rounds, {early} of them killed while coming up"));
        outcome.figure(self.load.summary());
        outcome.figure(format!("time to ready (first start to first read), least/median/most: {}", spread(&first)));
        outcome.figure(format!("until all {} MiB were read and checked: {}", (AREAS * SPAN) >> 20, spread(&verified)));
        let acked = self.load.witness.known().acked;
        outcome.need(acked > 300 * u64::from(rounds), || format!("only {acked} writes were acknowledged"));
        Ok(())
    }

    /// Returns the times from `started` until the first read was answered, and until everything was checked.
    fn wait_verified(&mut self, started: Instant) -> Result<(Duration, Duration)> {
        clock::wait_until("everything to be checked", CHECK_MAX, || {
            self.cluster.must_live()?;
            self.load.must_be_clean()?;
            Ok(self.load.witness.known().verified.is_some())
        })?;
        let known = self.load.witness.known();
        let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(started)).unwrap_or_default();
        Ok((since(known.first_read), since(known.verified)))
    }

    /// Kills all processes, in random order, mostly within a millisecond, sometimes with pauses.
    fn kill_all(&mut self) {
        let spread = if self.rng.chance(1, 3) { 25 } else { 0 };
        let cluster = &mut self.cluster;
        let mut all: Vec<&mut Proc> = cluster.metas.iter_mut().chain(cluster.osds.values_mut()).collect();
        all.push(&mut self.load.proc);
        shuffle(&mut self.rng, &mut all);
        for proc in &mut all {
            proc.kill_async();
            if spread > 0 {
                clock::pause(Duration::from_millis(self.rng.below(spread)));
            }
        }
        for proc in all {
            proc.reap();
        }
    }

    /// Starts all processes, in random order, sometimes with pauses between. Returns when the first one was started.
    fn restart_all(&mut self) -> Result<Instant> {
        let started = clock::now();
        let spread = if self.rng.chance(1, 3) { 300 } else { 0 };
        let (metas, osds) = (&mut self.cluster.metas, &mut self.cluster.osds);
        // `None` is the loader.
        let mut order: Vec<Option<&mut Proc>> = metas.iter_mut().chain(osds.values_mut()).map(Some).collect();
        order.push(None);
        shuffle(&mut self.rng, &mut order);
        for proc in order {
            match proc {
                Some(proc) => proc.start()?,
                None => start_loader(&mut self.load, &mut self.rng)?,
            }
            if spread > 0 {
                clock::pause(Duration::from_millis(self.rng.below(spread)));
            }
        }
        Ok(started)
    }
}

fn start_loader(load: &mut StampedLoad, rng: &mut Rng) -> Result<()> {
    load.config.block_bytes = BLOCKS[rng.below(BLOCKS.len() as u64) as usize];
    load.config.seed = rng.next_u64();
    load.start()
}

fn shuffle<T>(rng: &mut Rng, list: &mut [T]) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
