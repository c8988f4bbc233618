//! A learner becomes a voter only when it has all contents, and the step that made it a learner (R4, ADR 0016). A PG may count
//! a voter whose contents a stream brings (R16), so the law of whole majorities shows one voter too few only after a second fault.
//!
//! The check looks after each turn of an OSD. It begins with the first replica that knows the learner.

use std::collections::{BTreeMap, BTreeSet};
use types::map::Membership;
use types::{Epoch, Index, PgId, ReplicaId};

/// State of one replica as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub pg: PgId,
    pub replica: ReplicaId,
    pub applied: Index,
    pub durable: Index,
    pub is_whole: bool,
}

/// Learners seen so far.
#[derive(Default)]
pub struct Promotions {
    /// Each learner that has not been ready yet: the lowest index that the step can have which made it one.
    fills: BTreeMap<ReplicaId, Index>,
    /// Learners that have been ready.
    ready: BTreeSet<ReplicaId>,
    /// Applied index and epoch of each replica at the last look.
    stood: BTreeMap<ReplicaId, (Index, Epoch)>,
}

impl Promotions {
    /// Looks at a replica with its members.
    ///
    /// # Errors
    /// A learner has become a voter before it was ready.
    pub fn look(&mut self, look: Look, members: &Membership) -> Result<(), String> {
        let Look { pg, replica, applied, .. } = look;
        let (from, epoch) = self.stood.insert(replica, (applied, members.epoch)).unwrap_or_default();
        if epoch != members.epoch {
            for learner in members.learners.iter().map(|m| m.replica).filter(|id| !self.ready.contains(id)) {
                // This replica did not know it at the last look, unless it has gone back since.
                self.fills.entry(learner).or_insert(Index(from.min(applied).0 + 1));
            }
            if let Some(early) = members.voters.iter().find(|m| self.fills.contains_key(&m.replica)) {
                return Err(format!(
                    "{} is a voter of pg {pg}, and never had all contents as a learner",
                    early.replica
                ));
            }
        }
        if self.fills.get(&replica).is_some_and(|step| look.is_whole && look.durable >= *step) {
            self.fills.remove(&replica);
            self.ready.insert(replica);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::OsdId;
    use types::map::Member;

    const PG: PgId = PgId { pool: types::PoolId(1), n: 0 };

    fn members(epoch: u64, voters: &[u64], learners: &[u64]) -> Membership {
        let set =
            |ids: &[u64]| ids.iter().map(|id| Member { replica: ReplicaId(*id), osd: OsdId(*id as u32) }).collect();
        Membership { epoch: Epoch(epoch), voters: set(voters), learners: set(learners), ..Membership::default() }
    }

    fn look(replica: u64, applied: u64, durable: u64, is_whole: bool) -> Look {
        Look { pg: PG, replica: ReplicaId(replica), applied: Index(applied), durable: Index(durable), is_whole }
    }

    /// A learner joins with entry 6, and is looked at with these durable ends and contents before it is a voter.
    fn promoted(looks: &[(u64, bool)]) -> Result<(), String> {
        let mut all = Promotions::default();
        all.look(look(1, 5, 5, true), &members(1, &[1, 2, 3], &[]))?;
        all.look(look(1, 6, 6, true), &members(2, &[1, 2, 3], &[4]))?;
        for (durable, is_whole) in looks {
            all.look(look(4, 0, *durable, *is_whole), &members(1, &[1, 2, 3], &[]))?;
        }
        all.look(look(1, 9, 9, true), &members(3, &[1, 2, 4], &[]))
    }

    #[test]
    fn learner_that_never_had_all_contents_and_becomes_a_voter_is_found() {
        promoted(&[(3, true), (7, false), (8, true)]).expect("it had them");
        promoted(&[(8, true), (8, false)]).expect("a stream may begin again");
        for early in [&[][..], &[(5, true)], &[(8, false)]] {
            assert!(promoted(early).expect_err("it had not").contains("r4 is a voter of pg"), "{early:?}");
        }
    }
}
