//! Encoding and decoding of block repair messages (R15), which share one record.
//!
//! `encode` and `decode` call this module with one message each.
//!
//! Invariant: as in `decode`, a message has one spelling, and no memory is allocated beyond the bytes that are there.

use crate::decode::{Input, pg_id, zero};
use crate::encode::{Out, count, pg_record, put_payload};
use crate::frame::WireError;
use crate::message::{MEND_BLOCKS_MAX, MendBody, MendMsg};
use crate::record::{MendRecord, kind, mend_body as b};
use types::{BLOCK, CHUNK, ChunkKey, GenerationId, Index, IoBuf, ReplicaId};
use zerocopy::byteorder::little_endian::{U32, U64};

const BLOCKS_PER_CHUNK: u32 = (CHUNK / BLOCK) as u32;

/// Returns the bytes of the message after its record header.
pub(crate) fn head_len(body: &MendBody) -> usize {
    size_of::<MendRecord>()
        + match body {
            MendBody::Blocks { crcs, .. } => crcs.len() * size_of::<u32>(),
            _ => 0,
        }
}

/// Whether a message may name so many blocks from this one on.
fn is_run(block: u32, count: u32) -> bool {
    (1..=MEND_BLOCKS_MAX.into()).contains(&count) && block.checked_add(count).is_some_and(|end| end <= BLOCKS_PER_CHUNK)
}

pub(crate) fn put(out: &mut Out<'_>, len: usize, msg: &MendMsg, bufs: &mut Vec<IoBuf>) {
    assert!(is_run(msg.block.into(), msg.count.into()), "{} blocks from block {} on", msg.count, msg.block);
    let mut record = MendRecord {
        pg: pg_record(msg.pg),
        from: U64::new(msg.from.0),
        to: U64::new(msg.to.0),
        id: U64::new(msg.id),
        volume: U64::new(msg.chunk.generation.0),
        chunk: U32::new(msg.chunk.index),
        block: U32::new(msg.block.into()),
        count: U32::new(msg.count.into()),
        ..MendRecord::default()
    };
    let mut tail: &[u32] = &[];
    match &msg.body {
        MendBody::Ask { hash, older } => {
            let fits = older.is_empty() || (older.len(), msg.count) == (BLOCK as usize, 1);
            assert!(fits, "{} B of an older copy of {} blocks", older.len(), msg.count);
            (record.body, record.hash, record.payload_len) = (b::ASK, U32::new(*hash), self::count(older.len()));
            put_payload(older, bufs);
        }
        MendBody::Blocks { low, high, crcs, payload } => {
            let blocks = if payload.is_empty() { 0 } else { usize::from(msg.count) };
            let fits = crcs.len() == blocks && payload.len() == blocks * BLOCK as usize;
            assert!(fits, "{} B and {} checksums of {} blocks", payload.len(), crcs.len(), msg.count);
            assert!(low <= high, "blocks as of {low} to {high}");
            record.body = b::BLOCKS;
            (record.low, record.high) = (U64::new(low.0), U64::new(high.0));
            record.payload_len = count(payload.len());
            put_payload(payload, bufs);
            tail = crcs;
        }
        MendBody::NotNow => record.body = b::NOT_NOW,
        MendBody::Damaged => record.body = b::DAMAGED,
        MendBody::NoPart => record.body = b::NO_PART,
    }
    out.header(kind::MEND, len);
    out.record(&record);
    out.crcs(tail);
}

pub(crate) fn read(input: &mut Input<'_>) -> Result<MendMsg, WireError> {
    let r: MendRecord = input.take("mend")?;
    zero("mend", r.reserved == [0; 3] && (r.body == b::ASK || r.hash.get() == 0))?;
    let (block, count, len) = (r.block.get(), r.count.get(), r.payload_len.get() as usize);
    if !is_run(block, count) {
        return Err(WireError::Run { block, count });
    }
    let (low, high) = (r.low.get(), r.high.get());
    zero("mend", r.body == b::BLOCKS || (low, high) == (0, 0))?;
    zero("mend", matches!(r.body, b::BLOCKS | b::ASK) || len == 0)?;
    let body = match r.body {
        b::ASK if len == 0 || (len, count) == (BLOCK as usize, 1) => {
            MendBody::Ask { hash: r.hash.get(), older: input.payload(len)? }
        }
        b::ASK => return Err(WireError::Crcs { crcs: count as usize, payload_len: len }),
        b::BLOCKS => {
            let crcs = if len == 0 { 0 } else { count as usize };
            if len != crcs * BLOCK as usize {
                return Err(WireError::Crcs { crcs, payload_len: len });
            }
            if low > high {
                return Err(WireError::Limit { what: "the lowest index of a block", value: low, max: high });
            }
            let crcs = input.crcs(crcs)?;
            MendBody::Blocks { low: Index(low), high: Index(high), crcs, payload: input.payload(len)? }
        }
        b::NOT_NOW => MendBody::NotNow,
        b::DAMAGED => MendBody::Damaged,
        b::NO_PART => MendBody::NoPart,
        other => return Err(WireError::Value { what: "a repair's body", value: other.into() }),
    };
    let (from, to) = (ReplicaId(r.from.get()), ReplicaId(r.to.get()));
    let chunk = ChunkKey { generation: GenerationId(r.volume.get()), index: r.chunk.get() };
    let (pg, id) = (pg_id(r.pg), r.id.get());
    Ok(MendMsg { pg, from, to, id, chunk, block: block as u16, count: count as u16, body })
}
