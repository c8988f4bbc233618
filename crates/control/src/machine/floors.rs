//! Floors of forced recoveries that the records do not know: the records went back in time (ADR 0020).
//!
//! Input: the floors that replicas report. Output: the highest one in the record of the PG, also when the members that come with
//! it are not taken over.
//!
//! Invariant: a leader below that floor does not count. It is of a timeline that a forced recovery has ended, and could otherwise
//! get the writes of the PG, and replace the replica that the PG has gone on from.

use super::past::Standing;
use super::{Control, Now};
use crate::plan;
use types::control::PgReport;
use types::{PgId, ReplicaId};

impl Control {
    /// Returns the highest floor of a PG that a replica has reported and no order explains.
    pub(super) fn seen_floor(&self, pg: PgId) -> ReplicaId {
        let recorded = self.records.pgs.get(&pg).map_or(ReplicaId(0), |record| record.seen_floor);
        self.floors.get(&pg).copied().unwrap_or_default().max(recorded)
    }

    /// Notes the floor of a replica, whether or not the records know the replica, and takes a replica of an ended timeline for no
    /// leader and no follower.
    pub(super) fn heed_floor(&mut self, now: Now, report: &mut PgReport) {
        let PgReport { pg, floor, .. } = *report;
        let Some(record) = self.records.pgs.get(&pg) else { return };
        if !record.knows_floor(floor) && self.may_be_floor(floor) {
            let seen = self.floors.entry(pg).or_default();
            *seen = floor.max(*seen);
            if self.leads.get(&pg).is_some_and(|lead| lead.report.members.floor < floor) {
                self.leads.remove(&pg);
                self.unled.insert(pg, now.mono);
            }
        }
        if floor < self.seen_floor(pg) {
            (report.leading, report.hears) = (None, None);
        }
    }

    /// Records the floors that were noted.
    pub(super) fn record_floors(&mut self) {
        while !self.batch.is_full()
            && let Some((pg, floor)) = self.floors.pop_first()
        {
            let record = self.records.pgs.get(&pg).filter(|record| !record.knows_floor(floor));
            let writes = record.filter(|_| self.may_be_floor(floor)).map(|record| plan::note_floor(record, floor));
            self.write(writes.unwrap_or_default());
        }
    }

    /// Whether this floor may have been drawn. Records that are trusted have drawn all.
    fn may_be_floor(&self, floor: ReplicaId) -> bool {
        floor.0 < self.records.counters.next_replica || self.standing() != Standing::Sound
    }
}
