//! Digests of a replica's chunks at one applied index, which `pg verify` compares.
//!
//! A tool asks with [`Osd::ask_tool`] and takes the answer with [`Osd::take_tool_answers`]; any carrier
//! may bring both. A digest waits until its replica has applied exactly the requested
//! index. Then all reads of the chunk are issued in that very turn, so they show one applied state.
//!
//! Invariant: a digest changes nothing; at most `OsdTuning::digests_max` chunks are read at once, and waiting questions have a
//! limit and a deadline. A read that a destage round sent to a second look may show a later index: then the
//! tool gets no digest and asks again.

use crate::node::{Osd, Phase, ReadOwner};
use crate::pgs::State;
use engine::{ReadData, ReadError};
use std::collections::BTreeSet;
use types::control::PgReport;
use types::hash::plain_hash;
use types::limits::PART_MAX;
use types::units::{SECTOR, SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{ChunkKey, Epoch, Index, PgId, ReplicaId, SectorRange, Time, VolumeId, crc32c};

/// Parts of a chunk, and CRCs of a digest.
pub const PARTS: usize = (SECTORS_PER_CHUNK as u64 * SECTOR / PART_MAX) as usize;

const PART_SECTORS: u32 = (PART_MAX / SECTOR) as u32;

/// A question of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolAsk {
    /// Whether the event loop runs and the store has not stopped.
    Health,
    /// Asks for the sampled writes that passed this OSD.
    Ops,
    /// Asks for the report of the PG's replica here, and its chunks.
    Pg { pg: PgId },
    /// The CRC32C of each part of a chunk, at exactly this applied index.
    Digest { pg: PgId, chunk: ChunkKey, at: Index },
    /// Asks like `Digest`, for the table that says which blocks of each part hold data. No byte is read.
    Table { pg: PgId, chunk: ChunkKey, at: Index },
}

/// The answer to a [`ToolAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolAnswer {
    /// The OSD runs.
    Healthy,
    /// The store stopped after a failed write or flush.
    Stopped { reason: String },
    /// Sampled writes, oldest first.
    Ops(Vec<telemetry::ops::OpReport>),
    /// The replica, its chunks in ascending order, and the epoch of each volume's attach record.
    Pg { report: Box<PgReport>, chunks: Vec<ChunkKey>, attached: Vec<(VolumeId, Epoch)> },
    /// One value for each part.
    Digest { at: Index, parts: Vec<u32> },
    /// The requested index has passed: `applied` is the present one.
    Passed { applied: Index },
    /// The index was not applied in time.
    Late { applied: Index },
    /// Too many questions wait or run: ask again in a moment.
    Busy,
    /// There is no replica of this PG here.
    NoReplica,
    /// The replica is here and cannot be read: it is being created, or the store is poisoned.
    Unreadable { reason: String },
    /// The replica is here, damaged, and does not serve.
    Quarantined { reason: String },
    /// Bytes of these parts cannot be read or fail their checksums; each with the cause.
    Damaged { at: Index, parts: Vec<(usize, String)> },
}

struct Waiting {
    id: u64,
    replica: ReplicaId,
    ask: ToolAsk,
    chunk: ChunkKey,
    at: Index,
    until: Time,
}

struct Running {
    id: u64,
    at: Index,
    parts: Vec<u32>,
    left: usize,
    /// `Engine::reads_looked_up_again` when the reads were issued.
    looks: u64,
    failure: Option<String>,
    damaged: Vec<(usize, String)>,
}

/// Questions and answers of the OSD's tools.
#[derive(Default)]
pub struct Digests {
    waiting: Vec<Waiting>,
    running: slab::Slab<Running>,
    answers: Vec<(u64, ToolAnswer)>,
    /// Results of `Osd::read_for_tools`.
    pub(crate) reads: Vec<Result<ReadData, ReadError>>,
}

impl Digests {
    pub(crate) fn next_deadline(&self) -> Time {
        let first = self.waiting.iter().map(|w| w.until).min();
        first.unwrap_or(Time::NEVER)
    }

    /// Whether no question waits. The hot path asks this before anything else.
    pub(crate) fn none_waits(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Osd {
    /// Queues a question; the answer comes with [`Osd::take_tool_answers`] under the same `id`, after some turns.
    pub fn ask_tool(&mut self, id: u64, ask: ToolAsk) {
        let pg = match ask {
            ToolAsk::Health => {
                let stopped = self.meta.poisoned.clone();
                let health = stopped.map_or(ToolAnswer::Healthy, |reason| ToolAnswer::Stopped { reason });
                return self.digests.answers.push((id, health));
            }
            ToolAsk::Ops => return self.digests.answers.push((id, ToolAnswer::Ops(self.stats.traced.reports()))),
            ToolAsk::Pg { pg } | ToolAsk::Digest { pg, .. } | ToolAsk::Table { pg, .. } => pg,
        };
        let report = match self.replica_for_tools(pg) {
            Ok(report) => report,
            Err(answer) => return self.digests.answers.push((id, answer)),
        };
        let (chunk, at) = match ask {
            ToolAsk::Digest { chunk, at, .. } | ToolAsk::Table { chunk, at, .. } => (chunk, at),
            ToolAsk::Health | ToolAsk::Ops | ToolAsk::Pg { .. } => {
                let answer = self.page_for_tools(report);
                return self.digests.answers.push((id, answer));
            }
        };
        let tuning = &self.config.tuning;
        let running = self.digests.running.len() >= tuning.digests_max;
        if running || self.digests.waiting.len() >= tuning.digests_waiting_max {
            return self.digests.answers.push((id, ToolAnswer::Busy));
        }
        let until = self.now + tuning.digest_wait_max;
        self.digests.waiting.push(Waiting { id, replica: report.replica, ask, chunk, at, until });
    }

    /// Takes the answers that are ready, in the order in which they became so.
    pub fn take_tool_answers(&mut self) -> Vec<(u64, ToolAnswer)> {
        std::mem::take(&mut self.digests.answers)
    }

    /// Returns the answers to [`ToolAsk::Pg`] for all PGs here.
    pub fn pages_for_tools(&self) -> Vec<ToolAnswer> {
        let pgs: BTreeSet<PgId> = self.pgs.iter().map(|slot| slot.identity.pg).collect();
        pgs.into_iter()
            .filter_map(|pg| self.replica_for_tools(pg).ok())
            .map(|report| self.page_for_tools(report))
            .collect()
    }

    fn page_for_tools(&self, report: PgReport) -> ToolAnswer {
        let (chunks, attached) = (self.engine.chunks(report.replica), self.attached_for_tools(report.pg));
        ToolAnswer::Pg { report: Box::new(report), chunks, attached }
    }

    fn attached_for_tools(&self, pg: PgId) -> Vec<(VolumeId, Epoch)> {
        let state = self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state);
        let Some(State::Running(group)) = state else { return Vec::new() };
        group.decides().volumes.iter().map(|(volume, attached)| (*volume, attached.epoch)).collect()
    }

    fn replica_for_tools(&self, pg: PgId) -> Result<PgReport, ToolAnswer> {
        let unreadable = |reason: &str| Err(ToolAnswer::Unreadable { reason: reason.to_owned() });
        if let Phase::Stopped(reason) = &self.phase {
            return unreadable(reason);
        }
        match self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state) {
            None if self.phase == Phase::Mounting => unreadable("the OSD is still reading its log"),
            None => Err(ToolAnswer::NoReplica),
            Some(State::Creating) => unreadable("the replica is being created"),
            Some(State::Repairing) => unreadable("the replica's log is being repaired"),
            Some(State::Paused(_)) => unreadable("a backfill is being installed"),
            Some(State::Failed(failure)) => Err(ToolAnswer::Quarantined { reason: failure.reason.clone() }),
            Some(State::Running(group)) => Ok(group.report(self.now)),
        }
    }

    /// Once a turn: gives up questions that waited too long, and starts those that are already at their index.
    pub(crate) fn upkeep_digests(&mut self) {
        let mut n = 0;
        while n < self.digests.waiting.len() {
            let waiting = &self.digests.waiting[n];
            let (replica, at, late) = (waiting.replica, waiting.at, waiting.until <= self.now);
            let slot = self.pgs.by_replica(replica);
            let Some(applied) = slot.and_then(|key| self.pgs.group(key)).map(|group| group.applied()) else {
                let gone = ToolAnswer::Unreadable { reason: "the replica was removed during the query".to_owned() };
                self.answer_waiting(n, gone);
                continue;
            };
            match () {
                () if applied > at => self.answer_waiting(n, ToolAnswer::Passed { applied }),
                () if applied == at => self.start_digest(n),
                () if late => self.answer_waiting(n, ToolAnswer::Late { applied }),
                () => n += 1,
            }
        }
    }

    /// Starts the questions about exactly this state: the engine has just applied `index`.
    pub(crate) fn applied_for_digests(&mut self, replica: ReplicaId, index: Index) {
        while let Some(n) = self.digests.waiting.iter().position(|w| w.replica == replica && w.at == index) {
            self.start_digest(n);
        }
    }

    fn answer_waiting(&mut self, n: usize, answer: ToolAnswer) {
        let waiting = self.digests.waiting.swap_remove(n);
        self.digests.answers.push((waiting.id, answer));
    }

    fn start_digest(&mut self, n: usize) {
        if self.digests.running.len() >= self.config.tuning.digests_max {
            return self.answer_waiting(n, ToolAnswer::Busy);
        }
        let Waiting { id, replica, ask, chunk, at, .. } = self.digests.waiting.swap_remove(n);
        if matches!(ask, ToolAsk::Table { .. }) {
            let parts = (0..PARTS).map(|part| self.table_of_part(replica, chunk, part)).collect();
            return self.digests.answers.push((id, ToolAnswer::Digest { at, parts }));
        }
        let looks = self.engine.reads_looked_up_again();
        let (parts, damaged) = (vec![0; PARTS], Vec::new());
        let run = Running { id, at, parts, left: PARTS, looks, failure: None, damaged };
        let key = self.digests.running.insert(run);
        for part in 0..PARTS {
            self.read_for(ReadOwner::Digest { key, part }, replica, chunk, range_of(part));
        }
    }

    /// Takes the finished read of a part.
    pub(crate) fn digest_part(&mut self, key: usize, part: usize, result: Result<ReadData, ReadError>) {
        // A poisoned store has answered already.
        let Some(run) = self.digests.running.get_mut(key) else { return };
        match result {
            Ok(ReadData::Bytes { payload, .. }) => run.parts[part] = digest(&payload),
            Ok(ReadData::Zeros) => run.parts[part] = 0,
            Err(error @ (ReadError::Damaged { .. } | ReadError::BadBlocks { .. })) => {
                run.damaged.push((part, error.to_string()))
            }
            Err(error) => run.failure = Some(error.to_string()),
        }
        run.left -= 1;
        if run.left > 0 {
            return;
        }
        let mut run = self.digests.running.remove(key);
        let answer = match run.failure {
            Some(reason) => ToolAnswer::Unreadable { reason },
            None if !run.damaged.is_empty() => {
                run.damaged.sort_unstable();
                ToolAnswer::Damaged { at: run.at, parts: run.damaged }
            }
            None if run.looks != self.engine.reads_looked_up_again() => ToolAnswer::Busy,
            None => ToolAnswer::Digest { at: run.at, parts: run.parts },
        };
        self.digests.answers.push((run.id, answer));
    }

    /// Fails all waiting and running questions: the store is poisoned.
    pub(crate) fn fail_digests(&mut self, reason: &str) {
        let waiting = std::mem::take(&mut self.digests.waiting).into_iter().map(|w| w.id);
        let running = std::mem::take(&mut self.digests.running).into_iter().map(|(_, r)| r.id);
        let failed = |id| (id, ToolAnswer::Unreadable { reason: reason.to_owned() });
        self.digests.answers.extend(waiting.chain(running).map(failed));
    }

    /// Computes the CRC of the numbers of the blocks that hold data; 0 when none does. Blocks count as wholes, because
    /// one replica may have destaged a block that another still holds by sectors.
    fn table_of_part(&self, replica: ReplicaId, chunk: ChunkKey, part: usize) -> u32 {
        let range = range_of(part);
        let mut blocks = Vec::new();
        let mut at = range.start;
        for (sectors, data) in self.engine.extents(replica, chunk, range) {
            let (first, last) = (at / SECTORS_PER_BLOCK, (at + sectors - 1) / SECTORS_PER_BLOCK);
            at += sectors;
            if data {
                blocks.extend(first..=last);
            }
        }
        blocks.dedup();
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
        if bytes.is_empty() { 0 } else { crc32c(&bytes).max(1) }
    }
}

fn range_of(part: usize) -> SectorRange {
    SectorRange::new(part as u32 * PART_SECTORS, PART_SECTORS)
}

/// Computes the digest of a part's bytes, the low 32 bits of xxh3-64; 0 stands for a part that is all zeros, however it is stored.
fn digest(bytes: &[u8]) -> u32 {
    if bytes.iter().all(|b| *b == 0) { 0 } else { (plain_hash(bytes) as u32).max(1) }
}

const _: () = assert!(PARTS * PART_SECTORS as usize == SECTORS_PER_CHUNK as usize);
