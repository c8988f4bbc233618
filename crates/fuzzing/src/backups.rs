//! Bytes that backups read back from a directory, a bucket, a file or a pipe: streams, pieces, indexes, records.
//!
//! Properties: a decoded value, encoded and decoded again, is the same value. What is unpacked takes no more memory than the longest
//! sound one.

use crate::source::Source;
use crate::{Verdict, meter};
use backup::{
    Base, Decoder, Encoder, Error, Frame, Head, Index, ObjectId, Place, Record, StreamPlace, Subject, decode_index,
    decode_piece, encode_index, encode_piece,
};
use std::collections::BTreeMap;
use types::Compression;
use types::rng::Rng;
use types::units::BLOCK;

/// Prefix of a stream: magic, version, length of the head.
const PREFIX: usize = 16;
/// Header of a frame.
const HEADER: usize = 24;
const HASH: usize = 32;
/// Longest head and longest body of a frame: a reader takes that much before it knows that the stream is shorter.
const STREAM_MEMORY: u64 = 4 << 20;
const FRAME_MEMORY: u64 = 4 << 20;
const PIECE_MEMORY: u64 = 8 << 20;
/// An index of small pieces has a run for each block.
const INDEX_MEMORY: u64 = 96 << 20;

/// Reads a stream to its end.
pub fn stream(data: &[u8]) -> Verdict {
    let decoded = meter::bounded(data.len(), 64, STREAM_MEMORY, || all(data));
    let Ok((head, frames)) = &decoded else { return Verdict::Refused };
    let place = StreamPlace::last(data, head).expect("bytes in memory").expect("it has this head");
    assert_eq!(place.done_bytes(), frames.last().map_or(0, |frame| frame.offset + frame.len));
    let mut encoder = Encoder::begin(Vec::new(), head).expect("memory");
    for frame in frames {
        encoder.frame(frame).expect("memory");
        // Compressed bytes may be no such bytes, although their hash is right.
        let bytes = meter::bounded(frame.data_len() as usize, 2, FRAME_MEMORY, || frame.clone().into_bytes());
        assert!(bytes.is_err() || bytes.is_ok_and(|bytes| bytes.is_none_or(|b| b.len() as u64 == frame.len)));
    }
    let (totals, _, bytes) = encoder.end().expect("memory");
    assert_eq!(totals.frames, frames.len() as u64);
    let again = all(&bytes).expect("it was just encoded");
    assert_eq!((&again.0, &again.1), (head, frames));
    Verdict::of(&decoded)
}

fn all(data: &[u8]) -> Result<(Head, Vec<Frame>), Error> {
    let mut decoder = Decoder::begin(data)?;
    let mut frames = Vec::new();
    while let Ok(frame) = decoder.read_frame()? {
        frames.push(frame);
    }
    Ok((decoder.head().clone(), frames))
}

fn subject(rng: &mut Rng) -> Subject {
    Subject {
        cluster: "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a".to_owned(),
        pool: "main".to_owned(),
        volume: "vm1".to_owned(),
        volume_id: rng.below(9),
        snapshot: "monday".to_owned(),
        snapshot_id: rng.below(99),
        created_ms: 1_700_000_000_000,
        len_bytes: 64 * BLOCK + 512 * rng.below(8),
        stripe: None,
        description: String::new(),
        labels: BTreeMap::from([("tier".to_owned(), "front".to_owned())]),
        limits: None,
        when_full: types::WhenFull::Client,
    }
}

pub fn stream_seed(rng: &mut Rng) -> Vec<u8> {
    let subject = subject(rng);
    let base = Base { snapshot: "sunday".to_owned(), snapshot_id: 3, created_ms: 9, len_bytes: 64 * BLOCK };
    let has_base = rng.chance(1, 2);
    let head = Head::new(subject, Compression::Zstd, has_base.then_some(base));
    let mut encoder = Encoder::begin(Vec::new(), &head).expect("memory");
    let mut at = 0;
    for _ in 0..rng.below(6) {
        at += rng.below(4);
        let bytes = vec![rng.below(255) as u8; (rng.between(1, 3) * BLOCK) as usize];
        let frame = match has_base && rng.chance(1, 3) {
            true => Frame::of_zeros(at * BLOCK, bytes.len() as u64),
            false => Frame::of_data(at * BLOCK, &bytes, Compression::Zstd),
        };
        encoder.frame(&frame).expect("memory");
        at += bytes.len() as u64 / BLOCK;
    }
    encoder.end().expect("memory").2
}

/// Puts the hashes of a stream right; a last frame that is cut gets the rest.
pub fn stream_fix(data: &mut [u8]) {
    let length = |data: &[u8], at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    if data.len() < PREFIX + HASH {
        return;
    }
    data[..8].copy_from_slice(b"BSLTSTR1");
    data[8..12].copy_from_slice(&1u32.to_le_bytes());
    let (mut chain, mut at) = (Vec::new(), 0);
    while at + HEADER + HASH <= data.len() {
        let (fixed, field) = if at == 0 { (PREFIX, 12) } else { (HEADER, at + 4) };
        let room = data.len() - at - fixed - HASH;
        let len = (length(data, field) as usize).min(room);
        data[field..field + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let end = at + fixed + len;
        chain = blake3::hash(&[&chain[..], &data[at..end]].concat()).as_bytes().to_vec();
        data[end..end + HASH].copy_from_slice(&chain);
        at = end + HASH;
    }
}

/// Decodes an object of a repository: the first byte says of which kind.
pub fn object(data: &[u8]) -> Verdict {
    let Some((kind, bytes)) = data.split_first() else { return Verdict::Refused };
    let id = ObjectId::of(bytes);
    match kind % 3 {
        0 => {
            let blocks = meter::bounded(bytes.len(), 4, PIECE_MEMORY, || decode_piece(id, bytes));
            if let Ok(blocks) = &blocks {
                let again = encode_piece(blocks, Compression::None, 1);
                assert!(decode_piece(ObjectId::of(&again), &again).expect("it was just encoded") == *blocks);
            }
            Verdict::of(&blocks)
        }
        1 => {
            let index = meter::bounded(bytes.len(), 64, INDEX_MEMORY, || decode_index(id, bytes));
            if let Ok(index) = &index {
                let again = encode_index(index, 1).expect("there is memory");
                assert_eq!(&decode_index(ObjectId::of(&again), &again).expect("it was just encoded"), index);
            }
            Verdict::of(&index)
        }
        _ => {
            let record = meter::bounded(bytes.len(), 256, 64 << 10, || Record::decode("r", bytes));
            if let Ok(record) = &record {
                assert_eq!(&Record::decode("r", &record.encode()).expect("it was just encoded"), record);
            }
            Verdict::of(&record)
        }
    }
}

pub fn object_seed(rng: &mut Rng) -> Vec<u8> {
    let kind = rng.below(3) as u8;
    let bytes = match kind {
        0 => {
            let blocks = vec![rng.below(255) as u8; (rng.between(1, 4) * BLOCK) as usize];
            let packing = if rng.chance(1, 4) { Compression::None } else { Compression::Zstd };
            encode_piece(&blocks, packing, rng.next_u64())
        }
        1 => {
            let mut index = Index::default();
            for _ in 0..rng.below(20) {
                let (count, piece) = (rng.between(1, 9) as u32, ObjectId([rng.below(4) as u8; 32]));
                index.insert(rng.below(200_000) as u32, Place { count, piece, at: rng.below(1000) as u32 });
            }
            encode_index(&index, rng.next_u64()).expect("there is memory")
        }
        _ => {
            let mut record = Record::begin(subject(rng), None, ("a".to_owned(), 5));
            record.segments = (0..rng.below(4)).map(|n| rng.chance(1, 2).then_some(ObjectId([n as u8; 32]))).collect();
            record.encode()
        }
    };
    [&[kind], &bytes[..]].concat()
}

/// Puts the hash of a record right. The names of other objects follow from their bytes.
pub fn object_fix(data: &mut Vec<u8>) {
    let is_record = Source::new(data).byte() % 3 == 2;
    let Some(end) = data.iter().position(|byte| *byte == b'\n').filter(|_| is_record) else { return };
    let body = data.split_off(end + 1);
    *data = [&data[..1], format!("blake3 {}\n", ObjectId::of(&body)).as_bytes(), &body].concat();
}
