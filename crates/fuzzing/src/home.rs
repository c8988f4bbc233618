//! Metadata of a device and of its home: superblock, poison mark, pages, checkpoint records, dissolved generations.
//!
//! Properties: a superblock that decodes divides the device without overlap. A page, a checkpoint or a list of dissolved generations
//! that decodes has exactly one encoding.

use crate::{Verdict, meter};
use bytes::Bytes;
use layout::checkpoint::{Checkpoint, ReplicaRecord, decision_pages};
use layout::dissolved::{self, Dissolved, DissolvedLists};
use layout::home::{
    CRC_PAGES, DirEntry, Geometry, MapSlot, PAGE, PageId, PagePtr, decode_crc_page, decode_dir_page, decode_map_page,
    encode_crc_page, encode_dir_page, encode_map_page,
};
use layout::log::SaltKey;
use layout::poison;
use layout::superblock::{DeviceIds, MARGIN, Part, SUPERBLOCK_LEN, Segments, Superblock};
use std::collections::BTreeSet;
use types::rng::Rng;
use types::{ChunkKey, ClusterId, GenerationId, Index, OsdId, OsdUuid, ReplicaId, Term, crc32c};

/// Offset of the checksum in a superblock.
const SUPER_CRC_AT: usize = 248;
/// Length of a poison mark before the reason.
const POISON_HEAD_LEN: usize = 32;
const GEOMETRY: Geometry = Geometry { slot_count: 4096, au_count: 65536 };
const REPLICA: ReplicaId = ReplicaId(7);
const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(3), index: 9 };

/// Decodes one copy of a superblock. Reserved bytes belong to later versions, so only the value is compared.
pub fn superblock(data: &[u8]) -> Verdict {
    let result = meter::bounded(data.len(), 0, 0, || Superblock::decode(data));
    if let Ok(s) = &result {
        let log_end = s.log_start + s.segment_bytes * u64::from(s.segment_count);
        let home_end = s.home_start + s.home_bytes;
        assert!(s.part == Part::Home || s.log_start >= MARGIN && log_end > s.log_start);
        assert!(s.part == Part::Log || s.home_start >= log_end.max(MARGIN) && home_end > s.home_start);
        assert!(log_end.max(home_end) + MARGIN <= s.device_bytes);
        assert!(Superblock::decode(&s.encode()).as_ref() == Ok(s));
        assert!(Superblock::choose(data, &[]).as_ref() == Ok(s) && Superblock::choose(&[], data).as_ref() == Ok(s));
    }
    Verdict::of(&result)
}

pub fn superblock_seed(rng: &mut Rng) -> Vec<u8> {
    let segment = 1 << rng.between(20, 26);
    let count = rng.between(16, 64) as u32;
    let ids = DeviceIds { cluster: ClusterId([1; 16]), osd: OsdId(rng.below(9) as u32), uuid: OsdUuid([2; 16]) };
    let part = [Part::Whole, Part::Home, Part::Log][rng.below(3) as usize];
    let device = 2 * MARGIN + segment * u64::from(count) + (rng.between(256, 1 << 20) << 16);
    let made = Superblock::divide(
        ids,
        part,
        device,
        Segments { segment_bytes: segment, segment_count: count },
        rng.next_u64(),
        SaltKey::new([rng.below(256) as u8; 16]),
    );
    made.expect("it was made to fit").encode().to_vec()
}

pub fn superblock_fix(data: &mut Vec<u8>) {
    data.resize(SUPERBLOCK_LEN, 0);
    data[SUPER_CRC_AT..SUPER_CRC_AT + 4].fill(0);
    let crc = crc32c(data);
    data[SUPER_CRC_AT..SUPER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the mark of a poisoned store. The bytes after the reason are unspecified, so they are not compared.
pub fn poison(data: &[u8]) -> Verdict {
    let uuid = OsdUuid([2; 16]);
    let result = meter::bounded(data.len(), 1, 64, || poison::decode(data, uuid));
    if let Some(reason) = &result {
        let again = poison::encode(uuid, reason);
        let spoken = POISON_HEAD_LEN + reason.len();
        assert!(reason.len() <= poison::REASON_MAX && again[..spoken] == data[..spoken]);
    }
    Verdict::of(&result.ok_or(()))
}

pub fn poison_seed(rng: &mut Rng) -> Vec<u8> {
    let reason = "a flush failed, ".repeat(rng.below(40) as usize);
    poison::encode(OsdUuid([2; 16]), &reason).to_vec()
}

pub fn poison_fix(data: &mut Vec<u8>) {
    data.resize(poison::POISON_LEN, 0);
    let len = usize::from(u16::from_le_bytes([data[24], data[25]])).min(poison::POISON_LEN - POISON_HEAD_LEN);
    let crc = types::crc::append(crc32c(&data[..28]), &data[POISON_HEAD_LEN..POISON_HEAD_LEN + len]);
    data[28..POISON_HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes a page whose checksum was right. The first byte selects the kind of page.
pub fn page(data: &[u8]) -> Verdict {
    let Some((kind, rest)) = data.split_first() else { return Verdict::Refused };
    let mut page = [0; PAGE];
    let len = rest.len().min(PAGE);
    page[..len].copy_from_slice(&rest[..len]);
    let mut again = [0xaa; PAGE];
    match kind % 3 {
        0 => {
            let id = PageId::of_chunk(REPLICA, CHUNK, 0);
            let Ok(slots) = decode_map_page(id, &page, GEOMETRY) else { return Verdict::Refused };
            assert!(slots.iter().all(|s| s.au < GEOMETRY.au_count));
            encode_map_page(id, sequence(&page), &slots, &mut again);
        }
        1 => {
            let id = PageId::directory(REPLICA, 2);
            let read = meter::bounded(PAGE, 8, 0, || decode_dir_page(id, &page, GEOMETRY));
            let Ok(entries) = read else { return Verdict::Refused };
            let slots = entries.iter().flat_map(|(_, e)| e.pages.iter().flatten());
            assert!(slots.into_iter().all(|p| p.slot < GEOMETRY.slot_count));
            encode_dir_page(id, sequence(&page), entries.iter().map(|(n, e)| (*n, e)), &mut again);
        }
        _ => encode_crc_page(&decode_crc_page(&page), &mut again),
    }
    assert!(again == page, "a second spelling of a page");
    Verdict::Taken
}

fn sequence(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[32..40].try_into().expect("eight bytes"))
}

fn ptr(rng: &mut Rng) -> PagePtr {
    PagePtr { slot: rng.below(u64::from(GEOMETRY.slot_count)) as u32, crc: rng.next_u64() as u32 }
}

/// Memory of a list of dissolved generations for each byte of it: one of 12 bytes is in a list and in a set.
const DISSOLVED_FACTOR: u64 = 32;

/// Decodes the list of dissolved generations of a replica.
pub fn dissolved(data: &[u8]) -> Verdict {
    let result = meter::bounded(data.len(), DISSOLVED_FACTOR, 4096, || dissolved::decode(data));
    if let Ok(lists) = &result {
        assert!(dissolved::encode(lists)[..] == *data, "a second spelling of {lists:?}");
        let all: Vec<GenerationId> = lists.values().flatten().map(|d| d.generation).collect();
        let each: BTreeSet<GenerationId> = all.iter().copied().collect();
        assert!(each.len() == all.len() && !lists.keys().any(|heir| each.contains(heir)), "two owners in {lists:?}");
        for (heir, list) in lists {
            let falls = list.windows(2).all(|d| d[0].generation > d[1].generation && d[0].through >= d[1].through);
            assert!(falls && list.first().is_some_and(|d| d.generation < *heir), "{heir} has {list:?}");
        }
    }
    Verdict::of(&result)
}

pub fn dissolved_seed(rng: &mut Rng) -> Vec<u8> {
    let mut lists = DissolvedLists::new();
    let mut next = 0;
    for _ in 0..rng.below(4) {
        let first = next + 1;
        let count = rng.between(1, 5);
        next = first + count;
        let list = (first..next).rev().zip(0u32..);
        let list = list.map(|(id, n)| Dissolved { generation: GenerationId(id), through: 64 - n }).collect();
        lists.insert(GenerationId(next), list);
    }
    dissolved::encode(&lists).to_vec()
}

pub fn page_seed(rng: &mut Rng) -> Vec<u8> {
    let kind = rng.below(3) as u8;
    let mut out = vec![kind; 1 + PAGE];
    match kind {
        0 => {
            let slots = std::array::from_fn(|n| match n % 3 {
                0 => MapSlot::default(),
                1 => MapSlot { au: 0, valid: 0, zeros: rng.next_u64() as u16 },
                _ => {
                    let valid = rng.next_u64() as u16 | 1;
                    MapSlot { au: n as u32 * 7, valid, zeros: rng.next_u64() as u16 & !valid }
                }
            });
            encode_map_page(PageId::of_chunk(REPLICA, CHUNK, 0), rng.next_u64(), &slots, &mut out[1..]);
        }
        1 => {
            let entry = |rng: &mut Rng, n: u32| DirEntry {
                chunk: ChunkKey { index: n, ..CHUNK },
                pages: std::array::from_fn(|page| (page == 0 || rng.chance(1, 2)).then(|| ptr(rng))),
            };
            let entries: Vec<(usize, DirEntry)> =
                (0..rng.below(72)).map(|n| (n as usize, entry(rng, n as u32))).collect();
            let sequence = rng.next_u64();
            let id = PageId::directory(REPLICA, 2);
            encode_dir_page(id, sequence, entries.iter().map(|(n, e)| (*n, e)), &mut out[1..]);
        }
        _ => encode_crc_page(&std::array::from_fn(|_| rng.next_u64() as u32), &mut out[1..]),
    }
    const { assert!(CRC_PAGES == 4) };
    out
}

/// Length of the header of a checkpoint part.
const PART: usize = 48;

/// Decodes a checkpoint record. Input: consecutive parts, each with its own body length in its header.
pub fn checkpoint(data: &[u8]) -> Verdict {
    let parts = parts(data);
    let result = meter::bounded(data.len(), 16, 4096, || Checkpoint::decode(&parts));
    if let Ok(checkpoint) = &result {
        let again = checkpoint.encode();
        assert!(again.concat() == parts.concat() || again.len() != parts.len(), "a second spelling");
        assert!(Checkpoint::decode(&again).as_ref() == Ok(checkpoint));
    }
    Verdict::of(&result)
}

fn parts(mut data: &[u8]) -> Vec<Bytes> {
    let mut parts = Vec::new();
    while data.len() > PART && parts.len() < 8 {
        let len = u32::from_le_bytes([data[24], data[25], data[26], data[27]]) as usize;
        let (part, rest) = data.split_at((PART + len).min(data.len()));
        parts.push(Bytes::copy_from_slice(part));
        data = rest;
    }
    parts
}

pub fn checkpoint_seed(rng: &mut Rng) -> Vec<u8> {
    let replica = |rng: &mut Rng, id: u64| {
        let (decision_len, dissolved_len) = (rng.below(20_000) as u32, rng.below(3) as u32 * 3000);
        let index = Index(rng.below(1000));
        ReplicaRecord {
            replica: ReplicaId(id),
            index,
            term: Term(rng.below(9)),
            commit: Index(index.0 + rng.below(9)),
            decision_len,
            decision: (0..decision_pages(decision_len as usize)).map(|_| ptr(rng)).collect(),
            dissolved: (dissolved_len, (0..decision_pages(dissolved_len as usize)).map(|_| ptr(rng)).collect()),
            directory: (0..rng.below(20)).map(|_| rng.chance(3, 4).then(|| ptr(rng))).collect(),
        }
    };
    let replicas = (1..=rng.below(4)).map(|id| replica(rng, id * 3)).collect();
    let checkpoint = Checkpoint { geometry: GEOMETRY, sequence: rng.next_u64(), replicas };
    checkpoint.encode().concat()
}

/// Numbers the parts and corrects their lengths and checksums.
pub fn checkpoint_fix(data: &mut Vec<u8>) {
    let lens: Vec<usize> = parts(data).iter().map(Bytes::len).collect();
    let mut at = 0;
    for (n, len) in lens.iter().enumerate() {
        let part = &mut data[at..at + len];
        at += len;
        part[..8].copy_from_slice(b"BCKP\x02\0\0\0");
        part[16..20].copy_from_slice(&(n as u32).to_le_bytes());
        part[20..24].copy_from_slice(&(lens.len() as u32).to_le_bytes());
        part[24..28].copy_from_slice(&((len - PART) as u32).to_le_bytes());
        part[28..32].fill(0);
        let crc = crc32c(part);
        part[28..32].copy_from_slice(&crc.to_le_bytes());
    }
    data.truncate(at);
}
