//! The chunks of a replica by key, and by index: which generations have an AU or a zero mark in a place.
//!
//! A lookup goes through all generations that a head shows. With the list of an index it looks into the chunks alone that have
//! something in its range: a bit each, where a walk would look up a chunk of every snapshot.
//!
//! Memory: 40 bytes for each chunk, and about 190 for the first one of an index, beside the 3 KiB or more that each chunk has.
//!
//! Invariant: the list of an index names exactly its chunks, the newest generation first, with their places as they are.

use super::chunk::Chunk;
use crate::space::AuSet;
use std::collections::BTreeMap;
use std::ops::{Deref, RangeInclusive};
use types::{ChunkKey, GenerationId};

/// The places of one chunk that are not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    generation: GenerationId,
    taken: AuSet,
}

/// Chunks of one replica.
#[derive(Default)]
pub(super) struct Chunks {
    by_key: BTreeMap<ChunkKey, Box<Chunk>>,
    /// The newest generation first.
    by_index: BTreeMap<u32, Vec<Places>>,
}

impl Deref for Chunks {
    type Target = BTreeMap<ChunkKey, Box<Chunk>>;

    fn deref(&self) -> &Self::Target {
        &self.by_key
    }
}

impl Chunks {
    /// Puts in a chunk that is not there.
    pub(super) fn insert(&mut self, key: ChunkKey, chunk: Box<Chunk>) {
        let places = Places { generation: key.generation, taken: taken(&chunk) };
        let list = self.by_index.entry(key.index).or_default();
        let at = list.binary_search_by(|places| key.generation.cmp(&places.generation));
        list.insert(at.expect_err("the chunk is not there"), places);
        let before = self.by_key.insert(key, chunk);
        assert!(before.is_none(), "{key} was there");
    }

    pub(super) fn remove(&mut self, key: &ChunkKey) -> Option<Box<Chunk>> {
        let chunk = self.by_key.remove(key)?;
        let list = self.by_index.get_mut(&key.index).expect("the index of a chunk has a list");
        let at = list.binary_search_by(|places| key.generation.cmp(&places.generation));
        list.remove(at.expect("the list names the chunk"));
        if list.is_empty() {
            self.by_index.remove(&key.index);
        }
        Some(chunk)
    }

    /// Changes a chunk in place; `None`: it is not there.
    pub(super) fn change<T>(&mut self, key: ChunkKey, change: impl FnOnce(&mut Chunk) -> T) -> Option<T> {
        let chunk = self.by_key.get_mut(&key)?;
        let result = change(chunk);
        let taken = taken(chunk);
        let list = self.by_index.get_mut(&key.index).expect("the index of a chunk has a list");
        let at = list.binary_search_by(|places| key.generation.cmp(&places.generation));
        list[at.expect("the list names the chunk")].taken = taken;
        Some(result)
    }

    /// Returns the number of generations, of whatever volume, that have a chunk of this index.
    pub(super) fn count_at(&self, index: u32) -> usize {
        self.by_index.get(&index).map_or(0, Vec::len)
    }

    /// Returns the generations that have an AU or a zero mark in one of these AUs of the chunk index, the newest first.
    pub(super) fn taken(&self, index: u32, aus: RangeInclusive<u32>) -> impl Iterator<Item = GenerationId> + '_ {
        let list = self.by_index.get(&index).map_or(&[][..], Vec::as_slice);
        let wanted = AuSet::of(aus);
        list.iter().filter(move |places| places.taken.meets(wanted)).map(|places| places.generation)
    }

    /// Returns the difference between the lists and the chunks, if there is one.
    pub(super) fn audit(&self) -> Result<(), String> {
        let named: usize = self.by_index.values().map(Vec::len).sum();
        if named != self.by_key.len() {
            return Err(format!("{named} chunks by index, {} by key", self.by_key.len()));
        }
        for (index, list) in &self.by_index {
            if list.is_empty() || !list.is_sorted_by(|a, b| a.generation > b.generation) {
                return Err(format!("the list of chunk index {index} is empty or out of order"));
            }
            for places in list {
                let key = ChunkKey { generation: places.generation, index: *index };
                let Some(chunk) = self.by_key.get(&key) else { return Err(format!("{key} is listed by index alone")) };
                if taken(chunk) != places.taken {
                    return Err(format!("the places of {key} are listed wrongly"));
                }
            }
        }
        Ok(())
    }
}

fn taken(chunk: &Chunk) -> AuSet {
    AuSet::of((0..).zip(&chunk.map).filter(|(_, slot)| slot.valid != 0 || slot.zeros != 0).map(|(au, _)| au))
}
