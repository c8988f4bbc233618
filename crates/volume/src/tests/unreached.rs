//! A leader that others follow and this client cannot hear: the client reports it, and not too often.

use super::script::{Bench, write};
use crate::VolumeTuning;
use std::time::Duration;
use types::{OsdId, Time};
use wire::{Reject, RequestBody};

/// Searches for this long; every member but the first names the first as leader. Returns times and receivers of the reports.
fn search(b: &mut Bench, time: Duration) -> Vec<(Time, OsdId)> {
    let (end, mut reports) = (b.now + time, Vec::new());
    let mut sent = b.poll();
    loop {
        for (osd, request) in std::mem::take(&mut sent) {
            if let RequestBody::Unreached { leader, volume } = request.body {
                assert_eq!((leader, volume), (OsdId(1), b.volume.id()));
                reports.push((b.now, osd));
                b.reply(osd, &request, Ok(wire::ReplyBody::Done));
            } else if osd != OsdId(1) {
                b.reply(osd, &request, Err(Reject::NotLeader { hint: Some(OsdId(1)) }));
            }
        }
        sent = b.poll();
        if sent.is_empty() {
            if b.now >= end {
                return reports;
            }
            sent = b.sleep();
        }
    }
}

#[test]
fn leader_unheard_by_one_client_is_reported_within_half_a_second() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    let began = b.now;
    b.wire.heard = vec![(OsdId(1), began)];
    let reports = search(&mut b, Duration::from_secs(10));
    let (first, member) = reports[0];
    assert!(
        first >= began + VolumeTuning::default().silent && first <= began + Duration::from_millis(500),
        "{first:?}"
    );
    assert_ne!(member, OsdId(1));
    assert!((5..=9).contains(&reports.len()), "{} reports in ten seconds", reports.len());
    assert_eq!(b.volume.stats().reports, reports.len() as u64);
}

#[test]
fn unconnected_leader_is_reported_and_one_that_answers_pings_is_not() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    // The leader is slow: bytes come from it all the time.
    assert_eq!(search(&mut b, Duration::from_secs(10)), []);
    let mut b = Bench::plain();
    b.wire.down = vec![OsdId(1)];
    b.submit(write(0, 512), 1);
    let began = b.now;
    let reports = search(&mut b, Duration::from_secs(1));
    assert!(
        reports[0].0 >= began + VolumeTuning::default().silent && reports[0].0 <= began + Duration::from_millis(600),
        "{reports:?}"
    );
}

#[test]
fn a_leader_that_is_back_after_a_short_loss_is_asked_and_not_reported() {
    let mut b = Bench::plain();
    b.wire.heard = vec![(OsdId(1), b.now)];
    b.submit(write(0, 512), 1);
    b.poll();
    let mut sent = b.sleep();
    assert_eq!(sent[0].0, OsdId(2), "osd.1 fell silent");
    b.volume.handle_link(b.now, OsdId(1), false);
    b.volume.handle_link(b.now, OsdId(1), true);
    b.wire.heard = vec![(OsdId(1), b.now)];
    let up = b.now;
    // The leader answers the requests that it gets, and sends nothing else.
    while !sent.iter().any(|(osd, _)| *osd == OsdId(1)) {
        for (osd, request) in &sent {
            assert!(
                !matches!(request.body, RequestBody::Unreached { .. }),
                "nothing was asked of osd.1, so it is silent"
            );
            b.reply(*osd, request, Err(Reject::NotLeader { hint: Some(OsdId(1)) }));
        }
        sent = b.poll();
        if sent.is_empty() {
            sent = b.sleep();
        }
    }
    assert!(b.now <= up + VolumeTuning::default().probe, "{:?} after it came back", b.now.since(up));
}
