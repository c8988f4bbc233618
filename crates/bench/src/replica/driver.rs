//! Drives an engine with one replica: appends entries, applies them when they are durable, and begins the rounds that it wants.
//!
//! Invariant: entries are applied in the order of their indexes, each once, and only when they are durable.

use super::{Case, Figures, HOME_SPANS, LOG_BURST, LOG_SUSTAINED, Meter, Offsets, ReplicaConfig, ReplicaError, open};
use bytes::Bytes;
use engine::{Engine, EngineConfig, EngineEvent, EngineStats, FormatParams};
use env::real::RealEnv;
use env::{Env, Event, Op};
use std::collections::VecDeque;
use std::time::Duration;
use types::map::Member;
use types::store::{Crcs, DecisionState, Effect, Persist, ReplicaIdentity};
use types::units::{BLOCK, CHUNK};
use types::{
    ClusterId, Entry, EntryKind, Epoch, Index, IoBuf, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SECTOR, SectorRange,
    Term, Time, VolumeChunk, VolumeId,
};

const IDS: (ClusterId, OsdId, OsdUuid) = (ClusterId([0xBE; 16]), OsdId(1), OsdUuid([0xBE; 16]));
const REPLICA: ReplicaId = ReplicaId(1);
const VOLUME: VolumeId = VolumeId(1);
const TERM: Term = Term(1);
const SEGMENT: u64 = 8 << 20;
/// Bytes of a write command: the engine stores them and does not look at them.
const DESCRIPTOR_LEN: usize = 96;
const FILL_BLOCK: u64 = 512 << 10;
const FILL_DEPTH: usize = 16;
/// Longest time for filling, for the last writes of a run, and for one wait of the loop.
const FILL_MAX: Duration = Duration::from_secs(600);
const ANSWER_MAX: Duration = Duration::from_secs(60);
const WAIT_MAX: Duration = Duration::from_secs(1);

struct Pending {
    ticket: u64,
    effect: Effect,
    since: Time,
}

/// An engine, its loop, and the writes in flight.
pub(super) struct Driver {
    env: RealEnv,
    engine: Engine,
    case: Case,
    span: u64,
    ops: Vec<Op>,
    events: Vec<Event>,
    happened: Vec<EngineEvent>,
    pending: VecDeque<Pending>,
    /// Index of the last entry, and of the last one that is applied. The ticket of an entry is its index.
    last: u64,
    applied: u64,
    created: bool,
    rounds: u64,
    descriptor: Bytes,
}

impl Driver {
    /// Formats a file, mounts it, and makes the replica.
    pub fn start(config: &ReplicaConfig, case: &Case) -> Result<Driver, ReplicaError> {
        let log_bytes = if case.sustained { LOG_SUSTAINED } else { LOG_BURST * (config.seconds + 1) };
        let path = config.dir.join(if case.sustained { "basalt-bench.sustained" } else { "basalt-bench.burst" });
        let (mut env, disk) = open(&path, log_bytes + HOME_SPANS * config.span_bytes, config.flush)?;
        let (cluster, osd, uuid) = IDS;
        let (segment_bytes, force, prezero) = (SEGMENT, true, true);
        let params = FormatParams {
            cluster,
            osd,
            uuid,
            log_bytes,
            segment_bytes,
            force,
            prezero,
            unix_s: 0,
            part: engine::DevicePart::Whole,
        };
        engine::format_device(&mut env, &disk, &params, &mut |_, _| {})?;
        let settings = EngineConfig { redirect_min: config.redirect_min, ..EngineConfig::default() };
        let engine = Engine::new(settings, disk, IDS);
        let mut driver = Driver {
            env,
            engine,
            case: *case,
            span: config.span_bytes,
            ops: Vec::new(),
            events: Vec::new(),
            happened: Vec::new(),
            pending: VecDeque::new(),
            last: 0,
            applied: 0,
            created: false,
            rounds: 0,
            descriptor: Bytes::from(vec![0x5A; DESCRIPTOR_LEN]),
        };
        driver.engine.start(driver.env.now(), &mut driver.ops);
        while !driver.created {
            driver.turn(None)?;
        }
        Ok(driver)
    }

    /// Writes the whole span once, and waits until it is destaged.
    pub fn fill(&mut self) -> Result<(), ReplicaError> {
        let mut left: VecDeque<u64> = (0..self.span / FILL_BLOCK).map(|n| n * FILL_BLOCK).collect();
        let bytes = IoBuf::copy_of(&vec![0xA5; FILL_BLOCK as usize]);
        let end = self.env.now() + FILL_MAX;
        while !left.is_empty() || !self.pending.is_empty() || self.engine.stats().overlay_bytes > 0 {
            let now = self.env.now();
            while self.pending.len() < FILL_DEPTH && !self.is_full() {
                let Some(offset) = left.pop_front() else { break };
                self.append(now, offset, &bytes);
            }
            if now >= end {
                return Err(ReplicaError::Slow("the span was not written and destaged", FILL_MAX));
            }
            self.turn(None)?;
        }
        Ok(())
    }

    /// Writes for so long, and returns the figures.
    pub fn measure(&mut self, time: Duration) -> Result<Figures, ReplicaError> {
        let bytes = IoBuf::copy_of(&vec![0xC3; self.case.block as usize]);
        let (mut offsets, depth) = (Offsets::new(self.case.block, self.span), self.case.depth as usize);
        let (before, rounds) = (self.engine.stats(), self.rounds);
        let mut meter = Meter::new(self.env.now())?;
        let end = self.env.now() + time;
        loop {
            let now = self.env.now();
            while now < end && self.pending.len() < depth && !self.is_full() {
                self.append(now, offsets.take(), &bytes);
            }
            if now >= end && self.pending.is_empty() {
                let mut figures = meter.figures(now)?;
                self.count(&mut figures, &before);
                figures.rounds = self.rounds - rounds;
                return Ok(figures);
            }
            if now >= end + ANSWER_MAX {
                return Err(ReplicaError::Slow("a write was not done after the end of the run", ANSWER_MAX));
            }
            self.turn(Some(&mut meter))?;
        }
    }

    fn count(&self, figures: &mut Figures, before: &EngineStats) {
        let after = self.engine.stats();
        let user = figures.writes * self.case.block;
        let written = after.device_written_bytes - before.device_written_bytes;
        figures.device_bytes = written as f64 / user as f64;
        figures.flushes_per_write = (after.flushes - before.flushes) as f64 / figures.writes as f64;
    }

    /// Whether an OSD would refuse writes now.
    fn is_full(&self) -> bool {
        self.engine.pressure().max() >= 1.0 || self.engine.space().refused
    }

    fn append(&mut self, now: Time, offset: u64, bytes: &IoBuf) {
        self.last += 1;
        let chunk = VolumeChunk { volume: VOLUME, index: (offset / CHUNK) as u32 }.in_first();
        let start = (offset % CHUNK / SECTOR) as u32;
        let range = SectorRange::new(start, (bytes.len() / SECTOR as usize) as u32);
        // The client computes the checksums of a write, and the OSD compares them once: as much work as here.
        let crcs = Crcs { start, values: range.fragment_crcs(bytes) };
        let (index, payload, descriptor) = (Index(self.last), bytes.clone(), self.descriptor.clone());
        let entry = Entry { term: TERM, index, kind: EntryKind::Normal, descriptor, payload, crcs };
        self.pending.push_back(Pending { ticket: self.last, effect: Effect::Write { chunk, range }, since: now });
        let (ticket, hard_state, entries) = (self.last, None, vec![entry]);
        self.engine.append(Persist { replica: REPLICA, ticket, hard_state, entries });
    }

    /// One turn of the loop. Writes that are done count in `meter`.
    fn turn(&mut self, mut meter: Option<&mut Meter>) -> Result<(), ReplicaError> {
        let now = self.env.now();
        for event in self.events.drain(..) {
            self.engine.handle_event(now, event, &mut self.ops, &mut self.happened);
        }
        self.drain(meter.as_deref_mut())?;
        if self.created && self.engine.wants_round(now) {
            let (replica, index, bytes) = (REPLICA, Index(self.applied), Bytes::from_static(b"bench"));
            let term = if self.applied == 0 { Term(0) } else { TERM };
            self.engine.begin_round(now, vec![DecisionState { replica, index, term, bytes }]);
        }
        self.engine.end_turn(now, &mut self.ops, &mut self.happened);
        self.drain(meter)?;
        let deadline = if self.happened.is_empty() { self.engine.next_deadline().min(now + WAIT_MAX) } else { now };
        self.env.turn(&mut self.ops, &mut self.events, deadline)?;
        Ok(())
    }

    fn drain(&mut self, mut meter: Option<&mut Meter>) -> Result<(), ReplicaError> {
        for event in std::mem::take(&mut self.happened) {
            match event {
                EngineEvent::Mounted(_) => self.create(),
                EngineEvent::Created(_) => self.created = true,
                EngineEvent::Persisted { ticket, .. } => self.persisted(ticket, meter.as_deref_mut()),
                EngineEvent::Checkpointed(_) => self.rounds += 1,
                EngineEvent::Freed(_) => {}
                EngineEvent::MountFailed(error) => return Err(ReplicaError::Engine(error.to_string())),
                other => return Err(ReplicaError::Engine(format!("{other:?}"))),
            }
        }
        Ok(())
    }

    fn create(&mut self) {
        let members = vec![Member { replica: REPLICA, osd: IDS.1 }];
        let pg = PgId { pool: PoolId(1), n: 0 };
        let identity = ReplicaIdentity { pg, replica: REPLICA, conf_epoch: Epoch(1), members };
        let (index, term, bytes) = (Index(0), Term(0), Bytes::from_static(b"bench"));
        self.engine.create_replica(identity, DecisionState { replica: REPLICA, index, term, bytes });
    }

    fn persisted(&mut self, ticket: u64, mut meter: Option<&mut Meter>) {
        let now = self.env.now();
        while let Some(done) = self.pending.pop_front_if(|pending| pending.ticket <= ticket) {
            self.applied = done.ticket;
            self.engine.apply(REPLICA, Index(done.ticket), done.effect);
            if let Some(meter) = &mut meter {
                meter.done(now.since(done.since));
            }
        }
    }
}

const _: () = assert!(CHUNK.is_multiple_of(FILL_BLOCK) && FILL_BLOCK.is_multiple_of(BLOCK));
