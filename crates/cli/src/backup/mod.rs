//! `basalt backup`: backups of volumes in a directory or an S3 bucket.
//!
//! A backup is made of a snapshot. The one that the command makes stays until the next backup: then only what has
//! changed since is read. Its label names the repository, because each repository needs a snapshot of its own.

pub mod args;
mod create;
mod export;
mod filling;
mod import;
mod prune;
mod restore;
mod steps;
pub mod volume;

use crate::admin::Admin;
use crate::duration::moment;
use crate::errors::{Exit, UserError};
use crate::output::{json, remark, table};
use crate::size::show;
use anyhow::Result;
use args::Backup;
use backup::{Progress, Record, Repository, Subject, Verified};
use clientthread::{Cluster, Failure, Settings};
use control::admin::{SnapshotView, VolumeText};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::runtime::Runtime;
use types::codes;
use types::qos::QosChange;

/// Label of a volume whose restore or import has not ended.
const RESTORING: &str = "restoring";

/// Runs `basalt backup ...`. `admin` and `metas` are asked for where a cluster is needed.
pub fn run(
    command: &Backup,
    admin: impl FnOnce() -> Result<Admin>,
    metas: impl FnOnce() -> Result<Vec<String>>,
    as_json: bool,
) -> Result<Exit> {
    match command {
        Backup::Create(args) => create::run(&admin()?, metas()?, args, as_json),
        Backup::Ls { volume, repo } => list(&repo.address()?, volume.as_deref(), as_json),
        Backup::Restore(args) => restore::run(&admin()?, metas()?, args, as_json),
        Backup::Verify { volume, id, repo } => verify(&repo.address()?, (volume.as_deref(), id.as_deref()), as_json),
        Backup::Prune(args) => prune::run(args, as_json),
        Backup::Export(args) => export::run(&admin()?, metas()?, args, as_json).map(|()| Exit::Done),
        Backup::Import(args) => import::run(&admin()?, metas()?, args, as_json),
    }
}

/// Returns the error for a user.
fn failed(error: backup::Error) -> anyhow::Error {
    use backup::Error::*;
    let code = match &error {
        Store { .. } | Address { .. } | NoRepository(_) => codes::BACKUP_STORE_FAILED,
        Newer(_) => codes::BACKUP_NEWER,
        Unknown(_) => codes::BACKUP_UNKNOWN,
        Damaged { .. } | Marker { .. } => codes::BACKUP_DAMAGED,
        Taken(_) => codes::BACKUP_TAKEN,
        GivenUp(_) => codes::BACKUP_GIVEN_UP,
        Stream { .. } => codes::STREAM_DAMAGED,
        Incomparable => codes::STREAM_INCOMPARABLE,
        File { .. } => codes::FILE_UNUSABLE,
        Compress(_) | Lost => codes::BUG,
        Volume(_) => 0,
    };
    let what = crate::errors::chain(&error);
    match error {
        Volume(failure) => match failure.downcast::<Failure>() {
            Ok(failure) => refused(*failure),
            Err(other) => UserError::new(codes::REQUESTS_NOT_ANSWERED, other.to_string(), "basalt status").into(),
        },
        Marker { .. } => {
            let next =
                "basalt backup create into this place writes the file again; ls, verify and restore work without it";
            UserError::new(code, what, next).into()
        }
        _ => UserError::new(code, what, codes::lookup(code).map_or("", |row| row.fix)).into(),
    }
}

/// Returns a failure of a volume as the error for a user.
pub fn refused(failure: Failure) -> anyhow::Error {
    UserError::new(failure.code, failure.what, failure.hint).into()
}

/// Returns the error for a volume whose restore or import has not ended.
fn incomplete(name: &str) -> UserError {
    let what = format!("{name} has only a part of its contents: a restore or an import has not ended");
    let next = format!("basalt volume set {name} --remove-label {RESTORING}   # if it is to be saved as it is");
    UserError::new(codes::VOLUME_BUSY, what, next)
}

/// Returns the settings of a volume that is complete: its mark goes, and leaves its place to a label.
fn text_of(subject: &Subject) -> VolumeText {
    let mut labels = subject.labels.clone();
    labels.remove(RESTORING);
    let description = Some(subject.description.clone());
    let (limits, when_full) = (QosChange::to(subject.limits.as_ref()), Some(subject.when_full));
    let removed_labels = vec![RESTORING.to_owned()];
    VolumeText { description, labels, removed_labels, limits, when_full, multi_writer: None }
}

/// Returns a snapshot that can be read.
pub fn ready(admin: &Admin, name: &str) -> Result<SnapshotView> {
    // By name there is one; a list may show another of this name that is being deleted.
    let snapshot = crate::snapshots::info(admin, name)?;
    if snapshot.labels.contains_key(RESTORING) {
        let what =
            format!("snapshot {name} has only a part of the contents: a restore or an import made it to go on from");
        return Err(UserError::new(codes::VOLUME_BUSY, what, "name another one: basalt snapshot ls").into());
    }
    if snapshot.state == "ready" {
        return Ok(snapshot);
    }
    let what = format!("snapshot {name} is {}", snapshot.state);
    Err(UserError::new(codes::VOLUME_BUSY, what, "basalt snapshot ls shows when it is ready").into())
}

/// Checks that a snapshot that was opened by its name is still the one that has it.
fn must_be(admin: &Admin, opened: &SnapshotView) -> Result<()> {
    let found = crate::snapshots::info(admin, &opened.name)?;
    if (found.volume, found.snapshot) == (opened.volume, opened.snapshot) {
        return Ok(());
    }
    let what = format!("{} was deleted, and another snapshot has its name", opened.name);
    Err(UserError::new(codes::VOLUME_BUSY, what, "the same command again, if that one is to be saved").into())
}

/// Returns the volumes of which a repository has backups, if it answers within `max`. Without `repo` it is the one of the environment.
pub fn saved(repo: Option<String>, max: Duration) -> Vec<String> {
    let volumes: BTreeSet<String> = listed(repo, None, max).iter().map(Record::volume).collect();
    volumes.into_iter().collect()
}

/// Returns the ids of the backups of a volume in the same way.
pub fn ids(repo: Option<String>, volume: &str, max: Duration) -> Vec<String> {
    listed(repo, Some(volume), max).into_iter().map(|record| record.id).collect()
}

fn listed(repo: Option<String>, volume: Option<&str>, max: Duration) -> Vec<Record> {
    let listed = || {
        let repository = Repository::open(&args::Repo { repo }.address().ok()?, false).ok()?;
        let runtime = crate::role::runtime().ok()?;
        let records = runtime.block_on(async { tokio::time::timeout(max, repository.records(volume)).await });
        // A read that hangs is not awaited.
        runtime.shutdown_background();
        records.ok()?.ok()
    };
    listed().unwrap_or_default().into_iter().flatten().collect()
}

fn connect(metas: Vec<String>) -> Result<Cluster> {
    Cluster::connect(Settings { kind: "backup".to_owned(), ..Settings::new(metas) }).map_err(refused)
}

/// A repository, and a runtime to use it.
struct Opened {
    repository: Repository,
    runtime: Runtime,
    /// The reason why its marker cannot be used.
    fault: Option<String>,
}

/// The records that can be read, by volume and time, and the reasons why others cannot.
struct Found {
    records: Vec<Record>,
    unreadable: Vec<String>,
}

impl Opened {
    fn new(address: &str, create: bool) -> Result<(Opened, std::result::Result<(), backup::Error>)> {
        let (repository, runtime) = (Repository::open(address, create).map_err(failed)?, crate::role::runtime()?);
        let checked = runtime.block_on(repository.check());
        Ok((Opened { repository, runtime, fault: None }, checked))
    }

    /// Opens a repository. It is made, if it is none.
    fn to_add(address: &str) -> Result<Opened> {
        let (opened, checked) = Opened::new(address, true)?;
        match checked {
            // A directory that is not mounted looks like this, too.
            Err(backup::Error::NoRepository(_)) => {
                remark(&format!("{address} held no backups: a new repository is made there"));
            }
            Err(error @ backup::Error::Marker { .. }) => {
                let what = "the file is written again; snapshots backup-… of earlier backups stay: basalt snapshot ls";
                remark(&format!("{error}: {what}"));
            }
            other => return other.map(|()| opened).map_err(failed),
        }
        opened.runtime.block_on(opened.repository.begin()).map_err(failed)?;
        Ok(opened)
    }

    /// Opens a repository to read backups, which do not need its marker.
    fn to_read(address: &str) -> Result<Opened> {
        let (opened, checked) = Opened::new(address, false)?;
        match checked {
            Err(error @ backup::Error::Marker { .. }) => Ok(Opened { fault: Some(error.to_string()), ..opened }),
            other => other.map(|()| opened).map_err(failed),
        }
    }

    /// Opens a repository to delete backups.
    fn to_delete(address: &str) -> Result<Opened> {
        let (opened, checked) = Opened::new(address, false)?;
        checked.map(|()| opened).map_err(failed)
    }

    fn records(&self, volume: Option<&str>) -> Result<Found> {
        let all = self.runtime.block_on(self.repository.records(volume)).map_err(failed)?;
        let mut found = Found { records: Vec::new(), unreadable: self.fault.iter().cloned().collect() };
        for record in all {
            match record {
                Ok(record) => found.records.push(record),
                Err(error) => found.unreadable.push(error.to_string()),
            }
        }
        found.records.sort_by_key(|record| (record.volume(), record.subject.created_ms, record.subject.snapshot_id));
        Ok(found)
    }

    /// Runs work until it ends or SIGINT comes; `None`: that came first.
    fn until_interrupted<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>> {
        Ok(steps::until(&self.runtime, &mut steps::interrupts(&self.runtime)?, work))
    }

    /// Returns a backup of a volume, by default the last one. A volume that was itself being restored then has no backup by default.
    fn record(&self, volume: &str, id: Option<&str>) -> Result<Record> {
        if let Some(id) = id {
            return self.runtime.block_on(self.repository.record(volume, id)).map_err(failed);
        }
        let Found { mut records, unreadable } = self.records(Some(volume))?;
        // It may be the last one: an older backup is no answer to a request for the last.
        if let Some(what) = unreadable.into_iter().find(|what| Some(what) != self.fault.as_ref()) {
            let next = "name one that is whole with --id; basalt backup ls shows them";
            return Err(UserError::new(codes::BACKUP_DAMAGED, what, next).into());
        }
        records.retain(|record| !record.subject.labels.contains_key(RESTORING));
        // Within one volume numbers of snapshots rise, also when the clock of the cluster goes back.
        let last_life = records
            .iter()
            .max_by_key(|record| record.subject.created_ms)
            .map(|record| (record.subject.cluster.clone(), record.subject.volume_id));
        records.retain(|r| last_life.as_ref() == Some(&(r.subject.cluster.clone(), r.subject.volume_id)));
        records.sort_by_key(|record| record.subject.snapshot_id);
        records.pop().ok_or_else(|| failed(backup::Error::Unknown(format!("of {volume}"))))
    }
}

/// A bar for the bytes of a volume.
fn bar(len_bytes: u64, as_json: bool) -> ProgressBar {
    if as_json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left");
    ProgressBar::new(len_bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn advance(bar: &ProgressBar, word: &'static str) -> impl Fn(Progress) + Sync {
    let bar = bar.clone();
    move |progress: Progress| {
        bar.set_position(progress.done_bytes);
        bar.set_message(format!("{} {word}", show(progress.moved_bytes)));
    }
}

fn list(address: &str, volume: Option<&str>, as_json: bool) -> Result<Exit> {
    let Found { records, unreadable } = Opened::to_read(address)?.records(volume)?;
    if as_json {
        let backups: Vec<Value> = records.iter().map(view).collect();
        json("backup.ls", json!({ "backups": backups, "unreadable": unreadable }))?;
        return Ok(Exit::Done);
    }
    unreadable.iter().for_each(|what| remark(what));
    table(&["backup", "volume", "taken", "size", "data", "read", "written"], records.iter().map(row));
    Ok(Exit::Done)
}

fn row(record: &Record) -> Vec<String> {
    let bytes = [record.subject.len_bytes, record.data_bytes, record.read_bytes, record.written_bytes].map(show);
    let mut row = vec![record.id.clone(), record.volume(), moment(record.subject.created_ms)];
    row.extend(bytes);
    row
}

/// A record without the indexes of its segments.
fn view(record: &Record) -> Value {
    let subject = &record.subject;
    json!({
        "id": record.id,
        "name": record.volume(),
        "cluster": subject.cluster,
        "volume": subject.volume_id,
        "snapshot": subject.snapshot_id,
        "created_ms": subject.created_ms,
        "len_bytes": subject.len_bytes,
        "parent": record.parent,
        "data_bytes": record.data_bytes,
        "read_bytes": record.read_bytes,
        "written_bytes": record.written_bytes,
    })
}

fn verify(address: &str, (volume, id): (Option<&str>, Option<&str>), as_json: bool) -> Result<Exit> {
    let opened = Opened::to_read(address)?;
    let Found { mut records, unreadable } = opened.records(volume)?;
    records.retain(|record| id.is_none_or(|id| record.id == id));
    if records.is_empty() && unreadable.is_empty() {
        let name = id.or(volume).unwrap_or("in this repository").to_owned();
        return Err(failed(backup::Error::Unknown(name)));
    }
    let verified = opened.runtime.block_on(backup::verify(&opened.repository, &records)).map_err(failed)?;
    report(&verified, &unreadable, as_json)?;
    Ok(if verified.faults.is_empty() && unreadable.is_empty() { Exit::Done } else { Exit::Degraded })
}

fn report(verified: &Verified, unreadable: &[String], as_json: bool) -> Result<()> {
    let Verified { backups, objects, bytes, faults } = verified;
    if as_json {
        let fault = |f: &backup::Fault| json!({ "object": f.object, "reason": f.reason, "backups": f.backups });
        let body = json!({
            "backups": backups,
            "objects": objects,
            "bytes": bytes,
            "faults": faults.iter().map(fault).collect::<Vec<_>>(),
            "unreadable": unreadable,
        });
        return json("backup.verify", body);
    }
    for fault in faults {
        let backups: Vec<&str> = fault.backups.iter().map(String::as_str).collect();
        out!(
            "{}: object {}: {}; it breaks {}",
            codes::label(codes::BACKUP_DAMAGED),
            fault.object,
            fault.reason,
            backups.join(", ")
        );
    }
    unreadable.iter().for_each(|error| out!("{}: {error}", codes::label(codes::BACKUP_DAMAGED)));
    out!("{backups} backups, {objects} objects, {} of data: {} faults", show(*bytes), faults.len() + unreadable.len());
    Ok(())
}

/// Checks the name of a volume that need not exist any more.
fn check_volume(name: &str) -> Result<()> {
    let is_name = name
        .split_once('/')
        .is_some_and(|(pool, volume)| !pool.is_empty() && !volume.is_empty() && !volume.contains('/'));
    let refused = || UserError::new(codes::BAD_USAGE, format!("{name:?} is no volume"), "name it as POOL/VOLUME");
    if is_name { Ok(()) } else { Err(refused().into()) }
}
