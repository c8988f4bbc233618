//! Check of the state that a disk returned, before raft is built on it (R5, R11).

use crate::NUMBER_MAX;
use crate::convert::{hard_state_to_raft, members_to_raft};
use crate::storage::Storage;
use raft::RaftState;
use types::limits::DESCRIPTOR_MAX;
use types::map::Membership;
use types::store::HardState;
use types::{Entry, EntryKind, Index, ReplicaId, Term};

/// State of a replica as its disk returned it.
#[derive(Debug)]
pub struct Start<'a> {
    pub hard_state: HardState,
    /// Members at the index `applied`.
    pub members: &'a Membership,
    /// Checkpoint index and its term.
    pub applied: (Index, Term),
    /// Index and term before the first of `entries`.
    pub before: (Index, Term),
    pub entries: &'a [Entry],
}

/// Reason why a replica cannot be started: its disk contradicts itself (R11 damage).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("the PG has no voter, or names a replica twice")]
    BadMembers,
    #[error("entry {found} where {expected} belongs")]
    Gap { expected: Index, found: Index },
    #[error("term {term} at {index} after term {before}")]
    TermFalls { index: Index, term: Term, before: Term },
    #[error("entry {index} has term {term}, the replica is at term {current}")]
    TermAhead { index: Index, term: Term, current: Term },
    #[error("entry {0} is of a kind or size that this version does not know")]
    BadEntry(Index),
    #[error("log from {first} to {last}, applied {applied}, commit {commit}: these do not fit")]
    Order { first: Index, last: Index, applied: Index, commit: Index },
    #[error("checkpoint at {index} has {checkpoint}, the log has {log}")]
    TermDiffers { index: Index, checkpoint: Term, log: Term },
    #[error("a number out of range")]
    OutOfRange,
}

fn check_entries(start: &Start<'_>) -> Result<(), StartError> {
    let (mut index, mut term) = start.before;
    for entry in start.entries {
        let expected = Index(index.0 + 1);
        if entry.index != expected {
            return Err(StartError::Gap { expected, found: entry.index });
        }
        if entry.term < term {
            return Err(StartError::TermFalls { index: entry.index, term: entry.term, before: term });
        }
        if entry.term > start.hard_state.term {
            let current = start.hard_state.term;
            return Err(StartError::TermAhead { index: entry.index, term: entry.term, current });
        }
        if entry.term.0 == 0 || entry.kind != EntryKind::Normal || entry.descriptor.len() > DESCRIPTOR_MAX {
            return Err(StartError::BadEntry(entry.index));
        }
        (index, term) = (entry.index, entry.term);
    }
    Ok(())
}

/// Checks every value on which raft would panic, and builds the log.
pub(crate) fn build(start: &Start<'_>, payload_len: fn(&[u8]) -> u64) -> Result<Storage, StartError> {
    let hard = &start.hard_state;
    let numbers = [hard.term.0, hard.commit.0, start.applied.0.0, start.before.0.0, start.before.1.0];
    // Raft encodes "no replica" as zero: a vote for replica 0 would read as no vote.
    let for_nobody = hard.vote == Some(ReplicaId(0));
    if numbers.iter().any(|n| *n > NUMBER_MAX) || (start.before.0.0 == 0) != (start.before.1.0 == 0) || for_nobody {
        return Err(StartError::OutOfRange);
    }
    // The replica itself may be no member: one that joins the PG, or has left it.
    if !start.members.is_sound() {
        return Err(StartError::BadMembers);
    }
    check_entries(start)?;
    let applied = start.applied.0;
    let last = Index(start.before.0.0 + start.entries.len() as u64);
    if !(start.before.0 <= applied && applied <= hard.commit && hard.commit <= last && start.before.1 <= hard.term) {
        let first = Index(start.before.0.0 + 1);
        return Err(StartError::Order { first, last, applied, commit: hard.commit });
    }
    let initial = RaftState::new(hard_state_to_raft(hard), members_to_raft(start.members));
    let mut storage = Storage::new((start.before.0.0, start.before.1.0), initial, payload_len);
    for entry in start.entries {
        storage.append(entry.term.0, entry.index.0, entry.descriptor.clone());
    }
    let log = Term(storage.term_at(applied.0).expect("applied lies in the log"));
    if log != start.applied.1 {
        return Err(StartError::TermDiffers { index: applied, checkpoint: start.applied.1, log });
    }
    Ok(storage)
}
