//! Cuts, resets and slow links.

use super::{Class, Strike};
use env::sim::Cut;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    let a = s.cluster.osd_node(i);
    let b = s.cluster.other_node(i, s.rng);
    match class {
        Class::Partition | Class::OneWay => {
            let cut = if class == Class::Partition { Cut::Both } else { Cut::OneWay };
            s.cluster.world.partition(a, b, cut);
            s.mend(10, 4000, |s| s.cluster.world.heal_all());
        }
        Class::Isolate => {
            let cut = if s.rng.chance(2, 3) { Cut::Both } else { Cut::OneWay };
            (0..s.cluster.osd_count()).filter(|k| *k != i).for_each(|k| {
                s.cluster.world.partition(a, s.cluster.osd_node(k), cut);
            });
            s.mend(10, 4000, |s| s.cluster.world.heal_all());
        }
        Class::CutClient => {
            let client = s.cluster.any_client(s.rng);
            let cut = if s.rng.chance(1, 2) { Cut::Both } else { Cut::OneWay };
            let (from, to) = if s.rng.chance(1, 2) { (a, client) } else { (client, a) };
            s.cluster.world.partition(from, to, cut);
            s.mend(10, 3000, |s| s.cluster.world.heal_all());
        }
        Class::Reset => s.cluster.world.reset_conns(a, b),
        Class::SlowNode => {
            s.cluster.world.slow_node(a, s.rng.between(5, 200) as u32);
            s.mend(10, 2000, move |s| s.cluster.world.slow_node(a, 1));
        }
        other => unreachable!("{other:?} is no fault of the network"),
    }
    true
}
