//! A leader's knowledge of its own leadership: acknowledged renewals, the lease that follows from them, and its term.
//!
//! `renewal` passes in acknowledgements, `reads` asks for the lease. Invariant: the lease of a term ends before any majority
//! of voters can have forgotten its promise, whatever the rates of the clocks within ±33 % (R3). Times are this leader's own
//! send times, which followers acknowledge; no time of another clock is used.

use std::time::Duration;
use types::limits::PART_MAX;
use types::map::{Member, Membership};
use types::planted::{Bug, on};
use types::{Index, ReplicaId, Term, Time};
use wire::Contents;

/// State of a follower's contents before its first acknowledgement.
const UNKNOWN: Contents = Contents::Filling { room_kib: u32::MAX, is_short: false };
/// Payload that a new leader may propose before it knows whose contents are complete: one write of the largest size.
const BLIND_PACE: u64 = PART_MAX;

/// Last acknowledgement of one follower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowerAck {
    pub replica: ReplicaId,
    /// This leader's send time of the newest renewal that it acknowledged.
    pub sent_at: Time,
    /// State of the follower's contents, as of its newest acknowledgement.
    pub contents: Contents,
    /// Acknowledgements of renewals that were sent by then do not count for that: a stream to it had begun.
    pub fills_since: Time,
    /// The follower's match then, and the number of acknowledgements since without progress.
    pub matched: Index,
    pub idle_acks: u32,
}

/// A lease renewal that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub term: Term,
    pub leader: ReplicaId,
    /// Up to here it had all contents and all committed entries, durably.
    pub complete: Index,
}

/// One term of leadership.
#[derive(Clone, Debug)]
pub(crate) struct Leading {
    pub term: Term,
    /// The leader's own first entry: it serves no request before this is applied.
    pub term_start_index: Index,
    pub since: Time,
    /// A lease release was sent in this term: followers have forgotten their promises.
    pub forfeited: bool,
    pub acks: Vec<FollowerAck>,
    /// The newest send time that a majority (with this leader) has acknowledged.
    pub majority_at: Time,
    /// Payload that may be proposed from now on, in bytes, while a follower that is being filled counts. `None`: any.
    pub pace: Option<u64>,
    /// No majority has said yet that it has all its contents, and no pace was set: such a follower may count.
    pub is_blind: bool,
    /// The leader of the term before this one, until its OSD is heard again or its log may begin. Its log begins only at the order of a
    /// leader, and there was none in between: it still has all contents.
    pub former: Option<Heard>,
}

impl Leading {
    pub fn new(term: Term, term_start_index: Index, since: Time, me: ReplicaId, members: &Membership) -> Leading {
        let is_blind = !members.majority(|id| id == me);
        let mut leading = Leading {
            term,
            term_start_index,
            since,
            forfeited: false,
            acks: Vec::new(),
            majority_at: Time::ZERO,
            pace: is_blind.then_some(BLIND_PACE),
            is_blind,
            former: None,
        };
        leading.majority_at = leading.majority(me, members);
        leading
    }

    /// Notes the acknowledgement of the renewal that was sent at `sent_at`.
    pub fn acknowledged(
        &mut self,
        replica: ReplicaId,
        sent_at: Time,
        me: ReplicaId,
        members: &Membership,
    ) -> &mut FollowerAck {
        let ack = self.ack_of(replica);
        ack.sent_at = ack.sent_at.max(sent_at);
        self.majority_at = self.majority(me, members);
        self.ack_of(replica)
    }

    pub fn ack_of(&mut self, replica: ReplicaId) -> &mut FollowerAck {
        let at = self.acks.iter().position(|e| e.replica == replica).unwrap_or_else(|| {
            let (sent_at, fills_since) = (Time::ZERO, Time::ZERO);
            self.acks.push(FollowerAck {
                replica,
                sent_at,
                contents: UNKNOWN,
                fills_since,
                matched: Index(0),
                idle_acks: 0,
            });
            self.acks.len() - 1
        });
        &mut self.acks[at]
    }

    /// Whether the follower has said within this time that it has all its contents.
    pub fn is_whole(&self, replica: ReplicaId, now: Time, silence_max: Duration) -> bool {
        self.acks
            .iter()
            .any(|ack| ack.replica == replica && ack.contents == Contents::Whole && now < ack.sent_at + silence_max)
    }

    /// Notes that the follower may give up its contents from now on.
    pub fn fills(&mut self, now: Time, replica: ReplicaId) {
        let ack = self.ack_of(replica);
        (ack.contents, ack.fills_since) = (UNKNOWN, now);
        self.former = self.former.filter(|former| former.leader != replica);
    }

    /// Returns the newest moment `t` such that a majority of each half has acknowledged a renewal sent at `t` or later.
    fn majority(&self, me: ReplicaId, members: &Membership) -> Time {
        let heard = |id: ReplicaId| {
            if id == me {
                return Time::NEVER;
            }
            self.acks.iter().find(|e| e.replica == id).map_or(Time::ZERO, |e| e.sent_at)
        };
        let half = |voters: &[Member]| {
            let mut times: Vec<Time> = voters.iter().map(|m| heard(m.replica)).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            times.get(times.len() / 2).copied().unwrap_or(Time::NEVER)
        };
        half(&members.voters).min(half(&members.outgoing))
    }

    /// Counts again after a change of the members: earlier acknowledgements count no more, so the lease ends, and the leader is
    /// heard as if it had just begun. Acknowledgements that are on their way count: each is the promise of a replica, whatever the
    /// members were when it was asked for.
    pub fn recount(&mut self, me: ReplicaId, members: &Membership, now: Time) {
        self.acks.retain(|ack| members.osd_of(ack.replica).is_some());
        for ack in &mut self.acks {
            // A follower that may be filled still has to say that it has its contents.
            *ack = FollowerAck { sent_at: Time::ZERO, contents: UNKNOWN, matched: Index(0), idle_acks: 0, ..*ack };
        }
        self.since = now;
        self.majority_at = self.majority(me, members);
        // No other replica may ever acknowledge a renewal: a PG of one has moved here.
        self.end_blindness(me, members, now, Duration::ZERO);
    }

    /// Ends the pace of a leader that did not know whose contents are complete, once a majority has them.
    pub fn end_blindness(&mut self, me: ReplicaId, members: &Membership, now: Time, silence_max: Duration) {
        if self.is_blind && members.majority(|id| id == me || self.is_whole(id, now, silence_max)) {
            (self.is_blind, self.pace) = (false, None);
        }
    }

    /// Whether the lease stands at `now`.
    pub fn lease_holds(&self, now: Time, lease: Duration) -> bool {
        let given_up = self.forfeited && !on(Bug::LeaseKeptAfterRelease);
        let over = now >= self.majority_at + lease && !on(Bug::LeaseWithoutEnd);
        !given_up && self.majority_at > Time::ZERO && !over
    }

    /// Returns the send time of the newest renewal that a majority acknowledged; at first the moment of election.
    pub fn heard_at(&self) -> Time {
        self.majority_at.max(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(voters: &[u64], outgoing: &[u64], learners: &[u64]) -> Membership {
        let set = |ids: &[u64]| {
            ids.iter().map(|id| Member { replica: ReplicaId(*id), osd: types::OsdId(*id as u32) }).collect()
        };
        Membership { voters: set(voters), outgoing: set(outgoing), learners: set(learners), ..Membership::default() }
    }

    /// Voters, outgoing voters, acknowledgements (replica, send time), and the send time from which the lease counts.
    type Case = (&'static [u64], &'static [u64], &'static [(u64, u64)], Option<u64>);

    #[test]
    fn a_lease_counts_send_times_that_a_majority_of_each_half_acknowledged() {
        let cases: &[Case] = &[
            (&[1], &[], &[], Some(u64::MAX)),
            (&[1, 2], &[], &[], None),
            (&[1, 2], &[], &[(2, 50)], Some(50)),
            (&[1, 2, 3], &[], &[(2, 50)], Some(50)),
            (&[1, 2, 3], &[], &[(2, 50), (3, 70)], Some(70)),
            (&[1, 2, 3, 4, 5], &[], &[(2, 50), (3, 70), (4, 60)], Some(60)),
            (&[1, 2, 3, 4, 5], &[], &[(2, 50)], None),
            (&[1, 2, 3], &[1, 4, 5], &[(2, 50)], None),
            (&[1, 2, 3], &[1, 4, 5], &[(2, 50), (5, 40)], Some(40)),
            // A learner's acknowledgement does not count.
            (&[1, 2, 3], &[], &[(9, 50)], None),
        ];
        for (voters, outgoing, acks, want) in cases {
            let conf = conf(voters, outgoing, &[9]);
            let mut leading = Leading::new(Term(1), Index(1), Time(1), ReplicaId(1), &conf);
            for (id, at) in *acks {
                leading.acknowledged(ReplicaId(*id), Time(*at), ReplicaId(1), &conf);
            }
            let lease = Duration::from_nanos(10);
            match want {
                None => assert!(!leading.lease_holds(Time(2), lease), "{voters:?} {outgoing:?} {acks:?}"),
                Some(u64::MAX) => assert!(leading.lease_holds(Time(u64::MAX - 1), lease)),
                Some(at) => {
                    assert!(leading.lease_holds(Time(at + 9), lease), "{voters:?} {outgoing:?} {acks:?}");
                    assert!(!leading.lease_holds(Time(at + 10), lease), "{voters:?} {outgoing:?} {acks:?}");
                }
            }
        }
    }

    #[test]
    fn late_acknowledgement_never_shortens_and_a_release_ends_the_lease() {
        let conf = conf(&[1, 2, 3], &[], &[]);
        let mut leading = Leading::new(Term(1), Index(1), Time(1), ReplicaId(1), &conf);
        leading.acknowledged(ReplicaId(2), Time(50), ReplicaId(1), &conf);
        leading.acknowledged(ReplicaId(2), Time(30), ReplicaId(1), &conf);
        assert_eq!(leading.majority_at, Time(50));
        leading.forfeited = true;
        assert!(!leading.lease_holds(Time(51), Duration::from_nanos(10)));
    }

    #[test]
    fn the_lease_ends_before_the_promise_for_clocks_within_a_third() {
        let timing = crate::Timing::default();
        // The fastest follower clock counts the promise in promise ÷ 1.33 of true time; the slowest leader
        // clock stretches its lease to lease ÷ 0.67.
        let promise = timing.promise.as_secs_f64() / 1.33;
        let lease = timing.lease().as_secs_f64() / 0.67;
        assert!(lease <= promise + 1e-9, "{lease} > {promise}");
    }
}
