//! Whether this writer still holds its volume: asked before anything is answered from a hole (ADR 0008).
//!
//! A writer that was robbed and has not heard of it takes segments that the thief has filled for holes. An
//! open returns only after every PG of the volume has committed its attach record (R6); so one PG that knows of
//! none newer, at a moment after the request came, proves that at that moment nobody else had written. The
//! question is a part like any other: it finds the leader and is repeated as a read is. One is out at a time,
//! for all requests that waited when it was made.
//!
//! Invariant: an answer counts only for requests that came before its question was made, and a question goes
//! only to a PG in which a segment of the volume lies.

use crate::limits::HOLDER_PATIENCE;
use crate::part::{Part, Place, Work};
use crate::volume::{Sure, Volume};
use types::{Errno, SectorRange, Time};

/// The question, and who waits for it. Each request is in one of the two lists at most.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    /// They came after the question that is out was made.
    waiting: Vec<u32>,
    asked: Vec<u32>,
    out: Option<Question>,
    /// The PG that was asked last.
    last: u32,
    /// Questions in a row that were taken away unanswered.
    moves: u32,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    part: u32,
    /// When another PG is asked instead.
    until: Time,
}

impl Holder {
    /// The request waits no more.
    pub fn unpark(&mut self, request: u32) {
        self.waiting.retain(|r| *r != request);
        self.asked.retain(|r| *r != request);
    }

    pub fn deadline(&self) -> Time {
        match self.out {
            Some(question) if !self.asked.is_empty() || !self.waiting.is_empty() => question.until,
            None if !self.waiting.is_empty() => Time::ZERO,
            _ => Time::NEVER,
        }
    }
}

impl Volume {
    /// `request` has come to a hole and does not know yet whether it is one.
    pub(crate) fn doubt(&mut self, segment: usize, request: u32) {
        if self.write && self.pgs.iter().any(|pg| pg.attached) {
            self.holder.waiting.push(request);
        } else {
            self.segments.look(segment, request);
        }
    }

    /// Asks for everybody who waits; asks elsewhere when the answer is late.
    pub(crate) fn ask_holder(&mut self, now: Time) {
        if let Some(question) = self.holder.out {
            if now < question.until {
                return;
            }
            self.holder.out = None;
            self.holder.moves += 1;
            self.finish(question.part, Err(Errno::TimedOut));
        }
        let holder = &mut self.holder;
        holder.asked.append(&mut holder.waiting);
        if holder.asked.is_empty() {
            return;
        }
        let slot = self.whom_to_ask();
        let holder = &mut self.holder;
        let patience = HOLDER_PATIENCE * (1 << holder.moves.min(4));
        holder.last = slot;
        let part = Part {
            request: None,
            piece: 0,
            pg: slot,
            life: self.lives + 1,
            born: self.serial,
            chunk: 0,
            range: SectorRange::new(0, 1),
            work: Work::Holder,
            place: Place::Held,
            seq: 0,
            sends: 0,
            resends: 0,
            bad: 0,
            refused: false,
            shelved: None,
            copies: Default::default(),
        };
        self.lives += 1;
        let key = self.parts.insert(part) as u32;
        self.holder.out = Some(Question { part: key, until: now + patience });
        self.pgs[slot as usize].parts += 1;
        self.arm_scan(now);
        self.enqueue(key);
    }

    /// The PG that was asked last as long as it answers; else the next in turn, those whose leader is known
    /// before all others.
    fn whom_to_ask(&self) -> u32 {
        let (count, last) = (self.pgs.len() as u32, self.holder.last);
        let first = if self.holder.moves == 0 { last } else { last + 1 };
        let turn = || (0..count).map(|n| (first + n) % count).filter(|slot| self.pgs[*slot as usize].attached);
        let settled = turn().find(|slot| self.pgs[*slot as usize].settled);
        settled.or_else(|| turn().next()).expect("only a volume with a segment asks")
    }

    /// The answer to the question that is out. What was a hole when it was made, and still is one here, was
    /// one at a moment within each of these requests.
    pub(crate) fn holder_answered(&mut self, now: Time, key: u32, result: Result<(), Errno>) {
        assert_eq!(self.holder.out.map(|question| question.part), Some(key), "one question is out at a time");
        (self.holder.out, self.holder.moves) = (None, 0);
        self.finish(key, Ok(()));
        for request in std::mem::take(&mut self.holder.asked) {
            let pending = &mut self.requests[request as usize];
            match result {
                Ok(()) => pending.sure = Sure::OfAll,
                Err(errno) => {
                    pending.error.get_or_insert(errno);
                    pending.cursor = pending.end;
                }
            }
            self.unsplit.push_back(request);
        }
        self.split(now);
    }
}

impl Sure {
    /// Whether this segment was a hole at a moment within the request.
    pub(crate) fn of(self, segment: usize) -> bool {
        match self {
            Sure::No => false,
            Sure::OfOne(one) => one as usize == segment,
            Sure::OfAll => true,
        }
    }
}
