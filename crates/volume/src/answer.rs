//! Effects of an OSD's reply on its part and on the search for the leader.

use crate::part::{Part, Place, Work};
use crate::volume::{Kind, SampledWrite, Volume};
use crate::walk::scatter;
use std::time::Duration;
use types::limits::is_sampled;
use types::planted::{Bug, on};
use types::{Errno, IoBuf, OsdId, SECTOR, Time};
use wire::{Reject, Reply, ReplyBody};

/// Contents of a valid answer.
enum Good {
    Done,
    Bytes(IoBuf),
    Extents(Vec<(u64, bool)>),
}

/// Checks an answer against its question: `None` is an answer that must not be believed.
fn examine(part: &Part, body: ReplyBody) -> Option<Good> {
    match (&part.work, body) {
        (Work::Write { .. } | Work::Zero | Work::Skip { .. } | Work::FenceCheck, ReplyBody::Done) => Some(Good::Done),
        (Work::Read, ReplyBody::Data { crcs, payload }) => {
            if payload.is_empty() && crcs.is_empty() {
                return Some(Good::Bytes(IoBuf::zeros(part.range.len_bytes())));
            }
            (part.range.verify(&payload, &crcs) || on(Bug::AnswerUnchecked)).then_some(Good::Bytes(payload))
        }
        (Work::Extents { .. }, ReplyBody::Extents(extents)) => {
            let sum: u64 = extents.iter().map(|e| u64::from(e.sectors)).sum();
            let whole = sum == u64::from(part.range.count) && extents.iter().all(|e| e.sectors > 0);
            whole.then(|| Good::Extents(extents.iter().map(|e| (u64::from(e.sectors) * SECTOR, e.data)).collect()))
        }
        _ => None,
    }
}

impl Volume {
    /// Handles a reply from `osd`. A late reply, which answers no pending request to that OSD, is ignored.
    pub fn handle_reply(&mut self, now: Time, osd: OsdId, reply: Reply) {
        let id = crate::ids::PartId::unpack(reply.id);
        let key = id.key;
        let Some(part) = self.parts.get_mut(key as usize) else { return };
        let ours = id.space == self.config.space
            && (id.serial > part.born || on(Bug::LateReplyBelieved))
            && id.serial <= self.serial;
        let Some(copy) = ours.then(|| part.take_copy(osd)).flatten() else { return };
        let slot = part.pg;
        let pg = &mut self.pgs[slot as usize];
        if pg.guess == osd {
            pg.silence_from = now;
        }
        pg.silent = pg.silent.filter(|(silent, _)| *silent != osd);
        match reply.result {
            Ok(body) => {
                pg.service.served(now);
                match examine(part, body) {
                    Some(good) => {
                        if is_sampled(part.seq) {
                            self.sample(now, key, copy.sent_at);
                        }
                        self.succeed(now, key, good);
                    }
                    None => self.disbelieve(now, key),
                }
                self.settle(now, slot, osd);
            }
            Err(Reject::Failed(errno)) => {
                pg.service.served(now);
                self.refuse_finally(now, key, errno);
                self.settle(now, slot, osd);
            }
            Err(reject) => self.refuse_for_now(now, slot, key, osd, reject),
        }
    }

    /// Notes the times of a sampled write that has succeeded. A skip, and a write that was given up, leave no times.
    fn sample(&mut self, answered: Time, key: u32, sent: Time) {
        let part = &self.parts[key as usize];
        let (Work::Write { .. } | Work::Zero, Some(request)) = (&part.work, part.request) else { return };
        let (pg, submitted) = (self.pgs[part.pg as usize].id, self.requests[request as usize].since);
        self.sampled.push(SampledWrite { pg, seq: part.seq, submitted, sent, answered });
    }

    fn succeed(&mut self, now: Time, key: u32, good: Good) {
        if let Some(write) = self.parts[key as usize].shelved.take() {
            self.parts[key as usize].work = write;
            self.take_out(key);
            return self.wait_for_space(key);
        }
        let part = &self.parts[key as usize];
        let result = match part.work {
            Work::Skip { why } => Err(why),
            Work::FenceCheck => return self.fence_check_answered(now, key, Ok(())),
            _ => Ok(()),
        };
        let found_space = (part.refused && result.is_ok()).then_some(part.pg);
        if let Some(request) = part.request {
            let pending = &mut self.requests[request as usize];
            match (&mut pending.kind, good) {
                (Kind::Read(buffers), Good::Bytes(bytes)) => {
                    scatter(self.stripe, pending.range.start, part.run(), &bytes, buffers);
                }
                (Kind::Extents { pieces, .. }, Good::Extents(extents)) => pieces[part.answer_at as usize].1 = extents,
                (Kind::Write { .. } | Kind::Fill | Kind::Zero, Good::Done) => {}
                _ => unreachable!("the answer was examined"),
            }
        }
        self.finish(key, result);
        if let Some(slot) = found_space {
            self.space_is_back(slot);
        }
    }

    /// Takes a part out of its queue or list, and ends it.
    pub(crate) fn finish(&mut self, key: u32, result: Result<(), Errno>) {
        self.take_out(key);
        self.end_part(key, result);
    }

    /// Takes a part out of its queue, or from those in flight.
    pub(crate) fn take_out(&mut self, key: u32) {
        let part = &mut self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        match part.place {
            Place::Queued => pg.unqueue(key),
            Place::Out => pg.out -= 1,
            Place::Waiting => self.unsplit.extend(pg.full.leave(self.config.tuning.pg_parts_max)),
            Place::Held => {}
        }
        part.place = Place::Held;
    }

    /// Puts a part in flight back into its queue.
    fn repeat(&mut self, key: u32) {
        if self.parts[key as usize].place == Place::Out {
            self.enqueue(key);
        }
    }

    /// Handles an answer with a wrong checksum, or of a wrong kind: the part is sent again a few times, the answer is never used.
    fn disbelieve(&mut self, now: Time, key: u32) {
        let part = &mut self.parts[key as usize];
        self.stats.bad_reads += 1;
        part.bad = part.bad.saturating_add(1);
        let fence_check = matches!(part.work, Work::FenceCheck);
        if part.bad >= self.config.tuning.bad_reads_max && !part.is_write() && !fence_check {
            return self.finish(key, Err(Errno::Damaged));
        }
        // A write with an invalid answer is repeated for ever, but not in a hot loop.
        if part.is_write() || fence_check {
            let pg = &mut self.pgs[part.pg as usize];
            pg.refusals += 1;
            pg.resume_at = now + pg.backoff(&self.config.tuning, &mut self.rng);
        }
        self.repeat(key);
    }

    fn refuse_finally(&mut self, now: Time, key: u32, errno: Errno) {
        if errno == Errno::Fenced {
            return self.fail(errno);
        }
        let part = &mut self.parts[key as usize];
        if matches!(part.work, Work::FenceCheck) {
            return self.fence_check_answered(now, key, Err(errno));
        }
        if let Work::Skip { why } = part.work {
            if errno != Errno::NoSpace {
                return self.finish(key, Err(why));
            }
            let pg = &mut self.pgs[part.pg as usize];
            pg.refusals += 1;
            pg.resume_at = now + pg.backoff(&self.config.tuning, &mut self.rng);
            return self.repeat(key);
        }
        if errno == Errno::NoSpace && part.is_write() && self.waits_for_space(now, key) {
            return;
        }
        let part = &mut self.parts[key as usize];
        // Another copy may still be on its way: it must not land after a later write (R7).
        if part.is_write() && part.sends > 1 {
            part.work = Work::Skip { why: errno };
            return self.repeat(key);
        }
        self.finish(key, Err(errno));
    }

    /// Notes that `osd` executed a request of this PG, or held the volume to its rate: it leads. Parts in flight to other OSDs only are sent to it.
    fn settle(&mut self, now: Time, slot: u32, osd: OsdId) {
        let pg = &mut self.pgs[slot as usize];
        pg.refusals = 0;
        if pg.settled {
            return;
        }
        (pg.settled, pg.blocked) = (true, false);
        pg.resume_at = Time::ZERO;
        pg.report.settled();
        pg.guess = osd;
        pg.target = None;
        pg.probed = None;
        pg.silence_from = now;
        self.stats.searches += 1;
        let elsewhere = |p: &Part| p.pg == slot && p.place == Place::Out && p.copy_at(osd).is_none();
        let mut parts: Vec<(u64, u32)> = Vec::new();
        parts.extend(self.parts.iter().filter(|(_, p)| elsewhere(p)).map(|(key, p)| (p.life, key as u32)));
        parts.sort_unstable();
        parts.into_iter().for_each(|(_, key)| self.enqueue(key));
    }

    /// Handles a refusal that is not final: the part goes back. A settled PG stays with a leader that is busy or holds the volume
    /// to its rate. Any other refusal of the presumed leader, or of the member that the search asked last, moves the search on.
    fn refuse_for_now(&mut self, now: Time, slot: u32, key: u32, osd: OsdId, reject: Reject) {
        if !self.parts[key as usize].has_copies() {
            self.repeat(key);
        }
        let pg = &mut self.pgs[slot as usize];
        let relied_on = if pg.settled { pg.guess == osd } else { pg.probed == Some(osd) };
        if !relied_on {
            return;
        }
        if let Reject::Throttled { wait_us } = reject {
            return self.throttle(now, slot, osd, Duration::from_micros(wait_us.into()));
        }
        let tuning = &self.config.tuning;
        // A leader that is only ever busy is searched for elsewhere.
        let leads = reject == Reject::Busy && pg.settled && pg.refusals < tuning.backoff_short_count;
        if leads && now < pg.resume_at {
            // One pause answers all refusals of a burst: parts that left before it tell nothing new.
            return;
        }
        let pause = pg.backoff(tuning, &mut self.rng);
        pg.refusals = pg.refusals.saturating_add(1);
        match reject {
            Reject::NotLeader { hint } => {
                let hint = hint.filter(|h| *h != osd && pg.members.contains(h));
                pg.report.named = hint.map(|leader| (leader, osd));
                // The search waits for the credit of its target, unless another one is named.
                let target = pg.target.filter(|_| pg.blocked);
                let waits = target.is_some() && hint.is_none_or(|hint| target == Some(hint));
                if hint.is_some() && !waits && now >= pg.hint_followed_at + tuning.hint_pause {
                    pg.hint_followed_at = now;
                    return pg.search(now, hint, Duration::ZERO);
                }
                pg.search(now, hint.or(target), pause);
                pg.blocked = waits;
            }
            Reject::Busy if leads => pg.resume_at = now + pause,
            Reject::NotReady | Reject::Busy => {
                pg.resume_at = now + pause;
                // This OSD may lead and only be busy: it gets every second turn.
                let target = (pg.refusals % 2 == 1).then_some(osd);
                pg.search(now, target, pause);
            }
            Reject::NoSuchPg => {
                pg.stale = true;
                pg.search(now, None, pause);
            }
            Reject::Throttled { .. } | Reject::Failed(_) => unreachable!("handled before"),
        }
    }

    /// Pauses a PG whose leader holds the volume to its limits. Only an OSD whose group serves answers so: a search ends there, and the
    /// leader is asked again, however long it refuses.
    fn throttle(&mut self, now: Time, slot: u32, osd: OsdId, wait: Duration) {
        if !self.pgs[slot as usize].settled {
            self.settle(now, slot, osd);
        }
        let tuning = &self.config.tuning;
        let pg = &mut self.pgs[slot as usize];
        pg.service.served(now);
        // One pause answers all refusals of a burst.
        if now >= pg.resume_at {
            pg.resume_at = now + wait.clamp(tuning.backoff_first.min(tuning.throttle_max), tuning.throttle_max);
            pg.refusals = pg.refusals.max(1);
        }
    }
}
