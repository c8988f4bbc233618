//! Metrics of an NBD export: the server's requests, and the client below it.
//!
//! The server notes a request when it is complete, and its reply when it is made. The owner of the loop reports when
//! the turn ends and the replies leave. That moment is one reading of the clock per turn.
//!
//! Invariant: without [`NbdMetrics`] nothing is kept; with them at most the replies of one turn are.

use crate::proto::{Command, Header};
use std::time::Duration;
use types::Time;

/// Latency from which a request is slow.
pub const SLOW: Duration = Duration::from_secs(5);
/// Interval at which the requests in flight are searched for slow ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);

telemetry::metrics! {
    /// The NBD server of one volume.
    pub struct NbdMetrics("basalt_nbd") {
        counter reads: "NBD reads answered";
        counter read_bytes: "bytes of answered NBD reads";
        counter writes: "NBD writes answered";
        counter write_bytes: "bytes of answered NBD writes";
        counter flushes: "NBD flushes answered";
        counter zeroes: "NBD trims and write-zeroes answered";
        counter queries: "NBD block status requests answered";
        counter errors: "NBD requests answered with an error";
        latency read_seconds: "from an NBD read's arrival to the end of the event-loop iteration that answered it";
        latency write_seconds: "from the arrival of an NBD write's last byte to the end of the event-loop iteration that answered it";
        latency flush_seconds: "from an NBD flush's arrival to the end of the event-loop iteration that answered it";
        gauge requests: "NBD requests in flight";
        gauge requests_slow: "NBD requests in flight for more than 5 s";
        counter slow_requests: "NBD requests that were answered after more than 5 s";
        gauge connections: "NBD clients connected";
        counter accepted: "NBD clients accepted";
        counter turned_away: "NBD clients refused because there are too many";
        counter violations: "NBD clients disconnected for invalid bytes or an unfinished handshake";
    }
}

telemetry::metrics! {
    /// The client of an export or of a benchmark.
    pub struct ClientMetrics("basalt_client") {
        counter connects: "connections to OSDs that were established; all but the first ones are reconnects";
        counter disconnects: "connections to OSDs that were lost";
        counter sends: "requests sent to OSDs";
        counter resends: "requests sent to OSDs again, because the leader moved or did not answer";
        counter searches: "leaders found after the known one moved or did not answer";
        counter bad_reads: "answers to reads whose checksum was wrong";
        gauge unavailable_pgs: "PGs of the volume with requests that no OSD has served for 5 s";
        counter unavailable_requests: "requests that failed because their PG was unavailable, by --on-unavailable";
        counter rehearsed_requests: "requests that a rehearsed fault delayed, stopped or failed";
        counter bytes_in: "bytes received from OSDs";
        counter bytes_out: "bytes sent to OSDs";
    }
}

/// Returns every metric of an export, for the manual.
pub fn rows() -> impl Iterator<Item = &'static telemetry::Row> {
    NbdMetrics::ROWS.iter().chain(ClientMetrics::ROWS)
}

/// A request whose reply leaves with this turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub command: Command,
    pub header: Header,
    pub since: Time,
    pub ok: bool,
}

/// The replies of a turn, and the metrics that count them.
#[derive(Default)]
pub(crate) struct Counting {
    metrics: Option<NbdMetrics>,
    answered: Vec<Answered>,
    look_at: Time,
}

impl Counting {
    pub fn set(&mut self, metrics: NbdMetrics) {
        self.metrics = Some(metrics);
    }

    pub fn answered(&mut self, answered: Answered) {
        if self.metrics.is_some() {
            self.answered.push(answered);
        }
    }

    /// Counts a request that was refused without the device.
    pub fn refused(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.errors.inc();
        }
    }

    pub fn has_replies(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Counts the replies of the turn that ends at `now`.
    pub fn end_turn(&mut self, now: Time) {
        let Some(metrics) = &self.metrics else { return };
        for one in self.answered.drain(..) {
            let took = now.since(one.since);
            if took > SLOW {
                metrics.slow_requests.inc();
            }
            if !one.ok {
                metrics.errors.inc();
                continue;
            }
            let bytes = u64::from(one.header.len);
            match one.command {
                Command::Read { .. } => {
                    metrics.reads.inc();
                    metrics.read_bytes.inc_by(bytes);
                    telemetry::observe(&metrics.read_seconds, took);
                }
                Command::Write { .. } => {
                    metrics.writes.inc();
                    metrics.write_bytes.inc_by(bytes);
                    telemetry::observe(&metrics.write_seconds, took);
                }
                Command::Flush => {
                    metrics.flushes.inc();
                    telemetry::observe(&metrics.flush_seconds, took);
                }
                Command::Trim | Command::WriteZeroes { .. } => {
                    metrics.zeroes.inc();
                }
                Command::BlockStatus { .. } => {
                    metrics.queries.inc();
                }
                Command::Disconnect => unreachable!("a disconnect has no reply"),
            }
        }
    }

    /// Returns the metrics when a search through the requests in flight is due.
    pub fn look(&mut self, now: Time) -> Option<&NbdMetrics> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        self.metrics.as_ref()
    }
}
