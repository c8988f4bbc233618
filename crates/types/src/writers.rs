//! The writers of a volume, as its attach record names them (R6, ADR 0039).
//!
//! Invariant: no two have the same epoch, because each open of a volume raises it. They stand in the order of their epochs.

use crate::{Epoch, SessionId};

/// Most writers of one volume.
pub const WRITERS_MAX: usize = 8;
/// Most writers of all multi-writer volumes of one pool: each PG holds the windows of those of its volumes.
pub const POOL_WRITERS_MAX: usize = 1024;

/// One writer: a session, with the epoch of its open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    pub epoch: Epoch,
    pub session: SessionId,
}

/// The writers of a volume. A volume that is not shared has at most one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Writers {
    count: u8,
    /// Places from `count` on have the default.
    list: [Writer; WRITERS_MAX],
}

impl Writers {
    /// No session may write: the volume is fenced.
    pub const NONE: Writers =
        Writers { count: 0, list: [Writer { epoch: Epoch(0), session: SessionId(0) }; WRITERS_MAX] };

    /// Returns the list of the only writer; session zero is none.
    pub fn one(session: SessionId, epoch: Epoch) -> Writers {
        Writers::NONE.with(Writer { epoch, session }).unwrap_or(Writers::NONE)
    }

    /// Returns the list with one writer more, the newest.
    ///
    /// `None`: it has no session, the list is full, or one with this epoch or a later one is there.
    pub fn with(mut self, writer: Writer) -> Option<Writers> {
        let is_newest = self.as_slice().last().is_none_or(|last| last.epoch < writer.epoch);
        if writer.session == SessionId(0) || self.len() == WRITERS_MAX || !is_newest {
            return None;
        }
        self.list[self.len()] = writer;
        self.count += 1;
        Some(self)
    }

    /// Returns the list of these writers.
    ///
    /// `None`: they are no list, or one has a later epoch than `newest`.
    pub fn of(writers: impl IntoIterator<Item = Writer>, newest: Epoch) -> Option<Writers> {
        let with = |list: Writers, writer: Writer| list.with(writer).filter(|_| writer.epoch <= newest);
        writers.into_iter().try_fold(Writers::NONE, with)
    }

    /// Whether a session writes under this epoch.
    pub fn has(&self, session: SessionId, epoch: Epoch) -> bool {
        self.as_slice().contains(&Writer { epoch, session })
    }

    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the writers in the order of their epochs.
    pub fn as_slice(&self) -> &[Writer] {
        &self.list[..self.len()]
    }
}

impl std::fmt::Debug for Writers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.as_slice().iter().map(|writer| (writer.session, writer.epoch));
        f.debug_list().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(session: u64, epoch: u64) -> Writer {
        Writer { epoch: Epoch(epoch), session: SessionId(session) }
    }

    #[test]
    fn writers_stand_in_the_order_of_their_epochs_and_are_few() {
        let mut list = Writers::one(SessionId(5), Epoch(2));
        assert_eq!((list.len(), list.has(SessionId(5), Epoch(2))), (1, true));
        assert!(!list.has(SessionId(5), Epoch(3)) && !list.has(SessionId(6), Epoch(2)));
        for refused in [writer(6, 2), writer(6, 1), writer(0, 9)] {
            assert_eq!(list.with(refused), None, "{refused:?}");
        }
        for n in 3..=9 {
            list = list.with(writer(n + 10, n)).expect("there is room");
        }
        assert_eq!((list.len(), list.with(writer(99, 99))), (WRITERS_MAX, None));
        assert!(Writers::one(SessionId(0), Epoch(4)).is_empty());
        assert_eq!(Writers::of(list.as_slice().iter().copied(), Epoch(9)), Some(list));
        assert_eq!(Writers::of(list.as_slice().iter().copied(), Epoch(8)), None, "one is newer");
        assert_eq!(Writers::of([writer(6, 3), writer(5, 2)], Epoch(9)), None);
    }
}
