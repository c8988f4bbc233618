//! Command bytes of a raft entry (its descriptor): a command in at most 1 KiB; the payload travels beside it.
//!
//! The leader encodes a command at propose, every replica decodes it at apply. Little-endian; byte 0 is the version,
//! byte 1 the kind, bytes 2–3 are flags that must be zero until a version gives them a meaning. No bytes at all is
//! raft's own empty entry.
//!
//! Invariant: decoding accepts exactly what encoding produces. An unknown version, kind or flag is
//! an error, because skipping an entry would make replicas differ.

use bytes::{BufMut, BytesMut};
use types::control::Attach;
use types::limits::{PART_MAX, is_sampled};
use types::map::{Member, MembersStep};
use types::units::SECTOR;
use types::{Epoch, OsdId, ReplicaId, SectorRange, SessionId, VolumeChunk, VolumeId};

/// The only version so far.
pub const VERSION: u8 = 1;
const WRITE: u8 = 1;
const ZERO: u8 = 2;
const SKIP: u8 = 3;
const ATTACH: u8 = 4;
const MEMBERS: u8 = 5;
const HEAD_LEN: usize = 4;
const WRITE_LEN: usize = 56;
const SKIP_LEN: usize = 44;
const ATTACH_LEN: usize = 40;
const MEMBERS_LEN: usize = 40;
/// Place of the stamp in a write, and of the sequence number, which only writes and zeroes are long enough to have
/// there.
const STAMP_AT: usize = 24;
const SEQ_AT: usize = STAMP_AT + 16;

const _: () = assert!(WRITE_LEN <= types::limits::DESCRIPTOR_MAX);
const _: () = assert!(SKIP_LEN < SEQ_AT + 8 && ATTACH_LEN < SEQ_AT + 8 && SEQ_AT + 8 < WRITE_LEN);

/// Session of a write, and its number in it (R6, R7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub session: SessionId,
    pub epoch: Epoch,
    pub seq: u64,
    pub watermark: u64,
}

/// Meaning of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Attach(Attach),
    /// A step of a membership change; it has no effect unless the members are of this epoch.
    Members {
        expected: Epoch,
        step: MembersStep,
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
}

/// Whether a range may be one part of a write: it lies inside one aligned 512 KiB.
pub fn is_part(range: SectorRange) -> bool {
    let part = (PART_MAX / SECTOR) as u32;
    range.count > 0 && range.start / part == (range.end() - 1) / part
}

impl Command {
    /// Appends the encoded command to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let head = |out: &mut BytesMut, kind| {
            out.put_u8(VERSION);
            out.put_u8(kind);
            out.put_u16_le(0);
        };
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
            Command::Attach(attach) => {
                head(out, ATTACH);
                out.put_u64_le(attach.order);
                out.put_u64_le(attach.volume.0);
                out.put_u64_le(attach.session.0);
                out.put_u64_le(attach.epoch.0);
                out.put_u32_le(attach.chunk_count);
            }
            Command::Members { expected, step } => {
                head(out, MEMBERS);
                out.put_u64_le(expected.0);
                put_step(out, step);
            }
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
        let want = match kind {
            WRITE | ZERO => WRITE_LEN,
            SKIP => SKIP_LEN,
            ATTACH => ATTACH_LEN,
            MEMBERS => MEMBERS_LEN,
            _ => return Err(DescriptorError::Kind(kind)),
        };
        if bytes.len() != want {
            return Err(length(kind));
        }
        decode_body(kind, bytes)
    }
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
        ATTACH => Ok(Command::Attach(Attach {
            order: u64_at(4),
            volume: VolumeId(u64_at(12)),
            session: SessionId(u64_at(20)),
            epoch: Epoch(u64_at(28)),
            chunk_count: u32_at(36),
        })),
        MEMBERS => {
            let (what, reserved) = (bytes[32], u32_at(33) & 0xff_ffff);
            let ids = (u64_at(12), u64_at(20), u32_at(28));
            let step = get_step(what, ids).filter(|_| reserved == 0 && u32_at(36) == 0);
            Ok(Command::Members { expected: Epoch(u64_at(4)), step: step.ok_or(DescriptorError::Step(what))? })
        }
        _ => {
            let chunk = VolumeChunk { volume, index: u32_at(12) };
            let (start, count) = (u32_at(16), u32_at(20));
            let range = SectorRange::checked(start, count).filter(|r| kind == ZERO || is_part(*r));
            let range = range.ok_or(DescriptorError::Range { start, count })?;
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
    match Command::decode(descriptor) {
        Ok(Command::Write { range, .. }) => range.len_bytes() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                Command::Attach(Attach {
                    order: 1,
                    volume: VolumeId(2),
                    session: SessionId(3),
                    epoch: Epoch(4),
                    chunk_count: 5,
                }),
                "01040000010000000000000002000000000000000300000000000000040000000000000005000000",
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
        assert_eq!(change(1, 9), Err(DescriptorError::Kind(9)));
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
    fn only_a_write_has_payload() {
        for (command, _) in samples() {
            let mut out = BytesMut::new();
            command.encode(&mut out);
            let want = if matches!(command, Command::Write { .. }) { 512 } else { 0 };
            assert_eq!(payload_len(&out), want, "{command:?}");
        }
        assert_eq!(payload_len(b"garbage"), 0);
    }
}
