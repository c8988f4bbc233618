//! One replica of the store: its identity, its part of the log, its overlay.
//!
//! Invariant: `checkpoint.index` ≤ `applied` ≤ last entry; a damaged replica stays damaged until it is
//! destroyed.

use crate::log::{Kept, ReplicaLog};
use crate::overlay::Overlay;
use bytes::Bytes;
use layout::log::ReplicaRecord;
use std::collections::{BTreeSet, VecDeque};
use types::store::{HardState, ReplicaIdentity};
use types::{ChunkKey, Index, Term};

/// Entries that an append or a cut removes, until its record is durable: then replay removes them, too.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub entries: VecDeque<Kept>,
    /// The record is in a batch. A copy of what it removes must not come behind it.
    pub begun: bool,
}

/// Whether the replica may lack what it acknowledged, because the log has lost records (ADR 0007).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    None,
    /// It has no group: nobody knows yet how far the others are.
    Waiting,
    /// Its group follows, and does not vote.
    Following,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub identity: ReplicaIdentity,
    pub log: ReplicaLog,
    /// What appends and cuts have removed that are not durable: the log on the device may have to produce it yet.
    pub replaced: VecDeque<Replaced>,
    /// The latest that its group gave.
    pub hard_state: HardState,
    /// The latest that is in a batch.
    pub written_hard_state: HardState,
    /// Decision state of index 0, until a checkpoint has a later one.
    pub first_decision: Bytes,
    /// K and its term.
    pub checkpoint: (Index, Term),
    pub applied: Index,
    pub overlay: Overlay,
    pub damage: Option<String>,
    /// Entries whose payload is lost, or is back and not durable yet: it is being repaired.
    pub lost: BTreeSet<Index>,
    pub doubt: Doubt,
    /// The doubt began in this life, and the log is not to say so yet: a restart finds the replica as it was.
    pub doubt_unsaid: bool,
    /// Pages of its home are lost, and home keeps the rest until the replica may follow (ADR 0009).
    pub homeless: bool,
    /// Mount left out of its log what older records of its doubt still have.
    pub cut_at_mount: bool,
    /// Blocks of home that could not be read and are not mended yet.
    pub bad: BTreeSet<(ChunkKey, u16)>,
    /// Its birth record is in the log.
    pub born: bool,
    /// A round replaces its contents: nothing of it is read.
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

    /// Whether the log says that it is in doubt, so that the next mount will.
    pub fn says_doubt(&self) -> bool {
        self.doubt != Doubt::None && !self.doubt_unsaid
    }

    /// Whether a group of it may append and apply.
    pub fn may_take_part(&self) -> bool {
        self.damage.is_none() && self.lost.is_empty() && self.doubt != Doubt::Waiting
    }

    /// Forgets the entries from `from` on, which the log on the device may have to produce until the work that is queued
    /// next is durable. True when there are any.
    pub fn remove_from(&mut self, from: Index) -> bool {
        let entries = self.log.truncate(from);
        let some = !entries.is_empty();
        if some {
            self.replaced.push_back(Replaced { entries, begun: false });
        }
        some
    }

    /// The entry at `index` that the log must go on to hold on the device: the latest one, or one that an
    /// append replaces of which nothing is in a batch yet.
    pub fn to_copy(&self, index: Index, term: Term) -> Option<&Kept> {
        let replaced = self.replaced.iter().filter(|r| !r.begun).flat_map(|r| &r.entries);
        let latest = self.log.get(index).into_iter();
        latest.chain(replaced).find(|kept| (kept.index, kept.term) == (index, term))
    }

    /// The entry lies in this segment now.
    pub fn note_place(&mut self, index: Index, term: Term, segment: u64) {
        let replaced = self.replaced.iter_mut().flat_map(|r| &mut r.entries);
        let all = self.log.get_mut(index).into_iter().chain(replaced);
        for kept in all.filter(|kept| (kept.index, kept.term) == (index, term)) {
            kept.segment = segment;
        }
    }

    /// What a birth record or a state block says of it.
    pub fn record(&self) -> ReplicaRecord {
        ReplicaRecord {
            identity: self.identity.clone(),
            hard_state: self.written_hard_state,
            decision: self.first_decision.clone(),
            damage: self.damage.clone().unwrap_or_default(),
        }
    }
}
