//! The inside of the world: nodes and their processes, the queue of due events, delivery.
//!
//! Invariant: equal seeds and equal calls give equal runs. There is one queue ordered by (time, sequence), random
//! numbers come from fixed streams, and no address or hash order is used. An event reaches only the process that asked
//! for it.

use crate::clock::NodeClock;
use crate::disk::Disk;
use crate::net::{Net, NetDue};
use crate::trace::{FaultCounts, Trace};
use crate::watch::{DiskWatch, NetWatch};
use crate::world::NodeId;
use env::{DiskId, Event, Op};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::Time;
use types::rng::Rng;

/// Event of the queue.
pub(crate) enum Due {
    Disk { node: NodeId, disk: DiskId, op: u64 },
    Net(NetDue),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Power {
    /// A process runs.
    Up,
    /// No process runs, but the machine answers (with resets).
    Crashed,
    /// The machine is silent.
    Off,
}

pub(crate) struct Node {
    pub name: String,
    pub clock: NodeClock,
    pub life: u32,
    pub power: Power,
    pub ready: VecDeque<Event>,
    /// Number of ready events that make no turn: ends of quiet sends.
    pub quiet: usize,
    /// Number of turns of the process.
    pub turns: u64,
    pub disks: Vec<Disk>,
    pub listeners: u32,
    /// Deadline of the last turn on the node's clock; below, the same on the world's clock.
    deadline: Time,
    due: Time,
    pub woken: Arc<AtomicBool>,
    /// The node's process gets no turns (SIGSTOP).
    pub paused: bool,
    pub doom: Option<Doom>,
}

/// Order that a process dies inside a turn of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doom {
    /// Countdown of the items that `by` names.
    pub after: u64,
    pub by: DoomBy,
    /// Operations behind the fatal one that still go out: none, or each with a chance of one half.
    pub scatter: bool,
    /// The machine loses its power, too.
    pub power: bool,
}

/// Items that a [`Doom`] counts down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DoomBy {
    /// Operations of any kind.
    Ops,
    /// Operations on disks: steps of the log and of background tasks.
    DiskOps,
    /// Events that the process takes.
    Events,
}

impl Doom {
    fn counts(&self, op: &Op) -> bool {
        let disk =
            matches!(op, Op::DiskRead { .. } | Op::DiskWrite { .. } | Op::DiskFlush { .. } | Op::DiskDiscard { .. });
        match self.by {
            DoomBy::Ops => true,
            DoomBy::DiskOps => disk,
            DoomBy::Events => false,
        }
    }
}

impl Node {
    /// Creates a machine that is off.
    pub fn new(name: String, clock: NodeClock) -> Node {
        Node {
            name,
            clock,
            life: 0,
            power: Power::Off,
            ready: VecDeque::new(),
            quiet: 0,
            turns: 0,
            disks: Vec::new(),
            listeners: 0,
            deadline: Time::NEVER,
            due: Time::NEVER,
            woken: Arc::new(AtomicBool::new(false)),
            paused: false,
            doom: None,
        }
    }

    /// Sets the moment of the node's own clock that the node waits for.
    pub fn set_deadline(&mut self, deadline: Time) {
        if deadline != self.deadline {
            self.deadline = deadline;
            self.due = self.clock.global(deadline);
        }
    }

    /// Replaces the node's clock from now on.
    pub fn set_clock(&mut self, clock: NodeClock) {
        self.clock = clock;
        self.due = clock.global(self.deadline);
    }

    /// Returns the first moment of the world at which the node's deadline has come.
    pub fn due(&self) -> Time {
        self.due
    }

    /// Whether the node's process gets turns.
    pub fn runs(&self) -> bool {
        self.power == Power::Up && !self.paused
    }

    /// Whether a turn would return an event.
    pub fn has_events(&self) -> bool {
        self.runs() && (self.ready.len() > self.quiet || self.woken.load(Ordering::Relaxed))
    }
}

pub(crate) struct State {
    pub now: Time,
    seq: u64,
    queue: BTreeMap<(Time, u64), Due>,
    pub nodes: Vec<Node>,
    pub net: Net,
    pub trace: Trace,
    pub counts: FaultCounts,
    pub rng: Rng,
    pub watches: Vec<Rc<RefCell<dyn DiskWatch>>>,
    pub net_watches: Vec<Rc<RefCell<dyn NetWatch>>>,
}

impl State {
    pub fn new(seed: u64) -> State {
        let mut rng = Rng::new(seed);
        let net = Net::new(rng.fork());
        let mut trace = Trace::default();
        trace.fold(seed);
        State {
            now: Time::ZERO,
            seq: 0,
            queue: BTreeMap::new(),
            nodes: Vec::new(),
            net,
            trace,
            counts: FaultCounts::default(),
            rng,
            watches: Vec::new(),
            net_watches: Vec::new(),
        }
    }

    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    pub fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }

    pub fn disk_mut(&mut self, node: NodeId, disk: DiskId) -> &mut Disk {
        &mut self.node_mut(node).disks[disk.0 as usize]
    }

    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn schedule(&mut self, after: Duration, due: Due) {
        self.schedule_at(self.now + after, due);
    }

    pub fn schedule_at(&mut self, at: Time, due: Due) {
        assert!(at >= self.now, "nothing is due in the past");
        let seq = self.next_seq();
        self.queue.insert((at, seq), due);
    }

    /// Returns the time of the queue's next entry.
    pub fn next_due(&self) -> Option<Time> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn advance_to(&mut self, to: Time) {
        assert!(to >= self.now, "time does not go back");
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > to {
                break;
            }
            self.now = at;
            match entry.remove() {
                Due::Disk { node, disk, op } => self.disk_due(node, disk, op),
                Due::Net(due) => self.net_due(due),
            }
        }
        self.now = to;
    }

    /// Gives an event to a process of a node, unless that process has ended.
    pub fn deliver(&mut self, node: NodeId, life: u32, event: Event) {
        let target = &mut self.nodes[node.0 as usize];
        if target.life != life || target.power != Power::Up {
            return;
        }
        self.trace.event(node.0, self.now, &event);
        target.ready.push_back(event);
    }

    /// Delivers the end of a send. A quiet one makes no turn if none has passed since turn `quiet_in`.
    pub fn deliver_sent(&mut self, node: NodeId, life: u32, event: Event, quiet_in: Option<u64>) {
        let before = self.node(node).ready.len();
        self.deliver(node, life, event);
        let target = self.node_mut(node);
        if target.ready.len() > before && quiet_in == Some(target.turns) {
            target.quiet += 1;
        }
    }

    pub fn submit(&mut self, node: NodeId, op: Op) {
        self.trace.op(node.0, self.now, &op);
        match op {
            Op::DiskRead { .. } | Op::DiskWrite { .. } | Op::DiskFlush { .. } | Op::DiskDiscard { .. } => {
                self.submit_disk(node, op);
            }
            other => self.submit_net(node, other),
        }
    }

    /// Whether the node's doom is due with this operation.
    fn is_doomed_by(&mut self, node: NodeId, op: &Op) -> bool {
        let Some(doom) = self.node_mut(node).doom.as_mut().filter(|doom| doom.counts(op)) else { return false };
        let due = doom.after == 0;
        doom.after = doom.after.saturating_sub(1);
        due
    }

    /// Takes in the operations that a turn submits; `false`: the process died on the way.
    pub fn submit_all(&mut self, node: NodeId, ops: &mut Vec<Op>) -> bool {
        let mut all = ops.drain(..);
        while let Some(op) = all.next() {
            if !self.is_doomed_by(node, &op) {
                self.submit(node, op);
                continue;
            }
            let doom = self.node(node).doom.expect("it has just come");
            for op in all {
                if doom.scatter && self.rng.chance(1, 2) {
                    self.submit(node, op);
                }
            }
            self.meet(node, doom);
            return false;
        }
        true
    }

    /// Counts the doom of the node down by the events that its process is about to take; `true`: the process died.
    pub fn doom_of_events(&mut self, node: NodeId) -> bool {
        let target = self.node_mut(node);
        let waiting = target.ready.len() as u64;
        let Some(doom) = target.doom.as_mut().filter(|doom| doom.by == DoomBy::Events) else { return false };
        if waiting <= doom.after {
            doom.after -= waiting;
            return false;
        }
        let doom = *doom;
        self.meet(node, doom);
        true
    }

    fn meet(&mut self, node: NodeId, doom: Doom) {
        self.counts.mid_turn += 1;
        if doom.power {
            self.cut_power(node);
        } else {
            self.counts.crashes += 1;
            self.end_life(node, Power::Crashed);
        }
    }

    /// Cuts the power of the machine; its clock starts again.
    pub fn cut_power(&mut self, node: NodeId) {
        self.counts.power_cuts += 1;
        self.end_life(node, Power::Off);
        let boot = Time(self.rng.between(1_000_000_000, 10_000_000_000));
        let now = self.now;
        let target = self.node_mut(node);
        target.set_clock(NodeClock::new(now, boot, target.clock.rate_ppm()));
    }

    /// Whether a turn of this node would return an event.
    pub fn has_events(&self, node: NodeId) -> bool {
        self.node(node).has_events()
    }

    /// Ends the process of a node.
    pub fn end_life(&mut self, node: NodeId, power: Power) {
        assert!(power != Power::Up, "an end");
        let mut counts = self.counts;
        let target = self.node_mut(node);
        target.power = power;
        target.life += 1;
        target.ready.clear();
        target.quiet = 0;
        (target.paused, target.doom) = (false, None);
        target.set_deadline(Time::NEVER);
        for disk in &mut target.disks {
            match power {
                Power::Off => disk.power_cut(&mut counts),
                _ => disk.crash(&mut counts),
            }
        }
        self.counts = counts;
        self.trace.fold(u64::from(node.0) << 8 | power as u64);
        self.trace.fold(self.now.0);
        self.end_connections(node, power == Power::Off);
    }
}
