//! Stations of sampled writes and reads: the time at which each one passed them in this process.
//!
//! A write is sampled by its identity alone (`types::limits::is_sampled`), so client, leader and followers sample the
//! same writes without a bit on the wire. Reads have no number on the wire: the leader that serves them counts and samples
//! its own. Each process keeps a [`Recorder`]. Input: stations as they are passed, with the clock of their turn. Output:
//! [`OpReport`]s, the [`Times`] of each operation that leaves the process, and one event of `tracing` for each station, at
//! level TRACE on the target `basalt::op`.
//!
//! An OSD reads its clock once a turn, and at the end of a turn with replies; a client at the start and at the end. Stations
//! under one reading are 0 µs apart, and the work of a turn counts to the step that leaves it. Clocks of two processes are
//! never compared.
//!
//! Invariant: memory is bounded by [`OPS_MAX`]. The owner tests whether an operation is sampled, so others cost nothing
//! here.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use types::{Epoch, PgId, Time, VolumeId};

/// Most sampled operations that a process remembers: the last ones.
pub const OPS_MAX: usize = 512;
/// Age from which a write without its last station is forgotten.
pub const UNFINISHED_MAX: Duration = Duration::from_secs(60);
/// Number of stations.
const STATIONS: usize = Station::Replied as usize + 1;

/// A place on the way of an operation. The first four are a client's, the others an OSD's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Station {
    /// The user's request arrived at the client.
    Submitted,
    /// The write went to the bus.
    Sent,
    /// The leader's reply arrived.
    Answered,
    /// The user got the completion, unless other parts of the request are not done.
    Completed,
    /// The request arrived at the leader.
    Received,
    /// The append arrived at a follower.
    AppendReceived,
    /// The group proposed or took the entry, and the engine got it.
    Appended,
    /// The engine submitted the log batch with the entry.
    Batched,
    /// The replica's own log holds the entry durably. A follower acknowledges it in this turn.
    Durable,
    /// The first acknowledgement of a follower arrived at the leader, before or after the leader's own log was durable.
    Acknowledged,
    /// A majority holds the entry, and the replica has applied it.
    Applied,
    /// The read may be served, under the lease or as a majority has confirmed, and the engine got it.
    ReadBegun,
    /// The engine has the data of the read.
    ReadDone,
    /// The turn with the leader's reply ended.
    Replied,
}

impl Station {
    const ALL: [Station; STATIONS] = [
        Station::Submitted,
        Station::Sent,
        Station::Answered,
        Station::Completed,
        Station::Received,
        Station::AppendReceived,
        Station::Appended,
        Station::Batched,
        Station::Durable,
        Station::Acknowledged,
        Station::Applied,
        Station::ReadBegun,
        Station::ReadDone,
        Station::Replied,
    ];

    /// Returns the name that reports and log events show.
    pub fn name(self) -> &'static str {
        match self {
            Station::Submitted => "submitted",
            Station::Sent => "sent",
            Station::Answered => "answered",
            Station::Completed => "completed",
            Station::Received => "received",
            Station::AppendReceived => "append_received",
            Station::Appended => "appended",
            Station::Batched => "batched",
            Station::Durable => "durable",
            Station::Acknowledged => "acknowledged",
            Station::Applied => "applied",
            Station::ReadBegun => "read_begun",
            Station::ReadDone => "read_done",
            Station::Replied => "replied",
        }
    }

    /// Whether a write enters the process here.
    fn begins(self) -> bool {
        matches!(self, Station::Submitted | Station::Received | Station::AppendReceived)
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    Write,
    Read,
}

impl OpKind {
    /// Returns the name that reports and log events show.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Write => "write",
            OpKind::Read => "read",
        }
    }
}

/// Identity of an operation. That of a write is the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId {
    pub kind: OpKind,
    pub volume: VolumeId,
    pub pg: PgId,
    /// Attach epoch of the session that wrote.
    pub epoch: Epoch,
    /// Number of a write in its session and PG, of a read at its leader since the start of that OSD.
    pub seq: u64,
}

/// One operation and the stations that it passed in one process, in their order on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpReport {
    #[serde(flatten)]
    pub op: OpId,
    pub stations: Vec<Passed>,
}

/// A station that an operation passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    pub station: Station,
    /// Whole microseconds since it entered this process.
    pub us: u64,
}

impl OpReport {
    /// Returns when the operation passed a station, in microseconds since it entered the process.
    pub fn us(&self, station: Station) -> Option<u64> {
        self.stations.iter().find(|passed| passed.station == station).map(|passed| passed.us)
    }
}

/// Times at which an operation passed the stations of this process, in microseconds since it entered it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times([Option<u64>; STATIONS]);

impl Times {
    /// Returns the time between two stations; `None` unless both were passed in this order.
    pub fn between(&self, from: Station, to: Station) -> Option<Duration> {
        self.0[to as usize]?.checked_sub(self.0[from as usize]?).map(Duration::from_micros)
    }
}

struct Record {
    op: OpId,
    began: Time,
    times: Times,
}

impl Record {
    fn has(&self, station: Station) -> bool {
        self.times.0[station as usize].is_some()
    }

    /// Whether the operation has left the process: a client's with its completion, a leader's with the reply, a follower's
    /// with the acknowledgement.
    fn is_finished(&self) -> bool {
        let acknowledged = self.has(Station::AppendReceived) && self.has(Station::Durable);
        acknowledged || self.has(Station::Completed) || self.has(Station::Replied)
    }

    fn report(&self) -> OpReport {
        let passed = |station: Station| self.times.0[station as usize].map(|us| Passed { station, us });
        OpReport { op: self.op, stations: Station::ALL.into_iter().filter_map(passed).collect() }
    }
}

/// The last sampled operations of one process.
#[derive(Default)]
pub struct Recorder {
    records: VecDeque<Record>,
}

impl Recorder {
    /// Records that a sampled operation passed a station, and returns its times if it left the process with that. A station
    /// keeps its first time. An operation whose entry into the process is unknown leaves no record.
    pub fn record(&mut self, op: OpId, station: Station, now: Time) -> Option<Times> {
        let at = match self.records.iter().rposition(|record| record.op == op) {
            Some(at) => at,
            None if station.begins() => self.begin(op, now),
            None => return None,
        };
        let record = &mut self.records[at];
        if record.has(station) {
            return None;
        }
        let us = u64::try_from(now.since(record.began).as_micros()).unwrap_or(u64::MAX);
        let was_finished = record.is_finished();
        record.times.0[station as usize] = Some(us);
        tracing::trace!(
            target: "basalt::op",
            kind = op.kind.name(),
            volume = op.volume.0,
            pg = %op.pg,
            op = %format_args!("{}.{}", op.epoch.0, op.seq),
            station = station.name(),
            us
        );
        (record.is_finished() && !was_finished).then_some(record.times)
    }

    /// Makes room for an operation and returns its place.
    fn begin(&mut self, op: OpId, now: Time) -> usize {
        self.records.retain(|record| record.is_finished() || now < record.began + UNFINISHED_MAX);
        if self.records.len() >= OPS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(Record { op, began: now, times: Times::default() });
        self.records.len() - 1
    }

    /// Drops the record of an operation.
    pub fn forget(&mut self, op: OpId) {
        self.records.retain(|record| record.op != op);
    }

    /// Returns the recorded operations, oldest first.
    pub fn reports(&self) -> Vec<OpReport> {
        self.records.iter().map(Record::report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    fn op(seq: u64) -> OpId {
        OpId { kind: OpKind::Write, volume: VolumeId(7), pg: PgId { pool: PoolId(1), n: 3 }, epoch: Epoch(2), seq }
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Duration::from_micros(us)
    }

    fn seqs(recorder: &Recorder) -> Vec<u64> {
        recorder.reports().iter().map(|report| report.op.seq).collect()
    }

    #[test]
    fn a_report_has_the_first_time_of_each_station_in_the_order_of_the_way() {
        let mut recorder = Recorder::default();
        recorder.record(op(1), Station::Received, at(100));
        recorder.record(op(1), Station::Durable, at(350));
        recorder.record(op(1), Station::Appended, at(100));
        recorder.record(op(1), Station::Durable, at(900));
        let [report] = &recorder.reports()[..] else { panic!("one write was recorded") };
        let passed = |station, us| Passed { station, us };
        let want = [passed(Station::Received, 0), passed(Station::Appended, 0), passed(Station::Durable, 250)];
        assert_eq!(report.stations, want);
        assert_eq!([report.us(Station::Durable), report.us(Station::Replied)], [Some(250), None]);
    }

    #[test]
    fn a_write_is_recorded_from_its_entry_into_the_process_or_not_at_all() {
        let mut recorder = Recorder::default();
        for station in Station::ALL.into_iter().filter(|station| !station.begins()) {
            recorder.record(op(1), station, at(1));
        }
        assert_eq!((seqs(&recorder), recorder.records.capacity()), (vec![], 0));
        recorder.record(op(1), Station::AppendReceived, at(2));
        recorder.record(op(2), Station::Received, at(2));
        recorder.forget(op(1));
        recorder.record(op(1), Station::Durable, at(3));
        assert_eq!(seqs(&recorder), [2]);
    }

    #[test]
    fn the_last_writes_are_kept_and_memory_is_bounded() {
        let mut recorder = Recorder::default();
        for seq in 0..3 * OPS_MAX as u64 {
            recorder.record(op(seq), Station::Received, at(seq));
            recorder.record(op(seq), Station::Replied, at(seq));
        }
        let kept: Vec<u64> = (2 * OPS_MAX as u64..3 * OPS_MAX as u64).collect();
        assert_eq!(seqs(&recorder), kept);
        assert!(recorder.records.capacity() <= 2 * OPS_MAX);
    }

    #[test]
    fn an_unfinished_write_is_evicted_by_its_age_and_a_finished_one_is_not() {
        let mut recorder = Recorder::default();
        recorder.record(op(1), Station::Received, at(0));
        recorder.record(op(2), Station::AppendReceived, at(0));
        recorder.record(op(2), Station::Durable, at(5));
        recorder.record(op(3), Station::Submitted, at(0));
        recorder.record(op(3), Station::Completed, at(5));
        recorder.record(op(4), Station::Received, at(1));
        recorder.record(op(5), Station::Received, at(0) + UNFINISHED_MAX);
        assert_eq!(seqs(&recorder), [2, 3, 4, 5], "only the first is unfinished and old");
    }

    #[test]
    fn the_times_come_once_with_the_station_that_ends_the_way() {
        let mut recorder = Recorder::default();
        let mut pass = |station, us| recorder.record(op(1), station, at(us));
        assert!(pass(Station::Received, 10).is_none() && pass(Station::Durable, 30).is_none());
        let times = pass(Station::Replied, 75).expect("it has left");
        let between = |from, to| times.between(from, to).map(|time| time.as_micros());
        assert_eq!(between(Station::Received, Station::Replied), Some(65));
        assert_eq!(between(Station::Durable, Station::Replied), Some(45));
        assert_eq!(between(Station::Replied, Station::Durable), None, "the other order");
        assert_eq!(between(Station::Received, Station::Applied), None, "one is unknown");
        let later = [pass(Station::Replied, 80), pass(Station::Acknowledged, 90)];
        assert!(later.iter().all(Option::is_none), "it has left before");
    }

    #[test]
    fn stations_have_their_names_and_places() {
        for (place, station) in Station::ALL.into_iter().enumerate() {
            assert_eq!(station as usize, place);
            assert_eq!(serde_json::to_value(station).expect("JSON"), station.name());
        }
    }
}
