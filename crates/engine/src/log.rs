//! The log: batches in a ring of segments, and the part of it that is kept in memory.
//!
//! The engine queues [`Work`]; `batch` turns the queue into one vectored write at a time; `ring` tracks the live
//! segments; `kept` holds the entries that can still be produced; `scan`, `copied` and `replay` restore all of it at a
//! mount.
//!
//! Invariant: batches are written one at a time and acknowledged in order. A segment is reused only when no data that
//! must survive is in it alone (R8, R9).

mod batch;
mod copied;
mod kept;
pub(crate) mod places;
mod placing;
pub(crate) mod replay;
mod ring;
pub(crate) mod scan;
pub(crate) mod segment_read;
mod state;

pub(crate) use batch::{BuildParts, Built, Done, InFlight, Work, build};
pub(crate) use kept::{Kept, ReplicaLog};
pub(crate) use placing::Placer;
pub(crate) use ring::{RESERVED, Ring, Segment};
pub(crate) use state::{StateBlock, lens, next_block_len};

use layout::log::LogIdentity;
use layout::superblock::Superblock;
use std::collections::VecDeque;
use types::limits::{BATCH_PAYLOAD_MAX, BATCH_PLACED_MAX, PART_MAX};
use types::{IoBuf, ReplicaId, Time};

/// The writing end of the log.
#[derive(Debug)]
pub(crate) struct Log {
    pub identity: LogIdentity,
    pub ring: Ring,
    /// Number of this mount.
    pub mount: u64,
    /// Number of the next batch.
    pub next_seq: u64,
    /// All batches up to this one are durable.
    pub durable_seq: u64,
    /// Fixed header and records of the last batch, which the next one copies; `None` behind a log gap.
    pub previous: Option<IoBuf>,
    pub pending: VecDeque<Work>,
    /// Work came after the last attempt to begin a batch.
    pub untried: bool,
    pub in_flight: Option<InFlight>,
    /// Number of records that are queued or being written, and that reclamation waits for.
    pub untold: usize,
    /// State block of the newest segment that the next batch continues.
    pub state_block: Option<StateBlock>,
    /// The last batch with records that this process has made durable.
    pub durable_records: u64,
    /// The last batch that the mount has found, or found evidence of.
    pub found: u64,
    /// The last durable batch has records, and no header names it in `durable_seq` yet.
    pub unsealed: bool,
    /// When the last batch was submitted.
    pub batch_begun: Time,
    /// When the last batch completed.
    pub idle_since: Time,
    /// Segment in which the last durable checkpoint record begins (number of the segment's first batch).
    pub checkpoint_segment: u64,
    pub checkpoint_id: u64,
    pub payload_max: usize,
    /// Most bytes that a batch places at home.
    pub placed_max: usize,
    /// Alignment that the device requires of every buffer.
    pub align: usize,
}

impl Log {
    pub fn new(superblock: &Superblock, align_bytes: u32) -> Log {
        let part = |most: usize, n: u64| most.min((superblock.segment_bytes / n) as usize).max(PART_MAX as usize);
        let (payload_max, placed_max) = (part(BATCH_PAYLOAD_MAX, 4), part(BATCH_PLACED_MAX, 2));
        Log {
            identity: superblock.log_identity(),
            ring: Ring::new(superblock.log_start, superblock.segment_bytes, superblock.segment_count),
            mount: 0,
            next_seq: 1,
            durable_seq: 0,
            durable_records: 0,
            found: 0,
            previous: None,
            pending: VecDeque::new(),
            untried: false,
            in_flight: None,
            untold: 0,
            state_block: None,
            unsealed: false,
            batch_begun: Time::ZERO,
            idle_since: Time::ZERO,
            checkpoint_segment: 0,
            checkpoint_id: 0,
            payload_max,
            placed_max,
            align: align_bytes.max(1) as usize,
        }
    }

    /// Whether a copy of this entry is queued or being written.
    pub fn has_copy_of(&self, replica: ReplicaId, index: u64) -> bool {
        let queued = self
            .pending
            .iter()
            .any(|w| matches!(w, Work::Copy { replica: r, index: i, .. } if *r == replica && i.0 == index));
        queued || self.in_flight.as_ref().is_some_and(|f| f.copies(replica, index))
    }
}
