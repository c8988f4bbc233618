//! Records that stand twice (ADR 0021): the loss of any one header page costs no record, and that of two neighbours a gap.

use super::damage::{batches_from, config, header_at, one_batch, seal, spoil_copy};
use super::failed::{OTHER, R, forget, found, new, one};
use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::chunks;
use layout::log::{BATCH_ALIGN, BatchHeader, Record, decode_records};
use types::store::{Effect, HardState, Persist, Recovered};
use types::{ReplicaId, SectorRange, Term};

/// Returns offsets and headers of the live batches, in order of number.
pub(super) fn live(rig: &Rig) -> Vec<(usize, BatchHeader)> {
    let mut all: Vec<_> = (0..rig.superblock.segment_count).flat_map(|slot| batches_from(rig, slot)).collect();
    all.sort_by_key(|(_, header)| header.seq);
    let tail_seq = all.last().expect("not empty").1.tail_seq;
    all.retain(|(_, header)| header.seq >= tail_seq);
    all
}

fn kinds(rig: &Rig, batch: &(usize, BatchHeader)) -> Vec<Record<'static>> {
    let bytes = &rig.disk.bytes()[batch.0..];
    decode_records(batch.1.records(bytes).expect("whole"), batch.1.record_count).expect("records")
}

fn vote(rig: &mut Rig, replica: ReplicaId) {
    let model = rig.models.get_mut(&replica).expect("created");
    model.term = Term(model.term.0 + 3);
    model.hard_state = HardState { term: model.term, vote: Some(replica), ..model.hard_state };
    let hard_state = Some(model.hard_state);
    rig.engine.append(Persist { replica, ticket: 0, hard_state, entries: Vec::new() });
    rig.settle();
}

/// Returns an engine whose log has batches of every kind: state blocks of several batches, checkpoints of several parts, votes,
/// replaced entries, a mount, seals, a removed replica. `rounds`: the log has wrapped.
pub(super) fn history(seed: u64, wraps: bool) -> Rig {
    let mut rig = Rig::new(seed, true, EngineConfig { state_batch_max: 1, ..config() });
    for id in [R.0, OTHER.0, 102, 103] {
        rig.create(id);
    }
    let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
    for n in 0..if wraps { 120 } else { 30 } {
        rig.extend(if n % 5 == 0 { OTHER } else { R }, vec![big]);
        rig.turn(16);
        if n % 20 == 7 {
            rig.commit(R, u64::MAX);
            rig.commit(OTHER, u64::MAX);
            rig.round();
            rig.settle();
        }
    }
    rig.destroy(ReplicaId(103));
    vote(&mut rig, OTHER);
    rig.settle();
    rig.disk.power_cut();
    rig.restart_and_check();
    one(&mut rig, R);
    rig.extend(OTHER, vec![big, Effect::None]);
    rig.turn(16);
    vote(&mut rig, R);
    rig.create(104);
    one(&mut rig, OTHER);
    rig.settle();
    seal(&mut rig);
    rig
}

/// Mounts a copy of the disk after a power cut, with these bytes changed. Returns the replicas.
pub(super) fn mounted(rig: &Rig, probe: &mut Rig, flips: &[usize]) -> Vec<Recovered> {
    probe.disk = rig.disk.copy();
    flips.iter().for_each(|at| probe.disk.flip(*at));
    probe.disk.power_cut();
    probe.restart();
    assert_eq!(probe.seen.mount_failed, None, "{flips:?}");
    std::mem::take(&mut probe.seen.recovered)
}

/// Asserts that these replicas are back as in `whole`. An older log may begin earlier: then it has more entries at its front.
pub(super) fn assert_same(found: &[Recovered], whole: &[Recovered], why: &str) {
    assert_eq!(found.len(), whole.len(), "{why}");
    for (found, whole) in found.iter().zip(whole) {
        let facts = |r: &Recovered| {
            let Recovered { identity, hard_state, checkpoint, lost, failure, .. } = r.clone();
            (identity, hard_state, checkpoint, lost, failure)
        };
        assert_eq!(facts(found), facts(whole), "{why}");
        assert!(found.before.0 <= whole.before.0 && found.entries.ends_with(&whole.entries), "{why}: entries");
    }
}

pub(super) fn probe() -> Rig {
    Rig::new(99, true, config())
}

#[test]
fn openings_of_several_segments_may_be_damaged_at_once() {
    let mut rig = Rig::new(40, true, config());
    rig.create(R.0);
    let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
    let is_opening = |(_, h): &&(usize, BatchHeader)| h.seq == h.segment_seq;
    while live(&rig).iter().filter(is_opening).count() < 5 {
        rig.extend(R, vec![big]);
        rig.turn(16);
    }
    seal(&mut rig);
    let (batches, mut probe) = (live(&rig), probe());
    let openings: Vec<usize> = batches.iter().filter(is_opening).map(|(at, _)| at + 60).collect();
    assert!(openings.len() < rig.superblock.segment_count as usize && batches[0].1.seq == 1, "the log has not wrapped");
    let whole = mounted(&rig, &mut probe, &[]);
    // Two are left: a single one may be that of a torn batch, and then says nothing about the others.
    for set in (1..1_u32 << openings.len()).filter(|set| set.count_ones() <= 3) {
        let flips: Vec<usize> = (0..5).filter(|n| set & 1 << n != 0).map(|n| openings[n]).collect();
        let found = mounted(&rig, &mut probe, &flips);
        assert_same(&found, &whole, &format!("openings {set:05b} of {}", rig.superblock.segment_count));
    }
}

#[test]
fn loss_of_any_one_header_page_costs_no_record() {
    let mut pages = 0;
    for (seed, wraps) in [(1, false), (2, true)] {
        let (rig, mut probe) = (history(seed, wraps), probe());
        let whole = mounted(&rig, &mut probe, &[]);
        assert!(whole.len() == 4 && whole.iter().all(|r| r.failure.is_none() && r.lost.is_empty()));
        let batches = live(&rig);
        let records: Vec<Record<'_>> = batches.iter().flat_map(|batch| kinds(&rig, batch)).collect();
        let has = |is: fn(&Record<'_>) -> bool| assert!(records.iter().any(is));
        has(|r| matches!(r, Record::SegmentOpen { mount: false, .. }));
        has(|r| matches!(r, Record::StateMore { .. }));
        has(|r| matches!(r, Record::StateEnd));
        has(|r| matches!(r, Record::Mount));
        has(|r| matches!(r, Record::Create(_)));
        has(|r| matches!(r, Record::Destroy { .. }));
        has(|r| matches!(r, Record::HardState { .. }));
        has(|r| matches!(r, Record::Checkpoint(_)));
        assert_eq!(batches.last().expect("not empty").1.record_count, 0, "a seal ends the log");
        assert_eq!(batches[0].1.seq > 1, wraps, "the log has wrapped");
        for (at, header) in &batches {
            for page in (0..header.header_len as usize).step_by(BATCH_ALIGN) {
                let why = format!("batch {}, page at {page}", header.seq);
                assert_same(&mounted(&rig, &mut probe, &[at + page + 60]), &whole, &why);
                assert_eq!(probe.engine.lost_records(), None, "{why}");
                // The mount has written behind it: a second one finds the same.
                probe.disk.power_cut();
                probe.restart();
                assert_same(&probe.seen.recovered, &whole, &why);
                pages += 1;
            }
        }
    }
    assert!(pages > 100, "{pages} pages");
}

#[test]
fn loss_of_two_neighbouring_headers_is_a_gap() {
    let (rig, mut probe) = (history(3, false), probe());
    let batches = live(&rig);
    for pair in batches[..batches.len() - 1].windows(2) {
        mounted(&rig, &mut probe, &[pair[0].0 + 60, pair[1].0 + 60]);
        let seq = pair[0].1.seq;
        let reason = probe.engine.lost_records().expect("records are lost");
        assert!(reason.contains(&format!("log batches {seq} to {seq} ")) || seq == 1, "{reason}");
    }
}

#[test]
fn payloads_of_a_batch_known_by_its_copy_are_kept_or_lost_one_by_one() {
    let mut rig = new(4);
    rig.extend(R, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
    rig.extend(OTHER, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
    rig.turn(16);
    let (at, header) = *live(&rig).last().expect("it was just written");
    assert_eq!((header.header_len, header.payload_len), (4096, 8192), "one batch of two entries");
    seal(&mut rig);
    rig.disk.flip(at + 60);
    rig.disk.flip(at + 4096 + 4096 + 100);
    rig.disk.power_cut();
    rig.restart();
    let lost: Vec<(ReplicaId, usize)> =
        rig.seen.recovered.iter().map(|r| (r.identity.replica, r.lost.len())).filter(|(_, lost)| *lost > 0).collect();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, false), (1, false)]);
    assert_eq!(lost, [(OTHER, 1)], "only its payload is bad");
    let genuine = rig.models[&OTHER].entry(1);
    rig.refill(OTHER, &genuine);
    rig.settle();
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn header_known_by_a_torn_batch_alone_is_restored_before_that_is_dropped() {
    for opens in [false, true] {
        let mut rig = Rig::new(5, true, config());
        rig.create(R.0);
        let mut last = one(&mut rig, R);
        let big = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
        let torn = loop {
            let acknowledged = std::mem::replace(&mut last, {
                rig.extend(R, vec![big]);
                rig.turn(16);
                live(&rig).last().expect("it was just written").0
            });
            let header = header_at(&rig, last);
            if !opens || header.seq == header.segment_seq {
                rig.disk.flip(last + header.header_len as usize + 100);
                break std::mem::replace(&mut last, acknowledged);
            }
        };
        let (index, before) = (rig.models[&R].last() - 1, header_at(&rig, last));
        rig.disk.flip(last + 60);
        rig.disk.power_cut();
        let image = rig.disk.copy();
        rig.restart();
        assert_eq!(found(&rig, R), (index, false), "the torn batch alone is dropped");
        assert_eq!(rig.engine.lost_records(), None);
        let restored = header_at(&rig, last);
        assert_eq!((restored.seq, restored.records_crc, restored.copy_len), (before.seq, before.records_crc, 0));
        let rewritten = header_at(&rig, torn).mount > before.mount;
        assert_eq!(rewritten, !opens, "the log goes on where the torn batch was, or before it in the older segment");
        // The log goes on; what is left of a torn batch that opened a segment bounds nothing.
        forget(&mut rig, R, index);
        one(&mut rig, R);
        seal(&mut rig);
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(found(&rig, R), (index + 1, false));
        // A crash after any write of that mount keeps the batch.
        for completions in 0..12 {
            rig.disk = image.copy();
            let info = rig.disk.info.clone();
            rig.boot(info);
            rig.disk.submit(&mut rig.ops);
            for _ in 0..completions {
                rig.turn(1);
            }
            rig.disk.power_cut();
            rig.restart();
            assert_eq!(found(&rig, R), (index, false), "a crash after {completions} steps");
        }
    }
}

#[test]
fn torn_tail_without_a_batch_behind_it_is_dropped_with_its_records() {
    let mut rig = new(6);
    one(&mut rig, R);
    let torn = one(&mut rig, R);
    rig.disk.flip(torn + 60);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!((found(&rig, R), rig.engine.lost_records()), ((1, false), None));
    // The mount's first batch has the number of the torn one, and copies the batch before that.
    let header = header_at(&rig, torn);
    assert_eq!((header.offset, header.copy_len > 0), (torn as u64, true));
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (1, false), "it does not come back");
}

#[test]
fn batch_behind_a_gap_at_the_end_copies_nothing() {
    let mut rig = new(7);
    one(&mut rig, R);
    let last = one(&mut rig, R);
    rig.disk.unreadable = Some(last + 512);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (1, true), "an unreadable page is no tear");
    // It lies behind the unreadable page, which stays.
    let header = header_at(&rig, last + BATCH_ALIGN);
    assert_eq!((header.mount, header.copy_len), (3, 0));
}

#[test]
fn small_batches_take_no_page_more_and_each_one_copies() {
    let mut rig = Rig::new(8, true, config());
    rig.create(1);
    for _ in 0..5 {
        one_batch(&mut rig, ReplicaId(1));
    }
    let batches = live(&rig);
    assert!(batches.iter().all(|(_, header)| header.header_len == 4096));
    assert!(batches[1..].iter().all(|(_, header)| header.copy_len > 0));
    // A spoiled copy costs nothing while the header is whole.
    batches[..batches.len() - 1].iter().for_each(|(at, _)| spoil_copy(&mut rig, *at));
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(rig.engine.lost_records(), None);
}
