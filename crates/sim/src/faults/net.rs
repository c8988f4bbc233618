//! Faults of the network: cuts of every shape, resets, slow links, damaged bytes, and strangers.

use super::{Class, Strike};
use simenv::{Cut, NodeId};
use std::time::Duration;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    let i = s.osd();
    let a = s.cluster.osd_node(i);
    let b = s.cluster.other_node(i, s.rng);
    match class {
        Class::Partition | Class::OneWay => {
            let cut = if class == Class::Partition { Cut::Both } else { Cut::OneWay };
            s.cluster.world.partition(a, b, cut);
            s.mend(10, 4000, move |s| s.cluster.world.heal(a, b));
        }
        Class::Bridge => bridge(s, i),
        Class::Isolate => {
            let cut = if s.rng.chance(2, 3) { Cut::Both } else { Cut::OneWay };
            let others = s.others(i);
            others.iter().for_each(|b| s.cluster.world.partition(a, *b, cut));
            s.mend(10, 4000, move |s| others.iter().for_each(|b| s.cluster.world.heal(a, *b)));
        }
        Class::CutClient => {
            let client = s.cluster.any_client(s.rng);
            let cut = if s.rng.chance(1, 2) { Cut::Both } else { Cut::OneWay };
            let (from, to) = if s.rng.chance(1, 2) { (a, client) } else { (client, a) };
            s.cluster.world.partition(from, to, cut);
            s.mend(10, 3000, move |s| s.cluster.world.heal(from, to));
        }
        Class::Swizzle => swizzle(s, i),
        Class::Reset => s.cluster.world.reset_conns(a, b),
        Class::HalfOpen => {
            let (a, b) = if s.rng.chance(1, 2) { (a, b) } else { (b, a) };
            s.cluster.world.forget_conns(a, b);
        }
        Class::CorruptFrame => {
            let (from, to) = if s.rng.chance(1, 2) { (a, b) } else { (b, a) };
            s.cluster.world.garble(from, to);
        }
        Class::Stranger => {
            let script = s.rng.below(crate::stranger::SCRIPTS);
            s.cluster.meet_stranger(i, script, s.rng.next_u64());
        }
        Class::SlowNode => {
            s.cluster.world.slow_node(a, s.rng.between(5, 200) as u32);
            s.mend(10, 2000, move |s| s.cluster.world.slow_node(a, 1));
        }
        other => unreachable!("{other:?} is no fault of the network"),
    }
    true
}

/// Cuts the OSDs into two halves that only the i-th joins.
fn bridge(s: &mut Strike<'_>, i: usize) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for node in s.others(i) {
        if left.len() <= right.len() { left.push(node) } else { right.push(node) }
    }
    let cut: Vec<(NodeId, NodeId)> = left.iter().flat_map(|a| right.iter().map(|b| (*a, *b))).collect();
    cut.iter().for_each(|(a, b)| s.cluster.world.partition(*a, *b, Cut::Both));
    s.mend(10, 5000, move |s| cut.iter().for_each(|(a, b)| s.cluster.world.heal(*a, *b)));
}

/// Stops the links of one node one by one, and heals them in another order.
fn swizzle(s: &mut Strike<'_>, i: usize) {
    let a = s.cluster.osd_node(i);
    let mut links = s.others(i);
    let mut at = Duration::ZERO;
    let mut step = |s: &mut Strike<'_>| {
        at += Duration::from_millis(s.rng.between(1, 600));
        at
    };
    let mut healed = links.clone();
    while !links.is_empty() {
        let b = links.remove(s.rng.below(links.len() as u64) as usize);
        let cut = if s.rng.chance(1, 2) { Cut::Both } else { Cut::OneWay };
        let at = step(s);
        s.after(at, move |s| s.cluster.world.partition(a, b, cut));
    }
    while !healed.is_empty() {
        let b = healed.remove(s.rng.below(healed.len() as u64) as usize);
        let at = step(s);
        s.after(at, move |s| s.cluster.world.heal(a, b));
    }
}
