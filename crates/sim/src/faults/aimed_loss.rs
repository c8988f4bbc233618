//! Schedules aimed at replicas that have lost a part of the log that they had acknowledged (R4): such a replica has failed, and
//! no start of its process changes that.
//!
//! Each schedule watches its replicas, and ends all its faults whether or not the awaited condition came. They strike
//! in aimed runs alone (see `aim`).

use super::aimed_logs::{CHANGE_MS_MAX, LOADED, LOOKS_MAX, ms, when};
use super::aimed_votes::{cut_off, leader_of, when_led_anew};
use super::{Class, Strike};
use simenv::Cut;
use std::time::Duration;
use types::{PgId, Term};

/// A PG under load: its leader, the member whose log rots, and the other members.
#[derive(Clone)]
struct Scene {
    pg: PgId,
    leader: usize,
    term: Term,
    liar: usize,
    rest: Vec<usize>,
}

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    let Some((term, _)) = leader_of(s.cluster, pg) else { return false };
    let loaded = s.cluster.standing(leader, pg).is_some_and(|standing| standing.last > LOADED);
    // A device that has lied already may have nothing left to lose.
    let liar = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.has_lied(*i) && others.contains(i));
    let Some(liar) = liar.filter(|_| loaded) else { return false };
    let rest = others.into_iter().filter(|k| *k != liar).collect();
    let scene = Scene { pg, leader, term, liar, rest };
    match class {
        Class::MatchAfterLoss => match_after_loss(s, scene),
        Class::RestartAfterLoss => restart_after_loss(s, scene),
        other => unreachable!("{other:?} is aimed at no loss"),
    }
    true
}

fn stick(s: &Strike<'_>, osds: &[usize], stuck: bool) {
    osds.iter().for_each(|k| s.cluster.disk_faults(*k, |f| f.stuck = stuck));
}

/// Ends all faults of the scene now.
fn mended(s: &mut Strike<'_>, scene: &Scene) {
    let mut all = scene.rest.clone();
    all.extend([scene.leader, scene.liar]);
    for a in &all {
        all.iter()
            .filter(|b| *b > a)
            .for_each(|b| s.cluster.world.heal(s.cluster.osd_node(*a), s.cluster.osd_node(*b)));
    }
    stick(s, &all, false);
    all.into_iter().for_each(|k| s.cluster.start_osd(k));
}

/// Kills the liar, damages headers of its log, starts it again, and calls `then` as soon as its replica has failed.
fn lose_and_fail(s: &mut Strike<'_>, scene: Scene, one_in: u64, then: impl FnOnce(&mut Strike<'_>, Scene) + 'static) {
    let Scene { pg, liar, .. } = scene;
    s.cluster.stop_osd(liar, false);
    if s.cluster.budget.has_lied(liar) {
        return mended(s, &scene);
    }
    let hit = s.cluster.rot_headers_of_liar(liar, one_in, s.rng);
    tracing::info!(hit, liar, "headers of a log rot");
    s.cluster.start_osd(liar);
    let failed = move |s: &mut Strike<'_>| s.cluster.has_failed(liar, pg);
    when(s, LOOKS_MAX / 3, failed, move |s, failed| match failed {
        Some(true) => then(s, scene),
        _ => mended(s, &scene),
    });
}

/// The devices of all other members hang, so entries of the leader and the liar are not committed. The liar loses them and has
/// failed. Then one of the others holds them, too: with the liar's old acknowledgement it is a majority, of which one has failed.
fn match_after_loss(s: &mut Strike<'_>, scene: Scene) {
    stick(s, &scene.rest, true);
    let acknowledged = ms(s, 20, 200);
    s.after(acknowledged, move |s| {
        let one_in = [2, 3][s.rng.below(2) as usize];
        lose_and_fail(s, scene, one_in, |s, scene| {
            let (l, x) = (s.cluster.osd_node(scene.leader), s.cluster.osd_node(scene.liar));
            s.cluster.world.partition(l, x, Cut::Both);
            let third = scene.rest[s.rng.below(scene.rest.len() as u64) as usize];
            stick(s, &[third], false);
            let counted = ms(s, 30, 300);
            s.after(counted, move |s| mended(s, &scene));
        });
    });
}

/// The third member hears nothing of the entries that leader and liar commit. The liar loses them, and starts again without the
/// leader: the third member and the liar must not be a majority.
fn restart_after_loss(s: &mut Strike<'_>, scene: Scene) {
    let (leader, rest) = (scene.leader, scene.rest.clone());
    cut_off(s, leader, &rest);
    let rot = ms(s, 50, 500);
    s.after(rot, move |s| lose_and_fail(s, scene, 2, forget));
}

/// Stops the leader. The liar goes through a destage, and then through a restart.
fn forget(s: &mut Strike<'_>, scene: Scene) {
    let Scene { pg, leader, term, liar, .. } = scene;
    s.cluster.stop_osd(leader, false);
    let round = ms(s, 100, 900);
    s.after(round, move |s| {
        s.cluster.stop_osd(liar, false);
        s.cluster.start_osd(liar);
        let soon = Duration::from_millis(50);
        s.after(soon, move |s| when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, _| mended(s, &scene)));
    });
}
