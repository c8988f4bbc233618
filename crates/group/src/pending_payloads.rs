//! Pending payloads: those between their arrival and their hand-over to the engine, within one turn (design §3, step 4).
//!
//! `admit` and `peers` insert a payload under (index, term) before raft sees the entry. `apply` takes it out for the
//! entries that raft really appended, and drops the rest. Invariant: empty between turns.

use bytes::Bytes;
use std::collections::BTreeMap;
use types::store::Crcs;
use types::{Entry, Index, IoBuf, Term};

/// A payload whose CRCs have been checked.
#[derive(Debug)]
struct Held {
    descriptor: Bytes,
    payload: IoBuf,
    crcs: Crcs,
}

#[derive(Debug, Default)]
pub(crate) struct PendingPayloads {
    held: BTreeMap<(Index, Term), Held>,
}

impl PendingPayloads {
    /// Keeps the payload of an entry. False when another entry is kept under the same key: one of the two is
    /// wrong, because (index, term) names one entry.
    pub fn keep(&mut self, index: Index, term: Term, descriptor: &Bytes, payload: IoBuf, crcs: Crcs) -> bool {
        if let Some(held) = self.held.get(&(index, term)) {
            return held.descriptor == *descriptor && held.crcs == crcs;
        }
        self.held.insert((index, term), Held { descriptor: descriptor.clone(), payload, crcs });
        true
    }

    /// Gives an appended entry its payload.
    ///
    /// # Panics
    /// When it is missing: raft appended an entry whose payload was never inserted.
    pub fn fill(&mut self, entry: &mut Entry) {
        let Some(held) = self.held.remove(&(entry.index, entry.term)) else {
            panic!("the payload of {} {} is missing", entry.index, entry.term)
        };
        assert_eq!(held.descriptor, entry.descriptor, "another entry is kept for {} {}", entry.index, entry.term);
        entry.payload = held.payload;
        entry.crcs = held.crcs;
    }

    /// Whether no payload is pending.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Drops the payloads that are left after raft is drained: their entries were not appended.
    pub fn clear(&mut self) {
        self.held.clear();
    }
}
