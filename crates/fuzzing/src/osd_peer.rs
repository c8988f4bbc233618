//! A running OSD and the traffic of its connections: peers that lie, clients that misbehave, meta.
//!
//! The real OSD mounts, creates a PG of three, and meets two other members and a client over the simulated network. The
//! input plays all of them. The peers answer the OSD's messages (votes, appends, log repair, block repair, streams)
//! honestly or with a lie. They also lead the PG, invent messages, and send damaged or cut frames. Meta gives orders.
//! The OSD's process dies, its device is damaged, and it mounts again. Such peers then repair its log and its blocks,
//! and its replica may have failed.
//!
//! Properties: the OSD does not panic and does not stop, unless meta says so. It still answers a hello at the end.

mod answers;
pub(crate) mod messages;

use crate::source::Source;
use crate::store_model::device_image;
use crate::{Verdict, line::Lines, wire_frame};
use answers::Peers;
use engine::testing::{DISK_LEN, IDS};
use env::{DiskSpec, Env, NetAddr};
use messages::{message, order};
use osd::{Osd, OsdConfig, Phase};
use simenv::{NodeId, SimEnv, World};
use std::net::SocketAddr;
use std::time::Duration;
use telemetry::Registry;
use types::control::{Attach, OsdDown};
use types::map::{Member, OsdAddr, PgMap};
use types::writers::Writers;
use types::{Epoch, GenerationId, Incarnation, OsdId, PgId, PoolId, ReplicaId, SessionId, VolumeChunk, VolumeId};
use wire::{Hello, Message, Peer};

const DEVICE: &str = "device";
const PG: PgId = PgId { pool: PoolId(1), n: 1 };
const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(1), index: 0 };
const STEPS_MAX: usize = 3000;
/// The other members: both have higher ids, so that they dial.
const PEERS: [u32; 2] = [5, 6];
/// Number of the client's connection, after those of the peers.
const CLIENT: usize = 2;
/// Exclusive bound of the bits that one damage flips. A store that is destroyed as a whole would test nothing.
const FLIPS_MAX: u32 = 6;

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

struct Table {
    world: World,
    /// The running OSD; `None` if its device does not mount any more.
    osd: Option<(Osd, SimEnv)>,
    node: NodeId,
    lines: Lines,
    peers: Peers,
    lives: u64,
    /// True after meta told the OSD to stop.
    refused: bool,
}

fn member(osd: u32) -> Member {
    Member { replica: ReplicaId(osd.into()), osd: OsdId(osd) }
}

fn start(world: &World, node: NodeId, life: u64) -> (Osd, SimEnv) {
    let mut env = world.env(node);
    let spec = DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false };
    let disk = env.open_disk(&spec).expect("the lock died with the process");
    let (cluster, osd, uuid) = IDS;
    let config = OsdConfig {
        cluster,
        osd,
        uuid,
        incarnation: Incarnation(life),
        listen: NetAddr::Tcp(addr(7400)),
        advertise: None,
        http: None,
        host: Some("h".into()),
        rack: None,
        zone: None,
        version: String::new(),
        engine: engine::EngineConfig { round_idle: Duration::from_millis(50), ..engine::EngineConfig::default() },
        timing: group::Timing::default(),
        tuning: osd::OsdTuning { let_in_wait: std::time::Duration::ZERO, ..osd::OsdTuning::default() },
        lease_reads: true,
        behind: false,
    };
    let osd = Osd::new(config, disk, &Registry::default(), life);
    (osd, env)
}

impl Table {
    fn new(seed: u8) -> Table {
        let world = World::new(seed.into());
        let node = world.add_node("osd");
        world.create_disk(node, DEVICE, DISK_LEN, true);
        let image = world.disk_image(node, DEVICE);
        device_image().1.iter().for_each(|(at, bytes)| image.write(*at, bytes));
        let other = world.add_node("stranger");
        let lines = Lines::new(world.env(other), 3);
        let mut table = Table { world, osd: None, node, lines, peers: Peers::default(), lives: 0, refused: false };
        table.boot();
        assert!(table.runs(), "a formatted device mounts");
        let map = PgMap { pg: PG, conf_epoch: Epoch(1), members: members() };
        let replica = members()[0].replica;
        table.tell(OsdDown::EnsureReplica { created: map, replica });
        table.steps(60, |_| false);
        table
    }

    /// Starts the process again, and then connects it to meta.
    fn boot(&mut self) {
        self.lives += 1;
        self.osd = Some(start(&self.world, self.node, self.lives));
        self.steps(3000, |t| t.osd.as_ref().is_none_or(|(osd, _)| *osd.phase() != Phase::Mounting));
        self.tell(OsdDown::Connected);
        let at = |osd: u32| OsdAddr { osd: OsdId(osd), addr: addr(7400 + osd as u16) };
        self.tell(OsdDown::Welcome { map_epoch: Epoch(1), osds: PEERS.map(at).to_vec() });
        self.steps(10, |_| false);
    }

    fn runs(&self) -> bool {
        self.osd.as_ref().is_some_and(|(osd, _)| *osd.phase() == Phase::Running)
    }

    fn tell(&mut self, down: OsdDown) {
        if let Some((osd, _)) = &mut self.osd {
            self.refused |= matches!(down, OsdDown::Refused { .. } | OsdDown::FailReplicas { .. });
            osd.handle_control(down);
        }
    }

    /// Turns the OSD and advances the world, until `enough` or for `count` steps.
    fn steps(&mut self, count: usize, enough: impl Fn(&Table) -> bool) {
        for _ in 0..count {
            if let Some((osd, env)) = &mut self.osd {
                let turned = osd.work(env);
                osd.take_reports();
                match turned.and_then(|_| osd.wait(env)) {
                    Ok(_) => {}
                    // A damaged device may fail to mount.
                    Err(osd::OsdError::Mount(_)) if self.lives > 1 => self.osd = None,
                    Err(error) => panic!("{error}"),
                }
            }
            self.lines.turn();
            if enough(self) {
                return;
            }
            if !self.osd.as_ref().is_some_and(|(osd, _)| osd.has_events()) {
                let Some(next) = self.world.next_turn_time() else { return };
                // The timers of the PG never stop, so `count` ends the loop.
                self.world.advance_to(next.max(self.world.now()));
            }
        }
    }

    /// Opens a new connection and sends a correct hello.
    fn connect(&mut self, which: usize) {
        self.lines.dial(which, NetAddr::Tcp(addr(7400)));
        self.steps(40, |t| !t.lines.is_busy(which));
        let hello = hello(which, self.lines.serial());
        self.send(which, &wire::encode_hello(&hello));
        self.steps(30, |_| false);
    }

    fn send(&mut self, which: usize, bytes: &[u8]) {
        self.steps(40, |t| !t.lines.is_busy(which));
        self.lines.send(which, bytes);
    }

    fn say(&mut self, which: usize, messages: Vec<Message>) {
        let mut messages = messages;
        messages.retain(|m| m.payload_len() <= 64 << 10);
        if !messages.is_empty() {
            self.send(which, &wire_frame::frame(&messages));
        }
    }

    /// Answers some of the received messages, honestly or not.
    fn answer(&mut self, source: &mut Source<'_>, count: usize, honestly: bool) {
        for _ in 0..count {
            let Some((which, heard)) = self.lines.heard.pop_front() else { return };
            let Some(mut answer) = self.peers.answer(heard) else { continue };
            if !honestly {
                answers::twist(source, &mut answer);
            }
            self.say(which, vec![answer]);
            self.steps(4, |_| false);
        }
    }

    /// Kills the process, flips bits of its device, and starts it again.
    fn damage(&mut self, source: &mut Source<'_>) {
        if self.refused {
            return;
        }
        match source.flag() {
            true => self.world.power_cut(self.node),
            false => self.world.crash(self.node),
        }
        let superblock = device_image().0;
        for _ in 0..source.below(FLIPS_MAX) {
            let areas = [
                (superblock.log_start, 64 << 10),
                (superblock.log_start, superblock.segment_bytes),
                (superblock.home_start, 64 << 10),
                (superblock.home_start, 1 << 20),
            ];
            let (start, len) = areas[source.below(4) as usize];
            let (at, bit) = (u64::from(source.u32()) % len, source.byte());
            self.world.disk_image(self.node, DEVICE).flip_bit(start + at, bit);
        }
        self.osd = None;
        self.lines.heard.clear();
        self.boot();
        (0..3).for_each(|which| self.connect(which));
    }
}

fn members() -> Vec<Member> {
    let mut all = vec![member(IDS.1.0)];
    all.extend(PEERS.map(member));
    all
}

fn hello(which: usize, serial: u32) -> Hello {
    let (cluster, me, _) = IDS;
    Hello {
        version_min: wire::VERSION_MIN,
        version_max: wire::VERSION_MAX,
        cluster,
        peer: PEERS.get(which).map_or(Peer::Client(Incarnation(9)), |osd| Peer::Osd(OsdId(*osd))),
        incarnation: Incarnation(100 + u64::from(serial)),
        expects: Some(me),
        features: 0,
        credit_ops: 1024,
        credit_bytes: 64 << 20,
    }
}

fn step(table: &mut Table, source: &mut Source<'_>) {
    let which = source.below(3) as usize;
    match source.below(24) {
        0..=5 => {
            let messages = (0..1 + source.below(3)).map(|_| message(source, &table.peers, which)).collect();
            table.say(which, messages);
        }
        6 => {
            // A frame with one byte changed, of which perhaps only a part is sent.
            let mut frame = wire_frame::frame(&[message(source, &table.peers, which)]);
            let at = source.u16() as usize % frame.len();
            frame[at] ^= source.byte();
            if source.flag() {
                wire_frame::fix(&mut frame);
            }
            frame.truncate(frame.len() - source.u16() as usize % 100 % frame.len());
            table.send(which, &frame);
        }
        7 => table.send(which, source.bytes(100)),
        8 | 9 => table.connect(which),
        10 => {
            let attach = Attach {
                order: source.number(1),
                volume: VolumeId(1),
                writers: Writers::one(SessionId(1), Epoch(1)),
                epoch: Epoch(1),
                chunk_count: 4,
                len_epoch: 0,
                head: GenerationId(1),
                base: None,
            };
            table.tell(OsdDown::Attach { pg: PG, attach });
        }
        11 => {
            let by = Duration::from_millis(u64::from(source.byte()) * 4);
            table.world.advance_to(table.world.now() + by);
        }
        12 => {
            // Meta's orders pass through protobuf, and the conversion rejects bad ones.
            let down = api::convert::osd_down(order(source)).expect("it travels");
            if let Ok(down) = OsdDown::try_from(down) {
                table.tell(down);
            }
        }
        13..=16 => {
            let count = 1 + source.below(6) as usize;
            table.answer(source, count, true);
        }
        17 | 18 => {
            let count = 1 + source.below(3) as usize;
            table.answer(source, count, false);
        }
        19..=21 => {
            let append = table.peers.lead(source);
            table.say(0, vec![append]);
        }
        _ => table.damage(source),
    }
    table.steps(6, |_| false);
}

/// Runs the target described at the head of this file. First byte: order of completions.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let mut table = Table::new(source.byte());
    (0..3).for_each(|which| table.connect(which));
    let mut steps = 0;
    while !source.is_empty() && steps < STEPS_MAX && table.osd.is_some() {
        step(&mut table, &mut source);
        steps += 1;
    }
    table.steps(50, |_| false);
    let Some((osd, _)) = &table.osd else { return Verdict::Refused };
    if table.refused {
        assert!(matches!(osd.phase(), Phase::Stopped(_)), "{:?}", osd.phase());
        return Verdict::Taken;
    }
    assert!(table.runs() && table.world.is_up(table.node), "{:?}", osd.phase());
    let before = table.lines.greeted;
    table.connect(CLIENT);
    assert!(table.lines.greeted > before, "it does not greet any more");
    Verdict::Taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_set_and_the_strangers_are_greeted() {
        let mut table = Table::new(1);
        (0..3).for_each(|which| table.connect(which));
        assert_eq!(table.lines.greeted, 3);
    }

    /// Checks that the honest answers are good enough for an election.
    #[test]
    fn an_osd_among_honest_peers_leads_and_follows() {
        let mut table = Table::new(1);
        (0..3).for_each(|which| table.connect(which));
        let leads = |table: &Table| table.osd.as_ref().is_some_and(|(osd, _)| osd.leading().contains_key(&PG));
        for _ in 0..100 {
            table.answer(&mut Source::new(&[]), 6, true);
            table.steps(20, |_| false);
        }
        assert!(leads(&table), "the peers grant their votes");
        for n in 0..6 {
            // The first append begins a new term.
            let append = table.peers.lead(&mut Source::new(&[if n == 0 { 0 } else { 99 }, 0, 2, 3, 3, 3]));
            table.say(0, vec![append]);
            table.steps(10, |_| false);
        }
        assert!(!leads(&table), "a peer of a higher term leads");
    }
}
