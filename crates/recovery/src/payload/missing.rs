//! One payload that a replica lacks: which member is asked for it, and the verdict on the answers.
//!
//! Input: the answers of members, and the time. Output: the member to ask next, and a verdict on the entry.
//!
//! Invariant: an entry that a majority may have held is never given up while no member has freed it. An answer is true of its
//! moment only; that is enough, because a replica that gives an entry up fails and votes no more (ADR 0023).

use crate::query::Query;
use crate::tuning::RepairTuning;
use std::time::Duration;
use types::control::LostExtent;
use types::map::{Member, Membership};
use types::store::Lost;
use types::{Index, OsdId, Time};
use wire::Lack;

/// Returns the pause between two passes of a replica that lacks so many payloads.
pub(super) fn rest(tuning: &RepairTuning, missing_count: usize) -> Duration {
    let each = tuning.payload_again_each * u32::try_from(missing_count).unwrap_or(u32::MAX);
    tuning.payload_again_min.max(each)
}

/// A payload that is missing, and the answers of the present pass of queries.
#[derive(Debug)]
pub(super) struct Missing {
    pub lost: Lost,
    /// Data of the entry, if it is a write.
    pub extent: Option<LostExtent>,
    /// Members without the payload, by their answers in this pass.
    pub query: Query<Lack>,
    /// Time of the first answer that a member has freed the entry.
    freed_at: Option<Time>,
    /// Time of the last pass at whose end no member had the payload, though the entry may be committed.
    inconsistent: Option<Time>,
}

/// Verdict on a missing payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Some member may still have it.
    Ask,
    /// No member has it, and the entry may be committed.
    Inconsistent,
    /// No member gives it any more: the entry is applied elsewhere, or was never committed.
    GivenUp,
}

impl Missing {
    pub fn new(lost: Lost, extent: Option<LostExtent>) -> Missing {
        Missing { lost, extent, query: Query::default(), freed_at: None, inconsistent: None }
    }

    /// Returns the verdict on the answers of this pass. `freed_wait`: longest wait for an entry that a member has freed; `None`: no leader of
    /// the PG was heard lately. `others`: the members that are
    /// asked, and `later`: others that may be, and count for no majority. Entries up to `commit` are known to be committed.
    pub fn judge(
        &self,
        now: Time,
        freed_wait: Option<Duration>,
        (members, others, later): (&Membership, &[Member], &[Member]),
        commit: Index,
    ) -> Verdict {
        if self.freed_at.zip(freed_wait).is_some_and(|(at, wait)| now >= at + wait) {
            return Verdict::GivenUp;
        }
        if others.iter().chain(later).any(|m| !self.query.answers.contains_key(m)) {
            return Verdict::Ask;
        }
        // This replica holds it. A member that has failed, or is gone, cannot tell: it may have held it.
        let may_hold = |m: &&Member| !matches!(self.query.answers.get(m), Some(Lack::Other | Lack::Freed));
        let half = |set: &[Member]| 2 * set.iter().filter(may_hold).count() > set.len();
        let may_be_committed = self.lost.index <= commit || half(&members.voters) || half(&members.outgoing);
        match self.freed_at.is_none() && may_be_committed {
            true => Verdict::Inconsistent,
            false => Verdict::GivenUp,
        }
    }

    /// Does what `judge` does, and begins the next pass of queries when the last one has ended long ago.
    pub fn step(
        &mut self,
        now: Time,
        (rest, freed_wait): (Duration, Option<Duration>),
        members: (&Membership, &[Member], &[Member]),
        commit: Index,
    ) -> Verdict {
        let verdict = self.judge(now, freed_wait, members, commit);
        if verdict != Verdict::Inconsistent {
            return verdict;
        }
        let since = *self.inconsistent.get_or_insert(now);
        if now < since + rest {
            return verdict;
        }
        self.inconsistent = Some(now);
        self.query = Query::default();
        Verdict::Ask
    }

    /// Whether no member has the payload, as far as is known.
    pub fn is_inconsistent(&self) -> bool {
        self.inconsistent.is_some()
    }

    /// Returns the member to ask next: each in turn that has not answered in this pass.
    pub fn next_to_ask(&self, others: &[Member], later: &[Member], reaches: impl Fn(OsdId) -> bool) -> Option<Member> {
        let able =
            || others.iter().chain(later).copied().filter(|m| !self.query.answers.contains_key(m) && reaches(m.osd));
        self.query.next(able()).or_else(|| able().min())
    }

    /// Takes the answer of the member that was asked last, which does not have the payload.
    pub fn take_lack(&mut self, now: Time, from: Member, why: Lack) {
        if why == Lack::Freed {
            self.freed_at.get_or_insert(now);
        }
        self.query.close(from);
        self.query.answers.insert(from, why);
    }
}
