//! Changes of the members (R4, ADR 0016): learner, joint phase, removal.
//!
//! Meta orders a change through the loop and repeats the order; the leader brings it forward one step at a time, as entries
//! of the log. A joint phase ends without an order, under any leader.
//!
//! Invariant: a step is decided at apply, by the membership alone. This leader has one step in its log at most that is not
//! applied, and proposes it only when it has applied an entry of its own term.

use crate::decision::Decision;
use crate::descriptor::{self, Command};
use crate::{Action, Group};
use bytes::BytesMut;
use types::map::{ForceMembers, Member, MemberChange, MembersStep, Membership};
use types::planted::{Bug, on};
use types::store::Recovered;
use types::{Entry, Epoch, Index, ReplicaId, Time};

/// Returns the members of a replica at the end of its log: its newest steps may be uncommitted.
pub fn members_in(recovered: &Recovered) -> Membership {
    let Recovered { identity, checkpoint, entries, .. } = recovered;
    let decision = Decision::decode(&checkpoint.bytes);
    let mut members = decision
        .map_or_else(|_| Membership::fresh(identity.conf_epoch, &identity.members), |decision| decision.members);
    for entry in entries.iter().filter(|entry| entry.index > checkpoint.index) {
        if let Ok(Command::Members { expected, step }) = Command::decode(&entry.descriptor)
            && let Ok(after) = members.after(expected, step)
        {
            members = after;
        }
    }
    members
}

/// The change that this leader works on.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    ordered: Option<MemberChange>,
    /// The step that is proposed and not applied yet.
    proposed: Option<Index>,
    /// Whether an entry with a step ever came to this log.
    seen: bool,
    /// Index of the last step that is applied, or a later one.
    stepped: Index,
    /// The last step of a forced recovery that keeps this replica.
    forced: Option<Index>,
}

impl Changing {
    pub fn new(me: ReplicaId, applied: Index, entries: &[Entry]) -> Changing {
        let seen = entries.iter().any(|entry| descriptor::is_members(&entry.descriptor));
        let forced = forced_step(me, entries);
        Changing { seen, stepped: applied, forced, ..Changing::default() }
    }
}

/// Returns the index of the last forced step in a log that keeps this replica. The step is committed: no other replica counts.
pub(crate) fn forced_step(me: ReplicaId, entries: &[Entry]) -> Option<Index> {
    let forces = |entry: &&Entry| forced_by(&entry.descriptor).is_some_and(|keep| keep == me);
    entries.iter().rev().find(forces).map(|entry| entry.index)
}

/// Returns the replica that a forced step keeps.
fn forced_by(descriptor: &[u8]) -> Option<ReplicaId> {
    match Command::decode(descriptor) {
        Ok(Command::Members { step: MembersStep::Force { keep, .. }, .. }) => Some(keep.replica),
        _ => None,
    }
}

impl Group {
    /// Returns the members at the applied index.
    pub fn members(&self) -> &Membership {
        &self.decision.members
    }

    /// Whether the log may hold a step that is not applied.
    pub fn may_change_members(&self) -> bool {
        self.changing.seen
    }

    /// Notes entries that came to the log.
    pub(crate) fn note_steps<'a>(&mut self, mut descriptors: impl Iterator<Item = &'a [u8]>) {
        self.changing.seen |= descriptors.any(descriptor::is_members);
    }

    /// Handles an order of meta. Nothing happens unless this replica leads, and its members are those that the change begins
    /// with or has come to; meta repeats the order.
    pub fn handle_change(&mut self, change: MemberChange) {
        if self.is_leader() {
            self.changing.ordered = Some(change);
        }
    }

    /// Handles an order of forced recovery (ADR 0020): the PG goes on from the log of this replica, which is its only member. Nothing
    /// happens when that was done, when this replica is no voter, while the PG has a leader with a majority, when the durable log ends
    /// below the one that the order was made for, or when the order has no fence and others may have committed alone: meta repeats
    /// the order. True when the step was appended.
    ///
    /// A new group takes the order at once, before its first poll. The step commits the whole log, so the steps in the log count.
    pub fn handle_force(&mut self, now: Time, force: ForceMembers) -> bool {
        let me = self.identity.replica;
        let promise = self.config.timing.promise;
        let leads = self.current().is_some_and(|leading| now < leading.majority_at + promise);
        let led = leads || self.election.hears_leader(now) || now < self.election.promised_until();
        let memberships = self.memberships();
        let done = memberships.iter().any(|members| members.floor >= force.floor);
        let votes = memberships.iter().any(|members| members.is_voter(me));
        let is_sure = force.fence || memberships.iter().all(|members| is_needed(me, members));
        let ours = force.keep.replica == me && self.quarantine.is_none() && self.whole;
        let has_all = self.node.durable_end() >= force.end;
        if !ours || done || led || !votes || !has_all || !is_sure {
            return false;
        }
        let ForceMembers { keep, floor, fence, epoch, .. } = force;
        let mut bytes = BytesMut::new();
        Command::Members { expected: epoch, step: MembersStep::Force { keep, floor, fence } }.encode(&mut bytes);
        let appended = self.node.force(bytes.freeze());
        if appended {
            (self.changing.seen, self.changing.forced) = (true, Some(self.node.last_index()));
            self.election.deferred = None;
        }
        appended
    }

    /// Returns the members at the applied index, and after each step in the log above it.
    fn memberships(&self) -> Vec<Membership> {
        let mut all = vec![self.decision.members.clone()];
        for descriptor in self.node.unapplied() {
            if let Ok(Command::Members { expected, step }) = Command::decode(descriptor)
                && let Ok(after) = all[all.len() - 1].after(expected, step)
            {
                all.push(after);
            }
        }
        all
    }

    /// Whether the log holds no step that is not applied. The log of a leader has every committed step, so the members at the applied
    /// index are the newest ones then, and stay so until this leader proposes a step.
    pub(crate) fn has_applied_steps(&self) -> bool {
        !self.changing.seen || self.memberships().len() == 1
    }

    /// Whether a forced step of this replica is not applied yet: until then no other replica has a part in the PG.
    pub(crate) fn is_forcing(&self) -> bool {
        self.changing.forced.is_some_and(|index| index > self.node.applied())
    }

    /// Whether no change of the members is ordered or under way.
    pub(crate) fn members_stay(&self) -> bool {
        let members = &self.decision.members;
        let is_stable = !members.is_joint() && !members.left && members.learners.is_empty();
        is_stable && self.changing.ordered.is_none() && self.changing.proposed.is_none()
    }

    /// Brings a change forward, if this leader may.
    pub(crate) fn poll_members(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.serves() {
            (self.changing.ordered, self.changing.proposed) = (None, None);
            return;
        }
        if self.changing.proposed.is_some_and(|index| index > self.node.applied()) {
            return;
        }
        self.changing.proposed = None;
        // A step takes the place of a client's entry, and no more may be uncommitted.
        if self.fill().uncommitted >= self.config.limits.uncommitted_entries_max {
            return;
        }
        let Some(step) = self.next_step(now) else { return };
        if !self.stays_after(step) {
            return self.hand_over_before(step, now, actions);
        }
        let mut bytes = BytesMut::new();
        self.changing.seen = true;
        Command::Members { expected: self.decision.members.epoch, step }.encode(&mut bytes);
        self.changing.proposed = self.node.propose(std::iter::once(bytes.freeze()));
    }

    /// Returns the step that the membership and the order call for.
    fn next_step(&mut self, now: Time) -> Option<MembersStep> {
        let members = &self.decision.members;
        if members.is_joint() {
            return Some(MembersStep::Leave);
        }
        if members.left {
            return Some(MembersStep::Done);
        }
        let MemberChange { expected, add, remove, cancel } = self.changing.ordered?;
        let step = match (add, members.learners.first()) {
            _ if cancel => MembersStep::Abort,
            (None, None) => MembersStep::Enter { add: None, remove },
            (Some(add), None) => MembersStep::AddLearner(add),
            (_, Some(learner)) => MembersStep::Enter { add: Some(learner.replica), remove },
        };
        // An order that is done, or that does not fit, is dropped: its step would be proposed again and again.
        let fits = cancel || add.is_none_or(|add| members.learners.first().is_none_or(|learner| *learner == add));
        let Some(next) = members.after(members.epoch, step).ok().filter(|_| fits && expected == members.change_base())
        else {
            self.changing.ordered = None;
            return None;
        };
        let ready = match step {
            // A joint phase cannot be given up: both sets must be able to end it.
            MembersStep::Enter { add, .. } => {
                let whole = next.majority(|id| self.has_everything(now, id));
                let caught_up = |id| self.is_caught_up(id, now) || on(Bug::PromotedBeforeWhole);
                whole && self.hears(add, &next, now) && add.is_none_or(caught_up)
            }
            _ => true,
        };
        ready.then_some(step)
    }

    /// Commits by a wrong majority, if such a bug is planted.
    pub(crate) fn miscount(&mut self) {
        let members = &self.decision.members;
        let ids = |set: &[Member]| set.iter().map(|m| m.replica).collect::<Vec<_>>();
        let needed = |set: &[Member]| set.len() / 2 + 1;
        if !self.node.is_leader() {
            return;
        }
        if members.is_joint() && on(Bug::OldMajorityCounted) {
            self.node.miscount(&ids(&members.outgoing), needed(&members.outgoing));
        } else if members.is_joint() && self.memberships().len() > 1 && on(Bug::ConfigurationUsedEarly) {
            self.node.miscount(&ids(&members.voters), needed(&members.voters));
        } else if !members.learners.is_empty() && on(Bug::LearnerCounted) {
            let counted = [&members.voters[..], &members.learners].concat();
            self.node.miscount(&ids(&counted), needed(&members.voters));
        }
    }

    /// Whether a learner has all contents and all but the newest entries, and the step that made it a learner: it then knows the members.
    fn is_caught_up(&self, learner: ReplicaId, now: Time) -> bool {
        let lag_max = consensus::MSG_ENTRIES_MAX as u64;
        let near = |f: consensus::Follower| {
            let has_contents = self.has_contents(now, learner);
            has_contents
                && f.streaming
                && f.matched >= self.changing.stepped
                && f.matched.0 + lag_max >= self.node.last_index().0
        };
        self.node.follower(learner).is_some_and(near)
    }

    /// Whether this leader has lately heard the newcomer, and a majority of these members.
    fn hears(&self, newcomer: Option<ReplicaId>, members: &Membership, now: Time) -> bool {
        let me = self.identity.replica;
        let heard = |id| id == me || self.has_heard(id, now);
        newcomer.is_none_or(heard) && members.majority(heard)
    }

    fn has_heard(&self, id: ReplicaId, now: Time) -> bool {
        let silence_max = self.config.timing.ack_max;
        let acks = self.current().map_or(&[][..], |leading| &leading.acks);
        acks.iter().any(|ack| ack.replica == id && now < ack.sent_at + silence_max)
    }

    /// Whether this replica is a voter when `step` and the steps that follow it by themselves have been applied.
    fn stays_after(&self, step: MembersStep) -> bool {
        let me = self.identity.replica;
        match step {
            // The only voter leads the joint phase, and hands over to the newcomer at its end.
            MembersStep::Enter { remove, .. } => remove != Some(me) || self.decision.members.voters.len() == 1,
            MembersStep::Leave => self.decision.members.voters.iter().any(|m| m.replica == me),
            MembersStep::AddLearner(_) | MembersStep::Abort | MembersStep::Done | MembersStep::Force { .. } => true,
        }
    }

    /// Transfers leadership to a voter that stays, when one is heard and near: a leader does not remove itself, and a transfer
    /// to a voter that cannot take over would only stop service.
    fn hand_over_before(&mut self, step: MembersStep, now: Time, actions: &mut Vec<Action>) {
        let removed = if let MembersStep::Enter { remove, .. } = step { remove } else { None };
        let near = |id: ReplicaId| {
            self.has_heard(id, now) && self.has_contents(now, id) && self.node.follower(id).is_some_and(|f| f.streaming)
        };
        let stays = |m: &&Member| m.replica != self.identity.replica && Some(m.replica) != removed && near(m.replica);
        let voters = self.decision.members.voters.iter().filter(stays);
        let successor = voters.max_by_key(|m| self.node.follower(m.replica).map(|f| f.matched));
        if let Some(osd) = successor.map(|m| m.osd) {
            self.handle_transfer(now, osd, actions);
        }
    }

    /// Gives raft the members that an applied step has made, and drops the lease: it was counted over others (R3).
    pub(crate) fn members_changed(&mut self, step: MembersStep, before: &Membership, now: Time) {
        self.node.change(step, before, &self.decision.members);
        self.changing.stepped = self.node.applied();
        if let Some(leading) = &mut self.leading {
            leading.recount(self.identity.replica, &self.decision.members, now);
        }
    }
}

/// Whether nothing commits without replica `me` under these members: each set of voters has it and one other at most. When that
/// holds for all members that its log shows, the log has every committed entry. For let e be the first one that it lacks: the steps
/// before e are in the log, so e was committed under members that the log shows.
fn is_needed(me: ReplicaId, members: &Membership) -> bool {
    let is_one_of_two = |set: &[Member]| set.is_empty() || set.len() <= 2 && set.iter().any(|m| m.replica == me);
    is_one_of_two(&members.voters) && is_one_of_two(&members.outgoing)
}

/// Returns the commit index that the steps in a log prove (ADR 0016). A step expects the epoch that its proposer had applied,
/// so the step that made that epoch is committed; its index on disk may be newer than the commit index there.
pub(crate) fn proven_commit<'a>(applied: Epoch, entries: impl Iterator<Item = (Index, &'a [u8])>) -> Option<Index> {
    let mut made: Vec<(Epoch, Index)> = Vec::new();
    let mut proven = None;
    for (index, descriptor) in entries {
        let Ok(Command::Members { expected, step }) = Command::decode(descriptor) else { continue };
        if matches!(step, MembersStep::Force { .. }) {
            // It names the epoch that it makes.
            made.push((Epoch(expected.0.saturating_sub(1)), index));
            continue;
        }
        if expected > applied {
            let maker = made.iter().find(|(from, _)| from.0 + 1 == expected.0).map(|(_, at)| *at);
            proven = proven.max(maker);
        }
        if !made.iter().any(|(from, _)| *from == expected) {
            made.push((expected, index));
        }
    }
    proven
}
