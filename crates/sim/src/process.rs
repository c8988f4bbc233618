//! One life of the client: the real [`Client`] on a loop of its own, as a frontend would own it.
//!
//! Input: events of its env, requests, meta's answers. Output: completions, requests to meta. Invariant: it decides
//! nothing; the client does.

use crate::check::bounds;
use crate::workload::Ask;
use client::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, VolumeKey};
use device::Completion;
use env::{Env, Event, Op};
use simenv::SimEnv;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::control::{ClientAnswer, ClientAsk};
use types::{Errno, Incarnation, Time, VolumeId};

/// Returns the name under which a life of a machine holds volumes.
pub fn holder(number: usize, life: u32) -> String {
    format!("sim {number} life {life}")
}

/// One client process.
pub struct Process {
    client: Client,
    tuning: ClientTuning,
    /// The open volumes, by slot.
    volumes: BTreeMap<usize, VolumeKey>,
    /// Names that are being opened, and the slot of each.
    opening: BTreeMap<AskId, usize>,
    /// Number of slots that must be open before the process is ready.
    wanted: usize,
    ops: Vec<Op>,
    events: Vec<Event>,
    heard: Vec<ClientEvent>,
    asks: Vec<(AskId, ClientAsk)>,
    /// Requests that did not fit; they are submitted again before anything else.
    refused: VecDeque<Ask>,
}

/// An event of one of the process's volumes.
pub enum Heard {
    /// `all`: every volume that the process opens at its start is open.
    Opened {
        slot: usize,
        volume: VolumeId,
        all: bool,
    },
    /// The volume of this slot is longer.
    Resized {
        slot: usize,
        len_bytes: u64,
    },
    Refused,
    Failed(Errno),
    /// A volume was closed as the user asked.
    Closed,
}

impl Process {
    pub fn new(life: u32, number: usize, (full_wait, tuning): (Duration, ClientTuning), env: &mut SimEnv) -> Process {
        let config = ClientConfig {
            owner: 1,
            incarnation: Incarnation((number as u64) << 32 | u64::from(life)),
            holder: holder(number, life),
            timeout: None,
            full_wait,
            on_unavailable: client::OnUnavailable::Freeze,
            tuning,
            seed: env.random(),
        };
        Process {
            client: Client::new(config),
            tuning,
            volumes: BTreeMap::new(),
            opening: BTreeMap::new(),
            wanted: 0,
            ops: Vec::new(),
            events: Vec::new(),
            heard: Vec::new(),
            asks: Vec::new(),
            refused: VecDeque::new(),
        }
    }

    /// Opens the volumes that are not open yet; the place in `names` is the slot.
    pub fn open(&mut self, names: &[String], write: bool, steal: bool) {
        self.wanted = names.len();
        for (slot, name) in names.iter().enumerate() {
            if !self.volumes.contains_key(&slot) && !self.opening.values().any(|s| *s == slot) {
                self.opening.insert(self.client.open(name, write, steal), slot);
            }
        }
    }

    /// Closes all volumes.
    pub fn close(&mut self) {
        self.volumes.values().for_each(|volume| self.client.close(*volume));
    }

    /// Whether the process takes requests.
    pub fn is_ready(&self) -> bool {
        self.wanted > 0 && (0..self.wanted).all(|slot| self.volumes.contains_key(&slot)) && self.refused.is_empty()
    }

    /// Handles the events of the last wait.
    pub fn work(&mut self, env: &mut SimEnv) {
        let now = env.now();
        for event in self.events.drain(..) {
            // Between the two lives of a volume's connections an event may belong to no connection.
            if self.client.owns(&event) {
                self.client.handle_event(now, event, &mut self.ops);
            }
        }
    }

    pub fn answered(&mut self, env: &SimEnv, id: u64, answer: ClientAnswer) {
        self.client.handle_meta(env.now(), AskId(id), answer);
    }

    /// Returns the events of the client since the last call.
    pub fn hear(&mut self) -> Vec<Heard> {
        self.client.take_events(&mut self.heard);
        let mut all = Vec::new();
        for event in self.heard.drain(..) {
            all.push(match event {
                ClientEvent::Opened { ask, volume: key, info } => {
                    let slot = self.opening.remove(&ask).expect("it was asked for");
                    self.volumes.insert(slot, key);
                    let report = self.client.stats().volumes.into_iter().find(|v| v.name == info.name);
                    let volume = report.expect("it has just opened").volume;
                    Heard::Opened { slot, volume, all: (0..self.wanted).all(|s| self.volumes.contains_key(&s)) }
                }
                ClientEvent::OpenRefused { ask, .. } => {
                    self.opening.remove(&ask);
                    Heard::Refused
                }
                ClientEvent::Failed { errno, .. } => Heard::Failed(errno),
                ClientEvent::Resized { volume, len_bytes } => {
                    let slot = self.volumes.iter().find(|(_, key)| **key == volume).map(|(slot, _)| *slot);
                    Heard::Resized { slot: slot.expect("it is open"), len_bytes }
                }
                ClientEvent::Closed { volume } => {
                    self.volumes.retain(|_, key| *key != volume);
                    Heard::Closed
                }
            });
        }
        all
    }

    pub fn submit(&mut self, env: &SimEnv, ask: Ask) {
        let device = self.client.device(self.volumes[&ask.slot]).expect("it is never closed");
        if let Err(busy) = device.submit(env.now(), ask.request, ask.token) {
            self.refused.push_back(Ask { request: busy.0, ..ask });
        }
    }

    /// Returns the completions since the last call.
    pub fn completions(&mut self, env: &SimEnv) -> Vec<Completion> {
        let mut done = Vec::new();
        for volume in self.volumes.values() {
            self.client.device(*volume).expect("it is never closed").completions(&mut done);
        }
        if !done.is_empty() {
            for ask in std::mem::take(&mut self.refused) {
                self.submit(env, ask);
            }
        }
        done
    }

    /// Sends everything that may leave, and returns the requests to meta.
    pub fn end_turn(&mut self, env: &SimEnv) -> Vec<(AskId, ClientAsk)> {
        self.client.end_turn(env.now(), &mut self.ops);
        self.client.take_asks(&mut self.asks);
        std::mem::take(&mut self.asks)
    }

    /// Returns the fill of each volume and each connection, with its name and limit.
    pub fn limits(&self) -> Vec<(&'static str, u64, u64)> {
        let volumes = self.client.fills().flat_map(|fill| fill.limits(&self.tuning.volume));
        volumes.chain(self.client.queued().map(bounds::queued)).collect()
    }

    /// Ends the turn; returns whether events have come meanwhile.
    pub fn wait(&mut self, env: &mut SimEnv) -> bool {
        let deadline = self.client.next_deadline();
        env.turn(&mut self.ops, &mut self.events, deadline).expect("the simulated world does not fail as a whole");
        !self.events.is_empty() || deadline == Time::ZERO
    }
}
