//! A schedule aimed at OSDs that join (ADR 0018): a new OSD takes over another one, whose device is lost or which still runs,
//! while the leading meta and any OSD die.

use super::aimed_logs::{LOOKS_MAX, when};
use super::{Class, Strike};
use std::time::Duration;
use types::OsdId;

/// Most OSDs that join in one run.
const JOINED_MAX: usize = 4;
/// Time after which a registration that was not committed is repeated.
const REGISTER_AGAIN: Duration = Duration::from_millis(700);
/// Meta dies for less time than so many registrations take.
const REGISTER_TRIES: u32 = 20;
/// Most accidents while one OSD joins.
const ACCIDENTS_MAX: u64 = 4;

pub fn strike(s: &mut Strike<'_>) -> bool {
    let joined = s.cluster.osd_count() - s.cluster.options.osds as usize;
    if joined >= JOINED_MAX || !is_whole(s) {
        return false;
    }
    let old = s.osd();
    let id = OsdId(old as u32 + 1);
    if !may_be_replaced(s, id) {
        return false;
    }
    // A device that is lost loses one replica of a PG: all others are whole.
    if s.rng.chance(2, 3) && may_be_lost(s) {
        lose(s, old);
    }
    let new = s.cluster.add_osd();
    register(s, new, id, REGISTER_TRIES);
    for _ in 0..s.rng.below(ACCIDENTS_MAX + 1) {
        let delay = Duration::from_millis(s.rng.between(0, 2500));
        s.after(delay, accident);
    }
    true
}

/// Whether every replica of the records runs, no change is under way, and no replaced OSD holds one.
fn is_whole(s: &Strike<'_>) -> bool {
    let Some(records) = s.cluster.meta.records() else { return false };
    let is_led = |pg| super::aimed_votes::leader_of(s.cluster, pg).is_some();
    let whole = |pg: &control::PgRecord| {
        pg.change.is_none() && pg.members.iter().all(|m| s.cluster.runs(m.replica)) && is_led(pg.pg)
    };
    s.cluster.replaced_are_empty() && records.pgs.values().all(whole)
}

/// Whether the OSD is known, runs, and neither takes another one over nor is taken over.
fn may_be_replaced(s: &Strike<'_>, old: OsdId) -> bool {
    let Some(records) = s.cluster.meta.records() else { return false };
    let is_free = records.osds.get(&old).is_some_and(|osd| osd.replaces.is_none());
    is_free && s.cluster.is_mounted(old.0 as usize - 1) && !s.cluster.replaced.contains(&old)
}

/// Whether most of the OSDs that remember the records (R17) are left when one more is lost.
fn may_be_lost(s: &Strike<'_>) -> bool {
    let Some(records) = s.cluster.meta.records() else { return false };
    let electors: Vec<usize> = records.osds.values().filter(|o| o.elector).map(|o| o.id.0 as usize - 1).collect();
    let lost = electors.iter().filter(|i| s.cluster.budget.is_lost(**i)).count();
    (lost + 1) * 2 < electors.len()
}

fn lose(s: &mut Strike<'_>, old: usize) {
    s.cluster.stop_osd(old, true);
    s.cluster.budget.note_aimed(old, Class::ReplacedOsds);
    s.cluster.budget.lose(old);
}

fn register(s: &mut Strike<'_>, new: usize, old: OsdId, tries: u32) {
    s.cluster.register_in_place_of(new, old);
    s.after(REGISTER_AGAIN, move |s| {
        if !s.cluster.is_registered(new) {
            if tries == 0 {
                return s.cluster.note_wrong(format!("{old} cannot be replaced"));
            }
            return register(s, new, old, tries - 1);
        }
        s.cluster.start_in_place_of(new, old);
        // The next OSD joins when this one has taken over, or cannot for now.
        when(
            s,
            LOOKS_MAX,
            |s| is_whole(s).then_some(()),
            move |s, whole| {
                // An empty OSD is removed from the records once it is down.
                if whole.is_some() && s.rng.chance(1, 2) && s.cluster.is_mounted(old.0 as usize - 1) {
                    lose(s, old.0 as usize - 1);
                }
            },
        );
    });
}

/// Meta or some OSD dies, and comes back.
fn accident(s: &mut Strike<'_>) {
    if s.rng.chance(1, 3) {
        s.cluster.stop_meta();
        return s.mend(10, 2000, |s| s.cluster.start_meta());
    }
    let victim = s.osd();
    if s.cluster.is_mounted(victim) {
        let power = s.rng.chance(1, 2);
        s.cluster.stop_osd(victim, power);
        s.mend(1, 2500, move |s| s.cluster.start_osd(victim));
    }
}
