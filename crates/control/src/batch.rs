//! Writes of one turn, joined into one transaction.

use crate::records::{Record, Write};
use std::collections::BTreeMap;

/// Most writes of one transaction: etcd takes 128 operations and 128 comparisons, one of them the fence.
pub const TXN_WRITES_MAX: usize = 120;
/// A batch that has this many writes takes no further plan; every plan is smaller than the rest.
pub(crate) const BATCH_FULL: usize = 47;
/// Most writes of one plan; one more is the revision.
pub(crate) const PLAN_WRITES_MAX: usize = TXN_WRITES_MAX - BATCH_FULL - 1;

/// A precondition: how often the key was written since it was made; zero when it must not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub key: String,
    pub version: u64,
}

/// One transaction: it applies as a whole or not at all. Every written key is also checked.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    pub checks: Vec<Check>,
    pub puts: Vec<(String, Vec<u8>)>,
    pub deletes: Vec<String>,
}

/// The last write to each key in this turn.
#[derive(Default)]
pub(crate) struct Batch {
    writes: BTreeMap<String, Option<Record>>,
}

impl Batch {
    pub fn add(&mut self, write: Write) {
        match write {
            Write::Put(record) => self.writes.insert(record.key().to_string(), Some(record)),
            Write::Delete(key) => self.writes.insert(key.to_string(), None),
        };
        assert!(self.writes.len() <= TXN_WRITES_MAX, "a plan wrote more than it may");
    }

    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn is_full(&self) -> bool {
        self.writes.len() >= BATCH_FULL
    }

    /// Returns the transaction, and updates the versions of its keys in `versions`.
    pub fn close(&mut self, versions: &mut BTreeMap<String, u64>) -> Txn {
        let mut txn = Txn::default();
        for (key, record) in std::mem::take(&mut self.writes) {
            let version = versions.get(&key).copied().unwrap_or(0);
            match record {
                Some(record) => {
                    versions.insert(key.clone(), version + 1);
                    txn.puts.push((key.clone(), record.encode()));
                }
                None => {
                    versions.remove(&key);
                    txn.deletes.push(key.clone());
                }
            }
            txn.checks.push(Check { key, version });
        }
        txn
    }
}
