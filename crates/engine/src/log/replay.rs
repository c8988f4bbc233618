//! Replays batches into replicas (R9, R11).
//!
//! Mount passes in the verified batches in order. Replay returns the replicas with their entries, hard state and
//! damage, and the records of the last complete checkpoint. Rules: appending (i, t) removes every earlier record at or
//! above i; a copied record fills slot i alone; a reset removes everything before it; records of destroyed replicas are
//! ignored.
//!
//! Invariant: pure. Missing or contradictory data becomes damage of its replica, or makes it suspect, never a guess.

use super::scan::{FoundBatch, Verdict, payload_of};
use super::{Kept, ReplicaLog, Segment};
use crate::engine::ANY_REPLICA;
use crate::home_api::{LostHome, RoundState};
use crate::payload::Payload;
use crate::replica::{Doubt, Replica};
use bytes::Bytes;
use layout::log::{BlockRecord, CheckpointPart, Record, ReplicaRecord};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{Crcs, DecisionState, HardState, Lost, Recovered};
use types::{Entry, Index, IoBuf, ReplicaId, Term};

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
    /// Pages of its home are lost: no data of the replica at home counts. The value is its checkpoint index and term.
    homeless: Option<(Index, Term)>,
    /// A record made the replica suspect, and none has cleared it since (ADR 0007).
    in_doubt: bool,
    /// A record says that the replica is damaged.
    damage_told: bool,
    /// The replica was reset to nothing, perhaps before home had forgotten its old contents (ADR 0009).
    emptied: bool,
    /// State before the first log gap after which the log has not stated the replica in full again.
    before_hole: Option<BeforeHole>,
    since_hole: SinceHole,
    /// End of the log according to the last suspect record and later truncations; 0 once an entry has followed.
    reach: Index,
}

/// A replica's state at the beginning of a log gap.
#[derive(Debug, Default)]
struct BeforeHole {
    entries: BTreeMap<u64, Kept>,
    commit: Index,
}

/// Facts about a replica that the log states behind the last gap.
#[derive(Clone, Copy, Debug, Default)]
struct SinceHole {
    /// The log states its hard state.
    stated: bool,
    /// The log has all entries at or above this index.
    from: Option<u64>,
    /// A record behind the gap makes the replica suspect: its records there prove nothing.
    blind: bool,
}

impl Replayed {
    fn new(record: ReplicaRecord, before_hole: Option<BeforeHole>) -> Replayed {
        let (entries, blocks) = (BTreeMap::new(), Vec::new());
        let (since_hole, reach) = (SinceHole::default(), Index(0));
        let (homeless, in_doubt, emptied, damage_told) = (None, false, false, !record.damage.is_empty());
        Replayed { record, entries, blocks, homeless, in_doubt, damage_told, emptied, before_hole, since_hole, reach }
    }

    /// Applies a record that voids earlier entries, makes the replica suspect, or clears it.
    fn turn(&mut self, record: &Record<'_>) {
        match record {
            Record::Cut { last, .. } => {
                self.emptied |= last.0 == 0;
                self.reach = self.reach.min(*last);
                let _ = self.entries.split_off(&(last.0 + 1));
                if let Some(before) = &mut self.before_hole {
                    let _ = before.entries.split_off(&(last.0 + 1));
                }
            }
            // A reset shares its batch with the last part of the checkpoint that brings the replica to the same index.
            Record::Reset { .. } => {
                self.entries.clear();
                self.blocks.clear();
                self.since_hole.from = Some(0);
                self.reach = Index(0);
            }
            Record::Doubt { last, .. } => {
                self.entries = self.before_hole.take().unwrap_or_default().entries;
                let _ = self.entries.split_off(&(last.0 + 1));
                (self.in_doubt, self.reach) = (true, *last);
            }
            Record::InDoubt { .. } => {
                self.in_doubt = true;
                self.since_hole.blind = true;
            }
            Record::Sure { .. } => self.in_doubt = false,
            other => unreachable!("{other:?} makes nothing void"),
        }
    }

    /// Takes a hard state. The record that made the replica suspect may be in a gap before it.
    fn state_hard(&mut self, hard_state: HardState, suspect: bool) {
        self.record.hard_state = hard_state;
        self.since_hole.stated = true;
        self.in_doubt |= suspect;
        self.since_hole.blind |= suspect;
    }

    /// Whether hard state and every entry above `k` are known, whatever records the log gaps hid.
    fn is_proved(&self, k: Index) -> bool {
        let since = self.since_hole;
        since.stated && !since.blind && since.from.is_some_and(|from| from <= k.0 + 1)
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
    /// End of the log: bytes taken of the newest segment.
    pub head: u64,
    pub last_seq: u64,
    pub last_mount: u64,
    /// Fixed header and records of the last batch, for the copy in the next one; `None` behind a log gap.
    pub previous: Option<IoBuf>,
    /// The last durable batch is damaged: the log must continue behind it, in a fresh segment.
    pub ends_in_hole: bool,
    /// Reason for which every replica is damaged: the log contradicts itself.
    store_damage: Option<String>,
    /// The durable batches that are missing, in words.
    pub hole: Option<String>,
    /// The replay is behind the first log gap.
    hole_entered: bool,
    /// The mount whose batch precedes the first gap.
    hole_mount: Option<u64>,
    /// A gap spans a restart, so it may hide a record that made replicas suspect: records behind it must not clear any.
    doubt_hidden: bool,
    /// A whole checkpoint lies behind the last gap.
    checkpointed_since: bool,
    /// An administrator has declared the device an older copy: everything written after it is missing (ADR 0012).
    restored: bool,
    /// Create records of replicas below this id may be lost, and what the state block that has begun records of that.
    creates_lost: ReplicaId,
    block_creates_lost: ReplicaId,
    /// A mount wrote the batch that is replayed, before or with its mount record.
    by_mount: bool,
    /// A state block has begun, and no batch since is missing; the value says whether a mount wrote it.
    block: Option<bool>,
    /// Replicas below this id that are unknown are gone.
    pub floor: ReplicaId,
}

/// A record with which a mount makes a replica suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewDoubt {
    pub replica: ReplicaId,
    pub last: Index,
    pub hole: bool,
}

/// Losses that a mount has found and that the log does not record.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    pub doubts: Vec<NewDoubt>,
    pub damaged: Vec<ReplicaId>,
}

impl Replay {
    /// Replays the batches that the scan kept.
    pub fn new(verdict: Verdict, offset_of: impl Fn(u32) -> u64) -> Replay {
        let mut replay = Replay::default();
        if let Some((from, to)) = verdict.holes.first() {
            replay.hole = Some(format!("log batches {from} to {} were durable and are damaged", to - 1));
        }
        let previous = verdict.batches.last().map(|batch| IoBuf::copy_of(&batch.identity));
        let mut holes = verdict.holes.iter().peekable();
        for batch in verdict.batches {
            while holes.next_if(|(from, _)| *from < batch.header.seq).is_some() {
                replay.enter_hole(batch.header.mount);
            }
            replay.last_seq = batch.header.seq;
            replay.last_mount = batch.header.mount;
            replay.head = batch.header.offset + batch.header.len_bytes() - offset_of(batch.slot);
            replay.batch(batch);
        }
        let last_mount = replay.last_mount;
        holes.for_each(|_| replay.enter_hole(last_mount));
        replay.ends_in_hole = replay.last_seq < verdict.durable;
        replay.previous = previous.filter(|_| !replay.ends_in_hole);
        replay.last_seq = replay.last_seq.max(verdict.durable);
        replay
    }

    /// Enters a log gap: records of any replica are missing here, and the next batch is of `mount`.
    fn enter_hole(&mut self, mount: u64) {
        let first = *self.hole_mount.get_or_insert(self.last_mount);
        self.doubt_hidden |= mount > first;
        (self.checkpointed_since, self.creates_lost, self.assembling) = (false, ANY_REPLICA, None);
        self.block = None;
        self.hole_entered = true;
        for r in self.replicas.values_mut() {
            r.since_hole = SinceHole::default();
            if r.before_hole.is_none() {
                r.before_hole = Some(BeforeHole { entries: r.entries.clone(), commit: r.record.hard_state.commit });
            }
        }
    }

    /// Declares the device an older copy: every replica is suspect, and replicas may be missing. A replica without
    /// peers is damaged, because no other member knows its entries.
    pub fn restored(&mut self) {
        (self.restored, self.creates_lost) = (true, ANY_REPLICA);
        for r in self.replicas.values_mut() {
            match r.record.identity.members.len() < 2 {
                true if r.record.damage.is_empty() => {
                    "the device was restored from an older copy".clone_into(&mut r.record.damage);
                }
                true => {}
                false => r.in_doubt = true,
            }
        }
    }

    /// Returns the reason for which all replicas are damaged.
    pub fn store_damage(&self) -> Option<&str> {
        self.store_damage.as_deref()
    }

    /// Returns the id below which a replica may have been created here of which no record is left.
    pub fn creates_lost(&self) -> ReplicaId {
        if self.store_damage.is_some() { ANY_REPLICA } else { self.creates_lost }
    }

    fn batch(&mut self, batch: FoundBatch) {
        let header = batch.header;
        if self.segments.back().is_none_or(|s| s.opened != header.segment_seq) {
            self.segments.push_back(Segment::new(batch.slot, header.segment_seq));
        }
        let is_mounts = |r: &Record<'_>| {
            matches!(r, Record::Mount | Record::SegmentOpen { mount: true, .. } | Record::StateMore { mount: true })
        };
        self.by_mount = batch.records.iter().any(is_mounts);
        for record in batch.records {
            let payload = payload_of(&record, &batch.payload).ok();
            self.record(record, payload, header.segment_seq);
        }
    }

    fn doubt(&mut self, reason: String) {
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
            Record::HardState { replica, hard_state, suspect } => {
                if let Some(r) = self.live(replica) {
                    r.state_hard(hard_state, suspect);
                }
            }
            Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload: at } => {
                self.segments.back_mut().expect("a batch lies in a segment").note_entry(replica, index.0);
                let (descriptor, crcs) = (descriptor.into_owned().into(), crcs.into_owned());
                let (payload, lost) = match payload {
                    Some(buf) => ((!buf.is_empty()).then(|| Arc::new(Payload { buf, crcs })), None),
                    None => (None, Some(Arc::new(Lost { index, term, len_bytes: at.len, crcs }))),
                };
                self.append(replica, Kept { index, term, kind, descriptor, payload, lost, segment }, copied);
            }
            Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes } => {
                self.segments.back_mut().expect("a batch lies in a segment").note_entry(replica, index.0);
                let (descriptor, crcs) = (descriptor.into_owned().into(), crcs.into_owned());
                let lost = Some(Arc::new(Lost { index, term, len_bytes, crcs }));
                self.append(replica, Kept { index, term, kind, descriptor, payload: None, lost, segment }, true);
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
                let payload = Arc::new(Payload { buf, crcs: Crcs { start, values: vec![record.crc] } });
                if let Some(r) = self.live(record.replica) {
                    r.blocks.push(Completed { record, payload });
                }
            }
            Record::Checkpoint(part) => self.checkpoint_part(part, segment),
            // These records concern one known replica.
            Record::Cut { replica, .. }
            | Record::Reset { replica, .. }
            | Record::Doubt { replica, .. }
            | Record::InDoubt { replica }
            | Record::Sure { replica } => {
                if let Some(r) = self.live(replica) {
                    r.turn(&record);
                }
            }
        }
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
            self.doubt(format!("the log has a record of {replica} before its create record"));
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

    fn state(&mut self, record: ReplicaRecord, birth: bool) {
        let replica = record.identity.replica;
        if self.tombstones.contains(&replica) {
            return;
        }
        let (holes, stated) = (self.hole_entered, !self.by_mount);
        match self.replicas.get_mut(&replica) {
            None => {
                // A replica whose first record is no create record was created in the gap.
                let before_hole = (holes && !birth).then(BeforeHole::default);
                let mut replayed = Replayed::new(record, before_hole);
                replayed.since_hole.stated = stated;
                self.replicas.insert(replica, replayed);
            }
            Some(known) => {
                known.since_hole.stated |= stated;
                known.damage_told |= !record.damage.is_empty();
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
        if !copied {
            let from = &mut r.since_hole.from;
            *from = Some(from.map_or(index, |from| from.min(index)));
            r.reach = Index(0);
        }
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
            self.checkpointed_since = true;
            self.checkpoint = LastCheckpoint { id: done.id, segment: done.segment, parts: Some(done.parts) };
        }
    }

    /// Notes that home lacks pages of the replica. A replica with peers is rebuilt from nothing, as a suspect one
    /// (ADR 0009).
    pub fn home_lost(&mut self, LostHome { replica, checkpoint, reason }: LostHome) {
        match self.replicas.get_mut(&replica) {
            None => {}
            Some(r) if r.record.identity.members.len() < 2 => self.damage(replica, reason),
            Some(r) => {
                tracing::error!(
                    replica = replica.0,
                    reason,
                    "the data area of a replica is damaged: the replica is rebuilt from its peers"
                );
                r.homeless = Some(checkpoint);
                r.blocks.clear();
            }
        }
    }

    /// Returns the replicas as a state block must name them, before home is mounted.
    pub fn provisional(&self) -> BTreeMap<ReplicaId, Replica> {
        let replica = |r: &Replayed| {
            let mut replica = Replica::new(r.record.identity.clone(), r.record.decision.clone());
            replica.written_hard_state = r.record.hard_state;
            let damage = Some(r.record.damage.clone()).filter(|d| !d.is_empty());
            replica.damage = damage.or_else(|| self.store_damage.clone());
            replica.doubt = if r.in_doubt { Doubt::Waiting } else { Doubt::None };
            replica.born = true;
            replica
        };
        self.replicas.iter().map(|(id, r)| (*id, replica(r))).collect()
    }

    /// Joins log and checkpoint: returns the replicas, the states that their groups start from, and the losses that the
    /// log does not record.
    pub fn finish(self, states: Vec<RoundState>) -> (BTreeMap<ReplicaId, Replica>, Vec<Recovered>, Untold) {
        let mut states: BTreeMap<ReplicaId, DecisionState> =
            states.into_iter().map(|s| (s.decision.replica, s.decision)).collect();
        let mut replicas = BTreeMap::new();
        let mut recovered = Vec::new();
        let mut untold = Untold::default();
        for (id, mut replayed) in self.replicas {
            let homeless = replayed.homeless;
            if let Some(checkpoint) = homeless.filter(|_| !self.restored && self.store_damage.is_none())
                && let Some((replica, found)) = replayed.keep_log(checkpoint)
            {
                replicas.insert(id, replica);
                recovered.push(found);
                continue;
            }
            let state = states.remove(&id).filter(|_| homeless.is_none());
            replayed.in_doubt |= homeless.is_some();
            let k = state.as_ref().map_or(Index(0), |state| state.index);
            let mut missing = replayed.before_hole.take();
            if missing.is_some() && self.checkpointed_since && !self.doubt_hidden && replayed.is_proved(k) {
                // Entries below that append may have been replaced in the gap.
                let from = replayed.since_hole.from.expect("it was told");
                replayed.entries = replayed.entries.split_off(&from);
                missing = None;
            }
            let alone = replayed.record.identity.members.len() < 2;
            let lost_for_good = missing.is_some() && alone;
            let reason = self.store_damage.as_ref().or(self.hole.as_ref().filter(|_| lost_for_good));
            if let Some(reason) = reason
                && replayed.record.damage.is_empty()
            {
                replayed.record.damage = reason.clone();
            }
            let (hole, damage_told) = (missing.is_some(), replayed.damage_told);
            if let Some(before) = missing {
                replayed.entries = before.entries;
                replayed.record.hard_state.commit = before.commit;
                replayed.in_doubt = true;
            }
            let (replica, found) = replayed.finish(state, self.hole.is_some());
            if found.in_doubt && (hole || homeless.is_some() || self.restored || replica.cut_at_mount) {
                // An empty log begins at the checkpoint index, whatever entries older records have.
                let last = if replica.log.len() == 0 { Index(0) } else { replica.log.last() };
                untold.doubts.push(NewDoubt { replica: id, last, hole });
            }
            if found.damage.is_some() && !damage_told {
                untold.damaged.push(id);
            }
            replicas.insert(id, replica);
            recovered.push(found);
        }
        (replicas, recovered, untold)
    }
}

impl Replayed {
    /// Keeps the log of a replica whose home has lost pages, when nothing else is wrong with it. The replica waits to be
    /// rebuilt, as one that a running engine rebuilds: no record says so, and its log stays until its peers have answered.
    /// `None`: the replica is suspect for another reason, or its log restores its home.
    fn keep_log(&self, (k, k_term): (Index, Term)) -> Option<(Replica, Recovered)> {
        let ReplicaRecord { identity, hard_state, decision, damage } = &self.record;
        if self.in_doubt || self.emptied || self.before_hole.is_some() || !damage.is_empty() {
            return None;
        }
        let state = |index, term| DecisionState { replica: identity.replica, index, term, bytes: Bytes::new() };
        let (log, before) = contiguous(self.entries.clone(), &state(k, k_term)).ok()?;
        let restores_home = before.0 == Index(0);
        if restores_home || hard_state.commit < k || hard_state.commit > log.last().max(k) {
            return None;
        }
        let mut replica = Replica::new(identity.clone(), decision.clone());
        (replica.hard_state, replica.written_hard_state) = (*hard_state, *hard_state);
        (replica.checkpoint, replica.applied) = ((k, k_term), k);
        replica.born = true;
        (replica.doubt, replica.doubt_unsaid, replica.homeless) = (Doubt::Waiting, true, true);
        replica.log = log;
        let none = Index(0);
        let found = Recovered {
            identity: identity.clone(),
            hard_state: HardState { commit: none, ..*hard_state },
            checkpoint: state(none, Term(0)),
            before: (none, Term(0)),
            entries: Vec::new(),
            lost: Vec::new(),
            in_doubt: true,
            damage: None,
        };
        Some((replica, found))
    }

    /// Joins the replica with its checkpoint. `holes`: the log has lost records, of any replica.
    fn finish(self, state: Option<DecisionState>, holes: bool) -> (Replica, Recovered) {
        let Replayed { record, entries, blocks, in_doubt, homeless, emptied, reach, .. } = self;
        let ReplicaRecord { identity, mut hard_state, decision, damage } = record;
        let mut damage = (!damage.is_empty()).then_some(damage);
        let mut in_doubt = in_doubt && damage.is_none();
        let checkpoint = state.unwrap_or(DecisionState {
            replica: identity.replica,
            index: Index(0),
            term: Term(0),
            bytes: decision.clone(),
        });
        // After a gap, records that stated the replica in full may be damaged: entries are missing up to its commit.
        let found = contiguous(entries, &checkpoint);
        let ends_early = |log: &ReplicaLog| reach.max(hard_state.commit) > log.last().max(checkpoint.index);
        let may_lack = holes && damage.is_none() && identity.members.len() > 1 && !in_doubt;
        let mut cut = may_lack && found.as_ref().map_or(true, |(log, _)| ends_early(log));
        in_doubt |= cut;
        let (mut log, before) = found.unwrap_or_else(|reason| {
            if !in_doubt {
                damage.get_or_insert(reason);
            }
            (ReplicaLog::new(Index(checkpoint.index.0 + 1)), (checkpoint.index, checkpoint.term))
        });
        if in_doubt {
            // Entries from the first lost payload on are dropped: the leader sends them again.
            let lost = log.iter().find(|kept| kept.lost.is_some()).map(|kept| kept.index);
            if let Some(from) = lost {
                log.truncate(from);
                cut = true;
            }
            cut |= hard_state.commit > log.last().max(checkpoint.index);
            hard_state = within(hard_state, &log, &checkpoint);
        }
        let last = log.last().max(checkpoint.index);
        if emptied {
            // Home may still have the contents from before the reset. Its checkpoint index is committed.
            hard_state.commit = hard_state.commit.max(checkpoint.index);
        }
        if hard_state.commit > last || hard_state.commit < checkpoint.index {
            let reason = format!(
                "commit {} does not lie in {}..={last}, the entries of log and home",
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
            // Home may hold half of the round. The overlay takes its completed blocks below the entries that are redone
            // (R2).
            if done.record.index > checkpoint.index && done.record.index <= hard_state.commit && damage.is_none() {
                let range = done.payload.range();
                replica.overlay.write(done.record.chunk, range, Some(done.payload));
            }
        }
        let entries: Vec<Entry> = log.iter().map(Kept::entry).collect();
        if in_doubt && damage.is_none() {
            (replica.doubt, replica.cut_at_mount, replica.homeless) = (Doubt::Waiting, cut, homeless.is_some());
        }
        let in_doubt = replica.doubt != Doubt::None;
        let lost: Vec<Lost> = log.iter().filter_map(|kept| kept.lost.as_deref().cloned()).collect();
        replica.lost = lost.iter().map(|lost| lost.index).collect();
        replica.log = log;
        (replica, Recovered { identity, hard_state, checkpoint, before, entries, lost, in_doubt, damage })
    }
}

/// Limits the hard state of a suspect replica to what its log and home hold.
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
