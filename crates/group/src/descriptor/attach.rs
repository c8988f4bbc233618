//! Descriptors of attach records (R6): one of a volume with at most one writer, and one of several (ADR 0039).
//!
//! Invariant: one record has one encoding. The longer form is taken only where the shorter one does not do.

use super::{DescriptorError, head};
use bytes::{BufMut, BytesMut};
use types::control::{Attach, Base};
use types::writers::{WRITERS_MAX, Writer, Writers};
use types::{Epoch, GenerationId, SessionId, SnapshotId, VolumeId};

/// Kind of a record that names at most one writer, with the epoch of the record.
pub const ONE: u8 = 4;
/// Kind of any other.
pub const SEVERAL: u8 = 12;
const ONE_LEN: usize = 48;
/// More bytes of the attach record of a volume that was shortened.
const LEN_EPOCH_LEN: usize = 4;
/// Without a base and the writers.
const SEVERAL_LEN: usize = 48;
const BASE_LEN: usize = 24;
const WRITER_LEN: usize = 16;

/// Appends the descriptor of a record.
pub fn encode(attach: &Attach, out: &mut BytesMut) {
    match attach.only_session() {
        Some(session) => encode_one(attach, session, out),
        None => encode_several(attach, out),
    }
}

fn encode_one(attach: &Attach, session: SessionId, out: &mut BytesMut) {
    head(out, ONE);
    [attach.order, attach.volume.0, session.0, attach.epoch.0].iter().for_each(|word| out.put_u64_le(*word));
    out.put_u32_le(attach.chunk_count);
    out.put_u64_le(attach.head.0);
    put_base(out, attach.base);
    if attach.len_epoch != 0 {
        out.put_u32_le(attach.len_epoch);
    }
}

fn encode_several(attach: &Attach, out: &mut BytesMut) {
    head(out, SEVERAL);
    [attach.order, attach.volume.0, attach.epoch.0].iter().for_each(|word| out.put_u64_le(*word));
    out.put_u32_le(attach.chunk_count);
    out.put_u32_le(attach.len_epoch);
    out.put_u64_le(attach.head.0);
    out.put_u16_le(u16::from(attach.base.is_some()));
    out.put_u16_le(attach.writers.len() as u16);
    put_base(out, attach.base);
    for writer in attach.writers.as_slice() {
        out.put_u64_le(writer.epoch.0);
        out.put_u64_le(writer.session.0);
    }
}

/// Returns the length that these bytes must have; `None`: they say none. A record of one writer may have a base and the epoch of its length.
pub fn len(bytes: &[u8]) -> Option<usize> {
    if bytes[1] == ONE {
        let lens = [0, LEN_EPOCH_LEN, BASE_LEN, BASE_LEN + LEN_EPOCH_LEN].map(|more| ONE_LEN + more);
        return lens.into_iter().find(|known| *known == bytes.len());
    }
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let (bases, writers) = (u16_at(SEVERAL_LEN - 4)?, u16_at(SEVERAL_LEN - 2)?);
    (bases <= 1 && writers <= WRITERS_MAX).then(|| SEVERAL_LEN + bases * BASE_LEN + writers * WRITER_LEN)
}

/// Decodes a record whose length is right.
///
/// # Errors
/// For anything that [`encode`] does not produce.
pub fn decode(bytes: &[u8]) -> Result<Attach, DescriptorError> {
    let attach = if bytes[1] == ONE { decode_one(bytes) } else { decode_several(bytes) };
    attach.ok_or(DescriptorError::Length { kind: bytes[1], len: bytes.len() })
}

fn decode_one(bytes: &[u8]) -> Option<Attach> {
    let (u32_at, u64_at) = (|at| u32_at(bytes, at), |at| u64_at(bytes, at));
    let has_epoch = bytes.len() % 8 == LEN_EPOCH_LEN;
    let len_epoch = if has_epoch { u32_at(bytes.len() - LEN_EPOCH_LEN) } else { 0 };
    let epoch = Epoch(u64_at(28));
    let attach = Attach {
        order: u64_at(4),
        volume: VolumeId(u64_at(12)),
        writers: Writers::one(SessionId(u64_at(20)), epoch),
        epoch,
        chunk_count: u32_at(36),
        len_epoch,
        head: GenerationId(u64_at(40)),
        base: (bytes.len() >= ONE_LEN + BASE_LEN).then(|| base_at(bytes, ONE_LEN)),
    };
    (has_epoch == (len_epoch != 0)).then_some(attach)
}

fn decode_several(bytes: &[u8]) -> Option<Attach> {
    let (u32_at, u64_at) = (|at| u32_at(bytes, at), |at| u64_at(bytes, at));
    let base = (bytes[SEVERAL_LEN - 4] == 1).then(|| base_at(bytes, SEVERAL_LEN));
    let epoch = Epoch(u64_at(20));
    let from = SEVERAL_LEN + base.map_or(0, |_| BASE_LEN);
    let writer = |at| Writer { epoch: Epoch(u64_at(at)), session: SessionId(u64_at(at + 8)) };
    let writers = Writers::of((from..bytes.len()).step_by(WRITER_LEN).map(writer), epoch)?;
    let attach = Attach {
        order: u64_at(4),
        volume: VolumeId(u64_at(12)),
        writers,
        epoch,
        chunk_count: u32_at(28),
        len_epoch: u32_at(32),
        head: GenerationId(u64_at(36)),
        base,
    };
    attach.only_session().is_none().then_some(attach)
}

fn put_base(out: &mut BytesMut, base: Option<Base>) {
    if let Some(Base { volume, snapshot, to }) = base {
        [volume.0, snapshot.0, to.0].iter().for_each(|word| out.put_u64_le(*word));
    }
}

fn base_at(bytes: &[u8], at: usize) -> Base {
    let u64_at = |at| u64_at(bytes, at);
    Base { volume: VolumeId(u64_at(at)), snapshot: SnapshotId(u64_at(at + 8)), to: GenerationId(u64_at(at + 16)) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
