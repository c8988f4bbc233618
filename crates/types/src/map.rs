//! Values of the cluster map that both planes use.

use crate::ids::{Epoch, Index, OsdId, PgId, ReplicaId, Term};
use crate::limits::REPLICAS_MAX;
use std::net::SocketAddr;

/// Address of an OSD, and the run of its process that listens there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdAddr {
    pub osd: OsdId,
    pub addr: SocketAddr,
}

/// One member of a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Member {
    pub replica: ReplicaId,
    pub osd: OsdId,
}

/// A PG and its members, as meta recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgMap {
    pub pg: PgId,
    /// Version of the member list.
    pub conf_epoch: Epoch,
    /// Members in the order of placement; the first is the preferred leader.
    pub members: Vec<Member>,
}

impl PgMap {
    /// Returns the member with this replica id.
    pub fn member(&self, replica: ReplicaId) -> Option<Member> {
        self.members.iter().copied().find(|m| m.replica == replica)
    }
}

/// One step of a membership change (ADR 0016).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum MembersStep {
    /// A new replica gets entries and streams, and counts for no majority.
    AddLearner(Member),
    /// The joint phase begins: `add`, a learner, becomes a voter, and `remove` leaves the new set.
    Enter { add: Option<ReplicaId>, remove: Option<ReplicaId> },
    /// The joint phase ends: the new set decides alone.
    Leave,
    /// Proves to every later start that `Leave` is committed: the replicas that left may be destroyed.
    Done,
    /// The change ends before its joint phase: a learner is given up, and no older step of this change takes effect.
    Abort,
    /// Forced recovery (ADR 0020): `keep` is the only member from here on, whatever the members were. The step is committed when
    /// `keep` has it. Replicas below `floor` that are no members have no part in the PG any more. With `fence` acknowledged writes
    /// may be lost: every session of the PG ends.
    Force { keep: Member, floor: ReplicaId, fence: bool },
}

/// A change of the members, as meta orders it: `add` becomes a voter, and `remove` leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Epoch of the members that the change begins with. The order is void under any others.
    pub expected: Epoch,
    pub add: Option<Member>,
    pub remove: Option<ReplicaId>,
    /// The change is given up, unless its joint phase has begun.
    pub cancel: bool,
}

/// Forced recovery of a PG, as meta orders it: see [`MembersStep::Force`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ForceMembers {
    pub keep: Member,
    pub floor: ReplicaId,
    pub fence: bool,
    /// The epoch of the members that result, unless they are newer already.
    pub epoch: Epoch,
    /// End of the log of `keep`, or of its past, when the order was made. A log that ends below it has lost something since, and
    /// the order is void.
    pub end: (Term, Index),
}

/// Reason why a step has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepRefusal {
    #[error("the members are of epoch {now}, the step expects {expected}")]
    Epoch { expected: Epoch, now: Epoch },
    #[error("a joint phase has to end first")]
    Joint,
    #[error("there is no joint phase")]
    NotJoint,
    #[error("the end of the joint phase has to be proved first, or is proved already")]
    Left,
    #[error("the replica is a member already, another one is a learner, or the OSD holds a voter of the new set")]
    Present,
    #[error("the replica is no learner")]
    NoLearner,
    #[error("the replica is no voter")]
    NoVoter,
    #[error("the PG would have no voter, or too many members")]
    Size,
    #[error("the members were forced before, with the floor {floor}")]
    Forced { floor: ReplicaId },
}

/// Members of a PG at one log index: the only truth about them (R4). It is decision state (R1).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Membership {
    /// Rises by one with each step.
    pub epoch: Epoch,
    /// Epoch of the members before the present change; of no meaning when there is none.
    pub base: Epoch,
    pub voters: Vec<Member>,
    /// The old set in a joint phase; empty otherwise.
    pub outgoing: Vec<Member>,
    pub learners: Vec<Member>,
    /// `Leave` is applied, and `Done` is not.
    pub left: bool,
    /// Replicas below this id that are no members are of a timeline that a forced recovery has ended.
    pub floor: ReplicaId,
}

impl Membership {
    /// Makes the membership of a new PG: every member is a voter.
    pub fn fresh(epoch: Epoch, members: &[Member]) -> Membership {
        let mut voters = members.to_vec();
        voters.sort_unstable();
        Membership { epoch, base: epoch, voters, ..Membership::default() }
    }

    /// Iterates over all members, each once.
    pub fn iter(&self) -> impl Iterator<Item = Member> + '_ {
        let leaving = self.outgoing.iter().filter(|m| !self.voters.contains(m));
        self.voters.iter().chain(leaving).chain(&self.learners).copied()
    }

    /// Whether no change is under way.
    pub fn is_settled(&self) -> bool {
        !self.is_joint() && !self.left && self.learners.is_empty()
    }

    /// Returns the epoch of the members that the present change began with; without a change, the epoch itself.
    pub fn change_base(&self) -> Epoch {
        if self.is_settled() { self.epoch } else { self.base }
    }

    /// Whether there are voters, no set names a replica twice, and no learner is a voter.
    pub fn is_sound(&self) -> bool {
        let distinct = |set: &[Member]| {
            let first_at = |m: &Member| set.iter().position(|other| other.replica == m.replica);
            set.iter().enumerate().all(|(n, m)| m.replica.0 != 0 && first_at(m) == Some(n))
        };
        let sets = [&self.voters, &self.outgoing, &self.learners];
        let learners_apart = self.learners.iter().all(|m| !self.is_voter(m.replica));
        !self.voters.is_empty() && learners_apart && sets.iter().all(|set| distinct(set))
    }

    /// Whether a joint phase stands.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether this replica counts for majorities.
    pub fn is_voter(&self, id: ReplicaId) -> bool {
        [&self.voters, &self.outgoing].into_iter().flatten().any(|m| m.replica == id)
    }

    /// Returns the OSD of a member.
    pub fn osd_of(&self, id: ReplicaId) -> Option<OsdId> {
        let mut all = [&self.voters, &self.outgoing, &self.learners].into_iter().flatten();
        all.find(|m| m.replica == id).map(|m| m.osd)
    }

    /// Whether `has` holds for a majority of the voters, in both sets of a joint phase.
    pub fn majority(&self, has: impl Fn(ReplicaId) -> bool) -> bool {
        let half = |set: &[Member]| set.is_empty() || set.iter().filter(|m| has(m.replica)).count() > set.len() / 2;
        !self.voters.is_empty() && half(&self.voters) && half(&self.outgoing)
    }

    /// Whether the replica may have a part in the PG: it is a member, or one that this membership may not know yet.
    pub fn admits(&self, id: ReplicaId) -> bool {
        id >= self.floor || self.osd_of(id).is_some()
    }

    /// Returns the membership after `step`. For [`MembersStep::Force`], `expected` is the least epoch of the result.
    ///
    /// # Errors
    /// When the step has no effect. Every replica decides alike, because only the membership decides.
    pub fn after(&self, expected: Epoch, step: MembersStep) -> Result<Membership, StepRefusal> {
        if let MembersStep::Force { keep, floor, .. } = step {
            return self.forced(expected, keep, floor);
        }
        if expected != self.epoch {
            return Err(StepRefusal::Epoch { expected, now: self.epoch });
        }
        if self.is_joint() && step != MembersStep::Leave {
            return Err(StepRefusal::Joint);
        }
        if self.left != (step == MembersStep::Done) {
            return Err(StepRefusal::Left);
        }
        let mut next = Membership { epoch: Epoch(self.epoch.0 + 1), base: self.change_base(), ..self.clone() };
        match step {
            MembersStep::AddLearner(member) => {
                if self.osd_of(member.replica).is_some() || !self.learners.is_empty() {
                    return Err(StepRefusal::Present);
                }
                next.learners.push(member);
            }
            MembersStep::Abort => next.learners.clear(),
            MembersStep::Enter { add, remove } => {
                next.outgoing.clone_from(&self.voters);
                if let Some(id) = remove {
                    next.voters.retain(|m| m.replica != id);
                    if next.voters.len() == self.voters.len() {
                        return Err(StepRefusal::NoVoter);
                    }
                }
                if let Some(id) = add {
                    let learner =
                        self.learners.iter().find(|m| m.replica == id).copied().ok_or(StepRefusal::NoLearner)?;
                    if next.voters.iter().any(|m| m.osd == learner.osd) {
                        return Err(StepRefusal::Present);
                    }
                    next.learners.retain(|m| m.replica != id);
                    next.voters.push(learner);
                    next.voters.sort_unstable();
                }
                if next.voters == self.voters {
                    return Err(StepRefusal::Size);
                }
            }
            MembersStep::Leave => {
                if !self.is_joint() {
                    return Err(StepRefusal::NotJoint);
                }
                next.outgoing.clear();
                next.left = true;
            }
            MembersStep::Done => next.left = false,
            MembersStep::Force { .. } => unreachable!("it was handled above"),
        }
        let count = next.voters.len();
        if count == 0 || count > REPLICAS_MAX || next.learners.len() > REPLICAS_MAX {
            return Err(StepRefusal::Size);
        }
        Ok(next)
    }

    fn forced(&self, epoch: Epoch, keep: Member, floor: ReplicaId) -> Result<Membership, StepRefusal> {
        if floor <= self.floor {
            return Err(StepRefusal::Forced { floor: self.floor });
        }
        let epoch = epoch.max(Epoch(self.epoch.0 + 1));
        Ok(Membership { epoch, base: epoch, voters: vec![keep], floor, ..Membership::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(replica: u64, osd: u32) -> Member {
        Member { replica: ReplicaId(replica), osd: OsdId(osd) }
    }

    fn three() -> Membership {
        Membership::fresh(Epoch(1), &[member(11, 1), member(12, 2), member(13, 3)])
    }

    fn enter(add: u64, remove: u64) -> MembersStep {
        let id = |id| (id != 0).then_some(ReplicaId(id));
        MembersStep::Enter { add: id(add), remove: id(remove) }
    }

    fn run(from: &Membership, steps: &[MembersStep]) -> Membership {
        steps.iter().fold(from.clone(), |m, step| m.after(m.epoch, *step).unwrap_or_else(|e| panic!("{step:?}: {e}")))
    }

    #[test]
    fn replacement_goes_through_learner_joint_phase_and_removal() {
        let learner = run(&three(), &[MembersStep::AddLearner(member(24, 4))]);
        assert!(!learner.is_voter(ReplicaId(24)) && learner.osd_of(ReplicaId(24)) == Some(OsdId(4)));
        let joint = run(&learner, &[enter(24, 12)]);
        assert_eq!((joint.outgoing.clone(), joint.learners.len()), (three().voters, 0));
        let has = |ids: &'static [u64]| move |id: ReplicaId| ids.contains(&id.0);
        assert!(!joint.majority(has(&[11, 12])), "a majority of the old set alone decides nothing");
        assert!(!joint.majority(has(&[11, 24])), "a majority of the new set alone decides nothing");
        assert!(joint.majority(has(&[11, 13])));
        let left = run(&joint, &[MembersStep::Leave]);
        assert_eq!(left.after(left.epoch, MembersStep::AddLearner(member(25, 5))), Err(StepRefusal::Left));
        let done = run(&left, &[MembersStep::Done]);
        assert_eq!(done.voters, [member(11, 1), member(13, 3), member(24, 4)]);
        assert_eq!((done.epoch, done.osd_of(ReplicaId(12))), (Epoch(5), None));
        assert_eq!(done.after(done.epoch, MembersStep::Done), Err(StepRefusal::Left));
    }

    #[test]
    fn replica_is_replaced_on_its_own_osd() {
        let done = run(&three(), &[MembersStep::AddLearner(member(22, 2)), enter(22, 12), MembersStep::Leave]);
        assert_eq!(done.voters, [member(11, 1), member(13, 3), member(22, 2)]);
    }

    #[test]
    fn members_are_added_and_removed_one_by_one() {
        let one = Membership::fresh(Epoch(1), &[member(1, 1)]);
        let two =
            run(&one, &[MembersStep::AddLearner(member(2, 2)), enter(2, 0), MembersStep::Leave, MembersStep::Done]);
        assert_eq!(two.voters.len(), 2);
        let back = run(&two, &[enter(0, 1), MembersStep::Leave]);
        assert_eq!(back.voters, [member(2, 2)]);
        let aborted = run(&one, &[MembersStep::AddLearner(member(2, 2)), MembersStep::Abort]);
        assert_eq!((aborted.voters, aborted.learners, aborted.epoch), (one.voters, Vec::new(), Epoch(3)));
    }

    #[test]
    fn abort_without_a_learner_voids_the_steps_of_the_change() {
        let aborted = run(&three(), &[MembersStep::Abort]);
        assert!(aborted.is_settled() && aborted.voters == three().voters);
        let late = aborted.after(Epoch(1), MembersStep::AddLearner(member(24, 4)));
        assert_eq!(late, Err(StepRefusal::Epoch { expected: Epoch(1), now: Epoch(2) }));
    }

    #[test]
    fn change_base_is_the_epoch_that_the_change_began_with() {
        let aborted = run(&three(), &[MembersStep::AddLearner(member(24, 4)), MembersStep::Abort]);
        assert_eq!(aborted.change_base(), Epoch(3));
        let learner = run(&aborted, &[MembersStep::AddLearner(member(25, 5))]);
        let joint = run(&learner, &[enter(25, 12)]);
        let left = run(&joint, &[MembersStep::Leave]);
        assert_eq!([&learner, &joint, &left].map(Membership::change_base), [Epoch(3); 3]);
        assert_eq!(run(&left, &[MembersStep::Done]).change_base(), Epoch(7));
    }

    #[test]
    fn step_that_does_not_fit_has_no_effect() {
        let learner = run(&three(), &[MembersStep::AddLearner(member(24, 4))]);
        let joint = run(&learner, &[enter(24, 12)]);
        let cases = [
            (
                three(),
                Epoch(2),
                MembersStep::AddLearner(member(24, 4)),
                StepRefusal::Epoch { expected: Epoch(2), now: Epoch(1) },
            ),
            (joint.clone(), joint.epoch, MembersStep::AddLearner(member(25, 5)), StepRefusal::Joint),
            (joint.clone(), joint.epoch, enter(0, 11), StepRefusal::Joint),
            (three(), Epoch(1), MembersStep::Leave, StepRefusal::NotJoint),
            (three(), Epoch(1), MembersStep::AddLearner(member(11, 4)), StepRefusal::Present),
            (learner.clone(), learner.epoch, MembersStep::AddLearner(member(25, 4)), StepRefusal::Present),
            (three(), Epoch(1), enter(24, 12), StepRefusal::NoLearner),
            (learner.clone(), learner.epoch, enter(24, 99), StepRefusal::NoVoter),
            (three(), Epoch(1), enter(0, 0), StepRefusal::Size),
            (Membership::fresh(Epoch(1), &[member(1, 1)]), Epoch(1), enter(0, 1), StepRefusal::Size),
        ];
        for (from, expected, step, refusal) in cases {
            assert_eq!(from.after(expected, step), Err(refusal), "{step:?} after {from:?}");
        }
        let on_a_voters_osd = run(&three(), &[MembersStep::AddLearner(member(22, 2))]);
        assert_eq!(on_a_voters_osd.after(Epoch(2), enter(22, 13)), Err(StepRefusal::Present));
    }

    #[test]
    fn majorities_of_adjacent_memberships_intersect() {
        // Every pair of memberships that one step parts, and every pair of deciding sets of replicas.
        let learner = run(&three(), &[MembersStep::AddLearner(member(24, 4))]);
        let joint = run(&learner, &[enter(24, 12)]);
        let done = run(&joint, &[MembersStep::Leave]);
        let ids = [11, 12, 13, 24];
        let decides =
            |m: &Membership, set: u32| m.majority(|id| set >> ids.iter().position(|i| *i == id.0).unwrap() & 1 == 1);
        for (a, b) in [(three(), learner.clone()), (learner, joint.clone()), (joint, done)] {
            for (left, right) in (0..16u32).flat_map(|l| (0..16).map(move |r| (l, r))) {
                if decides(&a, left) && decides(&b, right) {
                    assert_ne!(left & right, 0, "{a:?} {b:?} {left:b} {right:b}");
                }
            }
        }
    }
}
