//! Schedules aimed at the cuts of snapshots (R14): while PGs hold the volumes, the metadata server or the leader of a PG dies, is not
//! heard, or changes, so that PGs take each step of a cut at moments far apart.
//!
//! Each schedule waits for a cut of the administrator, and strikes at a drawn step of it.

use super::Strike;
use super::aimed_logs::{LOOKS_MAX, ms, when};
use super::aimed_votes::{cut_off_for_a_while, leader_of};
use control::CutState;
use std::time::Duration;
use types::{CutId, PgId};

/// Most accidents in one cut.
const ACCIDENTS_MAX: u64 = 3;

pub fn strike(s: &mut Strike<'_>) -> bool {
    if s.cluster.meta.records().is_none_or(|records| records.pgs.is_empty()) {
        return false;
    }
    // One that begins with a PG out of reach: others have their snapshots long before it.
    if s.rng.chance(1, 3) {
        late_pg(s);
    }
    let known = s.cluster.meta.records().and_then(|records| records.cuts.keys().next_back().copied());
    let begun = move |s: &mut Strike<'_>| newest(s).filter(|cut| Some(*cut) > known);
    when(s, LOOKS_MAX, begun, move |s, cut| {
        let Some(cut) = cut else { return };
        // The order to take the snapshots is not sent yet.
        if s.rng.chance(1, 2) {
            late_pg(s);
        }
        for _ in 0..s.rng.between(1, ACCIDENTS_MAX) {
            let most = [1, 8, 40, 400][s.rng.below(4) as usize];
            let delay = ms(s, 0, most);
            s.after(delay, move |s| accident(s, cut));
        }
    });
    true
}

/// Returns the last cut that PGs may hold.
fn newest(s: &Strike<'_>) -> Option<CutId> {
    let records = s.cluster.meta.records()?;
    records.cuts.values().rev().find(|cut| cut.state == CutState::Holding).map(|cut| cut.id)
}

fn some_pg(s: &mut Strike<'_>) -> Option<(PgId, usize)> {
    let pgs: Vec<PgId> = s.cluster.meta.records()?.pgs.keys().copied().collect();
    let pg = pgs[s.rng.below(pgs.len() as u64) as usize];
    leader_of(s.cluster, pg).map(|(_, leader)| (pg, leader))
}

/// Messages of meta to the leader of a PG wait for a while, often for less than a cut may hold the others.
fn late_pg(s: &mut Strike<'_>) {
    let Some((_, leader)) = some_pg(s) else { return };
    let most = [20, 90, 90, 4000][s.rng.below(4) as usize];
    let until = s.now + ms(s, 1, most);
    s.cluster.post().hold_osd(leader, until);
}

fn accident(s: &mut Strike<'_>, cut: CutId) {
    let state = s.cluster.meta.records().and_then(|records| records.cuts.get(&cut).map(|cut| cut.state));
    tracing::debug!(?cut, ?state, "an accident in a cut");
    let Some((pg, leader)) = some_pg(s) else { return };
    match s.rng.below(10) {
        0..=2 => {
            s.cluster.stop_meta();
            s.mend(1, 4000, |s| s.cluster.start_meta());
        }
        3 | 4 => {
            let power = s.rng.chance(1, 2);
            s.cluster.stop_osd(leader, power);
            s.mend(1, 2500, move |s| s.cluster.start_osd(leader));
        }
        5 | 6 => late_pg(s),
        7 => s.cluster.transfer_pg(pg, None, s.rng),
        8 => cut_off_for_a_while(s, leader),
        _ => {
            s.cluster.post().slow(s.rng.between(10, 400));
            s.after(Duration::from_millis(500), |s| s.cluster.post().slow(1));
        }
    }
}
