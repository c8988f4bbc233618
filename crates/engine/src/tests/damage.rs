//! Damage on the disk (R11): below the highest `durable_seq` it quarantines, above it is a torn tail.

use super::laws::run_rounds;
use super::rig::Rig;
use crate::testing::chunks;
use crate::{EngineConfig, MountError};
use layout::log::{BATCH_ALIGN, BatchHeader};
use std::time::Duration;
use types::store::Effect;
use types::{ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// Returns offsets and headers of all batches in the first log segment.
fn batches(rig: &Rig) -> Vec<(usize, BatchHeader)> {
    batches_from(rig, 0)
}

/// Returns the same for the segment in this slot of the ring.
pub(super) fn batches_from(rig: &Rig, slot: u32) -> Vec<(usize, BatchHeader)> {
    let start = (rig.superblock.log_start + u64::from(slot) * rig.superblock.segment_bytes) as usize;
    let mut at = start;
    let mut found = Vec::new();
    while at < start + rig.superblock.segment_bytes as usize {
        match BatchHeader::decode(&rig.disk.bytes()[at..], &rig.superblock.log_identity(), at as u64) {
            Some(header) => {
                found.push((at, header));
                at += header.len_bytes() as usize;
            }
            None => at += BATCH_ALIGN,
        }
    }
    found
}

/// Returns the header of the batch at this offset.
pub(super) fn header_at(rig: &Rig, at: usize) -> BatchHeader {
    BatchHeader::decode(&rig.disk.bytes()[at..], &rig.superblock.log_identity(), at as u64).expect("a batch")
}

/// Damages the copy of the batch at this offset in the batch behind it, if there is one. All else of that batch stays.
pub(super) fn spoil_copy(rig: &mut Rig, at: usize) {
    let next = header_at(rig, at).seq + 1;
    let all = (0..rig.superblock.segment_count).flat_map(|slot| batches_from(rig, slot));
    let holder = all.filter(|(_, header)| header.seq == next).last();
    if let Some((at, header)) = holder {
        assert!(header.copy_len > 0, "batch {next} has a copy");
        rig.disk.flip(at + layout::log::FIXED_LEN + header.records_len as usize + 60);
    }
}

/// Makes a log gap of the batch at this offset: damages its header, and its copy in the batch behind it.
pub(super) fn hide(rig: &mut Rig, at: usize) {
    spoil_copy(rig, at);
    rig.disk.flip(at + 60);
}

pub(super) fn config() -> EngineConfig {
    EngineConfig { round_idle: Duration::from_secs(1000), ..EngineConfig::default() }
}

fn two_replicas(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, true, config());
    rig.create(1);
    rig.create(2);
    rig
}

/// Writes one batch with one entry of `replica`; returns the batch's offset.
pub(super) fn one_batch(rig: &mut Rig, replica: ReplicaId) -> usize {
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) };
    let from = rig.models[&replica].last() + 1;
    rig.append(replica, from, vec![effect]);
    rig.turn(16);
    assert_eq!(rig.models[&replica].durable, from);
    batches(rig).last().expect("it was just written").0
}

/// Waits until the log is sealed.
pub(super) fn seal(rig: &mut Rig) {
    rig.now = rig.now + Duration::from_millis(20);
    rig.turn(16);
}

/// Returns each replica, and whether it is damaged or lacks payloads.
pub(super) fn damage_of(rig: &Rig) -> Vec<(ReplicaId, bool)> {
    rig.seen.recovered.iter().map(|r| (r.identity.replica, r.failure.is_some() || !r.lost.is_empty())).collect()
}

/// Gives the replica every payload that it lacks; it is then as before.
fn refill(rig: &mut Rig, replica: ReplicaId) {
    for lost in rig.engine.lost(replica) {
        let entry = rig.models[&replica].entry_of(lost.index.0, lost.term).expect("appended");
        rig.refill(replica, &entry);
    }
    rig.settle();
}

#[test]
fn damage_above_the_last_seal_is_a_torn_tail_and_below_it_corruption() {
    for (sealed, lost) in [(false, 0), (true, 0), (false, 4096), (true, 4096)] {
        let mut rig = two_replicas(1);
        one_batch(&mut rig, R2);
        let last = one_batch(&mut rig, R1);
        if sealed {
            seal(&mut rig);
        }
        match lost {
            0 => hide(&mut rig, last),
            payload => rig.disk.flip(last + payload + 100),
        }
        rig.disk.power_cut();
        rig.restart();
        // A damaged header hides records of every replica; a damaged payload concerns one replica.
        let want = [(R1, sealed), (R2, sealed && lost == 0)];
        assert_eq!(damage_of(&rig), want, "sealed {sealed}, byte {lost}");
        let entries = rig.seen.recovered[0].entries.len();
        let known = usize::from(sealed && lost > 0);
        assert_eq!(entries, known, "of a damaged entry only the record comes back");
        assert_eq!(rig.seen.recovered[0].lost.len(), known);
    }
}

#[test]
fn a_damaged_batch_in_the_middle_quarantines_every_replica_for_good() {
    let mut rig = two_replicas(2);
    let at = one_batch(&mut rig, R1);
    one_batch(&mut rig, R2);
    one_batch(&mut rig, R1);
    hide(&mut rig, at);
    for _ in 0..3 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(rig.seen.mount_failed, None);
        assert_eq!(damage_of(&rig), [(R1, true), (R2, true)]);
    }
    let reason = rig.seen.recovered[0].failure.clone().expect("it has failed").reason;
    assert!(reason.contains("were durable and are damaged"), "{reason}");
}

/// Writes entries of `replica` alone until the log has wrapped.
pub(super) fn wrap_log(rig: &mut Rig, replica: ReplicaId) {
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    for _ in 0..400 {
        rig.extend(replica, vec![effect]);
        rig.turn(8);
        rig.commit(replica, u64::MAX);
    }
    rig.settle();
    assert!(rig.engine.first_index(replica).0 > 100, "the log has wrapped");
}

#[test]
fn a_lost_payload_is_known_by_its_record_and_its_bytes_alone_fill_it() {
    let mut rig = two_replicas(3);
    let at = one_batch(&mut rig, R1);
    one_batch(&mut rig, R2);
    one_batch(&mut rig, R1);
    rig.disk.flip(at + 4096 + 7);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
    let lost = rig.seen.recovered[0].lost.clone();
    assert_eq!(lost.iter().map(|l| l.index.0).collect::<Vec<_>>(), [1]);
    assert_eq!(rig.seen.recovered[0].entries.len(), 2, "what follows it is there");
    assert_eq!(rig.engine.holding(R1, lost[0].index, lost[0].term), types::store::Holding::Lost);
    refill(&mut rig, R1);
    assert_eq!(rig.seen.refilled, [R1]);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn torn_batch_with_a_whole_header_proves_the_batches_before_it_durable() {
    let mut rig = two_replicas(5);
    let acknowledged = one_batch(&mut rig, R1);
    let torn = one_batch(&mut rig, R1);
    rig.disk.flip(acknowledged + 4096 + 7);
    rig.disk.flip(torn + layout::log::FIXED_LEN + 10);
    rig.disk.power_cut();
    rig.restart();
    let lost: Vec<u64> = rig.seen.recovered[0].lost.iter().map(|lost| lost.index.0).collect();
    assert_eq!((lost, rig.seen.recovered[0].entries.len()), (vec![1], 1), "entry 1 is known, entry 2 is the torn tail");
}

#[test]
fn a_lost_payload_outlives_the_segment_that_showed_it() {
    let mut rig = two_replicas(3);
    let at = one_batch(&mut rig, R1);
    one_batch(&mut rig, R2);
    rig.disk.flip(at + 4096 + 7);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
    // Only the other replica writes, until the log has wrapped.
    let whole = rig.models.remove(&R1).expect("created");
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    wrap_log(&mut rig, R2);
    rig.models.insert(R1, whole);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
    refill(&mut rig, R1);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(damage_of(&rig), [(R1, false), (R2, false)]);
    assert_eq!(rig.seen.recovered[0].entries, [rig.models[&R1].entry(1)]);
}

#[test]
fn payloads_lost_in_two_segments_come_back_unless_they_are_at_home() {
    let mut rig = two_replicas(13);
    let first = one_batch(&mut rig, R1);
    rig.commit(R1, 1);
    rig.round();
    rig.settle();
    assert_eq!(rig.seen.checkpoints, 1);
    let mut ats = vec![first];
    let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
    for n in 0..30 {
        rig.extend(R1, vec![big]);
        rig.turn(16);
        if n == 3 {
            ats.push(batches(&rig).last().expect("it was just written").0);
        }
    }
    // Entry 20 or so lies in the second segment.
    let second = rig.superblock.log_start as usize + rig.superblock.segment_bytes as usize;
    let header = BatchHeader::decode(&rig.disk.bytes()[second..], &rig.superblock.log_identity(), second as u64)
        .expect("it was opened");
    ats.push(second + header.len_bytes() as usize);
    rig.commit(R1, u64::MAX);
    for at in ats {
        let header =
            BatchHeader::decode(&rig.disk.bytes()[at..], &rig.superblock.log_identity(), at as u64).expect("a batch");
        assert!(header.payload_len > 0);
        rig.disk.flip(at + header.header_len as usize + 700);
    }
    rig.disk.power_cut();
    rig.restart();
    let found = &rig.seen.recovered[0];
    assert_eq!((found.lost.len(), found.before.0), (2, types::Index(1)), "entry 1 is at home: it is not needed");
    refill(&mut rig, R1);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn a_crash_while_payloads_come_back_loses_none_that_was_reported_back() {
    for seed in 20..28 {
        let mut rig = two_replicas(seed);
        let ats: Vec<usize> = (0..4).map(|_| one_batch(&mut rig, R1)).collect();
        seal(&mut rig);
        ats.iter().for_each(|at| rig.disk.flip(at + 4096 + 9));
        rig.disk.power_cut();
        rig.restart();
        for lost in rig.engine.lost(R1) {
            let entry = rig.models[&R1].entry(lost.index.0);
            assert!(rig.engine.refill(R1, lost.index, lost.term, entry.payload));
            rig.turn(seed % 3);
        }
        let back = rig.engine.stats().refilled_entries as usize;
        rig.disk.power_cut();
        rig.restart();
        assert!(rig.seen.recovered[0].lost.len() <= 4 - back, "{back} were back, seed {seed}");
        refill(&mut rig, R1);
        rig.disk.power_cut();
        rig.restart_and_check();
    }
}

#[test]
fn reported_damage_survives_a_power_cut() {
    let mut rig = two_replicas(7);
    one_batch(&mut rig, R1);
    rig.engine.fail(R1, "terms do not rise".to_owned());
    let opened = rig.engine.stats().segments_in_use;
    rig.settle();
    assert_eq!(rig.engine.stats().segments_in_use, opened, "no state block says it yet");
    for _ in 0..2 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(damage_of(&rig), [(R1, true), (R2, false)]);
        let reason = rig.seen.recovered[0].failure.as_ref().map(|failure| failure.reason.as_str());
        assert_eq!(reason, Some("terms do not rise"));
    }
}

#[test]
fn a_log_without_any_batch_is_lost_and_not_new() {
    let mut rig = two_replicas(4);
    one_batch(&mut rig, R1);
    let start = rig.superblock.log_start as usize;
    rig.disk.fill(start, rig.superblock.segment_bytes as usize, 0);
    rig.restart();
    assert_eq!(rig.seen.mount_failed, Some(MountError::LogLost));
}

#[test]
fn one_superblock_is_enough_and_another_osds_device_is_refused() {
    let mut rig = two_replicas(5);
    let last = rig.disk.bytes().len() - 4096;
    let copies = |rig: &Rig| [rig.disk.bytes()[..4096].to_vec(), rig.disk.bytes()[last..].to_vec()];
    let before = copies(&rig);
    for at in [8, last + 20, last + 300, 700] {
        rig.disk.flip(at);
        rig.restart_and_check();
        assert_eq!(copies(&rig), before, "the damaged copy is rewritten, so that the next damage finds two again");
    }
    rig.disk.flip(8);
    rig.disk.flip(last + 20);
    rig.restart();
    assert!(matches!(rig.seen.mount_failed, Some(MountError::Superblock(_))), "{:?}", rig.seen.mount_failed);
}

#[test]
fn a_damaged_block_of_home_is_an_error_and_never_bytes() {
    let mut rig = Rig::new(6, true, EngineConfig { round_idle: Duration::from_millis(5), ..config() });
    rig.create(1);
    one_batch(&mut rig, R1);
    rig.commit(R1, 1);
    run_rounds(&mut rig);
    assert_eq!(rig.engine.stats().overlay_bytes, 0, "the block is in home");
    let block = rig.models[&R1].expected(chunks()[0], SectorRange::new(0, 8));
    let home = rig.superblock.home_start as usize;
    let bytes = &rig.disk.bytes()[home..];
    let at = bytes.chunks(4096).position(|page| page == &block[..]).expect("home holds the block") * 4096;
    rig.disk.flip(home + at + 5);
    rig.read(R1, chunks()[0], SectorRange::new(0, 8));
    rig.settle();
    assert_eq!(rig.bad_blocks(), [(R1, chunks()[0], SectorRange::new(0, 8))], "the block was reported");
    assert_eq!(rig.models[&R1].reading, 0, "and the read was answered, with an error");
}
