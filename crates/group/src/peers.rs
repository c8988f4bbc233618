//! Messages of the other replicas, their connections, and the limits that this replica's promises set (R3, R5).
//!
//! The loop passes in messages and links. Invariant: raft sees a vote request only when the start and promises
//! permit it, and an append only when every payload of it has been verified.

use crate::descriptor::Command;
use crate::{Action, Group};
use types::planted::{Bug, on};
use types::{Entry, OsdId, ReplicaId, Time};
use wire::{RaftKind, RaftMsg};

/// Most replicas whose OSDs are kept.
const STRANGERS_MAX: usize = 8;

/// OSDs of replicas that this one does not know as members yet, for its answers to them.
#[derive(Debug, Default)]
pub(crate) struct Strangers(Vec<(ReplicaId, OsdId)>);

impl Strangers {
    fn note(&mut self, replica: ReplicaId, osd: OsdId) {
        self.0.retain(|(known, _)| *known != replica);
        if self.0.len() == STRANGERS_MAX {
            self.0.remove(0);
        }
        self.0.push((replica, osd));
    }

    pub fn osd_of(&self, replica: ReplicaId) -> Option<OsdId> {
        self.0.iter().find(|(known, _)| *known == replica).map(|(_, osd)| *osd)
    }
}

impl Group {
    /// Handles a message of another replica.
    pub fn handle_raft(&mut self, now: Time, from: OsdId, msg: RaftMsg, actions: &mut Vec<Action>) {
        if self.quarantine.is_some() || msg.pg != self.identity.pg || !self.may_be_from(from, msg.from) {
            return;
        }
        if self.osd_of(msg.from).is_none() {
            self.strangers.note(msg.from, from);
        }
        match msg.kind {
            RaftKind::Vote | RaftKind::PreVote => self.judge_vote(now, msg, actions),
            RaftKind::Append => self.append(now, from, msg, actions),
            RaftKind::TimeoutNow => {
                // The leader has given up its lease for this term: this message also ends the promise to it.
                if self.election.is_silent(now) {
                    return;
                }
                let result = self.node.step(&msg);
                if self.stepped(result, actions) {
                    self.election.released();
                    self.election.round(now);
                }
            }
            _ => {
                let result = self.node.step(&msg);
                self.stepped(result, actions);
                self.miscount();
            }
        }
    }

    /// Whether a message from `osd` can be one of `replica`. A replica that has not applied the newest membership step may
    /// not know the sender; raft then takes requests only (ADR 0016). Replicas of a timeline that a forced recovery has ended
    /// have no part (ADR 0020).
    pub(crate) fn may_be_from(&self, osd: OsdId, replica: ReplicaId) -> bool {
        let admitted = !self.is_forcing() && self.decision.members.admits(replica);
        admitted && self.osd_of(replica).is_none_or(|known| known == osd)
    }

    /// Passes a vote request to raft, unless R3 forbids it.
    pub(crate) fn judge_vote(&mut self, now: Time, msg: RaftMsg, actions: &mut Vec<Action>) {
        if self.election.forbids_vote(now, msg.from) {
            if !self.election.is_silent(now) {
                self.election.deferred = Some(msg);
            }
            return;
        }
        let promise = self.config.timing.promise;
        if msg.kind == RaftKind::PreVote {
            let leads = self.current().is_some_and(|leading| now < leading.majority_at + promise);
            let leader = self.node.leader();
            if leads || (self.leader_recently_heard && leader.is_some() && leader != Some(msg.from)) {
                return;
            }
        }
        let last = self.node.last_index();
        let lags = (Some(msg.log_term), msg.index) < (self.node.term_at(last), last);
        let (kind, from, term) = (msg.kind, msg.from, msg.term);
        let result = self.node.step(&msg);
        if !self.stepped(result, actions) {
            return;
        }
        if self.node.voted_for() == Some(from) && self.node.term() == term {
            self.election.voted(now);
        } else if kind == RaftKind::PreVote && lags {
            // A whole replica is more use as a leader.
            self.election.outruns(now, u32::from(!self.whole));
        }
    }

    fn append(&mut self, now: Time, from: OsdId, msg: RaftMsg, actions: &mut Vec<Action>) {
        if let Some(entry) = msg.entries.iter().find(|entry| !is_whole(entry) && !on(Bug::AppendUnchecked)) {
            let reason = format!("payload of entry {} {} fails its checksum", entry.index, entry.term);
            return actions.push(Action::BadPeer { osd: from, reason });
        }
        if self.exceeds_log(&msg) {
            return;
        }
        self.note_steps(msg.entries.iter().map(|entry| &*entry.descriptor));
        let mut msg = msg;
        for entry in &mut msg.entries {
            let payload = std::mem::take(&mut entry.payload);
            let crcs = std::mem::take(&mut entry.crcs);
            if payload.is_empty() {
                continue;
            }
            if !self.pending_payloads.keep(entry.index, entry.term, &entry.descriptor, payload, crcs) {
                let reason = format!("two entries {} {}", entry.index, entry.term);
                return actions.push(Action::BadPeer { osd: from, reason });
            }
        }
        let result = self.node.step(&msg);
        if self.stepped(result, actions) && self.node.term() == msg.term && self.node.leader() == Some(msg.from) {
            self.election.heard(now);
        }
    }

    /// R9: whether an append would leave more uncommitted payload here than the log can carry. Such an append is dropped
    /// unstepped. An honest leader stays below half of this limit; the rest allows for its newer commit index.
    fn exceeds_log(&self, msg: &RaftMsg) -> bool {
        let last = types::Index(msg.index.0.saturating_add(msg.entries.len() as u64));
        let commit = self.node.commit_index().max(msg.commit.min(last));
        let after = |entry: &&Entry| entry.index > commit;
        let new: u64 = msg.entries.iter().filter(after).map(|e| e.payload.len() as u64).sum();
        let old = self.node.payload_after(commit) - self.node.payload_after(commit.max(msg.index));
        new + old > self.config.uncommitted_payload_max.saturating_mul(2)
    }

    /// Notes that a connection to another OSD came up or went down.
    pub fn handle_link(&mut self, now: Time, osd: OsdId, up: bool, _actions: &mut Vec<Action>) {
        let Some(replica) = self.replica_on(osd).filter(|_| self.quarantine.is_none()) else { return };
        if up {
            // It may have come back with a failed replica: what it has said before does not count.
            self.heard = self.heard.filter(|heard| heard.leader != replica);
            if let Some(leading) = &mut self.leading {
                leading.former = leading.former.filter(|former| former.leader != replica);
            }
            if self.node.leader().is_none() {
                self.election.voter_up(now);
            }
            return;
        }
        self.node.report_unreachable(replica);
        if self.node.leader() == Some(replica) {
            self.election.leader_lost(now, self.rank(Some(replica)));
        }
    }

    /// Notes that an append to `to` was not sent because its payload cannot be read here.
    pub fn handle_unreadable(&mut self, _now: Time, to: OsdId) {
        if let Some(replica) = self.replica_on(to).filter(|_| self.quarantine.is_none()) {
            self.node.report_unreachable(replica);
        }
    }

    /// Handles a lease release of the leader on `from`: the promise to it ends.
    pub fn handle_lease_release(&mut self, now: Time, from: OsdId, _actions: &mut Vec<Action>) {
        let leader = self.node.leader();
        if self.quarantine.is_none() && leader.is_some() && self.replica_on(from) == leader {
            self.election.lease_released(now, self.rank(leader));
        }
    }
}

/// Whether an entry's payload is exactly that of its command, by length and by every checksum.
fn is_whole(entry: &Entry) -> bool {
    match Command::decode(&entry.descriptor) {
        Ok(command) => match command.payload() {
            Some((_, range)) => entry.crcs.start == range.start && range.verify(&entry.payload, &entry.crcs.values),
            None => entry.payload.is_empty(),
        },
        Err(_) => false,
    }
}
