//! A schedule aimed at devices that go back in time (R17, ADR 0012): an OSD gets back an earlier state of its device. It must not
//! count as it was: its replicas fail and are replaced, while another OSD or the leading meta is away.

use super::aimed_logs::ms;
use super::{Class, Strike};
use crate::cluster::Older;
use crate::faults::aimed_members::is_whole;

pub fn strike(s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    // One device goes back at a time, when every PG is whole: two of three replicas that fail leave no majority.
    let records = s.cluster.meta.records();
    let whole = records.is_some_and(|records| records.pgs.values().all(|pg| is_whole(s.cluster, pg) == Some(true)));
    if !whole || !s.cluster.is_mounted(i) {
        return false;
    }
    let power = s.rng.chance(1, 2);
    s.cluster.stop_osd(i, power);
    let older = s.cluster.copy_device(i);
    s.mend(1, 500, move |s| s.cluster.start_osd(i));
    let late = ms(s, 1000, 6000);
    s.after(late, move |s| go_back(s, i, older));
    true
}

fn go_back(s: &mut Strike<'_>, i: usize, older: Option<Older>) {
    // Meta must know of the run in between, and the others must be a majority without this OSD.
    let Some(older) = older.filter(|older| s.cluster.is_known_newer(i, older) && s.cluster.is_mounted(i)) else {
        return;
    };
    let away: Vec<usize> = (0..s.cluster.osd_count()).filter(|other| *other != i).collect();
    if !away.iter().all(|other| s.cluster.is_mounted(*other)) {
        return;
    }
    s.cluster.stop_osd(i, true);
    s.cluster.budget.note_aimed(i, Class::OlderDevices);
    s.cluster.put_device_back(i, &older);
    let (victim, power) = (away[s.rng.below(away.len() as u64) as usize], s.rng.chance(1, 2));
    match s.rng.below(4) {
        0 | 1 => {
            s.cluster.stop_osd(victim, power);
            s.mend(500, 9000, move |s| s.cluster.start_osd(victim));
        }
        2 => {
            s.cluster.stop_meta();
            s.mend(10, 4000, |s| s.cluster.start_meta());
        }
        _ => {}
    }
    s.mend(1, 500, move |s| s.cluster.start_osd(i));
    // It dies again and again while it waits: each start advances its position. One that dies before the first refusal leaves no
    // mark, and meta may have forgotten the position (ADR 0012, Price).
    for _ in 0..s.rng.below(6) {
        let at = ms(s, 600, 7000);
        s.after(at, move |s| {
            if s.cluster.is_marked_behind(i) {
                s.cluster.stop_osd(i, false);
                s.mend(1, 300, move |s| s.cluster.start_osd(i));
            }
        });
    }
}
