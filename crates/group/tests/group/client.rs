//! A client: one session, with writes and reads in flight, each repeated until it is answered.

use std::collections::{BTreeMap, BTreeSet};
use types::rng::Rng;
use types::{Epoch, Errno, IoBufMut, SectorRange, SessionId, SnapshotId, VolumeChunk, VolumeId};
use wire::{Reject, Reply, ReplyBody, Request, RequestBody};

use crate::watch::Watch;

pub const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(1), index: 2 };
const SECTORS: u64 = 24;
const IN_FLIGHT_MAX: usize = 6;
/// Pause between attempts, in nanoseconds.
const PATIENCE: u64 = 20_000_000;

enum Kind {
    Write { seq: u64, value: u64, given_up: bool },
    Read { floors: Vec<u64>, session: u64, snapshot: Option<u64> },
}

struct Op {
    range: SectorRange,
    kind: Kind,
    retry_at: u64,
}

pub struct Client {
    pub session: u64,
    pub fenced: bool,
    next_seq: u64,
    busy: BTreeSet<u32>,
    open: BTreeMap<u64, Op>,
    next_op: u64,
    /// Request id → operation; an id is answered at most once.
    asked: BTreeMap<u64, u64>,
    target: u32,
    nodes: u32,
    /// A pinned reader asks one node alone, again and again, and never follows a hint.
    pinned: bool,
}

impl Client {
    pub fn new(session: u64, nodes: u32) -> Client {
        Client {
            session,
            fenced: false,
            next_seq: 0,
            busy: BTreeSet::new(),
            open: BTreeMap::new(),
            next_op: 0,
            asked: BTreeMap::new(),
            target: 1,
            nodes,
            pinned: false,
        }
    }

    pub fn reader(node: u32) -> Client {
        Client { target: node, pinned: true, ..Client::new(0, node) }
    }

    fn watermark(&self) -> u64 {
        let open = self.open.values().filter_map(|op| match op.kind {
            Kind::Write { seq, .. } => Some(seq),
            Kind::Read { .. } => None,
        });
        open.min().unwrap_or(self.next_seq)
    }

    /// Returns new requests, and repetitions that are due: (node, request).
    #[allow(clippy::too_many_arguments)]
    pub fn tick(
        &mut self,
        now: u64,
        start: bool,
        newest: u64,
        counter: &mut u64,
        next_id: &mut u64,
        rng: &mut Rng,
        watch: &mut Watch,
    ) -> Vec<(u32, Request)> {
        if start && !self.fenced && self.open.len() < IN_FLIGHT_MAX {
            self.start(newest, counter, rng, watch);
        }
        let due: Vec<u64> = self.open.iter().filter(|(_, op)| op.retry_at <= now).map(|(key, _)| *key).collect();
        due.into_iter().map(|key| self.ask(now, key, next_id, rng)).collect()
    }

    fn start(&mut self, newest: u64, counter: &mut u64, rng: &mut Rng, watch: &mut Watch) {
        let start = rng.below(SECTORS) as u32;
        let count = rng.between(1, 4.min(SECTORS - u64::from(start))) as u32;
        let range = SectorRange::new(start, count);
        let kind = if !self.pinned && rng.chance(1, 2) {
            if (range.start..range.end()).any(|s| self.busy.contains(&s)) {
                return;
            }
            *counter += 1;
            let value = *counter << 8 | self.session;
            for sector in range.start..range.end() {
                self.busy.insert(sector);
                watch.issues((CHUNK, sector), value);
            }
            self.next_seq += 1;
            Kind::Write { seq: self.next_seq - 1, value, given_up: false }
        } else {
            let floors = (range.start..range.end()).map(|s| watch.floor((CHUNK, s))).collect();
            let ids: Vec<u64> = watch.snapshots().map(|(id, _)| id).collect();
            let some = !ids.is_empty() && rng.chance(1, 3);
            let snapshot = some.then(|| ids[rng.below(ids.len() as u64) as usize]);
            Kind::Read { floors, session: newest, snapshot }
        };
        self.open.insert(self.next_op, Op { range, kind, retry_at: 0 });
        self.next_op += 1;
    }

    fn ask(&mut self, now: u64, key: u64, next_id: &mut u64, rng: &mut Rng) -> (u32, Request) {
        let watermark = self.watermark();
        let op = self.open.get_mut(&key).expect("it is open");
        let again = op.retry_at > 0;
        if !self.pinned && rng.chance(1, if again { 2 } else { 20 }) {
            self.target = rng.between(1, u64::from(self.nodes)) as u32;
        }
        op.retry_at = now + PATIENCE;
        let (range, chunk) = (op.range, CHUNK);
        let body = match &mut op.kind {
            Kind::Read { snapshot, .. } => RequestBody::Read { chunk, range, snapshot: snapshot.map(SnapshotId) },
            Kind::Write { seq, value, given_up } => {
                *given_up |= again && rng.chance(1, 100);
                let seq = *seq;
                if *given_up {
                    RequestBody::Skip { volume: chunk.volume, seq, watermark }
                } else {
                    let mut payload = IoBufMut::zeroed(range.len_bytes());
                    payload.chunks_mut(512).for_each(|s| s[..8].copy_from_slice(&value.to_le_bytes()));
                    let crcs = range.fragment_crcs(&payload);
                    RequestBody::Write { chunk, range, seq, watermark, crcs, payload: payload.freeze() }
                }
            }
        };
        let id = *next_id;
        *next_id += 1;
        self.asked.insert(id, key);
        let pg = crate::world::PG;
        (self.target, Request { id, pg, session: SessionId(self.session), epoch: Epoch(self.session), body })
    }

    /// Handles an answer.
    pub fn answered(&mut self, now: u64, reply: Reply, watch: &mut Watch) {
        let key = self.asked.remove(&reply.id).expect("a request is answered once, to its sender");
        let Some(op) = self.open.get_mut(&key) else { return };
        match reply.result {
            Err(_) if self.pinned => drop(self.open.remove(&key)),
            Err(Reject::NotLeader { hint }) => {
                if let Some(osd) = hint {
                    self.target = osd.0;
                } else {
                    self.target = self.target % self.nodes + 1;
                }
                op.retry_at = now + 3_000_000;
            }
            Err(Reject::NotReady | Reject::Busy) => op.retry_at = now + 10_000_000,
            Err(Reject::Throttled { .. }) => panic!("no volume has a rate here"),
            Err(Reject::NoSuchPg) => panic!("every node has the PG"),
            Err(Reject::Failed(Errno::Gone)) => {
                let Kind::Read { snapshot: Some(id), .. } = op.kind else { panic!("the volume is gone") };
                assert!(watch.may_be_gone(id), "snapshot {id} is gone");
                self.open.remove(&key);
            }
            Err(Reject::Failed(errno)) => {
                assert_eq!(errno, Errno::Fenced, "session {}", self.session);
                self.fenced = true;
                self.open.clear();
            }
            Ok(body) => {
                let op = self.open.remove(&key).expect("it is open");
                self.done(op, body, watch);
            }
        }
    }

    fn done(&mut self, op: Op, body: ReplyBody, watch: &mut Watch) {
        let sectors = (op.range.start..op.range.end()).map(|s| (CHUNK, s));
        match (op.kind, body) {
            (Kind::Write { value, given_up, .. }, ReplyBody::Done) => {
                self.busy.retain(|s| *s < op.range.start || *s >= op.range.end());
                if !given_up {
                    watch.acknowledges(sectors, value);
                }
            }
            (Kind::Read { snapshot: Some(id), .. }, ReplyBody::Data { payload, .. }) => {
                for (sector, bytes) in sectors.zip(payload.chunks(512)) {
                    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                    watch.reads_snapshot(id, sector, value);
                }
            }
            (Kind::Read { floors, session, .. }, ReplyBody::Data { payload, .. }) => {
                for ((sector, floor), bytes) in sectors.zip(floors).zip(payload.chunks(512)) {
                    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                    watch.reads(sector, floor, session, value);
                }
            }
            (_, other) => panic!("an answer of another kind: {other:?}"),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pinned || self.open.is_empty()
    }
}
