//! The log of a device: the chain of its batches, their checksums, and the parts of the last checkpoint.
//!
//! Invariant: what is missing above the last batch known durable is a torn tail, as for a mount (R11), and no damage.

use super::Report;
use crate::disk::device::{Device, device_error};
use anyhow::Result;
use engine::Superblock;
use engine::offline::log::{Bounds, Found, Survey};
use layout::checkpoint::{Checkpoint, NewestCheckpoint};
use layout::log::{Record, payload_of};

/// State of the walk along the chain.
struct Chain<'r> {
    report: &'r mut Report,
    bounds: Bounds,
    expect: u64,
    newest: NewestCheckpoint,
}

/// Checks the log. Returns the last checkpoint, if it is whole.
///
/// # Errors
/// The device fails for a reason that is none of the medium.
pub fn check(device: &mut Device, of: &Superblock, report: &mut Report) -> Result<Option<Checkpoint>> {
    let path = device.log_path.clone();
    let failed = |error| device_error(&path, error);
    let mut survey = Survey::new(&mut device.env, &device.disks.log, of, true).map_err(failed)?;
    let bounds = survey.bounds;
    if bounds.last_seq == 0 {
        report.damage("log batches", "the log holds no valid batch");
        return Ok(None);
    }
    let mut chain = Chain { report, bounds, expect: bounds.tail_seq, newest: NewestCheckpoint::default() };
    survey
        .visit(&mut device.env, &device.disks.log, &mut |found| {
            chain.take(&found);
            true
        })
        .map_err(failed)?;
    chain.end();
    let newest = chain.newest;
    for slot in &survey.unreadable {
        report.damage("log batches", format!("the device does not give back segment {slot}"));
    }
    for segment in survey.live().iter().filter(|segment| !segment.opens) {
        report.note(format!("segment {} has lost its first batch", segment.slot));
    }
    Ok(super::whole(&newest, report))
}

impl Chain<'_> {
    fn take(&mut self, Found { batch, copied, .. }: &Found) {
        let seq = batch.header.seq;
        let from = copied.as_ref().map_or(seq, |(before, _)| before.seq);
        self.missing(from);
        if let Some((before, records)) = copied {
            let what = format!("the header of batch {} is lost; the next batch copies its records", before.seq);
            self.judge(before.seq, "log batches", what);
            self.note_records(records);
        }
        self.expect = seq + 1;
        self.report.checked("log batches", 1);
        let Some(records) = &batch.records else {
            return self.judge(seq, "log batches", format!("the records of batch {seq} fail their checksum"));
        };
        let payloads = records.iter().filter(|r| matches!(r, Record::Append { .. } | Record::Block(_)));
        self.report.checked("log payloads", payloads.count() as u64);
        let bad = records.iter().filter(|record| payload_of(record, &batch.payload).is_err()).count();
        if !batch.whole {
            let what = match bad {
                0 => format!("payloads of batch {seq} are older bytes with equal checksums"),
                _ => format!("{bad} payloads of batch {seq} at {} fail their checksums", batch.header.offset),
            };
            self.judge(seq, "log payloads", what);
        }
        self.note_records(records);
    }

    fn note_records(&mut self, records: &[Record<'_>]) {
        for record in records {
            match record {
                Record::Checkpoint(part) => self.newest.take(part.id, part.part, part.parts, &part.bytes),
                Record::Create(of) | Record::ReplicaState(of) if of.failure.is_some() => {
                    self.report.told.insert(of.identity.replica);
                }
                Record::Revived { replica } => {
                    self.report.told.remove(replica);
                }
                _ => {}
            }
        }
    }

    /// Judges batches that are not there, from the expected one up to `from`.
    fn missing(&mut self, from: u64) {
        if from > self.expect {
            let (first, last) = (self.expect, from - 1);
            self.judge(first, "log batches", format!("batches {first} to {last} are missing"));
        }
    }

    /// Counts damage of a batch, or a note when the batch may be part of a torn tail.
    fn judge(&mut self, seq: u64, part: &'static str, what: String) {
        match seq <= self.bounds.durable_seq {
            true => self.report.damage(part, what),
            false => self.report.note(format!("{what}: a torn end of the log, which the next start drops")),
        }
    }

    fn end(&mut self) {
        if self.expect <= self.bounds.durable_seq {
            self.missing(self.bounds.durable_seq + 1);
        }
    }
}
