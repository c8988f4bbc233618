//! Expected contents of a replica: its entries, and the sectors that result from applying them.
//!
//! Invariant: the model is plain and slow, and does not know logs, destage rounds or disks.

use super::harness::chunks;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::store::{Crcs, DecisionState, Effect, HardState, ReplicaIdentity};
use types::tree::{Change, Tree, TreeRefusal};
use types::{ChunkKey, Entry, EntryKind, GenerationId, Index, IoBuf, IoBufMut, ReplicaId, SectorRange, Term, VolumeId};

/// Chunks of a generation that are used.
pub const CHUNKS: u32 = 3;
/// Number of sectors that are used in each chunk.
pub const SECTORS: u32 = 384;

#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub term: Term,
    pub effect: Effect,
}

/// Entry that last wrote a sector: its index and term. Index 0 means zeros.
type Stamp = (u64, Term);

/// Entry that changes the tree of generations. It has no effect where the tree refuses it.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// The volume comes to the PG, perhaps as a clone of a snapshot.
    Begin {
        volume: VolumeId,
        parent: Option<GenerationId>,
    },
    /// Snapshot of the head; `to` is the new head.
    Branch {
        volume: VolumeId,
        to: GenerationId,
    },
    Remove(GenerationId),
    TurnBack {
        volume: VolumeId,
        snapshot: GenerationId,
        to: GenerationId,
    },
    /// The head, which has all of its blocks, shows its parent no longer.
    Detach(VolumeId),
    /// The head shows chunks of its parent only below this index.
    Shorten {
        volume: VolumeId,
        count: u32,
    },
}

/// The part of an entry that the engine applies.
#[derive(Clone, Debug)]
pub enum Applied {
    Effect(Effect),
    Tree(Arc<Tree>, Vec<Change>),
}

/// A raft group of one, reduced to the engine's view.
#[derive(Clone, Debug)]
pub struct Model {
    pub replica: ReplicaId,
    /// The replica that all contents name: all members of a PG have the same bytes.
    pub writer: ReplicaId,
    pub identity: ReplicaIdentity,
    pub term: Term,
    /// Entries of the log; entry i is at position i - 1.
    pub made: Vec<Made>,
    /// All entries that were ever appended. A replaced entry may come back when its replacement is lost.
    pub history: BTreeMap<(u64, Term), Effect>,
    /// Highest index that an acknowledgement has covered, and the commit index with it.
    pub durable: u64,
    pub durable_commit: u64,
    pub hard_state: HardState,
    pub applied: u64,
    /// Sectors of each generation; `None`: its parent shows.
    pub sectors: BTreeMap<ChunkKey, Vec<Option<Stamp>>>,
    /// Entries that change the tree; in `history` they have no effect.
    pub orders: BTreeMap<(u64, Term), Order>,
    /// The tree as applied. While it is empty, each generation is alone.
    pub tree: Tree,
    /// Tickets in flight: (ticket, last index, commit).
    pub tickets: Vec<(u64, u64, u64)>,
    /// Number of reads in flight. They see the state at their start, so no entry is applied meanwhile.
    pub reading: u32,
    /// True after the engine reported damage; such a replica answers no read.
    pub damaged: bool,
    /// True while a stream brings its contents; such a replica answers no read, either.
    pub fills: bool,
}

impl Model {
    pub fn new(identity: ReplicaIdentity) -> Model {
        Model {
            replica: identity.replica,
            writer: identity.replica,
            identity,
            term: Term(1),
            made: Vec::new(),
            history: BTreeMap::new(),
            durable: 0,
            durable_commit: 0,
            hard_state: HardState { term: Term(1), vote: None, commit: Index(0) },
            applied: 0,
            sectors: BTreeMap::new(),
            orders: BTreeMap::new(),
            tree: Tree::default(),
            tickets: Vec::new(),
            reading: 0,
            damaged: false,
            fills: false,
        }
    }

    pub fn last(&self) -> u64 {
        self.made.len() as u64
    }

    pub fn term_at(&self, index: u64) -> Term {
        if index == 0 { Term(0) } else { self.made[index as usize - 1].term }
    }

    pub fn entry(&self, index: u64) -> Entry {
        self.entry_of(index, self.term_at(index)).expect("it was made")
    }

    /// Returns the entry, or `None` if it was never appended.
    pub fn entry_of(&self, index: u64, term: Term) -> Option<Entry> {
        let (payload, crcs) = match *self.history.get(&(index, term))? {
            Effect::Write { range, .. } => {
                let bytes = content(self.writer, (index, term), range);
                let values = range.fragment_crcs(&bytes);
                (bytes, Crcs { start: range.start, values })
            }
            _ => (IoBuf::EMPTY, Crcs::default()),
        };
        let descriptor = Bytes::from(format!("{}/{index}/{term}", self.replica));
        Some(Entry { term, index: Index(index), kind: EntryKind::Normal, descriptor, payload, crcs })
    }

    /// Replaces all entries from `from` on.
    pub fn make(&mut self, from: u64, effects: Vec<Effect>) {
        if from <= self.last() {
            self.term = Term(self.term.0 + 1);
            self.made.truncate(from as usize - 1);
            self.durable = self.durable.min(from - 1);
            self.tickets.iter_mut().for_each(|t| t.1 = t.1.min(from - 1));
        }
        self.hard_state.term = self.term;
        for effect in effects {
            self.push(effect);
        }
    }

    fn push(&mut self, effect: Effect) {
        self.made.push(Made { term: self.term, effect });
        self.history.insert((self.last(), self.term), effect);
        self.orders.remove(&(self.last(), self.term));
    }

    /// Returns the replica as if it had applied entries that its log never had. Its entries above the applied index are
    /// replaced, in a later term.
    pub fn ahead(&self, effects: Vec<Effect>) -> Model {
        let mut new = self.clone();
        new.made.truncate(new.applied as usize);
        new.term = Term(self.term.0 + 3);
        for effect in effects {
            new.push(effect);
            new.apply();
        }
        // The term of the entries may pass that of the replica, which then has no vote in it.
        let term = new.hard_state.term.max(new.term);
        new.hard_state = HardState { term, vote: None, commit: Index(new.applied) };
        (new.durable, new.durable_commit) = (new.applied, new.applied);
        new.tickets.clear();
        new.fills = false;
        new
    }

    /// Returns the states that follow when these effects are applied in this term, each by one entry, and this state first. Entries
    /// above the applied index are dropped.
    pub fn states(&self, term: Term, effects: Vec<Effect>) -> Vec<Model> {
        let mut last = self.clone();
        last.made.truncate(last.applied as usize);
        last.term = term;
        let mut states = vec![last.clone()];
        for effect in effects {
            last.push(effect);
            last.apply();
            states.push(last.clone());
        }
        states
    }

    /// Returns the model of the replica before it applied anything.
    pub fn unapplied(&self) -> Model {
        Model { applied: 0, sectors: BTreeMap::new(), tree: Tree::default(), ..self.clone() }
    }

    /// Applies the next entry.
    pub fn apply(&mut self) -> Applied {
        let index = self.applied + 1;
        let Made { term, effect } = self.made[index as usize - 1];
        self.applied = index;
        if let Some(order) = self.orders.get(&(index, term)).copied() {
            return match self.tree.carry_out(order) {
                Ok(changes) => {
                    changes.iter().for_each(|change| self.follow(*change));
                    Applied::Tree(Arc::new(self.tree.clone()), changes)
                }
                Err(_) => Applied::Effect(Effect::None),
            };
        }
        let effect = self.stamped(effect);
        match effect {
            Effect::None => {}
            Effect::Write { chunk, range } => self.put(chunk, range, (index, term)),
            Effect::Zero { chunk, range } => self.put(chunk, range, (0, Term(0))),
            Effect::Unmap { generation, from_chunk } => {
                self.sectors.retain(|key, _| key.generation != generation || key.index < from_chunk);
            }
        }
        Applied::Effect(effect)
    }

    /// Returns the effect in the head of its volume, which is named by its first generation. A volume that has ended takes none.
    fn stamped(&self, effect: Effect) -> Effect {
        if self.tree.is_empty() {
            return effect;
        }
        let head = |of: GenerationId| self.tree.head_of(VolumeId(of.0));
        let moved = |chunk: ChunkKey| Some(ChunkKey { generation: head(chunk.generation)?, ..chunk });
        let moved = match effect {
            Effect::None => None,
            Effect::Write { chunk, range } => moved(chunk).map(|chunk| Effect::Write { chunk, range }),
            Effect::Zero { chunk, range } => moved(chunk).map(|chunk| Effect::Zero { chunk, range }),
            Effect::Unmap { generation, from_chunk } => {
                head(generation).map(|generation| Effect::Unmap { generation, from_chunk })
            }
        };
        moved.unwrap_or(Effect::None)
    }

    fn follow(&mut self, change: Change) {
        match change {
            Change::Discard(gone) => self.sectors.retain(|key, _| key.generation != gone),
            Change::Shorten { generation, from_chunk } => {
                self.sectors.retain(|key, _| key.generation != generation || key.index < from_chunk);
            }
            Change::Merge { from, into, through } => {
                let keys: Vec<ChunkKey> = self.sectors.keys().filter(|key| key.generation == from).copied().collect();
                for key in keys {
                    let older = self.sectors.remove(&key).expect("its key was just listed");
                    if key.index < through {
                        let heir = ChunkKey { generation: into, ..key };
                        let newer = self.sectors.entry(heir).or_insert_with(|| vec![None; SECTORS as usize]);
                        newer.iter_mut().zip(older).for_each(|(newer, older)| *newer = newer.or(older));
                    }
                }
            }
        }
    }

    fn put(&mut self, chunk: ChunkKey, range: SectorRange, stamp: Stamp) {
        let sectors = self.sectors.entry(chunk).or_insert_with(|| vec![None; SECTORS as usize]);
        sectors[range.start as usize..range.end() as usize].fill(Some(stamp));
    }

    /// Returns the bytes that a read must return.
    pub fn expected(&self, chunk: ChunkKey, range: SectorRange) -> Vec<u8> {
        let mut out = vec![0; range.len_bytes()];
        let path: Vec<GenerationId> = match self.tree.get(chunk.generation) {
            Some(_) => {
                let path = self.tree.path(chunk.generation);
                path.take_while(|(_, through)| chunk.index < *through).map(|(id, _)| id).collect()
            }
            None => vec![chunk.generation],
        };
        let of = |generation: &GenerationId| self.sectors.get(&ChunkKey { generation: *generation, ..chunk });
        let shown: Vec<&Vec<Option<Stamp>>> = path.iter().filter_map(of).collect();
        for (n, sector) in (range.start..range.end()).enumerate() {
            let stamp = shown.iter().find_map(|sectors| sectors[sector as usize]).unwrap_or((0, Term(0)));
            if stamp.0 > 0 {
                let one = SectorRange::new(sector, 1);
                out[n * 512..][..512].copy_from_slice(&content(self.writer, stamp, one));
            }
        }
        out
    }

    /// Returns the chunks that a test reads: those that the tests write, or those of all generations of the tree.
    pub fn keys(&self) -> Vec<ChunkKey> {
        if self.tree.is_empty() {
            return chunks().into();
        }
        let keys = |(generation, _)| (0..CHUNKS).map(move |index| ChunkKey { generation, index });
        self.tree.iter().flat_map(keys).collect()
    }

    /// Returns the tree behind the entry at this index.
    pub fn tree_at(&self, index: u64) -> Tree {
        let mut tree = Tree::default();
        for at in 1..=index {
            let order = self.orders.get(&(at, self.term_at(at))).copied();
            order.map(|order| tree.carry_out(order));
        }
        tree
    }

    /// Returns the decision state at the applied index.
    pub fn decision(&self) -> DecisionState {
        let (index, term) = (Index(self.applied), self.term_at(self.applied));
        let bytes = decision_with(&self.tree, self.replica, index);
        DecisionState { replica: self.replica, index, term, bytes }
    }
}

/// Changes of a tree by the entries of a log.
trait CarryOut {
    fn head_of(&self, volume: VolumeId) -> Option<GenerationId>;
    fn carry_out(&mut self, order: Order) -> Result<Vec<Change>, TreeRefusal>;
}

impl CarryOut for Tree {
    fn head_of(&self, volume: VolumeId) -> Option<GenerationId> {
        self.iter().map(|(id, _)| id).find(|id| self.is_head_of(volume, *id))
    }

    fn carry_out(&mut self, order: Order) -> Result<Vec<Change>, TreeRefusal> {
        let head = |tree: &Tree, volume: VolumeId| {
            tree.head_of(volume).ok_or(TreeRefusal::Unknown(GenerationId::first_of(volume)))
        };
        match order {
            Order::Begin { volume, parent } => {
                self.begin(volume, GenerationId::first_of(volume), parent).map(|()| Vec::new())
            }
            Order::Branch { volume, to } => self.branch(volume, head(self, volume)?, to, 3, 1).map(|()| Vec::new()),
            Order::Remove(id) => self.remove(id),
            Order::TurnBack { volume, snapshot, to } => self.turn_back(head(self, volume)?, Some(snapshot), to),
            Order::Detach(volume) => self.detach(head(self, volume)?),
            Order::Shorten { volume, count } => {
                let generation = head(self, volume)?;
                self.shorten(generation, count)?;
                Ok(vec![Change::Shorten { generation, from_chunk: count }])
            }
        }
    }
}

/// Returns bytes of a decision state, up to several pages long, of a PG whose volumes have no snapshots.
pub fn decision_bytes(replica: ReplicaId, index: Index) -> Bytes {
    decision_with(&Tree::default(), replica, index)
}

/// Returns the tree of the volumes that tests write to without orders.
fn plain_tree() -> Tree {
    let mut tree = Tree::default();
    for n in [1, 2, 3, 7] {
        tree.begin(VolumeId(n), GenerationId(n), None).expect("a new one");
    }
    tree
}

/// Returns bytes of a decision state with this tree. An empty one is that of a test without orders.
pub fn decision_with(tree: &Tree, replica: ReplicaId, index: Index) -> Bytes {
    let mut bytes = BytesMut::new();
    let plain = plain_tree();
    if tree.is_empty() { &plain } else { tree }.encode_decision(&mut bytes);
    bytes.extend_from_slice(format!("decision of {replica} at {index}").repeat(1 + index.0 as usize % 200).as_bytes());
    bytes.freeze()
}

/// Returns contents in which every sector names its writer, entry and sector number.
fn content(writer: ReplicaId, (index, term): Stamp, range: SectorRange) -> IoBuf {
    let mut bytes = IoBufMut::new(range.len_bytes());
    for (n, sector) in (range.start..range.end()).enumerate() {
        let stamp = [writer.0, index, term.0, u64::from(sector)].map(u64::to_le_bytes).concat();
        bytes[n * 512..][..512].chunks_mut(32).for_each(|piece| piece.copy_from_slice(&stamp));
    }
    bytes.freeze()
}
