//! `basalt backup create`.

use super::args::Create;
use super::volume::Saved;
use super::{Found, Opened, RESTORING, advance, bar, connect, failed, must_be, refused, view};
use crate::admin::Admin;
use crate::duration::{moment, now_ms};
use crate::errors::{Exit, chain};
use crate::output::{json, remark};
use crate::size::show;
use anyhow::{Context, Result};
use backup::{Record, Subject};
use clientthread::Access;
use control::admin::{SnapshotView, VolumeText, VolumeView};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::Compression;

/// Label of a snapshot that a backup made, with the repository.
const LABEL: &str = "backup";
/// Begin of its name.
const PREFIX: &str = "backup-";

/// A volume with its snapshots.
pub struct Of {
    cluster: String,
    pub volume: VolumeView,
    /// Compression that its pool has for backups.
    pub compression: Compression,
    snapshots: Vec<SnapshotView>,
}

impl Of {
    pub fn ask(admin: &Admin, name: &str) -> Result<Of> {
        let volume = admin.volume_info(name)?;
        let snapshots = admin.snapshots(&volume.name)?;
        let pool = volume.name.split('/').next().unwrap_or_default();
        let compression = admin.pool(pool)?.map_or_else(Compression::default, |pool| pool.backup_compression);
        Ok(Of { cluster: admin.status()?.cluster.to_string(), volume, compression, snapshots })
    }

    pub fn subject(&self, snapshot: &SnapshotView) -> Subject {
        let (pool, volume) = self.volume.name.split_once('/').unwrap_or(("", &self.volume.name));
        Subject {
            cluster: self.cluster.clone(),
            pool: pool.to_owned(),
            volume: volume.to_owned(),
            volume_id: self.volume.volume.0,
            snapshot: snapshot.name.rsplit('@').next().unwrap_or("").to_owned(),
            snapshot_id: snapshot.snapshot.0,
            created_ms: snapshot.created_ms,
            len_bytes: snapshot.len_bytes,
            stripe: self.volume.stripe,
            description: self.volume.description.clone(),
            labels: self.volume.labels.clone(),
            limits: (self.volume.limits_of == "volume").then_some(self.volume.limits),
            when_full: self.volume.when_full,
        }
    }

    /// Returns the snapshot of a backup, if it is still there.
    fn snapshot_of(&self, record: &Record) -> Option<&SnapshotView> {
        let is_of = record.subject.cluster == self.cluster && record.subject.volume_id == self.volume.volume.0;
        let is_it = |s: &&SnapshotView| {
            s.snapshot.0 == record.subject.snapshot_id
                && s.created_ms == record.subject.created_ms
                && s.state == "ready"
        };
        self.snapshots.iter().find(is_it).filter(|_| is_of)
    }
}

pub fn run(admin: &Admin, metas: Vec<String>, args: &Create, as_json: bool) -> Result<Exit> {
    let address = args.repo.address()?;
    let (name, given) = args.name.split_once('@').map_or((&*args.name, None), |(name, _)| (name, Some(&*args.name)));
    let of = Of::ask(admin, name)?;
    if of.volume.labels.contains_key(RESTORING) {
        return Err(super::incomplete(name).into());
    }
    let given = given.map(|name| super::ready(admin, name)).transpose()?;
    // A name that is wrong leaves no new repository behind.
    let opened = Opened::to_add(&address)?;
    let repository = opened.runtime.block_on(opened.repository.id()).map_err(failed)?;
    let making = Making { admin, metas, opened, repository, args, as_json };
    let is_own = given.is_none();
    if is_own
        && !args.full
        && let Some(snapshot) = making.begun(&of)?
    {
        remark(&format!("going on with the backup of {}", moment(snapshot.created_ms)));
        let Some((record, _)) = making.run(&of, &snapshot, false)? else { return Ok(Exit::Interrupted) };
        match as_json {
            true => remark(&format!("backup {} of {} is complete", record.id, record.volume())),
            false => told(&record, false, false)?,
        }
    }
    let (of, snapshot) = match given {
        Some(snapshot) => (of, snapshot),
        None => making.present(name)?,
    };
    let Some((record, is_old)) = making.run(&of, &snapshot, is_own)? else { return Ok(Exit::Interrupted) };
    told(&record, is_old, as_json)?;
    Ok(Exit::Done)
}

/// Makes backups of one volume in one repository.
struct Making<'a> {
    admin: &'a Admin,
    metas: Vec<String>,
    opened: Opened,
    /// Id of the repository.
    repository: String,
    args: &'a Create,
    as_json: bool,
}

impl Making<'_> {
    /// Saves a snapshot; `is_new` says that this command has made it. Returns the record, and whether that was there already; `None`: SIGINT
    /// came before the end.
    fn run(&self, of: &Of, snapshot: &SnapshotView, is_new: bool) -> Result<Option<(Record, bool)>> {
        let Found { records, unreadable } = self.opened.records(Some(&of.volume.name))?;
        unreadable.iter().for_each(|what| remark(what));
        let saved = self.save(of, snapshot, records);
        match &saved {
            Ok(Some((_, false))) => drop_older(self.admin, of, snapshot, &self.opened, &self.repository),
            Ok(Some((_, true))) => {}
            _ if is_new && !is_begun(&self.opened, &of.subject(snapshot)) => {
                // Nothing goes on with it: a repository that is full from the first write on would get one more each time.
                drop_one(self.admin, snapshot, "of a backup that did not begin");
            }
            _ => remark("the backup is not complete: its draft stays, and the same command goes on with it"),
        }
        saved
    }

    fn save(&self, of: &Of, snapshot: &SnapshotView, records: Vec<Record>) -> Result<Option<(Record, bool)>> {
        let subject = of.subject(snapshot);
        if let Some(record) = records.iter().find(|record| record.subject.is_same_snapshot(&subject)) {
            return Ok(Some((record.clone(), true)));
        }
        // The last backup whose snapshot is still there, and older than this one.
        let base = records
            .into_iter()
            .rev()
            .filter(|_| !self.args.full)
            .find(|record| record.subject.snapshot_id < subject.snapshot_id && of.snapshot_of(record).is_some());
        let cluster = connect(self.metas.clone())?;
        let volume = cluster.open(&snapshot.name, Access::Read).map_err(refused)?;
        must_be(self.admin, snapshot)?;
        let since = base.as_ref().and_then(|base| of.snapshot_of(base)).map(|snapshot| snapshot.snapshot);
        let bar = bar(subject.len_bytes, self.as_json);
        let source = Arc::new(Saved { volume, since });
        let create = backup::Create {
            repository: self.opened.repository.clone(),
            source: source.clone(),
            subject,
            base,
            compression: self.args.compress.unwrap_or(of.compression),
            begun_ms: now_ms(),
            salt: uuid::Uuid::new_v4().as_u64_pair().0,
            draft_bytes: backup::DRAFT_BYTES,
        };
        let made = self.opened.until_interrupted(create.run(&advance(&bar, "read")))?;
        bar.finish_and_clear();
        if made.is_none() {
            // Reads that are in flight end with it. The backup is not complete, whatever the close says.
            let _ = source.volume.close();
        }
        Ok(made.transpose().map_err(failed)?.map(|record| (record, false)))
    }

    /// Returns the snapshot of a backup that was interrupted.
    fn begun(&self, of: &Of) -> Result<Option<SnapshotView>> {
        let Found { records, .. } = self.opened.records(Some(&of.volume.name))?;
        let drafts = self.opened.repository.drafts(Some(&of.volume.name));
        let drafts = self.opened.runtime.block_on(drafts).map_err(failed)?;
        let is_own = |s: &&SnapshotView| s.labels.get(LABEL).is_some_and(|label| *label == self.repository);
        // A draft that stayed beside its record is over.
        let is_open = |draft: &&Record| records.iter().all(|record| !record.subject.is_same_snapshot(&draft.subject));
        let open = drafts.iter().flatten().filter(is_open);
        Ok(open.filter_map(|draft| of.snapshot_of(draft)).filter(is_own).max_by_key(|s| s.snapshot).cloned())
    }

    /// Makes a snapshot of the volume as it is now.
    fn present(&self, name: &str) -> Result<(Of, SnapshotView)> {
        let compact: String = moment(now_ms()).chars().filter(char::is_ascii_digit).take(17).collect();
        let labels = BTreeMap::from([(LABEL.to_owned(), self.repository.clone())]);
        let names = [format!("{name}@{PREFIX}{compact}")];
        let made = self.admin.create_snapshots(&names, VolumeText { labels, ..VolumeText::default() })?;
        let made = made.into_iter().next().context("the metadata server names the snapshot that it made")?;
        // A command that fills the volume marks it before its first write.
        let of = Of::ask(self.admin, name)?;
        if of.volume.labels.contains_key(RESTORING) {
            drop_one(self.admin, &made, "of a volume that is being filled");
            return Err(super::incomplete(name).into());
        }
        Ok((of, made))
    }
}

/// Deletes the snapshots of older backups in this repository: the next one compares with the present one. A failure costs
/// space, and no backup.
fn drop_older(admin: &Admin, of: &Of, present: &SnapshotView, opened: &Opened, repository: &str) {
    // Another attempt may read one of them.
    let Ok(drafts) = opened.runtime.block_on(opened.repository.drafts(Some(&of.volume.name))) else { return };
    // The id of a backup ends with the number of its snapshot.
    let of_parent = |draft: &Record| draft.parent.as_deref()?.rsplit('-').next()?.parse::<u64>().ok();
    let needed: Vec<u64> = drafts
        .iter()
        .flatten()
        .flat_map(|draft| [Some(draft.subject.snapshot_id), of_parent(draft)])
        .flatten()
        .collect();
    // One that an administrator has given another name stays.
    let is_own = |s: &SnapshotView| {
        s.labels.get(LABEL).is_some_and(|label| label == repository) && s.name.contains(&format!("@{PREFIX}"))
    };
    let is_older = |s: &&SnapshotView| s.snapshot < present.snapshot && is_own(s) && is_own(present);
    for snapshot in of
        .snapshots
        .iter()
        .filter(is_older)
        .filter(|s| !s.protected && s.clones == 0 && !needed.contains(&s.snapshot.0))
    {
        drop_one(admin, snapshot, "of an older backup");
    }
}

/// Whether another attempt can go on with the backup of a snapshot. What cannot be told counts as yes.
fn is_begun(opened: &Opened, subject: &Subject) -> bool {
    let volume = format!("{}/{}", subject.pool, subject.volume);
    let found = opened.runtime.block_on(async {
        let mut found = opened.repository.drafts(Some(&volume)).await?;
        found.extend(opened.repository.records(Some(&volume)).await?);
        Ok::<_, backup::Error>(found)
    });
    let is_of = |record: &Result<Record, _>| record.as_ref().map_or(true, |r| r.subject.is_same_snapshot(subject));
    found.map_or(true, |found| found.iter().any(is_of))
}

fn drop_one(admin: &Admin, snapshot: &SnapshotView, which: &str) {
    if let Err(error) = admin.remove_snapshot(&snapshot.name, false) {
        remark(&format!("snapshot {} {which} stays: {}", snapshot.name, chain(&*error)));
    }
}

fn told(record: &Record, is_old: bool, as_json: bool) -> Result<()> {
    if as_json {
        return json("backup.create", view(record));
    }
    let name = format!("backup {} of {}", record.id, record.volume());
    if is_old {
        out!("{name} is there already");
        return Ok(());
    }
    let [data, read, written] = [record.data_bytes, record.read_bytes, record.written_bytes].map(show);
    match &record.parent {
        Some(parent) => out!("{name}: {data} of data; {read} read since {parent}, {written} written"),
        None => out!("{name}: {data} of data; {read} read, {written} written"),
    }
    Ok(())
}
