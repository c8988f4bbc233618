//! An engine on a [`Disk`], with groups that check every event of it.

use super::disk::Disk;
use super::model::{Group, Made, SECTORS, decision_bytes};
use crate::{Engine, EngineConfig, EngineEvent, FormatParams, ReadData, Superblock, format_device};
use env::Op;
use std::collections::BTreeMap;
use std::time::Duration;
use types::map::Member;
use types::rng::Rng;
use types::store::{DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::{
    ChunkKey, ClusterId, Epoch, Index, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SectorRange, Term, Time, VolumeId,
};

pub(super) const CLUSTER: ClusterId = ClusterId([7; 16]);
pub(super) const OSD: OsdId = OsdId(3);
pub(super) const UUID: OsdUuid = OsdUuid([9; 16]);
pub(super) const DISK_LEN: usize = 48 << 20;

pub(super) struct Rig {
    pub disk: Disk,
    pub engine: Engine,
    pub now: Time,
    pub rng: Rng,
    pub groups: BTreeMap<ReplicaId, Group>,
    pub superblock: Superblock,
    ops: Vec<Op>,
    ticket: u64,
    /// token → (replica, chunk, range)
    reads: BTreeMap<u64, (ReplicaId, ChunkKey, SectorRange)>,
    pub poisoned: bool,
    pub checkpoints: u64,
    pub mount_failed: Option<crate::MountError>,
    pub recovered: Vec<Recovered>,
    pub damaged: Vec<ReplicaId>,
    /// Blocks of home that the engine could not read.
    pub bad: Vec<(ReplicaId, ChunkKey, SectorRange)>,
    pub staged: Vec<u64>,
    pub installed: Vec<Recovered>,
    pub refused: Vec<ReplicaId>,
    pub refilled: Vec<ReplicaId>,
    /// Replicas whose logs were truncated, with their hard states and first removed entries.
    pub cut_back: Vec<(ReplicaId, HardState, Index)>,
    pub config: EngineConfig,
    /// Log bytes of earlier processes; below, their copied entries.
    pub log_bytes: u64,
    pub copied: u64,
    pub completed: u64,
}

/// Replicas from this id on have a peer elsewhere.
const FIRST_WITH_PEER: ReplicaId = ReplicaId(100);

pub(super) fn params() -> FormatParams {
    FormatParams {
        cluster: CLUSTER,
        osd: OSD,
        uuid: UUID,
        log_bytes: 16 << 20,
        segment_bytes: 1 << 20,
        force: false,
        prezero: false,
        unix_s: 0,
    }
}

pub(super) fn identity(replica: ReplicaId) -> ReplicaIdentity {
    let mut members = vec![Member { replica, osd: OSD }];
    if replica >= FIRST_WITH_PEER {
        members.push(Member { replica: ReplicaId(replica.0 + 1000), osd: OsdId(OSD.0 + 1) });
    }
    let pg = PgId { pool: PoolId(1), n: replica.0 as u32 };
    ReplicaIdentity { pg, replica, lineage: 1, conf_epoch: Epoch(1), members }
}

impl Rig {
    pub fn new(seed: u64, volatile: bool, config: EngineConfig) -> Rig {
        let mut disk = Disk::new(DISK_LEN, seed, volatile);
        let info = disk.info();
        let superblock = format_device(&mut disk, &info, &params(), &mut |_, _| {}).expect("an empty disk formats");
        let engine = Engine::new(config.clone(), info, (CLUSTER, OSD, UUID), seed);
        let mut rig = Rig {
            disk,
            engine,
            now: Time(1_000_000),
            rng: Rng::new(seed ^ 0xabcd),
            groups: BTreeMap::new(),
            superblock,
            ops: Vec::new(),
            ticket: 0,
            reads: BTreeMap::new(),
            poisoned: false,
            checkpoints: 0,
            mount_failed: None,
            recovered: Vec::new(),
            damaged: Vec::new(),
            bad: Vec::new(),
            staged: Vec::new(),
            installed: Vec::new(),
            refused: Vec::new(),
            refilled: Vec::new(),
            cut_back: Vec::new(),
            config,
            log_bytes: 0,
            copied: 0,
            completed: 0,
        };
        rig.mount();
        rig
    }

    fn mount(&mut self) {
        self.engine.start(self.now, &mut self.ops);
        self.recovered.clear();
        self.settle();
    }

    /// Starts a new process on the same disk; checks the state that comes back.
    pub fn restart(&mut self) {
        let stats = self.engine.stats();
        self.log_bytes += stats.log_bytes;
        self.copied += stats.copied_entries;
        self.completed += stats.completed_blocks;
        self.ops.clear();
        self.reads.clear();
        self.groups.values_mut().for_each(|g| g.reading = 0);
        let seed = self.rng.next_u64();
        self.engine = Engine::new(self.config.clone(), self.disk.info(), (CLUSTER, OSD, UUID), seed);
        self.poisoned = false;
        self.mount();
    }

    pub fn restart_and_check(&mut self) {
        self.restart();
        assert_eq!(self.mount_failed, None);
        let recovered = std::mem::take(&mut self.recovered);
        assert_eq!(recovered.len(), self.groups.len(), "every replica comes back");
        for found in recovered {
            assert_eq!(found.damage, None);
            self.check_recovered(found);
        }
        self.check_all_sectors();
    }

    pub fn check_recovered(&mut self, found: Recovered) {
        let replica = found.identity.replica;
        assert_eq!(found.identity, identity(replica));
        let g = self.groups.get_mut(&replica).expect("only what was created comes back");
        let last = found.before.0.0 + found.entries.len() as u64;
        assert!(last >= g.durable, "{replica}: entries to {} were acknowledged, {last} came back", g.durable);
        let commit = found.hard_state.commit.0;
        assert!(commit >= g.durable_commit && commit <= last.max(found.checkpoint.index.0));
        assert!(found.checkpoint.index.0 <= commit);
        assert!(found.before.0 <= found.checkpoint.index, "entries begin at or below K");
        assert_eq!(found.before.1, g.term_at(found.before.0.0), "term before the entries of {replica}");
        let k = found.checkpoint.index;
        assert_eq!(found.checkpoint.bytes, decision_bytes(replica, k), "decision state is exact as of K");
        assert_eq!(found.checkpoint.term, g.term_at(k.0));
        for (n, entry) in found.entries.iter().enumerate() {
            let index = found.before.0.0 + 1 + n as u64;
            assert_eq!(*entry, g.entry_of(index, entry.term), "{replica}");
            let made = Made { term: entry.term, effect: g.history[&(index, entry.term)] };
            if index <= g.durable {
                assert_eq!(made.term, g.term_at(index), "entry {index} of {replica} was acknowledged");
            }
            g.made.truncate((index - 1).max(g.durable) as usize);
            if index > g.durable {
                g.made.push(made);
            }
        }
        let tickets = std::mem::take(&mut g.tickets);
        drop(tickets);
        g.made.truncate(last as usize);
        g.durable = last;
        g.durable_commit = commit;
        g.hard_state = found.hard_state;
        g.term = g.term.max(found.hard_state.term);
        g.reading = 0;
        // The model redoes everything; the engine redoes the entries above the checkpoint index.
        g.sectors.clear();
        g.applied = 0;
        for index in 1..=commit {
            let effect = g.apply();
            if index > k.0 {
                self.engine.apply(replica, Index(index), effect);
            }
        }
    }

    pub fn check_all_sectors(&mut self) {
        for replica in self.groups.keys().copied().collect::<Vec<_>>() {
            for chunk in chunks() {
                self.read(replica, chunk, SectorRange::new(0, SECTORS));
            }
        }
        self.settle();
        assert!(self.reads.is_empty(), "every read is answered");
    }

    pub fn create(&mut self, id: u64) {
        let replica = ReplicaId(id);
        let bytes = decision_bytes(replica, Index(0));
        let decision = DecisionState { replica, index: Index(0), term: Term(0), bytes };
        self.engine.create_replica(identity(replica), decision);
        self.groups.insert(replica, Group::new(replica));
        self.settle();
    }

    /// Appends entries with these effects, perhaps over a tail that was not committed.
    pub fn append(&mut self, replica: ReplicaId, from: u64, effects: Vec<Effect>) {
        let g = self.groups.get_mut(&replica).expect("created");
        assert!(from > g.hard_state.commit.0);
        if from <= g.last() {
            g.term = Term(g.term.0 + 1);
            g.made.truncate(from as usize - 1);
            g.durable = g.durable.min(from - 1);
            g.tickets.iter_mut().for_each(|t| t.1 = t.1.min(from - 1));
        }
        g.hard_state.term = g.term;
        let term = g.term;
        for effect in effects {
            g.made.push(Made { term, effect });
            let index = g.last();
            g.history.insert((index, term), effect);
        }
        let entries = (from..=g.last()).map(|i| g.entry(i)).collect();
        self.ticket += 1;
        let ticket = self.ticket;
        g.tickets.push((ticket, g.last(), g.hard_state.commit.0));
        self.engine.append(Persist { replica, ticket, hard_state: Some(g.hard_state), entries });
    }

    /// Commits durable entries and applies them.
    pub fn commit(&mut self, replica: ReplicaId, to: u64) {
        let g = self.groups.get_mut(&replica).expect("created");
        let to = to.min(g.durable);
        if to <= g.hard_state.commit.0 || g.reading > 0 {
            return;
        }
        g.hard_state = HardState { commit: Index(to), ..g.hard_state };
        while g.applied < to {
            let effect = g.apply();
            self.engine.apply(replica, Index(g.applied), effect);
        }
    }

    pub fn read(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        self.ticket += 1;
        self.reads.insert(self.ticket, (replica, chunk, range));
        self.groups.get_mut(&replica).expect("created").reading += 1;
        let mut out = Vec::new();
        self.engine.read(self.ticket, replica, chunk, range, &mut out);
        self.take(out);
    }

    /// Runs one turn of the loop, then up to `completions` of the disk.
    pub fn turn(&mut self, completions: u64) {
        self.now = self.now + Duration::from_micros(self.rng.between(1, 2000));
        if self.engine.wants_round(self.now) {
            self.round();
        }
        let mut out = Vec::new();
        self.engine.end_turn(self.now, &mut self.ops, &mut out);
        self.take(out);
        self.disk.submit(&mut self.ops);
        for _ in 0..completions {
            let Some(event) = self.disk.step() else { break };
            let mut out = Vec::new();
            self.engine.handle_event(self.now, event, &mut self.ops, &mut out);
            self.take(out);
            self.disk.submit(&mut self.ops);
        }
    }

    pub fn round(&mut self) {
        let states = self.groups.values().map(Group::decision).collect();
        self.engine.begin_round(self.now, states);
    }

    /// Runs turns until nothing moves.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..20_000 {
            let writes = self.disk.writes;
            self.turn(16);
            let rests = self.disk.is_idle() && self.ops.is_empty() && self.disk.writes == writes;
            quiet = if rests && self.engine.next_deadline() > self.now { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    fn take(&mut self, events: Vec<EngineEvent>) {
        for event in events {
            match event {
                EngineEvent::Mounted(recovered) => self.recovered = recovered,
                EngineEvent::MountFailed(error) => self.mount_failed = Some(error),
                EngineEvent::Created(_) | EngineEvent::Destroyed(_) => {}
                // No group asked for this hard state.
                EngineEvent::Persisted { ticket: 0, .. } => {}
                EngineEvent::Persisted { replica, ticket, .. } => {
                    assert!(!self.poisoned, "an acknowledgement after the poison");
                    let Some(g) = self.groups.get_mut(&replica) else { continue };
                    let at = g.tickets.iter().position(|t| t.0 == ticket).expect("each ticket comes back once");
                    assert_eq!(at, 0, "tickets come back in order");
                    let (_, last, commit) = g.tickets.remove(0);
                    g.durable = g.durable.max(last);
                    g.durable_commit = g.durable_commit.max(commit);
                }
                EngineEvent::ReadDone { token, result } => {
                    let (replica, chunk, range) = self.reads.remove(&token).expect("each read is answered once");
                    let g = self.groups.get_mut(&replica).expect("created");
                    g.reading -= 1;
                    if self.damaged.contains(&replica) {
                        assert!(result.is_err(), "a damaged replica does not answer");
                        continue;
                    }
                    if let Err(crate::ReadError::BadBlocks { .. }) = result {
                        assert!(self.bad.iter().any(|(r, c, _)| (*r, *c) == (replica, chunk)), "it was told before");
                        continue;
                    }
                    let data = result.unwrap_or_else(|e| panic!("{replica} {chunk} {range}: {e}"));
                    let want = g.expected(chunk, range);
                    match data {
                        ReadData::Zeros => assert!(want.iter().all(|b| *b == 0), "{replica} {chunk} {range}: zeros"),
                        ReadData::Bytes { crcs, payload } => {
                            assert!(*payload == want[..], "{replica} {chunk} {range}: other bytes");
                            assert!(range.verify(&payload, &crcs), "{replica} {chunk} {range}: CRCs");
                        }
                    }
                }
                EngineEvent::Checkpointed(_) => self.checkpoints += 1,
                EngineEvent::Staged { token } => self.staged.push(token),
                EngineEvent::Unstaged { replica } => panic!("{replica} lost what was staged"),
                EngineEvent::Installed(recovered) => self.installed.push(*recovered),
                EngineEvent::InstallRefused { replica } => self.refused.push(replica),
                EngineEvent::CutBack { replica, hard_state, from } => self.cut_back.push((replica, hard_state, from)),
                EngineEvent::Refilled { replica } => self.refilled.push(replica),
                EngineEvent::BadBlocks { replica, chunk, range, .. } => self.bad.push((replica, chunk, range)),
                EngineEvent::Damaged { replica, .. } => self.damaged.push(replica),
                EngineEvent::MapKept(_) => {}
                EngineEvent::Poisoned(_) => self.poisoned = true,
            }
        }
    }

    /// A random effect that fits the tested chunks.
    pub fn effect(&mut self) -> Effect {
        let chunk = chunks()[self.rng.below(4) as usize];
        let start = self.rng.below(u64::from(SECTORS)) as u32;
        let range = match self.rng.below(3) {
            0 => SectorRange::new(start / 8 * 8, 8),
            _ => SectorRange::new(start, self.rng.between(1, u64::from(SECTORS - start).min(40)) as u32),
        };
        match self.rng.below(40) {
            0 => Effect::None,
            1..=5 => Effect::Zero { chunk, range },
            6 => Effect::Cut { volume: chunk.volume, from_chunk: self.rng.below(3) as u32 },
            _ => Effect::Write { chunk, range },
        }
    }
}

pub(super) fn chunks() -> [ChunkKey; 4] {
    let key = |volume, index| ChunkKey { volume: VolumeId(volume), index };
    [key(1, 0), key(1, 1), key(1, 2), key(2, 0)]
}
