//! Schedules aimed at messages that come late or from the wrong sender.
//!
//! A follower acknowledges while its device hangs, an opener asks for segments when it no longer holds the volume, and
//! payloads look like batches when a log is read. The schedules strike in aimed runs alone (see `aim`).

use super::aimed_logs::{LOOKS_MAX, ms, when};
use super::{Class, Strike};
use crate::workload;
use simenv::Cut;
use std::time::Duration;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::HungFollower => hung_follower(s),
        Class::LateAsk => late_ask(s),
        Class::ForgedHeaders => remount(s),
        Class::BrokenPath => broken_path(s),
        other => unreachable!("{other:?} is not late"),
    }
}

/// The device of a follower hangs until the leader's log has passed it. The follower accepts a stream, and dies: the
/// leader takes it to hold what it acknowledged then.
fn hung_follower(s: &mut Strike<'_>) -> bool {
    let Some((_, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    if others.is_empty() {
        return false;
    }
    let hung = others[s.rng.below(others.len() as u64) as usize];
    s.cluster.disk_faults(hung, |f| f.stuck = true);
    let streams = move |s: &mut Strike<'_>| s.cluster.streams(leader).then_some(());
    when(s, LOOKS_MAX, streams, move |s, streams| {
        tracing::info!(hung, ?streams, "a device hangs");
        let said = ms(s, 5, 300);
        s.after(said, move |s| {
            s.cluster.stop_osd(hung, false);
            s.cluster.disk_faults(hung, |f| f.stuck = false);
            s.cluster.start_osd(hung);
        });
    });
    true
}

/// The owner asks for a segment that is not allocated. Before meta hears of it the owner is preempted, and learns
/// nothing of that.
fn late_ask(s: &mut Strike<'_>) -> bool {
    let Some(owner) = s.cluster.open_owner() else { return false };
    let asks = Duration::from_nanos(workload::next_frontier(s.now.0) - s.now.0) + ms(s, 2, 40);
    let theft = asks + ms(s, 0, 10);
    let heard = theft + ms(s, 1, 30);
    let reached = heard + ms(s, 0, 20);
    let node = s.cluster.owner_node();
    let osds: Vec<_> = (0..s.cluster.osd_count()).map(|k| s.cluster.osd_node(k)).collect();
    s.cluster.post().hold_asks(owner, s.now + heard);
    let all = osds.clone();
    s.after(asks, move |s| all.iter().for_each(|osd| s.cluster.world.partition(node, *osd, Cut::Both)));
    s.after(theft, |s| s.cluster.steal());
    s.after(reached, move |s| osds.iter().for_each(|osd| s.cluster.world.heal(node, *osd)));
    true
}

/// One direction between the owner and a leader is broken, for longer than a request may wait (see `run`). Only one
/// path is broken at a time, so some replica can always be reached.
fn broken_path(s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, _)) = s.cluster.any_led(s.rng) else { return false };
    if s.cluster.path_broken {
        return false;
    }
    let (osd, client) = (s.cluster.osd_node(leader), s.cluster.owner_node());
    let (from, to) = if s.rng.chance(1, 2) { (osd, client) } else { (client, osd) };
    tracing::info!(%pg, leader, ?from, ?to, "a path is broken one way");
    s.cluster.path_broken = true;
    s.cluster.world.partition(from, to, Cut::OneWay);
    s.mend(6000, 9000, move |s| {
        s.cluster.world.heal(from, to);
        s.cluster.path_broken = false;
    });
    true
}

/// A log is read again, with a torn end or a whole one, some with the opening of the newest segment lost. In the torn batch and
/// behind the end lie forged payloads (see `forge`).
fn remount(s: &mut Strike<'_>) -> bool {
    let liar = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.is_lost(*i));
    let liar = if s.rng.chance(1, 4) { liar } else { None };
    let i = liar.unwrap_or_else(|| s.osd());
    let power = s.rng.chance(2, 3);
    s.cluster.stop_osd(i, power);
    if liar.is_some() {
        s.cluster.budget.note(i, Class::BitRotLog);
        crate::rot::newest_opening(&s.cluster.image(i));
    }
    let back = ms(s, 1, 200);
    s.after(back, move |s| s.cluster.start_osd(i));
    true
}
