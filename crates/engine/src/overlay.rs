//! The overlay: what is applied and not yet in home, in memory.
//!
//! Per replica two layers: the *active* one takes what is applied now; the *frozen* one is what a running
//! destage round takes to home, and goes away when its checkpoint is durable. Reads look through both, and
//! what neither covers is home's.
//!
//! Invariant: a layer never loses a sector but by a later write of the same layer, or by a cut; the frozen
//! layer only changes by completing its own blocks.

mod chunk;

pub(crate) use chunk::{ChunkLayer, Found, Source, block_range};

use crate::payload::Payload;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{ChunkKey, SectorRange, VolumeId};

/// One layer of one replica.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub chunks: BTreeMap<ChunkKey, ChunkLayer>,
    /// Volume → first chunk that is cut: of those chunks nothing below this layer shows.
    pub cuts: BTreeMap<VolumeId, u32>,
    /// Payload bytes that the intervals point at.
    bytes: u64,
    /// Blocks that are covered in part.
    partial: u64,
}

impl Layer {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.cuts.is_empty()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn hides(&self, chunk: ChunkKey) -> bool {
        self.cuts.get(&chunk.volume).is_some_and(|from| *from <= chunk.index)
    }

    fn insert(&mut self, chunk: ChunkKey, range: SectorRange, data: Option<Arc<Payload>>) {
        let layer = self.chunks.entry(chunk).or_default();
        let (bytes, partial) = (layer.bytes(), layer.partial_blocks());
        layer.insert(range, data);
        self.bytes = self.bytes + layer.bytes() - bytes;
        self.partial = self.partial + layer.partial_blocks() - partial;
    }

    fn cut(&mut self, volume: VolumeId, from_chunk: u32) {
        let from = ChunkKey { volume, index: from_chunk };
        let last = ChunkKey { volume, index: u32::MAX };
        let gone: Vec<ChunkKey> = self.chunks.range(from..=last).map(|(key, _)| *key).collect();
        for key in gone {
            let layer = self.chunks.remove(&key).expect("its key was just listed");
            self.bytes -= layer.bytes();
            self.partial -= layer.partial_blocks();
        }
        let kept = self.cuts.entry(volume).or_insert(from_chunk);
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
    /// `range` becomes the bytes of `data` (or zeros).
    pub fn write(&mut self, chunk: ChunkKey, range: SectorRange, data: Option<Arc<Payload>>) {
        if let Some(payload) = &data {
            assert!(payload.range().contains(range), "{range} of {}", payload.range());
        }
        self.active.insert(chunk, range, data);
    }

    /// Chunks of `volume` from `from_chunk` on cease to exist.
    pub fn cut(&mut self, volume: VolumeId, from_chunk: u32) {
        self.active.cut(volume, from_chunk);
    }

    /// Everything applied so far becomes the frozen layer.
    ///
    /// # Panics
    /// When there is one already.
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

    /// The frozen layer is in home: it goes.
    pub fn drop_frozen(&mut self) -> Option<Layer> {
        self.frozen.take()
    }

    /// A round was given up: the frozen layer is again part of what the next one takes.
    pub fn thaw(&mut self) {
        let Some(below) = self.frozen.take() else { return };
        let above = std::mem::replace(&mut self.active, below);
        for (volume, from_chunk) in &above.cuts {
            self.active.cut(*volume, *from_chunk);
        }
        for (key, chunk) in above.chunks {
            for (range, data) in chunk.into_intervals() {
                self.active.insert(key, range, data);
            }
        }
    }

    /// A block of the frozen layer is now known whole; `None`: what the layer left open are zeros.
    pub fn complete(&mut self, chunk: ChunkKey, block: SectorRange, payload: Option<Arc<Payload>>) {
        let frozen = self.frozen.as_mut().expect("only a running round completes blocks");
        let Some(layer) = frozen.chunks.get(&chunk) else { panic!("{chunk} is not dirty") };
        match payload {
            Some(payload) => frozen.insert(chunk, block, Some(payload)),
            None => {
                for f in layer.lookup(block) {
                    if matches!(f.source, Source::Home) {
                        frozen.insert(chunk, f.range, None);
                    }
                }
            }
        }
    }

    /// What covers `range`, in order, without holes; `Source::Home` for what is not covered here.
    pub fn lookup(&self, chunk: ChunkKey, range: SectorRange) -> Vec<Found> {
        let layers = [Some(&self.active), self.frozen.as_ref()];
        look(&layers, chunk, range)
    }

    /// As [`Overlay::lookup`], in the frozen layer alone.
    pub fn lookup_frozen(&self, chunk: ChunkKey, range: SectorRange) -> Vec<Found> {
        look(&[self.frozen.as_ref()], chunk, range)
    }

    pub fn bytes(&self) -> u64 {
        self.active.bytes + self.frozen.as_ref().map_or(0, |l| l.bytes)
    }

    pub fn partial_blocks(&self) -> u64 {
        self.active.partial + self.frozen.as_ref().map_or(0, |l| l.partial)
    }
}

fn look(layers: &[Option<&Layer>], chunk: ChunkKey, range: SectorRange) -> Vec<Found> {
    let mut found = vec![Found { range, source: Source::Home }];
    for layer in layers.iter().copied().flatten() {
        if let Some(intervals) = layer.chunks.get(&chunk) {
            found = found
                .into_iter()
                .flat_map(|f| match f.source {
                    Source::Home => intervals.lookup(f.range),
                    _ => vec![f],
                })
                .collect();
        }
        if layer.hides(chunk) {
            for f in &mut found {
                if matches!(f.source, Source::Home) {
                    f.source = Source::Zeros;
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
