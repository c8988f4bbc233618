//! The I/O limits of a volume at its client: each part takes its cost when it is made, and a request without tokens waits here.
//!
//! Reads wait in one queue and writes in another, each in order of arrival, so that a direction without tokens keeps nothing of
//! the other. Where both may go, the older request goes first. A volume without limits has no limiter, and its parts pass by
//! one branch. Leaders hold the same limits, and count the same parts (ADR 0032). This side exists so that an honest client meets no refusal: its I/O
//! is spread evenly, and its queue stays in its own memory.
//!
//! Invariant: the owner polls at [`Limiter::wake`] at the latest; no request has a timer. The queues hold only requests that
//! [`Volume::submit`] has counted, so its limits bound them. A request waits at most once, and is in no other list meanwhile.

use crate::volume::{Kind, Volume};
use std::collections::VecDeque;
use std::time::Duration;
use types::qos::{Buckets, Cost, Direction, Strictness};
use types::{QosLimits, Time};

/// An idle volume may take a tenth of a second at once.
const HOW: Strictness = Strictness { depth: Duration::from_millis(100), slack_permille: 0 };
/// Shortest wait: tokens of a high rate are taken in portions of this time.
const PAUSE: Duration = Duration::from_millis(1);

struct Waiting {
    request: u32,
    arrival: u64,
}

/// Requests that wait for their turn.
pub(crate) struct Limiter {
    buckets: Buckets,
    reads: VecDeque<Waiting>,
    writes: VecDeque<Waiting>,
    wake: Time,
}

/// Returns direction and cost of a part of `bytes`, as leaders count it. A part that asks a leader for nothing has no cost: it is never made.
fn cost_of(kind: &Kind, bytes: u64) -> (Direction, Cost) {
    let (direction, bytes) = match kind {
        Kind::Read(_) => (Direction::Read, bytes),
        Kind::Extents { .. } => (Direction::Read, 0),
        Kind::Write { .. } | Kind::Fill => (Direction::Write, bytes),
        Kind::Zero => (Direction::Write, 0),
    };
    (direction, Cost { ops: 1, bytes })
}

impl Limiter {
    fn new(now: Time, limits: QosLimits) -> Box<Limiter> {
        let buckets = Buckets::new(now, limits, HOW);
        Box::new(Limiter { buckets, reads: VecDeque::new(), writes: VecDeque::new(), wake: Time::NEVER })
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

    /// Takes the cost of the next part of a request, or lets the request wait in its place by arrival. Returns whether the part may go.
    fn admit(&mut self, now: Time, request: u32, arrival: u64, (direction, cost): (Direction, Cost)) -> bool {
        let is_next = self.queue(direction).front().is_none_or(|waiting| arrival < waiting.arrival);
        let wait = self.buckets.wait(now, direction);
        if is_next && wait.is_zero() {
            self.buckets.take(now, direction, cost);
            return true;
        }
        let queue = self.queue(direction);
        let at = queue.partition_point(|waiting| waiting.arrival < arrival);
        queue.insert(at, Waiting { request, arrival });
        self.wake = self.wake.min(now + wait.max(PAUSE));
        false
    }

    /// Takes out the request that may go now: the oldest one of a direction that has tokens. Sets the wake-up when there is none.
    fn take_turn(&mut self, now: Time) -> Option<u32> {
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
        let Some((direction, _)) = best else {
            self.wake = least.map_or(Time::NEVER, |wait| now + wait.max(PAUSE));
            return None;
        };
        self.queue(direction).pop_front().map(|waiting| waiting.request)
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

    /// Whether a part of `bytes` of this request may be made now. Otherwise the request waits for its turn.
    pub(crate) fn admit(&mut self, now: Time, request: u32, bytes: u64) -> bool {
        let Some(limiter) = &mut self.limiter else { return true };
        let pending = &mut self.requests[request as usize];
        let admitted = limiter.admit(now, request, pending.arrival, cost_of(&pending.kind, bytes));
        if !admitted && !std::mem::replace(&mut pending.limited, true) {
            self.stats.limited += 1;
        }
        admitted
    }

    /// Lets waiting requests go on whose turn has come.
    pub(crate) fn release_limited(&mut self, now: Time) {
        while let Some(limiter) = &mut self.limiter
            && now >= limiter.wake
            && let Some(request) = limiter.take_turn(now)
        {
            // It takes its cost at once, unless it waits for something else: then the next one takes its turn.
            self.unsplit.push_back(request);
            self.split(now);
        }
    }
}
