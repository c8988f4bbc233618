//! Measurements of a load, in figures and as JSON.

use super::LoadConfig;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

pub(super) const SCHEMA: &str = "basalt.bench.load/1";
/// Longer latencies are counted as this: one hour, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Number of seconds whose completions are counted one by one: a minute, and the one that runs.
const SECONDS_MAX: usize = 61;

pub(super) fn us(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Latencies in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// Measurements of reads, or of writes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SideReport {
    pub ops: u64,
    pub bytes: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub latency: Latency,
}

/// Measurements of a whole run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    pub schema: String,
    pub elapsed_us: u64,
    /// Number of requests that have not ended yet.
    pub in_flight: u64,
    pub reads: SideReport,
    pub writes: SideReport,
    /// Completed requests of each whole second, of the last minute.
    pub ops_by_second: Vec<u64>,
    /// Longest time without any completion, and its beginning after the start.
    pub longest_gap_us: u64,
    pub longest_gap_at_us: u64,
    /// Failed requests by error.
    pub errors: Vec<(String, u64)>,
    /// Blocks that were read and checked.
    pub verified_blocks: u64,
    /// Number of blocks with wrong contents; the first ones in words.
    pub violation_count: u64,
    pub violations: Vec<String>,
    pub config: LoadConfig,
}

impl LoadReport {
    /// Returns the number of completed requests.
    pub fn ops(&self) -> u64 {
        self.reads.ops + self.writes.ops
    }

    /// Whether there was no error and no violation.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.violation_count == 0
    }
}

/// Completed requests by second after the start; the last [`SECONDS_MAX`] are kept.
#[derive(Default)]
pub(super) struct Seconds {
    /// Second of the first count.
    first: u64,
    counts: VecDeque<u64>,
}

impl Seconds {
    pub fn count(&mut self, at: Duration) {
        let second = at.as_secs();
        while self.first + self.counts.len() as u64 <= second {
            self.counts.push_back(0);
            if self.counts.len() > SECONDS_MAX {
                self.counts.pop_front();
                self.first += 1;
            }
        }
        if let Some(count) = second.checked_sub(self.first).and_then(|index| self.counts.get_mut(index as usize)) {
            *count += 1;
        }
    }

    /// Returns the counts of the seconds that are over after `elapsed`.
    pub fn whole(&self, elapsed: Duration) -> Vec<u64> {
        let over = elapsed.as_secs().saturating_sub(self.first) as usize;
        self.counts.iter().take(over).copied().collect()
    }
}

/// Counts reads or writes.
pub(super) struct Side {
    ops: u64,
    bytes: u64,
    latency_ns: Histogram<u64>,
}

impl Side {
    pub fn new() -> Side {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds that hdrhistogram takes");
        Side { ops: 0, bytes: 0, latency_ns }
    }

    pub fn count(&mut self, bytes: u64, latency: Duration) {
        self.ops += 1;
        self.bytes += bytes;
        self.latency_ns.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn report(&self, elapsed: Duration) -> SideReport {
        let seconds = elapsed.as_secs_f64();
        let per_s = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let at = |quantile: f64| self.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        let latency = if self.ops == 0 {
            Latency::default()
        } else {
            Latency {
                mean_us: self.latency_ns.mean() / 1e3,
                min_us: self.latency_ns.min() as f64 / 1e3,
                p50_us: at(0.5),
                p90_us: at(0.9),
                p99_us: at(0.99),
                p999_us: at(0.999),
                max_us: self.latency_ns.max() as f64 / 1e3,
            }
        };
        SideReport { ops: self.ops, bytes: self.bytes, iops: per_s(self.ops), bytes_per_s: per_s(self.bytes), latency }
    }
}
