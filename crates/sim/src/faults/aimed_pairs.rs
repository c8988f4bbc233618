//! Schedules aimed at PGs of two (ADR 0020): one of the two replicas fails, so that the PG has no majority, while its OSDs and
//! metadata servers die. Each PG goes on from the other replica by itself, gets a second one again, and loses nothing.

use super::Class;
use super::Strike;
use super::aimed_forced::need;
use super::aimed_logs::{LOOKS_MAX, ms, when};
use super::aimed_members::is_whole;
use super::aimed_votes::cut_off_for_a_while;
use control::admin::AdminAsk;
use std::time::Duration;
use types::PgId;

/// Pause between two looks whether all PGs have their members again, and how many there are: then the run ends its faults.
const AGAIN: Duration = Duration::from_millis(1500);
const LOOKS: u32 = 40;
/// Most accidents after one failure.
const ACCIDENTS_MAX: u64 = 3;
/// One batch out of so many loses its header, and that of the next one.
const HEADERS: [u64; 3] = [3, 20, 100];

pub fn strike(s: &mut Strike<'_>) -> bool {
    let Some((pg, failed, kept)) = draw(s) else { return false };
    match s.rng.below(4) {
        0 => rot(s, failed),
        _ => {
            let Some(replica) = s.cluster.fail_replica(failed, pg) else { return false };
            s.after(Duration::from_secs(1), move |s| s.cluster.note_failed(replica));
        }
    }
    need(s, 1);
    for _ in 0..s.rng.below(ACCIDENTS_MAX + 1) {
        // Before the order, when the PG goes on alone, or while it is filled.
        let at = s.rng.below(3);
        let reached = move |s: &mut Strike<'_>| is_at(s, pg, at).then_some(());
        let late = ms(s, 0, 4000);
        s.after(late, move |s| {
            when(s, LOOKS_MAX * 3, reached, move |s, _| {
                let delay = ms(s, 0, 20);
                s.after(delay, move |s| accident(s, pg, [failed, kept]));
            });
        });
    }
    s.after(AGAIN, |s| until_filled(s, LOOKS));
    true
}

/// Draws a PG and its two members, when all PGs are whole: a second failure in a PG of two would leave none.
fn draw(s: &mut Strike<'_>) -> Option<(PgId, usize, usize)> {
    let records = s.cluster.meta.records()?;
    let all_whole = records.pgs.values().all(|record| {
        record.members.len() == 2 && record.forced.is_none() && is_whole(s.cluster, record) == Some(true)
    });
    let record =
        records.pgs.values().nth(s.rng.below(records.pgs.len().max(1) as u64) as usize).filter(|_| all_whole)?;
    let failed = s.rng.below(2) as usize;
    let osd = |n: usize| record.members[n].osd.0 as usize - 1;
    Some((record.pg, osd(failed), osd(1 - failed)))
}

/// Log headers of one OSD rot, and it starts again: its replicas may have failed.
fn rot(s: &mut Strike<'_>, i: usize) {
    let power = s.rng.chance(1, 2);
    s.cluster.stop_osd(i, power);
    s.cluster.budget.note_aimed(i, Class::BitRotLog);
    let one_in = HEADERS[s.rng.below(3) as usize];
    let hit = s.cluster.rot_headers_of_liar(i, one_in, s.rng);
    tracing::info!(hit, i, "headers of a log rot");
    let back = ms(s, 1, 500);
    s.after(back, move |s| s.cluster.start_osd(i));
}

fn is_at(s: &Strike<'_>, pg: PgId, at: u64) -> bool {
    let record = s.cluster.meta.records().and_then(|records| records.pgs.get(&pg));
    record.is_some_and(|record| match at {
        0 => record.forced.is_some(),
        1 => record.members.len() == 1,
        _ => record.change.is_some(),
    })
}

fn accident(s: &mut Strike<'_>, pg: PgId, members: [usize; 2]) {
    let victim = members[s.rng.below(2) as usize];
    match s.rng.below(8) {
        0..=3 => {
            let power = s.rng.chance(1, 2);
            s.cluster.stop_osd(victim, power);
            s.mend(1, 2500, move |s| s.cluster.start_osd(victim));
        }
        4 | 5 => {
            s.cluster.stop_meta();
            s.mend(10, 2000, |s| s.cluster.start_meta());
        }
        6 => cut_off_for_a_while(s, victim),
        _ => s.cluster.admin(AdminAsk::PgMoveCancel { pg }),
    }
}

/// One disk makes a majority until all PGs have two members again.
fn until_filled(s: &mut Strike<'_>, looks: u32) {
    let whole = s.cluster.meta.records().is_some_and(|records| {
        let is_filled = |r: &control::PgRecord| r.forced.is_none() && r.vacant.is_empty();
        records.pgs.values().all(|r| is_filled(r) && is_whole(s.cluster, r) == Some(true))
    });
    match whole {
        true => need(s, 2),
        false if looks > 0 => s.after(AGAIN, move |s| until_filled(s, looks - 1)),
        false => {}
    }
}
