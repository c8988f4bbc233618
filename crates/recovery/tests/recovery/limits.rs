//! Limits: the number of a leader's streams and their shares of the budget, and bad blocks that are tracked.

use crate::host::{CHUNK, Fake, ME, PG};
use recovery::{Action, BlockRepairs, Lead, Read, RepairTuning, StreamTuning, Streams};
use std::collections::BTreeSet;
use std::time::Duration;
use types::store::{ReadData, ReadError};
use types::{Index, OsdId, PgId, ReplicaId, SectorRange, Term, Time};
use wire::{Message, StreamAbort, StreamBody, StreamMsg};

const FOLLOWER: ReplicaId = ReplicaId(2);
const TO: OsdId = OsdId(2);
const STREAMS: u32 = 20;

/// A leader of many PGs of which the follower is behind in all. `needed`: they commit nothing without it; `may_fill`: it counts as soon as
/// its logs have begun.
fn leader(needs_follower: bool, may_fill: bool) -> Fake {
    let lead = Lead {
        term: Term(2),
        applied: Index(10),
        first: Index(8),
        is_behind: true,
        matched: None,
        needs_follower,
        may_fill,
        has_contents: false,
        room: None,
        pace: None,
        has_bad_blocks: false,
    };
    let blocks = (0..4096).map(|n| (n, 1)).collect();
    Fake { now: Time(1_000_000_000), lead: Some(lead), counts: may_fill, blocks, ..Fake::new(2) }
}

fn pg(n: u32) -> PgId {
    PgId { n, ..PG }
}

fn want_all(streams: &mut Streams, now: Time) {
    (0..STREAMS).for_each(|n| streams.want(now, pg(n), TO));
}

fn begun(tuning: StreamTuning, host: &mut Fake) -> Streams {
    let mut streams = Streams::new(tuning, 7);
    want_all(&mut streams, host.now);
    streams.step(host);
    streams
}

#[test]
fn streams_beyond_the_limit_run_for_followers_that_count_at_once() {
    let tuning = StreamTuning::default();
    let running = |needed, may_fill| begun(tuning, &mut leader(needed, may_fill)).running();
    assert_eq!(running(false, true), tuning.senders_max);
    assert_eq!(running(true, false), tuning.senders_max, "contents come first: more streams would end later");
    assert_eq!(running(true, true), tuning.needed_max);
}

#[test]
fn streams_that_come_to_be_needed_begin_beside_ordinary_ones() {
    let (tuning, mut host) = (StreamTuning::default(), leader(false, true));
    let mut streams = begun(tuning, &mut host);
    host.lead.as_mut().expect("it leads").needs_follower = true;
    for _ in 0..2 {
        host.now = host.now + Duration::from_millis(10);
        want_all(&mut streams, host.now);
        streams.step(&mut host);
    }
    assert_eq!(streams.running(), tuning.needed_max);
}

/// The budget is far below what one stream would read.
#[test]
fn every_stream_reads_within_two_seconds() {
    let tuning = StreamTuning { bytes_per_s: 64 << 10, ..StreamTuning::default() };
    let mut host = leader(true, true);
    let mut streams = begun(tuning, &mut host);
    let opened: Vec<(PgId, u64)> = host.actions.drain(..).filter_map(opened).collect();
    for (pg, stream) in &opened {
        let answer = |body| StreamMsg { pg: *pg, from: FOLLOWER, to: ME, stream: *stream, body };
        let accept =
            StreamBody::Accept { term: Term(2), commit: Index(3), end: Index(3), compare: false, fills_from: Index(0) };
        streams.handle_message(&mut host, TO, answer(accept));
        streams.handle_message(&mut host, TO, answer(StreamBody::Filling { term: Term(2), commit: Index(10) }));
    }
    host.lead.as_mut().expect("it leads").is_behind = false;
    let (mut reads, end) = (BTreeSet::new(), host.now + Duration::from_secs(2));
    while host.now < end {
        host.now = host.now + Duration::from_millis(20);
        streams.step(&mut host);
        let parts = host.actions.drain(..).filter_map(|action| match action {
            Action::Read { read: Read::Part(part), .. } => Some(format!("{part:?}")),
            _ => None,
        });
        reads.extend(parts.map(|part| part.split(',').next().expect("its stream").to_owned()));
    }
    assert_eq!((reads.len(), opened.len()), (tuning.needed_max, tuning.needed_max), "{reads:?}");
}

/// Returns the MiB that a stream reads in 4 s with a limit of 4 MiB/s, when each acknowledgement takes so long.
fn read_in_4_s(mut host: Fake, answer: Duration) -> usize {
    let mut streams = Streams::new(StreamTuning { bytes_per_s: 4 << 20, ..StreamTuning::default() }, 7);
    streams.want(host.now, pg(0), TO);
    streams.step(&mut host);
    let stream = host.actions.drain(..).find_map(opened).expect("a stream").1;
    let from_follower = |body| StreamMsg { pg: pg(0), from: FOLLOWER, to: ME, stream, body };
    let accept =
        StreamBody::Accept { term: Term(2), commit: Index(3), end: Index(3), compare: false, fills_from: Index(0) };
    streams.handle_message(&mut host, TO, from_follower(accept));
    streams.handle_message(&mut host, TO, from_follower(StreamBody::Filling { term: Term(2), commit: Index(10) }));
    host.lead.as_mut().expect("it leads").is_behind = false;
    let (mut bytes, mut answers, end) = (0, Vec::new(), host.now + Duration::from_secs(4));
    while host.now < end {
        host.now = host.now + Duration::from_millis(5);
        streams.step(&mut host);
        for action in std::mem::take(&mut host.actions) {
            match action {
                Action::Read { read: Read::Part(part), range, .. } => {
                    bytes += range.len_bytes();
                    streams.handle_part(&mut host, &part, Ok(ReadData::Zeros));
                }
                Action::Send { message: Message::Stream(msg), .. } => {
                    if let StreamBody::Blocks { seq, .. }
                    | StreamBody::Decision { seq, .. }
                    | StreamBody::Fill { seq, .. } = msg.body
                    {
                        answers.push((host.now + answer, seq));
                    }
                }
                _ => {}
            }
        }
        while answers.first().is_some_and(|(at, _)| *at <= host.now) {
            let (_, seq) = answers.remove(0);
            streams.handle_message(&mut host, TO, from_follower(StreamBody::Ack { seq }));
        }
    }
    bytes >> 20
}

#[test]
fn a_stream_yields_to_io_that_waits() {
    let ms = Duration::from_millis;
    let waits = |log_wait| Fake { log_wait, ..leader(false, true) };
    let all = read_in_4_s(waits(ms(0)), ms(5));
    let (log, follower) = (read_in_4_s(waits(ms(60)), ms(5)), read_in_4_s(waits(ms(0)), ms(150)));
    assert!((9..16).contains(&all), "{all} MiB");
    let exact = read_in_4_s(Fake { log_wait: ms(60), ..leader(true, false) }, ms(5));
    assert_eq!(exact, 16, "the PG waits for contents: all MiB without a limit");
    assert!(log < 3, "{log} MiB while the log waits for its device");
    assert!(follower < all / 2, "{follower} MiB while the follower waits for its device");
}

/// A stream has failed while this replica led before: the new term has no pace yet.
#[test]
fn a_pg_has_a_pace_while_its_stream_rests() {
    let mut host = leader(true, false);
    host.lead.as_mut().expect("it leads").room = Some((8 << 20, false));
    let mut streams = Streams::new(StreamTuning::default(), 7);
    streams.want(host.now, pg(0), TO);
    streams.step(&mut host);
    streams.handle_link_lost(&mut host, TO);
    host.actions.clear();
    host.now = host.now + Duration::from_millis(20);
    streams.want(host.now, pg(0), TO);
    streams.step(&mut host);
    assert_eq!(streams.running(), 0, "it rests");
    assert!(
        host.actions.iter().any(|a| matches!(a, Action::SetPace { pace: Some(1_048_576), .. })),
        "{:?}",
        host.actions
    );
}

/// Seed 2372197 of the simulator: a leader that came back to lead rested for 12.8 s.
#[test]
fn a_busy_follower_and_a_lost_leadership_make_no_later_rest_longer() {
    let (tuning, mut host) = (StreamTuning::default(), leader(false, true));
    let mut streams = Streams::new(tuning, 7);
    let begin = |streams: &mut Streams, host: &mut Fake| {
        host.now = host.now + tuning.rest_min;
        streams.want(host.now, pg(0), TO);
        streams.step(host);
        host.actions.drain(..).find_map(opened).expect("no rest is longer than the first").1
    };
    for _ in 0..30 {
        let stream = begin(&mut streams, &mut host);
        let busy = StreamBody::Abort(StreamAbort::Busy);
        streams.handle_message(&mut host, TO, StreamMsg { pg: pg(0), from: FOLLOWER, to: ME, stream, body: busy });
        assert_eq!(streams.running(), 0);
        begin(&mut streams, &mut host);
        let lead = host.lead.take();
        streams.step(&mut host);
        assert_eq!(streams.running(), 0);
        host.lead = lead;
    }
    begin(&mut streams, &mut host);
    streams.handle_link_lost(&mut host, TO);
    begin(&mut streams, &mut host);
}

fn opened(action: Action) -> Option<(PgId, u64)> {
    match action {
        Action::Send {
            message: Message::Stream(StreamMsg { pg, stream, body: StreamBody::Open { .. }, .. }), ..
        } => Some((pg, stream)),
        _ => None,
    }
}

/// Another leader has had the log of the follower begin, and has died: this one needs the follower before its own stream gets on.
#[test]
fn a_pg_that_needs_a_filling_follower_has_a_pace_before_its_stream_begins() {
    let (tuning, mut host) =
        (StreamTuning { senders_max: 1, needed_max: 2, ..StreamTuning::default() }, leader(true, false));
    host.lead.as_mut().expect("it leads").room = Some((8 << 20, false));
    let mut streams = begun(tuning, &mut host);
    assert_eq!(streams.running(), 2, "a follower whose log has begun counts already");
    let paced = host.actions.iter().filter(|a| matches!(a, Action::SetPace { pace: Some(1_048_576), .. })).count();
    assert_eq!(paced, STREAMS as usize, "those that wait for their turn, too");
    host.lead.as_mut().expect("it leads").pace = Some(1 << 20);
    host.actions.clear();
    host.now = host.now + Duration::from_millis(20);
    streams.lift_paces(&mut host);
    streams.step(&mut host);
    assert!(host.actions.iter().all(|action| !matches!(action, Action::SetPace { .. })), "{:?}", host.actions);
}

/// Blocks are bad that no member can give, more than are tracked. A read of a window finds them again, and makes room by forgetting others.
#[test]
fn windows_with_more_bad_blocks_than_are_tracked_are_read_once() {
    let tuning = RepairTuning { bad_blocks_max: 80, ..RepairTuning::default() };
    let (mut repairs, mut host) = (BlockRepairs::new(tuning), Fake::new(3));
    host.down.extend([OsdId(2), OsdId(3)]);
    let find = |repairs: &mut BlockRepairs, host: &mut Fake, window: u32| {
        let range = SectorRange::new(window * 128 * 8, 80 * 8);
        repairs.blocks_are_bad(host, (ME, CHUNK, range), "a checksum", true);
    };
    (0..2).rev().for_each(|window| find(&mut repairs, &mut host, window));
    let mut windows = 0;
    for _ in 0..200 {
        repairs.step(&mut host);
        for action in std::mem::take(&mut host.actions).into_iter().rev() {
            let Action::Read { read: Read::Block(key), range, .. } = action else { continue };
            if range.count == 128 * 8 {
                windows += 1;
                // The engine reports the blocks, and then the end of the read.
                find(&mut repairs, &mut host, range.start / (128 * 8));
            }
            let reason = "a checksum".to_owned();
            repairs.handle_read(&mut host, key, Err(ReadError::Damaged { replica: ME, chunk: CHUNK, reason }));
        }
        host.now = host.now + Duration::from_millis(10);
    }
    assert!((2..=6).contains(&windows), "{windows} reads of windows");
}
