//! Sampled writes on their way through this OSD, for `/ops` and the log target `basalt::op`.
//!
//! Input: requests, appends, actions of groups and durable tickets, as they pass the loop. Output: [`Traced::reports`].
//! An entry is known by its command until the engine has it, and by its index or ticket from then on. This module keeps
//! both until the entry is applied.
//!
//! Invariant: nothing here changes the work of the loop. An unsampled write allocates nothing, and costs one test of an
//! integer at each station.

use group::descriptor;
use telemetry::ops::{OpId, OpReport, Recorder, Station};
use types::limits::is_sampled;
use types::store::Persist;
use types::{Index, PgId, ReplicaId, Time};
use wire::{RaftKind, RaftMsg, Request, RequestBody};

/// Most sampled entries that wait for their application; the oldest one is dropped for a new one.
const LOGGED_MAX: usize = 64;

/// A sampled entry that the engine has, and that is not applied yet.
struct Logged {
    op: OpId,
    replica: ReplicaId,
    index: Index,
    ticket: u64,
}

/// The recorder, and the sampled entries between append and application.
#[derive(Default)]
pub(crate) struct Traced {
    recorder: Recorder,
    logged: Vec<Logged>,
}

/// Returns the identity of an entry, if it is a sampled write.
fn op_of(pg: PgId, command: &[u8]) -> Option<OpId> {
    descriptor::sampled(command).map(|(volume, stamp)| OpId { volume, pg, epoch: stamp.epoch, seq: stamp.seq })
}

impl Traced {
    /// Notes a request; returns its identity, if it is a sampled write.
    pub fn received(&mut self, request: &Request, now: Time) -> Option<OpId> {
        let (RequestBody::Write { chunk, seq, .. } | RequestBody::Zero { chunk, seq, .. }) = &request.body else {
            return None;
        };
        if !is_sampled(*seq) {
            return None;
        }
        let op = OpId { volume: chunk.volume, pg: request.pg, epoch: request.epoch, seq: *seq };
        self.recorder.record(op, Station::Received, now);
        Some(op)
    }

    /// Notes the entries of a leader's append, and the entries that a follower acknowledges.
    pub fn raft_received(&mut self, raft: &RaftMsg, now: Time) {
        match raft.kind {
            RaftKind::Append => {
                for op in raft.entries.iter().filter_map(|entry| op_of(raft.pg, &entry.descriptor)) {
                    self.recorder.record(op, Station::AppendReceived, now);
                }
            }
            RaftKind::AppendResponse if !raft.reject => {
                for logged in self.logged.iter().filter(|l| l.replica == raft.to && l.index <= raft.index) {
                    self.recorder.record(logged.op, Station::Acknowledged, now);
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
            self.recorder.record(op, Station::Appended, now);
            if self.logged.len() >= LOGGED_MAX {
                self.logged.remove(0);
            }
            self.logged.push(Logged { op, replica, index: entry.index, ticket });
        }
    }

    /// Notes that the replica's entries up to this ticket are durable, with the batch that began at `batch_begun`.
    pub fn durable(&mut self, replica: ReplicaId, ticket: u64, batch_begun: Time, now: Time) {
        for logged in self.logged.iter().filter(|logged| logged.replica == replica && logged.ticket <= ticket) {
            self.recorder.record(logged.op, Station::Batched, batch_begun);
            self.recorder.record(logged.op, Station::Durable, now);
        }
    }

    /// Notes that the replica has applied this entry.
    pub fn applied(&mut self, replica: ReplicaId, index: Index, now: Time) {
        if self.logged.is_empty() {
            return;
        }
        if let Some(at) = self.logged.iter().position(|logged| logged.replica == replica && logged.index == index) {
            let logged = self.logged.swap_remove(at);
            self.recorder.record(logged.op, Station::Applied, now);
        }
    }

    /// Notes the reply to a sampled write. A refused write leaves no record: its repetition begins one.
    pub fn replied(&mut self, op: OpId, done: bool, now: Time) {
        match done {
            true => self.recorder.record(op, Station::Replied, now),
            false => self.recorder.forget(op),
        }
    }

    /// Drops the entries of a replica whose group ends: its successor counts tickets from the start.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.logged.retain(|logged| logged.replica != replica);
    }

    /// Returns the recorded writes, oldest first.
    pub fn reports(&self) -> Vec<OpReport> {
        self.recorder.reports()
    }
}
