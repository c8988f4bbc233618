//! `fio` through NBD, with verification, and the gaps in its completions from its own latency log.

use crate::procs::{Proc, Spec};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run that takes longer than this beyond its expected end is killed.
const LATE_MAX: Duration = Duration::from_secs(120);
const BLOCK: u64 = 4096;
const DEPTH: u32 = 16;

/// A running fio.
pub struct Fio {
    proc: Proc,
    log: PathBuf,
    output: PathBuf,
}

/// Result of a run.
#[derive(Debug)]
pub struct FioResult {
    pub writes: u64,
    pub reads: u64,
    pub errors: u64,
    /// Times of the completions, in milliseconds of the wall clock, ascending.
    completions: Vec<u64>,
}

/// Starts random 4 KiB writes at `rate` a second over `seconds`. Each block is written once, verified soon afterwards,
/// and verified once more at the end.
pub fn start(dir: &Path, uri: &str, rate: u64, seconds: u64, seed: u64) -> Result<Fio> {
    let log = dir.join(format!("fio-{seed}"));
    let output = dir.join(format!("fio-{seed}.json"));
    let args = [
        "--name=kit".to_owned(),
        "--ioengine=nbd".to_owned(),
        format!("--uri={uri}"),
        "--rw=randwrite".to_owned(),
        format!("--bs={BLOCK}"),
        format!("--iodepth={DEPTH}"),
        format!("--size={}", rate * seconds * BLOCK),
        format!("--rate_iops={rate},{rate}"),
        format!("--randseed={seed}"),
        "--verify=crc32c".to_owned(),
        "--verify_fatal=1".to_owned(),
        "--verify_backlog=512".to_owned(),
        "--do_verify=1".to_owned(),
        format!("--write_lat_log={}", log.display()),
        "--log_unix_epoch=1".to_owned(),
        "--output-format=json".to_owned(),
        format!("--output={}", output.display()),
    ];
    let spec = Spec { name: "fio".into(), program: "fio".into(), args: args.to_vec(), log: dir.join("fio.log") };
    let mut proc = Proc::new(spec);
    proc.start().context("Debian's package fio")?;
    Ok(Fio { proc, log, output })
}

impl Fio {
    pub fn is_running(&mut self) -> bool {
        self.proc.is_alive()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// fio failed: an I/O error, or a block that does not hold what was written.
    pub fn finish(mut self) -> Result<FioResult> {
        let status = self.proc.finish(LATE_MAX)?;
        let text = std::fs::read_to_string(&self.output).unwrap_or_default();
        if !status.success() {
            bail!(
                "fio: {status}: {}\n{}",
                self.proc.log_tail(10),
                text.lines().take(10).collect::<Vec<_>>().join("\n")
            );
        }
        // Notes may stand before the JSON.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let report: Value = serde_json::from_str(json).with_context(|| format!("fio printed {text}"))?;
        let job = &report["jobs"][0];
        let count = |side: &str| job[side]["total_ios"].as_u64().unwrap_or(0);
        let errors = job["error"].as_u64().context("jobs[0].error")? + job["total_err"].as_u64().unwrap_or(0);
        let log = PathBuf::from(format!("{}_clat.1.log", self.log.display()));
        let completions = completions(&std::fs::read_to_string(&log).with_context(|| log.display().to_string())?)?;
        Ok(FioResult { writes: count("write"), reads: count("read"), errors, completions })
    }
}

/// Returns the first words of the lines of a latency log, sorted.
fn completions(text: &str) -> Result<Vec<u64>> {
    let first = |line: &str| line.split(',').next().unwrap_or("").trim().parse::<u64>();
    let mut times: Vec<u64> = text.lines().map(first).collect::<Result<_, _>>().context("fio's latency log")?;
    times.sort_unstable();
    Ok(times)
}

impl FioResult {
    /// Returns the longest time without a completion that overlaps `from..to` (milliseconds of the wall clock).
    pub fn longest_gap(&self, from: u64, to: u64) -> Duration {
        let pairs = self.completions.windows(2).filter(|pair| pair[0] <= to && pair[1] >= from);
        Duration::from_millis(pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or(0))
    }

    /// Returns the times of the first and the last completion.
    pub fn span(&self) -> Option<(u64, u64)> {
        Some((*self.completions.first()?, *self.completions.last()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_where_it_overlaps_the_time_in_question() {
        let completions = completions("30, 5, 1, 4096, 0\n10, 1, 1, 4096, 0\n11, 1, 1, 4096, 0\n").unwrap();
        let result = FioResult { writes: 3, reads: 0, errors: 0, completions };
        let gap = |from, to| result.longest_gap(from, to).as_millis();
        assert_eq!([gap(0, 10), gap(12, 12), gap(0, 100), gap(31, 40)], [1, 19, 19, 0]);
        assert_eq!(result.span(), Some((10, 30)));
    }
}
