//! Views of an OSD for tools: its replicas' reports and bytes, read through the engine.
//!
//! `pg verify --deep` and the simulator's replica check use this module. It changes nothing, and asks no lease
//! and no leader: the caller compares replicas at one applied index.

use crate::node::{Osd, ReadOwner};
use crate::pgs::State;
use crate::recover::report_of_repair;
use engine::{Contents, Foreign, LogRoom, ReadData, ReadError, RoundLeft};
use recovery::Named;
use std::sync::Arc;
use types::control::PgReport;
use types::tree::Tree;
use types::{ChunkKey, Index, IoBuf, PgId, ReplicaId, SectorRange};

impl Osd {
    /// Returns how many client reads and writes were answered.
    pub fn served_for_tools(&self) -> u64 {
        self.stats.metrics.reads.get() + self.stats.metrics.writes.get()
    }

    /// Returns the present report of every running replica.
    pub fn reports_for_tools(&self) -> Vec<PgReport> {
        self.pgs.groups().map(|group| group.report(self.now)).collect()
    }

    /// Returns all replicas, also those that have failed.
    pub fn replicas_for_tools(&self) -> Vec<(PgId, ReplicaId)> {
        self.pgs.iter().map(|slot| (slot.identity.pg, slot.identity.replica)).collect()
    }

    /// Returns the complaint of each replica that does not serve all of its contents; meta gets the same.
    pub fn complaints_for_tools(&self) -> Vec<(PgId, String)> {
        let volume_chunk = |replica, chunk| self.engine.volume_chunk(replica, chunk);
        let of = |slot: &crate::pgs::Slot| {
            let replica = slot.identity.replica;
            let lost = match &slot.state {
                State::Failed(failure) => return Some(format!("quarantined: {}", failure.reason)),
                State::Repairing => report_of_repair(&self.recovery.payloads, &slot.identity).lost,
                _ => self.recovery.blocks.named(replica, Named::Everywhere, volume_chunk),
            };
            let unread = self.recovery.blocks.named(replica, Named::Here, volume_chunk);
            match (&slot.state, lost.first()) {
                (_, Some(extent)) => Some(format!("inconsistent: {extent}")),
                (State::Running(_), None) if !unread.is_empty() => Some(format!("unread: {}", unread[0])),
                (State::Repairing, None) => Some("repairing".to_owned()),
                _ => None,
            }
        };
        self.pgs.iter().filter_map(|slot| Some((slot.identity.pg, of(slot)?))).collect()
    }

    /// Returns the first index that the log of a replica has in memory.
    pub fn log_first_for_tools(&self, replica: ReplicaId) -> Index {
        self.engine.first_index(replica)
    }

    /// Iterates over the running groups, for observers.
    pub fn groups_for_tools(&self) -> impl Iterator<Item = &group::Group> {
        self.pgs.groups()
    }

    /// Checks the allocation tables of the device: every unit and slot is free, owned once, or pending free.
    ///
    /// # Errors
    /// The first contradiction, as text.
    pub fn audit_for_tools(&self) -> Result<(), String> {
        self.engine.audit()
    }

    /// Returns the last log batch that the mount found, and the last one that was made durable since.
    pub fn batches_for_tools(&self) -> (u64, u64) {
        self.engine.batches_for_tools()
    }

    /// Returns the engine's statistics, and the bytes that wait on each connection.
    pub fn fill_for_tools(&self) -> (engine::EngineStats, impl Iterator<Item = usize>) {
        (self.engine.stats(), self.bus.queued())
    }

    /// Returns the watermarks of the cluster's records that this device keeps.
    pub fn watermarks_for_tools(&self) -> types::control::Watermarks {
        self.meta.kept
    }

    /// Returns the units of the device that are in use or will be when all applied entries are destaged, with the reserve;
    /// and their total number.
    pub fn units_for_tools(&self) -> (u64, u64) {
        let (space, count) = (self.engine.space(), self.engine.stats().home.capacity_bytes / types::AU);
        (count - space.free_aus + space.dirty_new_aus, count)
    }

    /// Whether this OSD's device has no space to grant.
    pub fn is_full_for_tools(&self) -> bool {
        self.space.is_full()
    }

    /// Whether a destage round runs.
    pub fn is_in_round_for_tools(&self) -> bool {
        self.engine.is_round_running()
    }

    /// Returns the number of the first batch of the log's newest segment, and whether its state block is not written in full.
    pub fn log_head_for_tools(&self) -> Option<(u64, bool)> {
        self.engine.log_head_for_tools()
    }

    /// Whether a destage round installs a stream's contents in the place of a replica's.
    pub fn is_installing_for_tools(&self) -> bool {
        self.engine.is_installing_for_tools()
    }

    /// Returns the replica whose installation was requested and has not begun.
    pub fn awaits_install_for_tools(&self) -> Option<ReplicaId> {
        self.engine.awaits_install_for_tools()
    }

    /// Returns the replica's contents at its applied index, if they are certain now; see [`engine::Engine::contents_for_tools`].
    pub fn contents_for_tools(
        &self,
        replica: ReplicaId,
        read: impl FnMut(u64) -> IoBuf,
    ) -> Option<Result<Contents, Foreign>> {
        self.engine.contents_for_tools(replica, read)
    }

    /// Returns the fill level of the log, if the log itself causes it.
    pub fn log_room_for_tools(&self) -> Option<LogRoom> {
        self.engine.log_room_for_tools()
    }

    /// Returns what is left of the running destage round.
    pub fn round_for_tools(&self) -> RoundLeft {
        self.engine.round_left()
    }

    /// Returns the followers of streams from here whose logs have begun and whose contents are on their way.
    pub fn fills_for_tools(&self) -> impl Iterator<Item = ReplicaId> {
        self.recovery.streams.fills()
    }

    /// Fails the replica of a PG, as damage would. `None`: it has no group here.
    pub fn fail_for_tools(&mut self, pg: PgId) -> Option<ReplicaId> {
        let key = self.pgs.by_pg(pg)?;
        let replica = self.pgs.group(key)?.identity().replica;
        self.fail_replica(replica, "failed by a test".to_owned());
        Some(replica)
    }

    /// Counts the destage rounds that have ended with a checkpoint since the process began.
    pub fn rounds_for_tools(&self) -> u64 {
        self.engine.stats().rounds
    }

    /// Returns the generations of the replica, as applied. `None`: it is not here.
    pub fn tree_for_tools(&self, pg: PgId) -> Option<Arc<Tree>> {
        self.engine.tree(self.pgs.get(self.pgs.by_pg(pg)?).identity.replica)
    }

    /// Returns the chunks that may hold data here, by generation; [`engine::Engine::chunks`].
    pub fn chunks_for_tools(&self, pg: PgId) -> Vec<ChunkKey> {
        let key = self.pgs.by_pg(pg);
        key.map_or_else(Vec::new, |key| self.engine.chunks(self.pgs.get(key).identity.replica))
    }

    /// Returns the parts of the range that may hold data here, as (sectors, data).
    pub fn extents_for_tools(&self, pg: PgId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        let Some(key) = self.pgs.by_pg(pg) else { return Vec::new() };
        self.engine.extents(self.pgs.get(key).identity.replica, chunk, range)
    }

    /// Reads the replica's contents at its applied index. The result comes with
    /// [`Osd::take_tool_reads`], after some turns. False: there is no such replica, or it does not serve.
    pub fn read_for_tools(&mut self, pg: PgId, chunk: ChunkKey, range: SectorRange) -> bool {
        let Some(slot) = self.pgs.by_pg(pg) else { return false };
        let held = self.pgs.get(slot);
        if !matches!(held.state, State::Running(_)) {
            return false;
        }
        let replica = held.identity.replica;
        self.read_for(ReadOwner::Tool, replica, chunk, range);
        true
    }

    /// Takes the results of [`Osd::read_for_tools`], in order of completion.
    pub fn take_tool_reads(&mut self) -> Vec<Result<ReadData, ReadError>> {
        std::mem::take(&mut self.tools.reads)
    }
}
