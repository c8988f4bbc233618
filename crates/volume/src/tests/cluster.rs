//! A model of PGs and the network between them and the client. A PG has one copy of the bytes (consensus is
//! tested elsewhere), and its leader can fail to answer in every known way.

use super::script::{pg, pg_map};
use crate::{Admit, Carrier, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, MapView, Refusal, SegmentPlace};
use types::limits::SESSION_WINDOW;
use types::rng::Rng;
use types::{Errno, IoBuf, IoBufMut, OsdId, PgId, SectorRange, SegmentIndex, Stripe, Time};
use wire::{Extent, Reject, Reply, ReplyBody, Request, RequestBody};

const MS: u64 = 1_000_000;
const OSDS: usize = 3;

pub(super) const FAULTS: [&str; 12] = [
    "leader moved",
    "silence",
    "link lost",
    "not ready or busy",
    "forgotten",
    "applied though refused",
    "applied unanswered",
    "answered twice",
    "bits flipped",
    "duplicate dropped",
    "device full",
    "meta unavailable",
];

/// Event for the volume.
#[allow(clippy::large_enum_variant)] // short-lived
pub(super) enum Event {
    Reply(OsdId, Reply),
    Meta(ClientAsk, ClientAnswer),
    Link(OsdId, bool),
}

#[allow(clippy::large_enum_variant)] // short-lived
enum Inner {
    Arrive { osd: usize, life: u32, request: Request },
    Commit { osd: usize, life: u32, reign: u32, request: Request },
    LateApply(Request),
    Tell(Event, Option<(usize, u32)>),
    Elect { slot: usize, leader: usize },
    Trouble,
}

#[derive(Default)]
struct PgModel {
    leader: Option<usize>,
    reign: u32,
    sectors: BTreeMap<u32, Vec<u64>>,
    /// Number of the write that a sector holds.
    writers: BTreeMap<u32, Vec<u64>>,
    watermark: u64,
    applied: BTreeSet<u64>,
}

struct Osd {
    up: bool,
    /// Grows with every connection.
    life: u32,
    silent_until: Time,
    in_flight: usize,
}

pub(super) struct Cluster {
    rng: Rng,
    stripe: Stripe,
    queue: BTreeMap<(Time, u64), Inner>,
    count: u64,
    pgs: Vec<PgModel>,
    osds: Vec<Osd>,
    credit: usize,
    fenced: bool,
    full_until: Time,
    pub was_full: bool,
    calm: bool,
    pub faults: [u32; FAULTS.len()],
}

impl Cluster {
    /// Makes a PG for each column of three segments.
    pub fn new(mut rng: Rng, stripe: Stripe) -> Cluster {
        let mut pgs: Vec<PgModel> = Vec::new();
        pgs.resize_with(3 * stripe.count() as usize, PgModel::default);
        for pg in &mut pgs {
            pg.leader = Some(rng.below(OSDS as u64) as usize);
        }
        let osd = |_| Osd { up: true, life: 0, silent_until: Time::ZERO, in_flight: 0 };
        let credit = rng.between(1, 64) as usize;
        let osds = (0..OSDS).map(osd).collect();
        let mut cluster = Cluster {
            rng,
            stripe,
            queue: BTreeMap::new(),
            count: 0,
            pgs,
            osds,
            credit,
            fenced: false,
            full_until: Time::ZERO,
            was_full: false,
            calm: false,
            faults: [0; FAULTS.len()],
        };
        cluster.push(Time(1_000 * MS), Inner::Trouble);
        cluster
    }

    fn push(&mut self, at: Time, inner: Inner) {
        self.count += 1;
        self.queue.insert((at, self.count), inner);
    }

    fn chance(&mut self, fault: usize, one_in: u64) -> bool {
        let hit = !self.calm && self.rng.chance(1, one_in);
        self.faults[fault] += u32::from(hit);
        hit
    }

    fn delay(&mut self) -> Duration {
        let us = if self.rng.chance(1, 50) { self.rng.between(1_000, 60_000) } else { self.rng.between(20, 800) };
        Duration::from_micros(us)
    }

    pub fn fence(&mut self) {
        self.fenced = true;
    }

    /// Ends all faults: pending requests must end.
    pub fn calm(&mut self, now: Time) {
        if self.calm {
            return;
        }
        self.calm = true;
        self.full_until = Time::ZERO;
        for osd in 0..OSDS {
            self.osds[osd].silent_until = Time::ZERO;
            if !self.osds[osd].up {
                self.link(now, osd, true);
            }
        }
        for slot in 0..self.pgs.len() {
            let leader = self.rng.below(OSDS as u64) as usize;
            self.push(now + Duration::from_millis(200), Inner::Elect { slot, leader });
        }
    }

    pub fn next_event_time(&self) -> Time {
        self.queue.keys().next().map_or(Time::NEVER, |key| key.0)
    }

    /// Takes the volume's next event at or before `now`.
    pub fn take(&mut self, now: Time) -> Option<Event> {
        while self.next_event_time() <= now {
            let ((at, _), inner) = self.queue.pop_first().expect("not empty");
            match inner {
                Inner::Arrive { osd, life, request } => self.arrive(at, osd, life, request),
                Inner::Commit { osd, life, reign, request } => self.commit(at, osd, life, reign, request),
                Inner::LateApply(request) => {
                    self.apply(&request);
                }
                Inner::Elect { slot, leader } => self.pgs[slot].leader = Some(leader),
                Inner::Trouble => self.trouble(at),
                Inner::Tell(event, link) => {
                    let Some((osd, life)) = link else { return Some(event) };
                    if self.osds[osd].up && self.osds[osd].life == life {
                        self.osds[osd].in_flight = self.osds[osd].in_flight.saturating_sub(1);
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    fn link(&mut self, now: Time, osd: usize, up: bool) {
        let state = &mut self.osds[osd];
        state.up = up;
        state.life += u32::from(up);
        state.in_flight = 0;
        self.push(now, Inner::Tell(Event::Link(OsdId(osd as u32 + 1), up), None));
    }

    /// Makes a fault in the cluster.
    fn trouble(&mut self, now: Time) {
        if self.calm {
            return;
        }
        let next = Duration::from_millis(self.rng.between(1, 400));
        self.push(now + next, Inner::Trouble);
        let osd = self.rng.below(OSDS as u64) as usize;
        let slot = self.rng.below(self.pgs.len() as u64) as usize;
        match self.rng.below(5) {
            0 | 1 => {
                self.faults[0] += 1;
                self.pgs[slot].leader = None;
                self.pgs[slot].reign += 1;
                let pause = Duration::from_millis(self.rng.below(500));
                self.push(now + pause, Inner::Elect { slot, leader: osd });
            }
            2 => {
                self.faults[1] += 1;
                self.osds[osd].silent_until = now + Duration::from_millis(self.rng.between(100, 2_000));
            }
            3 if self.osds[osd].up => {
                self.faults[2] += 1;
                self.link(now, osd, false);
            }
            3 => self.link(now, osd, true),
            _ if self.rng.chance(1, 4) => {
                self.full_until = now + Duration::from_millis(30);
                self.was_full = true;
            }
            _ => {}
        }
    }

    fn tell(&mut self, at: Time, osd: usize, life: u32, id: u64, result: Result<ReplyBody, Reject>) {
        let reply = Reply { id, result };
        let at = at + self.delay();
        if self.chance(7, 30) {
            let late = at + self.delay();
            let event = Event::Reply(OsdId(osd as u32 + 1), reply.clone());
            self.push(late, Inner::Tell(event, Some((osd, life))));
        }
        self.push(at, Inner::Tell(Event::Reply(OsdId(osd as u32 + 1), reply), Some((osd, life))));
    }

    fn arrive(&mut self, now: Time, osd: usize, life: u32, request: Request) {
        if self.osds[osd].silent_until > now {
            return self.push(self.osds[osd].silent_until, Inner::Arrive { osd, life, request });
        }
        let slot = request.pg.n as usize;
        if let RequestBody::Write { seq, watermark, .. } | RequestBody::Zero { seq, watermark, .. } = request.body {
            assert!(seq >= watermark && seq < watermark + SESSION_WINDOW, "number {seq} with watermark {watermark}");
        }
        if self.fenced {
            return self.tell(now, osd, life, request.id, Err(Reject::Failed(Errno::Fenced)));
        }
        if self.pgs[slot].leader != Some(osd) {
            let hint = match self.rng.below(4) {
                0 => None,
                1 => Some(OsdId(1 + self.rng.below(OSDS as u64) as u32)),
                _ => self.pgs[slot].leader.map(|osd| OsdId(osd as u32 + 1)),
            };
            return self.tell(now, osd, life, request.id, Err(Reject::NotLeader { hint }));
        }
        if self.chance(3, 25) {
            let reject = match self.rng.below(3) {
                0 => Reject::NotReady,
                1 => Reject::Busy,
                _ => Reject::Throttled { wait_us: self.rng.below(20_000) as u32 },
            };
            return self.tell(now, osd, life, request.id, Err(reject));
        }
        if self.full_until > now && matches!(request.body, RequestBody::Write { .. }) {
            self.faults[10] += 1;
            return self.tell(now, osd, life, request.id, Err(Reject::Failed(Errno::NoSpace)));
        }
        if self.chance(4, 200) {
            return self.release(osd, life);
        }
        let reign = self.pgs[slot].reign;
        let at = now + self.delay();
        self.push(at, Inner::Commit { osd, life, reign, request });
    }

    /// Returns credit although there is no answer.
    fn release(&mut self, osd: usize, life: u32) {
        if self.osds[osd].life == life {
            self.osds[osd].in_flight = self.osds[osd].in_flight.saturating_sub(1);
        }
    }

    fn commit(&mut self, now: Time, osd: usize, life: u32, reign: u32, request: Request) {
        let slot = request.pg.n as usize;
        let deposed = !self.calm && self.rng.chance(1, 40);
        let moved = deposed || self.pgs[slot].reign != reign || self.pgs[slot].leader != Some(osd);
        if moved {
            let is_read = !matches!(
                request.body,
                RequestBody::Write { .. } | RequestBody::Zero { .. } | RequestBody::Skip { .. }
            );
            match self.rng.below(3) {
                0 if !is_read => {
                    self.faults[5] += 1;
                    let late = now + Duration::from_millis(self.rng.below(1_500));
                    self.tell(now, osd, life, request.id, Err(Reject::NotLeader { hint: None }));
                    self.push(late, Inner::LateApply(request));
                }
                1 if !is_read => {
                    self.faults[6] += 1;
                    self.apply(&request);
                    self.release(osd, life);
                }
                _ => self.tell(now, osd, life, request.id, Err(Reject::NotLeader { hint: None })),
            }
            return;
        }
        let body = self.apply(&request);
        self.tell(now, osd, life, request.id, Ok(body));
    }

    /// Applies a committed request to the PG.
    fn apply(&mut self, request: &Request) -> ReplyBody {
        let slot = request.pg.n as usize;
        match &request.body {
            RequestBody::Write { chunk, range, seq, watermark, crcs, payload } => {
                assert!(range.verify(payload, crcs), "a write with wrong checksums arrived");
                if self.admit(slot, *seq, *watermark) {
                    let stamp = |at: usize| u64::from_le_bytes(payload[at * 512..][..8].try_into().expect("8 bytes"));
                    self.put(slot, chunk.index, *range, *seq, stamp);
                }
                ReplyBody::Done
            }
            RequestBody::Zero { chunk, range, seq, watermark } => {
                if self.admit(slot, *seq, *watermark) {
                    self.put(slot, chunk.index, *range, *seq, |_| 0);
                }
                ReplyBody::Done
            }
            RequestBody::Skip { seq, watermark, .. } => {
                self.admit(slot, *seq, *watermark);
                ReplyBody::Done
            }
            RequestBody::FenceCheck { .. } | RequestBody::Unreached { .. } => ReplyBody::Done,
            RequestBody::Read { chunk, range, .. } => self.read(slot, chunk.index, *range),
            RequestBody::Extents { chunk, range, .. } => {
                let data = self.pgs[slot].sectors.contains_key(&chunk.index);
                ReplyBody::Extents(vec![Extent { sectors: range.count, data }])
            }
        }
    }

    /// Whether a write is new in its session's window (R7).
    fn admit(&mut self, slot: usize, seq: u64, watermark: u64) -> bool {
        let pg = &mut self.pgs[slot];
        let first = seq >= pg.watermark && pg.applied.insert(seq);
        pg.watermark = pg.watermark.max(watermark);
        let low = pg.watermark;
        pg.applied.retain(|seq| *seq >= low);
        self.faults[9] += u32::from(!first);
        first
    }

    fn put(&mut self, slot: usize, chunk: u32, range: SectorRange, seq: u64, stamp: impl Fn(usize) -> u64) {
        let pg = &mut self.pgs[slot];
        let whole = || vec![0; SectorRange::CHUNK.count as usize];
        let span = range.start as usize..range.end() as usize;
        let writers = &mut pg.writers.entry(chunk).or_insert_with(whole)[span.clone()];
        assert!(writers.iter().all(|old| *old < seq), "write {seq} of {chunk}/{range} landed after a later one");
        writers.fill(seq);
        let sectors = &mut pg.sectors.entry(chunk).or_insert_with(whole)[span];
        sectors.iter_mut().enumerate().for_each(|(at, sector)| *sector = stamp(at));
    }

    fn read(&mut self, slot: usize, chunk: u32, range: SectorRange) -> ReplyBody {
        let empty = ReplyBody::Data { crcs: types::CrcList::new(), payload: IoBuf::EMPTY };
        let Some(sectors) = self.pgs[slot].sectors.get(&chunk) else { return empty };
        let mut buf = IoBufMut::new(range.len_bytes());
        for (sector, at) in buf.chunks_exact_mut(512).zip(range.start..) {
            let stamp = sectors[at as usize].to_le_bytes();
            sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp));
        }
        let crcs = range.fragment_crcs(&buf);
        if self.chance(8, 40) {
            let at = self.rng.below(buf.len() as u64) as usize;
            buf[at] ^= 1 << self.rng.below(8);
        }
        ReplyBody::Data { crcs, payload: buf.freeze() }
    }

    /// Returns the place of a segment: columns lie in ascending PGs.
    pub fn place(stripe: Stripe, segment: SegmentIndex) -> SegmentPlace {
        let count = stripe.count();
        SegmentPlace { segment, pgs: (0..count).map(|column| pg(segment.0 * count + column)).collect() }
    }

    /// Handles a question to meta, which allocates each segment at once.
    pub fn ask(&mut self, now: Time, ask: ClientAsk) {
        let at = now + self.delay() * 5;
        if self.chance(11, 4) {
            if self.rng.chance(1, 2) {
                let why = Refusal { code: codes::META_UNAVAILABLE, message: "no server leads".into() };
                self.push(at, Inner::Tell(Event::Meta(ask, ClientAnswer::Refused(why)), None));
            }
            return;
        }
        let view = |pgs: Vec<PgId>| MapView {
            leaders: pgs
                .iter()
                .filter_map(|pg| Some((*pg, OsdId(self.pgs[pg.n as usize].leader? as u32 + 1))))
                .collect(),
            pgs: pgs.into_iter().map(|pg| pg_map(pg.n)).collect(),
            osds: Vec::new(),
        };
        let answer = match &ask {
            ClientAsk::Segments { segments, .. } => {
                let places: Vec<SegmentPlace> = segments.iter().map(|s| Cluster::place(self.stripe, *s)).collect();
                let view = view(places.iter().flat_map(|place| place.pgs.clone()).collect());
                ClientAnswer::Segments { segments: places, pending: Vec::new(), view }
            }
            ClientAsk::Refresh { pgs } => ClientAnswer::Refreshed(view(pgs.clone())),
            other => panic!("a volume does not ask {other:?}"),
        };
        self.push(at, Inner::Tell(Event::Meta(ask, answer), None));
    }

    pub fn carrier(&mut self, now: Time) -> Net<'_> {
        Net { cluster: self, now }
    }

    /// Checks that parts are repeated because of faults only: without faults every part leaves about once.
    pub fn check_waste(&self, volume: &Volume) {
        let stats = volume.stats();
        let faults: u32 = self.faults.iter().sum();
        let share = u64::from(faults) * 60 + 20;
        assert!(stats.repeats <= share, "{} of {} sends were repetitions, {faults} faults", stats.repeats, stats.sends);
    }
}

/// The connections, for one poll.
pub(super) struct Net<'a> {
    cluster: &'a mut Cluster,
    now: Time,
}

impl Carrier for Net<'_> {
    fn admit(&mut self, osd: OsdId, _cost: usize) -> Admit {
        let Some(state) = self.cluster.osds.get((osd.0 as usize).wrapping_sub(1)) else { return Admit::NoLink };
        match (state.up, state.in_flight < self.cluster.credit) {
            (false, _) => Admit::NoLink,
            (true, false) => Admit::Wait,
            (true, true) => Admit::Go,
        }
    }

    fn heard(&self, osd: OsdId) -> Option<Time> {
        let state = self.cluster.osds.get((osd.0 as usize).wrapping_sub(1)).filter(|state| state.up)?;
        Some(if state.silent_until > self.now { Time::ZERO } else { self.now })
    }

    fn send(&mut self, osd: OsdId, request: Request) {
        let osd = osd.0 as usize - 1;
        let cluster = &mut *self.cluster;
        assert!(cluster.osds[osd].up && cluster.osds[osd].in_flight < cluster.credit, "sent without leave");
        cluster.osds[osd].in_flight += 1;
        let life = cluster.osds[osd].life;
        let at = self.now + cluster.delay();
        cluster.push(at, Inner::Arrive { osd, life, request });
    }
}
