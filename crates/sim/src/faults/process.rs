//! Faults of processes and machines: a process dies, stands still or comes back to another disk; a machine loses its
//! power.

use super::{Class, Strike};
use simenv::{Doom, DoomBy};
use std::time::Duration;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    match class {
        Class::Crash | Class::PowerCut => down(s, i, class == Class::PowerCut, 3000),
        Class::CrashInTurn => {
            let by = if s.rng.chance(1, 3) { DoomBy::Events } else { DoomBy::Ops };
            doom(s, i, by);
        }
        Class::CrashInTask => doom(s, i, DoomBy::DiskOps),
        Class::PowerCutAll => (0..s.cluster.osd_count()).for_each(|i| down(s, i, true, 2000)),
        Class::RestartAll => restart_all(s),
        Class::TwoDown => {
            let j = (i + 1 + s.rng.below(s.cluster.osd_count() as u64 - 1) as usize) % s.cluster.osd_count();
            for k in [i, j] {
                let power = s.rng.chance(1, 2);
                down(s, k, power, 2000);
            }
        }
        Class::Pause => pause(s, i, 3000),
        Class::LongPause => pause(s, i, 90_000),
        Class::Wipe => return wipe(s),
        other => unreachable!("{other:?} is no fault of a process"),
    }
    true
}

fn down(s: &mut Strike<'_>, i: usize, power: bool, max_ms: u64) {
    s.cluster.stop_osd(i, power);
    s.mend(1, max_ms, move |s| s.cluster.start_osd(i));
}

/// Makes the process die at a later operation or event. Operations that its turn had already submitted are on their
/// way.
fn doom(s: &mut Strike<'_>, i: usize, by: DoomBy) {
    let far = [4, 40, 400][s.rng.below(3) as usize];
    let after = s.rng.below(far);
    let (scatter, power) = (s.rng.chance(1, 2), s.rng.chance(1, 3));
    let node = s.cluster.osd_node(i);
    s.cluster.world.doom(node, Some(Doom { after, by, scatter, power }));
    s.mend(10, 3000, move |s| {
        s.cluster.world.doom(node, None);
        s.cluster.start_osd(i);
    });
}

/// Stops all OSDs together; they come back in any order.
fn restart_all(s: &mut Strike<'_>) {
    let mut all: Vec<usize> = (0..s.cluster.osd_count()).collect();
    all.iter().for_each(|i| s.cluster.stop_osd(*i, false));
    let mut delay = Duration::ZERO;
    while !all.is_empty() {
        let i = all.remove(s.rng.below(all.len() as u64) as usize);
        delay += Duration::from_millis(s.rng.between(0, 800));
        s.after(delay, move |s| s.cluster.start_osd(i));
    }
}

fn pause(s: &mut Strike<'_>, i: usize, max_ms: u64) {
    let most = [max_ms, max_ms / 10][s.rng.below(2) as usize];
    let span = Duration::from_millis(s.rng.between(20, most));
    s.cluster.pause_osd(i, s.now + span);
    s.after(span, move |s| s.cluster.resume_osd(i));
}

/// The machine comes back with an empty disk. It must refuse to serve, and its replicas must not come back under their
/// old ids (R4): the OSD stays away.
fn wipe(s: &mut Strike<'_>) -> bool {
    let Some(i) = s.cluster.budget.pick(s.rng) else { return false };
    if s.cluster.budget.is_lost(i) || s.cluster.meta.records().is_none() {
        return false;
    }
    s.cluster.stop_osd(i, true);
    let superblock = s.rng.chance(1, 2);
    s.cluster.wipe_disk(i, superblock);
    s.mend(1, 2000, move |s| s.cluster.start_osd(i));
    true
}
