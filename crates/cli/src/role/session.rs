//! One open volume on one thread: env, client, and the link to meta, driven by an NBD server or a benchmark.
//!
//! [`Session::prepare`] takes the signals over and touches no volume: an NBD server then binds its address.
//! [`Prepared::open`] attaches. Invariant: a session that attached detaches on every exit, errors and signals included.
//! Only a killed process leaves its hold behind, and meta drops that hold soon after the process's connection ends.

use crate::address::Address;
use crate::errors::{UserError, refused};
use crate::role::late::Watch;
use crate::role::{self, Stop, env_error};
use anyhow::Result;
use api::AdminClient;
use api::client_link::ClientLink;
use client::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, VolumeKey};
use control::admin::{AdminAnswer, AdminAsk};
use device::{BlockDevice, DeviceInfo};
use env::real::{RealConfig, RealEnv};
use env::{Env, Event, Op};
use std::time::Duration;
use tokio::runtime::Runtime;
use types::codes;
use types::control::{ClientAsk, HOLDER_LEASE_MS, Refusal};
use types::{Errno, Incarnation, Time};

/// `Token.owner` of the client's bus.
const OWNER_CLIENT: u8 = 1;
/// Time in which requests in flight may end at a close.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// Time in which meta may answer a close before the process ends without its answer.
const PART_MAX: Duration = Duration::from_secs(2);

/// Time in which an open may end: longer than an election of metas and one of a PG.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// Time that a write of a benchmark waits in a full pool: enough for space that is about to be freed.
const BENCH_FULL_WAIT: Duration = Duration::from_secs(5);

/// Pause before the next open of a volume whose holder is a dead process.
const LEASE_AGAIN: Duration = Duration::from_millis(250);

/// Returns the error of a volume that was not opened in [`OPEN_MAX`]: by the metadata servers, or by its PGs when
/// `meta_answers`.
fn unanswered(name: &str, metas: &[Address], meta_answers: bool) -> UserError {
    let asked: Vec<String> = metas.iter().map(Address::to_string).collect();
    let late = format!("{name} was not opened in {} s", OPEN_MAX.as_secs());
    if meta_answers {
        let what = format!("{late}: the metadata server answers, and a PG of the volume does not");
        return UserError::new(codes::REQUESTS_NOT_ANSWERED, what, "basalt health detail");
    }
    let what = format!("{late}: no metadata server answers at {}", asked.join(", "));
    UserError::new(codes::META_UNAVAILABLE, what, format!("basalt status --meta {}", asked.join(",")))
}

/// A volume to open, and how.
#[derive(Clone, Copy)]
pub struct Open<'a> {
    /// `pool/volume`.
    pub name: &'a str,
    pub write: bool,
    pub steal: bool,
}

/// A session without a volume.
pub struct Prepared {
    pub env: RealEnv,
    pub runtime: Runtime,
    stop: Stop,
    metas: Vec<Address>,
    holder: String,
    /// Time that a write waits for space before it fails: zero by default.
    pub full_wait: Duration,
}

/// A volume that is open on this thread.
pub struct Session {
    pub env: RealEnv,
    pub client: Client,
    volume: Option<VolumeKey>,
    pub info: DeviceInfo,
    pub ops: Vec<Op>,
    /// Events of the last turn that are not for the client.
    pub events: Vec<Event>,
    stop: Stop,
    incoming: Vec<Event>,
    link: ClientLink,
    asks: Vec<(AskId, ClientAsk)>,
    told: Vec<ClientEvent>,
    watch: Watch,
    runtime: Background,
}

/// The runtime that carries the link. Its end does not wait for a name that is being resolved.
struct Background(Option<Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Prepared {
    /// Attaches the volume. A signal that asks for the end is an error here.
    ///
    /// # Errors
    /// Meta's refusal, in the user's terms.
    pub fn open(mut self, open: Open<'_>) -> Result<Session> {
        let config = ClientConfig {
            owner: OWNER_CLIENT,
            incarnation: Incarnation(role::unix_now().as_nanos() as u64),
            holder: self.holder.clone(),
            timeout: None,
            full_wait: self.full_wait,
            tuning: ClientTuning::default(),
            seed: self.env.random(),
        };
        let waker = self.env.waker();
        let addrs = self.metas.iter().map(Address::to_string).collect();
        let wake = Box::new(move || waker.wake());
        let link = api::client_link::start(self.runtime.handle(), addrs, self.env.random(), wake);
        let mut session = Session {
            env: self.env,
            client: Client::new(config),
            volume: None,
            info: DeviceInfo {
                name: open.name.to_owned(),
                len_bytes: 0,
                block_min: 512,
                block_preferred: 4096,
                read_only: !open.write,
            },
            ops: Vec::new(),
            events: Vec::new(),
            stop: self.stop,
            incoming: Vec::new(),
            link,
            asks: Vec::new(),
            told: Vec::new(),
            watch: Watch::new(),
            runtime: Background(Some(self.runtime)),
        };
        let give_up = session.env.now() + Duration::from_millis(HOLDER_LEASE_MS) + LEASE_AGAIN;
        let mut is_told = false;
        loop {
            match session.attach(open)? {
                Attached::Open => return Ok(session),
                Attached::Late => {
                    let meta_answers = session.ask_meta(&self.metas, AdminAsk::Status).is_some();
                    return Err(unanswered(open.name, &self.metas, meta_answers).into());
                }
                Attached::Refused(why) => {
                    let waits = why.code == codes::VOLUME_HELD && session.env.now() < give_up;
                    if !waits || !session.holder_is_dead(&self.metas, open.name) {
                        return Err(refused(why.code, &why.message).into());
                    }
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(
                            volume = open.name,
                            "waiting for the end of a lease: the process of this host that held it has ended"
                        );
                    }
                    session.pause(LEASE_AGAIN)?;
                }
            }
        }
    }
}

/// Whether a holder's name is one that a [`Prepared`] of this host has, and its process is gone. The result is wrong when
/// two machines have one name: then a living holder is awaited, and the open is refused in the end.
fn is_dead(holder: &str, host: &str) -> bool {
    let process = holder.split_once(" on ").and_then(|(_, process)| process.rsplit_once(" pid "));
    let Some((at, pid)) = process else { return false };
    at == host && pid.parse::<u32>().is_ok_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
}

/// Result of an open.
enum Attached {
    Open,
    Refused(Refusal),
    /// No answer in the time of an open.
    Late,
}

impl Session {
    /// Takes the signals over and makes a ring; no volume is touched. `kind` is the name that `volume info` shows of this
    /// holder: `nbd`, `bench`.
    ///
    /// # Errors
    /// When the system has no io_uring for this process.
    pub fn prepare(metas: &[Address], kind: &str) -> Result<Prepared> {
        let runtime = role::runtime()?;
        let env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
        let stop = Stop::on_signal(&runtime);
        stop.wakes(env.waker());
        let host = role::format::Place::default().host;
        let holder = format!("{kind} on {host} pid {}", std::process::id());
        Ok(Prepared { env, runtime, stop, metas: metas.to_vec(), holder, full_wait: Duration::ZERO })
    }

    /// Opens `pool/volume` for a benchmark.
    ///
    /// # Errors
    /// Meta's refusal, in the user's terms.
    pub fn open(metas: &[Address], name: &str, write: bool, steal: bool) -> Result<Session> {
        let mut prepared = Session::prepare(metas, "bench")?;
        prepared.full_wait = BENCH_FULL_WAIT;
        prepared.open(Open { name, write, steal })
    }

    fn attach(&mut self, open: Open<'_>) -> Result<Attached> {
        let ask = self.client.open(open.name, open.write, open.steal);
        let mut until = self.env.now() + OPEN_MAX;
        let mut interrupted = false;
        loop {
            self.finish(until)?;
            let now = self.begin();
            for event in std::mem::take(&mut self.told) {
                match event {
                    ClientEvent::Opened { ask: of, volume, info } if of == ask => {
                        (self.volume, self.info) = (Some(volume), info);
                        // A session that is dropped closes its volume.
                        return if interrupted { Err(stopped().into()) } else { Ok(Attached::Open) };
                    }
                    ClientEvent::OpenRefused { why, .. } => return Ok(Attached::Refused(why)),
                    _ => {}
                }
            }
            if self.interrupted() && !interrupted {
                // The open may be granted already: its answer names the session that must be closed.
                interrupted = true;
                until = until.min(now + PART_MAX);
            }
            if now >= until {
                return if interrupted { Err(stopped().into()) } else { Ok(Attached::Late) };
            }
        }
    }

    /// Returns the answer of the leading meta, within [`PART_MAX`].
    fn ask_meta(&self, metas: &[Address], ask: AdminAsk) -> Option<AdminAnswer> {
        let admin = AdminClient::new(metas.iter().map(Address::to_string).collect(), PART_MAX);
        self.runtime.0.as_ref()?.block_on(admin.ask(ask)).ok()
    }

    /// Whether a dead process of this host holds the volume: its lease ends soon.
    fn holder_is_dead(&self, metas: &[Address], name: &str) -> bool {
        let asked = self.ask_meta(metas, AdminAsk::VolumeInfo { name: name.to_owned() });
        let Some(AdminAnswer::Volume(volume)) = asked else { return false };
        volume.holder.is_some_and(|holder| is_dead(&holder.name, &role::format::Place::default().host))
    }

    /// Runs turns without a volume for this time.
    fn pause(&mut self, time: Duration) -> Result<()> {
        let until = self.env.now() + time;
        while self.begin() < until && !self.interrupted() {
            self.finish(until)?;
        }
        Ok(())
    }

    /// Whether a signal has asked this process to end. The owner leaves its loop and drops the session, or closes it.
    pub fn interrupted(&self) -> bool {
        self.stop.is_set()
    }

    /// Begins a turn: the client handles its events, the others wait in `events`. Returns the time.
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
        if let Some(volume) = self.volume {
            self.watch.look(now, &self.info.name, |before| self.client.stall(volume, before));
        }
        now
    }

    /// Returns the error after which no request will succeed any more, if there is one.
    pub fn failure(&mut self) -> Option<Errno> {
        let failed = |event: &ClientEvent| match event {
            ClientEvent::Failed { errno, .. } => Some(*errno),
            _ => None,
        };
        self.told.iter().find_map(failed)
    }

    /// Returns the open volume.
    ///
    /// # Panics
    /// After it was closed.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        let device = self.volume.and_then(|volume| self.client.device(volume));
        device.expect("the volume is open")
    }

    /// Ends the turn: sends all operations and waits for events, until `deadline` at most.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn finish(&mut self, deadline: Time) -> Result<()> {
        let now = self.env.now();
        self.client.end_turn(now, &mut self.ops);
        self.client.take_asks(&mut self.asks);
        for (id, ask) in self.asks.drain(..) {
            if self.link.try_ask(id.0, ask).is_err() {
                tracing::warn!("too many requests are queued for the metadata server; one was dropped");
            }
        }
        let watch = if self.volume.is_some() { self.watch.deadline() } else { Time::NEVER };
        let deadline = deadline.min(self.client.next_deadline()).min(watch);
        self.env.turn(&mut self.ops, &mut self.incoming, deadline).map_err(env_error)
    }

    /// Lets requests in flight end and tells meta that the volume has no holder any more. Requests that do not end in
    /// time are given up. Dropping a session does the same and reports nothing.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn close(&mut self) -> Result<()> {
        let Some(volume) = self.volume.take() else { return Ok(()) };
        self.client.close(volume);
        let (mut until, mut drained) = (self.env.now() + DRAIN_MAX, false);
        let mut done = Vec::new();
        loop {
            let now = self.begin();
            if let Some(device) = self.client.device(volume) {
                device.completions(&mut done);
            }
            done.clear();
            self.events.clear();
            if self.told.iter().any(|e| matches!(e, ClientEvent::Closed { .. })) {
                return Ok(());
            }
            if now >= until && drained {
                return Ok(());
            }
            if now >= until {
                // Its requests are stuck: they were not acknowledged, and meta fences those that may still arrive.
                (until, drained) = (now + PART_MAX, true);
                self.client.abandon(now, volume);
            }
            self.finish(until)?;
        }
    }
}

/// Returns the error for a signal that came before the volume was open.
fn stopped() -> UserError {
    UserError::new(codes::ENDED_BEFORE_OPEN, "a signal ended this process before the volume was open", "")
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the volume was not closed; its lease ends by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_dead, unanswered};
    use crate::address::Address;

    #[test]
    fn a_late_open_blames_a_metadata_server_only_when_none_answers() {
        let metas: [Address; 1] = ["127.0.0.1:7300".parse().expect("an address")];
        let said = |meta_answers| unanswered("main/a", &metas, meta_answers);
        let (none, pg) = (said(false), said(true));
        assert!(none.code == 2001 && none.what.ends_with("no metadata server answers at 127.0.0.1:7300"), "{none}");
        assert!(pg.code == 5007 && pg.what.contains("a PG") && pg.next == "basalt health detail", "{pg}");
    }

    #[test]
    fn a_holder_is_dead_when_its_process_of_this_host_is_gone() {
        let me = std::process::id();
        assert!(is_dead("nbd on node1 pid 4294967295", "node1"));
        assert!(!is_dead("nbd on node2 pid 4294967295", "node1"), "another host's processes are not seen here");
        assert!(!is_dead(&format!("nbd on node1 pid {me}"), "node1"));
        assert!(!is_dead("somebody", "node1"));
    }
}
