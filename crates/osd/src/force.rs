//! The OSD's part in the forced recovery of a PG (ADR 0020): its replica becomes the only member.
//!
//! Meta repeats the order until a report shows its end. A replica that runs appends the step at once. A suspect one, and one whose
//! log lacks payloads, first gives up what it cannot have: its log up to there is one that the PG had.
//!
//! Invariant: a replica that has given up entries takes no part in the PG of before. It remains suspect, durably, until the step
//! is applied.

use crate::node::Osd;
use crate::pgs::State;
use types::map::ForceMembers;
use types::{Index, PgId, ReplicaId, Term};

impl Osd {
    /// Carries out an order of forced recovery, as far as is possible now.
    pub(crate) fn force_members(&mut self, pg: PgId, force: ForceMembers) {
        let replica = force.keep.replica;
        let slot = self.pgs.by_replica(replica).filter(|slot| self.pgs.by_pg(pg) == Some(*slot));
        let Some(slot) = slot.filter(|_| force.keep.osd == self.config.osd) else { return };
        if matches!(self.pgs.get(slot).state, State::Repairing) {
            self.give_up_missing(replica);
        }
        let mut appended = false;
        self.with_slot(slot, true, |group, now, _| appended = group.handle_force(now, force));
        if appended {
            tracing::warn!(%pg, %replica, fence = force.fence,
                "by command of an administrator the PG goes on from this replica alone");
        }
    }

    /// Gives up entries that a replica lacks, or may lack, and lets it have a group. A replica whose contents are no state that
    /// the PG had waits as before.
    fn give_up_missing(&mut self, replica: ReplicaId) {
        if let Some(from) = self.repairs.first_missing(replica) {
            tracing::warn!(replica = replica.0, %from, "gives up log entries whose payload is lost, for a forced recovery");
            self.doubts.note_forced(replica);
            return self.engine.cut_back(replica, from);
        }
        if !self.engine.is_homeless(replica)
            && let Some(recovered) = self.doubts.stop_asking(replica)
        {
            let (hard_state, never) = (recovered.hard_state, (Term(u64::MAX), Index(u64::MAX)));
            self.follow_from(recovered, hard_state, never);
        }
    }

    /// Returns the last entry of the log of a replica without a group, if a forced recovery can start from it.
    pub(crate) fn end_without_group(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        let repaired = self.repairs.end_before_missing(replica);
        repaired.or_else(|| self.doubts.end_of(replica).filter(|_| !self.engine.is_homeless(replica)))
    }
}
