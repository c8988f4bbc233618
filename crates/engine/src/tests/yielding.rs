//! A round beside clients: how many of its writes are in flight while log batches are late, and that it ends.

use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::{SECTORS, chunks};
use env::DiskKind;
use std::time::Duration;
use types::store::Effect;
use types::units::SECTORS_PER_BLOCK;
use types::{ReplicaId, SectorRange};

const IDS: [u64; 5] = [1, 2, 3, 4, 5];
/// A batch that takes so long is late on any device.
const LATE: Duration = Duration::from_millis(50);
const TURNS: u32 = 140;

/// Returns overwrites of every other block of all chunks, so that each is a write of its own in the round.
fn scattered() -> Vec<Effect> {
    let blocks = move |chunk| {
        let starts = (0..SECTORS).step_by(2 * SECTORS_PER_BLOCK as usize);
        starts.map(move |start| Effect::Write { chunk, range: SectorRange::new(start, SECTORS_PER_BLOCK) })
    };
    chunks().into_iter().flat_map(blocks).collect()
}

/// Writes these blocks of each replica, and applies them.
fn fill(rig: &mut Rig) {
    for id in IDS.map(ReplicaId) {
        for effects in scattered().chunks(16) {
            rig.extend(id, effects.to_vec());
            rig.turn(16);
            rig.commit(id, u64::MAX);
        }
        rig.settle();
        rig.commit(id, u64::MAX);
    }
}

/// Begins a round over scattered blocks that exist already. At its begin, less than half of the log is in use.
fn begin(mut rig: Rig) -> Rig {
    IDS.into_iter().for_each(|id| rig.create(id));
    fill(&mut rig);
    rig.round();
    rig.settle();
    fill(&mut rig);
    assert!(rig.engine.pressure().log < 0.5, "{:?}", rig.engine.pressure());
    rig.round();
    rig
}

/// Runs turns in which a client writes and the device takes this long; returns the most writes in flight at the end of the later ones.
fn beside_clients(rig: &mut Rig, takes: Duration) -> usize {
    let mut most = 0;
    for turn in 0..TURNS {
        rig.extend(ReplicaId(1), vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(8, 8) }]);
        rig.now = rig.now + takes;
        rig.turn(2);
        if turn >= TURNS - 20 {
            most = most.max(rig.disk.in_flight());
        }
    }
    assert!(rig.engine.is_round_running(), "{TURNS} turns are too many for this round");
    most
}

#[test]
fn a_round_has_few_writes_in_flight_while_batches_are_late() {
    let mut rig = begin(Rig::new(1, true, EngineConfig::default()));
    let few = beside_clients(&mut rig, LATE);
    assert!((1..=8).contains(&few), "{few} writes beside batches that are late");
    let mut idle = 0;
    while rig.engine.is_round_running() {
        rig.now = rig.now + LATE;
        rig.turn(1);
        idle = idle.max(rig.disk.in_flight());
    }
    assert!(idle >= 30, "{idle} writes beside no batch");
    rig.restart_and_check();
}

#[test]
fn a_home_on_a_device_of_its_own_does_not_yield() {
    let mut rig = begin(Rig::apart(1, (true, true, DiskKind::Block), EngineConfig::default()));
    let all = beside_clients(&mut rig, LATE);
    assert!(all >= 30, "{all} writes");
}
