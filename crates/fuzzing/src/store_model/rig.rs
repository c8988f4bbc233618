//! The engine on a simulated disk, with models that check its events and answers.
//!
//! The steps are method calls, and failures are panics of assertions. Invariant: the rig asks of the engine only what a
//! group may ask; all faults are faults of the disk.

use super::SECTORS;
use super::model::{Made, Model, decision_bytes};
use super::peers::Help;
use engine::{Engine, EngineConfig, EngineEvent, FormatParams, MountError, ReadData, ReadError, Superblock};
use env::{DiskSpec, Env, Event, Op};
use simenv::{NodeId, SimEnv, World};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::map::Member;
use types::store::{DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::{
    ChunkKey, ClusterId, Epoch, Index, IoBuf, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SectorRange, Term, VolumeId,
};

const IDS: (ClusterId, OsdId, OsdUuid) = (ClusterId([7; 16]), OsdId(3), OsdUuid([9; 16]));
const DEVICE: &str = "device";
const DISK_LEN: u64 = 48 << 20;
/// Most turns before the engine must come to rest.
const SETTLE_MAX: usize = 20_000;

pub fn device_len() -> u64 {
    DISK_LEN
}

/// Returns the ids of the device's owner.
pub fn ids() -> (ClusterId, OsdId, OsdUuid) {
    IDS
}

pub fn chunks() -> [ChunkKey; 4] {
    let key = |volume, index| ChunkKey { volume: VolumeId(volume), index };
    [key(1, 0), key(1, 1), key(1, 2), key(2, 0)]
}

pub fn identity(replica: ReplicaId) -> ReplicaIdentity {
    // A replica without peers cannot be suspect; it would be damaged. The model plays the two other members.
    let other = |n: u32| Member { replica: ReplicaId(replica.0 + 1000 * u64::from(n)), osd: OsdId(IDS.1.0 + n) };
    let members = vec![Member { replica, osd: IDS.1 }, other(1), other(2)];
    let pg = PgId { pool: PoolId(1), n: replica.0 as u32 };
    ReplicaIdentity { pg, replica, lineage: 1, conf_epoch: Epoch(1), members }
}

/// Returns the pages that formatting writes.
pub fn device_image() -> (Superblock, Vec<(u64, IoBuf)>) {
    let (cluster, osd, uuid) = IDS;
    let (log_bytes, segment_bytes) = (16 << 20, 1 << 20);
    let params = FormatParams { cluster, osd, uuid, log_bytes, segment_bytes, force: false, prezero: false, unix_s: 0 };
    engine::format_image(DISK_LEN, &params, 77).expect("log and home fit")
}

/// The bytes of a device at one moment.
pub struct Story {
    pub device_bytes: u64,
    pub ids: (ClusterId, OsdId, OsdUuid),
    /// Pages that are not zero, with their offsets.
    pub pages: Vec<(u64, Vec<u8>)>,
}

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

/// A read in flight.
#[derive(Clone, Copy, Debug)]
struct Asked {
    replica: ReplicaId,
    chunk: ChunkKey,
    range: SectorRange,
    /// True if the engine had reported the replica as damaged before the read.
    of_damaged: bool,
}

pub struct Rig {
    world: World,
    node: NodeId,
    env: SimEnv,
    pub(super) engine: Engine,
    config: EngineConfig,
    pub(super) models: BTreeMap<ReplicaId, Model>,
    ops: Vec<Op>,
    events: Vec<Event>,
    ticket: u64,
    reads: BTreeMap<u64, Asked>,
    /// True after the first flip, because home stays damaged.
    rotten: bool,
    /// True after reads could fail. A destage that cannot read damages its replica, and the damage is kept.
    unread: bool,
    damage: Damage,
    pub(super) poisoned: bool,
    /// True if some mount may have lost a tail. Home may then be older than the model.
    pub(super) doubtful: bool,
    /// True if peers repair the damage.
    helped: bool,
    dead: bool,
    mounted: Option<Vec<Recovered>>,
    mount_failed: Option<MountError>,
    staged: u64,
    unstaged: bool,
    installed: Option<Recovered>,
    refused: bool,
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
    pub checked_reads: u64,
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
            overlay_payload_max: if settings & 16 == 0 { 256 << 20 } else { 1 << 20 },
            ..EngineConfig::default()
        };
        let (env, engine) = Rig::boot(&world, node, &config);
        let mut rig = Rig {
            world,
            node,
            env,
            engine,
            config,
            models: BTreeMap::new(),
            ops: Vec::new(),
            events: Vec::new(),
            ticket: 0,
            reads: BTreeMap::new(),
            rotten: false,
            unread: false,
            damage: Damage::default(),
            poisoned: false,
            doubtful: false,
            helped: settings & 32 == 0,
            dead: false,
            mounted: None,
            mount_failed: None,
            staged: 0,
            unstaged: false,
            installed: None,
            refused: false,
            next_replica: 1,
            names: [ReplicaId(1), ReplicaId(2), ReplicaId(3)],
            maps: vec![Vec::new()],
            unborn: BTreeSet::new(),
            dying: BTreeSet::new(),
            refilled: BTreeSet::new(),
            spoilt: BTreeSet::new(),
            ailing: Vec::new(),
            checked_reads: 0,
            help: Help::default(),
        };
        rig.mount();
        assert!(rig.mounted.take().is_some_and(|found| found.is_empty()), "a formatted device mounts");
        rig
    }

    /// Starts the engine and turns until the mount ends. Nothing else is asked of the engine meanwhile.
    fn mount(&mut self) {
        self.engine.start(self.env.now(), &mut self.ops);
        for _ in 0..SETTLE_MAX {
            if self.mounted.is_some() || self.mount_failed.is_some() {
                return;
            }
            self.turn(1);
        }
        panic!("a mount does not end");
    }

    fn boot(world: &World, node: NodeId, config: &EngineConfig) -> (SimEnv, Engine) {
        let mut env = world.env(node);
        let spec = DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false };
        let disk = env.open_disk(&spec).expect("the lock died with the process");
        let seed = env.random();
        let engine = Engine::new(config.clone(), disk, IDS, seed);
        (env, engine)
    }

    /// Returns whether the test can go on; it ends with a device that no longer mounts.
    pub fn lives(&self) -> bool {
        !self.dead
    }

    fn name(&self, replica: ReplicaId) -> ReplicaId {
        self.names[replica.0 as usize - 1]
    }

    /// Returns the model of a replica, unless the store is poisoned or the replica is damaged.
    fn sound(&mut self, replica: ReplicaId) -> Option<&mut Model> {
        let name = self.name(replica);
        if self.poisoned { None } else { self.models.get_mut(&name).filter(|m| !m.damaged) }
    }

    pub fn create(&mut self, replica: ReplicaId) {
        if self.poisoned {
            return;
        }
        let id = ReplicaId(self.next_replica);
        self.next_replica += 1;
        self.names[replica.0 as usize - 1] = id;
        let bytes = decision_bytes(id, Index(0));
        self.engine.create_replica(identity(id), DecisionState { replica: id, index: Index(0), term: Term(0), bytes });
        self.models.insert(id, Model::new(id));
        self.unborn.insert(id);
        // The create must be durable before the replica is used.
        self.settle();
        if self.engine.is_in_doubt() {
            // The store waits for peers, and the rig has none that answer here.
            self.models.remove(&id);
            self.dying.insert(id);
        }
    }

    pub fn destroy_and_create(&mut self, replica: ReplicaId, dice: u8) {
        if self.poisoned || dice < 128 {
            return;
        }
        let id = self.name(replica);
        self.engine.destroy_replica(id);
        self.dying.insert(id);
        self.models.remove(&id);
        self.reads.retain(|_, asked| asked.replica != id);
        self.create(replica);
    }

    pub fn append(&mut self, replica: ReplicaId, back: u64, effects: Vec<Effect>) {
        if self.engine.pressure().max() >= 1.0 {
            return;
        }
        self.ticket += 1;
        let ticket = self.ticket;
        let Some(model) = self.sound(replica) else { return };
        let from = (model.last() + 1).saturating_sub(back).max(model.hard_state.commit.0 + 1);
        model.make(from, effects);
        let entries = (from..=model.last()).map(|i| model.entry(i)).collect();
        model.tickets.push((ticket, model.last(), model.hard_state.commit.0));
        let persist = Persist { replica: model.replica, ticket, hard_state: Some(model.hard_state), entries };
        self.engine.append(persist);
    }

    /// Commits the durable entries and applies them.
    pub fn commit(&mut self, replica: ReplicaId) {
        let Some(model) = self.sound(replica) else { return };
        let to = model.durable;
        if to <= model.hard_state.commit.0 || model.reading > 0 {
            return;
        }
        model.hard_state.commit = Index(to);
        let id = model.replica;
        while self.models[&id].applied < to {
            let model = self.models.get_mut(&id).expect("it was just seen");
            let effect = model.apply();
            let index = Index(model.applied);
            self.engine.apply(id, index, effect);
        }
    }

    pub fn read(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let id = self.name(replica);
        let Some(model) = self.models.get_mut(&id) else { return };
        model.reading += 1;
        self.ticket += 1;
        let of_damaged = model.damaged;
        self.reads.insert(self.ticket, Asked { replica: id, chunk, range, of_damaged });
        let mut out = Vec::new();
        self.engine.read(self.ticket, id, chunk, range, &mut out);
        self.take(out);
    }

    pub fn round(&mut self) {
        if self.poisoned || self.mounted.is_some() {
            return;
        }
        let states = self.models.values().filter(|m| !m.damaged).map(Model::decision).collect();
        self.engine.begin_round(self.env.now(), states);
    }

    /// Turns the loop once, and then once more for each of up to `completions` events of the world.
    pub fn turn(&mut self, completions: u32) {
        self.end_turn();
        for _ in 0..completions {
            let Some(next) = self.world.next_event_time() else { break };
            self.world.advance_to(next);
            self.end_turn();
        }
    }

    /// Delivers events, runs the engine and submits its operations, as the loop of an OSD does.
    fn end_turn(&mut self) {
        self.exchange();
        let now = self.env.now();
        for event in std::mem::take(&mut self.events) {
            let mut out = Vec::new();
            self.engine.handle_event(now, event, &mut self.ops, &mut out);
            self.take(out);
        }
        if self.engine.wants_round(now) {
            self.round();
        }
        let mut out = Vec::new();
        self.engine.end_turn(now, &mut self.ops, &mut out);
        self.take(out);
        self.exchange();
    }

    fn exchange(&mut self) {
        let deadline = self.engine.next_deadline();
        self.env.turn(&mut self.ops, &mut self.events, deadline).expect("a simulated ring does not fail");
    }

    pub fn pass(&mut self, time: Duration) {
        self.world.advance_to(self.world.now() + time);
        self.turn(4);
    }

    fn is_at_rest(&self) -> bool {
        self.ops.is_empty() && self.events.is_empty() && self.world.next_event_time().is_none()
    }

    /// Turns until the engine is at rest and the log is sealed.
    pub fn settle(&mut self) {
        for _ in 0..SETTLE_MAX {
            self.turn(16);
            if !self.is_at_rest() {
                continue;
            }
            let deadline = self.world.local_to_global(self.node, self.engine.next_deadline());
            // A destage that waits for an idle time is not awaited.
            if deadline > self.world.now() + Duration::from_millis(15) {
                return;
            }
            self.world.advance_to(deadline.max(self.world.now() + Duration::from_micros(10)));
        }
        let (now, due) = (self.env.now(), self.engine.next_deadline());
        panic!("the engine does not come to rest: {now:?}, due {due:?}, {:?}", self.engine.stats());
    }

    pub fn check_all(&mut self) {
        for n in 1..=3 {
            for chunk in chunks() {
                self.read(ReplicaId(n), chunk, SectorRange::new(0, SECTORS));
            }
        }
        self.settle();
        assert!(self.reads.is_empty() || self.poisoned, "every read is answered");
    }

    pub fn set_map(&mut self, dice: u8) {
        if !self.poisoned {
            let map = vec![dice; usize::from(dice)];
            self.engine.set_map(map.clone().into());
            self.settle();
            if !self.poisoned {
                self.maps.clear();
            }
            self.maps.push(map);
        }
    }

    pub fn flip(&mut self, place: u32, bit: u8) {
        // Some areas are small ones at the head of the log and of home, which are in use.
        let superblock = device_image().0;
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
        let sealed = bit < 128 && !self.poisoned;
        if sealed {
            self.settle();
        }
        self.world.disk_image(self.node, DEVICE).flip_bit(start + u64::from(place / 8) % len, bit);
        self.damage.flips += 1;
        self.damage.tail_in_doubt |= self.damage.flips > 1 || self.rotten || !sealed || self.poisoned;
        self.rotten = true;
    }

    /// Makes the n-th read, write or flush from now fail, or makes random reads fail from now on.
    pub fn fail(&mut self, what: u32, n: u32) {
        self.world.disk_faults(self.node, DEVICE, |faults| match what {
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

    fn mend_disk(&mut self) {
        self.world.disk_faults(self.node, DEVICE, |faults| {
            (faults.fail_read, faults.fail_write, faults.fail_flush, faults.read_error_ppm) = (None, None, None, 0);
        });
    }

    pub fn crash(&mut self, power: bool) {
        if power {
            self.world.power_cut(self.node);
        } else {
            self.world.crash(self.node);
        }
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
        self.world.crash(self.node);
        self.mend_disk();
        self.ops.clear();
        self.events.clear();
        self.reads.clear();
        self.models.values_mut().for_each(|m| m.reading = 0);
        self.config.after_poison = std::mem::take(&mut self.poisoned);
        (self.env, self.engine) = Rig::boot(&self.world, self.node, &self.config);
        (self.mounted, self.mount_failed) = (None, None);
        self.mount();
        let damage = std::mem::take(&mut self.damage);
        self.doubtful |= damage.tail_in_doubt;
        (self.refilled, self.spoilt) = Default::default();
        if let Some(why) = self.mount_failed.take() {
            assert!(self.rotten, "a sound device does not mount: {why}");
            self.dead = true;
            return;
        }
        let found = self.mounted.take().expect("a mount ends");
        let here: Vec<ReplicaId> = found.iter().map(|r| r.identity.replica).collect();
        for id in std::mem::take(&mut self.unborn) {
            if !here.contains(&id) {
                self.models.remove(&id);
            }
        }
        let lost: Vec<ReplicaId> = self.models.keys().filter(|id| !here.contains(id)).copied().collect();
        let map = self.engine.map().to_vec();
        // A create record in a log gap is lost with it, and the store reports that. A map may be lost in the same way.
        let in_doubt = damage.tail_in_doubt || self.rotten && self.engine.lost_records().is_some();
        let births = damage.tail_in_doubt || self.rotten && self.engine.is_in_doubt();
        if in_doubt {
            // Creates and destroys in the lost tail are undone. A replica without a model is not compared.
            lost.iter().for_each(|id| drop(self.models.remove(id)));
            self.maps = vec![map.clone()];
        }
        assert!(births || lost.is_empty(), "{lost:?} are gone");
        assert!(self.maps.contains(&map), "the map is another");
        self.maps = vec![map];
        for recovered in found {
            self.check_recovered(recovered, damage);
        }
        for (model, recovered) in std::mem::take(&mut self.ailing) {
            match recovered.in_doubt {
                true if recovered.lost.is_empty() => self.end_doubt(model, recovered, damage),
                true => drop(self.dying.insert(recovered.identity.replica)),
                false => self.refill(model, recovered, damage),
            }
        }
        self.check_all();
    }

    /// Checks recovered state against the model. Afterwards model and engine stand at the same index.
    pub(super) fn check_recovered(&mut self, found: Recovered, damage: Damage) {
        let replica = found.identity.replica;
        let Some(model) = self.models.get_mut(&replica) else {
            let undone = damage.tail_in_doubt || self.dying.contains(&replica);
            self.dying.insert(replica);
            assert!(undone, "{replica} was destroyed");
            return;
        };
        if let Some(reason) = &found.damage {
            assert!(self.rotten || self.unread, "{replica} is damaged on a sound disk: {reason}");
            model.damaged = true;
            return;
        }
        if !found.lost.is_empty() || found.in_doubt {
            // The replica names the lost payloads and waits for its peers.
            assert!(self.rotten, "{replica} has lost payload on a sound disk: {:?}", found.lost);
            let model = self.models.remove(&replica).expect("it was just seen");
            if self.helped {
                self.ailing.push((model, found));
            } else {
                self.dying.insert(replica);
            }
            return;
        }
        // Damage that was found while the engine ran is found again, or the damaged data is not read any more.
        model.damaged = false;
        assert_eq!(found.identity, identity(replica));
        let k = found.checkpoint.index;
        let last = (found.before.0.0 + found.entries.len() as u64).max(k.0);
        let commit = found.hard_state.commit.0;
        assert!(k.0 <= commit && commit <= last, "K {k}, commit {commit}, last {last}");
        assert!(found.before.0 <= k, "entries begin at or below K");
        if !damage.tail_in_doubt {
            assert!(last >= model.durable, "{replica}: {} was acknowledged, {last} came back", model.durable);
            assert!(commit >= model.durable_commit, "{replica}: commit {} came back as {commit}", model.durable_commit);
        }
        assert_eq!(found.checkpoint.bytes, decision_bytes(replica, k), "decision state is exact as of K");
        for (n, entry) in found.entries.iter().enumerate() {
            let index = found.before.0.0 + 1 + n as u64;
            let genuine = model.entry_of(index, entry.term);
            assert!(genuine.as_ref() == Some(entry), "{replica}: entry {index} was never appended so");
            let known = model.made.get(index as usize - 1).is_some_and(|m| m.term == entry.term);
            if known {
                continue;
            }
            assert!(index > model.durable || damage.tail_in_doubt, "acknowledged entry {index} is another");
            model.made.truncate(index as usize - 1);
            assert_eq!(model.last() + 1, index, "{replica}: nothing stands before entry {index}");
            model.made.push(Made { term: entry.term, effect: model.history[&(index, entry.term)] });
        }
        model.made.truncate(last as usize);
        assert_eq!(model.last(), last, "{replica}: entries are missing");
        assert_eq!(found.before.1, model.term_at(found.before.0.0), "term before the entries of {replica}");
        assert_eq!(found.checkpoint.term, model.term_at(k.0));
        model.tickets.clear();
        (model.durable, model.durable_commit) = (last, commit);
        model.hard_state = found.hard_state;
        model.term = model.term.max(found.hard_state.term);
        // The model applies all entries, and the engine those above the checkpoint index.
        model.sectors.clear();
        model.applied = 0;
        for index in 1..=commit {
            let effect = self.models.get_mut(&replica).expect("it was just seen").apply();
            if index > k.0 {
                self.engine.apply(replica, Index(index), effect);
            }
        }
    }

    /// Returns the current contents of the device.
    pub fn image(&self) -> Story {
        let image = self.world.disk_image(self.node, DEVICE);
        let mut pages = Vec::new();
        for at in (0..DISK_LEN).step_by(4096) {
            let mut page = vec![0; 4096];
            image.read(at, &mut page);
            if page.iter().any(|b| *b != 0) {
                pages.push((at, page));
            }
        }
        Story { device_bytes: DISK_LEN, ids: IDS, pages }
    }

    /// Installs a stream that adds `effects` to a replica; the log of the replica never sees them.
    pub fn stream(&mut self, replica: ReplicaId, effects: Vec<Effect>, dice: u8) {
        self.settle();
        let Some(old) = self.sound(replica).cloned() else { return };
        let id = old.replica;
        let mut new = old.clone();
        new.made.truncate(new.applied as usize);
        new.term = Term(old.term.0 + 3);
        for effect in effects {
            new.made.push(Made { term: new.term, effect });
            new.history.insert((new.last(), new.term), effect);
            new.apply();
        }
        let term = new.hard_state.term.max(new.term);
        new.hard_state = HardState { term, vote: None, commit: Index(new.applied) };
        (new.durable, new.durable_commit) = (new.applied, new.applied);
        new.tickets.clear();
        if !self.stage_all(&new) || dice < 40 {
            return self.engine.unstage(id);
        }
        (self.installed, self.refused) = (None, false);
        self.engine.install(new.decision());
        // The group of the replica does not run meanwhile.
        self.models.remove(&id);
        if dice < 120 {
            // The process dies during the installation: the replica is the old one or the new one.
            self.turn(u32::from(dice % 32));
            return self.die_while_installing(old, new, dice);
        }
        self.settle();
        match self.installed.take() {
            Some(found) => {
                self.models.insert(id, new);
                self.check_recovered(found, Damage::default());
            }
            None if self.refused => drop(self.models.insert(id, old)),
            None => {
                assert!(self.poisoned || self.rotten || self.damage.read_errors, "it has no end");
                // The installation was not reported, so it may have happened or not.
                self.die_while_installing(old, new, dice);
            }
        }
    }

    fn die_while_installing(&mut self, old: Model, new: Model, dice: u8) {
        let came = self.installed.take().is_some();
        if dice & 1 == 0 {
            self.world.power_cut(self.node);
        } else {
            self.world.crash(self.node);
        }
        // The replica that comes back selects its model.
        let id = old.replica;
        let candidate = if came { new.clone() } else { old };
        self.models.insert(id, candidate);
        self.restart_as(id, new);
    }

    /// Restarts like [`Rig::restart`], but the replica may also match `other`.
    fn restart_as(&mut self, id: ReplicaId, other: Model) {
        self.world.crash(self.node);
        self.mend_disk();
        let config = EngineConfig { after_poison: self.poisoned, ..self.config.clone() };
        let (mut env, mut probe) = Rig::boot(&self.world, self.node, &config);
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
            match self.world.next_event_time() {
                Some(next) if ops.is_empty() => self.world.advance_to(next),
                _ => probe.end_turn(env.now(), &mut ops, &mut out),
            }
        };
        let found = mounted.iter().flatten().find(|r| r.identity.replica == id);
        if found.is_some_and(|r| r.checkpoint.index.0 >= other.applied && r.damage.is_none()) {
            self.models.insert(id, other);
        }
        drop((env, probe));
        self.restart();
    }

    /// Stages everything that `new` holds. Returns false if there was no room.
    fn stage_all(&mut self, new: &Model) -> bool {
        self.unstaged = false;
        for chunk in chunks() {
            let range = SectorRange::new(0, SECTORS);
            let bytes = new.expected(chunk, range);
            let data = bytes.iter().any(|b| *b != 0).then(|| (IoBuf::copy_of(&bytes), range.fragment_crcs(&bytes)));
            self.ticket += 1;
            if !self.engine.stage(self.ticket, new.replica, chunk, range, data) {
                return false;
            }
            let before = self.staged;
            self.settle();
            if self.staged == before || self.unstaged || self.poisoned {
                return false;
            }
        }
        true
    }

    fn take(&mut self, events: Vec<EngineEvent>) {
        for event in events {
            match event {
                EngineEvent::Mounted(recovered) => self.mounted = Some(recovered),
                EngineEvent::MountFailed(error) => self.mount_failed = Some(error),
                EngineEvent::Persisted { replica, ticket, .. } => self.persisted(replica, ticket),
                EngineEvent::ReadDone { token, result } => self.read_done(token, result),
                EngineEvent::Staged { .. } => self.staged += 1,
                EngineEvent::Unstaged { .. } => self.unstaged = true,
                EngineEvent::Installed(recovered) => self.installed = Some(*recovered),
                EngineEvent::InstallRefused { .. } => self.refused = true,
                EngineEvent::Damaged { replica, reason } => {
                    assert!(self.rotten || self.unread, "{replica} is damaged on a sound disk: {reason}");
                    self.spoilt.insert(replica);
                    if let Some(model) = self.models.get_mut(&replica) {
                        model.damaged = true;
                    }
                }
                EngineEvent::Poisoned(reason) => {
                    let failed = self.damage.write_errors || self.damage.read_errors;
                    assert!(failed, "poisoned without a failure: {reason}");
                    self.poisoned = true;
                }
                EngineEvent::MapKept(_) => {}
                EngineEvent::Created(replica) => drop(self.unborn.remove(&replica)),
                EngineEvent::Destroyed(replica) => drop(self.dying.remove(&replica)),
                EngineEvent::BadBlocks { replica, chunk, range, reason, needed } => {
                    assert!(self.rotten || self.unread, "{replica} has bad blocks on a sound disk: {reason}");
                    if self.helped && (self.mend(replica, chunk, range) || !needed) {
                        continue;
                    }
                    // No peer repairs the blocks.
                    self.engine.mark_damaged(replica, reason);
                    if let Some(model) = self.models.get_mut(&replica) {
                        model.damaged = true;
                    }
                }
                EngineEvent::CutBack { replica, .. } => panic!("{replica} takes part"),
                EngineEvent::Refilled { replica } => {
                    assert!(!self.models.contains_key(&replica), "{replica} was given nothing");
                    self.refilled.insert(replica);
                }
                EngineEvent::Checkpointed(_) => {}
            }
        }
    }

    fn persisted(&mut self, replica: ReplicaId, ticket: u64) {
        assert!(!self.poisoned, "an acknowledgement after the poison");
        let Some(model) = self.models.get_mut(&replica) else { return };
        let at = model.tickets.iter().position(|t| t.0 == ticket).expect("each ticket comes back once");
        assert_eq!(at, 0, "tickets come back in order");
        let (_, last, commit) = model.tickets.remove(0);
        model.durable = model.durable.max(last);
        model.durable_commit = model.durable_commit.max(commit);
    }

    fn read_done(&mut self, token: u64, result: Result<ReadData, ReadError>) {
        let Some(Asked { replica, chunk, range, of_damaged }) = self.reads.remove(&token) else { return };
        let model = self.models.get_mut(&replica).expect("reads of what is gone were forgotten");
        model.reading -= 1;
        let data = match result {
            Ok(data) => data,
            Err(why) => {
                let excused = model.damaged
                    || match &why {
                        ReadError::Damaged { .. } => self.rotten,
                        ReadError::BadBlocks { .. } => self.rotten || self.unread,
                        ReadError::Poisoned => self.poisoned,
                        ReadError::NoReplica(_) => false,
                    };
                assert!(excused, "{replica} {chunk} {range}: {why} on a sound disk");
                return;
            }
        };
        assert!(!of_damaged, "{replica} is damaged and answers");
        self.checked_reads += 1;
        let want = model.expected(chunk, range);
        match data {
            ReadData::Zeros => assert!(want.iter().all(|b| *b == 0), "{replica} {chunk} {range}: zeros"),
            ReadData::Bytes { crcs, payload } => {
                assert!(*payload == want[..], "{replica} {chunk} {range}: other bytes");
                assert!(range.verify(&payload, &crcs), "{replica} {chunk} {range}: CRCs");
            }
        }
    }
}
