//! The simulated network: listeners, dials, cuts between nodes. The streams themselves are in `stream`.
//!
//! It takes connects, receives, sends and closes, cuts, heals and ends of processes; it returns completions after a
//! seeded delay. It has TCP semantics. Inside one connection no byte is lost, doubled or reordered; a loss is a long
//! delay; a cut holds bytes until it heals or the peer is given up; a dead machine is silent. Invariant: a connection
//! that could not carry bytes for `user_timeout` is lost to both its ends.

use crate::state::{Due, Power, State};
use crate::stream::End;
use crate::world::NodeId;
use env::{ConnId, EnvError, Event, ListenerId, NetAddr, NetError, Op, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use types::Time;
use types::rng::Rng;

/// Pause between two tries of a dial without an answer.
const SYN_PAUSE: Duration = Duration::from_secs(1);

/// Behaviour of the network. `World::net` changes it at any time.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Shortest and longest usual delay between two nodes, one way.
    pub delay: (Duration, Duration),
    /// Chance, in parts per million, that a segment is lost and comes later: up to `loss_delay` later.
    pub loss_ppm: u32,
    pub loss_delay: Duration,
    /// Chance, in parts per million, that a send resets its connection.
    pub reset_ppm: u32,
    /// Chance, in parts per million, that a send arrives in several pieces.
    pub split_ppm: u32,
    /// Chance, in parts per million, that a bit of a segment flips on its way.
    pub corrupt_ppm: u32,
    /// A dial without an answer ends after this.
    pub connect_timeout: Duration,
    /// A connection whose peer is silent is given up after this time, or up to half as much again.
    pub user_timeout: Duration,
    /// A send completes when at most this many bytes of its connection wait to be received by the peer.
    pub window_bytes: usize,
}

impl Default for NetConfig {
    fn default() -> NetConfig {
        NetConfig {
            delay: (Duration::from_micros(20), Duration::from_micros(200)),
            loss_ppm: 0,
            loss_delay: Duration::from_millis(400),
            reset_ppm: 0,
            split_ppm: 100_000,
            corrupt_ppm: 0,
            connect_timeout: Duration::from_secs(3),
            user_timeout: Duration::from_secs(5),
            window_bytes: 512 << 10,
        }
    }
}

/// Direction of a pair that is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Both,
    /// Only from the first node to the second.
    OneWay,
}

/// An event of the network that is due.
pub(crate) enum NetDue {
    /// The head of this end's outgoing queue may have arrived.
    Segment { from: u32 },
    /// A receive finds enough bytes already there.
    Receive { end: u32 },
    /// A send may complete.
    Sent { end: u32 },
    /// The connection breaks for this end.
    Lost { end: u32 },
    /// If the pair has been cut since then, this end gives up.
    Silence { end: u32, since: Time },
    /// A dial reaches its target.
    Dial(Dial),
    /// The answer to a dial reaches the dialler.
    Answer { dial: Dial, result: Result<ConnId, NetError> },
}

#[derive(Clone)]
pub(crate) struct Dial {
    node: NodeId,
    life: u32,
    token: Token,
    addr: NetAddr,
    deadline: Time,
}

/// A name that can be listened on: TCP addresses belong to the world, Unix paths to a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Tcp(SocketAddr),
    Unix(NodeId, PathBuf),
}

struct Bound {
    node: NodeId,
    life: u32,
    listener: ListenerId,
}

pub(crate) struct Net {
    pub config: NetConfig,
    pub ends: BTreeMap<u32, End>,
    pub rng: Rng,
    next_slot: u32,
    next_port: u16,
    /// Owner of each name; kept after the end of the listener's process.
    names: BTreeMap<Name, Bound>,
    /// Directions (from, to) that are cut, with the time of the cut.
    cuts: BTreeMap<(NodeId, NodeId), Time>,
    slow: BTreeMap<NodeId, u32>,
    /// Directions (from, to) whose next segment gets a flipped bit.
    pub garble: BTreeSet<(NodeId, NodeId)>,
    /// Directions (from, to) whose next segment with a payload gets a flipped bit in it.
    pub garble_payload: BTreeSet<(NodeId, NodeId)>,
}

impl Net {
    pub fn new(rng: Rng) -> Net {
        Net {
            config: NetConfig::default(),
            ends: BTreeMap::new(),
            rng,
            next_slot: 0,
            next_port: 30_000,
            names: BTreeMap::new(),
            cuts: BTreeMap::new(),
            slow: BTreeMap::new(),
            garble: BTreeSet::new(),
            garble_payload: BTreeSet::new(),
        }
    }

    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        from != to && self.cuts.contains_key(&(from, to))
    }

    /// Returns the time since which the pair has been cut in at least one direction.
    pub fn cut_since(&self, a: NodeId, b: NodeId) -> Option<Time> {
        [(a, b), (b, a)].iter().filter_map(|pair| self.cuts.get(pair)).min().copied()
    }

    pub fn set_slow(&mut self, node: NodeId, factor: u32) {
        self.slow.insert(node, factor.max(1));
    }

    /// Draws the one-way delay from `from` to `to`; returns also whether the segment was lost.
    pub fn delay(&mut self, from: NodeId, to: NodeId) -> (Duration, bool) {
        if from == to {
            return (Duration::from_nanos(self.rng.between(2_000, 20_000)), false);
        }
        let (low, high) = (self.config.delay.0.as_nanos() as u64, self.config.delay.1.as_nanos() as u64);
        let factor = |node| self.slow.get(&node).copied().unwrap_or(1);
        let usual = Duration::from_nanos(self.rng.between(low, high.max(low))) * factor(from).max(factor(to));
        let lost = self.rng.chance(self.config.loss_ppm.into(), 1_000_000);
        let extra = if lost { self.rng.between(0, self.config.loss_delay.as_nanos() as u64) } else { 0 };
        (usual + Duration::from_nanos(extra), lost)
    }

    /// Draws the time after which a silent peer is given up, with the usual spread of retransmissions and probes.
    pub fn patience(&mut self) -> Duration {
        let base = self.config.user_timeout;
        base + Duration::from_nanos(self.rng.between(0, base.as_nanos() as u64 / 2))
    }

    /// Draws a short random time, up to `max`.
    pub fn jitter(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.rng.between(1_000, (max.as_nanos() as u64).max(1_000)))
    }

    /// Returns a slot for a new end; slots are never reused.
    fn slot(&mut self) -> u32 {
        self.next_slot = self.next_slot.checked_add(1).expect("fewer than 2^32 connections in a world");
        self.next_slot
    }
}

fn name_of(node: NodeId, addr: &NetAddr) -> Option<Name> {
    match addr {
        NetAddr::Tcp(addr) => Some(Name::Tcp(*addr)),
        NetAddr::Unix(path) => Some(Name::Unix(node, path.clone())),
        NetAddr::Unnamed => None,
    }
}

impl State {
    pub fn listen(&mut self, node: NodeId, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        let mut real = addr.clone();
        if let NetAddr::Tcp(tcp) = &mut real
            && tcp.port() == 0
        {
            self.net.next_port = self.net.next_port.checked_add(1).expect("a world has 35 000 ports to choose");
            tcp.set_port(self.net.next_port);
        }
        let failed = |kind: io::ErrorKind| EnvError::Listen { addr: addr.clone(), source: kind.into() };
        let name = name_of(node, &real).ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable))?;
        if self.net.names.get(&name).is_some_and(|b| self.lives(b.node, b.life)) {
            return Err(failed(io::ErrorKind::AddrInUse));
        }
        let target = self.node_mut(node);
        let (life, listener) = (target.life, ListenerId(target.listeners));
        target.listeners += 1;
        self.net.names.insert(name, Bound { node, life, listener });
        Ok((listener, real))
    }

    pub fn lives(&self, node: NodeId, life: u32) -> bool {
        let node = self.node(node);
        node.power == Power::Up && node.life == life
    }

    pub fn submit_net(&mut self, node: NodeId, op: Op) {
        match op {
            Op::Connect { token, addr } => {
                let deadline = self.now + self.net.config.connect_timeout;
                let dial = Dial { node, life: self.node(node).life, token, addr, deadline };
                let target = self.answers_for(&dial).map_or(node, |(target, _)| target);
                let (delay, _) = self.net.delay(node, target);
                self.schedule(delay, Due::Net(NetDue::Dial(dial)));
            }
            Op::Recv { token, conn, bufs, min } => self.submit_recv(node, token, conn, bufs, min),
            Op::Send { token, conn, bufs, quiet } => self.submit_send(node, token, conn, bufs, quiet),
            Op::Close { conn } => self.submit_close(node, conn),
            other => panic!("no network operation: {other:?}"),
        }
    }

    /// Returns the node that owns the dialled name, and the listener if its process runs.
    fn answers_for(&self, dial: &Dial) -> Option<(NodeId, Option<ListenerId>)> {
        let bound = self.net.names.get(&name_of(dial.node, &dial.addr)?)?;
        Some((bound.node, self.lives(bound.node, bound.life).then_some(bound.listener)))
    }

    pub fn net_due(&mut self, due: NetDue) {
        match due {
            NetDue::Segment { from } => self.segments_due(from),
            NetDue::Receive { end } => self.try_receive(end),
            NetDue::Sent { end } => self.try_sent(end),
            NetDue::Lost { end } => self.lose(end),
            NetDue::Silence { end, since } => {
                let silent = self.net.ends.get(&end).map(|e| self.net.cut_since(e.node, e.peer_node));
                if silent == Some(Some(since)) {
                    self.counts.timeouts += 1;
                    self.lose(end);
                }
            }
            NetDue::Dial(dial) => self.dial_due(dial),
            NetDue::Answer { dial, result } => self.answer_due(dial, result),
        }
    }

    fn dial_due(&mut self, dial: Dial) {
        if !self.lives(dial.node, dial.life) {
            return;
        }
        let Some((target, listener)) = self.answers_for(&dial) else {
            return self.answer(dial.node, dial, Err(NetError::Refused));
        };
        if self.node(target).power == Power::Off || self.net.is_cut(dial.node, target) {
            return self.dial_again(dial);
        }
        let Some(listener) = listener else {
            return self.answer(target, dial, Err(NetError::Refused));
        };
        let (near, far) = (self.net.slot(), self.net.slot());
        let far_life = self.node(target).life;
        let near_end = End::new(dial.node, dial.life, target, far);
        let far_end = End::new(target, far_life, dial.node, near);
        let conn = ConnId { slot: far, generation: far_life };
        let result = Ok(ConnId { slot: near, generation: dial.life });
        self.net.ends.insert(near, near_end);
        self.net.ends.insert(far, far_end);
        let peer = match dial.addr {
            NetAddr::Tcp(_) => {
                let [.., high, low] = (dial.node.0 + 1).to_be_bytes();
                NetAddr::Tcp(SocketAddr::new(
                    IpAddr::V4(Ipv4Addr::new(10, 0, high, low)),
                    40_000 + (near % 20_000) as u16,
                ))
            }
            _ => NetAddr::Unnamed,
        };
        self.deliver(target, far_life, Event::Accepted { listener, conn, peer });
        self.answer(target, dial, result);
    }

    fn dial_again(&mut self, dial: Dial) {
        let next = self.now + SYN_PAUSE;
        if next >= dial.deadline {
            let (at, result) = (dial.deadline.max(self.now), Err(NetError::TimedOut));
            self.schedule_at(at, Due::Net(NetDue::Answer { dial, result }));
        } else {
            self.schedule_at(next, Due::Net(NetDue::Dial(dial)));
        }
    }

    fn answer(&mut self, from: NodeId, dial: Dial, result: Result<ConnId, NetError>) {
        let (delay, _) = self.net.delay(from, dial.node);
        self.schedule(delay, Due::Net(NetDue::Answer { dial, result }));
    }

    fn answer_due(&mut self, dial: Dial, mut result: Result<ConnId, NetError>) {
        if let Ok(conn) = result {
            let Some(end) = self.net.ends.get(&conn.slot) else { return };
            let peer = end.peer_node;
            if self.net.is_cut(peer, dial.node) {
                let next = self.now + SYN_PAUSE;
                if next < dial.deadline {
                    return self.schedule_at(next, Due::Net(NetDue::Answer { dial, result }));
                }
                self.abandon(conn.slot);
                result = Err(NetError::TimedOut);
            }
        }
        self.deliver(dial.node, dial.life, Event::Connected { token: dial.token, result });
    }

    pub fn partition(&mut self, a: NodeId, b: NodeId, cut: Cut) {
        assert!(a != b, "a node is not cut from itself");
        let now = self.now;
        self.net.cuts.entry((a, b)).or_insert(now);
        if cut == Cut::Both {
            self.net.cuts.entry((b, a)).or_insert(now);
        }
        self.counts.partitions += 1;
        let since = self.net.cut_since(a, b).expect("it was cut just now");
        for end in self.ends_between(a, b) {
            let patience = self.net.patience();
            self.schedule(patience, Due::Net(NetDue::Silence { end, since }));
        }
    }

    /// Lets bytes pass again between the two nodes.
    pub fn heal(&mut self, a: NodeId, b: NodeId) {
        let healed = [(a, b), (b, a)].map(|pair| self.net.cuts.remove(&pair).is_some());
        if healed == [false, false] {
            return;
        }
        self.counts.heals += 1;
        for end in self.ends_between(a, b) {
            self.resume(end);
        }
    }

    pub fn heal_all(&mut self) {
        let pairs: Vec<(NodeId, NodeId)> = self.net.cuts.keys().copied().collect();
        for (a, b) in pairs {
            self.heal(a, b);
        }
    }

    pub fn ends_between(&self, a: NodeId, b: NodeId) -> Vec<u32> {
        let between = |e: &End| (e.node, e.peer_node) == (a, b) || (e.node, e.peer_node) == (b, a);
        self.net.ends.iter().filter(|(_, e)| between(e)).map(|(slot, _)| *slot).collect()
    }
}
