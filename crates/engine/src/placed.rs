//! Placed payloads that no entry needs any more (ADR 0030): the sweep that precedes a round.
//!
//! A logged AU hangs on no counter. A round compares the logged AUs of every replica with those that its log names, and releases the rest.
//!
//! Invariant: while an entry may count at a mount, its AUs are named. It counts when it is above the checkpoint index that is durable,
//! and no durable record voids it.

use crate::engine::Engine;
use crate::replica::Replica;
use crate::round::Run;
use std::collections::{BTreeMap, BTreeSet};
use types::{Index, ReplicaId};

impl Engine {
    /// Returns the units that no entry needs once the checkpoint of this round is durable. The mark of the round is queued next:
    /// whatever voids an entry by now is durable before it, or the entry is among those that wait for that.
    pub(crate) fn unnamed(&self, run: &Run) -> BTreeMap<ReplicaId, Vec<u32>> {
        let home = self.home.as_ref().expect("a running engine has a home");
        let unnamed = home.placed().filter_map(|(id, units)| {
            let named = self.replicas.get(&id).map(|r| r.named_above(run.index_of(id).unwrap_or(r.checkpoint.0)));
            let named = named.unwrap_or_default();
            let units: Vec<u32> = units.filter(|unit| !named.contains(unit)).collect();
            (!units.is_empty()).then_some((id, units))
        });
        unnamed.collect()
    }
}

impl Replica {
    /// Returns the units of its entries above `index`, and of those whose removal is not durable.
    fn named_above(&self, index: Index) -> BTreeSet<u32> {
        if !self.keeps_log() {
            return BTreeSet::new();
        }
        let replaced = self.replaced.iter().flat_map(|replaced| &replaced.entries);
        let places = self.log.above(index).chain(replaced).filter_map(|kept| kept.payload.as_ref()?.place());
        places.flat_map(|place| place.units()).collect()
    }
}
