//! The overlay: applied entries that are not yet in home, in memory.
//!
//! Each replica has two layers. The *active* one takes the effects that are applied now. The *frozen* one is what a
//! running destage round writes to home; it goes when the round's checkpoint is durable. Reads look through both
//! layers; sectors that neither covers are read from home.
//!
//! Invariant: a layer loses a sector only to a later write of the same layer, or to a cut. The frozen layer changes
//! only by the completion of its own blocks.

mod chunk;
mod intervals;

pub(crate) use chunk::{ChunkLayer, Cover, Found, Source, block_range};
pub(crate) use intervals::Intervals;

use crate::payload::Payload;
use crate::space::{AuSet, Held, Need};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::planted::{Bug, on};
use types::units::{AUS_PER_CHUNK, SECTORS_PER_BLOCK};
use types::{ChunkKey, GenerationId, SectorRange};

/// One layer of one replica.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub chunks: BTreeMap<ChunkKey, ChunkLayer>,
    /// The keys of `chunks` by chunk index.
    by_index: BTreeSet<(u32, GenerationId)>,
    /// Volume → first chunk that is cut: home and older layers do not show in these chunks.
    pub unmaps: BTreeMap<GenerationId, u32>,
    /// Payload bytes that the intervals refer to.
    bytes: u64,
    /// Blocks that are covered in part.
    partial: u64,
    /// Space that the layer's chunks need at home.
    need: Need,
}

impl Layer {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.unmaps.is_empty()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn hides(&self, chunk: ChunkKey) -> bool {
        self.unmaps.get(&chunk.generation).is_some_and(|from| *from <= chunk.index)
    }

    /// Returns the generations with blocks here, ascending.
    pub fn generations(&self) -> impl Iterator<Item = GenerationId> + '_ {
        let first_from = |key: ChunkKey| self.chunks.range(key..).next().map(|(key, _)| key.generation);
        let after = move |id: &GenerationId| {
            let next = GenerationId(id.0.checked_add(1)?);
            first_from(ChunkKey { generation: next, index: 0 })
        };
        let first = self.chunks.keys().next().map(|key| key.generation);
        std::iter::successors(first, after)
    }

    /// Whether there are blocks of this generation here.
    pub fn has_blocks_of(&self, generation: GenerationId) -> bool {
        let key = |index| ChunkKey { generation, index };
        self.chunks.range(key(0)..=key(u32::MAX)).next().is_some()
    }

    /// Inserts data or zeros. True when what the chunk takes at home may change.
    fn insert(&mut self, chunk: ChunkKey, range: SectorRange, data: Option<Arc<Payload>>) -> bool {
        let layer = self.chunks.entry(chunk).or_insert_with(|| {
            self.by_index.insert((chunk.index, chunk.generation));
            ChunkLayer::default()
        });
        let (bytes, partial, held) = (layer.bytes(), layer.partial_blocks(), layer.data());
        // Zeros that hide an older generation take a slot; a block that they cover in part takes an AU.
        let cuts_blocks =
            !range.start.is_multiple_of(SECTORS_PER_BLOCK) || !range.end().is_multiple_of(SECTORS_PER_BLOCK);
        let is_zero = data.is_none();
        let hides = is_zero && (layer.is_empty() || cuts_blocks);
        layer.insert(range, data);
        self.bytes = self.bytes + layer.bytes() - bytes;
        self.partial = self.partial + layer.partial_blocks() - partial;
        // Zeros that cover the rest of a block take none.
        layer.data() != held || hides || is_zero && layer.partial_blocks() != partial
    }

    /// Counts the need of one chunk again, given the space that is held below it.
    fn judge(&mut self, chunk: ChunkKey, below: Held) {
        let Some(layer) = self.chunks.get_mut(&chunk) else { return };
        self.need.take(layer.need);
        layer.need = Need::of(layer.takes(below.shows_older), below);
        self.need.add(layer.need);
    }

    fn unmap(&mut self, generation: GenerationId, from_chunk: u32) {
        let from = ChunkKey { generation, index: from_chunk };
        let last = ChunkKey { generation, index: u32::MAX };
        let gone: Vec<ChunkKey> = self.chunks.range(from..=last).map(|(key, _)| *key).collect();
        for key in gone {
            let layer = self.chunks.remove(&key).expect("its key was just listed");
            self.by_index.remove(&(key.index, key.generation));
            self.bytes -= layer.bytes();
            self.partial -= layer.partial_blocks();
            self.need.take(layer.need);
        }
        let kept = self.unmaps.entry(generation).or_insert(from_chunk);
        *kept = (*kept).min(from_chunk);
    }
}

/// The overlay of one replica.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    active: Layer,
    frozen: Option<Layer>,
}

impl Overlay {
    /// Replaces `range` with the bytes of `data`, or zeros. True when the need of the chunk must be counted again.
    pub fn write(&mut self, chunk: ChunkKey, range: SectorRange, data: Option<Arc<Payload>>) -> bool {
        if let Some(payload) = &data {
            assert!(payload.range().contains(range), "{range} of {}", payload.range());
        }
        self.active.insert(chunk, range, data)
    }

    /// Removes the chunks of `generation` from `from_chunk` on.
    pub fn unmap(&mut self, generation: GenerationId, from_chunk: u32) {
        self.active.unmap(generation, from_chunk);
    }

    /// Freezes everything applied so far.
    ///
    /// # Panics
    /// When there is a frozen layer already.
    pub fn freeze(&mut self) {
        assert!(self.frozen.is_none(), "a round is running");
        self.frozen = Some(std::mem::take(&mut self.active));
    }

    pub fn frozen(&self) -> Option<&Layer> {
        self.frozen.as_ref()
    }

    pub fn active(&self) -> &Layer {
        &self.active
    }

    /// Takes the frozen layer, which is in home now.
    pub fn take_frozen(&mut self) -> Option<Layer> {
        self.frozen.take()
    }

    #[cfg(test)]
    pub fn interval_count(&self) -> usize {
        let layers = [Some(&self.active), self.frozen.as_ref()];
        layers.into_iter().flatten().flat_map(|layer| layer.chunks.values()).map(ChunkLayer::interval_count).sum()
    }

    pub fn into_layers(self) -> impl Iterator<Item = Layer> {
        [self.active].into_iter().chain(self.frozen)
    }

    /// Merges the frozen layer of an abandoned round back into the active one.
    pub fn thaw(&mut self) {
        let Some(below) = self.frozen.take() else { return };
        let above = std::mem::replace(&mut self.active, below);
        for (generation, from_chunk) in &above.unmaps {
            self.active.unmap(*generation, *from_chunk);
        }
        for (key, chunk) in above.chunks {
            for (range, data) in chunk.into_intervals() {
                self.active.insert(key, range, data);
            }
        }
    }

    /// Completes a block of the frozen layer; `None`: the sectors that the layer leaves open are zeros.
    pub fn complete(&mut self, chunk: ChunkKey, block: SectorRange, payload: Option<Arc<Payload>>) {
        let frozen = self.frozen.as_mut().expect("only a running round completes blocks");
        let Some(layer) = frozen.chunks.get(&chunk) else { panic!("{chunk} is not dirty") };
        match payload {
            Some(payload) => {
                frozen.insert(chunk, block, Some(payload));
            }
            None => {
                for f in layer.lookup(block) {
                    if matches!(f.source, Source::Open) {
                        frozen.insert(chunk, f.range, None);
                    }
                }
            }
        }
    }

    /// Space that the layers need at home, as last counted.
    pub fn need(&self) -> Need {
        let mut need = self.active.need;
        need.add(self.frozen.as_ref().map_or(Need::default(), |layer| layer.need));
        need
    }

    /// Counts what the active layer of `chunk` needs beyond `held`, the space that home holds.
    pub fn judge(&mut self, chunk: ChunkKey, held: Held) {
        let below = self.below(chunk, held);
        self.active.judge(chunk, below);
    }

    /// Returns the generations with blocks in this chunk index, in no order, some twice.
    pub fn generations_at(&self, index: u32) -> impl Iterator<Item = GenerationId> + '_ {
        let (first, last) = ((index, GenerationId(0)), (index, GenerationId(u64::MAX)));
        self.layers().flat_map(move |layer| layer.by_index.range(first..=last)).map(|(_, generation)| *generation)
    }

    /// Whether a layer has blocks of this chunk.
    pub fn has_chunk(&self, chunk: ChunkKey) -> bool {
        self.layers().any(|layer| layer.chunks.contains_key(&chunk))
    }

    /// Whether a layer hides what home has of this chunk.
    pub fn hides(&self, chunk: ChunkKey) -> bool {
        self.layers().any(|layer| layer.hides(chunk))
    }

    /// Whether a layer has blocks of this generation.
    pub fn has_blocks_of(&self, generation: GenerationId) -> bool {
        self.layers().any(|layer| layer.has_blocks_of(generation))
    }

    /// Returns those of these AUs of the chunk in which no layer covers a sector.
    pub fn untouched(&self, chunk: ChunkKey, aus: AuSet) -> AuSet {
        if self.hides(chunk) {
            return AuSet::default();
        }
        let layers: Vec<&ChunkLayer> = self.layers().filter_map(|layer| layer.chunks.get(&chunk)).collect();
        let is_free = |au: &u32| !layers.iter().any(|layer| layer.touches(SectorRange::of_au(*au)));
        if layers.is_empty() {
            aus
        } else {
            AuSet::of((0..AUS_PER_CHUNK).filter(|au| aus.contains(*au)).filter(is_free))
        }
    }

    /// Returns the number of AUs in which the layers have data of this generation.
    pub fn aus_of(&self, generation: GenerationId) -> u64 {
        let key = |index| ChunkKey { generation, index };
        let chunks = self.layers().flat_map(|layer| layer.chunks.range(key(0)..=key(u32::MAX)));
        chunks.map(|(_, chunk)| chunk.takes(true).len()).sum()
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        [&self.active].into_iter().chain(&self.frozen)
    }

    /// Returns the chunks of the active layer that lay over data or unmaps of `frozen`.
    pub fn over<'a>(&'a self, frozen: &'a Layer) -> impl Iterator<Item = ChunkKey> + 'a {
        let keys = self.active.chunks.keys().copied();
        keys.filter(|key| frozen.chunks.contains_key(key) || frozen.hides(*key))
    }

    /// Returns the space held below the active layer of a chunk.
    fn below(&self, chunk: ChunkKey, held: Held) -> Held {
        match &self.frozen {
            _ if self.active.hides(chunk) => held.cut(),
            None => held,
            Some(frozen) => {
                let below = if frozen.hides(chunk) { held.cut() } else { held };
                let Some(layer) = frozen.chunks.get(&chunk) else { return below };
                let taken = layer.takes(held.shows_older);
                let listed = below.listed || held.shows_older || !taken.is_empty();
                Held { aus: below.aus.or(taken), listed, ..below }
            }
        }
    }

    /// Whether a layer holds visible bytes in this AU.
    pub fn has_data(&self, chunk: ChunkKey, au: u32) -> bool {
        let layer = self.active.chunks.get(&chunk);
        if layer.is_some_and(|layer| layer.data().contains(au)) {
            return true;
        }
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.chunks.get(&chunk));
        if !frozen.is_some_and(|layer| layer.data().contains(au)) {
            return false;
        }
        // Bytes that were zeroed since are not visible.
        let range = SectorRange::of_au(au);
        match layer.is_some_and(|layer| layer.touches(range)) {
            true => self.lookup(chunk, range).iter().any(|f| matches!(f.source, Source::Data(_))),
            false => !self.active.hides(chunk),
        }
    }

    /// Counts [`Overlay::need`] from the intervals.
    #[cfg(test)]
    pub fn recount(&self, held: impl Fn(ChunkKey) -> Held) -> Need {
        let found = |layer: &ChunkLayer, held: Held| {
            let mut data = crate::space::AuSet::default();
            (0..types::units::AUS_PER_CHUNK).filter(|au| layer.finds_data(*au)).for_each(|au| data.insert(au));
            assert_eq!(data, layer.data(), "AUs with bytes");
            let partial = layer.blocks_from(0).filter(|(block, _)| held.shows_older && layer.is_partial(*block));
            partial.for_each(|(block, _)| data.insert(u32::from(block) / types::units::BLOCKS_PER_AU));
            data
        };
        for layer in self.layers() {
            let keys: BTreeSet<(u32, GenerationId)> =
                layer.chunks.keys().map(|key| (key.index, key.generation)).collect();
            assert_eq!(keys, layer.by_index, "chunks by index");
        }
        let mut need = Need::default();
        for (chunk, layer) in &self.active.chunks {
            let below = self.below(*chunk, held(*chunk));
            need.add(Need::of(found(layer, below), below));
        }
        for (chunk, layer) in self.frozen.iter().flat_map(|frozen| &frozen.chunks) {
            let hidden = self.frozen.as_ref().is_some_and(|frozen| frozen.hides(*chunk));
            let held = if hidden { held(*chunk).cut() } else { held(*chunk) };
            need.add(Need::of(found(layer, held), held));
        }
        need
    }

    /// Returns the sources that cover `range`, in order and complete; [`Source::Open`] for sectors that no layer covers.
    pub fn lookup(&self, chunk: ChunkKey, range: SectorRange) -> Vec<Found> {
        self.fill(chunk, vec![Found { range, source: Source::Open }])
    }

    /// Covers what is open in `found` with what the layers have of this chunk.
    pub fn fill(&self, chunk: ChunkKey, found: Vec<Found>) -> Vec<Found> {
        let layers = [Some(&self.active), self.frozen.as_ref().filter(|_| !on(Bug::FrozenLayerIgnored))];
        fill(&layers, chunk, found)
    }

    /// Does the same with the frozen layer alone.
    pub fn fill_frozen(&self, chunk: ChunkKey, found: Vec<Found>) -> Vec<Found> {
        fill(&[self.frozen.as_ref()], chunk, found)
    }

    pub fn bytes(&self) -> u64 {
        self.active.bytes + self.frozen.as_ref().map_or(0, |l| l.bytes)
    }

    pub fn partial_blocks(&self) -> u64 {
        self.active.partial + self.frozen.as_ref().map_or(0, |l| l.partial)
    }
}

fn fill(layers: &[Option<&Layer>], chunk: ChunkKey, mut found: Vec<Found>) -> Vec<Found> {
    for layer in layers.iter().copied().flatten() {
        if let Some(intervals) = layer.chunks.get(&chunk) {
            found = found
                .into_iter()
                .flat_map(|f| match f.source {
                    Source::Open => intervals.lookup(f.range),
                    _ => vec![f],
                })
                .collect();
        }
        if layer.hides(chunk) {
            for f in &mut found {
                if matches!(f.source, Source::Open) {
                    f.source = Source::Hidden;
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
