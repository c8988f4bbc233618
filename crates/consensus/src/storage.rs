//! Raft's view of the log, in memory: descriptors of every entry from `first_index` on.
//!
//! `node` appends the entries that a [`crate::Ready`] passes to the engine, and raft reads them. The payload of an entry is
//! the engine's. Here only its length counts, as a running sum, because raft measures messages in descriptor
//! bytes and would send 16 MiB of payload in one.
//!
//! Invariant: entries are contiguous, their terms ascend, and `first_index` never exceeds the applied index + 1.
//! `node` keeps the latter, because raft reads everything above the applied index, at any time, synchronously.

use crate::convert::entry_to_raft;
use bytes::Bytes;
use raft::eraftpb;
use raft::{Error, GetEntriesContext, RaftState, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;

/// One entry. Its position gives its index.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub term: u64,
    pub data: Bytes,
    /// Payload bytes of this and all entries before it, since this log was opened.
    pub sum: u64,
}

pub(crate) struct Storage {
    slots: VecDeque<Slot>,
    /// Index and term before the first slot, and the payload sum there.
    before: (u64, u64),
    before_sum: u64,
    initial: RaftState,
    payload_len: fn(&[u8]) -> u64,
    /// Followers to which raft wanted to send a snapshot since the last ready.
    behind: RefCell<Vec<u64>>,
}

impl Storage {
    pub fn new(before: (u64, u64), initial: RaftState, payload_len: fn(&[u8]) -> u64) -> Storage {
        Storage { slots: VecDeque::new(), before, before_sum: 0, initial, payload_len, behind: RefCell::default() }
    }

    pub fn first(&self) -> u64 {
        self.before.0 + 1
    }

    pub fn last(&self) -> u64 {
        self.before.0 + self.slots.len() as u64
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the term at `index`, from the entry before the first to the last.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.before.0 {
            return Some(self.before.1);
        }
        self.slot(index).map(|slot| slot.term)
    }

    fn slot(&self, index: u64) -> Option<&Slot> {
        let at = index.checked_sub(self.first())?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// Iterates over the descriptors of the entries in `(after, upto]`; none below `first`.
    pub fn descriptors(&self, after: u64, upto: u64) -> impl Iterator<Item = &[u8]> {
        let at = |index: u64| usize::try_from(index.saturating_sub(self.before.0)).unwrap_or(usize::MAX);
        let (from, to) = (at(after), at(upto).min(self.slots.len()));
        self.slots.range(from.min(to)..to).map(|slot| &*slot.data)
    }

    /// Returns the payload bytes of the entries in `(after, upto]`; entries below `first` count as none.
    pub fn payload_between(&self, after: u64, upto: u64) -> u64 {
        self.sum_at(upto) - self.sum_at(after.min(upto))
    }

    fn sum_at(&self, index: u64) -> u64 {
        match index.checked_sub(self.first()) {
            None => self.before_sum,
            Some(at) => {
                let last = self.slots.len().saturating_sub(1) as u64;
                self.slots.get(at.min(last) as usize).map_or(self.before_sum, |slot| slot.sum)
            }
        }
    }

    /// Puts an entry at its index and truncates everything above it.
    ///
    /// # Panics
    /// When it would leave a gap, go below `first`, or let terms fall.
    pub fn append(&mut self, term: u64, index: u64, data: Bytes) {
        assert!(
            self.first() <= index && index <= self.last() + 1,
            "append {index} to {}..={}",
            self.first(),
            self.last()
        );
        self.slots.truncate((index - self.first()) as usize);
        let before = self.slots.back().map_or((self.before.1, self.before_sum), |slot| (slot.term, slot.sum));
        assert!(before.0 <= term, "term {term} at {index} after term {}", before.0);
        let sum = before.1 + (self.payload_len)(&data);
        self.slots.push_back(Slot { term, data, sum });
    }

    /// Drops the entries below `first`.
    ///
    /// # Panics
    /// When `first` lies beyond the end of the log.
    pub fn compact(&mut self, first: u64) {
        assert!(first <= self.last() + 1, "first index {first} beyond {}", self.last());
        while self.first() < first {
            let slot = self.slots.pop_front().expect("entries reach to the last index");
            self.before = (self.first(), slot.term);
            self.before_sum = slot.sum;
        }
    }

    pub fn has_behind(&self) -> bool {
        !self.behind.borrow().is_empty()
    }

    pub fn take_behind(&mut self) -> Vec<u64> {
        std::mem::take(self.behind.get_mut())
    }
}

impl raft::Storage for Storage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.first() {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "raft reads up to {high}, the log ends at {}", self.last());
        // Only a message is cut to size (raft sets `can_async` for reads that fill a message): a cut here would hide
        // entries from the checks that precede a campaign.
        let for_message = context.can_async();
        let size_max = max_size.into().unwrap_or(u64::MAX);
        let base = self.sum_at(low - 1);
        let mut size = 0u64;
        let mut out = Vec::with_capacity((high - low).min(crate::MSG_ENTRIES_MAX as u64) as usize);
        for index in low..high {
            let slot = self.slot(index).expect("the range was checked");
            size += slot.data.len() as u64 + 24;
            let message_full =
                for_message && (slot.sum - base > crate::MSG_PAYLOAD_MAX || out.len() == crate::MSG_ENTRIES_MAX);
            if !out.is_empty() && (size > size_max || message_full) {
                break;
            }
            out.push(entry_to_raft(index, slot.term, slot.data.clone()));
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_at(index) {
            Some(term) => Ok(term),
            None if index < self.before.0 => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// Always fails with the one error that raft tolerates: a follower behind the log is streamed to (R12).
    fn snapshot(&self, _request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        let mut behind = self.behind.borrow_mut();
        if !behind.contains(&to) {
            behind.push(to);
        }
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
