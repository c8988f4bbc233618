//! Stations of sampled writes at the leader and at its followers.

use super::rig::{EPOCH, LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use telemetry::ops::{OpId, OpKind, OpReport, Station};
use types::VolumeId;
use types::limits::SAMPLE_EVERY;

fn reports(rig: &mut Rig, i: usize) -> Vec<OpReport> {
    rig.osd(i).ask_tool(1, ToolAsk::Ops);
    match &rig.osd(i).take_tool_answers()[..] {
        [(1, ToolAnswer::Ops(reports))] => reports.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the stations of the only write that the OSD has recorded, and their times.
fn stations(rig: &mut Rig, i: usize, seq: u64) -> (Vec<Station>, Vec<u64>) {
    let reports = reports(rig, i);
    let [report] = &reports[..] else { panic!("one write is sampled: {reports:?}") };
    assert_eq!(report.op, OpId { kind: OpKind::Write, volume: VolumeId(1), pg: pg(0), epoch: EPOCH, seq });
    report.stations.iter().map(|passed| (passed.station, passed.us)).unzip()
}

#[test]
fn a_sampled_write_passes_its_stations_at_the_leader_and_at_followers() {
    use Station::*;
    let mut rig = Rig::new(21, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.skip_to(pg(0), SAMPLE_EVERY - 1);
    rig.write(pg(0), 0, 0, 1);
    rig.all().for_each(|i| assert_eq!(reports(&mut rig, i), [], "the write is not sampled"));
    rig.run(ms(100));
    rig.write(pg(0), 0, 1, 1);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(500));
    let (passed, at) = stations(&mut rig, 0, SAMPLE_EVERY);
    assert_eq!(passed, [Received, Appended, Batched, Durable, Acknowledged, Applied, Replied]);
    assert!(at[..4].is_sorted() && at[0] == 0 && at[3] > at[2], "the device takes time: {at:?}");
    assert_eq!([at[5], at[6]], [at[3].max(at[4]); 2], "two of three replicas hold it: {at:?}");
    let waited = at[4] - at[1];
    let mut took = Vec::new();
    for i in [1, 2] {
        let (passed, at) = stations(&mut rig, i, SAMPLE_EVERY);
        assert_eq!(passed, [AppendReceived, Appended, Batched, Durable, Applied]);
        assert!(at.is_sorted() && at[3] > at[2], "the device takes time: {at:?}");
        took.push(at[3]);
    }
    assert!(took.iter().any(|took| *took < waited), "a follower acknowledged it: {took:?}, {waited}");
}

#[test]
fn a_refused_sampled_write_leaves_no_record() {
    let mut rig = Rig::new(22, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.skip_to(pg(0), SAMPLE_EVERY);
    // A part ends at the border of its 512 KiB.
    let before = rig.answered(0);
    rig.submit(pg(0), 0, 127, 2);
    rig.until(LONG, "a refusal", |rig| rig.answered(0).1 > before.1);
    rig.all().for_each(|i| assert_eq!(reports(&mut rig, i), []));
}

#[test]
fn one_read_in_so_many_passes_its_stations_and_is_counted_by_stage() {
    use Station::*;
    let mut rig = Rig::new(23, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 1);
    // Only what home holds is read from the device.
    rig.run(ms(3_000));
    for _ in 1..SAMPLE_EVERY {
        rig.ask_read(pg(0), 0, 1);
        rig.run(ms(20));
    }
    assert_eq!(reports(&mut rig, 0), [], "none of these is sampled");
    rig.ask_read(pg(0), 0, 1);
    rig.run(ms(500));
    let reports = reports(&mut rig, 0);
    let [report] = &reports[..] else { panic!("one read is sampled: {reports:?}") };
    assert_eq!((report.op.kind, report.op.seq), (OpKind::Read, SAMPLE_EVERY));
    let passed: Vec<Station> = report.stations.iter().map(|passed| passed.station).collect();
    assert_eq!(passed, [Received, ReadBegun, ReadDone, Replied]);
    let text = telemetry::render(&[rig.registry(0)], telemetry::Format::Prometheus);
    let counted = |stage: &str, n: u64| text.contains(&format!("basalt_osd_stage_{stage}_seconds_count {n}"));
    assert!(counted("read_wait", 1) && counted("read_data", 1) && counted("read_reply", 1), "{text}");
    assert!(counted("write_log", 0), "{text}");
}
