//! Faults of clients: a client dies, is preempted, sleeps meanwhile, or gets no replies.

use super::{Class, Strike};
use simenv::Cut;
use std::time::Duration;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::ClientCrash => {
            let reader = s.rng.chance(1, 3) && s.cluster.has_reader();
            s.cluster.restart_client(reader);
        }
        Class::Steal => s.cluster.steal(),
        Class::PausedWriter => return paused_writer(s),
        Class::LostReplies => return lost_replies(s),
        other => unreachable!("{other:?} is no fault of a client"),
    }
    true
}

/// The owner stands still with requests in its queues, is preempted, and wakes up: none of its requests may take
/// effect.
fn paused_writer(s: &mut Strike<'_>) -> bool {
    let Some(owner) = s.cluster.open_owner() else { return false };
    let until_theft = Duration::from_millis(s.rng.between(1, 1500));
    let asleep = until_theft + Duration::from_millis(s.rng.between(1, 4000));
    s.cluster.pause_client(owner, s.now + asleep);
    s.after(until_theft, |s| s.cluster.steal());
    s.after(asleep, move |s| s.cluster.resume_client(owner));
    true
}

/// A leader's replies to the owner are held back, then it stops leading. The owner retries the requests at the next
/// leader, although they were executed.
fn lost_replies(s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, _)) = s.cluster.any_led(s.rng) else { return false };
    let (from, to) = (s.cluster.osd_node(leader), s.cluster.owner_node());
    s.cluster.world.partition(from, to, Cut::OneWay);
    let crash = s.rng.chance(1, 2);
    let change = Duration::from_micros(s.rng.between(50, 60_000));
    s.after(change, move |s| {
        if crash {
            s.cluster.stop_osd(leader, false);
            s.mend(1, 2000, move |s| s.cluster.start_osd(leader));
        } else {
            s.cluster.transfer_pg(pg, None, s.rng);
        }
    });
    let heal = change + Duration::from_millis(s.rng.between(1, 2500));
    s.after(heal, move |s| s.cluster.world.heal(from, to));
    true
}
