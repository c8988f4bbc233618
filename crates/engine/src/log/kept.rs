//! The entries of one replica that the log can still produce.
//!
//! Invariant: contiguous and ascending from `first`; every payload is in memory but one that the log has lost,
//! of which the checksums are; terms never fall.

use crate::payload::Payload;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use types::store::{Crcs, Lost};
use types::{Entry, EntryKind, Index, IoBuf, Term};

/// One entry, and where in the log it lies.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub index: Index,
    pub term: Term,
    pub kind: EntryKind,
    pub descriptor: Bytes,
    pub payload: Option<Arc<Payload>>,
    /// What the payload must be, while it is lost (R11); `payload` is `None` then.
    pub lost: Option<Arc<Lost>>,
    /// Number of the first batch of its segment; `u64::MAX` until it is in a batch.
    pub segment: u64,
}

impl Kept {
    pub fn new(entry: Entry) -> Kept {
        let Entry { term, index, kind, descriptor, payload, crcs } = entry;
        let payload = (!payload.is_empty()).then(|| Arc::new(Payload { buf: payload, crcs }));
        Kept { index, term, kind, descriptor, payload, lost: None, segment: u64::MAX }
    }

    /// Checksums that its record carries.
    pub fn crcs(&self) -> &Crcs {
        static NONE: Crcs = Crcs { start: 0, values: Vec::new() };
        match (&self.payload, &self.lost) {
            (Some(payload), _) => &payload.crcs,
            (None, Some(lost)) => &lost.crcs,
            (None, None) => &NONE,
        }
    }

    pub fn payload_len(&self) -> usize {
        self.payload.as_ref().map_or(0, |p| p.buf.len())
    }

    /// The entry as a group knows it.
    pub fn entry(&self) -> Entry {
        let (payload, crcs) = match &self.payload {
            Some(p) => (p.buf.clone(), p.crcs.clone()),
            None => (IoBuf::EMPTY, Crcs::default()),
        };
        let (term, index, kind) = (self.term, self.index, self.kind);
        Entry { term, index, kind, descriptor: self.descriptor.clone(), payload, crcs }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct ReplicaLog {
    first: u64,
    entries: VecDeque<Kept>,
}

impl ReplicaLog {
    /// Empty, to go on at `first`.
    pub fn new(first: Index) -> ReplicaLog {
        ReplicaLog { first: first.0, entries: VecDeque::new() }
    }

    pub fn first(&self) -> Index {
        Index(self.first)
    }

    /// Last index; `first - 1` when empty.
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

    /// Appends; what was at or above its index is removed and given back.
    ///
    /// # Panics
    /// When it would leave a hole, or replace what is no longer kept.
    pub fn append(&mut self, kept: Kept) -> VecDeque<Kept> {
        let index = kept.index.0;
        assert!(index >= self.first, "entry {index} lies below the first kept one, {}", self.first);
        assert!(index <= self.first + self.entries.len() as u64, "entry {index} leaves a hole after {}", self.last());
        let replaced = self.entries.split_off((index - self.first) as usize);
        let falls = self.entries.back().is_some_and(|last| last.term > kept.term);
        assert!(!falls, "terms fall at entry {index}");
        self.entries.push_back(kept);
        replaced
    }

    /// Removes everything from `from` on, and gives it back.
    pub fn truncate(&mut self, from: Index) -> VecDeque<Kept> {
        assert!(from.0 >= self.first, "{from} lies below the first kept entry, {}", self.first);
        let kept = self.entries.len().min((from.0 - self.first) as usize);
        self.entries.split_off(kept)
    }

    /// Forgets everything below `first`.
    pub fn drop_below(&mut self, first: Index) {
        while self.first < first.0 {
            if self.entries.pop_front().is_none() {
                self.first = first.0;
                return;
            }
            self.first += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.entries.iter()
    }
}
