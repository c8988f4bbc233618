//! I/O limits at the client, on a scripted clock: rates, order, directions, changes, and refusals of a leader.

use super::script::{Bench, opened, read, write};
use device::Request;
use std::time::Duration;
use types::qos::{Buckets, Cost, Direction, Strictness};
use types::{CHUNK, Errno, OsdId, QosLimits, RateLimit, SEGMENT, Time};
use wire::{Reject, ReplyBody, RequestBody};

fn rate(rate: u64) -> Option<RateLimit> {
    Some(RateLimit { rate, burst: 0, burst_seconds: 0 })
}

fn iops(n: u64) -> QosLimits {
    QosLimits { iops: rate(n), ..QosLimits::NONE }
}

fn limited(limits: QosLimits) -> Bench {
    Bench::new(&types::control::Opened { limits, ..opened(2 * SEGMENT, 1, true) }, None)
}

fn is_read(request: &wire::Request) -> bool {
    matches!(request.body, RequestBody::Read { .. })
}

/// Answers a request with zeros, or as done.
fn answer(b: &mut Bench, osd: OsdId, request: &wire::Request) {
    let body = match request.body {
        RequestBody::Read { .. } => ReplyBody::Data { crcs: types::CrcList::new(), payload: types::IoBuf::EMPTY },
        _ => ReplyBody::Done,
    };
    b.reply(osd, request, Ok(body));
}

/// Keeps `depth` requests in flight until `end`, each answered at once. Returns when each message left.
fn keep_busy(b: &mut Bench, depth: usize, end: Time, request: impl Fn(u64) -> Request) -> Vec<Time> {
    let (mut times, mut token, mut open) = (Vec::new(), 0, 0);
    while b.now < end {
        while open < depth {
            token += 1;
            b.submit(request(token), token);
            open += 1;
        }
        for (osd, message) in b.poll() {
            times.push(b.now);
            answer(b, osd, &message);
        }
        let done = b.done().len();
        open -= done;
        if done == 0 {
            b.now = b.volume.next_deadline().min(end);
        }
    }
    times
}

/// Returns the count of each second.
fn by_second(times: &[Time], from: Time, seconds: usize) -> Vec<usize> {
    let mut counts = vec![0; seconds];
    times.iter().for_each(|at| counts[at.since(from).as_secs() as usize] += 1);
    counts
}

#[test]
fn minute_of_saturation_averages_to_the_limit_in_every_second() {
    let parts = |token: u64| write((token % 64) * 8192, 4096);
    let large = |token: u64| write((token % 8) << 20, 1 << 20);
    let bandwidth = QosLimits { bandwidth: rate(4 << 20), ..QosLimits::NONE };
    for (limits, request, per_second) in [
        (iops(500), &parts as &dyn Fn(u64) -> Request, 500),
        (bandwidth, &large, 8),
        // A request of 1 MiB is two operations.
        (iops(30), &large, 30),
    ] {
        let mut b = limited(limits);
        let from = b.now;
        let times = keep_busy(&mut b, 32, from + Duration::from_secs(60), request);
        let counts = by_second(&times, from, 60);
        let sum: usize = counts.iter().sum();
        assert!(sum.abs_diff(60 * per_second) <= 60 * per_second * 3 / 100, "{sum} in 60 s, {limits:?}");
        assert!(counts[1..].iter().all(|n| n.abs_diff(per_second) <= per_second / 50 + 2), "{counts:?}");
        assert!(b.volume.stats().limited > 0);
    }
}

#[test]
fn direction_without_tokens_keeps_nothing_of_the_other() {
    let mut b = limited(QosLimits { write_iops: rate(10), ..QosLimits::NONE });
    for token in 0..50 {
        b.submit(write(token * 8192, 4096), token);
    }
    for token in 50..100 {
        b.submit(read((token - 50) * 8192 + 4096, 4096), token);
    }
    let sent = b.poll();
    let reads = sent.iter().filter(|(_, request)| is_read(request)).count();
    assert_eq!((reads, sent.len() - reads), (50, 1), "a tenth of a second of 10 writes a second is one");
    for (osd, request) in sent {
        answer(&mut b, osd, &request);
    }
    // The other writes leave one by one, in the order in which they came.
    let (mut last, mut left, from) = (0, 1, b.now);
    while left < 50 {
        b.done();
        for (osd, request) in b.sleep() {
            let RequestBody::Write { range, .. } = &request.body else { panic!("{request:?}") };
            assert_eq!(range.start, last + 16);
            (last, left) = (range.start, left + 1);
            answer(&mut b, osd, &request);
        }
    }
    let took = b.now.since(from);
    assert!(took.abs_diff(Duration::from_millis(4_900)) < Duration::from_millis(110), "{took:?}");
}

#[test]
fn shared_limit_is_given_to_the_oldest_request_of_either_direction() {
    let mut b = limited(iops(100));
    for token in 0..60 {
        let request = if token % 3 == 0 { write(token * 4096, 4096) } else { read(token * 4096, 4096) };
        b.submit(request, token);
    }
    let mut tokens = Vec::new();
    while tokens.len() < 60 {
        for (osd, request) in b.poll() {
            answer(&mut b, osd, &request);
        }
        tokens.extend(b.done().into_iter().map(|(token, _)| token));
        b.now = b.now + Duration::from_millis(1);
    }
    let late = tokens.iter().enumerate().map(|(at, token)| token.abs_diff(at as u64)).max();
    assert!(late <= Some(10), "those of one portion may change places: {tokens:?}");
}

#[test]
fn changed_limits_hold_at_once_and_no_limit_lets_all_go_in_order() {
    let mut b = Bench::plain();
    (0..8).for_each(|token| b.submit(write(token * 4096, 4096), token));
    for (osd, request) in b.poll() {
        answer(&mut b, osd, &request);
    }
    assert_eq!(b.done().len(), 8, "without a limit all leave at once");
    assert!(b.volume.set_limits(b.now, iops(10)) && !b.volume.set_limits(b.now, iops(10)));
    for token in 100..200 {
        b.submit(write((token - 100) * 4096, 4096), token);
    }
    let sent = b.poll().len();
    assert!(sent <= 9, "{sent} left at 10 a second");
    assert!(b.volume.set_limits(b.now, iops(1_000)));
    assert_eq!(b.volume.limits(), iops(1_000));
    b.now = b.now + Duration::from_millis(20);
    let more = b.poll().len();
    assert!((15..=25).contains(&more), "{more} left in 20 ms at 1000 a second");
    assert!(b.volume.set_limits(b.now, QosLimits::NONE));
    let starts: Vec<u32> = b
        .poll()
        .iter()
        .map(|(_, request)| match &request.body {
            RequestBody::Write { range, .. } => range.start,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(starts.len() + sent + more >= 100 && starts.is_sorted(), "{starts:?}");
}

#[test]
fn waiting_request_times_out_and_takes_no_token() {
    let patience = Some(Duration::from_millis(300));
    let mut b = Bench::new(&types::control::Opened { limits: iops(10), ..opened(2 * SEGMENT, 1, true) }, patience);
    for token in 0..20 {
        b.submit(write(token * 4096, 4096), token);
    }
    for (osd, request) in b.poll() {
        answer(&mut b, osd, &request);
    }
    let mut timed_out = 0;
    while b.volume.fill().requests > 0 {
        b.now = b.volume.next_deadline().max(b.now + Duration::from_millis(1));
        for (osd, request) in b.poll() {
            answer(&mut b, osd, &request);
        }
        timed_out += b.done().into_iter().filter(|(_, result)| *result == Err(Errno::TimedOut)).count();
    }
    assert!((15..=17).contains(&timed_out), "{timed_out} of 20 in 300 ms at 10 a second");
    b.now = b.now + Duration::from_secs(1);
    b.submit(write(0, 4096), 99);
    assert_eq!(b.poll().len(), 1, "those that timed out took no token");
}

#[test]
fn failed_volume_answers_the_requests_that_wait() {
    let mut b = limited(iops(10));
    (0..5).for_each(|token| b.submit(write(token * 4096, 4096), token));
    b.volume.fail(Errno::Fenced);
    assert_eq!(b.done().len(), 5);
    assert_eq!(b.volume.next_deadline(), Time::NEVER);
}

#[test]
fn discards_and_flushes_pass_a_limit_of_bytes() {
    let mut b = limited(QosLimits { bandwidth: rate(64 << 10), ..QosLimits::NONE });
    for token in 0..10 {
        b.submit(Request::Trim { offset: token << 20, len: 1 << 20 }, token);
    }
    assert_eq!(b.poll().len(), 10);
    b.submit(Request::Flush, 11);
    assert_eq!(b.done().len(), 1);
}

#[test]
fn large_request_leaves_part_by_part_and_no_leader_refuses_any() {
    let chunks = SEGMENT / CHUNK;
    let trim = Request::Trim { offset: 0, len: SEGMENT };
    let fill = Request::WriteZeroes { offset: 0, len: 32 << 20, no_hole: true };
    let bandwidth = QosLimits { bandwidth: rate(4 << 20), ..QosLimits::NONE };
    for (limits, request, parts, seconds) in [
        (iops(16), trim, chunks, chunks / 16),
        (iops(16), write(0, 32 << 20), 64, 4),
        (bandwidth, write(0, 32 << 20), 64, 8),
        (bandwidth, fill, 64, 8),
        (bandwidth, read(0, 32 << 20), 64, 8),
        (QosLimits { read_iops: rate(1), write_iops: rate(16), ..QosLimits::NONE }, write(0, 16 << 20), 32, 2),
    ] {
        let mut b = limited(limits);
        let leader = Strictness { depth: Duration::from_millis(500), slack_permille: 10 };
        let mut leader = Buckets::new(b.now, limits, leader);
        let (from, mut sent) = (b.now, 0);
        b.submit(request, 1);
        while b.out.done.is_empty() {
            let messages = b.poll();
            if messages.is_empty() && b.out.done.is_empty() {
                b.now = b.now.max(b.volume.next_deadline());
            }
            for (osd, message) in messages {
                let (direction, bytes) = match &message.body {
                    RequestBody::Read { range, .. } => (Direction::Read, range.len_bytes()),
                    RequestBody::Write { range, .. } => (Direction::Write, range.len_bytes()),
                    RequestBody::Zero { .. } => (Direction::Write, 0),
                    RequestBody::FenceCheck { .. } => {
                        answer(&mut b, osd, &message);
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(leader.wait(b.now, direction), Duration::ZERO, "{limits:?}: part {sent}");
                leader.take(b.now, direction, Cost { ops: 1, bytes: bytes as u64 });
                sent += 1;
                answer(&mut b, osd, &message);
            }
        }
        let took = b.now.since(from);
        let expected = Duration::from_secs(seconds);
        assert_eq!((sent, b.volume.stats().limited), (parts, 1), "{limits:?}");
        assert!(took <= expected && took + Duration::from_millis(350) >= expected, "{limits:?}: {took:?}");
    }
}

#[test]
fn request_that_has_begun_keeps_its_turn_and_stops_no_other_direction() {
    let mut b = limited(QosLimits { write_iops: rate(10), ..QosLimits::NONE });
    b.submit(Request::Trim { offset: 0, len: 8 * CHUNK }, 1);
    b.submit(write(9 * CHUNK, 4096), 2);
    b.submit(read(9 * CHUNK, 4096), 3);
    while b.out.done.len() < 3 {
        let messages = b.poll();
        if messages.is_empty() {
            b.now = b.now.max(b.volume.next_deadline());
        }
        messages.iter().for_each(|(osd, message)| answer(&mut b, *osd, message));
    }
    let order: Vec<u64> = b.out.done.iter().map(|completion| completion.token).collect();
    assert_eq!(order, [3, 1, 2], "the read at once, and the write behind the older discard");
}

#[test]
fn leader_that_holds_the_limit_is_asked_again_and_never_left() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    let mut sent = b.poll();
    for _ in 0..100 {
        let from = b.now;
        b.reply(OsdId(1), &sent[0].1, Err(Reject::Throttled { wait_us: 50_000 }));
        sent = b.poll();
        while sent.is_empty() {
            sent = b.sleep();
        }
        assert_eq!((sent.len(), sent[0].0, b.now), (1, OsdId(1), from + Duration::from_millis(50)));
    }
    answer(&mut b, OsdId(1), &sent[0].1.clone());
    assert_eq!((b.done().len(), b.volume.stats().searches), (1, 0));
}

#[test]
fn search_ends_at_the_leader_that_holds_the_limit() {
    let mut b = Bench::plain();
    (0..4).for_each(|token| b.submit(write(token * 4096, 512), token));
    let sent = b.poll();
    for (osd, request) in &sent {
        b.reply(*osd, request, Err(Reject::NotLeader { hint: Some(OsdId(2)) }));
    }
    let mut sent = b.poll();
    for _ in 0..20 {
        let from = b.now;
        assert!(sent.iter().all(|(osd, _)| *osd == OsdId(2)), "{sent:?}");
        for (osd, request) in &sent {
            b.reply(*osd, request, Err(Reject::Throttled { wait_us: 50_000 }));
        }
        assert_eq!(b.volume.stats().searches, 1, "it has found the leader");
        sent = b.poll();
        while sent.is_empty() {
            sent = b.sleep();
        }
        assert_eq!(b.now, from + Duration::from_millis(50));
    }
    while !sent.is_empty() {
        sent.iter().for_each(|(osd, request)| answer(&mut b, *osd, request));
        sent = b.poll();
    }
    assert_eq!((b.done().len(), b.volume.stats().searches), (4, 1));
}

#[test]
fn fence_check_is_no_part_of_a_request_and_ends_with_the_volume() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    for (osd, request) in b.poll() {
        answer(&mut b, osd, &request);
    }
    assert_eq!(b.done().len(), 1);
    // Nothing was written to the second segment: the holder is asked whether it still is the holder.
    b.submit(read(SEGMENT, 512), 2);
    let sent = b.poll();
    assert!(matches!(sent[0].1.body, RequestBody::FenceCheck { .. }), "{sent:?}");
    let fill = b.volume.fill();
    assert_eq!((fill.requests, fill.parts, fill.pg_parts), (1, 0, 0));
    b.volume.fail(Errno::Fenced);
    assert_eq!((b.volume.fill().parts, b.done().len()), (0, 1));
}
