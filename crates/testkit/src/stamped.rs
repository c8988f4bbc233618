//! A loader with its witness, which a scenario starts, hurts and queries together.

use crate::cluster::Cluster;
use crate::loader::LoaderConfig;
use crate::procs::{Proc, Spec};
use crate::witness::Witness;
use anyhow::{Result, anyhow, bail};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of areas of the load: each in a segment of its own, so that the load reaches several PGs.
pub const AREAS: u64 = 4;
pub const SPAN: u64 = 16 << 20;
const STRIDE: u64 = types::SEGMENT;
/// Longest time for a check of everything.
pub const CHECK_MAX: Duration = Duration::from_secs(60);

/// A verified load in a process of its own.
pub struct StampedLoad {
    pub proc: Proc,
    pub witness: Witness,
    pub config: LoaderConfig,
    /// Words before the program, when it runs in a network of its own.
    pub within: Vec<String>,
    listener: Option<JoinHandle<Result<()>>>,
}

impl StampedLoad {
    /// Creates a volume in the cluster's pool, and a load for it, which is not started.
    pub fn new(cluster: &Cluster, name: &str, seed: u64) -> Result<StampedLoad> {
        StampedLoad::with_areas(cluster, name, seed, AREAS)
    }

    /// Does the same as [`StampedLoad::new`] in fewer segments: with one, a stall of one PG is a stall of the load.
    pub fn with_areas(cluster: &Cluster, name: &str, seed: u64, areas: u64) -> Result<StampedLoad> {
        let config = LoaderConfig {
            metas: cluster.metas_for_daemons(),
            volume: cluster.volume(name, areas * STRIDE)?,
            ledger: cluster.dir.join(format!("{name}.ledger.json")),
            areas,
            span_bytes: SPAN,
            stride_bytes: STRIDE,
            block_bytes: 4096,
            depth: 8,
            read_percent: 25,
            rate_per_s: 0,
            seconds: 3600,
            seed,
            run: seed,
        };
        let log = cluster.dir.join(format!("{name}.loader.log"));
        let spec = Spec { name: "loader".into(), program: std::env::current_exe()?, args: Vec::new(), log };
        let witness = Witness::new(seed, areas as usize, SPAN);
        Ok(StampedLoad { proc: Proc::new(spec), witness, config, within: Vec::new(), listener: None })
    }

    /// Starts the loader: first it checks everything, then it writes and reads for `config.seconds`.
    pub fn start(&mut self) -> Result<()> {
        self.witness.store(&self.config.ledger)?;
        self.enter();
        let out = self.proc.start_piped()?;
        assert!(self.listener.is_none(), "the earlier life was not heard out");
        self.listener = Some(self.witness.listen(out));
        Ok(())
    }

    /// Sets the words of its command line.
    fn enter(&mut self) {
        self.proc.spec.args = self.config.args();
        if !self.within.is_empty() {
            if let Ok(program) = std::env::current_exe() {
                self.proc.spec.args.insert(0, program.display().to_string());
            }
            self.proc.spec.args.splice(0..0, self.within.iter().cloned());
            self.proc.spec.program = "nsenter".into();
        }
    }

    /// Checks that the loader runs, and that it has found nothing wrong so far.
    pub fn must_be_clean(&mut self) -> Result<()> {
        self.witness.clean()?;
        self.proc.must_live()
    }

    /// Reads the last lines of a dead or dying loader, and fails if it has found anything wrong.
    pub fn hear_out(&mut self) -> Result<()> {
        if let Some(listener) = self.listener.take() {
            listener.join().map_err(|_| anyhow!("the listener panicked"))??;
        }
        self.witness.clean()
    }

    /// Kills the loader and reads its last lines.
    pub fn kill(&mut self) -> Result<()> {
        self.proc.kill();
        self.hear_out()
    }

    /// Starts a life that only checks everything, and must end well.
    pub fn check(&mut self) -> Result<()> {
        let seconds = std::mem::replace(&mut self.config.seconds, 0);
        self.start()?;
        let status = self.proc.finish(CHECK_MAX)?;
        self.config.seconds = seconds;
        self.hear_out()?;
        if !status.success() {
            bail!("the check of everything failed ({status}): {}", self.proc.log_tail(5));
        }
        Ok(())
    }

    /// Checks a snapshot of the volume against the witness of its moment. Returns the number of checked blocks.
    pub fn check_snapshot(&self, name: &str, witness: Witness) -> Result<u64> {
        let config = LoaderConfig {
            volume: name.to_owned(),
            ledger: self.config.ledger.with_extension("snapshot.json"),
            ..self.config.clone()
        };
        let spec = Spec { log: self.proc.spec.log.with_extension("snapshot.log"), ..self.proc.spec.clone() };
        let mut check = StampedLoad { proc: Proc::new(spec), witness, config, within: Vec::new(), listener: None };
        check.check()?;
        let checked = check.witness.known().checked;
        Ok(checked)
    }

    /// Returns the numbers of begun and acknowledged writes and of checked blocks, for a figure.
    pub fn summary(&self) -> String {
        let known = self.witness.known();
        let (begun, acked, checked) = (known.begun, known.acked, known.checked);
        format!("writes: {begun} begun, {acked} acknowledged, 0 lost; {checked} blocks checked")
    }
}
