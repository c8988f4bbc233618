//! Election timing: when a replica may vote, and when it must campaign (R3). Raft's own timer is never used.
//!
//! `renewal` and `peers` report received messages; `group` asks at every poll whether an attempt is due. Invariant: no
//! vote for another, and no campaign, while a promise stands or within one promise of the start. Jitter comes
//! from the group's seeded generator.

use crate::Timing;
use types::planted::{Bug, on};
use types::rng::Rng;
use types::{ReplicaId, Time};
use wire::RaftMsg;

#[derive(Debug)]
pub(crate) struct Election {
    timing: Timing,
    rng: Rng,
    /// Until then this replica, just started, neither votes nor campaigns: it has forgotten its promises.
    silent_until: Time,
    /// The leader to which this replica's vote is promised, and the end of the promise.
    promise: (Option<ReplicaId>, Time),
    /// Silence until then means that the leader died without a closed connection.
    deadline: Time,
    /// Time of the next attempt; `NEVER` while a leader is heard.
    campaign_at: Time,
    rounds: u32,
    round_started: Time,
    /// A vote request that came within the promise, to be handled when that ends.
    pub deferred: Option<RaftMsg>,
}

impl Election {
    /// Makes the timing of a replica that starts at `now`. `rank`: number of voters that campaign before this one.
    pub fn new(timing: Timing, now: Time, rank: u32, rng: Rng) -> Election {
        let mut election = Election {
            timing,
            rng,
            silent_until: now + timing.promise,
            promise: (None, Time::ZERO),
            deadline: Time::NEVER,
            campaign_at: now + timing.promise + timing.stagger * rank,
            rounds: 0,
            round_started: now,
            deferred: None,
        };
        election.redraw(now);
        election
    }

    fn draw(&mut self, min: std::time::Duration, max: std::time::Duration) -> std::time::Duration {
        std::time::Duration::from_nanos(self.rng.between(min.as_nanos() as u64, max.as_nanos() as u64))
    }

    /// Draws a time in which an election must have ended.
    pub fn draw_deadline(&mut self) -> std::time::Duration {
        self.draw(self.timing.election_min, self.timing.election_max)
    }

    fn redraw(&mut self, now: Time) {
        self.deadline = now + self.draw_deadline();
    }

    /// Notes that the leader's lease renewal was accepted: the vote is promised to it.
    pub fn renewed(&mut self, now: Time, leader: ReplicaId) {
        self.promise = (Some(leader), now + self.timing.promise);
        self.deferred = None;
        self.heard(now);
    }

    /// Notes that the leader's append was accepted: the leader lives, but gets no new promise.
    pub fn heard(&mut self, now: Time) {
        self.campaign_at = Time::NEVER;
        self.rounds = 0;
        self.redraw(now);
    }

    /// Whether a vote for `candidate` is forbidden now, after the start or by a promise to another.
    pub fn forbids_vote(&self, now: Time, candidate: ReplicaId) -> bool {
        let promised = now < self.promise.1 && self.promise.0 != Some(candidate);
        self.is_silent(now) || (promised && !on(Bug::PromiseIgnored))
    }

    pub fn is_silent(&self, now: Time) -> bool {
        now < self.silent_until && !on(Bug::VoteAfterRestart)
    }

    /// Returns the end of the promise; a time in the past when there is none.
    pub fn promised_until(&self) -> Time {
        self.promise.1
    }

    /// Notes that the leader's connection closed; `rank` voters campaign before this one.
    pub fn leader_lost(&mut self, now: Time, rank: u32) {
        self.rounds = 0;
        self.campaign_at = self.promise.1.max(now) + self.timing.stagger * rank;
    }

    /// Notes a lease release: the leader no longer serves. The successor that it chose campaigns first.
    pub fn lease_released(&mut self, now: Time, rank: u32) {
        self.promise = (None, Time::ZERO);
        self.rounds = 0;
        self.campaign_at = now + self.timing.round_max + self.timing.stagger * rank;
    }

    /// Ends the promise: the leader itself asked this replica to take over.
    pub fn released(&mut self) {
        self.promise = (None, Time::ZERO);
    }

    /// Notes that a voter came back: an attempt that failed for want of voters may now succeed.
    pub fn voter_up(&mut self, now: Time) {
        if self.campaign_at != Time::NEVER {
            let soon = now + self.draw(self.timing.round_min, self.timing.round_max);
            self.rounds = 0;
            self.campaign_at = self.campaign_at.min(soon);
        }
    }

    /// Notes a vote for another candidate: this replica lets it win.
    pub fn voted(&mut self, now: Time) {
        if self.campaign_at != Time::NEVER {
            self.campaign_at = now + self.draw(self.timing.round_min, self.timing.round_max);
        }
        self.redraw(now);
    }

    /// Notes that a replica with a shorter log campaigns. It cannot win with this replica's vote, so this one campaigns without
    /// waiting for its turn; `rank` others that may have as long a log go first.
    pub fn outruns(&mut self, now: Time, rank: u32) {
        if self.campaign_at != Time::NEVER && self.rounds == 0 {
            self.campaign_at = self.campaign_at.min(now + self.timing.stagger * rank);
        }
    }

    /// Notes that leadership was lost: this replica waits for the successor's lease renewal, or for the deadline.
    pub fn deposed(&mut self, now: Time) {
        self.campaign_at = Time::NEVER;
        self.rounds = 0;
        self.redraw(now);
    }

    /// Whether this replica receives a leader's lease renewals.
    pub fn hears_leader(&self, now: Time) -> bool {
        self.campaign_at == Time::NEVER && now < self.deadline && self.promise.0.is_some()
    }

    /// Returns the time of the next attempt.
    fn due_at(&self) -> Time {
        self.campaign_at.min(self.deadline).max(self.promise.1).max(self.silent_until)
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.due_at() <= now
    }

    /// Begins an attempt; if it fails, another follows.
    pub fn round(&mut self, now: Time) {
        self.rounds = self.rounds.saturating_add(1);
        self.round_started = now;
        self.deadline = Time::NEVER;
        self.pause(now);
    }

    fn pause(&mut self, now: Time) {
        let pause = match self.rounds <= self.timing.fast_rounds_max {
            true => self.draw(self.timing.round_min, self.timing.round_max),
            false => self.draw_deadline(),
        };
        self.campaign_at = now + pause;
    }

    /// Notes that this replica's vote requests left only now, because its disk is slow. Other disks may be as slow, so this
    /// attempt gets that time again, twice.
    pub fn asked(&mut self, now: Time) {
        self.pause(now);
        self.campaign_at = self.campaign_at + now.since(self.round_started) * 2;
    }

    /// Takes the deferred request, when its time has come.
    pub fn take_deferred(&mut self, now: Time) -> Option<RaftMsg> {
        if self.deferred.is_some() && now >= self.promise.1 { self.deferred.take() } else { None }
    }

    pub fn next_deadline(&self) -> Time {
        let deferred = if self.deferred.is_some() { self.promise.1 } else { Time::NEVER };
        self.due_at().min(deferred)
    }
}
