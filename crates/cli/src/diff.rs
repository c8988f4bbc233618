//! `basalt volume diff`: the extents of a volume or a snapshot that hold data, or that changed since an older snapshot.
//!
//! They come from the maps of the cluster; no data is read.
//!
//! Invariant: memory is bounded by the extents of [`EXTENTS_LEN_MAX`] bytes of the volume, whatever its size.

use crate::admin::Admin;
use crate::backup::volume::{extents, is_incomparable};
use crate::backup::{ready, refused};
use crate::errors::UserError;
use crate::output::{json_line, remark};
use crate::size::show;
use anyhow::Result;
use clap::Args;
use clientthread::{Access, Cluster, Failure, Settings, Volume};
use control::admin::SnapshotView;
use device::{EXTENTS_LEN_MAX, push_extent};
use serde_json::json;
use std::ops::Range;
use types::codes;

#[derive(Args, Debug, Clone)]
pub struct DiffArgs {
    /// POOL/VOLUME or POOL/VOLUME@SNAPSHOT
    #[arg(add = crate::completion::contents())]
    name: String,
    /// Only the extents that changed since this older snapshot of the volume
    #[arg(long, value_name = "SNAPSHOT", add = crate::completion::older())]
    since: Option<String>,
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    offset: u64,
    len: u64,
    /// It reads as zeros.
    zero: bool,
}

pub fn run(admin: &Admin, args: &DiffArgs, as_json: bool) -> Result<()> {
    let since = args.since.as_deref().map(|since| older(admin, &args.name, since)).transpose()?;
    let settings = Settings { kind: "diff".to_owned(), ..Settings::new(admin.metas()) };
    let cluster = Cluster::connect(settings).map_err(refused)?;
    let volume = cluster.open(&args.name, Access::Read).map_err(refused)?;
    let old = since.as_ref().map(|since| cluster.open(&since.name, Access::Read)).transpose().map_err(refused)?;
    let mut printed = Printed { as_json, last: None, extents: 0, bytes: 0 };
    let len = volume.info().len_bytes;
    if !as_json {
        out!("{:>20}  {:>16}  CONTENTS", "OFFSET", "LENGTH");
    }
    for start in (0..len).step_by(EXTENTS_LEN_MAX as usize) {
        let range = start..(start + EXTENTS_LEN_MAX).min(len);
        let data = extents(&volume, range.clone(), None).map_err(refused)?;
        let listed = match (&since, &old) {
            (Some(since), Some(old)) => {
                let id = Some(since.snapshot);
                let changed = extents(&volume, range.clone(), id).map_err(|failure| incomparable(failure, args))?;
                let had = padded(old, range).map_err(refused)?;
                // Zeros that were zeros before are no change.
                combined(&changed, &combined(&data, &had, |data, had| data || had), |changed, some| changed && some)
            }
            _ => data.clone(),
        };
        for extent in overlay(start, &listed, &data) {
            printed.put(extent)?;
        }
    }
    printed.end()
}

/// Returns the snapshot `since` of the volume of `name`.
fn older(admin: &Admin, name: &str, since: &str) -> Result<SnapshotView> {
    let volume = name.split('@').next().unwrap_or(name);
    let full = if since.contains('@') { since.to_owned() } else { format!("{volume}@{since}") };
    let base = ready(admin, &full)?;
    let is_older = match name.contains('@') {
        true => {
            let of = crate::snapshots::info(admin, name)?;
            base.volume == of.volume && base.snapshot <= of.snapshot
        }
        false => base.volume == admin.volume_info(name)?.volume,
    };
    if is_older {
        return Ok(base);
    }
    let what = format!("{full} is no older snapshot of the volume than {name}");
    Err(UserError::new(codes::BAD_USAGE, what, format!("basalt snapshot ls {volume} shows their order")).into())
}

/// Returns the error for contents that cannot be compared.
fn incomparable(failure: Failure, args: &DiffArgs) -> anyhow::Error {
    if !is_incomparable(&failure) {
        return refused(failure);
    }
    let since = args.since.as_deref().unwrap_or_default();
    let what =
        format!("{} cannot be compared with {since}: it was rolled back since, or the snapshot was deleted", args.name);
    UserError::new(codes::BAD_USAGE, what, format!("basalt volume diff {}   # all its data", args.name)).into()
}

/// Returns the extents of a range of a volume that may end before it: there is no data behind its end.
fn padded(volume: &Volume, range: Range<u64>) -> Result<Vec<(u64, bool)>, Failure> {
    let end = volume.info().len_bytes.clamp(range.start, range.end);
    let mut runs = extents(volume, range.start..end, None)?;
    runs.push((range.end - end, false));
    Ok(runs)
}

/// Returns two lists of runs over the same bytes as one.
fn combined(some: &[(u64, bool)], others: &[(u64, bool)], is_listed: impl Fn(bool, bool) -> bool) -> Vec<(u64, bool)> {
    let mut runs = Vec::new();
    for_each_cut(some, others, |len, one, other| push_extent(&mut runs, len, is_listed(one, other)));
    runs
}

/// Calls for each run in which neither list changes.
fn for_each_cut(some: &[(u64, bool)], others: &[(u64, bool)], mut call: impl FnMut(u64, bool, bool)) {
    let (mut some, mut others) = (some.iter().copied(), others.iter().copied());
    let (mut one, mut other) = (some.next(), others.next());
    while let (Some((left, first)), Some((more, second))) = (one, other) {
        let len = left.min(more);
        if len > 0 {
            call(len, first, second);
        }
        one = if left > len { Some((left - len, first)) } else { some.next() };
        other = if more > len { Some((more - len, second)) } else { others.next() };
    }
}

/// Cuts the listed runs where data begins or ends. Both lists cover the same bytes from `start` on.
fn overlay(start: u64, listed: &[(u64, bool)], data: &[(u64, bool)]) -> Vec<Extent> {
    let (mut out, mut at) = (Vec::new(), start);
    for_each_cut(listed, data, |len, is_listed, has_data| {
        if is_listed {
            out.push(Extent { offset: at, len, zero: !has_data });
        }
        at += len;
    });
    out
}

/// Prints extents, neighbours of one kind as one.
struct Printed {
    as_json: bool,
    last: Option<Extent>,
    extents: u64,
    bytes: u64,
}

impl Printed {
    fn put(&mut self, extent: Extent) -> Result<()> {
        match &mut self.last {
            Some(last) if last.offset + last.len == extent.offset && last.zero == extent.zero => last.len += extent.len,
            _ => {
                self.print()?;
                self.last = Some(extent);
            }
        }
        Ok(())
    }

    fn print(&mut self) -> Result<()> {
        let Some(Extent { offset, len, zero }) = self.last.take() else { return Ok(()) };
        (self.extents, self.bytes) = (self.extents + 1, self.bytes + len);
        if self.as_json {
            return json_line("extent", json!({ "offset": offset, "len": len, "zero": zero }));
        }
        out!("{offset:>20}  {len:>16}  {}", if zero { "zeros" } else { "data" });
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.print()?;
        if !self.as_json {
            remark(&format!("{} in {} extents", show(self.bytes), self.extents));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_runs_are_cut_where_data_ends() {
        let listed = [(10, true), (20, false), (30, true)];
        let data = [(5, true), (30, false), (25, true)];
        let extent = |offset, len, zero| Extent { offset, len, zero };
        let want = [extent(100, 5, false), extent(105, 5, true), extent(130, 5, true), extent(135, 25, false)];
        assert_eq!(overlay(100, &listed, &data), want);
        assert_eq!(overlay(0, &[(8, false)], &[(8, true)]), []);
        let runs = combined(&[(8, true), (8, false)], &[(4, false), (12, true)], |one, other| one && other);
        assert_eq!(runs, [(4, false), (4, true), (8, false)]);
    }
}
