//! The loop of a client process in the real world: ring, client, and the link to the metadata servers.
//!
//! Ring 3. The owner alternates [`ClientLoop::begin`] and [`ClientLoop::finish`] on one thread and does its own work between
//! them. The NBD server, the benchmark, the C library and the test clients share this loop; each adds what it serves.
//!
//! Invariant: one turn enters the kernel once, and the owner's thread alone touches the ring and the client.

#![warn(missing_docs)]

use api::client_link::ClientLink;
use client::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, OnUnavailable};
use env::real::RealEnv;
use env::{Env, EnvError, Event, Op};
use std::time::Duration;
use tokio::runtime::Runtime;
use types::control::ClientAsk;
use types::{Incarnation, Time};

/// Time in which an open may end: longer than an election of metas and one of a PG.
pub const OPEN_MAX: Duration = Duration::from_secs(15);
/// Time in which requests in flight may end at a close.
pub const DRAIN_MAX: Duration = Duration::from_secs(3);
/// Time in which meta may answer a close before its owner goes on without the answer.
pub const PART_MAX: Duration = Duration::from_secs(2);

/// `Token.owner` of the client's bus.
const OWNER_CLIENT: u8 = 1;

/// Settings of one loop.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// Metadata servers, as `host:port`.
    pub metas: Vec<String>,
    /// Name of this client for other openers; see [`holder`].
    pub holder: String,
    /// Time after which a request fails with `TimedOut`; with `None` a request waits for ever.
    pub timeout: Option<Duration>,
    /// Time that a write waits for space before it fails with `NoSpace`.
    pub full_wait: Duration,
    /// Whether requests fail with `TimedOut` while the storage is unavailable.
    pub on_unavailable: OnUnavailable,
}

/// A client with its ring and its link to meta.
pub struct ClientLoop {
    /// The ring, the clock and the waker of the loop.
    pub env: RealEnv,
    /// The client, whose devices the owner uses between the calls of a turn.
    pub client: Client,
    /// Operations that the next [`ClientLoop::finish`] submits. An owner with connections of its own adds to them.
    pub ops: Vec<Op>,
    /// Events since the last turn that are not for the client. The owner takes them.
    pub events: Vec<Event>,
    /// Events of the client. The owner takes them.
    pub told: Vec<ClientEvent>,
    incoming: Vec<Event>,
    asks: Vec<(AskId, ClientAsk)>,
    link: ClientLink,
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

/// Returns the name of this host.
pub fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Returns the name under which a process of this host holds a volume. `kind` is what `volume info` shows first: `nbd`, `bench`.
pub fn holder(kind: &str) -> String {
    format!("{kind} on {} pid {}", host(), std::process::id())
}

/// Returns a number that no earlier client of this host has had.
#[allow(clippy::disallowed_methods, reason = "the clock of `Env` starts again with the host")]
fn incarnation() -> Incarnation {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Incarnation(since.map_or(0, |since| since.as_nanos() as u64))
}

impl ClientLoop {
    /// Starts the link to meta on `runtime`. No volume is open yet.
    pub fn new(mut env: RealEnv, runtime: Runtime, config: LoopConfig) -> ClientLoop {
        let client = Client::new(ClientConfig {
            owner: OWNER_CLIENT,
            incarnation: incarnation(),
            holder: config.holder,
            timeout: config.timeout,
            full_wait: config.full_wait,
            on_unavailable: config.on_unavailable,
            tuning: ClientTuning::default(),
            seed: env.random(),
        });
        let waker = env.waker();
        let wake = Box::new(move || waker.wake());
        let link = api::client_link::start(runtime.handle(), config.metas, env.random(), wake);
        ClientLoop {
            env,
            client,
            ops: Vec::new(),
            events: Vec::new(),
            told: Vec::new(),
            incoming: Vec::new(),
            asks: Vec::new(),
            link,
            runtime: Background(Some(runtime)),
        }
    }

    /// Returns the runtime of the control plane.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.0.as_ref().expect("it is taken by the drop alone")
    }

    /// Begins a turn: the client handles its events and the answers of meta. Returns the time.
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

    /// Ends the turn: sends all operations and waits for events, until `deadline` at most.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn finish(&mut self, deadline: Time) -> Result<(), EnvError> {
        let now = self.env.now();
        self.client.end_turn(now, &mut self.ops);
        self.client.take_asks(&mut self.asks);
        for (id, ask) in self.asks.drain(..) {
            if self.link.try_ask(id.0, ask).is_err() {
                tracing::warn!("too many requests are queued for the metadata server; one was dropped");
            }
        }
        let deadline = deadline.min(self.client.next_deadline());
        self.env.turn(&mut self.ops, &mut self.incoming, deadline)
    }
}
