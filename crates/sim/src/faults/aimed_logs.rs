//! Schedules aimed at the contents of a log: entries of an old term, payloads on their way, blocks that only a peer has
//! whole, and replicas whose log has lost its end.
//!
//! Each schedule watches its replicas, a fifth of a millisecond at a time, and ends all its faults whether or not the
//! awaited condition came. They strike in aimed runs alone (see `aim`).

use super::aimed_votes::{cut_off, leader_of, when_led_anew};
use super::{Class, Strike};
use crate::cluster::Region;
use simenv::Cut;
use std::time::Duration;
use types::{Index, PgId, Term};

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_micros(200);
/// Looks before a schedule gives up: three seconds.
pub(super) const LOOKS_MAX: u32 = 15_000;
/// Milliseconds that an election may take.
pub(super) const CHANGE_MS_MAX: u32 = 3000;
/// Number of blocks that rot at once: while they are bad no destage ends, and the log fills.
const BAD_BLOCKS_MAX: usize = 6;
/// Time for which a peer is cut off before blocks rot, and again before it is heard.
const LATE: Duration = Duration::from_millis(250);
/// Index that the log of a PG under load has passed.
pub(super) const LOADED: Index = Index(20);

/// A PG of three: the leader at the start, and the others.
#[derive(Clone, Copy)]
struct Three {
    pg: PgId,
    leader: usize,
    term: Term,
    others: [usize; 2],
}

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let Some((pg, leader, others)) = s.cluster.any_led(s.rng) else { return false };
    let Some((term, _)) = leader_of(s.cluster, pg) else { return false };
    if class == Class::DamagedPayload {
        return damaged_payload(s, leader, &others);
    }
    let loaded = s.cluster.standing(leader, pg).is_some_and(|standing| standing.last > LOADED);
    let Some(others) = <[usize; 2]>::try_from(others).ok().filter(|_| loaded) else { return false };
    let three = Three { pg, leader, term, others };
    match class {
        Class::OldTail => old_tail(s, three),
        Class::RottenBlocks => return rotten_blocks(s, three),
        Class::VoteAfterLoss => return vote_after_loss(s, three),
        Class::FailedTail => return failed_tail(s, three),
        other => unreachable!("{other:?} is aimed at no log"),
    }
    true
}

/// Calls `then` with the result of `look`, or with `None` when that takes too long.
pub(super) fn when<T: 'static>(
    s: &mut Strike<'_>,
    tries: u32,
    look: impl Fn(&mut Strike<'_>) -> Option<T> + 'static,
    then: impl FnOnce(&mut Strike<'_>, Option<T>) + 'static,
) {
    match look(s) {
        None if tries > 0 => s.after(LOOK, move |s| when(s, tries - 1, look, then)),
        found => then(s, found),
    }
}

pub(super) fn ms(s: &mut Strike<'_>, min: u64, max: u64) -> Duration {
    Duration::from_micros(s.rng.between(min * 1000, max * 1000))
}

pub(super) fn slow(s: &Strike<'_>, osds: &[usize], factor: u32) {
    osds.iter().for_each(|k| s.cluster.disk_faults(*k, |f| f.slow = factor));
}

/// Ends all faults of the PG now.
fn mended(s: &mut Strike<'_>, three: Three) {
    let Three { leader, others: [x, y], .. } = three;
    for (a, b) in [(leader, x), (leader, y), (x, y)] {
        let (a, b) = (s.cluster.osd_node(a), s.cluster.osd_node(b));
        s.cluster.world.heal(a, b);
    }
    slow(s, &[leader, x, y], 1);
    [leader, x, y].into_iter().for_each(|k| s.cluster.start_osd(k));
}

/// Figure 8 of the raft paper. A leader is alone with a long tail of entries. One of the others is elected, and is
/// alone with the first entry of its term. The first leads again, in a third term, and its tail reaches the voter, cut
/// before the entry of that term. A majority has the tail, and it is not committed, because the second leader's log is
/// further. The second then leads, without the tail.
fn old_tail(s: &mut Strike<'_>, three: Three) {
    let Three { pg, leader, term, others } = three;
    cut_off(s, leader, &others);
    let factor = s.rng.between(20, 60) as u32;
    slow(s, &others, factor);
    let candidate = move |s: &mut Strike<'_>| {
        let all = others.map(|k| s.cluster.standing(k, pg));
        let [Some(x), Some(y)] = all else { return None };
        let asked = x.term > term && x.term == y.term && x.stands() != y.stands();
        asked.then(|| if x.stands() { others } else { [others[1], others[0]] })
    };
    when(s, LOOKS_MAX, candidate, move |s, found| {
        tracing::debug!(?found, "one stands, and another is asked");
        let Some([second, voter]) = found else { return mended(s, three) };
        let (a, b) = (s.cluster.osd_node(second), s.cluster.osd_node(voter));
        // The vote arrives, but no message of the elected leader does.
        s.cluster.world.partition(a, b, Cut::OneWay);
        when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, elected| {
            tracing::debug!(?elected, "alone in its term");
            if elected != Some(second) {
                return mended(s, three);
            }
            s.cluster.world.partition(a, b, Cut::Both);
            first_again(s, three, second, voter);
        });
    });
}

fn first_again(s: &mut Strike<'_>, three: Three, second: usize, voter: usize) {
    let Three { pg, leader, term, .. } = three;
    let (l, v) = (s.cluster.osd_node(leader), s.cluster.osd_node(voter));
    s.cluster.world.heal(l, v);
    let had = s.cluster.standing(voter, pg).map_or(Index(0), |v| v.last);
    // Whether the voter's log ends in an old term, once it has received some of the tail.
    let got = move |s: &mut Strike<'_>| {
        let voter = s.cluster.standing(voter, pg)?;
        (voter.last > had).then_some(voter.last_term <= term)
    };
    when(s, LOOKS_MAX, got, move |s, old| {
        let tail = s.cluster.standing(leader, pg).map_or(Index(0), |l| l.last);
        tracing::debug!(?old, %had, %tail, "the voter has something of the old tail");
        if old != Some(true) {
            return mended(s, three);
        }
        s.cluster.world.partition(l, v, Cut::OneWay);
        let counted = ms(s, 30, 120);
        s.after(counted, move |s| {
            let third = leader_of(s.cluster, pg).map_or(term, |(term, _)| term);
            s.cluster.world.partition(l, v, Cut::Both);
            let second = s.cluster.osd_node(second);
            s.cluster.world.heal(second, v);
            when_led_anew(s, (pg, third, CHANGE_MS_MAX), move |s, _| mended(s, three));
        });
    });
}

/// Damages payloads on their way to a follower or to the client: each receiver verifies a payload first (§7.5).
fn damaged_payload(s: &mut Strike<'_>, leader: usize, others: &[usize]) -> bool {
    let from = s.cluster.osd_node(leader);
    let to = match others.first() {
        Some(_) if s.rng.chance(1, 2) => s.cluster.osd_node(others[s.rng.below(others.len() as u64) as usize]),
        _ => s.cluster.owner_node(),
    };
    for n in 0..s.rng.between(1, 4) {
        // The same answer is not damaged again and again, because a client would give up.
        s.after(Duration::from_millis(n * 300), move |s| s.cluster.world.garble_payload(from, to));
    }
    true
}

/// Some blocks of a leader's home are bad, while small writes go on. Peers have the blocks whole. One of the peers is cut
/// off before, and its first answers are of its earlier contents (R15).
fn rotten_blocks(s: &mut Strike<'_>, three: Three) -> bool {
    let Three { pg, leader, others, .. } = three;
    let Some(liar) = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.has_lied(*i)) else { return false };
    s.cluster.transfer_pg(pg, Some(liar), s.rng);
    let began = ms(s, 100, 400);
    let peers: Vec<usize> = [leader, others[0], others[1]].into_iter().filter(|i| *i != liar).collect();
    let late = peers[began.as_millis() as usize % 2];
    let (l, t) = (s.cluster.osd_node(liar), s.cluster.osd_node(late));
    s.after(began, move |s| s.cluster.world.partition(l, t, Cut::Both));
    s.after(began + LATE, move |s| {
        let image = s.cluster.image(liar);
        let pages = s.cluster.region(liar, Region::Data, s.rng);
        for _ in 0..BAD_BLOCKS_MAX.min(pages.len()) {
            let page = pages[s.rng.below(pages.len() as u64) as usize];
            image.flip_bit(page + s.rng.below(4096), s.rng.below(8) as u8);
        }
        s.cluster.budget.note(liar, Class::BitRotData);
    });
    s.after(began + 2 * LATE, move |s| s.cluster.world.heal(l, t));
    true
}

/// A follower helps to commit entries that the third member does not get, and loses the end of its log. As soon as it has
/// failed, the leader is gone, and the third asks for its vote (R4).
fn vote_after_loss(s: &mut Strike<'_>, three: Three) -> bool {
    let Three { pg, leader, term, others } = three;
    let Some(liar) = s.cluster.budget.pick(s.rng).filter(|i| others.contains(i)) else { return false };
    let third = if others[0] == liar { others[1] } else { others[0] };
    let (l, t) = (s.cluster.osd_node(leader), s.cluster.osd_node(third));
    s.cluster.world.partition(l, t, Cut::Both);
    let (rot, one_in) = (ms(s, 30, 400), [2, 6, 20][s.rng.below(3) as usize]);
    s.after(rot, move |s| {
        s.cluster.stop_osd(liar, false);
        let hit = s.cluster.rot_headers_of_liar(liar, one_in, s.rng);
        tracing::info!(hit, liar, "headers of a log rot");
        s.cluster.start_osd(liar);
        let failed = move |s: &mut Strike<'_>| s.cluster.has_failed(liar, pg);
        when(s, LOOKS_MAX / 3, failed, move |s, failed| {
            if failed != Some(true) {
                return mended(s, three);
            }
            match s.rng.below(4) {
                // The leader stays, and must not count on the follower's earlier acknowledgements.
                0 => s.after(Duration::from_millis(500), move |s| mended(s, three)),
                _ => {
                    s.cluster.stop_osd(leader, false);
                    when_led_anew(s, (pg, term, CHANGE_MS_MAX), move |s, _| mended(s, three));
                }
            }
        });
    });
    true
}

/// A flush of a follower's log fails while the third member hears nothing. The store is poisoned, refused, confirmed by
/// an operator, and mounted: entries that it reads there are not durable until they are written again (ADR 0006).
fn failed_tail(s: &mut Strike<'_>, three: Three) -> bool {
    let Three { leader, others, .. } = three;
    let liar = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.is_lost(*i) && others.contains(i));
    let Some(liar) = liar else { return false };
    let third = if others[0] == liar { others[1] } else { others[0] };
    let (l, t) = (s.cluster.osd_node(leader), s.cluster.osd_node(third));
    s.cluster.world.partition(l, t, Cut::Both);
    let nth = s.rng.below(3);
    s.cluster.disk_faults(liar, |f| f.fail_flush = Some(nth));
    s.cluster.budget.note(liar, Class::FlushError);
    let poisoned = move |s: &mut Strike<'_>| s.cluster.is_poisoned(liar).then_some(());
    when(s, LOOKS_MAX / 15, poisoned, move |s, poisoned| {
        s.cluster.disk_faults(liar, |f| f.fail_flush = None);
        if poisoned.is_none() {
            return mended(s, three);
        }
        s.cluster.stop_osd(liar, false);
        s.cluster.start_osd(liar);
        let mounted = move |s: &mut Strike<'_>| s.cluster.is_mounted(liar).then_some(());
        when(s, LOOKS_MAX / 5, mounted, move |s, _| {
            let heard = ms(s, 5, 300);
            let power = s.rng.chance(1, 2);
            s.after(heard, move |s| {
                if power {
                    s.cluster.stop_osd(liar, true);
                }
                mended(s, three);
            });
        });
    });
    true
}
