//! One life of the client: the real [`Client`] on a loop of its own, as a door would own it.
//!
//! Comes in: events of its env, requests, meta's answers. Goes out: completions, questions to meta.
//! Invariant: it decides nothing; the client does.

use client::{AskId, Client, ClientConfig, ClientEvent, VolumeKey};
use device::{Completion, Request};
use env::sim::SimEnv;
use env::{Env, Event, Op};
use std::collections::VecDeque;
use types::control::{ClientAnswer, ClientAsk};
use types::{Errno, Incarnation, Time};

/// One process.
pub struct Process {
    client: Client,
    volume: Option<VolumeKey>,
    ops: Vec<Op>,
    events: Vec<Event>,
    heard: Vec<ClientEvent>,
    asks: Vec<(AskId, ClientAsk)>,
    /// What did not fit; submitted again before anything else.
    refused: VecDeque<(Request, u64)>,
}

/// What the process was told of its volume.
pub enum Heard {
    Opened,
    Refused,
    Failed(Errno),
}

impl Process {
    pub fn new(life: u32, number: usize, env: &mut SimEnv) -> Process {
        let config = ClientConfig {
            room: 1,
            incarnation: Incarnation((number as u64) << 32 | u64::from(life)),
            holder: format!("sim {number} life {life}"),
            timeout: None,
            seed: env.random(),
        };
        Process {
            client: Client::new(config),
            volume: None,
            ops: Vec::new(),
            events: Vec::new(),
            heard: Vec::new(),
            asks: Vec::new(),
            refused: VecDeque::new(),
        }
    }

    pub fn open(&mut self, name: &str, write: bool, steal: bool) {
        self.client.open(name, write, steal);
    }

    /// Whether it takes requests.
    pub fn is_ready(&self) -> bool {
        self.volume.is_some() && self.refused.is_empty()
    }

    /// The events of the last wait.
    pub fn work(&mut self, env: &mut SimEnv) {
        let now = env.now();
        for event in self.events.drain(..) {
            // Between the two lives of a volume's connections an event may be nobody's.
            if self.client.owns(&event) {
                self.client.handle_event(now, event, &mut self.ops);
            }
        }
    }

    pub fn answered(&mut self, env: &SimEnv, id: u64, answer: ClientAnswer) {
        self.client.handle_meta(env.now(), AskId(id), answer);
    }

    /// What the client says since the last call.
    pub fn hear(&mut self) -> Vec<Heard> {
        self.client.take_events(&mut self.heard);
        let mut all = Vec::new();
        for event in self.heard.drain(..) {
            all.push(match event {
                ClientEvent::Opened { volume, .. } => {
                    self.volume = Some(volume);
                    Heard::Opened
                }
                ClientEvent::OpenRefused { .. } => Heard::Refused,
                ClientEvent::Failed { errno, .. } => Heard::Failed(errno),
                ClientEvent::Closed { .. } => unreachable!("nobody closes it"),
            });
        }
        all
    }

    pub fn submit(&mut self, env: &SimEnv, request: Request, token: u64) {
        let volume = self.volume.expect("an open volume");
        let device = self.client.device(volume).expect("nobody closes it");
        if let Err(busy) = device.submit(env.now(), request, token) {
            self.refused.push_back((busy.0, token));
        }
    }

    /// What is done since the last call.
    pub fn completions(&mut self, env: &SimEnv) -> Vec<Completion> {
        let mut done = Vec::new();
        let Some(volume) = self.volume else { return done };
        self.client.device(volume).expect("nobody closes it").completions(&mut done);
        if !done.is_empty() {
            for (request, token) in std::mem::take(&mut self.refused) {
                self.submit(env, request, token);
            }
        }
        done
    }

    /// Everything that may leave does; gives the questions to meta.
    pub fn end_turn(&mut self, env: &SimEnv) -> Vec<(AskId, ClientAsk)> {
        self.client.end_turn(env.now(), &mut self.ops);
        self.client.take_asks(&mut self.asks);
        std::mem::take(&mut self.asks)
    }

    /// Ends the turn; whether events have come meanwhile.
    pub fn wait(&mut self, env: &mut SimEnv) -> bool {
        let deadline = self.client.next_deadline();
        env.turn(&mut self.ops, &mut self.events, deadline).expect("the simulated world does not fail as a whole");
        !self.events.is_empty() || deadline == Time::ZERO
    }
}
