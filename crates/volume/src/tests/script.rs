//! Scripts of single events: the messages that leave, their times and their OSDs.

use crate::{Admit, Carrier, OnUnavailable, Volume, VolumeConfig, VolumeOut, VolumeTuning};
use device::{Answer, Completion, Request};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, Refusal, SegmentPlace};
use types::map::{Member, PgMap};
use types::{ClusterId, Epoch, Errno, IoBuf, OsdId, PgId, PoolId, ReplicaId, SEGMENT, SegmentIndex, SessionId, Time};
use types::{QosLimits, SectorRange, Stripe, VolumeId};
use wire::{Reject, Reply, ReplyBody, RequestBody};

const MS: u64 = 1_000_000;

/// Makes the map of PG `n`, which lies on OSDs 1, 2, 3.
pub(super) fn pg_map(n: u32) -> PgMap {
    let member = |osd: u32| Member { replica: ReplicaId(u64::from(n * 10 + osd)), osd: OsdId(osd) };
    PgMap { pg: pg(n), conf_epoch: Epoch(1), members: vec![member(1), member(2), member(3)] }
}

pub(super) fn pg(n: u32) -> PgId {
    PgId { pool: PoolId(1), n }
}

/// Makes a volume whose first segments lie in PGs 0, 1, …, each presumably led by OSD 1.
pub(super) fn opened(len_bytes: u64, allocated: u32, write: bool) -> Opened {
    let segments = (0..allocated).map(|n| SegmentPlace { segment: SegmentIndex(n), pgs: vec![pg(n)] }).collect();
    let view = MapView {
        pgs: (0..allocated).map(pg_map).collect(),
        leaders: (0..allocated).map(|n| (pg(n), OsdId(1))).collect(),
        osds: Vec::new(),
    };
    Opened {
        snapshot: None,
        cluster: ClusterId::default(),
        volume: VolumeId(7),
        session: SessionId(u64::from(write) * 9),
        epoch: Epoch(3),
        len_epoch: 0,
        len_bytes,
        stripe: Stripe::NONE,
        limits: QosLimits::NONE,
        faults: Vec::new(),
        when_full: types::WhenFull::Client,
        multi_writer: false,
        write,
        segments,
        view,
    }
}

/// Records every message that leaves.
pub(super) struct Wire {
    pub(super) sent: Vec<(OsdId, wire::Request)>,
    pub(super) down: Vec<OsdId>,
    pub(super) credit: usize,
    /// OSDs whose connections are never short of credit.
    pub(super) plenty: Vec<OsdId>,
    /// Time of the last bytes from each OSD that fell silent; bytes from the others come now.
    pub(super) heard: Vec<(OsdId, Time)>,
}

impl Carrier for Wire {
    fn heard(&self, osd: OsdId) -> Option<Time> {
        let silent = self.heard.iter().find(|(of, _)| *of == osd).map(|(_, at)| *at);
        (!self.down.contains(&osd)).then(|| silent.unwrap_or(Time::NEVER))
    }

    fn admit(&mut self, osd: OsdId, _cost: usize) -> Admit {
        match (self.down.contains(&osd), self.credit) {
            (true, _) => Admit::NoLink,
            (false, 0) if !self.plenty.contains(&osd) => Admit::Wait,
            (false, _) => Admit::Go,
        }
    }

    fn send(&mut self, osd: OsdId, request: wire::Request) {
        if !self.plenty.contains(&osd) {
            self.credit -= 1;
        }
        self.sent.push((osd, request));
    }
}

pub(super) struct Bench {
    pub(super) volume: Volume,
    pub(super) wire: Wire,
    pub(super) out: VolumeOut,
    pub(super) now: Time,
}

impl Bench {
    pub(super) fn new(opened: &Opened, timeout: Option<Duration>) -> Bench {
        let (full_wait, tuning) = (Duration::ZERO, VolumeTuning::default());
        let on_unavailable = OnUnavailable::Freeze;
        let config = VolumeConfig { space: 5, serial: 100, timeout, full_wait, on_unavailable, tuning, seed: 1 };
        let volume = Volume::new(opened, config);
        let wire =
            Wire { sent: Vec::new(), down: Vec::new(), credit: usize::MAX, plenty: Vec::new(), heard: Vec::new() };
        Bench { volume, wire, out: VolumeOut::default(), now: Time(1_000 * MS) }
    }

    pub(super) fn plain() -> Bench {
        Bench::new(&opened(2 * SEGMENT, 1, true), None)
    }

    pub(super) fn submit(&mut self, request: Request, token: u64) {
        self.volume.submit(self.now, request, token).expect("not busy");
    }

    /// Polls; returns the messages that left.
    pub(super) fn poll(&mut self) -> Vec<(OsdId, wire::Request)> {
        self.volume.poll(self.now, &mut self.wire, &mut self.out);
        self.volume.check_books();
        std::mem::take(&mut self.wire.sent)
    }

    /// Sleeps until the volume's deadline; returns the messages that leave then.
    pub(super) fn sleep(&mut self) -> Vec<(OsdId, wire::Request)> {
        let deadline = self.volume.next_deadline();
        assert!(deadline > self.now && deadline < Time::NEVER, "deadline {deadline:?} at {:?}", self.now);
        self.now = deadline;
        self.poll()
    }

    pub(super) fn reply(&mut self, from: OsdId, request: &wire::Request, result: Result<ReplyBody, Reject>) {
        self.volume.handle_reply(self.now, from, Reply { id: request.id, result });
        self.volume.check_books();
    }

    pub(super) fn done(&mut self) -> Vec<(u64, Result<Answer, Errno>)> {
        self.poll();
        std::mem::take(&mut self.out.done).into_iter().map(|Completion { token, result }| (token, result)).collect()
    }
}

pub(super) fn write(offset: u64, len: usize) -> Request {
    Request::Write { offset, buf: IoBuf::copy_of(&vec![1; len]), fua: false }
}

pub(super) fn read(offset: u64, len: u64) -> Request {
    Request::Read { offset, len }
}

fn data(bytes: &[u8], start: u32) -> ReplyBody {
    let range = SectorRange::new(start, (bytes.len() / 512) as u32);
    ReplyBody::Data { crcs: range.fragment_crcs(bytes), payload: IoBuf::copy_of(bytes) }
}

#[test]
fn a_write_across_borders_leaves_as_numbered_parts_with_checksums() {
    let mut b = Bench::plain();
    b.submit(write((512 << 10) - 4096, 8192), 1);
    let sent = b.poll();
    assert_eq!(sent.len(), 2);
    for (at, (osd, request)) in sent.iter().enumerate() {
        assert_eq!((*osd, request.session, request.epoch), (OsdId(1), SessionId(9), Epoch(3)));
        let RequestBody::Write { range, seq, watermark, crcs, payload, .. } = &request.body else { panic!() };
        assert_eq!((*seq, *watermark, payload.len()), (at as u64 + 1, 1, 4096));
        assert!(range.verify(payload, crcs));
    }
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), []);
    b.reply(OsdId(1), &sent[1].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
    assert!(b.volume.is_idle());
}

#[test]
fn zero_part_covers_a_chunk_and_a_full_trim_takes_bounded_memory() {
    let mut b = Bench::new(&opened(6 * SEGMENT, 6, true), None);
    b.submit(Request::Trim { offset: 0, len: 6 * SEGMENT }, 1);
    let mut zeroed = 0;
    while b.out.done.is_empty() {
        for (osd, request) in b.poll() {
            let RequestBody::Zero { range, .. } = &request.body else { panic!() };
            assert_eq!(*range, SectorRange::CHUNK);
            zeroed += 1;
            b.reply(osd, &request, Ok(ReplyBody::Done));
        }
    }
    assert_eq!(zeroed, 6 * 64);
}

#[test]
fn zeroes_that_keep_their_space_are_written_out_in_a_segment_of_their_own() {
    let mut b = Bench::plain();
    b.submit(Request::WriteZeroes { offset: SEGMENT - 4096, len: 8192, no_hole: true }, 1);
    let written = |sent: &[(OsdId, wire::Request)]| {
        let [(_, request)] = sent else { panic!("{sent:?}") };
        let RequestBody::Write { range, crcs, payload, .. } = &request.body else { panic!("{request:?}") };
        assert!(payload.len() == 4096 && payload.is_shared_zeros() && range.verify(payload, crcs));
    };
    let first = b.poll();
    written(&first);
    let ask = b.out.meta.remove(0);
    let place = SegmentPlace { segment: SegmentIndex(1), pgs: vec![pg(0)] };
    b.volume.handle_meta(b.now, &ask, segments_answer(vec![place]));
    let second = b.poll();
    written(&second);
    b.reply(OsdId(1), &first[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), []);
    b.reply(OsdId(1), &second[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
}

#[test]
fn bytes_with_a_wrong_checksum_are_never_passed_on() {
    let mut b = Bench::plain();
    b.submit(read(0, 4096), 1);
    b.submit(read(4096, 4096), 2);
    let (good, mut bad) = (vec![7; 4096], 0);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[1].1, Ok(data(&good, 8)));
    let mut sent = vec![sent[0].clone()];
    while let Some((osd, request)) = sent.pop() {
        let ReplyBody::Data { mut crcs, payload } = data(&good, 0) else { panic!() };
        crcs[0] ^= 1;
        bad += 1;
        b.reply(osd, &request, Ok(ReplyBody::Data { crcs, payload }));
        sent = b.poll();
    }
    assert_eq!(bad, VolumeTuning::default().bad_reads_max);
    let done = b.done();
    assert_eq!(done, [(2, Ok(Answer::Data(vec![IoBuf::copy_of(&good)]))), (1, Err(Errno::Damaged))]);
}

#[test]
fn answers_of_a_wrong_kind_or_length_are_asked_again() {
    let mut b = Bench::plain();
    b.submit(read(0, 8192), 1);
    for wrong in [ReplyBody::Done, data(&[1; 4096], 0), ReplyBody::Extents(Vec::new())] {
        let sent = b.poll();
        b.reply(OsdId(1), &sent[0].1, Ok(wrong));
    }
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Ok(data(&[1; 8192], 0)));
    assert_eq!(b.done(), [(1, Ok(Answer::Data(vec![IoBuf::copy_of(&[1; 8192])])))]);
}

#[test]
fn a_write_waits_for_the_one_that_it_overlaps() {
    let mut b = Bench::plain();
    b.submit(write(0, 4096), 1);
    b.submit(write(512, 512), 2);
    b.submit(write(8192, 512), 3);
    let sent = b.poll();
    assert_eq!(sent.len(), 2, "the overlapping one is held");
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    let held = b.poll();
    let RequestBody::Write { seq, watermark, .. } = held[0].1.body else { panic!() };
    assert_eq!((held.len(), seq, watermark), (1, 3, 2));
}

#[test]
fn a_flush_completes_at_once_while_writes_are_in_flight() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    b.submit(Request::Flush, 2);
    let sent = b.poll();
    assert_eq!((sent.len(), b.done()), (1, vec![(2, Ok(Answer::Done))]), "what was answered is durable");
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
}

#[test]
fn silent_leader_is_left_after_400_ms_and_others_asked_every_100_ms() {
    let mut b = Bench::plain();
    let began = b.now;
    b.submit(write(0, 512), 1);
    let first = b.poll();
    let second = b.sleep();
    assert_eq!((b.now, second[0].0), (began + VolumeTuning::default().silent, OsdId(2)));
    let third = b.sleep();
    assert_eq!((b.now, third[0].0), (began + Duration::from_millis(500), OsdId(3)));
    let seq = |request: &wire::Request| match request.body {
        RequestBody::Write { seq, .. } => seq,
        _ => panic!(),
    };
    assert_eq!([seq(&first[0].1), seq(&second[0].1), seq(&third[0].1)], [1, 1, 1], "one write, one number");
    assert_ne!(first[0].1.id, second[0].1.id);
    b.reply(OsdId(3), &third[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
    b.submit(write(0, 512), 2);
    assert_eq!(b.poll()[0].0, OsdId(3), "the member that answered leads");
    b.reply(OsdId(1), &first[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [], "a late answer to an old part ends nothing");
}

#[test]
fn a_search_shows_one_part_and_the_rest_follow_when_it_ends() {
    let mut b = Bench::plain();
    for n in 0..10 {
        b.submit(write(n * 4096, 512), n);
    }
    let sent = b.poll();
    assert_eq!(sent.len(), 10);
    for (_, request) in &sent {
        b.reply(OsdId(1), request, Err(Reject::NotLeader { hint: Some(OsdId(2)) }));
    }
    let probe = b.poll();
    assert_eq!((probe.len(), probe[0].0), (1, OsdId(2)), "the hint is followed at once");
    b.reply(OsdId(2), &probe[0].1, Ok(ReplyBody::Done));
    let rest = b.poll();
    assert!(rest.len() == 9 && rest.iter().all(|(osd, _)| *osd == OsdId(2)));
}

#[test]
fn parts_of_a_silent_leader_follow_the_search_at_once() {
    let mut b = Bench::plain();
    for n in 0..5 {
        b.submit(write(n * 4096, 512), n);
    }
    assert_eq!(b.poll().len(), 5);
    let probe = b.sleep();
    assert_eq!((probe.len(), probe[0].0), (1, OsdId(2)), "one part is shown, not all");
    b.reply(OsdId(2), &probe[0].1, Ok(ReplyBody::Done));
    let rest = b.poll();
    assert!(rest.len() == 4 && rest.iter().all(|(osd, _)| *osd == OsdId(2)), "{rest:?}");
}

#[test]
fn silent_leader_is_left_even_by_a_pg_without_credit_there() {
    let mut b = Bench::plain();
    b.wire.credit = 0;
    b.submit(write(0, 512), 1);
    assert_eq!(b.poll().len(), 0);
    let began = b.now;
    b.wire.down = vec![OsdId(1)];
    b.wire.credit = 9;
    let sent = b.sleep();
    assert_eq!((b.now, sent[0].0), (began + VolumeTuning::default().silent, OsdId(2)));
}

#[test]
fn a_lost_connection_moves_what_was_on_it_elsewhere_at_once() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    b.poll();
    b.wire.down.push(OsdId(1));
    b.volume.handle_link(b.now, OsdId(1), false);
    let sent = b.poll();
    assert_eq!((sent.len(), sent[0].0), (1, OsdId(2)));
    b.reply(OsdId(2), &sent[0].1, Err(Reject::NotReady));
    let again = b.sleep();
    assert!(b.now < Time(1_000 * MS) + Duration::from_millis(11), "the first pause is short");
    assert_eq!(again[0].0, OsdId(2), "it may lead and only be busy");
}

#[test]
fn busy_leader_gets_the_requests_again_and_no_other_member_is_asked() {
    let mut b = Bench::plain();
    for n in 0..9 {
        b.submit(write(n * 4096, 512), n);
    }
    let sent = b.poll();
    sent.iter().for_each(|(osd, request)| b.reply(*osd, request, Err(Reject::Busy)));
    assert_eq!(b.poll().len(), 0);
    let again = b.sleep();
    assert!(b.now < Time(1_000 * MS) + Duration::from_millis(11), "nine refusals of one burst make one pause");
    assert_eq!((again.len(), again[0].0), (1, OsdId(1)), "one request asks whether the leader takes more");
    assert_eq!(b.poll().len(), 0);
    b.reply(OsdId(1), &again[0].1, Ok(ReplyBody::Done));
    let rest = b.poll();
    assert!(rest.len() == 8 && rest.iter().all(|(osd, _)| *osd == OsdId(1)), "{rest:?}");
    assert_eq!(b.volume.stats().searches, 0);
}

#[test]
fn leader_that_is_busy_for_ever_is_searched_for_elsewhere() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    let mut sent = b.poll();
    for refusals in 0.. {
        assert!(refusals < 100, "it stays with a leader that refuses everything");
        if sent[0].0 != OsdId(1) {
            break;
        }
        b.reply(OsdId(1), &sent[0].1, Err(Reject::Busy));
        sent = b.poll();
        while sent.is_empty() {
            sent = b.sleep();
        }
    }
    let request = sent[0].1.clone();
    b.reply(sent[0].0, &request, Ok(ReplyBody::Done));
    assert_eq!(b.done().len(), 1);
}

#[test]
fn throttled_pg_waits_as_long_as_its_leader_says_and_at_most_a_second() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    let mut sent = b.poll();
    for (wait_us, wait) in [(70_000, Duration::from_millis(70)), (u32::MAX, Duration::from_secs(1))] {
        let began = b.now;
        b.reply(OsdId(1), &sent[0].1, Err(Reject::Throttled { wait_us }));
        sent = b.poll();
        while sent.is_empty() {
            sent = b.sleep();
        }
        assert_eq!((b.now, sent[0].0), (began + wait, OsdId(1)));
    }
}

#[test]
fn busy_leader_that_is_deposed_is_left_at_once() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    b.submit(write(4096, 512), 2);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(Reject::Busy));
    b.reply(OsdId(1), &sent[1].1, Err(Reject::NotLeader { hint: Some(OsdId(3)) }));
    let again = b.poll();
    assert_eq!((again.len(), again[0].0), (1, OsdId(3)), "{again:?}");
}

#[test]
fn everything_fails_once_fenced() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    b.submit(read(0, 512), 2);
    b.submit(write(SEGMENT, 512), 3);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(Reject::Failed(Errno::Fenced)));
    b.submit(read(0, 512), 4);
    b.submit(Request::Flush, 5);
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, (1..=5).map(|token| (token, Err(Errno::Fenced))).collect::<Vec<_>>());
    b.reply(OsdId(1), &sent[1].1, Ok(data(&[0; 512], 0)));
    assert_eq!((b.done(), b.volume.next_deadline()), (vec![], Time::NEVER));
}

#[test]
fn a_write_without_space_waits_and_goes_on_while_reads_pass() {
    let mut b = Bench::plain();
    b.volume.config.full_wait = Duration::from_secs(30);
    b.submit(write(0, 4096), 1);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(Reject::Failed(Errno::NoSpace)));
    assert_eq!(b.done(), vec![], "its user still waits");
    b.submit(read(8192, 4096), 2);
    assert!(!b.poll().is_empty(), "a read of the same PG leaves at once");
    let stall = b.volume.stall(b.now + Duration::from_millis(1)).expect("it waits");
    assert_eq!((stall.what, stall.offset, stall.full, stall.requests), ("write", 0, true, 2));
    let again = loop {
        let mut sent = b.sleep();
        sent.retain(|(_, request)| matches!(request.body, RequestBody::Write { .. }));
        if let Some(again) = sent.pop() {
            break again;
        }
    };
    b.reply(again.0, &again.1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1, Ok(Answer::Done))]);
}

#[test]
fn a_full_pg_stops_only_its_own_writes() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 2, true), None);
    b.volume.config.full_wait = Duration::from_secs(30);
    let (mut token, mut refused) = (0, 0);
    // More writes than one PG takes at once: all of them wait for space.
    while b.volume.submit(b.now, write(token * 4096, 4096), token).is_ok()
        && token < u64::from(VolumeTuning::default().pg_parts_max) + 80
    {
        token += 1;
    }
    loop {
        let sent = b.poll();
        if sent.is_empty() {
            break;
        }
        for (osd, request) in sent {
            refused += 1;
            b.reply(osd, &request, Err(Reject::Failed(Errno::NoSpace)));
        }
    }
    assert!(refused >= 256, "{refused} writes wait for space");
    b.submit(write(SEGMENT, 4096), 1_000);
    let sent = b.poll();
    let chunk = match &sent[..] {
        [(_, wire::Request { body: RequestBody::Write { chunk, .. }, .. })] => *chunk,
        other => panic!("the write of the other PG leaves, and only that one: {other:?}"),
    };
    assert!(chunk.index > 0, "{chunk} is in the other segment");
    b.reply(sent[0].0, &sent[0].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(1_000, Ok(Answer::Done))]);
}

#[test]
fn a_write_without_space_fails_when_its_wait_is_over() {
    let mut b = Bench::plain();
    b.volume.config.full_wait = Duration::from_secs(3);
    b.submit(write(0, 4096), 1);
    let begun = b.now;
    while b.out.done.is_empty() {
        let mut sent = b.poll();
        if sent.is_empty() && b.out.done.is_empty() {
            sent = b.sleep();
        }
        for (osd, request) in sent {
            let result = match request.body {
                RequestBody::Skip { .. } => Ok(ReplyBody::Done),
                _ => Err(Reject::Failed(Errno::NoSpace)),
            };
            b.reply(osd, &request, result);
        }
        assert!(b.now.since(begun) < Duration::from_secs(60), "its wait has an end");
    }
    assert_eq!(b.done(), [(1, Err(Errno::NoSpace))]);
    let waited = b.now.since(begun);
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(6), "{waited:?}");
}

#[test]
fn no_space_is_told_at_once_unless_another_copy_could_still_land() {
    let mut b = Bench::plain();
    b.submit(write(0, 512), 1);
    let sent = b.poll();
    b.reply(OsdId(1), &sent[0].1, Err(Reject::Failed(Errno::NoSpace)));
    assert_eq!(b.done(), [(1, Err(Errno::NoSpace))]);

    b.submit(write(0, 512), 2);
    b.submit(write(0, 512), 3);
    b.poll();
    let probe = b.sleep();
    b.reply(OsdId(2), &probe[0].1, Err(Reject::Failed(Errno::NoSpace)));
    let skip = b.poll();
    assert_eq!(skip[0].1.body, RequestBody::Skip { volume: VolumeId(7), seq: 2, watermark: 2 });
    assert_eq!((skip.len(), b.done()), (1, vec![]), "nothing overlapping leaves before the skip is committed");
    b.reply(OsdId(2), &skip[0].1, Ok(ReplyBody::Done));
    let next = b.poll();
    assert!(matches!(next[0].1.body, RequestBody::Write { seq: 3, watermark: 3, .. }));
    assert_eq!(b.done(), [(2, Err(Errno::NoSpace))]);
}

#[test]
fn a_write_that_ran_out_of_time_is_skipped_before_its_sectors_are_free() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 1, true), Some(Duration::from_millis(300)));
    b.submit(write(0, 512), 1);
    b.submit(read(0, 512), 2);
    let sent = b.poll();
    b.now = b.now + Duration::from_millis(300);
    let mut done = b.done();
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(1, Err(Errno::TimedOut)), (2, Err(Errno::TimedOut))]);
    b.submit(write(0, 512), 4);
    let mut probe = b.poll();
    assert!(probe.is_empty(), "the new write is held");
    while probe.is_empty() {
        probe = b.sleep();
    }
    assert!(matches!(probe[0].1.body, RequestBody::Skip { seq: 1, .. }), "{probe:?}");
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    assert!(matches!(b.poll()[0].1.body, RequestBody::Write { seq: 2, .. }));
}

#[test]
fn a_write_to_a_hole_asks_once_for_all_and_does_not_hold_up_others() {
    let mut b = Bench::new(&opened(10 * SEGMENT, 1, true), None);
    b.submit(write(7 * SEGMENT, 512), 1);
    b.submit(write(SEGMENT - 512, 1024), 2);
    b.submit(write(0, 512), 3);
    assert_eq!(b.poll().len(), 2, "parts in the segment that exists");
    let ask = b.out.meta.remove(0);
    let ClientAsk::Segments { segments, allocate: true, session: SessionId(9), epoch: Epoch(3), .. } = &ask else {
        panic!()
    };
    assert_eq!(*segments, [SegmentIndex(1), SegmentIndex(7)]);
    b.poll();
    assert!(b.out.meta.is_empty());

    let refused = Refusal { code: codes::META_UNAVAILABLE, message: String::new() };
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Refused(refused));
    b.sleep();
    let ask = b.out.meta.remove(0);
    let place = |n| SegmentPlace { segment: SegmentIndex(n), pgs: vec![pg(1)] };
    let view = MapView { pgs: vec![pg_map(1)], leaders: vec![(pg(1), OsdId(2))], osds: Vec::new() };
    b.volume.handle_meta(
        b.now,
        &ask,
        ClientAnswer::Segments { segments: vec![place(1), place(7)], pending: Vec::new(), view },
    );
    let sent = b.poll();
    assert!(sent.len() == 2 && sent.iter().all(|(osd, r)| *osd == OsdId(2) && r.pg == pg(1)));
}

#[test]
fn pending_segment_delays_no_segment_of_another_pg() {
    let mut b = Bench::new(&opened(10 * SEGMENT, 1, true), None);
    b.submit(write(2 * SEGMENT, 512), 1);
    b.submit(write(7 * SEGMENT, 512), 2);
    b.poll();
    let ask = b.out.meta.remove(0);
    let place = |n, at| SegmentPlace { segment: SegmentIndex(n), pgs: vec![pg(at)] };
    let view = |at| MapView { pgs: vec![pg_map(at)], leaders: vec![(pg(at), OsdId(2))], osds: Vec::new() };
    let answer =
        |n, at| ClientAnswer::Segments { segments: vec![place(n, at)], pending: vec![SegmentIndex(2)], view: view(at) };
    b.volume.handle_meta(b.now, &ask, answer(7, 1));
    let sent = b.poll();
    assert!(sent.len() == 1 && sent[0].1.pg == pg(1), "{sent:?}");
    // A segment that is needed while the other one pends is asked for at once.
    b.submit(write(5 * SEGMENT, 512), 3);
    b.poll();
    let ask = b.out.meta.remove(0);
    assert!(matches!(&ask, ClientAsk::Segments { segments, .. } if segments[..] == [SegmentIndex(5)]), "{ask:?}");
    b.volume.handle_meta(b.now, &ask, answer(5, 1));
    assert_eq!(b.poll().len(), 1);
    while b.out.meta.is_empty() {
        b.sleep();
    }
    let ask = b.out.meta.remove(0);
    assert!(matches!(&ask, ClientAsk::Segments { segments, .. } if segments[..] == [SegmentIndex(2)]), "{ask:?}");
    let segments = vec![place(2, 4)];
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Segments { segments, pending: Vec::new(), view: view(4) });
    assert!(b.poll().iter().any(|(_, request)| request.pg == pg(4)));
}

#[test]
fn an_allocation_under_an_old_epoch_fences_the_volume() {
    let mut b = Bench::plain();
    b.submit(write(SEGMENT, 512), 1);
    b.poll();
    let ask = b.out.meta.remove(0);
    let refused = Refusal { code: codes::SESSION_FENCED, message: String::new() };
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Refused(refused));
    assert_eq!(b.done(), [(1, Err(Errno::Fenced))]);
}

pub(super) fn segments_answer(places: Vec<SegmentPlace>) -> ClientAnswer {
    let view = MapView { pgs: vec![pg_map(0)], leaders: vec![(pg(0), OsdId(1))], osds: Vec::new() };
    ClientAnswer::Segments { segments: places, pending: Vec::new(), view }
}

#[test]
fn reader_answers_zeros_only_after_meta_confirms_the_hole() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 0, false), None);
    b.submit(write(0, 512), 1);
    assert_eq!(b.done(), [(1, Err(Errno::ReadOnly))]);
    b.submit(read(0, 512), 2);
    assert_eq!(b.done(), [], "its writer may have filled the hole");
    b.poll();
    let ask = b.out.meta.remove(0);
    assert!(matches!(&ask, ClientAsk::Segments { allocate: false, segments, .. } if segments[..] == [SegmentIndex(0)]));
    // This read came after the question left: the question's answer is too old for it.
    b.submit(read(512, 512), 3);
    b.volume.handle_meta(b.now, &ask, segments_answer(Vec::new()));
    assert_eq!(b.done(), [(2, Ok(Answer::Data(vec![IoBuf::zeros(512)])))]);
    b.poll();
    let ask = b.out.meta.remove(0);
    let place = SegmentPlace { segment: SegmentIndex(0), pgs: vec![pg(0)] };
    b.volume.handle_meta(b.now, &ask, segments_answer(vec![place]));
    assert_eq!(b.poll().len(), 1, "the read goes to the segment that has come into being");
}

#[test]
fn a_reader_asks_again_when_meta_is_away_and_gives_up_when_its_user_does() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 0, false), Some(Duration::from_secs(3)));
    b.submit(read(SEGMENT - 512, 1024), 1);
    b.poll();
    let ask = b.out.meta.remove(0);
    let refused = Refusal { code: codes::META_UNAVAILABLE, message: String::new() };
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Refused(refused));
    b.sleep();
    assert_eq!(b.out.meta.remove(0), ask);
    b.volume.handle_meta(b.now, &ask, segments_answer(Vec::new()));
    b.poll();
    let ask = b.out.meta.remove(0);
    assert!(
        matches!(&ask, ClientAsk::Segments { segments, .. } if segments[..] == [SegmentIndex(1)]),
        "one hole at a time"
    );
    b.now = b.now + Duration::from_secs(4);
    b.poll();
    assert_eq!(b.done(), [(1, Err(Errno::TimedOut))]);
    b.volume.handle_meta(b.now, &ask, segments_answer(Vec::new()));
    b.volume.check_books();
}

#[test]
fn pg_without_a_leader_makes_the_volume_ask_for_its_members() {
    let mut b = Bench::plain();
    b.wire.down = vec![OsdId(1), OsdId(2), OsdId(3)];
    b.submit(write(0, 512), 1);
    b.poll();
    let mut turns = 0;
    while b.out.meta.is_empty() {
        b.sleep();
        turns += 1;
        assert!(turns < 30, "it spins or never asks");
    }
    let ask = b.out.meta.remove(0);
    assert_eq!(ask, ClientAsk::Refresh { pgs: vec![pg(0)] });
    let mut map = pg_map(0);
    map.members = [4, 5, 6].map(|n| Member { replica: ReplicaId(n), osd: OsdId(n as u32) }).to_vec();
    let view = MapView { pgs: vec![map], leaders: vec![(pg(0), OsdId(5))], osds: Vec::new() };
    b.volume.handle_meta(b.now, &ask, ClientAnswer::Refreshed(view));
    assert_eq!(b.poll()[0].0, OsdId(5));
}

#[test]
fn without_credit_parts_wait_here_and_leave_in_order() {
    let mut b = Bench::plain();
    b.wire.credit = 1;
    for n in 0..3 {
        b.submit(write(n * 4096, 512), n);
    }
    for n in 0..3 {
        let sent = b.poll();
        assert!(matches!(sent[..], [(_, wire::Request { body: RequestBody::Write { seq, .. }, .. })] if seq == n + 1));
        b.wire.credit = 1;
        b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Done));
    }
}

#[test]
fn more_than_the_limit_in_flight_is_refused_untouched() {
    let mut b = Bench::plain();
    b.wire.credit = 0;
    for token in 0..VolumeTuning::default().requests_max as u64 {
        b.submit(read(0, 512), token);
    }
    let refused = b.volume.submit(b.now, read(512, 512), 0).expect_err("too many");
    assert_eq!(refused.0, read(512, 512));

    let mut b = Bench::plain();
    b.wire.credit = 0;
    for token in 0..4 {
        b.submit(read(0, 32 << 20), token);
    }
    assert!(b.volume.submit(b.now, read(0, 512), 4).is_err(), "128 MiB are in flight");
    b.submit(Request::Trim { offset: 0, len: 512 }, 5);
}

#[test]
fn adjacent_extents_of_all_parts_are_merged() {
    let mut b = Bench::plain();
    b.submit(Request::Extents { offset: SEGMENT - (32 << 20), len: 33 << 20, since: None }, 1);
    let mut sent = b.poll();
    let is_question = |r: &wire::Request| matches!(r.body, RequestBody::FenceCheck { .. });
    let (holder, question) = sent.remove(sent.iter().position(|(_, r)| is_question(r)).expect("about the hole"));
    b.reply(holder, &question, Ok(ReplyBody::Done));
    assert_eq!(sent.len(), 2);
    let run = |sectors, data| wire::Extent { sectors, data };
    b.reply(OsdId(1), &sent[1].1, Ok(ReplyBody::Extents(vec![run(8, true), run(32768 - 8, false)])));
    b.reply(OsdId(1), &sent[0].1, Ok(ReplyBody::Extents(vec![run(100, false), run(32768 - 100, true)])));
    let want = vec![(51200, false), ((32768 - 100 + 8) * 512, true), ((32768 - 8) * 512 + (1 << 20), false)];
    assert_eq!(b.done(), [(1, Ok(Answer::Extents(want)))]);
}

#[test]
fn garbage_replies_do_no_harm() {
    let mut b = Bench::plain();
    b.submit(read(0, 512), 1);
    let sent = b.poll();
    let id = sent[0].1.id;
    for (from, id) in
        [(OsdId(2), id), (OsdId(1), id ^ 1 << 60), (OsdId(1), id ^ 1 << 25), (OsdId(1), id ^ 1), (OsdId(9), u64::MAX)]
    {
        b.volume.handle_reply(b.now, from, Reply { id, result: Ok(ReplyBody::Done) });
    }
    assert_eq!((b.done(), b.volume.stats().bad_reads), (vec![], 0));
    b.reply(OsdId(1), &sent[0].1, Ok(data(&[3; 512], 0)));
    assert_eq!(b.done().len(), 1);
}

#[test]
fn shorter_length_is_used_once_no_request_and_no_skip_is_behind_it() {
    let mut b = Bench::new(&opened(2 * SEGMENT, 2, true), Some(Duration::from_secs(1)));
    assert_eq!(b.volume.used(), (0, 2 * SEGMENT));
    b.submit(write(SEGMENT, 4096), 1);
    b.submit(write(0, 4096), 2);
    let sent = b.poll();
    assert_eq!(sent.len(), 2);
    assert!(b.volume.set_length(1, SEGMENT) && !b.volume.set_length(0, 2 * SEGMENT));
    assert_eq!((b.volume.len_bytes(), b.volume.used()), (SEGMENT, (1, 0)));
    b.submit(write(SEGMENT, 4096), 3);
    assert_eq!(b.done(), [(3, Err(Errno::Invalid))]);
    b.reply(sent[1].0, &sent[1].1, Ok(ReplyBody::Done));
    assert_eq!(b.done(), [(2, Ok(Answer::Done))]);
    // The request behind the end fails by its time, and its write may still be on its way.
    b.now = b.now + Duration::from_secs(2);
    let skips = b.poll();
    assert_eq!(b.done(), [(1, Err(Errno::TimedOut))]);
    assert_eq!(b.volume.used(), (1, 0));
    let skips: Vec<_> =
        skips.into_iter().chain(b.poll()).filter(|(_, r)| matches!(r.body, RequestBody::Skip { .. })).collect();
    for (osd, skip) in skips {
        b.reply(osd, &skip, Ok(ReplyBody::Done));
    }
    b.reply(sent[0].0, &sent[0].1, Ok(ReplyBody::Done));
    b.poll();
    assert_eq!(b.volume.used(), (1, SEGMENT));
    assert!(b.volume.set_length(1, 2 * SEGMENT), "under the same epoch it is longer");
}
