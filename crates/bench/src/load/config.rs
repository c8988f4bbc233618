//! What a load is to do.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use types::{BLOCK, SECTOR};

/// The order of offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    Random,
    /// From the start of the span, over and over.
    Sequential,
}

/// A load. Offsets, lengths and spans are bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadConfig {
    pub pattern: Pattern,
    /// 0: writes only; 100: reads only.
    pub read_percent: u8,
    /// Length of each request; a multiple of 512, of 4096 with `verify`; at most 32 MiB.
    pub block_bytes: u32,
    /// Most requests in flight.
    pub depth: u32,
    /// Open loop: so many requests come due per second. 0: closed loop.
    pub rate_per_s: u64,
    pub duration: Duration,
    /// Ends after so many requests, too. 0: by duration alone.
    pub ops_max: u64,
    /// The part of the device that is used: `offset_bytes .. offset_bytes + span_bytes`.
    pub offset_bytes: u64,
    pub span_bytes: u64,
    pub seed: u64,
    /// Stamp every written block, and check every block read.
    pub verify: bool,
    /// Stands in every stamp: the volume's id.
    pub volume: u64,
    /// Stands in every stamp: which series of runs wrote it. Runs that share a ledger share it.
    pub run: u64,
}

impl Default for LoadConfig {
    fn default() -> LoadConfig {
        LoadConfig {
            pattern: Pattern::Random,
            read_percent: 0,
            block_bytes: 4096,
            depth: 32,
            rate_per_s: 0,
            duration: Duration::from_secs(10),
            ops_max: 0,
            offset_bytes: 0,
            span_bytes: 1 << 30,
            seed: 1,
            verify: false,
            volume: 0,
            run: 0,
        }
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct LoadError(pub Vec<String>);

impl LoadConfig {
    /// Most requests in flight that can be asked for.
    pub const DEPTH_MAX: u32 = 65_536;

    /// # Errors
    /// All faults at once.
    pub fn validate(&self) -> Result<(), LoadError> {
        let mut faults = Vec::new();
        let mut need = |holds: bool, what: String| {
            if !holds {
                faults.push(what);
            }
        };
        let unit = if self.verify { BLOCK } else { SECTOR };
        let block = u64::from(self.block_bytes);
        need(self.read_percent <= 100, format!("read_percent is {}, more than 100", self.read_percent));
        need(
            block > 0 && block.is_multiple_of(unit) && block <= device::REQUEST_LEN_MAX,
            format!(
                "block_bytes is {block}: it must be a multiple of {unit}, from {unit} to {}",
                device::REQUEST_LEN_MAX
            ),
        );
        need(
            (1..=LoadConfig::DEPTH_MAX).contains(&self.depth),
            format!("depth is {}: it must be 1 to {}", self.depth, LoadConfig::DEPTH_MAX),
        );
        need(self.offset_bytes.is_multiple_of(unit), format!("offset_bytes is no multiple of {unit}"));
        need(
            block > 0 && self.span_bytes >= block && self.span_bytes.is_multiple_of(block),
            format!("span_bytes is {}: it must be a multiple of block_bytes, and not 0", self.span_bytes),
        );
        need(self.offset_bytes.checked_add(self.span_bytes).is_some(), "the span ends beyond every device".into());
        need(
            !self.duration.is_zero() || self.ops_max > 0,
            "duration is 0 and ops_max is 0: the load would have no end or no beginning".into(),
        );
        if faults.is_empty() { Ok(()) } else { Err(LoadError(faults)) }
    }
}
