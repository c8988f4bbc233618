//! When a replica may vote and when it must ask for votes (R3). Raft's own timer is never used.
//!
//! `listing` and `peers` tell what was heard; `group` asks at every poll whether a round is due. Invariant: no
//! vote for another, and no campaign, while a promise stands or within one promise of the start. Jitter comes
//! from the group's seeded generator.

use crate::Timing;
use types::planted::{Bug, on};
use types::rng::Rng;
use types::{ReplicaId, Time};
use wire::RaftMsg;

/// Rounds in a row at the short pause; a group without quorum then asks at the pace of its deadline.
const FAST_ROUNDS_MAX: u32 = 20;

#[derive(Debug)]
pub(crate) struct Election {
    timing: Timing,
    rng: Rng,
    /// Until then this replica, just started, neither votes nor campaigns: it has forgotten its promises.
    silent_until: Time,
    /// To whom, and until when, our vote is promised.
    promise: (Option<ReplicaId>, Time),
    /// Silence until then means that the leader died without a closed connection.
    deadline: Time,
    /// A round is due then; `NEVER` while a leader is heard.
    campaign_at: Time,
    rounds: u32,
    round_started: Time,
    /// A request that came within the promise, to be judged again when it ends.
    pub deferred: Option<RaftMsg>,
}

impl Election {
    /// `rank`: how many voters go before this one.
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

    /// A span in which an election must have come to an end.
    pub fn draw_deadline(&mut self) -> std::time::Duration {
        self.draw(self.timing.election_min, self.timing.election_max)
    }

    fn redraw(&mut self, now: Time) {
        self.deadline = now + self.draw_deadline();
    }

    /// The leader's listing was accepted: the vote is promised to it.
    pub fn renewed(&mut self, now: Time, leader: ReplicaId) {
        self.promise = (Some(leader), now + self.timing.promise);
        self.deferred = None;
        self.heard(now);
    }

    /// The leader's append was accepted: it lives, but holds no new promise.
    pub fn heard(&mut self, now: Time) {
        self.campaign_at = Time::NEVER;
        self.rounds = 0;
        self.redraw(now);
    }

    /// Whether a vote for `candidate` is forbidden now by silence or by a promise to another.
    pub fn forbids_vote(&self, now: Time, candidate: ReplicaId) -> bool {
        let promised = now < self.promise.1 && self.promise.0 != Some(candidate);
        self.is_silent(now) || (promised && !on(Bug::PromiseIgnored))
    }

    pub fn is_silent(&self, now: Time) -> bool {
        now < self.silent_until && !on(Bug::VoteAfterRestart)
    }

    /// The leader's connection closed; `rank` voters go before this one.
    pub fn leader_lost(&mut self, now: Time, rank: u32) {
        self.rounds = 0;
        self.campaign_at = self.promise.1.max(now) + self.timing.stagger * rank;
    }

    /// The leader said goodbye: it serves no more. Whom it chose goes first.
    pub fn goodbye(&mut self, now: Time, rank: u32) {
        self.promise = (None, Time::ZERO);
        self.rounds = 0;
        self.campaign_at = now + self.timing.round_max + self.timing.stagger * rank;
    }

    /// The leader itself asked this replica to take over: its promise is given back.
    pub fn released(&mut self) {
        self.promise = (None, Time::ZERO);
    }

    /// A voter came back: a round that failed for want of voters may now succeed.
    pub fn voter_up(&mut self, now: Time) {
        if self.campaign_at != Time::NEVER {
            let soon = now + self.draw(self.timing.round_min, self.timing.round_max);
            self.rounds = 0;
            self.campaign_at = self.campaign_at.min(soon);
        }
    }

    /// Another was voted for: let it win.
    pub fn voted(&mut self, now: Time) {
        if self.campaign_at != Time::NEVER {
            self.campaign_at = now + self.draw(self.timing.round_min, self.timing.round_max);
        }
        self.redraw(now);
    }

    /// Leadership was lost: wait for the successor's listing, or for the deadline.
    pub fn deposed(&mut self, now: Time) {
        self.campaign_at = Time::NEVER;
        self.rounds = 0;
        self.redraw(now);
    }

    /// Whether a leader's listings come.
    pub fn hears_leader(&self, now: Time) -> bool {
        self.campaign_at == Time::NEVER && now < self.deadline && self.promise.0.is_some()
    }

    /// When the next round is due.
    fn due_at(&self) -> Time {
        self.campaign_at.min(self.deadline).max(self.promise.1).max(self.silent_until)
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.due_at() <= now
    }

    /// A round begins; if nothing comes of it, another follows.
    pub fn round(&mut self, now: Time) {
        self.rounds = self.rounds.saturating_add(1);
        self.round_started = now;
        self.deadline = Time::NEVER;
        self.pause(now);
    }

    fn pause(&mut self, now: Time) {
        let pause = match self.rounds <= FAST_ROUNDS_MAX {
            true => self.draw(self.timing.round_min, self.timing.round_max),
            false => self.draw_deadline(),
        };
        self.campaign_at = now + pause;
    }

    /// Our vote requests left only now, because our disk is slow: others' may be as slow, so this round is
    /// given that time again, twice.
    pub fn asked(&mut self, now: Time) {
        self.pause(now);
        self.campaign_at = self.campaign_at + now.since(self.round_started) * 2;
    }

    /// The deferred request, when its time has come.
    pub fn take_deferred(&mut self, now: Time) -> Option<RaftMsg> {
        if self.deferred.is_some() && now >= self.promise.1 { self.deferred.take() } else { None }
    }

    pub fn next_deadline(&self) -> Time {
        let deferred = if self.deferred.is_some() { self.promise.1 } else { Time::NEVER };
        self.due_at().min(deferred)
    }
}
