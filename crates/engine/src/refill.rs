//! Payload repair: payloads that the log has lost come back from peers (R11, ADR 0004).
//!
//! The OSD's loop asks what a replica holds in a slot, on behalf of peers, and passes in payloads that peers sent. A
//! payload that comes back goes into the log as a copied record (R9), which fills its slot alone.
//!
//! Invariant: only bytes that match the checksums of the replica's own record are taken. A replica takes part again
//! only when every payload is durable.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::{RESERVED, Work};
use crate::payload::Payload;
use crate::replica::{Replica, ReplicaState};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::store::{Holding, Lost};
use types::{Index, IoBuf, ReplicaId, Term};

impl Engine {
    /// Returns what the replica holds of entry `index` of `term`.
    pub fn holding(&self, replica: ReplicaId, index: Index, term: Term) -> Holding {
        let Some(r) = self.replicas.get(&replica).filter(|_| matches!(self.state, State::Running)) else {
            return Holding::Unsure;
        };
        let kept = r.log.get(index).into_iter().chain(&r.given_up);
        match kept.into_iter().find(|kept| (kept.index, kept.term) == (index, term)) {
            Some(kept) if kept.lost.is_some() => Holding::Lost,
            Some(kept) => match &kept.payload {
                Some(payload) => Holding::Payload(payload.buf.clone(), payload.crcs.clone()),
                None => Holding::Other,
            },
            None if r.has_failed() => Holding::Unsure,
            None if index < r.log.first() => Holding::Freed,
            None => Holding::Other,
        }
    }

    /// Whether the log has room for payloads that come back: one reserved segment stays for work that must not wait.
    pub fn can_refill(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.ring.free() >= RESERVED)
    }

    /// Takes a payload that was lost. [`EngineEvent::Refilled`] follows when it was the last one, and all are durable.
    /// False: nothing was taken, because the bytes do not match, or no payload is missing there.
    pub fn refill(&mut self, replica: ReplicaId, index: Index, term: Term, buf: IoBuf) -> bool {
        let Some(mut r) = self.replicas.get_mut(&replica).filter(|r| !r.has_failed()) else { return false };
        let Some(kept) = r.log.get_mut(index).filter(|kept| kept.term == term) else { return false };
        let Some(lost) = kept.lost.take_if(|lost| lost.is(&buf)) else { return false };
        kept.payload = Some(Arc::new(Payload::new(buf, lost.crcs.clone())));
        drop(r);
        self.queue(Work::Copy { replica, index, term });
        true
    }

    /// Returns the payloads that the replica still lacks, in ascending order.
    pub fn lost(&self, replica: ReplicaId) -> Vec<Lost> {
        let Some(r) = self.replicas.get(&replica) else { return Vec::new() };
        lacks(r).into_iter().flatten().filter_map(|index| r.log.get(*index)?.lost.as_deref().cloned()).collect()
    }

    /// Notes that a copy with its payload is durable; the entry may be one whose payload was repaired.
    pub(crate) fn refill_durable(&mut self, replica: ReplicaId, index: Index) {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        let ReplicaState::Repairing(lost) = &mut r.state else { return };
        if lost.remove(&index) {
            self.stats.refilled_entries += 1;
            if lost.is_empty() {
                r.turn(ReplicaState::Running);
                r.held_decision.clear();
                self.events.push(EngineEvent::Refilled { replica });
            }
        }
    }
}

/// Returns the entries whose payloads a replica under repair still lacks.
fn lacks(r: &Replica) -> Option<&BTreeSet<Index>> {
    match &r.state {
        ReplicaState::Repairing(lost) => Some(lost),
        _ => None,
    }
}
