//! Rehearsed faults: late requests, errors and pauses, and what they never touch.

use super::script::{Bench, opened, read, write};
use crate::{OnUnavailable, VolumeTuning};
use device::{Answer, Request};
use std::time::Duration;
use types::faults::{Fault, FaultEffect, ToldFault};
use types::{Errno, OsdId, SEGMENT, SessionId, Time};
use wire::{ReplyBody, RequestBody};

const FOREVER: u64 = 3_600_000;

fn fault(id: u32, effect: FaultEffect, percent: u8, left_ms: u64) -> ToldFault {
    ToldFault { id, fault: Fault { effect, percent, reads: true, writes: true }, left_ms }
}

fn only(reads: bool, told: ToldFault) -> ToldFault {
    ToldFault { fault: Fault { reads, writes: !reads, ..told.fault }, ..told }
}

fn bench(told: &[ToldFault]) -> Bench {
    let mut b = Bench::new(&opened(3 * SEGMENT, 2, true), None);
    tell(&mut b, told);
    b
}

/// Passes faults to the volume, as an answer of meta does.
fn tell(b: &mut Bench, told: &[ToldFault]) {
    assert!(told.iter().all(ToldFault::is_possible));
    b.volume.set_faults(b.now, told);
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Answers all that leaves until nothing does, without a step of the clock. Returns the offsets of the writes.
fn serve(b: &mut Bench) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let sent = b.poll();
        if sent.is_empty() {
            return seen;
        }
        for (osd, request) in sent {
            let body = match &request.body {
                RequestBody::Write { range, .. } => {
                    seen.push(u64::from(range.start) * 512);
                    ReplyBody::Done
                }
                RequestBody::Read { .. } => {
                    ReplyBody::Data { crcs: types::CrcList::new(), payload: types::IoBuf::EMPTY }
                }
                _ => ReplyBody::Done,
            };
            b.reply(osd, &request, Ok(body));
        }
    }
}

/// Lets time pass until `end`, and serves all that leaves. Returns what ended, with its time.
fn run_until(b: &mut Bench, end: Time) -> Vec<(Duration, u64, Result<Answer, Errno>)> {
    let (began, mut ended, mut turns) = (b.now, Vec::new(), 0);
    loop {
        serve(b);
        let done = std::mem::take(&mut b.out.done);
        ended.extend(done.into_iter().map(|done| (b.now.since(began), done.token, done.result)));
        if b.now >= end {
            return ended;
        }
        b.now = b.volume.next_deadline().max(b.now).min(end);
        turns += 1;
        assert!(turns < 100_000, "it spins");
    }
}

fn times(b: &mut Bench, time: Duration) -> Vec<(u64, u64)> {
    let end = b.now + time;
    let ended = run_until(b, end);
    ended.into_iter().map(|(at, token, _)| (at.as_millis() as u64, token)).collect()
}

#[test]
fn late_requests_begin_when_their_latency_is_over() {
    let mut b = bench(&[only(false, fault(1, FaultEffect::Latency(500), 100, FOREVER))]);
    b.submit(write(0, 4096), 1);
    b.submit(read(8192, 4096), 2);
    b.submit(Request::Trim { offset: 1 << 20, len: 1 << 20 }, 3);
    b.submit(Request::Flush, 4);
    assert_eq!(times(&mut b, ms(499)), [(0, 4), (0, 2)], "a read and a flush are not late");
    assert!(b.wire.sent.is_empty());
    assert_eq!(times(&mut b, ms(100)), [(1, 1), (1, 3)]);
    assert_eq!(b.volume.stats().rehearsed, 2);
}

#[test]
fn failed_requests_send_nothing_and_take_no_number() {
    let mut b = bench(&[fault(1, FaultEffect::Error, 100, FOREVER)]);
    b.submit(write(0, 32 << 20), 1);
    b.submit(read(0, 4096), 2);
    assert!(b.poll().is_empty());
    assert_eq!(b.done(), [(1, Err(Errno::Rehearsed)), (2, Err(Errno::Rehearsed))]);
    assert!(b.volume.is_idle() && b.out.meta.is_empty());
    tell(&mut b, &[]);
    b.submit(write(0, 4096), 3);
    let sent = b.poll();
    assert!(matches!(sent[0].1.body, RequestBody::Write { seq: 1, .. }), "{sent:?}");
}

#[test]
fn share_of_the_requests_is_drawn_for_each_one() {
    let mut b = bench(&[fault(1, FaultEffect::Error, 10, FOREVER)]);
    let mut failed = 0;
    for token in 0..5_000 {
        b.submit(write(4096 * (token % 100), 512), token);
        serve(&mut b);
        failed += b.done().iter().filter(|(_, result)| result.is_err()).count();
    }
    assert!((400..=600).contains(&failed), "{failed} of 5000 at 10 %");
}

#[test]
fn pause_stops_all_requests_until_it_ends_by_the_own_clock() {
    let mut b = bench(&[fault(1, FaultEffect::Pause, 100, 30_000)]);
    b.submit(write(0, 4096), 1);
    assert_eq!(times(&mut b, ms(10_000)), []);
    b.submit(read(0, 4096), 2);
    b.submit(Request::Flush, 3);
    // Meta says the same again, later than it was said: the end does not move.
    tell(&mut b, &[fault(1, FaultEffect::Pause, 100, 30_000)]);
    assert_eq!(times(&mut b, ms(30_000)), [(0, 3), (20_000, 1), (20_000, 2)]);
    b.submit(write(0, 4096), 4);
    assert_eq!(times(&mut b, ms(1)), [(0, 4)], "meta is away, and the fault is over");
    assert_eq!(b.volume.faults().count(), 0);
    // The clock of meta was set back: it tells a fault that is over for this client.
    tell(&mut b, &[fault(1, FaultEffect::Pause, 100, 30_000)]);
    b.submit(write(0, 4096), 5);
    assert_eq!(times(&mut b, ms(1)), [(0, 5)]);
}

#[test]
fn removed_fault_lets_its_requests_go_at_once() {
    let mut b = bench(&[fault(1, FaultEffect::Pause, 100, FOREVER)]);
    (0..50).for_each(|n| b.submit(write(n * 4096, 4096), n));
    assert_eq!(times(&mut b, ms(2_000)), []);
    tell(&mut b, &[fault(2, FaultEffect::Latency(100), 100, FOREVER)]);
    let ended: Vec<u64> = times(&mut b, ms(1)).into_iter().map(|(_, token)| token).collect();
    assert_eq!(ended, (0..50).collect::<Vec<_>>(), "by arrival, and none is late on top");
}

#[test]
fn new_fault_of_the_same_kind_is_no_longer_the_old_one() {
    let mut b = bench(&[fault(1, FaultEffect::Pause, 100, 2_000)]);
    b.now = b.now + ms(1_000);
    tell(&mut b, &[fault(2, FaultEffect::Pause, 100, 2_000)]);
    b.submit(write(0, 512), 1);
    assert_eq!(times(&mut b, ms(5_000)), [(2_000, 1)]);
}

#[test]
fn write_never_passes_an_earlier_late_one_to_its_sectors() {
    let mut b = bench(&[fault(1, FaultEffect::Latency(500), 100, FOREVER)]);
    b.submit(write(0, 4096), 1);
    // From now on no write is late by its own draw.
    let told = [only(true, fault(1, FaultEffect::Latency(500), 100, FOREVER))];
    tell(&mut b, &told);
    b.submit(write(512, 512), 2);
    b.submit(write(4096, 512), 3);
    b.submit(write(512, 8192), 4);
    let first = b.poll();
    let starts: Vec<u32> = first
        .iter()
        .map(|(_, request)| match &request.body {
            RequestBody::Write { range, .. } => range.start,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(starts, [8], "it overlaps none that waits");
    b.reply(OsdId(1), &first[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(3, Ok(Answer::Done))]);
    assert_eq!(times(&mut b, ms(500)), [(500, 1), (500, 2), (500, 4)], "in the order of their arrival");
    assert!(b.volume.is_idle());
}

#[test]
fn requests_that_wait_are_within_the_limits_of_the_volume() {
    let mut b = bench(&[fault(1, FaultEffect::Pause, 100, FOREVER)]);
    let most = VolumeTuning::default().requests_max as u64;
    (0..most).for_each(|n| b.submit(read(n * 4096, 512), n));
    assert!(b.volume.submit(b.now, read(0, 512), most).is_err());
    assert_eq!(times(&mut b, ms(60_000)), []);
    let stall = b.volume.stall(b.now).expect("all of them wait");
    assert!(stall.rehearsed && stall.requests == most as usize, "{stall:?}");
    tell(&mut b, &[]);
    assert_eq!(times(&mut b, ms(1)).len(), most as usize);
}

#[test]
fn pause_counts_as_an_outage_for_the_policy_and_latency_does_not() {
    let late = fault(2, FaultEffect::Latency(20_000), 100, FOREVER);
    for (policy, told, want) in [
        (OnUnavailable::Error, fault(1, FaultEffect::Pause, 100, FOREVER), 5_000),
        (OnUnavailable::Wait(ms(9_000)), fault(1, FaultEffect::Pause, 100, FOREVER), 9_000),
        (OnUnavailable::Error, late, 20_000),
    ] {
        let mut b = bench(&[told]);
        b.volume.config.on_unavailable = policy;
        b.submit(write(0, 512), 1);
        let end = b.now + ms(30_000);
        let ended = run_until(&mut b, end);
        let result = if told.id == 1 { Err(Errno::TimedOut) } else { Ok(Answer::Done) };
        assert_eq!(ended, [(ms(want), 1, result)], "{policy}");
        assert!(b.volume.is_idle());
    }
}

#[test]
fn pause_that_is_known_as_an_outage_fails_later_requests_without_a_wait() {
    let pause = only(false, fault(1, FaultEffect::Pause, 100, FOREVER));
    let mut b = bench(&[pause]);
    b.volume.config.on_unavailable = OnUnavailable::Error;
    b.submit(write(0, 512), 1);
    let end = b.now + ms(5_000);
    assert!(!b.volume.is_paused(), "no request has waited for too long");
    assert_eq!(run_until(&mut b, end), [(ms(5_000), 1, Err(Errno::TimedOut))]);
    assert!(b.volume.is_paused());
    for told in [pause, fault(1, FaultEffect::Pause, 100, FOREVER)] {
        // Meta repeats it, with another share of the requests.
        tell(&mut b, &[told, fault(2, FaultEffect::Latency(1), 100, FOREVER)]);
        b.submit(write(0, 512), 2);
        let end = b.now + ms(30);
        assert_eq!(run_until(&mut b, end), [(ms(0), 2, Err(Errno::TimedOut))]);
    }
    // Another pause is another outage, and is not known yet.
    tell(&mut b, &[fault(3, FaultEffect::Pause, 100, 2_000)]);
    b.submit(write(0, 512), 3);
    let end = b.now + ms(3_000);
    assert_eq!(run_until(&mut b, end), [(ms(2_000), 3, Ok(Answer::Done))]);
    assert!(!b.volume.is_paused());
}

#[test]
fn time_limit_of_a_request_ends_its_wait_for_a_fault() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 1, true), Some(ms(300)));
    tell(&mut b, &[fault(1, FaultEffect::Pause, 100, FOREVER)]);
    b.submit(write(0, 512), 1);
    b.submit(write(0, 512), 2);
    assert_eq!(times(&mut b, ms(400)), [(300, 1), (300, 2)]);
    assert!(b.volume.is_idle());
}

#[test]
fn fenced_volume_fails_requests_that_wait_for_a_fault() {
    let mut b = bench(&[only(false, fault(1, FaultEffect::Pause, 100, FOREVER))]);
    assert_eq!(b.volume.session(), SessionId(9));
    b.submit(write(0, 512), 1);
    b.submit(read(0, 512), 2);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(wire::Reject::Failed(Errno::Fenced)));
    assert_eq!(b.done(), [(1, Err(Errno::Fenced)), (2, Err(Errno::Fenced))], "a pause holds up no fence");
}
