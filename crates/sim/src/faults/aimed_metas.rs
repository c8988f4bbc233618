//! Schedules aimed at the election of metadata servers: the leader dies, stands still, is cut off or loses a request at moments
//! that matter, while replicas move, PGs are recovered by force, and volumes are made.
//!
//! These schedules strike in runs in which the servers elect a leader (see `Options::metas`).

use super::aimed_logs::{LOOKS_MAX, ms, when};
use super::aimed_members::{At, draw, is_at, order};
use super::{Strike, aimed_forced, draw_rate};
use crate::meta::Fate;
use control::admin::{AdminAsk, VolumeRemove};
use std::collections::BTreeSet;

/// Names of volumes that come and go; a number follows.
const NAMES: u64 = 3;

pub fn strike(s: &mut Strike<'_>) -> bool {
    if !s.cluster.meta.elects() || s.cluster.meta.leader().is_none() {
        return false;
    }
    let aimed = s.cluster.options.aim.is_some_and(|aim| aim.class == super::Class::ManyMetas);
    match s.rng.below(4) {
        0 if aimed => around_a_move(s),
        1 if aimed && s.rng.chance(1, 3) => around_a_forced_pg(s),
        2 => around_a_volume(s),
        _ => accident(s),
    }
    true
}

/// An accident at a step of a move.
fn around_a_move(s: &mut Strike<'_>) {
    let Some(first) = draw(s) else { return accident(s) };
    order(s, first);
    let at = [At::Any, At::Learner, At::Joint, At::Left][s.rng.below(4) as usize];
    let reached = move |s: &mut Strike<'_>| is_at(s, first.pg, at).then_some(());
    when(s, LOOKS_MAX / 5, reached, |s, _| soon(s, 3));
}

/// Accidents while an administrator forces a PG.
fn around_a_forced_pg(s: &mut Strike<'_>) {
    if aimed_forced::strike_between(s) {
        soon(s, 2500);
        soon(s, 6000);
    }
}

/// An accident while the transaction that makes or removes a volume is under way.
fn around_a_volume(s: &mut Strike<'_>) {
    let name = format!("main/between{}", s.rng.below(NAMES));
    match s.rng.chance(2, 3) {
        true => s.cluster.admin(AdminAsk::VolumeCreate {
            name,
            len_bytes: s.rng.between(1, 4096) << 20,
            stripe: types::Stripe::NONE,
            text: Default::default(),
        }),
        false => s.cluster.admin(AdminAsk::VolumeRemove(VolumeRemove {
            name,
            force: true,
            now: true,
            snapshots: true,
            detach: false,
        })),
    }
    soon(s, 5);
}

fn soon(s: &mut Strike<'_>, most_ms: u64) {
    let delay = ms(s, 0, most_ms);
    s.after(delay, accident);
}

/// Hurts the leader, or all servers.
fn accident(s: &mut Strike<'_>) {
    let Some(n) = s.cluster.meta.leader() else { return };
    match s.rng.below(12) {
        0..=2 => commit_fails(s, n),
        3 => dies(s, n),
        4..=6 => pauses(s, n),
        7 | 8 => cut_from_store(s, n),
        9 => cut_from_others(s, n),
        10 => drift(s),
        _ => outage(s),
    }
}

/// The next commit of the leader is lost, is late, or its process dies between commit and reply. The administrator makes sure that
/// there is one.
fn commit_fails(s: &mut Strike<'_>, n: usize) {
    let late = ms(s, 500, 8000);
    let fates =
        [Fate::AskLost, Fate::AskLate(late), Fate::AskLate(late), Fate::ReplyLost, Fate::ReplyLate(late), Fate::Dies];
    let fate = fates[s.rng.below(6) as usize];
    s.cluster.meta.set_fate(n, fate);
    let name = format!("main/between{}", s.rng.below(NAMES));
    s.cluster.admin(AdminAsk::VolumeCreate {
        name,
        len_bytes: 1 << 30,
        stripe: types::Stripe::NONE,
        text: Default::default(),
    });
    s.mend(100, 8000, |s| s.cluster.start_meta());
}

fn dies(s: &mut Strike<'_>, n: usize) {
    s.cluster.stop_meta_server(n);
    if s.rng.chance(1, 4) {
        s.cluster.stop_metas();
    }
    s.mend(1, 8000, |s| s.cluster.start_meta());
}

/// The leader stands still, often until its lease is over, and asks and reports wait for it.
fn pauses(s: &mut Strike<'_>, n: usize) {
    s.cluster.pause_meta(n);
    s.mend(100, 9000, move |s| s.cluster.resume_meta(n));
}

fn cut_from_store(s: &mut Strike<'_>, n: usize) {
    s.cluster.meta.cut_store(n);
    s.mend(50, 7000, move |s| s.cluster.meta.heal(n));
}

fn cut_from_others(s: &mut Strike<'_>, n: usize) {
    let all = 0..s.cluster.osd_count();
    let osds: BTreeSet<usize> =
        if s.rng.chance(1, 3) { all.collect() } else { all.filter(|_| s.rng.chance(1, 2)).collect() };
    let clients = s.rng.chance(1, 2);
    s.cluster.cut_meta(n, osds, clients);
    s.mend(50, 9000, move |s| s.cluster.meta.heal(n));
}

fn drift(s: &mut Strike<'_>) {
    for n in 0..s.cluster.meta.count() {
        let rate = draw_rate(s.rng);
        s.cluster.drift_meta(n, rate);
    }
}

/// No server reaches the store for a while.
fn outage(s: &mut Strike<'_>) {
    let all = 0..s.cluster.meta.count();
    all.clone().for_each(|n| s.cluster.meta.cut_store(n));
    s.mend(50, 6000, move |s| all.for_each(|n| s.cluster.meta.heal(n)));
}
