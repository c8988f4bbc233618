//! Encoding and decoding of log repair messages (R11), which share one record.
//!
//! `encode` and `decode` call this module with one message each.
//!
//! Invariant: as in `decode`, a message has one spelling, and no memory is allocated beyond the bytes that are there.

use crate::decode::{Input, fragments_of, limited, pg_id, zero};
use crate::encode::{Out, count, pg_record, put_payload};
use crate::frame::WireError;
use crate::message::{Lack, RepairBody, RepairMsg};
use crate::record::{RepairRecord, kind, repair_body};
use types::limits::PART_MAX;
use types::{Index, IoBuf, ReplicaId, Term};
use zerocopy::byteorder::little_endian::{U32, U64};

/// Returns the bytes of the message after its record header.
pub(crate) fn head_len(body: &RepairBody) -> usize {
    size_of::<RepairRecord>()
        + match body {
            RepairBody::Payload { crcs, .. } => crcs.len() * size_of::<u32>(),
            _ => 0,
        }
}

pub(crate) fn put(out: &mut Out<'_>, len: usize, msg: &RepairMsg, bufs: &mut Vec<IoBuf>) {
    let mut record = RepairRecord {
        pg: pg_record(msg.pg),
        from: U64::new(msg.from.0),
        to: U64::new(msg.to.0),
        ..RepairRecord::default()
    };
    let (RepairBody::Fetch { index, term }
    | RepairBody::Payload { index, term, .. }
    | RepairBody::Lack { index, term, .. }) = &msg.body;
    (record.index, record.term) = (U64::new(index.0), U64::new(term.0));
    let mut tail: &[u32] = &[];
    match &msg.body {
        RepairBody::Fetch { .. } => record.body = repair_body::FETCH,
        RepairBody::Payload { start, crcs, payload, .. } => {
            let fits = !payload.is_empty() && fragments_of(*start, payload.len()) == Some(crcs.len());
            assert!(fits, "{} B and {} checksums from sector {start}", payload.len(), crcs.len());
            record.body = repair_body::PAYLOAD;
            record.start = U32::new(*start);
            record.payload_len = count(payload.len());
            put_payload(payload, bufs);
            tail = crcs;
        }
        RepairBody::Lack { why, .. } => {
            record.body = repair_body::LACK;
            record.why = *why as u8;
        }
    }
    out.header(kind::REPAIR, len);
    out.record(&record);
    out.crcs(tail);
}

pub(crate) fn read(input: &mut Input<'_>) -> Result<RepairMsg, WireError> {
    let r: RepairRecord = input.take("repair")?;
    zero("repair", r.reserved == [0; 6])?;
    let (index, term) = (Index(r.index.get()), Term(r.term.get()));
    let (start, len) = (r.start.get(), r.payload_len.get() as usize);
    use repair_body as b;
    zero("repair", r.body == b::LACK || r.why == 0)?;
    zero("repair", r.body == b::PAYLOAD || (start, len) == (0, 0))?;
    let body = match r.body {
        b::FETCH => RepairBody::Fetch { index, term },
        b::PAYLOAD => {
            limited("a payload", len, PART_MAX as usize)?;
            let bad = WireError::Range { start, count: (len / types::SECTOR as usize) as u32 };
            let fragments = fragments_of(start, len).filter(|n| *n > 0).ok_or(bad)?;
            let crcs = input.crcs(fragments)?;
            RepairBody::Payload { index, term, start, crcs, payload: input.payload(len)? }
        }
        b::LACK => {
            let unknown = WireError::Value { what: "a lack", value: r.why.into() };
            RepairBody::Lack { index, term, why: Lack::from_u8(r.why).ok_or(unknown)? }
        }
        other => return Err(WireError::Value { what: "a repair's body", value: other.into() }),
    };
    let (from, to) = (ReplicaId(r.from.get()), ReplicaId(r.to.get()));
    Ok(RepairMsg { pg: pg_id(r.pg), from, to, body })
}
