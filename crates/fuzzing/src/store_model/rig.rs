//! The engine on a simulated disk: its harness, and what the faults of the disk excuse.
//!
//! The steps are method calls, and failures are panics of assertions. Invariant: all faults are faults of the disk.

use super::peers::Help;
use engine::testing::{BadBlocks, DISK_LEN, FailedRead, Harness, IDS, Model, SECTORS, chunks, params};
use engine::{Engine, EngineConfig, EngineEvent, MountError, ReadError, Superblock};
use env::{DiskInfo, DiskSpec, Env, Event};
use simenv::{DiskFaults, DiskImage, NodeId, SimEnv, World};
use std::collections::BTreeSet;
use std::time::Duration;
use types::store::{Effect, Recovered};
use types::{ChunkKey, IoBuf, ReplicaId, SectorRange};

const DEVICE: &str = "device";
/// Most turns before the engine must come to rest.
const SETTLE_MAX: usize = 20_000;
/// The model plays the two other members of each PG.
const PEERS: u32 = 2;

/// Returns the pages that formatting writes.
pub fn device_image() -> (Superblock, Vec<(u64, IoBuf)>) {
    engine::format_image(DISK_LEN, &params(), crate::log::LOG.salt_key).expect("log and home fit")
}

/// Pages of a device that are not zero, with their offsets.
pub type Pages = Vec<(u64, Vec<u8>)>;

/// Damage to the disk since the last mount.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Damage {
    flips: u32,
    /// True if a flip hit an unsealed log, or if there was more than one flip. A tail may be missing then.
    pub(super) tail_in_doubt: bool,
    /// True if reads may fail.
    read_errors: bool,
    /// True if a write or flush was made to fail. The store may be poisoned then.
    write_errors: bool,
}

/// A node with one disk, and its running process.
pub(super) struct Machine {
    world: World,
    node: NodeId,
    env: SimEnv,
    events: Vec<Event>,
}

/// Starts a process on the node; returns its env and its disk.
fn start_process(world: &World, node: NodeId) -> (SimEnv, DiskInfo) {
    let mut env = world.env(node);
    let spec = DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false };
    let disk = env.open_disk(&spec).expect("the lock died with the process");
    (env, disk)
}

pub struct Rig {
    pub(super) harness: Harness<Machine>,
    /// True after the first flip, because home stays damaged.
    rotten: bool,
    /// True after reads could fail. A destage that cannot read damages its replica, and the damage is kept.
    unread: bool,
    damage: Damage,
    /// True if some mount may have lost a tail. Home may then be older than the model.
    pub(super) doubtful: bool,
    /// True if peers repair the damage.
    helped: bool,
    dead: bool,
    next_replica: u64,
    /// Current ids of the replicas that the steps call 1, 2 and 3.
    names: [ReplicaId; 3],
    /// Maps that a restart may return: the last durable one, and later ones.
    maps: Vec<Vec<u8>>,
    /// Creates and destroys that are not acknowledged yet: a restart may undo them.
    unborn: BTreeSet<ReplicaId>,
    pub(super) dying: BTreeSet<ReplicaId>,
    /// Replicas that the engine reported as repaired, and as damaged.
    pub(super) refilled: BTreeSet<ReplicaId>,
    pub(super) spoilt: BTreeSet<ReplicaId>,
    /// Replicas that this mount found incomplete.
    ailing: Vec<(Model, Recovered)>,
    /// Replicas whose installation was asked for, and has not ended.
    installing: BTreeSet<ReplicaId>,
    pub help: Help,
}

impl Rig {
    pub fn new(seed: u8, settings: u8) -> Rig {
        let world = World::new(seed.into());
        let node = world.add_node("osd");
        world.create_disk(node, DEVICE, DISK_LEN, settings & 1 == 0);
        let image = world.disk_image(node, DEVICE);
        device_image().1.iter().for_each(|(at, bytes)| image.write(*at, bytes));
        let config = EngineConfig {
            round_pressure: [0.2, 0.3, 0.5, 2.0][usize::from(settings >> 1 & 3)],
            round_idle: Duration::from_millis(if settings & 8 == 0 { 20 } else { 2000 }),
            redirect_min: (settings & 16 != 0).then_some(64 << 10),
            ..EngineConfig::default()
        };
        let (env, info) = start_process(&world, node);
        let now = env.now();
        let machine = Machine { world, node, env, events: Vec::new() };
        let mut rig = Rig {
            harness: Harness::mount(machine, info, device_image().0, config, now),
            rotten: false,
            unread: false,
            damage: Damage::default(),
            doubtful: false,
            helped: settings & 32 == 0,
            dead: false,
            next_replica: 1,
            names: [ReplicaId(1), ReplicaId(2), ReplicaId(3)],
            maps: vec![Vec::new()],
            unborn: BTreeSet::new(),
            dying: BTreeSet::new(),
            refilled: BTreeSet::new(),
            spoilt: BTreeSet::new(),
            ailing: Vec::new(),
            installing: BTreeSet::new(),
            help: Help::default(),
        };
        assert!(rig.finish_mount().is_ok_and(|found| found.is_empty()), "a formatted device mounts");
        rig
    }

    /// Turns until the mount ends. Nothing else is asked of the engine meanwhile.
    fn finish_mount(&mut self) -> Result<Vec<Recovered>, MountError> {
        for _ in 0..SETTLE_MAX {
            let seen = &mut self.harness.seen;
            if let Some(why) = seen.mount_failed.take() {
                return Err(why);
            }
            if std::mem::take(&mut seen.mounted) {
                return Ok(std::mem::take(&mut seen.recovered));
            }
            self.turn(1);
        }
        panic!("a mount does not end");
    }

    /// Returns whether the test can go on; it ends with a device that no longer mounts.
    pub fn lives(&self) -> bool {
        !self.dead
    }

    fn name(&self, replica: ReplicaId) -> ReplicaId {
        self.names[replica.0 as usize - 1]
    }

    /// Returns the model of a replica, unless the store is poisoned or the replica is damaged.
    fn sound(&self, replica: ReplicaId) -> Option<&Model> {
        let model = self.harness.models.get(&self.name(replica));
        model.filter(|m| !self.harness.poisoned && !m.damaged)
    }

    pub fn create(&mut self, replica: ReplicaId) {
        if self.harness.poisoned {
            return;
        }
        let id = ReplicaId(self.next_replica);
        self.next_replica += 1;
        self.names[replica.0 as usize - 1] = id;
        self.harness.create_replica(id, PEERS);
        self.unborn.insert(id);
        // The create must be durable before the replica is used.
        self.settle();
        if self.harness.engine.failure(id).is_some() {
            // It may have been here before, and meta would replace it.
            self.harness.models.remove(&id);
            self.dying.insert(id);
        }
    }

    pub fn destroy_and_create(&mut self, replica: ReplicaId, dice: u8) {
        if self.harness.poisoned || dice < 128 {
            return;
        }
        let id = self.name(replica);
        self.harness.destroy(id);
        self.dying.insert(id);
        self.create(replica);
    }

    pub fn append(&mut self, replica: ReplicaId, back: u64, effects: Vec<Effect>) {
        if self.harness.engine.pressure().max() >= 1.0 {
            return;
        }
        let Some(model) = self.sound(replica) else { return };
        let (id, end) = (model.replica, model.last() + 1);
        let from = end.saturating_sub(back).max(model.hard_state.commit.0 + 1);
        self.harness.append(id, from, effects);
    }

    /// Commits the durable entries and applies them.
    pub fn commit(&mut self, replica: ReplicaId) {
        let Some(id) = self.sound(replica).map(|model| model.replica) else { return };
        self.harness.commit(id, u64::MAX);
    }

    pub fn read(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let id = self.name(replica);
        if self.harness.models.contains_key(&id) {
            self.harness.read(id, chunk, range);
            self.judge();
        }
    }

    pub fn round(&mut self) {
        if !self.harness.poisoned && !self.harness.seen.mounted {
            self.harness.round();
        }
    }

    /// Turns the loop once, and then once more for each of up to `completions` events of the world.
    pub fn turn(&mut self, completions: u32) {
        self.end_turn();
        for _ in 0..completions {
            let Some(next) = self.harness.disk.world.next_event_time() else { break };
            self.harness.disk.world.advance_to(next);
            self.end_turn();
        }
    }

    /// Delivers events, runs the engine and submits its operations, as the loop of an OSD does.
    fn end_turn(&mut self) {
        self.exchange();
        self.harness.now = self.harness.disk.env.now();
        for event in std::mem::take(&mut self.harness.disk.events) {
            self.harness.handle_event(event);
            self.judge();
        }
        if self.harness.engine.wants_round(self.harness.now) {
            self.round();
        }
        self.harness.end_turn();
        self.judge();
        self.exchange();
    }

    fn exchange(&mut self) {
        let Harness { disk: Machine { env, events, .. }, engine, ops, .. } = &mut self.harness;
        env.turn(ops, events, engine.next_deadline()).expect("a simulated ring does not fail");
    }

    pub fn pass(&mut self, time: Duration) {
        let world = &self.harness.disk.world;
        world.advance_to(world.now() + time);
        self.turn(4);
    }

    fn is_at_rest(&self) -> bool {
        let Machine { world, events, .. } = &self.harness.disk;
        self.harness.ops.is_empty() && events.is_empty() && world.next_event_time().is_none()
    }

    /// Turns until the engine is at rest and the log is sealed.
    pub fn settle(&mut self) {
        for _ in 0..SETTLE_MAX {
            self.turn(16);
            if !self.is_at_rest() {
                continue;
            }
            let Machine { world, node, .. } = &self.harness.disk;
            let deadline = world.local_to_global(*node, self.harness.engine.next_deadline());
            // A destage that waits for an idle time is not awaited.
            if deadline > world.now() + Duration::from_millis(15) {
                return;
            }
            world.advance_to(deadline.max(world.now() + Duration::from_micros(10)));
        }
        let (now, due) = (self.harness.now, self.harness.engine.next_deadline());
        panic!("the engine does not come to rest: {now:?}, due {due:?}, {:?}", self.harness.engine.stats());
    }

    pub fn check_all(&mut self) {
        for id in self.names {
            if self.harness.models.contains_key(&id) {
                self.harness.read_all(id);
                self.judge();
            }
        }
        self.settle();
        assert!(self.harness.is_answered() || self.harness.poisoned, "every read is answered");
    }

    pub fn set_map(&mut self, dice: u8) {
        if !self.harness.poisoned {
            let map = vec![dice; usize::from(dice)];
            self.harness.engine.set_map(map.clone().into());
            self.settle();
            if !self.harness.poisoned {
                self.maps.clear();
            }
            self.maps.push(map);
        }
    }

    pub fn flip(&mut self, place: u32, bit: u8) {
        // Some areas are small ones at the head of the log and of home, which are in use.
        let superblock = self.harness.superblock;
        let areas = [
            (0, 4096),
            (superblock.log_start, 64 << 10),
            (superblock.log_start, superblock.segment_bytes * 4),
            (superblock.home_start, 256 << 10),
            (superblock.home_start, 4 << 20),
            (DISK_LEN - 4096, 4096),
        ];
        let (start, len) = areas[place as usize % areas.len()];
        // Half of the flips happen after the log is sealed, and must not be silent.
        let sealed = bit < 128 && !self.harness.poisoned;
        if sealed {
            self.settle();
        }
        self.disk_image().flip_bit(start + u64::from(place / 8) % len, bit);
        self.damage.flips += 1;
        self.damage.tail_in_doubt |= self.damage.flips > 1 || self.rotten || !sealed || self.harness.poisoned;
        self.rotten = true;
    }

    /// Makes the n-th read, write or flush from now fail, or makes random reads fail from now on.
    pub fn fail(&mut self, what: u32, n: u32) {
        self.disk_faults(|faults| match what {
            0 => faults.fail_read = Some(n.into()),
            1 => faults.fail_write = Some(n.into()),
            2 => faults.fail_flush = Some(n.into()),
            _ => faults.read_error_ppm = 20_000 * n,
        });
        match what {
            1 | 2 => self.damage.write_errors = true,
            _ => (self.damage.read_errors, self.unread) = (true, true),
        }
    }

    fn disk_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        let Machine { world, node, .. } = &self.harness.disk;
        world.disk_faults(*node, DEVICE, change);
    }

    fn disk_image(&self) -> DiskImage {
        self.harness.disk.world.disk_image(self.harness.disk.node, DEVICE)
    }

    fn mend_disk(&mut self) {
        self.disk_faults(|faults| {
            (faults.fail_read, faults.fail_write, faults.fail_flush, faults.read_error_ppm) = (None, None, None, 0);
        });
    }

    fn end_process(&mut self, power: bool) {
        let Machine { world, node, .. } = &self.harness.disk;
        if power { world.power_cut(*node) } else { world.crash(*node) }
    }

    pub fn crash(&mut self, power: bool) {
        self.end_process(power);
        self.restart();
    }

    /// Ends all faults, waits for rest and checks all data.
    pub fn calm_down(&mut self) {
        if self.lives() {
            self.mend_disk();
            self.settle();
            self.check_all();
        }
    }

    /// Restarts the process on the same disk and checks the recovered state.
    pub fn restart(&mut self) {
        self.end_process(false);
        self.mend_disk();
        self.harness.config.after_poison = self.harness.poisoned;
        let machine = &mut self.harness.disk;
        let (env, info) = start_process(&machine.world, machine.node);
        machine.env = env;
        machine.events.clear();
        self.harness.now = machine.env.now();
        self.harness.boot(info);
        let mounted = self.finish_mount();
        let damage = std::mem::take(&mut self.damage);
        self.doubtful |= damage.tail_in_doubt;
        (self.refilled, self.spoilt) = Default::default();
        let found = match mounted {
            Ok(found) => found,
            Err(why) => {
                assert!(self.rotten, "a sound device does not mount: {why}");
                self.dead = true;
                return;
            }
        };
        let here: Vec<ReplicaId> = found.iter().map(|r| r.identity.replica).collect();
        for id in std::mem::take(&mut self.unborn) {
            if !here.contains(&id) {
                self.harness.models.remove(&id);
            }
        }
        let lost: Vec<ReplicaId> = self.harness.models.keys().filter(|id| !here.contains(id)).copied().collect();
        let engine = &self.harness.engine;
        let map = engine.map().to_vec();
        // A create record in a log gap is lost with it, and the store reports that. A map may be lost in the same way.
        let in_doubt = damage.tail_in_doubt || self.rotten && engine.lost_records().is_some();
        let births = damage.tail_in_doubt || self.rotten && engine.may_have_been_here(ReplicaId(1));
        if in_doubt {
            // Creates and destroys in the lost tail are undone. A replica without a model is not compared.
            lost.iter().for_each(|id| drop(self.harness.models.remove(id)));
            self.maps = vec![map.clone()];
        }
        assert!(births || lost.is_empty(), "{lost:?} are gone");
        assert!(self.maps.contains(&map), "the map is another");
        self.maps = vec![map];
        for recovered in found {
            self.check_recovered(recovered, damage);
        }
        for (model, recovered) in std::mem::take(&mut self.ailing) {
            match recovered.failure {
                Some(_) => self.revive(model, damage),
                None => self.refill(model, recovered, damage),
            }
        }
        self.check_all();
    }

    /// Judges a recovered replica. One that is sound is compared with its model.
    pub(super) fn check_recovered(&mut self, found: Recovered, damage: Damage) {
        let replica = found.identity.replica;
        let Some(model) = self.harness.models.get_mut(&replica) else {
            let undone = damage.tail_in_doubt || self.dying.contains(&replica);
            self.dying.insert(replica);
            assert!(undone, "{replica} was destroyed");
            return;
        };
        let is_past = found.failure.as_ref().is_some_and(|failure| failure.is_past);
        if let Some(failure) = found.failure.as_ref().filter(|_| !is_past) {
            let reason = &failure.reason;
            assert!(self.rotten || self.unread, "{replica} has failed on a sound disk: {reason}");
            model.damaged = true;
            return;
        }
        if !found.lost.is_empty() || is_past {
            // The replica names the lost payloads and waits for its peers.
            assert!(self.rotten, "{replica} has lost payload on a sound disk: {:?}", found.lost);
            let model = self.harness.models.remove(&replica).expect("it was just seen");
            if self.helped {
                self.ailing.push((model, found));
            } else {
                self.dying.insert(replica);
            }
            return;
        }
        let may_be_whole = self.installing.remove(&replica) || damage.tail_in_doubt || self.doubtful;
        assert!(found.fills || !model.fills || may_be_whole, "{replica} is whole without its contents");
        self.harness.check_recovered(found, damage.tail_in_doubt);
    }

    /// Returns the current contents of the device.
    pub fn image(&self) -> Pages {
        let image = self.disk_image();
        let mut pages = Vec::new();
        for at in (0..DISK_LEN).step_by(4096) {
            let mut page = vec![0; 4096];
            image.read(at, &mut page);
            if page.iter().any(|b| *b != 0) {
                pages.push((at, page));
            }
        }
        pages
    }

    /// Fills a replica by a stream. The log never sees the first of `effects`; it gets the others while the contents come, and
    /// blocks may show these already.
    pub fn stream(&mut self, replica: ReplicaId, effects: Vec<Effect>, dice: u8) {
        self.settle();
        let Some(old) = self.sound(replica).cloned() else { return };
        let id = old.replica;
        let (below, above) = effects.split_at(effects.len().div_ceil(2));
        if !old.fills && !self.begin_log(old, below.to_vec(), dice) {
            return;
        }
        if !above.is_empty() && self.harness.engine.pressure().max() < 1.0 {
            let from = self.harness.models[&id].hard_state.commit.0 + 1;
            self.harness.append(id, from, above.to_vec());
            self.settle();
        }
        let model = &self.harness.models[&id];
        let (now, mut then) = (model.clone(), model.clone());
        (now.applied..now.durable).for_each(|_| {
            let _ = then.apply();
        });
        if dice < 40 || !self.stage_all(&now, &then) {
            return self.harness.engine.unstage(id);
        }
        self.harness.commit(id, u64::MAX);
        if self.harness.poisoned || self.harness.models[&id].applied < then.applied {
            return self.harness.engine.unstage(id);
        }
        self.harness.seen.installed.clear();
        self.harness.seen.refused.clear();
        self.installing.insert(id);
        self.harness.engine.install(id);
        if dice < 120 {
            // The process dies during the installation: the replica is filled still, or whole.
            self.turn(u32::from(dice % 32));
            self.note_installed(id);
            return self.crash(dice & 1 == 0);
        }
        self.settle();
        let refused = !self.harness.seen.refused.is_empty();
        let ended = self.note_installed(id) || refused;
        assert!(ended || self.harness.poisoned || self.rotten || self.damage.read_errors, "it has no end");
        if refused {
            self.installing.remove(&id);
        }
    }

    /// Whether the replica is whole now, by an installation that has ended.
    fn note_installed(&mut self, id: ReplicaId) -> bool {
        let is_whole = self.harness.seen.installed.pop().is_some();
        if is_whole {
            self.installing.remove(&id);
            self.harness.models.get_mut(&id).expect("it is not being destroyed").fills = false;
        }
        is_whole
    }

    /// Has the replica's log begin behind these effects. True: it does, and the replica is being filled.
    fn begin_log(&mut self, old: Model, effects: Vec<Effect>, dice: u8) -> bool {
        let (id, new) = (old.replica, old.ahead(effects));
        self.harness.seen.filling.clear();
        self.harness.engine.fill(new.decision());
        // The group of the replica does not run meanwhile.
        self.harness.models.remove(&id);
        let dies = dice & 7 == 0;
        if dies {
            self.turn(u32::from(dice >> 3))
        } else {
            self.settle()
        }
        if self.harness.seen.fill_refused.pop().is_some() {
            self.harness.models.insert(id, old);
            return false;
        }
        if let Some(found) = self.harness.seen.filling.pop() {
            self.harness.models.insert(id, new);
            self.check_recovered(found, Damage::default());
            if dies {
                self.crash(dice & 8 == 0);
            }
            return !dies;
        }
        assert!(dies || self.harness.poisoned || self.rotten || self.damage.read_errors, "it has no end");
        // The beginning was not reported, so it may be durable or not.
        self.end_process(dice & 8 == 0);
        self.harness.models.insert(id, old);
        self.restart_as(id, new);
        false
    }

    /// Restarts like [`Rig::restart`], but the replica may also match `other`.
    fn restart_as(&mut self, id: ReplicaId, other: Model) {
        self.end_process(false);
        self.mend_disk();
        let Machine { world, node, .. } = &self.harness.disk;
        let (mut env, info) = start_process(world, *node);
        let config = EngineConfig { after_poison: self.harness.poisoned, ..self.harness.config.clone() };
        let mut probe = Engine::new(config, info, IDS);
        let (mut ops, mut events, mut out) = (Vec::new(), Vec::new(), Vec::new());
        probe.start(env.now(), &mut ops);
        let mounted = loop {
            env.turn(&mut ops, &mut events, probe.next_deadline()).expect("a simulated ring does not fail");
            for event in events.drain(..) {
                probe.handle_event(env.now(), event, &mut ops, &mut out);
            }
            let end = out.drain(..).find_map(|event| match event {
                EngineEvent::Mounted(found) => Some(Some(found)),
                EngineEvent::MountFailed(_) => Some(None),
                _ => None,
            });
            if let Some(end) = end {
                break end;
            }
            match world.next_event_time() {
                Some(next) if ops.is_empty() => world.advance_to(next),
                _ => probe.end_turn(env.now(), &mut ops, &mut out),
            }
        };
        let found = mounted.iter().flatten().find(|r| r.identity.replica == id);
        if found.is_some_and(|r| r.checkpoint.index.0 >= other.applied && r.failure.is_none()) {
            self.harness.models.insert(id, other);
        }
        drop((env, probe));
        self.restart();
    }

    /// Stages everything that the replica holds, of some chunks at a later index. Returns false if there was no room.
    fn stage_all(&mut self, now: &Model, then: &Model) -> bool {
        self.harness.seen.unstaged.clear();
        for (chunk, from) in chunks().into_iter().zip([now, then].into_iter().cycle()) {
            let range = SectorRange::new(0, SECTORS);
            if !self.harness.stage(now.replica, chunk, range, &from.expected(chunk, range)) {
                return false;
            }
            let before = self.harness.seen.staged;
            self.settle();
            let seen = &self.harness.seen;
            if seen.staged == before || !seen.unstaged.is_empty() || self.harness.poisoned {
                return false;
            }
        }
        true
    }

    /// Judges the events that the harness has seen: each failure needs a fault of the disk that excuses it.
    fn judge(&mut self) {
        let seen = &mut self.harness.seen;
        let (failed, bad) = (std::mem::take(&mut seen.failed), std::mem::take(&mut seen.bad));
        let (poison, failed_reads) = (seen.poison.take(), std::mem::take(&mut seen.failed_reads));
        for replica in seen.created.drain(..) {
            self.unborn.remove(&replica);
        }
        for replica in seen.destroyed.drain(..) {
            self.dying.remove(&replica);
        }
        for replica in seen.refilled.drain(..) {
            assert!(!self.harness.models.contains_key(&replica), "{replica} was given nothing");
            self.refilled.insert(replica);
        }
        for (replica, failure) in failed {
            assert!(self.rotten || self.unread, "{replica} has failed on a sound disk: {}", failure.reason);
            self.spoilt.insert(replica);
        }
        if let Some(reason) = poison {
            let failed = self.damage.write_errors || self.damage.read_errors;
            assert!(failed, "poisoned without a failure: {reason}");
        }
        for BadBlocks { replica, chunk, range, reason, needed } in bad {
            assert!(self.rotten || self.unread, "{replica} has bad blocks on a sound disk: {reason}");
            if self.helped && (self.mend(replica, chunk, range) || !needed) {
                continue;
            }
            // No peer repairs the blocks.
            self.harness.engine.fail(replica, reason);
            if let Some(model) = self.harness.models.get_mut(&replica) {
                model.damaged = true;
            }
        }
        for FailedRead { asked, error, damaged } in failed_reads {
            let excused = damaged
                || match &error {
                    ReadError::Damaged { .. } => self.rotten,
                    ReadError::BadBlocks { .. } => self.rotten || self.unread,
                    ReadError::Poisoned => self.harness.poisoned,
                    ReadError::NoReplica(_) => false,
                };
            assert!(excused, "{asked:?}: {error} on a sound disk");
        }
    }
}
