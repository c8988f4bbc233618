//! `basalt meta recover`: finds what an older copy of the records lacks, and recovers (ADR 0011).
//!
//! Meta knows the watermarks; the OSDs know which chunks of which volumes their PGs hold. Segments of known volumes are put back
//! into the records before the watermarks move: otherwise they would read as zeros.

use crate::admin::Admin;
use crate::errors::{Exit, UserError};
use crate::output;
use crate::verify::compare::{self, Member};
use anyhow::Result;
use control::Records;
use control::admin::{FoundHold, FoundSegment, RecoverAsk, StoreRecovery};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use types::control::{SEGMENTS_PER_ASK_MAX, Watermarks};
use types::units::CHUNKS_PER_SEGMENT;
use types::{Epoch, OsdId, PgId, SegmentIndex, VolumeId};

/// Steps of a recovery: each registers some unknown OSDs again.
const STEPS_MAX: u32 = 100;
/// Most lines of one kind that are printed.
const LINES_MAX: usize = 20;

/// A volume whose chunks PGs hold and that the records do not know. PGs keep neither its name nor its size.
#[derive(Debug, Serialize)]
struct LostVolume {
    volume: VolumeId,
    /// Chunks of 16 MiB that hold data.
    chunks: usize,
    /// Index of the last chunk with data, a lower bound of the volume's size.
    last_chunk: u32,
    pgs: BTreeSet<PgId>,
}

/// A volume of the records that no PG knows any more.
#[derive(Debug, Serialize)]
struct EmptiedVolume {
    volume: VolumeId,
    name: String,
}

/// Contents of PGs that the records lack.
#[derive(Debug, Default, Serialize)]
struct Contents {
    volumes: Vec<LostVolume>,
    /// Segments of known volumes; a recovery puts them back.
    segments: Vec<FoundSegment>,
    /// Segments of known volumes that two PGs hold, or another PG than the records say: they are left alone.
    doubtful: Vec<FoundSegment>,
    /// Volumes that were opened again after the copy of the records was made; a recovery ends the hold that the records name.
    passed_holds: Vec<FoundHold>,
    /// Volumes with segments in the records that none of the PGs of these segments knows. They were removed after the copy of
    /// the records was made, or never written to. They read as zeros.
    emptied_volumes: Vec<EmptiedVolume>,
    /// PGs whose leader could not be asked.
    unread_pgs: Vec<PgId>,
}

/// Shows what the records lack, or puts segments back and moves the watermarks above what OSDs know.
pub fn recover(admin: &Admin, dry_run: bool, without: &[OsdId], force: bool, as_json: bool) -> Result<Exit> {
    let ask = RecoverAsk { dry_run: true, without: without.to_vec(), ..RecoverAsk::default() };
    let mut recovery = admin.recover(ask.clone())?;
    let ask = RecoverAsk { dry_run: false, standing: recovery.standing.clone(), ..ask };
    let contents = match recovery.standing.as_str() {
        "behind" => contents(admin, &recovery)?,
        // The OSDs that are silent may know more, and never come back.
        "waiting" if !without.is_empty() => contents(admin, &recovery)?,
        _ => Contents::default(),
    };
    if !dry_run {
        let unread = &contents.unread_pgs;
        if !unread.is_empty() && !force {
            let some: Vec<String> = unread.iter().take(8).map(PgId::to_string).collect();
            let (count, some) = (unread.len(), some.join(" "));
            let what = format!(
                "the contents of {count} PGs cannot be read now ({some}): segments that they hold may be missing in the records"
            );
            return Err(UserError::new(
                2031,
                what,
                "start all OSDs, wait for leaders (basalt pg ls), and repeat this; or --force",
            )
            .into());
        }
        // The holds end first: segments that are attached again then have no holder.
        for some in contents.passed_holds.chunks(SEGMENTS_PER_ASK_MAX) {
            admin.recover(RecoverAsk { holds: some.to_vec(), ..ask.clone() })?;
        }
        for some in contents.segments.chunks(SEGMENTS_PER_ASK_MAX) {
            admin.recover(RecoverAsk { segments: some.to_vec(), ..ask.clone() })?;
        }
        let look = RecoverAsk { dry_run: true, ..ask.clone() };
        for _ in 0..STEPS_MAX {
            recovery = admin.recover(ask.clone())?;
            if recovery.standing != "behind" || admin.recover(look.clone())?.standing != "behind" {
                break;
            }
        }
    }
    let exit = if recovery.standing == "sound" || recovery.moved { Exit::Done } else { Exit::Degraded };
    if as_json {
        let mut body = serde_json::to_value(&recovery)?;
        if let (Some(body), serde_json::Value::Object(found)) = (body.as_object_mut(), serde_json::to_value(&contents)?)
        {
            body.extend(found);
        }
        output::json("meta.recover", body)?;
        return Ok(exit);
    }
    show(&recovery);
    show_contents(&contents, recovery.moved);
    Ok(exit)
}

/// Asks the members of every PG for its chunks, and compares them with the records.
fn contents(admin: &Admin, recovery: &StoreRecovery) -> Result<Contents> {
    let records = Records::load(admin.backup()?)?;
    let endpoints: BTreeMap<OsdId, _> = admin.osds()?.into_iter().filter_map(|o| Some((o.osd, o.http?))).collect();
    let mut members: BTreeMap<PgId, BTreeSet<OsdId>> = BTreeMap::new();
    for pg in records.pgs.values() {
        members.insert(pg.pg, pg.members.iter().map(|m| m.osd).collect());
    }
    for replica in &recovery.replicas {
        members.entry(replica.pg).or_default().insert(replica.osd);
    }
    let mut found = Contents::default();
    let mut chunks: BTreeMap<VolumeId, BTreeMap<PgId, BTreeSet<u32>>> = BTreeMap::new();
    let mut epochs: BTreeMap<VolumeId, u64> = BTreeMap::new();
    // Volumes that the leader of each PG knows, where it answered.
    let mut led: BTreeMap<PgId, BTreeSet<VolumeId>> = BTreeMap::new();
    for (pg, osds) in members {
        let reached: Vec<Member> =
            osds.iter().filter_map(|osd| Some(Member { osd: *osd, http: *endpoints.get(osd)? })).collect();
        let told = compare::ask_all(&reached, |member| compare::table(member, pg));
        // A PG that no member holds was removed after the copy was made. Nothing is put back into a PG that the records
        // do not know.
        let is_gone = told.len() == osds.len() && told.iter().all(|told| told.as_ref().is_err_and(|why| why.absent));
        let tables: Vec<_> = told.into_iter().filter_map(Result::ok).collect();
        if records.pgs.contains_key(&pg) && !is_gone && !tables.iter().any(|table| table.leading) {
            found.unread_pgs.push(pg);
        }
        for table in tables {
            if table.leading {
                led.insert(pg, table.attached.iter().map(|(volume, _)| VolumeId(*volume)).collect());
            }
            for key in table.chunks {
                chunks.entry(key.volume).or_default().entry(pg).or_default().insert(key.index);
            }
            for (volume, epoch) in table.attached {
                let highest = epochs.entry(VolumeId(volume)).or_default();
                *highest = epoch.max(*highest);
            }
        }
    }
    for (volume, epoch) in epochs.into_iter().map(|(volume, epoch)| (volume, Epoch(epoch))) {
        if records.volumes.get(&volume).is_some_and(|known| known.epoch < epoch) {
            found.passed_holds.push(FoundHold { volume, epoch });
        }
    }
    found.emptied_volumes = emptied(&records, &led, &chunks);
    for (volume, pgs) in chunks {
        match records.volumes.contains_key(&volume) {
            true => sort_segments(&records, volume, &pgs, &mut found),
            false => found.volumes.push(LostVolume {
                volume,
                chunks: pgs.values().map(BTreeSet::len).sum(),
                last_chunk: pgs.values().filter_map(BTreeSet::last).copied().max().unwrap_or(0),
                pgs: pgs.into_keys().collect(),
            }),
        }
    }
    Ok(found)
}

/// Returns volumes that the records know and none of their PGs does. A PG gets the attach record before the first write and
/// keeps it as long as the volume exists.
fn emptied(
    records: &Records,
    led: &BTreeMap<PgId, BTreeSet<VolumeId>>,
    chunks: &BTreeMap<VolumeId, BTreeMap<PgId, BTreeSet<u32>>>,
) -> Vec<EmptiedVolume> {
    let mut known: BTreeMap<VolumeId, bool> = BTreeMap::new();
    for ((volume, _), segment) in &records.segments {
        // A PG that could not be read may know the volume.
        let here = led.get(&segment.pg).is_none_or(|volumes| volumes.contains(volume));
        *known.entry(*volume).or_default() |= here || chunks.contains_key(volume);
    }
    let gone = known.into_iter().filter(|(_, known)| !known);
    gone.filter_map(|(volume, _)| {
        let record = records.volumes.get(&volume)?;
        let pool = &records.pools.get(&record.pool)?.name;
        Some(EmptiedVolume { volume, name: format!("{pool}/{}", record.name) })
    })
    .collect()
}

/// Sorts the segments that PGs hold of a known volume: the records know, lack or contradict them.
fn sort_segments(records: &Records, volume: VolumeId, pgs: &BTreeMap<PgId, BTreeSet<u32>>, found: &mut Contents) {
    let mut places: BTreeMap<SegmentIndex, BTreeSet<PgId>> = BTreeMap::new();
    for (pg, chunks) in pgs {
        for chunk in chunks {
            places.entry(SegmentIndex(chunk / CHUNKS_PER_SEGMENT)).or_default().insert(*pg);
        }
    }
    for (segment, mut at) in places {
        let known = records.segments.get(&(volume, segment));
        if let Some(known) = known {
            at.remove(&known.pg);
        }
        let sure = known.is_none() && at.len() == 1;
        let list = if sure { &mut found.segments } else { &mut found.doubtful };
        list.extend(at.into_iter().map(|pg| FoundSegment { volume, segment, pg }));
    }
}

fn show_contents(found: &Contents, moved: bool) {
    let lines = |found: &[FoundSegment]| {
        found.iter().take(LINES_MAX).for_each(|f| out!("  volume {} segment {} in PG {}", f.volume, f.segment.0, f.pg));
        if found.len() > LINES_MAX {
            out!("  and {} more", found.len() - LINES_MAX);
        }
    };
    if !found.volumes.is_empty() {
        out!("volumes that PGs hold and the records do not know; their names and sizes are lost, their data is kept:");
    }
    for v in found.volumes.iter().take(LINES_MAX) {
        let pgs: Vec<String> = v.pgs.iter().map(PgId::to_string).collect();
        out!(
            "  volume {}: {} chunks of 16 MiB, the last is number {}, in PGs {}",
            v.volume,
            v.chunks,
            v.last_chunk,
            pgs.join(" ")
        );
    }
    if found.volumes.len() > LINES_MAX {
        out!("  and {} more", found.volumes.len() - LINES_MAX);
    }
    if !found.segments.is_empty() {
        let done = if moved { "were put back into the records" } else { "a recovery puts them back" };
        out!("{} segments of known volumes that the records lacked; {done}:", found.segments.len());
        lines(&found.segments);
    }
    if !found.passed_holds.is_empty() {
        let done = if moved { "their clients must open them again" } else { "a recovery ends the older hold" };
        let some: Vec<String> = found.passed_holds.iter().take(LINES_MAX).map(|h| h.volume.to_string()).collect();
        let count = found.passed_holds.len();
        out!("{count} volumes were opened again after this copy of the records was made; {done}: {}", some.join(" "));
    }
    if !found.emptied_volumes.is_empty() {
        out!(
            "{} volumes of which no PG knows anything: they were removed after this copy of the records was made, or never \
             written to; they read as zeros (basalt volume rm removes them):",
            found.emptied_volumes.len()
        );
    }
    for v in found.emptied_volumes.iter().take(LINES_MAX) {
        out!("  {} (volume {})", v.name, v.volume);
    }
    if found.emptied_volumes.len() > LINES_MAX {
        out!("  and {} more", found.emptied_volumes.len() - LINES_MAX);
    }
    if !found.doubtful.is_empty() {
        out!(
            "{} segments of known volumes lie in another PG than the records say, or in two; they are left as they are:",
            found.doubtful.len()
        );
        lines(&found.doubtful);
    }
    if !found.unread_pgs.is_empty() {
        out!("the contents of {} PGs could not be read", found.unread_pgs.len());
    }
}

/// A name and the watermark of that name.
type Row = (&'static str, fn(&Watermarks) -> u64);

fn show(r: &StoreRecovery) {
    let heard = r.osds.iter().filter(|o| o.heard).count();
    let words = match (r.standing.as_str(), r.moved) {
        (_, true) => "the watermarks were moved: changes are taken again",
        ("sound", _) => "the records are as new as what OSDs remember: there is nothing to recover",
        ("waiting", _) => "fewer than a majority of the OSDs have reported: nothing is changed until they do",
        _ => "the metadata store went back in time: nothing is changed before `basalt meta recover`",
    };
    out!("cluster {}: {words}", r.cluster);
    r.reasons.iter().for_each(|reason| out!("  {reason}"));
    out!("");
    out!("{:<14} {:>14} {:>14} {:>14}", "", "records", "OSDs", "after");
    let rows: [Row; 6] = [
        ("revision", |w| w.revision),
        ("next osd", |w| w.next_osd.into()),
        ("next pool", |w| w.next_pool.into()),
        ("next replica", |w| w.next_replica),
        ("next volume", |w| w.next_volume),
        ("next session", |w| w.next_session),
    ];
    for (name, of) in rows {
        out!("{name:<14} {:>14} {:>14} {:>14}", of(&r.records), of(&r.highest), of(&r.after));
    }
    out!("");
    out!("{heard} of {} OSDs have reported", r.osds.len());
    let unknown: Vec<String> = r.osds.iter().filter(|o| !o.known).map(|o| o.osd.to_string()).collect();
    if !unknown.is_empty() {
        out!("OSDs that the records do not know (a recovery registers them again): {}", unknown.join(", "));
    }
    if !r.replicas.is_empty() {
        let mut pgs: Vec<String> = r.replicas.iter().map(|r| r.pg.to_string()).collect();
        pgs.sort();
        pgs.dedup();
        let (replicas, count) = (r.replicas.len(), pgs.len());
        pgs.truncate(32);
        out!("{replicas} replicas of {count} PGs that the records do not know; their data is kept: {}", pgs.join(" "));
    }
    if r.records.next_volume < r.highest.next_volume {
        let lost = r.highest.next_volume - r.records.next_volume;
        out!("ids of up to {lost} volumes were given out after this copy of the records was made");
    }
}
