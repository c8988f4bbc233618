//! The OSD's part in the forced recovery of a PG (ADR 0020): its replica becomes the only member.
//!
//! Meta repeats the order until a report shows its end. A replica that runs appends the step at once. One that lacks payloads
//! fails first, and keeps its log up to there. A failed one is revived in memory, and its new group appends the step: the log
//! ends the failure in the batch of the step.
//!
//! Invariant: a failed replica has no group before its step is given to the engine, and the group hears no other replica before
//! the step is applied. Until the step is durable, a restart finds the replica failed.

use crate::node::{Osd, Touch};
use crate::pgs::State;
use group::Action;
use types::map::ForceMembers;
use types::{Index, PgId, Term};
use wire::StreamAbort;

impl Osd {
    /// Carries out an order of forced recovery, as far as is possible now.
    pub(crate) fn force_members(&mut self, pg: PgId, force: ForceMembers) {
        let replica = force.keep.replica;
        let slot = self.pgs.by_replica(replica).filter(|slot| self.pgs.by_pg(pg) == Some(*slot));
        let Some(slot) = slot.filter(|_| force.keep.osd == self.config.osd) else { return };
        let held = self.pgs.get(slot);
        // A leader of before may be found until an election would have ended, and promises of an ended group end before that.
        let since = self.service.served_at.max(held.group_ended_at);
        if self.now < since + self.config.timing.election_max * 2 {
            return;
        }
        // A replica without a group gives up what it lacks, or may lack, and hears no leader by itself. It gives up no more than
        // the order tells.
        let has_all = self.end_without_group(slot).is_some_and(|end| end >= force.end);
        let may_give_up = force.fence && has_all && !self.pairs.has_heard_any_leader(self.now, pg);
        let appended = match &held.state {
            State::Running(_) => self.force_running(slot, force),
            State::Repairing if may_give_up => {
                self.fail_without(replica, "a forced recovery goes on without it");
                false
            }
            State::Failed(_) if may_give_up => self.force_failed(slot, force),
            _ => false,
        };
        if appended {
            let end = (StreamAbort::Failed, true);
            self.recover(|r, here| r.streams.drop_receiver(here, pg, end));
            tracing::warn!(%pg, %replica, fence = force.fence, "forced recovery: the PG goes on from this replica alone");
        }
    }

    fn force_running(&mut self, slot: usize, force: ForceMembers) -> bool {
        let mut appended = false;
        self.with_slot(slot, Touch::Always, |group, now, _| appended = group.handle_force(now, force));
        appended
    }

    /// Lets a failed replica go on from its past: its new group appends the step, or ends at once.
    fn force_failed(&mut self, slot: usize, force: ForceMembers) -> bool {
        let replica = force.keep.replica;
        let Some(recovered) = self.engine.revive(replica) else { return false };
        let mut group = match self.start_group(recovered) {
            State::Running(group) => group,
            state => {
                self.pgs.set_state(slot, state);
                return false;
            }
        };
        if !group.handle_force(self.now, force) {
            self.engine.fail_again(replica);
            return false;
        }
        let mut actions = Vec::new();
        group.poll(self.now, &mut actions);
        self.pgs.set_state(slot, State::Running(group));
        let is_step = |action: &Action| matches!(action, Action::Persist(persist) if !persist.entries.is_empty());
        let step = actions.iter().position(is_step).expect("a poll persists what the group has appended");
        let Action::Persist(persist) = actions.remove(step) else { unreachable!("it was just found") };
        self.engine.append_and_revive(persist);
        self.perform(slot, &mut actions);
        self.members_changed(slot);
        self.pgs.touch(slot);
        true
    }

    /// Returns the last entry of the log of a replica without a group, if a forced recovery can start from it. A failed replica that
    /// has a successor here cannot be kept beside it.
    pub(crate) fn end_without_group(&self, slot: usize) -> Option<(Term, Index)> {
        let held = self.pgs.get(slot);
        let (pg, replica) = (held.identity.pg, held.identity.replica);
        match &held.state {
            State::Repairing => self.recovery.payloads.end_before_missing(replica),
            State::Failed(_) => self.engine.past_end(replica).filter(|_| self.pgs.by_pg(pg) == Some(slot)),
            State::Running(_) | State::Creating | State::Paused(_) => None,
        }
    }
}
