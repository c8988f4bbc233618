//! Replicas that a schedule fails, as damage would (ADR 0017).
//!
//! Invariant: a replica that has failed, and whose device had time to record that, never takes part again.

use super::Cluster;
use crate::faults::Class;
use types::{PgId, ReplicaId};

/// A replica that a schedule has failed, and the life of its OSD in which it did.
#[derive(Clone, Copy, Debug)]
pub struct FailedReplica {
    replica: ReplicaId,
    osd: usize,
    life: u32,
}

impl Cluster {
    /// Fails the replica of the PG on the i-th OSD. `None`: no group of it runs there.
    pub fn fail_replica(&mut self, i: usize, pg: PgId) -> Option<FailedReplica> {
        let replica = self.osds[i].running.as_mut()?.0.fail_for_tools(pg)?;
        self.budget.note_aimed(i, Class::FailedReplicas);
        self.turn_osd(i);
        Some(FailedReplica { replica, osd: i, life: self.osds[i].life })
    }

    /// Notes that the device of a failed replica had time to record that, unless its OSD died meanwhile.
    pub fn note_failed(&mut self, FailedReplica { replica, osd, life }: FailedReplica) {
        let node = &self.osds[osd];
        if node.running.is_some() && node.life == life && !self.runs(replica) {
            self.failed.insert(replica);
        }
    }

    /// Whether a group of the replica runs.
    pub fn runs(&self, replica: ReplicaId) -> bool {
        self.running().any(|(_, osd)| osd.groups_for_tools().any(|group| group.identity().replica == replica))
    }
}
