//! Tests of the decision state: write permission, duplicates, and the contents of a checkpoint.

use super::*;
use types::{ChunkKey, SectorRange, VolumeChunk};

fn attach(order: u64, session: u64, epoch: u64, chunk_count: u32) -> Command {
    let (session, epoch) = (SessionId(session), Epoch(epoch));
    Command::Attach(Attach { order, volume: VolumeId(1), session, epoch, chunk_count })
}

fn write(session: u64, epoch: u64, seq: u64, chunk: u32) -> Command {
    Command::Write {
        chunk: VolumeChunk { volume: VolumeId(1), index: chunk },
        range: SectorRange::new(0, 8),
        stamp: Stamp { session: SessionId(session), epoch: Epoch(epoch), seq, watermark: 0 },
    }
}

fn landed(chunk: u32) -> Outcome {
    let chunk = ChunkKey { generation: GenerationId(1), index: chunk };
    Outcome::Done(Effect::Write { chunk, range: SectorRange::new(0, 8) })
}

const DROPPED: Outcome = Outcome::Done(Effect::None);

fn members() -> Vec<Member> {
    (1..=3).map(|n| Member { replica: ReplicaId(10 + u64::from(n)), osd: OsdId(n) }).collect()
}

#[test]
fn only_the_attached_session_writes_and_each_number_once() {
    let mut d = Decision::fresh(Epoch(1), &members());
    let refused = Outcome::Refused;
    let cut = |from_chunk| Outcome::Done(Effect::Unmap { generation: GenerationId(1), from_chunk });
    for (command, want) in [
        (write(7, 1, 0, 0), refused(Errno::Gone)),
        (attach(5, 7, 1, 4), DROPPED),
        (write(7, 1, 0, 0), landed(0)),
        (write(7, 1, 0, 0), DROPPED),
        (write(7, 1, 1, 4), refused(Errno::Invalid)),
        (write(7, 1, 1, 3), landed(3)),
        (write(7, 2, 2, 0), refused(Errno::Fenced)),
        (write(8, 1, 2, 0), refused(Errno::Fenced)),
        (write(7, 1, 300, 0), refused(Errno::Invalid)),
        (attach(5, 8, 2, 4), Outcome::StaleOrder { last: 5 }),
        (attach(4, 8, 2, 4), Outcome::StaleOrder { last: 5 }),
        // The same session again keeps its window, also when the volume grows.
        (attach(6, 7, 1, 8), DROPPED),
        (write(7, 1, 0, 0), DROPPED),
        (write(7, 1, 2, 7), landed(7)),
        // A new owner: the old session is fenced, and its numbers have no meaning.
        (attach(9, 8, 2, 8), DROPPED),
        (write(7, 1, 3, 0), refused(Errno::Fenced)),
        (write(8, 2, 0, 0), landed(0)),
        // No session is attached: the volume is fenced.
        (attach(10, 0, 3, 8), DROPPED),
        (write(8, 2, 1, 0), refused(Errno::Fenced)),
        (write(0, 3, 1, 0), refused(Errno::Fenced)),
        // Older records name fewer chunks than the PG has; a recovery names none.
        (attach(11, 9, 4, 2), DROPPED),
        (write(9, 4, 0, 7), landed(7)),
        (write(9, 4, 1, 8), refused(Errno::Invalid)),
        (attach(12, 0, 5, 0), cut(0)),
        (write(9, 4, 0, 0), refused(Errno::Gone)),
    ] {
        assert_eq!(d.decide(&command), want, "{command:?}");
    }
}

#[test]
fn skipped_write_never_takes_effect() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach(1, 7, 1, 4));
    let stamp = Stamp { session: SessionId(7), epoch: Epoch(1), seq: 3, watermark: 0 };
    assert_eq!(d.decide(&Command::Skip { volume: VolumeId(1), stamp }), DROPPED);
    assert_eq!(d.decide(&write(7, 1, 3, 0)), DROPPED);
}

#[test]
fn a_checkpoint_gives_back_exactly_what_was_stored() {
    let mut d = Decision::fresh(Epoch(1), &members());
    for command in [attach(5, 7, 1, 4), write(7, 1, 0, 0), write(7, 1, 200, 1)] {
        d.decide(&command);
    }
    let bytes = d.encode();
    assert_eq!(Decision::decode(&bytes), Ok(d));
    for len in 0..bytes.len() {
        assert!(Decision::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert_eq!(Decision::decode(&longer), Err(DecisionError::Shape));
    longer[0] = 9;
    assert_eq!(Decision::decode(&longer), Err(DecisionError::Version(9)));
}

#[test]
fn golden_bytes_of_version_3_never_change() {
    let mut d = Decision::fresh(Epoch(1), &members()[..1]);
    d.decide(&attach(5, 7, 2, 4));
    d.decide(&write(7, 2, 1, 0));
    let hex: String = d.encode().iter().map(|b| format!("{b:02x}")).collect();
    let golden = concat!(
        "03000000",
        "0500000000000000",
        "0100000000000000",
        "0100000000000000",
        "00",
        "0000000000000000",
        "0100",
        "0b0000000000000001000000",
        "0000",
        "0000",
        "01000000",
        "0100000000000000",
        "0700000000000000",
        "0200000000000000",
        "0400000000000000",
        "0000000000000000",
        "0200000000000000",
        "0000000000000000",
        "0000000000000000",
        "0000000000000000",
        "00000000",
    );
    assert_eq!(hex, golden);
}
