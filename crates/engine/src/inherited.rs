//! Blocks that a flatten copies into a head: those in which older generations show data, whatever the head has there.
//!
//! Input: a head and the chunk index to begin at. Output: the next chunk with such blocks. Maps alone are looked at; nothing is changed.
//!
//! That home has a whole block of the head proves nothing: a round completes a block of which the head has a part, on this replica alone. Another
//! one may still need the rest from the parent. Only an entry of the log makes the block whole on all of them.
//!
//! Invariant: a block that is not named shows the same without the older generations, on every replica: they have no data there, or all
//! that the head shows is zeros.

use crate::delta::runs_in;
use crate::engine::Engine;
use crate::home_api::At;
use crate::lineage::View;
use crate::overlay::Source;
use std::collections::BTreeSet;
use types::planted::{Bug, on};
use types::store::Inherited;
use types::units::{SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

/// Chunks that one call looks at.
const CHUNKS_MAX: usize = 4;

impl Engine {
    /// Returns the next chunk, from index `from` on, with blocks that are to be copied into a head.
    pub fn next_inherited(&self, replica: ReplicaId, head: GenerationId, from: u32) -> Inherited {
        let Some(r) = self.replicas.get(&replica) else { return Inherited::End };
        let tree = r.lineage.tree();
        if tree.get(head).is_none() {
            return Inherited::End;
        }
        let older: BTreeSet<GenerationId> = tree.path(head).skip(1).map(|(id, _)| id).collect();
        let mut next = Some(from);
        for _ in 0..CHUNKS_MAX {
            let Some(index) = next.and_then(|from| self.next_index(replica, &older, from)) else {
                return Inherited::End;
            };
            let runs = self.inherited(replica, ChunkKey { generation: head, index }, SectorRange::CHUNK);
            if runs.iter().any(|(_, is)| *is) {
                return Inherited::Chunk { index, runs };
            }
            next = index.checked_add(1);
        }
        next.map_or(Inherited::End, Inherited::Further)
    }

    /// Returns the sectors of a range as runs, `true` where a block is to be copied.
    pub fn inherited(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        let known = self.replicas.get(&replica).filter(|r| !r.is_filling()).zip(self.home.as_ref());
        let tree = known.map(|(r, _)| r.lineage.tree());
        let node = tree.as_ref().and_then(|tree| tree.get(chunk.generation));
        let parent = node.filter(|node| chunk.index < node.through).and_then(|node| node.parent);
        let Some(((r, home), parent)) = known.zip(parent) else { return vec![(range.count, false)] };
        let (mut shows, mut at) = (Blocks::default(), range.start);
        for (count, data) in self.extents(replica, ChunkKey { generation: parent, ..chunk }, range) {
            if data {
                shows.note(SectorRange::new(at, count));
            }
            at += count;
        }
        // All but zeros.
        let mut other = Blocks::default();
        for found in r.sources(home).resolve(View::Delta, chunk, range).parts {
            match found.source {
                Source::Zeros => {}
                Source::Data(_) if on(Bug::CopyTrustsHome) => {}
                Source::Data(_) | Source::Open | Source::Hidden => other.note(found.range),
                Source::Home(key) => {
                    let is_zeros = |at| at == At::Zeros || at == At::Data && on(Bug::CopyTrustsHome);
                    let runs = home.at(replica, key, found.range).into_iter().filter(|(_, at)| !is_zeros(*at));
                    runs.for_each(|(run, _)| other.note(run));
                }
            }
        }
        let both: Vec<bool> = other.0.iter().zip(&shows.0).map(|(other, shows)| *other && *shows).collect();
        runs_in(&both, range)
    }
}

/// Blocks of a chunk that are touched.
struct Blocks(Vec<bool>);

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks(vec![false; (SECTORS_PER_CHUNK / SECTORS_PER_BLOCK) as usize])
    }
}

impl Blocks {
    fn note(&mut self, range: SectorRange) {
        let blocks = range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK);
        self.0[blocks.start as usize..blocks.end as usize].fill(true);
    }
}
