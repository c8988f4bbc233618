//! Questions of the OSD's tools, and the answers.
//!
//! A tool asks with [`Osd::ask_tool`] and takes the answer with [`Osd::take_tool_answers`]; any carrier
//! may bring both. `recovery` answers the queries for digests.
//!
//! Invariant: an answer changes nothing, and waiting questions have a limit.

use crate::devices::DeviceReport;
use crate::node::{Osd, Phase};
use crate::pgs::State;
use engine::{ReadData, ReadError};
use group::decision::Attached;
use recovery::{DigestAnswer, DigestQuery};
use std::collections::BTreeSet;
use types::control::{AttachedVolume, HeldSnapshot, PgReport};
use types::tree::{Node, Role, Tree};
use types::usage::Usage;
use types::{ChunkKey, GenerationId, Index, PgId, VolumeChunk, VolumeId};

/// A question of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolAsk {
    /// Whether the event loop runs and the store has not stopped.
    Health,
    /// Asks for the sampled writes that passed this OSD.
    Ops,
    /// Asks for the devices of the OSD.
    Devices,
    /// Asks for the report of the PG's replica here, and its chunks.
    Pg { pg: PgId },
    /// The CRC32C of each part of a chunk, at exactly this applied index.
    Digest { pg: PgId, chunk: ChunkKey, at: Index },
    /// Asks like `Digest`, for the table that says which blocks of each part hold data. No byte is read.
    Table { pg: PgId, chunk: ChunkKey, at: Index },
    /// Asks for the space of a volume in some chunks, from this index on.
    Usage { pg: PgId, volume: VolumeId, from: u32 },
}

/// The answer to a [`ToolAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolAnswer {
    /// The OSD runs.
    Healthy,
    /// The store stopped after a failed write or flush.
    Stopped { reason: String },
    /// Sampled writes, oldest first.
    Ops(Vec<telemetry::ops::OpReport>),
    /// The devices, that of the log first.
    Devices(Vec<DeviceReport>),
    /// The state of the replica and what it holds.
    Pg {
        report: Box<PgReport>,
        /// The chunks, ascending, that the head or a snapshot of an attached volume shows; those of a clone's parent count for the clone.
        chunks: Vec<VolumeChunk>,
        /// The chunks of each generation, ascending: members that have applied the same have equal ones ([`engine::Engine::delta`]).
        held: Vec<(ChunkKey, Role)>,
        /// The attach record of each volume.
        attached: Vec<AttachedVolume>,
        /// The snapshots, without those of a cut that has not ended.
        snapshots: Vec<HeldSnapshot>,
    },
    /// The space in some chunks, and the index to go on at; `None`: these were the last. Only the figures of a leader are those of
    /// the volume: another member may not have applied all.
    Usage { leading: bool, usage: Box<Usage>, next: Option<u32> },
    /// One value for each part.
    Digest { at: Index, parts: Vec<u32> },
    /// The requested index has passed: `applied` is the present one.
    Passed { applied: Index },
    /// The index was not applied in time.
    Late { applied: Index },
    /// The PG does not have the generation at this index: it was removed, and its blocks may be those of another one.
    Ended { at: Index },
    /// Too many questions wait or run: ask again in a moment.
    Busy,
    /// There is no replica of this PG here.
    NoReplica,
    /// The replica is here and cannot be read: it is being created, or the store is poisoned.
    Unreadable { reason: String },
    /// The replica is here, damaged, and does not serve.
    Quarantined { reason: String },
    /// Bytes of these parts cannot be read or fail their checksums; each with the cause.
    Damaged { at: Index, parts: Vec<(usize, String)> },
}

/// Answers and reads for the OSD's tools.
#[derive(Default)]
pub struct Tools {
    pub(crate) answers: Vec<(u64, ToolAnswer)>,
    /// Results of `Osd::read_for_tools`.
    pub(crate) reads: Vec<Result<ReadData, ReadError>>,
}

impl From<DigestAnswer> for ToolAnswer {
    fn from(answer: DigestAnswer) -> ToolAnswer {
        match answer {
            DigestAnswer::Digest { at, parts } => ToolAnswer::Digest { at, parts },
            DigestAnswer::Passed { applied } => ToolAnswer::Passed { applied },
            DigestAnswer::Late { applied } => ToolAnswer::Late { applied },
            DigestAnswer::Ended { at } => ToolAnswer::Ended { at },
            DigestAnswer::Busy => ToolAnswer::Busy,
            DigestAnswer::Unreadable { reason } => ToolAnswer::Unreadable { reason },
            DigestAnswer::Damaged { at, parts } => ToolAnswer::Damaged { at, parts },
        }
    }
}

impl Osd {
    /// Queues a question; the answer comes with [`Osd::take_tool_answers`] under the same `id`, after some turns.
    pub fn ask_tool(&mut self, id: u64, ask: ToolAsk) {
        let pg = match ask {
            ToolAsk::Health => {
                let stopped = self.meta.poisoned.clone();
                let health = stopped.map_or(ToolAnswer::Healthy, |reason| ToolAnswer::Stopped { reason });
                return self.tools.answers.push((id, health));
            }
            ToolAsk::Ops => return self.tools.answers.push((id, ToolAnswer::Ops(self.stats.traced.reports()))),
            ToolAsk::Devices => {
                return self.tools.answers.push((id, ToolAnswer::Devices(self.devices.reports())));
            }
            ToolAsk::Pg { pg } | ToolAsk::Digest { pg, .. } | ToolAsk::Table { pg, .. } | ToolAsk::Usage { pg, .. } => {
                pg
            }
        };
        let report = match self.replica_for_tools(pg) {
            Ok(report) => report,
            Err(answer) => return self.tools.answers.push((id, answer)),
        };
        let (chunk, at, of_table) = match ask {
            ToolAsk::Digest { chunk, at, .. } => (chunk, at, false),
            ToolAsk::Table { chunk, at, .. } => (chunk, at, true),
            ToolAsk::Usage { volume, from, .. } => {
                let (usage, next) = self.engine.usage(report.replica, volume, from);
                let leading = report.leading.is_some_and(|lead| lead.active);
                let answer = ToolAnswer::Usage { leading, usage: Box::new(usage), next };
                return self.tools.answers.push((id, answer));
            }
            ToolAsk::Health | ToolAsk::Ops | ToolAsk::Devices | ToolAsk::Pg { .. } => {
                let answer = self.page_for_tools(report);
                return self.tools.answers.push((id, answer));
            }
        };
        let tuning = &self.config.tuning;
        let until = self.now + tuning.digest_wait_max;
        let query = DigestQuery { id, replica: report.replica, chunk, at, until, of_table };
        if !self.recovery.digests.ask(query) {
            self.tools.answers.push((id, ToolAnswer::Busy));
        }
    }

    /// Takes the answers that are ready, in the order in which they became so.
    pub fn take_tool_answers(&mut self) -> Vec<(u64, ToolAnswer)> {
        std::mem::take(&mut self.tools.answers)
    }

    /// Returns the answers to [`ToolAsk::Pg`] for all PGs here.
    pub fn pages_for_tools(&self) -> Vec<ToolAnswer> {
        let pgs: BTreeSet<PgId> = self.pgs.iter().map(|slot| slot.identity.pg).collect();
        pgs.into_iter()
            .filter_map(|pg| self.replica_for_tools(pg).ok())
            .map(|report| self.page_for_tools(report))
            .collect()
    }

    fn page_for_tools(&self, report: PgReport) -> ToolAnswer {
        // A replica with a group has a tree. No volume shows a generation that the tree lacks: its blocks wait for a round, or are older
        // contents, which a stream replaces.
        let tree = self.engine.tree(report.replica).unwrap_or_default();
        let role = |chunk: ChunkKey| tree.get(chunk.generation).map(|node| (chunk, node.role));
        let held: Vec<(ChunkKey, Role)> = self.engine.chunks(report.replica).into_iter().filter_map(role).collect();
        let attached = self.attached_for_tools(report.pg);
        let chunks = shown_chunks(&tree, &attached, &held);
        let snapshots = self.snapshots_for_tools(report.pg, &tree);
        ToolAnswer::Pg { report: Box::new(report), chunks, held, attached, snapshots }
    }

    fn snapshots_for_tools(&self, pg: PgId, tree: &Tree) -> Vec<HeldSnapshot> {
        let state = self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state);
        let Some(State::Running(group)) = state else { return Vec::new() };
        let is_open = |snapshot| {
            let mut open = group.decides().cuts.values().flatten();
            open.any(|open| open.item.snapshot() == snapshot)
        };
        let held = |node: &Node| match node.role {
            Role::Snapshot(volume, snapshot) if !is_open(snapshot) => {
                let (created_ms, chunk_count) = (node.created_ms, node.chunk_count);
                Some(HeldSnapshot { volume, snapshot, created_ms, chunk_count })
            }
            _ => None,
        };
        tree.iter().filter_map(|(_, node)| held(node)).collect()
    }

    fn attached_for_tools(&self, pg: PgId) -> Vec<AttachedVolume> {
        let state = self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state);
        let Some(State::Running(group)) = state else { return Vec::new() };
        let volumes = group.decides().volumes.iter();
        let record = |(volume, attached): (&VolumeId, &Attached)| {
            let Attached { epoch, chunk_count, len_epoch, first, last, .. } = *attached;
            AttachedVolume { volume: *volume, epoch, chunk_count, len_epoch, first, last }
        };
        volumes.map(record).collect()
    }

    fn replica_for_tools(&self, pg: PgId) -> Result<PgReport, ToolAnswer> {
        let unreadable = |reason: &str| Err(ToolAnswer::Unreadable { reason: reason.to_owned() });
        if let Phase::Stopped(reason) = &self.phase {
            return unreadable(reason);
        }
        match self.pgs.by_pg(pg).map(|key| &self.pgs.get(key).state) {
            None if self.phase == Phase::Mounting => unreadable("the OSD is still reading its log"),
            None => Err(ToolAnswer::NoReplica),
            Some(State::Creating) => unreadable("the replica is being created"),
            Some(State::Repairing) => unreadable("the replica's log is being repaired"),
            Some(State::Paused(_)) => unreadable("a backfill is being installed"),
            Some(State::Failed(failure)) => Err(ToolAnswer::Quarantined { reason: failure.reason.clone() }),
            Some(State::Running(group)) => Ok(group.report(self.now)),
        }
    }
}

/// Returns the chunks that the heads and the snapshots of attached volumes show, of those that are held. A hidden generation is no volume:
/// its chunks count for those that show them.
fn shown_chunks(tree: &Tree, attached: &[AttachedVolume], held: &[(ChunkKey, Role)]) -> Vec<VolumeChunk> {
    let of_generation = |generation: GenerationId| {
        let from = held.partition_point(|(chunk, _)| chunk.generation < generation);
        held[from..].iter().map(|(chunk, _)| *chunk).take_while(move |chunk| chunk.generation == generation)
    };
    let shown = tree.shown();
    let mut chunks = BTreeSet::new();
    for volume in attached.iter().map(|attached| attached.volume) {
        for (generation, through) in shown.get(&volume).into_iter().flatten() {
            let below = of_generation(*generation).map(|chunk| chunk.index).take_while(|index| index < through);
            chunks.extend(below.map(|index| VolumeChunk { volume, index }));
        }
    }
    chunks.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Epoch;

    #[test]
    fn clone_has_the_chunks_of_its_parent_and_a_hidden_one_is_no_volume() {
        let (g, v) = (GenerationId, VolumeId);
        let mut tree = Tree::default();
        tree.begin(v(1), g(1), None).unwrap();
        tree.branch(v(1), g(1), g(2), 9, 1000).unwrap();
        tree.begin(v(5), g(5), Some(g(1))).unwrap();
        tree.begin(v(6), g(6), Some(g(1))).unwrap();
        tree.shorten(g(6), 3).unwrap();
        let all = [(1, 0), (1, 7), (2, 1), (2, 7), (5, 2), (6, 8)];
        let chunks = |tree: &Tree, volumes: &[u64]| -> Vec<String> {
            let key = |(id, index): (u64, u32)| ChunkKey { generation: g(id), index };
            let role = |chunk: ChunkKey| tree.get(chunk.generation).map(|node| (chunk, node.role));
            let held: Vec<(ChunkKey, Role)> = all.into_iter().map(key).filter_map(role).collect();
            let attached = |id: &u64| AttachedVolume {
                volume: v(*id),
                epoch: Epoch(1),
                chunk_count: 9,
                len_epoch: 0,
                first: g(*id),
                last: g(*id),
            };
            let attached: Vec<AttachedVolume> = volumes.iter().map(attached).collect();
            shown_chunks(tree, &attached, &held).iter().map(VolumeChunk::to_string).collect()
        };
        let of_all = ["v1/0", "v1/1", "v1/7", "v5/0", "v5/2", "v5/7", "v6/0", "v6/8"];
        assert_eq!(chunks(&tree, &[1, 5, 6]), of_all, "the last clone shows its parent below chunk 3");
        assert_eq!(chunks(&tree, &[1]), of_all[..3], "a volume without an attach record is none");
        tree.end(g(2)).unwrap();
        assert_eq!(tree.get(g(1)).map(|node| node.role), Some(Role::Hidden(v(1))));
        assert_eq!(chunks(&tree, &[5, 6]), of_all[3..], "the chunks of the hidden generation are those of clones");
    }
}
