//! One life of the client: bus and volume on one loop.
//!
//! Comes in: events of its env, requests, meta's answers. Goes out: completions, asks.
//! Invariant: it decides nothing; `volume` does.

use bus::{Bus, BusConfig, BusEvent, Identity};
use env::sim::SimEnv;
use env::{Env, Event, Op};
use std::collections::BTreeMap;
use types::control::{ClientAnswer, ClientAsk, MapView};
use types::{ClusterId, Incarnation, OsdId, Time};
use volume::{Admit, Carrier, Completion, Request, Volume, VolumeConfig, VolumeOut};
use wire::{Message, Peer};

const ROOM: u8 = 1;

/// One process.
pub struct Process {
    bus: Bus,
    volume: Option<Volume>,
    seed: u64,
    ops: Vec<Op>,
    events: Vec<Event>,
    bus_events: Vec<BusEvent>,
    out: VolumeOut,
    next_ask: u64,
    asked: BTreeMap<u64, ClientAsk>,
    unsent: Vec<(u64, ClientAsk)>,
    /// What did not fit; submitted again before anything else.
    refused: Vec<(Request, u64)>,
}

struct Links<'a>(&'a mut Bus);

impl Carrier for Links<'_> {
    fn admit(&mut self, osd: OsdId, cost: usize) -> Admit {
        match self.0.link_to(osd) {
            None => Admit::NoLink,
            Some(link) if self.0.has_credit(link, cost) => Admit::Go,
            Some(_) => Admit::Wait,
        }
    }

    fn send(&mut self, osd: OsdId, request: wire::Request) {
        if let Some(link) = self.0.link_to(osd) {
            self.0.send(link, Message::Request(request));
        }
    }
}

impl Process {
    pub fn new(cluster: ClusterId, life: u32, env: &mut SimEnv) -> Process {
        let incarnation = Incarnation(u64::from(life));
        let identity = Identity { cluster, peer: Peer::Client(incarnation), incarnation };
        Process {
            bus: Bus::new(BusConfig::new(identity, ROOM), env.random()),
            volume: None,
            seed: env.random(),
            ops: Vec::new(),
            events: Vec::new(),
            bus_events: Vec::new(),
            out: VolumeOut::default(),
            next_ask: 0,
            asked: BTreeMap::new(),
            unsent: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.volume.is_some() && self.refused.is_empty()
    }

    pub fn ask(&mut self, ask: ClientAsk) {
        self.next_ask += 1;
        self.asked.insert(self.next_ask, ask.clone());
        self.unsent.push((self.next_ask, ask));
    }

    pub fn keepalive(&mut self) {
        if let Some(v) = &self.volume {
            let ask = ClientAsk::Keepalive { volume: v.id(), session: v.session() };
            self.ask(ask);
        }
    }

    pub fn take_asks(&mut self) -> Vec<(u64, ClientAsk)> {
        std::mem::take(&mut self.unsent)
    }

    /// The events of the last wait.
    pub fn work(&mut self, env: &mut SimEnv) {
        let now = env.now();
        for event in self.events.drain(..) {
            self.bus.handle_event(now, event, &mut self.ops, &mut self.bus_events);
        }
        self.bus.handle_deadline(now, &mut self.ops, &mut self.bus_events);
        for event in self.bus_events.drain(..) {
            let Some(volume) = &mut self.volume else { continue };
            match event {
                BusEvent::Up { peer: Peer::Osd(osd), .. } => volume.handle_link(now, osd, true),
                BusEvent::Down { peer: Peer::Osd(osd), .. } => volume.handle_link(now, osd, false),
                BusEvent::Message { link, message: Message::Reply(reply) } => {
                    if let Some(Peer::Osd(osd)) = self.bus.peer_of(link) {
                        volume.handle_reply(now, osd, reply);
                    }
                }
                _ => {}
            }
        }
    }

    pub fn submit(&mut self, env: &mut SimEnv, request: Request, token: u64) {
        let volume = self.volume.as_mut().expect("an open volume");
        if let Err(busy) = volume.submit(env.now(), request, token) {
            self.refused.push((busy.0, token));
        }
    }

    /// What is done since the last call.
    pub fn poll(&mut self, env: &mut SimEnv) -> Vec<Completion> {
        for (request, token) in std::mem::take(&mut self.refused) {
            self.submit(env, request, token);
        }
        let Some(volume) = &mut self.volume else { return Vec::new() };
        volume.poll(env.now(), &mut Links(&mut self.bus), &mut self.out);
        volume.check_books();
        for ask in std::mem::take(&mut self.out.meta) {
            self.ask(ask);
        }
        std::mem::take(&mut self.out.done)
    }

    /// Meta's answer; the result of an open comes back.
    pub fn answered(&mut self, env: &mut SimEnv, id: u64, answer: ClientAnswer) -> Option<Result<(), String>> {
        let ask = self.asked.remove(&id)?;
        let now = env.now();
        match &answer {
            ClientAnswer::Opened(opened) => {
                self.learn(&opened.view);
                let config = VolumeConfig { space: 0, serial: 0, timeout: None, seed: self.seed };
                self.volume = Some(Volume::new(opened, config));
                self.want(now);
                return Some(Ok(()));
            }
            ClientAnswer::Refused(why) if matches!(ask, ClientAsk::Open { .. }) => return Some(Err(why.to_string())),
            ClientAnswer::Segments { view, .. } | ClientAnswer::Refreshed(view) => self.learn(view),
            _ => {}
        }
        if let Some(volume) = &mut self.volume {
            volume.handle_meta(now, &ask, answer);
            self.want(now);
        }
        None
    }

    fn learn(&mut self, view: &MapView) {
        for entry in &view.osds {
            self.bus.set_osd_addr(entry.osd, entry.addr);
        }
    }

    fn want(&mut self, now: Time) {
        let Some(volume) = &self.volume else { return };
        for osd in volume.osds() {
            self.bus.want(now, osd, &mut self.ops);
        }
    }

    /// Ends the turn; whether events have come meanwhile.
    pub fn wait(&mut self, env: &mut SimEnv) -> bool {
        self.bus.end_turn(env.now(), &mut self.ops);
        let volume = self.volume.as_ref().map_or(Time::NEVER, Volume::next_deadline);
        let deadline = volume.min(self.bus.next_deadline());
        env.turn(&mut self.ops, &mut self.events, deadline).expect("the simulated world does not fail as a whole");
        !self.events.is_empty()
    }
}
