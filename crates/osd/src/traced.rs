//! Sampled writes and reads on their way through this OSD, for `/ops`, for the histograms of the stages and for the log target
//! `basalt::op`.
//!
//! Input: requests, appends, actions of groups and durable tickets, as they pass the loop. Output: [`Traced::reports`] and
//! [`StageMetrics`]. An entry is known by its command until the engine has it, and by its index or ticket from then on. This
//! module keeps both until the entry is applied.
//!
//! Invariant: nothing here changes the work of the loop. An unsampled operation allocates nothing, and costs one test of an
//! integer at each station.

use crate::metrics::StageMetrics;
use group::descriptor;
use telemetry::Registry;
use telemetry::ops::{OpId, OpKind, OpReport, Recorder, Station, Times};
use types::limits::{SAMPLE_EVERY, is_sampled};
use types::store::Persist;
use types::{Index, PgId, ReplicaId, Time};
use wire::{RaftKind, RaftMsg, Request, RequestBody};

/// Most sampled entries that wait for their application; the oldest one is dropped for a new one.
const LOGGED_MAX: usize = 64;
/// Most sampled reads that the engine has; the oldest one is dropped for a new one.
const READING_MAX: usize = 64;

/// A sampled entry that the engine has, and that is not applied yet.
#[derive(Clone, Copy)]
struct Logged {
    op: OpId,
    replica: ReplicaId,
    index: Index,
    ticket: u64,
}

/// A sampled read that the engine has.
struct Reading {
    op: OpId,
    replica: ReplicaId,
    read: u64,
}

/// The recorder, the sampled entries between append and application, and the sampled reads in the engine.
pub(crate) struct Traced {
    recorder: Recorder,
    stages: StageMetrics,
    logged: Vec<Logged>,
    reads: u64,
    reading: Vec<Reading>,
    /// Operations whose reply leaves with this turn.
    leaving: Vec<OpId>,
}

/// Returns the identity of an entry, if it is a sampled write.
fn op_of(pg: PgId, command: &[u8]) -> Option<OpId> {
    let (volume, stamp) = descriptor::sampled(command)?;
    Some(OpId { kind: OpKind::Write, volume, pg, epoch: stamp.epoch, seq: stamp.seq })
}

/// Counts the stages of an operation that has left this OSD. A leader applies nothing before its own log holds it, so each write
/// that was answered has passed all stages.
fn count(stages: &StageMetrics, kind: OpKind, times: &Times) {
    use Station::*;
    let leader = [
        (&stages.write_proposal_seconds, Received, Appended),
        (&stages.write_log_wait_seconds, Appended, Batched),
        (&stages.write_log_seconds, Batched, Durable),
        (&stages.write_follower_seconds, Appended, Acknowledged),
        (&stages.write_majority_seconds, Durable, Applied),
        (&stages.write_reply_seconds, Applied, Replied),
    ];
    let follower = [
        (&stages.append_wait_seconds, AppendReceived, Appended),
        (&stages.append_log_wait_seconds, Appended, Batched),
        (&stages.append_log_seconds, Batched, Durable),
    ];
    let read = [
        (&stages.read_wait_seconds, Received, ReadBegun),
        (&stages.read_data_seconds, ReadBegun, ReadDone),
        (&stages.read_reply_seconds, ReadDone, Replied),
    ];
    let is_leaders = times.between(Received, Replied).is_some();
    let rows = match kind {
        OpKind::Read => &read[..],
        OpKind::Write if is_leaders => &leader,
        OpKind::Write => &follower,
    };
    for (histogram, from, to) in rows {
        if let Some(time) = times.between(*from, *to) {
            telemetry::observe(histogram, time);
        }
    }
}

impl Traced {
    pub fn new(registry: &Registry) -> Traced {
        let (recorder, stages) = (Recorder::default(), StageMetrics::new(registry));
        Traced { recorder, stages, logged: Vec::new(), reads: 0, reading: Vec::new(), leaving: Vec::new() }
    }

    fn record(&mut self, op: OpId, station: Station, now: Time) {
        if let Some(times) = self.recorder.record(op, station, now) {
            count(&self.stages, op.kind, &times);
        }
    }

    /// Notes a request; returns its identity, if it is sampled.
    pub fn received(&mut self, request: &Request, now: Time) -> Option<OpId> {
        let (kind, volume, seq) = match &request.body {
            RequestBody::Write { chunk, seq, .. } | RequestBody::Zero { chunk, seq, .. } if is_sampled(*seq) => {
                (OpKind::Write, chunk.volume, *seq)
            }
            RequestBody::Read { chunk, .. } => {
                self.reads += 1;
                (OpKind::Read, chunk.volume, self.reads)
            }
            _ => return None,
        };
        if kind == OpKind::Read && !seq.is_multiple_of(SAMPLE_EVERY) {
            return None;
        }
        let op = OpId { kind, volume, pg: request.pg, epoch: request.epoch, seq };
        self.record(op, Station::Received, now);
        Some(op)
    }

    /// Notes a sampled read that the engine gets.
    pub fn read_begun(&mut self, op: OpId, replica: ReplicaId, read: u64, now: Time) {
        self.record(op, Station::ReadBegun, now);
        if self.reading.len() >= READING_MAX {
            self.reading.remove(0);
        }
        self.reading.push(Reading { op, replica, read });
    }

    /// Notes that the engine has the data of a read.
    pub fn read_done(&mut self, replica: ReplicaId, read: u64, now: Time) {
        if self.reading.is_empty() {
            return;
        }
        if let Some(at) = self.reading.iter().position(|reading| (reading.replica, reading.read) == (replica, read)) {
            let reading = self.reading.swap_remove(at);
            self.record(reading.op, Station::ReadDone, now);
        }
    }

    /// Notes the entries of a leader's append, and the entries that a follower acknowledges.
    pub fn raft_received(&mut self, raft: &RaftMsg, now: Time) {
        match raft.kind {
            RaftKind::Append => {
                for op in raft.entries.iter().filter_map(|entry| op_of(raft.pg, &entry.descriptor)) {
                    self.record(op, Station::AppendReceived, now);
                }
            }
            RaftKind::AppendResponse if !raft.reject => {
                for at in 0..self.logged.len() {
                    let Logged { op, replica, index, .. } = self.logged[at];
                    if replica == raft.to && index <= raft.index {
                        self.record(op, Station::Acknowledged, now);
                    }
                }
            }
            _ => {}
        }
    }

    /// Notes entries that the engine gets. They replace what this replica's log held from their first index on.
    pub fn appended(&mut self, pg: PgId, persist: &Persist, now: Time) {
        let (replica, ticket) = (persist.replica, persist.ticket);
        let Some(first) = persist.entries.first().map(|entry| entry.index) else { return };
        if !self.logged.is_empty() {
            self.logged.retain(|logged| logged.replica != replica || logged.index < first);
        }
        for entry in &persist.entries {
            let Some(op) = op_of(pg, &entry.descriptor) else { continue };
            self.record(op, Station::Appended, now);
            if self.logged.len() >= LOGGED_MAX {
                self.logged.remove(0);
            }
            self.logged.push(Logged { op, replica, index: entry.index, ticket });
        }
    }

    /// Notes that the replica's entries up to this ticket are durable, with the batch that began at `batch_begun`.
    pub fn durable(&mut self, replica: ReplicaId, ticket: u64, batch_begun: Time, now: Time) {
        for at in 0..self.logged.len() {
            let logged = self.logged[at];
            if logged.replica == replica && logged.ticket <= ticket {
                self.record(logged.op, Station::Batched, batch_begun);
                self.record(logged.op, Station::Durable, now);
            }
        }
    }

    /// Notes that the replica has applied this entry.
    pub fn applied(&mut self, replica: ReplicaId, index: Index, now: Time) {
        if self.logged.is_empty() {
            return;
        }
        if let Some(at) = self.logged.iter().position(|logged| logged.replica == replica && logged.index == index) {
            let logged = self.logged.swap_remove(at);
            self.record(logged.op, Station::Applied, now);
        }
    }

    /// Notes the reply to a sampled request. A refused one leaves no record: its repetition begins one.
    pub fn replied(&mut self, op: OpId, done: bool) {
        match done {
            true => self.leaving.push(op),
            false => self.recorder.forget(op),
        }
    }

    /// Notes the end of the turn, with which its replies leave.
    pub fn end_turn(&mut self, now: Time) {
        for op in std::mem::take(&mut self.leaving) {
            self.record(op, Station::Replied, now);
        }
    }

    /// Drops the entries and reads of a replica whose group ends: its successor counts tickets and reads from the start.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.logged.retain(|logged| logged.replica != replica);
        self.reading.retain(|reading| reading.replica != replica);
    }

    /// Returns the recorded operations, oldest first.
    pub fn reports(&self) -> Vec<OpReport> {
        self.recorder.reports()
    }
}
