//! `basalt backup import`: a volume with the contents of a stream, or a volume that goes on with an increment.
//!
//! The snapshot that ends an import names the snapshot of the stream in a label. An increment needs the volume as such a snapshot
//! left it. A label marks the volume until the stream is whole; the same stream can then be imported again.
//!
//! Invariant: an increment is written to contents that are proven to be its base: nothing has changed since the snapshot, or the
//! volume was just rolled back to it.

use super::args::Import;
use super::volume::New;
use super::{RESTORING, advance, bar, connect, failed, refused};
use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::{json, remark};
use crate::size::show;
use anyhow::{Context, Result};
use backup::{Base, Decoder, Head, Target, Totals};
use clientthread::{Access, Cluster};
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
    admin: &'a Admin,
    /// `POOL/VOLUME` of the target.
    name: &'a str,
    head: Head,
    /// Names the snapshot of the stream.
    key: String,
}

pub fn run(admin: &Admin, metas: Vec<String>, args: &Import, as_json: bool) -> Result<()> {
    let decoder = Decoder::begin(BufReader::with_capacity(BUFFER, input(args.input.as_deref())?)).map_err(failed)?;
    let head = decoder.head().clone();
    let into = Into { admin, name: &args.volume, key: head.key(), head };
    let cluster = connect(metas)?;
    let target = match &into.head.base {
        None => into.begin(&cluster)?,
        Some(base) => into.go_on(&cluster, base)?,
    };
    let (totals, target) = fill(decoder, target, &into, as_json).inspect_err(|_| {
        remark(&format!(
            "{} has a part of the contents; the same stream can be imported again, from its begin",
            into.name
        ));
    })?;
    // Before another writer can open the volume: the snapshot proves the contents.
    let ended = into.end();
    let closed = target.0.close();
    let snapshot = ended?;
    closed.map_err(refused)?;
    told(&into, totals, &snapshot, as_json)
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

/// Writes the stream to the volume, which stays open.
fn fill(
    decoder: Decoder<impl Read + Send + 'static>,
    target: New,
    into: &Into<'_>,
    as_json: bool,
) -> Result<(Totals, Arc<New>)> {
    let target = Arc::new(target);
    let bar = bar(into.head.subject.len_bytes, as_json);
    let imported = crate::role::runtime()?.block_on(backup::import(decoder, target.clone(), &advance(&bar, "written")));
    bar.finish_and_clear();
    match imported {
        Ok(totals) => Ok((totals, target)),
        Err(error) => {
            // The next attempt need not wait for the lease of this one. The first error is the one that counts.
            let _ = target.0.close();
            Err(failed(error))
        }
    }
}

impl Into<'_> {
    fn open(&self, cluster: &Cluster) -> Result<New> {
        cluster.open(self.name, Access::Write).map(New).map_err(refused)
    }

    fn refusal(&self, what: &str, next: impl std::fmt::Display) -> anyhow::Error {
        UserError::new(codes::BACKUP_BASE, format!("{} {what}", self.name), next.to_string()).into()
    }

    /// Whether an import of this stream was interrupted.
    fn was_begun(&self, volume: &VolumeView) -> bool {
        volume.labels.get(RESTORING) == Some(&self.key)
    }

    /// Makes the volume, or empties the one that an interrupted import made.
    fn begin(&self, cluster: &Cluster) -> Result<New> {
        let subject = &self.head.subject;
        let again = self.admin.volume(self.name)?.filter(|volume| self.was_begun(volume));
        let Some(volume) = again else {
            let labels = BTreeMap::from([(RESTORING.to_owned(), self.key.clone())]);
            let text = VolumeText { labels, ..VolumeText::default() };
            self.admin.create_volume(self.name, subject.len_bytes, subject.stripe.unwrap_or_default(), text)?;
            return self.open(cluster);
        };
        if volume.len_bytes != subject.len_bytes {
            let next = format!("basalt volume rm {} --now --snapshots, then again", self.name);
            return Err(self.refusal("has another length than the stream", next));
        }
        self.drop_end(&self.admin.snapshots(self.name)?)?;
        let target = self.open(cluster)?;
        let all = 0..subject.len_bytes;
        target.clear(vec![all]).map_err(|failure| failed(backup::Error::Volume(failure)))?;
        Ok(target)
    }

    /// Opens the volume with which an increment goes on, and marks it.
    fn go_on(&self, cluster: &Cluster, base: &Base) -> Result<New> {
        let volume = self.admin.volume_info(self.name)?;
        let snapshots = self.admin.snapshots(self.name)?;
        let again = self.was_begun(&volume);
        let from = self.base(&volume, &snapshots, base)?;
        if again {
            self.drop_end(&snapshots)?;
            self.admin.roll_back(&from.name, false)?;
        } else if volume.len_bytes != base.len_bytes {
            return Err(self.changed(from));
        }
        let target = self.open(cluster)?;
        self.must_be_at(&target, from)?;
        let labels = BTreeMap::from([(RESTORING.to_owned(), self.key.clone())]);
        self.admin.set_volume(self.name, VolumeText { labels, ..VolumeText::default() })?;
        let (has, len_bytes) = (target.0.info().len_bytes, self.head.subject.len_bytes);
        if has == len_bytes {
            return Ok(target);
        }
        // The volume stays open: no other writer has it while the data behind a nearer end goes.
        let shrink = has > len_bytes;
        let to = Resizing { len_bytes, shrink, discard: shrink, force: false };
        let resized = crate::resize::apply(self.admin, self.name, to, remark);
        // The length of a volume is that of its open. Another writer may come between.
        let closed = target.0.close();
        resized?;
        closed.map_err(refused)?;
        let target = self.open(cluster)?;
        self.must_be_at(&target, from)?;
        Ok(target)
    }

    /// Returns the snapshot that has the contents with which the increment begins.
    fn base<'s>(&self, volume: &VolumeView, snapshots: &'s [SnapshotView], base: &Base) -> Result<&'s SnapshotView> {
        let name = self.name;
        if let Some(other) = volume.labels.get(RESTORING).filter(|_| !self.was_begun(volume)) {
            let next = format!("import that stream again, or: basalt volume rm {name} --now --snapshots");
            return Err(self.refusal(&format!("has only a part of the contents of {other}"), next));
        }
        let of = |key: &str| snapshots.iter().find(|s| s.labels.get(IMPORTED).is_some_and(|label| label == key));
        if let Some(own) = of(&self.key).filter(|_| !self.was_begun(volume)) {
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
        if snapshots.iter().any(|s| s.name == end && s.labels.get(IMPORTED) != Some(&self.key)) {
            let next = format!("basalt snapshot rename {end} NAME");
            return Err(self.refusal(&format!("has another snapshot {end}, which the import would make"), next));
        }
        Ok(found)
    }

    /// Checks that the contents are those of the snapshot.
    fn must_be_at(&self, target: &New, from: &SnapshotView) -> Result<()> {
        if target.is_unchanged_since(from.snapshot).map_err(refused)? {
            return Ok(());
        }
        // The refusal stays the error, whatever becomes of the close.
        let _ = target.0.close();
        Err(self.changed(from))
    }

    fn changed(&self, from: &SnapshotView) -> anyhow::Error {
        let next = format!("basalt snapshot rollback {}   # its changes since then are lost", from.name);
        self.refusal(&format!("has changed since {}, with which the increment begins", from.name), next)
    }

    /// Deletes the snapshot of an import that was interrupted behind it.
    fn drop_end(&self, snapshots: &[SnapshotView]) -> Result<()> {
        let mut own = snapshots.iter().filter(|snapshot| snapshot.labels.get(IMPORTED) == Some(&self.key));
        own.try_for_each(|snapshot| self.admin.remove_snapshot(&snapshot.name, false))
    }

    /// Makes the snapshot that proves the contents, and takes the mark away.
    fn end(&self) -> Result<SnapshotView> {
        let subject = &self.head.subject;
        let labels = BTreeMap::from([(IMPORTED.to_owned(), self.key.clone())]);
        let names = [format!("{}@{}", self.name, subject.snapshot)];
        let made = self.admin.create_snapshots(&names, VolumeText { labels, ..VolumeText::default() })?;
        let text = match self.head.base {
            None => super::text_of(subject),
            Some(_) => VolumeText { removed_labels: vec![RESTORING.to_owned()], ..VolumeText::default() },
        };
        self.admin.set_volume(self.name, text)?;
        made.into_iter().next().context("the metadata server names the snapshot that it made")
    }
}

fn told(into: &Into<'_>, totals: Totals, snapshot: &SnapshotView, as_json: bool) -> Result<()> {
    let subject = &into.head.subject;
    let from = format!("{}/{}@{}", subject.pool, subject.volume, subject.snapshot);
    if as_json {
        let body = json!({
            "name": into.name, "from": from, "base": into.head.base.as_ref().map(|base| &base.snapshot),
            "snapshot": snapshot.name, "len_bytes": subject.len_bytes, "frames": totals.frames,
            "data_bytes": totals.data_bytes, "zero_bytes": totals.zero_bytes,
        });
        return json("backup.import", body);
    }
    out!(
        "volume {} has the contents of {from}: {} of data; snapshot {}",
        into.name,
        show(totals.data_bytes),
        snapshot.name
    );
    Ok(())
}
