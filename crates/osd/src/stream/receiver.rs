//! The follower's end of one stream: order, checksums, staged pieces and acknowledgements.
//!
//! The loop passes in the leader's messages and finished writes. It asks which pieces to stage, what to
//! acknowledge, and whether the stream is complete. Sans-IO.
//!
//! Invariant: a message out of order ends the stream. A block is staged only after every earlier write that it
//! overlaps is done. Memory is bounded by the window, whatever the leader sends.

use super::sender::{MESSAGE_COST, WINDOW_BYTES, cost};
use bus::LinkId;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use types::limits::DECISION_LEN_MAX;
use types::planted::{Bug, on};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time};
use wire::StreamBody;

/// Blocks on their way to home; `None`: zeros.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub seq: u64,
    pub chunk: ChunkKey,
    pub range: SectorRange,
    pub data: Option<(IoBuf, Vec<u32>)>,
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
#[derive(Debug)]
pub(crate) struct Receiver {
    pub id: u64,
    pub pg: PgId,
    pub replica: ReplicaId,
    pub slot: usize,
    pub from: OsdId,
    pub leader: ReplicaId,
    pub link: LinkId,
    next_seq: u64,
    waiting: VecDeque<Piece>,
    waiting_bytes: usize,
    staging: BTreeMap<u64, (ChunkKey, SectorRange)>,
    acked: u64,
    decision: BytesMut,
    end: Option<(Index, Term)>,
    /// True once the engine has the contents to install; the group is paused.
    pub installing: bool,
    pub heard_at: Time,
}

impl Receiver {
    pub fn new(
        id: u64,
        pg: PgId,
        (replica, slot): (ReplicaId, usize),
        (from, leader, link): (OsdId, ReplicaId, LinkId),
        now: Time,
    ) -> Receiver {
        Receiver {
            id,
            pg,
            replica,
            slot,
            from,
            leader,
            link,
            next_seq: 1,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            staging: BTreeMap::new(),
            acked: 0,
            decision: BytesMut::new(),
            end: None,
            installing: false,
            heard_at: now,
        }
    }

    /// Handles a numbered message.
    pub fn take(&mut self, now: Time, body: StreamBody) -> Result<(), Wrong> {
        let weight = cost(&body);
        let (StreamBody::Blocks { seq, .. } | StreamBody::Decision { seq, .. } | StreamBody::End { seq, .. }) = body
        else {
            return Err(Wrong::Nonsense("it has no number"));
        };
        if seq != self.next_seq {
            return Err(Wrong::OutOfOrder { expected: self.next_seq, found: seq });
        }
        if self.end.is_some() || self.waiting_bytes + weight > 2 * WINDOW_BYTES {
            return Err(Wrong::Nonsense("more than the window, or after the end"));
        }
        match body {
            StreamBody::Blocks { chunk, range, crcs, payload, .. } => {
                let whole = range.start.is_multiple_of(SECTORS_PER_BLOCK);
                if !whole || !range.count.is_multiple_of(SECTORS_PER_BLOCK) {
                    return Err(Wrong::Nonsense("not whole blocks"));
                }
                if !payload.is_empty() && !range.verify(&payload, &crcs) {
                    return Err(Wrong::Nonsense("bytes that fail their checksum"));
                }
                let data = (!payload.is_empty()).then_some((payload, crcs));
                self.waiting.push_back(Piece { seq, chunk, range, data });
                self.waiting_bytes += weight;
            }
            StreamBody::Decision { bytes, .. } => {
                if self.decision.len() + bytes.len() > DECISION_LEN_MAX {
                    return Err(Wrong::Nonsense("too much decision state"));
                }
                self.decision.extend_from_slice(&bytes);
            }
            StreamBody::End { index, term, .. } => self.end = Some((index, term)),
            _ => unreachable!("it has a number"),
        }
        self.heard_at = now;
        self.next_seq += 1;
        Ok(())
    }

    /// Returns the next piece that no write in flight overlaps.
    pub fn next_to_stage(&mut self) -> Option<Piece> {
        let front = self.waiting.front()?;
        let busy = |(chunk, range): &(ChunkKey, SectorRange)| *chunk == front.chunk && range.overlaps(front.range);
        if self.staging.values().any(busy) {
            return None;
        }
        let piece = self.waiting.pop_front().expect("it has a front");
        self.waiting_bytes -= MESSAGE_COST + piece.data.as_ref().map_or(0, |(payload, _)| payload.len());
        self.staging.insert(piece.seq, (piece.chunk, piece.range));
        Some(piece)
    }

    pub fn staged(&mut self, seq: u64) {
        self.staging.remove(&seq);
    }

    /// Returns the number to acknowledge, if it has grown.
    pub fn ack_due(&mut self) -> Option<u64> {
        let oldest = [self.staging.keys().next().copied(), self.waiting.front().map(|piece| piece.seq)];
        let done = oldest.into_iter().flatten().min().unwrap_or(self.next_seq) - 1;
        assert!(done >= self.acked, "an acknowledgement is not taken back");
        let grown = done > self.acked;
        self.acked = done;
        grown.then_some(done)
    }

    /// Returns the snapshot index, its term and the decision state, once every piece is staged.
    pub fn complete(&self) -> Option<(Index, Term, Bytes)> {
        let written = self.staging.is_empty() || on(Bug::InstallBeforeStaged);
        let (index, term) = self.end.filter(|_| self.waiting.is_empty() && written)?;
        Some((index, term, self.decision.clone().freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{PoolId, VolumeId};

    const CHUNK: ChunkKey = ChunkKey { volume: VolumeId(1), index: 4 };

    fn receiver() -> Receiver {
        let pg = PgId { pool: PoolId(1), n: 0 };
        Receiver::new(7, pg, (ReplicaId(2), 0), (OsdId(1), ReplicaId(1), LinkId(3)), Time(1))
    }

    fn blocks(seq: u64, start: u32, count: u32) -> StreamBody {
        let range = SectorRange::new(start, count);
        let payload = IoBuf::copy_of(&vec![seq as u8; range.len_bytes()]);
        let crcs = range.fragment_crcs(&payload);
        StreamBody::Blocks { seq, chunk: CHUNK, range, crcs, payload }
    }

    #[test]
    fn overlapping_pieces_and_acknowledgements_wait_for_earlier_ones() {
        let mut r = receiver();
        for body in [blocks(1, 0, 8), blocks(2, 8, 8), blocks(3, 8, 16), blocks(4, 64, 8)] {
            r.take(Time(2), body).expect("in order");
        }
        assert_eq!(r.next_to_stage().map(|p| p.seq), Some(1));
        assert_eq!(r.next_to_stage().map(|p| p.seq), Some(2));
        assert_eq!(r.next_to_stage(), None, "3 overlaps 2");
        r.staged(2);
        assert_eq!(r.ack_due(), None, "1 is in flight");
        assert_eq!(r.next_to_stage().map(|p| p.seq), Some(3));
        r.staged(1);
        assert_eq!(r.ack_due(), Some(2));
        assert_eq!(r.next_to_stage().map(|p| p.seq), Some(4));
        r.take(Time(3), StreamBody::Decision { seq: 5, bytes: Bytes::from_static(b"ab") }).expect("in order");
        r.take(Time(3), StreamBody::End { seq: 6, index: Index(9), term: Term(2) }).expect("in order");
        r.staged(4);
        assert_eq!(r.complete(), None, "3 is in flight");
        r.staged(3);
        assert_eq!(r.ack_due(), Some(6));
        assert_eq!(r.complete(), Some((Index(9), Term(2), Bytes::from_static(b"ab"))));
    }

    #[test]
    fn impossible_stream_message_ends_the_stream() {
        let bad_crc = match blocks(1, 0, 8) {
            StreamBody::Blocks { seq, chunk, range, payload, .. } => {
                StreamBody::Blocks { seq, chunk, range, crcs: vec![1], payload }
            }
            other => other,
        };
        for (body, want) in [
            (blocks(2, 0, 8), Wrong::OutOfOrder { expected: 1, found: 2 }),
            (blocks(1, 1, 8), Wrong::Nonsense("not whole blocks")),
            (bad_crc, Wrong::Nonsense("bytes that fail their checksum")),
            (StreamBody::Open, Wrong::Nonsense("it has no number")),
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
}
