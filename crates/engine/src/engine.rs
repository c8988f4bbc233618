//! The engine's interface: the functions that the OSD's loop calls, and the state behind them.
//!
//! Appends and effects change memory at once and queue work for the log; [`Engine::end_turn`] releases the operations
//! of the turn. The steps of a mount, of a round and of reclamation live in their own files.
//!
//! Invariant: only a completed batch acknowledges; after the first failed write or flush the engine acknowledges
//! nothing (R15).

use crate::api::{EngineConfig, EngineEvent, EngineStats, MountError, Pressure};
use crate::destage::Destage;
use crate::disks::Disks;
use crate::drops::Drops;
use crate::home::Home;
use crate::home_api::{HOME_KEY_BIT, HomeStats};
use crate::ids::Ids;
use crate::install::Streams;
use crate::keep::Removed;
use crate::lineage::Decoded;
use crate::log::{Done, Kept, Log, RESERVED, Work, lens, next_block_len};
use crate::mount::{Mount, MountNotes};
use crate::overlay::Overlay;
use crate::read::Reads;
use crate::reclaim::Tail;
use crate::replica::{Replaced, Replica, ReplicaState};
use crate::replicas::Replicas;
use bytes::Bytes;
use env::{DiskError, Event, Op, Token};
use layout::log::{BATCH_ALIGN, RECORDS_MAX, STATE_BATCH_MAX};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use types::limits::PART_MAX;
use types::store::{Crcs, DecisionState, Effect, Failure, Persist, ReplicaIdentity};
use types::tree::{Change, Tree};
use types::{ClusterId, Index, IoBuf, OsdId, OsdUuid, ReplicaId, Term, Time};

/// Keys of the log side's operations.
pub(crate) mod key {
    pub const BATCH: u32 = 1;
    pub const SUPERBLOCK: u32 = 2;
    pub const OPENING: u32 = 3;
    pub const SEGMENT: u32 = 4;
    pub const MOUNT_FLUSH: u32 = 5;
    pub const MOUNT_REWRITE: u32 = 6;
    pub const POISON: u32 = 7;
    pub const BEHIND: u32 = 8;
    /// The flush of a batch whose payloads are placed.
    pub const BATCH_FLUSH: u32 = 9;
    pub const MOUNT_PLACE: u32 = 10;
}

/// Damage of a replica whose create record may be lost.
pub const CREATE_LOST: &str = "the log has lost records, and the replica may have been here before";
/// Bound of lost create records while meta has told none.
pub(crate) const ANY_REPLICA: ReplicaId = ReplicaId(u64::MAX);

/// Phase of the engine.
#[derive(Debug)]
pub(crate) enum State {
    New,
    Mounting(Box<Mount>),
    Running,
    /// The mount failed, or the store is poisoned.
    Stopped,
}

/// One log and one home, for all replicas of an OSD.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) disks: Disks,
    pub(crate) identity: (ClusterId, OsdId, OsdUuid),
    pub(crate) state: State,
    pub(crate) mount: MountNotes,
    /// Log and home exist from the moment that the superblock was read.
    pub(crate) log: Option<Log>,
    pub(crate) tail: Tail,
    pub(crate) home: Option<Home>,
    pub(crate) destage: Destage,
    pub(crate) replicas: Replicas,
    pub(crate) ids: Ids,
    pub(crate) removed: Removed,
    pub(crate) streams: Streams,
    pub(crate) reads: Reads,
    /// Lineages of contents at home alone.
    pub(crate) home_lineages: RefCell<Decoded>,
    /// The OSD's last cluster map, opaque here.
    pub(crate) map: Bytes,
    pub(crate) now: Time,
    /// Operations and events created outside `end_turn` and `handle_event`; the next of these calls returns them.
    pub(crate) ops: Vec<Op>,
    pub(crate) events: Vec<EngineEvent>,
    pub(crate) stats: EngineStats,
    pub(crate) drops: Drops,
}

impl Engine {
    /// Creates an engine that has not touched its disks yet. `identity` is what the superblocks must name.
    pub fn new(config: EngineConfig, disks: impl Into<Disks>, identity: (ClusterId, OsdId, OsdUuid)) -> Engine {
        Engine {
            config,
            disks: disks.into(),
            identity,
            state: State::New,
            mount: MountNotes::default(),
            log: None,
            tail: Tail::default(),
            home: None,
            destage: Destage::default(),
            replicas: Replicas::default(),
            ids: Ids::default(),
            removed: Removed::default(),
            streams: Streams::default(),
            reads: Reads::default(),
            home_lineages: RefCell::default(),
            map: Bytes::new(),
            now: Time::ZERO,
            ops: Vec::new(),
            events: Vec::new(),
            stats: EngineStats::default(),
            drops: Drops::default(),
        }
    }

    /// Begins the mount; it ends with [`EngineEvent::Mounted`] or [`EngineEvent::MountFailed`].
    ///
    /// # Panics
    /// When called twice.
    pub fn start(&mut self, now: Time, ops: &mut Vec<Op>) {
        assert!(matches!(self.state, State::New), "an engine mounts once");
        self.now = now;
        self.start_mount();
        ops.append(&mut self.ops);
    }

    pub(crate) fn token(&self, key: u32, generation: u32) -> Token {
        assert!(key < HOME_KEY_BIT);
        Token::new(self.config.owner, generation, key)
    }

    /// Handles a completion whose `Token.owner` is this engine's.
    pub fn handle_event(&mut self, now: Time, event: Event, ops: &mut Vec<Op>, out: &mut Vec<EngineEvent>) {
        self.now = now;
        if matches!(self.state, State::Stopped) {
            return;
        }
        let token = match &event {
            Event::DiskRead { token, .. }
            | Event::DiskWrite { token, .. }
            | Event::DiskFlush { token, .. }
            | Event::DiskDiscard { token, .. } => *token,
            other => panic!("{other:?} is not an engine's"),
        };
        if token.key & HOME_KEY_BIT != 0 {
            self.home_event(event);
        } else {
            match event {
                Event::DiskRead { token, buf, result } => self.mount_read(token, buf, result),
                Event::DiskWrite { token, result } if token.key == key::BATCH => self.batch_written(token, result),
                Event::DiskWrite { token, result } if token.key == key::MOUNT_REWRITE => self.mount_rewritten(result),
                Event::DiskWrite { token, result } if token.key == key::BEHIND => {
                    if let Err(source) = result {
                        self.poison("erasing the mark of an older copy", source);
                    }
                }
                Event::DiskFlush { token, result } if token.key == key::BATCH_FLUSH => self.batch_flushed(result),
                Event::DiskFlush { token, result } if token.key == key::MOUNT_FLUSH => self.mount_flushed(result),
                other => panic!("{other:?} was never asked for"),
            }
        }
        ops.append(&mut self.ops);
        out.append(&mut self.events);
    }

    /// Sends the next batch if none is in flight, and advances the background work by one bounded step.
    pub fn end_turn(&mut self, now: Time, ops: &mut Vec<Op>, out: &mut Vec<EngineEvent>) {
        self.now = now;
        if matches!(self.state, State::Running) {
            self.step_round();
            self.step_merges();
            self.begin_fills();
            self.begin_install();
            self.expire_relics();
            self.make_room();
            self.drops.step(self.config.steps.drops_max);
            self.reclaim();
            self.look_at_progress();
        }
        self.start_batch();
        ops.append(&mut self.ops);
        out.append(&mut self.events);
    }

    /// Time at which [`Engine::end_turn`] must be called next, if nothing else happens.
    pub fn next_deadline(&self) -> Time {
        if !matches!(self.state, State::Running) {
            return Time::NEVER;
        }
        let log = self.running_log();
        let is_left = !self.ops.is_empty() || !self.events.is_empty();
        if is_left || log.untried && log.in_flight.is_none() || !self.drops.is_empty() {
            return self.now;
        }
        let seal = match log.unsealed && log.in_flight.is_none() && log.pending.is_empty() {
            true => log.idle_since + self.config.seal_after,
            false => Time::NEVER,
        };
        seal.min(self.round_deadline()).min(self.merge_deadline())
    }

    fn running_log(&self) -> &Log {
        self.log.as_ref().expect("a running engine has a log")
    }

    pub(crate) fn queue(&mut self, work: Work) {
        let log = self.log.as_mut().expect("a running engine has a log");
        log.untold += usize::from(work.delays_reclaim());
        log.untried = true;
        log.pending.push_back(work);
    }

    /// Creates a replica; [`EngineEvent::Created`] follows when its create record is durable. A replica that may have been here
    /// before ([`Engine::may_have_been_here`]) begins failed: what it voted and acknowledged then is unknown (R4).
    ///
    /// # Panics
    /// When the id is in use, or was.
    pub fn create_replica(&mut self, identity: ReplicaIdentity, decision: DecisionState) {
        if matches!(self.state, State::Stopped) {
            return;
        }
        let id = identity.replica;
        assert!(matches!(self.state, State::Running), "{id} is created before the mount");
        assert!(!self.ids.tombstones.contains(&id) && !self.replicas.contains_key(&id), "{id} is not new");
        assert_eq!((decision.replica, decision.index), (id, Index(0)), "a new replica begins at 0");
        let mut replica = Replica::new(identity, decision.bytes);
        let is_at_home = self.ids.nameless.remove(&id);
        if is_at_home || self.may_have_been_here(id) {
            let failure = Failure { reason: CREATE_LOST.to_owned(), is_past: false };
            replica.turn(ReplicaState::Failed(failure));
        }
        self.replicas.insert(id, replica);
        self.queue(Work::Create { replica: id });
    }

    /// Destroys a replica; [`EngineEvent::Destroyed`] follows when its tombstone is durable.
    pub fn destroy_replica(&mut self, replica: ReplicaId) {
        if matches!(self.state, State::Stopped) {
            return;
        }
        self.replicas.remove(&replica).into_iter().for_each(|gone| self.drops.add_replica(gone));
        self.unstage(replica);
        self.note_heirs(replica);
        self.streams.fills.retain(|decision| decision.replica != replica);
        self.ids.tombstones.insert(replica);
        self.removed.destroyed.insert(replica);
        self.destage.changed(true);
        self.queue(Work::Destroy { replica });
        self.raise_floor();
    }

    /// Stores the cluster map on the device, for a start without meta. [`EngineEvent::MapKept`] follows when it is
    /// durable; a map equal to the last one is ignored.
    ///
    /// # Panics
    /// When the map is longer than `layout::log::MAP_MAX` bytes.
    pub fn set_map(&mut self, map: Bytes) {
        assert!(map.len() <= layout::log::MAP_MAX, "a map of {} bytes", map.len());
        if self.map != map {
            self.map = map;
            self.queue(Work::Map);
        }
    }

    /// Returns the map that was stored last; empty when there was none.
    pub fn map(&self) -> &Bytes {
        &self.map
    }

    /// Whether the state blocks of the log have room for one more replica. A block takes half of a segment at most, and leaves
    /// room for the largest entry and the copy of its own last batch.
    pub fn has_room_for_replica(&self) -> bool {
        let Some(log) = &self.log else { return false };
        let batch_max = self.config.state_batch_max.min(STATE_BATCH_MAX);
        let len = next_block_len(batch_max, lens(self.replicas.values()), self.ids.tombstones.len());
        // From the second such segment on, the first copy is that of a state batch, as is the copy behind the block.
        let entry = PART_MAX + (2 * STATE_BATCH_MAX + 2 * BATCH_ALIGN) as u64;
        let segment = log.ring.segment_bytes();
        len <= (segment / 2).min(segment + RECORDS_MAX as u64 - entry)
    }

    /// Queues a group's entries and hard state for the next batch.
    ///
    /// # Panics
    /// When the entries leave a gap in the replica's log.
    pub fn append(&mut self, persist: Persist) {
        self.append_with(persist, false);
    }

    pub(crate) fn append_with(&mut self, persist: Persist, revives: bool) {
        if matches!(self.state, State::Stopped) {
            return;
        }
        let Persist { replica, ticket, hard_state, entries } = persist;
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        assert!(r.may_take_part(), "{replica} takes no part and appends");
        let mut queued = Vec::with_capacity(entries.len());
        let mut replaced = VecDeque::new();
        for entry in entries {
            assert!(entry.index > r.applied, "{replica} rewrites applied entry {}", entry.index);
            let kept = Kept::new(entry);
            replaced.append(&mut r.log.append(kept.clone()));
            queued.push(kept);
        }
        if let Some(hs) = hard_state {
            assert!(hs.commit >= r.applied && hs.commit <= r.log.last(), "commit {} of {replica}", hs.commit);
            r.hard_state = hs;
        }
        if let ReplicaState::Filling { bytes, .. } = &mut r.state {
            *bytes += queued.iter().map(Kept::log_len).sum::<u64>();
        }
        let replaces = !replaced.is_empty();
        if replaces {
            r.replaced.push_back(Replaced { entries: replaced, begun: false });
        }
        drop(r);
        self.queue(Work::Persist { replica, ticket, hard_state, entries: queued, from: 0, replaces, revives });
    }

    /// Returns the payload of an entry, from its append until its segment is freed. `None` also while the payload is
    /// lost.
    pub fn payload(&self, replica: ReplicaId, index: Index, term: Term) -> Option<(IoBuf, Crcs)> {
        let kept = self.replicas.get(&replica)?.log.get(index).filter(|k| k.term == term)?;
        let payload = kept.payload.as_ref()?;
        Some((payload.buf.clone(), payload.crcs.clone()))
    }

    /// Returns the first index of the replica's log in memory.
    pub fn first_index(&self, replica: ReplicaId) -> Index {
        self.replicas.get(&replica).map_or(Index(0), |r| r.log.first())
    }

    /// Makes a committed entry visible to reads. Entries are applied in ascending order, each once.
    ///
    /// # Panics
    /// When the index does not ascend, or a write's payload is not its entry's.
    pub fn apply(&mut self, replica: ReplicaId, index: Index, effect: Effect) {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        assert!(index > r.applied, "{replica} applies {index} after {}", r.applied);
        assert!(r.may_take_part(), "{replica} takes no part and applies");
        r.applied = index;
        self.destage.k_lags = true;
        let mut judged = None;
        let mut frees = !matches!(effect, Effect::Write { .. });
        match effect {
            Effect::None => return,
            Effect::Write { chunk, .. } | Effect::Zero { chunk, .. } if r.is_filling() => {
                r.check_head(chunk.generation)
            }
            _ => {}
        }
        match effect {
            Effect::None => return,
            Effect::Write { chunk, range } => {
                let kept = r.log.get(index).expect("an entry is in the log when it is applied");
                let payload = kept.payload.clone().expect("an entry that writes has a payload");
                assert_eq!(payload.range(), range, "entry {index} of {replica}");
                // Until the round, its space counts twice: as taken, and as needed.
                frees |= payload.place().is_some();
                judged = r.overlay.write(chunk, range, Some(payload)).then_some(chunk);
            }
            Effect::Zero { chunk, range } => judged = r.overlay.write(chunk, range, None).then_some(chunk),
            Effect::Unmap { generation, from_chunk } => r.unmap(generation, from_chunk),
        }
        drop(r);
        self.destage.applied(self.now, frees);
        if let Some(chunk) = judged {
            self.judge_space(replica, chunk);
        }
    }

    /// Takes the tree of a committed entry, and carries out what it changes. Such an entry counts as applied, and has no other effect.
    ///
    /// # Panics
    /// When the index does not ascend.
    pub fn set_tree(&mut self, replica: ReplicaId, index: Index, tree: Arc<Tree>, changes: &[Change]) {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        assert!(index > r.applied, "{replica} applies {index} after {}", r.applied);
        assert!(r.may_take_part(), "{replica} takes no part and applies");
        (r.applied, r.tree_index) = (index, index);
        let before = r.reaches();
        let gone = Arc::make_mut(&mut r.lineage).apply(tree, changes);
        for generation in &gone {
            r.overlay.unmap(*generation, 0);
        }
        let mut cut = false;
        for change in changes {
            let Change::Shorten { generation, from_chunk } = *change else { continue };
            cut = true;
            r.unmap(generation, from_chunk);
            r.bad.retain(|(chunk, _)| (chunk.generation, chunk.index < from_chunk) != (generation, false));
        }
        // A bad block that nothing shows keeps the replica from no round.
        r.bad.retain(|(chunk, _)| !gone.contains(&chunk.generation));
        drop(r);
        self.destage.k_lags = true;
        self.destage.applied(self.now, cut || !gone.is_empty());
        self.judge_reached(replica, &before);
        if !changes.is_empty() {
            self.judge_heirs(replica, changes);
            self.note_heirs(replica);
        }
    }

    /// Takes the overlay of a replica that has not failed: the pressure counts no others.
    pub(crate) fn take_overlay(&mut self, replica: ReplicaId) -> Overlay {
        let Some(mut r) = self.replicas.get_mut(&replica) else { return Overlay::default() };
        std::mem::take(&mut r.overlay)
    }

    /// Returns for how long the batch in flight has waited for the device; zero without one.
    pub fn log_wait(&self) -> Duration {
        let log = self.log.as_ref().filter(|log| log.in_flight.is_some());
        log.map_or(Duration::ZERO, |log| self.now.since(log.batch_begun))
    }

    /// Returns the bytes of the log that are in use, and those that there are.
    pub(crate) fn log_use(&self) -> Option<(u64, u64)> {
        let log = self.log.as_ref()?;
        // Bytes that freeing will append: a block, its record and the copy of that for each block that is covered in part (R9).
        let completing = self.replicas.footprint().partial_blocks * (BATCH_ALIGN as u64 + 200);
        let used = log.ring.used_from(self.tail.freeable) + completing;
        Some((used, (log.ring.count() - RESERVED - 1) as u64 * log.ring.segment_bytes()))
    }

    /// Returns how many bytes a second the log may grow, because a slow home takes no more (ADR 0035); `None`: any.
    pub fn pace(&mut self, now: Time) -> Option<u64> {
        let (true, State::Running) = (self.config.hdd_home, &self.state) else { return None };
        let progress = self.home.as_ref().map_or(0.0, Home::round_progress);
        let log = self.log_use()?;
        self.destage.pacing.rate(now, log, progress)
    }

    /// Returns how near the limits are; see [`Pressure`].
    pub fn pressure(&self) -> Pressure {
        let Some((used, usable)) = self.log_use() else { return Pressure::default() };
        let home = self.home_stats();
        let pending_free_max = (home.capacity_bytes / 50).max(1);
        Pressure {
            log: used as f32 / usable as f32,
            // AUs that a round exchanges for logged ones were taken before.
            pending_free: home.pending_free_bytes.saturating_sub(home.exchanged_bytes) as f32 / pending_free_max as f32,
            dissolved: self.destage.merges.level(),
            full: home.full || self.destage.refused,
        }
    }

    /// Numbers of two log batches: the last one that the mount has found, or found evidence of, and the last one with
    /// records that was made durable since.
    pub fn batches_for_tools(&self) -> (u64, u64) {
        self.log.as_ref().map_or((0, 0), |log| (log.found, log.durable_records))
    }

    /// Position of this store in its history (R17): the mount number, the last batch found, the last durable batch.
    pub fn position(&self) -> (u64, u64, u64) {
        self.log.as_ref().map_or((0, 0, 0), |log| (log.mount, log.found, log.durable_records.max(log.found)))
    }

    /// Whether everything queued for the log is durable.
    pub fn is_log_quiet(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.pending.is_empty() && log.in_flight.is_none())
    }

    /// Length of the log; 0 until it is mounted.
    pub fn log_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.ring.count() as u64 * log.ring.segment_bytes())
    }

    /// Checks the space accounting of home; does nothing before the mount.
    ///
    /// # Errors
    /// Describes the first contradiction.
    pub fn audit(&self) -> Result<(), String> {
        self.home.as_ref().map_or(Ok(()), |home| home.audit())
    }

    /// Returns the number of the first batch of the log's newest segment, and whether its state block is not written in full.
    pub fn log_head_for_tools(&self) -> Option<(u64, bool)> {
        let log = self.log.as_ref()?;
        Some((log.ring.newest()?.opened, log.state_block.is_some()))
    }

    /// Returns [`EngineStats::home`].
    pub fn home_stats(&self) -> HomeStats {
        self.home.as_ref().map(Home::stats).unwrap_or_default()
    }

    pub fn stats(&self) -> EngineStats {
        let home = self.home_stats();
        let mut stats = self.stats;
        if let Some(log) = &self.log {
            stats.segments = log.ring.count() as u32;
            stats.segments_in_use = log.ring.live().len() as u32;
        }
        stats.overlay_bytes = self.replicas.footprint().bytes;
        stats.drops_waiting = self.drops.len() as u64;
        stats.entries_retained = self.replicas.values().map(|r| r.log.len() as u64).sum();
        stats.device_read_bytes += home.read_bytes;
        stats.device_written_bytes += home.written_bytes;
        stats.flushes += home.flushes;
        stats.home = home;
        stats
    }

    pub(crate) fn poison(&mut self, during: &'static str, source: DiskError) {
        if matches!(self.state, State::Mounting(_)) {
            return self.fail_mount(MountError::Disk { during, source });
        }
        if let Some(home) = &mut self.home {
            home.poison();
        }
        let reason = format!("{during}: {source}");
        tracing::error!(%reason, "the store has failed");
        self.state = State::Stopped;
        self.leave_mark(&reason);
        self.events.push(EngineEvent::Poisoned(reason));
    }

    pub(crate) fn fail_mount(&mut self, error: MountError) {
        tracing::error!(%error, "mount failed");
        self.state = State::Stopped;
        self.events.push(EngineEvent::MountFailed(error));
    }

    pub(crate) fn done(&mut self, done: Done) {
        match done {
            Done::Persisted { replica, ticket } => {
                let batch_begun = self.log.as_ref().expect("a batch was in flight").batch_begun;
                self.events.push(EngineEvent::Persisted { replica, ticket, batch_begun });
            }
            Done::Created(replica) => {
                self.events.push(EngineEvent::Created(replica));
                self.raise_floor();
            }
            Done::Destroyed(replica) => self.events.push(EngineEvent::Destroyed(replica)),
            Done::Map(map) => self.events.push(EngineEvent::MapKept(map)),
            Done::Mounted => self.mount_recorded(),
            Done::Copied { replica, index, term, segment, whole } => {
                self.stats.copied_entries += 1;
                let Some(mut r) = self.replicas.get_mut(&replica) else { return };
                r.note_place(index, term, segment);
                let is_it = r.log.get(index).is_some_and(|kept| kept.term == term);
                drop(r);
                if whole && is_it {
                    self.refill_durable(replica, index);
                }
            }
            Done::Replaced(replica) => {
                let oldest = self.replicas.get_mut(&replica).and_then(|mut r| r.replaced.pop_front());
                assert!(oldest.is_none_or(|r| r.begun), "what {replica} replaced goes in order");
            }
            Done::Filling(decision) => self.log_begun(decision),
            Done::RoundMark => self.round_marked(),
            Done::Told => self.log.as_mut().expect("a batch was in flight").untold -= 1,
            Done::Stated { segment } => {
                self.log.as_mut().expect("a batch was in flight").ring.note_stated(segment);
                // During a mount the checkpoint indexes are not known yet.
                if matches!(self.state, State::Running) {
                    self.find_freeable();
                }
            }
            Done::CheckpointBegun { segment } => self.checkpoint_begun(segment),
            Done::Checkpointed { id } => self.checkpointed(id),
        }
    }
}
