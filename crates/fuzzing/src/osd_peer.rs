//! A running OSD and what can come over its connections: peers that lie, clients that do not behave.
//!
//! The real OSD mounts, makes a PG of three and learns where its peers would be; the input plays another OSD
//! and a client, over the simulated network, in pieces of any size. Laws: the OSD does not panic and does not
//! stop; whatever was sent, it still answers a hello.

use crate::source::Source;
use crate::store_model::{device_image, device_len, ids};
use crate::{Verdict, wire_frame};
use env::sim::{NodeId, SimEnv, World};
use env::{ConnId, DiskSpec, Env, Event, NetAddr, Op, Token};
use osd::{Osd, OsdConfig, Phase};
use std::net::SocketAddr;
use std::time::Duration;
use telemetry::Registry;
use types::control::{Attach, OsdDown};
use types::map::{Member, OsdAddr, PgMap};
use types::rng::Rng;
use types::{
    ChunkKey, Epoch, Incarnation, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange, SessionId, Term, Time,
    VolumeId,
};
use wire::{
    HEADER_LEN, Hello, Listed, Listing, ListingEcho, Message, Peer, RaftKind, RaftMsg, Request, RequestBody,
    StreamAbort, StreamBody, StreamMsg, samples,
};

const DEVICE: &str = "device";
const PG: PgId = PgId { pool: PoolId(1), n: 1 };
const CHUNK: ChunkKey = ChunkKey { volume: VolumeId(1), index: 0 };
const STEPS_MAX: usize = 3000;

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

struct Table {
    world: World,
    osd: Osd,
    env: SimEnv,
    node: NodeId,
    stranger: SimEnv,
    /// Connections of the stranger: as a peer OSD, as a client.
    conns: [Option<ConnId>; 2],
    busy: [bool; 2],
    ops: Vec<Op>,
    serial: u32,
    greeted: u64,
}

impl Table {
    fn new(seed: u8) -> Table {
        let world = World::new(seed.into());
        let node = world.add_node("osd");
        world.create_disk(node, DEVICE, device_len(), true);
        let image = world.disk_image(node, DEVICE);
        device_image().1.iter().for_each(|(at, bytes)| image.write(*at, bytes));
        let mut env = world.env(node);
        let spec = DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false };
        let disk = env.open_disk(&spec).expect("it was just made");
        let (cluster, osd, uuid) = ids();
        let config = OsdConfig {
            cluster,
            osd,
            uuid,
            incarnation: Incarnation(5),
            listen: NetAddr::Tcp(addr(7400)),
            advertise: None,
            http: None,
            host: "h".into(),
            rack: String::new(),
            zone: String::new(),
            engine: engine::EngineConfig::default(),
            timing: group::Timing::default(),
            lease_reads: true,
        };
        let osd = Osd::new(config, disk, &Registry::default(), seed.into());
        let other = world.add_node("stranger");
        let stranger = world.env(other);
        let mut table = Table {
            world,
            osd,
            env,
            node,
            stranger,
            conns: [None; 2],
            busy: [false; 2],
            ops: Vec::new(),
            serial: 0,
            greeted: 0,
        };
        table.steps(400, |t| *t.osd.phase() == Phase::Running);
        assert!(*table.osd.phase() == Phase::Running, "{:?}", table.osd.phase());
        let me = ids().1;
        let member = |n: u32| Member { replica: ReplicaId(u64::from(n)), osd: OsdId(n) };
        let members = vec![Member { replica: ReplicaId(me.0.into()), osd: me }, member(1), member(5)];
        table.osd.handle_control(OsdDown::Connected);
        let osds = vec![OsdAddr { osd: OsdId(1), addr: addr(7401) }, OsdAddr { osd: OsdId(5), addr: addr(7405) }];
        table.osd.handle_control(OsdDown::Welcome { map_epoch: Epoch(1), osds });
        let map = PgMap { pg: PG, lineage: 1, conf_epoch: Epoch(1), members };
        table.osd.handle_control(OsdDown::EnsurePg(map));
        table.steps(60, |_| false);
        table
    }

    /// One turn of the OSD, and the world goes on; until `enough` or so many steps.
    fn steps(&mut self, count: usize, enough: impl Fn(&Table) -> bool) {
        for _ in 0..count {
            self.osd.work(&mut self.env).expect("a simulated ring does not fail");
            self.osd.take_reports();
            self.osd.wait(&mut self.env).expect("a simulated ring does not fail");
            self.hear();
            if enough(self) {
                return;
            }
            if !self.osd.has_events() {
                let Some(next) = self.world.next_turn_time() else { return };
                // The PG's timers never rest: the count is what ends this.
                self.world.advance_to(next.max(self.world.now()));
            }
        }
    }

    fn hear(&mut self) {
        let mut events = Vec::new();
        let turned = self.stranger.turn(&mut self.ops, &mut events, Time::NEVER);
        turned.expect("a simulated ring does not fail");
        for event in events {
            match event {
                Event::Connected { token, result } => {
                    self.conns[token.key as usize] = result.ok();
                    self.busy[token.key as usize] = false;
                }
                Event::Sent { token, result, .. } => {
                    self.busy[token.key as usize] = false;
                    if result.is_err() {
                        self.conns[token.key as usize] = None;
                    }
                }
                Event::Received { token, result, .. } => match result {
                    Ok(count) => self.greeted += u64::from(count > 0),
                    Err(_) => self.conns[token.key as usize] = None,
                },
                _ => {}
            }
        }
    }

    fn token(&mut self, which: usize) -> Token {
        self.serial += 1;
        Token::new(1, self.serial, which as u32)
    }

    /// A new connection, greeted properly.
    fn connect(&mut self, which: usize) {
        if let Some(conn) = self.conns[which].take() {
            self.ops.push(Op::Close { conn });
        }
        let token = self.token(which);
        self.ops.push(Op::Connect { token, addr: NetAddr::Tcp(addr(7400)) });
        self.busy[which] = true;
        self.steps(40, |t| !t.busy[which]);
        let Some(conn) = self.conns[which] else { return };
        let token = self.token(which);
        let bufs = vec![types::IoBufMut::new(HEADER_LEN)];
        self.ops.push(Op::Recv { token, conn, bufs, min: HEADER_LEN });
        let serial = self.serial;
        self.send(which, &wire::encode_hello(&hello(which, serial)));
        self.steps(30, |_| false);
    }

    fn send(&mut self, which: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.steps(40, |t| !t.busy[which]);
        let Some(conn) = self.conns[which].filter(|_| !self.busy[which]) else { return };
        let token = self.token(which);
        self.ops.push(Op::Send { token, conn, bufs: vec![IoBuf::copy_of(bytes)] });
        self.busy[which] = true;
    }
}

fn hello(which: usize, serial: u32) -> Hello {
    let (cluster, me, _) = ids();
    Hello {
        version_min: wire::VERSION_MIN,
        version_max: wire::VERSION_MAX,
        cluster,
        // The higher id dials.
        peer: if which == 0 { Peer::Osd(OsdId(5)) } else { Peer::Client(Incarnation(9)) },
        incarnation: Incarnation(100 + u64::from(serial)),
        expects: Some(me),
        features: 0,
        credit_ops: 1024,
        credit_bytes: 64 << 20,
    }
}

/// A message about the PG that is there, mostly.
fn message(source: &mut Source<'_>) -> Message {
    let pg = if source.byte() < 245 { PG } else { PgId { pool: PoolId(source.u32()), n: source.u32() } };
    let (from, to) = (ReplicaId(source.number(5)), ReplicaId(source.number(ids().1.0.into())));
    let (term, index) = (Term(source.number(1)), Index(source.number(1)));
    match source.below(10) {
        0..=2 => raft(source, pg, (from, to), term, index),
        3 => Message::Listing(Listing {
            sent_at: source.number(1),
            full: source.flag(),
            spent_aus: source.number(1),
            items: (0..source.below(4)).map(|_| Listed { pg, from, to, term, commit: index }).collect(),
        }),
        4 => Message::ListingEcho(ListingEcho {
            sent_at: source.number(1),
            granted_aus: source.number(100),
            device_full: source.flag(),
            log_share_mib: source.byte(),
            renewed: (0..source.below(4)).map(|_| (pg, term)).collect(),
        }),
        5 => Message::Goodbye((0..source.below(4)).map(|_| pg).collect()),
        6 | 7 => Message::Stream(StreamMsg { pg, from, to, stream: source.number(1), body: stream(source) }),
        8 => Message::Request(request(source, pg)),
        _ => samples::message(&mut Rng::new(source.u16().into())),
    }
}

fn raft(source: &mut Source<'_>, pg: PgId, (from, to): (ReplicaId, ReplicaId), term: Term, index: Index) -> Message {
    let drawn = samples::raft(&mut Rng::new(source.u16().into()));
    let mut entries = drawn.entries.clone();
    let snapshot = drawn.snapshot.clone().filter(|_| source.byte() > 240);
    let head = RaftMsg {
        pg,
        from,
        to,
        term,
        kind: samples::RAFT_KINDS[source.below(15) as usize],
        index,
        log_term: Term(source.number(index.0.min(1))),
        commit: Index(source.number(0)),
        snapshot,
        ..drawn
    };
    if head.kind != RaftKind::Append && source.byte() < 230 {
        entries.clear();
    }
    for (n, entry) in entries.iter_mut().enumerate() {
        (entry.index, entry.term) = (Index(index.0.wrapping_add(1 + n as u64)), term);
        entry.kind = types::EntryKind::Normal;
        // Empty entries are sound ones.
        if source.byte() < 200 {
            (entry.descriptor, entry.payload, entry.crcs) = Default::default();
        }
    }
    Message::Raft(RaftMsg { entries, ..head })
}

fn range(source: &mut Source<'_>) -> SectorRange {
    SectorRange::new(source.below(64) / 8 * 8, 8 * (1 + source.below(4)))
}

fn stream(source: &mut Source<'_>) -> StreamBody {
    let (seq, index, term) = (source.number(1), Index(source.number(5)), Term(source.number(1)));
    match source.below(9) {
        0 | 1 => StreamBody::Open,
        2 => StreamBody::Accept { term, commit: index },
        3 | 4 => {
            let range = range(source);
            let payload = IoBuf::copy_of(&vec![source.byte(); range.len_bytes()]);
            let mut crcs = range.fragment_crcs(&payload);
            crcs[0] ^= u32::from(source.byte() > 240);
            StreamBody::Blocks { seq, chunk: CHUNK, range, crcs, payload }
        }
        5 => {
            let bytes = match source.flag() {
                true => crate::store::decision_seed(&mut Rng::new(source.byte().into())).into(),
                false => bytes::Bytes::copy_from_slice(source.bytes(40)),
            };
            StreamBody::Decision { seq, bytes }
        }
        6 => StreamBody::End { seq, index, term },
        7 => match source.flag() {
            true => StreamBody::Ack { seq },
            false => StreamBody::Done { term, commit: index },
        },
        _ => StreamBody::Abort(StreamAbort::from_u8(1 + source.below(5) as u8).expect("five reasons")),
    }
}

fn request(source: &mut Source<'_>, pg: PgId) -> Request {
    let range = range(source);
    let (seq, watermark) = (source.number(1), source.number(0));
    let body = match source.below(5) {
        0 => RequestBody::Read { chunk: CHUNK, range },
        1 => RequestBody::Extents { chunk: CHUNK, range },
        2 => RequestBody::Zero { chunk: CHUNK, range, seq, watermark },
        3 => RequestBody::Skip { volume: CHUNK.volume, seq, watermark },
        4 => RequestBody::Holder { volume: CHUNK.volume },
        _ => {
            let payload = IoBuf::copy_of(&vec![7; range.len_bytes()]);
            RequestBody::Write { chunk: CHUNK, range, seq, watermark, crcs: range.fragment_crcs(&payload), payload }
        }
    };
    let (session, epoch) = (SessionId(source.number(1)), Epoch(source.number(1)));
    Request { id: source.number(1), pg, session, epoch, body }
}

fn step(table: &mut Table, source: &mut Source<'_>) {
    let which = usize::from(source.byte() & 1);
    match source.below(16) {
        0..=8 => {
            let mut messages: Vec<Message> = (0..1 + source.below(3)).map(|_| message(source)).collect();
            messages.retain(|m| m.payload_len() <= 64 << 10);
            if !messages.is_empty() {
                table.send(which, &wire_frame::frame(&messages));
            }
        }
        9 => {
            // Bytes of a frame, one of them changed, or only a part of them.
            let mut frame = wire_frame::frame(&[message(source)]);
            let at = source.u16() as usize % frame.len();
            frame[at] ^= source.byte();
            if source.flag() {
                wire_frame::fix(&mut frame);
            }
            frame.truncate(frame.len() - source.u16() as usize % 100 % frame.len());
            table.send(which, &frame);
        }
        10 => table.send(which, source.bytes(100)),
        11 | 12 => table.connect(which),
        13 => {
            let order = source.number(1);
            let attach = Attach { order, volume: VolumeId(1), session: SessionId(1), epoch: Epoch(1), chunk_count: 4 };
            table.osd.handle_control(OsdDown::Attach { pg: PG, attach });
        }
        14 => {
            let by = Duration::from_millis(u64::from(source.byte()));
            table.world.advance_to(table.world.now() + by);
        }
        _ => table.osd.handle_control(OsdDown::TransferLeader { pg: PG, to: OsdId(5) }),
    }
    table.steps(6, |_| false);
}

/// See the head of the file. First byte: the order of completions.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let mut table = Table::new(source.byte());
    table.connect(0);
    table.connect(1);
    let mut steps = 0;
    while !source.is_empty() && steps < STEPS_MAX {
        step(&mut table, &mut source);
        steps += 1;
    }
    table.steps(50, |_| false);
    assert!(*table.osd.phase() == Phase::Running && table.world.is_up(table.node), "{:?}", table.osd.phase());
    let before = table.greeted;
    table.connect(1);
    assert!(table.greeted > before, "it does not greet any more");
    Verdict::Taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_set_and_the_stranger_is_greeted() {
        let mut table = Table::new(1);
        table.connect(0);
        table.connect(1);
        assert_eq!(table.greeted, 2);
    }
}
