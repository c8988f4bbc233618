//! `basalt backup`: backups of volumes in a directory or an S3 bucket.
//!
//! A backup is made of a snapshot. The one that the command makes stays until the next backup: then only what has
//! changed since is read. Its label names the repository, because each repository needs a snapshot of its own.

pub mod args;
mod create;
mod export;
mod import;
mod volume;

use crate::admin::Admin;
use crate::duration::{moment, now_ms};
use crate::errors::{Exit, UserError};
use crate::output::{json, remark, table};
use crate::size::show;
use anyhow::Result;
use args::{Backup, Prune, Restore};
use backup::{Progress, Record, Repository, Retention, Subject, Verified};
use clientthread::{Access, Cluster, Failure, Settings};
use control::admin::VolumeText;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use types::codes;
use volume::New;

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
        Backup::Create(args) => create::run(&admin()?, metas()?, args, as_json).map(|()| Exit::Done),
        Backup::Ls { volume, repo } => list(&repo.address()?, volume.as_deref(), as_json),
        Backup::Restore(args) => restore(&admin()?, metas()?, args, as_json).map(|()| Exit::Done),
        Backup::Verify { volume, id, repo } => verify(&repo.address()?, (volume.as_deref(), id.as_deref()), as_json),
        Backup::Prune(args) => prune(args, as_json).map(|()| Exit::Done),
        Backup::Export(args) => export::run(&admin()?, metas()?, args, as_json).map(|()| Exit::Done),
        Backup::Import(args) => import::run(&admin()?, metas()?, args, as_json).map(|()| Exit::Done),
    }
}

/// Returns the error for a user.
fn failed(error: backup::Error) -> anyhow::Error {
    use backup::Error::*;
    let code = match &error {
        Store { .. } | Address { .. } | NoRepository(_) => codes::BACKUP_STORE_FAILED,
        Newer(_) => codes::BACKUP_NEWER,
        Unknown(_) => codes::BACKUP_UNKNOWN,
        Damaged { .. } => codes::BACKUP_DAMAGED,
        Taken(_) => codes::BACKUP_TAKEN,
        GivenUp(_) => codes::BACKUP_GIVEN_UP,
        Stream { .. } => codes::STREAM_DAMAGED,
        Incomparable => codes::STREAM_INCOMPARABLE,
        File { .. } => codes::FILE_UNUSABLE,
        Lost => codes::BUG,
        Volume(_) => 0,
    };
    let what = crate::errors::chain(&error);
    match error {
        Volume(failure) => match failure.downcast::<Failure>() {
            Ok(failure) => refused(*failure),
            Err(other) => UserError::new(codes::REQUESTS_NOT_ANSWERED, other.to_string(), "basalt status").into(),
        },
        _ => UserError::new(code, what, codes::lookup(code).map_or("", |row| row.fix)).into(),
    }
}

/// Returns a failure of a volume as the error for a user.
fn refused(failure: Failure) -> anyhow::Error {
    UserError::new(failure.code, failure.what, failure.hint).into()
}

/// Returns the error for a volume whose restore or import has not ended.
fn incomplete(name: &str) -> UserError {
    let what = format!("{name} has only a part of its contents: a restore or an import has not ended");
    let next = format!("basalt volume set {name} --remove-label {RESTORING}   # if it is to be saved as it is");
    UserError::new(codes::VOLUME_BUSY, what, next)
}

/// Returns description and labels for a volume that is complete: its mark goes, and leaves its place to a label.
fn text_of(subject: &Subject) -> VolumeText {
    let mut labels = subject.labels.clone();
    labels.remove(RESTORING);
    let description = Some(subject.description.clone());
    VolumeText { description, labels, removed_labels: vec![RESTORING.to_owned()], ..VolumeText::default() }
}

fn connect(metas: Vec<String>) -> Result<Cluster> {
    Cluster::connect(Settings { kind: "backup".to_owned(), ..Settings::new(metas) }).map_err(refused)
}

/// A repository, and a runtime to use it.
struct Opened {
    repository: Repository,
    runtime: Runtime,
}

impl Opened {
    /// Opens a repository. With `create` it is made, if it is none.
    fn new(address: &str, create: bool) -> Result<Opened> {
        let (repository, runtime) = (Repository::open(address, create).map_err(failed)?, crate::role::runtime()?);
        let checked = runtime.block_on(repository.check());
        if create && matches!(checked, Err(backup::Error::NoRepository(_))) {
            // A directory that is not mounted looks like this, too.
            remark(&format!("{address} held no backups: a new repository is made there"));
            runtime.block_on(repository.begin()).map_err(failed)?;
        } else {
            checked.map_err(failed)?;
        }
        Ok(Opened { repository, runtime })
    }

    /// Returns the records that can be read, by volume and time. The others are told.
    fn records(&self, volume: Option<&str>) -> Result<Vec<Record>> {
        let all = self.runtime.block_on(self.repository.records(volume)).map_err(failed)?;
        let mut records: Vec<Record> =
            all.into_iter().filter_map(|record| record.map_err(|error| remark(&error.to_string())).ok()).collect();
        records.sort_by_key(|record| (record.volume(), record.subject.created_ms, record.subject.snapshot_id));
        Ok(records)
    }

    /// Returns a backup of a volume, by default the last one. A volume that was itself being restored then has no backup by default.
    fn record(&self, volume: &str, id: Option<&str>) -> Result<Record> {
        let all = self.runtime.block_on(self.repository.records(Some(volume))).map_err(failed)?;
        let mut records = Vec::new();
        for record in all {
            match record {
                Ok(record) => records.push(record),
                // It may be the last one: an older backup is no answer to a request for the last.
                Err(error) if id.is_none() => {
                    let next = "name one that is whole with --id; basalt backup ls shows them";
                    return Err(UserError::new(codes::BACKUP_DAMAGED, error.to_string(), next).into());
                }
                Err(_) => {}
            }
        }
        match id {
            Some(id) => records.retain(|record| record.id == id),
            None => records.retain(|record| !record.subject.labels.contains_key(RESTORING)),
        }
        let name = id.map_or_else(|| format!("of {volume}"), |id| format!("{id} of {volume}"));
        // Within one volume numbers of snapshots rise, also when the clock of the cluster goes back.
        let last_life = records
            .iter()
            .max_by_key(|record| record.subject.created_ms)
            .map(|record| (record.subject.cluster.clone(), record.subject.volume_id));
        records.retain(|r| last_life.as_ref() == Some(&(r.subject.cluster.clone(), r.subject.volume_id)));
        records.sort_by_key(|record| record.subject.snapshot_id);
        records.pop().ok_or_else(|| failed(backup::Error::Unknown(name)))
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
    let records = Opened::new(address, false)?.records(volume)?;
    if as_json {
        json("backup.ls", json!({ "backups": records.iter().map(view).collect::<Vec<_>>() }))?;
        return Ok(Exit::Done);
    }
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

fn restore(admin: &Admin, metas: Vec<String>, args: &Restore, as_json: bool) -> Result<()> {
    check_volume(&args.volume)?;
    let opened = Opened::new(&args.repo.address()?, false)?;
    let record = opened.record(&args.volume, args.id.as_deref())?;
    let subject = &record.subject;
    // The mark alone: the labels of the volume may be as many as one can have.
    let labels = BTreeMap::from([(RESTORING.to_owned(), record.id.clone())]);
    let text = VolumeText { labels, ..VolumeText::default() };
    admin.create_volume(&args.new, subject.len_bytes, subject.stripe.unwrap_or_default(), text)?;
    let filled = fill(&opened, metas, args, &record, as_json);
    if let Err(error) = filled {
        remark(&format!(
            "{0} has a part of the contents: basalt volume rm {0} --now --snapshots, then again",
            args.new
        ));
        return Err(error);
    }
    let volume = admin.set_volume(&args.new, text_of(subject))?;
    if as_json {
        return json("backup.restore", json!({ "backup": view(&record), "volume": volume }));
    }
    out!("volume {} has the contents of {} at {}", args.new, record.volume(), moment(subject.created_ms));
    Ok(())
}

fn fill(opened: &Opened, metas: Vec<String>, args: &Restore, record: &Record, as_json: bool) -> Result<()> {
    let cluster = connect(metas)?;
    let target = Arc::new(New(cluster.open(&args.new, Access::Write).map_err(refused)?));
    let bar = bar(record.subject.len_bytes, as_json);
    let tell = advance(&bar, "written");
    let restored = opened.runtime.block_on(backup::restore(&opened.repository, record, target.clone(), &tell));
    bar.finish_and_clear();
    restored.map_err(failed)?;
    target.0.close().map_err(refused)
}

fn verify(address: &str, (volume, id): (Option<&str>, Option<&str>), as_json: bool) -> Result<Exit> {
    let opened = Opened::new(address, false)?;
    let all = opened.runtime.block_on(opened.repository.records(volume)).map_err(failed)?;
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    for record in all {
        match record {
            Ok(record) if id.is_none_or(|id| record.id == id) => records.push(record),
            Ok(_) => {}
            Err(error) => unreadable.push(error.to_string()),
        }
    }
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

fn prune(args: &Prune, as_json: bool) -> Result<()> {
    let retention = Retention {
        last: args.keep_last,
        daily: args.keep_daily,
        weekly: args.keep_weekly,
        monthly: args.keep_monthly,
    };
    if retention.keeps_nothing() {
        let (what, next) =
            ("no rule keeps a backup", "give --keep-last, --keep-daily, --keep-weekly or --keep-monthly");
        return Err(UserError::new(codes::BAD_USAGE, what, next).into());
    }
    check_volume(&args.volume)?;
    let opened = Opened::new(&args.repo.address()?, false)?;
    let records = opened.records(Some(&args.volume))?;
    // A volume that was made again under the same name has backups of its own.
    let mut of: BTreeMap<(String, u64), Vec<Record>> = BTreeMap::new();
    for record in &records {
        of.entry((record.subject.cluster.clone(), record.subject.volume_id)).or_default().push(record.clone());
    }
    let kept: BTreeSet<String> = of.values().flat_map(|records| retention.keeps(records)).collect();
    let drafts = opened.runtime.block_on(opened.repository.drafts(Some(&args.volume))).map_err(failed)?;
    let drafts: Vec<Record> = drafts.into_iter().flatten().collect();
    // A backup that is being made needs the one that it began with.
    let is_parent = |record: &Record| {
        !args.drop_drafts && drafts.iter().any(|draft| draft.parent.as_deref() == Some(record.id.as_str()))
    };
    let gone: Vec<Record> =
        records.into_iter().filter(|record| !kept.contains(&record.id) && !is_parent(record)).collect();
    let swept = opened.runtime.block_on(async {
        for draft in drafts.iter().filter(|_| args.drop_drafts) {
            opened.repository.drop_draft(draft).await?;
        }
        if !args.dry_run {
            for record in &gone {
                opened.repository.drop_record(record).await?;
            }
        }
        backup::sweep(&opened.repository, before(args.grace), &gone, args.dry_run).await
    });
    let swept = swept.map_err(failed)?;
    if as_json {
        let ids: Vec<&str> = gone.iter().map(|record| record.id.as_str()).collect();
        let body = json!({
            "removed": ids, "kept": kept, "objects": swept.objects, "bytes": swept.bytes, "young": swept.young,
            "blocked_by": swept.blocked_by, "dry_run": args.dry_run,
        });
        return json("backup.prune", body);
    }
    let (would, are) = if args.dry_run { ("would go", "would be") } else { ("are deleted", "is") };
    gone.iter().for_each(|record| out!("{} of {}", record.id, moment(record.subject.created_ms)));
    out!("{} backups {would}, {} stay; {} of data {are} freed", gone.len(), kept.len(), show(swept.bytes));
    for draft in &swept.blocked_by {
        out!(
            "no data is deleted: {draft} is not complete, and the backup that it began with is deleted; end it, or give --drop-drafts"
        );
    }
    if swept.young > 0 {
        out!("{} objects without a backup are younger than --grace and stay", swept.young);
    }
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

fn before(grace: Duration) -> u64 {
    now_ms().saturating_sub(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX))
}
