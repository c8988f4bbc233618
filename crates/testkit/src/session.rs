//! One volume, opened in this process by the native client: for the loader's loop, and for blocking calls.

use anyhow::{Context, Result, bail};
use client::{ClientEvent, VolumeKey};
use clientloop::{ClientLoop, LoopConfig};
use device::{Answer, BlockDevice, DeviceInfo, Request};
use env::Env;
use env::real::{RealConfig, RealEnv};
use std::net::SocketAddr;
use std::time::Duration;
use types::{Errno, Time};

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
    turns: ClientLoop,
    pub info: DeviceInfo,
    volume: Option<VolumeKey>,
}

impl Session {
    /// Opens `pool/volume`.
    ///
    /// # Errors
    /// Meta's refusal, as `BSLT-NNNN: why`.
    pub fn open(metas: &[SocketAddr], name: &str, how: Open) -> Result<Session> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let config = LoopConfig {
            metas: metas.iter().map(SocketAddr::to_string).collect(),
            holder: format!("testkit pid {}", std::process::id()),
            timeout: how.timeout,
            full_wait: Duration::ZERO,
            on_unavailable: client::OnUnavailable::Freeze,
        };
        let mut turns = ClientLoop::new(RealEnv::new(RealConfig::default())?, runtime, config);
        let ask = turns.client.open(name, how.write, how.steal);
        let info = DeviceInfo {
            name: name.to_owned(),
            len_bytes: 0,
            block_min: 512,
            block_preferred: 4096,
            read_only: !how.write,
            shared: false,
        };
        let mut session = Session { turns, info, volume: None };
        loop {
            session.finish(Time::NEVER)?;
            session.begin();
            for event in std::mem::take(&mut session.turns.told) {
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

    /// Returns the time.
    pub fn now(&self) -> Time {
        self.turns.env.now()
    }

    /// Handles the events since the last turn. Returns the time.
    pub fn begin(&mut self) -> Time {
        let now = self.turns.begin();
        self.turns.events.clear();
        now
    }

    /// Returns the open volume.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        let device = self.volume.and_then(|volume| self.turns.client.device(volume));
        device.expect("the volume is open")
    }

    /// Returns the error of a volume that has failed for good.
    pub fn failure(&self) -> Option<Errno> {
        self.turns.told.iter().find_map(|event| match event {
            ClientEvent::Failed { errno, .. } => Some(*errno),
            _ => None,
        })
    }

    /// Ends the turn: sends everything and waits for events, at most until `deadline`.
    pub fn finish(&mut self, deadline: Time) -> Result<()> {
        Ok(self.turns.finish(deadline)?)
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
        self.turns.client.close(volume);
        let until = self.now() + CALL_MAX;
        let mut done = Vec::new();
        loop {
            let now = self.begin();
            if let Some(device) = self.turns.client.device(volume) {
                device.completions(&mut done);
            }
            if self.turns.told.iter().any(|e| matches!(e, ClientEvent::Closed { .. })) {
                return Ok(());
            }
            if now >= until {
                bail!("the volume did not close within {CALL_MAX:?}");
            }
            self.finish(until)?;
        }
    }
}
