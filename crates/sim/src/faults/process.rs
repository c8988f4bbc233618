//! Processes that die, and machines that lose their power.

use super::{Class, Strike};

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    match class {
        Class::Crash | Class::PowerCut => {
            s.cluster.stop_osd(i, class == Class::PowerCut);
            s.mend(1, 3000, move |s| s.cluster.start_osd(i));
        }
        Class::PowerCutAll => {
            for i in 0..s.cluster.osd_count() {
                s.cluster.stop_osd(i, true);
                s.mend(1, 2000, move |s| s.cluster.start_osd(i));
            }
        }
        other => unreachable!("{other:?} is no fault of a process"),
    }
    true
}
