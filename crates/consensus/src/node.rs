//! The group's interface to raft: one replica, its commands and its state.
//!
//! Settings are explicit (R5). Pre-vote is on. Check-quorum is off and there are no ticks, because elections and leases are
//! the group's (R3). Commit indexes travel with the next append or lease renewal instead of in messages of their
//! own (`skip_bcast_commit`). That saves a frame per follower and write, and costs a follower at most one
//! renewal of delay in applying. Appends of one turn are joined.

use crate::check::StepError;
use crate::convert::{entry_to_raft, kind_to_raft, members_to_raft, message_to_raft, step_to_raft};
use crate::ready::Pipeline;
use crate::start::{Start, StartError, build};
use crate::storage::Storage;
use crate::{MSG_DESCRIPTORS_MAX, NUMBER_MAX};
use bytes::Bytes;
use raft::eraftpb::{self, MessageType};
use raft::{ProgressState, RawNode, ReadOnlyOption, StateRole};
use std::collections::BTreeSet;
use types::limits::INFLIGHT_MSGS_MAX;
use types::map::{MembersStep, Membership};
use types::planted::{Bug, on};
use types::{Index, PgId, ReplicaId, Term};
use wire::{RaftKind, RaftMsg};

/// Election timeout in ticks, which are never counted: raft's own timer cannot elect.
const NEVER_TICKS: usize = 1 << 40;

/// Identity of this replica.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub pg: PgId,
    pub id: ReplicaId,
    /// Returns the payload bytes of the command in a descriptor; zero for a descriptor that it cannot read.
    pub payload_len: fn(&[u8]) -> u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Follower,
    PreCandidate,
    Candidate,
    Leader,
}

/// A leader's knowledge of one other replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    pub matched: Index,
    /// True when entries are streamed to the follower, or it has all of them; otherwise raft probes, one message at a time. Raft
    /// goes on probing a follower that has every entry until the next one comes; such a follower is not behind.
    pub streaming: bool,
}

/// One replica's raft.
pub struct Node {
    pub(crate) raw: RawNode<Storage>,
    pub(crate) pipeline: Pipeline,
    pub(crate) payload_len: fn(&[u8]) -> u64,
    pub(crate) config: Config,
    applied: Index,
}

fn raft_config(id: ReplicaId, applied: Index) -> raft::Config {
    raft::Config {
        id: id.0,
        election_tick: NEVER_TICKS,
        heartbeat_tick: 1,
        applied: applied.0,
        max_size_per_msg: MSG_DESCRIPTORS_MAX as u64,
        max_inflight_msgs: INFLIGHT_MSGS_MAX,
        check_quorum: false,
        pre_vote: true,
        min_election_tick: NEVER_TICKS,
        max_election_tick: NEVER_TICKS + 1,
        read_only_option: ReadOnlyOption::Safe,
        skip_bcast_commit: true,
        batch_append: true,
        priority: 0,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: raft::NO_LIMIT,
    }
}

impl Node {
    /// Makes a replica from the state that its disk returned.
    ///
    /// # Errors
    /// When that state contradicts itself: damage of this PG (R11).
    pub fn new(config: Config, start: &Start<'_>) -> Result<Node, StartError> {
        if config.id.0 == 0 || config.id.0 > NUMBER_MAX {
            return Err(StartError::OutOfRange);
        }
        let storage = build(start, config.payload_len)?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config(config.id, start.applied.0), storage, &logger)
            .expect("raft takes what `build` has checked");
        Ok(Node {
            raw,
            pipeline: Pipeline::new(start.hard_state),
            payload_len: config.payload_len,
            config,
            applied: start.applied.0,
        })
    }

    pub fn id(&self) -> ReplicaId {
        self.config.id
    }

    pub fn pg(&self) -> PgId {
        self.config.pg
    }

    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::PreCandidate => Role::PreCandidate,
            StateRole::Candidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        }
    }

    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Returns the leader of this term, if known.
    pub fn leader(&self) -> Option<ReplicaId> {
        let id = self.raw.raft.leader_id;
        (id != raft::INVALID_ID).then_some(ReplicaId(id))
    }

    /// Returns the replica for which this one voted in this term.
    pub fn voted_for(&self) -> Option<ReplicaId> {
        let id = self.raw.raft.vote;
        (id != raft::INVALID_ID).then_some(ReplicaId(id))
    }

    /// Whether the vote requests of this term have left.
    pub fn has_asked(&self) -> bool {
        self.asked() == Some(self.term())
    }

    pub fn is_member(&self, id: ReplicaId) -> bool {
        self.raw.raft.prs().get(id.0).is_some()
    }

    pub fn promotable(&self) -> bool {
        self.raw.raft.promotable()
    }

    pub fn commit_index(&self) -> Index {
        Index(self.raw.raft.raft_log.committed)
    }

    pub fn last_index(&self) -> Index {
        Index(self.raw.raft.raft_log.last_index())
    }

    pub fn first_index(&self) -> Index {
        Index(self.raw.store().first())
    }

    pub fn applied(&self) -> Index {
        self.applied
    }

    /// Counts the descriptors in memory.
    pub fn resident(&self) -> usize {
        self.raw.store().len()
    }

    /// Returns the term at `index`, if the log still knows it.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        let known = index.0 + 1 >= self.raw.store().first() && index.0 <= log.last_index();
        known.then(|| log.term(index.0).ok().map(Term)).flatten()
    }

    /// Iterates over the descriptors of the entries above the applied index.
    pub fn unapplied(&self) -> impl Iterator<Item = &[u8]> {
        let unstable = self.raw.raft.raft_log.unstable_entries();
        // Entries that raft has not handed over yet take the place of stored ones.
        let stored = unstable.first().map_or(u64::MAX, |first| first.index - 1);
        let fresh = unstable.iter().filter(|entry| entry.index > self.applied.0).map(|entry| &*entry.data);
        self.raw.store().descriptors(self.applied.0, stored).chain(fresh)
    }

    /// Returns the payload bytes of the entries above the commit index. Exact when raft is drained.
    pub fn uncommitted_payload(&self) -> u64 {
        self.payload_after(self.commit_index())
    }

    /// Returns the payload bytes of the entries above `index`.
    pub fn payload_after(&self, index: Index) -> u64 {
        let stored = self.raw.store().payload_between(index.0, self.raw.store().last());
        let unstable = self.raw.raft.raft_log.unstable_entries();
        stored + unstable.iter().filter(|e| e.index > index.0).map(|e| (self.payload_len)(&e.data)).sum::<u64>()
    }

    /// Returns this leader's knowledge of `id`; `None` when this replica does not lead or `id` is no member.
    pub fn follower(&self, id: ReplicaId) -> Option<Follower> {
        let progress = self.raw.raft.prs().get(id.0).filter(|_| self.is_leader())?;
        let matched = Index(progress.matched);
        let streaming = progress.state == ProgressState::Replicate || matched == self.last_index();
        Some(Follower { matched, streaming })
    }

    /// Checks a peer's message and steps it.
    ///
    /// # Errors
    /// When it was not stepped: harmlessly, or because no honest cluster sends it (R5).
    pub fn step(&mut self, msg: &RaftMsg) -> Result<(), StepError> {
        self.check(msg)?;
        let kind = kind_to_raft(msg.kind);
        // Raft returns errors for messages that it drops; messages on which it can panic were refused above.
        let _ = self.raw.step(message_to_raft(msg, kind));
        if self.is_leader() && on(Bug::OldTermCommitted) {
            let raft = &mut self.raw.raft;
            let (index, _) = raft.mut_prs().maximal_committed_index();
            let term = raft.raft_log.term(index).unwrap_or_default();
            raft.raft_log.maybe_commit(index, term);
        }
        Ok(())
    }

    /// Commits what so many of these replicas hold, whatever the members say: planted bugs count so.
    pub fn miscount(&mut self, replicas: &[ReplicaId], needed: usize) {
        let raft = &mut self.raw.raft;
        let matched = |id: &ReplicaId| raft.prs().get(id.0).map_or(0, |progress| progress.matched);
        let mut held: Vec<u64> = replicas.iter().map(matched).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let index = held.get(needed - 1).copied().unwrap_or(0);
        let term = raft.term;
        if raft.raft_log.term(index) == Ok(term) {
            raft.raft_log.maybe_commit(index, term);
        }
    }

    /// Appends entries to the log of this leader and sends them. Returns the index of the first; the others follow it.
    /// `None` when this replica takes no proposals now.
    ///
    /// # Panics
    /// Without entries.
    pub fn propose(&mut self, descriptors: impl Iterator<Item = Bytes>) -> Option<Index> {
        if !self.is_leader() || self.is_transferring() || self.last_index().0 >= NUMBER_MAX {
            return None;
        }
        // Raft gives each entry its index and term.
        let entries: Vec<eraftpb::Entry> = descriptors.map(|data| entry_to_raft(0, 0, data)).collect();
        assert!(!entries.is_empty(), "a proposal has entries");
        let first = Index(self.last_index().0 + 1);
        let msg = eraftpb::Message {
            msg_type: MessageType::MsgPropose,
            from: self.config.id.0,
            entries: entries.into(),
            ..Default::default()
        };
        self.raw.step(msg).ok().map(|()| first)
    }

    /// Appends an entry that is committed without any other replica: the first step of a forced recovery (ADR 0020). The entry
    /// has a term of its own, in which this replica has voted for itself, so no leader of old has an entry like it. Entry, term,
    /// vote and commit index become durable together. False when a number is exhausted.
    pub fn force(&mut self, descriptor: Bytes) -> bool {
        if self.last_index().0 >= NUMBER_MAX || self.term().0 >= NUMBER_MAX {
            return false;
        }
        let (term, index) = (self.raw.raft.term + 1, self.raw.raft.raft_log.last_index() + 1);
        let raft = &mut self.raw.raft;
        raft.become_follower(term, raft::INVALID_ID);
        raft.vote = self.config.id.0;
        raft.raft_log.append(&[entry_to_raft(index, term, descriptor)]);
        raft.raft_log.commit_to(index);
        true
    }

    /// Starts an election attempt (with a pre-vote). False when this replica may not: it is no voter, leads already, has a
    /// committed entry to apply (a membership step may be among them, ADR 0016), or is the only voter and its log is not
    /// durable yet (raft asserts that).
    pub fn campaign(&mut self) -> bool {
        let log = &self.raw.raft.raft_log;
        let alone = self.raw.raft.prs().is_singleton() && log.persisted != log.last_index();
        let unapplied = self.applied < self.commit_index();
        if !self.promotable() || self.is_leader() || alone || unapplied || self.term().0 >= NUMBER_MAX {
            return false;
        }
        self.raw.campaign().is_ok()
    }

    /// Stops leading without naming a successor; the term stays.
    pub fn step_down(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
    }

    /// Transfers leadership to `to`: raft tells it to campaign once its log is complete.
    pub fn transfer(&mut self, to: ReplicaId) {
        self.raw.transfer_leader(to.0);
    }

    pub fn abort_transfer(&mut self) {
        self.raw.raft.abort_leader_transfer();
    }

    pub fn is_transferring(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// Asks a majority whether this replica still leads. The answer is a [`crate::ReadState`]; another call
    /// with the same context repeats the query. Raft sends no query when it cannot.
    pub fn read_index(&mut self, context: u64) {
        self.raw.read_index(context.to_le_bytes().to_vec());
    }

    /// Makes the heartbeat message that an item of a lease renewal stands for (R3).
    pub fn heartbeat(&self, from: ReplicaId, term: Term, commit: Index) -> RaftMsg {
        self.bare(RaftKind::Heartbeat, from, term, commit)
    }

    /// Makes the answer to a heartbeat that a lease ack stands for: it makes this leader send lost entries again.
    pub fn heartbeat_response(&self, from: ReplicaId) -> RaftMsg {
        self.bare(RaftKind::HeartbeatResponse, from, self.term(), Index(0))
    }

    /// Makes the acknowledgement that a stream's end stands for (R12): `from` holds everything up to `index`.
    pub fn append_response(&self, from: ReplicaId, index: Index) -> RaftMsg {
        RaftMsg { index, ..self.bare(RaftKind::AppendResponse, from, self.term(), Index(0)) }
    }

    fn bare(&self, kind: RaftKind, from: ReplicaId, term: Term, commit: Index) -> RaftMsg {
        RaftMsg {
            pg: self.config.pg,
            from,
            to: self.config.id,
            term,
            kind,
            log_term: Term(0),
            index: Index(0),
            commit,
            commit_term: Term(0),
            reject: false,
            reject_hint: Index(0),
            context: Bytes::new(),
            entries: Vec::new(),
        }
    }

    /// Returns the index of the last entry that is known to be durable here.
    pub fn durable_index(&self) -> Index {
        Index(self.raw.raft.raft_log.persisted)
    }

    /// Returns term and index of the last entry that is known to be durable here.
    pub fn durable_end(&self) -> (Term, Index) {
        let index = self.durable_index();
        (self.term_at(index).unwrap_or(Term(0)), index)
    }

    /// Tells raft that messages to `id` may be lost.
    pub fn report_unreachable(&mut self, id: ReplicaId) {
        self.raw.report_unreachable(id.0);
    }

    /// Notes that everything up to `index` has been applied.
    pub fn applied_to(&mut self, index: Index) {
        assert!(self.applied <= index && index <= self.commit_index(), "applied {} to {index}", self.applied);
        self.applied = index;
        self.raw.advance_apply_to(index.0);
    }

    /// Changes the members, which the last applied entry has done: `step` makes `now` of `before`. A candidacy ends, and
    /// the leadership of a replica that is no voter any more: raft has no place for either.
    ///
    /// # Panics
    /// When raft comes to other members.
    pub fn change(&mut self, step: MembersStep, before: &Membership, now: &Membership) {
        let changes = step_to_raft(step, before);
        if changes.is_empty() {
            return;
        }
        let ends = if self.is_leader() { !now.is_voter(self.config.id) } else { self.role() != Role::Follower };
        if ends {
            self.step_down();
        }
        let apply = |change| self.raw.apply_conf_change(change).expect("the group has checked the step");
        let conf = changes.iter().map(apply).last().expect("there are changes");
        let sorted = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        let sets = |conf: &eraftpb::ConfState| {
            (sorted(&conf.voters), sorted(&conf.voters_outgoing), sorted(&conf.learners), sorted(&conf.learners_next))
        };
        assert_eq!(sets(&conf), sets(&members_to_raft(now)), "raft and the group disagree about the members");
    }

    /// Drops descriptors below `first`, but never above the applied index.
    pub fn compact(&mut self, first: Index) {
        let first = first.0.min(self.applied.0 + 1).max(self.first_index().0);
        self.raw.mut_store().compact(first);
    }
}
