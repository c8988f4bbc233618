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
use crate::replica::{Doubt, Replica};
use crate::seam::RoundState;
use bytes::Bytes;
use layout::log::{BlockRecord, CheckpointPart, Record, ReplicaRecord};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{Crcs, DecisionState, HardState, Lost, Recovered};
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
    /// Pages of its home are lost: nothing of what is there counts.
    homeless: bool,
    /// A record says so, and none says that it is over (ADR 0007).
    in_doubt: bool,
    /// It began anew from nothing, perhaps before home had forgotten what it was (ADR 0009).
    emptied: bool,
    /// What was known before the first hole since which the log does not tell the replica anew.
    before_hole: Option<BeforeHole>,
    since_hole: SinceHole,
    /// The last doubt that was told said that the log reaches so far, and no entry has followed since.
    reach: Index,
}

/// A replica where records begin to be missing.
#[derive(Debug, Default)]
struct BeforeHole {
    entries: BTreeMap<u64, Kept>,
    commit: Index,
}

/// What the log has told of a replica behind the last hole, by a process that knew what was in it.
#[derive(Clone, Copy, Debug, Default)]
struct SinceHole {
    /// Its hard state.
    stated: bool,
    /// All entries at or above this.
    from: Option<u64>,
    /// It was told by a mount that did not know.
    blind: bool,
}

impl Replayed {
    fn new(record: ReplicaRecord, before_hole: Option<BeforeHole>) -> Replayed {
        let (entries, blocks) = (BTreeMap::new(), Vec::new());
        let (since_hole, reach) = (SinceHole::default(), Index(0));
        let (homeless, in_doubt, emptied) = (false, false, false);
        Replayed { record, entries, blocks, homeless, in_doubt, emptied, before_hole, since_hole, reach }
    }

    /// What makes earlier entries void, or puts what there is in doubt.
    fn turn(&mut self, record: &Record) {
        match record {
            Record::Cut { last, .. } => {
                self.emptied |= last.0 == 0;
                self.reach = self.reach.min(*last);
                let _ = self.entries.split_off(&(last.0 + 1));
                if let Some(before) = &mut self.before_hole {
                    let _ = before.entries.split_off(&(last.0 + 1));
                }
            }
            // In one batch with the last part of the checkpoint that brings the replica to the same index.
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

    /// Whether hard state and every entry above `k` are known, whatever was in the holes.
    fn is_proved(&self, k: Index) -> bool {
        let since = self.since_hole;
        since.stated && !since.blind && since.from.is_some_and(|from| from <= k.0 + 1)
    }
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
    /// Why every replica is damaged: the log contradicts itself.
    store_damage: Option<String>,
    /// Records that were durable are missing, and which.
    pub hole: Option<String>,
    /// The replay is behind the first hole.
    hole_entered: bool,
    /// The mount whose records the first hole begins in.
    hole_mount: Option<u64>,
    /// A hole may hide that a later life was in doubt of an earlier one: nothing behind it proves anything.
    doubt_hidden: bool,
    /// A whole checkpoint lies behind the last hole.
    checkpointed_since: bool,
    /// A segment was opened behind it, by a process that knew all replicas.
    opened_since: bool,
    /// An administrator has said that the device is an older copy: all that came after it is missing (ADR 0012).
    restored: bool,
    /// An earlier mount has said that births may be lost.
    told_in_doubt: bool,
    /// The batch that is replayed is of a mount, before or with its mount record.
    by_mount: bool,
    /// A state block has begun, and every batch since is there; whether a mount wrote it.
    block: Option<bool>,
    /// Replicas below this that are unknown are gone.
    pub floor: ReplicaId,
}

/// What a mount has to say of a replica's doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewDoubt {
    pub replica: ReplicaId,
    pub last: Index,
    pub hole: bool,
}

impl Replay {
    /// Replays what the scan kept.
    pub fn new(verdict: Verdict, offset_of: impl Fn(u32) -> u64) -> Replay {
        let mut replay = Replay::default();
        if let Some((from, to)) = verdict.holes.first() {
            replay.hole = Some(format!("log batches {from} to {} were durable and are damaged", to - 1));
        }
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
        replay.last_seq = replay.last_seq.max(verdict.durable);
        replay
    }

    /// Records are missing here, of any replica; what follows is of this mount.
    fn enter_hole(&mut self, mount: u64) {
        let first = *self.hole_mount.get_or_insert(self.last_mount);
        self.doubt_hidden |= mount > first;
        (self.checkpointed_since, self.opened_since, self.assembling) = (false, false, None);
        self.block = None;
        self.hole_entered = true;
        for r in self.replicas.values_mut() {
            r.since_hole = SinceHole::default();
            if r.before_hole.is_none() {
                r.before_hole = Some(BeforeHole { entries: r.entries.clone(), commit: r.record.hard_state.commit });
            }
        }
    }

    /// Every replica may lack what it acknowledged, and replicas may be missing. A replica without peers is damaged: no
    /// other member knows what it had.
    pub fn restored(&mut self) {
        self.restored = true;
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

    /// Why all replicas are damaged.
    pub fn store_damage(&self) -> Option<&str> {
        self.store_damage.as_deref()
    }

    /// Whether a replica may have been born of which nothing is known.
    pub fn lacks_births(&self) -> bool {
        self.told_in_doubt
            || self.restored
            || self.store_damage.is_some()
            || (self.hole.is_some() && !self.opened_since)
    }

    /// Whether no record says so yet.
    pub fn newly_lacks_births(&self) -> bool {
        self.lacks_births() && !self.told_in_doubt
    }

    fn batch(&mut self, batch: FoundBatch) {
        let header = batch.header;
        if self.segments.back().is_none_or(|s| s.opened != header.segment_seq) {
            self.segments.push_back(Segment::new(batch.slot, header.segment_seq, header.salt));
        }
        let is_mounts = |r: &Record| {
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

    /// `payload` is `None` when its bytes do not match.
    fn record(&mut self, record: Record, payload: Option<IoBuf>, segment: u64) {
        match record {
            Record::SegmentOpen { mount, .. } => self.block = Some(mount),
            Record::StateEnd => self.state_ends(),
            Record::ReplicaFloor(floor) => self.floor = self.floor.max(floor),
            Record::Mount | Record::StateMore { .. } => {}
            Record::StoreInDoubt => self.told_in_doubt = true,
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
                    r.since_hole.stated = true;
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
            Record::Block(record) => {
                self.segments.back_mut().expect("a batch lies in a segment").note_block(record.replica, record.index.0);
                let Some(buf) = payload else {
                    // It served to redo a round. If that one got far enough to need it, the block at home does not
                    // match its checksum, and says so to whoever reads it.
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
            // Of one replica that is here.
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

    /// A state block is complete if its beginning is there, and every batch since.
    fn state_ends(&mut self) {
        if let Some(mount) = self.block.take() {
            self.segments.back_mut().expect("a batch lies in a segment").stated = true;
            self.opened_since |= !mount;
        }
    }

    fn live(&mut self, replica: ReplicaId) -> Option<&mut Replayed> {
        let known = self.replicas.contains_key(&replica) || self.tombstones.contains(&replica);
        // Its birth may be in a hole: no segment that was opened since names it.
        if !known && !self.hole_entered && !self.told_in_doubt {
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

    fn state(&mut self, record: ReplicaRecord, birth: bool) {
        let replica = record.identity.replica;
        if self.tombstones.contains(&replica) {
            return;
        }
        let (holes, stated) = (self.hole_entered, !self.by_mount);
        // Perhaps its second birth, on a store that does not know of the first.
        let in_doubt = birth && self.told_in_doubt;
        match self.replicas.get_mut(&replica) {
            None => {
                // Born in a hole, if this is not its birth.
                let before_hole = (holes && !birth).then(BeforeHole::default);
                let mut replayed = Replayed::new(record, before_hole);
                replayed.since_hole.stated = stated;
                (replayed.in_doubt, replayed.emptied) = (in_doubt, in_doubt);
                self.replicas.insert(replica, replayed);
            }
            Some(known) => {
                known.since_hole.stated |= stated;
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
            self.checkpointed_since = true;
            self.checkpoint = LastCheckpoint { id: done.id, segment: done.segment, parts: Some(done.parts) };
        }
    }

    /// Home lacks pages of the replica. One that has peers begins anew from nothing, as one in doubt (ADR 0009).
    pub fn home_lost(&mut self, replica: ReplicaId, reason: String) {
        match self.replicas.get_mut(&replica) {
            None => {}
            Some(r) if r.record.identity.members.len() < 2 => self.damage(replica, reason),
            Some(r) => {
                tracing::error!(
                    replica = replica.0,
                    reason,
                    "home of a replica is damaged: it will be brought back by its peers"
                );
                r.homeless = true;
                r.in_doubt = true;
                r.blocks.clear();
            }
        }
    }

    /// The replicas as a state block must name them, before home is mounted.
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

    /// Joins log and checkpoint: the replicas, and what their groups start from.
    pub fn finish(self, states: Vec<RoundState>) -> (BTreeMap<ReplicaId, Replica>, Vec<Recovered>, Vec<NewDoubt>) {
        let mut states: BTreeMap<ReplicaId, DecisionState> =
            states.into_iter().map(|s| (s.decision.replica, s.decision)).collect();
        let mut replicas = BTreeMap::new();
        let mut recovered = Vec::new();
        let mut doubts = Vec::new();
        for (id, mut replayed) in self.replicas {
            let homeless = replayed.homeless;
            let state = states.remove(&id).filter(|_| !homeless);
            let k = state.as_ref().map_or(Index(0), |state| state.index);
            let mut missing = replayed.before_hole.take();
            if missing.is_some() && self.checkpointed_since && !self.doubt_hidden && replayed.is_proved(k) {
                // What stands below may have been replaced in the hole.
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
            let hole = missing.is_some();
            if let Some(before) = missing {
                replayed.entries = before.entries;
                replayed.record.hard_state.commit = before.commit;
                replayed.in_doubt = true;
            }
            let (replica, found) = replayed.finish(state, self.hole.is_some());
            if found.in_doubt && (hole || homeless || self.restored || replica.cut_at_mount) {
                // An empty log begins at K, whatever older records have.
                let last = if replica.log.len() == 0 { Index(0) } else { replica.log.last() };
                doubts.push(NewDoubt { replica: id, last, hole });
            }
            replicas.insert(id, replica);
            recovered.push(found);
        }
        (replicas, recovered, doubts)
    }
}

impl Replayed {
    /// `holes`: the log has lost records, of any replica.
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
        // A hole behind which everything was told anew may be followed by damage to just that, or to the end of what stood before.
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
            // What it lacks anyway it gets from the leader, and what is lost of the rest with it.
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
            // Home of before was not forgotten yet. What is at home is committed.
            hard_state.commit = hard_state.commit.max(checkpoint.index);
        }
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
            if done.record.index > checkpoint.index && done.record.index <= hard_state.commit && damage.is_none() {
                let range = done.payload.range();
                replica.overlay.write(done.record.chunk, range, Some(done.payload));
            }
        }
        let entries: Vec<Entry> = log.iter().map(Kept::entry).collect();
        if in_doubt && damage.is_none() {
            (replica.doubt, replica.cut_at_mount, replica.homeless) = (Doubt::Waiting, cut, homeless);
        }
        let in_doubt = replica.doubt != Doubt::None;
        let lost: Vec<Lost> = log.iter().filter_map(|kept| kept.lost.as_deref().cloned()).collect();
        replica.lost = lost.iter().map(|lost| lost.index).collect();
        replica.log = log;
        (replica, Recovered { identity, hard_state, checkpoint, before, entries, lost, in_doubt, damage })
    }
}

/// What a replica in doubt stands by, of what its log and home hold.
fn within(mut hard_state: HardState, log: &ReplicaLog, checkpoint: &DecisionState) -> HardState {
    let last = log.last().max(checkpoint.index);
    hard_state.commit = hard_state.commit.min(last).max(checkpoint.index);
    if checkpoint.term > hard_state.term {
        (hard_state.term, hard_state.vote) = (checkpoint.term, None);
    }
    hard_state
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
