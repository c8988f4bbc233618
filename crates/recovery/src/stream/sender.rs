//! The leader's end of one stream: the beginning of the follower's log, rounds, the end, the window.
//!
//! The loop passes in answers of the follower, finished reads and applied effects, and asks what to read
//! and what to send. Sans-IO.
//!
//! Invariants: messages are numbered in the order in which they are sent. Unacknowledged bytes and bytes being read stay below
//! the window. A stream ends only when the follower's log begins at or before the index at which the last round began: what has
//! changed since a block was read is then in that log, or was sent again.

use super::compare::{has_data, runs_of};
use super::pace::Pace;
use super::plan::{self, Content, Plan};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::planted::{Bug, on};
use types::store::DecisionState;
use types::units::BLOCKS_PER_AU;
use types::{BLOCK, ChunkKey, CrcList, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time};
use wire::{DIGEST_LEN, STREAM_PIECE_MAX, StreamBody};

/// Most bytes read, or sent and not yet acknowledged.
pub(crate) const WINDOW_BYTES: usize = 2 << 20;
/// Weight of a message beside its payload: bounds the number of messages.
pub(crate) const MESSAGE_COST: usize = 4 << 10;

/// Phase of a stream at the leader.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `Open` was sent.
    #[default]
    Opening,
    Rounds,
    /// `End` is in the outbox, or sent.
    Ending,
}

/// The leader's end of one stream.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub id: u64,
    pub pg: PgId,
    /// The leading replica here.
    pub replica: ReplicaId,
    pub term: Term,
    pub to: OsdId,
    pub follower: ReplicaId,
    pub phase: Phase,
    pub plan: Plan,
    /// Reads in flight, and their bytes.
    pub reads: usize,
    pub reading_bytes: usize,
    /// The state whose generations the next contents are of, if the follower needs it before them.
    pub tree: Option<DecisionState>,
    outbox: VecDeque<StreamBody>,
    outbox_bytes: usize,
    /// Number, weight and time of each message that was sent and is not acknowledged.
    unacked: VecDeque<(u64, usize, Time)>,
    unacked_bytes: usize,
    next_seq: u64,
    /// Digests that the follower has not answered: chunk, first sector, blocks with data.
    compared: BTreeMap<u64, (ChunkKey, u32, u128)>,
    /// Their number, with those that are not sent yet.
    unanswered: usize,
    /// Bytes that the follower has already.
    pub equal_bytes: u64,
    /// Time of the follower's last message.
    pub heard_at: Time,
    /// The index behind which the follower's log begins, and whether that is still on its way. `None`: no majority is known to have all
    /// contents without the follower; its log begins when it has them, too.
    pub fills_from: Option<Index>,
    pub is_beginning: bool,
    /// The applied index when the present round began.
    pub round_start: Index,
    /// The applied index at the end of the round, while the follower lacks entries up to there.
    pub catches_up: Option<Index>,
    /// Time of the next attempt to have the follower's log begin again.
    pub begins_again_at: Time,
    /// Time before which a log that is short of room does not begin again.
    pub short_from: Time,
    /// Rounds at whose end the follower's log had no room for what they show.
    pub short_rounds: u32,
    /// Start of the wait for blocks that are bad here.
    pub mends_since: Option<Time>,
    /// Time of the last read.
    pub read_at: Time,
    /// Cost of all reads, and of what the follower writes for them.
    pub read_cost: u64,
    /// Bytes of contents and digests.
    pub sent_bytes: u64,
    /// True when the PG cannot commit without this follower.
    pub urgent: bool,
    pub pace: Pace,
}

/// Returns the weight of a message in the window.
pub(crate) fn cost(body: &StreamBody) -> usize {
    MESSAGE_COST
        + match body {
            StreamBody::Blocks { payload, .. } => payload.len(),
            StreamBody::Decision { bytes, .. } => bytes.len(),
            StreamBody::Digests { digests, .. } => digests.len(),
            _ => 0,
        }
}

impl Sender {
    pub fn new(
        id: u64,
        pg: PgId,
        (replica, term): (ReplicaId, Term),
        (to, follower): (OsdId, ReplicaId),
        now: Time,
    ) -> Sender {
        let (next_seq, heard_at, read_at, begins_again_at) = (1, now, now, Time::NEVER);
        Sender {
            id,
            pg,
            replica,
            term,
            to,
            follower,
            next_seq,
            heard_at,
            read_at,
            begins_again_at,
            ..Sender::default()
        }
    }

    /// Begins the first round at the applied index: the follower has accepted the stream. `compare`: it has older contents.
    pub fn begin(&mut self, chunks: impl IntoIterator<Item = ChunkKey>, compare: bool, applied: Index) {
        (self.phase, self.round_start) = (Phase::Rounds, applied);
        self.plan = Plan::new(chunks, compare);
    }

    /// Begins the next round, with what has changed.
    pub fn next_round(&mut self, applied: Index) {
        self.plan.next_round();
        (self.round_start, self.catches_up, self.begins_again_at) = (applied, None, Time::NEVER);
        self.mends_since = None;
    }

    /// Whether the follower's log has what has changed since the blocks of this round were read, or will have it.
    pub fn may_end(&self) -> bool {
        !self.is_beginning && self.fills_from.is_some_and(|from| from <= self.round_start || on(Bug::FilledFromLate))
    }

    /// Estimates the bytes that are still to be brought.
    pub fn left_bytes(&self) -> u64 {
        let under_way = (self.reading_bytes + self.outbox_bytes + self.unacked_bytes) as u64;
        self.left(plan::bytes).saturating_add(under_way)
    }

    /// Estimates the cost of what is still to be brought.
    pub fn left_cost(&self) -> u64 {
        self.left(plan::cost)
    }

    /// Estimates what is left of this round and, if what has changed must be sent, of the next one.
    fn left(&self, weigh: fn(Content, u64) -> u64) -> u64 {
        let again = if self.may_end() && !self.plan.owes() { 0 } else { self.plan.dirty_bytes() };
        self.plan.rest_of_round(weigh).saturating_add(again)
    }

    /// Whether its follower counts, with a log that nothing frees before the stream has ended.
    pub fn fills(&self) -> bool {
        self.tracks() && self.fills_from.is_some() && !self.is_beginning
    }

    /// Whether only the window limits the stream: the PG waits for its end. A follower that counts before needs its device for its log.
    pub fn is_free(&self) -> bool {
        self.urgent && self.fills_from.is_none()
    }

    /// Whether changes are still to be noted.
    pub fn tracks(&self) -> bool {
        matches!(self.phase, Phase::Rounds)
    }

    pub fn has_room(&self) -> bool {
        self.reading_bytes + self.outbox_bytes + self.unacked_bytes < WINDOW_BYTES
    }

    /// Whether every block of this round was read.
    pub fn is_round_read(&self) -> bool {
        let answered = self.unanswered == 0 || on(Bug::DigestsUnanswered);
        self.tracks() && self.plan.is_round_over() && self.reads == 0 && answered
    }

    /// Queues contents to send; `None`: zeros.
    pub fn push_blocks(&mut self, chunk: ChunkKey, range: SectorRange, data: Option<(IoBuf, CrcList)>) {
        self.push_tree();
        let (payload, crcs) = data.unwrap_or((IoBuf::EMPTY, CrcList::new()));
        self.push(StreamBody::Blocks { seq: 0, chunk, range, crcs, payload });
    }

    /// Queues the digests of the blocks from sector `start` on.
    pub fn push_digests(&mut self, chunk: ChunkKey, start: u32, digests: Bytes) {
        self.push_tree();
        self.unanswered += 1;
        self.push(StreamBody::Digests { seq: 0, chunk, start, digests });
    }

    /// Notes which blocks the follower needs of those whose digests went with `seq`. Returns the bytes with data of the
    /// AUs that the follower writes for them. `None`: none went, or they do not have these blocks.
    pub fn wanted(&mut self, seq: u64, blocks: u128) -> Option<u64> {
        let (chunk, start, data) = self.compared.remove(&seq)?;
        self.unanswered -= 1;
        self.equal_bytes += u64::from((data & !blocks).count_ones()) * BLOCK;
        runs_of(start, blocks & data).into_iter().for_each(|run| self.plan.owe(chunk, run));
        let aus = (0..u128::BITS).step_by(BLOCKS_PER_AU as usize).map(|first| ((1 << BLOCKS_PER_AU) - 1) << first);
        let written = aus.filter(|au: &u128| blocks & au != 0).map(|au| u64::from((data & au).count_ones()) * BLOCK);
        (blocks & !data == 0).then(|| written.sum())
    }

    /// Queues the state at which the follower's log is to begin.
    pub fn push_fill(&mut self, state: &DecisionState) {
        (self.fills_from, self.is_beginning) = (Some(state.index), true);
        self.push_decision(state);
        self.push(StreamBody::Fill { seq: 0, index: state.index, term: state.term });
    }

    fn push_tree(&mut self) {
        self.tree.take().iter().for_each(|state| self.push_decision(state));
    }

    fn push_decision(&mut self, state: &DecisionState) {
        let mut rest = state.bytes.clone();
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(STREAM_PIECE_MAX));
            self.push(StreamBody::Decision { seq: 0, bytes: piece });
        }
    }

    /// Queues the end of a stream to a follower whose log has not begun: what was sent are the contents exactly at this state.
    pub fn push_exact_end(&mut self, state: &DecisionState) {
        self.push_decision(state);
        self.push_end(state.index, state.term);
    }

    /// Queues the end: what was sent shows entries up to this one.
    pub fn push_end(&mut self, index: Index, term: Term) {
        (self.phase, self.begins_again_at) = (Phase::Ending, Time::NEVER);
        self.push(StreamBody::End { seq: 0, index, term });
    }

    fn push(&mut self, body: StreamBody) {
        self.outbox_bytes += cost(&body);
        self.outbox.push_back(body);
    }

    /// Returns the next message that may leave now, with its number.
    pub fn next_message(&mut self, now: Time) -> Option<StreamBody> {
        let weight = cost(self.outbox.front()?);
        if self.unacked_bytes > 0 && self.unacked_bytes + weight > WINDOW_BYTES {
            return None;
        }
        let mut body = self.outbox.pop_front().expect("it has a front");
        match &mut body {
            StreamBody::Blocks { seq, .. }
            | StreamBody::Decision { seq, .. }
            | StreamBody::Fill { seq, .. }
            | StreamBody::End { seq, .. } => *seq = self.next_seq,
            StreamBody::Digests { seq, chunk, start, digests } => {
                *seq = self.next_seq;
                let blocks = (0..digests.len() / DIGEST_LEN).filter(|n| has_data(digests, *n));
                let data = blocks.fold(0u128, |data, n| data | 1 << n);
                self.compared.insert(self.next_seq, (*chunk, *start, data));
            }
            other => panic!("{other:?} is not numbered"),
        }
        self.outbox_bytes -= weight;
        self.unacked.push_back((self.next_seq, weight, now));
        self.unacked_bytes += weight;
        self.sent_bytes += (weight - MESSAGE_COST) as u64;
        self.next_seq += 1;
        Some(body)
    }

    /// Notes that the follower has stored everything up to `seq`. False when `seq` was never sent.
    pub fn acked(&mut self, now: Time, seq: u64) -> bool {
        self.heard_at = now;
        while let Some((first, weight, _)) = self.unacked.front().copied()
            && first <= seq
        {
            self.unacked.pop_front();
            self.unacked_bytes -= weight;
        }
        // Digests are answered before they are acknowledged.
        seq < self.next_seq && self.compared.first_key_value().is_none_or(|(first, _)| *first > seq)
    }

    /// Returns for how long the follower has had contents that it has not stored.
    pub fn answer_wait(&self, now: Time) -> Duration {
        let first = self.unacked.front().filter(|_| self.tracks());
        first.map_or(Duration::ZERO, |(_, _, sent)| now.since(*sent))
    }

    /// Whether the follower owes an answer.
    pub fn waits(&self) -> bool {
        !self.unacked.is_empty() || matches!(self.phase, Phase::Opening | Phase::Ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GenerationId, PoolId};

    fn sender() -> Sender {
        let pg = PgId { pool: PoolId(1), n: 0 };
        Sender::new(7, pg, (ReplicaId(1), Term(2)), (OsdId(2), ReplicaId(5)), Time(1))
    }

    #[test]
    fn messages_are_numbered_without_gaps_and_wait_for_the_window() {
        let mut s = sender();
        s.begin([], false, Index(3));
        let chunk = ChunkKey { generation: GenerationId(1), index: 0 };
        let range = SectorRange::new(0, 1024);
        for _ in 0..8 {
            s.push_blocks(chunk, range, Some((IoBuf::zeros(512 << 10), vec![0; 128].into())));
        }
        assert!(!s.has_room());
        let sent: Vec<StreamBody> = std::iter::from_fn(|| s.next_message(Time(1))).collect();
        assert_eq!(sent.len(), 3, "a fourth would pass the window");
        let seqs = sent.iter().map(|b| if let StreamBody::Blocks { seq, .. } = b { *seq } else { 0 });
        assert_eq!(seqs.collect::<Vec<_>>(), [1, 2, 3]);
        assert!(s.acked(Time(2), 2));
        assert!(
            s.next_message(Time(1)).is_some() && s.next_message(Time(1)).is_some() && s.next_message(Time(1)).is_none()
        );
        assert!(!s.acked(Time(3), 6), "an acknowledgement of an unsent message");
    }

    #[test]
    fn a_log_begins_with_its_decision_state_in_pieces() {
        let mut s = sender();
        let bytes = Bytes::from(vec![9; STREAM_PIECE_MAX + 10]);
        let state = DecisionState { replica: ReplicaId(1), index: Index(40), term: Term(2), bytes };
        s.push_fill(&state);
        s.begin([], false, Index(40));
        assert!(s.is_round_read() && !s.may_end(), "the follower has not begun its log");
        let lens: Vec<usize> =
            std::iter::from_fn(|| s.next_message(Time(1))).map(|b| cost(&b) - MESSAGE_COST).collect();
        assert_eq!(lens, [STREAM_PIECE_MAX, 10, 0]);
        s.is_beginning = false;
        assert!(s.may_end());
        s.push_end(Index(41), Term(2));
        assert!(
            s.next_message(Time(1)).is_some() && s.waits() && s.acked(Time(2), 4) && s.waits(),
            "Done alone answers the end"
        );
    }

    #[test]
    fn a_log_that_begins_behind_a_round_takes_another_round() {
        let mut s = sender();
        s.begin([], false, Index(40));
        s.fills_from = Some(Index(41));
        assert!(!s.may_end());
        s.next_round(Index(41));
        assert!(s.may_end());
    }

    #[test]
    fn a_round_of_digests_is_over_when_all_are_answered() {
        let compared = || {
            let mut s = sender();
            s.begin([], true, Index(3));
            let mut digests = vec![1u8; 128 * DIGEST_LEN];
            digests[..DIGEST_LEN].fill(0);
            s.push_digests(ChunkKey { generation: GenerationId(1), index: 0 }, 1024, digests.into());
            assert!(!s.is_round_read() && s.next_message(Time(1)).is_some() && !s.is_round_read());
            s
        };
        assert!(!compared().acked(Time(2), 1), "acknowledged before it was answered");
        assert_eq!(compared().wanted(2, 0), None, "digests that were never sent");
        assert_eq!(compared().wanted(1, 1), None, "a block of zeros cannot be wanted");
        assert_eq!(compared().wanted(1, 1 << 127), Some(16 * BLOCK), "the whole AU is written");
        let mut s = compared();
        assert_eq!(s.wanted(1, 0b110), Some(15 * BLOCK));
        assert!(s.acked(Time(2), 1) && s.is_round_read());
        assert_eq!((s.plan.dirty_bytes(), s.equal_bytes), (2 * BLOCK, 125 * BLOCK));
    }
}
