//! `basalt backup export`: a snapshot as a stream.
//!
//! Invariants: standard output gets the stream and nothing else. A file gets its name when the stream is whole. What an interrupted command
//! has written of it is read again, and used up to the first byte that is not as it should be.

use super::args::Export;
use super::create::Of;
use super::volume::Saved;
use super::{RESTORING, advance, bar, connect, failed, must_be, ready, refused};
use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::{json, remark};
use crate::size::show;
use anyhow::Result;
use backup::{Base, Encoder, Head, StreamPlace, Totals};
use clientthread::Access;
use control::admin::SnapshotView;
use serde_json::json;
use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{BufReader, BufWriter, IsTerminal, Seek, SeekFrom, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::codes;

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;
/// Mode of a file: a stream is as secret as the volume.
const MODE: u32 = 0o600;

pub fn run(admin: &Admin, metas: Vec<String>, args: &Export, as_json: bool) -> Result<()> {
    let into = args.output.as_deref().filter(|path| *path != Path::new("-"));
    check_output(into, as_json)?;
    let Some((name, _)) = args.name.split_once('@') else {
        let next = format!("basalt snapshot create {0}@NAME, then basalt backup export {0}@NAME", args.name);
        return Err(UserError::new(codes::BAD_USAGE, format!("{} is no snapshot", args.name), next).into());
    };
    let of = Of::ask(admin, name)?;
    if of.volume.labels.contains_key(RESTORING) {
        return Err(super::incomplete(name).into());
    }
    let snapshot = ready(admin, &args.name)?;
    let base = args.since.as_deref().map(|since| older(admin, name, since, &snapshot)).transpose()?;
    let since = base.as_ref().map(|base| base.snapshot);
    let head = Head::new(of.subject(&snapshot), args.compress.unwrap_or(of.compression), base.as_ref().map(base_of));
    let cluster = connect(metas)?;
    let volume = cluster.open(&snapshot.name, Access::Read).map_err(refused)?;
    must_be(admin, &snapshot)?;
    let output = Output::open(into)?;
    let encoder = output.begin(&head)?;
    let from = encoder.done_bytes();
    let bar = bar(snapshot.len_bytes, as_json);
    let source = Arc::new(Saved { volume, since });
    let exported = crate::role::runtime()?.block_on(backup::export(source, &head, encoder, &advance(&bar, "read")));
    bar.finish_and_clear();
    let (totals, written, _) = exported.map_err(|error| output.failed(error))?;
    output.keep()?;
    told(&head, (totals, written, from), into, as_json)
}

/// Refuses a place that a stream is no use for.
fn check_output(into: Option<&Path>, as_json: bool) -> Result<()> {
    let refused = |what: &str, next: &str| Err(UserError::new(codes::BAD_USAGE, what, next).into());
    match into {
        None if stdout().is_terminal() => {
            refused("a stream is no text for a terminal", "give -o FILE, or a pipe: | ssh HOST basalt backup import …")
        }
        None if as_json => refused("standard output has the stream, and no JSON", "give -o FILE, or no --json"),
        _ => Ok(()),
    }
}

/// Returns the snapshot with which an increment begins.
fn older(admin: &Admin, volume: &str, since: &str, than: &SnapshotView) -> Result<SnapshotView> {
    let name = if since.contains('@') { since.to_owned() } else { format!("{volume}@{since}") };
    let base = ready(admin, &name)?;
    if base.volume == than.volume && base.snapshot < than.snapshot {
        return Ok(base);
    }
    let what = format!("{} is no older snapshot of the volume than {}", base.name, than.name);
    Err(UserError::new(codes::BAD_USAGE, what, format!("basalt snapshot ls {volume} shows their order")).into())
}

fn base_of(base: &SnapshotView) -> Base {
    Base {
        snapshot: base.name.rsplit('@').next().unwrap_or("").to_owned(),
        snapshot_id: base.snapshot.0,
        created_ms: base.created_ms,
        len_bytes: base.len_bytes,
    }
}

/// Where a stream goes.
struct Output {
    file: File,
    /// The name that the file gets, and the one that it has until then. `None`: it is standard output, a pipe or a device.
    names: Option<(PathBuf, PathBuf)>,
    shown: String,
}

impl Output {
    fn open(into: Option<&Path>) -> Result<Output> {
        let Some(path) = into else {
            let file = File::from(stdout().as_fd().try_clone_to_owned()?);
            return Ok(Output { file, names: None, shown: "standard output".to_owned() });
        };
        let is_plain = std::fs::metadata(path).map_or(true, |found| found.is_file());
        let part = PathBuf::from(format!("{}.part", path.display()));
        let names = is_plain.then(|| (path.to_owned(), part));
        let at = names.as_ref().map_or(path, |(_, part)| part);
        let shown = at.display().to_string();
        let mut options = OpenOptions::new();
        options.write(true).read(is_plain).create(is_plain).truncate(false).mode(MODE);
        // Its name can be foretold: a link that lies there is not followed.
        let opened = if is_plain { options.custom_flags(libc::O_NOFOLLOW).open(at) } else { options.open(at) };
        let file = opened.map_err(|error| unusable(&shown, &error))?;
        if is_plain {
            own(&file, at, &shown)?;
        }
        Ok(Output { file, names, shown })
    }

    /// Begins the stream, or goes on with what an interrupted command has written of it.
    fn begin(&self, head: &Head) -> Result<Encoder<BufWriter<File>>> {
        let failed = |error: std::io::Error| unusable(&self.shown, &error);
        let mut file = self.file.try_clone().map_err(failed)?;
        let mut place = None;
        if self.names.is_some() {
            place = StreamPlace::last(BufReader::with_capacity(BUFFER, &file), head).map_err(super::failed)?;
            let at = place.map_or(0, |place| place.stream_bytes());
            if place.is_none() && file.metadata().is_ok_and(|found| found.len() > 0) {
                remark(&format!("{} is a part of another stream: it is written from the start", self.shown));
            }
            file.set_len(at).and_then(|()| file.seek(SeekFrom::Start(at))).map_err(failed)?;
        }
        let out = BufWriter::with_capacity(BUFFER, file);
        let Some(place) = place else { return Encoder::begin(out, head).map_err(|error| self.failed(error)) };
        remark(&format!("{} was being written: going on behind {}", self.shown, show(place.done_bytes())));
        Ok(Encoder::go_on(out, place))
    }

    /// Gives the file its name when it is durable.
    fn keep(&self) -> Result<()> {
        let Some((path, part)) = &self.names else { return Ok(()) };
        // After a failed flush the kernel may show bytes that no device has.
        let flushed = self.file.sync_all().inspect_err(|_| drop(std::fs::remove_file(part)));
        let kept = flushed.and_then(|()| std::fs::rename(part, path)).and_then(|()| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        });
        Ok(kept.map_err(|error| unusable(&path.display().to_string(), &error))?)
    }

    /// Returns the error of a stream that was not written to its end. What there is of a file stays, if it can be of use.
    fn failed(&self, error: backup::Error) -> anyhow::Error {
        match (&self.names, error) {
            (Some((_, part)), error @ backup::Error::Incomparable) => {
                let _ = std::fs::remove_file(part);
                failed(error)
            }
            (None, backup::Error::File { source, .. }) => {
                let what = format!("{}: {source}; the stream is not complete", self.shown);
                UserError::new(codes::OUTPUT_FAILED, what, "look at what reads it, and export again").into()
            }
            (Some(_), error) => {
                remark(&format!("{} has a part of the stream: the same command goes on", self.shown));
                match error {
                    backup::Error::File { source, .. } => unusable(&self.shown, &source).into(),
                    other => failed(other),
                }
            }
            (None, other) => failed(other),
        }
    }
}

/// Makes sure that this command alone writes to a file, which another one may have left there.
fn own(file: &File, path: &Path, shown: &str) -> Result<()> {
    let busy = || {
        let next = "wait until it has ended, or choose another file with -o";
        UserError::new(codes::FILE_UNUSABLE, format!("{shown}: another command writes it"), next)
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy().into()),
        Err(TryLockError::Error(error)) => return Err(unusable(shown, &error).into()),
    }
    // Nothing but the file that an export made is written over: no pipe, and no other file under this name.
    let found = file.metadata().map_err(|error| unusable(shown, &error))?;
    if !found.is_file() || found.nlink() > 1 {
        let what = format!("{shown} is no file of an export: it is no regular file, or has another name, too");
        return Err(UserError::new(codes::FILE_UNUSABLE, what, "move it away, or choose another file with -o").into());
    }
    // The one that had it may have given it its name meanwhile.
    let ids = |found: Metadata| (found.dev(), found.ino());
    let same = std::fs::symlink_metadata(path).and_then(|there| Ok(ids(there) == ids(file.metadata()?)));
    if !same.unwrap_or(false) {
        return Err(busy().into());
    }
    file.set_permissions(Permissions::from_mode(MODE)).map_err(|error| unusable(shown, &error).into())
}

fn unusable(path: &str, error: &std::io::Error) -> UserError {
    let next = "choose another file with -o, or free space there";
    UserError::new(codes::FILE_UNUSABLE, format!("{path}: {error}"), next)
}

fn told(head: &Head, (totals, written, from): (Totals, u64, u64), into: Option<&Path>, as_json: bool) -> Result<()> {
    let subject = &head.subject;
    let name = format!("{}/{}@{}", subject.pool, subject.volume, subject.snapshot);
    let base = head.base.as_ref().map(|base| base.snapshot.clone());
    if as_json {
        let body = json!({
            "file": into, "name": name, "base": base, "len_bytes": subject.len_bytes, "frames": totals.frames,
            "data_bytes": totals.data_bytes, "zero_bytes": totals.zero_bytes, "written_bytes": written,
            "resumed_at_bytes": from,
        });
        return json("backup.export", body);
    }
    let since = base.map(|base| format!(" since {base}")).unwrap_or_default();
    let text = format!("{name}: {} of data{since}, {} written", show(totals.data_bytes), show(written));
    match into {
        Some(_) => out!("{text}"),
        None => remark(&text),
    }
    Ok(())
}
