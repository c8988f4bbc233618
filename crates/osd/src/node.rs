//! The loop's body: [`Osd::work`] and [`Osd::wait`] are one turn.
//!
//! Order inside a turn: completions and messages → deadlines → groups are polled until none has anything to do →
//! a destage round may begin → one log batch and one frame a connection leave with one kernel entry.

use crate::config::OsdConfig;
use crate::control::Meta;
use crate::log_share::LogShares;
use crate::pgs::{Pgs, State};
use crate::requests::Inflight;
use bus::{Bus, BusConfig, BusEvent, Identity};
use engine::{Disks, Engine, EngineEvent};
use env::{Env, EnvError, Event, NetAddr, Op};
use group::Action;
use group::pairs::Pairs;
use recovery::Recovery;
use slab::Slab;
use std::collections::BTreeMap;
use telemetry::Registry;
use types::failpoint::{Point, is_armed, pass};
use types::store::{Failure, Recovered};
use types::{OsdId, PgId, Time};
use wire::{Peer, StreamAbort};

/// `Token.owner` of the bus.
pub const OWNER_BUS: u8 = 1;

/// Phase of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The engine reads its log, or the OSD waits to be let in; connections are refused.
    Mounting,
    Running,
    /// R15, or a refusal by meta: the OSD no longer serves. The reason is for the user.
    Stopped(String),
}

/// Error that ends the loop and the process.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error("the device cannot be mounted: {0}")]
    Mount(#[from] engine::MountError),
}

/// A read that a group asked for, under the group's own id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRead {
    pub replica: types::ReplicaId,
    pub slot: usize,
    pub read: u64,
}

/// The owner of a read that waits in the engine.
#[derive(Clone, Debug)]
pub(crate) enum ReadOwner {
    Group(GroupRead),
    /// The group that asked has ended: its successor counts its reads from the start.
    Ended,
    Tool,
    Recovery(recovery::Read),
}

/// Whether a group that got something is polled at the end of the turn.
#[derive(Clone, Copy)]
pub(crate) enum Touch {
    Always,
    /// If it has work.
    IfWanted,
    Never,
}

/// Operations and events of the present turn. Each list keeps its memory for the next one.
#[derive(Default)]
pub(crate) struct Turn {
    pub ops: Vec<Op>,
    pub engine_events: Vec<EngineEvent>,
    pub actions: Vec<Action>,
    events: Vec<Event>,
    bus_events: Vec<BusEvent>,
}

/// One storage daemon.
pub struct Osd {
    pub(crate) config: OsdConfig,
    pub(crate) phase: Phase,
    pub(crate) bus: Bus,
    pub(crate) engine: Engine,
    pub(crate) pgs: Pgs,
    pub(crate) pairs: Pairs,
    pub(crate) meta: Meta,
    pub(crate) service: crate::let_in::Service,
    pub(crate) inflight: Inflight,
    pub(crate) copies: crate::flattens::CopySpace,
    pub(crate) reads: Slab<ReadOwner>,
    pub(crate) tools: crate::ask::Tools,
    pub(crate) space: crate::space::Book,
    pub(crate) recovery: Recovery,
    pub(crate) stats: crate::stats::Stats,
    /// The clock at the start of this turn.
    pub(crate) now: Time,
    pub(crate) turn: Turn,
    pub(crate) log_shares: LogShares,
    pub(crate) limits: crate::limits::Limits,
    /// Client requests that wait for those of other volumes.
    pub(crate) shares: crate::shares::Shares<crate::requests::Arrived>,
    pub(crate) devices: crate::devices::Devices,
    pub(crate) paces: crate::pace::Paces,
}

impl Osd {
    /// Makes an OSD on opened disks. The first turn begins the mount.
    ///
    /// # Panics
    /// When the configuration has a fault; the message names all.
    pub fn new(config: OsdConfig, disks: impl Into<Disks>, registry: &Registry, seed: u64) -> Osd {
        config.validate().unwrap_or_else(|faults| panic!("{faults}"));
        let identity =
            Identity { cluster: config.cluster, peer: Peer::Osd(config.osd), incarnation: config.incarnation };
        let bus = Bus::new(BusConfig { tuning: config.tuning.bus, ..BusConfig::new(identity, OWNER_BUS) }, seed);
        let disks = disks.into();
        let devices = crate::devices::Devices::new(&disks, registry);
        let engine = Engine::new(config.engine.clone(), disks, (config.cluster, config.osd, config.uuid));
        Osd {
            phase: Phase::Mounting,
            bus,
            engine,
            pgs: Pgs::new(seed),
            pairs: Pairs::new(config.timing),
            meta: Meta::default(),
            service: crate::let_in::Service::default(),
            inflight: Inflight::default(),
            reads: Slab::new(),
            tools: crate::ask::Tools::default(),
            space: crate::space::Book::new(config.tuning.space),
            recovery: Recovery::new(config.tuning.recovery(), config.tuning.digests(), seed.rotate_left(29)),
            copies: crate::flattens::CopySpace::new(),
            stats: crate::stats::Stats::new(registry),
            now: Time::ZERO,
            turn: Turn::default(),
            log_shares: LogShares::new(config.tuning.uncommitted_min),
            limits: crate::limits::Limits::default(),
            shares: crate::shares::Shares::default(),
            devices,
            paces: crate::pace::Paces::default(),
            config,
        }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns the address of the listener, once it is bound.
    pub fn listening(&self) -> Option<&NetAddr> {
        self.service.listening.as_ref()
    }

    /// Runs the first half of a turn: handles the events of the last one. Reports for meta are ready after it.
    ///
    /// # Errors
    /// When the process cannot go on.
    pub fn work(&mut self, env: &mut dyn Env) -> Result<(), OsdError> {
        self.now = env.now();
        self.stats.metrics.turns.inc();
        if !std::mem::replace(&mut self.service.started, true) {
            self.engine.start(self.now, &mut self.turn.ops);
        }
        let mut events = std::mem::take(&mut self.turn.events);
        for event in events.drain(..) {
            self.route(event);
        }
        self.turn.events = events;
        self.bus.handle_deadline(self.now, &mut self.turn.ops, &mut self.turn.bus_events);
        self.drain_bus();
        self.drain_engine(env)?;
        self.drain_control();
        self.step_let_in();
        self.renew_promises();
        self.pgs.touch_due(self.now);
        self.pace_writes();
        self.settle(env)?;
        if self.shares.waiting() > 0 {
            self.serve_waiting();
            self.settle(env)?;
        }
        self.step_recovery();
        self.destage();
        self.engine.end_turn(self.now, &mut self.turn.ops, &mut self.turn.engine_events);
        self.drain_engine(env)?;
        self.settle(env)?;
        self.apply_pressure();
        self.devices.tick(self.now);
        self.report_if_due();
        self.tell_used();
        self.bus.end_turn(self.now, &mut self.turn.ops);
        let ended = env.now();
        self.stats.end_turn(self.now, ended);
        self.devices.submit(self.now, ended, &self.turn.ops);
        if is_armed(Point::RepliesReady) && self.turn.ops.iter().any(|op| matches!(op, Op::Send { .. })) {
            pass(Point::RepliesReady);
        }
        Ok(())
    }

    /// Runs the second half: submits the operations of this turn and waits for new events, which the next turn handles.
    /// A simulator calls again at once while [`Osd::has_events`].
    ///
    /// # Errors
    /// When the process cannot go on.
    pub fn wait(&mut self, env: &mut dyn Env) -> Result<(), OsdError> {
        let deadline = self.deadline();
        env.turn(&mut self.turn.ops, &mut self.turn.events, deadline)?;
        self.stats.kernel_entries = env.kernel_entries();
        Ok(())
    }

    /// Whether the last turn brought events that the next one will handle.
    pub fn has_events(&self) -> bool {
        !self.turn.events.is_empty()
    }

    fn route(&mut self, event: Event) {
        let owner = match &event {
            Event::DiskRead { token, .. }
            | Event::DiskWrite { token, .. }
            | Event::DiskFlush { token, .. }
            | Event::DiskDiscard { token, .. } => token.owner,
            Event::Connected { .. } | Event::Accepted { .. } | Event::Received { .. } | Event::Sent { .. } => OWNER_BUS,
            Event::Woken => return,
        };
        if let Event::Accepted { conn, .. } = &event
            && !self.bus.owns(&event)
        {
            // This OSD does not serve yet, or never: peers and clients try again.
            self.turn.ops.push(Op::Close { conn: *conn });
            return;
        }
        if owner == OWNER_BUS {
            self.bus.handle_event(self.now, event, &mut self.turn.ops, &mut self.turn.bus_events);
        } else {
            self.devices.complete(self.now, &event);
            self.engine.handle_event(self.now, event, &mut self.turn.ops, &mut self.turn.engine_events);
        }
    }

    fn drain_bus(&mut self) {
        let mut events = std::mem::take(&mut self.turn.bus_events);
        for event in events.drain(..) {
            self.handle_bus(event);
        }
        self.turn.bus_events = events;
    }

    /// Handles all events of the engine, until it makes no more.
    fn drain_engine(&mut self, env: &mut dyn Env) -> Result<(), OsdError> {
        while !self.turn.engine_events.is_empty() {
            let mut events = std::mem::take(&mut self.turn.engine_events);
            for event in events.drain(..) {
                self.handle_engine(event, env)?;
            }
            if self.turn.engine_events.is_empty() {
                self.turn.engine_events = events;
            }
        }
        Ok(())
    }

    fn handle_engine(&mut self, event: EngineEvent, env: &mut dyn Env) -> Result<(), OsdError> {
        match event {
            EngineEvent::Mounted(replicas) => self.mounted(replicas, env)?,
            EngineEvent::MountFailed(error) => return Err(error.into()),
            EngineEvent::Created(replica) => self.replica_created(replica),
            EngineEvent::Destroyed(replica) => tracing::info!(replica = replica.0, "replica dropped"),
            EngineEvent::Persisted { replica, ticket, batch_begun } => self.persisted(replica, ticket, batch_begun),
            EngineEvent::ReadDone { token, result } => self.read_done(token, result),
            EngineEvent::Checkpointed(replicas) => {
                self.stats.metrics.destage_rounds.inc();
                tracing::debug!(replicas = replicas.len(), "checkpoint");
            }
            EngineEvent::Freed(replicas) => replicas.into_iter().for_each(|replica| self.log_freed(replica)),
            EngineEvent::Staged { token } => {
                self.recover(|r, here| r.streams.handle_staged(here, token));
            }
            EngineEvent::Unstaged { replica } => {
                self.recover(|r, here| r.streams.handle_evicted(here, replica));
            }
            EngineEvent::Begun(recovered) => self.log_begun(*recovered),
            EngineEvent::FillRefused { replica } => self.stream_refused(replica, StreamAbort::Busy),
            EngineEvent::Installed { replica } => self.stream_installed(replica),
            EngineEvent::InstallRefused { replica } => self.stream_refused(replica, StreamAbort::Full),
            EngineEvent::BadBlocks { replica, chunk, range, reason, needed } => {
                let of = (replica, chunk, range);
                self.recover(|r, here| r.blocks.blocks_are_bad(here, of, &reason, needed));
            }
            EngineEvent::Failed { replica, failure } => self.replica_failed(replica, failure),
            EngineEvent::Refilled { replica } => self.replica_refilled(replica),
            EngineEvent::MapKept(map) => self.map_kept(&map),
            EngineEvent::Poisoned(reason) => self.poisoned(reason),
        }
        Ok(())
    }

    pub(crate) fn persisted(&mut self, replica: types::ReplicaId, ticket: u64, batch_begun: Time) {
        self.stats.traced.durable(replica, ticket, batch_begun, self.now);
        let Some(key) = self.pgs.by_replica(replica) else { return };
        // A replica that has failed in this turn acknowledges nothing (R4).
        self.heed_failure(key);
        match self.pgs.paused(key) {
            // A paused group sends nothing; it sends its messages when it goes on.
            Some(group) => group.note_persisted(self.now, ticket),
            None => {
                self.with_slot(key, Touch::IfWanted, |group, now, actions| {
                    group.handle_persisted(now, ticket, actions)
                });
            }
        }
    }

    /// Makes the group of a replica that the engine holds, unless the replica has failed.
    pub(crate) fn add_recovered(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let replica = identity.replica;
        let members = group::members_in(&recovered);
        members.iter().for_each(|member| self.want_peer(member.osd));
        if !self.pgs.is_newest(identity.pg, replica) {
            self.engine.fail(replica, "another replica of its PG is on this OSD".to_owned());
        }
        // The engine may have failed it since it was mounted.
        if let Some(failure) = self.engine.failure(replica).or(recovered.failure.clone()) {
            tracing::error!(pg = %identity.pg, replica = replica.0, reason = failure.reason,
                "a replica has failed: it takes no part in its PG, and is to be replaced");
            self.pgs.insert(identity, members, State::Failed(failure));
            return;
        }
        if !recovered.lost.is_empty() {
            return self.begin_repair(recovered);
        }
        let state = self.start_group(recovered);
        let key = self.pgs.insert(identity, members, state);
        self.members_changed(key);
    }

    /// Makes the group of a replica from the engine's state. A replica that the engine has failed meanwhile gets none, and
    /// neither does one whose state the group refuses: it fails.
    pub(crate) fn start_group(&mut self, recovered: Recovered) -> State {
        let replica = recovered.identity.replica;
        if let Some(failure) = self.engine.failure(replica) {
            return State::Failed(failure);
        }
        let identity = recovered.identity.clone();
        self.detach_reads(replica);
        self.stats.traced.forget(replica);
        let seed = self.pgs.seed_of(replica);
        let config = group::GroupConfig {
            lease_reads: self.config.lease_reads,
            timing: self.config.timing,
            limits: self.config.tuning.group,
            uncommitted_payload_max: self.log_shares.own(),
            ..group::GroupConfig::new(self.config.osd)
        };
        match group::Group::new(config, recovered, self.now, seed) {
            Ok(mut group) => {
                // The log may have freed entries since its state was recovered.
                group.set_first_index(self.engine.first_index(replica));
                group.set_pressure(self.space.fullness.told.0, self.space.fullness.told.1);
                State::Running(Box::new(group))
            }
            Err(error) => {
                tracing::error!(pg = %identity.pg, replica = replica.0, %error, "a replica cannot start from its log");
                self.engine.fail(replica, error.to_string());
                State::Failed(Failure { reason: error.to_string(), is_past: false })
            }
        }
    }

    pub(crate) fn want_peer(&mut self, osd: OsdId) {
        if osd != self.config.osd {
            self.bus.want(self.now, osd, &mut self.turn.ops);
        }
    }

    /// Polls touched groups until none has anything to do. A group's actions are performed at once, so that an
    /// effect is applied before the read that follows it.
    fn settle(&mut self, env: &mut dyn Env) -> Result<(), OsdError> {
        for _ in 0..self.config.tuning.settle_rounds_max {
            if !self.pgs.has_touched() {
                return Ok(());
            }
            let touched = self.pgs.take_touched();
            for key in touched.iter().copied() {
                self.heed_failure(key);
                self.open_pace(key);
                self.with_slot(key, Touch::Never, |group, now, actions| group.poll(now, actions));
                self.charge_pace(key);
                self.pgs.arm(key);
            }
            self.pgs.reuse(touched);
            self.drain_engine(env)?;
        }
        Ok(())
    }

    /// Runs `f` on a slot's group and performs the actions that it returns.
    pub(crate) fn with_slot(
        &mut self,
        key: usize,
        touch: Touch,
        f: impl FnOnce(&mut group::Group, Time, &mut Vec<Action>),
    ) {
        let mut actions = std::mem::take(&mut self.turn.actions);
        if let Some(group) = self.pgs.group(key) {
            f(group, self.now, &mut actions);
            let polls = match touch {
                Touch::Always => true,
                Touch::IfWanted => group.wants_poll(),
                Touch::Never => false,
            };
            if polls {
                self.pgs.touch(key);
            }
            self.perform(key, &mut actions);
        }
        actions.clear();
        self.turn.actions = actions;
    }

    pub(crate) fn with_pg(&mut self, pg: PgId, f: impl FnOnce(&mut group::Group, Time, &mut Vec<Action>)) {
        if let Some(key) = self.pgs.by_pg(pg) {
            self.with_slot(key, Touch::Always, f);
        }
    }

    /// Begins a destage round when the engine wants one. Decision states are taken at this very moment,
    /// when every effect that the groups have applied is in the overlay (R1).
    fn destage(&mut self) {
        // The engine must know when rounds are held back: otherwise a due round stays its deadline.
        self.engine.hold_rounds(self.phase != Phase::Running);
        // Merges and streams read the same device, and streams come first.
        self.engine.hold_merges(self.recovery.streams.running() > 0);
        if self.phase != Phase::Running || !self.engine.wants_round(self.now) {
            return;
        }
        let states = self.pgs.iter().filter_map(|slot| match &slot.state {
            State::Running(group) => Some(group.decision()),
            _ => None,
        });
        let states = states.collect();
        self.engine.begin_round(self.now, states);
    }

    fn deadline(&mut self) -> Time {
        let again = if self.pgs.has_touched() || !self.turn.engine_events.is_empty() { self.now } else { Time::NEVER };
        [
            again,
            self.bus.next_deadline(),
            self.engine.next_deadline(),
            self.pgs.next_deadline(),
            self.pairs.next_deadline(),
            self.meta.next_report(),
            self.service.next_deadline(),
            self.recovery.next_deadline(),
            self.stop_deadline(),
            self.limits.next_deadline(),
            self.shares.next_deadline(self.now, &mut self.limits),
            self.paces.next_deadline(),
        ]
        .into_iter()
        .min()
        .unwrap_or(Time::NEVER)
    }

    /// Counts replicas for the metrics: (all, leading, failed).
    pub(crate) fn census(&self) -> (usize, usize, usize) {
        let mut leading = 0;
        let mut failed = 0;
        for slot in self.pgs.iter() {
            match &slot.state {
                State::Running(group) if group.is_leader() => leading += 1,
                State::Failed(_) => failed += 1,
                _ => {}
            }
        }
        (self.pgs.len(), leading, failed)
    }

    /// Returns the PGs that are led here, for tools.
    pub fn leading(&self) -> BTreeMap<PgId, types::Term> {
        let lead = |slot: &crate::pgs::Slot| match &slot.state {
            State::Running(group) if group.is_leader() => Some((slot.identity.pg, group.report(Time::ZERO).term)),
            _ => None,
        };
        self.pgs.iter().filter_map(lead).collect()
    }
}
