//! The metadata service: gone.

use super::{Class, Strike};

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::MetaCrash => {
            s.cluster.stop_meta();
            s.mend(10, 3000, |s| s.cluster.start_meta());
        }
        other => unreachable!("{other:?} is no fault of meta"),
    }
    true
}
