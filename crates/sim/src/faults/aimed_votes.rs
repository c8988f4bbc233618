//! Schedules aimed at elections and majorities: the state that must be durable before it counts, and the time for which
//! a promise or a lease holds.
//!
//! Each schedule waits for a change of leader where it needs one, a millisecond at a time. It ends its faults whether
//! or not the change came.

use super::{Class, Strike};
use crate::cluster::Cluster;
use simenv::{Cut, NodeId};
use std::time::Duration;
use types::{PgId, Term};

/// Longest wait for a change of leader, in milliseconds.
const CHANGE_MS_MAX: u32 = 2500;

/// The PG that a schedule is about.
#[derive(Clone)]
struct Scene {
    pg: PgId,
    leader: usize,
    term: Term,
    /// Its other members.
    others: Vec<usize>,
}

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    let Some((term, _)) = leader_of(s.cluster, pg).filter(|_| others.len() >= 2) else { return false };
    let scene = Scene { pg, leader, term, others };
    match class {
        Class::LostVote => lost_vote(s, scene),
        Class::UnevenMajority => uneven_majority(s, &scene),
        Class::YoungLeadership => young_leadership(s, scene),
        Class::SlowLeadership => slow_leadership(s, &scene),
        Class::LateAcks => late_acks(s, &scene),
        other => unreachable!("{other:?} is aimed at no vote"),
    }
    true
}

fn ms(s: &mut Strike<'_>, min: u64, max: u64) -> Duration {
    Duration::from_micros(s.rng.between(min * 1000, max * 1000))
}

/// Returns the highest term in which a member leads the PG, and that member.
pub(super) fn leader_of(cluster: &Cluster, pg: PgId) -> Option<(Term, usize)> {
    let leads = cluster.running().filter_map(|(id, osd)| Some((*osd.leading().get(&pg)?, id.0 as usize - 1)));
    leads.max()
}

/// Calls `then` with the new leader as soon as the PG is led in a later term than `term`. Calls it with `None` when
/// that takes too long.
pub(super) fn when_led_anew(
    s: &mut Strike<'_>,
    (pg, term, tries): (PgId, Term, u32),
    then: impl FnOnce(&mut Strike<'_>, Option<usize>) + 'static,
) {
    match leader_of(s.cluster, pg).filter(|(now, _)| *now > term) {
        Some((_, leader)) => then(s, Some(leader)),
        None if tries == 0 => then(s, None),
        None => s.after(Duration::from_millis(1), move |s| when_led_anew(s, (pg, term, tries - 1), then)),
    }
}

fn nodes(s: &Strike<'_>, osds: &[usize]) -> Vec<NodeId> {
    osds.iter().map(|k| s.cluster.osd_node(*k)).collect()
}

pub(super) fn cut_off(s: &Strike<'_>, osd: usize, from: &[usize]) {
    let a = s.cluster.osd_node(osd);
    from.iter().filter(|k| **k != osd).for_each(|k| s.cluster.world.partition(a, s.cluster.osd_node(*k), Cut::Both));
}

/// Cuts an OSD from all others.
pub(super) fn cut_off_for_a_while(s: &mut Strike<'_>, osd: usize) {
    let all: Vec<usize> = (0..s.cluster.osd_count()).collect();
    cut_off(s, osd, &all);
    s.mend(50, 2500, move |s| {
        let node = s.cluster.osd_node(osd);
        s.others(osd).into_iter().for_each(|other| s.cluster.world.heal(node, other));
    });
}

fn heal(s: &mut Strike<'_>, after: Duration, osd: usize, with: &[usize]) {
    let (a, with) = (s.cluster.osd_node(osd), nodes(s, with));
    s.after(after, move |s| with.iter().filter(|b| **b != a).for_each(|b| s.cluster.world.heal(a, *b)));
}

/// A member that has just voted loses its power, and meets a candidate of the same term: its vote must have been
/// durable before it was given (R5).
fn lost_vote(s: &mut Strike<'_>, scene: Scene) {
    let Scene { pg, leader, term, others } = scene;
    for k in &others {
        let factor = s.rng.between(1, 40) as u32;
        s.cluster.disk_faults(*k, |f| f.slow = factor);
    }
    s.cluster.stop_osd(leader, false);
    when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, new| {
        let voters: Vec<usize> = others.iter().copied().filter(|k| Some(*k) != new).collect();
        if let Some(new) = new {
            let mut all = others.clone();
            all.push(leader);
            cut_off(s, new, &all);
            let healed = ms(s, 300, 2500);
            heal(s, healed, new, &all);
            voters.iter().for_each(|k| s.cluster.stop_osd(*k, true));
        }
        others.iter().for_each(|k| s.cluster.disk_faults(*k, |f| f.slow = 1));
        voters.iter().for_each(|k| s.cluster.start_osd(*k));
        s.cluster.start_osd(leader);
    });
}

/// A leader with a slow disk replicates to half of its followers; then it loses its power, and meets the other half
/// alone. Entries that only its memory held must not have counted (R5).
fn uneven_majority(s: &mut Strike<'_>, scene: &Scene) {
    let leader = scene.leader;
    let (near, far) = scene.others.split_at(scene.others.len() / 2);
    let (near, far) = (near.to_vec(), far.to_vec());
    let factor = s.rng.between(20, 300) as u32;
    s.cluster.disk_faults(leader, |f| f.slow = factor);
    cut_off(s, leader, &far);
    let until = ms(s, 20, 400);
    heal(s, until, leader, &far);
    let stand_in = near.clone();
    s.after(until, move |s| {
        s.cluster.stop_osd(leader, true);
        stand_in.iter().for_each(|k| s.cluster.stop_osd(*k, false));
        s.cluster.disk_faults(leader, |f| f.slow = 1);
        s.cluster.start_osd(leader);
    });
    let back = until + ms(s, 500, 3000);
    s.after(back, move |s| near.iter().for_each(|k| s.cluster.start_osd(*k)));
}

/// A new leader, whose PG is in no full lease renewal yet, loses all followers but one, then that one. Only the
/// promise of that last follower keeps it from voting for another replica while the leader may read (R3).
fn young_leadership(s: &mut Strike<'_>, scene: Scene) {
    let Scene { pg, term, others, .. } = scene;
    let to = others[s.rng.below(others.len() as u64) as usize];
    s.cluster.transfer_pg(pg, Some(to), s.rng);
    let mut all = others;
    all.push(scene.leader);
    when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, young| {
        let (Some(young), Some((term, _))) = (young, leader_of(s.cluster, pg)) else { return };
        let pause = ms(s, 5, 280);
        s.after(pause, move |s| forsake(s, (pg, term, young), &all));
    });
}

fn forsake(s: &mut Strike<'_>, (pg, term, young): (PgId, Term, usize), all: &[usize]) {
    let mut lost: Vec<usize> = all.iter().copied().filter(|k| *k != young).collect();
    lost.remove(s.rng.below(lost.len() as u64) as usize);
    let (l, writer) = (s.cluster.osd_node(young), s.cluster.owner_node());
    for node in nodes(s, &lost).into_iter().chain([writer]) {
        s.cluster.world.reset_conns(l, node);
        // The reset reaches both ends before the link is cut.
        s.after(Duration::from_micros(300), move |s| s.cluster.world.partition(l, node, Cut::Both));
    }
    let everyone = all.to_vec();
    when_led_anew(s, (pg, term, 400), move |s, _| {
        cut_off(s, young, &everyone);
        let healed = ms(s, 80, 600);
        heal(s, healed, young, &everyone);
        s.after(healed, move |s| s.cluster.world.heal(l, writer));
    });
}

/// A leader dies while every disk is slow. Its successor learns only with an entry of its own term which entries were
/// committed before, and must not serve until then (R3).
fn slow_leadership(s: &mut Strike<'_>, scene: &Scene) {
    let (leader, others) = (scene.leader, scene.others.clone());
    let slow = ms(s, 0, 30);
    let factor = s.rng.between(50, 400) as u32;
    let slowed = others.clone();
    s.after(slow, move |s| slowed.iter().for_each(|k| s.cluster.disk_faults(*k, |f| f.slow = factor)));
    let death = slow + ms(s, 0, 20);
    s.after(death, move |s| s.cluster.stop_osd(leader, false));
    let end = death + ms(s, 400, 2500);
    s.after(end, move |s| {
        others.iter().for_each(|k| s.cluster.disk_faults(*k, |f| f.slow = 1));
        s.cluster.start_osd(leader);
    });
}

/// The lease acknowledgements of half the followers are held up, then everything else between the leader and the others
/// is cut. When the acknowledgements arrive, their promises are over: a lease counts from the sending (R3).
fn late_acks(s: &mut Strike<'_>, scene: &Scene) {
    let leader = scene.leader;
    let (late, lost) = scene.others.split_at(scene.others.len() / 2);
    let (l, writer) = (s.cluster.osd_node(leader), s.cluster.owner_node());
    let (late, lost) = (nodes(s, late), nodes(s, lost));
    late.iter().for_each(|f| s.cluster.world.partition(*f, l, Cut::OneWay));
    let cut = ms(s, 5, 60);
    let (deaf, gone) = (late.clone(), lost.clone());
    s.after(cut, move |s| {
        deaf.iter().for_each(|f| s.cluster.world.partition(l, *f, Cut::Both));
        for node in gone.into_iter().chain([writer]) {
            s.cluster.world.reset_conns(l, node);
            s.after(Duration::from_micros(300), move |s| s.cluster.world.partition(l, node, Cut::Both));
        }
    });
    let arrival = cut + ms(s, 170, 700);
    let heard = late.clone();
    s.after(arrival, move |s| {
        for f in &heard {
            s.cluster.world.heal(l, *f);
            s.cluster.world.partition(l, *f, Cut::OneWay);
        }
    });
    let end = arrival + ms(s, 50, 600);
    s.after(end, move |s| late.iter().chain(&lost).chain([&writer]).for_each(|f| s.cluster.world.heal(l, *f)));
}
