//! Schedules aimed at suspect replicas (ADR 0007): a replica has lost a part of its log that it had acknowledged, and
//! its process starts once more.
//!
//! Each schedule watches its replicas, and ends all its faults whether or not the awaited condition came. They strike
//! in aimed runs alone (see `aim`).

use super::aimed_logs::{CHANGE_MS_MAX, LOADED, LOOKS_MAX, ms, slow, when};
use super::aimed_votes::{cut_off, leader_of, when_led_anew};
use super::{Class, Strike};
use simenv::Cut;
use std::time::Duration;
use types::{Index, PgId, Term};

/// Factor by which the device of a suspect follower is slowed, so that the replica stays suspect for long.
const SLOW: u32 = 40;

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
        Class::MatchInDoubt => match_in_doubt(s, scene),
        Class::RestartInDoubt => restart_in_doubt(s, scene),
        other => unreachable!("{other:?} is aimed at no doubt"),
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
    slow(s, &all, 1);
    all.into_iter().for_each(|k| s.cluster.start_osd(k));
}

/// Kills the liar, damages headers of its log, starts it again, and calls `then` as soon as it follows as a suspect
/// replica.
fn lose_and_follow(s: &mut Strike<'_>, scene: Scene, one_in: u64, then: impl FnOnce(&mut Strike<'_>, Scene) + 'static) {
    let Scene { pg, liar, .. } = scene;
    s.cluster.stop_osd(liar, false);
    if s.cluster.budget.has_lied(liar) {
        return mended(s, &scene);
    }
    let hit = s.cluster.rot_headers_of_liar(liar, one_in, s.rng);
    tracing::info!(hit, liar, "headers of a log rot");
    s.cluster.start_osd(liar);
    let follows = move |s: &mut Strike<'_>| {
        if s.cluster.is_mounted(liar) {
            slow(s, &[liar], SLOW);
        }
        s.cluster.standing(liar, pg).map(|standing| standing.in_doubt)
    };
    when(s, LOOKS_MAX / 3, follows, move |s, in_doubt| match in_doubt {
        Some(true) => then(s, scene),
        _ => mended(s, &scene),
    });
}

/// The devices of all other members hang, so entries of the leader and the liar are not committed. The liar loses them,
/// and says so. Then one of the others holds them, too: with the liar's old acknowledgement it would be a majority.
fn match_in_doubt(s: &mut Strike<'_>, scene: Scene) {
    stick(s, &scene.rest, true);
    let acknowledged = ms(s, 20, 200);
    s.after(acknowledged, move |s| {
        let one_in = [2, 3][s.rng.below(2) as usize];
        lose_and_follow(s, scene, one_in, |s, scene| {
            let (l, x) = (s.cluster.osd_node(scene.leader), s.cluster.osd_node(scene.liar));
            s.cluster.world.partition(l, x, Cut::Both);
            let third = scene.rest[s.rng.below(scene.rest.len() as u64) as usize];
            stick(s, &[third], false);
            let counted = ms(s, 30, 300);
            s.after(counted, move |s| mended(s, &scene));
        });
    });
}

/// The third member hears nothing of the entries that leader and liar commit. The liar loses them, gets some of them
/// back, makes a checkpoint, and starts again without the leader: the third member and the liar must not be a majority.
fn restart_in_doubt(s: &mut Strike<'_>, scene: Scene) {
    let (leader, rest) = (scene.leader, scene.rest.clone());
    cut_off(s, leader, &rest);
    let rot = ms(s, 50, 500);
    s.after(rot, move |s| {
        lose_and_follow(s, scene, 2, |s, scene| {
            let Scene { pg, liar, .. } = scene;
            let had = s.cluster.durable_end(liar, pg).unwrap_or_default();
            let some = move |s: &mut Strike<'_>| {
                let in_doubt = s.cluster.standing(liar, pg).is_none_or(|standing| standing.in_doubt);
                let end = s.cluster.durable_end(liar, pg).unwrap_or(Index(0));
                (!in_doubt || end > had).then_some(in_doubt)
            };
            when(s, LOOKS_MAX / 5, some, move |s, in_doubt| match in_doubt {
                Some(true) => forget(s, scene),
                _ => mended(s, &scene),
            });
        })
    });
}

/// Stops the leader. The liar goes through a destage, and then through a restart.
fn forget(s: &mut Strike<'_>, scene: Scene) {
    let Scene { pg, leader, term, liar, .. } = scene;
    s.cluster.stop_osd(leader, false);
    slow(s, &[liar], 1);
    let round = ms(s, 100, 900);
    s.after(round, move |s| {
        s.cluster.stop_osd(liar, false);
        s.cluster.start_osd(liar);
        let soon = Duration::from_millis(50);
        s.after(soon, move |s| when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, _| mended(s, &scene)));
    });
}
