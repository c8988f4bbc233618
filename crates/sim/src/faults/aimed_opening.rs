//! A schedule aimed at the state block of a log segment (R9): a crash cuts it off, later writes make that segment the oldest
//! one, and the next crash makes a mount begin there.

use super::Strike;
use super::aimed_logs::{LOOKS_MAX, ms, when};
use simenv::{Doom, DoomBy};

/// Most disk operations of a state block before the power goes.
const BLOCK_OPS: u64 = 12;
/// Most segments that are opened between the two crashes: as many as a log keeps.
const OPENED_MAX: u64 = 12;

pub fn strike(s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    let states = move |s: &mut Strike<'_>| s.cluster.log_head(i).filter(|(_, states)| *states);
    when(s, LOOKS_MAX, states, move |s, found| {
        tracing::debug!(?found, "a state block is written");
        if found.is_none() {
            return;
        }
        let (after, scatter) = (s.rng.below(BLOCK_OPS), s.rng.chance(1, 2));
        let node = s.cluster.osd_node(i);
        s.cluster.world.doom(node, Some(Doom { after, by: DoomBy::DiskOps, scatter, power: true }));
        let died = ms(s, 20, 100);
        s.after(died, move |s| {
            s.cluster.world.doom(node, None);
            s.cluster.start_osd(i);
            let opened = s.rng.below(OPENED_MAX);
            cut_later(s, i, 0, opened);
        });
    });
    true
}

/// Cuts the power when the log has opened so many segments more, and some time has passed. `head`: its newest segment.
fn cut_later(s: &mut Strike<'_>, i: usize, head: u64, opened: u64) {
    let next = move |s: &mut Strike<'_>| s.cluster.log_head(i).map(|(head, _)| head).filter(|now| *now > head);
    when(s, LOOKS_MAX, next, move |s, found| match found {
        Some(head) if opened > 0 => cut_later(s, i, head, opened - 1),
        _ => {
            let soon = ms(s, 0, 60);
            s.after(soon, move |s| {
                s.cluster.stop_osd(i, true);
                let died = ms(s, 20, 100);
                s.after(died, move |s| s.cluster.start_osd(i));
            });
        }
    });
}
