//! A store in memory, for tests. The image outlives the leaders that use it, as a
//! disk would.

use crate::{Campaign, Store, StoreError, StoreFuture};
use control::{StoredItem, Txn};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fault of the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outage {
    #[default]
    None,
    /// The commit does not happen, and the caller gets an error.
    Before,
    /// The commit happens, but the caller gets no answer.
    After,
}

#[derive(Default)]
struct Image {
    items: BTreeMap<String, (Vec<u8>, u64)>,
    leader: Option<(u64, String)>,
    terms: u64,
    outage: Outage,
}

/// One meta's handle to a shared image.
#[derive(Clone, Default)]
pub struct MemStore {
    image: Arc<Mutex<Image>>,
    term: u64,
}

impl MemStore {
    /// Returns a handle to a new, empty image.
    pub fn new() -> MemStore {
        MemStore::default()
    }

    /// Returns another meta's handle to the same image.
    pub fn another(&self) -> MemStore {
        MemStore { image: Arc::clone(&self.image), term: 0 }
    }

    fn image(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the fault of the next commit.
    pub fn fail_next(&self, outage: Outage) {
        self.image().outage = outage;
    }

    /// Takes the leadership at once from the present leader.
    pub fn seize(&mut self, address: &str) {
        let mut image = self.image();
        image.terms += 1;
        let term = image.terms;
        image.leader = Some((term, address.to_string()));
        drop(image);
        self.term = term;
    }

    /// Returns all records.
    pub fn load_now(&self) -> Vec<StoredItem> {
        let image = self.image();
        let item = |(key, (value, version)): (&String, &(Vec<u8>, u64))| StoredItem {
            key: key.clone(),
            value: value.clone(),
            version: *version,
        };
        image.items.iter().map(item).collect()
    }

    /// Commits all of `txn` or nothing.
    ///
    /// # Errors
    /// When fenced, when a check fails, or when [`MemStore::fail_next`] set a fault.
    pub fn commit_now(&self, txn: &Txn) -> Result<(), StoreError> {
        let mut image = self.image();
        let outage = std::mem::take(&mut image.outage);
        if outage == Outage::Before {
            return Err(injected("before"));
        }
        if image.leader.as_ref().is_none_or(|(term, _)| *term != self.term) {
            return Err(StoreError::Fenced);
        }
        for check in &txn.checks {
            let version = image.items.get(&check.key).map_or(0, |(_, version)| *version);
            if version != check.version {
                return Err(StoreError::Conflict { key: check.key.clone() });
            }
        }
        for (key, value) in &txn.puts {
            let version = image.items.get(key).map_or(0, |(_, version)| *version);
            image.items.insert(key.clone(), (value.clone(), version + 1));
        }
        for key in &txn.deletes {
            image.items.remove(key);
        }
        match outage {
            Outage::After => Err(injected("after")),
            Outage::None | Outage::Before => Ok(()),
        }
    }
}

fn injected(when: &str) -> StoreError {
    StoreError::Unavailable { store: "memory".to_owned(), why: format!("injected, {when}") }
}

impl Store for MemStore {
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign> {
        Box::pin(async move {
            let leader = self.image().leader.clone();
            match leader {
                Some((term, other)) if term != self.term => Ok(Campaign::Lost { leader: Some(other) }),
                _ => {
                    self.seize(address);
                    Ok(Campaign::Won)
                }
            }
        })
    }

    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>> {
        Box::pin(async move { Ok(self.load_now()) })
    }

    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.commit_now(txn) })
    }

    fn keep(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let leads = self.image().leader.as_ref().is_some_and(|(term, _)| *term == self.term);
            if leads { Ok(()) } else { Err(StoreError::Fenced) }
        })
    }

    fn resign(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let mut image = self.image();
            if image.leader.as_ref().is_some_and(|(term, _)| *term == self.term) {
                image.leader = None;
            }
            Ok(())
        })
    }
    fn is_leased(&self) -> bool {
        true
    }
}
