//! Times of sampled writes.

use super::script::{Bench, pg, read, write};
use crate::SampledWrite;
use std::time::Duration;
use types::OsdId;
use types::limits::SAMPLE_EVERY;
use wire::{Reject, ReplyBody};

/// Time between two events of a script.
const STEP: Duration = Duration::from_micros(10);

/// Writes one block and returns the times that came with it. The first send is refused when `refused`.
fn times(b: &mut Bench, refused: bool) -> (Vec<SampledWrite>, [types::Time; 3]) {
    let submitted = b.now;
    b.submit(write(0, 512), 1);
    b.now = b.now + STEP;
    let mut sent = b.poll();
    if refused {
        b.reply(sent[0].0, &sent[0].1, Err(Reject::NotLeader { hint: Some(OsdId(2)) }));
        b.now = b.now + STEP;
        sent = b.poll();
    }
    let sent_at = b.now;
    b.now = b.now + STEP;
    b.reply(sent[0].0, &sent[0].1, Ok(ReplyBody::Done));
    let answered = b.now;
    assert_eq!(b.done().len(), 1, "the write is done");
    (std::mem::take(&mut b.out.sampled), [submitted, sent_at, answered])
}

#[test]
fn a_sampled_write_returns_its_times_and_no_other_request_does() {
    let mut b = Bench::plain();
    for _ in 1..SAMPLE_EVERY {
        assert_eq!(times(&mut b, false).0, []);
    }
    let (found, [submitted, sent, answered]) = times(&mut b, false);
    assert_eq!(found, [SampledWrite { pg: pg(0), seq: SAMPLE_EVERY, submitted, sent, answered }]);
    b.submit(read(0, 512), 2);
    let sent = b.poll();
    let body = ReplyBody::Data { crcs: types::CrcList::new(), payload: types::IoBuf::EMPTY };
    b.reply(sent[0].0, &sent[0].1, Ok(body));
    assert_eq!((b.done().len(), b.out.sampled.len()), (1, 0), "a read has no number");
}

#[test]
fn a_repeated_sampled_write_was_sent_last_to_the_osd_that_answered() {
    let mut b = Bench::plain();
    for _ in 1..SAMPLE_EVERY {
        times(&mut b, false);
    }
    let (found, [submitted, sent, answered]) = times(&mut b, true);
    assert_eq!(found, [SampledWrite { pg: pg(0), seq: SAMPLE_EVERY, submitted, sent, answered }]);
}
