//! One volume, opened in this process by the native client: for the loader's loop, and for blocking calls.

use anyhow::{Context, Result, bail};
use api::client_link::ClientLink;
use client::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, VolumeKey};
use device::{Answer, BlockDevice, DeviceInfo, Request};
use env::Env;
use env::real::{RealConfig, RealEnv};
use env::{Event, Op};
use std::net::SocketAddr;
use std::time::Duration;
use types::control::ClientAsk;
use types::{Errno, Incarnation, Time};

const OWNER_CLIENT: u8 = 1;
/// A blocking call that takes longer is a fault.
const CALL_MAX: Duration = Duration::from_secs(30);

/// Mode in which a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub write: bool,
    pub steal: bool,
    /// Requests fail after this; `None`: they wait for ever.
    pub timeout: Option<Duration>,
}

impl Default for Open {
    fn default() -> Open {
        Open { write: true, steal: true, timeout: None }
    }
}

/// An open volume.
pub struct Session {
    pub env: RealEnv,
    pub info: DeviceInfo,
    client: Client,
    volume: Option<VolumeKey>,
    link: ClientLink,
    ops: Vec<Op>,
    incoming: Vec<Event>,
    asks: Vec<(AskId, ClientAsk)>,
    told: Vec<ClientEvent>,
    _runtime: tokio::runtime::Runtime,
}

impl Session {
    /// Opens `pool/volume`.
    ///
    /// # Errors
    /// Meta's refusal, as `BSLT-NNNN: why`.
    pub fn open(metas: &[SocketAddr], name: &str, how: Open) -> Result<Session> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut env = RealEnv::new(RealConfig::default())?;
        let config = ClientConfig {
            owner: OWNER_CLIENT,
            incarnation: Incarnation(crate::clock::unix_ms() << 20 | u64::from(std::process::id())),
            holder: format!("testkit pid {}", std::process::id()),
            timeout: how.timeout,
            full_wait: Duration::ZERO,
            tuning: ClientTuning::default(),
            seed: env.random(),
        };
        let waker = env.waker();
        let addrs = metas.iter().map(SocketAddr::to_string).collect();
        let link = api::client_link::start(runtime.handle(), addrs, env.random(), Box::new(move || waker.wake()));
        let mut client = Client::new(config);
        let ask = client.open(name, how.write, how.steal);
        let info = DeviceInfo {
            name: name.to_owned(),
            len_bytes: 0,
            block_min: 512,
            block_preferred: 4096,
            read_only: !how.write,
        };
        let (ops, incoming, asks, told) = Default::default();
        let mut session =
            Session { env, info, client, volume: None, link, ops, incoming, asks, told, _runtime: runtime };
        loop {
            session.finish(Time::NEVER)?;
            session.begin();
            for event in std::mem::take(&mut session.told) {
                match event {
                    ClientEvent::Opened { ask: of, volume, info } if of == ask => {
                        (session.volume, session.info) = (Some(volume), info);
                        return Ok(session);
                    }
                    ClientEvent::OpenRefused { why, .. } => bail!("BSLT-{}: {name}: {}", why.code, why.message),
                    _ => {}
                }
            }
        }
    }

    /// Handles the events since the last turn. Returns the time.
    pub fn begin(&mut self) -> Time {
        let now = self.env.now();
        for event in self.incoming.drain(..) {
            if self.client.owns(&event) {
                self.client.handle_event(now, event, &mut self.ops);
            }
        }
        while let Some((id, answer)) = self.link.try_recv() {
            self.client.handle_meta(now, AskId(id), answer);
        }
        self.client.take_events(&mut self.told);
        now
    }

    /// Returns the open volume.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        let device = self.volume.and_then(|volume| self.client.device(volume));
        device.expect("the volume is open")
    }

    /// Returns the error of a volume that has failed for good.
    pub fn failure(&self) -> Option<Errno> {
        self.told.iter().find_map(|event| match event {
            ClientEvent::Failed { errno, .. } => Some(*errno),
            _ => None,
        })
    }

    /// Ends the turn: sends everything and waits for events, at most until `deadline`.
    pub fn finish(&mut self, deadline: Time) -> Result<()> {
        let now = self.env.now();
        self.client.end_turn(now, &mut self.ops);
        self.client.take_asks(&mut self.asks);
        for (id, ask) in self.asks.drain(..) {
            if self.link.try_ask(id.0, ask).is_err() {
                bail!("more questions wait for meta than its queue takes");
            }
        }
        let deadline = deadline.min(self.client.next_deadline());
        self.env.turn(&mut self.ops, &mut self.incoming, deadline)?;
        Ok(())
    }

    /// Submits one request and waits for its answer.
    ///
    /// # Errors
    /// The outer error: no answer came at all.
    pub fn call(&mut self, request: Request) -> Result<Result<Answer, Errno>> {
        let now = self.begin();
        if self.device().submit(now, request, 0).is_err() {
            bail!("an idle device is busy");
        }
        let until = now + CALL_MAX;
        let mut done = Vec::new();
        loop {
            self.finish(until)?;
            let now = self.begin();
            self.device().completions(&mut done);
            if let Some(completion) = done.pop() {
                return Ok(completion.result);
            }
            if now >= until {
                bail!("no answer within {CALL_MAX:?}");
            }
        }
    }

    /// Closes the volume, so that others may open it without stealing.
    pub fn close(mut self) -> Result<()> {
        let volume = self.volume.take().context("a session is closed once")?;
        self.client.close(volume);
        let until = self.env.now() + CALL_MAX;
        let mut done = Vec::new();
        loop {
            let now = self.begin();
            if let Some(device) = self.client.device(volume) {
                device.completions(&mut done);
            }
            if self.told.iter().any(|e| matches!(e, ClientEvent::Closed { .. })) {
                return Ok(());
            }
            if now >= until {
                bail!("the volume did not close within {CALL_MAX:?}");
            }
            self.finish(until)?;
        }
    }
}
