//! Stores of meta's records: in memory (for tests), in redb (a single meta), in etcd (several).
//!
//! Ring 2. A [`control::Txn`] applies as a whole or not at all; all records are loaded at the start of a
//! leadership. One meta leads at a time: [`Store::campaign`] returns when this one does, and from then on
//! every commit is fenced by that election.
//!
//! Invariant: a commit whose outcome is unknown ends the leadership. It is reported as an error, and no
//! later leadership of this process can be confused with it (the election key is another one).

mod embedded;
mod etcd;
mod memory;
mod restore;

pub use embedded::RedbStore;
pub use etcd::{EtcdConfig, EtcdStore, EtcdTls};
pub use memory::{MemStore, Outage};
pub use restore::{RestoreError, Restored, restore};

use control::{StoredItem, Txn};
use std::future::Future;
use std::pin::Pin;

/// A future of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Reason why the store failed. After any of these the leadership is over.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The version of a key differs from the transaction's: another process writes to the store.
    #[error("the record {key} was changed by another process")]
    Conflict { key: String },
    /// Another meta was elected.
    #[error("this meta no longer leads")]
    Fenced,
    /// There is no answer: the transaction may have been committed or not.
    #[error("the metadata store ({store}) does not answer: {why}")]
    Unavailable { store: String, why: String },
    #[error("the metadata store failed: {0}")]
    Redb(#[source] Box<redb::Error>),
    #[error("the metadata store at {path} is used by another process")]
    Locked { path: String },
    #[error("the metadata store holds a foreign or malformed record: {0}")]
    Foreign(String),
}

/// Result of a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Campaign {
    /// This meta leads from now on.
    Won,
    /// Another meta leads, at this address if known; campaign again soon.
    Lost { leader: Option<String> },
}

/// A typed key-value store with one elected writer.
pub trait Store: Send {
    /// Tries to become the leader, which clients find at `address`. Returns at once.
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign>;

    /// Returns all records. Only the leader calls it.
    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>>;

    /// Commits all of `txn`, durably, or returns an error. Only the leader calls it.
    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()>;

    /// Keeps the leadership; called as [`control::lead::Leader`] asks. An error ends it.
    fn keep(&mut self) -> StoreFuture<'_, ()>;

    /// Gives the leadership up, so that another meta may have it at once. Best effort.
    fn resign(&mut self) -> StoreFuture<'_, ()>;

    /// Whether a leadership that is not kept ends, so that another meta may have it.
    fn is_leased(&self) -> bool;
}

#[cfg(test)]
mod tests;
