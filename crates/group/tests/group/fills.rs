//! A flatten of a storm: leaders copy into the head what it shows, beside clients and cuts. A copy changes nothing that a reader sees.

use crate::client::CHUNK;
use crate::rig::MS;
use crate::world::{Event, World};
use group::{FillPart, FillPoint};
use types::{IoBufMut, SectorRange};

/// Blocks of the chunk that clients use.
const RANGE: SectorRange = SectorRange { start: 0, count: 8 };

/// Places that were begun, copies that took effect, and copies that did not.
pub type Counts = [u64; 3];

/// A place on its way: its leader reads it, and then proposes it.
pub struct Fill {
    pub node: u32,
    pub life: u64,
    point: FillPoint,
    values: Option<Vec<u64>>,
}

pub fn tick(world: &mut World) {
    let pace = world.rng.between(MS, 20 * MS);
    world.at(world.now + pace, Event::Fills);
    let Some(leader) = world.leader().filter(|_| !world.quiet) else { return };
    let life = world.nodes[&leader].life();
    let mut begun = None;
    world.turn(leader, life, |group, _, _, _| begun = group.begin_fill(CHUNK, RANGE));
    if let Some(point) = begun {
        world.fills[0] += 1;
        later(world, Fill { node: leader, life, point, values: None });
    }
}

fn later(world: &mut World, fill: Fill) {
    let at = world.now + world.rng.between(10_000, 10 * MS);
    world.at(at, Event::Fill(fill));
}

pub fn go_on(world: &mut World, fill: Fill) {
    let node = &world.nodes[&fill.node];
    if node.life() != fill.life {
        return;
    }
    let Some(values) = &fill.values else {
        let values = (node.engine.applied >= fill.point.after).then(|| node.engine.read(fill.point.chunk, RANGE));
        return later(world, Fill { values, ..fill });
    };
    let mut payload = IoBufMut::zeroed(RANGE.len_bytes());
    payload.chunks_mut(512).zip(values).for_each(|(sector, value)| sector[..8].copy_from_slice(&value.to_le_bytes()));
    let crcs = RANGE.fragment_crcs(&payload);
    let part = FillPart { range: RANGE, payload: payload.freeze(), crcs };
    world.turn(fill.node, fill.life, |group, _, _, _| {
        group.propose_fill(fill.point.fill, vec![part]);
    });
}

pub fn ended(world: &mut World, ok: bool) {
    world.fills[if ok { 1 } else { 2 }] += 1;
}
