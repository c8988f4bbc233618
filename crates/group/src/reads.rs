//! Reads: at once under the lease, or after a majority has confirmed the leader (R3).
//!
//! Input: reads from `admit`, and results of the engine from the loop. A read-index query is sent once
//! per turn for all reads that wait, and repeated while it is not answered (raft refuses silently).
//! Invariant: a read returns the applied state of some moment at which this replica was the leader,
//! between the read's arrival and its answer.

use crate::admit::reply;
use crate::{Action, Group, GroupLimits, Origin};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::planted::{Bug, on};
use types::{
    ChunkKey, CrcList, Epoch, Errno, GenerationId, Index, IoBuf, SectorRange, SnapshotId, Time, VolumeChunk, VolumeId,
};
use wire::{Extent, Reject, ReplyBody};

#[derive(Clone, Copy, Debug)]
struct Read {
    origin: Origin,
    id: u64,
    what: What,
}

/// Contents that a read asks for: a chunk of the volume, or of one of its snapshots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOf {
    pub chunk: VolumeChunk,
    pub snapshot: Option<SnapshotId>,
}

/// Question of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Bytes {
        of: ReadOf,
        range: SectorRange,
    },
    Extents {
        of: ReadOf,
        range: SectorRange,
        since: Option<SnapshotId>,
    },
    /// Fence check: whether no session with a higher epoch is attached (ADR 0008).
    FenceCheck {
        volume: VolumeId,
        epoch: Epoch,
    },
}

/// A read-index query, and the reads that wait for it.
#[derive(Debug)]
struct Question {
    context: u64,
    reads: Vec<Read>,
    /// Set by the answer: the reads may start once this is applied.
    index: Option<Index>,
}

/// A read that the engine works on.
#[derive(Debug)]
struct Running {
    read: Read,
    generation: GenerationId,
    /// True when it started under the lease, so the lease is checked again when it ends.
    leased: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Reads without a query.
    waiting: Vec<Read>,
    questions: VecDeque<Question>,
    running: BTreeMap<u64, Running>,
    next_read: u64,
    next_context: u64,
    asked_at: Time,
    retry: Duration,
    count: usize,
    /// Searches behind the end of a volume that need a proof, with the epoch of the length.
    searches: BTreeMap<VolumeId, Search>,
}

/// Proof for a search: the query that was sent after its first order.
#[derive(Clone, Copy, Debug)]
struct Search {
    len_epoch: u32,
    context: u64,
    is_proved: bool,
}

impl Reads {
    /// Notes an answer, which releases its query and all before it.
    pub fn confirmed(&mut self, context: u64, index: Index) {
        for question in self.questions.iter_mut().take_while(|q| q.context <= context) {
            question.index.get_or_insert(index);
        }
    }

    pub fn retry_at(&self) -> Time {
        let unanswered = self.questions.iter().any(|q| q.index.is_none()) || !self.waiting.is_empty();
        if unanswered { self.asked_at + self.retry } else { Time::NEVER }
    }

    /// Whether reads wait for a query.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts the reads that wait or run.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Asserts what holds between turns. `applied`: the applied index of the group.
    pub fn check_invariants(&self, applied: Index, limits: &GroupLimits) {
        let asked: usize = self.questions.iter().map(|question| question.reads.len()).sum();
        let held = self.waiting.len() + asked + self.running.len();
        assert!(held == self.count, "R3: {held} reads wait or run, and {} are counted: one has no answer", self.count);
        let asks = self.questions.len();
        assert!(asks <= limits.read_queries_max, "§7.7: {asks} read-index queries have no answer");
        let due = |question: &Question| question.index.is_some_and(|index| index <= applied);
        assert!(!self.questions.front().is_some_and(due), "R3: a confirmed read waits, though its index is applied");
    }

    /// Refuses all reads that wait or run.
    pub fn refuse_all(&mut self, reject: Reject, actions: &mut Vec<Action>) {
        let waiting = std::mem::take(&mut self.waiting);
        let asked = std::mem::take(&mut self.questions).into_iter().flat_map(|q| q.reads);
        let running = std::mem::take(&mut self.running).into_values().map(|r| r.read);
        self.searches.clear();
        let mut refused = 0;
        for read in waiting.into_iter().chain(asked).chain(running) {
            reply(read.origin, read.id, Err(reject), actions);
            refused += 1;
        }
        assert_eq!(refused, self.count, "every read is somewhere");
        self.count = 0;
    }
}

/// Returns a range as one extent.
fn all_of(range: SectorRange, data: bool) -> ReplyBody {
    ReplyBody::Extents(vec![Extent { sectors: range.count, data }])
}

impl Group {
    pub(crate) fn read(&mut self, now: Time, origin: Origin, id: u64, what: What, actions: &mut Vec<Action>) {
        if self.reads.count >= self.config.limits.reads_max {
            return reply(origin, id, Err(Reject::Busy), actions);
        }
        self.reads.count += 1;
        let read = Read { origin, id, what };
        let leased = self.lease_holds(now);
        if leased || on(Bug::ReadWithoutLease) {
            self.start_read(read, leased, actions);
        } else {
            self.reads.waiting.push(read);
        }
    }

    pub(crate) fn lease_holds(&self, now: Time) -> bool {
        let lease = self.config.timing.lease();
        self.config.lease_reads && self.serves() && self.current().is_some_and(|l| l.lease_holds(now, lease))
    }

    fn start_read(&mut self, read: Read, leased: bool, actions: &mut Vec<Action>) {
        let Read { origin, id, what } = read;
        // A refusal is an answer like any other: it, too, needs a leader, and has one at this moment.
        let place = self.place_of(what).and_then(|key| Ok((key, self.since_of(what, key)?)));
        let (key, since) = match place {
            Ok(place) => place,
            Err(result) => {
                self.reads.count -= 1;
                return reply(origin, id, result.map_err(Reject::Failed), actions);
            }
        };
        let number = self.reads.next_read;
        self.reads.next_read += 1;
        self.reads.running.insert(number, Running { read, generation: key.generation, leased });
        actions.push(match what {
            What::Bytes { range, .. } => Action::Read { read: number, origin, chunk: key, range },
            What::Extents { range, .. } => Action::Extents { read: number, chunk: key, range, since },
            What::FenceCheck { .. } => unreachable!("it was answered at once"),
        });
    }

    /// Returns the chunk that a read looks at; `Err`: decision state alone gives this answer.
    fn place_of(&self, what: What) -> Result<ChunkKey, Result<ReplyBody, Errno>> {
        let (of, zeros) = match what {
            What::Bytes { of, .. } => (of, ReplyBody::Data { crcs: CrcList::new(), payload: IoBuf::EMPTY }),
            What::Extents { of, range, since } => (of, all_of(range, since.is_some())),
            What::FenceCheck { volume, epoch } => {
                return Err(match self.decision.volumes.get(&volume) {
                    None => Err(Errno::Gone),
                    // Beside other writers it would say nothing: they fill holes.
                    Some(attached) if attached.epoch > epoch || attached.writers.len() > 1 => Err(Errno::Fenced),
                    Some(_) => Ok(ReplyBody::Done),
                });
            }
        };
        if let Some(snapshot) = of.snapshot {
            return match self.decision.in_snapshot(of.chunk, snapshot) {
                Ok(key) => key.ok_or(Ok(zeros)),
                Err(errno) => Err(Err(errno)),
            };
        }
        match self.decision.volumes.get(&of.chunk.volume) {
            None => Err(Err(Errno::Gone)),
            Some(attached) if of.chunk.index >= attached.chunk_count => Err(Err(Errno::Invalid)),
            Some(attached) => Ok(ChunkKey { generation: attached.head, index: of.chunk.index }),
        }
    }

    /// Returns the older generation from which a question for extents counts.
    ///
    /// `Err`: decision state alone gives this answer. Where the volume came to this PG after the older snapshot, all of the chunk may differ:
    /// after a forced recovery the snapshot may have had data here that this PG has lost.
    fn since_of(&self, what: What, key: ChunkKey) -> Result<Option<GenerationId>, Result<ReplyBody, Errno>> {
        let What::Extents { of, range, since: Some(since) } = what else { return Ok(None) };
        match self.decision.ancestor(of.chunk.volume, key.generation, since) {
            Ok(Some(older)) => Ok(Some(older)),
            Ok(None) => Err(Ok(all_of(range, true))),
            Err(errno) => Err(Err(errno)),
        }
    }

    /// Whether a request waits for the answer to this read.
    pub fn is_reading(&self, read: u64) -> bool {
        self.reads.running.contains_key(&read)
    }

    /// Takes the engine's result of a read, exact at the moment of the question or at a later one: the engine looks again when
    /// the place has changed. If it changed because the volume or the snapshot was removed, or the volume truncated, the result is not
    /// used. A read whose generation has ended meanwhile (a cut was taken back, a snapshot merged) begins again.
    pub fn handle_read_done(
        &mut self,
        now: Time,
        read: u64,
        result: Result<ReplyBody, Errno>,
        actions: &mut Vec<Action>,
    ) {
        // A read that is absent was refused when this replica lost leadership.
        let Some(running) = self.reads.running.remove(&read) else { return };
        if running.leased && !self.lease_holds(now) {
            self.reads.waiting.push(running.read);
            return;
        }
        let Read { origin, id, what } = running.read;
        let result = match self.place_of(what) {
            Ok(_) if self.decision.tree.get(running.generation).is_none() => {
                return self.start_read(running.read, running.leased, actions);
            }
            Ok(_) => result,
            Err(answer) => answer,
        };
        self.reads.count -= 1;
        reply(origin, id, result.map_err(Reject::Failed), actions);
    }

    /// Sends a read-index query for all waiting reads, once per turn, and again when the answer is late.
    pub(crate) fn poll_read_index(&mut self, now: Time) {
        self.reads.retry = self.config.timing.read_retry;
        if !self.serves() {
            return;
        }
        let due = now >= self.reads.retry_at();
        let reads = &mut self.reads;
        if !reads.waiting.is_empty() && reads.questions.len() < self.config.limits.read_queries_max {
            let context = reads.next_context;
            reads.next_context += 1;
            reads.questions.push_back(Question { context, reads: std::mem::take(&mut reads.waiting), index: None });
            reads.asked_at = now;
            self.node.read_index(context);
        } else if due {
            reads.asked_at = now;
            // The newest query stands for all before it.
            if let Some(question) = reads.questions.iter().rev().find(|q| q.index.is_none()) {
                self.node.read_index(question.context);
            }
        }
    }

    /// Whether this replica has applied all that was committed when it got the first order to search behind this end (R3). Without a lease
    /// it sends a read-index query, and the order comes again. No client writes behind the end after that order.
    pub(crate) fn may_search(&mut self, now: Time, volume: VolumeId, len_epoch: u32) -> bool {
        if self.lease_holds(now) {
            return true;
        }
        let limits = &self.config.limits;
        let reads = &mut self.reads;
        if let Some(search) = reads.searches.get(&volume).filter(|search| search.len_epoch == len_epoch) {
            return search.is_proved;
        }
        if reads.questions.len() >= limits.read_queries_max {
            return false;
        }
        if reads.searches.len() >= limits.reads_max {
            reads.searches.clear();
        }
        let context = reads.next_context;
        reads.next_context += 1;
        reads.questions.push_back(Question { context, reads: Vec::new(), index: None });
        reads.searches.insert(volume, Search { len_epoch, context, is_proved: false });
        reads.asked_at = now;
        self.node.read_index(context);
        false
    }

    /// Starts the reads that are confirmed and whose index is applied.
    pub(crate) fn start_confirmed_reads(&mut self, actions: &mut Vec<Action>) {
        let applied = self.node.applied();
        while self.reads.questions.front().is_some_and(|q| q.index.is_some_and(|index| index <= applied)) {
            let question = self.reads.questions.pop_front().expect("it has a front");
            for search in self.reads.searches.values_mut().filter(|search| search.context <= question.context) {
                search.is_proved = true;
            }
            for read in question.reads {
                self.start_read(read, false, actions);
            }
        }
    }
}
