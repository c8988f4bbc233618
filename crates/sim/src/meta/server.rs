//! One metadata server: its machine, and the process on it while one runs.

use super::etcd::PREFIX;
pub use crate::check::leaders::Process;
use crate::mail::Mail;
use control::etcd::{LEASE_TTL_S, Session};
use control::find::Finder;
use control::lead::{Call, Leader};
use control::{Control, Now};
use simenv::NodeClock;
use std::collections::{BTreeMap, BTreeSet};
use types::Time;
use types::control::ClientAsk;

/// Most keys of one reply of etcd: a load takes several requests.
const PAGE: i64 = 16;
/// The wall clock at the start of the world, in milliseconds.
const WALL_MS: u64 = 1_700_000_000_000;

/// A client's request that a server has taken.
pub struct Waiting {
    pub client: usize,
    pub life: u32,
    pub id: u64,
    pub ask: ClientAsk,
    /// When the client asked first.
    pub since: Time,
}

/// Peers that a server cannot reach.
#[derive(Default)]
pub struct Cut {
    pub store: bool,
    pub clients: bool,
    pub osds: BTreeSet<usize>,
}

/// A metadata server.
pub struct Server {
    pub life: u32,
    /// Set while a process runs.
    pub leader: Option<Leader>,
    /// The use of etcd; `None`: the store has no elections.
    pub session: Option<Session>,
    pub call: Option<Call>,
    /// Number of the last request to etcd, and whether its reply is due.
    pub request: u64,
    pub due: bool,
    /// Role that the services answer by.
    pub leads: bool,
    pub named: Option<String>,
    /// The OSD at the other end of each stream of this life.
    pub streams: BTreeMap<u64, usize>,
    /// Streams that a cut has broken, and that neither end knows to be broken.
    pub broken: BTreeSet<u64>,
    /// The client that waits for each answer, by token.
    pub waiting: BTreeMap<u64, Waiting>,
    /// Time of the poll that is in the post; an earlier poll makes it stale.
    pub poll_at: Time,
    /// The world's time at the last plan.
    pub planned: Time,
    pub clock: NodeClock,
    /// Number of the pause that lasts, and what has arrived since it began.
    pub paused: Option<u64>,
    pub held: Vec<Mail>,
    pub cut: Cut,
}

impl Server {
    pub fn new() -> Server {
        Server {
            life: 0,
            leader: None,
            session: None,
            call: None,
            request: 0,
            due: false,
            leads: false,
            named: None,
            streams: BTreeMap::new(),
            broken: BTreeSet::new(),
            waiting: BTreeMap::new(),
            poll_at: Time::NEVER,
            planned: Time::ZERO,
            clock: NodeClock::new(Time::ZERO, Time::ZERO, 0),
            paused: None,
            held: Vec::new(),
            cut: Cut::default(),
        }
    }

    /// Begins a life of the process. `address`: in an election, if the store has any.
    pub fn begin(&mut self, leader: Leader, address: Option<&str>) {
        self.life += 1;
        self.poll_at = Time::NEVER;
        self.leader = Some(leader);
        self.session = address.map(|address| {
            let mut session = Session::new(PREFIX, LEASE_TTL_S, PAGE);
            session.set_address(address);
            session
        });
    }

    /// Ends the process.
    pub fn end(&mut self) {
        (self.leader, self.session, self.call) = (None, None, None);
        (self.due, self.leads, self.named, self.paused) = (false, false, None, None);
        self.held.clear();
        self.broken.clear();
    }

    /// Returns the time that the machine shows.
    pub fn moment(&self, now: Time) -> Now {
        let mono = self.clock.local(now);
        Now { mono, wall_ms: WALL_MS + mono.0 / 1_000_000 }
    }

    /// Sets how much the clock of the machine gains from now on, in parts per million.
    pub fn set_rate(&mut self, now: Time, rate_ppm: i64) {
        self.clock = NodeClock::new(now, self.clock.local(now), rate_ppm);
    }

    /// Returns the decisions of the process while it leads, as far as it knows.
    pub fn control(&self) -> Option<&Control> {
        self.leader.as_ref().filter(|_| self.leads)?.control()
    }
}

/// Returns the address of the n-th server.
pub fn address(n: usize) -> String {
    format!("meta{n}")
}

/// Returns the number of the server at an address.
pub fn number(address: &str) -> usize {
    address.strip_prefix("meta").and_then(|n| n.parse().ok()).expect("an address of a server")
}

/// Returns a search among so many servers.
pub fn finder(servers: usize) -> Finder {
    Finder::new((0..servers).map(address).collect())
}
