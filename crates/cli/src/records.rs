//! `basalt meta backup` and `restore`: the records of a cluster in a file.

use crate::admin::Admin;
use crate::args::StoreArgs;
use crate::errors::UserError;
use crate::output;
use crate::role::meta::open_store;
use anyhow::{Context, Result};
use control::StoredItem;
use meta::StoreConfig;
use metastore::StoreError;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use types::codes;

const SCHEMA: &str = "basalt.meta.backup/1";

/// The first line of a backup.
#[derive(Serialize, Deserialize)]
struct Head {
    schema: String,
    items: usize,
    /// CRC32C of keys and values, in their order.
    crc32c: u32,
}

/// Every other line.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    version: u64,
    value: String,
}

/// Writes the records of the leading meta.
pub fn backup(admin: &Admin, file: &Path, as_json: bool) -> Result<()> {
    let items = admin.backup()?;
    store_backup(file, &items)?;
    if as_json {
        return output::json("meta.backup", serde_json::json!({ "file": file, "records": items.len() }));
    }
    out!("{} records are in {}", items.len(), file.display());
    Ok(())
}

/// Puts a complete backup at `file`, or leaves the old file in place.
fn store_backup(file: &Path, items: &[StoredItem]) -> Result<(), UserError> {
    let fault = |e: std::io::Error| {
        UserError::new(codes::FILE_UNUSABLE, format!("{}: {e}", file.display()), "choose another path for the backup")
    };
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = Path::new(&name);
    let written = write_backup(part, items).and_then(|()| std::fs::rename(part, file));
    written.map_err(|e| {
        // A partial backup is useless, and takes space on a full disk.
        let _ = std::fs::remove_file(part);
        fault(e)
    })?;
    let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(fault)
}

fn checksum<'a>(items: impl Iterator<Item = (&'a str, &'a [u8])>) -> u32 {
    let mut all = Vec::new();
    items.for_each(|(key, value)| {
        all.extend_from_slice(key.as_bytes());
        all.push(0);
        all.extend_from_slice(value);
        all.push(0);
    });
    types::crc32c(&all)
}

fn write_backup(part: &Path, items: &[StoredItem]) -> std::io::Result<()> {
    // A leftover of an earlier run may be readable by others, or a link.
    match std::fs::remove_file(part) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)?;
    let mut file = std::io::BufWriter::new(file);
    let crc32c = checksum(items.iter().map(|i| (i.key.as_str(), i.value.as_slice())));
    let head = Head { schema: SCHEMA.to_owned(), items: items.len(), crc32c };
    serde_json::to_writer(&mut file, &head)?;
    for item in items {
        let value = String::from_utf8(item.value.clone()).map_err(std::io::Error::other)?;
        file.write_all(b"\n")?;
        serde_json::to_writer(&mut file, &Line { key: item.key.clone(), version: item.version, value })?;
    }
    file.write_all(b"\n")?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}

fn read_backup(path: &Path) -> Result<Vec<StoredItem>> {
    let bad = |why: String| {
        UserError::new(
            codes::BAD_BACKUP,
            format!("{} is not a complete backup of records: {why}", path.display()),
            "give a file that `basalt meta backup` wrote",
        )
    };
    let file = std::fs::File::open(path).map_err(|e| {
        UserError::new(
            codes::FILE_UNUSABLE,
            format!("{}: {e}", path.display()),
            "give a file that `basalt meta backup` wrote",
        )
    })?;
    let mut lines = BufReader::new(file).lines();
    let head = lines.next().transpose().context("reading the backup")?.unwrap_or_default();
    let head: Head = serde_json::from_str(&head).map_err(|e| bad(format!("its first line: {e}")))?;
    if head.schema != SCHEMA {
        return Err(bad(format!("its schema is {:?}, not {SCHEMA:?}", head.schema)).into());
    }
    let mut items = Vec::new();
    for (n, line) in lines.enumerate() {
        let line = line.context("reading the backup")?;
        let line: Line = serde_json::from_str(&line).map_err(|e| bad(format!("line {}: {e}", n + 2)))?;
        items.push(StoredItem { key: line.key, version: line.version, value: line.value.into_bytes() });
    }
    if items.len() != head.items {
        return Err(bad(format!("it has {} of {} records", items.len(), head.items)).into());
    }
    if checksum(items.iter().map(|i| (i.key.as_str(), i.value.as_slice()))) != head.crc32c {
        return Err(bad("its checksum does not match".to_owned()).into());
    }
    Ok(items)
}

/// Gives a file that root created for a meta of another user to the owner of its folder.
fn give_to_owner_of_folder(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Some(folder) = file.parent() else { return Ok(()) };
    let (wanted, is) = (std::fs::metadata(folder)?, std::fs::metadata(file)?);
    let foreign = (wanted.uid(), wanted.gid()) != (is.uid(), is.gid());
    // Only root may give files away.
    match foreign && is.uid() == 0 {
        true => std::os::unix::fs::chown(file, Some(wanted.uid()), Some(wanted.gid())),
        false => Ok(()),
    }
}

/// Puts a backup into a store.
pub fn restore(file: &Path, store: &StoreArgs, force: bool, as_json: bool) -> Result<()> {
    let items = read_backup(file)?;
    let runtime = crate::role::runtime()?;
    let config = open_store(store)?;
    let file = match &config {
        StoreConfig::Redb { path } => Some(path.clone()),
        StoreConfig::Etcd(_) | StoreConfig::Memory(_) => None,
    };
    let done = runtime.block_on(async {
        let mut store = config.open().await?;
        metastore::restore(store.as_mut(), items, force).await
    });
    if let (Some(path), Ok(_)) = (file, &done) {
        let given = give_to_owner_of_folder(&path);
        given.with_context(|| format!("giving {} to the owner of its folder", path.display()))?;
    }
    let done = done.map_err(|error| {
        let next = match &error {
            metastore::RestoreError::NotEmpty { .. } => "give an empty store, or --force: its records are lost then",
            metastore::RestoreError::InUse { .. } | metastore::RestoreError::Store(StoreError::Locked { .. }) => {
                "stop all metas of this store first"
            }
            _ => "see the message",
        };
        UserError::new(codes::STORE_FAILED, crate::errors::chain(&error), next)
    })?;
    if as_json {
        let body = serde_json::json!({ "records": done.written, "replaced": done.replaced });
        return output::json("meta.restore", body);
    }
    out!("{} records were written, {} were replaced", done.written, done.replaced);
    out!("start the metas; they change nothing before `basalt meta recover`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_comes_back_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("basalt-backup-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("meta.jsonl");
        let item = |key: &str, value: &str| StoredItem { key: key.into(), version: 3, value: value.into() };
        let items = vec![item("cluster", "{\"v\":1}"), item("pool/1", "\"\n\"")];
        write_backup(&path, &items).expect("written");
        assert_eq!(read_backup(&path).expect("whole"), items);
        let text = std::fs::read_to_string(&path).expect("text");
        let taken = dir.join("folder");
        std::fs::create_dir_all(&taken).expect("a folder");
        assert_eq!(store_backup(&taken, &items).expect_err("a folder is no file").code, 1006);
        assert!(!dir.join("folder.part").exists(), "a part of a backup is none");
        for broken in [text.replace("pool/1", "pool/2"), text[..text.len() - 10].to_owned(), String::new()] {
            std::fs::write(&path, broken).expect("written");
            let error = read_backup(&path).expect_err("it is broken").to_string();
            assert!(error.contains("is not a complete backup of records"), "{error}");
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
