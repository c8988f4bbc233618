//! One open volume on one thread: env, client, and the link to meta, turned together by a door or a bench.

use crate::errors::{UserError, refused};
use crate::role::{self, env_error};
use anyhow::Result;
use api::client_link::ClientLink;
use client::{AskId, Client, ClientConfig, ClientEvent, VolumeKey};
use device::{BlockDevice, DeviceInfo};
use env::real::{RealConfig, RealEnv};
use env::{Env, Event, Op};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;
use types::control::ClientAsk;
use types::{Errno, Incarnation, Time};

/// `Token.room` of the client's bus.
const ROOM_CLIENT: u8 = 1;
/// How long a close may take before the process ends without it.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// How long an open may take: longer than an election of metas and one of a PG.
const OPEN_MAX: Duration = Duration::from_secs(15);

fn unanswered(name: &str, metas: &[SocketAddr]) -> UserError {
    let asked: Vec<String> = metas.iter().map(SocketAddr::to_string).collect();
    let what = format!(
        "{name} was not opened in {} s: no metadata server answers at {}, or a PG of the volume has no leader",
        OPEN_MAX.as_secs(),
        asked.join(", ")
    );
    UserError::new(2001, what, format!("basalt status --meta {}", asked.join(",")))
}

/// A volume that is open on this thread.
pub struct Session {
    pub env: RealEnv,
    pub client: Client,
    volume: Option<VolumeKey>,
    pub info: DeviceInfo,
    pub ops: Vec<Op>,
    /// Events of the last turn that are not the client's.
    pub events: Vec<Event>,
    pub runtime: Runtime,
    incoming: Vec<Event>,
    link: ClientLink,
    asks: Vec<(AskId, ClientAsk)>,
    told: Vec<ClientEvent>,
}

impl Session {
    /// Opens `pool/volume`.
    ///
    /// # Errors
    /// Meta's refusal, in the user's words.
    pub fn open(metas: &[SocketAddr], name: &str, write: bool, steal: bool) -> Result<Session> {
        let runtime = role::runtime()?;
        let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
        let incarnation = Incarnation(role::unix_now().as_nanos() as u64);
        let host = role::osd::Place::default().host;
        let config = ClientConfig {
            room: ROOM_CLIENT,
            incarnation,
            holder: format!("{host} pid {}", std::process::id()),
            timeout: None,
            seed: env.random(),
        };
        let waker = env.waker();
        let addrs = metas.iter().map(SocketAddr::to_string).collect();
        let link = api::client_link::start(runtime.handle(), addrs, env.random(), Box::new(move || waker.wake()));
        let mut client = Client::new(config);
        let ask = client.open(name, write, steal);
        let mut session = Session {
            env,
            client,
            volume: None,
            info: DeviceInfo {
                name: name.to_owned(),
                len_bytes: 0,
                block_min: 512,
                block_preferred: 4096,
                read_only: !write,
            },
            ops: Vec::new(),
            events: Vec::new(),
            runtime,
            incoming: Vec::new(),
            link,
            asks: Vec::new(),
            told: Vec::new(),
        };
        let until = session.env.now() + OPEN_MAX;
        loop {
            session.finish(until)?;
            if session.begin() >= until {
                return Err(unanswered(name, metas).into());
            }
            for event in std::mem::take(&mut session.told) {
                match event {
                    ClientEvent::Opened { ask: of, volume, info } if of == ask => {
                        (session.volume, session.info) = (Some(volume), info);
                        return Ok(session);
                    }
                    ClientEvent::OpenRefused { why, .. } => {
                        return Err(refused(why.code, &why.message).into());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Takes in what happened: the client's events are worked on, the others wait in `events`. Gives the time.
    pub fn begin(&mut self) -> Time {
        let now = self.env.now();
        for event in self.incoming.drain(..) {
            if self.client.owns(&event) {
                self.client.handle_event(now, event, &mut self.ops);
            } else {
                self.events.push(event);
            }
        }
        while let Some((id, answer)) = self.link.try_recv() {
            self.client.handle_meta(now, AskId(id), answer);
        }
        self.client.take_events(&mut self.told);
        now
    }

    /// Why nothing will succeed any more, once that is so.
    pub fn failure(&mut self) -> Option<Errno> {
        let failed = |event: &ClientEvent| match event {
            ClientEvent::Failed { errno, .. } => Some(*errno),
            _ => None,
        };
        self.told.iter().find_map(failed)
    }

    /// The open volume.
    ///
    /// # Panics
    /// After it was closed.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        let device = self.volume.and_then(|volume| self.client.device(volume));
        device.expect("the volume is open")
    }

    /// Ends the turn: sends everything and waits for events, at most until `deadline`.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn finish(&mut self, deadline: Time) -> Result<()> {
        let now = self.env.now();
        self.client.end_turn(now, &mut self.ops);
        self.client.take_asks(&mut self.asks);
        for (id, ask) in self.asks.drain(..) {
            if self.link.try_ask(id.0, ask).is_err() {
                tracing::warn!("too many questions wait for meta; one was dropped");
            }
        }
        let deadline = deadline.min(self.client.next_deadline());
        self.env.turn(&mut self.ops, &mut self.incoming, deadline).map_err(env_error)
    }

    /// Lets requests in flight end and tells meta that nobody holds the volume any more.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn close(&mut self) -> Result<()> {
        let until = self.env.now() + CLOSE_MAX;
        let Some(volume) = self.volume.take() else { return Ok(()) };
        self.client.close(volume);
        let mut done = Vec::new();
        loop {
            let now = self.begin();
            if let Some(device) = self.client.device(volume) {
                device.completions(&mut done);
            }
            done.clear();
            self.events.clear();
            let closed = self.told.iter().any(|e| matches!(e, ClientEvent::Closed { .. }));
            if closed || now >= until {
                return Ok(());
            }
            self.finish(until)?;
        }
    }
}
