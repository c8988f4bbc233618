//! Credit of a connection that several PGs, or several volumes, share.

use super::script::{Bench, opened, pg, write};
use crate::VolumeTuning;
use std::time::Duration;
use types::{OsdId, PgId, SEGMENT};
use wire::{Reject, ReplyBody};

/// Writes once to each of two PGs, so that both are settled at OSD 1.
fn settled() -> Bench {
    let mut b = Bench::new(&opened(2 * SEGMENT, 2, true), None);
    b.submit(write(0, 512), 1);
    b.submit(write(SEGMENT, 512), 2);
    for (osd, request) in b.poll() {
        assert_eq!(osd, OsdId(1));
        b.reply(osd, &request, Ok(ReplyBody::Done));
    }
    assert_eq!(b.done().len(), 2);
    b
}

#[test]
fn leader_whose_credit_others_hold_is_asked_once_there_is_some() {
    let mut b = settled();
    let silent = VolumeTuning::default().silent;
    // Other volumes hold the credit, and the OSD answers them all the time.
    b.wire.credit = 0;
    b.submit(write(0, 512), 3);
    assert_eq!(b.poll(), []);
    let end = b.now + 3 * silent;
    while b.now < end {
        assert_eq!(b.sleep(), []);
    }
    b.now = b.now + Duration::from_micros(10);
    b.wire.credit = 1;
    let sent = b.poll();
    assert_eq!(sent.iter().map(|(osd, _)| *osd).collect::<Vec<_>>(), [OsdId(1)]);
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done().len(), 1);
}

#[test]
fn leader_whose_osd_is_silent_is_passed_over_while_credit_lacks() {
    let mut b = settled();
    let silent = VolumeTuning::default().silent;
    b.wire.credit = 0;
    b.wire.heard = vec![(OsdId(1), b.now)];
    b.submit(write(0, 512), 3);
    assert_eq!(b.poll(), []);
    let end = b.now + silent;
    while b.now < end {
        b.sleep();
    }
    b.now = b.now + Duration::from_millis(10);
    b.wire.credit = 1;
    let sent = b.poll();
    assert_ne!(sent[0].0, OsdId(1), "the other members are asked first");
}

#[test]
fn pg_with_another_leader_takes_no_turn_from_those_that_share_credit() {
    let mut b = Bench::new(&opened(3 * SEGMENT, 3, true), None);
    // PG 2 is led by OSD 2, whose credit is never short.
    b.wire.plenty = vec![OsdId(2)];
    b.submit(write(2 * SEGMENT, 512), 1);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(Reject::NotLeader { hint: Some(OsdId(2)) }));
    let sent = b.poll();
    assert_eq!(sent[0].0, OsdId(2));
    b.reply(OsdId(2), &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done().len(), 1);
    for n in 0..20 {
        (0..3).for_each(|pg| b.submit(write(pg * SEGMENT + n * 4096, 512), 100 * pg + n));
    }
    b.wire.credit = 1;
    let mut counts = [0; 2];
    for _ in 0..10 {
        let sent = b.poll();
        for (osd, request) in &sent {
            b.reply(*osd, request, Ok(ReplyBody::Done));
        }
        b.wire.credit = 1;
        counts
            .iter_mut()
            .zip([pg(0), pg(1)])
            .for_each(|(count, pg)| *count += sent.iter().filter(|(_, r)| r.pg == pg).count());
    }
    assert_eq!(counts, [5, 5], "the two PGs of OSD 1 take turns");
}

#[test]
fn two_pgs_with_one_leader_share_a_credit_of_one() {
    let mut b = settled();
    for n in 0..20 {
        b.submit(write(n * 4096, 512), 10 + n);
        b.submit(write(SEGMENT + n * 4096, 512), 100 + n);
    }
    let mut order: Vec<PgId> = Vec::new();
    b.wire.credit = 1;
    loop {
        let sent = b.poll();
        let [(osd, request)] = &sent[..] else { break };
        order.push(request.pg);
        b.reply(*osd, request, Ok(ReplyBody::Done));
        b.wire.credit = 1;
    }
    assert_eq!(order.len(), 40);
    let turns = order.chunks(2).filter(|two| two[0] != two[1]).count();
    assert_eq!(turns, 20, "PGs {} and {} take turns: {order:?}", pg(0), pg(1));
}
