//! Reads that return the bytes of another place while a device is mounted: durable data is not missed (R11).

use super::damage::{batches_from, config, hide};
use super::laws::run_rounds;
use super::rig::Rig;
use crate::testing::chunks;
use types::store::Effect;
use types::{ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);

/// Writes entries to more than two segments, some of them at home; the newest segment holds several batches.
fn used(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, true, config());
    rig.create(1);
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    for n in 0..30 {
        let from = rig.models[&R1].last() + 1;
        rig.append(R1, from, vec![effect]);
        rig.settle();
        if n == 8 {
            rig.commit(R1, from);
            rig.round();
            run_rounds(&mut rig);
        }
    }
    assert!(batches_from(&rig, 2).len() > 2, "the third segment is in use");
    assert_eq!(rig.models[&R1].durable, 30);
    rig
}

#[test]
fn whichever_read_of_a_mount_goes_astray_nothing_durable_is_missed() {
    let mut rig = used(1);
    let before = rig.disk.reads;
    rig.disk.power_cut();
    rig.restart();
    let reads = rig.disk.reads - before;
    assert!(reads > 20, "superblocks, openings, segments and pages of home");
    for nth in 0..reads {
        let mut rig = used(1);
        rig.disk.power_cut();
        rig.disk.astray = Some(rig.disk.reads + nth);
        rig.restart_and_check();
        // Rewrites of the log's end have overwritten no batch.
        rig.disk.power_cut();
        rig.disk.astray = None;
        rig.restart_and_check();
    }
}

#[test]
fn what_lies_behind_the_opening_that_is_damaged_is_known_to_be_there() {
    let mut rig = used(2);
    let found = batches_from(&rig, 2);
    let (opening, _) = found[0];
    hide(&mut rig, opening);
    rig.disk.power_cut();
    rig.restart();
    assert!(rig.seen.recovered[0].failure.is_some(), "a durable batch is gone");
    let after = batches_from(&rig, 2);
    assert!(found[1..].iter().all(|batch| after.contains(batch)), "nothing is written over what came behind it");
}
