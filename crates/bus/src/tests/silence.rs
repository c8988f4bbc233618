//! Links on which bytes vanish are ended and dialled again; links on which no message is expected are left alone.

use super::make;
use super::net::{Net, client, config, osd};
use crate::{Bus, BusConfig, BusEvent};
use env::real::{RealConfig, RealEnv};
use env::{Env, Event, Op};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use types::{OsdId, Time};
use wire::{HEADER_LEN, Header, Message};

/// Sends a lease renewal each way every 25 ms, for this long.
fn talk(net: &mut Net, nodes: [(usize, u32); 2], time: Duration) {
    let end = net.now + time;
    while net.now < end {
        for (node, other) in nodes {
            if let Some(link) = net.bus(node).link_to(OsdId(other)) {
                net.send(node, link, make::renewal(1));
            }
        }
        net.pass(Duration::from_millis(25));
    }
}

fn downs(net: &mut Net, node: usize) -> Vec<String> {
    let of = |event| match event {
        BusEvent::Down { reason, .. } => Some(reason),
        _ => None,
    };
    net.said(node).into_iter().filter_map(of).collect()
}

#[test]
fn osd_link_that_loses_bytes_one_way_is_ended_after_3_s_and_redialled() {
    for deaf_dialler in [true, false] {
        let (mut net, one, two) = Net::pair();
        let old = net.link(two, 1);
        talk(&mut net, [(one, 2), (two, 1)], Duration::from_secs(20));
        assert_eq!((downs(&mut net, one), downs(&mut net, two)), (vec![], vec![]), "a link that is used stays");
        let (deaf, other) = if deaf_dialler { (two, one) } else { (one, two) };
        let end = net.end_of(deaf);
        net.swallow(end);
        talk(&mut net, [(one, 2), (two, 1)], Duration::from_millis(2900));
        assert_eq!(net.link(two, 1), old, "ended too early");
        talk(&mut net, [(one, 2), (two, 1)], Duration::from_millis(200));
        assert_eq!(downs(&mut net, deaf), ["no bytes were received for 3s"]);
        assert_eq!(downs(&mut net, other).len(), 1);
        assert!(net.link(two, 1) > old, "it was not dialled again");
        talk(&mut net, [(one, 2), (two, 1)], Duration::from_secs(10));
        assert_eq!((downs(&mut net, one), downs(&mut net, two)), (vec![], vec![]));
    }
}

#[test]
fn client_link_that_loses_requests_is_ended_after_1_s_and_redialled() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let old = net.link(user, 1);
    // A long idle time: no message is expected.
    net.pass(Duration::from_secs(100));
    assert_eq!(net.link(user, 1), old);
    let end = net.end_of(user);
    net.swallow(end);
    net.send(user, old, Message::Request(make::read(1, 4096)));
    net.pass(Duration::from_millis(990));
    assert_eq!(net.link(user, 1), old, "ended too early");
    net.pass(Duration::from_millis(200));
    assert_eq!(downs(&mut net, user), ["no bytes were received for 1s"]);
    assert!(net.link(user, 1) > old, "it was not dialled again");
    assert_eq!(downs(&mut net, server).len(), 1);
}

#[test]
fn a_client_that_is_answered_or_asks_nothing_keeps_its_link() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let (mine, theirs) = (net.link(user, 1), net.client_link(server));
    net.send(user, mine, Message::Request(make::read(0, 4096)));
    for id in 1..10 {
        // One request is always in flight. Every reply comes late, but it comes.
        net.send(user, mine, Message::Request(make::read(id, 4096)));
        net.pass(Duration::from_secs(7));
        net.send(server, theirs, make::data(id - 1, 4096));
        net.pass(Duration::from_secs(1));
    }
    net.send(server, theirs, make::data(9, 4096));
    net.pass(Duration::from_secs(60));
    assert_eq!(net.link(user, 1), mine);
    // For a moment no request was in flight: ten seconds are counted from the next one.
    net.send(user, mine, Message::Request(make::read(10, 4096)));
    net.pass(Duration::from_secs(9));
    assert_eq!((net.link(user, 1), downs(&mut net, server)), (mine, vec![]));
}

/// A bus on the real env.
struct Rig {
    env: RealEnv,
    bus: Bus,
    ops: Vec<Op>,
    said: Vec<BusEvent>,
}

impl Rig {
    /// Makes a bus that wants osd.1 at `at`.
    fn wants(config: BusConfig, at: SocketAddr) -> Rig {
        let mut rig = Rig {
            env: RealEnv::new(RealConfig::default()).expect("io_uring works here"),
            bus: Bus::new(config, 1),
            ops: Vec::new(),
            said: Vec::new(),
        };
        rig.bus.set_osd_addr(OsdId(1), at);
        let now = rig.env.now();
        rig.bus.want(now, OsdId(1), &mut rig.ops);
        rig
    }

    /// Runs turns until `done`, for at most ten seconds.
    fn until(&mut self, mut done: impl FnMut(&mut Rig) -> bool) {
        let until = self.env.now() + Duration::from_secs(10);
        let mut events: Vec<Event> = Vec::new();
        while !done(self) {
            assert!(self.env.now() < until, "nothing came of it: {:?}", self.said);
            let now = self.env.now();
            self.bus.handle_deadline(now, &mut self.ops, &mut self.said);
            self.bus.end_turn(now, &mut self.ops);
            let wait = self.bus.next_deadline().min(now + Duration::from_millis(50));
            self.env.turn(&mut self.ops, &mut events, wait).expect("the ring works");
            for event in events.drain(..) {
                self.bus.handle_event(now.max(self.env.now()), event, &mut self.ops, &mut self.said);
            }
        }
    }

    fn has_said(&mut self, of: impl Fn(&BusEvent) -> bool) -> bool {
        let found = self.said.iter().position(of);
        found.map(|at| self.said.drain(..=at)).is_some()
    }
}

/// Reads a hello and answers it as osd.1; then reads every byte and sends none.
fn swallow(mut stream: TcpStream) {
    let mut head = [0u8; HEADER_LEN];
    stream.read_exact(&mut head).expect("a hello comes");
    let header = Header::decode(&head).expect("a header");
    let mut rest = vec![0u8; header.head_len()];
    stream.read_exact(&mut rest).expect("the hello's body");
    stream.write_all(&wire::encode_hello(&crate::greet::hello(&config(osd(1)), None))).expect("the hello leaves");
    std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
}

#[test]
fn silent_real_peer_is_redialled_by_an_osd_and_by_a_waiting_client() {
    for identity in [osd(2), client(7)] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let acceptor = std::thread::spawn(move || (0..2).for_each(|_| swallow(listener.accept().expect("a dial").0)));
        let mut quick = config(identity);
        (quick.tuning.osd_silence, quick.tuning.client_silence) =
            (Duration::from_millis(300), Duration::from_millis(300));
        let mut rig = Rig::wants(quick, at);
        rig.until(|rig| rig.has_said(|e| matches!(e, BusEvent::Up { .. })));
        let (link, since): (_, Time) = (rig.bus.link_to(OsdId(1)).expect("it is up"), rig.env.now());
        if identity == client(7) {
            assert!(rig.bus.send(link, Message::Request(make::read(1, 4096))));
        }
        rig.until(|rig| rig.has_said(|e| matches!(e, BusEvent::Down { reason, .. } if reason.contains("no bytes"))));
        assert!(rig.env.now().since(since) >= Duration::from_millis(290), "it was not given its time");
        rig.until(|rig| rig.has_said(|e| matches!(e, BusEvent::Up { .. })));
        assert_ne!(rig.bus.link_to(OsdId(1)), Some(link));
        acceptor.join().expect("both dials were greeted");
    }
}

#[test]
fn repeatedly_silent_link_gets_longer_limits_up_to_10_s() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let mut lives = Vec::new();
    for id in 0..6 {
        net.pass(Duration::from_secs(1));
        let (link, since) = (net.link(user, 1), net.now);
        let end = net.end_of(user);
        net.swallow(end);
        net.send(user, link, Message::Request(make::read(id, 4096)));
        while downs(&mut net, user).is_empty() {
            net.pass(Duration::from_millis(50));
            assert!(net.now.since(since) < Duration::from_secs(11), "never ended");
        }
        lives.push(net.now.since(since).as_secs());
    }
    assert_eq!(lives, [1, 2, 4, 8, 10, 10]);
    // A peer that is heard long after its last silence gets the least limit again.
    net.pass(Duration::from_secs(130));
    let (link, theirs) = (net.link(user, 1), net.client_link(server));
    net.send(user, link, Message::Request(make::read(8, 4096)));
    net.pass(Duration::from_millis(10));
    net.send(server, theirs, make::data(8, 4096));
    net.pass(Duration::from_millis(10));
    let end = net.end_of(user);
    net.swallow(end);
    net.send(user, link, Message::Request(make::read(9, 4096)));
    net.pass(Duration::from_millis(1050));
    assert_eq!(downs(&mut net, user).len(), 1);
}

#[test]
fn stalling_peer_loses_its_link_only_until_the_limit_exceeds_the_stall() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let mut ends = Vec::new();
    for id in 0..20 {
        let (link, theirs) = (net.link(user, 1), net.client_link(server));
        net.send(user, link, Message::Request(make::read(id, 4096)));
        let end = net.end_of(user);
        net.stall(end, true);
        net.pass(Duration::from_millis(2500));
        net.stall(end, false);
        ends.push(downs(&mut net, user).len());
        if net.link(user, 1) == link {
            net.send(server, theirs, make::data(id, 4096));
        }
        net.pass(Duration::from_secs(20));
        assert_eq!(downs(&mut net, user).len(), 0, "it is heard");
    }
    // The first limit is one second, the next is two; the third is longer than the stall.
    assert_eq!(ends.iter().sum::<usize>(), 2, "{ends:?}");
    // A dead path is still found within that time, and within a second after two minutes of calm.
    net.pass(Duration::from_secs(130));
    let (link, theirs) = (net.link(user, 1), net.client_link(server));
    net.send(user, link, Message::Request(make::read(90, 4096)));
    net.pass(Duration::from_millis(10));
    net.send(server, theirs, make::data(90, 4096));
    net.pass(Duration::from_millis(10));
    let end = net.end_of(user);
    net.swallow(end);
    net.send(user, link, Message::Request(make::read(91, 4096)));
    net.pass(Duration::from_millis(1050));
    assert_eq!(downs(&mut net, user).len(), 1);
}
