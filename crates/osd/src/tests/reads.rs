//! Reads of clients that outlive the group that started them.

use super::rig::{LONG, Rig, ms, pg};
use std::time::Duration;
use types::BLOCK;

/// Returns the value of a counter, of a sum or of a count of the OSD.
fn metric(rig: &mut Rig, i: usize, name: &str) -> f64 {
    let text = telemetry::render(&[rig.registry(i)], telemetry::Format::Prometheus);
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.split(' ').nth(1)).unwrap_or_else(|| panic!("{name} is not in {text}"));
    value.parse().expect("a number")
}

/// A read of 20 to 200 µs takes minutes.
const MINUTES: u32 = 1_000_000;
/// Deadline for such a read.
const VERY_LONG: Duration = Duration::from_secs(3600);

#[test]
fn read_of_an_earlier_group_answers_no_read_of_the_next_group() {
    let mut rig = Rig::new(16, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    // The write is destaged, so that a read of it waits for the device.
    rig.run(Duration::from_secs(15));
    // The first read of this group: one block.
    rig.slow_reads(0, MINUTES);
    rig.ask_read(pg(0), 0, 1);
    rig.until(ms(500), "the device is at it", |rig| rig.osd(0).reads.len() == 1);
    rig.slow_reads(0, 1);
    // A stream brings other contents, and with them a new group.
    rig.lead_all(1, 1);
    let streams = rig.osd(1).streams_sent().0;
    [1, 2].into_iter().for_each(|i| rig.cut(0, i, true));
    rig.run(ms(500));
    rig.fill(pg(0), 30);
    [1, 2].into_iter().for_each(|i| rig.cut(0, i, false));
    rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
    assert!((1..3).map(|i| rig.osd(i).streams_sent().0).sum::<u64>() > streams, "the logs have passed it");
    rig.lead_all(0, 1);
    // The blocks from its peers are destaged, too.
    rig.run(Duration::from_secs(15));
    // The first read of the next group: eight blocks.
    rig.slow_reads(0, 4 * MINUTES);
    rig.ask_read(pg(0), 0, 8);
    rig.until(ms(500), "the device is at both", |rig| rig.osd(0).reads.len() == 2);
    rig.slow_reads(0, 1);
    rig.until(VERY_LONG, "one of them ends", |rig| rig.osd(0).reads.len() == 1);
    rig.run(ms(1));
    assert_eq!(rig.osd(0).stats.metrics.reads.get(), 0, "its request was refused long ago");
    rig.until(VERY_LONG, "the other one ends", |rig| rig.osd(0).reads.is_empty());
    rig.until(ms(10), "it is answered", |rig| rig.osd(0).stats.metrics.reads.get() == 1);
    assert_eq!(rig.osd(0).stats.metrics.read_bytes.get(), 8 * BLOCK, "what was asked for");
}

#[test]
fn a_read_that_one_turn_serves_takes_the_time_of_that_turn() {
    let mut rig = Rig::new(17, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 1);
    // The first read after a while asks a majority; the next ones are served under the lease.
    rig.ask_read(pg(0), 0, 1);
    rig.run(ms(200));
    let before = metric(&mut rig, 0, "basalt_osd_read_seconds_sum");
    let count = metric(&mut rig, 0, "basalt_osd_read_seconds_count");
    rig.turn(0);
    rig.give_read(pg(0), 0, 1);
    rig.turn_slowly(0, Duration::from_micros(250));
    assert!((metric(&mut rig, 0, "basalt_osd_read_seconds_count") - count - 1.0).abs() < 1e-9, "it is answered");
    let took = metric(&mut rig, 0, "basalt_osd_read_seconds_sum") - before;
    assert!((took - 250e-6).abs() < 1e-9, "{took} s");
}

#[test]
fn a_read_of_a_hole_counts_the_bytes_that_it_asked_for() {
    let mut rig = Rig::new(18, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.ask_read(pg(0), 0, 8);
    rig.until(LONG, "it is answered", |rig| rig.osd(0).stats.metrics.reads.get() == 1);
    assert_eq!(rig.osd(0).stats.metrics.read_bytes.get(), 8 * BLOCK);
    assert!(
        (metric(&mut rig, 0, "basalt_osd_volume_read_bytes_total{pool=\"1\",volume=\"1\"}") - 32768.0).abs() < 1e-9
    );
    assert!((metric(&mut rig, 0, "basalt_osd_pool_reads_total{pool=\"1\"}") - 1.0).abs() < 1e-9);
}
