//! Checks of a peer's messages before raft sees them (R5): raft panics on an impossible message.
//!
//! Input: a message, from `node`. Output: a verdict. An *ignored* message is one that an honest cluster can produce (late,
//! from a removed replica, for a former incarnation). A *violation* is one that it cannot: either the
//! peer or this replica has lost durable state, and going on would spread the loss.

use crate::node::{Node, Role};
use crate::{MSG_ENTRIES_MAX, NUMBER_MAX};
use types::limits::DESCRIPTOR_MAX;
use types::{EntryKind, Index, ReplicaId, Term};
use wire::{CONTEXT_MAX, RaftKind, RaftMsg};

/// Reason why a message was not stepped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error("ignored: {0}")]
    Ignored(#[from] Ignored),
    #[error("violation: {0}")]
    Violation(#[from] Violation),
}

/// Harmless: an honest cluster can send such a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    #[error("addressed to another replica")]
    NotForUs,
    #[error("from no member")]
    Stranger,
    #[error("a vote that was not asked for")]
    NotAsked,
    #[error("not from the leader of this term, or not to a voter")]
    NotTheLeader,
}

/// Impossible in an honest cluster: the replica of this PG is quarantined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("term {0} is out of range")]
    Term(Term),
    #[error("an index or term is out of range")]
    OutOfRange,
    #[error("{0:?} carries entries or a context that it cannot have")]
    Excess(RaftKind),
    #[error("append has {found} where {expected} belongs")]
    Gap { expected: Index, found: Index },
    #[error("append has {term} at {index} after {before}")]
    TermFalls { index: Index, term: Term, before: Term },
    #[error("append of {message} holds an entry of {entry}")]
    TermAhead { message: Term, entry: Term },
    #[error("append names index {0} without a term, or a term without an index")]
    HalfPosition(Index),
    #[error("entry {0} is of a kind or size that this version does not know")]
    BadEntry(Index),
    #[error("append has {theirs} at {index}, which is committed here with {ours}")]
    Conflict { index: Index, ours: Term, theirs: Term },
    #[error("commit {commit} is beyond the end of the log, {last}")]
    Commit { commit: Index, last: Index },
    #[error("acknowledges {index}, the log ends at {last}")]
    Acknowledged { index: Index, last: Index },
    #[error("{second} leads in {term}, and so does {first}")]
    TwoLeaders { term: Term, first: ReplicaId, second: ReplicaId },
}

/// Checks the rules that hold for a message in every state of this replica.
fn check_shape(msg: &RaftMsg) -> Result<(), Violation> {
    if msg.term.0 == 0 || msg.term.0 > NUMBER_MAX {
        return Err(Violation::Term(msg.term));
    }
    let numbers = [msg.log_term.0, msg.index.0, msg.commit.0, msg.commit_term.0, msg.reject_hint.0];
    if numbers.iter().any(|n| *n > NUMBER_MAX) {
        return Err(Violation::OutOfRange);
    }
    let entries_max = if msg.kind == RaftKind::Append { MSG_ENTRIES_MAX } else { 0 };
    if msg.entries.len() > entries_max || msg.context.len() > CONTEXT_MAX {
        return Err(Violation::Excess(msg.kind));
    }
    Ok(())
}

/// Checks the entries of an append, against each other and against the index before them.
fn check_entries(msg: &RaftMsg) -> Result<(), Violation> {
    if (msg.index.0 == 0) != (msg.log_term.0 == 0) {
        return Err(Violation::HalfPosition(msg.index));
    }
    let (mut index, mut term) = (msg.index, msg.log_term);
    for entry in &msg.entries {
        let expected = Index(index.0 + 1);
        if entry.index != expected {
            return Err(Violation::Gap { expected, found: entry.index });
        }
        if entry.term < term || entry.term.0 == 0 {
            return Err(Violation::TermFalls { index: entry.index, term: entry.term, before: term });
        }
        if entry.kind != EntryKind::Normal || entry.descriptor.len() > DESCRIPTOR_MAX {
            return Err(Violation::BadEntry(entry.index));
        }
        (index, term) = (entry.index, entry.term);
    }
    if term > msg.term {
        return Err(Violation::TermAhead { message: msg.term, entry: term });
    }
    Ok(())
}

impl Node {
    /// Checks `msg` against this replica's state.
    pub(crate) fn check(&self, msg: &RaftMsg) -> Result<(), StepError> {
        if msg.to != self.id() {
            return Err(Ignored::NotForUs.into());
        }
        // A replica that has not applied the newest membership step does not know the newest members.
        let asks = matches!(msg.kind, RaftKind::Append | RaftKind::Heartbeat | RaftKind::Vote | RaftKind::PreVote);
        if msg.from == self.id() || (!asks && !self.is_member(msg.from)) {
            return Err(Ignored::Stranger.into());
        }
        check_shape(msg)?;
        match msg.kind {
            RaftKind::Append => {
                check_entries(msg)?;
                self.check_leader(msg)?;
                self.check_conflict(msg)?;
            }
            RaftKind::Heartbeat => {
                self.check_leader(msg)?;
                let last = self.last_index();
                if msg.term >= self.term() && msg.commit > last {
                    return Err(Violation::Commit { commit: msg.commit, last }.into());
                }
            }
            RaftKind::AppendResponse | RaftKind::HeartbeatResponse => self.check_response(msg)?,
            RaftKind::Vote | RaftKind::PreVote if msg.log_term >= msg.term => {
                return Err(Violation::TermAhead { message: msg.term, entry: msg.log_term }.into());
            }
            RaftKind::VoteResponse | RaftKind::PreVoteResponse if msg.term >= self.term() && !msg.reject => {
                self.check_vote_asked(msg)?;
            }
            RaftKind::TimeoutNow => self.check_timeout_now(msg)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks that one replica at most leads in a term.
    fn check_leader(&self, msg: &RaftMsg) -> Result<(), Violation> {
        let leader = self.leader();
        match leader {
            Some(first) if msg.term == self.term() && first != msg.from => {
                Err(Violation::TwoLeaders { term: msg.term, first, second: msg.from })
            }
            _ => Ok(()),
        }
    }

    /// Checks entries below the commit index: a leader has every committed entry, so its entries must equal those here.
    fn check_conflict(&self, msg: &RaftMsg) -> Result<(), Violation> {
        if msg.term < self.term() {
            return Ok(());
        }
        let commit = self.commit_index();
        let head = std::iter::once((msg.index, msg.log_term));
        let rest = msg.entries.iter().map(|e| (e.index, e.term));
        for (index, theirs) in head.chain(rest).take_while(|(index, _)| *index <= commit) {
            match self.term_at(index) {
                Some(ours) if ours != theirs => return Err(Violation::Conflict { index, ours, theirs }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a response: a follower acknowledges only entries that this leader sent.
    fn check_response(&self, msg: &RaftMsg) -> Result<(), Violation> {
        if self.role() != Role::Leader || msg.term != self.term() {
            return Ok(());
        }
        let last = self.last_index();
        let index = msg.index.max(msg.commit);
        if index > last || (msg.reject && msg.reject_hint > msg.index) {
            return Err(Violation::Acknowledged { index, last });
        }
        Ok(())
    }

    /// Checks a granted vote: it counts only after its request has left, which is after the whole log was durable. Raft
    /// asserts that the log is durable when it becomes leader.
    fn check_vote_asked(&self, msg: &RaftMsg) -> Result<(), Ignored> {
        let asked = match msg.kind {
            RaftKind::VoteResponse => self.role() == Role::Candidate && self.asked() == Some(msg.term),
            _ => self.role() == Role::PreCandidate && msg.term.0 == self.term().0 + 1,
        };
        if asked { Ok(()) } else { Err(Ignored::NotAsked) }
    }

    fn check_timeout_now(&self, msg: &RaftMsg) -> Result<(), Ignored> {
        let ours = msg.term == self.term() && self.leader() == Some(msg.from);
        // Raft campaigns by itself at this order, and raises the term.
        let room = self.term().0 < NUMBER_MAX;
        let applied = self.applied() == self.commit_index();
        if ours && room && applied && self.promotable() { Ok(()) } else { Err(Ignored::NotTheLeader) }
    }
}
