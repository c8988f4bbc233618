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
        lineage: U64::new(msg.lineage),
        id: U64::new(msg.id),
        volume: U64::new(msg.chunk.volume.0),
        chunk: U32::new(msg.chunk.index),
        block: U32::new(msg.block.into()),
        ..MendRecord::default()
    };
    match &msg.body {
        MendBody::Ask { applied, crc } => {
            record.body = b::ASK;
            record.applied = U64::new(applied.0);
            record.has_crc = u8::from(crc.is_some());
            record.crc = U32::new(crc.unwrap_or_default());
        }
        MendBody::Block { crc, payload } => {
            assert!(payload.is_empty() || payload.len() as u64 == BLOCK, "a block of {} B", payload.len());
            record.body = b::BLOCK;
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
    zero("mend", r.reserved == [0; 6])?;
    let (block, len) = (r.block.get(), r.payload_len.get() as usize);
    if u64::from(block) >= BLOCKS_PER_CHUNK {
        return Err(WireError::Limit { what: "a block", value: block.into(), max: BLOCKS_PER_CHUNK - 1 });
    }
    zero("mend", r.body == b::ASK || (r.applied.get(), r.has_crc) == (0, 0))?;
    zero("mend", r.body == b::BLOCK || len == 0)?;
    zero("mend", r.body == b::BLOCK || r.has_crc == 1 || r.crc.get() == 0)?;
    let body = match (r.body, r.has_crc) {
        (b::ASK, has_crc @ 0..=1) => {
            MendBody::Ask { applied: Index(r.applied.get()), crc: (has_crc == 1).then_some(r.crc.get()) }
        }
        (b::ASK, other) => return Err(WireError::Value { what: "a known checksum", value: other.into() }),
        (b::BLOCK, _) => {
            if len != 0 && len as u64 != BLOCK {
                return Err(WireError::Limit { what: "a block's length", value: len as u64, max: BLOCK });
            }
            MendBody::Block { crc: r.crc.get(), payload: input.payload(len)? }
        }
        (b::NOT_NOW, _) => MendBody::NotNow,
        (b::DAMAGED, _) => MendBody::Damaged,
        (b::NO_PART, _) => MendBody::NoPart,
        (other, _) => return Err(WireError::Value { what: "a repair's body", value: other.into() }),
    };
    let (from, to) = (ReplicaId(r.from.get()), ReplicaId(r.to.get()));
    let chunk = ChunkKey { volume: VolumeId(r.volume.get()), index: r.chunk.get() };
    let (pg, lineage, id) = (pg_id(r.pg), r.lineage.get(), r.id.get());
    Ok(MendMsg { pg, from, to, lineage, id, chunk, block: block as u16, body })
}
