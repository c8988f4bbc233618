//! Answers from a segment that does not exist, and the questions before them (ADR 0008).

use super::script::{Bench, opened, pg, read, segments_answer, write};
use device::{Answer, Request};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, Refusal, SegmentPlace};
use types::{Epoch, Errno, IoBuf, OsdId, SEGMENT, SegmentIndex, SessionId, Time, VolumeId};
use wire::{Reject, ReplyBody, RequestBody};

/// Returns the one fence check that left, and its OSD.
fn question(b: &mut Bench) -> (OsdId, wire::Request) {
    let sent = b.poll();
    assert!(sent.len() == 1 && sent[0].1.body == RequestBody::FenceCheck { volume: VolumeId(7) }, "{sent:?}");
    sent.into_iter().next().expect("one left")
}

fn zeros(len: usize) -> Result<Answer, Errno> {
    Ok(Answer::Data(vec![IoBuf::zeros(len)]))
}

#[test]
fn writer_answers_from_a_hole_after_a_pg_confirms_its_session() {
    let mut b = Bench::plain();
    b.submit(read(SEGMENT, 4096), 1);
    b.submit(Request::Trim { offset: SEGMENT, len: SEGMENT }, 2);
    b.submit(Request::Extents { offset: SEGMENT + 4096, len: 1 << 20, since: None }, 3);
    let (osd, first) = question(&mut b);
    assert_eq!((osd, first.pg, first.session, first.epoch), (OsdId(1), pg(0), SessionId(9), Epoch(3)));
    // This read came after the check was made: the check's answer is too old for it.
    b.submit(read(SEGMENT + 512, 512), 4);
    assert!(b.done().is_empty() && b.wire.sent.is_empty() && b.out.meta.is_empty());

    b.reply(osd, &first, Ok(ReplyBody::Done));
    let (osd, second) = question(&mut b);
    let done = b.done();
    let extents = Ok(Answer::Extents(vec![(1 << 20, false)]));
    assert_eq!(done, [(1, zeros(4096)), (2, Ok(Answer::Done)), (3, extents)]);
    b.reply(osd, &first, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [], "a late copy of the first answer is none to the second question");
    b.reply(osd, &second, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(4, zeros(512))]);
    assert!(b.volume.is_idle() && b.volume.next_deadline() == Time::NEVER);
}

#[test]
fn preempted_writer_reads_no_zeros_from_presumed_holes() {
    let mut b = Bench::plain();
    b.submit(read(SEGMENT, 4096), 1);
    b.submit(Request::Trim { offset: SEGMENT, len: SEGMENT }, 2);
    let (osd, asked) = question(&mut b);
    b.reply(osd, &asked, Err(Reject::Failed(Errno::Fenced)));
    b.submit(read(0, 512), 3);
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, (1..=3).map(|token| (token, Err(Errno::Fenced))).collect::<Vec<_>>());
    assert_eq!(b.volume.failed(), Some(Errno::Fenced), "as after a refused write");
}

#[test]
fn fence_check_answer_other_than_done_confirms_nothing() {
    let mut b = Bench::plain();
    b.submit(read(SEGMENT, 512), 1);
    let (osd, asked) = question(&mut b);
    b.reply(osd, &asked, Ok(ReplyBody::Extents(Vec::new())));
    assert_eq!(b.done(), []);
    let mut again = Vec::new();
    while again.is_empty() {
        again = b.sleep();
    }
    b.reply(again[0].0, &again[0].1, Err(Reject::Failed(Errno::Gone)));
    assert_eq!(b.done(), [(1, Err(Errno::Gone))], "of a volume that was removed, as a read of what exists");
    assert_eq!(b.volume.failed(), None);
}

#[test]
fn fence_check_moves_on_from_a_silent_pg() {
    let mut b = Bench::new(&opened(4 * SEGMENT, 2, true), None);
    b.submit(read(3 * SEGMENT, 512), 1);
    let first = question(&mut b);
    assert_eq!(first.1.pg, pg(0));
    let mut other = None;
    while other.is_none() {
        other = b.sleep().into_iter().find(|(_, request)| request.pg == pg(1));
    }
    b.reply(first.0, &first.1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [], "that question was taken away");
    let (osd, request) = other.expect("it left");
    b.reply(osd, &request, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, zeros(512))]);
}

#[test]
fn segment_allocated_during_a_fence_check_is_read_from_its_pg() {
    let mut b = Bench::plain();
    b.submit(read(SEGMENT, 512), 1);
    let (osd, asked) = question(&mut b);
    b.submit(write(SEGMENT, 512), 2);
    b.poll();
    let ask = b.out.meta.remove(0);
    let place = SegmentPlace { segment: SegmentIndex(1), pgs: vec![pg(0)] };
    b.volume.handle_meta(b.now, &ask, segments_answer(vec![place]));
    b.reply(osd, &asked, Ok(ReplyBody::Done));
    let bodies: Vec<RequestBody> = b.poll().into_iter().map(|(_, request)| request.body).collect();
    assert!(bodies.iter().any(|body| matches!(body, RequestBody::Read { .. })), "{bodies:?}");
    assert_eq!(b.done(), []);
}

#[test]
fn timed_out_request_leaves_no_state_behind() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 1, true), Some(Duration::from_secs(3)));
    b.submit(read(SEGMENT, 512), 1);
    let (osd, asked) = question(&mut b);
    b.now = b.now + Duration::from_millis(100);
    b.submit(read(SEGMENT, 512), 2);
    b.poll();
    b.now = b.now + Duration::from_secs(4);
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(1, Err(Errno::TimedOut)), (2, Err(Errno::TimedOut))]);
    b.reply(osd, &asked, Ok(ReplyBody::Done));
    b.poll();
    b.submit(read(SEGMENT, 512), 3);
    let (osd, asked) = question(&mut b);
    b.reply(osd, &asked, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(3, zeros(512))]);
}

#[test]
fn writer_of_a_volume_without_segments_queries_meta() {
    let mut b = Bench::new(&opened(3 * SEGMENT, 0, true), None);
    b.submit(Request::Trim { offset: 0, len: 3 * SEGMENT }, 1);
    assert!(b.poll().is_empty());
    let ask = b.out.meta.remove(0);
    assert!(matches!(ask, ClientAsk::Segments { allocate: false, session: SessionId(9), .. }), "{ask:?}");
    b.volume.handle_meta(b.now, &ask, segments_answer(Vec::new()));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))], "one answer is for all holes of the request");

    b.submit(read(0, 512), 2);
    b.poll();
    let ask = b.out.meta.remove(0);
    let preempted = Refusal { code: codes::SESSION_FENCED, message: String::new() };
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Refused(preempted));
    assert_eq!(b.done(), [(2, Err(Errno::Fenced))]);
}

#[test]
fn segment_with_a_wrong_number_of_pgs_is_no_hole() {
    let mut b = Bench::new(&opened(3 * SEGMENT, 0, true), None);
    b.submit(read(SEGMENT, 512), 1);
    b.poll();
    let ask = b.out.meta.remove(0);
    let place = SegmentPlace { segment: SegmentIndex(1), pgs: vec![pg(0), pg(1)] };
    b.volume.handle_meta(b.now, &ask, segments_answer(vec![place]));
    assert_eq!(b.done(), [], "it holds data somewhere");
    b.now = b.now + Duration::from_secs(30);
    b.poll();
    assert!(matches!(b.out.meta.pop(), Some(ClientAsk::Segments { .. })), "meta is asked again");
}

#[test]
fn reader_of_a_snapshot_names_it_and_asks_nothing_about_holes() {
    let snapshot = Some(types::SnapshotId(12));
    let mut b = Bench::new(&types::control::Opened { snapshot, ..opened(4 * SEGMENT, 2, false) }, None);
    b.submit(read(SEGMENT, 512), 1);
    b.submit(Request::Extents { offset: 0, len: 4096, since: None }, 2);
    let sent = b.poll();
    let named = |body: &RequestBody| match body {
        RequestBody::Read { snapshot, .. } | RequestBody::Extents { snapshot, .. } => *snapshot,
        other => panic!("{other:?} is no read"),
    };
    let names: Vec<_> = sent.iter().map(|(_, request)| named(&request.body)).collect();
    assert_eq!(names, [snapshot, snapshot]);
    // A segment that is allocated after the open is none of the snapshot.
    b.submit(read(3 * SEGMENT, 512), 3);
    assert_eq!((b.poll().len(), b.out.meta.len()), (0, 0));
    assert_eq!(b.done(), [(3, zeros(512))]);
    b.submit(write(0, 512), 4);
    assert_eq!(b.done(), [(4, Err(Errno::ReadOnly))]);
}
