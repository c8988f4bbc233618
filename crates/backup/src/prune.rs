//! Retention: which backups stay, and which objects are garbage then.
//!
//! Invariants:
//! - Records go first, and an object only when no record, draft or index names it. When one cannot be read, no object is deleted.
//! - No object is deleted while the draft of a backup begins with one that is not there. A backup writes its draft before it looks
//!   for the older one, so either the sweep sees the draft, or the backup sees that the older one has gone.
//! - Records are listed before and behind the drafts: an attempt that ends meanwhile is in one of the lists, and so is an older backup
//!   that another command deletes meanwhile.
//! - No object goes that is younger than an attempt that has not ended.

use crate::error::Error;
use crate::format::ObjectId;
use crate::record::Record;
use crate::repository::Repository;
use chrono::{DateTime, Datelike, Utc};
use std::collections::BTreeSet;

/// Returns the day, week or month of a moment.
type Period = fn(DateTime<Utc>) -> (i64, u32);

/// Backups of a volume that stay: each number counts for itself, and a backup stays when one of them keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The last ones.
    pub last: u32,
    /// The last one of each of so many days (UTC) with backups.
    pub daily: u32,
    /// The same of weeks, which begin on Monday.
    pub weekly: u32,
    /// The same of months.
    pub monthly: u32,
}

impl Retention {
    /// Whether nothing would stay.
    pub fn keeps_nothing(&self) -> bool {
        *self == Retention::default()
    }

    /// Returns the names of the backups of one volume that stay.
    pub fn keeps(&self, records: &[Record]) -> BTreeSet<String> {
        let mut newest_first: Vec<&Record> = records.iter().collect();
        // Numbers of snapshots rise also when the clock of the cluster goes back.
        newest_first.sort_by_key(|record| std::cmp::Reverse(record.subject.snapshot_id));
        let mut kept: BTreeSet<String> = newest_first.iter().take(self.last as usize).map(|r| r.id.clone()).collect();
        let by: [(u32, Period); 3] = [
            (self.daily, |t| (i64::from(t.year()), t.ordinal())),
            (self.weekly, |t| (i64::from(t.iso_week().year()), t.iso_week().week())),
            (self.monthly, |t| (i64::from(t.year()), t.month())),
        ];
        for (count, period) in by {
            let mut periods = BTreeSet::new();
            for record in &newest_first {
                let ms = i64::try_from(record.subject.created_ms).unwrap_or(i64::MAX);
                let period = period(DateTime::from_timestamp_millis(ms).unwrap_or_default());
                if (periods.len() as u32) < count && periods.insert(period) {
                    kept.insert(record.id.clone());
                }
            }
        }
        kept
    }
}

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Objects that were deleted, or would be.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Garbage that is too young to go: a backup that is being made may name it soon.
    pub young: u64,
    /// Backups that are being made, or were interrupted, and began with one that is not there: nothing was deleted because of them.
    pub blocked_by: Vec<String>,
}

/// Longest difference between the clock of the store and those of machines that make backups.
const CLOCKS_MS: u64 = 3_600_000;

fn whole(records: Vec<Result<Record, Error>>) -> Result<Vec<Record>, Error> {
    records.into_iter().collect()
}

/// Deletes the objects that no backup needs and that were written before `before_ms`. With `dry_run` it only counts.
/// `gone` are records that a dry run takes as deleted.
///
/// # Errors
/// `Store`, and `Damaged` when a record or an index cannot be read: then nothing is deleted.
pub async fn sweep(repository: &Repository, before_ms: u64, gone: &[Record], dry_run: bool) -> Result<Swept, Error> {
    // Listed first: an object that comes later is none of these.
    let objects = repository.objects().await?;
    let mut indexes: BTreeSet<ObjectId> = BTreeSet::new();
    let first = whole(repository.records(None).await?)?;
    let mut drafts = whole(repository.drafts(None).await?)?;
    let second = whole(repository.records(None).await?)?;
    // A draft beside the record of its backup is over.
    drafts.retain(|draft| !first.iter().any(|record| record.subject.is_same_snapshot(&draft.subject)));
    let stays = |record: &&Record| !gone.contains(record);
    let is_there = |draft: &&Record| {
        let is_parent =
            |record: &Record| Some(&record.id) == draft.parent.as_ref() && record.volume() == draft.volume();
        draft.parent.is_none() || first.iter().filter(stays).any(is_parent)
    };
    let orphans = drafts.iter().filter(|draft| !is_there(draft));
    let blocked_by: Vec<String> = orphans.map(|draft| format!("{} {}", draft.volume(), draft.id)).collect();
    if !blocked_by.is_empty() {
        return Ok(Swept { blocked_by, ..Swept::default() });
    }
    // An attempt that stands still has objects as old as itself that no draft names yet.
    let begun = drafts.iter().map(|draft| draft.begun_ms.saturating_sub(CLOCKS_MS)).min();
    let before_ms = before_ms.min(begun.unwrap_or(u64::MAX));
    for record in first.iter().chain(&second).filter(stays).chain(&drafts) {
        indexes.extend(record.segments.iter().flatten());
    }
    let mut needed = indexes.clone();
    for id in indexes {
        needed.extend(repository.index(Some(id)).await?.pieces());
    }
    let mut swept = Swept::default();
    for object in objects.into_iter().filter(|object| !needed.contains(&object.id)) {
        if object.written_ms >= before_ms {
            swept.young += 1;
            continue;
        }
        if !dry_run {
            repository.drop_object(object.id).await?;
        }
        swept.objects += 1;
        swept.bytes += object.len;
    }
    Ok(swept)
}
