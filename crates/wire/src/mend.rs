//! Encoding and decoding of block repair messages (R15), which share one record.
//!
//! `encode` and `decode` call this module with one message each.
//!
//! Invariant: as in `decode`, a message has one spelling, and no memory is allocated beyond the bytes that are there.

use crate::decode::{Input, pg_id, zero};
use crate::encode::{Out, count, pg_record, put_payload};
use crate::frame::WireError;
use crate::message::{MendBody, MendMsg};
use crate::record::{MendRecord, kind, mend_body as b};
use types::{BLOCK, CHUNK, ChunkKey, Index, IoBuf, ReplicaId, VolumeId};
use zerocopy::byteorder::little_endian::{U32, U64};

const BLOCKS_PER_CHUNK: u64 = CHUNK / BLOCK;

pub(crate) fn put(out: &mut Out<'_>, len: usize, msg: &MendMsg, bufs: &mut Vec<IoBuf>) {
    assert!(u64::from(msg.block) < BLOCKS_PER_CHUNK, "block {} of a chunk", msg.block);
    let mut record = MendRecord {
        pg: pg_record(msg.pg),
        from: U64::new(msg.from.0),
        to: U64::new(msg.to.0),
        id: U64::new(msg.id),
        volume: U64::new(msg.chunk.volume.0),
        chunk: U32::new(msg.chunk.index),
        block: U32::new(msg.block.into()),
        ..MendRecord::default()
    };
    match &msg.body {
        MendBody::Ask => record.body = b::ASK,
        MendBody::Block { low, high, crc, payload } => {
            assert!(payload.is_empty() || payload.len() as u64 == BLOCK, "a block of {} B", payload.len());
            assert!(low <= high, "a block as of {low} to {high}");
            record.body = b::BLOCK;
            (record.low, record.high) = (U64::new(low.0), U64::new(high.0));
            record.crc = U32::new(*crc);
            record.payload_len = count(payload.len());
            put_payload(payload, bufs);
        }
        MendBody::NotNow => record.body = b::NOT_NOW,
        MendBody::Damaged => record.body = b::DAMAGED,
        MendBody::NoPart => record.body = b::NO_PART,
    }
    out.header(kind::MEND, len);
    out.record(&record);
}

pub(crate) fn read(input: &mut Input<'_>) -> Result<MendMsg, WireError> {
    let r: MendRecord = input.take("mend")?;
    zero("mend", r.reserved == [0; 7])?;
    let (block, len) = (r.block.get(), r.payload_len.get() as usize);
    if u64::from(block) >= BLOCKS_PER_CHUNK {
        return Err(WireError::Limit { what: "a block", value: block.into(), max: BLOCKS_PER_CHUNK - 1 });
    }
    let (low, high) = (r.low.get(), r.high.get());
    zero("mend", r.body == b::BLOCK || (low, high, r.crc.get(), len) == (0, 0, 0, 0))?;
    let body = match r.body {
        b::ASK => MendBody::Ask,
        b::BLOCK => {
            if len != 0 && len as u64 != BLOCK {
                return Err(WireError::Limit { what: "a block's length", value: len as u64, max: BLOCK });
            }
            if low > high {
                return Err(WireError::Limit { what: "the lowest index of a block", value: low, max: high });
            }
            let (low, high, payload) = (Index(low), Index(high), input.payload(len)?);
            MendBody::Block { low, high, crc: r.crc.get(), payload }
        }
        b::NOT_NOW => MendBody::NotNow,
        b::DAMAGED => MendBody::Damaged,
        b::NO_PART => MendBody::NoPart,
        other => return Err(WireError::Value { what: "a repair's body", value: other.into() }),
    };
    let (from, to) = (ReplicaId(r.from.get()), ReplicaId(r.to.get()));
    let chunk = ChunkKey { volume: VolumeId(r.volume.get()), index: r.chunk.get() };
    let (pg, id) = (pg_id(r.pg), r.id.get());
    Ok(MendMsg { pg, from, to, id, chunk, block: block as u16, body })
}
