//! Blocks that a head shows of older generations, for the leader that copies them into it.
//!
//! Input: a head and the chunk index to begin at. Output: the next chunk in which older generations show, with its blocks. Maps alone are looked
//! at; nothing is changed.
//!
//! Invariant: a block that is not named is the head's own or zeros, and stays so as long as it is the head: writes and discards make blocks its
//! own, and the older generations take no more of either.

use crate::delta::runs_in;
use crate::engine::Engine;
use crate::home_api::At;
use crate::lineage::View;
use crate::overlay::Source;
use std::collections::BTreeSet;
use types::store::Inherited;
use types::units::{SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

/// Chunks that one call looks at.
const CHUNKS_MAX: usize = 16;

impl Engine {
    /// Returns the next chunk, from index `from` on, in which a head shows data of older generations.
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

    /// Returns the sectors of a range as runs, `true` where a block shows data, and not all of it is the generation's own.
    pub fn inherited(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        let known = self.replicas.get(&replica).filter(|r| !r.is_filling()).zip(self.home.as_ref());
        let Some((r, home)) = known else { return vec![(range.count, false)] };
        let mut open = Blocks::default();
        for found in r.sources(home).resolve(View::Delta, chunk, range).parts {
            match found.source {
                Source::Data(_) | Source::Zeros => {}
                Source::Open | Source::Hidden => open.note(found.range),
                Source::Home(key) => {
                    let runs = home.at(replica, key, found.range).into_iter().filter(|(_, at)| *at == At::Open);
                    runs.for_each(|(run, _)| open.note(run));
                }
            }
        }
        let (mut shows, mut at) = (Blocks::default(), range.start);
        for (count, data) in self.extents(replica, chunk, range) {
            if data {
                shows.note(SectorRange::new(at, count));
            }
            at += count;
        }
        let both: Vec<bool> = open.0.iter().zip(&shows.0).map(|(open, shows)| *open && *shows).collect();
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
