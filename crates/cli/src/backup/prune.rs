//! `basalt backup prune`: deletes backups that no rule keeps, and the data that no backup needs.
//!
//! Invariant: the text names each backup when it is deleted, so a repository that fails later hides none.

use super::args::Prune;
use super::{Found, Opened, check_volume, failed};
use crate::duration::{moment, now_ms};
use crate::errors::{Exit, UserError};
use crate::output::json;
use crate::size::show;
use anyhow::Result;
use backup::{Record, Retention, Swept};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::codes;

pub fn run(args: &Prune, as_json: bool) -> Result<Exit> {
    let retention = retention(args)?;
    check_volume(&args.volume)?;
    let opened = Opened::to_delete(&args.repo.address()?)?;
    // The sweep tells the records that cannot be read: those of all volumes.
    let Found { records, .. } = opened.records(Some(&args.volume))?;
    let kept = kept(&retention, &records);
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
        for record in &gone {
            if !args.dry_run {
                opened.repository.drop_record(record).await?;
            }
            if !as_json {
                out!("{} of {}", record.id, moment(record.subject.created_ms));
            }
        }
        backup::sweep(&opened.repository, before(args.grace), &gone, args.dry_run).await
    });
    let swept = swept.map_err(failed)?;
    told(args, (&gone, &kept), &swept, as_json)?;
    Ok(if swept.unreadable.is_empty() { Exit::Done } else { Exit::Degraded })
}

fn retention(args: &Prune) -> Result<Retention> {
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
    Ok(retention)
}

/// Returns the ids of the backups that stay.
fn kept(retention: &Retention, records: &[Record]) -> BTreeSet<String> {
    // A volume that was made again under the same name has backups of its own.
    let mut of: BTreeMap<(String, u64), Vec<Record>> = BTreeMap::new();
    for record in records {
        of.entry((record.subject.cluster.clone(), record.subject.volume_id)).or_default().push(record.clone());
    }
    of.values().flat_map(|records| retention.keeps(records)).collect()
}

fn before(grace: Duration) -> u64 {
    now_ms().saturating_sub(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX))
}

fn told(args: &Prune, (gone, kept): (&[Record], &BTreeSet<String>), swept: &Swept, as_json: bool) -> Result<()> {
    if as_json {
        let ids: Vec<&str> = gone.iter().map(|record| record.id.as_str()).collect();
        let body = json!({
            "removed": ids, "kept": kept, "objects": swept.objects, "bytes": swept.bytes, "young": swept.young,
            "drafted": swept.drafted, "drafts": swept.drafts, "blocked_by": swept.blocked_by,
            "unreadable": swept.unreadable, "dry_run": args.dry_run,
        });
        return json("backup.prune", body);
    }
    let (would, are) = if args.dry_run { ("would go", "would be") } else { ("are deleted", "is") };
    out!("{} backups {would}, {} stay; {} of data {are} freed", gone.len(), kept.len(), show(swept.bytes));
    for draft in &swept.blocked_by {
        out!(
            "no data is deleted: {draft} is not complete, and the backup that it began with is deleted; end it, or give --drop-drafts"
        );
    }
    for what in &swept.unreadable {
        out!("{}: no data is deleted: {what}", codes::label(codes::BACKUP_DAMAGED));
    }
    if !swept.unreadable.is_empty() {
        out!(
            "  next: copy the file back and prune again; or give backups up: delete a damaged record or draft itself, for an \
             index the records (backups/POOL/VOLUME/ID.json) of the backups that basalt backup verify names"
        );
    }
    if swept.young > 0 {
        out!("{} objects without a backup are younger than --grace and stay", swept.young);
    }
    if swept.drafted > 0 {
        out!(
            "{} objects without a backup stay: they may belong to {}, not complete yet; end it, or give --drop-drafts",
            swept.drafted,
            swept.drafts.join(", ")
        );
    }
    Ok(())
}
