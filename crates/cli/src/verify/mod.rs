//! `basalt pg verify`: compares the replicas of PGs.
//!
//! Meta names the replicas. Each OSD reads its own at one applied index, and returns a CRC32C for every 512 KiB; this
//! command only compares them. With `--tables` only the block maps are compared, and no byte is read.
//!
//! The unit is a chunk of a generation, so snapshots are compared like volumes. Members have equal generations at one index.
//!
//! Exit codes: 0 equal, 1 different or damaged, 3 a replica could not be asked.

pub mod compare;
#[cfg(test)]
mod tests;

use crate::admin::Admin;
use crate::errors::{Exit, UserError};
use crate::{output, size};
use anyhow::Result;
use compare::{Member, Owner, Silence, Table, Undone};
use control::admin::{OsdView, PgView, VolumeView};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use types::codes;
use types::limits::PART_MAX;
use types::units::CHUNK;
use types::{ChunkKey, OsdId, PgId, Stripe, VolumeId};

/// Most differences that are listed for one PG.
const LISTED_MAX: usize = 100;

/// Most PGs that are named in one line.
const NAMED_MAX: usize = 8;

/// Most times that the chunks of a PG are listed, because snapshots were removed meanwhile.
const LISTS_MAX: u32 = 4;

/// Bytes in which replicas differ.
#[derive(Debug, Serialize)]
struct Difference {
    volume: String,
    /// The snapshot, `snap12`, or a removed one that clones need, `g12`. `None`: the volume itself.
    snapshot: Option<String>,
    /// Index of the chunk in the volume.
    chunk: u32,
    /// Offset in the volume; of the first unit, where the volume is striped and several units are concerned.
    offset_bytes: u64,
    len_bytes: u64,
    at: u64,
    /// CRC32C of the first 512 KiB that differ, by replica: it shows which replicas agree.
    crcs: Vec<(OsdId, u32)>,
    /// The replicas whose value is not that of the majority.
    odd: Vec<OsdId>,
}

/// Bytes of one replica that cannot be read or fail their checksums.
#[derive(Debug, Serialize)]
struct Damage {
    osd: OsdId,
    volume: String,
    /// The same as in [`Difference`].
    snapshot: Option<String>,
    chunk: u32,
    /// Offset in the volume; of the first unit, where the volume is striped and several units are concerned.
    offset_bytes: u64,
    len_bytes: u64,
    reason: String,
}

/// A replica that was not compared, and the reason.
#[derive(Debug, Serialize)]
struct Unasked {
    osd: OsdId,
    reason: String,
    /// Whether it has failed.
    damaged: bool,
}

impl Unasked {
    fn new(osd: OsdId, why: impl Into<Silence>) -> Unasked {
        let Silence { reason, damaged, .. } = why.into();
        Unasked { osd, reason, damaged }
    }
}

/// Result for one PG.
#[derive(Debug, Serialize)]
struct Verdict {
    pg: PgId,
    osds: Vec<OsdId>,
    /// Log index of the first and of the last chunk that was compared.
    at: (u64, u64),
    chunks: u64,
    bytes: u64,
    difference_count: u64,
    differences: Vec<Difference>,
    damaged: Vec<Damage>,
    unasked: Vec<Unasked>,
}

impl Verdict {
    fn new(pg: PgId) -> Verdict {
        Verdict {
            pg,
            osds: Vec::new(),
            at: (0, 0),
            chunks: 0,
            bytes: 0,
            difference_count: 0,
            differences: Vec::new(),
            damaged: Vec::new(),
            unasked: Vec::new(),
        }
    }
}

/// Name and stripe layout of each volume.
type Volumes = BTreeMap<VolumeId, (String, Stripe)>;

/// Members and chunks of one PG that are to be compared.
struct Plan {
    members: Vec<Member>,
    chunks: BTreeMap<ChunkKey, Owner>,
    applied: u64,
    verdict: Verdict,
}

/// Names of a chunk for an operator.
struct Place {
    /// `POOL/VOLUME`.
    volume: String,
    snapshot: Option<String>,
    index: u32,
    stripe: Stripe,
}

/// Compares these PGs, or all.
pub fn run(admin: &Admin, wanted: &[PgId], tables: bool, as_json: bool) -> Result<Exit> {
    let all = admin.pgs(None)?;
    if let Some(unknown) = wanted.iter().find(|pg| all.iter().all(|view| view.pg != **pg)) {
        return Err(UserError::new(codes::BAD_USAGE, format!("there is no PG {unknown}"), "basalt pg ls").into());
    }
    let mut endpoints = members(&admin.osds()?);
    let known = |v: VolumeView| (v.volume, (v.name, v.stripe.unwrap_or_default()));
    let volumes: Volumes = admin.volumes(None)?.into_iter().map(known).collect();
    let chosen = all.iter().filter(|view| wanted.is_empty() || wanted.contains(&view.pg));
    let plans: Vec<Plan> = chosen.map(|view| plan(view, &mut endpoints)).collect();
    let bar = bar(plans.iter().map(|p| p.chunks.len() as u64).sum(), as_json);
    let verdicts: Vec<Verdict> = plans.into_iter().map(|plan| compare_pg(plan, tables, &volumes, &bar)).collect();
    bar.finish_and_clear();
    conclude(&verdicts, tables, as_json)
}

fn bar(chunks: u64, as_json: bool) -> ProgressBar {
    if as_json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} chunks, {msg}, {eta} left");
    ProgressBar::new(chunks).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// OSDs as members that can be asked, or why not.
pub type Endpoints = BTreeMap<OsdId, Result<Member, String>>;

/// Returns the endpoints of all OSDs.
pub fn members(osds: &[OsdView]) -> Endpoints {
    let member = |o: &OsdView| {
        let http = o.http.ok_or_else(|| "the metadata server has no HTTP address of it".to_owned())?;
        Ok(Member { osd: o.osd, uuid: o.uuid, http })
    };
    osds.iter().map(|o| (o.osd, member(o))).collect()
}

impl Place {
    fn new(chunk: ChunkKey, owner: Owner, volumes: &Volumes) -> Place {
        let unknown = || (owner.volume.to_string(), Stripe::NONE);
        let (volume, stripe) = volumes.get(&owner.volume).cloned().unwrap_or_else(unknown);
        Place { volume, snapshot: owner.snapshot, index: chunk.index, stripe }
    }

    /// Returns the offset in the volume of the first byte of a part of the chunk.
    fn offset_of(&self, part: usize) -> u64 {
        self.stripe.volume_address(u64::from(self.index) * CHUNK + part as u64 * PART_MAX)
    }
}

impl Plan {
    /// Asks every member for the chunks of its generations. Members that do not answer leave, and are returned.
    fn list(&mut self) -> Vec<(Member, Silence)> {
        let told = compare::ask_all(&self.members, |member| compare::table(member, self.verdict.pg));
        let (mut tables, mut silent) = (Vec::new(), Vec::new());
        for (member, answer) in std::mem::take(&mut self.members).into_iter().zip(told) {
            match answer {
                Ok(table) => {
                    self.members.push(member);
                    tables.push(table);
                }
                Err(why) => silent.push((member, why)),
            }
        }
        (self.applied, self.chunks) = joined(self.applied, tables);
        silent
    }

    /// Lists the chunks with these indexes again: their generations have ended, and others may have their blocks now.
    fn list_again(&mut self, ended: &BTreeSet<u32>) {
        let silent = self.list();
        self.verdict.unasked.extend(silent.into_iter().map(|(member, why)| Unasked::new(member.osd, why)));
        self.chunks.retain(|chunk, _| ended.contains(&chunk.index));
    }
}

/// Returns the highest applied index, and the chunks of all tables. The one that has applied most decides what a generation is.
fn joined(applied: u64, mut tables: Vec<Table>) -> (u64, BTreeMap<ChunkKey, Owner>) {
    tables.sort_by_key(|table| table.applied);
    let applied = tables.last().map_or(applied, |table| table.applied.max(applied));
    (applied, tables.into_iter().flat_map(|table| table.held).collect())
}

/// Asks every member which chunks it holds. An OSD that cannot be reached is not asked again for other PGs.
fn plan(view: &PgView, endpoints: &mut Endpoints) -> Plan {
    let mut verdict = Verdict::new(view.pg);
    let mut members = Vec::new();
    for osd in view.members.iter().map(|m| m.osd) {
        match endpoints.get(&osd) {
            Some(Ok(member)) => members.push(*member),
            Some(Err(why)) => verdict.unasked.push(Unasked::new(osd, why.clone())),
            None => verdict.unasked.push(Unasked::new(osd, "the metadata server does not know it".to_owned())),
        }
    }
    let mut plan = Plan { members, chunks: BTreeMap::new(), applied: 0, verdict };
    for (member, why) in plan.list() {
        if why.unreached {
            endpoints.insert(member.osd, Err(why.reason.clone()));
        }
        plan.verdict.unasked.push(Unasked::new(member.osd, why));
    }
    plan.verdict.osds = plan.members.iter().map(|m| m.osd).collect();
    plan
}

fn compare_pg(mut plan: Plan, tables: bool, volumes: &Volumes, bar: &ProgressBar) -> Verdict {
    bar.set_message(format!("PG {}", plan.verdict.pg));
    for _ in 0..LISTS_MAX {
        let mut ended = BTreeSet::new();
        for (key, owner) in std::mem::take(&mut plan.chunks) {
            bar.inc(1);
            if !compare_chunk(&mut plan, key, &Place::new(key, owner, volumes), tables) {
                ended.insert(key.index);
            }
        }
        if ended.is_empty() {
            return plan.verdict;
        }
        plan.list_again(&ended);
    }
    let reason = "snapshots were removed faster than their chunks could be compared; try again";
    let all = plan.members.iter().map(|m| Unasked::new(m.osd, reason.to_owned()));
    plan.verdict.unasked.extend(all);
    plan.verdict
}

/// Compares a chunk; false: its generation has ended.
fn compare_chunk(plan: &mut Plan, key: ChunkKey, place: &Place, tables: bool) -> bool {
    // A replica with damage in this chunk may be sound in the next.
    let mut members = plan.members.clone();
    while members.len() > 1 {
        match compare::chunk(&members, plan.verdict.pg, key, tables, &mut plan.applied) {
            Ok(digests) => {
                note(&mut plan.verdict, &members, place, &digests);
                return true;
            }
            Err(Undone::Ended) => return false,
            Err(Undone::Damaged(osd, parts)) => {
                members.retain(|m| m.osd != osd);
                plan.verdict.damaged.extend(parts.into_iter().map(|(part, reason)| Damage {
                    osd,
                    volume: place.volume.clone(),
                    snapshot: place.snapshot.clone(),
                    chunk: place.index,
                    offset_bytes: place.offset_of(part),
                    len_bytes: PART_MAX,
                    reason,
                }));
            }
            Err(Undone::Member(osd, why)) => {
                members.retain(|m| m.osd != osd);
                plan.members.retain(|m| m.osd != osd);
                plan.verdict.unasked.push(Unasked::new(osd, why));
            }
            Err(Undone::Restless) => {
                let named = named(&place.volume, place.snapshot.as_deref());
                let reason =
                    format!("chunk {} of {named} changed faster than it could be read; try again", place.index);
                plan.verdict.unasked.extend(members.iter().map(|m| Unasked::new(m.osd, reason.clone())));
                return true;
            }
        }
    }
    true
}

/// Returns the volume, with the snapshot if it is one.
fn named(volume: &str, snapshot: Option<&str>) -> String {
    snapshot.map_or_else(|| volume.to_owned(), |snapshot| format!("{volume} {snapshot}"))
}

fn note(verdict: &mut Verdict, members: &[Member], place: &Place, digests: &compare::Digests) {
    if verdict.chunks == 0 {
        verdict.at.0 = digests.at;
    }
    verdict.at.1 = digests.at;
    verdict.chunks += 1;
    verdict.bytes += CHUNK;
    for (first, count) in compare::differing(&digests.parts) {
        verdict.difference_count += 1;
        if verdict.differences.len() == LISTED_MAX {
            continue;
        }
        let crc = |row: &Vec<u32>| row.get(first).copied().unwrap_or(0);
        let crcs: Vec<(OsdId, u32)> = members.iter().zip(&digests.parts).map(|(m, row)| (m.osd, crc(row))).collect();
        verdict.differences.push(Difference {
            volume: place.volume.clone(),
            snapshot: place.snapshot.clone(),
            chunk: place.index,
            offset_bytes: place.offset_of(first),
            len_bytes: count as u64 * PART_MAX,
            at: digests.at,
            odd: compare::odd_ones(&crcs),
            crcs,
        });
    }
}

fn conclude(verdicts: &[Verdict], tables: bool, as_json: bool) -> Result<Exit> {
    let different = verdicts.iter().map(|v| v.difference_count).sum::<u64>();
    let quarantined = verdicts.iter().flat_map(|v| &v.unasked).filter(|u| u.damaged).count();
    let damaged = verdicts.iter().map(|v| v.damaged.len()).sum::<usize>() + quarantined;
    let unasked = verdicts.iter().any(|v| !v.unasked.is_empty());
    let chunks: u64 = verdicts.iter().map(|v| v.chunks).sum();
    let bytes: u64 = verdicts.iter().map(|v| v.bytes).sum();
    let exit = match (different, damaged, unasked) {
        (0, 0, false) => Exit::Done,
        (0, 0, true) => Exit::Degraded,
        _ => Exit::Failed,
    };
    if as_json {
        let body = serde_json::json!({
            "mode": if tables { "tables" } else { "deep" },
            "equal": different == 0,
            "damaged": damaged,
            "complete": !unasked,
            "chunks": chunks,
            "bytes": bytes,
            "pgs": verdicts,
        });
        output::json("pg.verify", body)?;
        return Ok(exit);
    }
    let asked = if unasked { "; some replicas could not be queried" } else { "" };
    let pgs = verdicts.len();
    let extent = format!("{pgs} PGs, {chunks} chunks of {}", size::show(CHUNK));
    match (different, tables) {
        (0, false) if damaged > 0 => {
            let code = codes::label(codes::REPLICA_DAMAGED);
            out!("{code}: {damaged} parts or replicas are damaged, the others are equal, of {extent}{asked}");
        }
        (0, false) => out!("no differences: every block of {extent} is equal{asked}"),
        (0, true) => {
            out!("equal tables (which blocks hold data) of {extent}{asked}; no block was read: --deep does")
        }
        (n, false) => {
            let code = codes::label(codes::REPLICAS_DIFFER);
            out!("{code}: replicas differ in {n} extents of {extent}{asked}");
        }
        (n, true) => out!("tables differ in {n} extents of {extent}{asked}; --deep says whether bytes differ"),
    }
    verdicts.iter().for_each(print);
    not_compared(verdicts).iter().for_each(|line| out!("{line}"));
    Ok(exit)
}

/// Returns lines about replicas that were not compared, one for each OSD and reason: an OSD that is down is one cause for
/// all its PGs.
fn not_compared(verdicts: &[Verdict]) -> Vec<String> {
    let mut causes: BTreeMap<(OsdId, bool, &str), BTreeSet<PgId>> = BTreeMap::new();
    for (pg, u) in verdicts.iter().flat_map(|v| v.unasked.iter().map(|u| (v.pg, u))) {
        causes.entry((u.osd, u.damaged, u.reason.as_str())).or_default().insert(pg);
    }
    let line = |((osd, damaged, reason), pgs): ((OsdId, bool, &str), BTreeSet<PgId>)| {
        let how = if damaged { "is damaged and was not compared" } else { "was not compared" };
        let named: Vec<String> = pgs.iter().take(NAMED_MAX).map(PgId::to_string).collect();
        let more = if pgs.len() > NAMED_MAX { ", …" } else { "" };
        let count = if pgs.len() == 1 { "PG".to_owned() } else { format!("{} PGs:", pgs.len()) };
        format!("{osd} {how} in {count} {}{more}: {reason}", named.join(", "))
    };
    causes.into_iter().map(line).collect()
}

impl Difference {
    fn line(&self, pg: PgId) -> String {
        let crcs: Vec<_> = self.crcs.iter().map(|(osd, crc)| format!("{osd} {crc:08x}")).collect();
        let odd: Vec<_> = self.odd.iter().map(OsdId::to_string).collect();
        format!(
            "pg {pg}: {} differs at offset {} ({}, chunk {}), index {}: {} against the others: {}",
            named(&self.volume, self.snapshot.as_deref()),
            self.offset_bytes,
            size::show(self.len_bytes),
            self.chunk,
            self.at,
            odd.join(" and "),
            crcs.join(", ")
        )
    }
}

fn print(verdict: &Verdict) {
    verdict.differences.iter().for_each(|difference| out!("{}", difference.line(verdict.pg)));
    for d in &verdict.damaged {
        let (pg, len) = (verdict.pg, size::show(d.len_bytes));
        out!(
            "pg {pg}: {} is damaged on {} at offset {} ({len}, chunk {}): {}",
            named(&d.volume, d.snapshot.as_deref()),
            d.osd,
            d.offset_bytes,
            d.chunk,
            d.reason
        );
    }
    let hidden = verdict.difference_count - verdict.differences.len() as u64;
    if hidden > 0 {
        out!("pg {}: and {hidden} more differences", verdict.pg);
    }
}
