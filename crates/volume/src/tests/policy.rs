//! Requests while a PG is unavailable, under each policy.

use super::script::{Bench, opened, read, segments_answer, write};
use crate::{OnUnavailable, VolumeTuning};
use device::{Answer, Request};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, Refusal, SegmentPlace};
use types::{Errno, IoBuf, OsdId, SEGMENT, SegmentIndex, Time};
use wire::{Reject, ReplyBody, RequestBody};

const ALL: [OsdId; 3] = [OsdId(1), OsdId(2), OsdId(3)];
const UNAVAILABLE: Duration = Duration::from_secs(5);

fn bench(policy: OnUnavailable) -> Bench {
    let mut b = Bench::new(&opened(3 * SEGMENT, 2, true), None);
    b.volume.config.on_unavailable = policy;
    b
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Takes all connections away.
fn cut(b: &mut Bench) {
    b.wire.down = ALL.to_vec();
    ALL.iter().for_each(|osd| b.volume.handle_link(b.now, *osd, false));
}

/// Brings all connections back.
fn mend(b: &mut Bench) {
    b.wire.down.clear();
    ALL.iter().for_each(|osd| b.volume.handle_link(b.now, *osd, true));
}

/// Runs until `end` while no message is answered. Returns what ended, with its time.
fn run_until(b: &mut Bench, end: Time) -> Vec<(Duration, u64, Result<Answer, Errno>)> {
    let (began, mut ended) = (b.now, Vec::new());
    let mut turns = 0;
    loop {
        b.poll();
        let done = std::mem::take(&mut b.out.done);
        ended.extend(done.into_iter().map(|done| (b.now.since(began), done.token, done.result)));
        if b.now >= end {
            ended.sort_by_key(|(_, token, _)| *token);
            return ended;
        }
        b.now = b.volume.next_deadline().max(b.now).min(end);
        turns += 1;
        assert!(turns < 200_000, "it spins");
    }
}

/// Answers all that leaves, from the first OSD, until nothing is in flight. Returns the numbers of skips and writes in their order.
fn serve(b: &mut Bench) -> Vec<(bool, u64)> {
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        for (osd, request) in b.poll() {
            let result = match &request.body {
                _ if osd != OsdId(1) => Err(Reject::NotLeader { hint: Some(OsdId(1)) }),
                RequestBody::Read { .. } => Ok(ReplyBody::Data { crcs: types::CrcList::new(), payload: IoBuf::EMPTY }),
                _ => Ok(ReplyBody::Done),
            };
            match request.body {
                RequestBody::Write { seq, .. } if result.is_ok() => seen.push((false, seq)),
                RequestBody::Skip { seq, .. } if result.is_ok() => seen.push((true, seq)),
                _ => {}
            }
            b.reply(osd, &request, result);
        }
        if b.volume.parts.is_empty() && b.volume.requests.is_empty() {
            return seen;
        }
        b.now = b.volume.next_deadline().max(b.now);
    }
    panic!("it never ends");
}

fn results(b: &mut Bench) -> Vec<(u64, bool)> {
    let mut done: Vec<_> = b.done().into_iter().map(|(token, result)| (token, result.is_ok())).collect();
    done.sort_unstable();
    done
}

#[test]
fn requests_fail_when_the_pg_is_unavailable_and_later_ones_at_once() {
    let mut b = bench(OnUnavailable::Error);
    cut(&mut b);
    b.submit(write(0, 4096), 1);
    b.submit(read(0, 4096), 2);
    let end = b.now + secs(7);
    let late = (UNAVAILABLE, Err(Errno::TimedOut));
    let ended = run_until(&mut b, end);
    assert_eq!(ended, [(late.0, 1, late.1.clone()), (late.0, 2, late.1.clone())]);
    // An outage that is known decides without a wait, and nothing leaves.
    for token in 3..400 {
        b.submit(write(4096 * token, 512), 2 * token);
        b.submit(read(4096 * token, 512), 2 * token + 1);
        assert!(b.poll().is_empty());
        let mut done = b.done();
        done.sort_by_key(|done| done.0);
        assert_eq!(done, [(2 * token, late.1.clone()), (2 * token + 1, late.1.clone())]);
    }
    assert_eq!((b.volume.unavailable_pgs(), b.volume.stats().unavailable), (1, 2 + 2 * 397));
    assert!(b.volume.parts.len() <= 1, "one question keeps the search alive: {}", b.volume.parts.len());
    // The storage is back: the search finds it, with no request of the user and no new open.
    mend(&mut b);
    assert_eq!(serve(&mut b), [], "no write that failed unsent arrives");
    assert_eq!(b.volume.unavailable_pgs(), 0);
    b.submit(write(0, 4096), 9001);
    b.submit(read(0, 4096), 9002);
    serve(&mut b);
    assert_eq!(results(&mut b), [(9001, true), (9002, true)]);
}

#[test]
fn each_request_waits_for_its_own_bound() {
    let mut b = bench(OnUnavailable::Wait(secs(30)));
    cut(&mut b);
    let began = b.now;
    b.submit(write(0, 4096), 1);
    assert_eq!(run_until(&mut b, began + secs(10)), []);
    b.submit(read(0, 4096), 2);
    assert_eq!(run_until(&mut b, began + secs(25)), []);
    b.submit(read(4096, 4096), 3);
    assert_eq!(
        run_until(&mut b, began + secs(41)),
        [(secs(5), 1, Err(Errno::TimedOut)), (secs(15), 2, Err(Errno::TimedOut))]
    );
    mend(&mut b);
    b.submit(write(8192, 4096), 4);
    serve(&mut b);
    assert_eq!(results(&mut b), [(3, true), (4, true)], "what waits goes on without a new open");
}

#[test]
fn frozen_requests_wait_for_days_within_the_limits_of_the_volume() {
    let mut b = bench(OnUnavailable::Freeze);
    cut(&mut b);
    let most = VolumeTuning::default().requests_max as u64;
    (0..most).for_each(|n| b.submit(if n % 2 == 0 { write(n * 4096, 512) } else { read(n * 4096, 512) }, n));
    let end = b.now + secs(3_600);
    assert_eq!(run_until(&mut b, end), []);
    assert!(b.volume.submit(b.now, read(0, 512), most).is_err(), "the depth bounds the memory");
    assert_eq!((b.volume.unavailable_pgs(), b.volume.stats().unavailable), (1, 0));
    mend(&mut b);
    serve(&mut b);
    assert!(results(&mut b).iter().all(|(_, ok)| *ok) && b.volume.is_idle());
}

#[test]
fn write_that_failed_is_skipped_before_a_later_one_to_its_sectors() {
    for policy in [OnUnavailable::Error, OnUnavailable::Wait(secs(6))] {
        let mut b = bench(policy);
        b.submit(write(0, 4096), 1);
        let lost = b.poll();
        assert!(matches!(lost[0].1.body, RequestBody::Write { seq: 1, .. }), "it may take effect at any time");
        let end = b.now + secs(8);
        assert_eq!(run_until(&mut b, end).len(), 1);
        // Under both policies this one waits behind the first, whose outcome is open.
        b.volume.config.on_unavailable = OnUnavailable::Freeze;
        b.submit(write(512, 512), 2);
        assert_eq!(serve(&mut b), [(true, 1), (false, 2)], "{policy}");
        assert_eq!(results(&mut b), [(2, true)]);
    }
}

#[test]
fn slow_pg_and_other_pgs_fail_no_request() {
    for policy in [OnUnavailable::Error, OnUnavailable::Wait(secs(6))] {
        let mut b = bench(policy);
        (0..40).for_each(|n| b.submit(write(n * 4096, 512), n));
        b.submit(read(SEGMENT, 512), 100);
        let mut queue = b.poll();
        let at = queue.iter().position(|(_, request)| request.pg.n == 1).expect("a read of the other PG");
        let silent = queue.remove(at);
        // One PG answers a request in two seconds, the other none at all.
        let mut failed = Vec::new();
        while let Some((osd, request)) = queue.pop() {
            let end = b.now + secs(2);
            failed.extend(run_until(&mut b, end).into_iter().filter(|(_, _, result)| result.is_err()));
            b.reply(osd, &request, Ok(ReplyBody::Done));
        }
        let failed: Vec<u64> = failed.into_iter().map(|(_, token, _)| token).collect();
        assert_eq!((failed, b.volume.unavailable_pgs()), (vec![100], 1), "{policy}");
        b.reply(silent.0, &silent.1, Ok(ReplyBody::Done));
    }
}

#[test]
fn leader_that_holds_a_limit_is_available_however_long_it_does() {
    let mut b = bench(OnUnavailable::Error);
    b.submit(write(0, 512), 1);
    let mut sent = b.poll();
    for _ in 0..30 {
        b.reply(sent[0].0, &sent[0].1, Err(Reject::Throttled { wait_us: 900_000 }));
        sent = Vec::new();
        while sent.is_empty() {
            sent = b.sleep();
        }
    }
    assert_eq!((b.done(), b.volume.unavailable_pgs()), (vec![], 0));
}

#[test]
fn request_that_waits_for_meta_fails_by_its_own_age() {
    for (policy, bound) in [(OnUnavailable::Error, UNAVAILABLE), (OnUnavailable::Wait(secs(9)), secs(9))] {
        let mut b = bench(policy);
        let end = b.now + secs(20);
        b.submit(write(2 * SEGMENT, 512), 1);
        assert_eq!(run_until(&mut b, end), [(bound, 1, Err(Errno::TimedOut))], "{policy}");
        // Meta is back, and the PG is there.
        b.submit(write(2 * SEGMENT, 512), 2);
        b.poll();
        while b.out.meta.is_empty() {
            b.sleep();
        }
        let ask = b.out.meta.pop().expect("a question for the segment");
        let place = SegmentPlace { segment: SegmentIndex(2), pgs: vec![super::script::pg(0)] };
        b.volume.handle_meta(b.now, &ask, segments_answer(vec![place]));
        assert_eq!(serve(&mut b), [(false, 1)]);
        assert_eq!(results(&mut b), [(2, true)]);
    }
}

#[test]
fn fenced_volume_fails_whatever_its_policy() {
    for policy in [OnUnavailable::Freeze, OnUnavailable::Wait(secs(60)), OnUnavailable::Error] {
        let mut b = bench(policy);
        cut(&mut b);
        b.submit(write(0, 512), 1);
        let end = b.now + secs(3);
        assert_eq!(run_until(&mut b, end), []);
        b.submit(write(2 * SEGMENT, 512), 2);
        b.poll();
        let ask = b.out.meta.pop().expect("a question for the segment");
        let why = Refusal { code: codes::SESSION_FENCED, message: String::new() };
        b.volume.handle_meta(b.now, &ask, ClientAnswer::Refused(why));
        b.submit(read(0, 512), 3);
        let mut done = b.done();
        done.sort_by_key(|done| done.0);
        assert_eq!(done, (1..4).map(|n| (n, Err(Errno::Fenced))).collect::<Vec<_>>(), "{policy}");
    }
}

#[test]
fn time_in_which_the_process_stood_still_does_not_count() {
    let mut b = bench(OnUnavailable::Error);
    b.submit(write(0, 512), 1);
    let sent = b.poll();
    b.submit(write(2 * SEGMENT, 512), 2);
    b.poll();
    // The process is stopped for a minute; the answers are read a turn later.
    b.now = b.now + secs(60);
    assert_eq!(b.done(), []);
    b.reply(sent[0].0, &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
    let end = b.now + secs(4);
    assert_eq!(run_until(&mut b, end), [], "meta has as long as before");
}

#[test]
fn trim_of_a_whole_volume_fails_once_and_leaves_bounded_parts() {
    let mut b = bench(OnUnavailable::Error);
    b.submit(Request::Trim { offset: 0, len: 2 * SEGMENT }, 1);
    b.submit(read(0, 512), 2);
    let end = b.now + secs(6);
    assert_eq!(run_until(&mut b, end).len(), 2);
    mend(&mut b);
    let skipped = serve(&mut b);
    assert!(!skipped.is_empty() && skipped.iter().all(|(skip, _)| *skip), "{skipped:?}");
    assert!(b.volume.is_idle() && b.volume.parts.is_empty());
}
