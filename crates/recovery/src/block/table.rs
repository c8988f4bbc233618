//! The bad blocks of an OSD, and when the next of them is due: a turn in which none is due looks at none.

use super::{Bad, BlockKey};
use std::collections::BTreeMap;
use std::ops::Deref;
use types::Time;

#[derive(Default)]
pub(super) struct BadBlocks {
    by_key: BTreeMap<BlockKey, Bad>,
    /// The first time at which one is due. `None`: they have changed since it was computed.
    next_at: Option<Time>,
}

impl Deref for BadBlocks {
    type Target = BTreeMap<BlockKey, Bad>;

    fn deref(&self) -> &BTreeMap<BlockKey, Bad> {
        &self.by_key
    }
}

impl BadBlocks {
    /// Returns the blocks to be changed.
    pub fn edit(&mut self) -> &mut BTreeMap<BlockKey, Bad> {
        self.next_at = None;
        &mut self.by_key
    }

    /// Returns the first time at which one is due.
    pub fn next_at(&self) -> Time {
        let soonest = || self.by_key.values().map(|bad| bad.next_at).min();
        self.next_at.or_else(soonest).unwrap_or(Time::NEVER)
    }

    /// Returns the blocks that are due.
    pub fn due(&mut self, now: Time) -> Vec<BlockKey> {
        let next_at = self.next_at();
        self.next_at = Some(next_at);
        if next_at > now {
            return Vec::new();
        }
        self.by_key.iter().filter(|(_, bad)| bad.is_due(now)).map(|(key, _)| *key).collect()
    }
}
