//! Payload between its arrival and its hand-over to the engine, within one turn (design §3, step 4).
//!
//! `admit` and `peers` put it in under (index, term) before raft sees the entry; `drain` takes it out for the
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
pub(crate) struct Custody {
    held: BTreeMap<(Index, Term), Held>,
}

impl Custody {
    /// Keeps the payload of an entry. False when another entry is held in its place: one of the two is a
    /// lie, because (index, term) names an entry.
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
    /// When it is not here: raft appended an entry that nobody handed in.
    pub fn fill(&mut self, entry: &mut Entry) {
        let Some(held) = self.held.remove(&(entry.index, entry.term)) else {
            panic!("the payload of {} {} is in nobody's custody", entry.index, entry.term)
        };
        assert_eq!(held.descriptor, entry.descriptor, "custody holds another entry {} {}", entry.index, entry.term);
        entry.payload = held.payload;
        entry.crcs = held.crcs;
    }

    /// Raft is drained: what is left was not appended.
    pub fn clear(&mut self) {
        self.held.clear();
    }
}
