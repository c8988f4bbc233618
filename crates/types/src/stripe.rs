//! Stripe layout of a volume: a permutation of the addresses within each segment.
//!
//! A volume has two address spaces of equal length. Users name bytes by *volume address*. Chunks are numbered by
//! *chunk address*: chunk `i` holds the chunk addresses from `i * CHUNK` on. Unit `n` of a segment lies in column `n % count`, at
//! `n / count * unit` within it, and a column is a run of whole chunks. Each column of a segment has a PG of its own, so
//! neighbouring units lie in different PGs, while OSDs know chunks alone (ADR 0029).
//!
//! Invariant: both directions keep the segment and the place within the unit, and each is the inverse of the other.

use crate::units::{BLOCK, CHUNK, CHUNKS_PER_SEGMENT, SEGMENT};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Smallest stripe unit. A unit holds whole blocks, so striping cuts no checksum.
pub const UNIT_MIN: u64 = BLOCK;
/// Largest stripe unit.
pub const UNIT_MAX: u64 = CHUNK;
/// Most columns of a segment: each holds at least one chunk.
pub const COUNT_MAX: u32 = CHUNKS_PER_SEGMENT;
/// Stripe width of a layout whose unit was not chosen.
const DEFAULT_WIDTH: u64 = 1 << 20;

/// The stripe layout of a volume. Without stripes there is one column, and both addresses of a byte are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Fields", try_from = "Fields")]
pub struct Stripe {
    unit_bytes: u32,
    count: u32,
}

/// The layout as records and JSON hold it.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Stripe")]
struct Fields {
    unit_bytes: u64,
    count: u32,
}

impl From<Stripe> for Fields {
    fn from(stripe: Stripe) -> Fields {
        Fields { unit_bytes: stripe.unit_bytes(), count: stripe.count }
    }
}

impl TryFrom<Fields> for Stripe {
    type Error = BadStripe;

    fn try_from(fields: Fields) -> Result<Stripe, BadStripe> {
        Stripe::new(fields.unit_bytes, fields.count)
    }
}

/// No volume has such a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadStripe {
    #[error("a stripe unit is a power of two from 4KiB to 16MiB")]
    Unit,
    #[error("a stripe count is a power of two from 1 to {COUNT_MAX}")]
    Count,
}

impl Default for Stripe {
    fn default() -> Stripe {
        Stripe::NONE
    }
}

impl Stripe {
    /// The layout without stripes.
    pub const NONE: Stripe = Stripe { unit_bytes: CHUNK as u32, count: 1 };

    /// Makes a layout of `count` columns with units of `unit_bytes`; with one column it is [`Stripe::NONE`].
    ///
    /// # Errors
    /// [`BadStripe`] when the unit is no power of two from [`UNIT_MIN`] to [`UNIT_MAX`], or the count none from 1 to
    /// [`COUNT_MAX`].
    pub const fn new(unit_bytes: u64, count: u32) -> Result<Stripe, BadStripe> {
        if !count.is_power_of_two() || count > COUNT_MAX {
            return Err(BadStripe::Count);
        }
        if !unit_bytes.is_power_of_two() || unit_bytes < UNIT_MIN || unit_bytes > UNIT_MAX {
            return Err(BadStripe::Unit);
        }
        if count == 1 {
            return Ok(Stripe::NONE);
        }
        Ok(Stripe { unit_bytes: unit_bytes as u32, count })
    }

    /// Returns the unit that a count alone stands for: an aligned 1 MiB then has one unit in each column.
    ///
    /// # Errors
    /// Those of [`Stripe::new`].
    pub const fn with_count(count: u32) -> Result<Stripe, BadStripe> {
        if count == 0 {
            return Err(BadStripe::Count);
        }
        Stripe::new(DEFAULT_WIDTH / count as u64, count)
    }

    /// Whether a segment has more than one column.
    pub const fn is_striped(self) -> bool {
        self.count > 1
    }

    /// Returns the length of a unit: [`CHUNK`] without stripes.
    pub const fn unit_bytes(self) -> u64 {
        self.unit_bytes as u64
    }

    /// Returns the number of columns of a segment.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Returns the number of chunks of one column of a segment.
    pub const fn chunks_per_column(self) -> u32 {
        CHUNKS_PER_SEGMENT / self.count
    }

    const fn column_bytes(self) -> u64 {
        SEGMENT / self.count as u64
    }

    /// Returns the column of a chunk, by its index in the volume.
    pub const fn column_of(self, chunk: u32) -> u32 {
        chunk % CHUNKS_PER_SEGMENT / self.chunks_per_column()
    }

    /// Returns the number of chunks of a volume of `len_bytes`. Every column of the last segment is whole, because the bytes of
    /// a segment that is not reach into each.
    pub const fn chunk_count(self, len_bytes: u64) -> u64 {
        if self.is_striped() {
            return len_bytes.div_ceil(SEGMENT) * CHUNKS_PER_SEGMENT as u64;
        }
        len_bytes.div_ceil(CHUNK)
    }

    /// Returns the chunk address of a volume address.
    pub const fn chunk_address(self, at: u64) -> u64 {
        let (unit, count) = (self.unit_bytes(), self.count as u64);
        let n = at % SEGMENT / unit;
        at / SEGMENT * SEGMENT + n % count * self.column_bytes() + n / count * unit + at % unit
    }

    /// Returns the volume address of a chunk address.
    pub const fn volume_address(self, at: u64) -> u64 {
        let (unit, count) = (self.unit_bytes(), self.count as u64);
        let (column, within) = (at % SEGMENT / self.column_bytes(), at % self.column_bytes());
        at / SEGMENT * SEGMENT + (within / unit * count + column) * unit + at % unit
    }

    /// Returns the ranges of volume addresses behind a range of chunk addresses, in its order: one for each unit, and one in all
    /// without stripes.
    pub fn volume_ranges(self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut ranges, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let end = if self.is_striped() { self.unit_end(at).min(range.end) } else { range.end };
            let start = self.volume_address(at);
            ranges.push(start..start + (end - at));
            at = end;
        }
        ranges
    }

    /// Returns the end of the unit in which a volume address or a chunk address lies.
    pub const fn unit_end(self, at: u64) -> u64 {
        (at / self.unit_bytes() + 1) * self.unit_bytes()
    }

    /// Returns the bytes of a column that lie below `at`, a volume address within the segment.
    fn below(self, at: u64, column: u32) -> u64 {
        let unit = self.unit_bytes();
        let row = unit * u64::from(self.count);
        at / row * unit + (at % row).saturating_sub(u64::from(column) * unit).min(unit)
    }

    /// Returns the first run of chunk addresses, from `from` on, of the range `range` of volume addresses; `None` when it has
    /// none there. A run lies in one column of one segment. The runs of a range ascend, and there is at most one for each column.
    pub fn run_from(self, range: &Range<u64>, from: u64) -> Option<Range<u64>> {
        let mut base = from.max(range.start) / SEGMENT * SEGMENT;
        while base < range.end {
            let inside = range.start.max(base) - base..range.end.min(base + SEGMENT) - base;
            let first = from.saturating_sub(base) / self.column_bytes();
            for column in first as u32..self.count {
                let at = base + u64::from(column) * self.column_bytes();
                let run = at + self.below(inside.start, column)..at + self.below(inside.end, column);
                if run.start < run.end && run.end > from {
                    return Some(run.start.max(from)..run.end);
                }
            }
            base += SEGMENT;
        }
        None
    }
}

#[cfg(test)]
mod tests;
