//! Pending payloads: those between their arrival and their hand-over to the engine, within one turn (design §3, step 4).
//!
//! `admit` and `peers` insert a payload under (index, term) before raft sees the entry. `apply` takes it out for the
//! entries that raft really appended, and drops the rest. Invariant: empty between turns.

use bytes::Bytes;
use std::collections::VecDeque;
use types::store::Crcs;
use types::{Entry, Index, IoBuf, Term};

/// Payloads whose memory is kept for the next turn.
const KEPT_MAX: usize = 128;

/// A payload whose CRCs have been checked.
#[derive(Debug)]
struct Held {
    key: (Index, Term),
    descriptor: Bytes,
    payload: IoBuf,
    crcs: Crcs,
}

/// A queue in ascending order: payloads come and go in that order, but for entries that replace others.
#[derive(Debug, Default)]
pub(crate) struct PendingPayloads {
    held: VecDeque<Held>,
}

impl PendingPayloads {
    /// Keeps the payload of an entry. False when another entry is kept under the same key: one of the two is
    /// wrong, because (index, term) names one entry.
    pub fn keep(&mut self, index: Index, term: Term, descriptor: &Bytes, payload: IoBuf, crcs: Crcs) -> bool {
        let key = (index, term);
        let at = match self.held.back() {
            Some(last) if last.key >= key => self.held.binary_search_by_key(&key, |held| held.key),
            _ => Err(self.held.len()),
        };
        match at {
            Ok(at) => self.held[at].descriptor == *descriptor && self.held[at].crcs == crcs,
            Err(at) => {
                self.held.insert(at, Held { key, descriptor: descriptor.clone(), payload, crcs });
                true
            }
        }
    }

    /// Gives an appended entry its payload.
    ///
    /// # Panics
    /// When it is missing: raft appended an entry whose payload was never inserted.
    pub fn fill(&mut self, entry: &mut Entry) {
        let key = (entry.index, entry.term);
        let held = match self.held.front() {
            Some(first) if first.key == key => self.held.pop_front(),
            _ => self.held.binary_search_by_key(&key, |held| held.key).ok().and_then(|at| self.held.remove(at)),
        };
        let Some(held) = held else { panic!("the payload of {} {} is missing", entry.index, entry.term) };
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
        if self.held.capacity() > KEPT_MAX {
            self.held.shrink_to(KEPT_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::EntryKind;

    fn entry(index: u64, term: u64) -> Entry {
        let descriptor = Bytes::from(format!("{index} {term}"));
        let (payload, crcs) = (IoBuf::EMPTY, Crcs::default());
        Entry { term: Term(term), index: Index(index), kind: EntryKind::Normal, descriptor, payload, crcs }
    }

    #[test]
    fn payload_goes_to_its_entry_in_whatever_order_they_come() {
        let keys = [(5, 1), (6, 1), (7, 1), (5, 2), (4, 3), (6, 2)];
        let mut pending = PendingPayloads::default();
        for (index, term) in keys {
            let e = entry(index, term);
            let payload = IoBuf::copy_of(&[term as u8; 512]);
            assert!(pending.keep(e.index, e.term, &e.descriptor, payload.clone(), Crcs::default()));
            assert!(pending.keep(e.index, e.term, &e.descriptor, payload.clone(), Crcs::default()), "it came twice");
            assert!(!pending.keep(e.index, e.term, &Bytes::new(), payload, Crcs::default()), "another entry");
        }
        for (index, term) in [(6, 2), (4, 3), (7, 1), (5, 1), (5, 2)] {
            let mut e = entry(index, term);
            pending.fill(&mut e);
            assert_eq!(*e.payload, [term as u8; 512], "{index} {term}");
        }
        assert!(!pending.is_empty());
        pending.clear();
        assert!(pending.is_empty(), "the entry that was replaced is dropped");
    }
}
