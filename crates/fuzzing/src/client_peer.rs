//! A client process and its inputs: frames of OSDs, and the protobuf of meta's answers.
//!
//! The real client opens a volume, dials two OSDs over the simulated network and is asked for I/O. The input plays both
//! OSDs and meta. Properties: the client does not panic; meta's answers convert there and back to the same value,
//! within a memory bound; each request ends at most once. At the end an OSD that begins to behave gets connections,
//! greetings and requests.

use crate::line::Lines;
use crate::source::Source;
use crate::{Verdict, meter, wire_frame};
use api::pb;
use client::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, VolumeKey};
use device::{Completion, Request as Io};
use env::{Env, ListenerId, NetAddr, Op};
use prost::Message as _;
use simenv::{SimEnv, World};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use types::WhenFull;
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, Refusal, SegmentPlace};
use types::map::{Member, OsdAddr, PgMap};
use types::rng::Rng;
use types::{
    ClusterId, Epoch, Incarnation, IoBuf, OsdId, PgId, PoolId, QosLimits, RateLimit, ReplicaId, SEGMENT, SectorRange,
    SegmentIndex, SessionId, Stripe, VolumeId,
};
use wire::{Extent, Hello, Message, Peer, Reject, Reply, ReplyBody, Request, RequestBody, samples};

const CLUSTER: ClusterId = ClusterId([9; 16]);
const OWNER: u8 = 3;
const OSDS: u32 = 2;
const PG: PgId = PgId { pool: PoolId(1), n: 0 };
/// Most pending questions to meta; the oldest are dropped.
const ASKS_MAX: usize = 64;
/// Steps for one connection attempt and its consequences.
const STEPS: usize = 30;

fn addr(osd: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, osd as u8], 7400))
}

fn view(source: Option<&mut Source<'_>>) -> MapView {
    let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
    let mut map = PgMap { pg: PG, conf_epoch: Epoch(1), members: (1..=OSDS).map(member).collect() };
    let mut osds: Vec<OsdAddr> = (1..=OSDS).map(|n| OsdAddr { osd: OsdId(n), addr: addr(n) }).collect();
    let mut leaders = vec![(PG, OsdId(1))];
    if let Some(source) = source {
        map.pg.n = source.number(0) as u32;
        map.members.truncate(source.below(4) as usize);
        map.members.extend((0..source.below(3)).map(|_| member(source.number(3) as u32)));
        leaders[0].1 = OsdId(source.number(1) as u32);
        osds[0].osd = OsdId(source.number(1) as u32);
    }
    MapView { pgs: vec![map], leaders, osds }
}

fn opened(source: Option<&mut Source<'_>>) -> ClientAnswer {
    let mut opened = Opened {
        snapshot: None,
        cluster: CLUSTER,
        volume: VolumeId(4),
        session: SessionId(6),
        epoch: Epoch(1),
        len_epoch: 0,
        len_bytes: 2 * SEGMENT,
        stripe: Stripe::NONE,
        limits: QosLimits::NONE,
        faults: Vec::new(),
        when_full: types::WhenFull::Client,
        multi_writer: false,
        write: true,
        segments: vec![SegmentPlace { segment: SegmentIndex(0), pgs: vec![PG] }],
        view: view(None),
    };
    if let Some(source) = source {
        opened.len_bytes = source.number(opened.len_bytes);
        opened.stripe = some_stripe(source);
        opened.write = source.flag();
        opened.session = SessionId(source.number(6));
        opened.segments[0].segment = SegmentIndex(source.number(1) as u32);
        opened.cluster.0[0] ^= u8::from(source.byte() > 240);
        opened.view = view(Some(source));
    }
    ClientAnswer::Opened(opened)
}

fn some_stripe(source: &mut Source<'_>) -> Stripe {
    Stripe::new(4096 << source.below(13), 1 << source.below(7)).expect("powers of two")
}

fn some_limits(source: &mut Source<'_>) -> QosLimits {
    let rate = [1, 500, 1 << 40, u64::MAX][source.below(4) as usize];
    let limit = RateLimit { rate, burst: source.number(rate), burst_seconds: source.number(1) as u32 };
    QosLimits { iops: source.flag().then_some(limit), bandwidth: source.flag().then_some(limit), ..QosLimits::NONE }
}

fn right_answer(ask: &ClientAsk) -> ClientAnswer {
    match ask {
        ClientAsk::Open { .. } => opened(None),
        ClientAsk::Segments { segments, .. } => {
            let segments = segments.iter().map(|s| SegmentPlace { segment: *s, pgs: vec![PG] }).collect();
            ClientAnswer::Segments { segments, pending: Vec::new(), view: view(None) }
        }
        ClientAsk::Refresh { .. } => ClientAnswer::Refreshed(view(None)),
        ClientAsk::Keepalive { .. } => ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 0,
            limits: QosLimits::NONE,
            faults: Vec::new(),
            when_full: WhenFull::Client,
        },
        ClientAsk::Close { .. } => ClientAnswer::Closed,
    }
}

fn wild_answer(source: &mut Source<'_>) -> ClientAnswer {
    match source.below(7) {
        0 => ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 0,
            limits: some_limits(source),
            faults: Vec::new(),
            when_full: WhenFull::Client,
        },
        1 => ClientAnswer::Closed,
        2 => opened(Some(source)),
        3 => ClientAnswer::Refreshed(view(Some(source))),
        4 => {
            let place = |s: &mut Source<'_>| SegmentPlace {
                segment: SegmentIndex(s.number(1) as u32),
                pgs: (0..s.below(3)).map(|_| PgId { pool: PoolId(1), n: s.number(0) as u32 }).collect(),
            };
            let segments = (0..source.below(6)).map(|_| place(source)).collect();
            let pending = (0..source.below(2)).map(|_| SegmentIndex(source.number(1) as u32)).collect();
            ClientAnswer::Segments { segments, pending, view: view(Some(source)) }
        }
        _ => {
            let code = [2001, 2020, 2021, 2011, 2022, u32::MAX][source.below(6) as usize];
            ClientAnswer::Refused(Refusal { code, message: "no".into() })
        }
    }
}

fn honest(body: &RequestBody) -> ReplyBody {
    match body {
        RequestBody::Read { range, .. } => {
            let bytes = vec![7; range.len_bytes()];
            ReplyBody::Data { crcs: range.fragment_crcs(&bytes), payload: IoBuf::copy_of(&bytes) }
        }
        RequestBody::Extents { range, .. } => ReplyBody::Extents(vec![Extent { sectors: range.count, data: true }]),
        _ => ReplyBody::Done,
    }
}

struct Table {
    world: World,
    client: Client,
    env: SimEnv,
    ops: Vec<Op>,
    lines: Lines,
    listeners: Vec<ListenerId>,
    /// True if accepted connections are greeted.
    greets: bool,
    asks: VecDeque<(AskId, ClientAsk)>,
    volumes: Vec<VolumeKey>,
    open: BTreeSet<u64>,
    token: u64,
    ended: u64,
}

impl Table {
    fn new(seed: u8) -> Table {
        let world = World::new(seed.into());
        let (node, stranger) = (world.add_node("client"), world.add_node("stranger"));
        let config = ClientConfig {
            owner: OWNER,
            incarnation: Incarnation(5),
            holder: "fuzz".into(),
            timeout: None,
            full_wait: std::time::Duration::ZERO,
            on_unavailable: client::OnUnavailable::Freeze,
            tuning: ClientTuning::default(),
            seed: seed.into(),
        };
        let mut lines = Lines::new(world.env(stranger), OSDS as usize);
        let listeners = (1..=OSDS).map(|n| lines.listen(&NetAddr::Tcp(addr(n)))).collect();
        let env = world.env(node);
        let mut table = Table {
            world,
            client: Client::new(config),
            env,
            ops: Vec::new(),
            lines,
            listeners,
            greets: true,
            asks: VecDeque::new(),
            volumes: Vec::new(),
            open: BTreeSet::new(),
            token: 0,
            ended: 0,
        };
        table.client.open("p/v", true, false);
        table
    }

    /// Turns the client and the fake OSDs and advances the world, `count` times.
    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let mut events = Vec::new();
            self.env.turn(&mut self.ops, &mut events, self.client.next_deadline()).expect("the world turns");
            let now = self.env.now();
            for event in events {
                if self.client.owns(&event) {
                    self.client.handle_event(now, event, &mut self.ops);
                }
            }
            self.client.end_turn(now, &mut self.ops);
            self.look();
            self.lines.turn();
            self.greet();
            if self.ops.is_empty() && self.client.next_deadline() > now {
                let mut wake = self.client.next_deadline();
                if let Some(next) = self.world.next_event_time() {
                    wake = wake.min(next);
                }
                // Keepalive timers never stop, so `count` ends the loop.
                self.world.advance_to(wake.min(self.world.now() + Duration::from_millis(50)).max(self.world.now()));
            }
        }
    }

    fn look(&mut self) {
        let (mut asks, mut told, mut done) = (Vec::new(), Vec::new(), Vec::new());
        self.client.take_asks(&mut asks);
        self.asks.extend(asks);
        while self.asks.len() > ASKS_MAX {
            self.asks.pop_front();
        }
        self.client.take_events(&mut told);
        for event in told {
            match event {
                ClientEvent::Opened { volume, .. } => self.volumes.push(volume),
                ClientEvent::Closed { volume } => self.volumes.retain(|v| *v != volume),
                ClientEvent::OpenRefused { .. } | ClientEvent::Failed { .. } | ClientEvent::Resized { .. } => {}
            }
        }
        for volume in &self.volumes {
            if let Some(device) = self.client.device(*volume) {
                device.completions(&mut done);
            }
        }
        for Completion { token, .. } in done {
            assert!(self.open.remove(&token), "a request ends once");
            self.ended += 1;
        }
        for fill in self.client.fills() {
            fill.limits(&ClientTuning::default().volume)
                .iter()
                .for_each(|(what, now, max)| assert!(now <= max, "{now} {what}, at most {max}"));
        }
    }

    fn greet(&mut self) {
        for (listener, conn) in std::mem::take(&mut self.lines.accepted) {
            let which = self.listeners.iter().position(|l| *l == listener).expect("one of ours");
            self.lines.adopt(which, conn);
            if self.greets {
                let hello = wire::encode_hello(&hello(which, self.lines.serial()));
                self.lines.send(which, &hello);
            }
        }
    }

    fn say(&mut self, which: usize, message: Message) {
        if message.payload_len() <= 64 << 10 {
            self.lines.send(which, &wire_frame::frame(&[message]));
            self.steps(4);
        }
    }

    /// Answers received requests, correctly if `lies` is `None`.
    fn answer(&mut self, count: usize, mut lies: Option<&mut Source<'_>>) {
        for _ in 0..count {
            let Some((which, heard)) = self.lines.heard.pop_front() else { return };
            let (id, body) = match heard {
                Message::Request(Request { id, body, .. }) => (id, body),
                // A client pings a link on which requests wait (ADR 0010).
                Message::Ping { answer: false } => {
                    self.lines.send(which, &wire_frame::frame(&[Message::Ping { answer: true }]));
                    continue;
                }
                other => panic!("a client says {other:?}"),
            };
            let mut reply = Reply { id, result: Ok(honest(&body)) };
            if let Some(source) = lies.as_deref_mut() {
                match source.below(6) {
                    0 => reply.id = source.number(id),
                    1 => reply.result = Err(Reject::NotLeader { hint: Some(OsdId((source.number(2) as u32).max(1))) }),
                    2 => reply.result = Err(Reject::NotReady),
                    3 => reply.result = Err(Reject::NoSuchPg),
                    4 => {
                        let range = SectorRange::new(0, 1 + source.below(8));
                        let payload = IoBuf::zeros(range.len_bytes());
                        reply.result = Ok(ReplyBody::Data { crcs: range.fragment_crcs(&payload), payload });
                    }
                    _ => reply = samples::reply(&mut Rng::new(source.u16().into()), source.byte().into()),
                }
            }
            self.say(which, Message::Reply(reply));
        }
    }

    /// Gives these bytes to the client as meta's answer. Returns false if they are not one.
    fn meta(&mut self, bytes: &[u8]) -> bool {
        let Some((id, _)) = self.asks.pop_front() else { return false };
        // A field of one byte may become a struct in a list.
        let Ok(reply) = meter::bounded(bytes.len(), 256, 4096, || pb::ClientAskReply::decode(bytes)) else {
            return false;
        };
        let Ok(answer) = meter::bounded(bytes.len(), 256, 4096, || ClientAnswer::try_from(reply)) else {
            return false;
        };
        let carried = pb::ClientAskReply::from(answer.clone());
        assert!(ClientAnswer::try_from(carried).as_ref() == Ok(&answer), "it does not travel: {answer:?}");
        let now = self.env.now();
        meter::bounded(bytes.len(), 1024, 4 << 20, || self.client.handle_meta(now, id, answer));
        true
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        let which = source.below(self.volumes.len().max(1) as u32) as usize;
        let Some(volume) = self.volumes.get(which) else { return };
        let now = self.env.now();
        let Some(device) = self.client.device(*volume) else { return };
        let (offset, len) = (u64::from(source.u16()) << 15, 512 * (1 + u64::from(source.byte())));
        let request = match source.below(6) {
            0 | 1 => Io::Read { offset, len },
            2 | 3 => Io::Write { offset, buf: IoBuf::zeros((len as usize).min(32 << 10)), fua: false },
            4 => Io::Flush,
            _ => Io::Extents { offset, len, since: None },
        };
        self.token += 1;
        if device.submit(now, request, self.token).is_ok() {
            self.open.insert(self.token);
        }
    }

    fn step(&mut self, source: &mut Source<'_>) {
        let which = source.below(OSDS) as usize;
        match source.below(20) {
            0..=3 => self.submit(source),
            4..=6 => self.answer(1 + source.below(4) as usize, None),
            7 | 8 => self.answer(1 + source.below(3) as usize, Some(source)),
            9 | 10 => {
                let Some((_, ask)) = self.asks.front() else { return };
                let bytes = pb::ClientAskReply::from(right_answer(ask)).encode_to_vec();
                self.meta(&bytes);
            }
            11 | 12 => {
                let bytes = pb::ClientAskReply::from(wild_answer(source)).encode_to_vec();
                self.meta(&bytes);
            }
            13 => {
                let len = source.byte().into();
                self.meta(source.bytes(len));
            }
            14 => self.say(which, samples::message(&mut Rng::new(source.u16().into()))),
            15 => {
                let mut frame =
                    wire_frame::frame(&[Message::Reply(Reply { id: source.u64(), result: Ok(ReplyBody::Done) })]);
                let at = source.u16() as usize % frame.len();
                frame[at] ^= source.byte();
                if source.flag() {
                    wire_frame::fix(&mut frame);
                }
                self.lines.send(which, &frame);
            }
            16 => {
                self.lines.send(which, source.bytes(80));
            }
            17 => {
                self.lines.hang_up(which);
                self.greets = source.byte() < 200;
            }
            18 => match self.volumes.first().filter(|_| source.byte() > 200) {
                Some(volume) => self.client.close(*volume),
                None if source.byte() > 200 => drop(self.client.open("p/w", source.flag(), source.flag())),
                None => {}
            },
            _ => self.world.advance_to(self.world.now() + Duration::from_millis(u64::from(source.byte()) * 8)),
        }
        self.steps(6);
    }
}

fn hello(which: usize, serial: u32) -> Hello {
    Hello {
        version_min: wire::VERSION_MIN,
        version_max: wire::VERSION_MAX,
        cluster: CLUSTER,
        peer: Peer::Osd(OsdId(which as u32 + 1)),
        incarnation: Incarnation(100 + u64::from(serial)),
        expects: None,
        features: 0,
        credit_ops: 1024,
        credit_bytes: 64 << 20,
    }
}

/// Runs the target. First byte: order of completions. Second: whether meta opens the volume correctly at first.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let mut table = Table::new(source.byte());
    table.steps(2);
    if source.byte() < 220 {
        table.meta(&pb::ClientAskReply::from(opened(None)).encode_to_vec());
        table.steps(STEPS);
    }
    while !source.is_empty() {
        table.step(&mut source);
    }
    // From here on all peers behave: a volume is open, and a write on it reaches an OSD.
    table.greets = true;
    let ask = table.client.open("p/last", true, true);
    table.steps(2);
    table.asks.retain(|(id, _)| *id == ask);
    assert_eq!(table.asks.len(), 1, "a client asks meta to open a volume");
    let before = table.volumes.len();
    table.meta(&pb::ClientAskReply::from(opened(None)).encode_to_vec());
    (0..OSDS as usize).for_each(|which| table.lines.hang_up(which));
    table.steps(2);
    let Some(volume) = table.volumes.get(before).copied() else {
        // The first volume that was opened may belong to another cluster, and then the client keeps that cluster.
        return Verdict::Refused;
    };
    let (now, token) = (table.env.now(), u64::MAX);
    let device = table.client.device(volume).expect("it was just opened");
    device.submit(now, Io::Write { offset: 0, buf: IoBuf::zeros(512), fua: false }, token).expect("it has room");
    table.open.insert(token);
    for _ in 0..400 {
        table.steps(STEPS);
        table.answer(64, None);
        let asks: Vec<(AskId, ClientAsk)> = table.asks.drain(..).collect();
        let now = table.env.now();
        asks.iter().for_each(|(id, ask)| table.client.handle_meta(now, *id, right_answer(ask)));
        if !table.open.contains(&token) {
            return Verdict::Taken;
        }
    }
    panic!("a write on a new volume does not end though all peers behave");
}
