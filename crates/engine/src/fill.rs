//! Filling: a replica behind the log of its PG begins a new log, and a stream brings the contents as of its beginning (R16, ADR 0025).
//!
//! The record that begins the log voids the replica's old log: it shares a batch with the decision state there. The group then
//! votes and acknowledges as any other follower's does. Only what its new log covers is read, and no round takes the replica until
//! the contents are installed. The old contents stay at home until then, as the base that the stream is compared with.
//!
//! Invariant: the checkpoint index in memory is the entry behind which the log begins. A mount takes a replica for one that is being
//! filled while the checkpoint index at home is below that entry.

use crate::api::EngineEvent;
use crate::engine::Engine;
use crate::lineage::Lineage;
use crate::log::{Done, Kept, Log, ReplicaLog, Work};
use crate::overlay::Overlay;
use crate::replica::{Older, Replica, ReplicaState};
use layout::log::RECORD_DECISION_MAX;
use std::sync::Arc;
use types::limits::FILL_DECISION_MAX;
use types::planted::{Bug, on};
use types::store::{DecisionState, HardState, Recovered};
use types::tree::Tree;
use types::{Index, ReplicaId};

/// Share of the log, as a divisor, that the replicas which are being filled hold together.
const LOG_SHARE: u64 = 4;
/// Payload bytes of older contents that a replica keeps while it is filled: the log holds their entries no longer.
const OLDER_MAX: u64 = 32 << 20;

const _: () = assert!(FILL_DECISION_MAX <= RECORD_DECISION_MAX, "a record has room for the decision state");

/// Room in the log of a replica that is being filled, in bytes of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillRoom {
    pub left: u64,
    pub share: u64,
}

impl Engine {
    /// Begins the replica's log behind `decision.index`, which is committed: a stream will bring its contents. The replica's group
    /// neither appends nor applies until [`EngineEvent::Begun`] or [`EngineEvent::FillRefused`]. A replica that is being
    /// filled already drops the entries up to that index, and keeps the later ones that are in the log.
    pub fn fill(&mut self, decision: DecisionState) {
        self.streams.fills.push_back(decision);
    }

    /// Begins what was asked for, unless the running round takes the replica.
    pub(crate) fn begin_fills(&mut self) {
        for decision in std::mem::take(&mut self.streams.fills) {
            match self.destage.round.takes(decision.replica) {
                true => self.streams.fills.push_back(decision),
                false => self.begin_fill(decision),
            }
        }
    }

    fn begin_fill(&mut self, decision: DecisionState) {
        let replica = decision.replica;
        let fits = |r: &Replica| match r.state {
            // A log that has the entry goes on: it may have been acknowledged further than it is known to be committed.
            ReplicaState::Running => {
                r.born && r.revived.is_none() && decision.index > r.hard_state.commit && !r.has_entry_of(&decision)
            }
            // Without the entry, no later one may be lost. The leader has none that is committed, and tries again with a later index.
            ReplicaState::Filling { .. } => {
                let passes = decision.index >= r.log.last() && decision.index > r.applied;
                passes || r.begins_later(&decision)
            }
            _ => false,
        };
        // Every segment of the log repeats the decision state: one that is not longer takes the place of the earlier one.
        let replaces = |r: &Replica| r.fills_from.is_some() && decision.bytes.len() <= r.first_decision.len();
        let has_room = self.replicas.get(&replica).is_some_and(replaces) || self.has_room_for_replica();
        let is_short = decision.bytes.len() <= FILL_DECISION_MAX && has_room;
        let has_tree = Tree::of_decision(&decision.bytes).is_ok();
        if !is_short || !has_tree || self.is_beginning(replica) || !self.replicas.get(&replica).is_some_and(fits) {
            return self.events.push(EngineEvent::FillRefused { replica });
        }
        // Staged contents may be older than the new beginning.
        if self.cancel_install(replica) {
            self.events.push(EngineEvent::InstallRefused { replica });
        }
        // Without it, more is sent.
        let mut overlay = self.take_overlay(replica);
        if overlay.bytes() > OLDER_MAX {
            self.drops.add_overlay(std::mem::take(&mut overlay));
        }
        let mut r = self.replicas.get_mut(&replica).expect("it was just there");
        if !r.is_filling() {
            r.bad.clear();
            r.set_older(overlay);
        }
        drop(r);
        self.note_heirs(replica);
        let log = self.log.as_mut().expect("a running engine has a log");
        log.drop_work_of(replica);
        self.queue(Work::Fill(decision));
    }

    /// Whether the replica's log is to begin at another index, and the batch that says so is not durable.
    pub(crate) fn is_beginning(&self, id: ReplicaId) -> bool {
        let of = |decision: &DecisionState| decision.replica == id;
        let log = self.log.as_ref().expect("a running engine has a log");
        self.streams.fills.iter().any(of) || log.begins(id)
    }

    /// Notes that the log begins there, durably.
    pub(crate) fn log_begun(&mut self, decision: DecisionState) {
        let Some(r) = self.replicas.get(&decision.replica).filter(|r| r.may_take_part()) else { return };
        let fills = r.is_filling();
        assert_eq!(r.log.first().0, decision.index.0 + 1, "the log was begun with the batch");
        let (identity, hard_state) = (r.identity.clone(), r.hard_state);
        let before = (decision.index, decision.term);
        let (entries, lost) = (r.log.iter().map(Kept::entry).collect(), Vec::new());
        let recovered =
            Recovered { identity, hard_state, checkpoint: decision, before, entries, lost, failure: None, fills };
        self.find_freeable();
        self.copy_forward();
        self.events.push(EngineEvent::Begun(Box::new(recovered)));
    }

    /// Returns the entry behind which the log of the replica begins, while its contents are missing; otherwise 0.
    pub fn fills_from(&self, replica: ReplicaId) -> Index {
        self.replicas.get(&replica).and_then(|r| r.fills_from).map_or(Index(0), |(index, _)| index)
    }

    /// Returns what the log of a replica that is being filled may hold, and what is left of it: no round frees it, so that it takes no
    /// more entries until the contents are here, or its log begins at a later index. A replica that held more before others began
    /// shares what all of them leave.
    pub fn fill_room(&self, replica: ReplicaId) -> Option<FillRoom> {
        let bytes = |r: &Replica| if let ReplicaState::Filling { bytes, .. } = r.state { Some(bytes) } else { None };
        let held = self.replicas.get(&replica).and_then(bytes)?;
        let (count, sum) = self.replicas.values().filter_map(bytes).fold((0, 0), |(n, sum), held| (n + 1, sum + held));
        Some(room_of(self.log_bytes() / LOG_SHARE, (count, sum), held))
    }
}

/// Returns the room of a replica that holds `held` of `all`, of which `count` replicas hold `sum`.
fn room_of(all: u64, (count, sum): (u64, u64), held: u64) -> FillRoom {
    let share = all / count;
    FillRoom { left: share.saturating_sub(held).max(all.saturating_sub(sum) / count), share }
}

impl Replica {
    /// Begins to be filled: `overlay` and home are the contents that the replica had.
    pub(crate) fn set_older(&mut self, overlay: Overlay) {
        let older = Box::new(Older { overlay, lineage: self.lineage.clone() });
        self.turn(ReplicaState::Filling { older, bytes: 0 });
    }

    fn has_entry_of(&self, decision: &DecisionState) -> bool {
        self.log.get(decision.index).is_some_and(|kept| kept.term == decision.term)
    }

    /// Whether the log of a replica that is being filled has the entry behind which it is to begin: it goes on with the later ones.
    pub(crate) fn begins_later(&self, decision: &DecisionState) -> bool {
        self.fills_from.is_some() && self.replaced.is_empty() && self.has_entry_of(decision)
    }

    /// Begins the log behind the index of this state, while the batch that says so is built: from here on no entry of the old log
    /// can reach the new one. Raising the term forgets no vote that was cast in it; a vote of a lower term does not bind any more. True when
    /// the log goes on with later entries of its own.
    pub(crate) fn begin_at(&mut self, decision: &DecisionState) -> bool {
        let DecisionState { index, term, .. } = *decision;
        let mut commit = index;
        if self.begins_later(decision) {
            // Queued entries are not acknowledged: they go with the old group.
            let unwritten = self.log.iter().find(|kept| kept.segment == u64::MAX).map(|kept| kept.index);
            unwritten.into_iter().for_each(|from| drop(self.log.truncate(from)));
        }
        let goes_on = self.begins_later(decision);
        if goes_on {
            drop(self.log.take_below(Index(index.0 + 1)));
            commit = index.max(self.written_hard_state.commit);
        } else {
            self.log = ReplicaLog::new(Index(index.0 + 1));
            self.replaced.clear();
        }
        let mut next = HardState { commit, ..self.hard_state };
        if next.term < term || on(Bug::InstallForgetsVote) {
            (next.term, next.vote) = (term.max(next.term), None);
        }
        (self.hard_state, self.written_hard_state) = (next, next);
        (self.checkpoint, self.applied, self.tree_index) = ((index, term), index, index);
        // At the beginning no generation is dissolved here: a stream brings the blocks of live ones.
        let lineage = Lineage::decode(&decision.bytes, &[]).expect("it was decoded before the batch was queued");
        self.lineage = Arc::new(lineage);
        self.stages.lineage = Some(self.lineage.clone());
        if let ReplicaState::Filling { bytes, .. } = &mut self.state {
            *bytes = self.log.iter().map(Kept::log_len).sum();
        }
        (self.first_decision, self.fills_from) = (decision.bytes.clone(), Some((index, term)));
        goes_on
    }
}

impl Log {
    fn begins(&self, id: ReplicaId) -> bool {
        let queued = |work: &Work| matches!(work, Work::Fill(decision) if decision.replica == id);
        let done = |done: &Done| matches!(done, Done::Filling(decision) if decision.replica == id);
        self.pending.iter().any(queued) || self.in_flight.as_ref().is_some_and(|batch| batch.done.iter().any(done))
    }

    /// Drops the queued work of this replica's group, and copies of its entries: its log begins at another index.
    fn drop_work_of(&mut self, id: ReplicaId) {
        self.pending.retain(|work| match work {
            Work::Persist { replica, .. } | Work::Copy { replica, .. } => *replica != id,
            _ => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::room_of;

    #[test]
    fn room_of_a_replica_that_held_more_lasts_when_others_begin() {
        let left = |count, sum, held| room_of(128, (count, sum), held).left;
        assert_eq!((left(1, 0, 0), left(1, 100, 100), left(1, 128, 128)), (128, 28, 0));
        assert_eq!(left(16, 64, 32), 4, "two held half of all when the others began");
        assert_eq!((left(16, 64, 0), left(16, 72, 8)), (8, 3), "the others have their share at least");
        assert_eq!(left(16, 130, 32), 0, "nothing is left");
    }
}
