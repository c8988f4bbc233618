//! Inheritance: AUs of dissolved generations that a round takes for its own writes.
//!
//! The round writes a place of a chunk that has no AU there, and a dissolved generation below the chunk has one. Then the chunk takes that
//! AU, with the blocks that it shows and the round does not write. So a write to a place that the generation had already takes no free AU
//! on any member (R13), whether the member has merged the generation before or not.
//!
//! Invariant: in such an AU the round writes blocks alone that the log redoes under the key of the chunk, so a crash before the flip loses
//! nothing (M1). No other write of the round goes to it (M2).

use super::Home;
use super::chunk::{BlockSet, Chunk};
use crate::home_api::{BlockData, ChunkDirty, Round};
use crate::space::AuSet;
use layout::home::{CHUNK_PAGES, CRCS_PER_PAGE, MapSlot};
use std::collections::{BTreeMap, BTreeSet};
use types::planted::{Bug, on};
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{ChunkKey, GenerationId, ReplicaId};

const PER_AU: usize = BLOCKS_PER_AU as usize;

/// Blocks that a round writes in one place, as bits.
#[derive(Clone, Copy, Default)]
struct Written {
    data: u16,
    zeros: u16,
}

/// Returns the places in which these blocks, ascending, give the chunk data, with the blocks of each.
fn places(blocks: &[(u16, BlockData)]) -> impl Iterator<Item = (usize, Written)> {
    let place = |block: u16| usize::from(block) / PER_AU;
    let of_place = move |run: &[(u16, BlockData)]| {
        let mut written = Written::default();
        for (block, data) in run {
            let bit = 1u16 << (usize::from(*block) % PER_AU);
            match data {
                BlockData::Bytes { .. } => written.data |= bit,
                BlockData::Zero => written.zeros |= bit,
            }
        }
        (place(run[0].0), written)
    };
    blocks.chunk_by(move |a, b| place(a.0) == place(b.0)).map(of_place)
}

/// Returns the nearest of the older chunks that has an AU in a place, and the blocks that younger generations hide there. `zeros`: those that
/// the chunk itself hides. `slot`: an older chunk's place, and whether the round writes data to its AU. None: no one has an AU, or that one is
/// written.
fn source(
    older: impl Iterator<Item = ChunkKey>,
    zeros: u16,
    slot: impl Fn(ChunkKey) -> Option<(MapSlot, bool)>,
) -> Option<(ChunkKey, u16)> {
    let mut hidden = zeros;
    for key in older {
        let Some((slot, is_written)) = slot(key) else { continue };
        if is_written || slot.valid != 0 {
            return (!is_written).then_some((key, hidden));
        }
        hidden |= if on(Bug::HiddenInherited) { 0 } else { slot.zeros };
    }
    None
}

/// The chunks of a round by their keys; none in a round without dissolved generations.
pub(super) struct Heirs<'a> {
    dirty: BTreeMap<(ReplicaId, ChunkKey), &'a ChunkDirty>,
    merging: BTreeSet<(ReplicaId, ChunkKey)>,
}

impl<'a> Heirs<'a> {
    pub(super) fn of(round: &'a Round) -> Heirs<'a> {
        let has_older = round.chunks.iter().any(|dirty| !dirty.older.is_empty());
        let dirty = round.chunks.iter().filter(|_| has_older).map(|dirty| ((dirty.replica, dirty.chunk), dirty));
        let merging = round.merges.iter().map(|merge| (merge.replica, merge.from));
        Heirs { dirty: dirty.collect(), merging: merging.collect() }
    }

    fn written(&self, replica: ReplicaId, key: ChunkKey, place: usize) -> Written {
        let Some(dirty) = self.dirty.get(&(replica, key)) else { return Written::default() };
        let first = (place * PER_AU) as u16;
        let from = dirty.blocks.partition_point(|(block, _)| *block < first);
        let end = dirty.blocks.partition_point(|(block, _)| *block < first + PER_AU as u16);
        places(&dirty.blocks[from..end]).next().map_or(Written::default(), |(_, written)| written)
    }
}

impl Home {
    /// Returns the places of a dirty chunk for which a round will take an AU of an older chunk, and that chunk.
    pub(super) fn inheritance(
        &self,
        round: &Round,
        heirs: &Heirs<'_>,
        dirty: &ChunkDirty,
    ) -> BTreeMap<usize, ChunkKey> {
        if dirty.older.is_empty() {
            return BTreeMap::new();
        }
        let (id, held) = (dirty.replica, self.chunk(dirty.replica, dirty.chunk));
        let older_keys = || dirty.older.iter().map(|generation| ChunkKey { generation: *generation, ..dirty.chunk });
        let found = |(at, written): (usize, Written)| {
            let own = held.map_or(MapSlot::default(), |chunk| chunk.map[at]);
            let slot = |key: ChunkKey| {
                let written = heirs.written(id, key, at);
                let is_cut = round.unmaps.iter().any(|cut| cut.drops(id, key));
                let mut slot =
                    self.chunk(id, key).filter(|_| !is_cut).map_or(MapSlot::default(), |chunk| chunk.map[at]);
                // A merge of the round has dropped what the chunk hides as a whole.
                let is_dropped = heirs.merging.contains(&(id, key)) && slot.valid & !own.zeros == 0;
                slot.valid &= if is_dropped { 0 } else { !written.zeros };
                Some((slot, written.data != 0))
            };
            let takes = written.data != 0 && own.valid == 0;
            takes.then(|| source(older_keys(), own.zeros, slot)).flatten().map(|(key, _)| (at, key))
        };
        places(&dirty.blocks).filter_map(found).collect()
    }

    /// Gives the chunk the AUs of older chunks in places where the round writes its first data, with the blocks that it shows and those
    /// that the round will write. The round has staged the older chunks before. True when there were any.
    pub(super) fn inherit(
        &mut self,
        id: ReplicaId,
        (key, chunk): (ChunkKey, &mut Chunk),
        older: &[GenerationId],
        blocks: &[(u16, BlockData)],
    ) -> bool {
        if older.is_empty() {
            return false;
        }
        let mut found: BTreeMap<ChunkKey, Vec<(usize, u16, u16)>> = BTreeMap::new();
        for (at, Written { data, .. }) in places(blocks).filter(|(_, written)| written.data != 0) {
            let own = chunk.map[at];
            let slot = |key: ChunkKey| {
                let slot = self.chunk(id, key)?.map[at];
                let written = self.round.as_ref().and_then(|round| round.rewritten(id, key));
                let is_written = written.is_some_and(|blocks| blocks.of_au(at) & slot.valid != 0);
                Some((slot, is_written && !on(Bug::WrittenInherited)))
            };
            let keys = older.iter().map(|generation| ChunkKey { generation: *generation, ..key });
            if let Some((key, hidden)) = source(keys, own.zeros, slot).filter(|_| own.valid == 0) {
                found.entry(key).or_default().push((at, hidden, data));
            }
        }
        let takes = !found.is_empty();
        for (key, places) in found {
            self.spoil(id, key, |au| places.iter().any(|(at, ..)| *at == au as usize));
            let replica = self.replicas.get_mut(&id).expect("the round was checked");
            let mut from = replica.chunks.remove(&key).expect("it was found");
            from.touched = self.clock;
            for (at, hidden, data) in places {
                let slot = &mut from.map[at];
                let (au, shown) = (std::mem::take(&mut slot.au), std::mem::take(&mut slot.valid) & !hidden & !data);
                chunk.map[at] = MapSlot { au, valid: shown | data, zeros: chunk.map[at].zeros & !data };
                for block in (0..PER_AU).filter(|n| shown >> n & 1 == 1).map(|n| at * PER_AU + n) {
                    let table = from.crcs[block / CRCS_PER_PAGE].as_ref().expect("a quarter with data has CRCs");
                    chunk.set_hash(block, table[block % CRCS_PER_PAGE]);
                }
            }
            let mut pages = [false; CHUNK_PAGES];
            pages[0] = true;
            self.settle(id, key, from, pages);
        }
        takes
    }

    /// Returns the AUs of older chunks that rounds will take for data of this chunk.
    pub fn inheritable(&self, replica: ReplicaId, key: ChunkKey, older: &[GenerationId]) -> AuSet {
        if older.is_empty() {
            return AuSet::default();
        }
        let own = self.chunk(replica, key);
        let has_source = |at: &u32| {
            let at = *at as usize;
            let own = own.map_or(MapSlot::default(), |chunk| chunk.map[at]);
            let slot = |key: ChunkKey| Some((self.chunk(replica, key)?.map[at], false));
            let keys = older.iter().map(|generation| ChunkKey { generation: *generation, ..key });
            // One of which nothing shows may be dropped before.
            let shows = |(key, hidden): (ChunkKey, u16)| slot(key).is_some_and(|(slot, _)| slot.valid & !hidden != 0);
            own.valid == 0 && source(keys, own.zeros, slot).is_some_and(shows)
        };
        AuSet::of((0..AUS_PER_CHUNK).filter(has_source))
    }
}

impl BlockSet {
    /// Returns the blocks of an AU, as bits.
    fn of_au(&self, at: usize) -> u16 {
        (0..PER_AU).filter(|n| self.contains(at * PER_AU + n)).fold(0, |bits, n| bits | 1 << n)
    }
}
