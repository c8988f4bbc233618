//! Expected contents of a replica: its entries, and the sectors that result from applying them.
//!
//! Invariant: the model is plain and slow, and does not know logs, destage rounds or disks.

use bytes::Bytes;
use std::collections::BTreeMap;
use types::store::{Crcs, DecisionState, Effect, HardState, ReplicaIdentity};
use types::{ChunkKey, Entry, EntryKind, Index, IoBuf, IoBufMut, ReplicaId, SectorRange, Term};

/// Number of sectors that are used in each chunk.
pub const SECTORS: u32 = 384;

#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub term: Term,
    pub effect: Effect,
}

/// Entry that last wrote a sector: its index and term. Index 0 means zeros.
type Stamp = (u64, Term);

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
    pub sectors: BTreeMap<ChunkKey, Vec<Stamp>>,
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

    /// Applies the next entry.
    pub fn apply(&mut self) -> Effect {
        let index = self.applied + 1;
        let Made { term, effect } = self.made[index as usize - 1];
        self.applied = index;
        match effect {
            Effect::None => {}
            Effect::Write { chunk, range } => self.put(chunk, range, (index, term)),
            Effect::Zero { chunk, range } => self.put(chunk, range, (0, Term(0))),
            Effect::Unmap { generation, from_chunk } => {
                self.sectors.retain(|key, _| key.generation != generation || key.index < from_chunk);
            }
        }
        effect
    }

    fn put(&mut self, chunk: ChunkKey, range: SectorRange, stamp: Stamp) {
        let sectors = self.sectors.entry(chunk).or_insert_with(|| vec![(0, Term(0)); SECTORS as usize]);
        sectors[range.start as usize..range.end() as usize].fill(stamp);
    }

    /// Returns the bytes that a read must return.
    pub fn expected(&self, chunk: ChunkKey, range: SectorRange) -> Vec<u8> {
        let mut out = vec![0; range.len_bytes()];
        let Some(sectors) = self.sectors.get(&chunk) else { return out };
        for (n, sector) in (range.start..range.end()).enumerate() {
            let stamp = sectors[sector as usize];
            if stamp.0 > 0 {
                let one = SectorRange::new(sector, 1);
                out[n * 512..][..512].copy_from_slice(&content(self.writer, stamp, one));
            }
        }
        out
    }

    /// Returns the decision state at the applied index.
    pub fn decision(&self) -> DecisionState {
        let (index, term) = (Index(self.applied), self.term_at(self.applied));
        DecisionState { replica: self.replica, index, term, bytes: decision_bytes(self.replica, index) }
    }
}

/// Returns bytes of a decision state, up to several pages long.
pub fn decision_bytes(replica: ReplicaId, index: Index) -> Bytes {
    Bytes::from(format!("decision of {replica} at {index}").repeat(1 + index.0 as usize % 200))
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
