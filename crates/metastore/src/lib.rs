//! Where meta's records live: in memory (for the simulator), in redb (one meta alone), in etcd (several).
//!
//! Ring 2. A [`control::Txn`] comes in and is done as a whole or not at all; at the start of a leadership
//! everything goes out once. One meta leads at a time: [`Store::campaign`] returns when this one does, and
//! from then on every commit is fenced by that election.
//!
//! Invariant: a commit whose outcome is not known ends the leadership: it is reported as an error, and no
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

/// Why the store did not do it. After any of these the leadership is over.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A key was not as often written as the transaction says: somebody else writes.
    #[error("the record {key} was changed by somebody else")]
    Conflict { key: String },
    /// Another meta was elected.
    #[error("this meta no longer leads")]
    Fenced,
    /// No answer: the transaction may have happened or not.
    #[error("the metadata store ({store}) does not answer: {why}")]
    Unavailable { store: String, why: String },
    #[error("the metadata store failed: {0}")]
    Redb(#[source] Box<redb::Error>),
    #[error("the metadata store at {path} is used by another process")]
    Locked { path: String },
    #[error("the metadata store holds something that is not ours: {0}")]
    Foreign(String),
}

/// What a campaign came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Campaign {
    /// This meta leads from now on.
    Won,
    /// Another one leads, at this address if known; campaign again soon.
    Lost { leader: Option<String> },
}

/// A typed key-value store with one elected writer.
pub trait Store: Send {
    /// Tries to become the leader, whose clients find it at `address`. Returns at once.
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign>;

    /// Everything that is stored. Only the leader asks.
    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>>;

    /// All of `txn`, durably, or an error. Only the leader asks.
    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()>;

    /// Keeps the leadership; called every second at least. An error ends it.
    fn keep(&mut self) -> StoreFuture<'_, ()>;

    /// Gives the leadership up, so that another may have it at once. Best effort.
    fn resign(&mut self) -> StoreFuture<'_, ()>;
}

#[cfg(test)]
mod tests;
