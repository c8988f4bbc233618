//! Retention: which backups stay, and which objects are garbage then.
//!
//! Invariants:
//! - Records go first, and an object only when no record, draft or index names it. When one cannot be read, no object is deleted: the
//!   names in it are not known. The result says which one.
//! - No object is deleted while the draft of a backup begins with one that is not there. A backup writes its draft before it looks
//!   for the older one, so either the sweep sees the draft, or the backup sees that the older one has gone.
//! - Records are listed before and behind the drafts: an attempt that ends meanwhile is in one of the lists, and so is an older backup
//!   that another command deletes meanwhile.
//! - No object goes that is younger than an attempt that has not ended.
//! - Objects are listed in parts, by the first byte of their names. Behind each list the sweep looks for new records and drafts, and reads
//!   all again when there are some. So memory is bounded by a part and by [`NAMES_MAX`] needed names.

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
    /// Older garbage that is younger than an attempt that has not ended.
    pub drafted: u64,
    /// The backups whose attempts have not ended.
    pub drafts: Vec<String>,
    /// Backups that are being made, or were interrupted, and began with one that is not there: nothing was deleted because of them.
    pub blocked_by: Vec<String>,
    /// Records, drafts and indexes that cannot be read, each with the reason: nothing more was deleted because of them.
    pub unreadable: Vec<String>,
}

/// Longest difference between the clock of the store and those of machines that make backups.
const CLOCKS_MS: u64 = 3_600_000;

/// First bytes of names of objects.
const SHARDS: u16 = 256;

/// Most names of objects that a sweep keeps: 128 MiB or so. With more it reads the indexes several times.
pub const NAMES_MAX: usize = 2 << 20;

/// Needs of the records and drafts of a moment.
#[derive(Default)]
struct Plan {
    /// Their places.
    places: BTreeSet<String>,
    indexes: BTreeSet<ObjectId>,
    /// Objects that were written since are left alone.
    before_ms: u64,
    drafts: BTreeSet<String>,
    blocked_by: BTreeSet<String>,
    unreadable: BTreeSet<String>,
}

impl Plan {
    /// Reads the records and drafts. `gone` are records that count as deleted.
    async fn read(repository: &Repository, before_ms: u64, gone: &[Record]) -> Result<Plan, Error> {
        let mut plan = Plan { places: repository.places().await?, ..Plan::default() };
        let first = plan.whole(repository.records(None).await?);
        let mut drafts = plan.whole(repository.drafts(None).await?);
        let second = plan.whole(repository.records(None).await?);
        // A draft beside the record of its backup is over.
        drafts.retain(|draft| !first.iter().any(|record| record.subject.is_same_snapshot(&draft.subject)));
        let stays = |record: &&Record| !gone.contains(record);
        let is_there = |draft: &&Record| {
            let is_parent =
                |record: &Record| Some(&record.id) == draft.parent.as_ref() && record.volume() == draft.volume();
            draft.parent.is_none() || first.iter().filter(stays).any(is_parent)
        };
        // An attempt has several drafts.
        let named = |draft: &Record| format!("{} {}", draft.volume(), draft.id);
        plan.drafts = drafts.iter().map(named).collect();
        plan.blocked_by = drafts.iter().filter(|draft| !is_there(draft)).map(named).collect();
        // An attempt that stands still has objects as old as itself that no draft names yet.
        let begun = drafts.iter().map(|draft| draft.begun_ms.saturating_sub(CLOCKS_MS)).min();
        plan.before_ms = before_ms.min(begun.unwrap_or(u64::MAX));
        let all = first.iter().chain(&second).filter(stays).chain(&drafts);
        plan.indexes = all.flat_map(|record| record.segments.iter().flatten().copied()).collect();
        Ok(plan)
    }

    /// Returns the records that can be read, and notes the others.
    fn whole(&mut self, records: Vec<Result<Record, Error>>) -> Vec<Record> {
        records
            .into_iter()
            .filter_map(|record| record.map_err(|error| self.unreadable.insert(error.to_string())).ok())
            .collect()
    }

    /// Whether all needed objects can be known.
    fn is_sure(&self) -> bool {
        self.blocked_by.is_empty() && self.unreadable.is_empty()
    }

    /// Returns the names of needed objects that begin with a byte from `from` on, and the first byte for which they are not complete.
    /// Indexes that cannot be read are noted.
    async fn needed(
        &mut self,
        repository: &Repository,
        from: u16,
        names_max: usize,
    ) -> Result<(BTreeSet<ObjectId>, u16), Error> {
        let (mut needed, mut to) = (BTreeSet::new(), SHARDS);
        for id in &self.indexes {
            let pieces = match repository.index(Some(*id)).await {
                Ok(index) => index.pieces(),
                Err(error) if error.is_missing() => {
                    self.unreadable.insert(format!("object {id} is missing"));
                    continue;
                }
                Err(error @ Error::Damaged { .. }) => {
                    self.unreadable.insert(error.to_string());
                    continue;
                }
                Err(other) => return Err(other),
            };
            let is_in = |id: &ObjectId, to: u16| (from..to).contains(&u16::from(id.0[0]));
            needed.extend(pieces.into_iter().chain([*id]).filter(|id| is_in(id, to)));
            while needed.len() > names_max && to > from + 1 {
                to = from + (to - from) / 2;
                needed.retain(|id| is_in(id, to));
            }
        }
        Ok((needed, to))
    }
}

/// Deletes the objects that no backup needs and that were written before `before_ms`. With `dry_run` it only counts.
/// `gone` are records that a dry run takes as deleted.
///
/// # Errors
/// `Store`: the repository cannot be read or written.
pub async fn sweep(repository: &Repository, before_ms: u64, gone: &[Record], dry_run: bool) -> Result<Swept, Error> {
    sweep_with(repository, before_ms, gone, (dry_run, NAMES_MAX)).await
}

/// Does what [`sweep`] does, and keeps `names_max` names of objects at most, or those of one shard.
pub async fn sweep_with(
    repository: &Repository,
    before_ms: u64,
    gone: &[Record],
    (dry_run, names_max): (bool, usize),
) -> Result<Swept, Error> {
    let mut plan = Plan::read(repository, before_ms, gone).await?;
    let (mut needed, mut end) = plan.needed(repository, 0, names_max).await?;
    let (mut swept, mut shard) = (Swept::default(), 0);
    while shard < SHARDS && plan.is_sure() {
        let objects = repository.objects(shard as u8).await?;
        // A backup that began since the plan may need what is listed here: its draft was there before its objects.
        if !repository.places().await?.is_subset(&plan.places) {
            plan = Plan::read(repository, before_ms, gone).await?;
            (needed, end) = plan.needed(repository, shard, names_max).await?;
            continue;
        }
        for object in objects.into_iter().filter(|object| !needed.contains(&object.id)) {
            if object.written_ms >= before_ms {
                swept.young += 1;
                continue;
            }
            if object.written_ms >= plan.before_ms {
                swept.drafted += 1;
                continue;
            }
            if !dry_run {
                repository.drop_object(object.id).await?;
            }
            swept.objects += 1;
            swept.bytes += object.len;
        }
        shard += 1;
        if shard == end && shard < SHARDS {
            (needed, end) = plan.needed(repository, shard, names_max).await?;
        }
    }
    let list = |names: BTreeSet<String>| names.into_iter().collect();
    let Plan { drafts, blocked_by, unreadable, .. } = plan;
    Ok(Swept { drafts: list(drafts), blocked_by: list(blocked_by), unreadable: list(unreadable), ..swept })
}
