//! Payloads that look like batches (ADR 0024): a header without the salt of its segment is none, whatever else of it is right.

use super::copied::{assert_same, history, live, mounted, probe};
use super::damage::batches_from;
use super::failed::R;
use super::rig::Rig;
use layout::log::{BATCH_ALIGN, BatchHeader, LogIdentity, Record, SaltKey};
use types::store::HardState;
use types::{Index, Term};

/// Returns the offsets of pages of the log in which forged payloads may lie, behind the batches of live segments, and in segments
/// that were never used. Freed segments keep their batches, and no payload opens a segment.
fn free_pages(rig: &Rig) -> Vec<usize> {
    let (sb, batches) = (rig.superblock, live(rig));
    let in_batch = |at: usize| batches.iter().any(|(from, h)| (*from..*from + h.len_bytes() as usize).contains(&at));
    let mut pages = Vec::new();
    for slot in 0..sb.segment_count {
        let start = (sb.log_start + u64::from(slot) * sb.segment_bytes) as usize;
        let segment = start..start + sb.segment_bytes as usize;
        let is_live = batches.iter().any(|(at, _)| segment.contains(at));
        if is_live || batches_from(rig, slot).is_empty() {
            pages.extend(segment.step_by(BATCH_ALIGN).skip(1).filter(|at| !in_batch(*at)));
        }
    }
    pages
}

/// Returns a batch for this place that says that everything before it was durable, and gives R a term of its own.
fn forged(log: &LogIdentity, at: usize, (seq, segment_seq): (u64, u64), last: &BatchHeader) -> Vec<u8> {
    let hard_state = HardState { term: Term(1 << 40), vote: Some(R), commit: Index(0) };
    let mut records = Vec::new();
    Record::HardState { replica: R, hard_state }.encode(&mut records);
    let header = BatchHeader {
        mount: last.mount,
        seq,
        offset: at as u64,
        durable_seq: seq - 1,
        tail_seq: last.tail_seq,
        segment_seq,
        ..BatchHeader::of_records(&records, 1)
    };
    let mut page = [&header.encode(log)[..], &records].concat();
    page.resize(BATCH_ALIGN, 0);
    page
}

#[test]
fn forged_batches_are_refused_where_the_openings_are_lost() {
    for (seed, wraps) in [(1, false), (2, true)] {
        let (mut rig, mut probe) = (history(seed, wraps), probe());
        let whole = mounted(&rig, &mut probe, &[]);
        let (batches, pages, log) = (live(&rig), free_pages(&rig), rig.superblock.log_identity());
        let last = batches.last().expect("not empty").1;
        let is_opening = |(_, h): &&(usize, BatchHeader)| h.seq == h.segment_seq;
        let mut lost: Vec<Vec<usize>> = batches.iter().filter(is_opening).map(|(at, _)| vec![at + 60]).collect();
        assert!(lost.len() > 1 && pages.len() > 100, "{} openings, {} pages", lost.len(), pages.len());
        // Without any opening a log that has wrapped is not read in its order.
        let all = lost.concat();
        lost.extend([vec![], if wraps { vec![] } else { all }]);
        let numbers = [
            (last.seq + 1, last.segment_seq),
            (last.seq + 5, last.segment_seq),
            (last.seq + 1, last.seq + 1),
            (1 << 40, 1 << 40),
        ];
        for guess in numbers {
            let forger = LogIdentity { salt_key: SaltKey::new([0xee; 16]), ..log };
            pages.iter().for_each(|at| rig.disk.put(*at, &forged(&forger, *at, guess, &last)));
            for flips in &lost {
                let why = format!("batch {guess:?}, without the openings {flips:?}");
                assert_same(&mounted(&rig, &mut probe, flips), &whole, &why);
                assert_eq!(probe.engine.lost_records(), None, "{why}");
            }
        }
        // The test can fail: with the salt, such a batch is one of the log.
        pages.iter().for_each(|at| rig.disk.put(*at, &forged(&log, *at, numbers[1], &last)));
        mounted(&rig, &mut probe, &[]);
        assert!(probe.engine.lost_records().is_some(), "batches between the last one and this are missing");
    }
}
