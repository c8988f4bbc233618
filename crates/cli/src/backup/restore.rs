//! `basalt backup restore`: a volume with the contents of a backup.
//!
//! A label marks the volume until it has all, with the backup and the number of segments that it has. The same command goes on there.
//!
//! Invariants: the label never names a segment that is not written. It is changed only while it is the one that this command has seen or
//! written, and the volume is open.

use super::args::Restore;
use super::volume::New;
use super::{Opened, RESTORING, advance, bar, check_volume, connect, failed, refused, text_of, view};
use crate::admin::Admin;
use crate::duration::moment;
use crate::errors::{Exit, UserError};
use crate::output::{json, remark};
use crate::size::show;
use anyhow::Result;
use backup::{Record, Subject};
use clientthread::Access;
use control::admin::{VolumeText, VolumeView};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::codes;
use types::units::SEGMENT;

/// Time after which the label says how far the restore has come: what a crash of this process costs, with a segment.
const NOTE_EVERY: Duration = Duration::from_secs(120);

pub fn run(admin: &Admin, metas: Vec<String>, args: &Restore, as_json: bool) -> Result<Exit> {
    check_volume(&args.volume)?;
    let opened = Opened::to_read(&args.repo.address()?)?;
    opened.fault.iter().for_each(|what| remark(what));
    let there = if args.new.contains('/') { admin.volume(&args.new)? } else { None };
    let record = choose(&opened, args, there.as_ref())?;
    let subject = &record.subject;
    if there.as_ref().and_then(|volume| begun(volume, &record)).is_none() {
        if let Some(volume) = there.filter(|volume| marked(volume).is_some()) {
            return Err(another(&volume.name));
        }
        // The mark alone: the labels of the volume may be as many as one can have.
        admin.create_volume(
            &args.new,
            subject.len_bytes,
            subject.stripe.unwrap_or_default(),
            text(mark(subject, 0)),
        )?;
    }
    if !fill(&opened, (admin, metas), args, &record, as_json)? {
        return Ok(Exit::Interrupted);
    }
    let volume = admin.set_volume(&args.new, text_of(subject))?;
    if as_json {
        json("backup.restore", json!({ "backup": view(&record), "volume": volume }))?;
        return Ok(Exit::Done);
    }
    out!("volume {} has the contents of {} at {}", args.new, record.volume(), moment(subject.created_ms));
    Ok(Exit::Done)
}

/// Returns the backup to restore: the one that is named, the one with which the volume was begun, or the last one.
fn choose(opened: &Opened, args: &Restore, there: Option<&VolumeView>) -> Result<Record> {
    let began = there.and_then(marked).filter(|_| args.id.is_none());
    let Some((key, _)) = began else { return opened.record(&args.volume, args.id.as_deref()) };
    let records = opened.records(Some(&args.volume))?.records;
    records.into_iter().find(|record| record.subject.key() == key).ok_or_else(|| another(&args.new))
}

/// Returns the error for a volume with a part of other contents.
fn another(name: &str) -> anyhow::Error {
    let what = format!("{name} has a part of the contents of another backup");
    let next = format!("restore that one with its --id, or: basalt volume rm {name} --now --snapshots, then again");
    UserError::new(codes::VOLUME_BUSY, what, next).into()
}

/// Returns the error for a volume that another command has restored meanwhile. It may be whole, so the advice is not to remove it.
fn ended_elsewhere(name: &str) -> anyhow::Error {
    let what = format!("{name} is not being restored from this backup any more: another command came before");
    UserError::new(codes::VOLUME_BUSY, what, format!("basalt volume info {name}   # it may be whole")).into()
}

/// Returns the label of a volume that has the first `done` segments of a backup.
fn mark(subject: &Subject, done: u64) -> String {
    format!("{}+{done}", subject.key())
}

fn text(mark: String) -> VolumeText {
    VolumeText { labels: BTreeMap::from([(RESTORING.to_owned(), mark)]), ..VolumeText::default() }
}

/// Returns the snapshot from which a volume is being restored, and the number of segments that it has.
fn marked(volume: &VolumeView) -> Option<(&str, u64)> {
    let (key, done) = volume.labels.get(RESTORING).filter(|_| volume.state == "ready")?.rsplit_once('+')?;
    Some((key, done.parse().ok()?))
}

/// Returns how many segments an interrupted restore of this backup has written; `None`: the volume is none of that.
fn begun(volume: &VolumeView, record: &Record) -> Option<u64> {
    let (key, done) = marked(volume)?;
    let fits = volume.len_bytes == record.subject.len_bytes && done <= record.segments.len() as u64;
    (key == record.subject.key() && fits).then_some(done)
}

#[allow(clippy::disallowed_methods, reason = "a command's own pace")]
fn now() -> Instant {
    Instant::now()
}

/// The label of the volume that is being restored.
struct Label<'a> {
    admin: &'a Admin,
    volume: VolumeView,
    subject: &'a Subject,
    /// Segments that it names.
    done: u64,
}

impl Label<'_> {
    /// Names `done` segments. A label that stays behind costs time, and nothing else.
    fn note(&mut self, done: u64) {
        if done == self.done {
            return;
        }
        // Another command may have gone on with the volume, or have removed it, while this one was cut off.
        let is_own = |now: &VolumeView| {
            let label = now.labels.get(RESTORING);
            now.volume == self.volume.volume && label.is_some_and(|label| *label == mark(self.subject, self.done))
        };
        let name = &self.volume.name;
        if self.admin.volume_info(name).is_ok_and(|now| is_own(&now))
            && self.admin.set_volume(name, text(mark(self.subject, done))).is_ok()
        {
            self.done = done;
        }
    }
}

/// Writes the contents. Returns whether the volume has all: SIGINT ends it before.
fn fill(
    opened: &Opened,
    (admin, metas): (&Admin, Vec<String>),
    args: &Restore,
    record: &Record,
    as_json: bool,
) -> Result<bool> {
    let cluster = connect(metas)?;
    let target = Arc::new(New(cluster.open(&args.new, Access::Write).map_err(refused)?));
    // From here on no other restore writes to it. One may have come before.
    let found = admin.volume_info(&args.new).and_then(|volume| match begun(&volume, record) {
        Some(done) => Ok((volume, done)),
        None => Err(ended_elsewhere(&args.new)),
    });
    let (volume, done) = match found {
        Ok(found) => found,
        Err(error) => {
            // The first error is the one that counts.
            let _ = target.0.close();
            return Err(error);
        }
    };
    if done > 0 {
        let has = show((done * SEGMENT).min(record.subject.len_bytes));
        remark(&format!("{} was being restored from {}: going on behind {has}", args.new, record.id));
    }
    let mut label = Label { admin, volume, subject: &record.subject, done };
    let bar = bar(record.subject.len_bytes, as_json);
    let tell = advance(&bar, "written");
    let mut restore = backup::Restore::new(&opened.repository, record, target.clone(), done);
    let mut interrupts = opened.interrupts()?;
    let mut noted_at = now();
    let ended = loop {
        match opened.until(&mut interrupts, restore.step(&tell)) {
            None => break Ok(false),
            Some(Err(error)) => break Err(failed(error)),
            Some(Ok(false)) => break Ok(true),
            Some(Ok(true)) if noted_at.elapsed() < NOTE_EVERY => {}
            Some(Ok(true)) => {
                label.note(restore.done());
                noted_at = now();
            }
        }
    };
    bar.finish_and_clear();
    if !matches!(ended, Ok(true)) {
        label.note(restore.done());
        let what = "has a part of the contents: the same command goes on; to give it up: basalt volume rm";
        remark(&format!("{0} {what} {0} --now --snapshots", args.new));
    }
    // The next command need not wait for the lease of this one, whatever the result is.
    let closed = target.0.close();
    let is_whole = ended?;
    closed.map_err(refused)?;
    Ok(is_whole)
}
