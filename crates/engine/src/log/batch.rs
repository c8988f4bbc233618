//! Turns queued work into one vectored write.
//!
//! A batch takes as much of the queue as fits. Records are encoded into the header area; payloads are gathered from the
//! buffers that they arrived in. When the segment is full, the batch opens the next one and begins with its state
//! block, which may take several batches (see `state`). Each batch also copies the records of the batch before (ADR 0021).
//!
//! Invariant: work of one replica reaches the log in the order in which it was queued. Work with payload never goes
//! into a reserved segment. A payload that is placed at home counts against segment and batch as if it lay in them.

use super::placing::{PlacedWrite, Placer};
use super::{Kept, Log, RESERVED, StateBlock};
use crate::payload::Payload;
use crate::replicas::Replicas;
use bytes::Bytes;
use layout::log::{
    BATCH_ALIGN, BatchHeader, BlockRecord, CheckpointPart, FIXED_LEN, PayloadAt, PlacedRun, REASON_MAX, RECORDS_MAX,
    RUNS_MAX, Record,
};
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{DecisionState, HardState};
use types::{ChunkKey, Index, IoBuf, IoBufMut, ReplicaId, Term, crc32c};

/// Buffers of one write, below the kernel's limit of 1024.
const BUFS_MAX: usize = 1000;
/// Upper bound of a record other than an entry; checkpoint parts, decision states, reasons of damage and maps add their
/// own length.
const RECORD_SLACK: usize = 512;

/// Work that waits for its place in the log.
#[derive(Debug)]
pub(crate) enum Work {
    Persist {
        replica: ReplicaId,
        ticket: u64,
        hard_state: Option<HardState>,
        entries: Vec<Kept>,
        from: usize,
        /// The first entry of this work replaces others.
        replaces: bool,
        /// The replica has failed, and its failure ends with the last entry.
        revives: bool,
    },
    /// The engine's own hard state: a commit index of durable entries that a round needs durable (R2). It may overtake
    /// work that is held back: see `put_hard_state`.
    Commit {
        replica: ReplicaId,
        commit: Index,
    },
    Create {
        replica: ReplicaId,
    },
    Destroy {
        replica: ReplicaId,
    },
    /// Records that the replica has failed. `last`: the end of its past; it keeps the entries up to there that precede the first
    /// log gap.
    Failed {
        replica: ReplicaId,
        last: Option<Index>,
        /// Entries that the replica gives up stay until the record is durable.
        replaces: bool,
    },
    /// Create records may be lost, or the ids are known below which they may be.
    CreatesLost,
    Mount,
    Copy {
        replica: ReplicaId,
        index: Index,
        term: Term,
    },
    Block {
        replica: ReplicaId,
        chunk: ChunkKey,
        block: u16,
        index: Index,
        payload: Arc<Payload>,
    },
    /// Marks the end of the round's work so far: all of it is durable when this is.
    RoundMark,
    Checkpoint {
        part: CheckpointPart,
        /// With the last part only: one batch makes durable the checkpoint and the beginning of a replica's log at its index.
        begins: Option<DecisionState>,
    },
    /// The replica's log begins behind the index of this decision state: a stream brings the contents.
    Fill(DecisionState),
    /// The cluster map, as it is when the batch is built.
    Map,
    /// The floor of replica ids, as it is when the batch is built.
    Floor,
    /// An empty batch that carries `durable_seq`, and the copy of the last batch.
    Seal,
}

impl Work {
    /// Whether reclamation waits for this record. It tells what older segments alone may show, or why they are not needed
    /// any more: the replica has failed or is destroyed, or create records are lost.
    pub fn delays_reclaim(&self) -> bool {
        matches!(self, Work::Failed { .. } | Work::CreatesLost | Work::Destroy { .. })
    }
}

/// Consequence of a durable batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Done {
    Persisted {
        replica: ReplicaId,
        ticket: u64,
    },
    Created(ReplicaId),
    Destroyed(ReplicaId),
    /// The replica's log begins behind this index.
    Filling(DecisionState),
    Map(Bytes),
    Mounted,
    Copied {
        replica: ReplicaId,
        index: Index,
        term: Term,
        segment: u64,
        /// The copy has its payload.
        whole: bool,
    },
    /// The replica's oldest record that removes entries is durable: the first entry of an append, or a truncation.
    Replaced(ReplicaId),
    RoundMark,
    /// A record that reclamation waits for is durable.
    Told,
    /// The state block of this segment is complete.
    Stated {
        segment: u64,
    },
    /// The first part of a checkpoint lies in this segment.
    CheckpointBegun {
        segment: u64,
    },
    /// The last part of a checkpoint.
    Checkpointed {
        id: u64,
    },
}

/// The batch that is being written.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub seq: u64,
    pub done: Vec<Done>,
    pub is_seal: bool,
    /// Writes of the batch that have not ended, to the log and to home.
    pub writes: usize,
    /// A flush must follow the last of them.
    pub flush: bool,
}

impl InFlight {
    pub fn copies(&self, replica: ReplicaId, index: u64) -> bool {
        self.done
            .iter()
            .any(|d| matches!(d, Done::Copied { replica: r, index: i, .. } if *r == replica && i.0 == index))
    }
}

/// State of the engine that a batch is built from.
pub(crate) struct BuildParts<'a> {
    pub replicas: &'a mut Replicas,
    pub tombstones: &'a BTreeSet<ReplicaId>,
    pub map: &'a Bytes,
    /// Create records may be lost.
    pub creates_lost: ReplicaId,
    /// Replicas below this id that are unknown are gone.
    pub floor: ReplicaId,
    /// No mount record is written yet.
    pub mounting: bool,
    /// Most bytes of a state block in one batch.
    pub state_batch_max: usize,
    /// Places large payloads at home; `None`: all go inline.
    pub placer: Option<Placer<'a>>,
}

/// A finished batch.
pub(crate) struct Built {
    pub seq: u64,
    pub offset: u64,
    pub bufs: Vec<IoBuf>,
    pub len_bytes: u64,
    pub payload_bytes: u64,
    pub copied_bytes: u64,
    pub records: u32,
    /// Payloads of the batch that go to home.
    pub placed: Vec<PlacedWrite>,
}

/// A batch that is being filled.
pub(super) struct Fill {
    records: Vec<u8>,
    count: u32,
    payloads: Vec<IoBuf>,
    payload_len: usize,
    /// Bytes of payloads at home, and the writes of those that this batch places.
    placed_len: usize,
    writes: Vec<PlacedWrite>,
    done: Vec<Done>,
    /// Entries of this batch, and below its completed blocks, for the summary that the segment keeps in memory.
    entries: Vec<(ReplicaId, u64)>,
    blocks: Vec<(ReplicaId, u64)>,
    /// Bytes of the segment that the batch may take.
    limit: u64,
    payload_max: usize,
    placed_max: usize,
    /// Bytes of the copy of the batch before.
    copy_len: usize,
    segment: u64,
}

fn area(len: usize) -> usize {
    len.next_multiple_of(BATCH_ALIGN)
}

impl Fill {
    fn new(limit: u64, log: &Log, segment: u64) -> Fill {
        let (records, payloads, done) = (Vec::with_capacity(BATCH_ALIGN), Vec::new(), Vec::new());
        let (entries, blocks) = (Vec::new(), Vec::new());
        let (payload_max, placed_max) = (log.payload_max, log.placed_max);
        let copy_len = log.previous.as_ref().map_or(0, |copy| copy.len());
        let (count, payload_len, placed_len, writes) = (0, 0, 0, Vec::new());
        Fill {
            records,
            count,
            payloads,
            payload_len,
            placed_len,
            writes,
            done,
            entries,
            blocks,
            limit,
            payload_max,
            placed_max,
            copy_len,
            segment,
        }
    }

    /// Whether a record fits, with a payload of these bytes in the log or at home. Placed bytes count as if they lay in the segment.
    fn fits(&self, record_len: usize, payload_len: usize, is_placed: bool) -> bool {
        let records = self.records.len() + record_len;
        let is_first = self.payload_len + self.placed_len == 0;
        let (inline, placed) = if is_placed { (0, payload_len) } else { (payload_len, 0) };
        let (inline, placed) = (self.payload_len + inline, self.placed_len + placed);
        let header = area(FIXED_LEN + records + self.copy_len);
        records <= RECORDS_MAX
            && (inline <= self.payload_max && placed <= self.placed_max || is_first)
            && self.payloads.len() < BUFS_MAX
            && (header + area(inline + placed)) as u64 <= self.limit
    }

    fn place(&mut self, payload: Option<&Payload>) -> PayloadAt {
        let Some(payload) = payload else { return PayloadAt::default() };
        let len = payload.buf.len();
        assert!(len.is_multiple_of(512), "a payload of {len} bytes");
        let at = PayloadAt { offset: self.payload_len as u32, len: len as u32 };
        self.payloads.push(payload.buf.clone());
        self.payload_len += len;
        at
    }

    /// Puts one more record.
    pub(super) fn put(&mut self, record: Record<'_>) {
        record.encode(&mut self.records);
        self.count += 1;
    }

    fn put_entry(&mut self, replica: ReplicaId, kept: &Kept, copied: bool) {
        let Kept { index, term, kind, .. } = *kept;
        let (descriptor, crcs) = (Cow::Borrowed(&kept.descriptor[..]), Cow::Borrowed(kept.crcs()));
        if let Some(lost) = &kept.lost {
            assert!(copied && kept.payload.is_none(), "what is lost was here before");
            let len_bytes = lost.len_bytes;
            self.put(Record::LostEntry { replica, index, term, kind, descriptor, crcs, len_bytes });
        } else if let Some(place) = kept.payload.as_ref().and_then(|payload| payload.place()) {
            self.placed_len += kept.payload_len();
            let (hash, runs) = (place.hash, place.runs.clone());
            self.put(Record::Placed { replica, index, term, kind, copied, descriptor, crcs, hash, runs });
        } else {
            let payload = self.place(kept.payload.as_deref());
            self.put(Record::Append { replica, index, term, kind, copied, descriptor, crcs, payload });
        }
        self.entries.push((replica, index.0));
    }

    fn put_hard_state(&mut self, replica: ReplicaId, hard_state: HardState, replicas: &mut Replicas) {
        let Some(mut r) = replicas.get_mut(&replica) else { return };
        // An engine's own commit may have overtaken this hard state. The term, vote and commit in the log never go
        // back.
        let written = r.written_hard_state;
        let mut next = hard_state;
        if (next.term, next.vote.is_some()) < (written.term, written.vote.is_some()) {
            (next.term, next.vote) = (written.term, written.vote);
        }
        next.commit = next.commit.max(written.commit);
        r.written_hard_state = next;
        self.put(Record::HardState { replica, hard_state: next });
    }

    /// Marks the replica's oldest pending removal as begun, if `some`: the last record put performs it.
    fn note_removed(&mut self, replica: ReplicaId, some: bool, replicas: &mut Replicas) {
        let Some(mut r) = replicas.get_mut(&replica).filter(|_| some) else { return };
        let oldest = r.replaced.iter_mut().find(|replaced| !replaced.begun);
        oldest.expect("it is kept until the record is durable").begun = true;
        self.done.push(Done::Replaced(replica));
    }

    /// Puts the records of a failure: the end of the past, and the state, which later mounts build on.
    fn put_failed(&mut self, replica: ReplicaId, last: Option<Index>, replicas: &Replicas) {
        let Some(r) = replicas.get(&replica) else { return };
        if let Some(last) = last {
            self.put(Record::Past { replica, last });
        }
        self.put(Record::ReplicaState(r.record()));
    }

    /// Puts the records with which a replica's log begins behind an index: what goes before is void from here on. A log that has the
    /// entry goes on with those that follow it.
    fn put_fill(&mut self, decision: &DecisionState, replicas: &mut Replicas) {
        let DecisionState { replica, index, term, .. } = *decision;
        let Some(mut r) = replicas.get_mut(&replica).filter(|r| r.is_filling()) else { return };
        if !r.begin_at(decision) {
            self.put(Record::Reset { replica, index, term });
        }
        self.put(Record::ReplicaState(r.record()));
        self.done.push(Done::Filling(decision.clone()));
    }

    /// Puts a part of a checkpoint. Behind the last part come the records of a log that begins there.
    fn put_checkpoint(&mut self, part: &CheckpointPart, begins: Option<&DecisionState>, replicas: &mut Replicas) {
        self.put(Record::Checkpoint(part.clone()));
        if let Some(decision) = begins
            && let Some(mut r) = replicas.get_mut(&decision.replica).filter(|r| r.is_filling())
        {
            let DecisionState { replica, index, term, .. } = *decision;
            let goes_on = r.begin_at(decision);
            // The checkpoint has the decision state, and the contents.
            (r.first_decision, r.fills_from) = (Bytes::new(), None);
            if !goes_on {
                self.put(Record::Reset { replica, index, term });
            }
            self.put(Record::HardState { replica, hard_state: r.hard_state });
        }
        if part.part == 0 {
            self.done.push(Done::CheckpointBegun { segment: self.segment });
        }
        if part.part + 1 == part.parts {
            self.done.push(Done::Checkpointed { id: part.id });
        }
    }

    pub(super) fn records_len(&self) -> usize {
        self.records.len()
    }

    /// Notes that the state block of the segment ends in this batch.
    pub(super) fn note_stated(&mut self) {
        self.done.push(Done::Stated { segment: self.segment });
    }
}

fn entry_len(kept: &Kept) -> usize {
    let is_placed = kept.payload.as_ref().is_some_and(|payload| payload.place().is_some());
    let place = if is_placed { 16 + RUNS_MAX * size_of::<PlacedRun>() } else { 0 };
    72 + kept.descriptor.len() + 4 * kept.crcs().values.len() + place
}

/// Builds the next batch, if there is work and a place for it.
pub(crate) fn build(log: &mut Log, parts: &mut BuildParts<'_>) -> Option<Built> {
    assert!(log.in_flight.is_none(), "one batch at a time");
    if let Some(block) = log.state_block.take() {
        return Some(go_on_with_state(log, block, parts));
    }
    if log.pending.is_empty() {
        return None;
    }
    if let Some(opened) = log.ring.newest().map(|s| s.opened)
        && log.ring.space() >= 2 * BATCH_ALIGN as u64
    {
        let mut fill = Fill::new(log.ring.space(), log, opened);
        // A reserved segment stays reserved after a batch has opened it.
        let urgent_only = log.ring.free() < RESERVED;
        if take(&mut fill, &mut log.pending, parts, urgent_only) {
            return Some(finish(log, fill));
        }
        // The queue held only copies of entries that are not needed any more.
        if log.pending.is_empty() {
            return None;
        }
    }
    let urgent_only = log.ring.free() <= RESERVED;
    if log.ring.free() == 0 || (urgent_only && !log.pending.iter().any(|w| !is_bulk(w))) {
        return build_alone(log, parts);
    }
    let mut fill = Fill::new(log.ring.segment_bytes(), log, log.next_seq);
    let mut block = StateBlock::new();
    let is_whole = fill.put_state_block(&mut block, parts);
    if is_whole && !take(&mut fill, &mut log.pending, parts, urgent_only) {
        assert!(urgent_only || log.pending.is_empty(), "an empty segment holds at least one record");
        return None;
    }
    log.state_block = (!is_whole).then_some(block);
    log.ring.open(log.next_seq);
    Some(finish(log, fill))
}

/// Builds a batch without the copy of the one before, in the rest of the last segment: a log at its end must take the records that
/// free it, and the record of a mount.
fn build_alone(log: &mut Log, parts: &mut BuildParts<'_>) -> Option<Built> {
    let opened = log.ring.newest()?.opened;
    if log.ring.space() < 2 * BATCH_ALIGN as u64 {
        return None;
    }
    let previous = log.previous.take();
    let mut fill = Fill::new(log.ring.space(), log, opened);
    if take(&mut fill, &mut log.pending, parts, true) {
        return Some(finish(log, fill));
    }
    log.previous = previous;
    None
}

/// Continues the state block of the newest segment; other work may follow its end in the same batch.
fn go_on_with_state(log: &mut Log, mut block: StateBlock, parts: &mut BuildParts<'_>) -> Built {
    let opened = log.ring.newest().expect("its segment is open").opened;
    let mut fill = Fill::new(log.ring.space(), log, opened);
    if fill.put_state_block(&mut block, parts) {
        let urgent_only = log.ring.free() < RESERVED;
        take(&mut fill, &mut log.pending, parts, urgent_only);
    } else {
        log.state_block = Some(block);
    }
    finish(log, fill)
}

fn is_bulk(work: &Work) -> bool {
    matches!(work, Work::Persist { entries, from, .. } if entries[*from..].iter().any(|e| e.payload.is_some()))
}

/// Moves work from the queue to the batch; false when nothing was moved.
fn take(fill: &mut Fill, pending: &mut VecDeque<Work>, parts: &mut BuildParts<'_>, urgent_only: bool) -> bool {
    let mut held = VecDeque::new();
    let mut held_replicas = BTreeSet::new();
    let mut moved = false;
    while let Some(mut work) = pending.pop_front() {
        if urgent_only && let Work::Persist { replica, .. } = &work {
            let replica = *replica;
            if is_bulk(&work) || held_replicas.contains(&replica) {
                held_replicas.insert(replica);
                held.push_back(work);
                continue;
            }
        }
        let (some, all) = take_one(fill, &mut work, parts);
        moved |= some;
        if !all {
            pending.push_front(work);
            break;
        }
        if work.delays_reclaim() {
            fill.done.push(Done::Told);
        }
    }
    while let Some(work) = held.pop_back() {
        pending.push_front(work);
    }
    moved
}

/// Returns upper bounds of record and payload bytes; `None` when there is nothing left to write.
fn size_of_work(work: &Work, parts: &BuildParts<'_>) -> Option<(usize, usize)> {
    Some(match work {
        Work::Copy { replica, index, term } => {
            // The entry was truncated or freed since: there is nothing to copy forward.
            let kept = parts.replicas.get(replica)?.to_copy(*index, *term)?;
            (entry_len(kept), kept.payload_len())
        }
        Work::Create { replica } | Work::Failed { replica, .. } => {
            (RECORD_SLACK + REASON_MAX + parts.replicas.get(replica).map_or(0, |r| r.first_decision.len()), 0)
        }
        Work::Block { payload, .. } => (RECORD_SLACK, payload.buf.len()),
        Work::Checkpoint { part, .. } => (RECORD_SLACK + part.bytes.len(), 0),
        Work::Fill(decision) => (2 * RECORD_SLACK + decision.bytes.len(), 0),
        Work::Map => (RECORD_SLACK + parts.map.len(), 0),
        _ => (RECORD_SLACK, 0),
    })
}

/// Encodes one work item; returns whether a part of it was taken, and whether all of it was.
fn take_one(fill: &mut Fill, work: &mut Work, parts: &mut BuildParts<'_>) -> (bool, bool) {
    if let Work::Persist { .. } = work {
        return take_persist(fill, work, parts);
    }
    let Some((record_len, payload_len)) = size_of_work(work, parts) else { return (false, true) };
    if !fill.fits(record_len, payload_len, false) {
        return (false, false);
    }
    match *work {
        Work::Persist { .. } => unreachable!("handled above"),
        Work::Commit { replica, commit } => {
            if let Some(r) = parts.replicas.get(&replica) {
                let hard_state = HardState { commit, ..r.written_hard_state };
                fill.put_hard_state(replica, hard_state, parts.replicas);
            }
        }
        Work::Create { replica } => {
            if let Some(mut r) = parts.replicas.get_mut(&replica) {
                fill.put(Record::Create(r.record()));
                r.born = true;
                fill.done.push(Done::Created(replica));
            }
        }
        Work::Destroy { replica } => {
            fill.put(Record::Destroy { replica });
            fill.done.push(Done::Destroyed(replica));
        }
        Work::Failed { replica, last, replaces } => {
            fill.put_failed(replica, last, parts.replicas);
            fill.note_removed(replica, replaces, parts.replicas);
        }
        Work::CreatesLost => fill.put(Record::CreatesLost { below: parts.creates_lost, restated: false }),
        Work::Mount => {
            fill.put(Record::Mount);
            fill.done.push(Done::Mounted);
        }
        Work::Copy { replica, index, term } => {
            let kept = parts.replicas[&replica].to_copy(index, term).expect("looked up above");
            fill.put_entry(replica, kept, true);
            let (segment, whole) = (fill.segment, kept.lost.is_none());
            fill.done.push(Done::Copied { replica, index, term, segment, whole });
        }
        Work::Block { replica, chunk, block, index, ref payload } => {
            let (crc, payload) = (payload.crcs.values[0], fill.place(Some(payload)));
            fill.put(Record::Block(BlockRecord { replica, chunk, block, index, crc, payload }));
            fill.blocks.push((replica, index.0));
        }
        Work::RoundMark => fill.done.push(Done::RoundMark),
        Work::Checkpoint { ref part, ref begins } => fill.put_checkpoint(part, begins.as_ref(), parts.replicas),
        Work::Fill(ref decision) => fill.put_fill(decision, parts.replicas),
        Work::Map => {
            fill.put(Record::Map(parts.map.clone()));
            fill.done.push(Done::Map(parts.map.clone()));
        }
        Work::Floor => fill.put(Record::ReplicaFloor(parts.floor)),
        Work::Seal => {}
    }
    (true, true)
}

fn take_persist(fill: &mut Fill, work: &mut Work, parts: &mut BuildParts<'_>) -> (bool, bool) {
    let Work::Persist { replica, ticket, hard_state, entries, from, replaces, revives } = work else {
        unreachable!("checked by the caller")
    };
    if !parts.replicas.contains_key(replica) {
        return (false, true); // destroyed while it waited
    }
    let first = *from;
    while *from < entries.len() {
        let kept = &entries[*from];
        let takes_part = parts.replicas[&*replica].may_take_part();
        let placer = parts.placer.as_mut().filter(|_| takes_part);
        let aus = placer.and_then(|placer| placer.aus_of(kept, parts.replicas));
        if !fill.fits(entry_len(kept) + RECORD_SLACK, kept.payload_len(), aus.is_some()) {
            break;
        }
        if *from == first
            && first == 0
            && let Some(hs) = *hard_state
        {
            // Entries of a new term never precede that term in the log, even when the rest of this work stays queued.
            let commit = parts.replicas[&*replica].written_hard_state.commit;
            if hs.term != parts.replicas[&*replica].written_hard_state.term {
                fill.put_hard_state(*replica, HardState { commit, ..hs }, parts.replicas);
            }
        }
        if let (Some(placer), Some(aus)) = (parts.placer.as_mut(), aus) {
            placer.place(*replica, kept, aus, &mut fill.writes);
        }
        fill.put_entry(*replica, kept, false);
        let r = parts.replicas.get_mut(replica);
        r.expect("checked above").note_place(kept.index, kept.term, fill.segment);
        fill.note_removed(*replica, std::mem::take(replaces), parts.replicas);
        *from += 1;
        if *revives && *from == entries.len() {
            let mut r = parts.replicas.get_mut(replica).expect("checked above");
            (r.revived, r.held_decision) = (None, Bytes::new());
            fill.put(Record::Revived { replica: *replica });
        }
    }
    if *from < entries.len() || !fill.fits(RECORD_SLACK, 0, false) {
        return (*from > first, false);
    }
    if let Some(hs) = hard_state.take()
        && !on(Bug::HardStateSkipped)
    {
        fill.put_hard_state(*replica, hs, parts.replicas);
    }
    fill.done.push(Done::Persisted { replica: *replica, ticket: *ticket });
    (true, true)
}

/// Gives the batch its header and its place.
fn finish(log: &mut Log, fill: Fill) -> Built {
    let Fill { records, count, payloads, payload_len, placed_len, writes, done, entries, blocks, segment, .. } = fill;
    assert!(records.len() <= RECORDS_MAX, "{} bytes of records", records.len());
    let copy = log.previous.take().unwrap_or(IoBuf::EMPTY);
    assert!(copy.is_empty() || log.durable_seq + 1 == log.next_seq, "a copy is of a durable batch");
    let copy_at = FIXED_LEN + records.len();
    let header_len = area(copy_at + copy.len());
    let len_bytes = (header_len + area(payload_len)) as u64;
    let offset = log.ring.take(len_bytes);
    log.ring.add_air(placed_len as u64);
    let tail_seq = log.ring.tail_seq();
    let newest = log.ring.newest_mut();
    assert_eq!(newest.opened, segment, "the batch was filled for another segment");
    for (replica, index) in entries {
        newest.note_entry(replica, index);
    }
    for (replica, index) in blocks {
        newest.note_block(replica, index);
    }
    let (payload_bufs, copied_bytes) = gather(payloads, payload_len, log.align);
    let mut header = BatchHeader {
        header_len: header_len as u32,
        records_len: records.len() as u32,
        record_count: count,
        records_crc: crc32c(&records),
        payload_len: area(payload_len) as u32,
        copy_len: copy.len() as u32,
        copy_crc: crc32c(&copy),
        payload_hash: 0,
        mount: log.mount,
        seq: log.next_seq,
        offset,
        durable_seq: log.durable_seq,
        tail_seq,
        segment_seq: segment,
    };
    header.payload_hash = header.hash_of(&log.identity, &payload_bufs);
    let mut head = IoBufMut::new(header_len);
    head[..FIXED_LEN].copy_from_slice(&header.encode(&log.identity));
    head[FIXED_LEN..copy_at].copy_from_slice(&records);
    head[copy_at..copy_at + copy.len()].copy_from_slice(&copy);
    head[copy_at + copy.len()..].fill(0);
    let head = head.freeze();
    log.previous = Some(head.slice(0..copy_at));
    let seq = log.next_seq;
    log.next_seq += 1;
    log.in_flight = Some(InFlight { seq, done, is_seal: count == 0, writes: 0, flush: false });
    let bufs = std::iter::once(head).chain(payload_bufs).collect();
    let payload_bytes = payload_len as u64;
    Built { seq, offset, bufs, len_bytes, payload_bytes, copied_bytes, records: count, placed: writes }
}

/// Returns the payload area as buffers that the device takes, and the bytes copied: none when all are aligned, else all in one copy.
fn gather(mut payloads: Vec<IoBuf>, payload_len: usize, align: usize) -> (Vec<IoBuf>, u64) {
    let padding = area(payload_len) - payload_len;
    let suits = payloads.iter().all(|p| p.is_aligned(align) && p.len().is_multiple_of(align));
    if suits {
        // Payloads of one frame often touch in memory: the kernel pins fewer parts.
        payloads.dedup_by(|next, last| last.join(next));
        if padding > 0 {
            payloads.push(IoBuf::zeros(padding));
        }
        (payloads, 0)
    } else {
        let mut copy = IoBufMut::new(area(payload_len));
        let mut at = 0;
        for payload in payloads {
            copy[at..at + payload.len()].copy_from_slice(&payload);
            at += payload.len();
        }
        copy[at..].fill(0);
        (vec![copy.freeze()], payload_len as u64)
    }
}
