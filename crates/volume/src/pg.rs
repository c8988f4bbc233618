//! One PG as the client sees it: its leader, its waiting parts, its numbers in flight.
//!
//! A PG is *settled* while its presumed leader answers: all its parts go there. Otherwise it *searches*:
//! one part at a time is sent to one member after the other until one of them executes it.

use crate::ring::Ring;
use crate::tuning::VolumeTuning;
use std::collections::VecDeque;
use std::time::Duration;
use types::limits::SESSION_WINDOW;
use types::rng::Rng;
use types::{OsdId, PgId, Time};

#[derive(Debug)]
pub(crate) struct Pg {
    pub id: PgId,
    pub members: Vec<OsdId>,
    /// The presumed leader.
    pub guess: OsdId,
    pub settled: bool,
    /// The member that the search asks next, if a hint or a refusal named one.
    pub target: Option<OsdId>,
    /// The member that the search has asked last, until it answers.
    pub probed: Option<OsdId>,
    /// A presumed leader that fell silent, and the time until which a search skips it.
    pub silent: Option<(OsdId, Time)>,
    /// Position in `members` at which the search goes on without a target.
    pub next_member: usize,
    /// Time of the search's next question.
    pub probe_at: Time,
    /// Start of the search.
    pub search_since: Time,
    /// Number of refusals since the last executed request, without the final ones.
    pub refusals: u32,
    /// A settled PG sends nothing before this.
    pub resume_at: Time,
    /// Time of the presumed leader's last message, or since when a part is in flight.
    pub silence_from: Time,
    pub hint_followed_at: Time,
    pub report: crate::unreached::Report,
    pub full: crate::stall::Full,
    pub service: crate::policy::Service,
    /// True when members may have changed: the volume asks meta.
    pub stale: bool,
    /// True when a segment of the volume lies here, so its attach record does, too.
    pub attached: bool,

    pub seqs: Ring,
    /// Number of this PG's parts, wherever they are.
    pub parts: u32,
    /// True when the presumed leader, or the target of the search, has no part of this PG because its connection has no credit.
    pub blocked: bool,
    /// Number of parts in flight.
    pub out: u32,
    /// The poll in which the last part left.
    pub sent_in: u64,
    pub again: VecDeque<u32>,
    pub reads: VecDeque<u32>,
    pub writes: VecDeque<u32>,
    pub read_turn: bool,
    /// Requests whose next part belongs here, while `parts` is at its limit.
    pub paused: VecDeque<u32>,
    /// Whether the PG is on the volume's list of PGs to drive.
    pub active: bool,
}

impl Pg {
    /// Makes a PG whose leader is `leader` as far as meta knows. Without members it waits for meta.
    pub fn new(now: Time, id: PgId, members: Vec<OsdId>, leader: Option<OsdId>) -> Pg {
        let guess = leader.or(members.first().copied()).unwrap_or_default();
        Pg {
            id,
            stale: members.is_empty(),
            attached: false,
            members,
            guess,
            settled: leader.is_some(),
            target: Some(guess),
            probed: None,
            silent: None,
            next_member: 0,
            probe_at: Time::ZERO,
            search_since: now,
            refusals: 0,
            resume_at: Time::ZERO,
            silence_from: Time::ZERO,
            hint_followed_at: Time::ZERO,
            report: crate::unreached::Report::default(),
            full: crate::stall::Full::default(),
            service: crate::policy::Service::default(),
            seqs: Ring::new(),
            parts: 0,
            blocked: false,
            out: 0,
            sent_in: 0,
            again: VecDeque::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            read_turn: false,
            paused: VecDeque::new(),
            active: false,
        }
    }

    /// Counts the parts that do not wait for space.
    pub fn moving_parts(&self) -> u32 {
        self.parts - self.full.waiting
    }

    /// Whether another part may be made. Writes that wait for space do not count, because other requests must go on: trims free
    /// space. The limits of the volume bound the waiting ones.
    pub fn has_part_room(&self, parts_max: u32) -> bool {
        self.moving_parts() < parts_max
    }

    /// Whether another number may be drawn: numbers in flight stay below watermark + window (R7).
    pub fn window_open(&self) -> bool {
        self.seqs.next() < self.seqs.low() + SESSION_WINDOW
    }

    /// Takes the part that leaves next from its queue: repetitions first, then reads and writes in turn.
    pub fn next(&mut self) -> Option<u32> {
        if let Some(part) = self.again.pop_front() {
            return Some(part);
        }
        let write = !self.writes.is_empty() && self.window_open();
        if write && (self.reads.is_empty() || !self.read_turn) {
            self.read_turn = true;
            return self.writes.pop_front();
        }
        self.read_turn = false;
        self.reads.pop_front()
    }

    /// Takes a part out of its queue: it ended before it left (again).
    pub fn unqueue(&mut self, part: u32) {
        for queue in [&mut self.again, &mut self.reads, &mut self.writes] {
            queue.retain(|p| *p != part);
        }
    }

    pub fn has_work(&self) -> bool {
        self.out > 0 || self.has_queued()
    }

    pub fn has_queued(&self) -> bool {
        !self.again.is_empty() || !self.reads.is_empty() || !self.writes.is_empty()
    }

    /// Starts or continues the search for the leader.
    pub fn search(&mut self, now: Time, target: Option<OsdId>, after: Duration) {
        if self.settled {
            self.settled = false;
            self.search_since = now;
            let at = self.members.iter().position(|m| *m == self.guess);
            self.next_member = at.map_or(0, |i| i + 1);
        }
        self.target = target;
        self.probed = None;
        self.blocked = false;
        self.probe_at = now + after;
    }

    /// Returns the pause after `refusals` refusals in a row.
    pub fn backoff(&self, tuning: &VolumeTuning, rng: &mut Rng) -> Duration {
        let short = self.refusals < tuning.backoff_short_count;
        let last = if short { tuning.backoff_short } else { tuning.backoff_last };
        let full = (tuning.backoff_first * (1 << self.refusals.min(4))).min(last).as_nanos() as u64;
        Duration::from_nanos(rng.between(full / 2, full))
    }

    /// Returns the time of the next work of this PG, after the turn at `now`. `silent`: as in [`VolumeTuning`].
    pub fn deadline(&self, now: Time, silent: Duration) -> Time {
        if !self.has_work() || self.members.is_empty() {
            return Time::NEVER;
        }
        if !self.settled {
            return self.probe_at;
        }
        let silent = if self.out > 0 || self.blocked { self.silence_from + silent } else { Time::NEVER };
        let resume = if self.has_queued() && self.resume_at > now { self.resume_at } else { Time::NEVER };
        silent.min(resume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pg() -> Pg {
        Pg::new(Time::ZERO, PgId::default(), vec![OsdId(1), OsdId(2), OsdId(3)], Some(OsdId(1)))
    }

    #[test]
    fn numbers_in_flight_stay_below_watermark_plus_window() {
        let mut pg = pg();
        while pg.window_open() {
            pg.seqs.give();
        }
        assert_eq!(pg.seqs.next() - 1, pg.seqs.low() + SESSION_WINDOW - 1, "the last number drawn");
        pg.seqs.take_back(1);
        assert!(pg.window_open());
    }

    #[test]
    fn a_closed_window_lets_reads_and_repetitions_pass() {
        let mut pg = pg();
        while pg.window_open() {
            pg.seqs.give();
        }
        pg.writes.push_back(1);
        pg.reads.push_back(2);
        pg.again.push_back(3);
        assert_eq!([pg.next(), pg.next(), pg.next()], [Some(3), Some(2), None]);
        pg.seqs.take_back(1);
        assert_eq!(pg.next(), Some(1));
    }

    #[test]
    fn pauses_grow_and_stay_within_their_bounds() {
        let (mut pg, mut rng, tuning) = (pg(), Rng::new(1), VolumeTuning::default());
        for refusals in [0, 1, 5, 100] {
            pg.refusals = refusals;
            let pause = pg.backoff(&tuning, &mut rng);
            assert!(pause >= tuning.backoff_first / 2 && pause <= tuning.backoff_last, "{refusals}: {pause:?}");
        }
        assert!(pg.backoff(&tuning, &mut rng) >= tuning.backoff_last / 2);
    }
}
