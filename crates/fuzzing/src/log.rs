//! One batch of the log: its fixed header and its records.
//!
//! Input: the fixed header, then the records, without the zeros that fill their area on a device. Properties: a batch
//! that decodes has exactly one encoding, and a count or length in the batch allocates nothing by itself.

use crate::{Verdict, meter};
use bytes::Bytes;
use layout::log::{
    BATCH_ALIGN, BATCH_VERSION, BatchHeader, BlockRecord, CheckpointPart, FIXED_LEN, LogIdentity, MAGIC, PayloadAt,
    PlacedRun, Record, ReplicaRecord, SaltKey, decode_records,
};
use std::borrow::Cow;
use types::map::Member;
use types::rng::Rng;
use types::store::{Crcs, Failure, HardState, ReplicaIdentity};
use types::units::SECTORS_PER_AU;
use types::{
    ChunkKey, EntryKind, Epoch, GenerationId, Index, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SectorRange, Term, crc32c,
};

pub const LOG: LogIdentity = LogIdentity { uuid: OsdUuid([9; 16]), salt_key: SaltKey::new([3; 16]) };
const OFFSET: u64 = 1 << 20;
/// Allocation factor. A record in memory may be several times its bytes, and the list of records grows by doubling.
const FACTOR: u64 = 24;

/// Decodes one batch.
pub fn run(data: &[u8]) -> Verdict {
    let header = meter::bounded(data.len(), 0, 0, || BatchHeader::decode(data, &LOG, OFFSET));
    let Some(header) = header else { return Verdict::Refused };
    assert!(header.encode(&LOG) == data[..FIXED_LEN], "a second spelling of {header:?}");
    if let Some((before, place)) = meter::bounded(data.len(), 0, 0, || header.copied(data, &LOG)) {
        assert!(place.end <= data.len() && before.seq + 1 == header.seq && before.mount <= header.mount);
        assert!(before.encode(&LOG) == data[place][..FIXED_LEN], "a second spelling of {before:?}");
    }
    let Some(bytes) = header.records(data) else { return Verdict::Refused };
    let result = meter::bounded(bytes.len(), FACTOR, 1024, || decode_records(bytes, header.record_count));
    if let Ok(records) = &result {
        let mut again = Vec::with_capacity(bytes.len());
        records.iter().for_each(|record| record.encode(&mut again));
        assert!(again == bytes, "a second spelling of {records:?}");
    }
    Verdict::of(&result)
}

fn number(rng: &mut Rng) -> u64 {
    if rng.chance(1, 12) { u64::MAX - rng.below(2) } else { rng.below(40) }
}

fn bytes(rng: &mut Rng, max: u64) -> Bytes {
    let len = rng.below(max);
    (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<u8>>().into()
}

fn replica_record(rng: &mut Rng) -> ReplicaRecord {
    let members = (0..rng.below(6)).map(|n| Member { replica: ReplicaId(n), osd: OsdId(n as u32) }).collect();
    let pg = PgId { pool: PoolId(1), n: number(rng) as u32 };
    let replica = ReplicaId(number(rng));
    ReplicaRecord {
        identity: ReplicaIdentity { pg, replica, conf_epoch: Epoch(number(rng)), members },
        hard_state: hard_state(rng),
        decision: bytes(rng, 100),
        fills_from: rng.chance(1, 4).then(|| (Index(number(rng).max(1)), Term(number(rng)))),
        failure: rng.chance(1, 3).then(|| Failure { reason: "dämage".into(), is_past: rng.chance(1, 2) }),
    }
}

fn hard_state(rng: &mut Rng) -> HardState {
    let vote = rng.chance(1, 2).then(|| ReplicaId(number(rng)));
    HardState { term: Term(number(rng)), vote, commit: Index(number(rng)) }
}

fn append(rng: &mut Rng) -> Record<'static> {
    let range = SectorRange::new(rng.below(1000) as u32, rng.between(1, 40) as u32);
    let has_payload = rng.chance(2, 3);
    let values = (0..range.fragment_count()).map(|_| rng.next_u64() as u32).collect();
    let crcs = if has_payload { Crcs { start: range.start, values } } else { Crcs::default() };
    let len = if has_payload { range.len_bytes() as u32 } else { 0 };
    Record::Append {
        replica: ReplicaId(number(rng)),
        index: Index(number(rng)),
        term: Term(number(rng)),
        kind: [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2][rng.below(3) as usize],
        copied: rng.chance(1, 4),
        descriptor: Cow::Owned(bytes(rng, 80).into()),
        crcs: Cow::Owned(crcs),
        payload: PayloadAt { offset: rng.below(64) as u32 * 512, len },
    }
}

fn placed(rng: &mut Rng) -> Record<'static> {
    let runs: Vec<PlacedRun> = (0..rng.between(1, 4))
        .map(|_| PlacedRun { unit: number(rng) as u32 / 2, count: rng.between(1, 2) as u32 })
        .collect();
    let aus: u32 = runs.iter().map(|run| run.count).sum();
    let range = SectorRange::new(rng.below(8) as u32 * SECTORS_PER_AU, aus * SECTORS_PER_AU);
    let values = (0..range.fragment_count()).map(|_| rng.next_u64() as u32).collect();
    Record::Placed {
        replica: ReplicaId(number(rng)),
        index: Index(number(rng)),
        term: Term(number(rng)),
        kind: EntryKind::Normal,
        copied: rng.chance(1, 4),
        descriptor: Cow::Owned(bytes(rng, 80).into()),
        crcs: Cow::Owned(Crcs { start: range.start, values }),
        hash: rng.next_u64(),
        runs,
    }
}

/// Returns a record of any kind.
pub fn record(rng: &mut Rng) -> Record<'static> {
    let replica = ReplicaId(number(rng));
    match rng.below(20) {
        19 => placed(rng),
        12 => Record::StateMore { mount: rng.chance(1, 2) },
        16 => Record::StateEnd,
        18 => Record::ReplicaFloor(replica),
        14 => Record::Past { replica, last: Index(number(rng)) },
        15 => Record::Revived { replica },
        17 => Record::CreatesLost { below: replica, restated: rng.chance(1, 2) },
        0 | 1 => append(rng),
        13 => Record::LostEntry {
            replica,
            index: Index(number(rng)),
            term: Term(number(rng)),
            kind: EntryKind::Normal,
            descriptor: Cow::Owned(bytes(rng, 80).into()),
            crcs: Cow::Owned(Crcs { start: 7, values: types::CrcList::from_slice(&[1, 2]) }),
            len_bytes: 1024,
        },
        2 => Record::HardState { replica, hard_state: hard_state(rng) },
        3 => Record::Create(replica_record(rng)),
        4 => Record::ReplicaState(replica_record(rng)),
        5 => Record::Destroy { replica },
        6 => Record::Checkpoint(CheckpointPart { id: number(rng), part: 1, parts: 3, bytes: bytes(rng, 200) }),
        7 => Record::Mount,
        8 => Record::SegmentOpen { replicas: number(rng) as u32, mount: rng.chance(1, 2) },
        9 => Record::Tombstones((0..rng.below(9)).map(|_| ReplicaId(number(rng))).collect()),
        10 => Record::Block(BlockRecord {
            replica,
            chunk: ChunkKey { generation: GenerationId(number(rng)), index: number(rng) as u32 },
            block: rng.below(4096) as u16,
            index: Index(number(rng)),
            crc: rng.next_u64() as u32,
            payload: PayloadAt { offset: 4096, len: 4096 },
        }),
        _ if rng.chance(1, 2) => Record::Map(bytes(rng, 100)),
        _ => Record::Reset { replica, index: Index(number(rng)), term: Term(number(rng)) },
    }
}

pub fn seed(rng: &mut Rng) -> Vec<u8> {
    let records: Vec<Record<'_>> = (0..rng.between(1, 6)).map(|_| record(rng)).collect();
    let mut body = Vec::new();
    records.iter().for_each(|r| r.encode(&mut body));
    let mut copy = Vec::new();
    if rng.chance(1, 2) {
        record(rng).encode(&mut copy);
        let before = BatchHeader {
            header_len: BATCH_ALIGN as u32,
            records_len: copy.len() as u32,
            record_count: 1,
            records_crc: crc32c(&copy),
            payload_len: 0,
            copy_len: 0,
            copy_crc: 0,
            payload_hash: 0,
            mount: 2,
            seq: 899,
            offset: OFFSET - BATCH_ALIGN as u64,
            durable_seq: 890,
            tail_seq: 100,
            segment_seq: 880,
        };
        copy.splice(0..0, before.encode(&LOG));
    }
    let header = BatchHeader {
        header_len: (FIXED_LEN + body.len() + copy.len()).next_multiple_of(BATCH_ALIGN) as u32,
        records_len: body.len() as u32,
        record_count: records.len() as u32,
        records_crc: crc32c(&body),
        payload_len: 8192,
        copy_len: copy.len() as u32,
        copy_crc: crc32c(&copy),
        payload_hash: 5,
        mount: 3,
        seq: 900,
        offset: OFFSET,
        durable_seq: 899,
        tail_seq: 100,
        segment_seq: 880,
    };
    [&header.encode(&LOG)[..], &body, &copy].concat()
}

/// Corrects lengths, the count and the checksums, and cuts the last record to the bytes that are left before the copy.
#[allow(clippy::ptr_arg)] // one type for all targets, and some change the length
pub fn fix(data: &mut Vec<u8>) {
    if data.len() < FIXED_LEN {
        return;
    }
    let copy_len = u32::from_le_bytes([data[96], data[97], data[98], data[99]]) as usize;
    let copy_len = if copy_len <= data.len() - FIXED_LEN { copy_len } else { 0 };
    let copy_at = data.len() - copy_len;
    let records_len = copy_at - FIXED_LEN;
    let header_len = data.len().next_multiple_of(BATCH_ALIGN) as u32;
    let count = walk(&mut data[FIXED_LEN..copy_at]);
    if copy_len >= FIXED_LEN {
        let records_crc = crc32c(&data[copy_at + FIXED_LEN..]);
        data[copy_at + 28..copy_at + 32].copy_from_slice(&records_crc.to_le_bytes());
        seal(&mut data[copy_at..copy_at + FIXED_LEN], &LOG);
    }
    data[96..100].copy_from_slice(&(copy_len as u32).to_le_bytes());
    let copy_crc = crc32c(&data[copy_at..]);
    data[100..104].copy_from_slice(&copy_crc.to_le_bytes());
    data[..8].copy_from_slice(&MAGIC);
    data[8..12].copy_from_slice(&BATCH_VERSION.to_le_bytes());
    data[16..20].copy_from_slice(&header_len.to_le_bytes());
    data[20..24].copy_from_slice(&(records_len as u32).to_le_bytes());
    data[24..28].copy_from_slice(&count.to_le_bytes());
    let records_crc = crc32c(&data[FIXED_LEN..copy_at]);
    data[28..32].copy_from_slice(&records_crc.to_le_bytes());
    data[64..72].copy_from_slice(&OFFSET.to_le_bytes());
    seal(&mut data[..FIXED_LEN], &LOG);
}

/// Corrects the salt and the checksum of a fixed header.
pub fn seal(header: &mut [u8], log: &LogIdentity) {
    let segment_seq = u64::from_le_bytes(*header[88..96].first_chunk().expect("eight bytes"));
    header[40..48].copy_from_slice(&log.salt_key.salt(segment_seq).to_le_bytes());
    header[12..16].fill(0);
    let crc = types::crc::append(crc32c(&log.uuid.0), &header[..FIXED_LEN]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Counts the records, and cuts a record that extends beyond the batch.
pub fn walk(records: &mut [u8]) -> u32 {
    const RECORD: usize = 40;
    let (mut at, mut count) = (0, 0);
    while at + RECORD <= records.len() {
        let len = u32::from_le_bytes([records[at + 4], records[at + 5], records[at + 6], records[at + 7]]) as usize;
        let left = records.len() - at - RECORD;
        if len > left {
            records[at + 4..at + 8].copy_from_slice(&(left as u32).to_le_bytes());
        }
        at += (RECORD + len.min(left)).next_multiple_of(8);
        count += 1;
    }
    count
}
