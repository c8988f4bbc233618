//! One replica of the store: its identity, its part of the log, its overlay.
//!
//! Invariant: `checkpoint.index` ≤ `applied` ≤ last entry. A failed replica stays failed until it is destroyed, or revived by a
//! forced recovery of its PG.

use crate::home::Home;
use crate::lineage::Lineage;
use crate::log::{Kept, ReplicaLog};
use crate::overlay::Overlay;
use crate::resolve::Sources;
use bytes::Bytes;
use layout::log::ReplicaRecord;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{Failure, HardState, ReplicaIdentity};
use types::tree::Role;
use types::{ChunkKey, GenerationId, Index, Term};

/// Entries that an append or a truncation removes, kept until its record is durable: then replay removes them, too.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub entries: VecDeque<Kept>,
    /// The record is in a batch. A copy of an entry that it removes must not follow it.
    pub begun: bool,
}

/// Part of the replica in its PG (R11, ADR 0023).
#[derive(Debug)]
pub(crate) enum ReplicaState {
    /// Its group may append and apply.
    Running,
    /// A stream brings its contents as of the checkpoint index (R16): its group may append and apply, and nothing is read or destaged.
    /// `older`: what the contents at home, which are older ones, lack of the last state that it had before.
    Filling {
        older: Box<Older>,
        /// Payload of the entries that were appended since the log began, in bytes.
        bytes: u64,
    },
    /// Its log lacks these payloads, or they are back and not durable yet: it has no group.
    Repairing(BTreeSet<Index>),
    /// It takes no part for good.
    Failed(Failure),
}

/// Contents of a replica before its log began again: those at home, and what covers them.
#[derive(Debug, Default)]
pub(crate) struct Older {
    pub overlay: Overlay,
    pub lineage: Arc<Lineage>,
}

/// How the blocks of a stream are staged: the generations as of the point of the stream, and not as applied here.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// `None`: that of the state at which the log begins, or the applied one.
    pub lineage: Option<Arc<Lineage>>,
    /// Generations that this lineage lacks, of which blocks are staged as those of first generations.
    pub alone: BTreeSet<GenerationId>,
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
    /// Decision state of index 0, or of `fills_from`, until a checkpoint has that one or a later one.
    pub first_decision: Bytes,
    /// The entry behind which its log begins, while a stream brings the contents as of it.
    pub fills_from: Option<(Index, Term)>,
    /// Checkpoint index and its term.
    pub checkpoint: (Index, Term),
    /// The last entry that the contents at home may show. It is above the checkpoint index after an installation.
    pub shows: Index,
    pub applied: Index,
    pub overlay: Overlay,
    /// The generations as of the applied index.
    pub lineage: Arc<Lineage>,
    /// The last entry that may have changed the tree: it is the same at every index from there to the applied one.
    pub tree_index: Index,
    /// Decides how the blocks of a stream are staged.
    pub stages: Stages,
    pub state: ReplicaState,
    /// The failure that the log still tells: a forced recovery goes on from the replica, and its step is in no batch yet.
    pub revived: Option<Failure>,
    /// Decision state at the checkpoint index, of a replica that was mounted and has had no group since.
    pub held_decision: Bytes,
    /// Entries that the replica has given up by failing: peers may need their payloads. They are in memory alone.
    pub given_up: VecDeque<Kept>,
    /// Blocks of home that could not be read and are not repaired yet.
    pub bad: BTreeSet<(ChunkKey, u16)>,
    /// Its create record is in a batch of the log.
    pub born: bool,
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
            fills_from: None,
            checkpoint: (Index(0), Term(0)),
            shows: Index(0),
            applied: Index(0),
            overlay: Overlay::default(),
            lineage: Arc::default(),
            tree_index: Index(0),
            stages: Stages::default(),
            state: ReplicaState::Running,
            revived: None,
            held_decision: Bytes::new(),
            given_up: VecDeque::new(),
            bad: BTreeSet::new(),
            born: false,
        }
    }

    /// Takes the replica to another state.
    ///
    /// # Panics
    /// When no event leads from the present state to that one.
    pub fn turn(&mut self, to: ReplicaState) {
        use ReplicaState::{Failed, Filling, Repairing, Running};
        let allowed = matches!(
            (&self.state, &to),
            (Running, Filling { .. }) | (Filling { .. } | Repairing(_) | Failed(_), Running) | (_, Failed(_))
        );
        assert!(allowed, "{} goes from {:?} to {to:?}", self.identity.replica, self.state);
        self.state = to;
    }

    pub fn failure(&self) -> Option<&Failure> {
        match &self.state {
            ReplicaState::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    pub fn is_filling(&self) -> bool {
        matches!(self.state, ReplicaState::Filling { .. })
    }

    /// Returns the contents as applied. Those at home do not count while the replica is being filled.
    pub fn sources<'a>(&'a self, home: &'a Home) -> Sources<'a> {
        let home = (!self.is_filling()).then_some(home);
        let (overlay, lineage) = (Some(&self.overlay), &*self.lineage);
        Sources { replica: self.identity.replica, home, overlay, frozen: false, lineage }
    }

    /// Returns the AUs in which the overlay has data of dissolved generations: a round that writes them cannot give them to their heirs,
    /// which may need as many, without a grant.
    pub fn aus_of_dissolved(&self) -> u64 {
        if !self.lineage.has_dissolved() {
            return 0;
        }
        let layers = [Some(self.overlay.active()), self.overlay.frozen()];
        let ids: BTreeSet<GenerationId> = layers.into_iter().flatten().flat_map(|layer| layer.generations()).collect();
        let dissolved = ids.into_iter().filter(|id| self.lineage.owner(*id) != *id);
        dissolved.map(|id| self.overlay.aus_of(id)).sum()
    }

    /// Returns the generations in the active layer, each with the index below which its chunks show older ones.
    pub fn reaches(&self) -> Vec<(GenerationId, u32)> {
        self.overlay.active().generations().map(|id| (id, self.lineage.reach(id))).collect()
    }

    /// Returns the contents that serve as the base of a stream.
    pub fn base_sources<'a>(&'a self, home: &'a Home) -> Sources<'a> {
        let of = self.sources(home);
        match &self.state {
            ReplicaState::Filling { older, .. } => {
                Sources { home: Some(home), overlay: Some(&older.overlay), lineage: &older.lineage, ..of }
            }
            _ => of,
        }
    }

    /// Checks that a generation takes writes. While home does not count, a lookup asks the overlays of older generations behind those of
    /// younger ones: that is right because a generation whose descendants have blocks at home has an empty overlay.
    pub fn check_head(&self, generation: GenerationId) {
        let is_head = self.lineage.node(generation).is_none_or(|node| matches!(node.role, Role::Head(_)));
        assert!(is_head, "{} writes to {generation}, which is no head", self.identity.replica);
    }

    /// Takes the chunks of a generation from this index on out of it. The blocks of its dissolved generations are its own.
    pub fn unmap(&mut self, generation: GenerationId, from_chunk: u32) {
        self.overlay.unmap(generation, from_chunk);
        for older in self.lineage.dissolved_of(generation) {
            self.overlay.unmap(older, from_chunk);
        }
    }

    /// Whether a round has work: changes of blocks, or a changed tree. The tree is part of the decision state, and a generation that is
    /// discarded frees space.
    pub fn is_dirty(&self) -> bool {
        !self.overlay.active().is_empty() || self.tree_index > self.checkpoint.0
    }

    /// Whether a round may take the replica: what is applied goes over the contents at home.
    pub fn destages(&self) -> bool {
        self.born && !self.has_failed() && !self.is_filling()
    }

    /// Whether a group of the replica may append and apply.
    pub fn may_take_part(&self) -> bool {
        matches!(self.state, ReplicaState::Running | ReplicaState::Filling { .. })
    }

    /// Whether the log must go on to hold the entries of the replica: it takes part, or may again. Data of other failed replicas
    /// is not carried along.
    pub fn keeps_log(&self) -> bool {
        self.failure().is_none_or(|failure| failure.is_past)
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

    /// Returns the failure that the log tells.
    pub fn told_failure(&self) -> Option<&Failure> {
        self.failure().or(self.revived.as_ref()).filter(|_| !on(Bug::FailureNotLogged))
    }

    /// Returns the replica's content for a create record or a state block.
    pub fn record(&self) -> ReplicaRecord {
        ReplicaRecord {
            identity: self.identity.clone(),
            hard_state: self.written_hard_state,
            decision: self.first_decision.clone(),
            fills_from: self.fills_from,
            failure: self.told_failure().cloned(),
        }
    }
}
