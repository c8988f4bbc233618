//! The client side of a volume, and messages of OSDs and meta to it: honest, wrong, late or repeated answers.
//!
//! The real `volume` is asked for I/O and polled. The input plays three OSDs, the connections to them, and meta.
//! Properties: nothing panics; every request ends once, with an answer of its own shape; bytes with a wrong checksum
//! reach no user; requests in flight stay within their limits. When all peers are honest again, every request ends.

use crate::Verdict;
use crate::source::Source;
use device::{Answer, Completion, EXTENTS_LEN_MAX, Request};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::WhenFull;
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, Refusal, SegmentPlace};
use types::limits::VOLUME_LEN_MAX;
use types::map::{Member, OsdAddr, PgMap};
use types::{
    ClusterId, CrcList, Epoch, Errno, IoBuf, OsdId, PgId, PoolId, QosLimits, ReplicaId, SEGMENT, SegmentIndex,
    SessionId, SnapshotId, Stripe, Time, VolumeId,
};
use volume::{Admit, Carrier, Volume, VolumeConfig, VolumeOut, VolumeTuning};
use wire::{Extent, Reject, Reply, ReplyBody, RequestBody};

const LEN: u64 = 3 * SEGMENT;
/// Value of all bytes in good answers, and of those whose checksum is wrong.
const GOOD: u8 = 0x11;
const BAD: u8 = 0xee;
/// Most messages that wait for an answer; the oldest are dropped.
const OUTBOX_MAX: usize = 256;
/// Time in which every open request must end, once all peers are honest.
const CALM: Duration = Duration::from_secs(120);

fn pg(n: u32) -> PgId {
    PgId { pool: PoolId(1), n }
}

/// The simulated connections, and the requests sent on them.
#[derive(Default)]
struct Wires {
    down: BTreeSet<OsdId>,
    no_credit: bool,
    out: VecDeque<(OsdId, wire::Request)>,
}

impl Carrier for Wires {
    fn admit(&mut self, osd: OsdId, _: usize) -> Admit {
        match self.down.contains(&osd) || !(1..=3).contains(&osd.0) {
            true => Admit::NoLink,
            false if self.no_credit => Admit::Wait,
            false => Admit::Go,
        }
    }

    fn heard(&self, osd: OsdId) -> Option<Time> {
        (!self.down.contains(&osd)).then_some(Time::ZERO)
    }

    fn send(&mut self, osd: OsdId, request: wire::Request) {
        if self.out.len() >= OUTBOX_MAX {
            self.out.pop_front();
        }
        self.out.push_back((osd, request));
    }
}

struct Table {
    volume: Volume,
    stripe: Stripe,
    now: Time,
    wires: Wires,
    asks: VecDeque<ClientAsk>,
    /// Open requests by token.
    open: BTreeMap<u64, Request>,
    token: u64,
    ended: u64,
}

fn honest_view(pgs: impl IntoIterator<Item = PgId>) -> MapView {
    let members = (1..=3).map(|n| Member { replica: ReplicaId(n.into()), osd: OsdId(n) }).collect::<Vec<_>>();
    let map = |pg| PgMap { pg, conf_epoch: Epoch(1), members: members.clone() };
    let osds = (1..=3).map(|n| OsdAddr { osd: OsdId(n), addr: ([10, 0, 0, n as u8], 7400).into() }).collect();
    MapView { pgs: pgs.into_iter().map(map).collect(), leaders: Vec::new(), osds }
}

/// Two columns at most: their PGs lie on the same few OSDs.
fn opened(write: bool, stripe: Stripe) -> Opened {
    Opened {
        snapshot: None,
        cluster: ClusterId([7; 16]),
        volume: VolumeId(1),
        session: SessionId(write.into()),
        epoch: Epoch(1),
        len_epoch: 0,
        len_bytes: LEN,
        stripe,
        limits: QosLimits::NONE,
        faults: Vec::new(),
        when_full: types::WhenFull::Client,
        multi_writer: false,
        write,
        segments: vec![SegmentPlace { segment: SegmentIndex(0), pgs: pgs_of(SegmentIndex(0), stripe) }],
        view: honest_view(pgs_of(SegmentIndex(0), stripe)),
    }
}

/// Returns the answer of an honest OSD, in which all bytes are the same.
fn honest(request: &wire::Request) -> ReplyBody {
    match &request.body {
        RequestBody::Read { range, .. } => {
            let bytes = vec![GOOD; range.len_bytes()];
            ReplyBody::Data { crcs: range.fragment_crcs(&bytes), payload: IoBuf::copy_of(&bytes) }
        }
        RequestBody::Extents { range, .. } => ReplyBody::Extents(vec![Extent { sectors: range.count, data: true }]),
        _ => ReplyBody::Done,
    }
}

fn lie(source: &mut Source<'_>, request: &wire::Request) -> Result<ReplyBody, Reject> {
    Err(match source.below(13) {
        0 => return Ok(ReplyBody::Done),
        1 => return Ok(ReplyBody::Data { crcs: CrcList::new(), payload: IoBuf::EMPTY }),
        2 => {
            let RequestBody::Read { range, .. } = &request.body else { return Ok(ReplyBody::Done) };
            let bytes = vec![BAD; range.len_bytes() / (1 + usize::from(source.flag()))];
            let mut crcs: CrcList = (0..range.fragment_count()).map(|_| source.u32()).collect();
            crcs.truncate(range.fragment_count().saturating_sub(usize::from(source.byte() > 200)));
            return Ok(ReplyBody::Data { crcs, payload: IoBuf::copy_of(&bytes) });
        }
        3 => {
            let extent = |s: &mut Source<'_>| Extent { sectors: s.number(8) as u32, data: s.flag() };
            return Ok(ReplyBody::Extents((0..source.below(5)).map(|_| extent(source)).collect()));
        }
        4 => Reject::NotLeader { hint: None },
        5 => Reject::NotLeader { hint: Some(OsdId(source.number(2) as u32)) },
        6 => Reject::NoSuchPg,
        7 | 8 => {
            Reject::Failed([Errno::Invalid, Errno::NoSpace, Errno::Damaged, Errno::TimedOut][source.below(4) as usize])
        }
        9 if source.byte() > 230 => Reject::Failed([Errno::Fenced, Errno::Gone][source.below(2) as usize]),
        10 => Reject::Busy,
        11 => Reject::Throttled { wait_us: source.u32() >> source.below(32) },
        _ => Reject::NotReady,
    })
}

/// Returns a map that meta never made.
fn wild_view(source: &mut Source<'_>) -> MapView {
    let some_pg = |s: &mut Source<'_>| pg(s.number(1) as u32);
    let some_osd = |s: &mut Source<'_>| OsdId(s.number(2) as u32);
    let mut view = MapView::default();
    for _ in 0..source.below(3) {
        let members = (0..source.below(6)).map(|_| Member { replica: ReplicaId(1), osd: some_osd(source) }).collect();
        view.pgs.push(PgMap { pg: some_pg(source), conf_epoch: Epoch(source.number(1)), members });
    }
    view.leaders = (0..source.below(3)).map(|_| (some_pg(source), some_osd(source))).collect();
    view
}

fn wild_answer(source: &mut Source<'_>) -> ClientAnswer {
    match source.below(6) {
        0 => ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 0,
            limits: QosLimits::NONE,
            faults: Vec::new(),
            when_full: WhenFull::Client,
        },
        1 => ClientAnswer::Opened(opened(source.flag(), Stripe::NONE)),
        2 => ClientAnswer::Refreshed(wild_view(source)),
        3 => {
            let place = |s: &mut Source<'_>| SegmentPlace {
                segment: SegmentIndex(s.number(1) as u32),
                pgs: (0..s.below(3)).map(|_| pg(s.number(1) as u32)).collect(),
            };
            let segments = (0..source.below(5)).map(|_| place(source)).collect();
            let pending = (0..source.below(2)).map(|_| SegmentIndex(source.number(1) as u32)).collect();
            ClientAnswer::Segments { segments, pending, view: wild_view(source) }
        }
        // Mostly refusals other than the two that end a volume.
        _ => {
            let code = [2001, 2020, 2022, 2023, 1, u32::MAX][source.below(6) as usize];
            let code = if source.byte() > 235 { [2021, 2011][source.below(2) as usize] } else { code };
            ClientAnswer::Refused(Refusal { code, message: "no".into() })
        }
    }
}

/// Returns the PGs of the columns of a segment: columns after the first lie behind those of all segments.
fn pgs_of(segment: SegmentIndex, stripe: Stripe) -> Vec<PgId> {
    (0..stripe.count()).map(|column| pg(segment.0 + 8 * column)).collect()
}

fn right_answer(ask: &ClientAsk, stripe: Stripe) -> ClientAnswer {
    match ask {
        ClientAsk::Segments { segments, allocate, .. } => {
            let place = |s: &SegmentIndex| SegmentPlace {
                segment: *s,
                pgs: if *allocate { pgs_of(*s, stripe) } else { Vec::new() },
            };
            let segments: Vec<SegmentPlace> = segments.iter().map(place).collect();
            let view = honest_view(segments.iter().flat_map(|s| s.pgs.clone()).collect::<Vec<_>>());
            ClientAnswer::Segments { segments, pending: Vec::new(), view }
        }
        ClientAsk::Refresh { pgs } => ClientAnswer::Refreshed(honest_view(pgs.iter().copied())),
        _ => ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 0,
            limits: QosLimits::NONE,
            faults: Vec::new(),
            when_full: WhenFull::Client,
        },
    }
}

/// Returns the policy of a run while PGs are unavailable.
fn policy(seed: u8) -> volume::OnUnavailable {
    match seed % 4 {
        0 => volume::OnUnavailable::Error,
        1 => volume::OnUnavailable::Wait(std::time::Duration::from_secs(7)),
        _ => volume::OnUnavailable::Freeze,
    }
}

impl Table {
    fn new(write: bool, seed: u8, timeout: bool) -> Table {
        let striped = seed & 16 != 0;
        let stripe = Stripe::new(4096 << (seed >> 5), 1 + u32::from(striped)).expect("powers of two");
        let timeout = timeout.then(|| Duration::from_secs(3));
        let config = VolumeConfig {
            space: 1,
            serial: 5,
            timeout,
            full_wait: std::time::Duration::from_secs(u64::from(seed) % 3),
            on_unavailable: policy(seed),
            tuning: VolumeTuning::default(),
            seed: seed.into(),
        };
        Table {
            volume: Volume::new(&opened(write, stripe), config),
            stripe,
            now: Time(1_000_000_000),
            wires: Wires::default(),
            asks: VecDeque::new(),
            open: BTreeMap::new(),
            token: 0,
            ended: 0,
        }
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        let offset = u64::from(source.byte()) * (LEN / 256) + u64::from(source.below(16)) * 512;
        let len = 512 * (1 + u64::from(source.byte()) * [1, 1, 64][source.below(3) as usize]);
        let request = match source.below(9) {
            0..=2 => Request::Read { offset, len },
            3 | 4 => Request::Write { offset, buf: IoBuf::zeros((len as usize).min(1 << 20)), fua: source.flag() },
            5 => Request::Flush,
            6 => Request::Trim { offset, len: source.number(len) },
            7 => Request::WriteZeroes { offset, len, no_hole: source.flag() },
            _ => {
                let since = source.flag().then(|| SnapshotId(source.below(3).into()));
                Request::Extents { offset, len: source.number(len), since }
            }
        };
        self.token += 1;
        if self.volume.submit(self.now, request.clone(), self.token).is_ok() {
            self.open.insert(self.token, request);
        }
    }

    fn poll(&mut self) {
        let mut out = VolumeOut::default();
        self.volume.poll(self.now, &mut self.wires, &mut out);
        self.asks.extend(out.meta);
        while self.asks.len() > OUTBOX_MAX {
            self.asks.pop_front();
        }
        out.done.into_iter().for_each(|done| self.end(done));
        for (what, now, max) in self.volume.fill().limits(&VolumeTuning::default()) {
            assert!(now <= max, "{now} {what}, at most {max}");
        }
    }

    fn end(&mut self, done: Completion) {
        let request = self.open.remove(&done.token).expect("a request ends once");
        self.ended += 1;
        let Ok(answer) = done.result else { return };
        match (request, answer) {
            (Request::Read { len, .. }, Answer::Data(pieces)) => {
                assert_eq!(pieces.iter().map(|p| p.len() as u64).sum::<u64>(), len, "a read of {len}");
                assert!(pieces.iter().all(|p| !p.contains(&BAD)), "bytes that fail their checksum reach a user");
            }
            (Request::Extents { len, .. }, Answer::Extents(extents)) => {
                assert_eq!(extents.iter().map(|e| e.0).sum::<u64>(), len.min(EXTENTS_LEN_MAX), "extents of {len}");
            }
            (Request::Read { .. } | Request::Extents { .. }, other) => panic!("a read answers {other:?}"),
            (_, answer) => assert!(answer == Answer::Done, "a write answers {answer:?}"),
        }
    }

    fn reply(&mut self, osd: OsdId, id: u64, result: Result<ReplyBody, Reject>) {
        self.volume.handle_reply(self.now, osd, Reply { id, result });
    }

    fn link(&mut self, osd: OsdId, up: bool) {
        if up == self.wires.down.contains(&osd) {
            if up {
                self.wires.down.remove(&osd);
            } else {
                self.wires.down.insert(osd);
                self.wires.out.retain(|(to, _)| *to != osd);
            }
            self.volume.handle_link(self.now, osd, up);
        }
    }

    fn step(&mut self, source: &mut Source<'_>) {
        match source.below(16) {
            0..=3 => self.submit(source),
            4..=6 => {
                let Some((osd, request)) = self.wires.out.pop_front() else { return };
                self.reply(osd, request.id, Ok(honest(&request)));
            }
            7 | 8 => {
                let count = self.wires.out.len().max(1) as u32;
                let Some((osd, request)) = self.wires.out.remove(source.below(count) as usize) else { return };
                let osd = if source.byte() < 230 { osd } else { OsdId(source.number(2) as u32) };
                let id = if source.byte() < 200 { request.id } else { source.number(request.id) };
                let result = if source.flag() { lie(source, &request) } else { Ok(honest(&request)) };
                if source.byte() > 200 {
                    // The request is answered again later.
                    self.wires.out.push_back((osd, request));
                }
                self.reply(osd, id, result);
            }
            9 | 10 => {
                let Some(ask) = self.asks.pop_front() else { return };
                let answer = if source.flag() { wild_answer(source) } else { right_answer(&ask, self.stripe) };
                // Meta's answers pass through protobuf, and the conversion rejects bad ones.
                if let Ok(answer) = ClientAnswer::try_from(api::pb::ClientAskReply::from(answer)) {
                    self.volume.handle_meta(self.now, &ask, answer);
                }
            }
            11 => self.link(OsdId(1 + source.below(3)), source.flag()),
            12 => self.wires.no_credit = source.byte() > 200,
            13 => drop(self.wires.out.pop_front()),
            14 => drop(self.asks.pop_front()),
            _ => self.now = self.now + Duration::from_millis(u64::from(source.byte()) * 10),
        }
        self.poll();
    }

    /// Makes all peers honest and answers until every request has ended.
    fn calm_down(&mut self) {
        self.wires.no_credit = false;
        (1..=3).for_each(|n| self.link(OsdId(n), true));
        let until = self.now + CALM;
        while !self.open.is_empty() {
            self.poll();
            while let Some((osd, request)) = self.wires.out.pop_front() {
                self.reply(osd, request.id, Ok(honest(&request)));
            }
            while let Some(ask) = self.asks.pop_front() {
                self.volume.handle_meta(self.now, &ask, right_answer(&ask, self.stripe));
            }
            assert!(self.now < until, "not within {CALM:?}: {:?}", self.open);
            let next = self.volume.next_deadline();
            self.now = next.max(self.now + Duration::from_millis(1)).min(until);
        }
        assert!(self.volume.is_idle());
    }
}

/// Runs the target. First byte: a writer or a reader, with or without a time limit or stripes, and the seed of the volume.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let settings = source.byte();
    let mut table = Table::new(settings & 3 != 0, settings, settings & 12 == 12);
    while !source.is_empty() {
        table.step(&mut source);
    }
    table.calm_down();
    if table.ended > 0 { Verdict::Taken } else { Verdict::Refused }
}

const _: () = assert!(LEN <= VOLUME_LEN_MAX);
