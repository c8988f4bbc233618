//! Model of a replica: its entries, and the sectors that result from applying them.

use bytes::Bytes;
use std::collections::BTreeMap;
use types::store::{Crcs, Effect, HardState};
use types::{ChunkKey, Entry, EntryKind, Index, IoBuf, IoBufMut, ReplicaId, SectorRange, Term};

/// Sectors of each chunk that tests use.
pub(super) const SECTORS: u32 = 192;

#[derive(Clone, Debug)]
pub(super) struct Made {
    pub term: Term,
    pub effect: Effect,
}

/// A raft group of one, reduced to what the engine sees.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub replica: ReplicaId,
    pub term: Term,
    /// Entry i is at i - 1.
    pub made: Vec<Made>,
    /// Every entry that was ever appended: the replacement of an entry may be lost, and the entry come back.
    pub history: BTreeMap<(u64, Term), Effect>,
    /// Highest index that a `Persisted` has covered, and the commit with it.
    pub durable: u64,
    pub durable_commit: u64,
    pub hard_state: HardState,
    pub applied: u64,
    pub sectors: BTreeMap<ChunkKey, Vec<u64>>,
    /// Tickets in flight: (ticket, last index, commit).
    pub tickets: Vec<(u64, u64, u64)>,
    pub reading: u32,
}

impl Group {
    pub fn new(replica: ReplicaId) -> Group {
        Group {
            replica,
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
        }
    }

    pub fn last(&self) -> u64 {
        self.made.len() as u64
    }

    pub fn entry(&self, index: u64) -> Entry {
        self.entry_of(index, self.made[index as usize - 1].term)
    }

    pub fn entry_of(&self, index: u64, term: Term) -> Entry {
        let effect = self.history.get(&(index, term)).expect("only what was appended comes back");
        let (payload, crcs) = match *effect {
            Effect::Write { range, .. } => {
                let bytes = content(self.replica, index, term, range);
                let values = range.fragment_crcs(&bytes);
                (bytes, Crcs { start: range.start, values })
            }
            _ => (IoBuf::EMPTY, Crcs::default()),
        };
        let descriptor = Bytes::from(format!("{}/{index}/{}", self.replica, term));
        Entry { term, index: Index(index), kind: EntryKind::Normal, descriptor, payload, crcs }
    }

    /// Applies the next entry to the model.
    pub fn apply(&mut self) -> Effect {
        let index = self.applied + 1;
        let effect = self.made[index as usize - 1].effect;
        self.applied = index;
        match effect {
            Effect::None => {}
            Effect::Write { chunk, range } => self.put(chunk, range, index),
            Effect::Zero { chunk, range } => self.put(chunk, range, 0),
            Effect::Cut { volume, from_chunk } => {
                self.sectors.retain(|key, _| key.volume != volume || key.index < from_chunk);
            }
        }
        effect
    }

    fn put(&mut self, chunk: ChunkKey, range: SectorRange, value: u64) {
        let sectors = self.sectors.entry(chunk).or_insert_with(|| vec![0; SECTORS as usize]);
        sectors[range.start as usize..range.end() as usize].fill(value);
    }

    /// Returns the bytes that a read must return.
    pub fn expected(&self, chunk: ChunkKey, range: SectorRange) -> Vec<u8> {
        let mut out = vec![0; range.len_bytes()];
        let Some(sectors) = self.sectors.get(&chunk) else { return out };
        for (n, sector) in (range.start..range.end()).enumerate() {
            let index = sectors[sector as usize];
            if index > 0 {
                let term = self.made[index as usize - 1].term;
                let one = SectorRange::new(sector, 1);
                out[n * 512..][..512].copy_from_slice(&content(self.replica, index, term, one));
            }
        }
        out
    }

    /// Decision state as of the applied index.
    pub fn decision(&self) -> types::store::DecisionState {
        let (index, term) = (Index(self.applied), self.term_at(self.applied));
        types::store::DecisionState { replica: self.replica, index, term, bytes: decision_bytes(self.replica, index) }
    }

    pub fn term_at(&self, index: u64) -> Term {
        if index == 0 { Term(0) } else { self.made[index as usize - 1].term }
    }
}

pub(super) fn decision_bytes(replica: ReplicaId, index: Index) -> Bytes {
    Bytes::from(format!("decision of {replica} at {index}").repeat(1 + index.0 as usize % 200))
}

/// Returns sectors that each name their replica and entry.
pub(super) fn content(replica: ReplicaId, index: u64, term: Term, range: SectorRange) -> IoBuf {
    let mut bytes = IoBufMut::new(range.len_bytes());
    for (n, sector) in (range.start..range.end()).enumerate() {
        let stamp = [replica.0, index, term.0, u64::from(sector)].map(u64::to_le_bytes).concat();
        for piece in bytes[n * 512..][..512].chunks_mut(32) {
            piece.copy_from_slice(&stamp);
        }
    }
    bytes.freeze()
}
