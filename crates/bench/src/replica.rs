//! One replica alone: the engine on a file, without group, bus and network, beside raw writes to a file of the same disk.
//!
//! Input: a [`Case`] and a folder. Output: a [`Row`] with the figures of both. The engine gets one entry for each write, and a
//! write is done when its entry is durable and applied. The yardstick keeps as many writes in flight, at the same offsets of a file
//! that was written before; with flushes, a write is done when a flush that began after it has ended.
//!
//! Invariant: only the interface that an OSD uses is called, and each failure of the engine ends the measurement.
#![allow(clippy::disallowed_methods, reason = "a probe: real files")]

mod driver;
mod raw;

use crate::cpu::{self, CpuError};
use driver::Driver;
use engine::FormatError;
use env::real::{RealConfig, RealEnv};
use env::{DiskError, DiskInfo, DiskSpec, Env, EnvError};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::Time;
use types::rng::Rng;
use types::units::{BLOCK, CHUNK};

/// Bytes that the writes of a case cover.
pub const SPAN: u64 = 1 << 30;
/// Log of a burst, for each second and one more: no round begins in it, for less than half of it is written. Log of a sustained
/// run: it wraps several times.
const LOG_BURST: u64 = 512 << 20;
const LOG_SUSTAINED: u64 = 256 << 20;
/// Space for data, in spans: the span, its maps, and the AUs that wait for a checkpoint.
const HOME_SPANS: u64 = 3;

/// The writes of a case, and its target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Bytes of a write: 4 KiB at random offsets, or more in sequence.
    pub block: u64,
    pub depth: u32,
    /// The log wraps; otherwise no destage round begins.
    pub sustained: bool,
    /// Least share of the yardstick's IOPS.
    pub target: f64,
}

/// The cases, with the shares that they are to reach.
pub const CASES: [Case; 5] = [
    Case { block: BLOCK, depth: 16, sustained: false, target: 0.8 },
    Case { block: BLOCK, depth: 32, sustained: false, target: 0.8 },
    Case { block: BLOCK, depth: 16, sustained: true, target: 0.55 },
    Case { block: BLOCK, depth: 32, sustained: true, target: 0.55 },
    Case { block: 512 << 10, depth: 16, sustained: true, target: 0.85 },
];

impl Case {
    /// Returns the name of the case, as rows of the benchmark are named.
    pub fn name(&self) -> String {
        let op = if self.block == BLOCK { "randwrite" } else { "write" };
        let tail = if self.sustained { "/sustained" } else { "" };
        format!("engine/{op}-{}k/d{}{tail}", self.block >> 10, self.depth)
    }
}

/// Where and how long.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Folder of the files `basalt-bench.*`, which are made and left there. It must allow O_DIRECT.
    pub dir: PathBuf,
    /// Length of a burst and of a yardstick, in seconds, 1 to 15; a sustained run takes [`SUSTAINED`] times as long.
    pub seconds: u64,
    /// Whether writes are flushed.
    pub flush: bool,
    /// Smallest payload that is written once, as of `osd run --redirect-min`.
    pub redirect_min: Option<u64>,
    /// Bytes that the writes cover, a multiple of a chunk. The figures of two spans are not comparable.
    pub span_bytes: u64,
}

/// Lengths of a burst that a sustained run takes.
pub const SUSTAINED: u64 = 4;

/// Figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub writes: u64,
    pub iops: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub cpu_us_per_write: f64,
    /// Bytes written to the device for each user byte.
    pub device_bytes: f64,
    pub flushes_per_write: f64,
    /// Destage rounds that ended.
    pub rounds: u64,
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// `flush` or `noflush`.
    pub mode: String,
    pub engine: Figures,
    pub raw: Figures,
    /// IOPS of the engine over those of the yardstick.
    pub share: f64,
    pub target: f64,
}

/// Why a replica could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("a raw write failed: {0}")]
    Disk(#[from] DiskError),
    #[error("the engine failed: {0}")]
    Engine(String),
    #[error("nothing was written within {0} s")]
    Silent(u64),
    #[error("{0} within {1:?}")]
    Slow(&'static str, Duration),
    #[error(transparent)]
    Cpu(#[from] CpuError),
}

/// Measures one case, the yardstick first.
///
/// # Errors
/// A file cannot be made, or a write fails.
pub fn run(config: &ReplicaConfig, case: &Case) -> Result<Row, ReplicaError> {
    let raw = raw::run(config, case)?;
    let mut driver = Driver::start(config, case)?;
    driver.fill()?;
    let seconds = if case.sustained { config.seconds * SUSTAINED } else { config.seconds };
    let engine = driver.measure(Duration::from_secs(seconds))?;
    let share = engine.iops / raw.iops;
    let mode = if config.flush { "flush" } else { "noflush" };
    Ok(Row { name: case.name(), mode: mode.to_owned(), engine, raw, share, target: case.target })
}

/// Returns the run of one case whose share is the median.
pub fn median(mut runs: Vec<Row>) -> Option<Row> {
    runs.sort_by(|a, b| a.share.total_cmp(&b.share));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
}

/// Opens a file of `len` bytes that was written as a whole before, and writes it if there is none. Without that, each first write of
/// a place would measure how the file system fills holes.
fn open(path: &Path, len: u64, flush: bool) -> Result<(RealEnv, DiskInfo), ReplicaError> {
    let failed = |source| ReplicaError::File { path: path.to_owned(), source };
    let mut file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() != len {
        file.set_len(0).map_err(failed)?;
        std::io::copy(&mut std::io::repeat(0).take(len), &mut file).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    let mut env = RealEnv::new(RealConfig::default())?;
    let disk = env.open_disk(&DiskSpec { path: path.to_owned(), assume_plp: !flush, read_only: false })?;
    Ok((env, disk))
}

/// Offsets of the writes of a case.
struct Offsets {
    block: u64,
    span: u64,
    rng: Rng,
    next: u64,
}

impl Offsets {
    fn new(block: u64, span: u64) -> Offsets {
        Offsets { block, span, rng: Rng::new(1), next: 0 }
    }

    /// Returns the next one: of blocks at random, of larger writes in sequence.
    fn take(&mut self) -> u64 {
        if self.block > BLOCK {
            let at = self.next;
            self.next = (self.next + self.block) % self.span;
            return at;
        }
        self.rng.below(self.span / self.block) * self.block
    }
}

/// Counts of a run that is under way.
struct Meter {
    began: Time,
    cpu_us: u64,
    latency: Histogram<u64>,
}

impl Meter {
    fn new(now: Time) -> Result<Meter, ReplicaError> {
        let latency = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant bounds");
        Ok(Meter { began: now, cpu_us: own_cpu_us()?, latency })
    }

    fn done(&mut self, took: Duration) {
        self.latency.saturating_record(took.as_micros() as u64);
    }

    fn figures(&self, now: Time) -> Result<Figures, ReplicaError> {
        let writes = self.latency.len();
        let elapsed = now.since(self.began).as_secs_f64();
        if writes == 0 {
            return Err(ReplicaError::Silent(elapsed as u64));
        }
        Ok(Figures {
            writes,
            iops: writes as f64 / elapsed,
            p50_us: self.latency.value_at_quantile(0.5),
            p99_us: self.latency.value_at_quantile(0.99),
            cpu_us_per_write: (own_cpu_us()? - self.cpu_us) as f64 / writes as f64,
            ..Figures::default()
        })
    }
}

fn own_cpu_us() -> Result<u64, CpuError> {
    Ok(cpu::sample(&[std::process::id()])?.iter().map(cpu::CpuSample::total_us).sum())
}

const _: () = assert!(SPAN.is_multiple_of(CHUNK), "chunks of the span are whole");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_whole_blocks_of_the_span_and_large_ones_follow_each_other() {
        let mut random = Offsets::new(BLOCK, SPAN);
        let some: Vec<u64> = (0..1_000).map(|_| random.take()).collect();
        assert!(some.iter().all(|at| at.is_multiple_of(BLOCK) && at + BLOCK <= SPAN));
        assert!(some.iter().max() > Some(&(SPAN / 2)) && some.iter().min() < Some(&(SPAN / 2)));
        let mut large = Offsets { next: SPAN - 2 * CHUNK, ..Offsets::new(CHUNK, SPAN) };
        assert_eq!([large.take(), large.take(), large.take()], [SPAN - 2 * CHUNK, SPAN - CHUNK, 0]);
    }

    #[test]
    fn the_median_run_is_the_one_with_the_middle_share() {
        let row = |share| {
            let (name, mode) = (CASES[0].name(), "flush".to_owned());
            Row { name, mode, engine: Figures::default(), raw: Figures::default(), share, target: 0.8 }
        };
        let shares = |runs: &[f64]| median(runs.iter().map(|share| row(*share)).collect()).map(|row| row.share);
        assert_eq!([shares(&[]), shares(&[0.5]), shares(&[0.9, 0.1, 0.5])], [None, Some(0.5), Some(0.5)]);
    }
}
