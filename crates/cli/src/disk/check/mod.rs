//! `basalt disk check`: every structure of a device, from the superblock to the blocks.
//!
//! First the bytes are read as they are: superblocks, marks, log batches, the last checkpoint and the pages that it names. Then
//! the store is mounted in memory, which shows what its OSD would find. With `--data` all blocks are read through that
//! mount, because blocks that the log redoes may differ from their checksums at home.
//!
//! Invariant: memory is bounded by that of an OSD with this device; at most [`LISTED_MAX`] findings are kept.

mod log;
mod pages;

use super::device::Device;
use super::view::View;
use crate::disk_args::{DiskCheck, LogEnd};
use crate::errors::{Exit, UserError};
use crate::output;
use anyhow::Result;
use engine::offline::{self, Access};
use engine::{Part, Superblock};
use env::DiskInfo;
use indicatif::{ProgressBar, ProgressStyle};
use layout::checkpoint::Checkpoint;
use layout::poison::{self, BEHIND_AT, POISON_AT, POISON_LEN};
use layout::superblock::SUPERBLOCK_LEN;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::units::SECTORS_PER_BLOCK;
use types::{PgId, ReplicaId};

/// Most findings that are listed; all are counted.
pub const LISTED_MAX: usize = 1000;

/// Parts of a device, in the order of the table.
const PARTS: &[&str] = &[
    "superblocks",
    "log batches",
    "log payloads",
    "checkpoint",
    "decision pages",
    "dissolved pages",
    "directory pages",
    "map pages",
    "checksum pages",
    "ownership",
    "replicas",
    "blocks",
];

/// Result of a check.
#[derive(Default)]
pub struct Report {
    /// Number of things that were checked, and of those that are damaged, by part.
    counts: BTreeMap<&'static str, (u64, u64)>,
    /// Part and description of each finding, at most [`LISTED_MAX`].
    found: Vec<(&'static str, String)>,
    damaged: u64,
    /// Facts that are no damage.
    notes: Vec<String>,
    /// Replicas that have failed according to the log: these failures are known, and no finding.
    told: BTreeSet<ReplicaId>,
}

impl Report {
    /// Counts things that were checked.
    pub fn checked(&mut self, part: &'static str, count: u64) {
        assert!(PARTS.contains(&part), "{part} has a row");
        self.counts.entry(part).or_default().0 += count;
    }

    /// Counts a damaged thing.
    pub fn damage(&mut self, part: &'static str, what: impl Into<String>) {
        assert!(PARTS.contains(&part), "{part} has a row");
        self.counts.entry(part).or_default().1 += 1;
        self.damaged += 1;
        if self.found.len() < LISTED_MAX {
            self.found.push((part, what.into()));
        }
    }

    pub fn note(&mut self, what: impl Into<String>) {
        if self.notes.len() < LISTED_MAX {
            self.notes.push(what.into());
        }
    }

    /// Counts a failed replica: a note if the log records the failure, and damage if the mount has found it.
    fn failed(&mut self, replica: ReplicaId, pg: PgId, reason: &str) {
        match self.told.contains(&replica) {
            true => self.note(format!("{replica} of PG {pg} has failed: {reason}")),
            false => self.damage("replicas", format!("{replica} of PG {pg} fails at this mount: {reason}")),
        }
    }

    #[cfg(test)]
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

/// Checks a device.
pub fn run(args: &DiskCheck, as_json: bool) -> Result<Exit> {
    let mut device = Device::open(&args.store, Access::Read)?;
    let of = device.superblocks()?;
    let bar = bar(as_json);
    let report = examine(&mut device, &of, args.data, &bar)?;
    let (_, of) = of;
    bar.finish_and_clear();
    show(args, &of, &report, as_json)?;
    Ok(if report.damaged > 0 { Exit::Degraded } else { Exit::Done })
}

/// Checks a device whose superblocks, that of the log and that of home, are `of_log` and `of`.
///
/// # Errors
/// The device fails for a reason that is none of the medium.
pub fn examine(
    device: &mut Device,
    (of_log, of): &(Superblock, Superblock),
    data: bool,
    bar: &ProgressBar,
) -> Result<Report> {
    let mut report = Report::default();
    bar.set_message("superblocks and log");
    superblocks(device, [of_log, of], &mut report);
    for (disk, of) in [(&device.disks.log, of_log), (&device.disks.home, of)] {
        if of.device_bytes > disk.size_bytes {
            let (has, needs) = (disk.size_bytes, of.device_bytes);
            let what = format!("the device has {has} bytes, and was formatted with {needs}: it is cut off");
            report.damage("superblocks", what);
            return Ok(report);
        }
    }
    marks(device, of, &mut report);
    match log::check(device, of_log, &mut report)? {
        Some(checkpoint) if checkpoint.geometry.len_bytes() > of.home_bytes => {
            report.damage("checkpoint", "it describes a data area that is larger than the device's");
        }
        Some(checkpoint) => pages::check(device, of, &checkpoint, &mut report, bar),
        None => {}
    }
    mounted(device, data, &mut report, bar)?;
    Ok(report)
}

fn bar(hidden: bool) -> ProgressBar {
    if hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta} left");
    ProgressBar::new(0).with_style(style.expect("a template of known fields").progress_chars("=> "))
}

fn superblocks(device: &mut Device, of: [&Superblock; 2], report: &mut Report) {
    let disks: Vec<DiskInfo> = device.disks.each().into_iter().map(|(disk, _)| disk.clone()).collect();
    for (disk, of) in disks.iter().zip(of) {
        copies(device, disk, of, report);
    }
}

fn copies(device: &mut Device, disk: &DiskInfo, of: &Superblock, report: &mut Report) {
    for offset in Superblock::offsets(disk.size_bytes) {
        report.checked("superblocks", 1);
        match offline::read(&mut device.env, disk, offset, SUPERBLOCK_LEN) {
            Err(error) => report.damage("superblocks", format!("the copy at {offset} cannot be read: {error}")),
            Ok(page) => match Superblock::decode(&page) {
                Err(error) => report.damage("superblocks", format!("the copy at {offset}: {error}")),
                Ok(other) if other != *of => {
                    report.damage("superblocks", format!("the copy at {offset} differs from the other one"));
                }
                Ok(_) => {}
            },
        }
    }
    if of.device_bytes < disk.size_bytes {
        let (has, used) = (disk.size_bytes, of.device_bytes);
        report.note(format!("the device has {has} bytes, and was formatted with {used}"));
    }
}

fn marks(device: &mut Device, of: &Superblock, report: &mut Report) {
    for (offset, what) in [(POISON_AT, "the store has failed"), (BEHIND_AT, "an older copy")] {
        let page = device.read_log(offset, POISON_LEN).ok();
        let found = page.and_then(|page| poison::decode(&page, of.uuid));
        let mut other = || device.read_home(offset, POISON_LEN).ok().and_then(|page| poison::decode(&page, of.uuid));
        if let Some(reason) = found.or_else(&mut other) {
            report.note(format!("a mark says: {what}: {reason}"));
        }
    }
}

/// Mounts the store in memory; with `data` every block is read.
fn mounted(device: &mut Device, data: bool, report: &mut Report, bar: &ProgressBar) -> Result<()> {
    bar.set_message("mount");
    let mut view = match View::open(device, LogEnd { uncommitted: false }) {
        Ok(view) => view,
        Err(error) => {
            let error = error.downcast::<UserError>()?;
            report.damage("replicas", format!("the store cannot be mounted: {}", error.what));
            return Ok(());
        }
    };
    if let Err(reason) = view.store.engine().audit() {
        report.damage("ownership", reason);
    }
    if let Some(lost) = view.store.engine().lost_records() {
        report.damage("log batches", format!("log gap: {lost}"));
    }
    for (replica, aus, _) in view.store.engine().leftovers_for_tools() {
        report.note(format!("{replica} is not on this device any more; a checkpoint will free its {aus} AUs"));
    }
    for replica in view.replicas() {
        report.checked("replicas", 1);
        let (id, pg) = (replica.identity.replica, replica.identity.pg);
        match (&replica.part, view.stale(id)) {
            (Part::Failed(failure), _) => report.failed(id, pg, &failure.reason),
            (Part::Filling, _) => report.note(format!("{id} of PG {pg} waits for a stream with its contents")),
            (Part::Repairing { lost }, _) => {
                let lost: Vec<String> = lost.iter().take(10).map(|index| index.0.to_string()).collect();
                report.damage(
                    "log payloads",
                    format!("{id} of PG {pg} has lost payloads of entries {}", lost.join(", ")),
                );
            }
            (Part::Running, Some(reason)) => report.damage("replicas", reason.to_owned()),
            (Part::Running, None) => {}
        }
    }
    if data { blocks(&mut view, report, bar) } else { Ok(()) }
}

/// Reads every block through the mount.
fn blocks(view: &mut View<'_>, report: &mut Report, bar: &ProgressBar) -> Result<()> {
    bar.set_message("chunks");
    let replicas = view.replicas();
    bar.set_position(0);
    bar.set_length(replicas.iter().map(|replica| replica.chunks).sum());
    for replica in &replicas {
        let (id, pg) = (replica.identity.replica, replica.identity.pg);
        for held in view.store.engine().chunks_for_tools(id) {
            report.checked("blocks", held.home.map_or(0, |home| home.blocks.into()));
            view.each_piece(replica, held.chunk, &mut |range, bytes| {
                for bad in bytes.bad {
                    let at = u64::from(bad.block * SECTORS_PER_BLOCK - range.start) * types::SECTOR;
                    assert!(at < range.len_bytes() as u64, "a bad block lies in what was read");
                    let what = format!("block {} of chunk {} of {id} of PG {pg}: {}", bad.block, bad.chunk, bad.reason);
                    report.damage("blocks", what);
                }
                Ok(())
            })?;
            bar.inc(1);
        }
    }
    Ok(())
}

fn show(args: &DiskCheck, of: &Superblock, report: &Report, as_json: bool) -> Result<()> {
    let count = |part: &&'static str| report.counts.get(*part).copied().unwrap_or_default();
    if as_json {
        let parts: Vec<Value> = PARTS
            .iter()
            .map(|part| json!({ "part": part, "checked": count(part).0, "damaged": count(part).1 }))
            .collect();
        let found: Vec<Value> = report.found.iter().map(|(part, what)| json!({ "part": part, "what": what })).collect();
        let body = json!({
            "device": args.store.device, "osd": of.osd, "clean": report.damaged == 0, "data": args.data, "parts": parts,
            "damage_count": report.damaged, "damage": found, "notes": report.notes,
        });
        return output::json("disk.check", body);
    }
    let rows = PARTS.iter().filter(|part| **part != "blocks" || args.data).map(|part| {
        let (checked, damaged) = count(part);
        vec![(*part).to_owned(), checked.to_string(), damaged.to_string()]
    });
    output::table(&["part", "checked", "damaged"], rows);
    report.found.iter().for_each(|(part, what)| out!("{part}: {what}"));
    if report.damaged > report.found.len() as u64 {
        out!("… and {} more", report.damaged - report.found.len() as u64);
    }
    report.notes.iter().for_each(|note| out!("note: {note}"));
    match (report.damaged, args.data) {
        (0, true) => out!("{}: clean", args.store.device.display()),
        (0, false) => out!("{}: clean; --data reads the blocks, too", args.store.device.display()),
        (count, _) => out!("{}: {count} findings", args.store.device.display()),
    }
    Ok(())
}

/// Returns the checkpoint that the parts in a log form, or the reason why they form none.
pub fn whole(newest: &layout::checkpoint::NewestCheckpoint, report: &mut Report) -> Option<Checkpoint> {
    match newest.decode() {
        None => {
            report.note("the log holds no checkpoint: nothing is at home yet");
            None
        }
        Some(Ok(checkpoint)) => {
            report.checked("checkpoint", 1);
            Some(checkpoint)
        }
        Some(Err(error)) => {
            report.checked("checkpoint", 1);
            report.damage("checkpoint", error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    #[test]
    fn failure_is_damage_unless_the_log_records_it() {
        let (pg, known, found) = (PgId { pool: PoolId(1), n: 2 }, ReplicaId(1), ReplicaId(2));
        let mut report = Report { told: BTreeSet::from([known]), ..Report::default() };
        report.failed(known, pg, "a gap");
        assert_eq!((report.damaged(), report.notes.len()), (0, 1));
        report.failed(found, pg, "a gap");
        assert_eq!((report.damaged(), report.notes.len()), (1, 1));
    }
}
