//! Replicas that may lack what they acknowledged, because this OSD's log has lost records (R11, ADR 0007).
//!
//! The loop comes in with such replicas, with peers' answers, and with peers' own questions; questions go out, then a
//! group that follows without a will of its own, until its log reaches as far as any other member's did.
//!
//! Invariant: no group of such a replica is made before every other member has answered this process, and a majority of
//! all has told afterwards how far it is. By then nobody is a candidate or leader of old: votes that were cast here were
//! asked for by one of them, in a term that it made durable first, and what was acknowledged here counts no more.

use crate::node::Osd;
use crate::pgs::State;
use bus::LinkId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::store::{HardState, Recovered, ReplicaIdentity};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time};
use wire::{Lack, RepairBody, RepairMsg};

/// Until a member is asked again that has not answered.
const AGAIN: Duration = Duration::from_millis(500);
/// A catch-up target that no log reaches.
pub(crate) const NEVER: (Term, Index) = (Term(u64::MAX), Index(u64::MAX));
/// The queries count the members at creation.
const NEEDS_REPLACEMENT: &str = "the replica may lack entries that it acknowledged, and its PG has changed its members";
/// How long a replica that begins anew waits for members that lag, when all have answered: who cannot take entries may
/// itself wait for this one.
const LAG_MAX: Duration = Duration::from_secs(60);

/// How far another member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    current: Term,
    end: (Term, Index),
}

/// A replica that waits to hear from all others.
struct Asking {
    recovered: Recovered,
    /// Where the log ends that it gives up of its own accord, once a majority has as much without it.
    gives_up: Option<(Term, Index)>,
    /// From then on it waits for that no more.
    gives_up_at: Time,
    said: BTreeMap<ReplicaId, Standing>,
    /// Members that cannot say how far they were: they wait as this one does, or are damaged.
    unsure: BTreeSet<ReplicaId>,
    /// Answers to questions of another round do not count.
    round: u32,
    /// It is the second round.
    again: bool,
    next_at: Time,
}

/// All doubts of one OSD.
#[derive(Default)]
pub(crate) struct Doubts {
    asking: BTreeMap<ReplicaId, Asking>,
    /// What the logs of those that follow must reach.
    following: BTreeMap<ReplicaId, (PgId, (Term, Index))>,
    /// Doubts that have ended since the start.
    pub done: u64,
}

impl Asking {
    /// Index and term of the last entry that is certain.
    fn end(&self) -> (Term, Index) {
        end_of(&self.recovered)
    }

    /// The first entry that may be in no log any more, when those that cannot say how far they were could have
    /// committed entries by themselves.
    fn lost_from(&self) -> Option<Index> {
        let majority = self.recovered.identity.members.len() / 2 + 1;
        (self.unsure.len() + 1 >= majority).then(|| Index(self.recovered.hard_state.commit.0 + 1))
    }

    /// Whether all others have told how far they are; or a majority has, and the rest runs and has no group: whoever was
    /// elected, and whatever was committed, is then known to one of those that have told (ADR 0007).
    fn is_answered(&self) -> bool {
        let members = &self.recovered.identity.members;
        let mut silent = members.iter().map(|m| m.replica).filter(|id| self.is_silent(*id)).peekable();
        self.again
            && self.is_held_by_a_majority()
            && (silent.peek().is_none()
                || (self.said.len() > members.len() / 2 && silent.all(|id| self.unsure.contains(&id))))
    }

    /// Whether what it gives up is on a majority of the members' disks without it. Of two the other one has all that was
    /// committed, and can get nothing more while there is no leader.
    fn is_held_by_a_majority(&self) -> bool {
        let members = self.recovered.identity.members.len();
        let holders = self.said.values().filter(|standing| Some(standing.end) >= self.gives_up).count();
        self.gives_up.is_none() || members == 2 || holders > members / 2
    }

    /// Who is asked: it has not answered, or had less than what this replica would give up.
    fn is_to_ask(&self, member: ReplicaId) -> bool {
        let lags = |said: &Standing| self.again && Some(said.end) < self.gives_up;
        self.is_silent(member) || self.said.get(&member).is_some_and(lags)
    }

    /// Begins the second round when all others have answered in the first: no leader of old is left that counts what
    /// this replica once acknowledged, and only from then on the others tell all that was committed so (ADR 0007).
    fn ask_again(&mut self, now: Time, next_round: impl FnOnce() -> u32) {
        let members = &self.recovered.identity.members;
        let has_answered = |id: ReplicaId| !self.is_silent(id) || self.unsure.contains(&id);
        if !self.again && members.iter().all(|m| has_answered(m.replica)) {
            self.said.clear();
            (self.again, self.round, self.next_at) = (true, next_round(), Time::ZERO);
            self.gives_up_at = now + LAG_MAX;
        }
    }

    fn wait_no_longer(&mut self, now: Time) {
        if now >= self.gives_up_at && !self.is_held_by_a_majority() {
            let replica = self.recovered.identity.replica;
            tracing::warn!(
                replica = replica.0,
                "no majority of the members holds the entries that this replica lost: the replica is rebuilt without \
                 them"
            );
            self.gives_up = None;
        }
    }

    fn is_silent(&self, member: ReplicaId) -> bool {
        member != self.recovered.identity.replica && !self.said.contains_key(&member)
    }
}

fn end_of(recovered: &Recovered) -> (Term, Index) {
    let (index, term) = recovered.entries.last().map_or(recovered.before, |entry| (entry.index, entry.term));
    (term, index)
}

/// The hard state to follow from, and what must be reached.
fn conclude(me: ReplicaId, own: HardState, said: &BTreeMap<ReplicaId, Standing>) -> (HardState, (Term, Index)) {
    let term = said.values().map(|s| s.current).max().expect("there are others").max(own.term);
    let reach = said.values().map(|s| s.end).max().expect("there are others");
    // Up to this term the vote may have been given: it is kept from everybody.
    (HardState { term, vote: Some(me), commit: own.commit }, reach)
}

impl Doubts {
    pub fn len(&self) -> usize {
        self.asking.len() + self.following.len()
    }

    pub fn next_deadline(&self) -> Time {
        self.asking.values().map(|asking| asking.next_at).min().unwrap_or(Time::NEVER)
    }

    /// A peer came up.
    pub fn hurry(&mut self) {
        self.asking.values_mut().for_each(|asking| asking.next_at = Time::ZERO);
    }

    pub fn forget(&mut self, replica: ReplicaId) {
        self.asking.remove(&replica);
        self.following.remove(&replica);
    }

    /// Notes that a forced step ends the doubt of a replica.
    pub fn note_forced(&mut self, replica: ReplicaId) {
        if let Some((_, reach)) = self.following.get_mut(&replica) {
            *reach = NEVER;
        }
    }

    /// Whether the next entries of this replica have the forced step that ends its doubt.
    pub fn ends_with_next(&mut self, replica: ReplicaId) -> bool {
        let is_forced = self.reach(replica) == Some(NEVER);
        if is_forced {
            self.following.remove(&replica);
            self.done += 1;
        }
        is_forced
    }

    /// Returns the last entry of the log with which a replica waits.
    pub fn end_of(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        self.asking.get(&replica).map(Asking::end)
    }

    pub fn clear(&mut self) {
        self.asking.clear();
        self.following.clear();
    }

    pub fn is_asking(&self, replica: ReplicaId) -> bool {
        self.asking.contains_key(&replica)
    }

    /// What a replica that waits was to begin with.
    pub fn stop_asking(&mut self, replica: ReplicaId) -> Option<Recovered> {
        self.asking.remove(&replica).map(|asking| asking.recovered)
    }

    /// From where on entries of this replica's PG may be lost in every copy.
    pub fn lost_from(&self, replica: ReplicaId) -> Option<Index> {
        self.asking.get(&replica).and_then(Asking::lost_from)
    }

    pub fn inconsistent(&self) -> usize {
        self.asking.values().filter(|asking| asking.lost_from().is_some()).count()
    }

    /// PGs whose replica here is in doubt.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> + '_ {
        let asking = self.asking.values().map(|asking| asking.recovered.identity.pg);
        asking.chain(self.following.values().map(|(pg, _)| *pg))
    }

    /// What a new group of this replica must reach, if it is in doubt.
    pub fn reach(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        self.following.get(&replica).map(|(_, reach)| *reach)
    }
}

impl Osd {
    /// A replica came back from the device that may lack what it acknowledged. `gives_up`: the end of the log that it keeps
    /// until a majority has as much without it.
    pub(crate) fn begin_doubt(&mut self, mut recovered: Recovered, gives_up: Option<(Term, Index)>) {
        let members = group::members_in(&recovered);
        if recovered.checkpoint.bytes.is_empty() {
            // It lost its home: it begins as it was born.
            recovered.checkpoint = crate::control::fresh_state(&recovered.identity);
        }
        let (pg, replica) = (recovered.identity.pg, recovered.identity.replica);
        let (term, last) = end_of(&recovered);
        tracing::warn!(%pg, replica = replica.0, last = last.0, term = term.0,
            "the log of a replica has lost records: the replica neither votes nor serves until all other members \
             have reported the ends of their logs");
        let slot = match self.pgs.by_replica(replica) {
            Some(slot) => slot,
            None => self.pgs.insert(recovered.identity.clone(), members, State::Repairing),
        };
        if self.pgs.get(slot).has_changed_members() {
            return self.quarantine_replica(replica, NEEDS_REPLACEMENT.to_owned());
        }
        let round = self.repairs.next_round();
        let (said, unsure) = (BTreeMap::new(), BTreeSet::new());
        let (again, gives_up_at, next_at) = (false, Time::NEVER, Time::ZERO);
        let asking = Asking { recovered, gives_up, gives_up_at, said, unsure, round, again, next_at };
        self.doubts.asking.insert(replica, asking);
    }

    /// A replica cannot go on from what its device gives back, and its peers can: it leaves leadership and waits to follow
    /// them from nothing. What it has stays until they have told how far they are, and a majority has as much without it.
    /// False when it is not possible now.
    pub(crate) fn begin_anew(&mut self, replica: ReplicaId, reason: &str) -> bool {
        let Some(slot) = self.pgs.by_replica(replica) else { return false };
        if self.pgs.get(slot).has_changed_members() {
            self.quarantine_replica(replica, reason.to_owned());
            return true;
        }
        let Some(hard_state) = self.engine.begin_anew(replica) else { return false };
        let had = self.pgs.group(slot).map(|group| group.standing().1);
        let identity = self.pgs.get(slot).identity.clone();
        tracing::error!(pg = %identity.pg, replica = replica.0, reason,
            "the contents of a replica cannot be used: the replica is rebuilt from its peers");
        self.with_slot(slot, false, |group, _, actions| group.end(reason.to_owned(), actions));
        self.doubts.forget(replica);
        self.pgs.get_mut(slot).state = State::Repairing;
        let checkpoint = crate::control::fresh_state(&identity);
        let before = (checkpoint.index, checkpoint.term);
        let (entries, lost) = (Vec::new(), Vec::new());
        let recovered =
            Recovered { identity, hard_state, checkpoint, before, entries, lost, in_doubt: true, damage: None };
        self.begin_doubt(recovered, had);
        self.meta.report_soon(self.now);
        true
    }

    /// Asks who has not answered.
    pub(crate) fn step_doubts(&mut self) {
        if self.doubts.next_deadline() > self.now {
            return;
        }
        let (mut questions, mut answered) = (Vec::new(), Vec::new());
        for asking in self.doubts.asking.values_mut().filter(|asking| asking.next_at <= self.now) {
            asking.next_at = self.now + AGAIN;
            asking.wait_no_longer(self.now);
            answered.extend(asking.is_answered().then_some(asking.recovered.identity.replica));
            let (term, index) = asking.end();
            let identity = &asking.recovered.identity;
            let silent = identity.members.iter().filter(|m| asking.is_to_ask(m.replica));
            let round = asking.round;
            questions.extend(
                silent.map(|m| (m.osd, identity.clone(), (m.replica, round), RepairBody::Doubt { index, term })),
            );
        }
        for (osd, identity, (to, round), body) in questions {
            self.send_repair(osd, &identity, to, round, body);
        }
        answered.into_iter().for_each(|replica| self.follow_if_answered(replica));
    }

    /// A member asks how far this one is. Who waits in doubt itself, or is damaged, says that it does not know; who
    /// follows in doubt will know soon, and says nothing yet; who leads forgets what the other once had.
    pub(crate) fn answer_doubt(
        &mut self,
        slot: usize,
        from: OsdId,
        asked: (ReplicaId, u32),
        (term, last): (Term, Index),
    ) {
        let held = self.pgs.get(slot);
        if held.has_changed_members() || matches!(&held.state, State::Running(group) if group.may_change_members()) {
            // The one that asks counts the members at creation, and these decide alone no more.
            return;
        }
        let identity = held.identity.clone();
        let standing = match &mut self.pgs.get_mut(slot).state {
            State::Running(group) if !group.is_in_doubt() => {
                group.handle_follower_lost(from, last);
                Some(group.standing())
            }
            State::Repairing => self.repairs.recovered(identity.replica).map(|r| (r.hard_state.term, end_of(r))),
            _ => None,
        };
        self.pgs.touch(slot);
        let waits =
            self.doubts.is_asking(identity.replica) || matches!(self.pgs.get(slot).state, State::Quarantined(_));
        let body = match standing {
            Some((current, (term, index))) => RepairBody::Standing { index, term, current },
            None if waits => RepairBody::Lack { index: last, term, why: Lack::Unsure },
            None => return,
        };
        self.send_repair(from, &identity, asked.0, asked.1, body);
    }

    /// A member cannot say how far it was. It is asked again: a person may have brought it back.
    pub(crate) fn take_unsure(&mut self, replica: ReplicaId, from: ReplicaId, round: u32) {
        let Some(asking) = self.doubts.asking.get_mut(&replica).filter(|asking| asking.round == round) else { return };
        if asking.said.contains_key(&from) || !asking.unsure.insert(from) {
            return;
        }
        if let Some(lost_from) = asking.lost_from() {
            let pg = asking.recovered.identity.pg;
            tracing::error!(%pg, replica = replica.0, from = %lost_from,
                "inconsistent: too many replicas have lost log records, so committed entries may be lost");
            self.meta.report_soon(self.now);
        }
        self.follow_if_answered(replica);
    }

    /// A member has answered.
    pub(crate) fn take_standing(&mut self, link: LinkId, msg: &RepairMsg, current: Term, end: (Term, Index)) {
        let of_now = |asking: &&mut Asking| asking.round == msg.round;
        let Some(asking) = self.doubts.asking.get_mut(&msg.to).filter(of_now) else { return };
        let max = group::NUMBER_MAX;
        if current.0 > max || end.1.0 > max || end.0 > current {
            return self.bus.disconnect(link, "a standing that no replica can have");
        }
        asking.unsure.remove(&msg.from);
        asking.said.insert(msg.from, Standing { current, end });
        self.follow_if_answered(msg.to);
    }

    /// Goes on when nobody is silent any more and the engine is ready; looked at again otherwise.
    fn follow_if_answered(&mut self, replica: ReplicaId) {
        if let Some(asking) = self.doubts.asking.get_mut(&replica) {
            asking.ask_again(self.now, || self.repairs.next_round());
        }
        let answered = self.doubts.asking.get(&replica).is_some_and(Asking::is_answered);
        if answered && self.engine.may_follow_in_doubt(replica) {
            let asking = self.doubts.asking.remove(&replica).expect("it was just there");
            self.follow_in_doubt(asking);
        }
    }

    /// Everybody has answered: the replica may follow.
    fn follow_in_doubt(&mut self, asking: Asking) {
        let Asking { recovered, said, .. } = asking;
        let ReplicaIdentity { pg, replica, .. } = recovered.identity;
        let (hard_state, reach) = conclude(replica, recovered.hard_state, &said);
        tracing::info!(%pg, replica = replica.0, term = hard_state.term.0, reach = %reach.1,
            "the suspect replica follows without a vote until it has caught up");
        self.follow_from(recovered, hard_state, reach);
    }

    /// Makes the group of a suspect replica.
    pub(crate) fn follow_from(&mut self, mut recovered: Recovered, hard_state: HardState, reach: (Term, Index)) {
        let ReplicaIdentity { pg, replica, .. } = recovered.identity;
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        recovered.hard_state = hard_state;
        self.doubts.following.insert(replica, (pg, reach));
        self.engine.follow_in_doubt(replica, hard_state);
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        let first = self.engine.first_index(replica);
        if let Some(group) = self.pgs.group(slot) {
            group.set_first_index(first);
        }
        self.pgs.touch(slot);
        self.meta.report_soon(self.now);
    }

    /// Its log reaches as far as any other did.
    pub(crate) fn doubt_over(&mut self, replica: ReplicaId) {
        let Some((pg, _)) = self.doubts.following.remove(&replica) else { return };
        tracing::info!(%pg, replica = replica.0, "the suspect replica has caught up and votes again");
        self.doubts.done += 1;
        self.engine.doubt_over(replica);
        self.meta.report_soon(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_kept_from_all_terms_that_anybody_knows_and_the_furthest_log_must_be_reached() {
        let standing = |current, term, index| Standing { current: Term(current), end: (Term(term), Index(index)) };
        let said = BTreeMap::from([(ReplicaId(2), standing(7, 5, 90)), (ReplicaId(3), standing(6, 6, 40))]);
        let own = HardState { term: Term(4), vote: Some(ReplicaId(2)), commit: Index(11) };
        let (hard_state, reach) = conclude(ReplicaId(1), own, &said);
        assert_eq!(hard_state, HardState { term: Term(7), vote: Some(ReplicaId(1)), commit: Index(11) });
        assert_eq!(reach, (Term(6), Index(40)), "a later term's log is further than a longer one");
        let own = HardState { term: Term(9), ..own };
        assert_eq!(conclude(ReplicaId(1), own, &said).0.term, Term(9), "it campaigned alone");
    }

    fn asking(members: u64) -> Asking {
        let member = |n: u64| types::map::Member { replica: ReplicaId(n), osd: OsdId(n as u32) };
        let identity = ReplicaIdentity {
            pg: PgId { pool: types::PoolId(1), n: 0 },
            replica: ReplicaId(1),
            lineage: 1,
            conf_epoch: types::Epoch(1),
            members: (1..=members).map(member).collect(),
        };
        let recovered = Recovered {
            checkpoint: crate::control::fresh_state(&identity),
            identity,
            hard_state: HardState::default(),
            before: (Index(0), Term(0)),
            entries: Vec::new(),
            lost: Vec::new(),
            in_doubt: true,
            damage: None,
        };
        Asking {
            recovered,
            gives_up: None,
            gives_up_at: Time::NEVER,
            said: BTreeMap::new(),
            unsure: BTreeSet::new(),
            round: 1,
            again: true,
            next_at: Time::NEVER,
        }
    }

    #[test]
    fn what_members_told_before_all_had_answered_is_asked_again() {
        let mut asking = Asking { again: false, ..asking(5) };
        let standing = Standing { current: Term(1), end: (Term(1), Index(1)) };
        asking.said.extend((2..=4).map(|n| (ReplicaId(n), standing)));
        asking.ask_again(Time(0), || 2);
        assert_eq!(asking.round, 1, "one is silent");
        asking.unsure.insert(ReplicaId(5));
        asking.ask_again(Time(0), || 2);
        assert!(!asking.is_answered(), "they may have got entries since from who had not answered");
        assert_eq!((asking.round, asking.next_at), (2, Time::ZERO));
        asking.said.extend((2..=4).map(|n| (ReplicaId(n), standing)));
        asking.ask_again(Time(0), || 3);
        assert!(asking.is_answered() && asking.round == 2);
    }

    #[test]
    fn nobody_gives_up_of_its_own_accord_what_a_majority_does_not_hold_without_it() {
        let standing = |index| Standing { current: Term(3), end: (Term(2), Index(index)) };
        for (members, ends, answered) in [
            (3, &[9, 9][..], true),
            (3, &[9, 8], false),
            (2, &[9], true),
            (2, &[8], true),
            (5, &[9, 9, 9, 1], true),
            (5, &[9, 9, 8, 8], false),
        ] {
            let mut asking = Asking { gives_up: Some((Term(2), Index(9))), ..asking(members) };
            asking.said.extend((2..).map(ReplicaId).zip(ends.iter().map(|end| standing(*end))));
            assert_eq!(asking.is_answered(), answered, "{ends:?}");
            let lags = |n: usize| ends[n] < 9;
            assert!((0..ends.len()).all(|n| asking.is_to_ask(ReplicaId(n as u64 + 2)) == lags(n)), "{ends:?}");
            let later = Standing { current: Term(3), end: (Term(3), Index(4)) };
            asking.said.values_mut().for_each(|said| *said = later);
            assert!(asking.is_answered(), "a log of a later term has what is committed");
        }
    }

    #[test]
    fn who_begins_anew_waits_a_minute_for_who_lags_once_all_have_answered() {
        let standing = |index| Standing { current: Term(3), end: (Term(2), Index(index)) };
        let mut asking = Asking { gives_up: Some((Term(2), Index(9))), again: false, ..asking(3) };
        asking.said.insert(ReplicaId(2), standing(9));
        asking.wait_no_longer(Time(0) + LAG_MAX);
        assert!(asking.gives_up.is_some(), "one may be away for long, and lag when it is back");
        asking.unsure.insert(ReplicaId(3));
        let now = Time(0) + 2 * LAG_MAX;
        asking.ask_again(now, || 2);
        asking.said.extend([(ReplicaId(2), standing(9)), (ReplicaId(3), standing(8))]);
        asking.wait_no_longer(now);
        assert!(!asking.is_answered());
        asking.wait_no_longer(now + LAG_MAX);
        assert!(asking.is_answered(), "it may wait for this replica itself: its log is full, say");
    }

    #[test]
    fn who_has_no_group_need_not_know_how_far_it_was_as_long_as_a_majority_does() {
        let told = |asking: &mut Asking, n: u64| {
            let standing = Standing { current: Term(1), end: (Term(1), Index(1)) };
            asking.said.insert(ReplicaId(n), standing);
        };
        for (members, sure, unsure, answered) in [
            (5, 4, 0, true),
            (5, 3, 1, true),
            (5, 3, 0, false),
            (5, 2, 2, false),
            (3, 2, 0, true),
            (3, 1, 1, false),
            (2, 1, 0, true),
            (4, 2, 1, false),
        ] {
            let mut asking = asking(members);
            (2..2 + sure).for_each(|n| told(&mut asking, n));
            asking.unsure.extend((2 + sure..2 + sure + unsure).map(ReplicaId));
            assert_eq!(asking.is_answered(), answered, "of {members} members {sure} tell and {unsure} cannot");
        }
    }
}
