//! The simulated form: effects of seeds, power cuts and network cuts.

mod disks;
mod streams;

use super::*;
use env::{DiskId, DiskSpec, Env, Event, Op, Token};
use std::time::Duration;
use types::{IoBuf, IoBufMut, Time};

const TOKEN: Token = Token::new(1, 2, 3);
const SECOND: Duration = Duration::from_secs(1);

/// One node with a process that only records its events.
struct Host {
    world: World,
    env: SimEnv,
    node: NodeId,
    events: Vec<Event>,
}

impl Host {
    fn new(world: &World, name: &str) -> Host {
        let node = world.add_node(name);
        Host::boot(world, node)
    }

    fn boot(world: &World, node: NodeId) -> Host {
        Host { world: world.clone(), env: world.env(node), node, events: Vec::new() }
    }

    /// Runs a turn: submits, and takes the events that are there.
    fn turn(&mut self, ops: impl IntoIterator<Item = Op>) {
        let mut ops: Vec<Op> = ops.into_iter().collect();
        self.env.turn(&mut ops, &mut self.events, Time::NEVER).unwrap();
        assert!(ops.is_empty());
    }

    /// Submits one operation and lets time pass until this node has an event.
    fn one(&mut self, op: Op) -> Event {
        self.turn([op]);
        self.wait()
    }

    /// Lets time pass until this node has an event; takes the oldest.
    fn wait(&mut self) -> Event {
        while self.events.is_empty() {
            if !self.world.has_events(self.node) {
                step(&self.world);
            }
            self.turn([]);
        }
        self.events.remove(0)
    }

    /// Lets `span` pass.
    fn pass(&mut self, span: Duration) {
        pass(&self.world, span);
        self.turn([]);
    }
}

/// Advances to the next due event, even if nodes have events that they have not taken yet.
fn step(world: &World) {
    let mut state = world.state_for_tests();
    let next = state.next_due().expect("something will happen");
    state.advance_to(next);
}

fn pass(world: &World, span: Duration) {
    world.advance_to(world.now() + span);
}

fn filled(byte: u8, len: usize) -> IoBuf {
    let mut buf = IoBufMut::new(len);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn drifting_clock_gains_its_drift_and_starts_again_after_a_power_cut() {
    let world = World::new(1);
    let host = Host::new(&world, "a");
    for (ppm, want_ns) in [(0, 1_000_000_000), (300_000, 1_300_000_000), (-300_000, 700_000_000)] {
        world.set_clock_rate(host.node, ppm);
        let (before, deadline) = (host.env.now(), host.env.now() + SECOND);
        let global = world.local_to_global(host.node, deadline);
        pass(&world, SECOND);
        assert_eq!(host.env.now().since(before).as_nanos(), want_ns, "{ppm}");
        assert!((global > world.now()) == (ppm < 0), "{ppm}");
    }
    let old = host.env.now() + 200 * SECOND;
    world.jump_clock(host.node, 200 * SECOND);
    assert_eq!(host.env.now(), old);
    world.power_cut(host.node);
    assert!(world.local_now(host.node) < Time(10_000_000_001), "uptime begins again");
}

#[test]
fn a_node_is_ready_at_its_deadline_and_not_before() {
    let world = World::new(2);
    let mut host = Host::new(&world, "a");
    world.set_clock_rate(host.node, -250_000);
    let deadline = host.env.now() + Duration::from_millis(30);
    host.env.turn(&mut Vec::new(), &mut Vec::new(), deadline).unwrap();
    assert_eq!(world.next_event_time(), None);
    let at = world.next_turn_time().unwrap();
    assert_eq!(at.since(world.now()), Duration::from_millis(40));
    world.advance_to(Time(at.0 - 1));
    assert_eq!(world.ready_nodes(), []);
    world.advance_to(at);
    assert_eq!(world.ready_nodes(), [host.node]);
}

#[test]
fn a_wake_makes_the_node_ready_once() {
    let world = World::new(3);
    let mut host = Host::new(&world, "a");
    let waker = host.env.waker();
    waker.wake();
    waker.wake();
    assert_eq!(world.ready_nodes(), [host.node]);
    host.turn([]);
    assert!(matches!(host.events[..], [Event::Woken]), "{:?}", host.events);
    assert_eq!(world.ready_nodes(), []);
}

#[test]
fn an_earlier_life_gets_nothing_and_does_nothing() {
    let world = World::new(4);
    let mut old = Host::new(&world, "a");
    world.create_disk(old.node, "/disk", 1 << 20, true);
    let spec = DiskSpec { path: "/disk".into(), assume_plp: false, read_only: false };
    let disk = old.env.open_disk(&spec).unwrap().id;
    old.turn([Op::DiskFlush { token: TOKEN, disk }]);
    let mut new = Host::boot(&world, old.node);
    assert!(!old.env.is_alive());
    new.env.open_disk(&spec).expect("the lock went with the old life");
    old.turn([Op::DiskWrite { token: TOKEN, disk, offset: 0, bufs: vec![filled(1, 512)], flush: true }]);
    pass(&world, SECOND);
    old.turn([]);
    new.turn([]);
    assert!(old.events.is_empty() && new.events.is_empty());
    drop(old);
    assert!(new.env.is_alive(), "the end of an old life is nothing to the new one");
    drop(new);
    assert!(!world.is_up(NodeId(0)), "dropping the env ends the process");
}

#[test]
fn a_paused_process_gets_no_turn_and_finds_everything_afterwards() {
    let world = World::new(5);
    let mut host = Host::new(&world, "a");
    world.create_disk(host.node, "/disk", 1 << 20, true);
    let spec = DiskSpec { path: "/disk".into(), assume_plp: false, read_only: false };
    let disk = host.env.open_disk(&spec).unwrap().id;
    let soon = host.env.now() + Duration::from_millis(1);
    host.env.turn(&mut vec![Op::DiskFlush { token: TOKEN, disk }], &mut host.events, soon).unwrap();
    world.pause(host.node);
    pass(&world, SECOND);
    assert_eq!((world.ready_nodes(), world.next_turn_time()), (vec![], None));
    world.resume(host.node);
    assert_eq!(world.ready_nodes(), [host.node]);
    host.turn([]);
    assert!(matches!(host.events[..], [Event::DiskFlush { .. }]), "{:?}", host.events);
    assert!(host.env.now() > soon, "its clock went on");
}
