//! Schedules aimed at what a store gives back, and when: a log beside a leader that is not heard (R9), an installation that
//! does not come to its end while another stream writes (R8), a cut whose reads are slow (R12).
//!
//! They strike in aimed runs alone (see `aim`), one after the other, and mend what they break whether or not what they wait
//! for came.

use super::aimed_logs::when;
use super::{Class, Strike};
use env::sim::{Cut, Doom, DoomBy};
use std::time::Duration;

/// Looks of a fifth of a millisecond until streams have come to an installation: four seconds.
const STREAM_LOOKS_MAX: u32 = 20_000;
/// Looks until a stream is over: four seconds.
const CUT_LOOKS_MAX: u32 = 20_000;
/// Between two of them: less than a read takes.
const LOOK: Duration = Duration::from_micros(200);
/// How much longer reads take.
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
        Class::SlowCut => slow_cut(s, follower),
        other => unreachable!("{other:?} is aimed at no stream"),
    }
    true
}

fn ms(s: &mut Strike<'_>, min: u64, max: u64) -> Duration {
    Duration::from_micros(s.rng.between(min * 1000, max * 1000))
}

/// A follower and a leader do not hear each other for as long as others need to fill the follower's log more than once: what
/// it took of that leader, and does not know to be committed, must not keep its log from being given back (R9).
fn full_log(s: &mut Strike<'_>, leader: usize, follower: usize) {
    let (l, f) = (s.cluster.osd_node(leader), s.cluster.osd_node(follower));
    s.cluster.world.partition(l, f, Cut::Both);
    let alone = ms(s, 6000, 9000);
    s.after(alone, move |s| s.cluster.world.heal(l, f));
}

/// A follower is away until the logs have forgotten what it lacks; then streams bring back all of its PGs at once. While one
/// of them is installed the process dies, often with its machine's power: until the checkpoint is durable its old contents
/// are what counts, and other streams must not have written on them (R8, R12).
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

/// A follower is away until only a stream helps. What its leader reads for the cut takes long, and nothing else does: a round
/// that began under the cut would be done before the cut is read (R12).
fn slow_cut(s: &mut Strike<'_>, follower: usize) {
    away(s, follower, |s| slow_until_cut(s, CUT_LOOKS_MAX, false));
}

/// Reads of disks that streams are read from are slow until a cut is asked of them. `seen`: there were streams.
fn slow_until_cut(s: &mut Strike<'_>, tries: u32, seen: bool) {
    let mut streams = false;
    for i in 0..s.cluster.osd_count() {
        let (sends, cuts) = s.cluster.sends_streams(i);
        streams |= sends;
        s.cluster.disk_faults(i, |f| f.slow_reads = if sends && !cuts && tries > 0 { SLOW } else { 1 });
    }
    if tries > 0 && (streams || !seen) {
        s.after(LOOK, move |s| slow_until_cut(s, tries - 1, streams || seen));
    }
}

/// An OSD is down for a while, under load.
fn away(s: &mut Strike<'_>, follower: usize, then: impl FnOnce(&mut Strike<'_>) + 'static) {
    s.cluster.stop_osd(follower, false);
    let gone = ms(s, 1500, 3000);
    s.after(gone, move |s| {
        s.cluster.start_osd(follower);
        then(s);
    });
}
