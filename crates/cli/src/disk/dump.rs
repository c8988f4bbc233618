//! `basalt disk dump-log`: batches and records of the log, one a line, as the device holds them.
//!
//! Invariant: memory holds one segment. The log is not mounted, so a log that no OSD could mount is printed, too.

use super::device::{Device, device_error};
use crate::disk_args::DiskDumpLog;
use crate::output;
use anyhow::Result;
use engine::offline::Access;
use engine::offline::log::{Found, Survey};
use layout::log::{PlacedRun, Record, SeenBatch, payload_of};
use serde_json::json;
use types::{AU, Index, ReplicaId, Term};

/// One printed line.
struct Line {
    seq: u64,
    kind: &'static str,
    replica: Option<ReplicaId>,
    index: Option<Index>,
    term: Option<Term>,
    bytes: u64,
    /// State of the checksum. A payload at home, which this command does not read, has none.
    state: &'static str,
    note: String,
}

/// Prints the log.
pub fn run(args: &DiskDumpLog, as_json: bool) -> Result<()> {
    let mut device = Device::open(&args.store, Access::Read)?;
    let of = device.superblock()?;
    let path = device.log_path.clone();
    let failed = |error| device_error(&path, error);
    let mut survey = Survey::new(&mut device.env, &device.disks.log, &of, false).map_err(failed)?;
    if !as_json {
        out!(
            "{:>10}  {:<12} {:>8} {:>10} {:>6} {:>10}  {:<8} note",
            "seq",
            "kind",
            "replica",
            "index",
            "term",
            "bytes",
            "state"
        );
    }
    let (mut left, mut result) = (args.limit.unwrap_or(u64::MAX), Ok(()));
    survey
        .visit(&mut device.env, &device.disks.log, &mut |found| {
            if found.batch.header.seq < args.from {
                return true;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            result = lines_of(&found).iter().try_for_each(|line| line.print(as_json));
            result.is_ok()
        })
        .map_err(failed)?;
    for slot in &survey.unreadable {
        output::remark(&format!("the device does not give back segment {slot} of the log"));
    }
    result
}

impl Line {
    fn print(&self, as_json: bool) -> Result<()> {
        if as_json {
            let body = json!({
                "seq": self.seq, "kind": self.kind, "replica": self.replica, "index": self.index, "term": self.term,
                "bytes": self.bytes, "state": self.state, "note": self.note,
            });
            return output::json_line("disk.log", body);
        }
        let shown = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let replica = self.replica.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let (index, term) = (shown(self.index.map(|index| index.0)), shown(self.term.map(|term| term.0)));
        let Line { seq, kind, bytes, state, note, .. } = self;
        let line = format!("{seq:>10}  {kind:<12} {replica:>8} {index:>10} {term:>6} {bytes:>10}  {state:<8} {note}");
        out!("{}", line.trim_end());
        Ok(())
    }
}

/// Returns the line of a batch and those of its records; before them the records of a batch that is known by its copy alone.
fn lines_of(Found { slot, batch, copied }: &Found) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some((header, records)) = copied {
        let note = format!("segment {slot}: its header is lost, and the next batch copies its records");
        lines.push(Line {
            seq: header.seq,
            kind: "batch",
            state: "copied",
            note,
            bytes: header.len_bytes(),
            ..Line::bare()
        });
        lines.extend(records.iter().map(|record| Line { seq: header.seq, state: "copied", ..line_of(record) }));
    }
    lines.push(batch_line(*slot, batch));
    for record in batch.records.iter().flatten() {
        let state = match (record, payload_of(record, &batch.payload)) {
            (Record::Placed { .. }, _) => "not read",
            (Record::LostEntry { .. }, _) => "lost",
            (_, Ok(_)) => "good",
            (_, Err(_)) => "damaged",
        };
        lines.push(Line { seq: batch.header.seq, state, ..line_of(record) });
    }
    lines
}

fn batch_line(slot: u32, batch: &SeenBatch) -> Line {
    let header = &batch.header;
    let state = match (&batch.records, batch.whole) {
        (None, _) => "damaged",
        (Some(_), false) => "payload",
        (Some(_), true) => "good",
    };
    let (mount, durable, tail) = (header.mount, header.durable_seq, header.tail_seq);
    let note = format!(
        "segment {slot} at {}, mount {mount}, {} records, durable {durable}, tail {tail}",
        header.offset, header.record_count
    );
    Line { seq: header.seq, kind: "batch", state, bytes: header.len_bytes(), note, ..Line::bare() }
}

impl Line {
    fn bare() -> Line {
        let (replica, index, term) = (None, None, None);
        Line { seq: 0, kind: "", replica, index, term, bytes: 0, state: "good", note: String::new() }
    }

    fn of(kind: &'static str, replica: ReplicaId) -> Line {
        Line { kind, replica: Some(replica), ..Line::bare() }
    }

    fn note(self, note: impl Into<String>) -> Line {
        Line { note: note.into(), ..self }
    }

    fn entry(self, index: Index, term: Term, bytes: u64) -> Line {
        Line { index: Some(index), term: Some(term), bytes, ..self }
    }
}

fn copied_note(copied: bool) -> &'static str {
    if copied { "copied forward" } else { "" }
}

fn placed_bytes(runs: &[PlacedRun]) -> u64 {
    runs.iter().map(|run| u64::from(run.count) * AU).sum()
}

fn line_of(record: &Record<'_>) -> Line {
    match record {
        Record::Append { replica, index, term, copied, payload, .. } => {
            Line::of("append", *replica).entry(*index, *term, payload.len.into()).note(copied_note(*copied))
        }
        Record::Placed { replica, index, term, copied, runs, .. } => {
            let note = format!("payload at home in {} runs {}", runs.len(), copied_note(*copied));
            Line::of("placed", *replica).entry(*index, *term, placed_bytes(runs)).note(note.trim_end())
        }
        Record::LostEntry { replica, index, term, len_bytes, .. } => {
            Line::of("lost-entry", *replica).entry(*index, *term, (*len_bytes).into()).note("its payload is lost")
        }
        Record::HardState { replica, hard_state } => {
            let vote = hard_state.vote.map_or_else(|| "none".to_owned(), |vote| vote.to_string());
            Line::of("hard-state", *replica).entry(hard_state.commit, hard_state.term, 0).note(format!("vote {vote}"))
        }
        Record::Create(of) => Line::of("create", of.identity.replica).note(format!("PG {}", of.identity.pg)),
        Record::ReplicaState(of) => {
            let failed =
                of.failure.as_ref().map_or_else(String::new, |failure| format!(", failed: {}", failure.reason));
            let (commit, term) = (of.hard_state.commit, of.hard_state.term);
            Line::of("state", of.identity.replica).entry(commit, term, 0).note(format!("PG {}{failed}", of.identity.pg))
        }
        Record::Destroy { replica } => Line::of("destroy", *replica).note("tombstone"),
        Record::Block(block) => {
            let line = Line::of("block", block.replica).note(format!("{} block {}", block.chunk, block.block));
            Line { index: Some(block.index), bytes: block.payload.len.into(), ..line }
        }
        Record::Reset { replica, index, term } => {
            Line::of("reset", *replica).entry(*index, *term, 0).note("the log begins behind this entry")
        }
        Record::Past { replica, last } => Line { index: Some(*last), ..Line::of("past", *replica) },
        Record::Revived { replica } => Line::of("revived", *replica),
        other => line_of_store(other),
    }
}

/// Returns the line of a record that concerns no single replica.
fn line_of_store(record: &Record<'_>) -> Line {
    let line = |kind, note: String| Line { kind, note, ..Line::bare() };
    match record {
        Record::Checkpoint(part) => {
            let line = line("checkpoint", format!("number {}, part {} of {}", part.id, part.part + 1, part.parts));
            Line { bytes: part.bytes.len() as u64, ..line }
        }
        Record::Mount => line("mount", String::new()),
        Record::SegmentOpen { replicas, mount } => {
            let by = if *mount { ", by a mount" } else { "" };
            line("segment-open", format!("state block of {replicas} replicas{by}"))
        }
        Record::StateMore { .. } => line("state-more", String::new()),
        Record::StateEnd => line("state-end", String::new()),
        Record::ReplicaFloor(floor) => line("floor", format!("below {floor}")),
        Record::Tombstones(gone) => line("tombstones", format!("{} replicas", gone.len())),
        Record::Map(map) => Line { bytes: map.len() as u64, ..line("map", String::new()) },
        Record::CreatesLost { below, .. } => line("creates-lost", format!("of replicas below {below}")),
        _ => line("record", String::new()),
    }
}
