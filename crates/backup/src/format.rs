//! Objects of a repository: pieces with blocks of volumes, and indexes that name them.
//!
//! Input: bytes that may come from a damaged or a foreign bucket. Output: checked values.
//!
//! Invariants:
//! - The name of an object is the BLAKE3 hash of its bytes, so a changed byte is found before anything is decoded.
//! - An attempt at a backup has a salt in all its objects. So it never names an older object that a sweep is about to delete.
//! - Whatever the bytes are, decoding takes a bounded amount of memory.

use crate::error::Error;
use crate::index::{Index, Place};
use serde::{Deserialize, Serialize};
use std::fmt;
use types::Compression;
use types::units::{BLOCK, SEGMENT};

/// Most blocks (4 KiB) of a piece: 4 MiB.
pub const PIECE_BLOCKS_MAX: u32 = 1024;
/// Blocks of a segment (1 GiB), the range of one index.
pub const SEGMENT_BLOCKS: u32 = (SEGMENT / BLOCK) as u32;

const PIECE_MAGIC: [u8; 8] = *b"BSLTPCE1";
const INDEX_MAGIC: [u8; 8] = *b"BSLTIDX1";
const HEADER: usize = 24;
const HASH: usize = 32;
const RUN: usize = 16;
/// Longest body of an index: each block in a run and a piece of its own.
const INDEX_BODY_MAX: usize = SEGMENT_BLOCKS as usize * (HASH + RUN);

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// Name of an object: the hash of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ObjectId(pub [u8; HASH]);

impl ObjectId {
    /// Returns the name of an object with these bytes.
    pub fn of(bytes: &[u8]) -> ObjectId {
        ObjectId(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for ObjectId {
    type Error = String;

    fn try_from(text: String) -> Result<ObjectId, String> {
        let bad = || format!("{text:?} is no name of an object");
        let mut id = [0; HASH];
        if text.len() != 2 * HASH || !text.is_ascii() {
            return Err(bad());
        }
        for (n, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).map_err(|_| bad())?;
        }
        Ok(ObjectId(id))
    }
}

fn damaged(id: ObjectId, reason: impl fmt::Display) -> Error {
    Error::Damaged { object: id.to_string(), reason: reason.to_string() }
}

/// Encodes a piece: whole blocks.
///
/// # Panics
/// When `blocks` is empty, no multiple of 4 KiB, or longer than 4 MiB.
pub fn encode_piece(blocks: &[u8], compression: Compression, salt: u64) -> Vec<u8> {
    let count = blocks.len() / BLOCK as usize;
    assert!(
        blocks.len().is_multiple_of(BLOCK as usize) && (1..=PIECE_BLOCKS_MAX as usize).contains(&count),
        "{count} blocks"
    );
    let packed = (compression == Compression::Zstd).then(|| zstd::bulk::compress(blocks, 3).ok()).flatten();
    let (codec, body) = match &packed {
        Some(packed) if packed.len() < blocks.len() => (ZSTD, &packed[..]),
        _ => (PLAIN, blocks),
    };
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend_from_slice(&PIECE_MAGIC);
    out.extend_from_slice(&(count as u32).to_le_bytes());
    out.extend_from_slice(&[codec, 0, 0, 0]);
    out.extend_from_slice(&salt.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Checks the name of an object.
///
/// # Errors
/// `Damaged`: the bytes are others.
pub fn check(id: ObjectId, bytes: &[u8]) -> Result<(), Error> {
    let is_same = ObjectId::of(bytes) == id;
    is_same.then_some(()).ok_or_else(|| damaged(id, "its bytes do not have the checksum that its name is"))
}

/// Returns the blocks of a piece.
///
/// # Errors
/// `Damaged`: the bytes are others than those that were written, or no piece.
pub fn decode_piece(id: ObjectId, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    check(id, bytes)?;
    let header = bytes.get(..HEADER).filter(|header| header[..8] == PIECE_MAGIC && header[13..16] == [0; 3]);
    let header = header.ok_or_else(|| damaged(id, "it is no piece"))?;
    let count = number(header, 8);
    if !(1..=PIECE_BLOCKS_MAX).contains(&count) {
        return Err(damaged(id, format!("{count} blocks in a piece")));
    }
    let len = count as usize * BLOCK as usize;
    let blocks = match header[12] {
        PLAIN => bytes[HEADER..].to_vec(),
        ZSTD => zstd::bulk::decompress(&bytes[HEADER..], len).map_err(|error| damaged(id, error))?,
        other => return Err(damaged(id, format!("compression {other} is not known"))),
    };
    if blocks.len() == len {
        Ok(blocks)
    } else {
        Err(damaged(id, format!("{} bytes for {count} blocks", blocks.len())))
    }
}

/// Encodes the index of a segment.
///
/// # Errors
/// `Compress`: there is no memory for it.
pub fn encode_index(index: &Index, salt: u64) -> Result<Vec<u8>, Error> {
    let pieces = index.pieces();
    let mut body = Vec::with_capacity(pieces.len() * HASH + index.len() * RUN);
    pieces.iter().for_each(|id| body.extend_from_slice(&id.0));
    for (start, place) in index.iter() {
        let piece = pieces.partition_point(|id| *id < place.piece) as u32;
        for number in [start, place.count, piece, place.at] {
            body.extend_from_slice(&number.to_le_bytes());
        }
    }
    let packed = zstd::bulk::compress(&body, 3).map_err(Error::Compress)?;
    let mut out = Vec::with_capacity(HEADER + packed.len());
    out.extend_from_slice(&INDEX_MAGIC);
    out.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
    out.extend_from_slice(&(index.len() as u32).to_le_bytes());
    out.extend_from_slice(&salt.to_le_bytes());
    out.extend_from_slice(&packed);
    Ok(out)
}

/// Returns the index of a segment.
///
/// # Errors
/// `Damaged`: the bytes are others than those that were written, or no index.
pub fn decode_index(id: ObjectId, bytes: &[u8]) -> Result<Index, Error> {
    check(id, bytes)?;
    let header = bytes.get(..HEADER).filter(|header| header[..8] == INDEX_MAGIC);
    let header = header.ok_or_else(|| damaged(id, "it is no index"))?;
    let (piece_count, run_count) = (number(header, 8) as usize, number(header, 12) as usize);
    if piece_count > run_count || run_count > SEGMENT_BLOCKS as usize {
        return Err(damaged(id, format!("{piece_count} pieces and {run_count} runs in an index")));
    }
    let len = piece_count * HASH + run_count * RUN;
    assert!(len <= INDEX_BODY_MAX, "the counts bound it");
    let body = zstd::bulk::decompress(&bytes[HEADER..], len).map_err(|error| damaged(id, error))?;
    if body.len() != len {
        return Err(damaged(id, format!("{} bytes in an index of {len}", body.len())));
    }
    let (hashes, runs) = body.split_at(piece_count * HASH);
    let hash = |n: usize| hashes.get(n * HASH..(n + 1) * HASH)?.try_into().ok().map(ObjectId);
    let mut index = Index::default();
    let mut end = 0;
    for run in runs.chunks_exact(RUN) {
        let (start, count, piece, at) = (number(run, 0), number(run, 4), number(run, 8), number(run, 12));
        let fits = |start: u32, max: u32| start.checked_add(count).is_some_and(|end| end <= max);
        let place = hash(piece as usize).map(|piece| Place { count, piece, at });
        match place.filter(|_| count > 0 && start >= end && fits(start, SEGMENT_BLOCKS) && fits(at, PIECE_BLOCKS_MAX)) {
            Some(place) => index.insert(start, place),
            None => return Err(damaged(id, format!("a run of {count} blocks at {start}"))),
        }
        end = start + count;
    }
    Ok(index)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: usize, seed: u8) -> Vec<u8> {
        (0..count * BLOCK as usize).map(|n| seed.wrapping_add((n / 512) as u8)).collect()
    }

    #[test]
    fn pieces_come_back_and_each_changed_byte_is_found() {
        for compression in [Compression::None, Compression::Zstd] {
            for count in [1, 3, 1024] {
                let blocks = blocks(count, 7);
                let bytes = encode_piece(&blocks, compression, 9);
                let id = ObjectId::of(&bytes);
                assert!(decode_piece(id, &bytes).expect("it is whole") == blocks);
                for at in [0, 9, 12, bytes.len() / 2, bytes.len() - 1] {
                    let mut bad = bytes.clone();
                    bad[at] ^= 1;
                    assert!(matches!(decode_piece(id, &bad), Err(Error::Damaged { .. })), "byte {at}");
                    // Bytes that have the right name and are no piece: they take no memory.
                    let _ = decode_piece(ObjectId::of(&bad), &bad);
                }
                assert!(decode_piece(id, &bytes[..bytes.len() - 1]).is_err());
            }
        }
        let random: Vec<u8> = (0..BLOCK as usize).map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[0]).collect();
        assert_eq!(
            encode_piece(&random, Compression::Zstd, 9).len(),
            HEADER + BLOCK as usize,
            "it does not get smaller"
        );
    }

    #[test]
    fn indexes_come_back_and_wrong_ones_are_refused() {
        let piece = |n: u8| ObjectId([n; HASH]);
        let mut index = Index::default();
        for (start, count, n, at) in [(0, 5, 9, 0), (5, 1, 2, 1023), (100, 1024, 9, 0), (SEGMENT_BLOCKS - 1, 1, 4, 7)] {
            index.insert(start, Place { count, piece: piece(n), at });
        }
        let bytes = encode_index(&index, 9).expect("there is memory");
        assert_eq!(decode_index(ObjectId::of(&bytes), &bytes).expect("it is whole"), index);
        let empty = encode_index(&Index::default(), 9).expect("there is memory");
        assert_eq!(decode_index(ObjectId::of(&empty), &empty).expect("it is whole"), Index::default());
        // With a name that fits, the runs decide.
        let forged = |runs: &[[u32; 4]]| {
            let body: Vec<u8> =
                [1; HASH].into_iter().chain(runs.iter().flatten().flat_map(|n| n.to_le_bytes())).collect();
            let mut out = [&INDEX_MAGIC[..], &1u32.to_le_bytes(), &(runs.len() as u32).to_le_bytes(), &[0; 8]].concat();
            out.extend(zstd::bulk::compress(&body, 1).expect("memory"));
            decode_index(ObjectId::of(&out), &out)
        };
        assert!(forged(&[[0, 2, 0, 0], [2, 1, 0, 5]]).is_ok());
        let last = SEGMENT_BLOCKS - 1;
        for bad in [[1, 1, 0, 0], [2, 0, 0, 0], [2, 1, 1, 0], [2, 1, 0, 1024], [last, 2, 0, 0], [2, u32::MAX, 0, 0]] {
            assert!(forged(&[[0, 2, 0, 0], bad]).is_err(), "{bad:?}");
        }
    }
}
