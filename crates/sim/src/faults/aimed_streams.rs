//! Schedules aimed at the space that a store frees.
//!
//! - A log frees segments beside a leader that is not heard (R9).
//! - An installation does not come to its end while another stream writes (R8).
//! - The reads of a stream are slow, or an OSD that was full installs one (R12).
//! - A follower that a stream fills counts, and others die (R16).
//!
//! They strike in aimed runs alone (see `aim`), one after the other, and end their faults whether or not the awaited
//! condition came.

use super::aimed_logs::{LOADED, when};
use super::{Class, Strike};
use simenv::{Cut, Doom, DoomBy};
use std::time::Duration;
use types::PgId;

/// Looks of a fifth of a millisecond until streams have come to an installation: four seconds.
const STREAM_LOOKS_MAX: u32 = 20_000;
/// Looks until a stream is over: four seconds.
const CUT_LOOKS_MAX: u32 = 20_000;
/// The OSD whose home is smaller (see `Options::first_log_extra_bytes`).
const SMALL: usize = 0;
/// Looks until a log or a store is full: ten seconds.
const FILL_LOOKS_MAX: u32 = 50_000;
/// Units beyond its home that an OSD has missed: more than reserves and grants together.
const EXCESS_UNITS: u64 = 64;
/// Latency of a disk on which the copy of a segment takes longer than the pause between two destages.
const COPYING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(40));
/// More entries than may be on their way to a follower that is no longer heard.
const UNHEARD_ENTRIES: u64 = 500;
/// A leader transfers its leadership within this time.
const HANDOVER: Duration = Duration::from_millis(50);
/// Time between two looks: less than a read takes.
const LOOK: Duration = Duration::from_micros(200);
/// Factor by which reads are slowed.
const SLOW: u32 = 300;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let Some((_, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    if others.len() < 2 {
        return false;
    }
    let follower = others[s.rng.below(others.len() as u64) as usize];
    match class {
        Class::FullLog => full_log(s, leader, follower),
        Class::CrashInInstall => crash_in_install(s, follower),
        Class::SlowStream => slow_stream(s, follower),
        Class::FillingCounts => filling_counts(s, follower),
        Class::FilledBehind => return filled_behind(s),
        other => unreachable!("{other:?} is aimed at no stream"),
    }
    true
}

fn ms(s: &mut Strike<'_>, min: u64, max: u64) -> Duration {
    Duration::from_micros(s.rng.between(min * 1000, max * 1000))
}

/// A follower and a leader do not hear each other for as long as others need to fill the follower's log more than once.
/// Entries of that leader, which the follower does not know to be committed, must not keep the log from freeing
/// segments (R9).
fn full_log(s: &mut Strike<'_>, leader: usize, follower: usize) {
    let (l, f) = (s.cluster.osd_node(leader), s.cluster.osd_node(follower));
    s.cluster.world.partition(l, f, Cut::Both);
    let alone = ms(s, 6000, 9000);
    s.after(alone, move |s| s.cluster.world.heal(l, f));
}

/// A follower is away until the logs have dropped the entries that it lacks; then streams bring back all of its PGs at
/// once. While one of them is installed the process dies, often with its machine's power. Until the checkpoint is
/// durable the old contents count, and other streams must not have overwritten them (R8, R12).
fn crash_in_install(s: &mut Strike<'_>, follower: usize) {
    away(s, follower, move |s| {
        let skip = s.rng.below(3) as u32;
        die_in_install(s, follower, skip);
    });
}

/// Lets some installations pass, and kills the process in the next.
fn die_in_install(s: &mut Strike<'_>, follower: usize, skip: u32) {
    let installs = move |s: &mut Strike<'_>| s.cluster.is_installing(follower).then_some(());
    when(s, STREAM_LOOKS_MAX, installs, move |s, found| {
        if found.is_none() {
            return;
        }
        if skip > 0 {
            let over = move |s: &mut Strike<'_>| (!s.cluster.is_installing(follower)).then_some(());
            return when(s, STREAM_LOOKS_MAX, over, move |s, _| die_in_install(s, follower, skip - 1));
        }
        let far = [2, 6, 16, 40][s.rng.below(4) as usize];
        let after = s.rng.below(far);
        let (scatter, power) = (s.rng.chance(1, 2), s.rng.chance(1, 2));
        let node = s.cluster.osd_node(follower);
        s.cluster.world.doom(node, Some(Doom { after, by: DoomBy::DiskOps, scatter, power }));
        let died = ms(s, 40, 200);
        s.after(died, move |s| {
            s.cluster.world.doom(node, None);
            s.cluster.start_osd(follower);
        });
    });
}

/// A follower is away until only a stream helps. The reads of its leader take long, so that contents are much newer than the index
/// at which the follower's log begins (R16).
fn slow_stream(s: &mut Strike<'_>, follower: usize) {
    away(s, follower, |s| slow_while_sent(s, CUT_LOOKS_MAX, false));
}

/// Slows the reads of disks that send streams. `seen`: there were streams.
fn slow_while_sent(s: &mut Strike<'_>, tries: u32, seen: bool) {
    let mut streams = false;
    for i in 0..s.cluster.osd_count() {
        let sends = s.cluster.streams(i);
        streams |= sends;
        s.cluster.disk_faults(i, |f| f.slow_reads = if sends && tries > 0 { SLOW } else { 1 });
    }
    if tries > 0 && (streams || !seen) {
        s.after(LOOK, move |s| slow_while_sent(s, tries - 1, streams || seen));
    }
}

/// A follower is away until only a stream helps. When its log has begun, it counts (R16): the OSD that sends the stream dies, or
/// another one, or the follower itself, and stays away for longer than an election takes. Then the next one.
fn filling_counts(s: &mut Strike<'_>, follower: usize) {
    away(s, follower, move |s| {
        let (sends, gone, next) = (s.rng.below(3), ms(s, 300, 2500), ms(s, 5, 400));
        let filling = |s: &mut Strike<'_>| (0..s.cluster.osd_count()).find(|i| s.cluster.fills(*i));
        when(s, STREAM_LOOKS_MAX, filling, move |s, sender| {
            let Some(sender) = sender else { return };
            s.after(next, move |s| {
                let third = (0..s.cluster.osd_count()).find(|i| ![sender, follower].contains(i));
                let victim = [Some(sender), third, Some(follower)][sends as usize].unwrap_or(sender);
                let power = s.rng.chance(1, 2);
                s.cluster.stop_osd(victim, power);
                s.after(gone, move |s| s.cluster.start_osd(victim));
            });
        });
    });
}

/// The small OSD is full, and misses writes that need space. When it is back, its log brings it more than its home
/// takes. No destage takes the replica of the busiest PG any more, and its entries fill more than half of the log.
///
/// Then the leader of that PG does not hear the OSD until only a stream helps. The space of the PG is freed, so the
/// stream brings next to nothing. Destages of the other PG go on, so that the log copies the entries forward that the
/// installation makes void (R12).
fn filled_behind(s: &mut Strike<'_>) -> bool {
    let full = |s: &mut Strike<'_>| s.cluster.is_full(SMALL).then_some(());
    when(s, FILL_LOOKS_MAX, full, |s, found| {
        tracing::info!(full = found.is_some(), "a full OSD goes away");
        // With one PG alone there is no other PG whose destages go on.
        if found.is_none() || s.cluster.loaded(SMALL, LOADED) < 2 {
            return;
        }
        let most = s.cluster.units(SMALL).map_or(0, |(_, count)| count) + EXCESS_UNITS;
        s.cluster.stop_osd(SMALL, false);
        let beyond = move |s: &mut Strike<'_>| {
            let needed = |i| s.cluster.units(i).map(|(needed, _)| needed);
            (0..s.cluster.osd_count()).filter_map(needed).any(|needed| needed > most).then_some(())
        };
        when(s, FILL_LOOKS_MAX, beyond, |s, found| {
            tracing::info!(beyond = found.is_some(), "it comes back");
            s.cluster.start_osd(SMALL);
            let filled = |s: &mut Strike<'_>| {
                let (in_use, count) = s.cluster.log_segments(SMALL)?;
                (in_use > count / 2 + 4).then(|| s.cluster.busiest_led(SMALL))?
            };
            when(s, FILL_LOOKS_MAX, filled, |s, found| {
                tracing::info!(?found, "the log of a full OSD fills");
                match found {
                    Some((pg, leader)) => unheard_until_behind(s, pg, leader),
                    None => s.cluster.owner().give_back(),
                }
            });
        });
    });
    true
}

/// The leader of the PG and the small OSD do not hear each other until the log has dropped the entries that the OSD
/// lacks. The small OSD's disk is slow until the calm, so that destages end while a segment is copied.
fn unheard_until_behind(s: &mut Strike<'_>, pg: PgId, leader: usize) {
    let others = s.cluster.led_by(leader).into_iter().filter(|other| *other != pg);
    let third = (0..s.cluster.osd_count()).find(|i| ![SMALL, leader].contains(i));
    others.for_each(|other| s.cluster.transfer_pg(other, third, s.rng));
    s.after(HANDOVER, move |s| {
        let (l, small) = (s.cluster.osd_node(leader), s.cluster.osd_node(SMALL));
        s.cluster.world.partition(l, small, Cut::Both);
        s.cluster.disk_faults(SMALL, |f| f.latency = COPYING);
        let behind = move |s: &mut Strike<'_>| s.cluster.is_behind_logs(SMALL, pg, UNHEARD_ENTRIES).then_some(());
        when(s, FILL_LOOKS_MAX, behind, move |s, found| {
            tracing::info!(behind = found.is_some(), "space is given back");
            s.cluster.owner().give_back();
            let given = |s: &mut Strike<'_>| (!s.cluster.owner().is_giving_back()).then_some(());
            when(s, FILL_LOOKS_MAX, given, move |s, _| s.cluster.world.heal(l, small));
        });
    });
}

/// Stops an OSD for a while, under load.
fn away(s: &mut Strike<'_>, follower: usize, then: impl FnOnce(&mut Strike<'_>) + 'static) {
    s.cluster.stop_osd(follower, false);
    let gone = ms(s, 1500, 3000);
    s.after(gone, move |s| {
        s.cluster.start_osd(follower);
        then(s);
    });
}
