//! Requests while a PG is unavailable: they wait for ever, wait with a bound, or fail.
//!
//! A PG is *unavailable* when it has had work for [`VolumeTuning::unavailable`](crate::VolumeTuning::unavailable) and no OSD has
//! executed, finally refused or throttled a request of it meanwhile. Refusals such as "not the leader" and "busy" leave it so.
//! A PG that is slow but answers, a request that waits for an I/O limit, and a write that waits for space are therefore not
//! affected. A request that waits for meta to name a segment's PG has no PG: the time for which it
//! has asked decides.
//!
//! A request that fails here is given up as one whose time is over (`Volume::expire`): its parts that never left end at once, and a
//! write that may be on its way is replaced by a skip of its number (R7). The skip holds back every later write to its sectors
//! until the PG has committed it. So a write that failed takes effect before the skip, or never.
//!
//! Invariant: an unavailable PG always has a part, so its search for a leader goes on. When the last part of a request is given up,
//! a read of one sector takes its place.

use crate::part::{Part, Place, Work};
use crate::rehearsal::Stop;
use crate::segments::Found;
use crate::volume::Volume;
use std::collections::BTreeSet;
use std::time::Duration;
use types::{CHUNK, SectorRange, Time};

/// Choice of the user for requests whose PG is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// No request fails: each waits until its PG serves again.
    #[default]
    Freeze,
    /// A request fails when it is this old and its PG is unavailable.
    Wait(Duration),
    /// A request fails as soon as its PG is unavailable, and so does each later one until the PG serves again.
    Error,
}

impl OnUnavailable {
    /// Bound of `wait` without a time.
    pub const WAIT: Duration = Duration::from_secs(30);
    /// Shortest bound: no PG counts as unavailable before.
    pub const WAIT_MIN: Duration = Duration::from_secs(5);
    /// Longest bound.
    pub const WAIT_MAX: Duration = Duration::from_secs(7 * 86_400);

    /// Returns the policy with this bound; `None` when it is out of range.
    pub fn wait(bound: Duration) -> Option<OnUnavailable> {
        (OnUnavailable::WAIT_MIN..=OnUnavailable::WAIT_MAX).contains(&bound).then_some(OnUnavailable::Wait(bound))
    }
}

impl std::fmt::Display for OnUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OnUnavailable::Freeze => f.write_str("freeze"),
            OnUnavailable::Wait(bound) => write!(f, "wait={}s", bound.as_secs()),
            OnUnavailable::Error => f.write_str("error"),
        }
    }
}

/// Availability of one PG.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// The last service, or since when the PG has work; `None` without work.
    since: Option<Time>,
    pub unavailable: bool,
}

impl Service {
    /// Notes that an OSD has executed, finally refused or throttled a request.
    pub fn served(&mut self, now: Time) {
        *self = Service { since: Some(now), unavailable: false };
    }

    /// Forgets what it knows: the PG has no work.
    pub fn rests(&mut self) {
        *self = Service::default();
    }

    /// Returns the time at which a PG with work becomes unavailable.
    pub fn due(&self, unavailable: Duration) -> Time {
        match self.since {
            Some(since) if !self.unavailable => since + unavailable,
            _ => Time::NEVER,
        }
    }
}

impl Volume {
    /// Returns the policy that the owner chose.
    pub fn on_unavailable(&self) -> OnUnavailable {
        self.config.on_unavailable
    }

    /// Counts the PGs that are unavailable.
    pub fn unavailable_pgs(&self) -> usize {
        self.pgs.iter().filter(|pg| pg.service.unavailable).count()
    }

    fn has_unavailable(&self) -> bool {
        self.active.iter().any(|slot| self.pgs[*slot as usize].service.unavailable)
    }

    /// Whether a rehearsed pause counted as an outage at the last poll.
    pub fn is_paused(&self) -> bool {
        self.has_paused(self.polled_at)
    }

    fn has_paused(&self, now: Time) -> bool {
        self.rehearsal.as_ref().is_some_and(|rehearsal| rehearsal.has_outage(now))
    }

    /// Returns the latest time for the next poll, as far as the policy goes.
    pub(crate) fn policy_deadline(&self) -> Time {
        let is_bound = self.config.on_unavailable != OnUnavailable::Freeze && !self.requests.is_empty();
        let look = if is_bound { self.judge_at.min(self.polled_at + self.config.tuning.scan) } else { Time::NEVER };
        let unavailable = self.config.tuning.unavailable;
        let due = |slot: &u32| self.pgs[*slot as usize].service.due(unavailable);
        self.active.iter().map(due).fold(look, Time::min)
    }

    /// Finds PGs that have become unavailable, and fails the requests that the policy fails now.
    pub(crate) fn hold_to_policy(&mut self, now: Time, last_poll: Time) {
        let tuning = self.config.tuning;
        // The owner polls once in a scan at least while there is work: after a longer pause this process did not run.
        let stood_still = now >= last_poll + 2 * tuning.scan;
        let mut found = false;
        for slot in &self.active {
            let service = &mut self.pgs[*slot as usize].service;
            let since = *service.since.get_or_insert(now);
            if stood_still {
                service.since = Some(now);
            } else if !service.unavailable && now >= since + tuning.unavailable {
                service.unavailable = true;
                found = true;
            }
        }
        if self.config.on_unavailable == OnUnavailable::Freeze {
            return;
        }
        if stood_still {
            self.judge_at = self.judge_at.max(now + tuning.unavailable);
        }
        if now >= self.judge_at || found {
            self.judge(now);
        }
    }

    /// Returns the age from which a request may fail.
    fn patience(&self) -> Duration {
        match self.config.on_unavailable {
            OnUnavailable::Freeze => Duration::MAX,
            OnUnavailable::Wait(bound) => bound,
            OnUnavailable::Error => self.config.tuning.unavailable,
        }
    }

    /// Notes the arrival of a request.
    pub(crate) fn expect_judgement(&mut self, now: Time) {
        match self.config.on_unavailable {
            OnUnavailable::Freeze => {}
            // An outage that is known counts at once.
            OnUnavailable::Error if self.has_unavailable() || self.has_paused(now) => self.judge_at = now,
            _ => self.judge_at = self.judge_at.min(now + self.patience()),
        }
    }

    /// Fails all requests that the policy fails now, and sets the time of the next look.
    fn judge(&mut self, now: Time) {
        // A pause that has become known as an outage fails the others that it stops.
        if self.fail_stuck(now) {
            self.fail_stuck(now);
        }
        let patience = self.patience();
        let again = now + self.config.tuning.scan;
        let next = |since: Time| if since + patience > now { since + patience } else { again };
        self.judge_at = self.requests.iter().map(|(_, pending)| next(pending.since)).fold(Time::NEVER, Time::min);
    }

    /// Fails the requests that the policy fails now; true when a pause has become known as an outage.
    fn fail_stuck(&mut self, now: Time) -> bool {
        let mut is_new = false;
        for request in self.stuck(now) {
            self.stats.unavailable += 1;
            is_new |= self.rehearsal.as_mut().is_some_and(|rehearsal| rehearsal.gave_up(request));
            self.give_up(now, request);
        }
        is_new
    }

    /// Returns the requests that wait for an unavailable PG, or too long for meta.
    fn stuck(&self, now: Time) -> BTreeSet<u32> {
        let (patience, at_once) = (self.patience(), self.config.on_unavailable == OnUnavailable::Error);
        let is_old = |request: u32| now >= self.requests[request as usize].since + patience;
        let is_away = |slot: u32| self.pgs[slot as usize].service.unavailable;
        let mut stuck = BTreeSet::new();
        for (_, part) in &self.parts {
            stuck.extend(part.request.filter(|request| is_away(part.pg) && (at_once || is_old(*request))));
        }
        for (key, pending) in &self.requests {
            let (request, Some(piece)) = (key as u32, pending.next) else { continue };
            // A rehearsed pause counts as an outage, a rehearsed latency does not.
            if let Some(stop) = self.rehearsal.as_ref().and_then(|rehearsal| rehearsal.stop_of(request)) {
                let ends = match stop {
                    Stop::Latency => false,
                    Stop::Pause => is_old(request),
                    Stop::Outage => at_once || is_old(request),
                };
                stuck.extend(ends.then_some(request));
                continue;
            }
            let is_stuck = match self.segments.find((piece.start / CHUNK) as u32) {
                Found::Pg(slot) => is_away(slot) && (at_once || is_old(request)),
                Found::Hole => pending.asks_since.is_some_and(|since| now >= since + patience),
            };
            if is_stuck {
                stuck.insert(request);
            }
        }
        stuck
    }

    /// Keeps the search of an unavailable PG alive after its last part was given up.
    pub(crate) fn keep_searching(&mut self, now: Time, slot: u32, chunk: u32) {
        let pg = &self.pgs[slot as usize];
        if !pg.service.unavailable || pg.parts > 0 {
            return;
        }
        self.lives += 1;
        let part = Part {
            request: None,
            answer_at: 0,
            pg: slot,
            life: self.lives,
            born: self.serial,
            chunk,
            range: SectorRange::new(0, 1),
            work: Work::Read,
            place: Place::Held,
            seq: 0,
            sends: 0,
            resends: 0,
            bad: 0,
            refused: false,
            shelved: None,
            copies: Default::default(),
        };
        let key = self.parts.insert(part) as u32;
        self.pgs[slot as usize].parts += 1;
        self.arm_scan(now);
        self.enqueue(key);
    }
}
