//! One replica of the store: its identity, its part of the log, its overlay.
//!
//! Invariant: `checkpoint.index` ≤ `applied` ≤ last entry. A damaged replica stays damaged until it is destroyed.

use crate::log::{Kept, ReplicaLog};
use crate::overlay::Overlay;
use bytes::Bytes;
use layout::log::ReplicaRecord;
use std::collections::{BTreeSet, VecDeque};
use types::planted::{Bug, on};
use types::store::{HardState, ReplicaIdentity};
use types::{ChunkKey, Index, Term};

/// Entries that an append or a truncation removes, kept until its record is durable: then replay removes them, too.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub entries: VecDeque<Kept>,
    /// The record is in a batch. A copy of an entry that it removes must not follow it.
    pub begun: bool,
}

/// Suspect state: whether the replica may lack what it acknowledged, because the log has lost records (ADR 0007).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    None,
    /// The replica has no group: the positions of its peers are not known yet.
    Waiting,
    /// Its group follows, and does not vote.
    Following,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub identity: ReplicaIdentity,
    pub log: ReplicaLog,
    /// Removed entries whose removal is not durable: the log on the device may have to produce them yet.
    pub replaced: VecDeque<Replaced>,
    /// The latest hard state that its group gave.
    pub hard_state: HardState,
    /// The latest hard state that is in a batch.
    pub written_hard_state: HardState,
    /// Decision state of index 0, until a checkpoint has a later one.
    pub first_decision: Bytes,
    /// Checkpoint index and its term.
    pub checkpoint: (Index, Term),
    pub applied: Index,
    pub overlay: Overlay,
    pub damage: Option<String>,
    /// Entries whose payload is lost, or is back and not durable yet: the replica is under repair.
    pub lost: BTreeSet<Index>,
    pub doubt: Doubt,
    /// The replica became suspect in this process, and the log must not record it yet: a restart finds it unchanged.
    pub doubt_unsaid: bool,
    /// Home is lost: pages are missing, and home keeps the rest until the replica may follow (ADR 0009).
    pub homeless: bool,
    /// Mount dropped entries from its log that older records of its suspect state still have.
    pub cut_at_mount: bool,
    /// Blocks of home that could not be read and are not repaired yet.
    pub bad: BTreeSet<(ChunkKey, u16)>,
    /// Its create record is in a batch of the log.
    pub born: bool,
    /// A round installs new contents: the replica is not read.
    pub installing: bool,
}

impl Replica {
    pub fn new(identity: ReplicaIdentity, first_decision: Bytes) -> Replica {
        Replica {
            identity,
            log: ReplicaLog::new(Index(1)),
            replaced: VecDeque::new(),
            hard_state: HardState::default(),
            written_hard_state: HardState::default(),
            first_decision,
            checkpoint: (Index(0), Term(0)),
            applied: Index(0),
            overlay: Overlay::default(),
            damage: None,
            lost: BTreeSet::new(),
            doubt: Doubt::None,
            doubt_unsaid: false,
            homeless: false,
            cut_at_mount: false,
            bad: BTreeSet::new(),
            born: false,
            installing: false,
        }
    }

    /// Whether the log records that the replica is suspect, so that the next mount will.
    pub fn says_doubt(&self) -> bool {
        self.doubt != Doubt::None && !self.doubt_unsaid && !on(Bug::DoubtNotLogged)
    }

    /// Whether a group of the replica may append and apply.
    pub fn may_take_part(&self) -> bool {
        self.damage.is_none() && self.lost.is_empty() && self.doubt != Doubt::Waiting
    }

    /// Removes the entries from `from` on. They stay pinned until the work that is queued next is durable: the log on
    /// the device may have to produce them. True when there are any.
    pub fn remove_from(&mut self, from: Index) -> bool {
        let entries = self.log.truncate(from);
        let some = !entries.is_empty();
        if some {
            self.replaced.push_back(Replaced { entries, begun: false });
        }
        some
    }

    /// Returns the entry at `index` that the log on the device must go on to hold: the latest one, or one that is being
    /// removed by work of which no record is in a batch yet.
    pub fn to_copy(&self, index: Index, term: Term) -> Option<&Kept> {
        let replaced = self.replaced.iter().filter(|r| !r.begun).flat_map(|r| &r.entries);
        let latest = self.log.get(index).into_iter();
        latest.chain(replaced).find(|kept| (kept.index, kept.term) == (index, term))
    }

    /// Notes the segment in which the entry lies now.
    pub fn note_place(&mut self, index: Index, term: Term, segment: u64) {
        let replaced = self.replaced.iter_mut().flat_map(|r| &mut r.entries);
        let all = self.log.get_mut(index).into_iter().chain(replaced);
        for kept in all.filter(|kept| (kept.index, kept.term) == (index, term)) {
            kept.segment = segment;
        }
    }

    /// Returns the replica's content for a create record or a state block.
    pub fn record(&self) -> ReplicaRecord {
        ReplicaRecord {
            identity: self.identity.clone(),
            hard_state: self.written_hard_state,
            decision: self.first_decision.clone(),
            damage: self.damage.clone().filter(|_| !on(Bug::FailureNotLogged)).unwrap_or_default(),
        }
    }
}
