//! The entries of one replica that the log can still produce.
//!
//! Invariant: entries are contiguous and ascending from `first`, and terms never fall. Every payload is in memory,
//! except one that the log has lost; the checksums of a lost payload are in memory.

use crate::payload::Payload;
use bytes::Bytes;
use layout::log::PlacedRun;
use std::collections::{VecDeque, vec_deque};
use std::sync::Arc;
use types::store::{Crcs, Lost};
use types::{CrcList, Entry, EntryKind, Index, IoBuf, Term};

/// One entry, and its place in the log.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub index: Index,
    pub term: Term,
    pub kind: EntryKind,
    pub descriptor: Bytes,
    pub payload: Option<Arc<Payload>>,
    /// Length and checksums of the payload while it is lost (R11); `payload` is `None` then.
    pub lost: Option<Arc<Lost>>,
    /// Number of the first batch of the entry's segment; `u64::MAX` until the entry is in a batch.
    pub segment: u64,
}

impl Kept {
    pub fn new(entry: Entry) -> Kept {
        let Entry { term, index, kind, descriptor, payload, crcs } = entry;
        let payload = (!payload.is_empty()).then(|| Arc::new(Payload::new(payload, crcs)));
        Kept { index, term, kind, descriptor, payload, lost: None, segment: u64::MAX }
    }

    /// Returns the checksums that the entry's record carries.
    pub fn crcs(&self) -> &Crcs {
        static NONE: Crcs = Crcs { start: 0, values: CrcList::new_const() };
        match (&self.payload, &self.lost) {
            (Some(payload), _) => &payload.crcs,
            (None, Some(lost)) => &lost.crcs,
            (None, None) => &NONE,
        }
    }

    /// Bytes of the log that the entry takes, about.
    pub fn log_len(&self) -> u64 {
        (self.payload_len() + self.descriptor.len() + 64) as u64
    }

    pub fn payload_len(&self) -> usize {
        self.payload.as_ref().map_or(0, |p| p.buf.len())
    }

    /// Returns the entry as a group knows it; a lost payload is empty.
    pub fn entry(&self) -> Entry {
        let (payload, crcs) = match &self.payload {
            Some(p) => (p.buf.clone(), p.crcs.clone()),
            None => (IoBuf::EMPTY, Crcs::default()),
        };
        let (term, index, kind) = (self.term, self.index, self.kind);
        Entry { term, index, kind, descriptor: self.descriptor.clone(), payload, crcs }
    }
}

/// Entries of one replica, as the head of the file describes.
#[derive(Debug)]
pub(crate) struct ReplicaLog {
    first: u64,
    entries: VecDeque<Kept>,
}

impl ReplicaLog {
    /// Returns an empty log whose first entry will be `first`.
    pub fn new(first: Index) -> ReplicaLog {
        ReplicaLog { first: first.0, entries: VecDeque::new() }
    }

    pub fn first(&self) -> Index {
        Index(self.first)
    }

    /// Returns the last index; `first - 1` when empty.
    pub fn last(&self) -> Index {
        Index(self.first + self.entries.len() as u64 - 1)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, index: Index) -> Option<&Kept> {
        let nth = usize::try_from(index.0.checked_sub(self.first)?).ok()?;
        self.entries.get(nth)
    }

    pub fn get_mut(&mut self, index: Index) -> Option<&mut Kept> {
        let nth = usize::try_from(index.0.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(nth)
    }

    /// Appends an entry; entries at or above its index are removed and returned.
    ///
    /// # Panics
    /// When the entry would leave a gap, or replace one that is no longer kept.
    pub fn append(&mut self, kept: Kept) -> VecDeque<Kept> {
        let index = kept.index.0;
        assert!(index >= self.first, "entry {index} lies below the first kept one, {}", self.first);
        assert!(index <= self.first + self.entries.len() as u64, "entry {index} leaves a gap after {}", self.last());
        let at = (index - self.first) as usize;
        let replaced = if at < self.entries.len() { self.entries.split_off(at) } else { VecDeque::new() };
        let falls = self.entries.back().is_some_and(|last| last.term > kept.term);
        assert!(!falls, "terms fall at entry {index}");
        self.entries.push_back(kept);
        replaced
    }

    /// Removes the entries from `from` on, and returns them.
    pub fn truncate(&mut self, from: Index) -> VecDeque<Kept> {
        assert!(from.0 >= self.first, "{from} lies below the first kept entry, {}", self.first);
        let kept = self.entries.len().min((from.0 - self.first) as usize);
        self.entries.split_off(kept)
    }

    /// Removes the entries below `first`, and returns them.
    pub fn take_below(&mut self, first: Index) -> vec_deque::Drain<'_, Kept> {
        let count = self.entries.len().min(first.0.saturating_sub(self.first) as usize);
        self.first = self.first.max(first.0);
        self.entries.drain(..count)
    }

    /// Claims the places of the payloads above `index`. A payload whose place has another owner is lost.
    pub fn claim_places(&mut self, index: Index, claim: &mut dyn FnMut(&[PlacedRun]) -> bool) {
        for kept in self.entries.iter_mut().filter(|kept| kept.index > index) {
            let place = kept.payload.as_ref().and_then(|payload| payload.place());
            if place.is_some_and(|place| !claim(&place.runs)) {
                let payload = kept.payload.take().expect("it has a place");
                let (index, term, len_bytes) = (kept.index, kept.term, payload.buf.len() as u32);
                tracing::warn!(%index, "the place of a payload of the log has another owner: the payload is lost");
                kept.lost = Some(Arc::new(Lost { index, term, len_bytes, crcs: payload.crcs.clone() }));
            }
        }
    }

    /// Returns the first entry whose payload is lost.
    pub fn first_lost(&self) -> Option<Index> {
        self.entries.iter().find(|kept| kept.lost.is_some()).map(|kept| kept.index)
    }

    /// Iterates over the entries above `index`.
    pub fn above(&self, index: Index) -> impl Iterator<Item = &Kept> {
        let from = (index.0 + 1).saturating_sub(self.first) as usize;
        self.entries.range(from.min(self.entries.len())..)
    }

    pub fn into_entries(self) -> impl Iterator<Item = Kept> {
        self.entries.into_iter()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.entries.iter()
    }
}
