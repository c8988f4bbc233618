//! An OSD is out, 1 % of its data changes, and it is in again: little more than the changes is sent to it (ADR 0019).
//!
//! Once the changes are whole chunks, and once single blocks at random. The bytes are those that the leaders log at the end of
//! each backfill, rounded up to MiB.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, anyhow, ensure};
use bench::load::stamp;
use device::Request;
use serde_json::Value;
use std::time::Duration;
use types::limits::PART_MAX;
use types::rng::Rng;
use types::units::CHUNK;
use types::{BLOCK, IoBufMut, SEGMENT};

const SEGMENTS: u64 = 2;
/// Chunks with data in each segment: 1 % of all are whole chunks.
const CHUNKS: u64 = 50;
const CHUNKS_SHORT: u64 = 10;
const OSDS: u32 = 4;
/// Most bytes that are sent, in per cent of the data.
const SENT_MAX: u64 = 5;
/// Least bytes that are found on the OSD, in per cent of the data: it has kept what it had.
const FOUND_MIN: u64 = 90;
/// Longest time until all replicas of an OSD have moved.
const MOVED_MAX: Duration = Duration::from_secs(300);

/// How 1 % of the data changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    WholeChunks,
    RandomBlocks,
}

struct Deltas {
    cluster: Cluster,
    session: Session,
    rng: Rng,
    chunks: u64,
    version: u64,
}

/// Totals of the backfills to one OSD.
#[derive(Clone, Copy, Default)]
struct Backfills {
    count: u64,
    sent_mib: u64,
    found_mib: u64,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { osds: OSDS, device_bytes: 8 << 30, log_bytes: 64 << 20, ..Shape::default() };
    let cluster = Cluster::up(&settings.base, "deltas", shape)?;
    let name = cluster.volume("v", SEGMENTS * SEGMENT)?;
    let session = Session::open(cluster.basalt.metas(), &name, Open::default())?;
    let chunks = if settings.short { CHUNKS_SHORT } else { CHUNKS };
    let mut this = Deltas { cluster, session, rng: Rng::new(settings.seed), chunks, version: 1 };
    let ended = this.fill().and_then(|()| {
        this.out_and_in(Change::WholeChunks, outcome)?;
        this.out_and_in(Change::RandomBlocks, outcome)
    });
    if let Err(error) = ended {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut this.cluster, settings, outcome);
    Ok(())
}

impl Deltas {
    fn fill(&mut self) -> Result<()> {
        for chunk in 0..SEGMENTS * self.chunks {
            self.write_chunk(chunk)?;
        }
        self.cluster.basalt.wait_healthy(MOVED_MAX).map(drop)
    }

    /// Returns the offset of a chunk with data on the volume.
    fn offset(&self, chunk: u64) -> u64 {
        chunk / self.chunks * SEGMENT + chunk % self.chunks * CHUNK
    }

    fn write(&mut self, offset: u64, len: u64) -> Result<()> {
        let mut buf = IoBufMut::new(len as usize);
        stamp::fill(&mut buf, 1, self.version, offset, self.version);
        let request = Request::Write { offset, buf: buf.freeze(), fua: false };
        self.session.call(request)?.map(drop).map_err(|e| anyhow!("writing at {offset}: {e}"))
    }

    fn write_chunk(&mut self, chunk: u64) -> Result<()> {
        let from = self.offset(chunk);
        (from..from + CHUNK).step_by(PART_MAX as usize).try_for_each(|offset| self.write(offset, PART_MAX))
    }

    /// Changes 1 % of the data, at least one chunk. Returns the number of changed bytes.
    fn change(&mut self, change: Change) -> Result<u64> {
        self.version += 1;
        let all = SEGMENTS * self.chunks;
        match change {
            Change::WholeChunks => {
                let count = (all / 100).max(1);
                for n in 0..count {
                    self.write_chunk(n * all / count)?;
                }
                Ok(count * CHUNK)
            }
            Change::RandomBlocks => {
                let count = all * (CHUNK / BLOCK) / 100;
                for _ in 0..count {
                    let chunk = self.rng.below(all);
                    let offset = self.offset(chunk) + self.rng.below(CHUNK / BLOCK) * BLOCK;
                    self.write(offset, BLOCK)?;
                }
                Ok(count * BLOCK)
            }
        }
    }

    fn out_and_in(&mut self, change: Change, outcome: &mut Outcome) -> Result<()> {
        let osd = self.full_osd()?;
        let held = self.pgs_on(osd, false)?.len();
        let name = osd.to_string();
        self.cluster.basalt.run(&["osd", "out", &name])?;
        clock::wait_until(&format!("osd.{osd} to be empty"), MOVED_MAX, || Ok(self.pgs_on(osd, false)?.is_empty()))?;
        self.cluster.basalt.wait_healthy(MOVED_MAX)?;
        let changed = self.change(change)?;
        let before = self.backfills(osd)?;
        let since = clock::now();
        self.cluster.basalt.run(&["osd", "in", &name])?;
        // Balance leaves a difference of two replicas.
        clock::wait_until(&format!("osd.{osd} to get its share back"), MOVED_MAX, || {
            Ok(self.pgs_on(osd, false)?.len() + 2 >= held)
        })?;
        self.cluster.basalt.wait_healthy(MOVED_MAX)?;
        self.bring_back(osd)?;
        let took = since.elapsed();
        let after = self.backfills(osd)?;
        let equal = self.cluster.basalt.verify_deep()?;
        let (sent, found) = (after.sent_mib - before.sent_mib, after.found_mib - before.found_mib);
        let data = (SEGMENTS * self.chunks * CHUNK) >> 20;
        let what = if change == Change::WholeChunks { "whole chunks" } else { "random blocks" };
        outcome.figure(format!(
            "{what}: {} of {data} MiB changed while osd.{osd} was out; {sent} MiB sent at most and {found} MiB found by {} \
             backfills within {} ms; {equal}",
            changed >> 20,
            after.count - before.count,
            took.as_millis()
        ));
        // A chunk is more than 1 % of the data of the short form.
        let sent_max = (data * SENT_MAX / 100).max((changed >> 20) * SENT_MAX);
        outcome.need(sent <= sent_max, || format!("{what}: {sent} MiB were sent, more than {sent_max} MiB"));
        outcome.need(found * 100 >= data * FOUND_MIN, || format!("{what}: only {found} of {data} MiB were found"));
        Ok(())
    }

    /// Moves the replicas with data that balance has not brought back.
    fn bring_back(&self, osd: u32) -> Result<()> {
        for pg in self.cluster.basalt.pgs()? {
            let members = members(&pg);
            if pg["segments"].as_u64() > Some(0) && !members.contains(&osd) {
                let (pg, to) = (pg["pg"].as_str().context("its id")?, osd.to_string());
                let from = members.first().context("a PG has members")?.to_string();
                self.cluster.basalt.run(&["pg", "move", pg, "--from", &from, "--to", &to])?;
            }
        }
        let data = self.data_pgs()?;
        clock::wait_until("the last replicas to be back", MOVED_MAX, || Ok(self.pgs_on(osd, true)?.len() == data))?;
        self.cluster.basalt.wait_healthy(MOVED_MAX).map(drop)
    }

    fn data_pgs(&self) -> Result<usize> {
        Ok(self.cluster.basalt.pgs()?.iter().filter(|pg| pg["segments"].as_u64() > Some(0)).count())
    }

    /// Returns the PGs on an OSD, or only those with data.
    fn pgs_on(&self, osd: u32, with_data: bool) -> Result<Vec<Value>> {
        let is_meant = |pg: &Value| !with_data || pg["segments"].as_u64() > Some(0);
        Ok(self.cluster.basalt.pgs()?.into_iter().filter(|pg| is_meant(pg) && members(pg).contains(&osd)).collect())
    }

    /// Returns an OSD that holds all data. Two PGs of three replicas on four OSDs share two OSDs.
    fn full_osd(&self) -> Result<u32> {
        let data = self.data_pgs()?;
        ensure!(data as u64 <= SEGMENTS, "{data} PGs have data");
        for osd in self.cluster.ids() {
            if self.pgs_on(osd, true)?.len() == data {
                return Ok(osd);
            }
        }
        Err(anyhow!("no OSD holds all data"))
    }

    /// Adds up what all leaders have logged of their completed backfills to an OSD.
    fn backfills(&self, osd: u32) -> Result<Backfills> {
        let mut sum = Backfills::default();
        for proc in self.cluster.osds.values() {
            let text = std::fs::read_to_string(&proc.spec.log)?;
            for line in text.lines().filter(|line| line.contains("backfill completed")) {
                let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
                let line = &line["fields"];
                if line["to"] == format!("osd.{osd}") {
                    let field = |name: &str| line[name].as_u64().with_context(|| format!("{name} in {line}"));
                    sum.count += 1;
                    sum.sent_mib += field("mib")? + 1;
                    sum.found_mib += field("equal_mib")?;
                }
            }
        }
        Ok(sum)
    }
}

fn members(pg: &Value) -> Vec<u32> {
    let members = pg["members"].as_array().map_or(&[][..], Vec::as_slice);
    members.iter().filter_map(|m| u32::try_from(m["osd"].as_u64()?).ok()).collect()
}
