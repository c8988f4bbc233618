//! Golden bytes of the records, and decoding under damage.

use super::*;
use types::crc32c;
use types::rng::Rng;

fn replica_record() -> ReplicaRecord {
    ReplicaRecord {
        identity: ReplicaIdentity {
            pg: PgId { pool: PoolId(3), n: 31 },
            replica: ReplicaId(77),
            conf_epoch: Epoch(5),
            members: vec![
                Member { replica: ReplicaId(77), osd: OsdId(1) },
                Member { replica: ReplicaId(78), osd: OsdId(2) },
            ],
        },
        hard_state: HardState { term: Term(4), vote: Some(ReplicaId(78)), commit: Index(11) },
        decision: Bytes::from_static(b"decision"),
        fills_from: Some((Index(7), Term(3))),
        failure: Some(Failure { reason: "why".to_owned(), is_past: false }),
    }
}

fn encoded(records: &[Record<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|record| record.encode(&mut out));
    out
}

fn sample() -> (Vec<u8>, Vec<Record<'static>>) {
    let r = ReplicaId(77);
    let crcs = Crcs { start: 5, values: CrcList::from_slice(&[1, 2]) };
    let at = PayloadAt { offset: 512, len: 4096 };
    let payload = PayloadAt { offset: 0, len: 4096 };
    let chunk = ChunkKey { generation: GenerationId(9), index: 2 };
    let block = BlockRecord { replica: r, chunk, block: 4095, index: Index(12), crc: 3, payload };
    let part = CheckpointPart { id: 8, part: 1, parts: 2, bytes: Bytes::from_static(b"opaque") };
    let hard_state = HardState { term: Term(4), vote: None, commit: Index(11) };
    let records = vec![
        Record::SegmentOpen { replicas: 1, mount: false },
        Record::ReplicaState(replica_record()),
        Record::Tombstones(vec![ReplicaId(1), ReplicaId(2)]),
        Record::Mount,
        Record::Create(replica_record()),
        Record::Append {
            replica: r,
            index: Index(12),
            term: Term(4),
            kind: EntryKind::Normal,
            copied: true,
            descriptor: Cow::Borrowed(b"abc"),
            crcs: Cow::Owned(crcs),
            payload: at,
        },
        Record::HardState { replica: r, hard_state },
        Record::Block(block),
        Record::Checkpoint(part),
        Record::Destroy { replica: r },
    ];
    (encoded(&records), records)
}

#[test]
fn record_bytes_never_change_and_come_back() {
    let (bytes, records) = sample();
    assert_eq!((bytes.len(), crc32c(&bytes)), (696, 3_933_810_391), "golden");
    assert_eq!(decode_records(&bytes, records.len() as u32), Ok(records));
}

#[test]
fn a_failure_is_told_by_its_reason_and_a_past_by_one_flag() {
    let record = |failure: Option<(&str, bool)>| {
        let failure = failure.map(|(reason, is_past)| Failure { reason: reason.to_owned(), is_past });
        Record::ReplicaState(ReplicaRecord { failure, ..replica_record() })
    };
    let records = [record(None), record(Some(("why", false))), record(Some(("why", true)))];
    let [_, lost, past] = records.each_ref().map(|record| encoded(std::slice::from_ref(record)));
    let differs: Vec<usize> = (0..lost.len()).filter(|at| lost[*at] != past[*at]).collect();
    assert_eq!((&differs[..], lost[1] ^ past[1]), (&[1][..], FLAG_PAST));
    assert_eq!(decode_records(&encoded(&records), 3), Ok(records.to_vec()));
    let mut no_reason = encoded(&records[..1]);
    no_reason[1] |= FLAG_PAST;
    assert!(decode_records(&no_reason, 1).is_err(), "a past without a failure");
}

#[test]
fn records_of_failed_replicas_come_back_as_they_were() {
    let records = vec![
        Record::Past { replica: ReplicaId(7), last: Index(9) },
        Record::Revived { replica: ReplicaId(7) },
        Record::CreatesLost { below: ReplicaId(77), restated: false },
        Record::CreatesLost { below: ReplicaId(u64::MAX), restated: true },
    ];
    let bytes = encoded(&records);
    let kinds: Vec<(u8, u8)> = bytes.chunks(40).map(|record| (record[0], record[1])).collect();
    assert_eq!(kinds, [(18, 0), (20, 0), (21, 0), (21, 16)], "golden");
    assert_eq!(decode_records(&bytes, 4), Ok(records));
}

#[test]
fn records_of_a_state_block_come_back_as_they_were() {
    let records = vec![
        Record::SegmentOpen { replicas: 2, mount: true },
        Record::StateMore { mount: false },
        Record::StateMore { mount: true },
        Record::ReplicaFloor(ReplicaId(9)),
        Record::StateEnd,
    ];
    let bytes = encoded(&records);
    let kinds: Vec<(u8, u8)> = bytes.chunks(40).map(|record| (record[0], record[1])).collect();
    assert_eq!(kinds, [(7, 4), (22, 0), (22, 4), (24, 0), (23, 0)], "golden");
    assert_eq!(decode_records(&bytes, 5), Ok(records));
}

#[test]
fn a_map_comes_back_as_it_was() {
    let records = vec![Record::Map(Bytes::from_static(b"1=127.0.0.1:7410"))];
    let bytes = encoded(&records);
    assert_eq!((bytes.len(), bytes[0]), (56, 12), "golden");
    assert_eq!(decode_records(&bytes, 1), Ok(records));
}

#[test]
fn damaged_records_are_errors_and_never_panics() {
    let (bytes, records) = sample();
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let mut bad = bytes.clone();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(bad.len() as u64) as usize;
            bad[at] = rng.next_u64() as u8;
        }
        bad.truncate(rng.between(1, bad.len() as u64) as usize);
        let _ = decode_records(&bad, records.len() as u32);
    }
    assert!(decode_records(&bytes, 3).is_err(), "a wrong count");
    assert!(decode_records(&bytes[..bytes.len() - 8], records.len() as u32).is_err(), "cut short");
}

fn placed(start: u32, runs: &[(u32, u32)], crc_count: u32) -> Record<'static> {
    Record::Placed {
        replica: ReplicaId(7),
        index: Index(3),
        term: Term(2),
        kind: EntryKind::Normal,
        copied: false,
        descriptor: Cow::Borrowed(b"abc"),
        crcs: Cow::Owned(Crcs { start, values: (0..crc_count).collect() }),
        hash: 9,
        runs: runs.iter().map(|(unit, count)| PlacedRun { unit: *unit, count: *count }).collect(),
    }
}

#[test]
fn placed_entry_record_keeps_the_runs_of_its_payload() {
    let record = placed(128, &[(70, 1), (90, 2)], 48);
    let bytes = encoded(std::slice::from_ref(&record));
    assert_eq!((bytes[0], bytes[1], bytes.len(), crc32c(&bytes)), (25, 0, 280, 156_363_563), "golden");
    assert_eq!(decode_records(&bytes, 1), Ok(vec![record]));
}

#[test]
fn placed_entry_record_of_another_shape_is_refused() {
    let refused = |record: Record<'_>| decode_records(&encoded(&[record]), 1).is_err();
    assert!(!refused(placed(0, &[(70, 8)], 128)) && !refused(placed(32640, &[(u32::MAX - 1, 1)], 16)));
    assert!(refused(placed(8, &[(70, 1)], 16)), "the range begins inside an AU");
    assert!(refused(placed(0, &[(70, 1)], 15)) && refused(placed(0, &[(70, 1)], 17)), "another length");
    assert!(refused(placed(0, &[(70, 0)], 0)) && refused(placed(0, &[(70, 9)], 128)), "a run of nothing or too long");
    assert!(refused(placed(0, &[(u32::MAX, 1)], 16)), "a run leaves the numbers");
    assert!(refused(placed(32640, &[(70, 2)], 32)), "the range leaves its chunk");
    let mut no_runs = encoded(&[placed(0, &[(70, 1)], 16)]);
    no_runs[48] = 0;
    assert!(decode_records(&no_runs, 1).is_err());
    no_runs[48] = 9;
    assert!(decode_records(&no_runs, 1).is_err());
}

#[test]
fn lost_entry_record_keeps_length_and_checksums_of_its_payload() {
    let lost_entry = |len_bytes| Record::LostEntry {
        replica: ReplicaId(7),
        index: Index(3),
        term: Term(2),
        kind: EntryKind::Normal,
        descriptor: Cow::Borrowed(b"abc"),
        crcs: Cow::Owned(Crcs { start: 7, values: CrcList::from_slice(&[1, 2]) }),
        len_bytes,
    };
    let lost = encoded(&[lost_entry(1024)]);
    assert_eq!(lost[0], 16, "the kind never changes");
    assert_eq!(decode_records(&lost, 1), Ok(vec![lost_entry(1024)]));
    for wrong_len in [0, 512, 1000, 1 << 20, u32::MAX] {
        let bytes = encoded(&[lost_entry(wrong_len)]);
        assert!(decode_records(&bytes, 1).is_err(), "{wrong_len} bytes and two checksums from sector 7");
    }
}

#[test]
fn record_encoding_is_canonical() {
    // Fuzzing found that reserved bytes, padding, flags and fields of other kinds were ignored.
    let (bytes, records) = sample();
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(decode_records(&bad, records.len() as u32).as_ref(), Ok(&records), "bit {bit} means nothing");
    }

    let map = encoded(&[Record::Map(Bytes::from_static(b"x"))]);
    assert!(decode_records(&map[..map.len() - 1], 1).is_err(), "padding is cut short");
}
