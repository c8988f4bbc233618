//! What an administrator does while everything else goes wrong.

use super::{Class, Strike};

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::Transfer => s.cluster.transfer(s.rng),
        other => unreachable!("{other:?} is no command"),
    }
    true
}
