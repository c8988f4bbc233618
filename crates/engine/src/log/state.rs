//! The state block of a segment (R9): everything that earlier segments record besides entries.
//!
//! A batch that opens a segment begins with it. It takes as many batches as it needs, and no other record goes into the
//! segment before its end; changes that the engine makes meanwhile are queued behind it. Replicas come first, then
//! tombstones: a replica destroyed while the block is written has its state in the block, its tombstone, or both.
//!
//! Invariant: a segment counts as one that names all replicas only when the end of its block is durable. Until then the
//! last such segment is not freed. A crash in the middle of a block leaves that segment and the following ones.

use super::batch::{BuildParts, Fill};
use crate::replica::Replica;
use layout::log::{BATCH_ALIGN, FIXED_LEN, RECORDS_MAX, Record};
use types::ReplicaId;
use types::planted::{Bug, on};

/// Bytes of a record beside its variable part, at most.
const RECORD_LEN: usize = 64;
/// Tombstones of one record.
const TOMBSTONES_STEP: usize = 4096;

/// Position in a state block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opens,
    /// Replicas from this one on.
    Replicas(ReplicaId),
    /// Tombstones from this id on.
    Tombstones(ReplicaId),
    Rest,
}

/// A state block that is being written.
#[derive(Debug)]
pub(crate) struct StateBlock(Stage);

impl StateBlock {
    pub fn new() -> StateBlock {
        StateBlock(Stage::Opens)
    }
}

/// Returns the bytes that the replica takes of a block, at most.
fn replica_len(r: &Replica) -> usize {
    let members = 16 * r.identity.members.len();
    let reason = r.told_failure().map_or(0, |failure| failure.reason.len().min(layout::log::REASON_MAX));
    (3 * RECORD_LEN + members + r.first_decision.len() + reason).next_multiple_of(8)
}

/// Returns the bytes of log that a block takes at most, with the copies in its batches. `bytes` is the sum over all
/// `replicas`.
pub(crate) fn block_len_max(batch_max: usize, (replicas, bytes): (usize, usize), tombstones: usize) -> u64 {
    let total = bytes + 8 * tombstones + layout::log::MAP_MAX + 8 * RECORD_LEN;
    let items = replicas + tombstones.div_ceil(TOMBSTONES_STEP.min((batch_max / 8).max(1))) + 2;
    // Every two consecutive batches hold more than `batch_max`, and a batch is at most a page and two fixed headers longer
    // than its records and its copy. The first copy is that of a batch before the block.
    let batches = items.min(2 * total / batch_max.max(1) + 2);
    (2 * total + RECORDS_MAX + batches * (BATCH_ALIGN + 2 * FIXED_LEN)) as u64
}

/// Returns [`block_len_max`] for these replicas and one more like the largest.
pub(crate) fn next_block_len(batch_max: usize, replicas: impl Iterator<Item = usize>, tombstones: usize) -> u64 {
    let (count, bytes, largest) = replicas.fold((1, 0, 0), |(n, sum, max), len| (n + 1, sum + len, len.max(max)));
    block_len_max(batch_max, (count, bytes + largest.max(1024)), tombstones)
}

pub(crate) fn lens<'a>(replicas: impl Iterator<Item = &'a Replica>) -> impl Iterator<Item = usize> {
    replicas.map(replica_len)
}

impl Fill {
    /// Puts the next part of the block, as much as one batch takes; true when the block is complete.
    pub(super) fn put_state_block(&mut self, block: &mut StateBlock, parts: &BuildParts<'_>) -> bool {
        let born = parts.replicas.values().filter(|r| r.born);
        if block.0 == Stage::Opens {
            self.put(Record::SegmentOpen { replicas: born.count() as u32, mount: parts.mounting });
            block.0 = Stage::Replicas(ReplicaId(0));
        } else {
            self.put(Record::StateMore { mount: parts.mounting });
        }
        let first = self.records_len();
        let is_full =
            |fill: &Fill, len: usize| fill.records_len() > first && fill.records_len() + len > parts.state_batch_max;
        if let Stage::Replicas(from) = block.0 {
            for (id, replica) in parts.replicas.range(from..).filter(|(_, r)| r.born && !on(Bug::StateBlockMissing)) {
                if is_full(self, replica_len(replica)) {
                    block.0 = Stage::Replicas(*id);
                    return false;
                }
                let mut record = replica.record();
                record.hard_state.vote = record.hard_state.vote.filter(|_| !on(Bug::StateBlockForgetsVotes));
                self.put(Record::ReplicaState(record));
            }
            block.0 = Stage::Tombstones(ReplicaId(0));
        }
        while let Stage::Tombstones(from) = block.0 {
            let step = TOMBSTONES_STEP.min((parts.state_batch_max / 8).max(1));
            let gone: Vec<ReplicaId> = parts.tombstones.range(from..).copied().take(step).collect();
            let Some(last) = gone.last() else {
                block.0 = Stage::Rest;
                break;
            };
            if is_full(self, RECORD_LEN + 8 * gone.len()) {
                return false;
            }
            block.0 = Stage::Tombstones(ReplicaId(last.0 + 1));
            self.put(Record::Tombstones(gone));
        }
        if is_full(self, 4 * RECORD_LEN + parts.map.len()) {
            return false;
        }
        if parts.creates_lost > ReplicaId(0) {
            self.put(Record::CreatesLost { below: parts.creates_lost, restated: true });
        }
        if parts.floor > ReplicaId(0) {
            self.put(Record::ReplicaFloor(parts.floor));
        }
        if !parts.map.is_empty() {
            self.put(Record::Map(parts.map.clone()));
        }
        self.put(Record::StateEnd);
        self.note_stated();
        true
    }
}
