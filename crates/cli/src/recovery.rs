//! `basalt meta recover`: shows the records that an older copy lacks, and recovers them (ADR 0011).
//!
//! Meta knows the watermarks. The OSDs know the chunks of volumes in their PGs, and the attached volumes. The order of the steps
//! keeps writes from being lost: all sessions end, the watermarks move, and every PG fences the ended sessions. Only then the
//! command reads the PGs for segments that the records lack.

use crate::admin::Admin;
use crate::errors::{Exit, UserError};
use crate::output;
use crate::verify::compare::{self, Member};
use crate::verify::members;
use anyhow::Result;
use control::Records;
use control::admin::{FoundSegment, RecoverAsk, StoreRecovery};
use control::found::{Found, LongerVolume, Table, segment_batches};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use types::codes;
use types::control::{SEGMENTS_PER_ASK_MAX, Watermarks};
use types::{OsdId, PgId};

/// Most steps of a recovery: each ends the holds of some volumes, or registers some unknown OSDs again.
const STEPS_MAX: u32 = 100_000;
/// Most lines of one kind that are printed.
const LINES_MAX: usize = 20;
/// Volumes that one request lengthens.
const LENGTHS_PER_REQUEST: usize = 30;
/// Longest time until all ended sessions are fenced, and the pause between two looks.
const FENCE_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(300);

/// Shows what the records lack, or recovers them.
pub fn recover(admin: &Admin, dry_run: bool, without: &[OsdId], force: bool, as_json: bool) -> Result<Exit> {
    let look = RecoverAsk { dry_run: true, without: without.to_vec(), ..RecoverAsk::default() };
    let mut recovery = admin.recover(look.clone())?;
    // With --without the OSDs that are silent may know more, and never come back.
    let looks = recovery.standing == "behind" || recovery.standing == "waiting" && !without.is_empty();
    let mut found = if looks { contents(admin, &recovery)? } else { Found::default() };
    if !dry_run {
        check_read(&found, force)?;
        let mut moved = false;
        for _ in 0..STEPS_MAX {
            if recovery.standing == "waiting" && without.is_empty() {
                break;
            }
            // The lengths come before any attach record of the recovery: one of a shorter volume would unmap its end.
            let (standing, lengths) = (recovery.standing.clone(), found.lengths());
            let ask = RecoverAsk { dry_run: false, standing, lengths, ..look.clone() };
            recovery = admin.recover(ask)?;
            moved |= recovery.moved;
            let next = admin.recover(look.clone())?;
            if next.standing == "sound" {
                recovery = StoreRecovery { standing: next.standing, recovering: next.recovering, ..recovery };
                break;
            }
            recovery.standing = next.standing;
        }
        recovery.moved = moved;
        if recovery.standing == "sound" && recovery.recovering > 0 {
            let (emptied, longer) =
                (std::mem::take(&mut found.emptied_volumes), std::mem::take(&mut found.longer_volumes));
            found = finish(admin, &recovery, force)?;
            found.emptied_volumes = emptied;
            let known = |v: &LongerVolume| longer.iter().any(|l| l.volume == v.volume);
            found.longer_volumes.retain(|v| !known(v));
            found.longer_volumes.extend(longer);
            recovery.recovering = 0;
        }
    }
    let whole = recovery.standing == "sound" && recovery.recovering == 0;
    let exit = if whole { Exit::Done } else { Exit::Degraded };
    if as_json {
        let mut body = serde_json::to_value(&recovery)?;
        if let (Some(body), serde_json::Value::Object(found)) = (body.as_object_mut(), serde_json::to_value(&found)?) {
            body.extend(found);
        }
        output::json("meta.recover", body)?;
        return Ok(exit);
    }
    show(&recovery);
    show_contents(&found, !dry_run);
    Ok(exit)
}

/// Refuses to go on while the contents of PGs are unknown, unless it is forced.
fn check_read(found: &Found, force: bool) -> Result<()> {
    let unread = &found.unread_pgs;
    if unread.is_empty() || force {
        return Ok(());
    }
    let some: Vec<String> = unread.iter().take(8).map(PgId::to_string).collect();
    let (count, some) = (unread.len(), some.join(" "));
    let what = format!(
        "the contents of {count} PGs cannot be read now ({some}): segments that they hold may be missing in the records"
    );
    let next = "start all OSDs, wait for leaders (basalt pg ls), and repeat this; or --force";
    Err(UserError::new(codes::NO_MAJORITY, what, next).into())
}

/// Fences the sessions from before the recovery, puts segments back, and gives the volumes back to their users.
#[allow(clippy::disallowed_methods, reason = "a command waits for other processes, with a deadline")]
fn finish(admin: &Admin, recovery: &StoreRecovery, force: bool) -> Result<Found> {
    let ask = RecoverAsk { standing: "sound".to_owned(), ..RecoverAsk::default() };
    let end = Instant::now() + FENCE_MAX;
    let found = loop {
        let found = contents(admin, recovery)?;
        if found.attached.is_empty() && (found.unread_pgs.is_empty() || Instant::now() >= end) {
            break found;
        }
        if Instant::now() >= end {
            let what = format!("sessions from before the recovery are not fenced in {} PGs", found.attached.len());
            let next = "start all OSDs, wait for leaders (basalt pg ls), and run basalt meta recover again";
            return Err(UserError::new(codes::NO_MAJORITY, what, next).into());
        }
        for some in found.attached.chunks(SEGMENTS_PER_ASK_MAX) {
            admin.recover(RecoverAsk { attached: some.to_vec(), ..ask.clone() })?;
        }
        std::thread::sleep(LOOK);
    };
    check_read(&found, force)?;
    // Some in a request; the last one changes nothing.
    for _ in 0..=found.longer_volumes.len() / LENGTHS_PER_REQUEST {
        admin.recover(RecoverAsk { lengths: found.lengths(), ..ask.clone() })?;
    }
    for segments in segment_batches(&found.segments) {
        admin.recover(RecoverAsk { segments, lengths: found.lengths(), ..ask.clone() })?;
    }
    for snapshots in found.snapshots.chunks(SEGMENTS_PER_ASK_MAX) {
        admin.recover(RecoverAsk { snapshots: snapshots.to_vec(), lengths: found.lengths(), ..ask.clone() })?;
    }
    // A request that lengthens a volume does not finish.
    let last = RecoverAsk { finish: true, lengths: found.lengths(), ..ask };
    while admin.recover(last.clone())?.recovering > 0 {}
    Ok(found)
}

/// Asks the members of every PG for its chunks, and compares with the records. An OSD that cannot be reached is asked once.
fn contents(admin: &Admin, recovery: &StoreRecovery) -> Result<Found> {
    let records = Records::load(admin.backup()?)?;
    let mut endpoints = members(&admin.osds()?);
    let mut pgs: BTreeMap<PgId, BTreeSet<OsdId>> = BTreeMap::new();
    for pg in records.pgs.values() {
        pgs.insert(pg.pg, pg.members.iter().map(|m| m.osd).collect());
    }
    for replica in &recovery.replicas {
        pgs.entry(replica.pg).or_default().insert(replica.osd);
    }
    let (mut tables, mut gone) = (Vec::new(), BTreeSet::new());
    for (pg, osds) in pgs {
        let reached: Vec<Member> = osds.iter().filter_map(|osd| endpoints.get(osd)?.as_ref().ok().copied()).collect();
        let told = compare::ask_all(&reached, |member| compare::table(member, pg));
        // A PG that no member holds was removed after the copy was made.
        if told.len() == osds.len() && told.iter().all(|told| told.as_ref().is_err_and(|why| why.absent)) {
            gone.insert(pg);
        }
        for (member, told) in reached.iter().zip(told) {
            match told {
                Ok(table) => tables.push(Table {
                    pg,
                    leading: table.leading && table.attached.is_some(),
                    chunks: table.chunks,
                    attached: table.attached.unwrap_or_default(),
                    snapshots: table.snapshots,
                }),
                Err(why) if why.unreached => drop(endpoints.insert(member.osd, Err(why.reason))),
                Err(_) => {}
            }
        }
    }
    Ok(Found::compare(&records, &tables, &gone))
}

/// Counts the segments of columns that are in order.
fn segments_of(columns: &[FoundSegment]) -> usize {
    columns.chunk_by(|a, b| (a.volume, a.segment) == (b.volume, b.segment)).count()
}

fn show_contents(found: &Found, done: bool) {
    let lines = |found: &[FoundSegment]| {
        for f in found.iter().take(LINES_MAX) {
            out!("  volume {} segment {} column {} in PG {}", f.volume, f.segment.0, f.column, f.pg);
        }
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
        let done = if done { "were restored in the records" } else { "a recovery restores them" };
        out!("{} segments of known volumes that the records lacked; {done}:", segments_of(&found.segments));
        lines(&found.segments);
    }
    if !found.longer_volumes.is_empty() {
        let done = if done { "now have" } else { "will have" };
        out!(
            "{} volumes were resized after this copy of the records was made; they {done} the length that their PGs know, in whole \
             chunks:",
            found.longer_volumes.len()
        );
    }
    for v in found.longer_volumes.iter().take(LINES_MAX) {
        out!("  {} (volume {}): {} bytes in the records, {} bytes now", v.name, v.volume, v.len_bytes, v.found_bytes);
    }
    show_snapshots(found, done);
    if !found.emptied_volumes.is_empty() {
        out!(
            "{} volumes without data in any PG: they were removed after this copy of the records was made, or never \
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
            segments_of(&found.doubtful)
        );
        lines(&found.doubtful);
    }
    if !found.unread_pgs.is_empty() {
        out!("the contents of {} PGs could not be read", found.unread_pgs.len());
    }
}

fn show_snapshots(found: &Found, done: bool) {
    let ended = found.snapshots.iter().filter(|found| found.ended).count();
    let lacking = found.snapshots.len() - ended;
    if lacking > 0 {
        let done = if done { "were restored" } else { "a recovery restores them" };
        out!("{lacking} snapshots that the records lacked; {done} as recovered-ID (basalt snapshot ls)");
    }
    if ended > 0 {
        let done = if done { "are deleted" } else { "a recovery deletes them" };
        out!("{ended} snapshots that were deleted, or given up, after this copy of the records was made; {done}");
    }
}

/// A name and the watermark of that name.
type Row = (&'static str, fn(&Watermarks) -> u64);

fn show(r: &StoreRecovery) {
    let heard = r.osds.iter().filter(|o| o.heard).count();
    let words = match (r.standing.as_str(), r.moved) {
        (_, true) => "the watermarks were moved: changes are allowed again",
        ("sound", _) => "the records are as new as those on the OSDs: there is nothing to recover",
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
    if r.held > 0 {
        out!("{} volumes are open: a recovery ends their sessions, and the clients must open them again", r.held);
    }
    if r.recovering > 0 {
        out!("{} volumes cannot be opened before this command has finished the recovery", r.recovering);
    }
    if r.records.next_volume < r.highest.next_volume {
        let lost = r.highest.next_volume - r.records.next_volume;
        out!("ids of up to {lost} volumes were assigned after this copy of the records was made");
    }
}
