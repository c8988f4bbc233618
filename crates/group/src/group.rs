//! One placement group on one OSD: its state, its creation, and the order of a turn.
//!
//! The loop calls `handle_*` for each event, and ends its turn with [`Group::poll`] where [`Group::wants_poll`] says so; actions are
//! the output.
//! The parts live beside this file, one concept each: `admit`, `apply`, `reads`, `renewal`, `leadership`, `peers`,
//! `transfer`, `report` and others.
//!
//! Invariant: no clock, no I/O, no randomness but a seed. Every request gets exactly one reply.

use crate::admit::Queue;
use crate::decision::Decision;
use crate::election::Election;
use crate::lease::{Heard, Leading};
use crate::pending_payloads::PendingPayloads;
use crate::reads::Reads;
use crate::transfer::Transfer;
use crate::{Action, GroupConfig, descriptor};
use bytes::Bytes;
use consensus::{Config, Node, Ready, Start, StartError, StepError};
use std::collections::VecDeque;
use types::map::Member;
use types::planted::{Bug, on};
use types::rng::Rng;
use types::store::{DecisionState, HardState, Recovered, ReplicaIdentity};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time};

/// Reason why a replica cannot take part (R5, R11): this PG is quarantined, the OSD goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("{pg} {replica}: the replica has failed: {reason}")]
    Failed { pg: PgId, replica: ReplicaId, reason: String },
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
    /// Set while this replica leads.
    pub(crate) leading: Option<Leading>,
    /// The newest lease renewal that was accepted, unless its sender's OSD has come back since.
    pub(crate) heard: Option<Heard>,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) changing: crate::members::Changing,
    pub(crate) strangers: crate::peers::Strangers,
    pub(crate) reports: crate::unreached::Reports,
    pub(crate) queue: Queue,
    pub(crate) holds: crate::hold::Holds,
    pub(crate) fills: crate::fills::Fills,
    /// Waiters of the proposed entries, in index order; all entries are of the present term of leadership.
    pub(crate) waiting: VecDeque<(Index, crate::admit::Waiter)>,
    pub(crate) reads: Reads,
    pub(crate) pending_payloads: PendingPayloads,
    pub(crate) last_io: Option<Time>,
    pub(crate) leader_recently_heard: bool,
    pub(crate) full: bool,
    pub(crate) blocked: bool,
    /// Payload that may be proposed now, for the pace of slow homes; one write may exceed it. `None`: any.
    pub(crate) write_room: Option<u64>,
    /// Payload proposed since the loop took the count.
    pub(crate) proposed: u64,
    pub(crate) quarantine: Option<String>,
    /// All contents at the checkpoint index are here. A replica without them votes and acknowledges, but does not serve (R16).
    pub(crate) whole: bool,
    /// Most payload that this replica leaves uncommitted as a leader: every member has space for it.
    pub(crate) propose_payload_max: u64,
    ready: Ready,
}

impl Group {
    /// Makes a replica from the state that mount found. Entries between its checkpoint and its commit are applied (again) by
    /// the first `poll`.
    ///
    /// # Errors
    /// When the replica may not take part; the OSD reports it as quarantined.
    ///
    /// # Panics
    /// When the configuration has a fault; the message names all.
    pub fn new(config: GroupConfig, recovered: Recovered, now: Time, seed: u64) -> Result<Group, GroupError> {
        config.validate().unwrap_or_else(|faults| panic!("{faults}"));
        let Recovered { identity, hard_state, checkpoint, before, entries, lost, failure, fills } = recovered;
        let (pg, replica) = (identity.pg, identity.replica);
        if let Some(failure) = failure {
            return Err(GroupError::Failed { pg, replica, reason: failure.reason });
        }
        if let Some(lost) = lost.first() {
            let reason = format!("the payload of entry {} is lost", lost.index);
            return Err(GroupError::Failed { pg, replica, reason });
        }
        let decision = match checkpoint.bytes.is_empty() {
            true => Decision::fresh(identity.conf_epoch, &identity.members),
            false => {
                Decision::decode(&checkpoint.bytes).map_err(|source| GroupError::Decision { pg, replica, source })?
            }
        };
        let steps = entries.iter().filter(|e| e.index > checkpoint.index).map(|e| (e.index, &*e.descriptor));
        let forced = crate::members::forced_step(replica, &entries);
        let proven = crate::members::proven_commit(decision.members.epoch, steps).max(forced);
        let hard_state = HardState { commit: hard_state.commit.max(proven.unwrap_or_default()), ..hard_state };
        let start = Start {
            hard_state,
            members: &decision.members,
            applied: (checkpoint.index, checkpoint.term),
            before,
            entries: &entries,
        };
        let node_config = Config { pg, id: replica, payload_len: descriptor::payload_len };
        let node = Node::new(node_config, &start).map_err(|source| GroupError::Start { pg, replica, source })?;
        let rank = rank(&decision.members.voters, replica, !fills, None);
        let election = Election::new(config.timing, now, rank, Rng::new(seed));
        Ok(Group {
            propose_payload_max: config.uncommitted_payload_max,
            config,
            node,
            decision,
            applied_term: checkpoint.term,
            election,
            leading: None,
            heard: None,
            transfer: None,
            changing: crate::members::Changing::new(replica, checkpoint.index, &entries),
            strangers: crate::peers::Strangers::default(),
            reports: crate::unreached::Reports::default(),
            queue: Queue::default(),
            holds: crate::hold::Holds::default(),
            fills: crate::fills::Fills::default(),
            waiting: VecDeque::new(),
            reads: Reads::default(),
            pending_payloads: PendingPayloads::default(),
            last_io: None,
            leader_recently_heard: false,
            full: false,
            blocked: false,
            write_room: None,
            proposed: 0,
            quarantine: None,
            whole: !fills,
            ready: Ready::default(),
            identity,
        })
    }

    /// Makes the decision state of a new replica: index 0, all members voters.
    pub fn fresh_decision(identity: &ReplicaIdentity) -> Bytes {
        Decision::fresh(identity.conf_epoch, &identity.members).encode()
    }

    /// Returns the decision state, exact at the applied index (R1).
    pub fn decision(&self) -> DecisionState {
        DecisionState {
            replica: self.identity.replica,
            index: self.node.applied(),
            term: self.applied_term,
            bytes: self.decision.encode(),
        }
    }

    /// Returns the payload of the entries above the commit index, in bytes (R9).
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

    /// Returns the last entry of its log, durable or not.
    pub fn last_index(&self) -> Index {
        self.node.last_index()
    }

    /// Returns the term of an entry, if the log still knows it.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        self.node.term_at(index)
    }

    /// Whether raft takes this replica for the leader of its term, whether or not it has taken over yet.
    pub fn is_elected(&self) -> bool {
        self.node.is_leader()
    }

    /// Returns the leader's OSD, as far as this replica knows.
    pub fn leader(&self) -> Option<OsdId> {
        self.osd_of(self.node.leader()?)
    }

    /// Whether this replica leads and has taken over leadership.
    pub fn is_leader(&self) -> bool {
        self.current().is_some()
    }

    /// Returns the present term of leadership, unless raft has left it since.
    pub(crate) fn current(&self) -> Option<&Leading> {
        let leads = self.quarantine.is_none() && self.node.is_leader();
        self.leading.as_ref().filter(|leading| leads && leading.term == self.node.term())
    }

    /// Whether requests may be taken: this replica leads, its first own entry is applied, and it does not hand over (R3).
    pub fn serves(&self) -> bool {
        let applied = self.node.applied();
        let began = |leading: &Leading| leading.term_start_index <= applied || on(Bug::ServedBeforeOwnEntry);
        self.leads_whole() && self.current().is_some_and(began)
    }

    /// Whether this replica leads with all contents, and does not hand over.
    pub(crate) fn leads_whole(&self) -> bool {
        let handed_over = self.transfer.is_some() && !on(Bug::LeaseKeptAfterRelease);
        let whole = self.whole || on(Bug::FillingServes);
        whole && !handed_over && self.current().is_some()
    }

    pub(crate) fn osd_of(&self, replica: ReplicaId) -> Option<OsdId> {
        self.decision.members.osd_of(replica)
    }

    pub(crate) fn replica_on(&self, osd: OsdId) -> Option<ReplicaId> {
        // A failed replica and its successor may share an OSD; only the successor speaks.
        self.decision.members.iter().filter(|m| m.osd == osd).map(|m| m.replica).max()
    }

    /// Returns the OSD that a client should ask instead.
    pub(crate) fn hint(&self) -> Option<OsdId> {
        match &self.transfer {
            Some(transfer) => Some(transfer.to),
            None => self.leader().filter(|osd| *osd != self.config.osd),
        }
    }

    /// Counts the voters that campaign before this one when `without` is gone.
    pub(crate) fn rank(&self, without: Option<ReplicaId>) -> u32 {
        rank(&self.decision.members.voters, self.identity.replica, self.whole, without)
    }

    /// Quarantines this replica: a peer sent a message that no honest cluster sends, or its own log has an unreadable entry (R5).
    pub(crate) fn quarantined(&mut self, reason: String, actions: &mut Vec<Action>) {
        if self.quarantine.is_none() {
            self.end(reason.clone(), actions);
            actions.push(Action::Quarantined(reason));
        }
    }

    /// Ends this replica's part in its PG, because it has failed or is dropped. All its waiters are answered. If it led, it
    /// releases its lease, so that the others need not wait for a leader that is gone.
    pub fn end(&mut self, reason: String, actions: &mut Vec<Action>) {
        if self.quarantine.is_none() {
            let led = self.current().is_some();
            self.quarantine = Some(reason);
            self.leave_leadership(actions);
            if led {
                self.release_lease(actions);
            }
        }
    }

    /// Handles the outcome of a step; true when raft took the message.
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

    /// Sets the first index of which the engine can produce entries; raft may forget the descriptors below.
    pub fn set_first_index(&mut self, first: Index) {
        self.node.compact(first);
    }

    /// Sets the engine's pressure: `full` refuses writes that need space, `blocked` holds proposals back.
    pub fn set_pressure(&mut self, full: bool, blocked: bool) {
        self.full = full;
        self.blocked = blocked;
    }

    /// Sets what may be proposed until this is set again, in bytes; one write may exceed it. Zero holds all writes back. `None`: any.
    pub fn set_write_room(&mut self, bytes: Option<u64>) {
        self.write_room = bytes;
    }

    /// Returns what was proposed since the last call, in bytes; each write counts as a block at least.
    pub fn take_proposed(&mut self) -> u64 {
        std::mem::take(&mut self.proposed)
    }

    /// Whether changes wait to be proposed.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sets the payload that this PG may hold before it commits (R9): in the log here, and in the smallest share of
    /// any member. Both change with the number of PGs that share a log.
    pub fn set_uncommitted_max(&mut self, bytes: u64, least_bytes: u64) {
        self.config.uncommitted_payload_max = bytes;
        self.propose_payload_max = least_bytes.min(bytes);
    }

    /// Sets whether the OSD of this PG's leader was heard within one promise, and named itself leader of this PG in its last full
    /// lease renewal (`Pairs::has_heard_leader`). The loop sets it before it passes in a pre-vote.
    pub fn set_leader_recently_heard(&mut self, leader_recently_heard: bool) {
        self.leader_recently_heard = leader_recently_heard;
    }

    /// Handles that the engine has made `ticket` durable, and everything of this replica before it. A follower's acknowledgements
    /// leave at once.
    pub fn handle_persisted(&mut self, now: Time, ticket: u64, actions: &mut Vec<Action>) {
        self.note_persisted(now, ticket);
        self.send_released(actions);
    }

    /// Notes the same, and sends nothing: this group is paused.
    pub fn note_persisted(&mut self, now: Time, ticket: u64) {
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

    /// Ends the turn: runs elections that are due, then one proposal of all admitted changes, then all work that raft
    /// asks for.
    pub fn poll(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.quarantine.is_some() {
            return;
        }
        self.sync_leadership(now, actions);
        self.poll_election(now, actions);
        self.poll_transfer(now);
        self.sync_leadership(now, actions);
        if self.quarantine.is_some() {
            return;
        }
        self.poll_whole(now, actions);
        self.poll_members(now, actions);
        self.poll_holds(now);
        self.propose(actions);
        self.poll_read_index(now);
        self.drain(now, actions);
        if self.poll_holds(now) {
            self.propose(actions);
            self.drain(now, actions);
        }
        self.check_invariants(now);
    }

    /// Performs the output of raft, in the order that keeps every promise: entries to the engine, then
    /// messages, then committed entries.
    fn drain(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut ready = std::mem::take(&mut self.ready);
        while self.quarantine.is_none() && self.node.has_ready() {
            self.node.ready(&mut ready);
            self.perform(now, &mut ready, actions);
            self.sync_leadership(now, actions);
        }
        self.ready = ready;
        self.pending_payloads.clear();
        if self.quarantine.is_none() {
            self.start_confirmed_reads(actions);
            self.compact_resident();
        }
    }

    /// Asserts what holds between turns. No message of a peer and no request breaks any of it.
    fn check_invariants(&self, now: Time) {
        let (applied, commit, durable) = (self.node.applied(), self.node.commit_index(), self.node.durable_index());
        assert!(
            self.pending_payloads.is_empty(),
            "§3, step 4: a payload is pending, though its entry was not appended"
        );
        assert!(applied <= commit, "R1: entries are applied up to {applied}, beyond the commit index {commit}");
        assert!(applied <= durable, "R2: entries are applied up to {applied}, and durable here only up to {durable}");
        self.reads.check_invariants(applied, &self.config.limits);
        for (what, amount, max) in self.fill().limits(&self.config.limits) {
            assert!(amount <= max, "§7.7: {what}: {amount}, more than {max}");
        }
        self.check_leadership(now);
        if self.quarantine.is_some() {
            return;
        }
        let term_applied = self.node.term_at(applied);
        assert!(term_applied == Some(self.applied_term), "R1: the decision state names another entry than {applied}");
        let (promise, promised_until) = (self.config.timing.promise, self.election.promised_until());
        assert!(promised_until <= now + promise, "R3, promise: it is longer than the promise of the pool");
        let follows = self.node.role() == consensus::Role::Follower;
        assert!(follows || promised_until <= now, "R3, promise: the replica campaigned within its promise");
        assert!(
            follows || !self.election.is_silent(now),
            "R3, start: the replica campaigned within one promise of its start"
        );
    }

    /// Asserts the rules of leadership that hold between turns.
    fn check_leadership(&self, now: Time) {
        let Some(leading) = self.leading.as_ref() else {
            let led = self.quarantine.is_none() && self.node.is_leader();
            assert!(!led && self.transfer.is_none(), "R3: raft leads, and the group does not");
            let idle = self.waiting.is_empty() && self.queue.is_idle() && self.reads.count() == 0;
            assert!(idle, "R3: a replica that does not lead holds requests without an answer");
            return;
        };
        let (term, applied, last) = (self.node.term(), self.node.applied(), self.node.last_index());
        assert!(self.current().is_some(), "R3: the group leads in {}, and raft does not", leading.term);
        let own_term = self.node.term_at(leading.term_start_index);
        assert!(
            own_term.is_none_or(|own| own == term),
            "R3, start: {} is no entry of {term}",
            leading.term_start_index
        );
        let began = self.applied_term == term;
        assert!(began || !self.serves(), "R3, start: the leader serves before an entry of {term} is applied");
        let in_log = |waits_for: &(Index, _)| applied < waits_for.0 && waits_for.0 <= last;
        let ends = [self.waiting.front(), self.waiting.back()];
        assert!(ends.into_iter().flatten().all(in_log), "R7: the outcome of an entry is known, and its request waits");
        if self.transfer.is_some() {
            assert!(leading.forfeited, "R3, transfer: leadership is handed over, and the lease is not released");
            let idle = self.queue.is_idle() && self.reads.count() == 0;
            assert!(idle, "R3, transfer: the leader admits requests while it hands over");
        }
        let timing = &self.config.timing;
        let alone = leading.majority_at == Time::NEVER;
        assert!(
            alone || leading.majority_at <= now,
            "R3, lease: it counts from {:?}, in the future",
            leading.majority_at
        );
        assert!(timing.lease() < timing.promise, "R3, lease: it outlasts the promises that it rests on");
    }

    /// Whether a `poll` would do something after a request, a read, an acknowledgement, or entries that have become durable.
    /// A follower, and a leader whose members stay, has nothing to do before raft has.
    pub fn wants_poll(&self) -> bool {
        let is_settled = self.serves() && self.queue.is_empty() && !self.reads.waits() && self.members_stay();
        !(is_settled || self.follows()) || self.node.has_ready()
    }

    /// Whether this replica neither leads nor campaigns, for raft and for its requests.
    pub(crate) fn follows(&self) -> bool {
        self.leading.is_none() && self.node.role() == consensus::Role::Follower
    }

    /// Returns the time of the next `poll`, if no event comes before.
    pub fn next_deadline(&self) -> Time {
        if self.quarantine.is_some() {
            return Time::NEVER;
        }
        match self.current() {
            None if self.node.promotable() => self.election.next_deadline(),
            None => Time::NEVER,
            Some(leading) => {
                let transfer = self.transfer.as_ref().map_or(Time::NEVER, |t| t.until);
                let may_end = self.serves() && !self.orders_are_full();
                let held = if may_end { self.holds.next_end(self.config.limits.hold_max) } else { Time::NEVER };
                let heard = leading.heard_at() + self.config.timing.ack_max;
                heard.min(transfer).min(self.reads.retry_at()).min(held)
            }
        }
    }
}

/// Counts the voters that campaign before `me` when `without` is gone. A replica that cannot serve lets all others go first, and not at
/// the moment of the last of them.
fn rank(voters: &[Member], me: ReplicaId, whole: bool, without: Option<ReplicaId>) -> u32 {
    match whole {
        true => voters.iter().filter(|m| m.replica < me && Some(m.replica) != without).count() as u32,
        false => voters.len() as u32,
    }
}
