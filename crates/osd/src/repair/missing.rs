//! One payload that a replica lacks: who is asked for it, and what is made of the answers.
//!
//! `repair` comes in with answers and with its questions' times; a verdict goes out.
//!
//! Invariant: an entry is given up only after two rounds, the second of which began when all others had answered in the
//! first. By then every earlier leader that holds the entry has lost leadership, so no leader counts the acknowledgements
//! of this replica's earlier lives. A peer that received the entry between two answers of the first round reports it in
//! the second (ADR 0004).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::store::Lost;
use types::{Index, OsdId, ReplicaId, Time};
use wire::Lack;

/// Between two looks at a payload that nobody has, and that somebody may have later.
const LOOK_AGAIN_MIN: Duration = Duration::from_secs(2);
/// The same for each payload that the replica lacks: questions for ever must not cost more, the more there are.
const LOOK_AGAIN_EACH: Duration = Duration::from_millis(20);

/// When a replica that lacks so many payloads asks again for one that nobody has.
pub(super) fn rest(missing_count: usize) -> Duration {
    LOOK_AGAIN_MIN.max(LOOK_AGAIN_EACH * u32::try_from(missing_count).unwrap_or(u32::MAX))
}

/// What a payload that is missing still needs.
#[derive(Debug)]
pub(super) struct Missing {
    pub lost: Lost,
    /// Who has said in this round that it cannot help, and why.
    pub said: BTreeMap<ReplicaId, Lack>,
    /// Who has said in this round that it cannot tell. It is asked again.
    unsure: BTreeSet<ReplicaId>,
    /// Whom it was asked of last, and until when that counts.
    pub asked: Option<(ReplicaId, Time)>,
    /// Answers to questions of earlier rounds do not count.
    pub round: u32,
    /// All others have answered in an earlier round.
    again: bool,
    /// Since when it is known that nobody has it, though it may be acknowledged.
    inconsistent: Option<Time>,
}

/// What is to be done about a missing payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Some member may still have it.
    Ask,
    /// All who could have it said no, and it may be acknowledged.
    Inconsistent,
    /// It is applied elsewhere, and no log has it any more.
    Behind,
    /// No majority holds the entry, so that it is not committed and cannot be any more.
    Void,
}

impl Missing {
    pub fn new(lost: Lost, round: u32) -> Missing {
        let (said, unsure) = (BTreeMap::new(), BTreeSet::new());
        Missing { lost, said, unsure, asked: None, round, again: false, inconsistent: None }
    }

    /// What this round's answers come to, of a PG of `count` members, when entries up to `commit` are known to be
    /// committed.
    pub fn judge(&self, count: usize, commit: Index) -> Verdict {
        let said = |why: Lack| self.said.values().filter(|lack| **lack == why).count();
        if said(Lack::Freed) > 0 {
            return Verdict::Behind;
        }
        let (holders, others) = (1 + said(Lack::Lost), said(Lack::Other));
        let may_hold = holders + self.unsure.len();
        if may_hold + others < count {
            return Verdict::Ask;
        }
        match self.lost.index <= commit || 2 * may_hold > count {
            true => Verdict::Inconsistent,
            false if holders == may_hold => Verdict::Void,
            false => Verdict::Ask,
        }
    }

    /// As `judge`, and goes on with the next round when this one alone proves nothing, or was long ago.
    pub fn step(
        &mut self,
        now: Time,
        rest: Duration,
        (count, commit): (usize, Index),
        next_round: impl FnOnce() -> u32,
    ) -> Verdict {
        let verdict = self.judge(count, commit);
        match verdict {
            Verdict::Inconsistent if self.again => {
                let since = *self.inconsistent.get_or_insert(now);
                if now < since + rest {
                    return verdict;
                }
                self.inconsistent = Some(now);
            }
            Verdict::Inconsistent | Verdict::Void if !self.again => self.again = true,
            _ => return verdict,
        }
        self.said.clear();
        self.unsure.clear();
        (self.asked, self.round) = (None, next_round());
        Verdict::Ask
    }

    /// Whether nobody has the payload, as far as is known.
    pub fn is_inconsistent(&self) -> bool {
        self.inconsistent.is_some()
    }

    /// The member to ask next: each in turn that has not said no.
    pub fn next_to_ask(
        &self,
        others: &[(ReplicaId, OsdId)],
        reaches: impl Fn(OsdId) -> bool,
    ) -> Option<(ReplicaId, OsdId)> {
        let may = |(id, osd): &(ReplicaId, OsdId)| !self.said.contains_key(id) && reaches(*osd);
        let after = self.asked.map_or(ReplicaId(0), |(last, _)| last);
        let mut able: Vec<(ReplicaId, OsdId)> = others.iter().copied().filter(may).collect();
        able.sort_unstable();
        able.iter().find(|(id, _)| *id > after).or(able.first()).copied()
    }

    /// A member sent bytes that are not those of this replica's record: it holds the entry, and no copy that could be taken.
    pub fn take_other_bytes(&mut self, from: ReplicaId, round: u32) {
        if !self.take_lack(from, round, Lack::Lost) {
            self.asked = None;
        }
    }

    /// A member cannot help. False: that is no answer to what was asked last.
    pub fn take_lack(&mut self, from: ReplicaId, round: u32, why: Lack) -> bool {
        if round != self.round || self.asked.is_none_or(|(asked, _)| asked != from) {
            return false;
        }
        if why == Lack::Unsure {
            self.unsure.insert(from);
            return true;
        }
        self.unsure.remove(&from);
        self.said.insert(from, why);
        self.asked = None;
        true
    }
}
