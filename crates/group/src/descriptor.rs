//! Command bytes of a raft entry (its descriptor): a command in at most 1 KiB; the payload travels beside it.
//!
//! The leader encodes a command at propose, every replica decodes it at apply. Little-endian; byte 0 is the version,
//! byte 1 the kind, bytes 2–3 are flags that must be zero until a version gives them a meaning. No bytes at all is
//! raft's own empty entry.
//!
//! Invariant: decoding accepts exactly what encoding produces. An unknown version, kind or flag is
//! an error, because skipping an entry would make replicas differ.

mod attach;

use bytes::{BufMut, BytesMut};
use std::sync::Arc;
use types::control::Attach;
use types::cut::{Cut, CutEnd, CutItem, are_items};
use types::limits::{PART_MAX, is_sampled};
use types::map::{Member, MembersStep};
use types::units::SECTOR;
use types::{CutId, Epoch, GenerationId, OsdId, ReplicaId, SectorRange, SessionId, SnapshotId, VolumeChunk, VolumeId};

/// The only version so far.
pub const VERSION: u8 = 1;
const WRITE: u8 = 1;
const ZERO: u8 = 2;
const SKIP: u8 = 3;
const MEMBERS: u8 = 5;
const SNAP: u8 = 6;
const RELEASE: u8 = 7;
const REMOVE: u8 = 8;
const FILL: u8 = 9;
const DETACH: u8 = 10;
const WIPE: u8 = 11;
const HEAD_LEN: usize = 4;
const WRITE_LEN: usize = 56;
const SKIP_LEN: usize = 44;
const MEMBERS_LEN: usize = 40;
/// Without the items, which have [`ITEM_LEN`] each.
const SNAP_LEN: usize = 24;
const RELEASE_LEN: usize = 16;
const ITEM_LEN: usize = 16;
const REMOVE_LEN: usize = 20;
const FILL_LEN: usize = 32;
const DETACH_LEN: usize = 20;
const WIPE_LEN: usize = 28;
/// Place of the stamp in a write, and of its sequence number. Only attach records and orders of cuts are long
/// enough to have other bytes there.
const STAMP_AT: usize = 24;
const SEQ_AT: usize = STAMP_AT + 16;

const _: () = assert!(WRITE_LEN <= types::limits::DESCRIPTOR_MAX);
const _: () = assert!(SNAP_LEN + types::cut::CUT_ITEMS_MAX * ITEM_LEN <= types::limits::DESCRIPTOR_MAX);
const _: () = assert!(SKIP_LEN < SEQ_AT + 8 && FILL_LEN < SEQ_AT + 8 && SEQ_AT + 8 < WRITE_LEN);

/// Session of a write, and its number in it (R6, R7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub session: SessionId,
    pub epoch: Epoch,
    pub seq: u64,
    pub watermark: u64,
}

/// Meaning of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A new leader's first entry.
    Empty,
    Write {
        chunk: VolumeChunk,
        range: SectorRange,
        stamp: Stamp,
    },
    Zero {
        chunk: VolumeChunk,
        range: SectorRange,
        stamp: Stamp,
    },
    Skip {
        volume: VolumeId,
        stamp: Stamp,
    },
    /// Rare, and larger than all others.
    Attach(Box<Attach>),
    /// A step of a membership change; it has no effect unless the members are of this epoch.
    Members {
        expected: Epoch,
        step: MembersStep,
    },
    /// Begins a cut: each of its volumes gets a new head, or none does.
    Snap(Cut),
    /// Ends a cut.
    Release {
        cut: CutId,
        end: CutEnd,
        items: Arc<[CutItem]>,
    },
    /// Removes a snapshot.
    Remove {
        volume: VolumeId,
        snapshot: SnapshotId,
    },
    /// Copies what a head shows of older generations into it: a write of the bytes that are there. It has no effect unless the head is this one.
    Fill {
        chunk: VolumeChunk,
        head: GenerationId,
        range: SectorRange,
    },
    /// Ends the kinship of a head that shows nothing of older generations.
    Detach {
        volume: VolumeId,
        head: GenerationId,
    },
    /// Zeroes a place behind the end of a volume. It has no effect unless the length of the volume has this epoch: behind a later one the
    /// place may belong to the volume again.
    Wipe {
        chunk: VolumeChunk,
        range: SectorRange,
        len_epoch: u32,
    },
}

/// The bytes are no command of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    #[error("descriptor version {0} is not known, only {VERSION}")]
    Version(u8),
    #[error("descriptor kind {0} is not known")]
    Kind(u8),
    #[error("descriptor flags {0:#x} are not known")]
    Flags(u16),
    #[error("descriptor of kind {kind} has {len} bytes")]
    Length { kind: u8, len: usize },
    #[error("no membership step of kind {0} looks like this")]
    Step(u8),
    #[error("sectors {start}+{count} are no part of a chunk")]
    Range { start: u32, count: u32 },
    #[error("descriptor of kind {0} orders no cut")]
    Cut(u8),
}

/// Whether a range may be one part of a write: it lies inside one aligned 512 KiB.
pub fn is_part(range: SectorRange) -> bool {
    let part = (PART_MAX / SECTOR) as u32;
    range.count > 0 && range.start / part == (range.end() - 1) / part
}

impl Command {
    /// The volume and the stamp of a session's change.
    pub fn stamp(&self) -> Option<(VolumeId, &Stamp)> {
        match self {
            Command::Write { chunk, stamp, .. } | Command::Zero { chunk, stamp, .. } => Some((chunk.volume, stamp)),
            Command::Skip { volume, stamp } => Some((*volume, stamp)),
            _ => None,
        }
    }

    /// The place of the payload; `None`: the command has none.
    pub fn payload(&self) -> Option<(VolumeChunk, SectorRange)> {
        match self {
            Command::Write { chunk, range, .. } | Command::Fill { chunk, range, .. } => Some((*chunk, *range)),
            _ => None,
        }
    }

    /// The volume and the place of a change of its data.
    pub fn changes(&self) -> Option<(VolumeChunk, SectorRange)> {
        match self {
            Command::Write { chunk, range, .. }
            | Command::Zero { chunk, range, .. }
            | Command::Wipe { chunk, range, .. } => Some((*chunk, *range)),
            _ => None,
        }
    }

    /// Appends the encoded command to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Command::Empty => {}
            Command::Write { chunk, range, stamp } | Command::Zero { chunk, range, stamp } => {
                head(out, if matches!(self, Command::Write { .. }) { WRITE } else { ZERO });
                out.put_u64_le(chunk.volume.0);
                out.put_u32_le(chunk.index);
                out.put_u32_le(range.start);
                out.put_u32_le(range.count);
                put_stamp(out, stamp);
            }
            Command::Skip { volume, stamp } => {
                head(out, SKIP);
                out.put_u64_le(volume.0);
                put_stamp(out, stamp);
            }
            Command::Attach(attach) => attach::encode(attach, out),
            Command::Members { expected, step } => {
                head(out, MEMBERS);
                out.put_u64_le(expected.0);
                put_step(out, step);
            }
            Command::Snap(Cut { id, created_ms, items }) => {
                head(out, SNAP);
                out.put_u64_le(id.0);
                out.put_u64_le(*created_ms);
                put_items(out, items);
            }
            Command::Release { cut, end, items } => {
                head(out, RELEASE);
                out.put_u64_le(cut.0);
                put_items(out, items);
                // The last byte of the count's padding.
                let at = out.len() - items.len() * ITEM_LEN - 1;
                out[at] = *end as u8;
            }
            Command::Remove { volume, snapshot } => {
                head(out, REMOVE);
                [volume.0, snapshot.0].iter().for_each(|word| out.put_u64_le(*word));
            }
            Command::Fill { .. } | Command::Detach { .. } | Command::Wipe { .. } => self.encode_of_leader(out),
        }
    }

    /// Appends a command that a leader makes itself: of a flatten or a shrink.
    fn encode_of_leader(&self, out: &mut BytesMut) {
        match self {
            Command::Fill { chunk, head: generation, range } => {
                head(out, FILL);
                out.put_u64_le(chunk.volume.0);
                out.put_u32_le(chunk.index);
                out.put_u32_le(range.start);
                out.put_u32_le(range.count);
                out.put_u64_le(generation.0);
            }
            Command::Detach { volume, head: generation } => {
                head(out, DETACH);
                [volume.0, generation.0].iter().for_each(|word| out.put_u64_le(*word));
            }
            Command::Wipe { chunk, range, len_epoch } => {
                head(out, WIPE);
                out.put_u64_le(chunk.volume.0);
                [chunk.index, range.start, range.count, *len_epoch].iter().for_each(|word| out.put_u32_le(*word));
            }
            other => unreachable!("{other:?} is another command"),
        }
    }

    /// Decodes the bytes of one entry.
    ///
    /// # Errors
    /// For anything that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Result<Command, DescriptorError> {
        if bytes.is_empty() {
            return Ok(Command::Empty);
        }
        let length = |kind| DescriptorError::Length { kind, len: bytes.len() };
        if bytes[0] != VERSION {
            return Err(DescriptorError::Version(bytes[0]));
        }
        if bytes.len() < HEAD_LEN {
            return Err(length(0));
        }
        let kind = bytes[1];
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        if flags != 0 {
            return Err(DescriptorError::Flags(flags));
        }
        let items = |head: usize| head + bytes.len().saturating_sub(head) / ITEM_LEN * ITEM_LEN;
        let want = match kind {
            WRITE | ZERO => WRITE_LEN,
            SKIP => SKIP_LEN,
            attach::ONE | attach::SEVERAL => attach::len(bytes).ok_or_else(|| length(kind))?,
            MEMBERS => MEMBERS_LEN,
            SNAP => items(SNAP_LEN),
            RELEASE => items(RELEASE_LEN),
            REMOVE => REMOVE_LEN,
            FILL => FILL_LEN,
            DETACH => DETACH_LEN,
            WIPE => WIPE_LEN,
            _ => return Err(DescriptorError::Kind(kind)),
        };
        if bytes.len() != want {
            return Err(length(kind));
        }
        decode_body(kind, bytes)
    }
}

fn head(out: &mut BytesMut, kind: u8) {
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u16_le(0);
}

/// Whether these are the bytes of a membership step.
pub(crate) fn is_members(bytes: &[u8]) -> bool {
    bytes.get(1) == Some(&MEMBERS)
}

fn decode_body(kind: u8, bytes: &[u8]) -> Result<Command, DescriptorError> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let stamp = |at: usize| Stamp {
        session: SessionId(u64_at(at)),
        epoch: Epoch(u64_at(at + 8)),
        seq: u64_at(at + 16),
        watermark: u64_at(at + 24),
    };
    let volume = VolumeId(u64_at(HEAD_LEN));
    match kind {
        SKIP => Ok(Command::Skip { volume, stamp: stamp(12) }),
        attach::ONE | attach::SEVERAL => attach::decode(bytes).map(|attach| Command::Attach(Box::new(attach))),
        MEMBERS => {
            let (what, reserved) = (bytes[32], u32_at(33) & 0xff_ffff);
            let ids = (u64_at(12), u64_at(20), u32_at(28));
            let step = get_step(what, ids).filter(|_| reserved == 0 && u32_at(36) == 0);
            Ok(Command::Members { expected: Epoch(u64_at(4)), step: step.ok_or(DescriptorError::Step(what))? })
        }
        SNAP => {
            let items = get_items(&bytes[SNAP_LEN - 4..]).filter(|(_, end)| *end == 0);
            let (items, _) = items.ok_or(DescriptorError::Cut(SNAP))?;
            Ok(Command::Snap(Cut { id: CutId(u64_at(4)), created_ms: u64_at(12), items }))
        }
        RELEASE => {
            let (items, end) = get_items(&bytes[RELEASE_LEN - 4..]).ok_or(DescriptorError::Cut(RELEASE))?;
            let ends = [CutEnd::Release, CutEnd::TimedOut, CutEnd::Abort];
            let end = ends.into_iter().find(|known| *known as u8 == end).ok_or(DescriptorError::Cut(RELEASE))?;
            Ok(Command::Release { cut: CutId(u64_at(4)), end, items })
        }
        REMOVE => Ok(Command::Remove { volume, snapshot: SnapshotId(u64_at(12)) }),
        DETACH => Ok(Command::Detach { volume, head: GenerationId(u64_at(12)) }),
        _ => {
            let chunk = VolumeChunk { volume, index: u32_at(12) };
            let (start, count) = (u32_at(16), u32_at(20));
            let range = SectorRange::checked(start, count).filter(|r| kind == ZERO || kind == WIPE || is_part(*r));
            let range = range.ok_or(DescriptorError::Range { start, count })?;
            if kind == WIPE {
                return Ok(Command::Wipe { chunk, range, len_epoch: u32_at(24) });
            }
            if kind == FILL {
                return Ok(Command::Fill { chunk, head: GenerationId(u64_at(24)), range });
            }
            let stamp = stamp(STAMP_AT);
            Ok(if kind == WRITE {
                Command::Write { chunk, range, stamp }
            } else {
                Command::Zero { chunk, range, stamp }
            })
        }
    }
}

/// Writes a step: two replica ids, an OSD, the kind. Fields that a kind does not need are zero.
fn put_step(out: &mut BytesMut, step: &MembersStep) {
    let (kind, first, second, osd) = match *step {
        MembersStep::AddLearner(member) => (1, member.replica.0, 0, member.osd.0),
        MembersStep::Enter { add, remove } => (2, add.map_or(0, |id| id.0), remove.map_or(0, |id| id.0), 0),
        MembersStep::Leave => (3, 0, 0, 0),
        MembersStep::Abort => (4, 0, 0, 0),
        MembersStep::Done => (5, 0, 0, 0),
        MembersStep::Force { keep, floor, fence } => (6 + u8::from(fence), keep.replica.0, floor.0, keep.osd.0),
    };
    out.put_u64_le(first);
    out.put_u64_le(second);
    out.put_u32_le(osd);
    out.put_u8(kind);
    out.put_bytes(0, 7);
}

fn get_step(kind: u8, (first, second, osd): (u64, u64, u32)) -> Option<MembersStep> {
    let id = |id: u64| (id != 0).then_some(ReplicaId(id));
    match (kind, id(first), id(second), osd) {
        (1, Some(replica), None, osd) if osd != 0 => Some(MembersStep::AddLearner(Member { replica, osd: OsdId(osd) })),
        (2, add, remove, 0) if add.is_some() || remove.is_some() => Some(MembersStep::Enter { add, remove }),
        (3, None, None, 0) => Some(MembersStep::Leave),
        (4, None, None, 0) => Some(MembersStep::Abort),
        (5, None, None, 0) => Some(MembersStep::Done),
        (6 | 7, Some(replica), Some(floor), osd) if osd != 0 => {
            Some(MembersStep::Force { keep: Member { replica, osd: OsdId(osd) }, floor, fence: kind == 7 })
        }
        _ => None,
    }
}

/// Writes the items of a cut: their number, a zero, one byte for the caller, then each item.
fn put_items(out: &mut BytesMut, items: &[CutItem]) {
    out.put_u16_le(items.len() as u16);
    out.put_u16_le(0);
    for item in items {
        out.put_u64_le(item.volume.0);
        out.put_u64_le(item.to.0);
    }
}

fn get_items(bytes: &[u8]) -> Option<(Arc<[CutItem]>, u8)> {
    let (head, rest) = bytes.split_at_checked(4)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let item = |b: &[u8]| CutItem { volume: VolumeId(word(&b[..8])), to: GenerationId(word(&b[8..])) };
    let items: Vec<CutItem> = rest.chunks_exact(ITEM_LEN).map(item).collect();
    let says = usize::from(u16::from_le_bytes([head[0], head[1]]));
    (says == items.len() && head[2] == 0 && are_items(&items)).then(|| (items.into(), head[3]))
}

fn put_stamp(out: &mut BytesMut, stamp: &Stamp) {
    out.put_u64_le(stamp.session.0);
    out.put_u64_le(stamp.epoch.0);
    out.put_u64_le(stamp.seq);
    out.put_u64_le(stamp.watermark);
}

/// Returns volume and stamp of a sampled write or zeroing. Every other entry costs a test of its length and of its
/// number.
pub fn sampled(descriptor: &[u8]) -> Option<(VolumeId, Stamp)> {
    let seq = descriptor.get(SEQ_AT..SEQ_AT + 8)?;
    if !is_sampled(u64::from_le_bytes(seq.try_into().expect("eight bytes"))) {
        return None;
    }
    match Command::decode(descriptor) {
        Ok(Command::Write { chunk, stamp, .. } | Command::Zero { chunk, stamp, .. }) => Some((chunk.volume, stamp)),
        _ => None,
    }
}

/// Returns the payload bytes of an entry with this descriptor; zero when it cannot be decoded.
pub fn payload_len(descriptor: &[u8]) -> u64 {
    Command::decode(descriptor)
        .ok()
        .and_then(|command| command.payload())
        .map_or(0, |(_, range)| range.len_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::control::Base;
    use types::writers::{Writer, Writers};

    fn samples() -> Vec<(Command, &'static str)> {
        let stamp = Stamp { session: SessionId(5), epoch: Epoch(6), seq: 7, watermark: 3 };
        let chunk = VolumeChunk { volume: VolumeId(0x0102), index: 9 };
        let s = SectorRange::new(1023, 1);
        let members = |step| Command::Members { expected: Epoch(9), step };
        vec![
            (Command::Empty, ""),
            (
                Command::Write { chunk, range: s, stamp },
                "01010000020100000000000009000000ff03000001000000\
                 0500000000000000060000000000000007000000000000000300000000000000",
            ),
            (
                Command::Zero { chunk, range: s, stamp },
                "01020000020100000000000009000000ff03000001000000\
                 0500000000000000060000000000000007000000000000000300000000000000",
            ),
            (
                Command::Skip { volume: VolumeId(0x0102), stamp },
                "010300000201000000000000\
                 0500000000000000060000000000000007000000000000000300000000000000",
            ),
            (
                Command::Attach(Box::new(Attach {
                    order: 1,
                    volume: VolumeId(2),
                    writers: Writers::one(SessionId(3), Epoch(4)),
                    epoch: Epoch(4),
                    chunk_count: 5,
                    len_epoch: 0,
                    head: GenerationId(6),
                    base: None,
                })),
                "010400000100000000000000020000000000000003000000000000000400000000000000050000000600000000000000",
            ),
            (
                members(MembersStep::AddLearner(Member { replica: ReplicaId(0x21), osd: OsdId(4) })),
                "01050000090000000000000021000000000000000000000000000000040000000100000000000000",
            ),
            (
                members(MembersStep::Enter { add: Some(ReplicaId(0x21)), remove: Some(ReplicaId(0x22)) }),
                "01050000090000000000000021000000000000002200000000000000000000000200000000000000",
            ),
            (
                members(MembersStep::Leave),
                "01050000090000000000000000000000000000000000000000000000000000000300000000000000",
            ),
            (
                members(MembersStep::Abort),
                "01050000090000000000000000000000000000000000000000000000000000000400000000000000",
            ),
            (
                members(MembersStep::Done),
                "01050000090000000000000000000000000000000000000000000000000000000500000000000000",
            ),
        ]
        .into_iter()
        .chain(orders_of_snapshots())
        .collect()
    }

    fn orders_of_snapshots() -> Vec<(Command, &'static str)> {
        vec![
            (
                Command::Attach(Box::new(Attach {
                    order: 1,
                    volume: VolumeId(2),
                    writers: Writers::one(SessionId(3), Epoch(4)),
                    epoch: Epoch(4),
                    chunk_count: 5,
                    len_epoch: 0,
                    head: GenerationId(6),
                    base: Some(Base { volume: VolumeId(7), snapshot: SnapshotId(8), to: GenerationId(6) }),
                })),
                "010400000100000000000000020000000000000003000000000000000400000000000000050000000600000000000000\
                 070000000000000008000000000000000600000000000000",
            ),
            (
                Command::Snap(Cut { id: CutId(0x31), created_ms: 0x1234, items: items() }),
                "01060000310000000000000034120000000000000200000002000000000000003100000000000000\
                 03000000000000003200000000000000",
            ),
            (
                Command::Release { cut: CutId(0x31), end: CutEnd::Release, items: items() },
                "0107000031000000000000000200000002000000000000003100000000000000\
                 03000000000000003200000000000000",
            ),
            (
                Command::Release { cut: CutId(0x31), end: CutEnd::Abort, items: items() },
                "0107000031000000000000000200000202000000000000003100000000000000\
                 03000000000000003200000000000000",
            ),
            (
                Command::Remove { volume: VolumeId(2), snapshot: SnapshotId(0x31) },
                "0108000002000000000000003100000000000000",
            ),
            (
                Command::Fill {
                    chunk: VolumeChunk { volume: VolumeId(2), index: 9 },
                    head: GenerationId(0x31),
                    range: SectorRange::new(8, 16),
                },
                "0109000002000000000000000900000008000000100000003100000000000000",
            ),
            (
                Command::Detach { volume: VolumeId(2), head: GenerationId(0x31) },
                "010a000002000000000000003100000000000000",
            ),
        ]
        .into_iter()
        .chain(orders_of_shrinks())
        .chain(records_of_several_writers())
        .collect()
    }

    fn records_of_several_writers() -> Vec<(Command, &'static str)> {
        let older = Writers::one(SessionId(3), Epoch(4));
        let both = older.with(Writer { epoch: Epoch(9), session: SessionId(8) }).expect("it is newer");
        let attach = Attach {
            order: 1,
            volume: VolumeId(2),
            writers: both,
            epoch: Epoch(9),
            chunk_count: 5,
            len_epoch: 0,
            head: GenerationId(6),
            base: None,
        };
        let base = Some(Base { volume: VolumeId(7), snapshot: SnapshotId(8), to: GenerationId(6) });
        vec![
            (
                Command::Attach(Box::new(attach)),
                "010c0000010000000000000002000000000000000900000000000000050000000000000006000000000000000000\
                 02000400000000000000030000000000000009000000000000000800000000000000",
            ),
            (
                Command::Attach(Box::new(Attach { writers: older, base, len_epoch: 7, ..attach })),
                "010c0000010000000000000002000000000000000900000000000000050000000700000006000000000000000100\
                 010007000000000000000800000000000000060000000000000004000000000000000300000000000000",
            ),
        ]
    }

    fn orders_of_shrinks() -> Vec<(Command, &'static str)> {
        let shorter = Attach {
            order: 1,
            volume: VolumeId(2),
            writers: Writers::one(SessionId(3), Epoch(4)),
            epoch: Epoch(4),
            chunk_count: 5,
            len_epoch: 9,
            head: GenerationId(6),
            base: None,
        };
        let base = Some(Base { volume: VolumeId(7), snapshot: SnapshotId(8), to: GenerationId(6) });
        vec![
            (
                Command::Attach(Box::new(shorter)),
                "010400000100000000000000020000000000000003000000000000000400000000000000050000000600000000000000\
                 09000000",
            ),
            (
                Command::Attach(Box::new(Attach { base, ..shorter })),
                "010400000100000000000000020000000000000003000000000000000400000000000000050000000600000000000000\
                 07000000000000000800000000000000060000000000000009000000",
            ),
            (
                Command::Wipe {
                    chunk: VolumeChunk { volume: VolumeId(2), index: 9 },
                    range: SectorRange::new(1000, 32768 - 1000),
                    len_epoch: 3,
                },
                "010b0000020000000000000009000000e8030000187c000003000000",
            ),
        ]
    }

    #[test]
    fn attach_record_without_the_epoch_of_its_length_has_one_encoding() {
        let mut out = BytesMut::new();
        orders_of_shrinks()[0].0.encode(&mut out);
        let len = out.len();
        out[len - 4..].fill(0);
        assert_eq!(Command::decode(&out), Err(DescriptorError::Length { kind: attach::ONE, len }));
        assert!(Command::decode(&out[..len - 4]).is_ok());
    }

    fn items() -> Arc<[CutItem]> {
        [(2, 0x31), (3, 0x32)].map(|(volume, to)| CutItem { volume: VolumeId(volume), to: GenerationId(to) }).into()
    }

    #[test]
    fn order_of_a_cut_names_each_volume_once_and_a_known_end() {
        let encoded = |command: Command| {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            out.to_vec()
        };
        let snap = encoded(Command::Snap(Cut { id: CutId(9), created_ms: 1, items: items() }));
        let release = encoded(Command::Release { cut: CutId(9), end: CutEnd::TimedOut, items: items() });
        let changed = |bytes: &[u8], at: usize, to: u8| {
            let mut bytes = bytes.to_vec();
            bytes[at] = to;
            Command::decode(&bytes)
        };
        for (at, to) in [(20, 1), (20, 3), (22, 1), (23, 1), (24, 3), (24, 4), (32, 0)] {
            assert_eq!(changed(&snap, at, to), Err(DescriptorError::Cut(SNAP)), "byte {at}");
        }
        assert_eq!(changed(&release, 15, 3), Err(DescriptorError::Cut(RELEASE)));
        assert_eq!(Command::decode(&snap[..24]), Err(DescriptorError::Cut(SNAP)), "no volume");
        for len in 1..snap.len() {
            assert!(Command::decode(&snap[..len]).is_err(), "cut at {len}");
        }
        let many = |n: u64| (1..=n).map(|n| CutItem { volume: VolumeId(n), to: GenerationId(n + 100) }).collect();
        let of = |items: Arc<[CutItem]>| encoded(Command::Snap(Cut { id: CutId(9), created_ms: 1, items }));
        assert!(Command::decode(&of(many(40))).is_ok());
        assert!(Command::decode(&of(many(41))).is_err());
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_version_1_never_change() {
        for (command, golden) in samples() {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            assert_eq!(hex(&out), golden, "{command:?}");
            assert_eq!(Command::decode(&out), Ok(command));
        }
    }

    #[test]
    fn bytes_that_encoding_does_not_produce_are_refused() {
        let mut out = BytesMut::new();
        samples()[1].0.encode(&mut out);
        let change = |at: usize, to: u8| {
            let mut bytes = out.to_vec();
            bytes[at] = to;
            Command::decode(&bytes)
        };
        assert_eq!(change(0, 2), Err(DescriptorError::Version(2)));
        assert_eq!(change(1, 99), Err(DescriptorError::Kind(99)));
        assert_eq!(change(2, 1), Err(DescriptorError::Flags(1)));
        assert_eq!(change(1, SKIP), Err(DescriptorError::Length { kind: SKIP, len: WRITE_LEN }));
        assert_eq!(change(20, 0), Err(DescriptorError::Range { start: 1023, count: 0 }));
        assert_eq!(change(20, 2), Err(DescriptorError::Range { start: 1023, count: 2 }), "it crosses a part border");
        for len in 1..out.len() {
            assert!(Command::decode(&out[..len]).is_err(), "cut at {len}");
        }
        for (command, _) in samples().into_iter().filter(|(command, _)| matches!(command, Command::Members { .. })) {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            for at in 32..40 {
                let mut bytes = out.to_vec();
                bytes[at] ^= 0x40;
                assert!(matches!(Command::decode(&bytes), Err(DescriptorError::Step(_))), "{command:?}, byte {at}");
            }
        }
        let mut longer = out.to_vec();
        longer.push(0);
        assert!(Command::decode(&longer).is_err());
    }

    #[test]
    fn a_sampled_entry_is_a_write_or_zeroing_with_a_sampled_number() {
        let encoded = |command: &Command| {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            out
        };
        for (mut command, _) in samples() {
            assert_eq!(sampled(&encoded(&command)), None, "{command:?}");
            if let Command::Write { stamp, .. } | Command::Zero { stamp, .. } | Command::Skip { stamp, .. } =
                &mut command
            {
                stamp.seq = types::limits::SAMPLE_EVERY;
            }
            let want = match command {
                Command::Write { chunk, stamp, .. } | Command::Zero { chunk, stamp, .. } => Some((chunk.volume, stamp)),
                _ => None,
            };
            assert_eq!(sampled(&encoded(&command)), want, "{command:?}");
        }
    }

    #[test]
    fn only_writes_and_copies_have_payload() {
        for (command, _) in samples() {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            let want = match command {
                Command::Write { .. } => 512,
                Command::Fill { .. } => 8192,
                _ => 0,
            };
            assert_eq!(payload_len(&out), want, "{command:?}");
        }
        assert_eq!(payload_len(b"garbage"), 0);
    }
}
