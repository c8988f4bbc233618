//! Space by volume, for tools: what the volume shows, what belongs to it alone, and what the deletion of each snapshot would free.
//!
//! Input: a volume and the chunk index to begin at. Output: counts of AUs, and the index to go on at. A page of chunks is
//! counted between two turns; pages of one volume may show different states.
//!
//! Invariant: a page costs a bounded number of lookups. It changes nothing.

use crate::engine::Engine;
use crate::lineage::View;
use crate::overlay::Overlay;
use crate::replica::Replica;
use std::collections::BTreeSet;
use types::store::Own;
use types::tree::{Role, Tree};
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU, SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::usage::{SnapshotUsage, Usage};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange, VolumeId};

/// Most deltas that one page looks up, but for those of its last chunk.
const DELTAS_MAX: usize = 64;
/// Generations that are looked for in the time of one delta.
const LOOKUPS_PER_DELTA: usize = 16;

/// The generations that count for a volume.
struct Counted {
    own: Vec<(GenerationId, Role)>,
    head: Option<GenerationId>,
    /// Its own, and those of which its head shows blocks.
    all: BTreeSet<GenerationId>,
}

impl Counted {
    fn of(tree: &Tree, volume: VolumeId) -> Counted {
        let of_volume = tree.iter().filter(|(_, node)| node.role.volume() == volume);
        let own: Vec<(GenerationId, Role)> = of_volume.map(|(id, node)| (id, node.role)).collect();
        let head = own.iter().find(|(_, role)| *role == Role::Head(volume)).map(|(id, _)| *id);
        let shown = head.into_iter().flat_map(|head| tree.path(head).map(|(id, _)| id));
        let all = own.iter().map(|(id, _)| *id).chain(shown).collect();
        Counted { own, head, all }
    }
}

/// Blocks of a generation in a chunk, by AU: bit `b` of an AU is its block `b`.
struct Masks {
    data: Vec<u16>,
    zeros: Vec<u16>,
}

impl Masks {
    fn of(runs: &[(u32, Own)]) -> Masks {
        let mut masks = Masks { data: vec![0; AUS_PER_CHUNK as usize], zeros: vec![0; AUS_PER_CHUNK as usize] };
        let mut at = 0;
        for (sectors, own) in runs {
            let mask = match own {
                Own::Data => &mut masks.data,
                Own::Zeros => &mut masks.zeros,
                Own::Open => {
                    at += sectors;
                    continue;
                }
            };
            for block in at / SECTORS_PER_BLOCK..(at + sectors).div_ceil(SECTORS_PER_BLOCK) {
                mask[(block / BLOCKS_PER_AU) as usize] |= 1 << (block % BLOCKS_PER_AU);
            }
            at += sectors;
        }
        masks
    }

    fn aus(&self) -> u64 {
        self.data.iter().filter(|mask| **mask != 0).count() as u64
    }

    /// Counts the AUs that a merge into `heir` frees: the heir has an AU there, too, or all that this one has is hidden.
    fn freed_by(&self, heir: &Masks) -> u64 {
        let freed = |au: &usize| self.data[*au] != 0 && (heir.data[*au] != 0 || self.data[*au] & !heir.zeros[*au] == 0);
        (0..self.data.len()).filter(freed).count() as u64
    }
}

impl Engine {
    /// Counts the space of a volume in some chunks from index `from` on. Returns it with the index to go on at; `None`: there is
    /// nothing behind.
    pub fn usage(&self, replica: ReplicaId, volume: VolumeId, from: u32) -> (Usage, Option<u32>) {
        let (mut usage, mut deltas, mut next) = (Usage::default(), 0, Some(from));
        let Some(r) = self.replicas.get(&replica) else { return (usage, None) };
        let tree = r.lineage.tree();
        let counted = Counted::of(&tree, volume);
        while let Some(index) = next.and_then(|from| self.next_index(replica, &counted.all, from)) {
            if deltas >= DELTAS_MAX {
                return (usage, Some(index));
            }
            deltas += self.add_chunk(replica, (&tree, &counted), index, &mut usage);
            next = index.checked_add(1);
        }
        (usage, None)
    }

    /// Returns the first chunk from index `from` on in which a generation shows data, or the index to go on at, because so many chunks had
    /// none. Neither: there is none.
    pub fn first_data(&self, replica: ReplicaId, id: GenerationId, from: u32) -> (Option<u32>, Option<u32>) {
        let Some(r) = self.replicas.get(&replica) else { return (None, None) };
        let tree = r.lineage.tree();
        let path: BTreeSet<GenerationId> = match tree.get(id) {
            Some(_) => tree.path(id).map(|(id, _)| id).collect(),
            None => BTreeSet::from([id]),
        };
        let mut next = Some(from);
        for _ in 0..DELTAS_MAX {
            let Some(index) = next.and_then(|from| self.next_index(replica, &path, from)) else { return (None, None) };
            let runs = self.extents(replica, ChunkKey { generation: id, index }, SectorRange::CHUNK);
            if runs.iter().any(|(_, data)| *data) {
                return (Some(index), None);
            }
            next = index.checked_add(1);
        }
        (None, next)
    }

    /// Returns the least index from this one on at which a generation has blocks.
    pub(crate) fn next_index(
        &self,
        replica: ReplicaId,
        generations: &BTreeSet<GenerationId>,
        from: u32,
    ) -> Option<u32> {
        let (home, r) = (self.home.as_ref()?, self.replicas.get(&replica)?);
        let all = generations.iter().flat_map(|id| std::iter::once(*id).chain(r.lineage.dissolved_of(*id)));
        let first = |generation| {
            let (from, end) = (ChunkKey { generation, index: from }, ChunkKey { generation, index: u32::MAX });
            let in_log = layers(&r.overlay).filter_map(|layer| Some(layer.chunks.range(from..=end).next()?.0.index));
            in_log.chain(home.chunk_from(replica, from)).min()
        };
        all.filter_map(first).min()
    }

    /// Adds the space of one chunk. Returns the number of deltas that it took.
    fn add_chunk(
        &self,
        replica: ReplicaId,
        (tree, counted): (&Tree, &Counted),
        index: u32,
        usage: &mut Usage,
    ) -> usize {
        let key = |generation| ChunkKey { generation, index };
        let masks = |generation| Masks::of(&self.delta(replica, key(generation)).runs);
        let mut deltas = 1 + counted.own.len() / LOOKUPS_PER_DELTA;
        for (id, role) in counted.own.iter().copied().filter(|(id, _)| self.has_blocks(replica, key(*id))) {
            let blocks = masks(id);
            let (aus, held) = (blocks.aus(), self.aus_held(replica, key(id)));
            deltas += 1;
            usage.stored += aus;
            usage.reclaimable += held.saturating_sub(aus);
            match role {
                Role::Head(_) => usage.exclusive += aus,
                Role::Hidden(_) => usage.removed += aus,
                Role::Snapshot(_, name) if aus > 0 => {
                    let mut children = tree.children(id);
                    let frees = match (children.next(), children.next()) {
                        (None, _) => aus,
                        (Some(_), Some(_)) => 0,
                        (Some(heir), None) if tree.get(heir).is_some_and(|node| index >= node.through) => aus,
                        (Some(heir), None) => {
                            deltas += 1;
                            blocks.freed_by(&masks(heir))
                        }
                    };
                    let of: &mut SnapshotUsage = usage.snapshots.entry(name).or_default();
                    of.stored += aus;
                    of.frees += frees;
                }
                Role::Snapshot(..) => {}
            }
        }
        usage.allocated += counted.head.map_or(0, |head| self.aus_shown(replica, key(head)));
        deltas
    }

    /// Counts the AUs in which a generation shows data.
    fn aus_shown(&self, replica: ReplicaId, chunk: ChunkKey) -> u64 {
        let mut shown = vec![false; AUS_PER_CHUNK as usize];
        let mut at = 0;
        for (sectors, data) in self.extents(replica, chunk, SectorRange::CHUNK) {
            if data {
                let aus = at / SECTORS_PER_AU..(at + sectors).div_ceil(SECTORS_PER_AU);
                shown[aus.start as usize..aus.end as usize].fill(true);
            }
            at += sectors;
        }
        shown.into_iter().filter(|is| *is).count() as u64
    }

    /// Whether a generation, or one that is dissolved into it, has blocks or marks in the chunk.
    fn has_blocks(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return false };
        let is_held =
            |key: ChunkKey| home.has_chunk(replica, key) || layers(&r.overlay).any(|l| l.chunks.contains_key(&key));
        own_keys(r, chunk).any(is_held)
    }

    /// Counts the AUs at home of a generation and of those that are dissolved into it.
    fn aus_held(&self, replica: ReplicaId, chunk: ChunkKey) -> u64 {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return 0 };
        own_keys(r, chunk).map(|key| home.aus_of(replica, key)).sum()
    }
}

fn own_keys(r: &Replica, chunk: ChunkKey) -> impl Iterator<Item = ChunkKey> + '_ {
    let steps = r.lineage.steps(chunk.generation, chunk.index, View::Delta);
    steps.map(move |generation| ChunkKey { generation, ..chunk })
}

fn layers(overlay: &Overlay) -> impl Iterator<Item = &crate::overlay::Layer> {
    overlay.frozen().into_iter().chain([overlay.active()])
}
