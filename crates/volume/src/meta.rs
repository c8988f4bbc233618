//! The volume's questions to meta, and their answers: places of segments, members and leaders of PGs.
//!
//! Invariant: questions to meta are repeated for ever, with pauses; I/O that needs no answer never waits for one.

use crate::pg::Pg;
use crate::volume::{Sure, Volume};
use types::codes;
use types::control::{ClientAnswer, ClientAsk, MapView, PGS_PER_ASK_MAX, SegmentPlace};
use types::{Errno, OsdId, PgId, Time};

/// The question for members.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    asked_at: Option<Time>,
    resume_at: Time,
}

impl Volume {
    /// Handles an answer to `ask`, which [`Volume::poll`] returned. The answer must not belong to an ask that
    /// [`Volume::poll`] has repeated since: a request that joined the repetition learns nothing from it.
    /// A carrier that has lost a question may answer `Refused` with `META_UNAVAILABLE`, or not at all.
    pub fn handle_meta(&mut self, now: Time, ask: &ClientAsk, answer: ClientAnswer) {
        if self.failed.is_some() {
            return;
        }
        match (ask, answer) {
            // A place that does not fit the stripe layout must not pass for a hole, which reads as zeros.
            (ClientAsk::Segments { .. }, ClientAnswer::Segments { segments, .. })
                if segments.iter().any(|place| !place.pgs.is_empty() && !self.fits(place)) =>
            {
                self.ask_again(now, ask);
            }
            (ClientAsk::Segments { .. }, ClientAnswer::Segments { segments, pending, view }) => {
                self.learn(now, &view);
                // True when the answer named anything: the next question then needs no pause.
                let mut named = false;
                for place in &segments {
                    named |= self.place(now, place);
                }
                for segment in pending {
                    named |= self.segments.is_pending(now, segment, &mut self.rng);
                }
                for (segment, waiters) in self.segments.still_holes() {
                    for request in waiters {
                        // Meta refuses a preempted writer. If it answers the only one, every hole of this writer is one.
                        let sure = if self.is_alone { Sure::OfAll } else { Sure::OfOne(segment) };
                        self.requests[request as usize].sure = sure;
                        self.unsplit.push_back(request);
                        named = true;
                    }
                }
                self.segments.answered(now, named, &mut self.rng);
                self.split(now);
            }
            (ClientAsk::Refresh { .. }, ClientAnswer::Refreshed(view)) => {
                self.refresh = Refresh { asked_at: None, resume_at: now + self.config.tuning.refresh };
                self.learn(now, &view);
            }
            (_, ClientAnswer::Refused(why)) => match why.code {
                codes::SESSION_FENCED => self.fail(Errno::Fenced),
                codes::VOLUME_UNKNOWN => self.fail(Errno::Gone),
                _ => self.ask_again(now, ask),
            },
            _ => self.ask_again(now, ask),
        }
    }

    fn ask_again(&mut self, now: Time, ask: &ClientAsk) {
        match ask {
            ClientAsk::Segments { .. } => self.segments.answered(now, false, &mut self.rng),
            ClientAsk::Refresh { .. } => {
                self.refresh = Refresh { asked_at: None, resume_at: now + self.config.tuning.refresh }
            }
            _ => {}
        }
    }

    /// Takes over members and leaders.
    pub(crate) fn learn(&mut self, now: Time, view: &MapView) {
        let leader = |pg: PgId| view.leaders.iter().find(|(p, _)| *p == pg).map(|(_, osd)| *osd);
        for map in &view.pgs {
            // A failed replica and its successor share an OSD.
            let mut members: Vec<OsdId> = Vec::with_capacity(map.members.len());
            for osd in map.members.iter().map(|m| m.osd) {
                if !members.contains(&osd) {
                    members.push(osd);
                }
            }
            if members.is_empty() {
                continue;
            }
            let Some(slot) = self.pg_slots.get(&map.pg) else {
                self.add_pg(now, map.pg, members, leader(map.pg));
                continue;
            };
            let pg = &mut self.pgs[*slot as usize];
            pg.stale = false;
            let moved = pg.members != members;
            pg.members = members;
            if moved && !pg.members.contains(&pg.guess) {
                pg.guess = pg.members[0];
                pg.search(now, None, std::time::Duration::ZERO);
            }
            if let Some(leader) = leader(map.pg).filter(|_| !pg.settled) {
                pg.search(now, Some(leader), std::time::Duration::ZERO);
            }
        }
    }

    fn add_pg(&mut self, now: Time, id: PgId, members: Vec<OsdId>, leader: Option<OsdId>) -> u32 {
        let slot = self.pgs.len() as u32;
        self.pgs.push(Pg::new(now, id, members, leader));
        self.pg_slots.insert(id, slot);
        slot
    }

    /// Whether a place has a PG for each column.
    fn fits(&self, place: &SegmentPlace) -> bool {
        place.pgs.len() == self.stripe.count() as usize
    }

    /// Takes over the place of one segment; returns whether it was new.
    pub(crate) fn place(&mut self, now: Time, place: &SegmentPlace) -> bool {
        if !self.fits(place) || !self.segments.is_hole(place.segment.0) {
            return false;
        }
        let mut slots = Vec::with_capacity(place.pgs.len());
        for pg in &place.pgs {
            slots.push(match self.pg_slots.get(pg) {
                Some(slot) => *slot,
                None => self.add_pg(now, *pg, Vec::new(), None),
            });
        }
        let Some(waiters) = self.segments.place(place.segment, &slots) else { return false };
        slots.iter().for_each(|slot| self.pgs[*slot as usize].attached = true);
        self.unsplit.extend(waiters);
        true
    }

    /// Returns the questions that are due.
    pub(crate) fn ask(&mut self, now: Time, asks: &mut Vec<ClientAsk>) {
        if let Some((segments, allocate)) = self.segments.ask(now) {
            let (volume, session, epoch) = (self.id, self.session, self.epoch);
            asks.push(ClientAsk::Segments { volume, session, epoch, segments, allocate });
        }
        let (refresh, tuning) = (&mut self.refresh, &self.config.tuning);
        let waiting = refresh.asked_at.is_some_and(|at| now < at + tuning.ask_timeout);
        if waiting || now < refresh.resume_at {
            return;
        }
        let in_need =
            |pg: &&Pg| pg.has_work() && (pg.stale || (!pg.settled && now >= pg.search_since + tuning.refresh));
        let active = self.active.iter().map(|slot| &self.pgs[*slot as usize]);
        let pgs: Vec<PgId> = active.filter(in_need).map(|pg| pg.id).take(PGS_PER_ASK_MAX).collect();
        if !pgs.is_empty() {
            refresh.asked_at = Some(now);
            asks.push(ClientAsk::Refresh { pgs });
        }
    }

    /// Returns the time at which [`Volume::ask`] is due.
    pub(crate) fn ask_deadline(&self) -> Time {
        let (refresh, tuning) = (&self.refresh, &self.config.tuning);
        let searching = |slot: &u32| {
            let pg = &self.pgs[*slot as usize];
            let due = if pg.stale { Time::ZERO } else { pg.search_since + tuning.refresh };
            if pg.has_work() && (pg.stale || !pg.settled) { due } else { Time::NEVER }
        };
        let need = self.active.iter().map(searching).fold(Time::NEVER, Time::min);
        let may = refresh.asked_at.map_or(refresh.resume_at, |at| at + tuning.ask_timeout);
        let refresh = if need == Time::NEVER { need } else { need.max(may) };
        self.segments.deadline().min(refresh)
    }
}
