//! Schedules aimed at the store of one OSD.
//!
//! A destage may not touch some pages before its checkpoint is durable. The log must copy entries forward for a PG that
//! stands still while others go on. The schedules come in runs that wear the devices (see `Options::wear`), with dice
//! of their own.

use super::{Class, Strike};
use simenv::{Cut, Doom, DoomBy};
use std::time::Duration;

/// Longest wait, in milliseconds, for a destage to begin, or for a flush of home.
const ROUND_MS_MAX: u32 = 1500;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::CrashInRound => {
            let i = s.osd();
            when_in_round(s, i, ROUND_MS_MAX);
        }
        Class::FlushFailsInRound => return flush_fails_in_round(s),
        Class::LoneFollower => return lone_follower(s),
        other => unreachable!("{other:?} is not aimed at a store"),
    }
    true
}

/// The process dies between two operations of a destage, often with its machine's power. The last checkpoint, and the
/// log above it, must be as if the destage had never begun (R2, R8, R9).
fn when_in_round(s: &mut Strike<'_>, i: usize, tries: u32) {
    if !s.cluster.is_in_round(i) {
        if tries > 0 {
            s.after(Duration::from_millis(1), move |s| when_in_round(s, i, tries - 1));
        }
        return;
    }
    let far = [4, 16, 64][s.rng.below(3) as usize];
    let after = s.rng.below(far);
    let (scatter, power) = (s.rng.chance(1, 2), s.rng.chance(1, 2));
    let node = s.cluster.osd_node(i);
    s.cluster.world.doom(node, Some(Doom { after, by: DoomBy::DiskOps, scatter, power }));
    s.mend(10, 1000, move |s| {
        s.cluster.world.doom(node, None);
        s.cluster.start_osd(i);
    });
}

/// The flush of a destage fails, and the power goes soon after. Writes that the flush was to cover may be lost,
/// whatever is flushed later (R15).
fn flush_fails_in_round(s: &mut Strike<'_>) -> bool {
    let Some(i) = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.is_lost(*i)) else { return false };
    let nth = s.rng.below(3);
    s.cluster.disk_faults(i, |f| f.fail_own_flush = Some(nth));
    s.cluster.budget.note(i, Class::FlushFailsInRound);
    when_flush_failed(s, i, ROUND_MS_MAX);
    true
}

fn when_flush_failed(s: &mut Strike<'_>, i: usize, tries: u32) {
    let mut waits = false;
    s.cluster.disk_faults(i, |f| waits = f.fail_own_flush.is_some());
    if waits && tries > 0 {
        return s.after(Duration::from_millis(1), move |s| when_flush_failed(s, i, tries - 1));
    }
    s.cluster.disk_faults(i, |f| f.fail_own_flush = None);
    let soon = Duration::from_micros(s.rng.between(0, 60_000));
    s.after(soon, move |s| {
        s.cluster.stop_osd(i, true);
        s.mend(1, 1000, move |s| s.cluster.start_osd(i));
    });
}

/// A follower does not hear whether its entries are committed, while other PGs go on to fill its log: the log copies
/// the entries forward (R9). Then the follower may have to read them back.
fn lone_follower(s: &mut Strike<'_>) -> bool {
    let Some((_, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    if others.is_empty() {
        return false;
    }
    let i = others[s.rng.below(others.len() as u64) as usize];
    let (l, f) = (s.cluster.osd_node(leader), s.cluster.osd_node(i));
    s.cluster.world.partition(l, f, Cut::Both);
    let most = [600_000, 2_000_000, 6_000_000][s.rng.below(3) as usize];
    let alone = Duration::from_micros(s.rng.between(100_000, most));
    if s.rng.chance(1, 2) {
        // The follower stops before or after it hears of the others again.
        let at = alone + Duration::from_micros(s.rng.between(0, 100_000)) - Duration::from_millis(50);
        let power = s.rng.chance(1, 2);
        s.after(at, move |s| {
            s.cluster.stop_osd(i, power);
            s.mend(1, 300, move |s| s.cluster.start_osd(i));
        });
    }
    s.after(alone, move |s| s.cluster.world.heal(l, f));
    true
}
