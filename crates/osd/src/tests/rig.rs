//! A few OSDs in one simulated world. A test plays both meta and the client: it names the PGs, attaches a volume,
//! passes requests to the leader and compares the contents of the OSDs.
//!
//! Invariant: one seed decides everything; time passes only in [`Rig::run`] and [`Rig::until`].

use crate::node::Osd;
use crate::{OsdConfig, Phase};
use bus::LinkId;
use env::{DiskInfo, DiskSpec, Env, EnvError, Event, ListenerId, NetAddr, Op, Waker};
use simenv::{NodeId, SimEnv, World};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use telemetry::Registry;
use types::control::{Attach, OsdDown};
use types::map::{Member, OsdAddr, PgMap};
use types::units::SECTORS_PER_BLOCK;
use types::writers::Writers;
use types::{
    ClusterId, Epoch, GenerationId, Incarnation, IoBuf, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SectorRange,
    SessionId, Time, VolumeChunk, VolumeId,
};
use wire::{Request, RequestBody};

const DEVICE: &str = "device";
const CLUSTER: ClusterId = ClusterId([7; 16]);
pub const SESSION: SessionId = SessionId(1);
pub const EPOCH: Epoch = Epoch(1);
const VOLUME: VolumeId = VolumeId(1);
/// A link without a peer: replies are dropped, the metrics count them.
const NOBODY: LinkId = LinkId(u64::MAX);
/// Deadline for events that must happen.
pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn pg(n: u32) -> PgId {
    PgId { pool: PoolId(1), n }
}

struct Machine {
    node: NodeId,
    life: u64,
    running: Option<(Osd, SimEnv)>,
    registry: Registry,
    /// The device carries the mark of an older copy.
    behind: bool,
}

pub(super) struct Rig {
    pub world: World,
    machines: Vec<Machine>,
    next_seq: BTreeMap<PgId, u64>,
    next_id: u64,
}

pub(super) fn addr_of(i: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, i as u8 + 1)), 7400)
}

fn spec() -> DiskSpec {
    DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false }
}

impl Rig {
    /// Makes OSDs on devices of 1 GiB, each with a log of the given MiB.
    pub fn new<const N: usize>(seed: u64, log_mib: [u64; N]) -> Rig {
        let world = World::new(seed);
        let machines = log_mib.iter().enumerate().map(|(i, log_mib)| Machine {
            node: format_machine(&world, i, *log_mib),
            life: 0,
            running: None,
            registry: Registry::default(),
            behind: false,
        });
        let machines = machines.collect();
        let mut rig = Rig { world, machines, next_seq: BTreeMap::new(), next_id: 0 };
        rig.all().for_each(|i| rig.start(i));
        rig
    }

    /// Returns the numbers of all OSDs, running or not.
    pub fn all(&self) -> std::ops::Range<usize> {
        0..self.machines.len()
    }

    pub fn start(&mut self, i: usize) {
        self.start_waiting(i, Duration::ZERO, false);
        self.welcome(i);
    }

    /// Sends meta's answer to a hello, with the addresses of all OSDs.
    pub fn welcome(&mut self, i: usize) {
        let addrs = self.all().map(|n| OsdAddr { osd: OsdId(n as u32 + 1), addr: addr_of(n) }).collect();
        self.tell(i, OsdDown::Welcome { map_epoch: EPOCH, osds: addrs });
    }

    /// Starts an OSD that waits to be let in; the test sends meta's message.
    pub fn start_waiting(&mut self, i: usize, let_in_wait: Duration, after_restore: bool) {
        let machine = &mut self.machines[i];
        machine.life += 1;
        let mut env = self.world.env(machine.node);
        let disk = env.open_disk(&spec()).expect("the lock died with the process");
        let config = OsdConfig {
            cluster: CLUSTER,
            osd: OsdId(i as u32 + 1),
            uuid: OsdUuid([i as u8; 16]),
            incarnation: Incarnation(machine.life),
            listen: NetAddr::Tcp(addr_of(i)),
            advertise: None,
            http: None,
            host: Some(String::new()),
            rack: None,
            zone: None,
            engine: engine::EngineConfig { after_restore, ..engine::EngineConfig::default() },
            version: String::new(),
            behind: machine.behind,
            timing: group::Timing::default(),
            tuning: crate::OsdTuning { let_in_wait, ..crate::OsdTuning::default() },
            lease_reads: true,
        };
        let seed = env.random();
        machine.registry = Registry::default();
        machine.running = Some((Osd::new(config, disk, &machine.registry, seed), env));
        self.turn(i);
    }

    pub fn mark_behind(&mut self, i: usize, behind: bool) {
        self.machines[i].behind = behind;
    }

    pub fn slow_disk(&mut self, i: usize, factor: u32) {
        self.world.disk_faults(self.machines[i].node, DEVICE, |faults| faults.slow = factor);
    }

    /// Slows down by this factor every read that the device takes from now on.
    pub fn slow_reads(&mut self, i: usize, factor: u32) {
        self.world.disk_faults(self.machines[i].node, DEVICE, |faults| faults.slow_reads = factor);
    }

    /// Makes the device take operations and answer none, or go on.
    pub fn stick_disk(&mut self, i: usize, stuck: bool) {
        self.world.disk_faults(self.machines[i].node, DEVICE, |faults| faults.stuck = stuck);
    }

    /// Makes every read of the device fail, or none.
    pub fn fail_reads(&mut self, i: usize, fail: bool) {
        let ppm = if fail { 1_000_000 } else { 0 };
        self.world.disk_faults(self.machines[i].node, DEVICE, |faults| faults.read_error_ppm = ppm);
    }

    /// Makes the next write of the device fail.
    pub fn fail_write(&mut self, i: usize) {
        self.world.disk_faults(self.machines[i].node, DEVICE, |faults| faults.fail_write = Some(0));
    }

    /// Flips a bit in every page of a part of the device.
    pub fn spoil(&mut self, i: usize, bytes: std::ops::Range<u64>) {
        let image = self.world.disk_image(self.machines[i].node, DEVICE);
        bytes.step_by(4096).for_each(|page| image.flip_bit(page + 100, 3));
    }

    /// Crashes the process as `kill -9` does.
    pub fn kill(&mut self, i: usize) {
        self.world.crash(self.machines[i].node);
        self.machines[i].running = None;
    }

    /// Holds bytes between the two OSDs back, or lets them go on.
    pub fn cut(&self, a: usize, b: usize, cut: bool) {
        match cut {
            true => self.world.partition(self.node(a), self.node(b), simenv::Cut::Both),
            false => self.world.heal(self.node(a), self.node(b)),
        }
    }

    pub fn node(&self, i: usize) -> NodeId {
        self.machines[i].node
    }

    /// Returns the metrics of an OSD's latest run.
    pub fn registry(&self, i: usize) -> &Registry {
        &self.machines[i].registry
    }

    pub fn is_up(&self, i: usize) -> bool {
        self.machines[i].running.is_some()
    }

    /// Returns a running OSD.
    pub fn osd(&mut self, i: usize) -> &mut Osd {
        &mut self.machines[i].running.as_mut().expect("it runs").0
    }

    /// Passes a message of meta to the OSD.
    pub fn tell(&mut self, i: usize, down: OsdDown) {
        self.osd(i).handle_control(down);
        self.turn(i);
    }

    /// Runs turns of one OSD until it has no more events.
    pub fn turn(&mut self, i: usize) {
        let Some((osd, env)) = &mut self.machines[i].running else { return };
        loop {
            osd.work(env).and_then(|()| osd.wait(env)).expect("the world goes on");
            if !osd.has_events() {
                return;
            }
        }
    }

    /// Runs one turn of an OSD, at whose end its clock shows `took` more than at its start.
    pub fn turn_slowly(&mut self, i: usize, took: Duration) {
        let (osd, env) = self.machines[i].running.as_mut().expect("it runs");
        let mut slow = SlowEnv { env, took, asked: Cell::new(false) };
        osd.work(&mut slow).and_then(|()| osd.wait(&mut slow)).expect("the world goes on");
    }

    fn step(&mut self, until: Time) {
        let next = self.world.next_turn_time().map_or(until, |t| t.min(until));
        self.world.advance_to(next.max(self.world.now()));
        for node in self.world.ready_nodes() {
            let i = self.machines.iter().position(|m| m.node == node).expect("every node is a machine");
            self.turn(i);
        }
    }

    /// Advances time.
    pub fn run(&mut self, span: Duration) {
        let end = self.world.now() + span;
        while self.world.now() < end {
            self.step(end);
        }
    }

    /// Advances time until the condition holds; returns the time that it took.
    ///
    /// # Panics
    /// When it takes longer than `max`.
    pub fn until(&mut self, max: Duration, what: &str, mut so: impl FnMut(&mut Rig) -> bool) -> Duration {
        let begun = self.world.now();
        while !so(self) {
            assert!(self.world.now() < begun + max, "{what}: not within {max:?}");
            self.step(begun + max);
        }
        Duration::from_nanos(self.world.now().since(begun).as_nanos() as u64)
    }

    /// Makes PGs 0 to `count`, with a replica on each OSD, led and attached.
    pub fn make_pgs(&mut self, count: u32) {
        self.until(LONG, "all serve", |rig| rig.all().all(|i| *rig.osd(i).phase() == Phase::Running));
        for n in 0..count {
            let size = self.machines.len() as u64;
            let member = |i: u64| Member { replica: ReplicaId(u64::from(n) * size + i + 1), osd: OsdId(i as u32 + 1) };
            let members = (0..size).map(member).collect();
            let map = PgMap { pg: pg(n), conf_epoch: EPOCH, members };
            self.all().for_each(|i| self.ensure(i, &map));
        }
        (0..count).for_each(|n| self.attach(pg(n)));
        self.run(ms(500));
    }

    /// Attaches the volume in a PG.
    pub fn attach(&mut self, pg: PgId) {
        self.attach_again(pg, 1);
    }

    pub fn attach_again(&mut self, pg: PgId, order: u64) {
        let leader = self.leader(pg);
        let (volume, head) = (VOLUME, GenerationId::first_of(VOLUME));
        let attach = Attach {
            order,
            volume,
            writers: Writers::one(SESSION, EPOCH),
            epoch: EPOCH,
            chunk_count: 64,
            len_epoch: 0,
            head,
            base: None,
        };
        self.tell(leader, OsdDown::Attach { pg, attach });
    }

    /// Attaches so many other volumes in a PG.
    pub fn attach_others(&mut self, pg: PgId, count: u64) {
        for n in 0..count {
            let (leader, volume) = (self.leader(pg), VolumeId(VOLUME.0 + 1 + n));
            let head = GenerationId::first_of(volume);
            let attach = Attach {
                order: 100 + n,
                volume,
                writers: Writers::one(SESSION, EPOCH),
                epoch: EPOCH,
                chunk_count: 64,
                len_epoch: 0,
                head,
                base: None,
            };
            self.tell(leader, OsdDown::Attach { pg, attach });
            self.run(ms(1));
        }
        self.run(ms(100));
    }

    /// Whether a stream has brought a follower of the PG back.
    pub fn is_streamed(&mut self, pg: PgId) -> bool {
        let leader = self.leader(pg);
        self.osd(leader).streams_sent().0 > 0
    }

    /// Lets OSD `i` create its replica of a PG.
    pub fn ensure(&mut self, i: usize, created: &PgMap) {
        let replica = created.members.iter().find(|m| m.osd.0 as usize == i + 1).expect("it is a member").replica;
        self.tell(i, OsdDown::EnsureReplica { created: created.clone(), replica });
    }

    /// Waits until an OSD leads the PG and serves, and returns it.
    pub fn leader(&mut self, pg: PgId) -> usize {
        let mut found = None;
        self.until(LONG, "a leader", |rig| {
            found = rig.all().find(|i| rig.is_up(*i) && rig.serves(*i, pg));
            found.is_some()
        });
        found.expect("it was waited for")
    }

    fn serves(&mut self, i: usize, pg: PgId) -> bool {
        let report = self.osd(i).reports_for_tools().into_iter().find(|r| r.pg == pg);
        report.and_then(|r| r.leading).is_some_and(|lead| lead.active)
    }

    /// Makes OSD `i` the leader of every PG.
    pub fn lead_all(&mut self, i: usize, count: u32) {
        for n in 0..count {
            for attempt in 0.. {
                assert!(attempt < 50, "leadership is never handed over");
                let leader = self.leader(pg(n));
                if leader == i {
                    break;
                }
                self.tell(leader, OsdDown::TransferLeader { pg: pg(n), to: OsdId(i as u32 + 1) });
                self.run(ms(200));
            }
        }
    }

    /// Gives the next write of the PG this number. The client has finished every lower one.
    pub fn skip_to(&mut self, pg: PgId, seq: u64) {
        self.next_seq.insert(pg, seq - 1);
    }

    /// Sends a write of whole blocks to the leader. It is not repeated when it is refused or lost.
    pub fn submit(&mut self, pg: PgId, chunk: u32, block: u32, blocks: u32) {
        self.submit_sectors(pg, chunk, SectorRange::new(block * SECTORS_PER_BLOCK, blocks * SECTORS_PER_BLOCK));
    }

    /// Sends a write of these sectors to the leader. It is not repeated when it is refused or lost.
    pub fn submit_sectors(&mut self, pg: PgId, chunk: u32, range: SectorRange) {
        let leader = self.leader(pg);
        let seq = self.next_seq.entry(pg).or_insert(0);
        *seq += 1;
        let (seq, id) = (*seq, self.next_id);
        self.next_id += 1;
        let payload = IoBuf::copy_of(&vec![id as u8 | 1; range.len_bytes()]);
        let crcs = range.fragment_crcs(&payload);
        let chunk = VolumeChunk { volume: VOLUME, index: chunk };
        let body = RequestBody::Write { chunk, range, seq, watermark: seq, crcs, payload };
        let request = Request { id, pg, session: SESSION, epoch: EPOCH, body };
        self.osd(leader).handle_request(NOBODY, request);
        self.turn(leader);
    }

    /// Sends a read of blocks of the first chunk to the leader; the answer is dropped.
    pub fn ask_read(&mut self, pg: PgId, block: u32, blocks: u32) {
        self.give_read(pg, block, blocks);
        let leader = self.leader(pg);
        self.turn(leader);
    }

    /// Does the same as [`Rig::ask_read`], but the request waits for the leader's next turn.
    pub fn give_read(&mut self, pg: PgId, block: u32, blocks: u32) {
        self.give_read_of(pg, 0, block, blocks);
    }

    /// Passes a read of blocks to the leader; the answer is dropped.
    pub fn give_read_of(&mut self, pg: PgId, index: u32, block: u32, blocks: u32) {
        let leader = self.leader(pg);
        let id = self.next_id;
        self.next_id += 1;
        let range = SectorRange::new(block * SECTORS_PER_BLOCK, blocks * SECTORS_PER_BLOCK);
        let body = RequestBody::Read { chunk: VolumeChunk { volume: VOLUME, index }, range, snapshot: None };
        self.osd(leader).handle_request(NOBODY, Request { id, pg, session: SESSION, epoch: EPOCH, body });
    }

    /// Writes, and waits for the acknowledgement; repeats the write when it is refused.
    pub fn write(&mut self, pg: PgId, chunk: u32, block: u32, blocks: u32) {
        for attempt in 0.. {
            assert!(attempt < 500, "a write is never taken: {:?}", self.osd(0).reports_for_tools());
            let leader = self.leader(pg);
            let before = self.answered(leader);
            self.submit(pg, chunk, block, blocks);
            self.until(LONG, "an answer", |rig| !rig.is_up(leader) || rig.answered(leader) != before);
            if self.is_up(leader) && self.answered(leader).0 > before.0 {
                return;
            }
            self.run(ms(20));
        }
    }

    /// Writes `mib` MiB in parts of 512 KiB, from the start of the volume.
    pub fn fill(&mut self, pg: PgId, mib: u32) {
        for part in 0..mib * 2 {
            self.write(pg, part / 32, part % 32 * 128, 128);
        }
    }

    /// Counts the requests of this process: (acknowledged, refused).
    pub fn answered(&mut self, i: usize) -> (u64, u64) {
        let metrics = &self.osd(i).stats.metrics;
        (metrics.writes.get(), metrics.refused.get())
    }

    /// Whether all replicas have applied the same index, and no follower is behind at their leader.
    pub fn is_whole(&mut self, pg: PgId) -> bool {
        let running = self.machines.iter().filter_map(|m| m.running.as_ref());
        let report = |osd: &Osd| osd.reports_for_tools().into_iter().find(|r| r.pg == pg);
        let reports: Vec<_> = running.filter_map(|(osd, _)| report(osd)).collect();
        let applied = reports.first().map(|r| r.applied);
        reports.len() == self.machines.len()
            && reports.iter().all(|r| Some(r.applied) == applied && !r.repairing)
            && reports
                .iter()
                .filter_map(|r| r.leading.as_ref())
                .any(|lead| usize::from(lead.followers_in_sync) + 1 == self.machines.len())
    }
}

/// An env whose clock moves within a turn.
struct SlowEnv<'a> {
    env: &'a mut SimEnv,
    took: Duration,
    asked: Cell<bool>,
}

impl Env for SlowEnv<'_> {
    fn now(&self) -> Time {
        let late = if self.asked.replace(true) { self.took } else { Duration::ZERO };
        self.env.now() + late
    }

    fn random(&mut self) -> u64 {
        self.env.random()
    }

    fn secret(&mut self) -> Result<[u8; 16], EnvError> {
        self.env.secret()
    }

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, deadline: Time) -> Result<(), EnvError> {
        self.env.turn(ops, events, deadline)
    }

    fn open_disk(&mut self, spec: &DiskSpec) -> Result<DiskInfo, EnvError> {
        self.env.open_disk(spec)
    }

    fn listen(&mut self, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        self.env.listen(addr)
    }

    fn waker(&self) -> Waker {
        self.env.waker()
    }
}

fn format_machine(world: &World, i: usize, log_mib: u64) -> NodeId {
    const BYTES: u64 = 1 << 30;
    let node = world.add_node(&format!("osd.{}", i + 1));
    world.create_disk(node, DEVICE, BYTES, true);
    let params = engine::FormatParams {
        cluster: CLUSTER,
        osd: OsdId(i as u32 + 1),
        uuid: OsdUuid([i as u8; 16]),
        log_bytes: log_mib << 20,
        segment_bytes: 1 << 20,
        force: true,
        prezero: false,
        unix_s: 0,
        part: engine::DevicePart::Whole,
    };
    let (_, pages) =
        engine::format_image(BYTES, &params, engine::SaltKey::new([i as u8 + 1; 16])).expect("log and home fit");
    let image = world.disk_image(node, DEVICE);
    pages.iter().for_each(|(offset, page)| image.write(*offset, page));
    node
}
