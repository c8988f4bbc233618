//! A mount of a log whose payloads lie at home (ADR 0030): tears, lost payloads, bytes of another entry, failed replicas.

use super::damage::{batches_from, damage_of, hide, seal};
use super::failed::{OTHER, R, found};
use super::laws::write;
use super::placed::{aus, config, logged_aus, new, one_round, put};
use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::chunks;
use layout::log::{FIXED_LEN, PlacedRun, Record, decode_records};
use types::{AU, Index, ReplicaId};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// Appends one entry with a payload at home; returns the offset of its batch, and of the payload.
fn one(rig: &mut Rig, replica: ReplicaId, au: u32, count: u32) -> (usize, usize) {
    rig.extend(replica, vec![aus(chunks()[0], au, count)]);
    rig.turn(16);
    assert_eq!(rig.models[&replica].durable, rig.models[&replica].last());
    let (at, header) = *batches_from(rig, 0).last().expect("it was just written");
    let records = &rig.disk.bytes()[at + FIXED_LEN..][..header.records_len as usize];
    let runs =
        decode_records(records, header.record_count).expect("whole").into_iter().find_map(|record| match record {
            Record::Placed { runs, .. } => Some(runs),
            _ => None,
        });
    let PlacedRun { unit, .. } = runs.expect("the payload was placed")[0];
    (at, unit as usize * AU as usize)
}

fn cut(rig: &mut Rig) {
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    rig.engine.audit().expect("the books balance");
}

fn refill(rig: &mut Rig, replica: ReplicaId) {
    for lost in rig.engine.lost(replica) {
        let entry = rig.models[&replica].entry_of(lost.index.0, lost.term).expect("appended");
        rig.refill(replica, &entry);
    }
    rig.settle();
}

#[test]
fn torn_payload_of_the_last_batch_is_a_tear_and_a_sealed_one_is_lost() {
    for sealed in [false, true] {
        let mut rig = new(1, config());
        one(&mut rig, R2, 0, 1);
        let (_, at) = one(&mut rig, R1, 0, 2);
        if sealed {
            seal(&mut rig);
        }
        rig.disk.flip(at + 70_000);
        cut(&mut rig);
        assert_eq!(damage_of(&rig), [(R1, sealed), (R2, false)]);
        let entries = rig.seen.recovered[0].entries.len();
        assert_eq!(entries, usize::from(sealed), "of a damaged entry only the record comes back");
        assert_eq!(logged_aus(&rig), 1, "a payload that is torn or lost has no place");
    }
}

#[test]
fn lost_placed_payload_comes_back_inline() {
    let mut rig = new(2, config());
    let (_, at) = one(&mut rig, R1, 0, 3);
    one(&mut rig, R1, 1, 1);
    seal(&mut rig);
    rig.disk.flip(at + 3);
    cut(&mut rig);
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
    // Space that is not claimed is used: the record of the entry must not find its bytes there.
    put(&mut rig, R2, (0..4).map(|n| aus(chunks()[n], 0, 3)).collect());
    refill(&mut rig, R1);
    assert_eq!(rig.seen.refilled, [R1]);
    rig.disk.power_cut();
    rig.restart_and_check();
    rig.commit(R1, 2);
    one_round(&mut rig);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn unreadable_payload_of_the_last_batch_counts_as_lost() {
    let mut rig = new(3, config());
    let (_, at) = one(&mut rig, R1, 0, 2);
    rig.disk.unreadable = Some(at + 5);
    cut(&mut rig);
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)], "a page that cannot be read is damage and never a tear");
    rig.disk.unreadable = None;
    refill(&mut rig, R1);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn payload_that_one_read_of_two_returns_is_not_lost() {
    let reads = |rig: &mut Rig| {
        cut(rig);
        rig.disk.reads
    };
    let mut rig = new(4, config());
    one(&mut rig, R1, 0, 2);
    seal(&mut rig);
    let before = rig.disk.reads;
    let copy = rig.disk.copy();
    let count = reads(&mut rig) - before;
    for nth in 0..count {
        let mut rig = new(4, config());
        rig.disk = copy.copy();
        rig.disk.astray = Some(rig.disk.reads + nth);
        cut(&mut rig);
        let lost = rig.seen.recovered.iter().map(|found| found.lost.len()).sum::<usize>();
        assert_eq!(lost, 0, "read {nth} of {count} went astray");
    }
}

#[test]
fn bytes_of_another_entry_with_equal_crcs_are_not_believed() {
    let mut rig = new(5, config());
    let (_, first) = one(&mut rig, R1, 0, 1);
    let (_, second) = one(&mut rig, R2, 0, 1);
    seal(&mut rig);
    // A lost write leaves older bytes. CRC32C alone may believe them: here the record is made to say so.
    let bytes = rig.disk.bytes()[second..second + AU as usize].to_vec();
    rig.disk.put(first, &bytes);
    cut(&mut rig);
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
}

#[test]
fn restart_keeps_catch_up_where_adopted_payloads_are_unchanged() {
    let mut rig = new(6, config());
    put(&mut rig, R1, vec![aus(chunks()[0], 0, 1)]);
    put(&mut rig, R1, vec![aus(chunks()[0], 1, 1)]);
    put(&mut rig, R1, vec![aus(chunks()[0], 2, 1)]);
    one_round(&mut rig);
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(rig.engine.first_index(R1), Index(1), "home holds the very bytes of the entries");
    // The place of entry 2 is overwritten in place: its record names other bytes.
    put(&mut rig, R1, vec![write(136, 8)]);
    one_round(&mut rig);
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(rig.engine.first_index(R1), Index(3), "the log begins behind it");
    assert_eq!(logged_aus(&rig), 0);
}

#[test]
fn failed_replica_claims_nothing_and_its_past_does() {
    let mut rig = Rig::new(7, true, config());
    rig.create(R.0);
    rig.create(OTHER.0);
    let (_, kept) = one(&mut rig, R, 0, 3);
    let (gap, _) = one(&mut rig, OTHER, 0, 1);
    one(&mut rig, R, 1, 1);
    seal(&mut rig);
    hide(&mut rig, gap);
    for _ in 0..2 {
        cut(&mut rig);
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (0, true)]);
        assert!(rig.engine.failure(R).is_some_and(|failure| failure.is_past));
        assert_eq!(logged_aus(&rig), 3, "entry 1 is the past of R; entry 2 lies behind the gap");
    }
    assert_eq!(rig.engine.revive(R).expect("it has a past").entries[0].payload, rig.models[&R].entry(1).payload);
    rig.engine.fail_again(R);
    // Without a past, its log is not kept.
    rig.engine.end_past(R);
    rig.settle();
    rig.disk.flip(kept);
    cut(&mut rig);
    assert!(rig.engine.failure(R).is_some_and(|failure| !failure.is_past));
    assert_eq!(logged_aus(&rig), 0);
}

#[test]
fn places_of_an_unproved_batch_are_durable_before_a_mount_relies_on_them() {
    let mut lost = 0;
    for seed in 0..12 {
        let mut rig = new(seed, config());
        one(&mut rig, R2, 0, 1);
        rig.disk.fail_flush = true;
        rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
        rig.turn(16);
        assert!(rig.poisoned, "the flush failed");
        rig.turn(1);
        rig.disk.kill();
        rig.config.after_poison = true;
        rig.restart_and_check();
        lost += u64::from(rig.models[&R1].durable == 0);
        rig.disk.power_cut();
        rig.restart_and_check();
    }
    assert!(lost < 12, "{lost} of 12: the bytes can be read, and the mount takes them");
}

#[test]
fn copied_records_of_an_unproved_batch_do_not_make_it_a_tear() {
    let mut rig = new(8, config());
    put(&mut rig, R1, vec![aus(chunks()[0], 0, 1)]);
    one_round(&mut rig);
    // A copy of an entry that is at home now; its place is then overwritten by the next round.
    put(&mut rig, R1, vec![write(0, 8)]);
    one_round(&mut rig);
    let copy = crate::log::Work::Copy { replica: R1, index: Index(1), term: types::Term(1) };
    rig.engine.queue(copy);
    rig.extend(R2, vec![aus(chunks()[1], 0, 1)]);
    rig.turn(16);
    assert_eq!(rig.models[&R2].durable, 1);
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(rig.models[&R2].last(), 1, "it was acknowledged");
}

#[test]
fn lost_header_of_a_batch_with_places_costs_no_payload() {
    let mut rig = new(9, config());
    let (at, _) = one(&mut rig, R1, 0, 3);
    one(&mut rig, R2, 0, 1);
    seal(&mut rig);
    rig.disk.flip(at + 60);
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(logged_aus(&rig), 4);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn claims_hold_without_the_setting_and_payloads_go_inline_then() {
    let mut rig = new(10, config());
    one(&mut rig, R1, 0, 3);
    rig.config = EngineConfig { redirect_min: None, ..config() };
    rig.disk.power_cut();
    rig.restart_and_check();
    put(&mut rig, R1, vec![aus(chunks()[1], 0, 3)]);
    assert_eq!((logged_aus(&rig), rig.engine.stats().placed_bytes), (3, 0));
    one_round(&mut rig);
    assert_eq!(logged_aus(&rig), 0);
    rig.disk.power_cut();
    rig.restart_and_check();
}
