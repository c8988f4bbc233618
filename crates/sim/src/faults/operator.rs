//! What an administrator does while everything else goes wrong.

use super::{Class, Strike};
use control::admin::{AdminAsk, PoolCreate};
use std::time::Duration;

/// Names that an administrator uses again and again.
const NAMES: u64 = 4;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::Transfer => s.cluster.transfer(s.rng),
        Class::Volumes => {
            let name = format!("main/spare{}", s.rng.below(NAMES));
            let len_bytes = s.rng.between(1, 4096) << 20;
            s.cluster.admin(AdminAsk::VolumeCreate { name: name.clone(), len_bytes });
            let force = s.rng.chance(1, 2);
            let delay = Duration::from_millis(s.rng.between(0, 3000));
            s.after(delay, move |s| s.cluster.admin(AdminAsk::VolumeRemove { name, force }));
        }
        Class::Pools => {
            let name = format!("spare{}", s.rng.below(NAMES));
            let replicas = s.cluster.options.replicas;
            let pool = PoolCreate { name: name.clone(), replicas, domain: "osd".to_owned(), pg_count: 1 };
            s.cluster.admin(AdminAsk::PoolCreate(pool));
            let delay = Duration::from_millis(s.rng.between(0, 3000));
            s.after(delay, move |s| s.cluster.admin(AdminAsk::PoolRemove { name }));
        }
        other => unreachable!("{other:?} is no command"),
    }
    true
}
