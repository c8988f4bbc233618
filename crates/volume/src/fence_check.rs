//! Fence check: whether this writer still holds its volume, asked before a read of a hole is answered (ADR 0008).
//!
//! A writer that was preempted and has not heard of it may take segments for holes that its successor has filled. An
//! open returns only after every PG of the volume has committed its attach record (R6). So one PG that knows of
//! no newer record, at a moment after the request came, proves that no other session had written until then. The
//! fence check is a part like any other: it finds the leader and is repeated as a read is. One check is out at a time,
//! for all requests that waited when it was made.
//!
//! Where other sessions write to the volume too, none of this holds: such a client queries meta about each hole (ADR 0039).
//!
//! Invariant: an answer counts only for requests that came before its check was made, and a check goes
//! only to a PG in which a segment of the volume lies.

use crate::part::{Part, Place, Work};
use crate::volume::{Sure, Volume};
use types::planted::{Bug, on};
use types::{Errno, SectorRange, Time};

/// The fence check, and the requests that wait for it. Each request is in one of the two lists at most.
#[derive(Debug, Default)]
pub(crate) struct FenceCheck {
    /// Requests that came after the pending check was made.
    waiting: Vec<u32>,
    asked: Vec<u32>,
    out: Option<Question>,
    /// The PG of the last check.
    last: u32,
    /// Checks in a row that were withdrawn unanswered.
    moves: u32,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    part: u32,
    /// Time at which another PG is asked instead.
    until: Time,
}

impl FenceCheck {
    /// Removes a request that no longer waits.
    pub fn unpark(&mut self, request: u32) {
        self.waiting.retain(|r| *r != request);
        self.asked.retain(|r| *r != request);
    }

    /// Returns the part of the check that is out.
    pub fn part(&self) -> Option<u32> {
        self.out.map(|question| question.part)
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
    /// Parks `request`, which has reached a hole that is not confirmed yet.
    pub(crate) fn doubt(&mut self, segment: usize, request: u32) {
        let alone = self.is_alone || self.write && on(Bug::HoleOfAnotherWriter);
        if alone && self.pgs.iter().any(|pg| pg.attached) {
            self.fence_check.waiting.push(request);
        } else {
            self.segments.look(segment, request);
        }
    }

    /// Sends a fence check for all waiting requests; asks another PG when the answer is late.
    pub(crate) fn ask_holder(&mut self, now: Time) {
        if let Some(question) = self.fence_check.out {
            if now < question.until {
                return;
            }
            self.fence_check.out = None;
            self.fence_check.moves += 1;
            self.finish(question.part, Err(Errno::TimedOut));
        }
        let fence_check = &mut self.fence_check;
        fence_check.asked.append(&mut fence_check.waiting);
        if fence_check.asked.is_empty() {
            return;
        }
        let slot = self.whom_to_ask();
        let fence_check = &mut self.fence_check;
        let patience = self.config.tuning.fence_check_patience * (1 << fence_check.moves.min(4));
        fence_check.last = slot;
        let part = Part {
            request: None,
            answer_at: 0,
            pg: slot,
            life: self.lives + 1,
            born: self.serial,
            chunk: 0,
            range: SectorRange::new(0, 1),
            work: Work::FenceCheck,
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
        self.fence_check.out = Some(Question { part: key, until: now + patience });
        self.pgs[slot as usize].parts += 1;
        self.arm_scan(now);
        self.enqueue(key);
    }

    /// Returns the PG of the next check: the last one as long as it answers, else the next in turn. PGs whose leader is known
    /// come before all others.
    fn whom_to_ask(&self) -> u32 {
        let (count, last) = (self.pgs.len() as u32, self.fence_check.last);
        let first = if self.fence_check.moves == 0 { last } else { last + 1 };
        let turn = || (0..count).map(|n| (first + n) % count).filter(|slot| self.pgs[*slot as usize].attached);
        let settled = turn().find(|slot| self.pgs[*slot as usize].settled);
        settled.or_else(|| turn().next()).expect("only a volume with a segment asks")
    }

    /// Handles the answer to the pending check. A segment that was a hole when the check was made, and still is one here, was
    /// a hole at a moment within each of these requests.
    pub(crate) fn fence_check_answered(&mut self, now: Time, key: u32, result: Result<(), Errno>) {
        assert_eq!(self.fence_check.out.map(|question| question.part), Some(key), "one question is out at a time");
        (self.fence_check.out, self.fence_check.moves) = (None, 0);
        self.finish(key, Ok(()));
        for request in std::mem::take(&mut self.fence_check.asked) {
            let pending = &mut self.requests[request as usize];
            match result {
                Ok(()) => pending.sure = Sure::OfAll,
                Err(errno) => {
                    pending.error.get_or_insert(errno);
                    pending.next = None;
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
