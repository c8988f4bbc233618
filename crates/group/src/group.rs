//! One placement group on one OSD: its state, its birth, and the order of a turn.
//!
//! The loop comes in with `handle_*` for each event and ends its turn with [`Group::poll`]; actions go out.
//! The parts live beside this file, one concept each: `admit`, `apply`, `drain`, `reads`, `listing`, `peers`,
//! `transfer`, `report`.
//!
//! Invariant: no clock, no I/O, no randomness but a seed. Every request gets exactly one reply.

use crate::admit::Queue;
use crate::custody::Custody;
use crate::decision::Decision;
use crate::election::Election;
use crate::lease::Leading;
use crate::reads::Reads;
use crate::transfer::Transfer;
use crate::{Action, GroupConfig, descriptor};
use bytes::Bytes;
use consensus::{Config, Node, Ready, Start, StartError, StepError};
use std::collections::VecDeque;
use types::planted::{Bug, on};
use types::rng::Rng;
use types::store::{DecisionState, Recovered, ReplicaIdentity};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time};

/// Why a replica cannot take part (R5, R11): this PG is quarantined, the OSD goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("{pg} {replica}: the store is damaged: {reason}")]
    Damaged { pg: PgId, replica: ReplicaId, reason: String },
    #[error("{pg} {replica}: the checkpoint cannot be read")]
    Decision { pg: PgId, replica: ReplicaId, source: crate::decision::DecisionError },
    #[error("{pg} {replica}: what the disk gave back contradicts itself")]
    Start { pg: PgId, replica: ReplicaId, source: StartError },
}

/// One replica of one PG.
pub struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) identity: ReplicaIdentity,
    pub(crate) node: Node,
    pub(crate) decision: Decision,
    /// Term of the applied index.
    pub(crate) applied_term: Term,
    pub(crate) election: Election,
    /// While this replica leads.
    pub(crate) leading: Option<Leading>,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) reports: crate::unreached::Reports,
    pub(crate) queue: Queue,
    /// Whom to tell of each proposed entry, in index order; all of the term that is led now.
    pub(crate) waiting: VecDeque<(Index, crate::admit::Waiter)>,
    pub(crate) reads: Reads,
    pub(crate) custody: Custody,
    pub(crate) last_io: Option<Time>,
    pub(crate) vouched: bool,
    pub(crate) full: bool,
    pub(crate) blocked: bool,
    pub(crate) quarantine: Option<String>,
    /// It may lack what it acknowledged, until its log ends here or behind (`doubt`).
    pub(crate) doubt: Option<(Term, Index)>,
    /// What a leader here leaves uncommitted at most: every member has room for it.
    pub(crate) propose_payload_max: u64,
    ready: Ready,
}

impl Group {
    /// A replica as mount found it. Entries between its checkpoint and its commit are applied (again) by
    /// the first `poll`.
    ///
    /// # Errors
    /// When the replica may not take part; it is to be reported as quarantined.
    pub fn new(config: GroupConfig, recovered: Recovered, now: Time, seed: u64) -> Result<Group, GroupError> {
        let Recovered { identity, hard_state, checkpoint, before, entries, lost, in_doubt: _, damage } = recovered;
        let (pg, replica) = (identity.pg, identity.replica);
        if let Some(reason) = damage {
            return Err(GroupError::Damaged { pg, replica, reason });
        }
        if let Some(lost) = lost.first() {
            let reason = format!("the payload of entry {} is lost", lost.index);
            return Err(GroupError::Damaged { pg, replica, reason });
        }
        let decision = match checkpoint.bytes.is_empty() {
            true => Decision::fresh(&identity.members),
            false => {
                Decision::decode(&checkpoint.bytes).map_err(|source| GroupError::Decision { pg, replica, source })?
            }
        };
        let start = Start {
            hard_state,
            conf: decision.conf.clone(),
            applied: (checkpoint.index, checkpoint.term),
            before,
            entries: &entries,
        };
        let node_config = Config { pg, id: replica, payload_len: descriptor::payload_len };
        let node = Node::new(node_config, &start).map_err(|source| GroupError::Start { pg, replica, source })?;
        let rank = decision.conf.voters.iter().filter(|id| **id < replica).count() as u32;
        let election = Election::new(config.timing, now, rank, Rng::new(seed));
        Ok(Group {
            propose_payload_max: config.uncommitted_payload_max,
            config,
            node,
            decision,
            applied_term: checkpoint.term,
            election,
            leading: None,
            transfer: None,
            reports: crate::unreached::Reports::default(),
            queue: Queue::default(),
            waiting: VecDeque::new(),
            reads: Reads::default(),
            custody: Custody::default(),
            last_io: None,
            vouched: false,
            full: false,
            blocked: false,
            quarantine: None,
            doubt: None,
            ready: Ready::default(),
            identity,
        })
    }

    /// Decision state of a new replica: index 0, all members voters.
    pub fn fresh_decision(identity: &ReplicaIdentity) -> Bytes {
        Decision::fresh(&identity.members).encode()
    }

    /// Exact as of the applied index (R1).
    pub fn decision(&self) -> DecisionState {
        DecisionState {
            replica: self.identity.replica,
            index: self.node.applied(),
            term: self.applied_term,
            bytes: self.decision.encode(),
        }
    }

    /// Payload of the entries above the commit index, in bytes (R9).
    pub fn uncommitted_payload(&self) -> u64 {
        self.node.uncommitted_payload()
    }

    pub fn identity(&self) -> &ReplicaIdentity {
        &self.identity
    }

    pub fn applied(&self) -> Index {
        self.node.applied()
    }

    pub fn term(&self) -> Term {
        self.node.term()
    }

    pub fn commit(&self) -> Index {
        self.node.commit_index()
    }

    /// The last entry of its log, durable or not.
    pub fn last_index(&self) -> Index {
        self.node.last_index()
    }

    /// The term of an entry, if the log still knows it.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        self.node.term_at(index)
    }

    /// Whether raft takes this replica for the leader of its term, in office or not.
    pub fn is_elected(&self) -> bool {
        self.node.is_leader()
    }

    /// Where the leader is, as far as this replica knows.
    pub fn leader(&self) -> Option<OsdId> {
        self.osd_of(self.node.leader()?)
    }

    /// Whether this replica leads and has taken office.
    pub fn is_leader(&self) -> bool {
        self.current().is_some()
    }

    /// The term of office, unless raft has left it since.
    pub(crate) fn current(&self) -> Option<&Leading> {
        let leads = self.quarantine.is_none() && self.node.is_leader();
        self.leading.as_ref().filter(|leading| leads && leading.term == self.node.term())
    }

    /// Whether requests may be taken: in office, first own entry applied, not handing over (R3).
    pub(crate) fn serves(&self) -> bool {
        let applied = self.node.applied();
        let began = |own_index| own_index <= applied || on(Bug::ServedBeforeOwnEntry);
        let handed_over = self.transfer.is_some() && !on(Bug::LeaseKeptOverGoodbye);
        !handed_over && self.current().is_some_and(|leading| began(leading.own_index))
    }

    pub(crate) fn osd_of(&self, replica: ReplicaId) -> Option<OsdId> {
        self.decision.members.iter().find(|m| m.replica == replica).map(|m| m.osd)
    }

    pub(crate) fn replica_on(&self, osd: OsdId) -> Option<ReplicaId> {
        self.decision.members.iter().find(|m| m.osd == osd).map(|m| m.replica)
    }

    /// Where a client should go instead.
    pub(crate) fn hint(&self) -> Option<OsdId> {
        match &self.transfer {
            Some(transfer) => Some(transfer.to),
            None => self.leader().filter(|osd| *osd != self.config.osd),
        }
    }

    /// How many voters go before this one when `without` is gone.
    pub(crate) fn rank(&self, without: Option<ReplicaId>) -> u32 {
        let me = self.identity.replica;
        self.decision.conf.voters.iter().filter(|id| **id < me && Some(**id) != without).count() as u32
    }

    /// A peer sent what no honest cluster sends, or our own log says what we cannot read (R5).
    pub(crate) fn quarantined(&mut self, reason: String, actions: &mut Vec<Action>) {
        if self.quarantine.is_none() {
            self.end(reason.clone(), actions);
            actions.push(Action::Quarantined(reason));
        }
    }

    /// Its OSD lets go of this replica, because it is damaged or dropped: everybody who waits for it is answered,
    /// and it takes no further part. The others need not wait for a leader that will not speak again.
    pub fn end(&mut self, reason: String, actions: &mut Vec<Action>) {
        if self.quarantine.is_none() {
            let led = self.current().is_some();
            self.quarantine = Some(reason);
            self.leave_office(actions);
            if led {
                self.say_goodbye(actions);
            }
        }
    }

    /// Judges the outcome of a step; true when the message went in.
    pub(crate) fn stepped(&mut self, result: Result<(), StepError>, actions: &mut Vec<Action>) -> bool {
        match result {
            Ok(()) => true,
            Err(StepError::Ignored(_)) => false,
            Err(StepError::Violation(violation)) => {
                self.quarantined(violation.to_string(), actions);
                false
            }
        }
    }

    /// What the engine can produce begins here; raft may forget the descriptors below.
    pub fn set_first_index(&mut self, first: Index) {
        self.node.compact(first);
    }

    /// From the engine: `full` refuses writes that need space, `blocked` holds proposals back.
    pub fn set_pressure(&mut self, full: bool, blocked: bool) {
        self.full = full;
        self.blocked = blocked;
    }

    /// How much payload this PG may hold before it commits (R9): in the log here, and in the smallest share of
    /// any member. Both change with the number of PGs that share a log.
    pub fn set_uncommitted_max(&mut self, bytes: u64, least_bytes: u64) {
        self.config.uncommitted_payload_max = bytes;
        self.propose_payload_max = least_bytes.min(bytes);
    }

    /// `vouched`: the OSD of this PG's leader was heard within one promise, and its last full list names it
    /// leader here (`Pairs::vouches`). To be set before a pre-vote is handed in.
    pub fn set_vouched(&mut self, vouched: bool) {
        self.vouched = vouched;
    }

    /// The engine has made `ticket` durable, and everything of this replica before it.
    pub fn handle_persisted(&mut self, now: Time, ticket: u64, _actions: &mut Vec<Action>) {
        if self.quarantine.is_some() {
            return;
        }
        let campaigning = self.node.role() == consensus::Role::Candidate;
        let before = self.node.has_asked();
        self.node.persisted(ticket);
        if campaigning && !before && self.node.has_asked() {
            self.election.asked(now);
        }
    }

    /// End of turn: elections that are due, then one proposal of everything admitted, then all that raft
    /// wants done.
    pub fn poll(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.quarantine.is_some() {
            return;
        }
        self.judge_doubt(now, actions);
        self.sync_office(now, actions);
        self.poll_election(now, actions);
        self.poll_transfer(now);
        self.sync_office(now, actions);
        if self.quarantine.is_some() {
            return;
        }
        self.propose();
        self.poll_read_index(now);
        self.drain(now, actions);
    }

    /// Performs what raft wants, in the order that keeps every promise: entries to the engine, then
    /// messages, then what is committed.
    fn drain(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut ready = std::mem::take(&mut self.ready);
        while self.quarantine.is_none() && self.node.has_ready() {
            self.node.ready(&mut ready);
            self.perform(now, &mut ready, actions);
            self.sync_office(now, actions);
        }
        self.ready = ready;
        self.custody.clear();
        if self.quarantine.is_none() {
            self.start_confirmed_reads(actions);
            self.compact_resident();
        }
        assert!(self.node.applied() <= self.node.commit_index());
    }

    /// When `poll` wants to be called next, if nothing happens before.
    pub fn next_deadline(&self) -> Time {
        if self.quarantine.is_some() {
            return Time::NEVER;
        }
        match self.current() {
            None if self.node.promotable() => self.election.next_deadline(),
            None => Time::NEVER,
            Some(leading) => {
                let transfer = self.transfer.as_ref().map_or(Time::NEVER, |t| t.until);
                (leading.heard_at() + self.config.timing.echo_max).min(transfer).min(self.reads.retry_at())
            }
        }
    }
}
