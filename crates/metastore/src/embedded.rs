//! redb: one file, one meta. The file's lock is the election.
//!
//! redb serves nothing after its first failed write or read. The file is closed then, and the next campaign opens it as a
//! new process would. Invariant: records that are loaded after a failure were read from the file after it.

use crate::{Campaign, Store, StoreError, StoreFuture};
use control::{StoredItem, Txn};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::failpoint::{Point, pass};

/// Key → version (8 bytes, little-endian), then the value.
const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records/1");
/// redb's own cache; the records are in memory anyway.
const CACHE_BYTES: usize = 8 << 20;

/// Records in a redb file.
pub struct RedbStore {
    path: PathBuf,
    /// `None` after a failure, until the next campaign.
    db: Option<Arc<Database>>,
}

impl RedbStore {
    /// Opens the file, or makes it. Blocks for a moment.
    ///
    /// # Errors
    /// When another process has it open, or redb cannot read it.
    pub fn open(path: &Path) -> Result<RedbStore, StoreError> {
        Ok(RedbStore { path: path.to_owned(), db: Some(Arc::new(open(path)?)) })
    }

    fn db(&self) -> Result<Arc<Database>, StoreError> {
        let closed =
            || StoreError::Unavailable { store: "redb".to_owned(), why: "it was closed after a failure".to_owned() };
        self.db.clone().ok_or_else(closed)
    }

    /// Passes a result on, and closes the file when redb failed.
    fn after<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(done, Err(StoreError::Redb(_) | StoreError::Unavailable { .. })) {
            self.db = None;
        }
        done
    }
}

/// Opens the file again after a failure. One that is gone is an outage: an empty one would begin a new cluster.
fn reopen(path: &Path) -> Result<Database, StoreError> {
    Database::builder().set_cache_size(CACHE_BYTES).open(path).map_err(|e| match e {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: path.display().to_string() },
        other => failed(other),
    })
}

fn open(path: &Path) -> Result<Database, StoreError> {
    // Only the owner may read the records; redb would create its file with the umask.
    std::fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(redb_io)?;
    let db = Database::builder().set_cache_size(CACHE_BYTES).create(path).map_err(|e| match e {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: path.display().to_string() },
        other => failed(other),
    })?;
    let txn = db.begin_write().map_err(failed)?;
    txn.open_table(RECORDS).map_err(failed)?;
    txn.commit().map_err(failed)?;
    Ok(db)
}

fn redb_io(e: std::io::Error) -> StoreError {
    failed(redb::Error::Io(e))
}

fn failed(e: impl Into<redb::Error>) -> StoreError {
    StoreError::Redb(Box::new(e.into()))
}

fn unpack(key: &str, stored: &[u8]) -> Result<(u64, Vec<u8>), StoreError> {
    let foreign = || StoreError::Foreign(format!("the entry {key} has no version"));
    let (version, value) = stored.split_first_chunk::<8>().ok_or_else(foreign)?;
    Ok((u64::from_le_bytes(*version), value.to_vec()))
}

fn load(db: &Database) -> Result<Vec<StoredItem>, StoreError> {
    let txn = db.begin_read().map_err(failed)?;
    let table = txn.open_table(RECORDS).map_err(failed)?;
    let mut items = Vec::new();
    for entry in table.iter().map_err(failed)? {
        let (key, stored) = entry.map_err(failed)?;
        let key = key.value().to_string();
        let (version, value) = unpack(&key, stored.value())?;
        items.push(StoredItem { key, value, version });
    }
    Ok(items)
}

fn commit(db: &Database, txn: &Txn) -> Result<(), StoreError> {
    let write = db.begin_write().map_err(failed)?;
    {
        let mut table = write.open_table(RECORDS).map_err(failed)?;
        let mut versions = std::collections::BTreeMap::new();
        for check in &txn.checks {
            let stored = table.get(check.key.as_str()).map_err(failed)?;
            let version = stored.map_or(Ok(0), |s| unpack(&check.key, s.value()).map(|(version, _)| version))?;
            if version != check.version {
                return Err(StoreError::Conflict { key: check.key.clone() });
            }
            versions.insert(check.key.as_str(), version);
        }
        for (key, value) in &txn.puts {
            let version = versions.get(key.as_str()).copied();
            let version = version.expect("every written key is checked") + 1;
            let mut stored = version.to_le_bytes().to_vec();
            stored.extend_from_slice(value);
            table.insert(key.as_str(), stored.as_slice()).map_err(failed)?;
        }
        for key in &txn.deletes {
            table.remove(key.as_str()).map_err(failed)?;
        }
    }
    pass(Point::MetaWritten);
    write.commit().map_err(failed)
}

impl Store for RedbStore {
    fn campaign<'a>(&'a mut self, _address: &'a str) -> StoreFuture<'a, Campaign> {
        Box::pin(async {
            if self.db.is_none() {
                let path = self.path.clone();
                self.db = Some(Arc::new(blocking(move || reopen(&path)).await?));
            }
            Ok(Campaign::Won)
        })
    }

    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>> {
        Box::pin(async move {
            let db = self.db()?;
            let done = blocking(move || load(&db)).await;
            self.after(done)
        })
    }

    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()> {
        let txn = txn.clone();
        Box::pin(async move {
            let db = self.db()?;
            let done = blocking(move || commit(&db, &txn)).await;
            self.after(done)
        })
    }

    fn keep(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn resign(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn is_leased(&self) -> bool {
        false
    }
}

/// Runs `work`, which waits for the disk, on a thread beside the runtime's own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Unavailable { store: "redb".to_owned(), why: format!("its task ended: {e}") })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_failed_is_opened_again_by_the_next_campaign() {
        let dir = std::env::temp_dir().join(format!("basalt-redb-again-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("meta.redb");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        runtime.block_on(async {
            let mut store = RedbStore::open(&path).expect("a new file");
            let txn = Txn {
                checks: vec![control::Check { key: "a".into(), version: 0 }],
                puts: vec![("a".into(), b"1".to_vec())],
                deletes: Vec::new(),
            };
            store.commit(&txn).await.expect("a record");
            let conflict = store.commit(&txn).await;
            assert!(matches!(conflict, Err(StoreError::Conflict { .. })) && store.load().await.is_ok(), "no failure");
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            let error = store.after::<()>(Err(redb_io(full))).expect_err("it failed").to_string();
            assert!(error.starts_with("the metadata store failed: ") && error.contains("space"), "{error}");
            assert!(store.load().await.is_err(), "nothing is served from before the failure");
            let other = RedbStore::open(&path).expect("the file is closed");
            assert!(matches!(store.campaign("a:1").await, Err(StoreError::Locked { .. })));
            drop(other);
            assert_eq!(store.campaign("a:1").await.expect("it is free again"), Campaign::Won);
            assert_eq!(store.load().await.expect("it is open").len(), 1);
            // A file that is gone is an outage: an empty store would begin a new cluster.
            store
                .after::<()>(Err(redb_io(std::io::Error::from(std::io::ErrorKind::StorageFull))))
                .expect_err("it failed");
            let moved = dir.join("moved.redb");
            std::fs::rename(&path, &moved).expect("moved");
            assert!(store.campaign("a:1").await.is_err() && !path.exists());
            std::fs::rename(&moved, &path).expect("back");
            assert_eq!(store.campaign("a:1").await.expect("it is there again"), Campaign::Won);
            assert_eq!(store.load().await.expect("it is open").len(), 1);
        });
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
