//! The contents of a mounted store, for tools: its replicas, their chunks, its log.
//!
//! It changes nothing, and no request passes through it.
//!
//! Invariant: none of its own; the counts are those of log, overlay and home at this moment.

use crate::engine::Engine;
use crate::home::{ChunkUse, SpaceUse};
use crate::lineage::Lineage;
use crate::replica::{Replica, ReplicaState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::store::{Failure, ReplicaIdentity};
use types::tree::{Role, Tree};
use types::{ChunkKey, GenerationId, Index, ReplicaId, Term};

/// Part of a replica in its PG, as its device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// It may vote, acknowledge and serve.
    Running,
    /// A stream has still to bring its contents (R16).
    Filling,
    /// Its log lacks these payloads.
    Repairing {
        lost: Vec<Index>,
    },
    Failed(Failure),
}

/// One replica of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaUse {
    pub identity: ReplicaIdentity,
    pub part: Part,
    /// Checkpoint index, with its term.
    pub checkpoint: (Index, Term),
    /// Last entry of the log; the entry before the first one, if the log is empty.
    pub last: Index,
    pub applied: Index,
    /// Commit index of its hard state.
    pub commit: Index,
    pub term: Term,
    /// Entries in the log, and the bytes of their payloads.
    pub entries: u64,
    pub payload_bytes: u64,
    /// Chunks with data at home; the AUs (64 KiB) and the blocks (4 KiB) in them.
    pub chunks: u64,
    pub aus: u64,
    pub blocks: u64,
    /// Payload bytes that are applied and not at home.
    pub overlay_bytes: u64,
}

/// One chunk of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeld {
    pub chunk: ChunkKey,
    /// The generation to which the blocks belong, with its role: another one than that of the chunk when that one is dissolved. The
    /// checkpoint tells it of a generation that has ended since. `None`: the decision state is damaged.
    pub owner: Option<(GenerationId, Role)>,
    /// The part at home; `None`: the log alone holds data of the chunk.
    pub home: Option<ChunkUse>,
    /// Whether the overlay covers sectors of the chunk.
    pub in_log: bool,
}

/// The log of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUse {
    pub segments: u32,
    pub segments_in_use: u32,
    pub segment_bytes: u64,
    /// Bytes from the oldest live segment to the head.
    pub used_bytes: u64,
    /// First batch of the oldest live segment, and the last batch that the mount has found.
    pub tail_seq: u64,
    pub last_seq: u64,
}

fn part_of(replica: &Replica) -> Part {
    match &replica.state {
        ReplicaState::Running => Part::Running,
        ReplicaState::Filling { .. } => Part::Filling,
        ReplicaState::Repairing(lost) => Part::Repairing { lost: lost.iter().copied().collect() },
        ReplicaState::Failed(failure) => Part::Failed(failure.clone()),
    }
}

impl Engine {
    /// Returns the replicas of the store, ascending by id.
    pub fn replicas_for_tools(&self) -> Vec<ReplicaUse> {
        self.replicas.values().map(|replica| self.use_of(replica)).collect()
    }

    fn use_of(&self, r: &Replica) -> ReplicaUse {
        let uses = self.home.iter().flat_map(|home| home.chunk_uses(r.identity.replica));
        let (chunks, aus, blocks) = uses.fold((0, 0, 0), |(chunks, aus, blocks), of| {
            (chunks + 1, aus + u64::from(of.aus), blocks + u64::from(of.blocks))
        });
        ReplicaUse {
            identity: r.identity.clone(),
            part: part_of(r),
            checkpoint: r.checkpoint,
            last: r.log.last().max(r.checkpoint.0),
            applied: r.applied,
            commit: r.hard_state.commit,
            term: r.hard_state.term,
            entries: r.log.len() as u64,
            payload_bytes: r.log.iter().map(|kept| kept.payload_len() as u64).sum(),
            chunks,
            aus,
            blocks,
            overlay_bytes: r.overlay.bytes(),
        }
    }

    /// Returns the chunks of a replica at home and in the overlay, ascending. Chunks that an unmap of the overlay ends, or
    /// that the overlay fills with zeros, are among them.
    pub fn chunks_for_tools(&self, replica: ReplicaId) -> Vec<ChunkHeld> {
        let uses = self.home.iter().flat_map(|home| home.chunk_uses(replica));
        let at_home: BTreeMap<ChunkKey, ChunkUse> = uses.map(|of| (of.chunk, of)).collect();
        let layers = self.replicas.get(&replica).into_iter().flat_map(|r| {
            r.overlay.frozen().into_iter().chain([r.overlay.active()]).flat_map(|layer| layer.chunks.keys().copied())
        });
        let in_log: BTreeSet<ChunkKey> = layers.collect();
        let all: BTreeSet<ChunkKey> = at_home.keys().chain(&in_log).copied().collect();
        let lineages = [self.shown_lineage(replica), self.lineage_at_home(replica)];
        let owner = |id: GenerationId| {
            let node =
                |lineage: &Arc<Lineage>| lineage.node(lineage.owner(id)).map(|node| (lineage.owner(id), node.role));
            (id, lineages.iter().flatten().find_map(node))
        };
        // Keys are in order of their generations.
        let mut generations: Vec<GenerationId> = all.iter().map(|chunk| chunk.generation).collect();
        generations.dedup();
        let owners: BTreeMap<GenerationId, Option<(GenerationId, Role)>> = generations.into_iter().map(owner).collect();
        let held = |chunk: ChunkKey| ChunkHeld {
            chunk,
            owner: owners[&chunk.generation],
            home: at_home.get(&chunk).copied(),
            in_log: in_log.contains(&chunk),
        };
        all.into_iter().map(held).collect()
    }

    /// Returns the generations of what a tool reads of a replica: those of its applied index, or of home when it has failed or is being
    /// filled ([`Engine::read_base`]). `None`: there is no such replica, or its decision state is damaged.
    pub fn tree_for_tools(&self, replica: ReplicaId) -> Option<Arc<Tree>> {
        self.shown_lineage(replica).map(|lineage| lineage.tree())
    }

    fn shown_lineage(&self, replica: ReplicaId) -> Option<Arc<Lineage>> {
        let r = self.replicas.get(&replica)?;
        match &r.state {
            ReplicaState::Failed(_) => self.lineage_at_home(replica),
            ReplicaState::Filling { older, .. } => Some(older.lineage.clone()),
            ReplicaState::Running | ReplicaState::Repairing(_) => Some(r.lineage.clone()),
        }
    }

    fn lineage_at_home(&self, replica: ReplicaId) -> Option<Arc<Lineage>> {
        self.home.as_ref().and_then(|_| self.home_lineage(replica).ok())
    }

    /// Returns the space of home by owner; `None` before the mount is over.
    pub fn space_for_tools(&self) -> Option<SpaceUse> {
        self.home.as_ref()?.space_use()
    }

    /// Returns replicas of which home holds pages although the store does not have them: destroyed ones whose space no
    /// checkpoint has released, and those whose create records are lost. Each with its AUs and slots.
    pub fn leftovers_for_tools(&self) -> Vec<(ReplicaId, u64, u64)> {
        let holders = self.home.iter().flat_map(|home| home.holders());
        holders.filter(|(id, aus, slots)| !self.replicas.contains_key(id) && aus + slots > 0).collect()
    }

    /// Returns the fill level of the log; `None` before the mount.
    pub fn log_for_tools(&self) -> Option<LogUse> {
        let log = self.log.as_ref()?;
        Some(LogUse {
            segments: log.ring.count() as u32,
            segments_in_use: log.ring.live().len() as u32,
            segment_bytes: log.ring.segment_bytes(),
            used_bytes: log.ring.used_from(0),
            tail_seq: log.ring.tail_seq(),
            last_seq: log.found,
        })
    }

    /// Sequence number of the last checkpoint of home; 0 without one.
    pub fn checkpoint_sequence(&self) -> u64 {
        self.home.as_ref().map_or(0, |home| home.checkpoint_sequence())
    }
}
