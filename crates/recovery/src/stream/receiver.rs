//! The follower's end of one stream: order, checksums, pieces under way and acknowledgements.
//!
//! The loop passes in the leader's messages and finished work. It asks for the next step, what to acknowledge, and
//! whether the stream is complete. Sans-IO.
//!
//! Invariant: a message out of order ends the stream. A piece is handled only after all earlier work that it overlaps
//! is done. No piece is staged in kept space: an AU that a piece covers in part is staged as a whole before. Memory is
//! bounded by the window, whatever the leader sends.

use super::sender::{MESSAGE_COST, WINDOW_BYTES, cost};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use types::limits::DECISION_LEN_MAX;
use types::planted::{Bug, on};
use types::units::{SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{ChunkKey, CrcList, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time};
use wire::{DIGEST_LEN, StreamBody};

/// Most windows that are compared at once; each reads [`types::limits::PART_MAX`] bytes.
const COMPARED_MAX: usize = 4;
/// Most pieces for which kept AUs are staged in advance.
const AHEAD_MAX: usize = 32;

/// Blocks on their way to home, or to be compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub seq: u64,
    pub chunk: ChunkKey,
    pub range: SectorRange,
    pub contents: Contents,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Contents {
    Zeros,
    Bytes(IoBuf, CrcList),
    Digests(Bytes),
}

/// Next step of the stream here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Stage(Piece),
    /// Compare older contents with these digests. `None`: stage a kept AU from them, which piece `seq` covers in part.
    Read {
        seq: u64,
        chunk: ChunkKey,
        range: SectorRange,
        digests: Option<Bytes>,
    },
}

/// A log that is to begin behind `index`, at the decision state in `bytes`.
#[derive(Debug, Clone, PartialEq)]
struct Beginning {
    seq: u64,
    index: Index,
    term: Term,
    bytes: Bytes,
    /// The engine has it.
    asked: bool,
}

/// Work that is under way for a message.
#[derive(Debug)]
struct Busy {
    chunk: ChunkKey,
    range: SectorRange,
    /// Writes and reads that are not over.
    left: usize,
    compares: bool,
}

impl Contents {
    fn weight(&self) -> usize {
        MESSAGE_COST
            + match self {
                Contents::Zeros => 0,
                Contents::Bytes(payload, _) => payload.len(),
                Contents::Digests(digests) => digests.len(),
            }
    }
}

/// Returns the AUs that the range touches and does not cover: the first, the last, or none.
fn covered_in_part(range: SectorRange) -> impl Iterator<Item = u32> {
    let ends = [aus(range).next(), aus(range).last()];
    ends.into_iter()
        .flatten()
        .filter(move |au| range.intersect(SectorRange::of_au(*au)) != Some(SectorRange::of_au(*au)))
}

/// Returns the AUs that the range touches.
pub(crate) fn aus(range: SectorRange) -> impl Iterator<Item = u32> {
    range.start / SECTORS_PER_AU..range.end().div_ceil(SECTORS_PER_AU)
}

/// Reason why a message ends the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    /// A message between was lost.
    #[error("message {found} of a stream where {expected} belongs")]
    OutOfOrder { expected: u64, found: u64 },
    /// A message that no leader sends: the connection is closed.
    #[error("an invalid stream message: {0}")]
    Nonsense(&'static str),
}

/// The follower's end of one stream.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    pub id: u64,
    /// Number of this receiver in its process: the leader's OSD chooses `id`.
    pub serial: u64,
    pub pg: PgId,
    pub replica: ReplicaId,
    pub from: OsdId,
    pub leader: ReplicaId,
    /// The group's term when the stream was accepted.
    pub term: Term,
    next_seq: u64,
    waiting: VecDeque<Piece>,
    waiting_bytes: usize,
    busy: BTreeMap<u64, Busy>,
    /// The replica here whose contents are compared.
    pub base: Option<ReplicaId>,
    /// The PG commits nothing without this replica.
    pub needed: bool,
    /// Contents have come: nothing is compared any more.
    has_contents: bool,
    /// Bytes that were taken over as they were.
    pub kept_bytes: u64,
    acked: u64,
    decision: BytesMut,
    /// The log is to begin here; pieces wait until it does.
    beginning: Option<Beginning>,
    /// The last entry that the contents may show, once all are sent. With a decision state: the contents are exactly those.
    end: Option<(Index, Term)>,
    /// True once the engine has the contents to install.
    pub installing: bool,
    pub heard_at: Time,
}

impl Receiver {
    pub fn new(id: u64, pg: PgId, replica: ReplicaId, (from, leader): (OsdId, ReplicaId), now: Time) -> Receiver {
        Receiver { id, pg, replica, from, leader, next_seq: 1, heard_at: now, ..Receiver::default() }
    }

    /// Handles a numbered message. Returns the decision state whose generations the next contents are of, when it has come before them.
    pub fn take(&mut self, now: Time, body: StreamBody) -> Result<Option<Bytes>, Wrong> {
        let weight = cost(&body);
        let (StreamBody::Blocks { seq, .. }
        | StreamBody::Decision { seq, .. }
        | StreamBody::Fill { seq, .. }
        | StreamBody::End { seq, .. }
        | StreamBody::Digests { seq, .. }) = body
        else {
            return Err(Wrong::Nonsense("it has no number"));
        };
        if seq != self.next_seq {
            return Err(Wrong::OutOfOrder { expected: self.next_seq, found: seq });
        }
        if self.end.is_some() || self.waiting_bytes + weight > 2 * WINDOW_BYTES {
            return Err(Wrong::Nonsense("more than the window, or after the end"));
        }
        self.has_contents |= matches!(body, StreamBody::Blocks { .. });
        let is_of_tree = matches!(body, StreamBody::Blocks { .. } | StreamBody::Digests { .. });
        let tree = (is_of_tree && !self.decision.is_empty()).then(|| std::mem::take(&mut self.decision).freeze());
        match body {
            StreamBody::Digests { chunk, start, digests, .. } => {
                let count = (digests.len() / DIGEST_LEN) as u32 * SECTORS_PER_BLOCK;
                if self.base.is_none() || self.has_contents {
                    return Err(Wrong::Nonsense("digests that were not asked for"));
                }
                if !start.is_multiple_of(SECTORS_PER_AU) || !count.is_multiple_of(SECTORS_PER_AU) {
                    return Err(Wrong::Nonsense("digests of a part of an AU"));
                }
                let range = SectorRange::new(start, count);
                self.enqueue(Piece { seq, chunk, range, contents: Contents::Digests(digests) });
            }
            StreamBody::Blocks { chunk, range, crcs, payload, .. } => {
                let whole = range.start.is_multiple_of(SECTORS_PER_BLOCK);
                if !whole || !range.count.is_multiple_of(SECTORS_PER_BLOCK) {
                    return Err(Wrong::Nonsense("not whole blocks"));
                }
                if !payload.is_empty() && !range.verify(&payload, &crcs) {
                    return Err(Wrong::Nonsense("bytes that fail their checksum"));
                }
                let contents = if payload.is_empty() { Contents::Zeros } else { Contents::Bytes(payload, crcs) };
                self.enqueue(Piece { seq, chunk, range, contents });
            }
            StreamBody::Decision { bytes, .. } => {
                if self.decision.len() + bytes.len() > DECISION_LEN_MAX {
                    return Err(Wrong::Nonsense("too much decision state"));
                }
                self.decision.extend_from_slice(&bytes);
            }
            StreamBody::Fill { index, term, .. } => {
                if self.beginning.is_some() || self.decision.is_empty() {
                    return Err(Wrong::Nonsense("a log that begins without its decision state, or twice"));
                }
                let bytes = std::mem::take(&mut self.decision).freeze();
                self.beginning = Some(Beginning { seq, index, term, bytes, asked: false });
            }
            StreamBody::End { index, term, .. } => self.end = Some((index, term)),
            _ => unreachable!("it has a number"),
        }
        self.heard_at = now;
        self.next_seq += 1;
        Ok(tree)
    }

    fn enqueue(&mut self, piece: Piece) {
        self.waiting_bytes += piece.contents.weight();
        self.waiting.push_back(piece);
    }

    /// Returns the next step, if there is one that no work under way overlaps. `keeps` says whether an AU is kept.
    pub fn next_step(&mut self, keeps: impl Fn(ChunkKey, u32) -> bool) -> Option<Step> {
        let front = self.waiting.front().filter(|_| self.beginning.is_none())?;
        let is_kept = || covered_in_part(front.range).any(|au| keeps(front.chunk, au));
        if let Contents::Digests(_) = front.contents {
            let compared = self.busy.values().filter(|busy| busy.compares).count();
            if compared == COMPARED_MAX || self.is_busy(front.chunk, front.range) {
                return None;
            }
        } else if let Some((seq, chunk, au)) = self.next_release(&keeps) {
            let range = SectorRange::of_au(au);
            self.busy.insert(seq, Busy { chunk, range, left: 1, compares: false });
            return Some(Step::Read { seq, chunk, range, digests: None });
        } else if self.busy.contains_key(&front.seq) || self.is_busy(front.chunk, front.range) || is_kept() {
            return None;
        }
        let piece = self.waiting.pop_front().expect("it has a front");
        self.waiting_bytes -= piece.contents.weight();
        let (seq, chunk, range) = (piece.seq, piece.chunk, piece.range);
        let compares = matches!(piece.contents, Contents::Digests(_));
        self.busy.insert(seq, Busy { chunk, range, left: 1, compares });
        Some(match piece.contents {
            Contents::Digests(digests) => Step::Read { seq, chunk, range, digests: Some(digests) },
            _ => Step::Stage(piece),
        })
    }

    fn is_busy(&self, chunk: ChunkKey, range: SectorRange) -> bool {
        self.busy.values().any(|busy| busy.chunk == chunk && busy.range.overlaps(range))
    }

    /// Returns a kept AU that one of the first pieces covers in part, and that neither work under way nor an earlier piece
    /// touches.
    fn next_release(&self, keeps: impl Fn(ChunkKey, u32) -> bool) -> Option<(u64, ChunkKey, u32)> {
        let ahead = self.waiting.iter().take(AHEAD_MAX).enumerate().filter(|(_, p)| !self.busy.contains_key(&p.seq));
        ahead.into_iter().find_map(|(n, piece)| {
            let earlier = |au: u32| {
                let mut earlier = self.waiting.iter().take(n).filter(|p| p.chunk == piece.chunk);
                earlier.any(|p| p.range.overlaps(SectorRange::of_au(au)))
            };
            let free = |au: &u32| {
                keeps(piece.chunk, *au) && !self.is_busy(piece.chunk, SectorRange::of_au(*au)) && !earlier(*au)
            };
            covered_in_part(piece.range).find(free).map(|au| (piece.seq, piece.chunk, au))
        })
    }

    /// Notes the writes that a step takes, besides the read or write that it began with.
    pub fn takes(&mut self, seq: u64, writes: usize) {
        if let Some(busy) = self.busy.get_mut(&seq) {
            busy.left += writes;
        }
    }

    /// Notes that a read or write of a step is done: the stream goes on here, also while the leader waits.
    pub fn done(&mut self, now: Time, seq: u64) {
        self.heard_at = now;
        if let Some(busy) = self.busy.get_mut(&seq) {
            busy.left -= 1;
            if busy.left == 0 {
                self.busy.remove(&seq);
            }
        }
    }

    /// Returns the number to acknowledge, if it has grown.
    pub fn ack_due(&mut self) -> Option<u64> {
        let beginning = self.beginning.as_ref().map(|beginning| beginning.seq);
        let oldest = [self.busy.keys().next().copied(), self.waiting.front().map(|piece| piece.seq), beginning];
        let done = oldest.into_iter().flatten().min().unwrap_or(self.next_seq) - 1;
        assert!(done >= self.acked, "an acknowledgement is not taken back");
        let grown = done > self.acked;
        self.acked = done;
        grown.then_some(done)
    }

    /// Takes the state at which the log is to begin, as (index, term, decision state): once, and when no work is under way.
    pub fn take_beginning(&mut self) -> Option<(Index, Term, Bytes)> {
        let beginning = self.beginning.as_mut().filter(|beginning| !beginning.asked && self.busy.is_empty())?;
        beginning.asked = true;
        Some((beginning.index, beginning.term, beginning.bytes.clone()))
    }

    /// Notes that the log begins where it was asked to, durably.
    pub fn has_begun(&mut self, now: Time) {
        (self.beginning, self.heard_at) = (None, now);
    }

    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the last entry that the contents may show, its term and the decision state there, once every piece is staged. A
    /// log that has begun needs no decision state.
    pub fn complete(&self) -> Option<(Index, Term, Bytes)> {
        let written = self.busy.is_empty() || on(Bug::InstallBeforeStaged);
        let (index, term) = self.end.filter(|_| self.waiting.is_empty() && self.beginning.is_none() && written)?;
        Some((index, term, self.decision.clone().freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GenerationId, PoolId};

    const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 4 };

    fn receiver() -> Receiver {
        let pg = PgId { pool: PoolId(1), n: 0 };
        Receiver::new(7, pg, ReplicaId(2), (OsdId(1), ReplicaId(1)), Time(1))
    }

    fn blocks(seq: u64, start: u32, count: u32) -> StreamBody {
        let range = SectorRange::new(start, count);
        let payload = IoBuf::copy_of(&vec![seq as u8; range.len_bytes()]);
        let crcs = range.fragment_crcs(&payload);
        StreamBody::Blocks { seq, chunk: CHUNK, range, crcs, payload }
    }

    fn stage(r: &mut Receiver) -> Option<u64> {
        r.next_step(|_, _| false).map(|step| match step {
            Step::Stage(piece) => piece.seq,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn overlapping_pieces_and_acknowledgements_wait_for_earlier_ones() {
        let mut r = receiver();
        for body in [blocks(1, 0, 8), blocks(2, 8, 8), blocks(3, 8, 16), blocks(4, 64, 8)] {
            r.take(Time(2), body).expect("in order");
        }
        assert_eq!(stage(&mut r), Some(1));
        assert_eq!(stage(&mut r), Some(2));
        assert_eq!(stage(&mut r), None, "3 overlaps 2");
        r.done(Time(2), 2);
        assert_eq!(r.ack_due(), None, "1 is in flight");
        assert_eq!(stage(&mut r), Some(3));
        r.done(Time(2), 1);
        assert_eq!(r.ack_due(), Some(2));
        assert_eq!(stage(&mut r), Some(4));
        r.take(Time(3), StreamBody::End { seq: 5, index: Index(9), term: Term(2) }).expect("in order");
        r.done(Time(2), 4);
        assert_eq!(r.complete(), None, "3 is in flight");
        r.done(Time(2), 3);
        assert_eq!(r.ack_due(), Some(5));
        assert_eq!(r.complete(), Some((Index(9), Term(2), Bytes::new())));
    }

    #[test]
    fn pieces_wait_until_the_log_has_begun() {
        let fill = |seq| StreamBody::Fill { seq, index: Index(9), term: Term(2) };
        assert!(receiver().take(Time(2), fill(1)).is_err(), "no decision state came before");
        let mut r = receiver();
        r.take(Time(2), StreamBody::Decision { seq: 1, bytes: Bytes::from_static(b"a") }).expect("in order");
        r.take(Time(2), StreamBody::Decision { seq: 2, bytes: Bytes::from_static(b"b") }).expect("in order");
        r.take(Time(2), fill(3)).expect("in order");
        r.take(Time(2), blocks(4, 0, 8)).expect("in order");
        assert_eq!(r.take_beginning(), Some((Index(9), Term(2), Bytes::from_static(b"ab"))));
        assert_eq!((r.take_beginning(), stage(&mut r), r.ack_due()), (None, None, Some(2)));
        r.has_begun(Time(3));
        assert_eq!((r.ack_due(), stage(&mut r)), (Some(3), Some(4)));
    }

    #[test]
    fn impossible_stream_message_ends_the_stream() {
        let bad_crc = match blocks(1, 0, 8) {
            StreamBody::Blocks { seq, chunk, range, payload, .. } => {
                StreamBody::Blocks { seq, chunk, range, crcs: vec![1].into(), payload }
            }
            other => other,
        };
        for (body, want) in [
            (blocks(2, 0, 8), Wrong::OutOfOrder { expected: 1, found: 2 }),
            (blocks(1, 1, 8), Wrong::Nonsense("not whole blocks")),
            (bad_crc, Wrong::Nonsense("bytes that fail their checksum")),
            (StreamBody::Open { needed: false }, Wrong::Nonsense("it has no number")),
        ] {
            assert_eq!(receiver().take(Time(2), body), Err(want));
        }
        let mut r = receiver();
        let full = (1..100).find(|seq| r.take(Time(2), blocks(*seq, 0, 1024)).is_err());
        assert_eq!(full, Some(8), "memory is bounded by the window");
        let mut r = receiver();
        r.take(Time(2), StreamBody::End { seq: 1, index: Index(1), term: Term(1) }).expect("in order");
        assert!(r.take(Time(2), blocks(2, 0, 8)).is_err(), "nothing comes after the end");
    }
    #[test]
    fn a_kept_au_is_staged_before_a_piece_of_it() {
        let digests = |seq, start, blocks: usize| StreamBody::Digests {
            seq,
            chunk: CHUNK,
            start,
            digests: vec![1; blocks * DIGEST_LEN].into(),
        };
        assert!(receiver().take(Time(2), digests(1, 0, 16)).is_err(), "nobody asked for it");
        let mut r = receiver();
        r.base = Some(ReplicaId(1));
        assert!(r.take(Time(2), digests(1, 64, 16)).is_err(), "not at the beginning of an AU");
        let mut r = receiver();
        r.base = Some(ReplicaId(1));
        r.take(Time(2), digests(1, 0, 128)).expect("in order");
        r.take(Time(2), blocks(2, 64, 256)).expect("in order");
        let Some(Step::Read { seq: 1, range, digests: Some(_), .. }) = r.next_step(|_, _| false) else {
            panic!("digests come first")
        };
        assert_eq!(range, SectorRange::new(0, 1024));
        assert_eq!(r.next_step(|_, _| true), None, "2 overlaps the comparison");
        r.takes(1, 2);
        (0..3).for_each(|_| r.done(Time(2), 1));
        assert_eq!(r.ack_due(), Some(1));
        let release = |au| Some(Step::Read { seq: 2, chunk: CHUNK, range: SectorRange::of_au(au), digests: None });
        assert_eq!(r.next_step(|_, au| au == 0), release(0));
        assert_eq!(r.next_step(|_, au| au == 0), None, "its bytes are being staged");
        r.done(Time(2), 2);
        assert_eq!(r.next_step(|_, au| au == 2), release(2));
        r.done(Time(2), 2);
        assert!(
            matches!(r.next_step(|_, au| au == 1), Some(Step::Stage(_))),
            "an AU that the piece replaces as a whole"
        );
        assert!(r.take(Time(3), digests(3, 1024, 16)).is_err(), "contents have come");
    }
}
