//! Streams (R12, ADR 0003): a follower behind the log gets the contents of its PG from the leader's engine.
//!
//! `send` is the leader's side, `receive` the follower's; `sender` and `receiver` are the two state machines of one stream,
//! `plan` keeps the blocks that are left to send. Input: messages, results of reads and writes, applied effects, one step a turn.
//!
//! Invariant: a stream may be dropped at every moment on either side, and the leader begins another while the follower is behind
//! or lacks contents. Nothing that it has brought is served or durable before all of it is (R16).

mod budget;
mod compare;
mod pace;
mod plan;
mod receive;
mod receiver;
mod send;
mod sender;

use crate::host::{Action, Host};
use crate::tuning::StreamTuning;
pub(crate) use budget::Budget;
use bytes::Bytes;
pub(crate) use plan::Blocks;
use receiver::Receiver;
pub(crate) use send::LOG_WAIT_MAX;
use sender::Sender;
use std::collections::BTreeMap;
use types::control::RecoveryTotals;
use types::store::Effect;
use types::tree::Change;
use types::{ChunkKey, OsdId, PgId, ReplicaId, SectorRange, Time};
use wire::{Message, StreamAbort, StreamBody, StreamMsg};

/// A read of contents for a follower.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRead {
    /// The stream's id: its sender may be gone.
    stream: u64,
    chunk: ChunkKey,
    /// The chunk as whose the blocks are sent.
    to: ChunkKey,
    range: SectorRange,
    /// Only the digests are sent.
    compare: bool,
    /// The chunk's own blocks of those, where another generation may show; bit 0 is the first.
    own: Option<u128>,
}

/// A read of older contents, for one message of a receiver. `digests`: the leader's; without them the AU is kept no longer.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseRead {
    at: receive::At,
    chunk: ChunkKey,
    range: SectorRange,
    digests: Option<Bytes>,
}

/// All streams of one OSD.
#[derive(Default)]
pub struct Streams {
    tuning: StreamTuning,
    senders: Vec<Sender>,
    /// Followers behind the log without a stream, and when raft last asked for one.
    waiting: BTreeMap<(PgId, OsdId), Time>,
    receivers: BTreeMap<PgId, Receiver>,
    /// Token of a piece that is being staged → its message.
    staging: BTreeMap<u64, receive::At>,
    /// Replicas whose writes may have a pace, and the follower that is being filled.
    paced: Vec<(ReplicaId, ReplicaId)>,
    /// Time of the next look for streams beyond the ordinary limit.
    look_at: Time,
    next_id: u64,
    next_token: u64,
    budget: Budget,
    /// Followers whose last stream ended early: no new stream before the time; with the number of failures.
    resting: BTreeMap<(PgId, OsdId), (Time, u32)>,
    /// Streams that brought a follower back, and streams that failed.
    pub done: u64,
    pub failed: u64,
    /// Bytes sent by streams that have ended, and bytes that their followers had already.
    pub sent_bytes: u64,
    pub equal_bytes: u64,
}

impl Streams {
    pub fn new(tuning: StreamTuning, seed: u64) -> Streams {
        let budget = Budget::new(tuning.bytes_per_s);
        Streams { tuning, next_id: seed | 1, budget, ..Streams::default() }
    }

    /// Notes an applied entry of a local replica.
    pub fn applied(&mut self, replica: ReplicaId, effect: &Effect) {
        for sender in self.senders.iter_mut().filter(|s| s.replica == replica && s.tracks()) {
            sender.plan.note(effect);
        }
    }

    /// Notes a change of the tree of a local replica. The engine has taken the tree, and has begun no round since: what it says of a heir's
    /// zeros is then as the follower needs it.
    pub fn tree_changed(&mut self, host: &mut impl Host, replica: ReplicaId, changes: &[Change]) {
        for sender in self.senders.iter_mut().filter(|s| s.replica == replica && s.tracks()) {
            sender.plan.note_changes(changes, |chunk| host.delta(replica, chunk));
        }
    }

    /// Returns the followers whose logs have begun and whose contents are on their way.
    pub fn fills(&self) -> impl Iterator<Item = ReplicaId> {
        let begun = |s: &&Sender| s.phase != sender::Phase::Opening && !s.is_beginning;
        self.senders.iter().filter(begun).map(|s| s.follower)
    }

    /// Whether everything of a stream to this PG here has been sent: its replica then takes all entries.
    pub fn has_end(&self, pg: PgId) -> bool {
        self.receivers.get(&pg).is_some_and(Receiver::has_end)
    }

    /// Returns the totals for meta: bytes that were brought to followers or found there since the start, and bytes that the
    /// running streams have still to bring.
    pub fn totals(&self) -> RecoveryTotals {
        let count = self.senders.len() + self.waiting.len();
        RecoveryTotals {
            streams: u32::try_from(count).unwrap_or(u32::MAX),
            done_bytes: self.senders.iter().fold(self.sent_bytes.saturating_add(self.equal_bytes), |sum, s| {
                sum.saturating_add(s.sent_bytes).saturating_add(s.equal_bytes)
            }),
            left_bytes: self.senders.iter().fold(0, |sum: u64, s| sum.saturating_add(s.left_bytes())),
        }
    }

    /// Drops all streams: the store is poisoned.
    pub fn clear(&mut self) {
        self.senders.clear();
        self.waiting.clear();
        self.receivers.clear();
        self.staging.clear();
        self.paced.clear();
    }

    /// Returns the time of the next step, if no event comes before.
    pub fn next_deadline(&self) -> Time {
        let StreamTuning { answer_max, install_max, mend_max, .. } = self.tuning;
        let budget = self.budget.ready_at();
        let senders = self.senders.iter().map(|s| {
            let answer = s.heard_at + if s.phase == sender::Phase::Ending { install_max } else { answer_max };
            let wants_to_read = s.tracks() && s.has_room() && !s.plan.is_round_over();
            let mended = s.mends_since.map_or(Time::NEVER, |since| since + mend_max);
            let reads = if wants_to_read { budget } else { Time::NEVER };
            answer.min(mended).min(s.begins_again_at).min(s.pace.next_at()).min(reads)
        });
        let receivers = self.receivers.values().filter(|r| !r.installing).map(|r| r.heard_at + install_max);
        senders.chain(receivers).min().unwrap_or(Time::NEVER)
    }

    /// Counts the streams that this OSD sends at this moment.
    pub fn running(&self) -> usize {
        self.senders.len()
    }

    /// Sets the bytes a second that streams may read here; for tests and tools.
    pub fn set_rate(&mut self, bytes_per_s: u64) {
        self.budget.set_limit(bytes_per_s);
    }

    /// Handles a message of a peer. The group has heard of the follower's commit index before.
    pub fn handle_message(&mut self, host: &mut impl Host, from: OsdId, msg: StreamMsg) {
        match msg.body {
            StreamBody::Open { needed } => self.handle_open(host, from, &msg, needed),
            StreamBody::Accept { .. }
            | StreamBody::Ack { .. }
            | StreamBody::Filling { .. }
            | StreamBody::Done { .. }
            | StreamBody::Wants { .. } => self.handle_follower(host, from, msg),
            StreamBody::Blocks { .. }
            | StreamBody::Decision { .. }
            | StreamBody::Fill { .. }
            | StreamBody::End { .. }
            | StreamBody::Digests { .. } => self.handle_contents(host, from, msg),
            StreamBody::Abort(reason) => {
                if self.senders.iter().any(|s| s.id == msg.stream && s.to == from) {
                    self.drop_sender(host, msg.stream, (reason, false));
                } else if self.receivers.get(&msg.pg).is_some_and(|r| r.id == msg.stream && r.from == from) {
                    self.drop_receiver(host, msg.pg, (reason, false));
                }
            }
        }
    }

    /// Does one step of every stream. The caller ensures that every effect that groups have applied is in the overlay, and that the
    /// paces that were lifted are.
    pub fn step(&mut self, host: &mut impl Host) {
        if self.senders.is_empty() && self.receivers.is_empty() && self.waiting.is_empty() {
            return;
        }
        self.begin_streams(host);
        self.step_senders(host);
        self.step_receivers(host);
    }

    /// Ends every stream on a lost connection, except for an installation.
    pub fn handle_link_lost(&mut self, host: &mut impl Host, osd: OsdId) {
        let lost = (StreamAbort::Failed, false);
        let senders: Vec<u64> = self.senders.iter().filter(|s| s.to == osd).map(|s| s.id).collect();
        senders.into_iter().for_each(|id| self.drop_sender(host, id, lost));
        let receivers: Vec<PgId> = self.receivers.values().filter(|r| r.from == osd).map(|r| r.pg).collect();
        receivers.into_iter().for_each(|pg| self.drop_receiver(host, pg, lost));
    }
}

/// Returns a message of a stream: PG, sending and receiving replica, number of the stream.
fn message(osd: OsdId, (pg, from, to, stream): (PgId, ReplicaId, ReplicaId, u64), body: StreamBody) -> Action {
    Action::Send { to: osd, message: Message::Stream(StreamMsg { pg, from, to, stream, body }) }
}
