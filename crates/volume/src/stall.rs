//! Long waits: the oldest request and its cause, and writes for which their PG has no space.
//!
//! A write is refused for lack of space only when it needs some: an overwrite passes, and so does a trim. So every new
//! write is sent once. From the first refusal on the PG counts as full, and the wait of all its writes is counted from
//! then: a write that is refused after `full_wait` fails at once. While writes wait, the oldest is sent to the PG at each
//! scan; when one finds space, the next ones follow.
//!
//! Invariant: a waiting write has no number (R7) and counts for no limit of its PG, so it keeps no other write back. Zeroes
//! that are written out carry no bytes, so no limit of bytes bounds their parts: they are not split further while the PG has
//! a backlog. When an earlier copy may be on its way, a write's number is skipped before it waits.

use crate::part::{Place, Work};
use crate::volume::{Kind, Volume};
use std::collections::VecDeque;
use std::time::Duration;
use types::{Errno, OsdId, PgId, Time, WhenFull};

/// State of one PG's lack of space.
#[derive(Debug, Default)]
pub(crate) struct Full {
    /// First and last refusal since the PG became full.
    since: Option<(Time, Time)>,
    /// Number of waiting parts.
    pub waiting: u32,
    /// Requests to write zeroes out that are not split further while the PG has a backlog.
    pub fills: VecDeque<u32>,
}

impl Full {
    /// Whether so many parts wait that no more are made of zeroes.
    pub fn has_backlog(&self, parts_max: u32) -> bool {
        self.waiting >= parts_max
    }

    /// Removes a waiting part. Returns the requests that may be split again.
    pub fn leave(&mut self, parts_max: u32) -> VecDeque<u32> {
        self.waiting -= 1;
        if self.has_backlog(parts_max) { VecDeque::new() } else { std::mem::take(&mut self.fills) }
    }

    /// Notes a refusal of a write now. Returns the time since when the PG has been full.
    fn refused(&mut self, now: Time, forget: Duration) -> Time {
        let since = self.since.filter(|(_, last)| now < *last + forget).map_or(now, |(since, _)| since);
        self.since = Some((since, now));
        since
    }
}

/// A request that is not answered, and the number of others that came before the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Arrival of the oldest request.
    pub since: Time,
    pub what: &'static str,
    /// First byte of its range.
    pub offset: u64,
    /// PG of its oldest part; `None` while meta has not named the segment's PG.
    pub pg: Option<PgId>,
    /// The leader that has the part; `None` while the leader is searched for.
    pub osd: Option<OsdId>,
    /// True when an OSD of the PG has no space for it.
    pub full: bool,
    /// True when a rehearsed fault makes it wait.
    pub rehearsed: bool,
    pub requests: usize,
}

impl Volume {
    /// Returns the oldest unanswered request that came before `before`.
    pub fn stall(&self, before: Time) -> Option<Stall> {
        let late = || self.requests.iter().filter(|(_, pending)| pending.since < before);
        let (key, pending) = late().min_by_key(|(_, pending)| (pending.since, pending.token))?;
        let mine = self.parts.iter().map(|(_, part)| part).filter(|part| part.request == Some(key as u32));
        let part = mine.min_by_key(|part| part.life);
        let pg = part.map(|part| &self.pgs[part.pg as usize]);
        let what = match pending.kind {
            Kind::Read(_) => "read",
            Kind::Write { .. } => "write",
            Kind::Fill | Kind::Zero => "trim or write-zeroes",
            Kind::Extents { .. } => "block status",
        };
        Some(Stall {
            since: pending.since,
            what,
            offset: pending.range.start,
            pg: pg.map(|pg| pg.id),
            osd: pg.filter(|pg| pg.settled).map(|pg| pg.guess),
            full: part.is_some_and(|part| part.refused),
            rehearsed: self.rehearsal.as_ref().is_some_and(|rehearsal| rehearsal.stop_of(key as u32).is_some()),
            requests: late().count(),
        })
    }

    /// Takes the policy for a full pool that meta told; false: it is the same.
    pub fn set_when_full(&mut self, when_full: WhenFull) -> bool {
        std::mem::replace(&mut self.when_full, when_full) != when_full
    }

    fn full_wait(&self) -> Duration {
        self.when_full.longest_wait(self.config.full_wait)
    }

    /// Lets a write wait for which an OSD has no space; false when its wait is over. The write keeps its place in the order of
    /// overlapping writes, and other I/O of its PG goes on.
    pub(crate) fn waits_for_space(&mut self, now: Time, key: u32) -> bool {
        let longest = self.full_wait();
        let part = &mut self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        part.refused = true;
        let since = pg.full.refused(now, self.config.tuning.full_forget);
        // A part whose request was answered already is given up at once.
        if part.request.is_none() || now.since(since) >= longest {
            return false;
        }
        if part.has_copies() {
            // The answer to another copy decides.
            return true;
        }
        self.take_out(key);
        let part = &mut self.parts[key as usize];
        if part.sends > 1 {
            // An earlier copy may still be on its way: it must not land after a later write (R7).
            part.shelved = Some(std::mem::replace(&mut part.work, Work::Skip { why: Errno::NoSpace }));
            self.enqueue(key);
        } else {
            self.wait_for_space(key);
        }
        true
    }

    /// Lets a part wait without a number. No copy under its number can land any more.
    pub(crate) fn wait_for_space(&mut self, key: u32) {
        let part = &mut self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        assert!(part.place == Place::Held && part.seq != 0, "a write waits after it was sent");
        pg.seqs.take_back(part.seq);
        // Answers to earlier copies do not count from now on.
        (part.seq, part.sends, part.resends, part.born) = (0, 0, 0, self.serial);
        part.copies = Default::default();
        part.place = Place::Waiting;
        pg.full.waiting += 1;
        self.unsplit.extend(pg.paused.pop_front());
    }

    /// Returns the parts of this PG that wait for space, oldest first.
    fn waiting_of(&self, slot: u32) -> Vec<u32> {
        let mine = self.parts.iter().filter(|(_, part)| part.pg == slot && part.place == Place::Waiting);
        let mut waiting: Vec<(u64, u32)> = mine.map(|(key, part)| (part.life, key as u32)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, key)| key).collect()
    }

    /// Sends the oldest waiting write of each PG again. Writes whose wait is over fail.
    pub(crate) fn try_waiting(&mut self, now: Time) {
        for slot in 0..self.pgs.len() as u32 {
            let full = &self.pgs[slot as usize].full;
            if full.waiting == 0 {
                continue;
            }
            let is_over = full.since.is_some_and(|(since, _)| now.since(since) >= self.full_wait());
            for key in self.waiting_of(slot).into_iter().take(if is_over { usize::MAX } else { 1 }) {
                if is_over {
                    self.end_part(key, Err(Errno::NoSpace));
                } else if self.pgs[slot as usize].has_part_room(self.config.tuning.pg_parts_max) {
                    self.enqueue(key);
                }
            }
        }
    }

    /// Notes that a write that waited for space has found some.
    pub(crate) fn space_is_back(&mut self, slot: u32) {
        self.pgs[slot as usize].full.since = None;
        if self.pgs[slot as usize].full.waiting > 0 {
            for key in self.waiting_of(slot).into_iter().take(self.config.tuning.full_wakes) {
                if self.pgs[slot as usize].has_part_room(self.config.tuning.pg_parts_max) {
                    self.enqueue(key);
                }
            }
        }
    }
}
