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
    if let Some(mark) = there.as_ref().and_then(marked).filter(|mark| *mark != filling.mark) {
        return Err(another(&args.new, mark));
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
    records.into_iter().find(|record| record.subject.key() == mark).ok_or_else(|| another(&args.new, mark))
}

/// Returns the error for a volume that is marked for other contents.
fn another(name: &str, mark: &str) -> anyhow::Error {
    // An increment goes to a copy with a history: its removal would cost more than the part.
    let (of, next) = match mark.contains('~') {
        true => ("an increment", "import that stream again, or choose another name".to_owned()),
        false => {
            let next = "restore that one with its --id, or: basalt volume rm";
            ("another backup", format!("{next} {name} --now --snapshots, then again"))
        }
    };
    UserError::new(codes::VOLUME_BUSY, format!("{name} has a part of the contents of {of}"), next).into()
}

/// Writes the contents. Returns whether the volume has all: SIGINT ends it before.
fn fill(opened: &Opened, filling: &Filling<'_>, metas: Vec<String>, record: &Record, as_json: bool) -> Result<bool> {
    let cluster = connect(metas)?;
    let len_bytes = record.subject.len_bytes;
    let Begun { target, done_bytes } = filling.begin(&cluster, &record.subject, |_| false)?;
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
        // Before another client can have the volume.
        Ok(Some(())) => filling.unmark(&target, text_of(&record.subject)).map(|()| true),
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
