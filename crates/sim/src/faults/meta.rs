//! Faults of the metadata server: it is down, down for long, slow, or heard late.

use super::{Class, Strike};
use std::time::Duration;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::MetaCrash | Class::MetaGone => {
            s.cluster.stop_meta();
            let (min_ms, max_ms) = if class == Class::MetaCrash { (10, 3000) } else { (5_000, 30_000) };
            s.mend(min_ms, max_ms, |s| s.cluster.start_meta());
        }
        Class::SlowMeta => {
            s.cluster.post().slow(s.rng.between(10, 400));
            s.mend(100, 5000, |s| s.cluster.post().slow(1));
        }
        // Meta's messages to one OSD, or to the clients, wait: the receivers go on with an old map.
        Class::StaleWatch => {
            let until = s.now + Duration::from_millis(s.rng.between(100, 6000));
            let osd = s.osd();
            let clients = s.rng.chance(1, 4);
            let post = s.cluster.post();
            if clients { post.hold_answers(until) } else { post.hold_osd(osd, until) }
        }
        other => unreachable!("{other:?} is no fault of meta"),
    }
    true
}
