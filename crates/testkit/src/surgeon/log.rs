//! The log of a stopped OSD's device, and damage to it at places that a mount needs.
//!
//! A batch counts as live when it belongs to the unbroken run of batches that ends with the newest one and begins at the tail
//! that this one names.
//!
//! Invariant: damage strikes bytes that later batches show to be durable, in a batch with an entry that is not at home yet.
//! So a mount can neither take it for a torn tail nor do without these bytes.

use super::{last_checkpoint, read};
use anyhow::{Context, Result};
use layout::log::{BATCH_ALIGN, BatchHeader, Record, walk};
use layout::superblock::Superblock;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use types::{AU, Index, IoBuf, ReplicaId, SECTOR};

/// Damage to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogHarm {
    /// The first page of a batch, with its header and records.
    Header,
    /// The first pages of two neighbouring batches.
    TwoHeaders,
    /// A sector of a payload.
    Payload,
}

/// A batch whose header and records verify.
pub(super) struct Batch {
    pub header: BatchHeader,
    pub records: Vec<Record<'static>>,
}

/// Returns every batch in the log, also those of earlier uses of a segment.
pub(super) fn scan(file: &File, superblock: &Superblock) -> Result<Vec<Batch>> {
    let mut found = Vec::new();
    for segment in 0..u64::from(superblock.segment_count) {
        let base = superblock.log_start + segment * superblock.segment_bytes;
        let bytes = IoBuf::copy_of(&read(file, base, superblock.segment_bytes as usize)?);
        let batches = walk(&bytes, &superblock.log_identity(), base);
        found.extend(batches.into_iter().filter_map(|b| Some(Batch { header: b.header, records: b.records? })));
    }
    Ok(found)
}

/// Damages the log of a device whose OSD is stopped. Returns a description of the place.
///
/// # Errors
/// The log holds no batch that the damage needs.
pub fn harm(path: &Path, harm: LogHarm) -> Result<String> {
    let file = File::options().read(true).write(true).open(path).with_context(|| path.display().to_string())?;
    let superblock = super::superblock(&file)?;
    let all = scan(&file, &superblock)?;
    // Before the first checkpoint nothing is at home.
    let replicas = last_checkpoint(&all).map(|checkpoint| checkpoint.replicas).unwrap_or_default();
    let kept: BTreeMap<ReplicaId, Index> = replicas.iter().map(|of| (of.replica, of.index)).collect();
    let live = live(all);
    let durable = live.iter().map(|batch| batch.header.durable_seq).max().unwrap_or(0);
    let needed: Vec<&Batch> =
        live.iter().filter(|batch| batch.header.seq + 2 <= durable && payload_above(batch, &kept).is_some()).collect();
    let batch = needed.get(needed.len() / 2).context("every payload in the log is at home already")?;
    let header = batch.header;
    let mut strikes = vec![(header.offset, BATCH_ALIGN)];
    match harm {
        LogHarm::Header => {}
        LogHarm::TwoHeaders => {
            let next = live.iter().find(|other| other.header.seq == header.seq + 1).context("a later batch")?;
            strikes.push((next.header.offset, BATCH_ALIGN));
        }
        LogHarm::Payload => {
            let at = payload_above(batch, &kept).context("it was found above")?;
            strikes = vec![(at, SECTOR as usize)];
        }
    }
    for (offset, len) in &strikes {
        file.write_all_at(&vec![0xa5; *len], *offset)?;
    }
    file.sync_all().context("the damage is to stay")?;
    Ok(format!("batch {} of {}..={durable}", header.seq, live.first().map_or(0, |batch| batch.header.seq)))
}

/// Returns the live batches, ascending.
fn live(mut all: Vec<Batch>) -> Vec<Batch> {
    all.sort_unstable_by_key(|batch| batch.header.seq);
    let Some(newest) = all.last().map(|batch| batch.header) else { return all };
    let mut expected = newest.seq;
    let mut run = Vec::new();
    for batch in all.into_iter().rev() {
        if batch.header.seq != expected || expected < newest.tail_seq {
            break;
        }
        run.push(batch);
        expected -= 1;
    }
    run.reverse();
    run
}

/// Returns the offset on the device of an entry's payload that the checkpoint does not cover.
fn payload_above(batch: &Batch, kept: &BTreeMap<ReplicaId, Index>) -> Option<u64> {
    batch.records.iter().find_map(|record| match record {
        Record::Append { replica, index, payload, .. } if payload.len > 0 => {
            let is_above = kept.get(replica).is_none_or(|checkpoint| index > checkpoint);
            let area = batch.header.offset + u64::from(batch.header.header_len);
            is_above.then_some(area + u64::from(payload.offset))
        }
        Record::Placed { replica, index, runs, .. } => {
            let is_above = kept.get(replica).is_none_or(|checkpoint| index > checkpoint);
            is_above.then_some(u64::from(runs[0].unit) * AU)
        }
        _ => None,
    })
}
