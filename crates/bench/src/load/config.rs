//! Configuration of a load.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use types::{BLOCK, SECTOR};

/// The order of offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    Random,
    /// Offsets go from the start of the span to its end, over and over.
    Sequential,
}

/// Configuration of a load. Offsets, lengths and spans are bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadConfig {
    pub pattern: Pattern,
    /// 0: writes only; 100: reads only.
    pub read_percent: u8,
    /// Length of each request; a multiple of 512, of 4096 with `verify`; at most 32 MiB.
    pub block_bytes: u32,
    /// Limit of the requests in flight.
    pub depth: u32,
    /// Number of requests that come due per second in an open loop. 0: closed loop.
    pub rate_per_s: u64,
    pub duration: Duration,
    /// The load also ends after so many requests. 0: by duration alone.
    pub ops_max: u64,
    /// The part of the device that is used: `offset_bytes .. offset_bytes + span_bytes`, unless there are pieces.
    pub offset_bytes: u64,
    pub span_bytes: u64,
    /// Starts of the pieces, behind `offset_bytes`, that the span is cut into, ascending. They are equally long and do
    /// not overlap. Empty: the span is one piece.
    #[serde(default)]
    pub pieces: Vec<u64>,
    pub seed: u64,
    /// Stamps every written block, and checks every block read.
    pub verify: bool,
    /// The volume's id, in every stamp.
    pub volume: u64,
    /// The series of runs that wrote a block, in every stamp. Runs with one ledger are one series.
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
            pieces: Vec::new(),
            seed: 1,
            verify: false,
            volume: 0,
            run: 0,
        }
    }
}

/// All faults of a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct LoadError(pub Vec<String>);

impl LoadConfig {
    /// Limit of the depth.
    pub const DEPTH_MAX: u32 = 65_536;

    /// Checks the configuration.
    ///
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
        let len = self.piece_bytes();
        need(
            self.pieces.is_empty()
                || block > 0
                    && len >= block
                    && len.is_multiple_of(block)
                    && len * self.pieces.len() as u64 == self.span_bytes,
            format!("{} pieces do not cut span_bytes into whole requests", self.pieces.len()),
        );
        need(
            self.pieces.iter().all(|piece| piece.is_multiple_of(unit))
                && self.pieces.windows(2).all(|two| two[0].checked_add(len).is_some_and(|end| end <= two[1])),
            format!("the pieces must be multiples of {unit}, ascending, and {len} bytes apart or more"),
        );
        let end = self.pieces.last().unwrap_or(&0).checked_add(len).and_then(|end| end.checked_add(self.offset_bytes));
        need(end.is_some(), "the span ends beyond every device".into());
        need(
            !self.duration.is_zero() || self.ops_max > 0,
            "duration is 0 and ops_max is 0: the load would have no end or no beginning".into(),
        );
        if faults.is_empty() { Ok(()) } else { Err(LoadError(faults)) }
    }

    /// Returns the length of each piece, in bytes.
    pub fn piece_bytes(&self) -> u64 {
        self.span_bytes / self.pieces.len().max(1) as u64
    }

    /// Returns where the pieces end on the device.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(*self.pieces.last().unwrap_or(&0)).saturating_add(self.piece_bytes())
    }

    /// Returns the device offset of an offset in the span.
    pub(super) fn on_device(&self, offset: u64) -> u64 {
        let len = self.piece_bytes();
        let piece = self.pieces.get((offset / len) as usize).map_or(offset, |start| start + offset % len);
        self.offset_bytes + piece
    }
}
