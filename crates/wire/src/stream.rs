//! Encoding and decoding of stream messages (R12), which share one record.
//!
//! `encode` and `decode` call this module with one message each.
//!
//! Invariant: as in `decode`, a message has one spelling, and no memory is allocated beyond the bytes that are there.

use crate::decode::{Input, limited, pg_id, zero};
use crate::encode::{Out, count, pg_record, put_payload};
use crate::frame::WireError;
use crate::message::{DIGEST_LEN, STREAM_PIECE_MAX, StreamAbort, StreamBody, StreamMsg};
use crate::record::{StreamRecord, kind, stream_body};
use types::limits::{FRAGMENTS_MAX, PART_MAX};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, GenerationId, Index, IoBuf, ReplicaId, SectorRange, Term};
use zerocopy::byteorder::little_endian::{U32, U64};

const CRC: usize = size_of::<u32>();

/// Returns the bytes of the message after its record header.
pub(crate) fn head_len(body: &StreamBody) -> usize {
    size_of::<StreamRecord>()
        + match body {
            StreamBody::Blocks { crcs, .. } => crcs.len() * CRC,
            StreamBody::Decision { bytes, .. } => bytes.len(),
            StreamBody::Digests { digests, .. } => digests.len(),
            _ => 0,
        }
}

pub(crate) fn put(out: &mut Out<'_>, len: usize, msg: &StreamMsg, bufs: &mut Vec<IoBuf>) {
    let mut record = StreamRecord {
        pg: pg_record(msg.pg),
        from: U64::new(msg.from.0),
        to: U64::new(msg.to.0),
        stream: U64::new(msg.stream),
        ..StreamRecord::default()
    };
    let place = |record: &mut StreamRecord, index: Index, term: Term| {
        (record.volume, record.term) = (U64::new(index.0), U64::new(term.0));
    };
    match &msg.body {
        StreamBody::Open { needed } => {
            record.body = stream_body::OPEN;
            record.flag = u8::from(*needed);
        }
        StreamBody::Accept { term, commit, end, compare, fills_from } => {
            record.count = count(end.0.checked_sub(commit.0).expect("a log ends behind its commit index") as usize);
            record.seq = U64::new(fills_from.0);
            record.body = stream_body::ACCEPT;
            record.flag = u8::from(*compare);
            place(&mut record, *commit, *term);
        }
        StreamBody::Digests { seq, chunk, start, digests } => put_digests(&mut record, (*seq, *chunk, *start), digests),
        StreamBody::Wants { seq, blocks } => {
            record.body = stream_body::WANTS;
            record.seq = U64::new(*seq);
            place(&mut record, Index(*blocks as u64), Term((*blocks >> 64) as u64));
        }
        StreamBody::Done { term, commit } | StreamBody::Filling { term, commit } => {
            let is_done = matches!(msg.body, StreamBody::Done { .. });
            record.body = if is_done { stream_body::DONE } else { stream_body::FILLING };
            place(&mut record, *commit, *term);
        }
        StreamBody::Blocks { seq, chunk, range, crcs, payload } => {
            put_blocks(&mut record, (*seq, *chunk, *range), crcs.len(), payload);
            put_payload(payload, bufs);
        }
        StreamBody::Decision { seq, bytes } => {
            assert!(bytes.len() <= STREAM_PIECE_MAX, "a piece of {} B", bytes.len());
            record.body = stream_body::DECISION;
            record.seq = U64::new(*seq);
            record.count = count(bytes.len());
        }
        StreamBody::End { seq, index, term } | StreamBody::Fill { seq, index, term } => {
            let is_end = matches!(msg.body, StreamBody::End { .. });
            record.body = if is_end { stream_body::END } else { stream_body::FILL };
            record.seq = U64::new(*seq);
            place(&mut record, *index, *term);
        }
        StreamBody::Ack { seq } => {
            record.body = stream_body::ACK;
            record.seq = U64::new(*seq);
        }
        StreamBody::Abort(reason) => {
            record.body = stream_body::ABORT;
            record.reason = *reason as u8;
        }
    }
    out.header(kind::STREAM, len);
    out.record(&record);
    match &msg.body {
        StreamBody::Blocks { crcs, .. } => out.crcs(crcs),
        StreamBody::Decision { bytes, .. } => out.put(bytes),
        StreamBody::Digests { digests, .. } => out.put(digests),
        _ => {}
    }
}

fn put_digests(record: &mut StreamRecord, (seq, chunk, start): (u64, ChunkKey, u32), digests: &[u8]) {
    let blocks = digests.len() / DIGEST_LEN;
    assert!(blocks * DIGEST_LEN == digests.len() && blocks <= FRAGMENTS_MAX, "digests of {blocks} blocks");
    record.body = stream_body::DIGESTS;
    record.seq = U64::new(seq);
    record.volume = U64::new(chunk.generation.0);
    record.chunk = U32::new(chunk.index);
    record.start = U32::new(start);
    record.count = count(blocks);
}

fn put_blocks(
    record: &mut StreamRecord,
    (seq, chunk, range): (u64, ChunkKey, SectorRange),
    crcs: usize,
    payload: &IoBuf,
) {
    let fits = payload.is_empty() && crcs == 0 || payload.len() == range.len_bytes() && crcs == range.fragment_count();
    assert!(fits && crcs <= FRAGMENTS_MAX, "{} B and {crcs} checksums of {range}", payload.len());
    record.body = stream_body::BLOCKS;
    record.seq = U64::new(seq);
    record.volume = U64::new(chunk.generation.0);
    record.chunk = U32::new(chunk.index);
    record.start = U32::new(range.start);
    record.count = U32::new(range.count);
    record.payload_len = count(payload.len());
}

pub(crate) fn read(input: &mut Input<'_>) -> Result<StreamMsg, WireError> {
    let r: StreamRecord = input.take("stream")?;
    zero("stream", r.reserved == [0; 5])?;
    let (seq, volume, term) = (r.seq.get(), r.volume.get(), Term(r.term.get()));
    let (start, count) = (r.start.get(), r.count.get());
    use stream_body as b;
    let has_seq =
        matches!(r.body, b::ACCEPT | b::BLOCKS | b::DECISION | b::END | b::FILL | b::ACK | b::DIGESTS | b::WANTS);
    let has_index = matches!(r.body, b::ACCEPT | b::END | b::FILL | b::DONE | b::FILLING | b::WANTS);
    zero("stream", r.body == b::ABORT || r.reason == 0)?;
    zero("stream", r.flag <= u8::from(matches!(r.body, b::OPEN | b::ACCEPT)))?;
    zero("stream", has_seq || seq == 0)?;
    zero("stream", has_index || term.0 == 0)?;
    let has_volume = has_index || matches!(r.body, b::BLOCKS | b::DIGESTS);
    zero("stream", has_volume || volume == 0)?;
    zero("stream", matches!(r.body, b::ACCEPT | b::BLOCKS | b::DECISION | b::DIGESTS) || count == 0)?;
    zero("stream", matches!(r.body, b::BLOCKS | b::DIGESTS) || (r.chunk.get(), start) == (0, 0))?;
    zero("stream", r.body == b::BLOCKS || r.payload_len.get() == 0)?;
    let index = Index(volume);
    let body = match r.body {
        b::OPEN => StreamBody::Open { needed: r.flag == 1 },
        b::ACCEPT => {
            let end = Index(volume.checked_add(u64::from(count)).ok_or(WireError::Range { start, count })?);
            StreamBody::Accept { term, commit: index, end, compare: r.flag == 1, fills_from: Index(seq) }
        }
        b::DIGESTS => {
            let bad = WireError::Range { start, count };
            let sectors = count.checked_mul(SECTORS_PER_BLOCK).ok_or(bad)?;
            let range = SectorRange::checked(start, sectors).ok_or(bad)?;
            if !start.is_multiple_of(SECTORS_PER_BLOCK) || range.fragment_count() > FRAGMENTS_MAX {
                return Err(bad);
            }
            let chunk = ChunkKey { generation: GenerationId(volume), index: r.chunk.get() };
            StreamBody::Digests { seq, chunk, start, digests: input.kept("stream", count as usize * DIGEST_LEN)? }
        }
        b::WANTS => StreamBody::Wants { seq, blocks: u128::from(volume) | u128::from(term.0) << 64 },
        b::DONE => StreamBody::Done { term, commit: index },
        b::FILLING => StreamBody::Filling { term, commit: index },
        b::FILL => StreamBody::Fill { seq, index, term },
        b::BLOCKS => {
            let bad = WireError::Range { start, count };
            let range = SectorRange::checked(start, count).ok_or(bad)?;
            let chunk = ChunkKey { generation: GenerationId(volume), index: r.chunk.get() };
            let len = r.payload_len.get() as usize;
            let fragments = if len == 0 { 0 } else { range.fragment_count() };
            if len != 0 && (len != range.len_bytes() || len as u64 > PART_MAX || fragments > FRAGMENTS_MAX) {
                return Err(bad);
            }
            let crcs = input.crcs(fragments)?;
            StreamBody::Blocks { seq, chunk, range, crcs, payload: input.payload(len)? }
        }
        b::DECISION => {
            let len = limited("a piece of decision state", count as usize, STREAM_PIECE_MAX)?;
            StreamBody::Decision { seq, bytes: input.kept("stream", len)? }
        }
        b::END => StreamBody::End { seq, index, term },
        b::ACK => StreamBody::Ack { seq },
        b::ABORT => {
            let unknown = WireError::Value { what: "a stream's end", value: r.reason.into() };
            StreamBody::Abort(StreamAbort::from_u8(r.reason).ok_or(unknown)?)
        }
        other => return Err(WireError::Value { what: "a stream's body", value: other.into() }),
    };
    let (from, to) = (ReplicaId(r.from.get()), ReplicaId(r.to.get()));
    Ok(StreamMsg { pg: pg_id(r.pg), from, to, stream: r.stream.get(), body })
}
