//! Puts a backup back into a store.

use crate::{Campaign, Store, StoreError};
use control::{Check, StoredItem, Txn};

/// Most records in one transaction.
const STEP: usize = 100;
/// A store without this record is no store. It is deleted first and written last, so that an interrupted restore is
/// detected.
const CLUSTER: &str = "cluster";
/// This record is never missing: a metadata server would take an empty store for a new cluster.
const COUNTERS: &str = "counters";

/// Result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Records that the store held before.
    pub replaced: usize,
    pub written: usize,
}

/// Reason why nothing was restored, or not all.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a metadata server runs on this store{}", leader.as_ref().map(|l| format!(", at {l}")).unwrap_or_default())]
    InUse { leader: Option<String> },
    #[error("the store holds {count} records")]
    NotEmpty { count: usize },
    #[error("this is not a backup of a metadata store")]
    Backup(#[from] control::LoadError),
}

/// Replaces everything in `store` by the items of a backup. A metadata server that takes the store up changes nothing before
/// `basalt meta recover` (R17).
///
/// # Errors
/// See [`RestoreError`]; without `replace` also when the store is not empty.
pub async fn restore(store: &mut dyn Store, items: Vec<StoredItem>, replace: bool) -> Result<Restored, RestoreError> {
    let mut items = control::restored(items)?;
    if let Campaign::Lost { leader } = store.campaign("basalt meta restore").await? {
        return Err(RestoreError::InUse { leader });
    }
    let done = replace_all(store, &mut items, replace).await;
    store.resign().await?;
    done
}

async fn replace_all(store: &mut dyn Store, items: &mut [StoredItem], replace: bool) -> Result<Restored, RestoreError> {
    let mut old = store.load().await?;
    if !old.is_empty() && !replace {
        return Err(RestoreError::NotEmpty { count: old.len() });
    }
    let replaced = old.len();
    let version = |key: &str| old.iter().find(|i| i.key == key).map_or(0, |i| i.version);
    let first = Txn {
        checks: [CLUSTER, COUNTERS].map(|key| Check { key: key.to_owned(), version: version(key) }).into(),
        puts: items.iter().filter(|i| i.key == COUNTERS).map(|i| (i.key.clone(), i.value.clone())).collect(),
        deletes: old.iter().filter(|i| i.key == CLUSTER).map(|i| i.key.clone()).collect(),
    };
    store.commit(&first).await?;
    store.keep().await?;
    old.retain(|item| ![CLUSTER, COUNTERS].contains(&item.key.as_str()));
    for step in old.chunks(STEP) {
        let checks = step.iter().map(|i| Check { key: i.key.clone(), version: i.version }).collect();
        let deletes = step.iter().map(|i| i.key.clone()).collect();
        store.commit(&Txn { checks, puts: Vec::new(), deletes }).await?;
        store.keep().await?;
    }
    items.sort_by_key(|item| (item.key == CLUSTER, item.key != COUNTERS));
    for step in items[1..].chunks(STEP) {
        let checks = step.iter().map(|i| Check { key: i.key.clone(), version: 0 }).collect();
        let puts = step.iter().map(|i| (i.key.clone(), i.value.clone())).collect();
        store.commit(&Txn { checks, puts, deletes: Vec::new() }).await?;
        store.keep().await?;
    }
    Ok(Restored { replaced, written: items.len() })
}
