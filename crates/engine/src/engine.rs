//! The engine's door.
use crate::api::{EngineConfig, EngineEvent, EngineStats, Pressure};
use env::{DiskInfo, Event, Op};
use types::store::{Crcs, DecisionState, Effect, Persist, ReplicaIdentity};
use types::{ChunkKey, ClusterId, Index, IoBuf, OsdId, OsdUuid, ReplicaId, SectorRange, Term, Time};

/// One log and one home, for all replicas of an OSD.
pub struct Engine {
    config: EngineConfig,
}

#[allow(unused_variables, clippy::needless_pass_by_value, clippy::needless_pass_by_ref_mut)]
impl Engine {
    pub fn new(config: EngineConfig, disk: DiskInfo, identity: (ClusterId, OsdId, OsdUuid), seed: u64) -> Engine {
        Engine { config }
    }
    /// Begins the mount.
    pub fn start(&mut self, now: Time, ops: &mut Vec<Op>) {}
    pub fn handle_event(&mut self, now: Time, event: Event, ops: &mut Vec<Op>, out: &mut Vec<EngineEvent>) {}
    pub fn create_replica(&mut self, identity: ReplicaIdentity, decision: DecisionState) {}
    pub fn destroy_replica(&mut self, replica: ReplicaId) {}
    pub fn is_tombstone(&self, replica: ReplicaId) -> bool {
        false
    }
    pub fn append(&mut self, persist: Persist) {}
    pub fn payload(&self, replica: ReplicaId, index: Index, term: Term) -> Option<(IoBuf, Crcs)> {
        None
    }
    pub fn first_index(&self, replica: ReplicaId) -> Index {
        Index(1)
    }
    pub fn apply(&mut self, replica: ReplicaId, index: Index, effect: Effect) {}
    pub fn read(&mut self, token: u64, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, out: &mut Vec<EngineEvent>) {}
    /// Runs of (sectors, whether they hold data) that tile `range`.
    pub fn extents(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        vec![(range.count, false)]
    }
    pub fn wants_round(&self, now: Time) -> bool {
        false
    }
    pub fn begin_round(&mut self, now: Time, states: Vec<DecisionState>) {}
    /// Reports that a group refuses to run on what was recovered.
    pub fn mark_damaged(&mut self, replica: ReplicaId, reason: String) {}
    pub fn end_turn(&mut self, now: Time, ops: &mut Vec<Op>, out: &mut Vec<EngineEvent>) {}
    pub fn pressure(&self) -> Pressure {
        Pressure::default()
    }
    pub fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
    pub fn next_deadline(&self) -> Time {
        Time::NEVER
    }
}
