//! Merge of a chunk of a dissolved generation into that of its heir, in a round.
//!
//! The round brings the blocks that must be copied, and knows the blocks that it writes to the heir. AUs move from one map to the other,
//! blocks are copied to free cells of an AU that the heir has, and what the heir hides is dropped.
//!
//! Invariant: a cell that a copy writes is in no durable checkpoint (M1), and no other write of the round goes to it or to an AU that
//! moves (M2). What is dropped stays as it is until the flip, so a crash finds the chunks as they were.

use super::chunk::{BlockSet, Chunk};
use super::install::NOWHERE;
use super::round::chunks_from;
use super::stage::coalesced;
use super::{Home, aligned};
use crate::home_api::ChunkMerge;
use layout::home::{CHUNK_PAGES, CRC_PAGES, CRCS_PER_PAGE, MapSlot};
use std::collections::BTreeMap;
use types::planted::{Bug, on};
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{BlockPlace, ChunkKey, GenerationId, IoBuf, ReplicaId, block_hash};

const PER_AU: usize = BLOCKS_PER_AU as usize;
/// Least cost of a merge, in blocks that are verified.
const MERGE_COST: u32 = 64;

/// Fate of an AU of a dissolved generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The round writes its place in the heir's chunk, which then inherits it, or a copy is missing.
    Stay,
    /// The heir shows nothing of it.
    Drop,
    /// It becomes the heir's, with these blocks.
    Move(u16),
    /// These blocks of it go to the heir's AU.
    Copy(u16),
}

/// Returns the step for an AU, given the heir's slot and the blocks that the round writes there.
fn step_of(older: MapSlot, newer: MapSlot, written: u16) -> Step {
    let mut open = !(newer.valid | newer.zeros);
    if older.valid & !open != 0 && on(Bug::MergeTakesOlder) {
        open = u16::MAX;
    }
    let shown = older.valid & open;
    match newer.valid {
        _ if shown == 0 => Step::Drop,
        0 if written != 0 => Step::Stay,
        0 => Step::Move(shown),
        _ if shown & written != 0 && on(Bug::MergedWhileDirty) => Step::Copy(shown),
        _ => Step::Copy(shown & !written),
    }
}

/// The blocks of an AU, by the bits of a mask.
fn blocks_of(at: usize, mask: u16) -> impl Iterator<Item = usize> {
    (0..PER_AU).filter(move |n| mask >> n & 1 == 1).map(move |n| at * PER_AU + n)
}

/// Work that the merge of a chunk would have now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeWork {
    /// Some AU, or some marks, need no copy.
    pub moves: bool,
    /// Blocks to copy, ascending.
    pub copies: Vec<u16>,
}

/// The two chunks of a merge, out of their replica, and what has changed in them.
struct Pair {
    older: Box<Chunk>,
    newer: Box<Chunk>,
    /// Pages of the heir's chunk.
    changed: [bool; CHUNK_PAGES],
    /// AUs of the older chunk that are gone from it.
    merged: u64,
    dropped: Vec<u32>,
}

impl Home {
    /// Returns the lookup clock: contents that were looked up now are as they were while no chunk of them has a later one.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns the chunks of a generation that the replica holds, from this index on.
    pub fn chunks_of(
        &self,
        replica: ReplicaId,
        generation: GenerationId,
        from: u32,
    ) -> impl Iterator<Item = ChunkKey> + '_ {
        self.replicas.get(&replica).into_iter().flat_map(move |r| chunks_from(r, generation, from))
    }

    /// Returns the work of a merge of these chunks.
    pub fn merge_work(&self, replica: ReplicaId, from: ChunkKey, into: ChunkKey) -> MergeWork {
        let Some(older) = self.chunk(replica, from) else { return MergeWork::default() };
        let newer = self.chunk(replica, into);
        let mut work = MergeWork::default();
        for (at, slot) in older.map.iter().enumerate().filter(|(_, slot)| slot.valid != 0 || slot.zeros != 0) {
            match step_of(*slot, newer.map_or(MapSlot::default(), |chunk| chunk.map[at]), 0) {
                Step::Copy(blocks) => work.copies.extend(blocks_of(at, blocks).map(|block| block as u16)),
                _ => work.moves = true,
            }
        }
        work
    }

    /// Returns the most slots that the pages of both chunks take.
    pub(super) fn merge_demand(&self, merge: &ChunkMerge) -> u64 {
        let Some(older) = self.chunk(merge.replica, merge.from) else { return 0 };
        let newer = self.chunk(merge.replica, merge.into);
        let has = |chunk: &Chunk, n: usize| u64::from(chunk.has_quarter(n));
        let either = |n: &usize| has(older, *n) + newer.map_or(0, |chunk| has(chunk, *n)) > 0;
        2 + (0..CRC_PAGES).filter(either).count() as u64
    }

    /// Merges a chunk; returns what it costs, in blocks.
    pub(super) fn merge_chunk(&mut self, merge: ChunkMerge, written: Option<&BlockSet>) -> u32 {
        let (id, from, into) = (merge.replica, merge.from, merge.into);
        if self.chunk(id, from).is_none() {
            return 1;
        }
        self.spoil(id, from, |_| true);
        self.spoil(id, into, |_| true);
        self.clock += 1;
        let replica = self.replicas.get_mut(&id).expect("the round was checked");
        let older = replica.chunks.remove(&from).expect("seen above");
        let held = replica.chunks.remove(&into);
        let is_new = held.is_none();
        let newer = held.unwrap_or_else(|| Chunk::new(NOWHERE));
        let mut pair = Pair { older, newer, changed: [false; CHUNK_PAGES], merged: 0, dropped: Vec::new() };
        let cost = MERGE_COST + merge.copies.len() as u32;
        let copied = pair.merge(merge, written);
        let writes = copied.iter().map(|(block, buf)| {
            let (au, n) = pair.newer.place_of(usize::from(*block));
            (self.region.start + self.geometry.block_offset(au, n), aligned(buf.clone(), &self.disk))
        });
        let runs = coalesced(writes.collect(), self.limits.io_bytes_max);
        self.running().ready.extend(runs);
        if !copied.is_empty() {
            self.running().copied.entry((id, into)).or_default().extend(copied);
        }
        self.stats.merged_aus += pair.merged;
        self.put_merged(id, (from, into), pair, is_new);
        cost
    }

    /// Puts the chunks back, and writes the pages that have changed.
    fn put_merged(&mut self, id: ReplicaId, (from, into): (ChunkKey, ChunkKey), pair: Pair, is_new: bool) {
        let Pair { mut older, mut newer, mut changed, merged, dropped } = pair;
        for au in dropped {
            match on(Bug::MergeFreesEarly) {
                true => self.aus.release(au),
                false => self.drop_au(au),
            }
        }
        let clock = self.clock;
        let replica = self.replicas.get_mut(&id).expect("the round was checked");
        if changed == [false; CHUNK_PAGES] {
            if !is_new {
                replica.chunks.insert(into, newer);
            }
        } else {
            newer.touched = clock;
            if is_new {
                (newer.place, changed[0]) = (replica.place(into), true);
            }
            self.settle(id, into, newer, changed);
        }
        if merged == 0 {
            self.replicas.get_mut(&id).expect("it is there").chunks.insert(from, older);
            return;
        }
        older.touched = clock;
        let mut pages = [false; CHUNK_PAGES];
        pages[0] = true;
        self.settle(id, from, older, pages);
    }
}

impl Pair {
    /// Merges the older chunk, as far as the round may and copies are at hand; returns the blocks to write.
    fn merge(&mut self, merge: ChunkMerge, written: Option<&BlockSet>) -> BTreeMap<u16, IoBuf> {
        // M4: copies of a chunk that has changed since are none.
        let is_current = self.older.touched <= merge.clock;
        let (older, family) = (&self.older, merge.family);
        let is_whole = |(block, buf): &(u16, IoBuf)| {
            let place = BlockPlace::of(family, merge.into, *block);
            older.is_valid(usize::from(*block)) && block_hash(place, buf) == older.hash_of(usize::from(*block))
        };
        let copies: BTreeMap<u16, IoBuf> = merge.copies.into_iter().filter(|c| is_current && is_whole(c)).collect();
        let mut copied = BTreeMap::new();
        for at in 0..AUS_PER_CHUNK as usize {
            let slot = self.older.map[at];
            if slot.valid == 0 && slot.zeros == 0 {
                continue;
            }
            let bit = |n: usize| u16::from(written.is_some_and(|w| w.contains(at * PER_AU + n))) << n;
            let step = match merge.hidden {
                true => Step::Drop,
                false => step_of(slot, self.newer.map[at], (0..PER_AU).map(bit).fold(0, |mask, bit| mask | bit)),
            };
            let step = match step {
                Step::Copy(blocks) if blocks_of(at, blocks).all(|block| copies.contains_key(&(block as u16))) => step,
                Step::Copy(_) if on(Bug::MergeDropsOpen) => Step::Drop,
                Step::Copy(_) => Step::Stay,
                step => step,
            };
            if step == Step::Stay {
                continue;
            }
            // A mark that hides nothing is dropped.
            if merge.marks && !merge.hidden {
                self.move_marks(at);
            }
            self.take(at, step, |block| {
                copied.insert(block, copies[&block].clone());
            });
        }
        if !merge.hidden && !merge.marks && self.older.is_empty() {
            // Nothing is below the heir's chunk any more.
            for slot in self.newer.map.iter_mut().filter(|slot| slot.zeros != 0) {
                (slot.zeros, self.changed[0]) = (0, true);
            }
        }
        copied
    }

    /// Gives the heir the zero marks of an AU's blocks where it is open.
    fn move_marks(&mut self, at: usize) {
        let older = self.older.map[at];
        let newer = &mut self.newer.map[at];
        let zeros = newer.zeros | older.zeros & !newer.valid;
        self.changed[0] |= zeros != newer.zeros;
        newer.zeros = zeros;
    }

    /// Takes an AU out of the older chunk. `copy` is told the blocks that are copied.
    fn take(&mut self, at: usize, step: Step, mut copy: impl FnMut(u16)) {
        let slot = std::mem::take(&mut self.older.map[at]);
        self.merged += 1;
        match step {
            Step::Move(valid) => {
                let zeros = self.newer.map[at].zeros & !valid;
                self.newer.map[at] = MapSlot { au: slot.au, valid, zeros };
                blocks_of(at, valid).for_each(|block| self.take_hash(block));
            }
            Step::Copy(blocks) => {
                self.newer.map[at].valid |= blocks;
                self.newer.map[at].zeros &= !blocks;
                for block in blocks_of(at, blocks) {
                    self.take_hash(block);
                    copy(block as u16);
                }
                self.dropped.push(slot.au);
            }
            Step::Drop if slot.valid != 0 => self.dropped.push(slot.au),
            Step::Drop | Step::Stay => {}
        }
    }

    fn take_hash(&mut self, block: usize) {
        let table = self.older.crcs[block / CRCS_PER_PAGE].as_ref().expect("a quarter with data has CRCs");
        let hash = table[block % CRCS_PER_PAGE];
        self.newer.set_hash(block, hash);
        (self.changed[0], self.changed[1 + block / CRCS_PER_PAGE]) = (true, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(valid: u16, zeros: u16) -> MapSlot {
        MapSlot { au: u32::from(valid != 0), valid, zeros }
    }

    #[test]
    fn fate_of_an_au_follows_from_the_two_maps_and_the_round() {
        let check = |older: (u16, u16), newer: (u16, u16), written, want| {
            assert_eq!(step_of(slot(older.0, older.1), slot(newer.0, newer.1), written), want, "{older:?} {newer:?}");
        };
        check((0b0111, 0), (0, 0), 0, Step::Move(0b0111));
        check((0b0111, 0b1000), (0, 0b0010), 0, Step::Move(0b0101));
        check((0b0111, 0), (0, 0b0111), 0, Step::Drop);
        check((0b0111, 0), (0, 0), 0b1000_0000, Step::Stay);
        check((0b0111, 0), (0b0001, 0), 0, Step::Copy(0b0110));
        check((0b0111, 0), (0b0001, 0b0100), 0, Step::Copy(0b0010));
        check((0b0111, 0), (0b0001, 0), 0b0010, Step::Copy(0b0100));
        check((0b0111, 0), (0b0001, 0), 0b0110, Step::Copy(0));
        check((0b0111, 0), (0b1011, 0b0100), 0, Step::Drop);
        check((0, 0b0001), (0, 0), 0, Step::Drop);
        check((0, 0b0001), (0b0010, 0), 0b1, Step::Drop);
    }
}
