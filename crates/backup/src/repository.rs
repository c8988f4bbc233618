//! A repository of backups: a directory, or a prefix in an S3 bucket.
//!
//! ```text
//! basalt-backup.json                       that it is one, and of which format
//! backups/POOL/VOLUME/ID.json              records
//! drafts/POOL/VOLUME/ID.OWNER-N.json       records of backups that are being made: the last ones of each attempt, without -N its first
//! objects/3f/3f5a…                         pieces and indexes, named by their hashes
//! ```
//!
//! Invariants: an object that a record names is never written with other bytes; it is deleted only when no record names it. A record takes
//! the place of no other one, also when its request arrives late.

use crate::error::Error;
use crate::format::{self, ObjectId};
use crate::index::Index;
use crate::line::Watching;
use crate::record::{FORMAT, Record};
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::Error::Generic;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreExt, PutMode, RetryConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;
use types::units::SEGMENT;

const MARKER: &str = "basalt-backup.json";
const BACKUPS: &str = "backups";
const DRAFTS: &str = "drafts";
const OBJECTS: &str = "objects";
/// Longest record or index: 64 TiB with an index for each GiB, and the longest index.
const RECORD_MAX: u64 = 64 << 20;

/// Longest time of a request that makes progress: a bound for servers that answer byte by byte.
const REQUEST_MAX: &str = "1 day";
/// Time after which a failed request is not repeated any more.
const RETRY_MAX: Duration = Duration::from_secs(3600);

#[derive(Serialize, Deserialize)]
struct Marker {
    format: u32,
    /// Random: two repositories are never the same one.
    id: String,
}

/// An object that is listed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub id: ObjectId,
    /// Its length in bytes.
    pub len: u64,
    /// When it was written last: milliseconds of the clock of the store.
    pub written_ms: u64,
}

/// A repository.
#[derive(Clone)]
pub struct Repository {
    store: Arc<dyn ObjectStore>,
    /// The directory, if it is one.
    local: Option<Arc<LocalFileSystem>>,
    address: String,
}

impl Repository {
    /// Opens `s3://BUCKET/PREFIX`, or a directory, as a path or as `file:///PATH`. What is made in a directory is readable for its owner alone. An S3 server and the credentials come from the
    /// environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION` and so on. With `create` a
    /// directory is made.
    ///
    /// # Errors
    /// `Address`: it cannot be understood, or the directory cannot be used.
    pub fn open(address: &str, create: bool) -> Result<Repository, Error> {
        let bad = |reason: String| Error::Address { address: address.to_owned(), reason };
        let mut own = None;
        let store: Arc<dyn ObjectStore> = if let Some(place) = address.strip_prefix("s3://") {
            let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
            let store = s3(bucket).and_then(|builder| builder.build().map_err(|error| error.to_string()));
            Arc::new(PrefixStore::new(store.map_err(bad)?, prefix))
        } else if let Some((scheme, _)) = address.split_once("://").filter(|(scheme, _)| *scheme != "file") {
            return Err(bad(format!("{scheme} is not supported; name a directory or s3://BUCKET/PREFIX")));
        } else {
            let directory = address.strip_prefix("file://").unwrap_or(address);
            if directory.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err(bad("name a directory or s3://BUCKET/PREFIX".to_owned()));
            }
            if create {
                make_private(directory.as_ref()).map_err(|error| bad(error.to_string()))?;
            }
            must_be_directory(directory.as_ref()).map_err(bad)?;
            let local = LocalFileSystem::new_with_prefix(directory).map_err(|error| bad(error.to_string()))?;
            Arc::clone(own.insert(Arc::new(local.with_fsync(true)))) as Arc<dyn ObjectStore>
        };
        Ok(Repository { store, local: own, address: address.to_owned() })
    }

    /// A repository in memory, for tests.
    #[cfg(test)]
    pub fn in_memory(store: Arc<dyn ObjectStore>) -> Repository {
        Repository { store, local: None, address: "memory".to_owned() }
    }

    /// Makes it a repository, if it is none yet. A marker that is lost or damaged is written again, with another id.
    ///
    /// # Errors
    /// `Newer`, `Store`.
    pub async fn begin(&self) -> Result<(), Error> {
        match self.check().await {
            Err(Error::NoRepository(_) | Error::Marker { .. }) => {
                let marker = Marker { format: FORMAT, id: uuid::Uuid::new_v4().simple().to_string() };
                let marker = serde_json::to_vec(&marker).unwrap_or_default();
                self.put(&Path::from(MARKER), marker.into()).await
            }
            other => other,
        }
    }

    /// Checks that it is a repository.
    ///
    /// # Errors
    /// `NoRepository`, `Marker`, `Newer`, `Store`.
    pub async fn check(&self) -> Result<(), Error> {
        self.id().await.map(drop)
    }

    /// Returns the id of the repository.
    ///
    /// # Errors
    /// The same as of [`Repository::check`].
    pub async fn id(&self) -> Result<String, Error> {
        let unusable = |reason: String| Error::Marker { file: format!("{}/{MARKER}", self.address), reason };
        let bytes = match self.get(&Path::from(MARKER)).await {
            Err(error) if error.is_missing() && self.list(&Path::from(BACKUPS)).await?.is_empty() => {
                return Err(Error::NoRepository(self.address.clone()));
            }
            Err(error) if error.is_missing() => {
                return Err(unusable("is missing, although backups are there".to_owned()));
            }
            other => other?,
        };
        let marker: Marker =
            serde_json::from_slice(&bytes).map_err(|error| unusable(format!("is damaged ({error})")))?;
        if marker.format > FORMAT { Err(Error::Newer(marker.format)) } else { Ok(marker.id) }
    }

    /// Writes an object, and returns its name.
    ///
    /// # Errors
    /// `Store`.
    pub async fn put_object(&self, bytes: Vec<u8>) -> Result<ObjectId, Error> {
        let id = ObjectId::of(&bytes);
        self.put(&object(id), bytes.into()).await?;
        Ok(id)
    }

    /// Reads a piece and checks it.
    ///
    /// # Errors
    /// `Store`, `Damaged`.
    pub async fn piece(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        let bytes = self.get(&object(id)).await?;
        // Hashing and unpacking take longer than a turn of the runtime should.
        tokio::task::spawn_blocking(move || format::decode_piece(id, &bytes)).await.map_err(|_| Error::Lost)?
    }

    /// Reads the index of a segment and checks it. Without one the segment is empty.
    ///
    /// # Errors
    /// `Store`, `Damaged`.
    pub async fn index(&self, id: Option<ObjectId>) -> Result<Index, Error> {
        match id {
            Some(id) => format::decode_index(id, &self.get(&object(id)).await?),
            None => Ok(Index::default()),
        }
    }

    /// Returns all records, by volume and time; with `volume` (`POOL/VOLUME`) those of one volume. A damaged one is an entry of its own.
    ///
    /// # Errors
    /// `Store`.
    pub async fn records(&self, volume: Option<&str>) -> Result<Vec<Result<Record, Error>>, Error> {
        self.read_all(BACKUPS, volume).await
    }

    /// Returns a record by the name of its backup.
    ///
    /// # Errors
    /// `Unknown`, `Damaged`, `Newer`, `Store`.
    pub async fn record(&self, volume: &str, id: &str) -> Result<Record, Error> {
        match self.read(BACKUPS, &Path::from(format!("{BACKUPS}/{volume}/{id}.json"))).await {
            Err(error) if error.is_missing() => Err(Error::Unknown(format!("{id} of {volume}"))),
            other => other,
        }
    }

    /// Returns the drafts, in the same way as [`Repository::records`].
    ///
    /// # Errors
    /// `Store`.
    pub async fn drafts(&self, volume: Option<&str>) -> Result<Vec<Result<Record, Error>>, Error> {
        self.read_all(DRAFTS, volume).await
    }

    async fn read_all(&self, kind: &str, volume: Option<&str>) -> Result<Vec<Result<Record, Error>>, Error> {
        let prefix = match volume {
            Some(volume) => Path::from(format!("{kind}/{volume}")),
            None => Path::from(kind),
        };
        let mut paths: Vec<Path> = self.list(&prefix).await?.into_iter().map(|meta| meta.location).collect();
        paths.sort();
        let mut records = Vec::with_capacity(paths.len());
        for path in paths {
            match self.read(kind, &path).await {
                // Another command has deleted it since it was listed.
                Err(error) if error.is_missing() => {}
                Err(error @ Error::Store { .. }) => return Err(error),
                other => records.push(other),
            }
        }
        Ok(records)
    }

    async fn read(&self, kind: &str, path: &Path) -> Result<Record, Error> {
        let record = Record::decode(path.as_ref(), &self.get(path).await?)?;
        fits(kind, path, record)
    }

    /// Writes the draft of a backup.
    ///
    /// # Errors
    /// `Store`.
    pub async fn put_draft(&self, record: &Record) -> Result<(), Error> {
        self.put(&path_of(DRAFTS, record), record.encode().into()).await
    }

    /// Writes a record, which never changes then.
    ///
    /// # Errors
    /// `Store`; `Taken`: there is a backup of another volume with this name; `GivenUp`: another attempt has made this one.
    pub async fn put_record(&self, record: &Record) -> Result<(), Error> {
        let path = path_of(BACKUPS, record);
        let bytes = Bytes::from(Record { draft: 0, ..record.clone() }.encode());
        let Err(refusal) = self.put_as(&path, bytes.clone(), PutMode::Create).await else { return Ok(()) };
        match self.get(&path).await {
            Ok(found) => {
                let old = Record::decode(path.as_ref(), &found);
                let is_same = old.as_ref().is_ok_and(|old| old.subject.is_same_snapshot(&record.subject));
                let id = record.id.clone();
                match old {
                    // The answer to an earlier request was lost.
                    Ok(old) if is_same && old.owner == record.owner => Ok(()),
                    _ => Err(if is_same { Error::GivenUp(id) } else { Error::Taken(id) }),
                }
            }
            // A file system without hard links, or a server without conditional requests: the look before is all there is.
            Err(error) if error.is_missing() && (self.local.is_some() || refusal.is_unsupported()) => {
                self.put(&path, bytes).await
            }
            Err(error) if error.is_missing() => Err(refusal),
            Err(error) => Err(error),
        }
    }

    /// Whether the record of this backup is there.
    ///
    /// # Errors
    /// `Store`.
    pub async fn has(&self, record: &Record) -> Result<bool, Error> {
        self.exists(&path_of(BACKUPS, record)).await
    }

    /// Whether this draft, that of one attempt, is there.
    ///
    /// # Errors
    /// `Store`.
    pub async fn has_draft(&self, record: &Record) -> Result<bool, Error> {
        self.exists(&path_of(DRAFTS, record)).await
    }

    async fn exists(&self, path: &Path) -> Result<bool, Error> {
        match self.get(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a record. The objects that only it named are garbage then.
    ///
    /// # Errors
    /// `Store`.
    pub async fn drop_record(&self, record: &Record) -> Result<(), Error> {
        self.delete_durably(&path_of(BACKUPS, record)).await
    }

    /// Deletes the record of an attempt, unless there is that of another one in its place.
    ///
    /// # Errors
    /// `Store`.
    pub async fn drop_own_record(&self, record: &Record) -> Result<(), Error> {
        let path = path_of(BACKUPS, record);
        match self.get(&path).await {
            Ok(found) if Record::decode(path.as_ref(), &found).is_ok_and(|r| r.owner == record.owner) => {
                self.delete_durably(&path).await
            }
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes a draft.
    ///
    /// # Errors
    /// `Store`.
    pub async fn drop_draft(&self, record: &Record) -> Result<(), Error> {
        self.delete_durably(&path_of(DRAFTS, record)).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// `Store`.
    pub async fn drop_object(&self, id: ObjectId) -> Result<(), Error> {
        self.delete(&object(id)).await
    }

    /// Lists the pieces and indexes whose names begin with this byte: a part of all, so that a list is short. Other files in their place
    /// are left alone.
    ///
    /// # Errors
    /// `Store`.
    pub async fn objects(&self, shard: u8) -> Result<Vec<Listed>, Error> {
        let listed = |meta: object_store::ObjectMeta| {
            let id = ObjectId::try_from(meta.location.filename()?.to_owned()).ok()?;
            let written_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
            Some(Listed { id, len: meta.size, written_ms })
        };
        let prefix = Path::from(format!("{OBJECTS}/{shard:02x}"));
        Ok(self.list(&prefix).await?.into_iter().filter_map(listed).filter(|object| object.id.0[0] == shard).collect())
    }

    /// Returns the places of all records and drafts.
    ///
    /// # Errors
    /// `Store`.
    pub async fn places(&self) -> Result<BTreeSet<String>, Error> {
        let (drafts, records) = (self.list(&Path::from(DRAFTS)).await?, self.list(&Path::from(BACKUPS)).await?);
        Ok(drafts.into_iter().chain(records).map(|meta| meta.location.to_string()).collect())
    }

    async fn list(&self, prefix: &Path) -> Result<Vec<object_store::ObjectMeta>, Error> {
        let failed = |source| Error::Store { what: format!("{}: {prefix} cannot be listed", self.address), source };
        self.store.list(Some(prefix)).try_collect().await.map_err(failed)
    }

    async fn get(&self, path: &Path) -> Result<Bytes, Error> {
        let failed = |source| Error::Store { what: format!("{}: {path} cannot be read", self.address), source };
        let found = self.store.get(path).await.map_err(failed)?;
        // Foreign data: nothing here is longer.
        if found.meta.size > RECORD_MAX {
            let reason = format!("{} bytes", found.meta.size);
            return Err(Error::Damaged { object: path.to_string(), reason });
        }
        found.bytes().await.map_err(failed)
    }

    async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        self.put_as(path, bytes, PutMode::Overwrite).await
    }

    async fn put_as(&self, path: &Path, bytes: Bytes, mode: PutMode) -> Result<(), Error> {
        let failed = |source| Error::Store { what: format!("{}: {path} cannot be written", self.address), source };
        let Some(local) = &self.local else {
            return self.store.put_opts(path, bytes.into(), mode.into()).await.map(drop).map_err(failed);
        };
        let file = local.path_to_filesystem(path).map_err(failed)?;
        let refused = |source: std::io::Error| failed(Generic { store: "directory", source: Box::new(source) });
        // Within a private directory no other user sees the mode that a file has at first.
        file.parent().map_or(Ok(()), make_private).map_err(refused)?;
        self.store.put_opts(path, bytes.into(), mode.into()).await.map_err(failed)?;
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).map_err(refused)
    }

    async fn delete(&self, path: &Path) -> Result<(), Error> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(self.not_deleted(path, source)),
        }
    }

    /// Deletes a record or a draft for good: what it names goes next, so it must not come back after a power cut.
    async fn delete_durably(&self, path: &Path) -> Result<(), Error> {
        self.delete(path).await?;
        let Some(local) = &self.local else { return Ok(()) };
        let failed = |source| self.not_deleted(path, source);
        let file = local.path_to_filesystem(path).map_err(failed)?;
        match file.parent().map_or(Ok(()), sync_directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed(Generic { store: "directory", source: Box::new(error) }))
            }
            _ => Ok(()),
        }
    }

    fn not_deleted(&self, path: &Path, source: object_store::Error) -> Error {
        Error::Store { what: format!("{}: {path} cannot be deleted", self.address), source }
    }
}

/// Makes a directory and those above it, for their owner alone. They stay after a power cut. One that is there keeps its mode.
fn make_private(directory: &std::path::Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = match directory.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => std::path::Path::new("."),
    };
    make_private(above)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        // Another command was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => {}
        other => other?,
    }
    sync_directory(above)
}

fn sync_directory(directory: &std::path::Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Checks that a directory is there.
fn must_be_directory(path: &std::path::Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err("it is no directory".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("the directory does not exist".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn s3(bucket: &str) -> Result<AmazonS3Builder, String> {
    if bucket.is_empty() {
        return Err("name a bucket: s3://BUCKET/PREFIX".to_owned());
    }
    let provider = rustls::crypto::ring::default_provider();
    // The first one of a process stays.
    let _ = provider.install_default();
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|name| std::env::var(name).ok());
    let total = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_http_connector(Watching)
        .with_config(total, REQUEST_MAX)
        .with_retry(RetryConfig { retry_timeout: RETRY_MAX, ..RetryConfig::default() });
    if let Some(endpoint) = endpoint {
        builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
    }
    Ok(builder)
}

/// Checks that a record says what its place says, and that it is as long as its volume.
fn fits(kind: &str, path: &Path, record: Record) -> Result<Record, Error> {
    let segments = record.subject.len_bytes.div_ceil(SEGMENT);
    let found = record.segments.len() as u64;
    let is_whole = if kind == BACKUPS { found == segments } else { found <= segments };
    if is_whole && path_of(kind, &record) == *path {
        return Ok(record);
    }
    let reason = format!("it is {} {} with {found} of {segments} segments", record.volume(), record.id);
    Err(Error::Damaged { object: path.to_string(), reason })
}

fn object(id: ObjectId) -> Path {
    let name = id.to_string();
    Path::from(format!("{OBJECTS}/{}/{name}", &name[..2]))
}

fn path_of(kind: &str, record: &Record) -> Path {
    // Each attempt has a draft of its own.
    let name = match (kind, record.draft) {
        (DRAFTS, 0) => format!("{}.{}", record.id, record.owner),
        (DRAFTS, n) => format!("{}.{}-{n}", record.id, record.owner),
        _ => record.id.clone(),
    };
    Path::from(format!("{kind}/{}/{name}.json", record.volume()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_to_a_server_is_not_bounded_by_its_whole_time() {
        let total = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let found = s3("bucket").expect("a bucket").get_config_value(&total).expect("it is set");
        assert!(found == REQUEST_MAX || found == "86400s", "{found}");
    }
}
