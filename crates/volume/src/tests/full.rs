//! A PG without space: the writes that wait, their time, and the requests that pass meanwhile.

use super::script::{Bench, read, write};
use crate::VolumeTuning;
use device::{Answer, Request};
use std::time::Duration;
use types::{Errno, IoBuf, WhenFull};
use wire::{Reject, ReplyBody, RequestBody};

const WAIT: Duration = Duration::from_secs(3);

fn bench(full_wait: Duration) -> Bench {
    let mut b = Bench::plain();
    b.volume.config.full_wait = full_wait;
    b
}

/// Answers all messages until none leaves: writes from this sector on find no space. Returns the messages.
fn serve(b: &mut Bench, full_from: u32) -> Vec<RequestBody> {
    let mut seen = Vec::new();
    loop {
        let sent = b.poll();
        if sent.is_empty() {
            return seen;
        }
        for (osd, request) in sent {
            let result = match &request.body {
                RequestBody::Write { range, .. } if range.start >= full_from => Err(Reject::Failed(Errno::NoSpace)),
                RequestBody::Read { .. } => Ok(ReplyBody::Data { crcs: types::CrcList::new(), payload: IoBuf::EMPTY }),
                _ => Ok(ReplyBody::Done),
            };
            seen.push(request.body.clone());
            b.reply(osd, &request, result);
        }
    }
}

fn count_writes(seen: &[RequestBody]) -> usize {
    seen.iter().filter(|body| matches!(body, RequestBody::Write { .. })).count()
}

#[test]
fn a_backlog_without_space_fails_as_one_and_later_writes_at_once() {
    let mut b = bench(WAIT);
    let began = b.now;
    b.submit(write(4096, 4096), 1);
    serve(&mut b, 8);
    b.now = b.now + Duration::from_secs(1);
    (2..40).for_each(|n| b.submit(write(n * 4096, 4096), n));
    serve(&mut b, 8);
    while b.out.done.is_empty() {
        b.now = b.volume.next_deadline().max(b.now);
        serve(&mut b, 8);
        assert!(b.now.since(began) < 2 * WAIT, "it waits on");
    }
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, (1..40).map(|n| (n, Err(Errno::NoSpace))).collect::<Vec<_>>());
    assert!(b.now.since(began) >= WAIT, "{:?}", b.now.since(began));
    // From now on one refusal is enough; an overwrite passes and tells nothing of space.
    for (n, (at, result)) in
        [(8, Err(Errno::NoSpace)), (0, Ok(Answer::Done)), (8, Err(Errno::NoSpace))].iter().enumerate()
    {
        b.submit(write(at * 512, 4096), 100 + n as u64);
        serve(&mut b, 8);
        assert_eq!(b.done(), [(100 + n as u64, result.clone())]);
    }
    b.now = b.now + VolumeTuning::default().full_forget;
    b.submit(write(4096, 4096), 200);
    serve(&mut b, 8);
    assert_eq!(b.done(), [], "a new spell has its own wait");
}

#[test]
fn policy_of_the_volume_counts_more_than_the_wait_of_its_client() {
    let mut b = bench(WAIT);
    assert!(b.volume.set_when_full(WhenFull::Error) && !b.volume.set_when_full(WhenFull::Error));
    b.submit(write(4096, 4096), 1);
    serve(&mut b, 8);
    assert_eq!(b.done(), [(1, Err(Errno::NoSpace))], "it fails at once");
    b.now = b.now + VolumeTuning::default().full_forget;
    b.volume.set_when_full(WhenFull::Wait);
    b.submit(write(4096, 4096), 2);
    let began = b.now;
    while b.now.since(began) < 100 * WAIT {
        serve(&mut b, 8);
        b.now = b.volume.next_deadline().max(b.now + Duration::from_millis(1));
    }
    assert_eq!(b.done(), [], "it waits as long as it takes");
    let some = |b: &mut Bench, full_from| {
        for _ in 0..5 {
            b.now = b.now + Duration::from_secs(1);
            serve(b, full_from);
        }
        b.done()
    };
    assert_eq!(some(&mut b, u32::MAX), [(2, Ok(Answer::Done))], "there is space again");
    // A change counts for writes that wait already.
    b.submit(write(8192, 4096), 3);
    assert_eq!(some(&mut b, 8), []);
    b.volume.set_when_full(WhenFull::Error);
    assert_eq!(some(&mut b, 8), [(3, Err(Errno::NoSpace))]);
}

#[test]
fn trims_and_reads_pass_any_number_of_writes_that_wait_for_space() {
    let mut b = bench(Duration::from_secs(30));
    let count = u64::from(VolumeTuning::default().pg_parts_max) + 80;
    (1..=count).for_each(|n| b.submit(write(n * 4096, 4096), n));
    assert_eq!(count_writes(&serve(&mut b, 8)), count as usize, "each is tried once");
    b.submit(Request::Trim { offset: 8 << 20, len: 1 << 20 }, 1001);
    b.submit(read(0, 4096), 1002);
    b.submit(write(0, 512), 1003);
    serve(&mut b, 8);
    let mut done: Vec<u64> =
        b.done().into_iter().map(|(token, result)| result.map(|_| token).expect("it passes")).collect();
    done.sort_unstable();
    assert_eq!(done, [1001, 1002, 1003]);
    // One of them asks for space each second, whatever their number.
    let (mut tries, began) = (0, b.now);
    while b.now.since(began) < Duration::from_secs(8) {
        b.now = b.volume.next_deadline().max(b.now);
        tries += count_writes(&serve(&mut b, 8));
    }
    assert!((7..=9).contains(&tries), "{tries} in eight seconds");
    assert_eq!(b.done(), []);
    // Space is free again: all of them land, each once, within a scan.
    let began = b.now;
    let mut landed = 0;
    while landed < count as usize {
        b.now = b.volume.next_deadline().max(b.now);
        landed += count_writes(&serve(&mut b, u32::MAX));
        assert!(b.now.since(began) < Duration::from_secs(2), "{landed} of {count}");
    }
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, (1..=count).map(|n| (n, Ok(Answer::Done))).collect::<Vec<_>>());
    assert!(b.volume.is_idle());
}

#[test]
fn zeroes_that_wait_for_space_leave_room_for_trims_and_reads() {
    let mut b = bench(WAIT);
    // 3 GiB in parts of 512 KiB: more parts than a volume may have in flight.
    for n in 0..96 {
        b.submit(Request::WriteZeroes { offset: (n % 28 + 1) << 25, len: 32 << 20, no_hole: true }, n);
    }
    serve(&mut b, 8);
    b.submit(Request::Trim { offset: 8 << 20, len: 1 << 20 }, 1001);
    b.submit(read(0, 4096), 1002);
    b.submit(write(0, 512), 1003);
    serve(&mut b, 8);
    let mut done: Vec<u64> = b.done().into_iter().filter(|(_, r)| r.is_ok()).map(|(token, _)| token).collect();
    done.sort_unstable();
    assert_eq!(done, [1001, 1002, 1003]);
    // All of them end when the wait is over.
    let mut failed = 0;
    let began = b.now;
    while failed < 96 {
        b.now = b.volume.next_deadline().max(b.now);
        serve(&mut b, 8);
        failed += b.done().into_iter().filter(|(_, r)| *r == Err(Errno::NoSpace)).count();
        assert!(b.now.since(began) < 3 * WAIT, "{failed} of 96");
    }
    assert!(b.volume.is_idle());
}

#[test]
fn write_without_space_skips_its_number_if_an_earlier_copy_may_land() {
    let mut b = bench(WAIT);
    b.submit(write(4096, 4096), 1);
    let lost = b.poll();
    // The connection with the copy on it ends.
    b.volume.handle_link(b.now, lost[0].0, false);
    b.volume.handle_link(b.now, lost[0].0, true);
    let of = |seen: Vec<RequestBody>| -> Vec<(bool, u64)> {
        let number = |body: RequestBody| match body {
            RequestBody::Write { seq, .. } => (false, seq),
            RequestBody::Skip { seq, .. } => (true, seq),
            other => panic!("{other:?}"),
        };
        seen.into_iter().map(number).collect()
    };
    assert_eq!(of(serve(&mut b, 8)), [(false, 1), (true, 1)]);
    b.now = b.volume.next_deadline();
    assert_eq!(of(serve(&mut b, 8)), [(false, 2)], "it waits without a number, and is tried under a new one");
    assert_eq!(b.done(), []);
    b.now = b.volume.next_deadline();
    assert_eq!(of(serve(&mut b, u32::MAX)), [(false, 3)]);
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
}
