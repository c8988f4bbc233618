//! One open volume on one thread: env, client, and the link to meta, driven by an NBD server or a benchmark.
//!
//! [`Session::prepare`] takes the signals over and touches no volume: an NBD server then binds its address.
//! [`Prepared::open`] attaches. Invariant: a session that attached detaches on every exit, errors and signals included, unless its owner
//! calls [`Session::keep`]. Only that and a killed process leave its hold behind, and meta drops that hold soon after the process's connection ends.

use crate::address::Address;
use crate::errors::{UserError, refused};
use crate::ring_args::RingArgs;
use crate::role::late::Watch;
use crate::role::{self, Stop, env_error};
use anyhow::Result;
use api::AdminClient;
use client::{ClientEvent, OnUnavailable, VolumeKey};
use clientloop::{ClientLoop, DRAIN_MAX, LoopConfig, OPEN_MAX, PART_MAX};
use control::admin::{AdminAnswer, AdminAsk};
use device::{BlockDevice, DeviceInfo};
use env::Env;
use env::real::RealEnv;
use std::time::Duration;
use tokio::runtime::Runtime;
use types::codes;
use types::control::{HOLDER_LEASE_MS, Refusal};
use types::{Errno, Time};

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
    /// Fate of requests while the storage is unavailable: they wait by default.
    pub on_unavailable: OnUnavailable,
    /// Time for the open: [`OPEN_MAX`] by default.
    pub open_max: Duration,
}

/// A volume that is open on this thread.
pub struct Session {
    /// Ring, client, and the link to meta.
    pub turns: ClientLoop,
    volume: Option<VolumeKey>,
    pub info: DeviceInfo,
    stop: Stop,
    watch: Watch,
}

impl Prepared {
    /// Attaches the volume. A signal that asks for the end is an error here.
    ///
    /// # Errors
    /// Meta's refusal, in the user's terms.
    pub fn open(self, open: Open<'_>) -> Result<Session> {
        let config = LoopConfig {
            metas: self.metas.iter().map(Address::to_string).collect(),
            holder: self.holder,
            timeout: None,
            full_wait: self.full_wait,
            on_unavailable: self.on_unavailable,
        };
        let mut session = Session {
            turns: ClientLoop::new(self.env, self.runtime, config),
            volume: None,
            info: DeviceInfo {
                name: open.name.to_owned(),
                len_bytes: 0,
                block_min: 512,
                block_preferred: 4096,
                read_only: !open.write,
                shared: false,
            },
            stop: self.stop,
            watch: Watch::new(),
        };
        let give_up = session.turns.env.now() + Duration::from_millis(HOLDER_LEASE_MS) + LEASE_AGAIN;
        let mut is_told = false;
        loop {
            match session.attach(open, self.open_max)? {
                Attached::Open => return Ok(session),
                Attached::Late => {
                    let meta_answers = session.ask_meta(&self.metas, AdminAsk::Status).is_some();
                    return Err(unanswered(open.name, &self.metas, meta_answers).into());
                }
                Attached::Refused(why) => {
                    let waits = why.code == codes::VOLUME_HELD && session.turns.env.now() < give_up;
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
    pub fn prepare(metas: &[Address], kind: &str, ring: RingArgs) -> Result<Prepared> {
        let runtime = role::runtime()?;
        let env = RealEnv::new(ring.config()).map_err(env_error)?;
        let stop = Stop::on_signal(&runtime);
        stop.wakes(env.waker());
        let holder = clientloop::holder(kind);
        Ok(Prepared {
            env,
            runtime,
            stop,
            metas: metas.to_vec(),
            holder,
            full_wait: Duration::ZERO,
            on_unavailable: OnUnavailable::Freeze,
            open_max: OPEN_MAX,
        })
    }

    /// Opens `pool/volume` for a benchmark.
    ///
    /// # Errors
    /// Meta's refusal, in the user's terms.
    pub fn open(metas: &[Address], open: Open<'_>, ring: RingArgs) -> Result<Session> {
        let mut prepared = Session::prepare(metas, "bench", ring)?;
        prepared.full_wait = BENCH_FULL_WAIT;
        prepared.open(open)
    }

    fn attach(&mut self, open: Open<'_>, time: Duration) -> Result<Attached> {
        let ask = self.turns.client.open(open.name, open.write, open.steal);
        let mut until = self.turns.env.now() + time;
        let mut interrupted = false;
        loop {
            self.finish(until)?;
            let now = self.begin();
            for event in std::mem::take(&mut self.turns.told) {
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
        self.turns.runtime().block_on(admin.ask(ask)).ok()
    }

    /// Whether a dead process of this host holds the volume: its lease ends soon.
    fn holder_is_dead(&self, metas: &[Address], name: &str) -> bool {
        let asked = self.ask_meta(metas, AdminAsk::VolumeInfo { name: name.to_owned() });
        let Some(AdminAnswer::Volume(volume)) = asked else { return false };
        volume.holder.is_some_and(|holder| is_dead(&holder.name, &clientloop::host()))
    }

    /// Runs turns without a volume for this time.
    fn pause(&mut self, time: Duration) -> Result<()> {
        let until = self.turns.env.now() + time;
        while self.begin() < until && !self.interrupted() {
            self.finish(until)?;
        }
        Ok(())
    }

    /// Whether a signal has asked this process to end. The owner leaves its loop and drops the session, or closes it.
    pub fn interrupted(&self) -> bool {
        self.stop.is_set()
    }

    /// Begins a turn: the client handles its events, the others wait in `turns.events`. Returns the time.
    pub fn begin(&mut self) -> Time {
        let now = self.turns.begin();
        if let Some(volume) = self.volume {
            self.watch.look(now, &self.info.name, |before| self.turns.client.stall(volume, before));
        }
        now
    }

    /// Returns the error after which no request will succeed any more, if there is one.
    pub fn failure(&mut self) -> Option<Errno> {
        let failed = |event: &ClientEvent| match event {
            ClientEvent::Failed { errno, .. } => Some(*errno),
            _ => None,
        };
        self.turns.told.iter().find_map(failed)
    }

    /// Returns the open volume.
    ///
    /// # Panics
    /// After it was closed.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        let device = self.volume.and_then(|volume| self.turns.client.device(volume));
        device.expect("the volume is open")
    }

    /// Ends the turn: sends all operations and waits for events, until `deadline` at most.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn finish(&mut self, deadline: Time) -> Result<()> {
        let watch = if self.volume.is_some() { self.watch.deadline() } else { Time::NEVER };
        self.turns.finish(deadline.min(watch)).map_err(env_error)
    }

    /// Lets requests in flight end, for [`DRAIN_MAX`] at most, and leaves the hold to its lease: the next process goes on with what this one
    /// had. An open by another client ends that.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn keep(&mut self) -> Result<()> {
        let until = self.turns.env.now() + DRAIN_MAX;
        let mut done = Vec::new();
        while self.begin() < until && self.turns.client.fills().any(|fill| fill.requests > 0) {
            self.device().completions(&mut done);
            done.clear();
            self.turns.events.clear();
            self.finish(until)?;
        }
        self.volume = None;
        Ok(())
    }

    /// Lets requests in flight end and tells meta that the volume has no holder any more. Requests that do not end in
    /// time are given up. Dropping a session does the same and reports nothing.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn close(&mut self) -> Result<()> {
        let Some(volume) = self.volume.take() else { return Ok(()) };
        self.turns.client.close(volume);
        let (mut until, mut drained) = (self.turns.env.now() + DRAIN_MAX, false);
        let mut done = Vec::new();
        loop {
            let now = self.begin();
            if let Some(device) = self.turns.client.device(volume) {
                device.completions(&mut done);
            }
            done.clear();
            self.turns.events.clear();
            if self.turns.told.iter().any(|e| matches!(e, ClientEvent::Closed { .. })) {
                return Ok(());
            }
            if now >= until && drained {
                return Ok(());
            }
            if now >= until {
                // Its requests are stuck: they were not acknowledged, and meta fences those that may still arrive.
                (until, drained) = (now + PART_MAX, true);
                self.turns.client.abandon(now, volume);
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
