//! Schedules aimed at OSDs that leave and come back (ADR 0018): they go out or are drained by command, or are down for too long,
//! and the leading meta or any OSD dies while the cluster moves their replicas.

use super::Strike;
use control::admin::{AdminAsk, OsdSet};
use std::time::Duration;
use types::OsdId;

/// OSDs that keep their replicas, so that every PG finds as many as it needs.
const STAY_MIN: usize = 3;

pub fn strike(s: &mut Strike<'_>) -> bool {
    match s.rng.below(8) {
        0..=3 => return leave(s),
        4 | 5 => {
            let victim = s.osd();
            let power = s.rng.chance(1, 2);
            s.cluster.stop_osd(victim, power);
            s.mend(1, 9000, move |s| s.cluster.start_osd(victim));
        }
        6 => {
            s.cluster.stop_meta();
            s.mend(10, 2000, |s| s.cluster.start_meta());
        }
        _ => {
            let flag = ["noout", "norebalance"][s.rng.below(2) as usize];
            set_flag(s, flag, true);
            s.mend(10, 3000, move |s| set_flag(s, flag, false));
        }
    }
    true
}

fn set_flag(s: &mut Strike<'_>, flag: &str, on: bool) {
    let value = on.then(|| "on".to_owned());
    s.cluster.admin(AdminAsk::ConfigSet { name: flag.to_owned(), value });
}

/// Some OSDs go out or are drained, one after the other; later they are in again. In some runs the last one stays empty.
fn leave(s: &mut Strike<'_>) -> bool {
    let Some(records) = s.cluster.meta.records() else { return false };
    let staying: Vec<OsdId> = records.osds.values().filter(|osd| !osd.leaves()).map(|osd| osd.id).collect();
    if staying.len() <= STAY_MIN {
        return false;
    }
    let count = s.rng.between(1, (staying.len() - STAY_MIN) as u64);
    for _ in 0..count {
        let osd = staying[s.rng.below(staying.len() as u64) as usize];
        let (is_in, drain) = [(Some(false), None), (None, Some(true))][s.rng.below(2) as usize];
        let delay = Duration::from_millis(s.rng.between(0, 1500));
        s.after(delay, move |s| s.cluster.admin(AdminAsk::OsdSet(OsdSet::one(osd, is_in, drain))));
        if s.rng.chance(3, 4) {
            s.mend(1600, 8000, move |s| {
                s.cluster.admin(AdminAsk::OsdSet(OsdSet::one(osd, Some(true), Some(false))));
            });
        }
    }
    true
}
