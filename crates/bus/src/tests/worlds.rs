//! The bus on the real and the simulated env: assumptions of the loopback tests hold there, too.

use super::make;
use super::net::{OWNER, addr, client, config, osd};
use crate::{Bus, BusConfig, BusEvent, BusStats, LinkId};
use env::real::{RealConfig, RealEnv};
use env::{Env, Event, NetAddr, Op};
use simenv::{Cut, World};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::rng::Rng;
use types::{ClusterId, Entry, OsdId, Time};
use wire::{Message, RaftMsg};

struct Node {
    env: Box<dyn Env>,
    bus: Bus,
    ops: Vec<Op>,
    events: Vec<Event>,
    out: Vec<BusEvent>,
    addr: SocketAddr,
}

impl Node {
    fn new(mut env: Box<dyn Env>, config: BusConfig, listen: SocketAddr) -> Node {
        let (listener, at) = env.listen(&NetAddr::Tcp(listen)).expect("an address");
        let NetAddr::Tcp(addr) = at else { panic!("{at}") };
        let mut bus = Bus::new(config, env.random());
        bus.listen(listener);
        Node { env, bus, ops: Vec::new(), events: Vec::new(), out: Vec::new(), addr }
    }

    fn want(&mut self, id: u32, at: SocketAddr) {
        self.bus.set_osd_addr(OsdId(id), at);
        self.bus.want(self.env.now(), OsdId(id), &mut self.ops);
    }

    /// Runs one turn, which waits for at most `wait`; a simulated env does not wait at all.
    fn turn(&mut self, wait: Duration) {
        let deadline = self.bus.next_deadline().min(self.env.now() + wait);
        self.env.turn(&mut self.ops, &mut self.events, deadline).expect("a turn");
        loop {
            let now = self.env.now();
            for event in self.events.drain(..) {
                assert!(self.bus.owns(&event), "{event:?} has room {OWNER}");
                self.bus.handle_event(now, event, &mut self.ops, &mut self.out);
            }
            if self.bus.next_deadline() <= now {
                self.bus.handle_deadline(now, &mut self.ops, &mut self.out);
            }
            self.bus.end_turn(now, &mut self.ops);
            // The simulated env remembers the deadline of its last turn; the real one must not wait.
            let deadline = if wait.is_zero() { self.bus.next_deadline() } else { Time::ZERO };
            self.env.turn(&mut self.ops, &mut self.events, deadline).expect("a turn");
            if self.events.is_empty() {
                return;
            }
        }
    }
}

/// Runs turns of real nodes until `done`, for at most ten seconds.
fn run(nodes: &mut [Node], mut done: impl FnMut(&mut [Node]) -> bool) {
    let end = nodes[0].env.now() + Duration::from_secs(10);
    while !done(nodes) {
        assert!(nodes[0].env.now() < end, "it did not happen in time");
        nodes.iter_mut().for_each(|node| node.turn(Duration::from_millis(1)));
    }
}

fn real(config: BusConfig) -> Node {
    let env = RealEnv::new(RealConfig::default()).expect("io_uring");
    Node::new(Box::new(env), config, addr(0))
}

fn appends(node: &Node) -> Vec<&RaftMsg> {
    let of = |event| match event {
        &BusEvent::Message { message: Message::Raft(ref m), .. } => Some(m),
        _ => None,
    };
    node.out.iter().filter_map(of).collect()
}

#[test]
fn frames_cross_real_sockets_whole_and_in_order() {
    let mut nodes = [real(config(osd(1))), real(config(osd(2)))];
    let at = nodes[0].addr;
    nodes[1].want(1, at);
    run(&mut nodes, |n| n[0].bus.link_to(OsdId(2)).is_some() && n[1].bus.link_to(OsdId(1)).is_some());
    let link = nodes[1].bus.link_to(OsdId(1)).unwrap();
    let mut rng = Rng::new(5);
    let count = 300;
    for index in 1..=count {
        let len = if rng.chance(1, 10) { 512 << 10 } else { 512 * rng.between(1, 16) as usize };
        assert!(nodes[1].bus.send(link, make::append(index, len)));
    }
    run(&mut nodes, |n| appends(&n[0]).len() as u64 == count);
    let whole =
        |e: &Entry| types::SectorRange::new(0, (e.payload.len() / 512) as u32).verify(&e.payload, &e.crcs.values);
    for (i, m) in appends(&nodes[0]).iter().enumerate() {
        assert_eq!(m.index.0, i as u64);
        assert!(m.entries.iter().all(whole), "append {i} was damaged");
    }
    assert_eq!(nodes[0].bus.stats().bytes_in, nodes[1].bus.stats().bytes_out);
}

#[test]
fn a_refusal_reaches_the_other_side_of_a_real_socket() {
    let mut foreign = osd(2);
    foreign.cluster = ClusterId([9; 16]);
    let mut nodes = [real(config(osd(1))), real(config(foreign))];
    let at = nodes[0].addr;
    nodes[1].want(1, at);
    run(&mut nodes, |n| !n[1].out.is_empty());
    let BusEvent::Unreachable { reason, .. } = &nodes[1].out[0] else { panic!("{:?}", nodes[1].out) };
    assert!(reason.contains("BSLT-4001"), "{reason}");
    nodes[1].bus.unwant(OsdId(1), &mut Vec::new());
    run(&mut nodes, |n| n[0].bus.conns.len() == 0 && n[1].bus.conns.len() == 0);
}

#[test]
fn a_real_process_that_ends_is_noticed_by_its_peer() {
    let mut nodes = vec![real(config(osd(1))), real(config(osd(2)))];
    let at = nodes[0].addr;
    nodes[1].want(1, at);
    run(&mut nodes, |n| n[0].bus.link_to(OsdId(2)).is_some());
    drop(nodes.pop());
    run(&mut nodes, |n| n[0].bus.link_to(OsdId(2)).is_none());
    assert!(matches!(nodes[0].out.last(), Some(BusEvent::Down { .. })));
}

/// Indexes of appends in order of arrival, by link.
type Arrived = BTreeMap<LinkId, Vec<u64>>;

/// Runs two OSDs and a client in a bad network, for twenty seconds with faults and ten without. Returns the appends that
/// arrived at osd.1, and the counts of every bus.
///
/// The world's trace hash is no proof here: it covers whole receive buffers, and the part beyond the received bytes holds
/// old bytes of the buffer pool.
fn storm(seed: u64) -> (Arrived, Vec<BusStats>) {
    let world = World::new(seed);
    let mut rng = Rng::new(seed);
    let ids: Vec<_> = ["one", "two", "user"].iter().map(|name| world.add_node(name)).collect();
    let configs = [config(osd(1)), config(osd(2)), config(client(5))];
    let mut nodes: Vec<Node> = ids
        .iter()
        .zip(configs)
        .zip(1..)
        .map(|((id, config), port)| Node::new(Box::new(world.env(*id)), config, addr(port)))
        .collect();
    nodes[1].want(1, addr(1));
    nodes[2].want(1, addr(1));
    nodes[2].want(2, addr(2));
    let mut arrived = Arrived::new();
    let mut index = BTreeMap::<LinkId, u64>::new();
    let faults_end = Time(20_000_000_000);
    let end = faults_end + Duration::from_secs(10);
    while world.now() < end {
        let step = world.now() + Duration::from_millis(rng.between(1, 20));
        let next = world.next_turn_time().map_or(step, |at| at.clamp(world.now() + Duration::from_micros(1), step));
        world.advance_to(next);
        if world.now() < faults_end {
            let (a, b) = [(0, 1), (0, 2), (1, 2)][rng.below(3) as usize];
            match rng.below(3000) {
                0 => world.reset_conns(ids[a], ids[b]),
                1 => world.partition(ids[a], ids[b], Cut::Both),
                2 => world.partition(ids[a], ids[b], Cut::OneWay),
                3..9 => world.heal_all(),
                _ => {}
            }
        } else {
            world.heal_all();
        }
        if let Some(link) = nodes[1].bus.link_to(OsdId(1))
            && rng.chance(1, 4)
            && nodes[1].bus.queued_bytes(link) < 1 << 20
        {
            let next = index.entry(link).or_insert(0);
            *next += 1;
            nodes[1].bus.send(link, make::append(*next, 512 * rng.between(1, 64) as usize));
        }
        for node in &mut nodes {
            node.turn(Duration::ZERO);
        }
        for event in nodes[0].out.drain(..) {
            if let BusEvent::Message { link, message: Message::Raft(m) } = event {
                arrived.entry(link).or_default().push(m.index.0);
            }
        }
    }
    for (node, id) in [(0, 2), (1, 1), (2, 1), (2, 2)] {
        assert!(nodes[node].bus.link_to(OsdId(id)).is_some(), "seed {seed}: node {node} never came back to osd.{id}");
    }
    assert_eq!(nodes[0].bus.stats().bad_peers + nodes[1].bus.stats().bad_peers, 0, "seed {seed}");
    // The OSDs and the client have two links each; the connections that broke are gone.
    let conns: Vec<usize> = nodes.iter().map(|node| node.bus.conns.len()).collect();
    assert_eq!(conns, [2, 2, 2], "seed {seed}: connections leaked");
    (arrived, nodes.iter().map(|node| node.bus.stats()).collect())
}

#[test]
fn appends_of_one_link_arrive_in_order_without_a_gap_under_faults() {
    let mut links = 0;
    for seed in 0..6 {
        let (arrived, _) = storm(seed);
        for (link, indexes) in &arrived {
            let want: Vec<u64> = (0..indexes.len() as u64).collect();
            assert_eq!(*indexes, want, "seed {seed}, {link}");
        }
        links += arrived.len();
    }
    assert!(links > 6, "{links} links in six storms: a mild network");
}

#[test]
fn equal_seeds_make_equal_storms() {
    assert_eq!(storm(3), storm(3));
    assert_ne!(storm(3).1, storm(4).1);
}
