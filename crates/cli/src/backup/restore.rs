//! `basalt backup restore`: a volume with the contents of a backup.
//!
//! Invariant: the volume is marked until it has all, and unmarked before it is closed.

use super::args::Restore;
use super::filling::{Begun, Filling, marked};
use super::{Opened, advance, bar, check_volume, connect, refused, steps, text_of, view};
use crate::admin::Admin;
use crate::duration::moment;
use crate::errors::{Exit, UserError};
use crate::output::{json, remark};
use crate::size::show;
use anyhow::Result;
use backup::Record;
use control::admin::VolumeView;
use serde_json::json;
use std::sync::Arc;
use types::codes;
use types::units::SEGMENT;

pub fn run(admin: &Admin, metas: Vec<String>, args: &Restore, as_json: bool) -> Result<Exit> {
    check_volume(&args.volume)?;
    let opened = Opened::to_read(&args.repo.address()?)?;
    opened.fault.iter().for_each(|what| remark(what));
    let there = if args.new.contains('/') { admin.volume(&args.new)? } else { None };
    let record = choose(&opened, args, there.as_ref())?;
    let filling = Filling { admin, name: &args.new, mark: record.subject.key() };
    if there.as_ref().is_some_and(|volume| marked(volume).is_some() && !filling.is_begun(volume)) {
        return Err(another(&args.new));
    }
    if !fill(&opened, &filling, metas, &record, as_json)? {
        return Ok(Exit::Interrupted);
    }
    if as_json {
        json("backup.restore", json!({ "backup": view(&record), "volume": admin.volume_info(&args.new)? }))?;
        return Ok(Exit::Done);
    }
    out!("volume {} has the contents of {} at {}", args.new, record.volume(), moment(record.subject.created_ms));
    Ok(Exit::Done)
}

/// Returns the backup to restore: the one that is named, the one with which the volume was begun, or the last one.
fn choose(opened: &Opened, args: &Restore, there: Option<&VolumeView>) -> Result<Record> {
    let began = there.and_then(marked).filter(|_| args.id.is_none());
    let Some(mark) = began else { return opened.record(&args.volume, args.id.as_deref()) };
    let records = opened.records(Some(&args.volume))?.records;
    records.into_iter().find(|record| record.subject.key() == mark).ok_or_else(|| another(&args.new))
}

/// Returns the error for a volume with a part of other contents.
fn another(name: &str) -> anyhow::Error {
    let what = format!("{name} has a part of the contents of another backup");
    let next = format!("restore that one with its --id, or: basalt volume rm {name} --now --snapshots, then again");
    UserError::new(codes::VOLUME_BUSY, what, next).into()
}

/// Writes the contents. Returns whether the volume has all: SIGINT ends it before.
fn fill(opened: &Opened, filling: &Filling<'_>, metas: Vec<String>, record: &Record, as_json: bool) -> Result<bool> {
    let cluster = connect(metas)?;
    let len_bytes = record.subject.len_bytes;
    let Begun { target, done_bytes } = filling.begin(&cluster, &record.subject)?;
    if done_bytes > 0 {
        let has = show(done_bytes);
        remark(&format!("{} was being restored from {}: going on behind {has}", filling.name, record.id));
    }
    let target = Arc::new(target);
    let bar = bar(len_bytes, as_json);
    // An import of the same snapshot may have ended within a segment.
    let mut restore = backup::Restore::new(&opened.repository, record, target.clone(), done_bytes / SEGMENT);
    let ended = steps::all(&opened.runtime, &mut restore, &advance(&bar, "written"), |segments| {
        filling.note(&target, (segments * SEGMENT).min(len_bytes));
    });
    bar.finish_and_clear();
    let ended = match ended {
        Ok(Some(())) => {
            // Before another client can have the volume.
            let own = filling.check_own(&target);
            let unmarked = own.and_then(|()| filling.admin.set_volume(filling.name, text_of(&record.subject)));
            unmarked.inspect(|_| filling.drop_notes()).map(|_| true)
        }
        ended => {
            let what = "has a part of the contents: the same command goes on; to give it up: basalt volume rm";
            remark(&format!("{0} {what} {0} --now --snapshots", filling.name));
            ended.map(|_| false)
        }
    };
    // The next command need not wait for the lease of this one, whatever the result is.
    let closed = target.0.close();
    let is_whole = ended?;
    closed.map_err(refused)?;
    Ok(is_whole)
}
