//! Payloads that the log has lost, and that peers bring back (R11, ADR 0004).
//!
//! The loop asks what a replica holds in a slot, on behalf of peers, and hands in what peers sent. A payload
//! that comes back goes into the log as a copied record (R9), which fills its slot alone.
//!
//! Invariant: nothing is taken that does not match the checksums of the replica's own record; a replica takes
//! part again only when every payload is durable.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::{RESERVED, Work};
use crate::payload::Payload;
use crate::replica::Doubt;
use std::sync::Arc;
use types::store::{Crcs, Lost};
use types::{Index, IoBuf, ReplicaId, Term};

/// What a replica's log says of one slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Holding {
    /// The entry's payload, with its checksums.
    Payload(IoBuf, Crcs),
    /// It is here, and its payload is lost here too.
    Lost,
    /// The slot holds another entry or none, and the log was never without it.
    Other,
    /// The log begins above the slot.
    Freed,
    /// Nothing can be said: there is no such replica, or it is damaged.
    Unsure,
}

impl Engine {
    /// What is held of entry `index` of `term`.
    pub fn holding(&self, replica: ReplicaId, index: Index, term: Term) -> Holding {
        let Some(r) = self.replicas.get(&replica).filter(|_| matches!(self.state, State::Running)) else {
            return Holding::Unsure;
        };
        match r.log.get(index).filter(|kept| kept.term == term) {
            Some(kept) if kept.lost.is_some() => Holding::Lost,
            Some(kept) => match &kept.payload {
                Some(payload) => Holding::Payload(payload.buf.clone(), payload.crcs.clone()),
                None => Holding::Other,
            },
            None if r.damage.is_some() || r.doubt != Doubt::None => Holding::Unsure,
            None if index < r.log.first() => Holding::Freed,
            None => Holding::Other,
        }
    }

    /// Whether the log has room for what comes back: one segment stays for what must not wait.
    pub fn can_refill(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.ring.free() >= RESERVED)
    }

    /// Takes a payload that was lost. [`EngineEvent::Refilled`] follows when it was the last one, and all are
    /// durable. False: nothing was taken, because these are not the bytes, or nothing is missing there.
    pub fn refill(&mut self, replica: ReplicaId, index: Index, term: Term, buf: IoBuf) -> bool {
        let Some(r) = self.replicas.get_mut(&replica).filter(|r| r.damage.is_none()) else { return false };
        let Some(kept) = r.log.get_mut(index).filter(|kept| kept.term == term) else { return false };
        let Some(lost) = kept.lost.take_if(|lost| lost.is(&buf)) else { return false };
        kept.payload = Some(Arc::new(Payload { buf, crcs: lost.crcs.clone() }));
        self.queue(Work::Copy { replica, index, term });
        true
    }

    /// Forgets the replica's entries from `from` on, the first of which is lost: they are not committed and never
    /// will be. A restart before the log says so comes to the same end.
    ///
    /// # Panics
    /// When something of it is committed or applied.
    pub fn cut_lost(&mut self, replica: ReplicaId, from: Index) {
        let Some(r) = self.replicas.get_mut(&replica).filter(|r| r.damage.is_none()) else { return };
        assert!(from > r.hard_state.commit && from > r.applied, "{replica} loses committed entry {from}");
        let replaces = r.remove_from(from);
        let _ = r.lost.split_off(&from);
        self.queue(Work::Cut { replica, last: Index(from.0 - 1), replaces });
        self.judge_refilled(replica);
    }

    /// What the replica still lacks, ascending.
    pub fn lost(&self, replica: ReplicaId) -> Vec<Lost> {
        let Some(r) = self.replicas.get(&replica) else { return Vec::new() };
        r.lost.iter().filter_map(|index| r.log.get(*index)?.lost.as_deref().cloned()).collect()
    }

    /// A copy with its payload is durable: perhaps of an entry that came back.
    pub(crate) fn refill_durable(&mut self, replica: ReplicaId, index: Index) {
        let Some(r) = self.replicas.get_mut(&replica) else { return };
        if r.lost.remove(&index) {
            self.stats.refilled_entries += 1;
            self.judge_refilled(replica);
        }
    }

    fn judge_refilled(&mut self, replica: ReplicaId) {
        if self.replicas.get(&replica).is_some_and(|r| r.lost.is_empty() && r.damage.is_none()) {
            self.events.push(EngineEvent::Refilled { replica });
        }
    }
}
