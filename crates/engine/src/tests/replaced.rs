//! Uncommitted entries that a new leader replaces: until the replacement is durable, the log must still be able to
//! produce them (R9).

use super::damage::{batches_from, config};
use super::laws::write;
use super::rig::Rig;
use crate::EngineConfig;
use crate::log::Work;
use crate::round::RoundStep;
use types::{Index, ReplicaId, Term};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// Returns a config with which no round begins by itself.
fn held() -> EngineConfig {
    EngineConfig { round_pressure: 100.0, ..config() }
}

fn put(rig: &mut Rig, replica: ReplicaId, count: u32) {
    rig.extend(replica, (0..count).map(|n| write(n * 8 % 32, 160)).collect());
    rig.turn(16);
    let durable = rig.models[&replica].durable;
    if replica == R2 {
        rig.commit(R2, durable);
    }
}

fn live_segments(rig: &Rig) -> usize {
    rig.engine.stats().segments_in_use as usize
}

/// Writes entry 1 of R1 to the tail and entry 2 some segments later, neither committed; R2 fills the rest.
fn spread(seed: u64, config: EngineConfig, segments: usize) -> Rig {
    let mut rig = Rig::new(seed, true, config);
    rig.create(1);
    rig.create(2);
    put(&mut rig, R1, 1);
    while live_segments(&rig) < segments / 2 {
        put(&mut rig, R2, 1);
    }
    put(&mut rig, R1, 1);
    while live_segments(&rig) < segments {
        put(&mut rig, R2, 1);
    }
    rig
}

#[test]
fn a_replaced_entry_is_there_until_what_replaced_it_is_durable() {
    let mut rig = spread(1, held(), 12);
    rig.round();
    // The checkpoint is being written; the leader's append waits for the batch behind it.
    while rig.engine.stats().rounds == 0 {
        rig.turn(0);
        let log = rig.engine.log.as_ref().expect("mounted");
        let checkpointing = matches!(rig.engine.destage.round, RoundStep::Recording { .. }) && log.in_flight.is_some();
        if checkpointing && log.pending.is_empty() && rig.models[&R1].made[0].term.0 == 1 {
            rig.append(R1, 1, vec![write(0, 160)]);
        }
        rig.turn(1);
    }
    assert_eq!(rig.models[&R1].made[0].term.0, 2, "entry 1 was replaced before the round ended");
    // The append opens a segment, so that its header says where the log begins.
    rig.engine.log.as_mut().expect("mounted").ring.close_newest();
    let opened = rig.engine.log.as_ref().expect("mounted").next_seq;
    rig.turn(16);
    let newest = rig.engine.log.as_ref().expect("mounted").ring.newest().expect("there are some").slot;
    let (at, header) = batches_from(&rig, newest)[0];
    assert_eq!((header.seq, header.payload_len > 0), (opened, true), "the append's own batch");
    rig.disk.flip(at + header.header_len as usize + 100);
    rig.disk.power_cut();
    rig.models.get_mut(&R1).expect("created").durable = 0;
    rig.restart_and_check();
    let last = rig.models[&R1].last();
    assert_eq!(last, 2, "what the torn batch would have replaced is back");
}

#[test]
fn full_log_is_freed_although_a_waiting_append_replaces_its_tail_entries() {
    let mut rig = spread(2, held(), 14);
    (0..20).for_each(|_| put(&mut rig, R2, 1));
    let held = rig.models[&R2].last() - rig.models[&R2].durable;
    assert!(held > 0, "the log is full");
    rig.append(R1, 1, vec![write(0, 160)]);
    rig.turn(16);
    assert_eq!(rig.models[&R1].durable, 0, "the append waits for room, too");
    rig.engine.config.round_pressure = 0.3;
    super::laws::run_rounds(&mut rig);
    assert_eq!(rig.models[&R1].durable, 1, "rounds make it");
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn copies_of_entries_that_are_not_needed_any_more_are_no_work() {
    let mut rig = spread(3, held(), 4);
    // The entry was truncated since its copy was queued: the batch finds nothing to write.
    rig.engine.queue(Work::Copy { replica: R1, index: Index(999), term: Term(1) });
    rig.turn(4);
    put(&mut rig, R1, 1);
    assert_eq!(rig.models[&R1].durable, rig.models[&R1].last(), "it goes on");
}
