//! Deltas of live generations, which streams, block repair and digests speak of: two replicas with the same applied index have the same
//! ones, whatever each has merged.
//!
//! The OSD's loop calls it between turns; it changes nothing.
//!
//! Invariant: a block counts as a whole. One that its generation owns in part gets the rest of its bytes from older generations when a
//! round completes it, so it reads as it will be at home.

use crate::engine::Engine;
use crate::home::Home;
use crate::home_api::At;
use crate::lineage::View;
use crate::overlay::{Source, block_range};
use crate::replica::Replica;
use crate::resolve::Sources;
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{ChunkDelta, Own};
use types::tree::Tree;
use types::units::{SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{BlockPlace, ChunkKey, GenerationId, Index, ReplicaId, SectorRange, VolumeChunk};

impl Engine {
    /// Returns the delta of a chunk as applied.
    pub fn delta(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkDelta {
        let deep = self.home.as_ref().zip(self.replicas.get(&replica)).filter(|(_, r)| is_deep(r, chunk));
        let Some((home, r)) = deep else {
            let own = |(sectors, data)| (sectors, if data { Own::Data } else { Own::Open });
            let runs = self.extents(replica, chunk, SectorRange::CHUNK).into_iter().map(own).collect();
            return ChunkDelta { runs, is_deep: false };
        };
        ChunkDelta { runs: runs_of(&own_blocks(home, &r.sources(home), chunk, SectorRange::CHUNK)), is_deep: true }
    }

    /// Returns the sectors of a range as runs, `true` where a block may read otherwise than in `since`, an older generation on the path of
    /// the chunk's: one of the generations behind it has the block, as data or as zeros. No byte is read, and no block that
    /// differs is missed. Where `since` does not show, because the volume was shorter in between, its blocks count, too.
    ///
    /// Maps alone are looked at, and only where a generation has the chunk: hundreds of generations may lie between two backups, and one turn
    /// answers many such questions.
    pub fn changed(
        &self,
        replica: ReplicaId,
        chunk: ChunkKey,
        since: GenerationId,
        range: SectorRange,
    ) -> Vec<(u32, bool)> {
        let r = self.replicas.get(&replica).filter(|r| !r.is_filling());
        let Some((r, home)) = r.zip(self.home.as_ref()) else { return vec![(range.count, true)] };
        let tree = r.lineage.tree();
        if [chunk.generation, since].iter().any(|id| tree.get(*id).is_none()) {
            return vec![(range.count, true)];
        }
        let mut changed = vec![false; (SECTORS_PER_CHUNK / SECTORS_PER_BLOCK) as usize];
        let mut note = |generation: GenerationId| {
            for id in r.lineage.steps(generation, chunk.index, View::Delta) {
                let key = ChunkKey { generation: id, ..chunk };
                home.own_blocks(replica, key, range).for_each(|block| changed[usize::from(block)] = true);
                let layers = r.overlay.frozen().into_iter().chain([r.overlay.active()]);
                for covered in layers.filter_map(|layer| layer.chunks.get(&key)).flat_map(|layer| layer.covered(range))
                {
                    let blocks = covered.start / SECTORS_PER_BLOCK..covered.end().div_ceil(SECTORS_PER_BLOCK);
                    changed[blocks.start as usize..blocks.end as usize].fill(true);
                }
            }
        };
        let shown = |id: GenerationId| tree.path(id).filter(|(_, through)| chunk.index < *through).map(|(id, _)| id);
        shown(chunk.generation).take_while(|id| *id != since).for_each(&mut note);
        if !shown(chunk.generation).any(|id| id == since) {
            shown(since).for_each(note);
        }
        runs_in(&changed, range)
    }

    /// Whether this replica cannot tell the contents of some of these blocks to a peer, which asks for them as blocks of this generation:
    /// they are open, and the peer has merged more, or less. A generation that is not known here has ended, unless it has data.
    pub fn is_open(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> bool {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return true };
        match r.lineage.node(chunk.generation) {
            None if on(Bug::RepairByGeneration) => false,
            // Nothing was ever merged into it: what is open is zeros.
            Some(node) if node.family == chunk.generation => false,
            None if r.lineage.owner_of(chunk) == chunk => !has_chunks(home, r, chunk),
            _ => own_blocks(home, &r.sources(home), chunk, range).contains(&Own::Open),
        }
    }

    /// Returns the chunk as whose block a block of this one is asked for.
    pub fn owner_of(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkKey {
        let names_own = || on(Bug::RepairByGeneration);
        self.replicas.get(&replica).filter(|_| !names_own()).map_or(chunk, |r| r.lineage.owner_of(chunk))
    }

    /// Returns the chunk of a volume to which the blocks of this one belong: they are those of the volume, or of one of its snapshots.
    pub fn volume_chunk(&self, replica: ReplicaId, chunk: ChunkKey) -> VolumeChunk {
        let lineage = self.replicas.get(&replica).map(|r| &r.lineage);
        let node = lineage.and_then(|lineage| lineage.node(lineage.owner(chunk.generation)));
        node.map_or(chunk.of_first(), |node| VolumeChunk { volume: node.role.volume(), index: chunk.index })
    }

    /// Returns the place that seeds the checksum of a block.
    pub fn place_of(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> BlockPlace {
        self.replicas.get(&replica).map_or(chunk.in_own_family(block), |r| r.lineage.place(chunk, block))
    }

    /// Returns the chunks of other generations in which a read of this one may find its blocks.
    pub fn older_of(&self, replica: ReplicaId, chunk: ChunkKey) -> Vec<ChunkKey> {
        let Some(r) = self.replicas.get(&replica).filter(|r| !r.lineage.is_flat()) else { return Vec::new() };
        let steps = r.lineage.steps(chunk.generation, chunk.index, View::Full).skip(1);
        steps.map(|generation| ChunkKey { generation, ..chunk }).collect()
    }

    /// Whether a read of the chunk finds this block at home in another one.
    pub fn shows_block(&self, replica: ReplicaId, chunk: ChunkKey, (other, block): (ChunkKey, u16)) -> bool {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return false };
        let found = r.sources(home).resolve(View::Full, chunk, block_range(block)).parts;
        found.iter().any(|f| matches!(f.source, Source::Home(key) if key == other))
    }

    /// Returns the generations as applied.
    pub fn tree(&self, replica: ReplicaId) -> Option<Arc<Tree>> {
        self.replicas.get(&replica).map(|r| r.lineage.tree())
    }

    /// Whether contents as applied here are contents for a log that begins at this index: the tree is the same since, or each of its
    /// generations is the first of its volume, so that no generation was merged into another one.
    pub fn has_tree_since(&self, replica: ReplicaId, index: Index) -> bool {
        self.replicas.get(&replica).is_some_and(|r| r.lineage.has_only_first() || r.tree_index <= index)
    }
}

/// Whether another generation may show in the chunk.
fn is_deep(r: &Replica, chunk: ChunkKey) -> bool {
    !r.is_filling() && !r.lineage.is_flat() && r.lineage.shows_older(chunk)
}

/// Whether there is a chunk of this generation.
fn has_chunks(home: &Home, r: &Replica, chunk: ChunkKey) -> bool {
    let is_its = |key: &ChunkKey| key.generation == chunk.generation;
    let mut layers = r.overlay.frozen().into_iter().chain([r.overlay.active()]);
    layers.any(|layer| layer.chunks.keys().any(is_its)) || home.chunks(r.identity.replica).any(|key| is_its(&key))
}

/// Returns what each block of a range is in the delta.
fn own_blocks(home: &Home, sources: &Sources<'_>, chunk: ChunkKey, range: SectorRange) -> Vec<Own> {
    let first = range.start / SECTORS_PER_BLOCK;
    let count = (range.end().div_ceil(SECTORS_PER_BLOCK) - first) as usize;
    let (mut own, mut open) = (vec![Own::Open; count], vec![false; count]);
    let mut take = |run: SectorRange, kind: Own| {
        if kind == Own::Open {
            // Only blocks that are open in part count.
            let [start, end] = [run.start, run.end() - 1].map(|sector| (sector / SECTORS_PER_BLOCK - first) as usize);
            (open[start], open[end]) = (true, true);
            return;
        }
        for fragment in run.fragments() {
            let block = (fragment.start / SECTORS_PER_BLOCK - first) as usize;
            match kind {
                Own::Zeros if own[block] == Own::Data => {}
                _ => own[block] = kind,
            }
        }
    };
    for found in sources.resolve(View::Delta, chunk, range).parts {
        match found.source {
            Source::Data(_) => take(found.range, Own::Data),
            Source::Zeros => take(found.range, Own::Zeros),
            Source::Open | Source::Hidden => take(found.range, Own::Open),
            Source::Home(key) => {
                let kind = |at| match at {
                    At::Data => Own::Data,
                    At::Zeros => Own::Zeros,
                    At::Open => Own::Open,
                };
                home.at(sources.replica, key, found.range).into_iter().for_each(|(run, at)| take(run, kind(at)));
            }
        }
    }
    // Zeros in a part of a block: its other bytes may come from an older generation.
    for (block, own) in (first as u16..).zip(&mut own) {
        let in_part = *own == Own::Zeros && open[usize::from(block) - first as usize];
        if in_part && shows_data(home, sources, chunk, block) {
            *own = Own::Data;
        }
    }
    own
}

fn shows_data(home: &Home, sources: &Sources<'_>, chunk: ChunkKey, block: u16) -> bool {
    sources.resolve(View::Full, chunk, block_range(block)).parts.iter().any(|f| match f.source {
        Source::Data(_) => true,
        Source::Home(key) => home.at(sources.replica, key, f.range).iter().any(|(_, at)| *at == At::Data),
        Source::Zeros | Source::Open | Source::Hidden => false,
    })
}

/// Returns a range of a chunk as runs of sectors.
pub(crate) fn runs_in(blocks: &[bool], range: SectorRange) -> Vec<(u32, bool)> {
    let mut runs: Vec<(u32, bool)> = Vec::new();
    for fragment in range.fragments() {
        let is = blocks[(fragment.start / SECTORS_PER_BLOCK) as usize];
        match runs.last_mut() {
            Some((sectors, kind)) if *kind == is => *sectors += fragment.count,
            _ => runs.push((fragment.count, is)),
        }
    }
    runs
}

/// Returns the blocks of a chunk as runs of sectors.
fn runs_of(blocks: &[Own]) -> Vec<(u32, Own)> {
    assert_eq!(blocks.len() as u32 * SECTORS_PER_BLOCK, SECTORS_PER_CHUNK, "the blocks of a chunk");
    blocks.chunk_by(|a, b| a == b).map(|run| (run.len() as u32 * SECTORS_PER_BLOCK, run[0])).collect()
}
