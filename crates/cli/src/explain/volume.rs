//! `basalt explain volume`: what the requests of a volume wait for, and the slowest hop.
//!
//! Input: the pages `/ops` of all OSDs that are up, read again and again for a while. Output: tables by step and by hop.
//! Only operations that the first reading did not show count: pages hold old ones, too.

use super::hops::{self, Line, Record, Sums};
use crate::admin::Admin;
use crate::bench_trace::Page;
use crate::errors::Exit;
use crate::output;
use crate::top::http_addrs;
use anyhow::Result;
use osdpages::http;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use telemetry::ops::{OpId, OpKind, OpReport, Station};
use types::limits::SAMPLE_EVERY;
use types::{OsdId, VolumeId};

/// Pause between two readings.
const POLL: Duration = Duration::from_millis(250);
/// Hops that the table shows.
const HOPS_SHOWN: usize = 6;
/// Most operations that are remembered: pages of OSDs are foreign data.
const OPS_MAX: usize = 200_000;
/// Least number of operations from which on a hop is named the slowest.
const OPS_MIN: usize = 8;

/// Records by operation; an OSD counts its reads by itself, so a read is one of its OSD.
#[derive(Default)]
struct Seen {
    old: BTreeSet<(OsdId, OpId)>,
    new: BTreeMap<(OpId, Option<OsdId>), BTreeMap<OsdId, OpReport>>,
}

impl Seen {
    /// Takes one reading. Of the first one, what has ended already is left out from now on.
    fn take(&mut self, volume: VolumeId, osd: OsdId, ops: Vec<OpReport>, is_first: bool) {
        for report in ops.into_iter().filter(|report| report.op.volume == volume) {
            if is_first && report.us(Station::Replied).is_some() && self.old.len() < OPS_MAX {
                self.old.insert((osd, report.op));
            }
            if self.old.contains(&(osd, report.op)) {
                continue;
            }
            let reader = (report.op.kind == OpKind::Read).then_some(osd);
            if self.new.len() >= OPS_MAX && !self.new.contains_key(&(report.op, reader)) {
                continue;
            }
            self.new.entry((report.op, reader)).or_default().insert(osd, report);
        }
    }

    fn sums(&self, kind: OpKind) -> Sums {
        let mut sums = Sums::default();
        for ((op, _), records) in &self.new {
            let records: Vec<Record> = records.iter().map(|(osd, report)| (*osd, report)).collect();
            if let Some(way) = hops::of(&records).filter(|_| op.kind == kind) {
                sums.add(way);
            }
        }
        sums
    }
}

/// Watches a volume for `time`, and prints what its requests waited for.
///
/// # Errors
/// Meta's refusal, for example BSLT-2011 when there is no such volume, or an error when no meta answers.
pub fn run(admin: &Admin, name: &str, time: Duration, as_json: bool) -> Result<Exit> {
    let volume = admin.volume_info(name)?;
    let seen = watch(&http_addrs(&admin.osds()?), volume.volume, time);
    let (writes, reads) = (seen.sums(OpKind::Write), seen.sums(OpKind::Read));
    if as_json {
        let body = json!({
            "volume": volume.name,
            "seconds": time.as_secs_f64(),
            "sample_every": SAMPLE_EVERY,
            "writes": side_json(&writes),
            "reads": side_json(&reads),
        });
        output::json("explain.volume", body)?;
        return Ok(Exit::Done);
    }
    out!(
        "{}: {} sampled writes and {} reads in {} s, from the leader's receipt to its reply (one of {SAMPLE_EVERY} is sampled)",
        volume.name,
        writes.count(),
        reads.count(),
        time.as_secs()
    );
    for (what, sums) in [("write", &writes), ("read", &reads)] {
        if sums.count() > 0 {
            show(what, sums);
        }
    }
    if writes.count() + reads.count() == 0 {
        out!("nothing to explain: the volume was not used meanwhile, or too little; try --for 1m");
    }
    Ok(Exit::Done)
}

#[allow(clippy::disallowed_methods, reason = "it watches for a time that the user chose")]
fn watch(osds: &[(OsdId, SocketAddr)], volume: VolumeId, time: Duration) -> Seen {
    let (mut seen, began, mut is_first) = (Seen::default(), Instant::now(), true);
    loop {
        // An OSD that does not answer has no records.
        let page = |addr| serde_json::from_value::<Page>(http::get(addr, "/ops").ok()?.1).ok();
        for (osd, page) in http::ask_all(osds, page) {
            seen.take(volume, osd, page.ops, is_first);
        }
        is_first = false;
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() {
            return seen;
        }
        std::thread::sleep(POLL.min(left));
    }
}

/// Returns the hop that takes most of the time, if enough operations tell it.
fn slowest(sums: &Sums) -> Option<Line> {
    sums.hops().into_iter().next().filter(|_| sums.count() >= OPS_MIN)
}

fn side_json(sums: &Sums) -> Value {
    let slowest = slowest(sums).map(|line| json!({ "hop": line, "hint": line.step.hint() }));
    let (p50_us, p99_us) = sums.total_us();
    json!({
        "sampled": sums.count(),
        "p50_us": p50_us,
        "p99_us": p99_us,
        "steps": sums.steps(),
        "hops": sums.hops(),
        "slowest": slowest,
    })
}

fn row(line: &Line) -> Vec<String> {
    let percent = format!("{:.0} %", line.share * 100.0);
    let mut row = vec![line.step.name().to_owned()];
    row.extend(line.place.clone());
    row.extend([line.count.to_string(), line.p50_us.to_string(), line.p99_us.to_string(), percent]);
    row
}

fn show(what: &str, sums: &Sums) {
    let (p50, p99) = sums.total_us();
    let total = ["total".to_owned(), sums.count().to_string(), p50.to_string(), p99.to_string(), "100 %".to_owned()];
    out!("");
    output::table(
        &[&format!("step of a {what}"), "count", "p50 us", "p99 us", "share"],
        sums.steps().iter().map(row).chain([total.to_vec()]),
    );
    out!("");
    let hops = sums.hops();
    output::table(&["hop", "at", "count", "p50 us", "p99 us", "share"], hops.iter().take(HOPS_SHOWN).map(row));
    out!("");
    match slowest(sums) {
        Some(line) => {
            let (name, place, percent) = (line.step.name(), line.place.unwrap_or_default(), line.share * 100.0);
            out!("{what}s spend most time, {percent:.0} %, in: {name}, at {place}; {}", line.step.hint());
        }
        None => out!("fewer than {OPS_MIN} {what}s: too few to name the slowest hop; try --for 1m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::ops::Passed;
    use types::{Epoch, PgId, PoolId};

    fn read(seq: u64, volume: u64, ended: bool) -> OpReport {
        use Station::*;
        let pg = PgId { pool: PoolId(1), n: 0 };
        let op = OpId { kind: OpKind::Read, volume: VolumeId(volume), pg, epoch: Epoch(1), seq };
        let way = [(Received, 0), (ReadBegun, 5), (ReadDone, 90), (Replied, 95)];
        let passed = way.iter().take(if ended { 4 } else { 2 });
        OpReport { op, stations: passed.map(|(station, us)| Passed { station: *station, us: *us }).collect() }
    }

    #[test]
    fn only_what_ends_while_it_watches_counts_and_osds_number_reads() {
        let mut seen = Seen::default();
        seen.take(VolumeId(1), OsdId(1), vec![read(128, 1, true), read(256, 1, false), read(384, 2, true)], true);
        seen.take(VolumeId(1), OsdId(2), vec![], true);
        assert_eq!(seen.sums(OpKind::Read).count(), 0);
        seen.take(VolumeId(1), OsdId(1), vec![read(128, 1, true), read(256, 1, true)], false);
        seen.take(VolumeId(1), OsdId(2), vec![read(256, 1, true), read(128, 3, true)], false);
        let sums = seen.sums(OpKind::Read);
        assert_eq!((sums.count(), sums.total_us()), (2, (95, 95)));
        assert_eq!(seen.sums(OpKind::Write).count(), 0);
        assert_eq!((slowest(&sums), sums.hops()[0].p50_us), (None, 85), "too few to name one");
        (0..8).for_each(|n| seen.take(VolumeId(1), OsdId(3), vec![read(1_280 + n, 1, true)], false));
        let named = slowest(&seen.sums(OpKind::Read)).and_then(|line| line.place);
        assert_eq!(named.as_deref(), Some("osd.3"));
    }
}
