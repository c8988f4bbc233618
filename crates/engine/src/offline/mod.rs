//! The store of a stopped OSD, mounted by a tool.
//!
//! A tool passes in an env and an open disk; this file runs the turns of the env itself, because nothing else runs beside
//! it. The mount, the reads and the removal of a replica are those of [`Engine`], so a tool shows exactly what the OSD would
//! find, and no second writer of the format exists.
//!
//! Invariant: with [`Access::Read`] no write reaches the env. Writes of the mount stay in memory (`shadow`), and later reads
//! return them.

pub mod log;
mod shadow;

use crate::api::{EngineConfig, EngineEvent, MountError};
use crate::disks::Disks;
use crate::engine::Engine;
use crate::format::{FormatError, behind_mark, read_superblock};
use crate::{ReadData, ReadError};
use env::{DiskInfo, Env, EnvError, Event, Op};
use layout::superblock::Superblock;
use shadow::Shadow;
use std::sync::Arc;
use std::time::Duration;
use types::store::{Effect, Recovered};
use types::tree::{Change, Tree};
use types::{ChunkKey, Index, IoBuf, IoBufMut, ReplicaId, SectorRange, Term, Time};

/// Longest wait of a turn without an operation in flight.
const IDLE_MAX: Duration = Duration::from_millis(20);
/// Longest wait for a checkpoint that frees the space of a removed replica.
const CHECKPOINT_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longest time in which nothing is submitted and nothing completes, while a result is missing.
const PROGRESS_WAIT_MAX: Duration = Duration::from_secs(60);

/// Most bytes of one read of [`read`].
const PIECE_MAX: usize = 1 << 20;

/// Reads bytes of the device as they are, in pieces. `offset` and `len` are multiples of 4 KiB.
///
/// # Errors
/// The device does not give the bytes back.
pub fn read(env: &mut dyn Env, disk: &DiskInfo, offset: u64, len: usize) -> Result<IoBuf, FormatError> {
    if len <= PIECE_MAX {
        return Ok(crate::format::read(env, disk, offset, len)?.freeze());
    }
    let mut whole = IoBufMut::new(len);
    for (nth, part) in whole.chunks_mut(PIECE_MAX).enumerate() {
        let at = offset + (nth * PIECE_MAX) as u64;
        part.copy_from_slice(&crate::format::read(env, disk, at, part.len())?);
    }
    Ok(whole.freeze())
}

/// The access of a tool to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written to the device. A store with a poison mark is mounted, too.
    Read,
    /// The store is mounted as its OSD would mount it.
    Write,
}

/// Why a stopped store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The superblock, or the device while it was read.
    #[error(transparent)]
    Device(#[from] FormatError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("meta has refused this device as an older copy: {reason}")]
    Behind { reason: String },
    #[error("the store has failed: {0}")]
    Poisoned(String),
    #[error("{0} is not on this device")]
    NoReplica(ReplicaId),
    /// The log names the entry with other bytes than its command.
    #[error("entry {index} of {replica} has no payload that its command fits")]
    Payload { replica: ReplicaId, index: Index },
    /// The device does not answer, or the log has no room for a record.
    #[error("nothing has completed for {} s: the device does not answer, or the log is full", .idle.as_secs())]
    Stuck { idle: Duration },
}

/// A mounted store.
pub struct Offline<'a> {
    env: &'a mut dyn Env,
    engine: Engine,
    shadow: Option<Shadow>,
    ops: Vec<Op>,
    events: Vec<EngineEvent>,
    /// Completions that no operation of the env brings.
    completed: Vec<Event>,
    in_flight: usize,
    /// The last moment at which an operation was submitted or completed.
    progress_at: Time,
    reads: u64,
}

impl<'a> Offline<'a> {
    /// Mounts a store. Returns it with the superblock of its log and the replicas that the mount has found, as an OSD gets them.
    ///
    /// # Errors
    /// The superblock is not usable, or the mount fails. With [`Access::Write`] also when the store has a mark: its OSD has
    /// to judge that first.
    pub fn mount(
        env: &'a mut dyn Env,
        disks: impl Into<Disks>,
        access: Access,
    ) -> Result<(Offline<'a>, Superblock, Vec<Recovered>), OfflineError> {
        let disks = disks.into();
        let superblock = read_superblock(env, &disks.log)?;
        if access == Access::Write
            && let Some(reason) = behind_mark(env, &disks.log, superblock.uuid)
        {
            return Err(OfflineError::Behind { reason });
        }
        let config = EngineConfig { after_poison: access == Access::Read, ..EngineConfig::default() };
        let ids = (superblock.cluster, superblock.osd, superblock.uuid);
        let mut engine = Engine::new(config, disks, ids);
        let mut ops = Vec::new();
        let progress_at = env.now();
        engine.start(progress_at, &mut ops);
        let mut store = Offline {
            env,
            engine,
            shadow: (access == Access::Read).then(Shadow::default),
            ops,
            events: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
            progress_at,
            reads: 0,
        };
        let mounted = store.wait_for(|event| match event {
            EngineEvent::Mounted(recovered) => Ok(Ok(recovered)),
            EngineEvent::MountFailed(error) => Ok(Err(error)),
            other => Err(other),
        })?;
        Ok((store, superblock, mounted?))
    }

    /// Returns the engine, for its counts.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes a committed entry visible to reads, as [`Engine::apply`] does.
    ///
    /// # Errors
    /// The log does not hold the payload that the effect needs. The replica stays as it was.
    pub fn apply(
        &mut self,
        replica: ReplicaId,
        (index, term): (Index, Term),
        effect: Effect,
    ) -> Result<(), OfflineError> {
        self.check_payload(replica, (index, term), effect)?;
        self.engine.apply(replica, index, effect);
        Ok(())
    }

    /// Takes the generations of an entry behind the checkpoint.
    pub fn set_tree(&mut self, replica: ReplicaId, index: Index, tree: Arc<Tree>, changes: &[Change]) {
        self.engine.set_tree(replica, index, tree, changes);
    }

    /// Checks that the log holds the payload that an effect needs.
    ///
    /// # Errors
    /// The log does not hold it, or holds another one.
    pub fn check_payload(
        &self,
        replica: ReplicaId,
        (index, term): (Index, Term),
        effect: Effect,
    ) -> Result<(), OfflineError> {
        let Effect::Write { range, .. } = effect else { return Ok(()) };
        let payload = self.engine.payload(replica, index, term);
        let fits = payload.is_some_and(|(buf, crcs)| crcs.start == range.start && buf.len() == range.len_bytes());
        if fits { Ok(()) } else { Err(OfflineError::Payload { replica, index }) }
    }

    /// Reads a range of a chunk as it is after everything applied. Every block is verified.
    ///
    /// # Errors
    /// The env fails. The inner error is that of the read: it does not say which of several blocks are bad.
    pub fn read(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<Result<ReadData, ReadError>, OfflineError> {
        let token = self.next_token();
        self.engine.read(token, replica, chunk, range, &mut self.events);
        self.answer(token)
    }

    /// Reads home alone: the contents of a failed replica as of its checkpoint index. For any other replica the overlay
    /// counts, too.
    ///
    /// # Errors
    /// Those of [`Offline::read`].
    pub fn read_home(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<Result<ReadData, ReadError>, OfflineError> {
        let token = self.next_token();
        self.engine.read_base(token, replica, chunk, range, &mut self.events);
        self.answer(token)
    }

    /// Destroys a replica as its OSD does on an order of meta: a tombstone in the log (R4), durable when this returns. A
    /// checkpoint then releases its space: `false` when that has not happened, and a later start of the OSD does it.
    ///
    /// # Errors
    /// There is no such replica, or the store has failed.
    pub fn destroy(&mut self, replica: ReplicaId) -> Result<bool, OfflineError> {
        self.knows(replica)?;
        self.engine.destroy_replica(replica);
        self.wait_for(|event| match event {
            EngineEvent::Destroyed(gone) if gone == replica => Ok(()),
            other => Err(other),
        })?;
        self.release(replica)
    }

    /// Fails a replica, durably: meta replaces it under a new id when its OSD reports that (R4).
    ///
    /// # Errors
    /// Those of [`Offline::destroy`].
    pub fn fail(&mut self, replica: ReplicaId, reason: &str) -> Result<(), OfflineError> {
        self.knows(replica)?;
        self.engine.fail(replica, reason.to_owned());
        self.quiesce()
    }

    fn knows(&self, replica: ReplicaId) -> Result<(), OfflineError> {
        let known = self.engine.replicas_for_tools().iter().any(|known| known.identity.replica == replica);
        if known { Ok(()) } else { Err(OfflineError::NoReplica(replica)) }
    }

    /// Runs a round of no replica: its checkpoint drops what is destroyed. Returns whether home holds nothing of `gone`.
    fn release(&mut self, gone: ReplicaId) -> Result<bool, OfflineError> {
        let end = self.env.now() + CHECKPOINT_WAIT_MAX;
        self.engine.begin_round(self.env.now(), Vec::new());
        while self.is_left(gone) && self.env.now() < end {
            self.turn()?;
            self.check_poison()?;
        }
        self.quiesce()?;
        Ok(!self.is_left(gone))
    }

    fn is_left(&self, gone: ReplicaId) -> bool {
        self.engine.leftovers_for_tools().iter().any(|(replica, ..)| *replica == gone)
    }

    /// Waits until everything queued for the log is durable.
    fn quiesce(&mut self) -> Result<(), OfflineError> {
        self.progress_at = self.env.now();
        loop {
            self.turn()?;
            self.check_poison()?;
            if self.engine.is_log_quiet() && self.in_flight == 0 && self.completed.is_empty() {
                return Ok(());
            }
            self.check_progress()?;
        }
    }

    /// Refuses to wait on: a full log never takes a record, and a lost device never answers.
    fn check_progress(&self) -> Result<(), OfflineError> {
        let idle = self.env.now().since(self.progress_at);
        if idle < PROGRESS_WAIT_MAX { Ok(()) } else { Err(OfflineError::Stuck { idle }) }
    }

    fn check_poison(&mut self) -> Result<(), OfflineError> {
        for event in self.events.drain(..) {
            if let EngineEvent::Poisoned(reason) = event {
                return Err(OfflineError::Poisoned(reason));
            }
        }
        Ok(())
    }

    fn next_token(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    fn answer(&mut self, wanted: u64) -> Result<Result<ReadData, ReadError>, OfflineError> {
        self.wait_for(|event| match event {
            EngineEvent::ReadDone { token, result } if token == wanted => Ok(result),
            other => Err(other),
        })
    }

    /// Runs turns until `pick` takes an event; others are dropped.
    fn wait_for<T>(&mut self, mut pick: impl FnMut(EngineEvent) -> Result<T, EngineEvent>) -> Result<T, OfflineError> {
        self.progress_at = self.env.now();
        loop {
            while !self.events.is_empty() {
                match pick(self.events.remove(0)) {
                    Ok(found) => return Ok(found),
                    Err(EngineEvent::Poisoned(reason)) => return Err(OfflineError::Poisoned(reason)),
                    Err(_) => {}
                }
            }
            self.check_progress()?;
            self.turn()?;
        }
    }

    /// Runs one turn of the engine and of the env.
    fn turn(&mut self) -> Result<(), OfflineError> {
        let now = self.env.now();
        self.engine.end_turn(now, &mut self.ops, &mut self.events);
        self.hold_writes();
        let mut done = std::mem::take(&mut self.completed);
        let submitted = self.ops.len();
        self.in_flight += submitted;
        let ready = done.len();
        let deadline = self.deadline(now, ready);
        self.env.turn(&mut self.ops, &mut done, deadline)?;
        done.retain(|event| token_of(event).is_some());
        self.in_flight -= done.len() - ready;
        let progresses = submitted > 0 || !done.is_empty();
        for mut event in done {
            if let (Some(shadow), Event::DiskRead { token, buf, .. }) = (&mut self.shadow, &mut event) {
                shadow.patch(*token, buf);
            }
            self.engine.handle_event(now, event, &mut self.ops, &mut self.events);
        }
        // The time that the engine itself takes does not count.
        if progresses {
            self.progress_at = self.env.now();
        }
        Ok(())
    }

    fn deadline(&self, now: Time, ready: usize) -> Time {
        match (ready > 0 || !self.events.is_empty(), self.in_flight) {
            (true, _) => now,
            (false, 0) => self.engine.next_deadline().min(now + IDLE_MAX),
            (false, _) => now + PROGRESS_WAIT_MAX,
        }
    }

    /// Takes the writes out of the queue, if none may reach the device, and completes them.
    fn hold_writes(&mut self) {
        let Some(shadow) = &mut self.shadow else { return };
        for op in std::mem::take(&mut self.ops) {
            match shadow.take(op) {
                Ok(event) => self.completed.push(event),
                Err(op) => self.ops.push(op),
            }
        }
    }
}

/// Returns the token of a completion of a disk.
fn token_of(event: &Event) -> Option<env::Token> {
    match event {
        Event::DiskRead { token, .. }
        | Event::DiskWrite { token, .. }
        | Event::DiskFlush { token, .. }
        | Event::DiskDiscard { token, .. } => Some(*token),
        _ => None,
    }
}
