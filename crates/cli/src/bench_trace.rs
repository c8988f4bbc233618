//! `basalt bench --trace`: the steps of one sampled write, from the records of the client, the leader and a follower.
//!
//! Input: the client's own records and the `/ops` of the OSDs. Output: a table whose rows add up to the write's total.
//!
//! Clocks of two processes are never compared. The time in the network is the time that one process waited for the
//! other, less the time that the other one needed. It is of both ways, and includes queues of the connection.
//!
//! Invariant: the rows of [`Steps::rows`] add up to [`Steps::total_us`], and those of [`Steps::follower_rows`] to
//! [`Steps::acknowledged_us`].

use crate::admin::Admin;
use crate::output;
use crate::top::http_addrs;
use anyhow::Result;
use osdpages::http;
use serde::{Deserialize, Serialize};
use telemetry::ops::{OpId, OpReport, Station};
use types::OsdId;
use types::limits::SAMPLE_EVERY;

/// Page `/ops` of a process.
#[derive(Deserialize)]
pub struct Page {
    pub ops: Vec<OpReport>,
}

/// One step of a write.
#[derive(Serialize, Debug, PartialEq)]
pub struct Row {
    step: &'static str,
    process: String,
    us: u64,
}

/// The way of one write.
#[derive(Serialize, Debug, PartialEq)]
pub struct Steps {
    #[serde(flatten)]
    op: OpId,
    rows: Vec<Row>,
    total_us: u64,
    /// The steps of a follower, which run beside the leader's own log.
    follower_rows: Vec<Row>,
    /// From the leader's append until the first acknowledgement of a follower.
    acknowledged_us: u64,
}

/// Asks the OSDs, and returns the steps of the newest write that client, leader and a follower have recorded.
///
/// # Errors
/// Meta's refusal, or an error when no meta answers.
pub fn find(admin: &Admin, client: &[OpReport]) -> Result<Option<Steps>> {
    let ask = |addr| serde_json::from_value::<Page>(http::get(addr, "/ops").ok()?.1).ok();
    let pages = http::ask_all(&http_addrs(&admin.osds()?), ask);
    let osds: Vec<_> = pages.into_iter().map(|(osd, page)| (osd, page.ops)).collect();
    Ok(client.iter().rev().find_map(|write| steps(write, &osds)))
}

/// Times between stations of one process.
struct Way<'a> {
    process: String,
    report: &'a OpReport,
}

impl Way<'_> {
    /// Returns the microseconds between two stations; `None` when the write did not pass both in this order.
    fn us(&self, from: Station, to: Station) -> Option<u64> {
        self.report.us(to)?.checked_sub(self.report.us(from)?)
    }

    fn row(&self, step: &'static str, from: Station, to: Station) -> Option<Row> {
        Some(Row { step, process: self.process.clone(), us: self.us(from, to)? })
    }
}

/// Returns the row of the network between `here`, which waited for `waited_us`, and `there`, which needed `needed_us`.
fn network(here: &str, there: &str, waited_us: u64, needed_us: u64) -> Option<Row> {
    let us = waited_us.checked_sub(needed_us)?;
    Some(Row { step: "network, both ways", process: format!("{here}, {there}"), us })
}

fn steps(write: &OpReport, osds: &[(OsdId, Vec<OpReport>)]) -> Option<Steps> {
    use Station::*;
    let client = Way { process: "client".to_owned(), report: write };
    let records: Vec<(OsdId, &OpReport)> = osds
        .iter()
        .flat_map(|(osd, ops)| ops.iter().map(|report| (*osd, report)))
        .filter(|(_, report)| report.op == write.op)
        .collect();
    let way = |osd: &OsdId, role, report| Way { process: format!("{osd} {role}"), report };
    let (osd, report) = records.iter().find(|(_, report)| report.us(Replied).is_some())?;
    let leader = way(osd, "leader", report);
    let acknowledged_us = leader.us(Appended, Acknowledged)?;
    // The first acknowledgement is of the follower that needed least, or came later than that one could send it.
    let followers = records.iter().filter_map(|(osd, report)| {
        let follower = way(osd, "follower", report);
        Some((follower.us(AppendReceived, Durable)?, *osd, follower))
    });
    let (needed_us, follower_osd, follower) = followers.min_by_key(|(us, osd, _)| (*us, *osd))?;
    let rows = [
        client.row("wait in the client", Submitted, Sent),
        network("client", &osd.to_string(), client.us(Sent, Answered)?, leader.us(Received, Replied)?),
        leader.row("wait for the proposal", Received, Appended),
        leader.row("wait for the log", Appended, Batched),
        leader.row("write of the log", Batched, Durable),
        leader.row("wait for the majority", Durable, Applied),
        leader.row("reply", Applied, Replied),
        client.row("completion", Answered, Completed),
    ];
    let follower_rows = [
        network(&osd.to_string(), &follower_osd.to_string(), acknowledged_us, needed_us),
        follower.row("wait for the append", AppendReceived, Appended),
        follower.row("wait for the log", Appended, Batched),
        follower.row("write of the log", Batched, Durable),
    ];
    Some(Steps {
        op: write.op,
        rows: rows.into_iter().collect::<Option<_>>()?,
        total_us: client.us(Submitted, Completed)?,
        follower_rows: follower_rows.into_iter().collect::<Option<_>>()?,
        acknowledged_us,
    })
}

/// Prints the table, or the reason why there is none.
pub fn show(steps: Option<&Steps>) {
    let Some(steps) = steps else {
        return out!(
            "trace  no write: each {SAMPLE_EVERY}th write of a PG is sampled, and no sampled one was recorded by the \
             client, the leader and a follower; run longer, or measure a smaller volume"
        );
    };
    let OpId { volume, pg, epoch, seq, .. } = steps.op;
    out!("trace  write {}.{seq} of volume {} in PG {pg}", epoch.0, volume.0);
    let table = |rows: &[Row], sum: (&str, u64)| {
        let row = |row: &Row| vec![row.step.to_owned(), row.process.clone(), row.us.to_string()];
        let sum = vec![sum.0.to_owned(), String::new(), sum.1.to_string()];
        output::table(&["step", "process", "us"], rows.iter().map(row).chain([sum]));
    };
    table(&steps.rows, ("total", steps.total_us));
    out!("beside the leader's log, from its append to the first acknowledgement:");
    table(&steps.follower_rows, ("total", steps.acknowledged_us));
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::ops::{OpKind, Passed};
    use types::{Epoch, PgId, PoolId, VolumeId};

    fn report(seq: u64, stations: &[(Station, u64)]) -> OpReport {
        let op =
            OpId { kind: OpKind::Write, volume: VolumeId(1), pg: PgId { pool: PoolId(1), n: 0 }, epoch: Epoch(1), seq };
        let stations = stations.iter().map(|(station, us)| Passed { station: *station, us: *us }).collect();
        OpReport { op, stations }
    }

    fn client(seq: u64) -> OpReport {
        use Station::*;
        report(seq, &[(Submitted, 0), (Sent, 5), (Answered, 1005), (Completed, 1007)])
    }

    fn leader(seq: u64) -> OpReport {
        use Station::*;
        let log = [(Appended, 10), (Batched, 30), (Durable, 630), (Acknowledged, 830), (Applied, 830), (Replied, 830)];
        report(seq, &[&[(Received, 0)], &log[..]].concat())
    }

    fn follower(seq: u64, durable: u64) -> OpReport {
        use Station::*;
        report(seq, &[(AppendReceived, 0), (Appended, 0), (Batched, 40), (Durable, durable)])
    }

    fn us(rows: &[Row]) -> Vec<u64> {
        rows.iter().map(|row| row.us).collect()
    }

    #[test]
    fn rows_add_up_and_the_network_is_what_no_process_needed() {
        let osds = [
            (OsdId(1), vec![follower(7, 790)]),
            (OsdId(2), vec![leader(3), leader(7)]),
            (OsdId(3), vec![follower(7, 640)]),
        ];
        let steps = steps(&client(7), &osds).expect("all have recorded it");
        assert_eq!(us(&steps.rows), [5, 170, 10, 20, 600, 200, 0, 2]);
        assert_eq!(steps.total_us, 1007);
        assert_eq!(us(&steps.follower_rows), [180, 0, 40, 600]);
        assert_eq!(steps.acknowledged_us, 820);
        let processes: Vec<&str> = steps.rows.iter().map(|row| row.process.as_str()).collect();
        assert_eq!(processes[..3], ["client", "client, osd.2", "osd.2 leader"]);
        assert_eq!(steps.follower_rows[1].process, "osd.3 follower", "the fastest one");
        for (rows, sum) in [(&steps.rows, steps.total_us), (&steps.follower_rows, steps.acknowledged_us)] {
            assert_eq!(us(rows).iter().sum::<u64>(), sum);
        }
    }

    #[test]
    fn a_write_that_one_of_the_three_lacks_has_no_table() {
        let osds = |a: &[OpReport], b: &[OpReport]| [(OsdId(1), a.to_vec()), (OsdId(2), b.to_vec())];
        assert_eq!(steps(&client(7), &osds(&[leader(7)], &[])), None, "no follower");
        assert_eq!(steps(&client(7), &osds(&[], &[follower(7, 600)])), None, "no leader");
        assert_eq!(steps(&client(7), &osds(&[leader(7)], &[follower(6, 600)])), None, "another write");
        assert_eq!(steps(&client(7), &osds(&[leader(7)], &[follower(7, 900)])), None, "it did not acknowledge first");
        assert!(steps(&client(7), &osds(&[leader(7)], &[follower(7, 600)])).is_some());
    }

    #[test]
    fn a_page_is_read_as_a_process_serves_it() {
        let page = serde_json::json!({ "schema": "basalt.ops/1", "sample_every": SAMPLE_EVERY, "ops": [leader(7)] });
        let page: Page = serde_json::from_value(page).expect("a page");
        assert_eq!(page.ops, [leader(7)]);
    }
}
