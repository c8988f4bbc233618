//! From batches to replicas (R9, R11).
//!
//! Mount comes in with the verified batches in order; replicas with their entries, hard state and damage go
//! out, and the records of the last complete checkpoint. Rules: appending (i, t) removes every earlier record
//! at or above i; a copied record fills slot i alone; a reset removes all before it; records of destroyed replicas are nothing.
//!
//! Invariant: pure. What is missing or contradicts itself becomes damage of its replica, never a guess.

use super::scan::{FoundBatch, Verdict, payload_of};
use super::{Kept, ReplicaLog, Segment};
use crate::payload::Payload;
use crate::replica::Replica;
use crate::seam::RoundState;
use bytes::Bytes;
use layout::log::{BlockRecord, CheckpointPart, Record, ReplicaRecord};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{Crcs, DecisionState, Lost, Recovered};
use types::{Entry, Index, IoBuf, ReplicaId, Term};

/// A completed block of a round that had no checkpoint yet, perhaps.
#[derive(Debug)]
pub(crate) struct Completed {
    pub record: BlockRecord,
    pub payload: Arc<Payload>,
}

#[derive(Debug)]
struct Replayed {
    record: ReplicaRecord,
    entries: BTreeMap<u64, Kept>,
    blocks: Vec<Completed>,
}

/// A checkpoint record, perhaps still without its last part.
#[derive(Debug)]
struct Assembling {
    id: u64,
    segment: u64,
    parts: Vec<Bytes>,
    of: u32,
}

/// The last complete checkpoint.
#[derive(Debug, Default)]
pub(crate) struct LastCheckpoint {
    pub id: u64,
    pub segment: u64,
    pub parts: Option<Vec<Bytes>>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    replicas: BTreeMap<ReplicaId, Replayed>,
    pub tombstones: BTreeSet<ReplicaId>,
    /// The last cluster map that was logged.
    pub map: Bytes,
    pub segments: VecDeque<Segment>,
    pub checkpoint: LastCheckpoint,
    assembling: Option<Assembling>,
    /// Where the log ends: bytes taken of the newest segment.
    pub head: u64,
    pub last_seq: u64,
    pub last_mount: u64,
    /// What was durable last is damaged: the log must go on behind it, in a fresh segment.
    pub ends_in_hole: bool,
    /// Why every replica is in doubt.
    store_damage: Option<String>,
}

impl Replay {
    /// Replays what the scan kept.
    pub fn new(verdict: Verdict, offset_of: impl Fn(u32) -> u64) -> Replay {
        let mut replay = Replay::default();
        if let Some((from, to)) = verdict.holes.first() {
            replay.store_damage = Some(format!("log batches {from} to {} were durable and are damaged", to - 1));
        }
        for batch in verdict.batches {
            replay.last_seq = batch.header.seq;
            replay.last_mount = batch.header.mount;
            replay.head = batch.header.offset + batch.header.len_bytes() - offset_of(batch.slot);
            replay.batch(batch);
        }
        replay.ends_in_hole = replay.last_seq < verdict.durable;
        replay.last_seq = replay.last_seq.max(verdict.durable);
        replay
    }

    /// Whether all replicas are in doubt.
    pub fn store_damage(&self) -> Option<&str> {
        self.store_damage.as_deref()
    }

    fn batch(&mut self, batch: FoundBatch) {
        let header = batch.header;
        if self.segments.back().is_none_or(|s| s.opened != header.segment_seq) {
            self.segments.push_back(Segment::new(batch.slot, header.segment_seq, header.salt));
        }
        for record in batch.records {
            let payload = payload_of(&record, &batch.payload).ok();
            self.record(record, payload, header.segment_seq);
        }
    }

    fn doubt(&mut self, reason: String) {
        self.store_damage.get_or_insert(reason);
    }

    /// `payload` is `None` when its bytes do not match.
    fn record(&mut self, record: Record, payload: Option<IoBuf>, segment: u64) {
        match record {
            Record::SegmentOpen { .. } | Record::Mount => {}
            Record::Map(map) => self.map = map,
            Record::Tombstones(gone) => {
                for replica in &gone {
                    self.replicas.remove(replica);
                }
                self.tombstones.extend(gone);
            }
            Record::Create(record) | Record::ReplicaState(record) => self.state(record),
            Record::Destroy { replica } => {
                self.replicas.remove(&replica);
                self.tombstones.insert(replica);
            }
            Record::HardState { replica, hard_state } => {
                if let Some(r) = self.live(replica) {
                    r.record.hard_state = hard_state;
                }
            }
            Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload: at } => {
                self.segments.back_mut().expect("a batch lies in a segment").note_entry(replica, index.0);
                let (payload, lost) = match payload {
                    Some(buf) => ((!buf.is_empty()).then(|| Arc::new(Payload { buf, crcs })), None),
                    None => (None, Some(Arc::new(Lost { index, term, len_bytes: at.len, crcs }))),
                };
                self.append(replica, Kept { index, term, kind, descriptor, payload, lost, segment }, copied);
            }
            Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes } => {
                self.segments.back_mut().expect("a batch lies in a segment").note_entry(replica, index.0);
                let lost = Some(Arc::new(Lost { index, term, len_bytes, crcs }));
                self.append(replica, Kept { index, term, kind, descriptor, payload: None, lost, segment }, true);
            }
            Record::Cut { replica, last } => {
                if let Some(r) = self.live(replica) {
                    let _ = r.entries.split_off(&(last.0 + 1));
                }
            }
            Record::Block(record) => {
                self.segments.back_mut().expect("a batch lies in a segment").note_block(record.replica, record.index.0);
                let Some(buf) = payload else {
                    // It served to redo a round. If that one got far enough to need it, the block at home does not
                    // match its checksum, and says so to whoever reads it.
                    tracing::warn!(replica = %record.replica, chunk = %record.chunk, "a completed block is damaged in the log");
                    return;
                };
                let start = u32::from(record.block) * types::units::SECTORS_PER_BLOCK;
                let payload = Arc::new(Payload { buf, crcs: Crcs { start, values: vec![record.crc] } });
                if let Some(r) = self.live(record.replica) {
                    r.blocks.push(Completed { record, payload });
                }
            }
            Record::Checkpoint(part) => self.checkpoint_part(part, segment),
            // In one batch with the last part of the checkpoint that brings the replica to the same index.
            Record::Reset { replica, .. } => {
                if let Some(r) = self.live(replica) {
                    r.entries.clear();
                    r.blocks.clear();
                }
            }
        }
    }

    fn live(&mut self, replica: ReplicaId) -> Option<&mut Replayed> {
        if !self.replicas.contains_key(&replica) && !self.tombstones.contains(&replica) {
            self.doubt(format!("the log speaks of {replica} before its birth"));
        }
        self.replicas.get_mut(&replica)
    }

    fn damage(&mut self, replica: ReplicaId, reason: String) {
        if let Some(r) = self.live(replica)
            && r.record.damage.is_empty()
        {
            r.record.damage = reason;
        }
    }

    fn state(&mut self, record: ReplicaRecord) {
        let replica = record.identity.replica;
        if self.tombstones.contains(&replica) {
            return;
        }
        match self.replicas.get_mut(&replica) {
            None => {
                let replayed = Replayed { record, entries: BTreeMap::new(), blocks: Vec::new() };
                self.replicas.insert(replica, replayed);
            }
            Some(known) => {
                let damage = std::mem::take(&mut known.record.damage);
                known.record = record;
                if !damage.is_empty() {
                    known.record.damage = damage;
                }
            }
        }
    }

    fn append(&mut self, replica: ReplicaId, kept: Kept, copied: bool) {
        let Some(r) = self.live(replica) else { return };
        let index = kept.index.0;
        if !copied || on(Bug::CopyTruncates) {
            let replaced = r.entries.split_off(&index);
            if !replaced.is_empty() && on(Bug::ReplayKeepsTruncated) {
                r.entries.extend(replaced);
            }
            r.entries.insert(index, kept);
            return;
        }
        match r.entries.get(&index) {
            Some(there) if there.term != kept.term => {
                self.damage(replica, format!("two terms claim entry {index}"));
            }
            // One of the two is enough.
            Some(there) if there.lost.is_none() && kept.lost.is_some() => {}
            _ => {
                r.entries.insert(index, kept);
            }
        }
    }

    fn checkpoint_part(&mut self, part: CheckpointPart, segment: u64) {
        if part.part == 0 {
            self.assembling = Some(Assembling { id: part.id, segment, parts: Vec::new(), of: part.parts });
        }
        let Some(open) = &mut self.assembling else { return };
        let next = open.id == part.id && open.of == part.parts && open.parts.len() == part.part as usize;
        if !next {
            self.assembling = None; // its beginning was freed, or a crash cut it short
            return;
        }
        open.parts.push(part.bytes);
        if open.parts.len() == open.of as usize {
            let done = self.assembling.take().expect("it was just extended");
            self.checkpoint = LastCheckpoint { id: done.id, segment: done.segment, parts: Some(done.parts) };
        }
    }

    /// Home found pages of the replica damaged.
    pub fn damage_if_known(&mut self, replica: ReplicaId, reason: String) {
        if self.replicas.contains_key(&replica) {
            self.damage(replica, reason);
        }
    }

    /// The replicas as a state block must name them, before home is mounted.
    pub fn provisional(&self) -> BTreeMap<ReplicaId, Replica> {
        let replica = |r: &Replayed| {
            let mut replica = Replica::new(r.record.identity.clone(), r.record.decision.clone());
            replica.written_hard_state = r.record.hard_state;
            let damage = Some(r.record.damage.clone()).filter(|d| !d.is_empty());
            replica.damage = damage.or_else(|| self.store_damage.clone());
            replica.born = true;
            replica
        };
        self.replicas.iter().map(|(id, r)| (*id, replica(r))).collect()
    }

    /// Joins log and checkpoint: the replicas, and what their groups start from.
    pub fn finish(self, states: Vec<RoundState>) -> (BTreeMap<ReplicaId, Replica>, Vec<Recovered>) {
        let mut states: BTreeMap<ReplicaId, DecisionState> =
            states.into_iter().map(|s| (s.decision.replica, s.decision)).collect();
        let mut replicas = BTreeMap::new();
        let mut recovered = Vec::new();
        for (id, mut replayed) in self.replicas {
            if replayed.record.damage.is_empty()
                && let Some(reason) = &self.store_damage
            {
                replayed.record.damage = reason.clone();
            }
            let (replica, found) = replayed.finish(states.remove(&id));
            replicas.insert(id, replica);
            recovered.push(found);
        }
        (replicas, recovered)
    }
}

impl Replayed {
    fn finish(self, state: Option<DecisionState>) -> (Replica, Recovered) {
        let Replayed { record, entries, blocks } = self;
        let ReplicaRecord { identity, hard_state, decision, damage } = record;
        let mut damage = (!damage.is_empty()).then_some(damage);
        let checkpoint = state.unwrap_or(DecisionState {
            replica: identity.replica,
            index: Index(0),
            term: Term(0),
            bytes: decision.clone(),
        });
        let (log, before) = match contiguous(entries, &checkpoint) {
            Ok(found) => found,
            Err(reason) => {
                damage.get_or_insert(reason);
                (ReplicaLog::new(Index(checkpoint.index.0 + 1)), (checkpoint.index, checkpoint.term))
            }
        };
        let last = log.last().max(checkpoint.index);
        if hard_state.commit > last || hard_state.commit < checkpoint.index {
            let reason = format!(
                "commit {} does not lie in {}..={last}, what log and home hold",
                hard_state.commit, checkpoint.index
            );
            damage.get_or_insert(reason);
        }
        let mut replica = Replica::new(identity.clone(), decision);
        replica.hard_state = hard_state;
        replica.written_hard_state = hard_state;
        replica.checkpoint = (checkpoint.index, checkpoint.term);
        replica.applied = checkpoint.index;
        replica.damage = damage.clone();
        replica.born = true;
        for done in blocks {
            // Home may hold half of it: what the round completed comes back below what will be redone (R2).
            if done.record.index > checkpoint.index && damage.is_none() {
                let range = done.payload.range();
                replica.overlay.write(done.record.chunk, range, Some(done.payload));
            }
        }
        let entries: Vec<Entry> = log.iter().map(Kept::entry).collect();
        let lost: Vec<Lost> = log.iter().filter_map(|kept| kept.lost.as_deref().cloned()).collect();
        replica.lost = lost.iter().map(|lost| lost.index).collect();
        replica.log = log;
        (replica, Recovered { identity, hard_state, checkpoint, before, entries, lost, damage })
    }
}

/// The longest run of entries up to the last one, which must meet the checkpoint; and what stands before it.
fn contiguous(
    mut entries: BTreeMap<u64, Kept>,
    checkpoint: &DecisionState,
) -> Result<(ReplicaLog, (Index, Term)), String> {
    let k = checkpoint.index.0;
    let mut first = match entries.last_key_value() {
        Some((last, _)) if *last >= k.max(1) => *last,
        _ => return Ok((ReplicaLog::new(Index(k + 1)), (checkpoint.index, checkpoint.term))),
    };
    while first > 1 && entries.contains_key(&(first - 1)) {
        first -= 1;
    }
    if first > k + 1 {
        return Err(format!("entries {} to {} are missing from the log", k + 1, first - 1));
    }
    if let Some(at_k) = entries.get(&k)
        && at_k.term != checkpoint.term
    {
        return Err(format!("entry {k} has {} in the log and {} in the checkpoint", at_k.term, checkpoint.term));
    }
    // What is at home needs no payload any more: the log begins behind the last such entry that is lost.
    let lost = entries.range(first..k + 1).rev().find(|(_, kept)| kept.lost.is_some()).map(|(index, _)| *index);
    let first = lost.unwrap_or(first);
    let mut run = entries.split_off(&first);
    let before = match first {
        1 if lost.is_none() => (Index(0), Term(0)),
        _ if first == k + 1 => (checkpoint.index, checkpoint.term),
        // The first one only serves to know its term.
        _ => {
            let kept = run.remove(&first).expect("the run begins with it");
            (kept.index, kept.term)
        }
    };
    let falling = run.values().zip(run.values().skip(1)).any(|(a, b)| a.term > b.term);
    if falling {
        return Err("terms fall in the log".to_owned());
    }
    let mut log = ReplicaLog::new(Index(before.0.0 + 1));
    for (_, kept) in run {
        let replaced = log.append(kept);
        assert!(replaced.is_empty(), "indices of a map ascend");
    }
    Ok((log, before))
}
