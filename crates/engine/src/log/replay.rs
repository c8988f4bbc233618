//! Replays batches into replicas (R9, R11).
//!
//! Mount passes in the verified batches in order. Replay returns the replicas with their entries, hard state and
//! failure, and the records of the last complete checkpoint. Rules: appending (i, t) removes every earlier record at or
//! above i; a copied record fills slot i alone; a reset removes everything before it; records of destroyed replicas are
//! ignored.
//!
//! Invariant: pure. Missing or contradictory data fails its replica, and never becomes a guess. A log gap fails every replica
//! that was there before it, for its records may lie in the gap (ADR 0023).

use super::places::Placed;
use super::scan::{FoundBatch, Verdict};
use super::{Kept, ReplicaLog, Segment};
use crate::engine::ANY_REPLICA;
use crate::home_api::{LostHome, RoundState};
use crate::lineage::Lineage;
use crate::payload::{Payload, Place};
use crate::replica::{Older, Replica, ReplicaState};
use bytes::Bytes;
use layout::log::{BlockRecord, CheckpointPart, PlacedRun, Record, ReplicaRecord, payload_of};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{Crcs, DecisionState, Failure, HardState, Lost, Recovered};
use types::{AU, CrcList, Entry, EntryKind, Index, IoBuf, ReplicaId, Term};

/// Takes AUs of home for a payload in the log.
pub(crate) type Claim<'a> = &'a mut dyn FnMut(ReplicaId, &[PlacedRun]) -> bool;

/// A completed block; its round may not have reached its checkpoint.
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
    /// Pages of its home are lost: no data of the replica at home counts.
    lost_home: Option<LostHome>,
    /// State before the first log gap, of a replica of which records may lie in a gap. `None` again behind the record that tells
    /// its past.
    before_hole: Option<BeforeHole>,
}

/// A replica's state at the beginning of a log gap.
#[derive(Debug, Default)]
struct BeforeHole {
    entries: BTreeMap<u64, Kept>,
    commit: Index,
}

impl Replayed {
    fn new(record: ReplicaRecord, before_hole: Option<BeforeHole>) -> Replayed {
        let (entries, blocks, lost_home) = (BTreeMap::new(), Vec::new(), None);
        Replayed { record, entries, blocks, lost_home, before_hole }
    }

    /// A reset shares its batch with the last part of the checkpoint that brings the replica to the same index.
    fn reset(&mut self) {
        self.entries.clear();
        self.blocks.clear();
        if let Some(before) = &mut self.before_hole {
            before.entries.clear();
        }
    }

    fn past_ends(&mut self, last: Index) {
        if let Some(before) = self.before_hole.take() {
            self.entries = before.entries;
        }
        let _ = self.entries.split_off(&(last.0 + 1));
    }
}

/// A checkpoint record whose last part may be missing still.
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

/// State of a replay, as the head of the file describes.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    replicas: BTreeMap<ReplicaId, Replayed>,
    pub tombstones: BTreeSet<ReplicaId>,
    /// The last cluster map that was logged.
    pub map: Bytes,
    pub segments: VecDeque<Segment>,
    pub checkpoint: LastCheckpoint,
    assembling: Option<Assembling>,
    /// Where the log goes on in the newest segment.
    pub head: u64,
    /// Bytes of payloads at home whose records lie in the newest segment.
    pub air: u64,
    pub last_seq: u64,
    pub last_mount: u64,
    /// The log goes on in the next segment.
    pub closed: bool,
    /// Fixed header and records of the last batch, for the copy in the next one; `None` behind a log gap.
    pub previous: Option<IoBuf>,
    /// Reason for which every replica has failed: the log contradicts itself.
    store_damage: Option<String>,
    /// The durable batches that are missing, in words.
    pub hole: Option<String>,
    /// The replay is behind the first log gap.
    hole_entered: bool,
    /// An administrator has declared the device an older copy: everything written after it is missing (ADR 0012).
    restored: bool,
    /// Create records of replicas below this id may be lost, and what the state block that has begun records of that.
    creates_lost: ReplicaId,
    block_creates_lost: ReplicaId,
    /// A state block has begun, and no batch since is missing; the value says whether a mount wrote it.
    block: Option<bool>,
    /// Replicas below this id that are unknown are gone.
    pub floor: ReplicaId,
}

/// A failure that a mount has found, and that the log does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untold {
    pub replica: ReplicaId,
    /// End of the replica's past.
    pub last: Option<Index>,
}

impl Replay {
    /// Replays the batches that the scan kept, of a log of so many slots.
    pub fn new(verdict: Verdict, slots: u32, offset_of: impl Fn(u32) -> u64) -> Replay {
        let mut replay = Replay::default();
        if let Some((from, to)) = verdict.holes.first() {
            replay.hole = Some(format!("log batches {from} to {} were durable and are damaged", to - 1));
        }
        let last = verdict.batches.last().map(|batch| (batch.slot, batch.header.seq, IoBuf::copy_of(&batch.identity)));
        let mut holes = verdict.holes.iter().peekable();
        let placed = verdict.placed;
        for batch in verdict.batches {
            while holes.next_if(|(from, _)| *from < batch.header.seq).is_some() {
                replay.enter_hole();
            }
            replay.last_seq = batch.header.seq;
            replay.last_mount = batch.header.mount;
            replay.head = batch.header.offset + batch.header.len_bytes() - offset_of(batch.slot);
            replay.batch(batch, &placed, slots);
        }
        holes.for_each(|_| replay.enter_hole());
        match last {
            Some((_, seq, identity)) if seq >= verdict.durable => replay.previous = Some(identity),
            _ => {
                // The last durable batch is damaged. Its signs stay: the log goes on behind them, or in the next segment. A number is left
                // out: when the lost batches can be read again, there is still a gap.
                replay.closed = last.is_none_or(|(slot, ..)| slot != verdict.signs.slot);
                replay.head = replay.head.max(verdict.signs.end as u64);
                replay.last_seq = replay.last_seq.max(verdict.durable).max(verdict.signs.seq) + 1;
            }
        }
        replay
    }

    /// Enters a log gap: records of any replica are missing here.
    fn enter_hole(&mut self) {
        (self.creates_lost, self.assembling, self.block) = (ANY_REPLICA, None, None);
        self.hole_entered = true;
        for r in self.replicas.values_mut().filter(|r| r.before_hole.is_none()) {
            r.before_hole = Some(BeforeHole { entries: r.entries.clone(), commit: r.record.hard_state.commit });
        }
    }

    /// Declares the device an older copy: every replica is as it was, and replicas may be missing.
    pub fn restored(&mut self) {
        (self.restored, self.creates_lost) = (true, ANY_REPLICA);
    }

    /// Returns the reason for which all replicas have failed.
    pub fn store_damage(&self) -> Option<&str> {
        self.store_damage.as_deref()
    }

    /// Returns the id below which a replica may have been created here of which no record is left.
    pub fn creates_lost(&self) -> ReplicaId {
        if self.store_damage.is_some() { ANY_REPLICA } else { self.creates_lost }
    }

    /// Opens a segment. Segments of which no batch is left lie before it: they are not free, or the log would overwrite its tail.
    fn open_segment(&mut self, slot: u32, opened: u64, slots: u32) {
        if let Some(last) = self.segments.back().map(|last| (last.slot, last.opened)) {
            let lost = (slot + slots - last.0 - 1) % slots;
            if self.segments.len() + lost as usize >= slots as usize {
                self.contradicts(format!("the segments of the log overlap at batch {opened}"));
                self.segments.clear();
            } else {
                let lost = (1..=lost).map(|n| Segment::new((last.0 + n) % slots, last.1 + u64::from(n)));
                self.segments.extend(lost);
            }
        }
        self.segments.push_back(Segment::new(slot, opened));
        self.air = 0;
    }

    fn batch(&mut self, batch: FoundBatch, placed: &Placed, slots: u32) {
        let header = batch.header;
        if self.segments.back().is_none_or(|s| s.opened != header.segment_seq) {
            self.open_segment(batch.slot, header.segment_seq, slots);
        }
        for record in batch.records {
            let payload = match &record {
                Record::Placed { .. } => placed.get(&record),
                _ => payload_of(&record, &batch.payload).ok(),
            };
            self.record(record, payload, header.segment_seq);
        }
    }

    fn contradicts(&mut self, reason: String) {
        self.store_damage.get_or_insert(reason);
    }

    /// Replays a record. `payload` is `None` when its bytes do not match.
    fn record(&mut self, record: Record<'_>, payload: Option<IoBuf>, segment: u64) {
        match record {
            Record::SegmentOpen { mount, .. } => (self.block, self.block_creates_lost) = (Some(mount), ReplicaId(0)),
            Record::StateEnd => self.state_ends(),
            Record::ReplicaFloor(floor) => self.floor = self.floor.max(floor),
            Record::Mount | Record::StateMore { .. } => {}
            Record::CreatesLost { below, restated } => self.creates_are_lost(below, restated),
            Record::Map(map) => self.map = map,
            Record::Tombstones(gone) => {
                for replica in &gone {
                    self.replicas.remove(replica);
                }
                self.tombstones.extend(gone);
            }
            Record::Create(record) => self.state(record, true),
            Record::ReplicaState(record) => self.state(record, false),
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
                let crcs = crcs.into_owned();
                let payload = match payload {
                    Some(buf) => Ok((!buf.is_empty()).then(|| Payload::new(buf, crcs))),
                    None => Err(Lost { index, term, len_bytes: at.len, crcs }),
                };
                self.entry(replica, (kind, descriptor), (index, term), payload, copied);
            }
            Record::Placed { replica, index, term, kind, copied, descriptor, crcs, hash, runs } => {
                let (crcs, len_bytes) = (crcs.into_owned(), runs.iter().map(|run| run.count * AU as u32).sum());
                self.air += u64::from(len_bytes);
                let payload = match payload {
                    Some(buf) => Ok(Some(Payload::placed(buf, crcs, Place { hash, runs }))),
                    None => Err(Lost { index, term, len_bytes, crcs }),
                };
                self.entry(replica, (kind, descriptor), (index, term), payload, copied);
            }
            Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes } => {
                let lost = Lost { index, term, len_bytes, crcs: crcs.into_owned() };
                self.entry(replica, (kind, descriptor), (index, term), Err(lost), true);
            }
            Record::Block(record) => {
                self.segments.back_mut().expect("a batch lies in a segment").note_block(record.replica, record.index.0);
                let Some(buf) = payload else {
                    // The block served to redo a round. If that round had overwritten the block at home, the block
                    // fails its checksum there, and every read of it reports that.
                    tracing::warn!(replica = record.replica.0, chunk = %record.chunk, "a completed block is damaged in the log");
                    return;
                };
                let start = u32::from(record.block) * types::units::SECTORS_PER_BLOCK;
                let payload = Arc::new(Payload::new(buf, Crcs { start, values: CrcList::from_elem(record.crc, 1) }));
                if let Some(r) = self.live(record.replica) {
                    r.blocks.push(Completed { record, payload });
                }
            }
            Record::Checkpoint(part) => self.checkpoint_part(part, segment),
            Record::Reset { replica, .. } => self.live(replica).into_iter().for_each(Replayed::reset),
            Record::Past { replica, last } => self.live(replica).into_iter().for_each(|r| r.past_ends(last)),
            Record::Revived { replica } => self.live(replica).into_iter().for_each(|r| r.record.failure = None),
        }
    }

    /// Replays an entry. `payload`: none, or its bytes; an error when they are lost.
    fn entry(
        &mut self,
        replica: ReplicaId,
        (kind, descriptor): (EntryKind, Cow<'_, [u8]>),
        (index, term): (Index, Term),
        payload: Result<Option<Payload>, Lost>,
        copied: bool,
    ) {
        let segment = self.segments.back_mut().expect("a batch lies in a segment");
        segment.note_entry(replica, index.0);
        let (segment, descriptor) = (segment.opened, descriptor.into_owned().into());
        let (payload, lost) = match payload {
            Ok(payload) => (payload.map(Arc::new), None),
            Err(lost) => (None, Some(Arc::new(lost))),
        };
        self.append(replica, Kept { index, term, kind, descriptor, payload, lost, segment }, copied);
    }

    fn creates_are_lost(&mut self, below: ReplicaId, restated: bool) {
        // Records of older builds name no id.
        let below = if below == ReplicaId(0) { ANY_REPLICA } else { below };
        *(if restated { &mut self.block_creates_lost } else { &mut self.creates_lost }) = below;
    }

    /// Ends a state block: it is complete if its beginning was replayed, and every batch since.
    fn state_ends(&mut self) {
        if let Some(mount) = self.block.take() {
            self.segments.back_mut().expect("a batch lies in a segment").stated = true;
            // A process that was not mounting knew all replicas.
            let others = if mount { self.creates_lost } else { ReplicaId(0) };
            self.creates_lost = others.max(self.block_creates_lost);
        }
    }

    fn live(&mut self, replica: ReplicaId) -> Option<&mut Replayed> {
        let known = self.replicas.contains_key(&replica) || self.tombstones.contains(&replica);
        // The create record may be in a log gap, while no later state block names the replica.
        if !known && !self.hole_entered && self.creates_lost == ReplicaId(0) {
            self.contradicts(format!("the log has a record of {replica} before its create record"));
        }
        self.replicas.get_mut(&replica)
    }

    fn fail(&mut self, replica: ReplicaId, reason: String) {
        if let Some(r) = self.live(replica) {
            r.record.failure.get_or_insert(Failure { reason, is_past: false });
        }
    }

    fn state(&mut self, record: ReplicaRecord, birth: bool) {
        let replica = record.identity.replica;
        if self.tombstones.contains(&replica) {
            return;
        }
        match self.replicas.get_mut(&replica) {
            None => {
                // A replica whose first record is no create record was created in the gap.
                let before_hole = (self.hole_entered && !birth).then(BeforeHole::default);
                self.replicas.insert(replica, Replayed::new(record, before_hole));
            }
            Some(known) => {
                let failure = known.record.failure.take();
                known.record = record;
                known.record.failure = known.record.failure.take().or(failure);
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
        // Only copies follow the record of a past: appends in their slots stood behind a gap that is gone.
        let is_past = r.record.failure.as_ref().is_some_and(|failure| failure.is_past);
        match r.entries.get(&index) {
            Some(there) if there.term != kept.term && is_past => {
                r.entries.insert(index, kept);
            }
            Some(there) if there.term != kept.term => {
                self.fail(replica, format!("two terms claim entry {index}"));
            }
            // One record with its payload is enough.
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

    /// Notes that home lacks pages of the replica.
    pub fn home_lost(&mut self, lost: LostHome) {
        if let Some(r) = self.replicas.get_mut(&lost.replica) {
            let (replica, reason) = (lost.replica.0, &lost.reason);
            tracing::error!(replica, reason, "the data area of a replica is damaged");
            r.blocks.clear();
            r.lost_home = Some(lost);
        }
    }

    /// Returns the replicas as a state block must name them, before home is mounted.
    pub fn provisional(&self) -> BTreeMap<ReplicaId, Replica> {
        let replica = |r: &Replayed| {
            let mut replica = Replica::new(r.record.identity.clone(), r.record.decision.clone());
            (replica.written_hard_state, replica.fills_from) = (r.record.hard_state, r.record.fills_from);
            if let Some(failure) = r.record.failure.clone().or_else(|| self.contradiction()) {
                replica.turn(ReplicaState::Failed(failure));
            }
            replica.born = true;
            replica
        };
        self.replicas.iter().map(|(id, r)| (*id, replica(r))).collect()
    }

    fn contradiction(&self) -> Option<Failure> {
        self.store_damage.clone().map(|reason| Failure { reason, is_past: false })
    }

    /// Returns why a replica has failed, as far as log and home as a whole show it.
    fn failure_of(&self, r: &Replayed) -> Option<Failure> {
        let lost = |reason: &String| Failure { reason: reason.clone(), is_past: false };
        let past = |reason: &str| Failure { reason: reason.to_owned(), is_past: true };
        let told = || r.record.failure.clone();
        let gap = || r.before_hole.as_ref().and(self.hole.as_deref()).map(past);
        let restored = || self.restored.then(|| past("the device was restored from an older copy"));
        let contradiction = self.contradiction().or_else(|| told().filter(|failure| !failure.is_past));
        let of_home = || r.lost_home.as_ref().map(|home| lost(&home.reason));
        contradiction.or_else(of_home).or_else(gap).or_else(restored).or_else(told)
    }

    /// Joins log and checkpoint: returns the replicas, the states that their groups start from, and the failures that the log
    /// does not tell. `claim` takes the place of a payload that the log still needs; where it fails, the payload is lost.
    pub fn finish(
        mut self,
        states: Vec<RoundState>,
        claim: Claim<'_>,
    ) -> (BTreeMap<ReplicaId, Replica>, Vec<Recovered>, Vec<Untold>) {
        let mut states: BTreeMap<ReplicaId, RoundState> = states.into_iter().map(|s| (s.decision.replica, s)).collect();
        let (mut replicas, mut recovered, mut untold) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (id, mut replayed) in std::mem::take(&mut self.replicas) {
            let failure = self.failure_of(&replayed);
            let told = replayed.record.failure.take();
            let gap = replayed.before_hole.take();
            let is_hidden = gap.is_some() || self.restored;
            if let Some(before) = gap {
                replayed.entries = before.entries;
                replayed.record.hard_state.commit = before.commit;
            }
            let end = replayed.entries.last_key_value().map_or(0, |(index, _)| *index);
            let (replica, found) = replayed.join(states.remove(&id), failure, claim);
            let is_shorter = end > replica.log.last().0;
            let is_told = |failure: &&Failure| !is_hidden && !is_shorter && told.as_ref() == Some(*failure);
            if let Some(failure) = replica.failure().filter(|failure| !is_told(failure)) {
                // An empty log begins at the checkpoint index, whatever entries older records have.
                let last = if replica.log.len() == 0 { Index(0) } else { replica.log.last() };
                untold.push(Untold { replica: id, last: failure.is_past.then_some(last) });
            }
            replicas.insert(id, replica);
            recovered.push(found);
        }
        (replicas, recovered, untold)
    }
}

impl Replayed {
    /// Joins the replica with its checkpoint.
    fn join(self, state: Option<RoundState>, mut failure: Option<Failure>, claim: Claim<'_>) -> (Replica, Recovered) {
        let Replayed { record, mut entries, blocks, lost_home, .. } = self;
        let ReplicaRecord { identity, mut hard_state, decision, fills_from, .. } = record;
        let replica = identity.replica;
        let at = |(index, term): (Index, Term), bytes: Bytes| DecisionState { replica, index, term, bytes };
        let shows = state.as_ref().map_or(Index(0), |state| state.commit);
        let (state, at_checkpoint) = state.map(|s| (s.decision, s.dissolved)).unzip();
        let at_checkpoint = at_checkpoint.unwrap_or_default();
        let at_home = lost_home.as_ref().map(|home| home.checkpoint.0).or(state.as_ref().map(|state| state.index));
        let fills_from = fills_from.filter(|(from, _)| at_home.is_none_or(|k| k < *from));
        if let Some((from, _)) = fills_from {
            // Entries up to there have been dropped, though the log may still hold them.
            entries = entries.split_off(&(from.0 + 1));
        }
        let checkpoint = match (fills_from, lost_home) {
            (Some(from), _) => at(from, decision.clone()),
            (None, Some(home)) => at(home.checkpoint, Bytes::new()),
            (None, None) => state.clone().unwrap_or_else(|| at((Index(0), Term(0)), decision.clone())),
        };
        let dissolved: &[u8] = if fills_from.is_none() { &at_checkpoint } else { &[] };
        let lineage = lineage_of(&checkpoint.bytes, dissolved, &mut failure);
        let older = fills_from.and(state).map(|state| lineage_of_older(&state.bytes, &at_checkpoint));
        let (mut log, before) = contiguous(entries, &checkpoint).unwrap_or_else(|reason| {
            without_past(&mut failure, reason);
            (ReplicaLog::new(Index(checkpoint.index.0 + 1)), (checkpoint.index, checkpoint.term))
        });
        // The AUs of any other failed replica may have been reused before this mount.
        let counts = failure.as_ref().is_none_or(|failure| failure.is_past);
        log.claim_places(checkpoint.index, &mut |runs| !counts || claim(replica, runs));
        if fills_from.is_some() && log.first_lost().is_some() {
            let reason = "payloads of its log are lost, and a backfill had not ended".to_owned();
            failure.get_or_insert(Failure { reason, is_past: false });
        }
        if let Some(failure) = failure.as_mut().filter(|_| fills_from.is_some() || checkpoint.bytes.is_empty()) {
            // Its contents are of no moment, or the only checkpoint with its decision state is lost.
            failure.is_past = false;
        }
        if failure.as_ref().is_some_and(|failure| failure.is_past) {
            // The past ends before the first payload that is lost.
            log.first_lost().into_iter().for_each(|from| drop(log.truncate(from)));
            hard_state = within(hard_state, &log, &checkpoint);
        }
        if let Some(failure) = failure.as_mut().filter(|_| log.last().max(checkpoint.index) < shows) {
            // Installed contents show entries that are lost.
            failure.is_past = false;
        }
        let last = log.last().max(checkpoint.index);
        if let Some(reason) = contradiction_of(hard_state.commit, checkpoint.index, last) {
            failure.get_or_insert(Failure { reason, is_past: false });
        }
        let mut joined = Replica::new(identity.clone(), decision);
        (joined.hard_state, joined.written_hard_state) = (hard_state, hard_state);
        (joined.checkpoint, joined.lineage) = ((checkpoint.index, checkpoint.term), lineage);
        (joined.applied, joined.shows, joined.tree_index) = (checkpoint.index, shows, checkpoint.index);
        joined.born = true;
        if failure.as_ref().is_none_or(|failure| failure.is_past) {
            joined.lay_blocks(blocks);
        }
        let entries: Vec<Entry> = log.iter().map(Kept::entry).collect();
        let lost: Vec<Lost> = log.iter().filter_map(|kept| kept.lost.as_deref().cloned()).collect();
        joined.fills_from = fills_from;
        joined.state = state_of(failure.as_ref(), fills_from.map(|_| older.unwrap_or_default()), &log);
        if !joined.may_take_part() {
            joined.held_decision.clone_from(&checkpoint.bytes);
        }
        joined.log = log;
        let fills = joined.is_filling();
        (joined, Recovered { identity, hard_state, checkpoint, before, entries, lost, failure, fills })
    }
}

impl Replica {
    /// Lays completed blocks into the overlay, below the entries that are redone (R2): home may hold half of their round.
    fn lay_blocks(&mut self, blocks: Vec<Completed>) {
        let counts =
            |done: &Completed| done.record.index > self.checkpoint.0 && done.record.index <= self.hard_state.commit;
        for done in blocks.into_iter().filter(counts).collect::<Vec<_>>() {
            self.overlay.write(done.record.chunk, done.payload.range(), Some(done.payload));
        }
    }
}

/// Says why a commit index fits neither log nor home, if it does not.
fn contradiction_of(commit: Index, first: Index, last: Index) -> Option<String> {
    let lies = first <= commit && commit <= last;
    (!lies).then(|| format!("commit {commit} does not lie in {first}..={last}, the entries of log and home"))
}

/// Fails a replica whose contents are no state that it had.
fn without_past(failure: &mut Option<Failure>, reason: String) {
    let first = failure.take().unwrap_or(Failure { reason, is_past: false });
    *failure = Some(Failure { is_past: false, ..first });
}

/// Returns the lineage of a checkpoint. Without it the replica fails.
fn lineage_of(decision: &[u8], dissolved: &[u8], failure: &mut Option<Failure>) -> Arc<Lineage> {
    let lineage = Lineage::decode(decision, dissolved).map_err(|error| without_past(failure, error.to_string()));
    Arc::new(lineage.unwrap_or_default())
}

/// Returns the lineage of contents that are filled over. They are compared by their bytes, so one that cannot be read costs only what
/// would be kept.
fn lineage_of_older(decision: &[u8], dissolved: &[u8]) -> Arc<Lineage> {
    Arc::new(Lineage::decode(decision, dissolved).unwrap_or_default())
}

/// Returns the state in which a mount finds a replica. `base`: it is being filled, over contents at home with this lineage.
fn state_of(failure: Option<&Failure>, base: Option<Arc<Lineage>>, log: &ReplicaLog) -> ReplicaState {
    let lost: BTreeSet<Index> = log.iter().filter(|kept| kept.lost.is_some()).map(|kept| kept.index).collect();
    match (failure, base) {
        (Some(failure), _) => ReplicaState::Failed(failure.clone()),
        (None, Some(lineage)) => {
            let bytes = log.iter().map(Kept::log_len).sum();
            let older = Older { lineage, ..Older::default() };
            ReplicaState::Filling { older: Box::new(older), bytes }
        }
        (None, None) if lost.is_empty() => ReplicaState::Running,
        (None, None) => ReplicaState::Repairing(lost),
    }
}

/// Limits the hard state of a failed replica to what its log and home hold.
fn within(mut hard_state: HardState, log: &ReplicaLog, checkpoint: &DecisionState) -> HardState {
    let last = log.last().max(checkpoint.index);
    hard_state.commit = hard_state.commit.min(last).max(checkpoint.index);
    if checkpoint.term > hard_state.term {
        (hard_state.term, hard_state.vote) = (checkpoint.term, None);
    }
    hard_state
}

/// Returns the longest run of entries up to the last one, which must meet the checkpoint, and the position before it.
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
    // Entries at home need no payload any more: the log begins behind the last of them whose payload is lost.
    let lost = entries.range(first..k + 1).rev().find(|(_, kept)| kept.lost.is_some()).map(|(index, _)| *index);
    let first = lost.unwrap_or(first);
    let mut run = entries.split_off(&first);
    let before = match first {
        1 if lost.is_none() => (Index(0), Term(0)),
        _ if first == k + 1 => (checkpoint.index, checkpoint.term),
        // The first entry only supplies its term.
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
