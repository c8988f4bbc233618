//! Everything is killed at once, again and again; every acknowledged write must be there afterwards.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::loader::LoaderConfig;
use crate::procs::{Proc, Spec};
use crate::report::{Outcome, spread};
use crate::witness::Witness;
use anyhow::{Context, Result, bail};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::rng::Rng;

const AREAS: u64 = 4;
const SPAN: u64 = 16 << 20;
const STRIDE: u64 = types::SEGMENT;
/// How long a restarted cluster may take until everything was read and checked.
const VERIFIED_MAX: Duration = Duration::from_secs(60);
/// Lengths of the writes, drawn for each round.
const BLOCKS: [u32; 4] = [4 << 10, 4 << 10, 16 << 10, 128 << 10];

struct Rounds {
    cluster: Cluster,
    volume: String,
    witness: Witness,
    loader: Proc,
    rng: Rng,
    seed: u64,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let rounds = settings.rounds(20, 3);
    let cluster = Cluster::up(&settings.base, "kill-all", Shape::default())?;
    let volume = cluster.volume("v", AREAS * STRIDE)?;
    let witness = Witness::new(settings.seed, AREAS as usize, SPAN);
    let loader = Proc::new(Spec {
        name: "loader".into(),
        program: std::env::current_exe()?,
        args: Vec::new(),
        log: cluster.dir.join("loader.log"),
    });
    let rng = Rng::new(settings.seed);
    let mut this = Rounds { cluster, volume, witness, loader, rng, seed: settings.seed };
    let result = this.all(rounds, outcome);
    if let Err(error) = result {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut this.cluster, outcome);
    super::settle(&mut this.cluster, settings, outcome);
    Ok(())
}

impl Rounds {
    fn all(&mut self, rounds: u32, outcome: &mut Outcome) -> Result<()> {
        let mut listener = self.start_loader(60)?;
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
                self.cluster.must_live()?;
            }
            self.kill_all();
            listener.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
            self.witness.clean().with_context(|| format!("round {round}"))?;
            (started, listener) = self.restart_all()?;
        }
        let (to_first, to_verified) = self.wait_verified(started)?;
        first.push(to_first);
        verified.push(to_verified);
        self.loader.kill();
        listener.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
        self.witness.clean()?;
        // Once more at rest, everything.
        let listener = self.start_loader(0)?;
        let status = self.loader.finish(VERIFIED_MAX)?;
        listener.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
        self.witness.clean()?;
        if !status.success() {
            bail!("the last check failed: {}", self.loader.log_tail(5));
        }
        let known = self.witness.known();
        outcome.figure(format!("{rounds} rounds, {early} of them killed while coming up"));
        outcome.figure(format!(
            "writes: {} begun, {} acknowledged, 0 lost; {} blocks checked",
            known.begun, known.acked, known.checked
        ));
        outcome.figure(format!(
            "time to ready (first start to first read answered), least/median/most: {}",
            spread(&first)
        ));
        outcome.figure(format!(
            "time until all of {} MiB was read and checked: {}",
            (AREAS * SPAN) >> 20,
            spread(&verified)
        ));
        outcome.need(known.acked > 1000 * u64::from(rounds.min(5)), || "hardly any write was acknowledged".into());
        Ok(())
    }

    fn start_loader(&mut self, seconds: u64) -> Result<JoinHandle<Result<()>>> {
        let ledger = self.cluster.dir.join("ledger.json");
        self.witness.store(&ledger)?;
        let config = LoaderConfig {
            metas: self.cluster.basalt.metas().to_vec(),
            volume: self.volume.clone(),
            ledger,
            areas: AREAS,
            span_bytes: SPAN,
            stride_bytes: STRIDE,
            block_bytes: BLOCKS[self.rng.below(BLOCKS.len() as u64) as usize],
            depth: 8,
            read_percent: 25,
            rate_per_s: 0,
            seconds,
            seed: self.rng.next_u64(),
            run: self.seed,
        };
        self.loader.spec.args = config.args();
        let out = self.loader.start_piped()?;
        Ok(self.witness.listen(out))
    }

    /// From `started` until the first read was answered, and until everything was checked.
    fn wait_verified(&mut self, started: Instant) -> Result<(Duration, Duration)> {
        clock::wait_until("everything to be checked", VERIFIED_MAX, || {
            self.cluster.must_live()?;
            self.witness.clean()?;
            self.loader.must_live()?;
            Ok(self.witness.known().verified.is_some())
        })?;
        let known = self.witness.known();
        let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(started)).unwrap_or_default();
        Ok((since(known.first_read), since(known.verified)))
    }

    /// All processes, in random order, most often within a millisecond, sometimes spread over 50.
    fn kill_all(&mut self) {
        let spread = if self.rng.chance(1, 3) { 50 } else { 0 };
        let cluster = &mut self.cluster;
        let mut all: Vec<&mut Proc> = cluster.metas.iter_mut().chain(&mut cluster.osds).collect();
        all.push(&mut self.loader);
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

    /// All processes, in random order, sometimes with pauses between. Gives when the first one was started.
    fn restart_all(&mut self) -> Result<(Instant, JoinHandle<Result<()>>)> {
        let started = clock::now();
        let spread = if self.rng.chance(1, 3) { 300 } else { 0 };
        let daemons = self.cluster.metas.len() + self.cluster.osds.len();
        let mut order: Vec<usize> = (0..=daemons).collect();
        shuffle(&mut self.rng, &mut order);
        let mut listener = None;
        for index in order {
            let metas = self.cluster.metas.len();
            match index {
                i if i == daemons => listener = Some(self.start_loader(60)?),
                i if i < metas => self.cluster.metas[i].start()?,
                i => self.cluster.osds[i - metas].start()?,
            }
            if spread > 0 {
                clock::pause(Duration::from_millis(self.rng.below(spread)));
            }
        }
        Ok((started, listener.context("the loader is in the order")?))
    }
}

fn shuffle<T>(rng: &mut Rng, list: &mut [T]) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
