//! The client itself: the calls of its loop.

use crate::links::{Left, Links};
use crate::meta::{AskId, Asks};
use crate::open::{OpenVolume, Stage, VolumeKey, VolumeReport};
use crate::outage::Outage;
use crate::tuning::ClientTuning;
use bus::{Bus, BusConfig, BusEvent, BusStats, Identity};
use device::{BlockDevice, DeviceInfo};
use env::{Event, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use telemetry::ops::{OpId, OpKind, OpReport, Recorder, Station};
use types::codes;
use types::control::{Opened, Refusal};
use types::rng::Rng;
use types::{ClusterId, Errno, Incarnation, OsdId, SessionId, Time};
use volume::{OnUnavailable, Volume, VolumeConfig, VolumeFill, VolumeOut};
use wire::{Message, Peer};

/// Settings that the owner chooses.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `Token::owner` of the client's operations.
    pub owner: u8,
    /// Incarnation of this process.
    pub incarnation: Incarnation,
    /// Host and process of this client. Another opener sees it when its open is refused because this client holds the volume.
    pub holder: String,
    /// Time after which a request fails with `TimedOut`; with `None` a request waits for ever.
    pub timeout: Option<Duration>,
    /// A write for which an OSD has no space is retried for this long before it fails with `NoSpace`.
    pub full_wait: Duration,
    /// Whether requests fail with `TimedOut` while the storage is unavailable.
    pub on_unavailable: OnUnavailable,
    /// Times and limits.
    pub tuning: ClientTuning,
    /// Seed of all random draws of the client: pauses between attempts, salts of connections.
    pub seed: u64,
}

/// Events for the owner besides completions.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// The answer to [`Client::open`].
    Opened {
        /// The open that it answers.
        ask: AskId,
        /// Name of the open volume in the calls of this client.
        volume: VolumeKey,
        /// Properties of its device.
        info: DeviceInfo,
    },
    /// Meta refused [`Client::open`], or the client did.
    OpenRefused {
        /// The open that it answers.
        ask: AskId,
        /// Error code, and a message with the next step.
        why: Refusal,
    },
    /// The volume has another length: its device takes requests up to the new end from now on, and fails those behind it.
    Resized {
        /// The volume.
        volume: VolumeKey,
        /// Its new length.
        len_bytes: u64,
    },
    /// No request will succeed on this volume any more: it is fenced or deleted. The owner still has to close it.
    Failed {
        /// The volume.
        volume: VolumeKey,
        /// Outcome of its requests from here on.
        errno: Errno,
    },
    /// The answer to [`Client::close`].
    Closed {
        /// The volume. Its key is never used again.
        volume: VolumeKey,
    },
}

/// Figures of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Figures of the connections.
    pub bus: BusStats,
    /// One report for each open volume.
    pub volumes: Vec<VolumeReport>,
    /// Messages from OSDs that no client expects, or for a volume that is closed.
    pub strays: u64,
}

/// A client process without its frontend.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) rng: Rng,
    /// Made when the first volume is open, because the cluster's id is known only then.
    pub(crate) bus: Option<(ClusterId, Bus)>,
    pub(crate) volumes: Vec<Option<Box<OpenVolume>>>,
    /// The slots of `volumes` in the order in which they may send, and whether they have sent in the last turn.
    order: Vec<(usize, bool)>,
    pub(crate) lives: u32,
    /// Highest message number of the closed volumes.
    pub(crate) serial: u64,
    /// OSDs that the bus keeps connections to.
    wanted: BTreeSet<OsdId>,
    /// OSDs without a connection, after one was lost or could not be made, with the reason.
    pub(crate) lost: BTreeMap<OsdId, String>,
    /// True when volumes have come, gone, or learned of PGs since `wanted` was made.
    pub(crate) wanted_stale: bool,
    pub(crate) asks: Asks,
    pub(crate) events: Vec<ClientEvent>,
    bus_events: Vec<BusEvent>,
    /// Scratch space of a poll.
    out: VolumeOut,
    ops: Recorder,
    strays: u64,
}

impl Client {
    /// # Panics
    /// When the tuning has a fault; the message names all.
    pub fn new(config: ClientConfig) -> Client {
        config.tuning.validate().unwrap_or_else(|faults| panic!("{faults}"));
        Client {
            rng: Rng::new(config.seed),
            config,
            bus: None,
            volumes: Vec::new(),
            order: Vec::new(),
            lives: 0,
            serial: 0,
            wanted: BTreeSet::new(),
            lost: BTreeMap::new(),
            wanted_stale: false,
            asks: Asks::default(),
            events: Vec::new(),
            bus_events: Vec::new(),
            out: VolumeOut::default(),
            ops: Recorder::default(),
            strays: 0,
        }
    }

    /// Whether an event is for [`Client::handle_event`].
    pub fn owns(&self, event: &Event) -> bool {
        self.bus.as_ref().is_some_and(|(_, bus)| bus.owns(event))
    }

    /// Handles an event that [`Client::owns`] claims.
    pub fn handle_event(&mut self, now: Time, event: Event, ops: &mut Vec<Op>) {
        let (_, bus) = self.bus.as_mut().expect("without a bus no event is ours");
        bus.handle_event(now, event, ops, &mut self.bus_events);
        self.take_bus_events(now);
    }

    fn take_bus_events(&mut self, now: Time) {
        let mut events = std::mem::take(&mut self.bus_events);
        for event in events.drain(..) {
            match event {
                BusEvent::Message { link, message: Message::Reply(reply) } => {
                    let peer = self.bus.as_ref().and_then(|(_, bus)| bus.peer_of(link));
                    let volume = self.volumes.get_mut(usize::from(volume::space_of(reply.id)));
                    match (peer, volume) {
                        (Some(Peer::Osd(osd)), Some(Some(open))) => open.volume.handle_reply(now, osd, reply),
                        // The link ended after this reply arrived: the volume sends its requests again.
                        _ => self.strays += 1,
                    }
                }
                BusEvent::Message { .. } => self.strays += 1,
                BusEvent::Up { peer: Peer::Osd(osd), .. } => {
                    if self.lost.remove(&osd).is_some() {
                        tracing::info!(%osd, "the OSD is connected again");
                    }
                    self.link(now, osd, true);
                }
                BusEvent::Down { peer: Peer::Osd(osd), reason, .. } => {
                    self.note_lost(osd, reason);
                    self.link(now, osd, false);
                }
                BusEvent::Unreachable { osd, reason } => {
                    self.note_lost(osd, reason);
                    self.ask_where(now, osd);
                }
                BusEvent::Up { .. } | BusEvent::Down { .. } => unreachable!("a client accepts no connection"),
            }
        }
        self.bus_events = events;
    }

    /// Logs that the path to an OSD is broken, once until the OSD is connected again.
    fn note_lost(&mut self, osd: OsdId, reason: String) {
        if self.wanted.contains(&osd) && !self.lost.contains_key(&osd) {
            tracing::warn!(%osd, reason, "this client cannot reach the OSD: trying other replicas");
            self.lost.insert(osd, reason);
        }
    }

    fn link(&mut self, now: Time, osd: OsdId, up: bool) {
        for open in self.volumes.iter_mut().flatten() {
            open.volume.handle_link(now, osd, up);
        }
    }

    /// Returns the device of an open volume; `None` when it is closed.
    pub fn device(&mut self, volume: VolumeKey) -> Option<&mut dyn BlockDevice> {
        self.find(volume).map(|open| open as &mut dyn BlockDevice)
    }

    /// Returns the session of an open volume; `None` when it is closed.
    pub fn session(&mut self, volume: VolumeKey) -> Option<SessionId> {
        self.find(volume).map(|open| open.volume.session())
    }

    pub(crate) fn find(&mut self, key: VolumeKey) -> Option<&mut OpenVolume> {
        let open = self.volumes.get_mut(usize::from(key.slot))?.as_deref_mut();
        open.filter(|open| open.key == key)
    }

    /// Stops taking requests for the volume, lets those in flight end, and tells meta. Then [`ClientEvent::Closed`] follows.
    /// The owner goes on taking completions until then.
    pub fn close(&mut self, volume: VolumeKey) {
        if let Some(open) = self.find(volume)
            && open.stage == Stage::Open
        {
            open.stage = Stage::Closing;
        }
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self, out: &mut Vec<ClientEvent>) {
        out.append(&mut self.events);
    }

    /// Sends all messages that may leave, and performs all work that is due.
    pub fn end_turn(&mut self, now: Time, ops: &mut Vec<Op>) {
        if let Some((_, bus)) = &mut self.bus
            && bus.next_deadline() <= now
        {
            bus.handle_deadline(now, ops, &mut self.bus_events);
            self.take_bus_events(now);
        }
        self.make_wanted(now, ops);
        // Volumes share the credit of a connection: when it is short, those that send come behind the others in the next turn.
        let mut short = false;
        for at in 0..self.order.len() {
            let left = self.drive(now, self.order[at].0);
            self.order[at].1 = left.sent;
            short |= left.short;
        }
        if short {
            self.order.sort_by_key(|(_, sent)| *sent);
        }
        if let Some((_, bus)) = &mut self.bus {
            bus.end_turn(now, ops);
        }
    }

    /// Does the work of one volume.
    fn drive(&mut self, now: Time, slot: usize) -> Left {
        let Some(open) = self.volumes[slot].as_deref_mut() else { return Left::default() };
        let (_, bus) = self.bus.as_mut().expect("an open volume has a bus");
        let mut links = Links::new(bus);
        open.volume.poll(now, &mut links, &mut self.out);
        let left = links.left;
        open.done.append(&mut self.out.done);
        for write in self.out.sampled.drain(..) {
            let (volume, epoch) = (open.volume.id(), open.volume.epoch());
            let op = OpId { kind: OpKind::Write, volume, pg: write.pg, epoch, seq: write.seq };
            self.ops.record(op, Station::Submitted, write.submitted);
            self.ops.record(op, Station::Sent, write.sent);
            self.ops.record(op, Station::Answered, write.answered);
            self.ops.record(op, Station::Completed, now);
        }
        for ask in self.out.meta.drain(..) {
            self.asks.put(open.key, ask);
        }
        if let Some(errno) = open.volume.failed().filter(|_| !open.failure_told) {
            open.failure_told = true;
            self.events.push(ClientEvent::Failed { volume: open.key, errno });
        }
        open.note_outage(now);
        self.keep_alive(now, slot);
        self.part(now, slot);
        left
    }

    /// Requests a connection to every OSD that a volume may need. A follower's connection exists before it leads.
    fn make_wanted(&mut self, now: Time, ops: &mut Vec<Op>) {
        if !std::mem::take(&mut self.wanted_stale) {
            return;
        }
        let Some((_, bus)) = &mut self.bus else { return };
        let wanted: BTreeSet<OsdId> = self.volumes.iter().flatten().flat_map(|open| open.volume.osds()).collect();
        for gone in self.wanted.difference(&wanted) {
            bus.unwant(*gone, ops);
            self.lost.remove(gone);
        }
        for new in wanted.difference(&self.wanted) {
            bus.want(now, *new, ops);
        }
        self.wanted = wanted;
    }

    /// Returns the latest time for the next [`Client::end_turn`].
    pub fn next_deadline(&self) -> Time {
        if !self.events.is_empty() || !self.asks.is_empty() {
            return Time::ZERO;
        }
        let bus = self.bus.as_ref().map_or(Time::NEVER, |(_, bus)| bus.next_deadline());
        let due = |open: &OpenVolume| open.next_deadline().min(self.deadline_of(open));
        self.volumes.iter().flatten().map(|open| due(open)).fold(bus, Time::min)
    }

    /// Opens the volume that meta has granted.
    pub(crate) fn opened(&mut self, ask: AskId, name: String, now: Time, opened: &Opened) {
        let refuse = |code, message: String| ClientEvent::OpenRefused { ask, why: Refusal { code, message } };
        if self.bus.as_ref().is_some_and(|(cluster, _)| *cluster != opened.cluster) {
            let message = format!("{name} belongs to another cluster than the volumes that are open");
            return self.events.push(refuse(codes::VOLUME_OF_OTHER_CLUSTER, message));
        }
        if name.contains('@') != opened.snapshot.is_some() {
            let message = format!("the metadata server has opened {name} as something else");
            return self.events.push(refuse(codes::SNAPSHOT_UNKNOWN, message));
        }
        let slot = self.volumes.iter().position(Option::is_none).unwrap_or(self.volumes.len());
        if slot >= usize::from(volume::SPACES) {
            return self.events.push(refuse(codes::TOO_MANY_VOLUMES, format!("{slot} volumes are open already")));
        }
        if self.bus.is_none() {
            let me = self.config.incarnation;
            let identity = Identity { cluster: opened.cluster, peer: Peer::Client(me), incarnation: me };
            let tuning = self.config.tuning.bus;
            let config = BusConfig { tuning, ..BusConfig::new(identity, self.config.owner) };
            self.bus = Some((opened.cluster, Bus::new(config, self.rng.next_u64())));
        }
        let config = VolumeConfig {
            space: slot as u16,
            serial: self.serial,
            timeout: self.config.timeout,
            full_wait: self.config.full_wait,
            on_unavailable: self.config.on_unavailable,
            tuning: self.config.tuning.volume,
            seed: self.rng.next_u64(),
        };
        self.lives += 1;
        let key = VolumeKey { slot: slot as u16, life: self.lives };
        let info = DeviceInfo {
            name,
            len_bytes: opened.len_bytes,
            block_min: types::SECTOR as u32,
            block_preferred: types::BLOCK as u32,
            read_only: !opened.write,
            shared: opened.multi_writer,
        };
        let mut open = OpenVolume {
            key,
            info: info.clone(),
            volume: Volume::new(opened, config),
            stage: Stage::Open,
            done: Vec::new(),
            keepalive_at: now + crate::meta::KEEPALIVE,
            keepalive: None,
            failure_told: false,
            outage: Outage::default(),
        };
        open.set_faults(now, &opened.faults);
        if slot == self.volumes.len() {
            self.order.push((slot, false));
            self.volumes.push(None);
        }
        self.volumes[slot] = Some(Box::new(open));
        self.learn_addresses(&opened.view);
        // Existing connections count as up for this volume, too.
        for osd in self.wanted.clone() {
            if self.bus.as_ref().is_some_and(|(_, bus)| bus.link_to(osd).is_some()) {
                self.link(now, osd, true);
            }
        }
        self.events.push(ClientEvent::Opened { ask, volume: key, info });
    }

    /// Returns the cluster of its volumes, since the first one was opened.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.bus.as_ref().map(|(cluster, _)| *cluster)
    }

    /// Returns the requests in flight on each open volume; for observers.
    pub fn fills(&self) -> impl Iterator<Item = VolumeFill> {
        self.volumes.iter().flatten().map(|open| open.volume.fill())
    }

    /// Returns the oldest unanswered request on a volume that came before `before`.
    pub fn stall(&mut self, volume: VolumeKey, before: Time) -> Option<volume::Stall> {
        self.find(volume).and_then(|open| open.volume.stall(before))
    }

    /// Returns the bytes that wait on each connection; for observers.
    pub fn queued(&self) -> impl Iterator<Item = usize> {
        self.bus.iter().flat_map(|(_, bus)| bus.queued())
    }

    /// Returns the sampled writes that succeeded, oldest first.
    pub fn ops(&self) -> Vec<OpReport> {
        self.ops.reports()
    }

    /// Returns the figures of the client.
    pub fn stats(&self) -> ClientStats {
        ClientStats {
            bus: self.bus.as_ref().map(|(_, bus)| bus.stats()).unwrap_or_default(),
            volumes: self.volumes.iter().flatten().map(|open| open.report()).collect(),
            strays: self.strays,
        }
    }
}
