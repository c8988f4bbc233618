//! Sending of parts: to the leader of a settled PG as credit permits, through a search otherwise.

use crate::ids::PartId;
use crate::part::Place;
use crate::tuning::VolumeTuning;
use crate::volume::{Admit, Carrier, Volume};
use std::time::Duration;
use types::planted::{Bug, on};
use types::{OsdId, Time};
use wire::Request;

impl Volume {
    /// Sends the parts that one PG may send now.
    pub(crate) fn drive(&mut self, slot: u32, now: Time, carrier: &mut dyn Carrier) {
        let (pg, tuning) = (&mut self.pgs[slot as usize], &self.config.tuning);
        if pg.members.is_empty() {
            return;
        }
        if pg.settled && (pg.out > 0 || pg.blocked) && now >= pg.silence_from + tuning.silent {
            // Parts of others may hold the credit of a leader that answers them. It may have changed all the same, so others are
            // asked, too.
            let is_heard = carrier.heard(pg.guess).is_some_and(|at| now < at + tuning.silent);
            if pg.out == 0 && is_heard {
                pg.search(now, Some(pg.guess), Duration::ZERO);
            } else {
                pg.silent = Some((pg.guess, now + tuning.copy_stale));
                pg.search(now, None, Duration::ZERO);
            }
        }
        if pg.settled {
            self.pump(slot, now, carrier);
        }
        self.report_unreached(slot, now, carrier);
        let pg = &self.pgs[slot as usize];
        if !pg.settled && (now >= pg.probe_at || pg.blocked) && pg.has_work() {
            self.probe(slot, now, carrier);
        }
    }

    fn pump(&mut self, slot: u32, now: Time, carrier: &mut dyn Carrier) {
        if now < self.pgs[slot as usize].resume_at {
            return;
        }
        if on(Bug::SearchStopsOthers) && self.active.iter().any(|other| !self.pgs[*other as usize].settled) {
            return;
        }
        let leader = self.pgs[slot as usize].guess;
        // After a refusal one part at a time asks whether the leader takes requests again.
        if self.pgs[slot as usize].refusals > 0 && self.pgs[slot as usize].out > 0 {
            return;
        }
        while let Some(key) = self.pgs[slot as usize].next() {
            match carrier.admit(leader, self.parts[key as usize].cost()) {
                Admit::Go => {
                    self.send(key, leader, now, carrier);
                    if self.pgs[slot as usize].refusals > 0 {
                        return;
                    }
                }
                Admit::Wait => {
                    self.put_back(key);
                    self.short_of_credit = true;
                    let pg = &mut self.pgs[slot as usize];
                    // Parts of another PG may hold the credit, at an OSD that is silent to all.
                    if pg.out == 0 && !pg.blocked {
                        pg.silence_from = now;
                        pg.blocked = true;
                    }
                    return;
                }
                Admit::NoLink => {
                    self.put_back(key);
                    return self.pgs[slot as usize].search(now, Some(leader), self.config.tuning.link_wait);
                }
            }
        }
    }

    /// Sends one part to the next member that may be asked: the target, or the next in turn that has a
    /// connection and no recent copy of it. A target without credit is tried at each poll, the others when the next question is due.
    fn probe(&mut self, slot: u32, now: Time, carrier: &mut dyn Carrier) {
        let queued = self.pgs[slot as usize].next();
        let oldest_out = || {
            let out = self.parts.iter().filter(|(_, p)| p.pg == slot && p.place == Place::Out);
            out.min_by_key(|(_, p)| p.life).map(|(key, _)| key as u32)
        };
        let Some(key) = queued.or_else(oldest_out) else {
            // Only writes are queued, behind a closed window. The writes that close it are in flight
            // or in a queue searched above.
            unreachable!("a PG with work has a part to show");
        };
        let target = self.pgs[slot as usize].target.take();
        self.pgs[slot as usize].blocked = false;
        let is_due = now >= self.pgs[slot as usize].probe_at;
        let count = if is_due { self.pgs[slot as usize].members.len() } else { 0 };
        let first = self.pgs[slot as usize].next_member;
        let cost = self.parts[key as usize].cost();
        let VolumeTuning { probe, copy_stale, backoff_first, .. } = self.config.tuning;
        let mut pause = probe;
        for at in 0..=count {
            let pg = &self.pgs[slot as usize];
            // The target comes before the first member in turn.
            let in_turn = || pg.members[(first + at + count - 1) % count];
            let Some(osd) = (if at == 0 { target } else { Some(in_turn()) }) else { continue };
            let silent = pg.silent.is_some_and(|(silent, until)| silent == osd && now < until);
            let shown = self.parts[key as usize].copy_at(osd).is_some_and(|copy| now < copy.sent_at + copy_stale);
            if silent || shown {
                continue;
            }
            match carrier.admit(osd, cost) {
                Admit::NoLink => continue,
                Admit::Wait => {
                    self.short_of_credit = true;
                    pause = backoff_first;
                    if at == 0 {
                        let pg = &mut self.pgs[slot as usize];
                        (pg.target, pg.blocked) = (target, true);
                    }
                    continue;
                }
                Admit::Go => {
                    self.send(key, osd, now, carrier);
                    let pg = &mut self.pgs[slot as usize];
                    if pg.silent.is_some_and(|(silent, _)| silent == osd) {
                        pg.silent = Some((osd, now + copy_stale));
                    }
                    (pg.probed, pg.blocked) = (Some(osd), pg.target.is_some());
                    pg.next_member = pg.members.iter().position(|m| *m == osd).map_or(first, |i| i + 1);
                    pg.probe_at = now + probe;
                    return;
                }
            }
        }
        if queued.is_some() {
            self.put_back(key);
        }
        if is_due {
            self.pgs[slot as usize].probe_at = now + pause;
        }
    }

    fn put_back(&mut self, key: u32) {
        let part = &self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        if part.sends > 0 {
            pg.again.push_front(key);
        } else if part.is_write() {
            pg.writes.push_front(key);
        } else {
            pg.reads.push_front(key);
        }
    }

    fn send(&mut self, key: u32, osd: OsdId, now: Time, carrier: &mut dyn Carrier) {
        let part = &mut self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        assert!(matches!(part.place, Place::Queued | Place::Out), "a held write never leaves");
        if part.is_write() && part.seq == 0 {
            assert!(pg.window_open(), "the window of {} is closed", pg.id);
            part.seq = pg.seqs.give();
        }
        if part.place != Place::Out {
            part.place = Place::Out;
            pg.out += 1;
            if pg.out == 1 {
                pg.silence_from = now;
            }
            pg.blocked = false;
        }
        pg.sent_in = self.polls;
        self.serial += 1;
        let id = PartId { space: self.config.space, serial: self.serial, key };
        self.stats.sends += 1;
        self.stats.repeats += u64::from(part.sends > 0);
        part.sends += 1;
        part.add_copy(osd, now);
        let body = part.body(self.id, self.snapshot, pg.seqs.low());
        carrier.send(osd, Request { id: id.pack(), pg: pg.id, session: self.session, epoch: self.epoch, body });
    }

    /// Notes that a connection came up, or went down and lost every message on it.
    pub fn handle_link(&mut self, now: Time, osd: OsdId, up: bool) {
        if self.failed.is_some() {
            return;
        }
        if up {
            // An OSD that was silent on an earlier connection may be asked at once on this one.
            for pg in &mut self.pgs {
                pg.silent = pg.silent.filter(|(silent, _)| *silent != osd);
            }
            for pg in self.pgs.iter_mut().filter(|pg| !pg.settled && pg.members.contains(&osd)) {
                if pg.target.is_none_or(|target| target == osd) {
                    pg.probe_at = pg.probe_at.min(now);
                }
            }
            return;
        }
        let mut lost = Vec::new();
        for (key, part) in &mut self.parts {
            if part.take_copy(osd).is_some() && part.place == Place::Out && !part.has_copies() {
                lost.push(key as u32);
            }
        }
        lost.into_iter().for_each(|key| self.enqueue(key));
        for pg in &mut self.pgs {
            if (pg.settled && pg.guess == osd) || pg.probed == Some(osd) {
                pg.search(now, None, Duration::ZERO);
            }
        }
    }

    /// Finds parts that their leader seems to have forgotten.
    pub(crate) fn scan(&mut self, now: Time) {
        let (mut forgotten, resend) = (Vec::new(), self.config.tuning.resend);
        for (key, part) in &mut self.parts {
            let pg = &self.pgs[part.pg as usize];
            if part.place != Place::Out || !pg.settled {
                continue;
            }
            let due = part.copy_at(pg.guess).map_or(now, |copy| copy.sent_at + resend * (1 << part.resends.min(3)));
            if now >= due {
                part.resends += 1;
                forgotten.push(key as u32);
            }
        }
        forgotten.into_iter().for_each(|key| self.enqueue(key));
        self.try_waiting(now);
        self.scan_at = if self.parts.is_empty() { Time::NEVER } else { now + self.config.tuning.scan };
    }
}
