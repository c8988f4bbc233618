//! Faults of clocks: a clock drifts, or leaps forward while its machine is suspended.

use super::{Class, Strike};
use simenv::{Cut, DRIFT_PPM_MAX};
use std::time::Duration;
use types::rng::Rng;

/// Draws how much a clock gains, in parts per million; often the largest drift that is promised to work.
pub fn draw_rate(rng: &mut Rng) -> i64 {
    match rng.below(4) {
        0 => DRIFT_PPM_MAX,
        1 => -DRIFT_PPM_MAX,
        _ => rng.between(0, 2 * DRIFT_PPM_MAX as u64) as i64 - DRIFT_PPM_MAX,
    }
}

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    let node = s.cluster.osd_node(i);
    match class {
        Class::ClockRate => s.cluster.world.set_clock_rate(node, draw_rate(s.rng)),
        Class::ClockJump => {
            let most = [200, 2000, 20_000][s.rng.below(3) as usize];
            let by = Duration::from_millis(s.rng.between(50, most));
            suspend(s, i, by);
        }
        other => unreachable!("{other:?} is no fault of a clock"),
    }
    true
}

/// Suspends the machine: it runs nothing, nothing reaches it, and its CLOCK_BOOTTIME goes on, so that its process sees
/// one long turn. No lease can stand a leap that takes no time (R3): a follower would believe its promise over while
/// the leader counts on it (seed 23054 was such a run).
fn suspend(s: &mut Strike<'_>, i: usize, by: Duration) {
    let others = s.others(i);
    let node = s.cluster.osd_node(i);
    others.iter().for_each(|other| s.cluster.world.partition(node, *other, Cut::Both));
    s.cluster.pause_osd(i, s.now + by);
    s.after(by, move |s| {
        others.iter().for_each(|other| s.cluster.world.heal(node, *other));
        s.cluster.resume_osd(i);
    });
}
