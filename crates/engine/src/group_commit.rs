//! Group commit: all work that was queued while the last batch was written goes out as one batch.
//!
//! A batch is one write to the log and, for payloads that are placed, writes to home (ADR 0030). All of them are in flight at once; a
//! flush follows when the last one has ended.
//!
//! Invariant: a batch counts as durable when every write of it is complete and the flush that it needs began after that. One
//! batch is in flight at a time, so batches become durable in order.

use crate::engine::{Engine, State, key};
use crate::home::Home;
use crate::log::{BuildParts, Built, Done, Placer, Work, build};
use env::{DiskError, DiskKind, Op, Token};
use layout::log::STATE_BATCH_MAX;
use std::time::Duration;
use types::AU;
use types::failpoint::{Point, is_armed, pass};
use types::planted::{Bug, on};

/// A batch of the log that takes so long to write is logged.
const SLOW_BATCH: Duration = Duration::from_millis(50);

impl Engine {
    /// Sends the next batch, if none is in flight and there is work.
    pub(crate) fn start_batch(&mut self) {
        if matches!(self.state, State::Stopped) {
            return;
        }
        let Some(log) = self.log.as_mut() else { return };
        if log.in_flight.is_some() {
            return;
        }
        log.untried = false;
        if log.pending.is_empty() && log.state_block.is_none() {
            let due = log.unsealed && self.now >= log.idle_since + self.config.seal_after;
            if !due || !matches!(self.state, State::Running) {
                return;
            }
            log.pending.push_back(Work::Seal);
        }
        let log_bytes = log.ring.count() as u64 * log.ring.segment_bytes();
        // A payload that is placed on another device cannot be told from a torn one when that device is an older copy (ADR 0033).
        let places = matches!(self.state, State::Running) && !self.disks.are_apart();
        let min = self.config.redirect_min.filter(|_| places);
        let home = self.home.as_mut().filter(|_| min.is_some());
        let placer = home.map(|home| Placer::new(home, min.map_or(AU, |min| min.max(AU)), log_bytes, log.align));
        let mut parts = BuildParts {
            replicas: &mut self.replicas,
            tombstones: &self.ids.tombstones,
            map: &self.map,
            creates_lost: self.ids.creates_lost,
            floor: self.ids.floor,
            mounting: matches!(self.state, State::Mounting(_)),
            state_batch_max: self.config.state_batch_max.min(STATE_BATCH_MAX),
            placer,
        };
        let Some(built) = build(log, &mut parts) else { return };
        log.batch_begun = self.now;
        self.submit_batch(built);
    }

    fn submit_batch(&mut self, built: Built) {
        let placed_bytes: u64 = built.placed.iter().map(|write| write.len_bytes as u64).sum();
        self.stats.batches += 1;
        self.stats.records += u64::from(built.records);
        self.stats.log_bytes += built.len_bytes;
        self.stats.payload_bytes += built.payload_bytes + placed_bytes;
        self.stats.placed_bytes += placed_bytes;
        self.stats.copied_bytes += built.copied_bytes;
        self.stats.device_written_bytes += built.len_bytes + placed_bytes;
        let is_volatile = self.disks.log.volatile_cache && !on(Bug::LogWithoutFlush);
        // R10: a flush that is linked to the write of the log covers no write that is in flight beside it. Extents of a file
        // may be unwritten at home.
        let (linked, after) = match built.placed.is_empty() || on(Bug::PlaceFlushLinked) {
            true => (is_volatile, false),
            false => (false, is_volatile || self.disks.log.kind == DiskKind::File),
        };
        self.stats.flushes += u64::from(linked || after);
        let in_flight = self.log.as_mut().and_then(|log| log.in_flight.as_mut()).expect("the batch was just built");
        (in_flight.writes, in_flight.flush) = (1 + built.placed.len(), after);
        let (disk, token) = (self.disks.log.id, self.token(key::BATCH, built.seq as u32));
        self.ops.push(Op::DiskWrite { token, disk, offset: built.offset, bufs: built.bufs, flush: linked });
        for write in built.placed {
            self.ops.push(Op::DiskWrite { token, disk, offset: write.offset, bufs: write.bufs, flush: false });
        }
    }

    /// Handles the completion of a write of the batch.
    pub(crate) fn batch_written(&mut self, token: Token, result: Result<(), DiskError>) {
        if let Err(source) = result
            && !on(Bug::WriteErrorIgnored)
        {
            return self.poison("writing the log", source);
        }
        let log = self.log.as_mut().expect("a batch was in flight");
        let batch = log.in_flight.as_mut().expect("a batch was in flight");
        assert_eq!(token.generation, batch.seq as u32, "writes end with their batch");
        batch.writes -= 1;
        if batch.writes > 0 {
            return;
        }
        if batch.flush {
            let token = self.token(key::BATCH_FLUSH, token.generation);
            return self.ops.push(Op::DiskFlush { token, disk: self.disks.log.id });
        }
        self.batch_durable();
    }

    /// Handles the end of the flush behind the last write of the batch.
    pub(crate) fn batch_flushed(&mut self, result: Result<(), DiskError>) {
        match result {
            Err(source) if !on(Bug::FlushErrorIgnored) => self.poison("flushing the log", source),
            _ => self.batch_durable(),
        }
    }

    fn batch_durable(&mut self) {
        let now = self.now;
        let log = self.log.as_mut().expect("a batch was in flight");
        let batch = log.in_flight.take().expect("a batch was in flight");
        assert_eq!(batch.seq, log.durable_seq + 1, "acknowledgements follow batch order");
        let took = now.since(log.batch_begun);
        if took >= SLOW_BATCH {
            tracing::debug!(ms = took.as_millis() as u64, "slow write of a log batch");
        }
        let home = self.home.as_ref().filter(|home| home.round_running());
        self.destage.yielding.batch_took(took, home.map(Home::round_ops_limit));
        log.durable_seq = batch.seq;
        log.unsealed = !batch.is_seal;
        if !batch.is_seal {
            log.durable_records = batch.seq;
        }
        log.idle_since = now;
        if is_armed(Point::LogDurable) && batch.done.iter().any(|d| matches!(d, Done::Persisted { .. })) {
            pass(Point::LogDurable);
        }
        let unpins = batch.done.iter().any(|d| matches!(d, Done::Copied { .. } | Done::Replaced(_)));
        for done in batch.done {
            self.done(done);
        }
        if unpins {
            self.find_freeable();
            self.copy_forward();
        }
    }
}
