//! Simulated loopback streams for several buses: operations of one become events of another. Unless a test asks for it, bytes
//! are never lost or reordered; receives may be cut short at random, sends held back, dials left unanswered.

use crate::{Bus, BusConfig, BusEvent, Identity, LinkId};
use env::{ConnId, Event, ListenerId, NetAddr, NetError, Op, Token};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use types::rng::Rng;
use types::{ClusterId, Incarnation, IoBufMut, OsdId, Time};
use wire::{FrameKind, Message, Peer};

pub const LISTENER: ListenerId = ListenerId(7);
pub const OWNER: u8 = 3;

/// One end of a stream.
pub struct End {
    pub node: usize,
    /// Bytes that have arrived.
    pub arrived: VecDeque<u8>,
    recv: Option<(Token, Vec<IoBufMut>, usize)>,
    /// The owner has closed this end.
    pub closed: bool,
    /// The network has cut the stream; no end has been told.
    cut: bool,
    /// A send whose completion is held back.
    held: Option<Token>,
    /// Bytes on their way to this end vanish.
    deaf: bool,
    stalled: bool,
}

pub struct Node {
    /// `None`: the test plays this node by hand.
    pub bus: Option<Bus>,
    events: VecDeque<Event>,
    pub out: Vec<BusEvent>,
    pub frames_per_turn_max: usize,
}

pub struct Net {
    pub now: Time,
    pub nodes: Vec<Node>,
    /// Ends 2k and 2k + 1 belong together.
    pub ends: Vec<End>,
    listening: BTreeMap<SocketAddr, usize>,
    pub black_holes: Vec<SocketAddr>,
    /// Dials that get no answer: (node, token, address).
    pub lost_dials: Vec<(usize, Token, SocketAddr)>,
    pub dials: Vec<(Time, SocketAddr)>,
    pub hold_sends: bool,
    rng: Rng,
}

pub fn addr(n: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], n))
}

pub fn osd(id: u32) -> Identity {
    Identity { cluster: ClusterId([1; 16]), peer: Peer::Osd(OsdId(id)), incarnation: Incarnation(100 + u64::from(id)) }
}

pub fn client(n: u64) -> Identity {
    Identity { cluster: ClusterId([1; 16]), peer: Peer::Client(Incarnation(n)), incarnation: Incarnation(n) }
}

pub fn config(identity: Identity) -> BusConfig {
    BusConfig::new(identity, OWNER)
}

impl Net {
    pub fn new(seed: u64) -> Net {
        Net {
            now: Time(1_000_000_000),
            nodes: Vec::new(),
            ends: Vec::new(),
            listening: BTreeMap::new(),
            black_holes: Vec::new(),
            lost_dials: Vec::new(),
            dials: Vec::new(),
            hold_sends: false,
            rng: Rng::new(seed),
        }
    }

    /// Makes two connected OSDs, 1 and 2; osd.2 dials.
    pub fn pair() -> (Net, usize, usize) {
        let mut net = Net::new(1);
        let one = net.add(config(osd(1)), Some(addr(1)));
        let two = net.add(config(osd(2)), Some(addr(2)));
        net.want(two, 1, addr(1));
        net.run();
        net.clear();
        (net, one, two)
    }

    /// Makes an OSD and a connected client of it.
    pub fn served(config_of_osd: BusConfig) -> (Net, usize, usize) {
        let mut net = Net::new(2);
        let server = net.add(config_of_osd, Some(addr(1)));
        let user = net.add(config(client(5)), None);
        net.want(user, 1, addr(1));
        net.run();
        net.clear();
        (net, server, user)
    }

    fn add_node(&mut self, bus: Option<Bus>) -> usize {
        self.nodes.push(Node { bus, events: VecDeque::new(), out: Vec::new(), frames_per_turn_max: 0 });
        self.nodes.len() - 1
    }

    pub fn add(&mut self, config: BusConfig, listen: Option<SocketAddr>) -> usize {
        let mut bus = Bus::new(config, 9);
        bus.listen(LISTENER);
        let node = self.add_node(Some(bus));
        listen.iter().for_each(|at| self.listen(node, *at));
        node
    }

    pub fn listen(&mut self, node: usize, at: SocketAddr) {
        self.listening.insert(at, node);
    }

    pub fn unlisten(&mut self, at: SocketAddr) {
        self.listening.remove(&at);
    }

    /// Adds a node played by hand, connected to the node that listens at `at`; returns the index of its end.
    pub fn intrude(&mut self, at: SocketAddr) -> usize {
        let node = self.add_node(None);
        self.connect(node, at).expect("a node listens")
    }

    /// Adds a node played by hand that listens.
    pub fn impostor(&mut self, at: SocketAddr) -> usize {
        let node = self.add_node(None);
        self.listen(node, at);
        node
    }

    /// Returns the last end that belongs to `node`.
    pub fn end_of(&self, node: usize) -> usize {
        self.ends.iter().rposition(|e| e.node == node).expect("it has a connection")
    }

    pub fn bus(&mut self, node: usize) -> &mut Bus {
        self.nodes[node].bus.as_mut().expect("a node with a bus")
    }

    /// Calls a bus and performs the operations that it returns.
    pub fn call<T>(&mut self, node: usize, f: impl FnOnce(&mut Bus, Time, &mut Vec<Op>, &mut Vec<BusEvent>) -> T) -> T {
        let (mut ops, mut out) = (Vec::new(), Vec::new());
        let now = self.now;
        let result = f(self.bus(node), now, &mut ops, &mut out);
        self.nodes[node].out.append(&mut out);
        let sends = ops.iter().filter(|op| matches!(op, Op::Send { .. })).count();
        self.nodes[node].frames_per_turn_max = self.nodes[node].frames_per_turn_max.max(sends);
        ops.into_iter().for_each(|op| self.perform(node, op));
        result
    }

    pub fn want(&mut self, node: usize, id: u32, at: SocketAddr) {
        self.bus(node).set_osd_addr(OsdId(id), at);
        self.call(node, |bus, now, ops, _| bus.want(now, OsdId(id), ops));
    }

    pub fn link(&mut self, node: usize, id: u32) -> LinkId {
        self.bus(node).link_to(OsdId(id)).expect("a link")
    }

    pub fn send(&mut self, node: usize, link: LinkId, message: Message) -> bool {
        self.bus(node).send(link, message)
    }

    fn connect(&mut self, node: usize, at: SocketAddr) -> Option<usize> {
        let server = *self.listening.get(&at)?;
        let end = |node| End {
            node,
            arrived: VecDeque::new(),
            recv: None,
            closed: false,
            cut: false,
            held: None,
            deaf: false,
            stalled: false,
        };
        self.ends.push(end(node));
        self.ends.push(end(server));
        let slot = (self.ends.len() - 1) as u32;
        if self.nodes[server].bus.is_some() {
            let conn = ConnId { slot, generation: 1 };
            let peer = NetAddr::Tcp(addr(60_000));
            self.nodes[server].events.push_back(Event::Accepted { listener: LISTENER, conn, peer });
        }
        Some(self.ends.len() - 2)
    }

    fn perform(&mut self, node: usize, op: Op) {
        match op {
            Op::Connect { token, addr: NetAddr::Tcp(at) } => {
                self.dials.push((self.now, at));
                if self.black_holes.contains(&at) {
                    return self.lost_dials.push((node, token, at));
                }
                let result = match self.connect(node, at) {
                    Some(end) => Ok(ConnId { slot: end as u32, generation: 1 }),
                    None => Err(NetError::Refused),
                };
                self.nodes[node].events.push_back(Event::Connected { token, result });
            }
            Op::Recv { token, conn, bufs, min } => {
                let end = &mut self.ends[conn.slot as usize];
                assert!(end.recv.is_none() && !end.closed, "a second receive, or one after close");
                assert!(min > 0 && bufs.iter().all(|b| !b.is_empty()));
                end.recv = Some((token, bufs, min));
            }
            Op::Send { token, conn, bufs, quiet } => {
                let at = conn.slot as usize;
                let header = bufs[0].first_chunk().expect("a frame begins with its header");
                let kind = wire::Header::decode(header).expect("a frame of our own").kind();
                assert!(!quiet || kind == FrameKind::Batch, "messages may be queued behind a hello in its turn");
                assert!(self.ends[at].held.is_none() && !self.ends[at].closed, "a second send, or one after close");
                if !self.ends[at ^ 1].closed && !self.ends[at ^ 1].deaf {
                    let bytes = bufs.iter().flat_map(|b| b.iter().copied());
                    self.ends[at ^ 1].arrived.extend(bytes);
                }
                self.ends[at].held = Some(token);
            }
            Op::Close { conn } => self.close(conn.slot as usize),
            other => panic!("not a bus's operation: {other:?}"),
        }
    }

    /// Answers a dial that got no answer, as if the network had come back.
    pub fn answer_lost_dial(&mut self) {
        let (node, token, at) = self.lost_dials.remove(0);
        let end = self.connect(node, at).expect("a node listens");
        let result = Ok(ConnId { slot: end as u32, generation: 1 });
        self.nodes[node].events.push_back(Event::Connected { token, result });
    }

    pub fn close(&mut self, at: usize) {
        let end = &mut self.ends[at];
        assert!(!std::mem::replace(&mut end.closed, true), "closed twice");
        let (node, conn) = (end.node, ConnId { slot: at as u32, generation: 1 });
        if let Some((token, bufs, _)) = end.recv.take() {
            let event = Event::Received { token, conn, bufs, result: Err(NetError::Closed) };
            self.nodes[node].events.push_back(event);
        }
        if let Some(token) = end.held.take() {
            self.nodes[node].events.push_back(Event::Sent { token, conn, result: Err(NetError::Closed) });
        }
    }

    /// Resets the stream of this end, as a network does.
    pub fn cut(&mut self, at: usize) {
        self.ends[at].cut = true;
        self.ends[at ^ 1].cut = true;
    }

    /// From now on bytes on their way to this end vanish, and no end is told.
    pub fn swallow(&mut self, at: usize) {
        self.ends[at].deaf = true;
    }

    /// Sets whether bytes on their way to this end wait.
    pub fn stall(&mut self, at: usize, stalled: bool) {
        self.ends[at].stalled = stalled;
    }

    /// Returns the link of a node's only client.
    pub fn client_link(&mut self, node: usize) -> LinkId {
        self.bus(node)
            .peers
            .iter()
            .find(|(peer, _)| matches!(peer, Peer::Client(_)))
            .map(|(_, link)| *link)
            .expect("a client")
    }

    /// Sends bytes from a node played by hand.
    pub fn write(&mut self, end: usize, bytes: &[u8]) {
        self.ends[end ^ 1].arrived.extend(bytes);
    }

    /// Completes the operations that can complete; returns true when an event came of it.
    fn flow(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.ends.len() {
            let conn = ConnId { slot: at as u32, generation: 1 };
            let lost = self.ends[at ^ 1].closed || self.ends[at].cut;
            let end = &mut self.ends[at];
            if !self.hold_sends
                && let Some(token) = end.held.take()
            {
                self.nodes[end.node].events.push_back(Event::Sent { token, conn, result: Ok(()) });
                moved = true;
            }
            let Some((_, bufs, min)) = &end.recv else { continue };
            let room: usize = bufs.iter().map(|b| b.len()).sum();
            let (min, there) = (*min, end.arrived.len().min(room));
            if (there < min || end.stalled) && !lost {
                continue;
            }
            let (token, mut bufs, _) = end.recv.take().expect("it is there");
            let result = if there < min {
                Err(NetError::Lost)
            } else {
                let len = self.rng.between(min as u64, there as u64) as usize;
                let mut bytes = end.arrived.drain(..len);
                bufs.iter_mut().flat_map(|b| b.iter_mut()).zip(&mut bytes).for_each(|(to, from)| *to = from);
                Ok(len)
            };
            self.nodes[end.node].events.push_back(Event::Received { token, conn, bufs, result });
            moved = true;
        }
        moved
    }

    /// Runs one turn of a node: all its events, its deadlines, its end of turn.
    fn turn(&mut self, node: usize) -> bool {
        let events: Vec<Event> = self.nodes[node].events.drain(..).collect();
        let idle = events.is_empty();
        self.call(node, |bus, now, ops, out| {
            events.into_iter().for_each(|event| bus.handle_event(now, event, ops, out));
            if bus.next_deadline() <= now {
                bus.handle_deadline(now, ops, out);
            }
            bus.end_turn(now, ops);
            !ops.is_empty() || !idle
        })
    }

    /// Runs turns until no node has anything to do. Time stands still.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            let mut moved = self.flow();
            for node in 0..self.nodes.len() {
                moved |= self.nodes[node].bus.is_some() && self.turn(node);
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Advances time, stopping at every deadline.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        loop {
            let buses = self.nodes.iter().filter_map(|n| n.bus.as_ref());
            let next = buses.map(|bus| bus.next_deadline()).min().unwrap_or(Time::NEVER);
            if next > end {
                break;
            }
            self.now = next.max(self.now);
            self.run();
        }
        self.now = end;
    }

    pub fn clear(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.out.clear());
    }

    /// Takes the events of `node`'s bus since the last call.
    pub fn said(&mut self, node: usize) -> Vec<BusEvent> {
        std::mem::take(&mut self.nodes[node].out)
    }

    pub fn messages(&mut self, node: usize) -> Vec<Message> {
        let of = |event| match event {
            BusEvent::Message { message, .. } => message,
            other => panic!("not a message: {other:?}"),
        };
        self.said(node).into_iter().map(of).collect()
    }
}
