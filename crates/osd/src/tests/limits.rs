//! I/O limits at leaders: clients without a limiter, leaders on several OSDs, other leaders, and requests that are refused after all.

use super::rig::{LONG, Rig, addr_of, ms, pg};
use crate::Phase;
use bus::LinkId;
use std::time::Duration;
use types::control::{LimitsPart, OsdDown};
use types::map::OsdAddr;
use types::{Epoch, OsdId, QosLimits, RateLimit, SectorRange, SessionId, VolumeChunk, VolumeId};
use wire::{Reject, Request, RequestBody};

const RATE: u64 = 300;

fn limits_of(rate: u64) -> QosLimits {
    QosLimits { iops: Some(RateLimit { rate, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE }
}

/// Sends the list of all limited volumes to each OSD, as meta does at the start of a stream.
fn limit_all(rig: &mut Rig, rate: u64) {
    let limits = limits_of(rate);
    for i in rig.all() {
        let part = LimitsPart { begins: true, goes_on: false, ends: true };
        rig.tell(i, OsdDown::Limits { part, volumes: vec![(VolumeId(1), limits)] });
    }
}

/// Makes OSD `i` lead PG `i`.
fn spread(rig: &mut Rig, count: usize) {
    for i in 0..count {
        for attempt in 0.. {
            assert!(attempt < 50, "the leadership is never transferred");
            let (pg, leader) = (pg(i as u32), rig.leader(pg(i as u32)));
            if leader == i {
                break;
            }
            rig.tell(leader, OsdDown::TransferLeader { pg, to: OsdId(i as u32 + 1) });
            rig.run(ms(200));
        }
    }
}

fn served(rig: &mut Rig) -> u64 {
    rig.all().map(|i| rig.osd(i).stats.metrics.reads.get()).sum()
}

/// Sends `weights[n]` reads to PG n every two milliseconds. Returns how many were served.
fn flood(rig: &mut Rig, weights: &[u32], seconds: u64) -> u64 {
    let before = served(rig);
    for _ in 0..seconds * 500 {
        for (n, weight) in weights.iter().enumerate() {
            (0..*weight).for_each(|_| rig.ask_read(pg(n as u32), 0, 1));
        }
        rig.run(ms(2));
    }
    served(rig) - before
}

#[test]
fn leaders_on_three_osds_hold_a_client_without_a_limiter_together() {
    let mut rig = Rig::new(30, [16; 3]);
    rig.make_pgs(3);
    spread(&mut rig, 3);
    let open = flood(&mut rig, &[2, 2, 2], 1);
    assert!(open > 2_500, "{open} reads without a limit");
    limit_all(&mut rig, RATE);
    flood(&mut rig, &[2, 2, 2], 6);
    for weights in [[2, 2, 2], [4, 1, 0], [0, 0, 3]] {
        let sum = flood(&mut rig, &weights, 8);
        let (least, most) = (RATE * 8 * 97 / 100, RATE * 8 * 101 / 100 + 3 * RATE / 2);
        assert!((least..=most).contains(&sum), "{sum} reads in 8 s at {RATE}/s, {weights:?}");
    }
    let throttled: u64 = rig.all().map(|i| rig.osd(i).stats.metrics.throttled.get()).sum();
    assert!(throttled > 5_000, "{throttled} refusals");
    // Another leader has the limit before it leads.
    rig.lead_all(2, 3);
    let sum = flood(&mut rig, &[2, 2, 2], 4);
    assert!(sum <= RATE * 4 * 101 / 100 + RATE, "{sum} reads in 4 s of one leader");
}

/// Runs until all OSDs have started and those that want links have dialled. Returns how many ends of links there are.
fn links(rig: &mut Rig) -> usize {
    rig.until(LONG, "all run", |rig| rig.all().all(|i| *rig.osd(i).phase() == Phase::Running));
    rig.run(ms(2_000));
    let pairs = rig.all().flat_map(|a| rig.all().map(move |b| (a, b)));
    pairs
        .collect::<Vec<_>>()
        .into_iter()
        .filter(|(a, b)| rig.osd(*a).bus.link_to(OsdId(*b as u32 + 1)).is_some())
        .count()
}

#[test]
fn osds_without_a_common_pg_have_links_once_a_volume_is_limited() {
    let mut rig = Rig::new(32, [16; 3]);
    assert_eq!(links(&mut rig), 0, "nothing needs them");
    limit_all(&mut rig, RATE);
    assert_eq!(links(&mut rig), 6, "before anything is admitted");
    // The limits are there first, and the addresses later.
    rig.kill(0);
    rig.start_waiting(0, Duration::ZERO, false);
    let part = LimitsPart { begins: true, goes_on: false, ends: true };
    rig.tell(0, OsdDown::Limits { part, volumes: vec![(VolumeId(1), limits_of(RATE))] });
    rig.welcome(0);
    assert_eq!(links(&mut rig), 6);
}

#[test]
fn osd_that_left_the_map_is_dialled_no_longer_unless_a_pg_has_it() {
    for pgs in [0, 1] {
        let mut rig = Rig::new(34, [16; 3]);
        rig.make_pgs(pgs);
        limit_all(&mut rig, RATE);
        assert_eq!(links(&mut rig), 6);
        let left = [1, 2].map(|i| OsdAddr { osd: OsdId(i + 1), addr: addr_of(i as usize) });
        // It is the one that dials.
        rig.tell(2, OsdDown::Osds { map_epoch: Epoch(2), osds: left.to_vec() });
        assert_eq!(links(&mut rig), if pgs == 0 { 4 } else { 6 });
    }
}

#[test]
fn osd_that_comes_back_hears_of_a_debt_that_lasts() {
    let mut rig = Rig::new(33, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    let limits = QosLimits { bandwidth: Some(RateLimit { rate: 512, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE };
    let part = LimitsPart { begins: true, goes_on: false, ends: true };
    let told = |rig: &mut Rig, i| rig.tell(i, OsdDown::Limits { part, volumes: vec![(VolumeId(1), limits)] });
    rig.all().for_each(|i| told(&mut rig, i));
    rig.kill(2);
    rig.run(ms(500));
    rig.ask_read(pg(0), 0, 1);
    rig.run(ms(500));
    rig.start(2);
    told(&mut rig, 2);
    rig.run(ms(2_500));
    let body = RequestBody::Read {
        chunk: VolumeChunk { volume: VolumeId(1), index: 0 },
        range: SectorRange::new(0, 8),
        snapshot: None,
    };
    let now = rig.osd(2).now;
    let Err(Reject::Throttled { wait_us }) = rig.osd(2).limits.admit(now, &body) else { panic!("8 s of the rate") };
    assert!((3_000_000..6_000_000).contains(&wait_us), "{wait_us}");
}

#[test]
fn request_that_fails_takes_nothing_from_the_limit() {
    let mut rig = Rig::new(31, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.ask_read(pg(0), 0, 1);
    rig.run(ms(200));
    limit_all(&mut rig, 10);
    let beyond = VolumeChunk { volume: VolumeId(1), index: 64 };
    for id in 0..200 {
        let body = RequestBody::Read { chunk: beyond, range: SectorRange::new(0, 8), snapshot: None };
        let request = Request { id: 1_000 + id, pg: pg(0), session: SessionId(1), epoch: Epoch(1), body };
        rig.osd(0).handle_request(LinkId(u64::MAX), request);
        rig.turn(0);
    }
    assert_eq!(rig.osd(0).stats.metrics.throttled.get(), 0, "each was refused as invalid");
    let before = served(&mut rig);
    (0..20).for_each(|_| rig.ask_read(pg(0), 0, 1));
    rig.run(ms(5));
    let now = served(&mut rig) - before;
    assert!((5..=6).contains(&now), "{now} of half a second of 10 a second, and a debt");
    // A follower charges nothing: it does not serve.
    let refused = rig.osd(1).stats.metrics.refused.get();
    let body = RequestBody::Read {
        chunk: VolumeChunk { volume: VolumeId(1), index: 0 },
        range: SectorRange::new(0, 8),
        snapshot: None,
    };
    let request = Request { id: 5_000, pg: pg(0), session: SessionId(1), epoch: Epoch(1), body };
    rig.osd(1).handle_request(LinkId(u64::MAX), request);
    assert_eq!((rig.osd(1).stats.metrics.refused.get(), rig.osd(1).stats.metrics.throttled.get()), (refused + 1, 0));
}

/// Requests of two volumes are more than an OSD has in service at once. Each is answered once, and the floor of one lets it through.
#[test]
fn requests_of_two_volumes_wait_for_each_other_and_all_are_answered() {
    let mut rig = Rig::new(32, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 1);
    let ask = |rig: &mut Rig, volume: u64, count: u64| {
        for id in 0..count {
            let chunk = VolumeChunk { volume: VolumeId(volume), index: 0 };
            let body = RequestBody::Read { chunk, range: SectorRange::new(0, 8), snapshot: None };
            let request = Request { id: 10_000 * volume + id, pg: pg(0), session: SessionId(1), epoch: Epoch(1), body };
            rig.osd(0).handle_request(LinkId(u64::MAX), request);
        }
    };
    let answers = |rig: &mut Rig| {
        let metrics = &rig.osd(0).stats.metrics;
        metrics.reads.get() + metrics.refused.get()
    };
    let before = answers(&mut rig);
    ask(&mut rig, 1, 150);
    ask(&mut rig, 2, 100);
    let waiting = rig.osd(0).shares.waiting();
    assert!(waiting > 0 && waiting <= 100, "{waiting}");
    let floor = QosLimits { floor_iops: limits_of(1000).iops, ..QosLimits::NONE };
    let part = LimitsPart { begins: true, goes_on: false, ends: true };
    rig.tell(0, OsdDown::Limits { part, volumes: vec![(VolumeId(2), floor)] });
    ask(&mut rig, 2, 1);
    rig.run(ms(200));
    let osd = rig.osd(0);
    assert_eq!((osd.shares.waiting(), osd.inflight.len()), (0, 0));
    assert_eq!(answers(&mut rig) - before, 251);
    assert_eq!(rig.osd(0).stats.metrics.throttled.get(), 0, "a floor limits nothing");
}
