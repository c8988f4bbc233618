//! Clocks that drift, and clocks that leap forward while their machine is suspended.

use super::{Class, Strike};
use env::sim::DRIFT_PPM_MAX;
use std::time::Duration;
use types::rng::Rng;

/// How much a clock gains, in parts per million; often the most that is promised to work.
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
        // CLOCK_BOOTTIME never goes back, and runs while a machine sleeps: its process sees one long turn.
        Class::ClockJump => {
            let most = [200, 2000, 20_000][s.rng.below(3) as usize];
            s.cluster.world.jump_clock(node, Duration::from_millis(s.rng.between(50, most)));
        }
        other => unreachable!("{other:?} is no fault of a clock"),
    }
    true
}
