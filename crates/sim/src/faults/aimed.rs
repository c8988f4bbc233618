//! Schedules that are each aimed at one rule. Random faults would produce one about once in ten thousand runs.

use super::{Class, Strike};
use simenv::Cut;
use std::time::Duration;
use types::PgId;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    if others.len() < 2 {
        return false;
    }
    match class {
        Class::RestartInLease => restart_in_lease(s, leader, &others),
        Class::SlowRelease => slow_release(s, pg, leader, &others),
        Class::ReplayedCopies => replayed_copies(s, pg, leader, &others),
        Class::CutAfterCheckpoint => cut_after_checkpoint(s),
        other => unreachable!("{other:?} is not aimed"),
    }
    true
}

fn ms(s: &mut Strike<'_>, min: u64, max: u64) -> Duration {
    Duration::from_micros(s.rng.between(min * 1000, max * 1000))
}

/// One follower has lost the leader and campaigns when its promise ends. Another follower, which renewed its promise
/// until just now, restarts and must not vote yet: the leader, cut off from both, may still serve reads by its lease
/// (R3).
fn restart_in_lease(s: &mut Strike<'_>, leader: usize, others: &[usize]) {
    let forgetful = others[s.rng.below(others.len() as u64) as usize];
    let l = s.cluster.osd_node(leader);
    let lost: Vec<usize> = others.iter().copied().filter(|k| *k != forgetful).collect();
    let reset = s.rng.chance(3, 4);
    for k in &lost {
        let node = s.cluster.osd_node(*k);
        if reset {
            s.cluster.world.reset_conns(l, node);
        }
        // The reset reaches both ends before the link is cut.
        s.after(Duration::from_micros(300), move |s| s.cluster.world.partition(l, node, Cut::Both));
    }
    let f = s.cluster.osd_node(forgetful);
    let restart = ms(s, 60, 260);
    s.after(restart, move |s| {
        s.cluster.stop_osd(forgetful, false);
        s.cluster.world.partition(l, f, Cut::Both);
        s.cluster.start_osd(forgetful);
    });
    let heal = restart + ms(s, 200, 1500);
    let all: Vec<_> = others.iter().map(|k| s.cluster.osd_node(*k)).collect();
    s.after(heal, move |s| all.iter().for_each(|node| s.cluster.world.heal(l, *node)));
}

/// A leader transfers its leadership, and no answer reaches it. Its lease release has ended all promises, so it must
/// have stopped serving before (R3).
fn slow_release(s: &mut Strike<'_>, pg: PgId, leader: usize, others: &[usize]) {
    let l = s.cluster.osd_node(leader);
    let from: Vec<_> = others.iter().map(|k| s.cluster.osd_node(*k)).collect();
    let healed = from.clone();
    let to = others[s.rng.below(others.len() as u64) as usize];
    let cut = Duration::from_micros(s.rng.between(0, 1500));
    if s.rng.chance(1, 2) {
        s.cluster.transfer_pg(pg, Some(to), s.rng);
        s.after(cut, move |s| from.iter().for_each(|f| s.cluster.world.partition(*f, l, Cut::OneWay)));
    } else {
        from.iter().for_each(|f| s.cluster.world.partition(*f, l, Cut::OneWay));
        s.after(cut, move |s| s.cluster.transfer_pg(pg, Some(to), s.rng));
    }
    let heal = cut + ms(s, 100, 1200);
    s.after(heal, move |s| healed.iter().for_each(|f| s.cluster.world.heal(*f, l)));
}

/// Copies of requests wait behind a cut on their way to the leader, while another leader takes the retries of the
/// client. Then the first leads again, and the copies arrive (R7). Other members may have restarted from their
/// checkpoints meanwhile (R1).
fn replayed_copies(s: &mut Strike<'_>, pg: PgId, leader: usize, others: &[usize]) {
    let (l, client) = (s.cluster.osd_node(leader), s.cluster.owner_node());
    let second = others[s.rng.below(others.len() as u64) as usize];
    s.cluster.world.partition(client, l, Cut::OneWay);
    let away = ms(s, 5, 300);
    s.after(away, move |s| s.cluster.transfer_pg(pg, Some(second), s.rng));
    let mut back = away + ms(s, 150, 1200);
    if s.rng.chance(1, 2) {
        let bystander = others.iter().copied().find(|k| *k != second).expect("there are two others");
        let (begin, end) = (away + (back - away) / 4, away + (back - away) / 2);
        s.after(begin, move |s| s.cluster.stop_osd(bystander, true));
        s.after(end, move |s| s.cluster.start_osd(bystander));
        back += Duration::from_millis(200);
    }
    s.after(back, move |s| s.cluster.transfer_pg(pg, Some(leader), s.rng));
    let heal = back + ms(s, 1, 150);
    s.after(heal, move |s| s.cluster.world.heal(client, l));
}

/// Cuts the power everywhere soon after checkpoints, with replies on their way. Requests that clients retry must be
/// recognised from the checkpoints alone (R1, R7).
fn cut_after_checkpoint(s: &mut Strike<'_>) {
    let before = s.cluster.checkpoints();
    let (client, nodes): (_, Vec<_>) =
        (s.cluster.owner_node(), (0..s.cluster.osd_count()).map(|k| s.cluster.osd_node(k)).collect());
    let cut = nodes.clone();
    let hold = ms(s, 0, 40);
    s.after(hold, move |s| cut.iter().for_each(|n| s.cluster.world.partition(*n, client, Cut::OneWay)));
    watch(s, before, 40);
    s.after(hold + Duration::from_millis(2500), move |s| nodes.iter().for_each(|n| s.cluster.world.heal(*n, client)));
}

fn watch(s: &mut Strike<'_>, before: u64, tries: u32) {
    if tries > 0 && s.cluster.checkpoints() < before + s.cluster.osd_count() as u64 {
        return s.after(Duration::from_millis(20), move |s| watch(s, before, tries - 1));
    }
    for i in 0..s.cluster.osd_count() {
        s.cluster.stop_osd(i, true);
        s.mend(1, 500, move |s| s.cluster.start_osd(i));
    }
}
