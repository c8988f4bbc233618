//! Questions of the OSD's tools, and the answers.
//!
//! A tool asks with [`Osd::ask_tool`] and takes the answer with [`Osd::take_tool_answers`]; any carrier
//! may bring both. `recovery` answers the queries for digests.
//!
//! Invariant: an answer changes nothing, and waiting questions have a limit.

use crate::node::{Osd, Phase};
use crate::pgs::State;
use engine::{ReadData, ReadError};
use recovery::{DigestAnswer, DigestQuery};
use std::collections::BTreeSet;
use types::control::{AttachedVolume, PgReport};
use types::{ChunkKey, Index, PgId, VolumeChunk};

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
    /// The replica, its chunks in ascending order, and the attach record of each volume.
    Pg { report: Box<PgReport>, chunks: Vec<VolumeChunk>, attached: Vec<AttachedVolume> },
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

/// Answers and reads for the OSD's tools.
#[derive(Default)]
pub struct Tools {
    pub(crate) answers: Vec<(u64, ToolAnswer)>,
    /// Results of `Osd::read_for_tools`.
    pub(crate) reads: Vec<Result<ReadData, ReadError>>,
}

impl From<DigestAnswer> for ToolAnswer {
    fn from(answer: DigestAnswer) -> ToolAnswer {
        match answer {
            DigestAnswer::Digest { at, parts } => ToolAnswer::Digest { at, parts },
            DigestAnswer::Passed { applied } => ToolAnswer::Passed { applied },
            DigestAnswer::Late { applied } => ToolAnswer::Late { applied },
            DigestAnswer::Busy => ToolAnswer::Busy,
            DigestAnswer::Unreadable { reason } => ToolAnswer::Unreadable { reason },
            DigestAnswer::Damaged { at, parts } => ToolAnswer::Damaged { at, parts },
        }
    }
}

impl Osd {
    /// Queues a question; the answer comes with [`Osd::take_tool_answers`] under the same `id`, after some turns.
    pub fn ask_tool(&mut self, id: u64, ask: ToolAsk) {
        let pg = match ask {
            ToolAsk::Health => {
                let stopped = self.meta.poisoned.clone();
                let health = stopped.map_or(ToolAnswer::Healthy, |reason| ToolAnswer::Stopped { reason });
                return self.tools.answers.push((id, health));
            }
            ToolAsk::Ops => return self.tools.answers.push((id, ToolAnswer::Ops(self.stats.traced.reports()))),
            ToolAsk::Pg { pg } | ToolAsk::Digest { pg, .. } | ToolAsk::Table { pg, .. } => pg,
        };
        let report = match self.replica_for_tools(pg) {
            Ok(report) => report,
            Err(answer) => return self.tools.answers.push((id, answer)),
        };
        let (chunk, at, of_table) = match ask {
            ToolAsk::Digest { chunk, at, .. } => (chunk, at, false),
            ToolAsk::Table { chunk, at, .. } => (chunk, at, true),
            ToolAsk::Health | ToolAsk::Ops | ToolAsk::Pg { .. } => {
                let answer = self.page_for_tools(report);
                return self.tools.answers.push((id, answer));
            }
        };
        let tuning = &self.config.tuning;
        let until = self.now + tuning.digest_wait_max;
        let query = DigestQuery { id, replica: report.replica, chunk, at, until, of_table };
        if !self.recovery.digests.ask(query) {
            self.tools.answers.push((id, ToolAnswer::Busy));
        }
    }

    /// Takes the answers that are ready, in the order in which they became so.
    pub fn take_tool_answers(&mut self) -> Vec<(u64, ToolAnswer)> {
        std::mem::take(&mut self.tools.answers)
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
        let chunks = chunks.into_iter().map(ChunkKey::of_first).collect();
        ToolAnswer::Pg { report: Box::new(report), chunks, attached }
    }

    fn attached_for_tools(&self, pg: PgId) -> Vec<AttachedVolume> {
        let state = self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state);
        let Some(State::Running(group)) = state else { return Vec::new() };
        let volumes = group.decides().volumes.iter();
        let all = volumes.map(|(volume, attached)| (*volume, attached.epoch, attached.chunk_count));
        all.map(|(volume, epoch, chunk_count)| AttachedVolume { volume, epoch, chunk_count }).collect()
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
}
