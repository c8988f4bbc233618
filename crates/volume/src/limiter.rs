//! The I/O limits of a volume at its client: requests wait here before they are split.
//!
//! Reads wait in one queue and writes in another, each in order of arrival, so that a direction without tokens keeps nothing of
//! the other. Where both may go, the older request goes first. A volume without limits has no limiter, and its requests pass by
//! one branch. Leaders hold the same limits (ADR 0032). This side exists so that an honest client meets no refusal: its I/O
//! is spread evenly, and its queue stays in its own memory.
//!
//! Invariant: the owner polls at [`Limiter::wake`] at the latest; no request has a timer. The queues hold only requests that
//! [`Volume::submit`] has counted, so its limits bound them.

use crate::volume::{Kind, Volume};
use crate::walk::next_piece;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use types::limits::PART_MAX;
use types::qos::{Buckets, Cost, Direction, Strictness};
use types::{QosLimits, Stripe, Time};

/// An idle volume may take a tenth of a second at once.
const HOW: Strictness = Strictness { depth: Duration::from_millis(100), slack_permille: 0 };
/// Shortest wait: tokens of a high rate are taken in portions of this time.
const PAUSE: Duration = Duration::from_millis(1);
/// Most pieces of a striped request that are counted one by one.
const PIECES_COUNTED: usize = 4_096;

struct Waiting {
    request: u32,
    arrival: u64,
    cost: Cost,
}

/// Requests that wait for their turn.
pub(crate) struct Limiter {
    buckets: Buckets,
    reads: VecDeque<Waiting>,
    writes: VecDeque<Waiting>,
    arrivals: u64,
    wake: Time,
}

/// Returns direction and cost of a request, as leaders count its parts. Zeroes and queries for extents go by the chunk at leaders, and
/// many chunks may not exist: here each is one operation.
fn cost_of(stripe: Stripe, kind: &Kind, range: &Range<u64>) -> (Direction, Cost) {
    let direction = match kind {
        Kind::Read(_) | Kind::Extents(_) => Direction::Read,
        Kind::Write { .. } | Kind::Fill | Kind::Zero => Direction::Write,
    };
    let ops = match kind {
        Kind::Zero | Kind::Extents(_) => return (direction, Cost { ops: 1, bytes: 0 }),
        _ if !stripe.is_striped() => (range.end - 1) / PART_MAX - range.start / PART_MAX + 1,
        _ => {
            let first = next_piece(stripe, kind, range, None);
            let pieces = std::iter::successors(first, |last| next_piece(stripe, kind, range, Some(*last)));
            let least = (range.end - range.start) / PART_MAX;
            (pieces.take(PIECES_COUNTED).count() as u64).max(least)
        }
    };
    (direction, Cost { ops: u32::try_from(ops).unwrap_or(u32::MAX), bytes: range.end - range.start })
}

impl Limiter {
    fn new(now: Time, limits: QosLimits) -> Box<Limiter> {
        let buckets = Buckets::new(now, limits, HOW);
        Box::new(Limiter { buckets, reads: VecDeque::new(), writes: VecDeque::new(), arrivals: 0, wake: Time::NEVER })
    }

    /// Returns the latest time for the next poll.
    pub fn wake(&self) -> Time {
        self.wake
    }

    fn queue(&mut self, direction: Direction) -> &mut VecDeque<Waiting> {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }

    /// Returns the direction whose oldest request may go now, the older one of two; or the time until one may.
    fn next(&mut self, now: Time) -> Result<Direction, Option<Duration>> {
        let (mut best, mut least) = (None, None);
        for direction in [Direction::Read, Direction::Write] {
            let Some(arrival) = self.queue(direction).front().map(|waiting| waiting.arrival) else { continue };
            let wait = self.buckets.wait(now, direction);
            if !wait.is_zero() {
                least = Some(least.map_or(wait, |least: Duration| least.min(wait)));
            } else if best.is_none_or(|(_, older)| arrival < older) {
                best = Some((direction, arrival));
            }
        }
        best.map(|(direction, _)| direction).ok_or(least)
    }

    /// Moves the requests that may go to `ready`.
    fn release(&mut self, now: Time, ready: &mut VecDeque<u32>) {
        let wait = loop {
            match self.next(now) {
                Ok(direction) => {
                    let waiting = self.queue(direction).pop_front().expect("it was just seen");
                    self.buckets.take(now, direction, waiting.cost);
                    ready.push_back(waiting.request);
                }
                Err(wait) => break wait,
            }
        };
        self.wake = wait.map_or(Time::NEVER, |wait| now + wait.max(PAUSE));
    }

    /// Takes a request out that was given up.
    pub fn forget(&mut self, request: u32) {
        self.reads.retain(|waiting| waiting.request != request);
        self.writes.retain(|waiting| waiting.request != request);
    }

    /// Takes all requests out.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.wake = Time::NEVER;
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    fn drain(self) -> impl Iterator<Item = u32> {
        let mut all: Vec<Waiting> = self.reads.into_iter().chain(self.writes).collect();
        all.sort_unstable_by_key(|waiting| waiting.arrival);
        all.into_iter().map(|waiting| waiting.request)
    }
}

impl Volume {
    /// Returns the limits in force.
    pub fn limits(&self) -> QosLimits {
        self.limiter.as_ref().map_or(QosLimits::NONE, |limiter| *limiter.buckets.limits())
    }

    /// Sets the limits that meta told. Returns whether they changed. Requests that wait go on under the new ones with the next poll.
    pub fn set_limits(&mut self, now: Time, limits: QosLimits) -> bool {
        if self.limits() == limits || !self.config.tuning.holds_limits {
            return false;
        }
        match &mut self.limiter {
            Some(limiter) if limits.is_none() => {
                let limiter = std::mem::replace(limiter, Limiter::new(now, limits));
                self.limiter = None;
                self.unsplit.extend(limiter.drain());
            }
            Some(limiter) => {
                limiter.buckets.change(now, limits);
                limiter.wake = now;
            }
            None => self.limiter = Some(Limiter::new(now, limits)),
        }
        true
    }

    /// Lets a new request wait for its turn.
    pub(crate) fn limit(&mut self, now: Time, request: u32) {
        let Some(limiter) = &mut self.limiter else { return self.unsplit.push_back(request) };
        let pending = &self.requests[request as usize];
        let (direction, cost) = cost_of(self.stripe, &pending.kind, &pending.range);
        let arrival = limiter.arrivals;
        limiter.arrivals += 1;
        limiter.queue(direction).push_back(Waiting { request, arrival, cost });
        limiter.release(now, &mut self.unsplit);
        let waits = limiter.queue(direction).back().is_some_and(|waiting| waiting.request == request);
        self.stats.limited += u64::from(waits);
    }

    /// Lets waiting requests go on whose turn has come.
    pub(crate) fn release_limited(&mut self, now: Time) {
        if let Some(limiter) = &mut self.limiter
            && now >= limiter.wake
        {
            limiter.release(now, &mut self.unsplit);
        }
    }
}
