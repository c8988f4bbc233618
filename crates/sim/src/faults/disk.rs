//! Disks that are slow, fail, or lie.

use super::{Class, Strike};

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    match class {
        Class::SlowDisk => {
            s.cluster.slow_disk(i, s.rng.between(5, 200) as u32);
            s.mend(10, 2000, move |s| s.cluster.slow_disk(i, 1));
        }
        other => unreachable!("{other:?} is no fault of a disk"),
    }
    true
}
