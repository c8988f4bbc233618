//! Clients that die, and clients that rob each other.

use super::{Class, Strike};

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::ClientCrash => {
            let reader = s.rng.chance(1, 3) && s.cluster.has_reader();
            s.cluster.restart_client(reader);
        }
        Class::Steal => s.cluster.steal(),
        other => unreachable!("{other:?} is no fault of a client"),
    }
    true
}
