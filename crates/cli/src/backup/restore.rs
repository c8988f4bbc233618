//! `basalt backup restore`: a volume with the contents of a backup.
//!
//! A label marks the volume until it has all, with the backup and the number of segments that it has. The same command goes on there.
//!
//! Invariant: the label never names a segment that is not written.

use super::args::Restore;
use super::volume::New;
use super::{Opened, RESTORING, advance, bar, check_volume, connect, failed, refused, text_of, view};
use crate::admin::Admin;
use crate::duration::moment;
use crate::errors::Exit;
use crate::output::{json, remark};
use crate::size::show;
use anyhow::Result;
use backup::Record;
use clientthread::Access;
use control::admin::{VolumeText, VolumeView};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::units::SEGMENT;

/// Time after which the label says how far the restore has come: what a crash of this process costs.
const NOTE_EVERY: Duration = Duration::from_secs(120);

pub fn run(admin: &Admin, metas: Vec<String>, args: &Restore, as_json: bool) -> Result<Exit> {
    check_volume(&args.volume)?;
    let opened = Opened::to_read(&args.repo.address()?)?;
    opened.fault.iter().for_each(|what| remark(what));
    let there = admin.volume(&args.new)?;
    // There may be a later backup by now: what was begun goes on.
    let id = args.id.as_deref().or(there.as_ref().and_then(marked).map(|(id, _)| id));
    let record = opened.record(&args.volume, id)?;
    let subject = &record.subject;
    let done = match there.as_ref().and_then(|volume| begun(volume, &record)) {
        Some(done) => {
            let (id, has) = (&record.id, show((done * SEGMENT).min(subject.len_bytes)));
            remark(&format!("{} was being restored from {id}: going on behind {has}", args.new));
            done
        }
        None => {
            // The mark alone: the labels of the volume may be as many as one can have.
            admin.create_volume(&args.new, subject.len_bytes, subject.stripe.unwrap_or_default(), mark(&record, 0))?;
            0
        }
    };
    let filled = fill(&opened, (admin, metas), args, (&record, done), as_json);
    if !matches!(filled, Ok(true)) {
        remark(&format!("{} has a part of the contents: the same command goes on", args.new));
    }
    if !filled? {
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

/// Returns the label of a volume that has the first `done` segments of a backup.
fn mark(record: &Record, done: u64) -> VolumeText {
    let labels = BTreeMap::from([(RESTORING.to_owned(), format!("{}+{done}", record.id))]);
    VolumeText { labels, ..VolumeText::default() }
}

/// Returns the backup from which a volume is being restored, and the number of segments that it has.
fn marked(volume: &VolumeView) -> Option<(&str, u64)> {
    let (id, done) = volume.labels.get(RESTORING)?.rsplit_once('+')?;
    Some((id, done.parse().ok()?))
}

/// Returns how many segments an interrupted restore of this backup has written; `None`: the volume is none of that.
fn begun(volume: &VolumeView, record: &Record) -> Option<u64> {
    let (id, done) = marked(volume)?;
    let fits = volume.len_bytes == record.subject.len_bytes && done <= record.segments.len() as u64;
    (id == record.id && fits).then_some(done)
}

#[allow(clippy::disallowed_methods, reason = "a command's own pace")]
fn now() -> Instant {
    Instant::now()
}

/// Writes the contents. Returns whether the volume has all: SIGINT ends it before.
fn fill(
    opened: &Opened,
    (admin, metas): (&Admin, Vec<String>),
    args: &Restore,
    (record, done): (&Record, u64),
    as_json: bool,
) -> Result<bool> {
    let mut interrupts = opened.interrupts()?;
    let cluster = connect(metas)?;
    let target = Arc::new(New(cluster.open(&args.new, Access::Write).map_err(refused)?));
    let bar = bar(record.subject.len_bytes, as_json);
    let tell = advance(&bar, "written");
    let mut restore = backup::Restore::new(&opened.repository, record, target.clone(), done);
    let note = |done: u64| admin.set_volume(&args.new, mark(record, done)).map(drop);
    let (mut noted, mut noted_at) = (done, now());
    let ended = loop {
        match opened.until(&mut interrupts, restore.step(&tell)) {
            None => break Ok(false),
            Some(Err(error)) => break Err(failed(error)),
            Some(Ok(false)) => break Ok(true),
            Some(Ok(true)) if noted_at.elapsed() < NOTE_EVERY => {}
            Some(Ok(true)) => {
                // A label that is late costs time after a crash, and nothing else.
                if note(restore.done()).is_ok() {
                    noted = restore.done();
                }
                noted_at = now();
            }
        }
    };
    bar.finish_and_clear();
    // The next command need not wait for the lease of this one, whatever the result is.
    let closed = target.0.close();
    if !matches!(ended, Ok(true)) && restore.done() > noted {
        // The first error is the one that counts.
        let _ = note(restore.done());
    }
    let is_whole = ended?;
    closed.map_err(refused)?;
    Ok(is_whole)
}
