//! The simulator's handle: the world, its nodes, its faults. And the handle of a node's process: [`SimEnv`].

use crate::clock::{DRIFT_PPM_MAX, NodeClock};
use crate::disk::{Disk, DiskFaults};
use crate::lies::Lie;
use crate::net::{Cut, NetConfig};
use crate::state::{Doom, Due, Node, Power, State};
use crate::trace::FaultCounts;
use env::{Capabilities, DiskId, DiskInfo, DiskKind, DiskSpec, Env, EnvError, Event, ListenerId, NetAddr, Op, Waker};
use std::cell::{Ref, RefCell, RefMut};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::rng::Rng;
use types::units::SECTOR;
use types::{IoBuf, Time};

/// A machine of the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// A simulated world: a cheap handle, one seed, one thread.
///
/// The simulator's loop takes [`World::ready_nodes`] and gives each a turn (and another while its service has
/// operations to submit). When none is ready, it calls [`World::advance_to`] with the [`World::next_turn_time`].
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    pub fn new(seed: u64) -> World {
        World(Rc::new(RefCell::new(State::new(seed))))
    }

    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    #[cfg(test)]
    pub(crate) fn state_for_tests(&self) -> RefMut<'_, State> {
        self.state()
    }

    fn look(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    /// Adds a machine that is off; its clock runs without drift until that is changed.
    pub fn add_node(&self, name: &str) -> NodeId {
        let mut state = self.state();
        let id = NodeId(u32::try_from(state.nodes.len()).expect("fewer than 2^32 nodes"));
        let boot = Time(state.rng.between(1_000_000_000, 100_000_000_000));
        let clock = NodeClock::new(state.now, boot, 0);
        state.nodes.push(Node::new(name.to_owned(), clock));
        id
    }

    pub fn node_name(&self, node: NodeId) -> String {
        self.look().node(node).name.clone()
    }

    /// Starts a process on the node. An earlier one that still runs crashes first.
    pub fn env(&self, node: NodeId) -> SimEnv {
        if self.is_up(node) {
            self.crash(node);
        }
        let mut state = self.state();
        let rng = state.rng.fork();
        let target = state.node_mut(node);
        target.power = Power::Up;
        target.life += 1;
        target.listeners = 0;
        target.woken = Arc::new(AtomicBool::new(false));
        let life = target.life;
        state.answer_again(node);
        drop(state);
        SimEnv { world: self.clone(), node, life, rng }
    }

    /// Kills the process as `kill -9` does: completed writes stay, flushed or not.
    pub fn crash(&self, node: NodeId) {
        let mut state = self.state();
        if state.node(node).power == Power::Up {
            state.counts.crashes += 1;
            state.end_life(node, Power::Crashed);
        }
    }

    /// Cuts the power of the machine: unflushed writes are kept, lost or torn; its clock starts again.
    pub fn power_cut(&self, node: NodeId) {
        self.state().cut_power(node);
    }

    /// Pauses the process: it gets no turns while time goes on (SIGSTOP), and events wait for it. Its end ends the
    /// pause, too.
    pub fn pause(&self, node: NodeId) {
        let mut state = self.state();
        if state.node(node).power == Power::Up && !state.node(node).paused {
            state.counts.pauses += 1;
            state.node_mut(node).paused = true;
        }
    }

    /// Continues a paused process.
    pub fn resume(&self, node: NodeId) {
        self.state().node_mut(node).paused = false;
    }

    pub fn is_paused(&self, node: NodeId) -> bool {
        self.look().node(node).paused
    }

    /// Orders when the process dies inside a turn of its own; `None`: it does not.
    pub fn doom(&self, node: NodeId, doom: Option<Doom>) {
        self.state().node_mut(node).doom = doom;
    }

    /// Whether a process runs on the node.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.look().node(node).power == Power::Up
    }

    /// Returns the world's time. Services never see it.
    pub fn now(&self) -> Time {
        self.look().now
    }

    /// Returns the time of the queue's next entry (now, when a node has events to take).
    pub fn next_event_time(&self) -> Option<Time> {
        let state = self.look();
        if state.nodes.iter().any(Node::has_events) { Some(state.now) } else { state.next_due() }
    }

    /// Returns [`World::next_event_time`], or the earliest deadline of the nodes' last turns if that is sooner.
    pub fn next_turn_time(&self) -> Option<Time> {
        let state = self.look();
        let up = state.nodes.iter().filter(|n| n.runs());
        let deadline = up.map(Node::due).min().filter(|t| *t != Time::NEVER);
        let event = self.next_event_time();
        [deadline.map(|t| t.max(state.now)), event].into_iter().flatten().min()
    }

    /// Processes everything that is due until `to`.
    ///
    /// # Panics
    /// When `to` lies in the past.
    pub fn advance_to(&self, to: Time) {
        self.state().advance_to(to);
    }

    /// Whether a turn of this node would return an event.
    pub fn has_events(&self, node: NodeId) -> bool {
        self.look().has_events(node)
    }

    /// Returns the nodes that have events, or whose deadline has come; ascending.
    pub fn ready_nodes(&self) -> Vec<NodeId> {
        let state = self.look();
        let ready = |(_, n): &(u32, &Node)| n.has_events() || n.runs() && state.now >= n.due();
        (0..).zip(&state.nodes).filter(ready).map(|(id, _)| NodeId(id)).collect()
    }

    /// Returns the time that the node's clock shows.
    pub fn local_now(&self, node: NodeId) -> Time {
        let state = self.look();
        state.node(node).clock.local(state.now)
    }

    /// Returns the world's time at which the node's clock will show `deadline`.
    pub fn local_to_global(&self, node: NodeId, deadline: Time) -> Time {
        self.look().node(node).clock.global(deadline)
    }

    /// Sets the drift of the node's clock from now on: it gains so many parts per million (or loses, when negative).
    ///
    /// # Panics
    /// Beyond [`DRIFT_PPM_MAX`].
    pub fn set_clock_rate(&self, node: NodeId, rate_ppm: i64) {
        assert!(rate_ppm.abs() <= DRIFT_PPM_MAX, "a drift of {rate_ppm} ppm");
        let mut state = self.state();
        state.counts.clock_changes += 1;
        let now = state.now;
        let target = state.node_mut(node);
        target.set_clock(NodeClock::new(now, target.clock.local(now), rate_ppm));
    }

    /// Moves the node's clock forward (a suspended machine).
    pub fn jump_clock(&self, node: NodeId, by: Duration) {
        let mut state = self.state();
        state.counts.clock_changes += 1;
        let now = state.now;
        let target = state.node_mut(node);
        target.set_clock(NodeClock::new(now, target.clock.local(now) + by, target.clock.rate_ppm()));
    }

    /// Changes the behaviour of the network.
    pub fn net(&self, change: impl FnOnce(&mut NetConfig)) {
        change(&mut self.state().net.config);
    }

    /// Multiplies the delay of messages from and to this node by `factor`.
    pub fn slow_node(&self, node: NodeId, factor: u32) {
        self.state().net.set_slow(node, factor);
    }

    /// Cuts the two nodes from each other (or only `a` from `b`): bytes are held. A connection that stays cut for the
    /// network's `user_timeout` is lost.
    pub fn partition(&self, a: NodeId, b: NodeId, cut: Cut) {
        self.state().partition(a, b, cut);
    }

    pub fn heal(&self, a: NodeId, b: NodeId) {
        self.state().heal(a, b);
    }

    pub fn heal_all(&self) {
        self.state().heal_all();
    }

    /// Flips a bit of the next bytes from `a` to `b`.
    pub fn garble(&self, a: NodeId, b: NodeId) {
        self.state().net.garble.insert((a, b));
    }

    /// Flips a bit of the next payload from `a` to `b`: of the longest piece of the first bytes that have a piece of a
    /// sector or more.
    pub fn garble_payload(&self, a: NodeId, b: NodeId) {
        self.state().net.garble_payload.insert((a, b));
    }

    /// Makes `a` forget its connections with `b`; `b` learns of it only when it sends.
    pub fn forget_conns(&self, a: NodeId, b: NodeId) {
        self.state().forget(a, b);
    }

    /// Resets every connection between the two.
    pub fn reset_conns(&self, a: NodeId, b: NodeId) {
        let mut state = self.state();
        let ends = state.ends_between(a, b);
        for end in ends {
            state.reset(end);
        }
    }

    /// Puts a disk of zeros into the node; it replaces a disk with the same path (a wiped disk).
    ///
    /// # Panics
    /// When the disk is open.
    pub fn create_disk(&self, node: NodeId, path: impl AsRef<Path>, size_bytes: u64, volatile_cache: bool) {
        let mut state = self.state();
        if let Some(old) = state.node(node).disks.iter().position(|d| d.path == path.as_ref()) {
            state.tell_watch(node, DiskId(old as u32));
        }
        let rng = state.rng.fork();
        let disk = Disk::new(path.as_ref().to_owned(), size_bytes, volatile_cache, rng);
        let disks = &mut state.node_mut(node).disks;
        match disks.iter_mut().find(|d| d.path == path.as_ref()) {
            Some(old) => {
                assert!(old.held_by.is_none(), "the disk is open");
                *old = disk;
            }
            None => disks.push(disk),
        }
    }

    /// Sets whether the disk is a file of a file system, or a raw device.
    pub fn disk_kind(&self, node: NodeId, path: impl AsRef<Path>, kind: DiskKind) {
        let disk = self.disk_id(node, path.as_ref());
        self.state().disk_mut(node, disk).kind = kind;
    }

    /// Returns the writes so far that are not stored where they were acknowledged.
    pub fn disk_lies(&self, node: NodeId, path: impl AsRef<Path>) -> Vec<Lie> {
        let disk = self.disk_id(node, path.as_ref());
        self.state().disk_mut(node, disk).lies.clone()
    }

    /// Returns the present faults of a disk.
    ///
    /// # Panics
    /// When the node has no such disk.
    pub fn look_at_disk_faults(&self, node: NodeId, path: impl AsRef<Path>) -> DiskFaults {
        let disk = self.disk_id(node, path.as_ref());
        self.state().disk_mut(node, disk).faults.clone()
    }

    /// Changes the behaviour of a disk.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn disk_faults(&self, node: NodeId, path: impl AsRef<Path>, change: impl FnOnce(&mut DiskFaults)) {
        let disk = self.disk_id(node, path.as_ref());
        let mut state = self.state();
        let target = state.disk_mut(node, disk);
        change(&mut target.faults);
        for op in target.take_stalled() {
            state.schedule(Duration::from_micros(10), Due::Disk { node, disk, op });
        }
    }

    /// Returns the stored bytes, to be examined and damaged.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn disk_image(&self, node: NodeId, path: impl AsRef<Path>) -> DiskImage {
        DiskImage { world: self.clone(), node, disk: self.disk_id(node, path.as_ref()) }
    }

    pub(crate) fn disk_id(&self, node: NodeId, path: &Path) -> DiskId {
        let state = self.look();
        let found = state.node(node).disks.iter().position(|d| d.path == path);
        DiskId(found.unwrap_or_else(|| panic!("no disk {} in {node:?}", path.display())) as u32)
    }

    /// Returns a value that is equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.look().trace.hash()
    }

    /// Folds a value of the simulator into the trace.
    pub fn trace(&self, value: u64) {
        self.state().trace.fold(value);
    }

    pub fn fault_counts(&self) -> FaultCounts {
        self.look().counts
    }

    /// Returns random numbers for the simulator's own choices.
    pub fn fork_rng(&self) -> Rng {
        self.state().rng.fork()
    }
}

/// A disk's stored bytes, seen from outside the system.
pub struct DiskImage {
    world: World,
    node: NodeId,
    disk: DiskId,
}

impl DiskImage {
    pub fn size_bytes(&self) -> u64 {
        self.world.state().disk_mut(self.node, self.disk).size_bytes
    }

    /// Reads the bytes that a read would return now.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.world.state().disk_mut(self.node, self.disk).peek(offset, into);
    }

    /// Returns the page of 4 KiB that a read at `offset` would return now. It shares the memory of the disk.
    pub fn page_at(&self, offset: u64) -> IoBuf {
        self.world.state().disk_mut(self.node, self.disk).page_at(offset)
    }

    /// Returns the offsets of the pages between two offsets that hold anything but zeros.
    pub fn stored_pages(&self, from: u64, to: u64) -> Vec<u64> {
        self.world.state().disk_mut(self.node, self.disk).stored_pages(from, to)
    }

    /// Changes bytes silently and durably.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.world.state();
        state.counts.corruptions += 1;
        state.disk_mut(self.node, self.disk).poke(offset, bytes);
    }

    /// Makes sectors unreadable: a read that touches one fails until a write of it is stored.
    pub fn make_unreadable(&self, offset: u64, len_bytes: u64) {
        self.world.state().disk_mut(self.node, self.disk).damage(offset, len_bytes);
    }

    /// Whether a read of this range fails with EIO now.
    pub fn is_unreadable(&self, offset: u64, len_bytes: u64) -> bool {
        self.world.state().disk_mut(self.node, self.disk).is_unreadable(offset, len_bytes)
    }

    /// Flips one bit, durably.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
    }
}

/// The simulated form of [`Env`]: one process of one node. Dropping it ends the process.
pub struct SimEnv {
    world: World,
    node: NodeId,
    life: u32,
    rng: Rng,
}

impl SimEnv {
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether this process still runs.
    pub fn is_alive(&self) -> bool {
        self.world.look().lives(self.node, self.life)
    }
}

impl Env for SimEnv {
    fn now(&self) -> Time {
        self.world.local_now(self.node)
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn secret(&mut self) -> Result<[u8; 16], EnvError> {
        let [low, high] = [self.rng.next_u64(), self.rng.next_u64()];
        Ok((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, deadline: Time) -> Result<(), EnvError> {
        let mut state = self.world.state();
        if !state.lives(self.node, self.life) {
            ops.clear();
            return Ok(());
        }
        state.node_mut(self.node).turns += 1;
        if !state.submit_all(self.node, ops) || state.doom_of_events(self.node) {
            return Ok(());
        }
        let target = state.node_mut(self.node);
        target.set_deadline(deadline);
        events.extend(target.ready.drain(..));
        target.quiet = 0;
        if target.woken.swap(false, Ordering::SeqCst) {
            let now = state.now;
            state.trace.event(self.node.0, now, &Event::Woken);
            events.push(Event::Woken);
        }
        Ok(())
    }

    fn open_disk(&mut self, spec: &DiskSpec) -> Result<DiskInfo, EnvError> {
        let mut state = self.world.state();
        let path = || spec.path.clone();
        let failed = |kind: io::ErrorKind| EnvError::Open { path: path(), source: kind.into() };
        if !state.lives(self.node, self.life) {
            return Err(failed(io::ErrorKind::Interrupted));
        }
        let disks = &mut state.node_mut(self.node).disks;
        let Some(id) = disks.iter().position(|d| d.path == spec.path) else {
            return Err(failed(io::ErrorKind::NotFound));
        };
        let disk = &mut disks[id];
        if disk.held_by.is_some() {
            return Err(EnvError::Locked { path: path() });
        }
        disk.held_by = Some(self.life);
        disk.read_only = spec.read_only;
        Ok(DiskInfo {
            id: DiskId(id as u32),
            path: spec.path.clone(),
            kind: disk.kind,
            size_bytes: disk.size_bytes,
            align_bytes: SECTOR as u32,
            volatile_cache: disk.volatile_cache && !spec.assume_plp,
            capabilities: Capabilities::default(),
        })
    }

    fn listen(&mut self, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        let mut state = self.world.state();
        if !state.lives(self.node, self.life) {
            let source = io::ErrorKind::Interrupted.into();
            return Err(EnvError::Listen { addr: addr.clone(), source });
        }
        state.listen(self.node, addr)
    }

    fn waker(&self) -> Waker {
        let woken = Arc::clone(&self.world.look().node(self.node).woken);
        Waker::new(move || woken.store(true, Ordering::SeqCst))
    }
}

impl Drop for SimEnv {
    fn drop(&mut self) {
        let mut state = self.world.state();
        if state.lives(self.node, self.life) {
            state.end_life(self.node, Power::Crashed);
        }
    }
}
