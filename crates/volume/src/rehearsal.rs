//! Rehearsed faults of a volume (ADR 0037): requests that begin late, fail, or wait for the end of a pause.
//!
//! A fault meets a request when it is submitted, before it is split, so nothing of it has been sent: a request that fails here was
//! surely not done. One that is late waits as a request of the volume, so the limits of requests and bytes bound those that wait, and
//! a time limit holds for it. A pause counts as unavailable storage: the policy of the volume holds for the requests that it stops.
//!
//! Invariants:
//! - A write never passes an earlier overlapping write that waits here: it waits behind it, whatever its own draw.
//! - A flush, a keepalive, a fence check and the search for a leader meet no fault.
//! - Each fault ends by the clock of this client, at the latest when meta said at first: an answer that was long on its way, or meta
//!   itself being away, makes none longer.

use crate::volume::{Kind, Volume};
use std::collections::VecDeque;
use std::time::Duration;
use types::faults::{FaultEffect, ToldFault};
use types::{Errno, Time};

/// A fault that meta tells. One whose end has come stays until meta tells it no longer: it must not begin again.
#[derive(Clone, Copy, Debug)]
struct Active {
    told: ToldFault,
    end: Time,
    /// The policy has given up a request that this pause stopped: the outage is known, as that of a PG that is unavailable.
    is_outage: bool,
}

/// The policy's view of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is late, which is no outage.
    Latency,
    /// A pause stops it.
    Pause,
    /// A pause stops it that has already lasted longer than the policy waits.
    Outage,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct Parked {
    request: u32,
    /// The fault that met it; `None`: it is behind an earlier write.
    fault: Option<u32>,
    until: Time,
    pauses: bool,
}

impl Parked {
    /// Returns the place of a write that waits for an earlier one alone.
    fn behind(request: u32) -> Parked {
        Parked { request, fault: None, until: Time::NEVER, pauses: false }
    }
}

/// The faults of a volume, and the requests that wait for them, by arrival.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    active: Vec<Active>,
    parked: VecDeque<Parked>,
    /// Time of the next end of a fault or of a wait.
    wake: Time,
}

impl Rehearsal {
    /// Returns the latest time for the next poll.
    pub fn wake(&self) -> Time {
        self.wake
    }

    /// Returns what stops a request for the policy; `None`: it does not wait here.
    pub fn stop_of(&self, request: u32) -> Option<Stop> {
        let parked = self.parked.iter().find(|parked| parked.request == request)?;
        let by = |active: &&Active| Some(active.told.id) == parked.fault;
        Some(match self.active.iter().find(by) {
            Some(pause) if parked.pauses && pause.is_outage => Stop::Outage,
            _ if parked.pauses => Stop::Pause,
            _ => Stop::Latency,
        })
    }

    /// Notes that the policy gives up a request: those that the same pause stops wait for nothing. True when the outage is new.
    pub fn gave_up(&mut self, request: u32) -> bool {
        let parked = self.parked.iter().find(|parked| parked.request == request && parked.pauses);
        let fault = parked.and_then(|parked| parked.fault);
        let is_new = |active: &&mut Active| Some(active.told.id) == fault && !active.is_outage;
        self.active.iter_mut().find(is_new).is_some_and(|pause| {
            pause.is_outage = true;
            true
        })
    }

    /// Whether a pause is known as an outage.
    pub fn has_outage(&self, now: Time) -> bool {
        self.in_force(now).any(|active| active.is_outage)
    }

    /// Takes a request out that was given up. Writes behind it go on with the next poll.
    pub fn forget(&mut self, request: u32) {
        let before = self.parked.len();
        self.parked.retain(|parked| parked.request != request);
        if self.parked.len() < before {
            self.wake = Time::ZERO;
        }
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.parked.len()
    }

    fn in_force(&self, now: Time) -> impl Iterator<Item = &Active> {
        self.active.iter().filter(move |active| active.end > now)
    }

    fn has(&self, now: Time, id: u32) -> bool {
        self.in_force(now).any(|active| active.told.id == id)
    }

    fn rearm(&mut self, now: Time) {
        let ends = self.in_force(now).map(|active| active.end);
        let waits = self.parked.iter().map(|parked| parked.until);
        self.wake = ends.chain(waits).fold(Time::NEVER, Time::min);
    }
}

impl Volume {
    /// Returns the faults in force at the last poll.
    pub fn faults(&self) -> impl Iterator<Item = &ToldFault> {
        let now = self.polled_at;
        self.rehearsal.iter().flat_map(move |rehearsal| rehearsal.in_force(now).map(|active| &active.told))
    }

    /// Sets the faults that meta told. Returns whether others are in force now. Requests that wait for one that is gone go on with the
    /// next poll.
    pub fn set_faults(&mut self, now: Time, told: &[ToldFault]) -> bool {
        if told.is_empty() && self.rehearsal.is_none() {
            return false;
        }
        let rehearsal = self.rehearsal.get_or_insert_default();
        let before: Vec<u32> = rehearsal.in_force(now).map(|active| active.told.id).collect();
        let again = |fault: &ToldFault| {
            let known = rehearsal.active.iter().find(|active| active.told.id == fault.id);
            let (end, is_outage) = known.map_or((Time::NEVER, false), |known| (known.end, known.is_outage));
            Active { told: *fault, end: end.min(now + Duration::from_millis(fault.left_ms)), is_outage }
        };
        rehearsal.active = told.iter().map(again).collect();
        rehearsal.wake = Time::ZERO;
        before.into_iter().ne(rehearsal.in_force(now).map(|active| active.told.id))
    }

    /// Lets a new request meet the faults in force. Returns false when it waits here, or has failed.
    pub(crate) fn rehearse(&mut self, now: Time, request: u32) -> bool {
        let Some(rehearsal) = &mut self.rehearsal else { return true };
        let pending = &self.requests[request as usize];
        let is_read = matches!(pending.kind, Kind::Read(_) | Kind::Extents { .. });
        let (mut fails, mut wait): (bool, Option<Parked>) = (false, None);
        for Active { told, end, .. } in rehearsal.in_force(now) {
            let is_for = if is_read { told.fault.reads } else { told.fault.writes };
            if !is_for || !self.rng.chance(told.fault.percent.into(), 100) {
                continue;
            }
            let (until, pauses) = match told.fault.effect {
                FaultEffect::Error => {
                    fails = true;
                    continue;
                }
                FaultEffect::Latency(ms) => (now + Duration::from_millis(ms.into()), false),
                FaultEffect::Pause => (*end, true),
            };
            // The longest wait decides; a request waits once.
            if wait.is_none_or(|longest| until > longest.until) {
                wait = Some(Parked { request, fault: Some(told.id), until, pauses });
            }
        }
        if fails {
            self.stats.rehearsed += 1;
            self.requests[request as usize].error = Some(Errno::Rehearsed);
            self.end_request(request);
            return false;
        }
        let is_behind = !is_read && self.is_behind_parked(request);
        let Some(rehearsal) = &mut self.rehearsal else { return true };
        match wait.or(is_behind.then(|| Parked::behind(request))) {
            None => true,
            Some(parked) => {
                self.stats.rehearsed += u64::from(parked.fault.is_some());
                rehearsal.wake = rehearsal.wake.min(parked.until);
                rehearsal.parked.push_back(parked);
                false
            }
        }
    }

    /// Whether an earlier write that waits here overlaps this one.
    fn is_behind_parked(&self, request: u32) -> bool {
        let Some(rehearsal) = &self.rehearsal else { return false };
        self.overlaps_any(request, rehearsal.parked.iter())
    }

    fn overlaps_any<'a>(&self, request: u32, mut earlier: impl Iterator<Item = &'a Parked>) -> bool {
        let range = &self.requests[request as usize].range;
        earlier.any(|parked| {
            let other = &self.requests[parked.request as usize];
            let writes = !matches!(other.kind, Kind::Read(_) | Kind::Extents { .. });
            writes && other.range.start < range.end && range.start < other.range.end
        })
    }

    /// Ends the faults whose time is over, and lets the requests go on that waited for them, by arrival.
    pub(crate) fn release_rehearsed(&mut self, now: Time) {
        let Some(mut rehearsal) = self.rehearsal.take_if(|rehearsal| now >= rehearsal.wake) else { return };
        let mut kept: VecDeque<Parked> = VecDeque::with_capacity(rehearsal.parked.len());
        for parked in std::mem::take(&mut rehearsal.parked) {
            let is_over = parked.until <= now || parked.fault.is_none_or(|id| !rehearsal.has(now, id));
            let reads = matches!(self.requests[parked.request as usize].kind, Kind::Read(_) | Kind::Extents { .. });
            if is_over && (reads || !self.overlaps_any(parked.request, kept.iter())) {
                self.unsplit.push_back(parked.request);
            } else {
                // When its own wait is over it waits for an earlier write alone.
                kept.push_back(if is_over { Parked::behind(parked.request) } else { parked });
            }
        }
        rehearsal.parked = kept;
        rehearsal.rearm(now);
        if !rehearsal.active.is_empty() || !rehearsal.parked.is_empty() {
            self.rehearsal = Some(rehearsal);
        }
    }
}
