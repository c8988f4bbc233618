//! The OSD's part in the forced recovery of a PG (ADR 0020): its replica becomes the only member.
//!
//! Meta repeats the order until a report shows its end. A replica that runs appends the step at once. A suspect one, and one whose
//! log lacks payloads, first gives up what it cannot have: its log up to there is one that the PG had.
//!
//! Invariant: a replica that has given up entries takes no part in the PG of before. It remains suspect, durably, until the step
//! is applied.

use crate::doubt::NEVER;
use crate::node::Osd;
use crate::pgs::State;
use types::map::ForceMembers;
use types::{Index, PgId, ReplicaId, Term};
use wire::StreamAbort;

impl Osd {
    /// Carries out an order of forced recovery, as far as is possible now.
    pub(crate) fn force_members(&mut self, pg: PgId, force: ForceMembers) {
        let replica = force.keep.replica;
        let slot = self.pgs.by_replica(replica).filter(|slot| self.pgs.by_pg(pg) == Some(*slot));
        let Some(slot) = slot.filter(|_| force.keep.osd == self.config.osd) else { return };
        // A leader of before may be found until an election would have ended.
        if self.now < self.let_in.served_at + self.config.timing.election_max * 2 {
            return;
        }
        if matches!(self.pgs.get(slot).state, State::Repairing) && force.fence {
            self.give_up_missing(slot, replica);
        }
        let mut appended = false;
        self.with_slot(slot, true, |group, now, _| appended = group.handle_force(now, force));
        if appended {
            self.doubts.note_forced(replica);
            self.drop_receiver(pg, StreamAbort::Failed, true);
            tracing::warn!(%pg, %replica, fence = force.fence,
                "by command of an administrator the PG goes on from this replica alone");
        }
    }

    /// Gives up entries that a replica lacks, or may lack, and lets it have a group. A replica whose contents are no state that
    /// the PG had waits as before, and so does one whose PG has changed its members: a restart would find that it has failed.
    fn give_up_missing(&mut self, slot: usize, replica: ReplicaId) {
        if self.pgs.get(slot).has_changed_members() {
            return;
        }
        if let Some(from) = self.repairs.first_missing(replica) {
            tracing::warn!(replica = replica.0, %from, "gives up log entries whose payload is lost, for a forced recovery");
            return self.engine.cut_back(replica, from);
        }
        if !self.engine.is_homeless(replica)
            && let Some(recovered) = self.doubts.stop_asking(replica)
        {
            let hard_state = recovered.hard_state;
            self.follow_from(recovered, hard_state, NEVER);
        }
    }

    /// Returns the last entry of the log of a replica without a group, if a forced recovery can start from it.
    pub(crate) fn end_without_group(&self, slot: usize) -> Option<(Term, Index)> {
        let held = self.pgs.get(slot);
        let replica = held.identity.replica;
        if held.has_changed_members() {
            return None;
        }
        let repaired = self.repairs.end_before_missing(replica);
        repaired.or_else(|| self.doubts.end_of(replica).filter(|_| !self.engine.is_homeless(replica)))
    }
}
