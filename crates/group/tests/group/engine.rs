//! A toy store for one replica: an ordered queue to a disk that may fail, payload by (index, term), and a
//! map of sectors. Durable state survives a crash, and so does a prefix of the queue.

use group::descriptor::Command;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use types::rng::Rng;
use types::store::{Crcs, DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::tree::{Change, Tree};
use types::{ChunkKey, Entry, GenerationId, Index, IoBuf, SectorRange, Term};

pub type Sectors = BTreeMap<(ChunkKey, u32), u64>;

/// The durable log.
#[derive(Clone, Default)]
struct Log {
    hard_state: HardState,
    before: (Index, Term),
    entries: VecDeque<Entry>,
}

impl Log {
    fn write(&mut self, persist: &Persist) {
        for entry in &persist.entries {
            assert!(entry.index > self.hard_state.commit || self.holds(entry), "a committed entry is overwritten");
            while self.entries.back().is_some_and(|last| last.index >= entry.index) {
                self.entries.pop_back();
            }
            let last = self.entries.back().map_or(self.before.0, |e| e.index);
            assert_eq!(last.0 + 1, entry.index.0, "the log has a gap");
            self.entries.push_back(entry.clone());
        }
        if let Some(state) = persist.hard_state {
            let commit = self.hard_state.commit.max(state.commit);
            self.hard_state = HardState { commit, ..state };
        }
    }

    fn holds(&self, entry: &Entry) -> bool {
        self.entries.iter().any(|e| e.index == entry.index && e.term == entry.term)
    }
}

pub struct Engine {
    identity: ReplicaIdentity,
    log: Log,
    checkpoint: (DecisionState, Sectors),
    /// Writes on the way to the disk.
    queue: VecDeque<Persist>,
    payloads: BTreeMap<Index, (Term, IoBuf, Crcs)>,
    descriptors: BTreeMap<Index, (Term, bytes::Bytes)>,
    pub sectors: Sectors,
    tree: Arc<Tree>,
    pub applied: Index,
}

impl Engine {
    pub fn new(identity: ReplicaIdentity, decision: DecisionState) -> Engine {
        Engine {
            identity,
            log: Log::default(),
            checkpoint: (decision, Sectors::new()),
            queue: VecDeque::new(),
            payloads: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            sectors: Sectors::new(),
            tree: Arc::default(),
            applied: Index(0),
        }
    }

    pub fn append(&mut self, persist: Persist) {
        for entry in &persist.entries {
            self.payloads.split_off(&entry.index);
            self.descriptors.split_off(&entry.index);
            self.descriptors.insert(entry.index, (entry.term, entry.descriptor.clone()));
            self.payloads.insert(entry.index, (entry.term, entry.payload.clone(), entry.crcs.clone()));
        }
        self.queue.push_back(persist);
    }

    /// Makes the oldest write durable; returns its ticket.
    pub fn complete(&mut self) -> u64 {
        let persist = self.queue.pop_front().expect("a write is on its way");
        self.log.write(&persist);
        persist.ticket
    }

    pub fn payload(&self, index: Index, term: Term) -> Option<(IoBuf, Crcs)> {
        let (held, payload, crcs) = self.payloads.get(&index)?;
        (*held == term).then(|| (payload.clone(), crcs.clone()))
    }

    /// Returns the term of an entry, and its write.
    pub fn descriptor(&self, index: Index) -> (Term, Option<(u64, u64)>) {
        let (term, descriptor) = self.descriptors.get(&index).expect("what is applied was appended");
        (*term, crate::world::write_of(descriptor))
    }

    /// Whether the entry begins a cut, or ends one; `None`: neither.
    pub fn begins_cut(&self, index: Index) -> Option<bool> {
        let (_, descriptor) = self.descriptors.get(&index)?;
        match Command::decode(descriptor).expect("a known command") {
            Command::Snap(_) => Some(true),
            Command::Release { .. } => Some(false),
            _ => None,
        }
    }

    pub fn apply(&mut self, index: Index, effect: Effect) {
        assert_eq!(index.0, self.applied.0 + 1, "applied out of order");
        self.applied = index;
        match effect {
            Effect::None => {}
            Effect::Write { chunk, range } => {
                let (_, payload, crcs) = self.payloads.get(&index).expect("a committed payload is here");
                assert!(range.verify(payload, &crcs.values), "payload of {index} is not what was written");
                for (at, sector) in (range.start..range.end()).enumerate() {
                    let bytes = payload[at * 512..at * 512 + 8].try_into().expect("eight bytes");
                    self.sectors.insert((chunk, sector), u64::from_le_bytes(bytes));
                }
            }
            Effect::Zero { chunk, range } if self.tree.get(chunk.generation).is_some_and(|n| n.parent.is_some()) => {
                let zeros = (range.start..range.end()).map(|sector| ((chunk, sector), 0));
                self.sectors.extend(zeros);
            }
            Effect::Zero { chunk, range } => {
                self.sectors.retain(|(c, s), _| *c != chunk || *s < range.start || *s >= range.end());
            }
            Effect::Unmap { generation, from_chunk } => {
                self.sectors.retain(|(chunk, _), _| chunk.generation != generation || chunk.index < from_chunk);
            }
        }
    }

    /// Takes the generations of an entry, and moves at once what its steps name.
    pub fn set_tree(&mut self, index: Index, tree: Arc<Tree>, changes: &[Change]) {
        self.apply(index, Effect::None);
        for change in changes {
            match *change {
                Change::Shorten { generation, from_chunk } => {
                    self.sectors.retain(|(chunk, _), _| chunk.generation != generation || chunk.index < from_chunk)
                }
                Change::Discard(id) => self.sectors.retain(|(chunk, _), _| chunk.generation != id),
                Change::Merge { from, into, through } => {
                    let its = |(chunk, _): &(ChunkKey, u32)| chunk.generation == from;
                    let moved: Vec<_> = self.sectors.extract_if(.., |at, _| its(at)).collect();
                    for ((chunk, sector), value) in moved.into_iter().filter(|((chunk, _), _)| chunk.index < through) {
                        let chunk = ChunkKey { generation: into, ..chunk };
                        self.sectors.entry((chunk, sector)).or_insert(value);
                    }
                }
            }
        }
        self.tree = tree;
    }

    pub fn read(&self, chunk: ChunkKey, range: SectorRange) -> Vec<u64> {
        let tree = &self.tree;
        let path: Vec<GenerationId> = match tree.get(chunk.generation) {
            Some(_) => {
                tree.path(chunk.generation).take_while(|(_, end)| chunk.index < *end).map(|(id, _)| id).collect()
            }
            None => Vec::new(),
        };
        let shown =
            |sector| path.iter().find_map(|id| self.sectors.get(&(ChunkKey { generation: *id, ..chunk }, sector)));
        (range.start..range.end()).map(|sector| shown(sector).copied().unwrap_or(0)).collect()
    }

    /// Stores a checkpoint: an index, its decision state, and a commit index that covers it.
    pub fn store_checkpoint(&mut self, state: DecisionState) {
        assert_eq!(state.index, self.applied, "decision state is exact");
        self.log.hard_state.commit = self.log.hard_state.commit.max(state.index);
        let last = self.log.entries.back().map_or(self.log.before.0, |e| e.index);
        assert!(state.index <= last, "R2: what is applied is durable here");
        self.checkpoint = (state, self.sectors.clone());
    }

    pub fn checkpoint_index(&self) -> Index {
        self.checkpoint.0.index
    }

    /// Frees entries up to `upto`, at most to the checkpoint; returns the first index kept.
    pub fn trim(&mut self, upto: Index) -> Index {
        while self.log.entries.front().is_some_and(|e| e.index <= upto.min(self.checkpoint.0.index)) {
            let entry = self.log.entries.pop_front().expect("it has a front");
            self.log.before = (entry.index, entry.term);
            self.payloads.remove(&entry.index);
            self.descriptors.remove(&entry.index);
        }
        Index(self.log.before.0.0 + 1)
    }

    /// Crashes the process: of the writes on their way a prefix reaches the disk.
    pub fn crash(&mut self, rng: &mut Rng) {
        let kept = rng.below(self.queue.len() as u64 + 1);
        for _ in 0..kept {
            self.complete();
        }
        self.queue.clear();
    }

    /// Restarts with the durable state.
    pub fn recover(&mut self) -> Recovered {
        let (decision, sectors) = self.checkpoint.clone();
        self.sectors = sectors;
        self.tree = Arc::new(Tree::of_decision(&decision.bytes).expect("its own bytes"));
        self.applied = decision.index;
        self.payloads =
            self.log.entries.iter().map(|e| (e.index, (e.term, e.payload.clone(), e.crcs.clone()))).collect();
        self.descriptors = self.log.entries.iter().map(|e| (e.index, (e.term, e.descriptor.clone()))).collect();
        Recovered {
            identity: self.identity.clone(),
            hard_state: self.log.hard_state,
            checkpoint: decision,
            before: self.log.before,
            entries: self.log.entries.iter().cloned().collect(),
            lost: Vec::new(),
            failure: None,
            fills: false,
        }
    }
}
