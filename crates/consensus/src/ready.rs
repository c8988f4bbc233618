//! Work that raft wants done, in batches that overlap: many may be on their way to the disk.
//!
//! `node` fills a [`Ready`]; `group` performs it. Messages that must wait for durability wait here, so that
//! every message in a [`Ready`] may leave at once.

use crate::convert::{entry_from_raft, hard_state_from_raft, message_from_raft};
use crate::node::{Node, Role};
use bytes::Bytes;
use std::collections::VecDeque;
use types::planted::{Bug, on};
use types::store::{HardState, Persist};
use types::{EntryKind, Index, ReplicaId, Term};
use wire::{RaftKind, RaftMsg};

/// A committed entry; its payload is the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub term: Term,
    pub index: Index,
    pub kind: EntryKind,
    pub descriptor: Bytes,
}

/// A read-index answer: reads requested under `context` may be served once `index` is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadState {
    pub context: u64,
    pub index: Index,
}

/// Work of one drain. Reused: `Node::ready` appends.
#[derive(Debug, Default)]
pub struct Ready {
    /// Batches for the engine, which must get them before `messages` leave. Entries carry no payload yet.
    pub persists: Vec<Persist>,
    /// Messages that may leave now.
    pub messages: Vec<RaftMsg>,
    pub committed: Vec<Committed>,
    pub read_states: Vec<ReadState>,
    /// Followers that need entries which the log no longer holds.
    pub behind: Vec<ReplicaId>,
}

/// A ready that is not durable yet, and the messages that wait for it.
#[derive(Debug)]
struct Outstanding {
    number: u64,
    /// Whether the engine will report it; if not, it only waits for earlier ones.
    reported: bool,
    vote: (Term, Option<ReplicaId>),
    messages: Vec<RaftMsg>,
}

/// The queue between raft and the disk.
#[derive(Debug)]
pub(crate) struct Pipeline {
    outstanding: VecDeque<Outstanding>,
    /// Messages that wait no longer.
    outbox: Vec<RaftMsg>,
    /// Last hard state that was given to the engine.
    given: HardState,
    /// Term and vote known to be durable.
    durable_vote: (Term, Option<ReplicaId>),
    /// Number of the last ready.
    number: u64,
    /// The term whose vote requests have left.
    asked: Option<Term>,
}

impl Pipeline {
    pub fn new(hard_state: HardState) -> Pipeline {
        Pipeline {
            outstanding: VecDeque::new(),
            outbox: Vec::new(),
            given: hard_state,
            durable_vote: (hard_state.term, hard_state.vote),
            number: 0,
            asked: None,
        }
    }

    fn release(&mut self, messages: Vec<RaftMsg>) {
        if let Some(vote) = messages.iter().find(|m| m.kind == RaftKind::Vote) {
            self.asked = Some(vote.term);
        }
        self.outbox.extend(messages);
    }

    /// Notes that everything up to `ticket` is durable; returns the number of the last ready that raft may take for durable.
    fn persisted(&mut self, ticket: u64) -> u64 {
        assert!(ticket <= self.number, "ticket {ticket} was never given, the last is {}", self.number);
        let mut upto = ticket;
        while let Some(front) = self.outstanding.front() {
            if front.number > ticket && front.reported {
                break;
            }
            let done = self.outstanding.pop_front().expect("it has a front");
            upto = upto.max(done.number);
            self.durable_vote = done.vote;
            self.release(done.messages);
        }
        upto
    }
}

impl Node {
    /// Whether [`Node::ready`] would return any work.
    pub fn has_ready(&self) -> bool {
        !self.pipeline.outbox.is_empty() || self.raw.has_ready() || self.raw.store().has_behind()
    }

    /// Returns the ticket of the newest batch, durable or not; for tests.
    pub fn newest_ticket(&self) -> u64 {
        self.pipeline.number
    }

    /// Takes the messages that wait no longer.
    pub fn released(&mut self) -> std::vec::Drain<'_, RaftMsg> {
        self.pipeline.outbox.drain(..)
    }

    /// Returns the term for which this candidate's requests have left.
    pub(crate) fn asked(&self) -> Option<Term> {
        self.pipeline.asked
    }

    /// Whether this replica's device holds its term and its vote. A leader has them there, unless it is the only voter.
    pub fn has_durable_vote(&self) -> bool {
        self.pipeline.durable_vote == (self.term(), self.voted_for())
    }

    /// Drains raft into `out`. The caller applies committed entries at once, then calls [`Node::applied_to`].
    pub fn ready(&mut self, out: &mut Ready) {
        while self.raw.has_ready() {
            self.one_ready(out);
        }
        if out.messages.is_empty() {
            std::mem::swap(&mut out.messages, &mut self.pipeline.outbox);
        } else {
            out.messages.append(&mut self.pipeline.outbox);
        }
        for id in self.raw.mut_store().take_behind() {
            if self.probe_anew(id) {
                out.behind.push(ReplicaId(id));
            }
        }
        self.check_invariants();
    }

    /// Asserts what holds whenever raft is drained. No message that passes [`crate::check`] breaks any of it, and no start
    /// state that passes [`crate::start`].
    fn check_invariants(&self) {
        let (log, store, pipeline) = (&self.raw.raft.raft_log, self.raw.store(), &self.pipeline);
        let (term, last, durable) = (self.term(), log.last_index(), log.persisted);
        let (applied, commit) = (self.applied().0, log.committed);
        assert!(store.last() == last, "R5: raft's log ends at {last}, the log given to the engine at {}", store.last());
        assert!(log.unstable_entries().is_empty(), "R5: a drained raft keeps entries back from the engine");
        assert!(durable <= last, "R5: entries are durable up to {durable}, beyond the end of the log, {last}");
        assert!(commit <= last, "R5: the commit index {commit} lies beyond the end of the log, {last}");
        assert!(applied <= commit, "R1: entries are applied up to {applied}, beyond the commit index {commit}");
        assert!(applied <= durable, "R2: entries are applied up to {applied}, and durable here only up to {durable}");
        assert!(store.first() <= applied + 1, "R8: the log begins at {}, behind {applied} + 1", store.first());
        assert!(pipeline.given.commit.0 <= commit, "R5: the commit index fell to {commit}");
        let last_term = log.last_term();
        assert!(last_term <= term.0, "R5: the last entry has term {last_term}, the replica {term}");
        let newest = pipeline.outstanding.back().map_or(pipeline.durable_vote, |newest| newest.vote);
        let known = newest == (term, self.voted_for()) && (pipeline.given.term, pipeline.given.vote) == newest;
        assert!(known, "R5: the engine was not given the vote of {term}");
        assert!(
            pipeline.durable_vote.0 <= term,
            "R5: {} is durable, and the replica is at {term}",
            pipeline.durable_vote.0
        );
        if self.is_leader() {
            let progress = self.raw.raft.prs();
            let durable_vote = pipeline.durable_vote == (term, Some(self.id()));
            assert!(durable_vote || progress.is_singleton(), "R5: a leader of {term} whose own vote is not durable");
            assert!(last_term == term.0, "R5: the log of the leader of {term} ends with an older term");
            let matched = progress.iter().map(|(_, follower)| follower.matched).max().unwrap_or(0);
            assert!(matched <= last, "R5: {matched} is acknowledged, beyond the end of the leader's log, {last}");
        }
        if cfg!(debug_assertions) {
            let mut old = pipeline.durable_vote;
            for new in pipeline.outstanding.iter().map(|waiting| waiting.vote) {
                let same_term = old.0 == new.0 && (old.1.is_none() || old.1 == new.1);
                assert!(old.0 < new.0 || same_term, "R5: {new:?} after {old:?}: a term fell, or has two votes");
                old = new;
            }
        }
    }

    /// Makes raft probe `id` again, which it stopped because `id` needs compacted entries. A late rejection may have misled
    /// raft, and a stream will end: so the next probe starts from the known state. True when
    /// the follower is not known to reach the log.
    fn probe_anew(&mut self, id: u64) -> bool {
        let (first, last) = (self.raw.store().first(), self.raw.raft.raft_log.last_index());
        let Some(progress) = self.raw.raft.mut_prs().get_mut(id) else { return false };
        progress.become_probe();
        let behind = progress.matched + 1 < first;
        if behind {
            progress.next_idx = last + 1;
        }
        behind
    }

    fn one_ready(&mut self, out: &mut Ready) {
        let mut rd = self.raw.ready();
        assert!(rd.snapshot().is_empty(), "no snapshot message is ever stepped");
        self.pipeline.number = rd.number();
        let hard_state = hard_state_from_raft(&self.raw.raft.hard_state());
        let entries = rd.take_entries();
        let reported = rd.must_sync();
        assert!(reported || entries.is_empty());
        for entry in &entries {
            self.raw.mut_store().append(entry.term, entry.index, entry.data.clone());
        }
        // A commit index alone is not worth a write: it goes with the next one, and with every checkpoint.
        if reported {
            let mut changed = (hard_state != self.pipeline.given).then_some(hard_state);
            if let Some(written) = &mut changed
                && on(Bug::VoteNotDurable)
            {
                written.vote = None;
            }
            self.pipeline.given = hard_state;
            out.persists.push(Persist {
                replica: self.id(),
                ticket: rd.number(),
                hard_state: changed,
                entries: entries.into_iter().map(entry_from_raft).collect(),
            });
        }
        out.committed.extend(rd.take_committed_entries().into_iter().map(|e| Committed {
            term: Term(e.term),
            index: Index(e.index),
            kind: EntryKind::Normal,
            descriptor: e.data,
        }));
        for state in rd.take_read_states() {
            let context: [u8; 8] = state.request_ctx.as_slice().try_into().expect("we chose eight bytes");
            out.read_states.push(ReadState { context: u64::from_le_bytes(context), index: Index(state.index) });
        }
        let mut later = Vec::new();
        for mut msg in rd.take_persisted_messages() {
            self.mend_head(&mut msg);
            message_from_raft(self.pg(), msg, self.payload_len, &mut later);
        }
        // A leader's messages leave before its own batch is durable, unless its term and vote are not durable yet: otherwise
        // the term could be led twice.
        let vote = (hard_state.term, hard_state.vote);
        let leave = self.pipeline.durable_vote == vote;
        for mut msg in rd.take_messages() {
            self.mend_head(&mut msg);
            let out = if leave { &mut self.pipeline.outbox } else { &mut later };
            message_from_raft(self.config.pg, msg, self.payload_len, out);
        }
        self.raw.advance_append_async(rd);
        self.queue(vote, reported, later);
    }

    /// Corrects the head of an append. Raft joins entries to a waiting append without entries and does not compare its head
    /// (`try_batching` of raft 0.7). If the follower's next index fell in between, the head names a later entry. The entries
    /// are right, so the head becomes the entry before them.
    fn mend_head(&self, msg: &mut raft::eraftpb::Message) {
        let Some(first) = msg.entries.first().map(|e| e.index).filter(|first| *first != msg.index + 1) else { return };
        assert!(msg.msg_type == raft::eraftpb::MessageType::MsgAppend, "only an append carries entries");
        match self.raw.raft.raft_log.term(first - 1) {
            Ok(term) => (msg.index, msg.log_term) = (first - 1, term),
            // That entry was compacted meanwhile: an append without entries asks the follower for its position.
            Err(_) => msg.entries.clear(),
        }
    }

    /// Queues the messages of a ready that wait until it is durable.
    fn queue(&mut self, vote: (Term, Option<ReplicaId>), reported: bool, mut later: Vec<RaftMsg>) {
        let pipeline = &mut self.pipeline;
        let number = pipeline.number;
        if on(Bug::AckBeforeDurable) {
            pipeline.outbox.append(&mut later);
        }
        if on(Bug::VoteReleasedEarly) {
            pipeline.outbox.extend(later.extract_if(.., |m| m.kind == RaftKind::VoteResponse && !m.reject));
        }
        if !reported && pipeline.outstanding.is_empty() {
            assert_eq!(pipeline.durable_vote, vote, "a vote changes only with a write");
            pipeline.release(later);
            self.raw.on_persist_ready(number);
        } else {
            pipeline.outstanding.push_back(Outstanding { number, reported, vote, messages: later });
        }
        if self.is_leader() && on(Bug::OwnLogCountedEarly) {
            self.raw.on_persist_ready(number);
        }
    }

    /// Notes that the engine has made `ticket` durable, and everything before it.
    ///
    /// # Panics
    /// When the ticket was never given.
    pub fn persisted(&mut self, ticket: u64) {
        if self.pipeline.outstanding.front().is_none_or(|front| front.number > ticket) {
            return;
        }
        let upto = self.pipeline.persisted(ticket);
        self.raw.on_persist_ready(upto);
        debug_assert!(self.role() != Role::Leader || self.term() >= self.pipeline.durable_vote.0);
    }
}
