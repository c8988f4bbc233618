//! The hops of sampled operations: what a write or read waited for, and where.
//!
//! Input: the records of one operation in the OSDs that it passed. Output: its hops, whose times add up to the time from the
//! leader's receipt to its reply; and [`Sums`] of many operations.
//!
//! A write is done when a majority with its leader holds it. Only hops on that way count: the leader's own log or the first
//! follower, whichever came later. Clocks of two processes are never compared: the time in the network is the time that the leader
//! waited, less the time that the follower needed.
//!
//! Invariant: no record is trusted to be complete or in order. An operation without a whole way has no hops.

use serde::Serialize;
use std::collections::BTreeMap;
use telemetry::ops::{OpKind, OpReport, Station};
use types::OsdId;

/// Work or wait on the way of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Proposal,
    Network,
    Append,
    LogWait,
    LogWrite,
    Follower,
    Majority,
    Reply,
    ReadWait,
    ReadData,
}

impl Step {
    /// Returns the name that tables show.
    pub fn name(self) -> &'static str {
        match self {
            Step::Proposal => "wait for the proposal",
            Step::Network => "network, both ways",
            Step::Append => "wait for the append",
            Step::LogWait => "wait for the log",
            Step::LogWrite => "write of the log",
            Step::Follower => "wait for a follower",
            Step::Majority => "wait for the majority",
            Step::Reply => "reply",
            Step::ReadWait => "wait for lease or majority",
            Step::ReadData => "engine and device",
        }
    }

    /// Returns what makes the step long, and where to look.
    pub fn hint(self) -> &'static str {
        match self {
            Step::Proposal => {
                "requests wait for space in log or device, or for other requests of their PG: see `basalt status`"
            }
            Step::Network => {
                "a slow or lossy network, or an OSD whose event loop is busy: see `basalt top` and the CPUs"
            }
            Step::Append | Step::Reply => "the event loop of the OSD is busy: see its CPU and basalt_osd_turn_seconds",
            Step::LogWait => "the batch before it is not done: the device is slow, or takes many writes at once",
            Step::LogWrite => {
                "the device is slow at writes and flushes: compare it with the other OSDs, and see `basalt top`"
            }
            Step::Follower => "the followers that answered first have no record of these writes: run it for longer",
            Step::Majority => "a majority needed one more replica: compare the log writes of the OSDs of these PGs",
            Step::ReadWait => {
                "the leader has no lease and asks a majority for each read: see `basalt status` for OSDs that are down"
            }
            Step::ReadData => "the device is slow at reads, or destaging keeps it busy",
        }
    }
}

/// A step at an OSD; of the network, between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    pub step: Step,
    pub osd: OsdId,
    pub other: Option<OsdId>,
}

impl Hop {
    /// Returns the OSDs as tables show them.
    pub fn place(&self) -> String {
        self.other.map_or_else(|| self.osd.to_string(), |other| format!("{}, {other}", self.osd))
    }
}

/// The record of an operation in one OSD.
pub type Record<'a> = (OsdId, &'a OpReport);

struct Way<'a> {
    osd: OsdId,
    report: &'a OpReport,
}

impl Way<'_> {
    fn us(&self, from: Station, to: Station) -> Option<u64> {
        self.report.us(to)?.checked_sub(self.report.us(from)?)
    }

    fn hop(&self, step: Step, from: Station, to: Station) -> Option<(Hop, u64)> {
        Some((Hop { step, osd: self.osd, other: None }, self.us(from, to)?))
    }
}

/// Returns the hops of one operation, given all its records; `None` while its leader has not answered it.
pub fn of(records: &[Record]) -> Option<Vec<(Hop, u64)>> {
    let (osd, report) = records.iter().find(|(_, report)| report.us(Station::Replied).is_some())?;
    let leader = Way { osd: *osd, report };
    match report.op.kind {
        OpKind::Read => of_read(&leader),
        OpKind::Write => of_write(&leader, records),
    }
}

fn of_read(leader: &Way) -> Option<Vec<(Hop, u64)>> {
    use Station::{ReadBegun, ReadDone, Received, Replied};
    let hops = [
        leader.hop(Step::ReadWait, Received, ReadBegun),
        leader.hop(Step::ReadData, ReadBegun, ReadDone),
        leader.hop(Step::Reply, ReadDone, Replied),
    ];
    hops.into_iter().collect()
}

fn of_write(leader: &Way, records: &[Record]) -> Option<Vec<(Hop, u64)>> {
    use Station::{Acknowledged, Appended, Applied, Batched, Durable, Received, Replied};
    let us = |station| leader.report.us(station);
    let (own, applied) = (us(Durable)?, us(Applied)?);
    // An acknowledgement that came after the application was not part of the majority.
    let peer = us(Acknowledged).filter(|acknowledged| *acknowledged <= applied);
    let mut hops = vec![leader.hop(Step::Proposal, Received, Appended)];
    let held = if peer.is_some_and(|peer| peer > own) {
        hops.extend(of_follower(leader, records)?.into_iter().map(Some));
        Acknowledged
    } else {
        hops.push(leader.hop(Step::LogWait, Appended, Batched));
        hops.push(leader.hop(Step::LogWrite, Batched, Durable));
        Durable
    };
    hops.push(leader.hop(Step::Majority, held, Applied));
    hops.push(leader.hop(Step::Reply, Applied, Replied));
    hops.into_iter().collect()
}

/// Returns the hops from the leader's append to the first acknowledgement: of the follower that needed least, or the
/// acknowledgement came later than that one could send it.
fn of_follower(leader: &Way, records: &[Record]) -> Option<Vec<(Hop, u64)>> {
    use Station::{Acknowledged, AppendReceived, Appended, Batched, Durable};
    let waited = leader.us(Appended, Acknowledged)?;
    let ways = records.iter().map(|(osd, report)| Way { osd: *osd, report });
    let needed = ways.filter_map(|way| Some((way.us(AppendReceived, Durable)?, way))).filter(|(us, _)| *us <= waited);
    let Some((needed, follower)) = needed.min_by_key(|(us, way)| (*us, way.osd)) else {
        return Some(vec![leader.hop(Step::Follower, Appended, Acknowledged)?]);
    };
    let network = Hop { step: Step::Network, osd: leader.osd, other: Some(follower.osd) };
    let hops = [
        Some((network, waited - needed)),
        follower.hop(Step::Append, AppendReceived, Appended),
        follower.hop(Step::LogWait, Appended, Batched),
        follower.hop(Step::LogWrite, Batched, Durable),
    ];
    hops.into_iter().collect()
}

/// Times of one hop, or of one step wherever it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub step: Step,
    /// The OSDs of the hop; none for a step wherever it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Operations that waited here.
    pub count: usize,
    pub p50_us: u64,
    pub p99_us: u64,
    /// Part of the time of all operations of this kind, 0 to 1.
    pub share: f64,
}

/// The hops of all operations of one kind.
#[derive(Debug, Default)]
pub struct Sums {
    hops: BTreeMap<Hop, Vec<u64>>,
    totals: Vec<u64>,
}

impl Sums {
    /// Adds an operation.
    pub fn add(&mut self, hops: Vec<(Hop, u64)>) {
        self.totals.push(total(hops.iter().map(|(_, us)| *us)));
        for (hop, us) in hops {
            self.hops.entry(hop).or_default().push(us);
        }
    }

    /// Counts the operations.
    pub fn count(&self) -> usize {
        self.totals.len()
    }

    /// Returns the median and the 99th percentile of the whole, in microseconds.
    pub fn total_us(&self) -> (u64, u64) {
        let mut totals = self.totals.clone();
        (at(&mut totals, 0.5), at(&mut totals, 0.99))
    }

    /// Returns a line for each step, in the order of the way.
    pub fn steps(&self) -> Vec<Line> {
        let mut steps: BTreeMap<Step, Vec<u64>> = BTreeMap::new();
        for (hop, times) in &self.hops {
            steps.entry(hop.step).or_default().extend(times);
        }
        steps.into_iter().map(|(step, times)| self.line(step, None, times)).collect()
    }

    /// Returns a line for each hop, the one with most of the time first.
    pub fn hops(&self) -> Vec<Line> {
        let lines = self.hops.iter().map(|(hop, times)| self.line(hop.step, Some(hop.place()), times.clone()));
        let mut lines: Vec<Line> = lines.collect();
        lines.sort_by(|a, b| b.share.total_cmp(&a.share));
        lines
    }

    fn line(&self, step: Step, place: Option<String>, mut times: Vec<u64>) -> Line {
        let (whole, part) = (total(self.totals.iter().copied()), total(times.iter().copied()));
        let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        Line { step, place, count: times.len(), p50_us: at(&mut times, 0.5), p99_us: at(&mut times, 0.99), share }
    }
}

/// Adds times; those of a foreign page may be anything.
fn total(times: impl Iterator<Item = u64>) -> u64 {
    times.fold(0, u64::saturating_add)
}

/// Returns a quantile of the times; 0 of none.
fn at(times: &mut [u64], quantile: f64) -> u64 {
    times.sort_unstable();
    let rank = (times.len() as f64 * quantile).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::ops::{OpId, Passed};
    use types::{Epoch, PgId, PoolId, VolumeId};

    fn report(kind: OpKind, stations: &[(Station, u64)]) -> OpReport {
        let op = OpId { kind, volume: VolumeId(1), pg: PgId { pool: PoolId(1), n: 0 }, epoch: Epoch(1), seq: 128 };
        OpReport { op, stations: stations.iter().map(|(station, us)| Passed { station: *station, us: *us }).collect() }
    }

    /// A leader whose log was durable at `durable` and a follower acknowledged at `acknowledged`.
    fn leader(durable: u64, acknowledged: u64, applied: u64) -> OpReport {
        use Station::*;
        let stations = [
            (Received, 0),
            (Appended, 10),
            (Batched, 30),
            (Durable, durable),
            (Acknowledged, acknowledged),
            (Applied, applied),
            (Replied, applied + 5),
        ];
        report(OpKind::Write, &stations)
    }

    fn follower(durable: u64) -> OpReport {
        use Station::*;
        report(OpKind::Write, &[(AppendReceived, 0), (Appended, 2), (Batched, 40), (Durable, durable)])
    }

    fn shown(hops: &[(Hop, u64)]) -> Vec<(Step, String, u64)> {
        hops.iter().map(|(hop, us)| (hop.step, hop.place(), *us)).collect()
    }

    fn named(rows: &[(Step, &str, u64)]) -> Vec<(Step, String, u64)> {
        rows.iter().map(|(step, place, us)| (*step, (*place).to_owned(), *us)).collect()
    }

    #[test]
    fn a_write_waits_for_the_later_of_own_log_and_first_follower() {
        use Step::*;
        let (quick, slow) = (follower(300), follower(700));
        let own = leader(800, 500, 800);
        let hops = of(&[(OsdId(1), &own), (OsdId(2), &quick), (OsdId(3), &slow)]).expect("a way");
        let want = [
            (Proposal, "osd.1", 10),
            (LogWait, "osd.1", 20),
            (LogWrite, "osd.1", 770),
            (Majority, "osd.1", 0),
            (Reply, "osd.1", 5),
        ];
        assert_eq!(shown(&hops), named(&want));
        let own = leader(400, 500, 500);
        let hops = of(&[(OsdId(3), &slow), (OsdId(1), &own), (OsdId(2), &quick)]).expect("a way");
        let want = [
            (Proposal, "osd.1", 10),
            (Network, "osd.1, osd.2", 190),
            (Append, "osd.2", 2),
            (LogWait, "osd.2", 38),
            (LogWrite, "osd.2", 260),
            (Majority, "osd.1", 0),
            (Reply, "osd.1", 5),
        ];
        assert_eq!(shown(&hops), named(&want));
        assert_eq!(hops.iter().map(|(_, us)| us).sum::<u64>(), 505, "all of its time");
    }

    #[test]
    fn a_majority_of_three_waits_for_a_second_follower() {
        let own = leader(400, 500, 900);
        let hops = of(&[(OsdId(1), &own), (OsdId(2), &follower(300))]).expect("a way");
        assert_eq!(hops.iter().find(|(hop, _)| hop.step == Step::Majority).map(|(_, us)| *us), Some(400));
        let impossible = leader(5_000, 500, 900);
        assert_eq!(
            of(&[(OsdId(1), &impossible), (OsdId(2), &follower(300))]),
            None,
            "applied before its own log held it"
        );
    }

    #[test]
    fn records_that_are_incomplete_or_out_of_order_give_no_wrong_hop() {
        use Station::*;
        let own = leader(400, 500, 500);
        let hops = of(&[(OsdId(1), &own)]).expect("a way");
        assert_eq!(hops[1], (Hop { step: Step::Follower, osd: OsdId(1), other: None }, 490), "no record of a follower");
        assert_eq!(of(&[(OsdId(2), &follower(300))]), None, "no leader");
        assert_eq!(of(&[]), None);
        let strange =
            report(OpKind::Write, &[(Received, 90), (Appended, 10), (Durable, 20), (Applied, 20), (Replied, 20)]);
        assert_eq!(of(&[(OsdId(1), &strange)]), None, "times that go back");
        let early = report(OpKind::Read, &[(Received, 0), (Replied, 3)]);
        assert_eq!(of(&[(OsdId(1), &early)]), None, "a read that was refused by decision state alone");
    }

    #[test]
    fn sums_have_shares_of_all_time_and_the_hop_with_most_of_it_first() {
        let mut sums = Sums::default();
        let quick = follower(300);
        for durable in [800, 900, 1_000] {
            sums.add(of(&[(OsdId(1), &leader(durable, 500, durable)), (OsdId(2), &quick)]).expect("a way"));
        }
        sums.add(of(&[(OsdId(2), &leader(400, 600, 600)), (OsdId(3), &quick)]).expect("a way"));
        assert_eq!((sums.count(), sums.total_us()), (4, (805, 1_005)));
        let hops = sums.hops();
        assert_eq!((hops[0].step, hops[0].place.as_deref(), hops[0].count), (Step::LogWrite, Some("osd.1"), 3));
        assert_eq!((hops[0].p50_us, hops[0].p99_us), (870, 970));
        let all: f64 = hops.iter().map(|line| line.share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        let steps: Vec<Step> = sums.steps().iter().map(|line| line.step).collect();
        assert!(steps.is_sorted() && steps.contains(&Step::Network), "{steps:?}");
        assert_eq!((Sums::default().total_us(), Sums::default().hops()), ((0, 0), vec![]));
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        assert_eq!([at(&mut [], 0.5), at(&mut [7], 0.99), at(&mut [3, 1, 2], 0.5)], [0, 7, 2]);
        let mut many: Vec<u64> = (1..=100).rev().collect();
        assert_eq!([at(&mut many, 0.5), at(&mut many, 0.99)], [50, 99]);
    }
}
