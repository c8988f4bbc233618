//! Shrinks of a storm: attach records name lengths in turn, and leaders wipe a place that clients do not use. What clients use stays as it is,
//! and replicas decide alike.

use crate::client::CHUNK;
use crate::rig::MS;
use crate::world::{Event, World};
use types::SectorRange;
use types::cut::{CutRefusal, SnapshotOrder};

/// Sectors behind those that clients use.
const RANGE: SectorRange = SectorRange { start: 1000, count: 24 };

/// Places that were wiped, and orders that were refused.
pub type Counts = [u64; 2];

/// Returns the length of an attach record: each third one is shorter than the one before.
pub fn length(order: u64) -> (u32, u32) {
    ((order / 3) as u32, CHUNK.index + 2 + (order % 3) as u32)
}

pub fn tick(world: &mut World) {
    world.at(world.now + 30 * MS, Event::Shrinks);
    let Some(leader) = world.leader().filter(|_| !world.quiet) else { return };
    let life = world.nodes[&leader].life();
    world.turn(leader, life, |group, _, now, actions| {
        let Some(attached) = group.decides().volumes.get(&CHUNK.volume) else { return };
        // One in four is an order from before the last attach record.
        let len_epoch = attached.len_epoch.saturating_sub(u32::from(now.0 % 4 == 0));
        let order = SnapshotOrder::Wipe { volume: CHUNK.volume, len_epoch, chunk: CHUNK.index, range: RANGE };
        group.handle_snapshot_order(now, order, actions);
    });
}

pub fn wiped(world: &mut World, result: Result<(), CutRefusal>) {
    world.shrinks[usize::from(result.is_err())] += 1;
}
