//! `basalt backup import`: a volume with the contents of a stream, or a volume that goes on with an increment.
//!
//! The snapshot that ends an import names the snapshot of the stream in a label. An increment needs the volume as such a snapshot
//! left it.
//!
//! Invariants: an increment is written to contents that are proven to be its base: nothing has changed since the snapshot, or the volume was
//! just rolled back to it. The volume is marked until it has all, and unmarked before it is closed.

use super::args::Import;
use super::filling::{Begun, Filling, marked};
use super::volume::New;
use super::{RESTORING, advance, bar, connect, failed, refused, steps};
use crate::admin::Admin;
use crate::errors::{Exit, UserError};
use crate::output::{json, remark};
use crate::size::show;
use anyhow::Result;
use backup::{Base, Decoder, Head, Totals};
use clientthread::Cluster;
use control::admin::{Resizing, SnapshotView, VolumeText, VolumeView};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read, stdin};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use types::codes;

/// Label of a snapshot that ended an import, with the snapshot of the stream.
const IMPORTED: &str = "imported";
/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// An import.
struct Into<'a> {
    filling: Filling<'a>,
    head: Head,
    /// Names the snapshot of the stream.
    key: String,
}

pub fn run(admin: &Admin, metas: Vec<String>, args: &Import, as_json: bool) -> Result<Exit> {
    let decoder = Decoder::begin(BufReader::with_capacity(BUFFER, input(args.input.as_deref())?)).map_err(failed)?;
    let head = decoder.head().clone();
    let key = head.key();
    // An increment leaves contents of its base: a volume with a part of it differs from one with a part of the whole.
    let mark = head.base.as_ref().map_or_else(|| key.clone(), |base| format!("{key}~{}", base.snapshot_id));
    let into = Into { filling: Filling { admin, name: &args.volume, mark }, key, head };
    let cluster = connect(metas)?;
    let begun = match &into.head.base {
        None => into.filling.begin(&cluster, &into.head.subject, |snapshot| into.is_end(snapshot))?,
        Some(base) => into.go_on(&cluster, base)?,
    };
    let resumed_at = begun.done_bytes;
    if resumed_at > 0 {
        remark(&format!("{} was being imported: going on behind {}", args.volume, show(resumed_at)));
    }
    let Some((totals, target)) = fill(decoder, begun, &into, as_json)? else { return Ok(Exit::Interrupted) };
    // Before another writer can open the volume: the snapshot proves the contents.
    let ended = into.end(&target);
    let closed = target.0.close();
    let snapshot = ended?;
    closed.map_err(refused)?;
    told(&into, (totals, resumed_at), &snapshot, as_json)?;
    Ok(Exit::Done)
}

/// Opens the stream.
fn input(path: Option<&Path>) -> Result<File> {
    let unusable =
        |what: String| UserError::new(codes::FILE_UNUSABLE, what, "give a file of basalt backup export with -i");
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => Ok(File::open(path).map_err(|error| unusable(format!("{}: {error}", path.display())))?),
        None if stdin().is_terminal() => {
            let next = "give -i FILE, or a pipe: basalt backup export … | basalt backup import …";
            Err(UserError::new(codes::BAD_USAGE, "a terminal is no stream", next).into())
        }
        None => Ok(File::from(stdin().as_fd().try_clone_to_owned()?)),
    }
}

/// Writes the stream to the volume, which stays open. `None`: SIGINT ended it before.
fn fill(
    decoder: Decoder<impl Read + Send + 'static>,
    begun: Begun,
    into: &Into<'_>,
    as_json: bool,
) -> Result<Option<(Totals, Arc<New>)>> {
    let target = Arc::new(begun.target);
    let bar = bar(into.head.subject.len_bytes, as_json);
    let mut import = backup::Import::begin(decoder, target.clone(), begun.done_bytes).map_err(failed)?;
    // Its tasks end when the volume is closed, if not before.
    let runtime = crate::role::runtime()?;
    let filled = steps::all(&runtime, &mut import, &advance(&bar, "written"), |done_bytes| {
        into.filling.note(&target, done_bytes);
    });
    bar.finish_and_clear();
    if let Ok(Some(totals)) = filled {
        return Ok(Some((totals, target)));
    }
    let name = into.filling.name;
    remark(&format!("{name} has a part of the contents: import the same stream again, and it goes on"));
    // The next attempt need not wait for the lease of this one. The first error is the one that counts.
    let _ = target.0.close();
    filled.map(|_| None)
}

impl Into<'_> {
    fn refusal(&self, what: &str, next: impl std::fmt::Display) -> anyhow::Error {
        self.filling.refusal(codes::BACKUP_BASE, what, next)
    }

    /// Opens the volume with which an increment goes on, and marks it.
    fn go_on(&self, cluster: &Cluster, base: &Base) -> Result<Begun> {
        let (filling, len_bytes) = (&self.filling, self.head.subject.len_bytes);
        let volume = filling.admin.volume_info(filling.name)?;
        let first = self.base(&volume, &filling.admin.snapshots(filling.name)?, base)?;
        let (from, done_bytes, target);
        if filling.is_begun(&volume) {
            let held = filling.open_begun(cluster)?;
            let left = filling.drop_leftovers(|snapshot| self.is_end(snapshot));
            let (held, snapshots) = filling.or_close(held, left)?;
            let noted = filling.noted(&snapshots, len_bytes).map(|(note, done)| (note.clone(), done));
            (from, done_bytes) = noted.unwrap_or((first, 0));
            target = filling.roll_back(cluster, held, &from)?;
        } else if volume.len_bytes == base.len_bytes {
            (from, done_bytes) = (first, 0);
            let opened = filling.check_at(cluster, filling.open(cluster)?, &from)?;
            let marked = filling.set_mark(&opened);
            target = filling.or_close(opened, marked)?.0;
        } else {
            return Err(filling.changed(&first));
        }
        let has = target.0.info().len_bytes;
        if has == len_bytes {
            return Ok(Begun { target, done_bytes });
        }
        // The volume stays open: no other writer has it while the data behind a nearer end goes.
        let shrink = has > len_bytes;
        let to = Resizing { len_bytes, shrink, discard: shrink, force: false };
        let resized = crate::resize::apply(filling.admin, filling.name, to, remark);
        // The length of a volume is that of its open. Another writer may come between.
        let closed = target.0.close();
        resized?;
        closed.map_err(refused)?;
        Ok(Begun { target: filling.check_at(cluster, filling.open_begun(cluster)?, &from)?, done_bytes })
    }

    /// Returns the snapshot that has the contents with which the increment begins.
    fn base(&self, volume: &VolumeView, snapshots: &[SnapshotView], base: &Base) -> Result<SnapshotView> {
        let name = self.filling.name;
        let again = self.filling.is_begun(volume);
        if let Some(other) = marked(volume).filter(|_| !again) {
            let next = format!(
                "import that stream again; or give it up: basalt snapshot rollback to a snapshot of {name}, then basalt volume set {name} --remove-label {RESTORING}"
            );
            return Err(self.refusal(&format!("has only a part of the contents of {other}"), next));
        }
        let of = |key: &str| snapshots.iter().find(|s| s.labels.get(IMPORTED).is_some_and(|label| label == key));
        if let Some(own) = of(&self.key).filter(|_| !again) {
            let next = "import the stream that begins with that snapshot";
            return Err(self.refusal(&format!("has had the contents of this stream: snapshot {}", own.name), next));
        }
        let base_key = self.head.base_key().unwrap_or_default();
        let Some(found) = of(&base_key).filter(|snapshot| snapshot.state == "ready") else {
            let from = &base.snapshot;
            let next = format!("import a stream of {from} first, or export without --since {from} and import that");
            return Err(self.refusal(&format!("has no import of {from}"), next));
        };
        let end = format!("{name}@{}", self.head.subject.snapshot);
        if snapshots.iter().any(|s| s.name == end && !self.is_end(s)) {
            let next = format!("basalt snapshot rename {end} NAME");
            return Err(self.refusal(&format!("has another snapshot {end}, which the import would make"), next));
        }
        Ok(found.clone())
    }

    /// Whether a snapshot is the end of an import of this stream, or was made by one that could not label it any more.
    fn is_end(&self, snapshot: &SnapshotView) -> bool {
        let label = |key| snapshot.labels.get(key);
        label(IMPORTED) == Some(&self.key) || label(RESTORING) == Some(&self.filling.mark)
    }

    /// Makes the snapshot that proves the contents, and takes the mark away.
    fn end(&self, target: &New) -> Result<SnapshotView> {
        let (filling, subject) = (&self.filling, &self.head.subject);
        let labels = BTreeMap::from([(IMPORTED.to_owned(), self.key.clone())]);
        let proof = VolumeText { labels, removed_labels: vec![RESTORING.to_owned()], ..VolumeText::default() };
        let made = filling.cut(target, &format!("{}@{}", filling.name, subject.snapshot), proof)?;
        let text = match self.head.base {
            None => super::text_of(subject),
            Some(_) => VolumeText { removed_labels: vec![RESTORING.to_owned()], ..VolumeText::default() },
        };
        filling.unmark(target, text)?;
        Ok(made)
    }
}

fn told(into: &Into<'_>, (totals, resumed_at): (Totals, u64), snapshot: &SnapshotView, as_json: bool) -> Result<()> {
    let subject = &into.head.subject;
    let from = format!("{}/{}@{}", subject.pool, subject.volume, subject.snapshot);
    if as_json {
        let body = json!({
            "name": into.filling.name, "from": from, "base": into.head.base.as_ref().map(|base| &base.snapshot),
            "snapshot": snapshot.name, "len_bytes": subject.len_bytes, "frames": totals.frames,
            "data_bytes": totals.data_bytes, "zero_bytes": totals.zero_bytes,
            "resumed_at_bytes": resumed_at,
        });
        return json("backup.import", body);
    }
    out!(
        "volume {} has the contents of {from}: {} of data; snapshot {}",
        into.filling.name,
        show(totals.data_bytes),
        snapshot.name
    );
    Ok(())
}
