//! Faults, drawn from the seed: crashes, cuts, stops, slow disks, checkpoints, transfers, preemptions.

use crate::rig::MS;
use crate::world::{Event, World};

/// Makes one fault, and draws the time of the next.
pub fn strike(world: &mut World) {
    if world.quiet {
        return;
    }
    let count = world.nodes.len() as u64;
    let node = world.rng.between(1, count) as u32;
    let other = (node - 1 + world.rng.between(1, (count - 1).max(1)) as u32) % count as u32 + 1;
    let kind = world.rng.below(18);
    match kind {
        0 | 1 => {
            world.crash(node);
            let at = world.now + world.rng.below(1500 * MS);
            world.at(at, Event::Restart { node });
        }
        2 | 3 if node != other => {
            let cut = [[true, true], [true, false], [false, true]][world.rng.below(3) as usize];
            world.cut(node, other, cut);
            if world.rng.chance(1, 2) {
                world.disconnect(node, other);
            }
        }
        // A fault of the leader alone.
        4 => {
            if let Some(leader) = world.leader() {
                let others: Vec<u32> = world.nodes.keys().copied().filter(|n| *n != leader).collect();
                others.into_iter().for_each(|n| world.cut(leader, n, [true, true]));
            }
        }
        5..=7 => world.heal(),
        8 => {
            let time = world.rng.between(20 * MS, 1200 * MS);
            world.stop(node, time);
        }
        9 => {
            let max = [3 * MS, 40 * MS, 250 * MS][world.rng.below(3) as usize];
            world.slow_disk(node, max);
        }
        10 => world.checkpoint(node),
        11 => {
            if let Some(leader) = world.leader().filter(|leader| *leader != node) {
                world.transfer(leader, node);
            }
        }
        12 if world.session_count() < 200 => world.open(),
        14 => world.attach_again(),
        15..=17 if count >= 3 => ambush(world),
        13 if node != other => {
            world.disconnect(node, other);
            world.connect(node, other);
        }
        _ => {}
    }
    let next = world.now + world.rng.between(MS, 500 * MS);
    world.at(next, Event::Misfortune);
}

/// Cuts one follower off from the leader; then the others at once, and one of those may even lose its promise in a
/// crash. A client that the leader still serves must not see old bytes.
fn ambush(world: &mut World) {
    let Some(leader) = world.leader() else { return };
    world.heal();
    let others: Vec<u32> = world.nodes.keys().copied().filter(|n| *n != leader).collect();
    let first = others[world.rng.below(others.len() as u64) as usize];
    world.cut(leader, first, [true, true]);
    world.disconnect(leader, first);
    let later = world.now + world.rng.between(200 * MS, 500 * MS);
    let dies = world.rng.chance(1, 2);
    world.at(later, Event::Ambush { leader, first, dies });
}

/// Runs the second half of an ambush.
pub fn spring(world: &mut World, leader: u32, first: u32, dies: bool) {
    if world.quiet {
        return;
    }
    let others: Vec<u32> = world.nodes.keys().copied().filter(|n| *n != leader && *n != first).collect();
    for node in others {
        world.cut(leader, node, [true, true]);
        if dies {
            world.crash(node);
            let at = world.now + world.rng.between(MS, 10 * MS);
            world.at(at, Event::Restart { node });
        }
    }
}
