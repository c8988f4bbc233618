//! Raft's laws (Ongaro, "Consensus: bridging theory and practice", figure 3.2), over all replicas of all PGs.
//!
//! - A term has one leader.
//! - Two logs that agree on an entry agree on all before it.
//! - A leader has every committed entry.
//! - No two replicas commit different entries at one index.
//!
//! Two more laws support them. When a leader commits an entry, the logs of a majority hold it durably at that moment,
//! and not only at some earlier one. A replica with a group has every committed entry that it held durably in any of its
//! lives: one that may lack some has failed, and has no group (R4).
//!
//! The check looks after each turn of an OSD in which something changed. An entry is known by (index, term).

use std::collections::BTreeMap;
use types::map::Membership;
use types::{Index, OsdId, PgId, ReplicaId, Term};

/// Durable end of a replica whose process is gone: any entry may be there.
const UNKNOWN: Index = Index(u64::MAX);

/// State of one replica as an observer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub pg: PgId,
    pub osd: OsdId,
    pub replica: ReplicaId,
    pub term: Term,
    /// The replica considers itself the leader of its term.
    pub elected: bool,
    pub commit: Index,
    pub first: Index,
    pub last: Index,
    pub last_term: Term,
    /// Last entry that is durable on its device. For a process that is gone it is unknown.
    pub durable: Index,
    /// Term of that entry, as far as the log knows it.
    pub durable_term: Option<Term>,
}

/// Observations of all replicas.
#[derive(Default)]
pub struct Laws {
    seen: BTreeMap<ReplicaId, View>,
    /// Members that each replica had at the last look.
    members: BTreeMap<ReplicaId, Membership>,
    leaders: BTreeMap<(PgId, Term), ReplicaId>,
    /// For each committed entry: its term, and the term in which it was first seen committed.
    committed: BTreeMap<PgId, BTreeMap<Index, (Term, Term)>>,
    /// Term of the entry before each entry that was ever in a log.
    before: BTreeMap<(PgId, Index, Term), Term>,
    /// The last committed entry that each replica has held durably, in any of its lives.
    held: BTreeMap<ReplicaId, Index>,
    looks: u64,
}

impl Laws {
    /// Looks at a replica with its members; `term_at` returns the terms of its entries as far as its log knows them.
    ///
    /// # Errors
    /// The law that is broken.
    pub fn look(
        &mut self,
        view: View,
        members: &Membership,
        term_at: impl Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        let seen = self.seen.insert(view.replica, view);
        if seen == Some(view) {
            return Ok(());
        }
        self.looks += 1;
        let View { pg, osd, .. } = view;
        let broken = |law: String| format!("pg {pg} on {osd}: {law}");
        if view.elected {
            self.one_leader(view).map_err(broken)?;
        }
        self.logs_match(view, seen, &term_at).map_err(broken)?;
        self.same_commits(view, seen, &term_at).map_err(broken)?;
        self.majority_holds(view, seen, members).map_err(broken)?;
        if self.members.get(&view.replica).is_none_or(|known| known.epoch != members.epoch) {
            self.members.insert(view.replica, members.clone());
        }
        self.nothing_forgotten(view, &term_at).map_err(broken)?;
        let elected_now = view.elected && !seen.is_some_and(|s| s.elected && s.term == view.term);
        if elected_now { self.complete(view, &term_at).map_err(broken) } else { Ok(()) }
    }

    /// Notes that the process of this OSD is gone. Its next life shows what its devices hold.
    pub fn gone(&mut self, osd: OsdId) {
        let Laws { seen, committed, held, .. } = self;
        for view in seen.values_mut().filter(|view| view.osd == osd) {
            // The entry may have been committed since the last look.
            let known = committed.get(&view.pg).and_then(|c| c.get(&view.durable)).map(|(term, _)| *term);
            if known.is_some() && known == view.durable_term {
                let held = held.entry(view.replica).or_default();
                *held = view.durable.max(*held);
            }
            view.durable = UNKNOWN;
        }
    }

    /// Checks that a replica still has the committed entries that it made durable. They count for ever: for its vote
    /// and for its acknowledgements.
    fn nothing_forgotten(&mut self, view: View, term_at: &impl Fn(Index) -> Option<Term>) -> Result<(), String> {
        let held = self.held.entry(view.replica).or_default();
        if view.last < *held {
            return Err(format!("it ends at {}, has not failed, and has held committed entry {held}", view.last));
        }
        let committed = self.committed.get(&view.pg).and_then(|c| c.range(..=view.durable).next_back());
        let holds = |(index, (term, _)): &(&Index, &(Term, Term))| term_at(**index) == Some(*term);
        if let Some((index, _)) = committed.filter(holds) {
            *held = (*held).max(*index);
        }
        Ok(())
    }

    /// Returns the number of looks that found a change.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    fn one_leader(&mut self, view: View) -> Result<(), String> {
        let leader = *self.leaders.entry((view.pg, view.term)).or_insert(view.replica);
        match leader == view.replica {
            true => Ok(()),
            false => Err(format!("{} leads in {}, and so did {leader}", view.replica, view.term)),
        }
    }

    fn logs_match(
        &mut self,
        view: View,
        seen: Option<View>,
        term_at: &impl Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        // Entries before an unchanged end were checked at an earlier look.
        let known = seen.filter(|s| s.last <= view.last && term_at(s.last) == Some(s.last_term));
        let from = known.map_or(Index(0), |s| s.last).max(Index(view.first.0.saturating_sub(1)));
        let Some(mut previous) = term_at(from) else { return Ok(()) };
        for i in from.0 + 1..=view.last.0 {
            let Some(term) = term_at(Index(i)) else { return Ok(()) };
            let before = *self.before.entry((view.pg, Index(i), term)).or_insert(previous);
            if before != previous {
                return Err(format!("before entry {i} of {term} stands {previous}, elsewhere {before}"));
            }
            previous = term;
        }
        Ok(())
    }

    /// Checks that a leader commits only what a majority holds durably at that moment. In a turn that also applies a step,
    /// the majority is one of the members before the step, or of those after it. The first of the entries, which may be the
    /// step, needs one of the members before it: a step counts when it is applied.
    fn majority_holds(&self, view: View, seen: Option<View>, members: &Membership) -> Result<(), String> {
        let risen = seen.is_some_and(|s| s.elected && s.term == view.term && s.commit < view.commit);
        if !view.elected || !risen {
            return Ok(());
        }
        let durable = |id: ReplicaId| self.seen.get(&id).map_or(UNKNOWN, |other| other.durable);
        let first = Index(seen.map_or(Index(0), |s| s.commit).0 + 1);
        let before = self.members.get(&view.replica).unwrap_or(members);
        let all_held = [before, members].iter().any(|members| members.majority(|id| durable(id) >= view.commit));
        let first_held = before.majority(|id| durable(id) >= first);
        let (lacks, of) = match (all_held, first_held) {
            (true, true) => return Ok(()),
            (false, _) => (view.commit, members),
            (true, false) => (first, before),
        };
        let lack = of.iter().filter(|m| durable(m.replica) < lacks).count();
        Err(format!("the leader of {} commits {lacks}, which {lack} of {} do not hold", view.term, of.iter().count()))
    }

    fn same_commits(
        &mut self,
        view: View,
        seen: Option<View>,
        term_at: &impl Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        let committed = self.committed.entry(view.pg).or_default();
        // A new life may remember an earlier commit index; then every entry is checked again.
        let from = seen.map_or(Index(0), |s| s.commit).min(view.commit);
        let from = if seen.is_some_and(|s| s.commit > view.commit) { Index(0) } else { from };
        for i in (from.0 + 1).max(view.first.0)..=view.commit.0 {
            let Some(term) = term_at(Index(i)) else { continue };
            let (known, _) = *committed.entry(Index(i)).or_insert((term, view.term));
            if known != term {
                return Err(format!("entry {i} is committed here with {term}, elsewhere with {known}"));
            }
        }
        Ok(())
    }

    /// Checks that a new leader has the entries that were committed in earlier terms. A leader whose votes come late,
    /// after others have elected and committed in a later term, leads no follower.
    fn complete(&self, view: View, term_at: &impl Fn(Index) -> Option<Term>) -> Result<(), String> {
        let Some(committed) = self.committed.get(&view.pg) else { return Ok(()) };
        let before = committed.iter().rev().find(|(_, (_, seen_in))| *seen_in < view.term);
        let Some((index, (term, _))) = before else { return Ok(()) };
        if view.last < *index {
            return Err(format!("the leader of {} ends at {}, and {index} is committed", view.term, view.last));
        }
        match term_at(*index) {
            Some(own) if own != *term => {
                Err(format!("the leader of {} has entry {index} of {own}, not of {term}", view.term))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Epoch;
    use types::map::Member;

    /// Looks at a replica whose log holds these terms from index 1 on.
    fn look(laws: &mut Laws, replica: u64, term: u64, elected: bool, log: &[u64], commit: u64) -> Result<(), String> {
        let term_at = |i: Index| match i.0 {
            0 => Some(Term(0)),
            i => log.get(i as usize - 1).map(|t| Term(*t)),
        };
        let last = Index(log.len() as u64);
        let view = View {
            pg: PgId { pool: types::PoolId(1), n: 0 },
            osd: OsdId(replica as u32),
            replica: ReplicaId(replica),
            term: Term(term),
            elected,
            commit: Index(commit),
            first: Index(1),
            last,
            last_term: term_at(last).expect("its own end"),
            durable: last,
            durable_term: log.last().map(|t| Term(*t)),
        };
        let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
        laws.look(view, &Membership::fresh(Epoch(1), &[1, 2, 3].map(member)), term_at)
    }

    #[test]
    fn a_history_that_raft_allows_passes() {
        let mut laws = Laws::default();
        for (replica, term, elected, log, commit) in [
            (1, 1, true, &[1][..], 0),
            (2, 1, false, &[1], 0),
            (1, 1, true, &[1, 1, 1], 2),
            (2, 1, false, &[1, 1], 2),
            (2, 2, true, &[1, 1, 2], 2),
            (1, 2, false, &[1, 1, 2], 3),
            (1, 2, false, &[1, 1, 2], 1),
        ] {
            look(&mut laws, replica, term, elected, log, commit).expect("allowed");
        }
        assert_eq!(laws.looks(), 7);
    }

    #[test]
    fn two_leaders_in_one_term_are_found() {
        let mut laws = Laws::default();
        look(&mut laws, 1, 4, true, &[4], 0).expect("the first");
        assert!(look(&mut laws, 2, 4, true, &[4], 0).expect_err("the second").contains("and so did"));
    }

    #[test]
    fn logs_that_agree_late_and_differ_early_are_found() {
        let mut laws = Laws::default();
        look(&mut laws, 1, 3, false, &[1, 1, 3], 0).expect("the first");
        assert!(look(&mut laws, 2, 3, false, &[1, 2, 3], 0).expect_err("another past").contains("stands t2"));
    }

    #[test]
    fn a_leader_without_a_committed_entry_is_found() {
        let mut laws = Laws::default();
        look(&mut laws, 1, 1, true, &[1, 1], 2).expect("it commits");
        assert!(look(&mut laws, 2, 2, true, &[1], 1).expect_err("too short").contains("i2 is committed"));
    }

    #[test]
    fn leader_whose_votes_come_late_may_lack_entries_of_a_later_term() {
        let mut laws = Laws::default();
        look(&mut laws, 1, 1, true, &[1], 1).expect("the first");
        look(&mut laws, 2, 3, true, &[1, 3], 2).expect("it commits");
        look(&mut laws, 3, 2, true, &[1, 2], 1).expect("it leads no follower");
        assert!(look(&mut laws, 3, 4, true, &[1, 2], 1).expect_err("now it matters").contains("not of t3"));
    }

    #[test]
    fn a_commit_that_a_majority_held_once_and_holds_no_more_is_found() {
        let begin = || {
            let mut laws = Laws::default();
            look(&mut laws, 1, 1, true, &[1, 1], 1).expect("it leads");
            look(&mut laws, 2, 1, false, &[1, 1], 1).expect("it has both");
            look(&mut laws, 3, 1, false, &[1], 1).expect("it lags");
            laws
        };
        look(&mut begin(), 1, 1, true, &[1, 1], 2).expect("two of three");
        let mut laws = begin();
        laws.gone(OsdId(2));
        look(&mut laws, 1, 1, true, &[1, 1], 2).expect("it is unknown what it had");
        let mut laws = begin();
        laws.gone(OsdId(2));
        look(&mut laws, 2, 1, false, &[1], 1).expect("it has lost what it had");
        assert!(look(&mut laws, 1, 1, true, &[1, 1], 2).expect_err("one of three").contains("2 of 3"));
    }

    #[test]
    fn step_that_only_the_members_after_it_hold_is_found() {
        let member = |n: u64| Member { replica: ReplicaId(n), osd: OsdId(n as u32) };
        let set = |ids: [u64; 3]| ids.map(member).to_vec();
        let joint = Membership { epoch: Epoch(2), outgoing: set([1, 2, 3]), ..Membership::default() };
        let joint = Membership { voters: set([1, 2, 4]), ..joint };
        let left = Membership { epoch: Epoch(3), voters: set([1, 2, 4]), left: true, ..Membership::default() };
        let step = |holders: &[u64]| {
            let mut laws = Laws::default();
            let mut look = |replica: u64, last: u64, commit: u64, members: &Membership| {
                let view = View {
                    pg: PgId { pool: types::PoolId(1), n: 0 },
                    osd: OsdId(replica as u32),
                    replica: ReplicaId(replica),
                    term: Term(1),
                    elected: replica == 1,
                    commit: Index(commit),
                    first: Index(1),
                    last: Index(last),
                    last_term: Term(1),
                    durable: Index(last),
                    durable_term: Some(Term(1)),
                };
                laws.look(view, members, |index| Some(Term(u64::from(index.0 > 0))))
            };
            look(1, 6, 5, &joint).expect("it leads");
            (2..=4).for_each(|n| look(n, 5 + u64::from(holders.contains(&n)), 5, &joint).expect("it follows"));
            look(1, 6, 6, &left)
        };
        step(&[2]).expect("a majority of either set");
        assert!(step(&[4]).expect_err("the old set does not hold it").contains("commits i6, which 2 of 4"));
    }

    #[test]
    fn replica_that_lost_committed_entries_and_has_a_group_is_found() {
        let mut laws = Laws::default();
        look(&mut laws, 2, 1, false, &[1, 1], 1).expect("it has both");
        look(&mut laws, 1, 1, true, &[1, 1], 2).expect("the second is committed");
        laws.gone(OsdId(2));
        let lacks = |laws: &mut Laws| look(laws, 2, 1, false, &[1], 1);
        assert!(lacks(&mut laws).expect_err("it forgot").contains("has held committed entry i2"));
        look(&mut laws, 2, 1, false, &[1, 1], 1).expect("it has it");
        let mut laws = Laws::default();
        look(&mut laws, 2, 1, false, &[1, 7], 1).expect("another second one");
        look(&mut laws, 1, 2, true, &[1, 2], 2).expect("the second is committed");
        laws.gone(OsdId(2));
        lacks(&mut laws).expect("that one was never committed");
    }

    #[test]
    fn two_entries_committed_at_one_index_are_found() {
        let mut laws = Laws::default();
        look(&mut laws, 1, 1, false, &[1, 1], 2).expect("the first");
        assert!(look(&mut laws, 2, 2, false, &[1, 2], 2).expect_err("another entry").contains("elsewhere with"));
    }
}
