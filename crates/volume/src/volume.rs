//! The volume itself: its state, the calls of its users and its owner, and the end of a request.

use crate::fence_check::FenceCheck;
use crate::ids::SPACES;
use crate::limiter::Limiter;
use crate::limits::PARTS_MAX;
use crate::overlap::Overlaps;
use crate::part::{Part, Place, Work};
use crate::pg::Pg;
use crate::policy::OnUnavailable;
use crate::rehearsal::Rehearsal;
use crate::segments::Segments;
use crate::tuning::VolumeTuning;
use crate::walk::{Piece, PieceExtents, buffers, join_extents, next_piece};
use device::{Answer, Busy, Completion, EXTENTS_LEN_MAX, Request};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use types::control::{ClientAsk, Opened};
use types::limits::VOLUME_LEN_MAX;
use types::planted::{Bug, on};
use types::rng::Rng;
use types::{Epoch, Errno, IoBuf, OsdId, PgId, SECTOR, SessionId, SnapshotId, Stripe, Time, VolumeId, WhenFull};

/// Whether a message may leave for an OSD now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    Go,
    /// No credit: the part waits here. The owner polls again when there is some.
    Wait,
    /// There is no connection.
    NoLink,
}

/// The path to the OSDs, passed to [`Volume::poll`]: the owner's connections and their credit.
pub trait Carrier {
    /// Whether a request of this cost may leave for `osd`; after `Go` it does, at once. The cost is the
    /// bytes that it brings, or the most that its answer brings.
    fn admit(&mut self, osd: OsdId, cost: usize) -> Admit;
    fn send(&mut self, osd: OsdId, request: wire::Request);
    /// Returns the time of the last bytes from `osd`, including answers to pings; `None` when there is no connection.
    fn heard(&self, osd: OsdId) -> Option<Time>;
}

/// Settings that the owner chooses.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Distinguishes this volume's request ids from those of the client's other volumes. Below [`SPACES`].
    pub space: u16,
    /// Messages are numbered from here: [`Volume::serial`] of the last volume that had this space.
    pub serial: u64,
    /// Time after which a request fails with `TimedOut`; with `None` a request waits for ever.
    pub timeout: Option<Duration>,
    /// A write for which an OSD has no space is retried for this long before it fails with `NoSpace`, unless the volume has a policy.
    /// Zero: it fails at once.
    pub full_wait: Duration,
    /// Whether requests fail with `TimedOut` while their PG is unavailable.
    pub on_unavailable: OnUnavailable,
    pub tuning: VolumeTuning,
    pub seed: u64,
}

/// Output of [`Volume::poll`] besides messages.
#[derive(Debug, Default)]
pub struct VolumeOut {
    /// Questions to meta; each comes back to [`Volume::handle_meta`] with its answer.
    pub meta: Vec<ClientAsk>,
    pub done: Vec<Completion>,
    /// Sampled writes that were answered since the last poll.
    pub sampled: Vec<SampledWrite>,
}

/// Times of a sampled write that succeeded; the poll that returns it is the time of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledWrite {
    pub pg: PgId,
    pub seq: u64,
    /// Arrival of the request that the write is a part of.
    pub submitted: Time,
    /// The last sending to the OSD that answered.
    pub sent: Time,
    pub answered: Time,
}

/// Statistics of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    pub sends: u64,
    /// Sends of parts that had been sent before.
    pub repeats: u64,
    /// Leaders found after one fell silent or moved.
    pub searches: u64,
    /// Read answers whose checksum was wrong.
    pub bad_reads: u64,
    /// Writes that waited behind an overlapping one.
    pub held: u64,
    /// Reports of a leader from which this volume hears nothing.
    pub reports: u64,
    /// Requests that waited because of an I/O limit.
    pub limited: u64,
    /// Requests that failed because their PG was unavailable.
    pub unavailable: u64,
    /// Requests that a rehearsed fault delayed, stopped or failed.
    pub rehearsed: u64,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Pending {
    pub token: u64,
    /// Time and number of the request's arrival.
    pub since: Time,
    pub arrival: u64,
    pub kind: Kind,
    /// Volume addresses.
    pub range: Range<u64>,
    /// First piece that is not yet in a part; `None` when all are.
    pub next: Option<Piece>,
    /// Number of parts that are not done.
    pub open: u32,
    pub error: Option<Errno>,
    pub held_bytes: u64,
    /// Time at which the request fails with `TimedOut`.
    pub deadline: Time,
    pub sure: Sure,
    /// It waited because of an I/O limit.
    pub limited: bool,
    /// Since when it waits for meta to tell of its segment.
    pub asks_since: Option<Time>,
}

impl Pending {
    /// Goes on to the next piece.
    pub fn advance(&mut self, stripe: Stripe) {
        self.next = next_piece(stripe, &self.kind, &self.range, self.next);
    }
}

/// Holes that were confirmed after the request came.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sure {
    No,
    /// For a reader: meta does not know this segment.
    OfOne(u32),
    /// For a writer: it held the volume at that moment, so all that it took for holes were holes.
    OfAll,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Buffers of the answer.
    Read(Vec<IoBuf>),
    Write {
        offset: u64,
        buf: IoBuf,
    },
    /// Write zeros out, so that the range has its space.
    Fill,
    Zero,
    Extents {
        /// Those of each piece, by chunk address.
        pieces: Vec<PieceExtents>,
        since: Option<SnapshotId>,
    },
}

/// Amounts in flight on one volume; for observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeFill {
    pub requests: usize,
    /// Bytes of writes and of answers to reads.
    pub bytes: u64,
    pub parts: usize,
    /// Parts of the PG that has the most, without those that wait for space.
    pub pg_parts: u32,
}

impl VolumeFill {
    /// Returns each amount with its name and its limit.
    pub fn limits(&self, tuning: &VolumeTuning) -> [(&'static str, u64, u64); 4] {
        [
            ("requests on a volume", self.requests as u64, tuning.requests_max as u64),
            ("bytes in flight on a volume", self.bytes, tuning.bytes_max),
            ("parts of a volume", self.parts as u64, PARTS_MAX as u64),
            ("parts of one PG", self.pg_parts.into(), tuning.pg_parts_max.into()),
        ]
    }
}

/// The client side of one open volume.
pub struct Volume {
    pub(crate) id: VolumeId,
    /// The snapshot that is read in place of the volume.
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) len_epoch: u32,
    pub(crate) len_bytes: u64,
    pub(crate) stripe: Stripe,
    pub(crate) write: bool,
    /// No other session writes to the volume.
    pub(crate) is_alone: bool,
    /// Policy of writes while the pool is full, as meta has told.
    pub(crate) when_full: WhenFull,
    pub(crate) config: VolumeConfig,
    pub(crate) rng: Rng,
    /// Set when no request can succeed any more.
    pub(crate) failed: Option<Errno>,

    pub(crate) requests: Slab<Pending>,
    /// Requests that still have bytes in no part, and wait for no segment or PG.
    pub(crate) unsplit: VecDeque<u32>,
    /// `None`: the volume has no I/O limit.
    pub(crate) limiter: Option<Box<Limiter>>,
    /// `None`: no fault is rehearsed on the volume.
    pub(crate) rehearsal: Option<Box<Rehearsal>>,
    pub(crate) held_bytes: u64,
    /// Earliest time at which a request may fail with `TimedOut`.
    pub(crate) expire_at: Time,
    /// Earliest time at which the policy may fail a request.
    pub(crate) judge_at: Time,
    /// Numbers of requests taken, of parts made and of messages sent.
    arrivals: u64,
    pub(crate) lives: u64,
    pub(crate) serial: u64,

    pub(crate) parts: Slab<Part>,
    pub(crate) overlaps: Overlaps,
    freed: Vec<u32>,

    pub(crate) segments: Segments,
    pub(crate) fence_check: FenceCheck,
    pub(crate) pgs: Vec<Pg>,
    pub(crate) pg_slots: BTreeMap<PgId, u32>,
    pub(crate) active: Vec<u32>,
    /// Whether a part has waited for credit in the present poll.
    pub(crate) short_of_credit: bool,
    /// Number of the present poll.
    pub(crate) polls: u64,
    pub(crate) refresh: crate::meta::Refresh,

    pub(crate) done: Vec<Completion>,
    pub(crate) sampled: Vec<SampledWrite>,
    /// Time of the last poll, and of the next scan of the parts in flight.
    pub(crate) polled_at: Time,
    pub(crate) scan_at: Time,
    pub(crate) stats: VolumeStats,
}

impl Volume {
    /// Makes the volume that meta has opened.
    ///
    /// # Panics
    /// When `config.space` is out of range, or the tuning has a fault; the message names all faults.
    pub fn new(opened: &Opened, config: VolumeConfig) -> Volume {
        assert!(config.space < SPACES, "no room in the ids for volume {} of a client", config.space);
        config.tuning.validate().unwrap_or_else(|faults| panic!("{faults}"));
        let mut volume = Volume {
            id: opened.volume,
            snapshot: opened.snapshot,
            session: opened.session,
            epoch: opened.epoch,
            len_epoch: opened.len_epoch,
            len_bytes: opened.len_bytes,
            stripe: opened.stripe,
            write: opened.write,
            is_alone: opened.write && !opened.multi_writer,
            rng: Rng::new(config.seed),
            serial: config.serial,
            failed: None,
            requests: Slab::new(),
            unsplit: VecDeque::new(),
            limiter: None,
            rehearsal: None,
            held_bytes: 0,
            expire_at: Time::NEVER,
            judge_at: Time::NEVER,
            arrivals: 0,
            lives: 0,
            parts: Slab::new(),
            overlaps: Overlaps::default(),
            freed: Vec::new(),
            segments: Segments::new(opened.len_bytes, opened.stripe, config.tuning),
            fence_check: FenceCheck::default(),
            pgs: Vec::new(),
            pg_slots: BTreeMap::new(),
            active: Vec::new(),
            short_of_credit: false,
            polls: 1,
            refresh: crate::meta::Refresh::default(),
            done: Vec::new(),
            sampled: Vec::new(),
            polled_at: Time::ZERO,
            scan_at: Time::NEVER,
            stats: VolumeStats::default(),
            when_full: opened.when_full,
            config,
        };
        volume.set_limits(Time::ZERO, opened.limits);
        volume.learn(Time::ZERO, &opened.view);
        for place in &opened.segments {
            volume.place(Time::ZERO, place);
        }
        volume
    }

    pub fn id(&self) -> VolumeId {
        self.id
    }

    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the attach epoch of the session.
    pub fn snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Takes the length that meta told. Under the same epoch a volume only grows, and its PGs took the chunks of the new length before:
    /// requests behind the old end need no new session. Of a shorter volume no request behind the new end is taken any more, and those in
    /// flight go on. Returns whether the length is another one now.
    pub fn set_length(&mut self, len_epoch: u32, len_bytes: u64) -> bool {
        // An answer that was on its way has an older length; a wrong one is as good as none.
        let is_later = (len_epoch, len_bytes) > (self.len_epoch, self.len_bytes);
        if !is_later || len_bytes == 0 || len_bytes > VOLUME_LEN_MAX || !len_bytes.is_multiple_of(SECTOR) {
            return false;
        }
        self.segments.resize(len_bytes);
        let before = std::mem::replace(&mut self.len_bytes, len_bytes);
        self.len_epoch = len_epoch;
        before != len_bytes
    }

    /// Returns the length behind which this client has no request, nor a write that was given up and may still be on its way (R7), with its
    /// epoch; 0 while there is one.
    pub fn used(&self) -> (u32, u64) {
        let is_behind = |run: Range<u64>| self.stripe.volume_ranges(run).iter().any(|range| range.end > self.len_bytes);
        let asks = self.requests.iter().any(|(_, pending)| pending.range.end > self.len_bytes);
        let sends = || self.parts.iter().any(|(_, part)| part.is_write() && is_behind(part.run()));
        (self.len_epoch, if asks || sends() { 0 } else { self.len_bytes })
    }

    pub fn writable(&self) -> bool {
        self.write
    }

    /// Returns the number of the last message.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Iterates over the PGs of this volume that have a member on `osd`.
    pub fn pgs_on(&self, osd: OsdId) -> impl Iterator<Item = PgId> {
        self.pgs.iter().filter(move |pg| pg.members.contains(&osd)).map(|pg| pg.id)
    }

    pub fn stats(&self) -> VolumeStats {
        self.stats
    }

    /// Returns the reason why every request fails from now on, if it does: fenced, or gone.
    pub fn failed(&self) -> Option<Errno> {
        self.failed
    }

    /// Whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.done.is_empty()
    }

    /// Iterates over the OSDs that hold a member of any PG of this volume, with repetitions.
    pub fn osds(&self) -> impl Iterator<Item = OsdId> {
        self.pgs.iter().flat_map(|pg| pg.members.iter().copied())
    }

    /// Takes a request; it leaves with the next [`Volume::poll`].
    ///
    /// # Errors
    /// [`Busy`] when the limits of requests or bytes in flight are reached.
    pub fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy> {
        if let Some(errno) = self.failed.or(device::check_range(self.len_bytes, !self.write, &request).err()) {
            self.done.push(Completion { token, result: Err(errno) });
            return Ok(());
        }
        let Some((offset, len)) = request.span() else {
            // Every write that was answered is durable, and a flush covers no other.
            self.done.push(Completion { token, result: Ok(Answer::Done) });
            return Ok(());
        };
        let held_bytes = request.held_bytes();
        let tuning = &self.config.tuning;
        let full = self.requests.len() >= tuning.requests_max
            || (!self.requests.is_empty() && self.held_bytes + held_bytes > tuning.bytes_max);
        if full {
            return Err(Busy(request));
        }
        let mut end = offset + len;
        let kind = match request {
            Request::Read { .. } => Kind::Read(buffers(self.stripe, &(offset..end))),
            Request::Write { buf, .. } => Kind::Write { offset, buf },
            Request::WriteZeroes { no_hole: true, .. } => Kind::Fill,
            Request::Trim { .. } | Request::WriteZeroes { .. } => Kind::Zero,
            Request::Extents { since, .. } => {
                end = end.min(offset + EXTENTS_LEN_MAX);
                Kind::Extents { pieces: Vec::new(), since }
            }
            Request::Flush => unreachable!("a flush has no span"),
        };
        let deadline = self.config.timeout.map_or(Time::NEVER, |t| now + t);
        self.expire_at = self.expire_at.min(deadline);
        self.expect_judgement(now);
        self.held_bytes += held_bytes;
        let range = offset..end;
        let pending = Pending {
            token,
            since: now,
            arrival: self.arrivals,
            next: next_piece(self.stripe, &kind, &range, None),
            kind,
            range,
            open: 0,
            error: None,
            held_bytes,
            deadline,
            sure: self.sure_at_first(),
            limited: false,
            asks_since: None,
        };
        self.arrivals += 1;
        let request = self.requests.insert(pending) as u32;
        if self.rehearse(now, request) {
            self.unsplit.push_back(request);
            self.split(now);
        }
        Ok(())
    }

    /// Returns the holes that need no question: those of a snapshot, because a segment that is allocated later is none of it.
    fn sure_at_first(&self) -> Sure {
        match self.snapshot.is_some() || self.write && on(Bug::HoleUnasked) {
            true => Sure::OfAll,
            false => Sure::No,
        }
    }

    /// Does all work that is possible now: splits, sends, asks meta, returns completions.
    pub fn poll(&mut self, now: Time, carrier: &mut dyn Carrier, out: &mut VolumeOut) {
        let last_poll = std::mem::replace(&mut self.polled_at, now);
        if self.failed.is_none() {
            self.expire(now);
            self.hold_to_policy(now, last_poll);
            self.release_rehearsed(now);
            self.ask_holder(now);
            self.release_limited(now);
            self.split(now);
            if now >= self.scan_at {
                self.scan(now);
            }
            let mut at = 0;
            while at < self.active.len() {
                let slot = self.active[at];
                self.drive(slot, now, carrier);
                if self.pgs[slot as usize].has_work() {
                    at += 1;
                } else {
                    let pg = &mut self.pgs[slot as usize];
                    (pg.active, pg.blocked) = (false, false);
                    pg.service.rests();
                    self.active.swap_remove(at);
                }
            }
            self.take_turns();
            self.ask(now, &mut out.meta);
        }
        out.done.append(&mut self.done);
        out.sampled.append(&mut self.sampled);
    }

    /// Puts the PGs that have sent in this poll behind the others, when credit was short: PGs with one leader share it.
    fn take_turns(&mut self) {
        if std::mem::take(&mut self.short_of_credit) {
            self.active.sort_by_key(|slot| self.pgs[*slot as usize].sent_in == self.polls);
        }
        self.polls += 1;
    }

    /// Returns the completions, between two polls.
    pub fn completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
    }

    /// Returns the latest time for the next [`Volume::poll`]; [`Time::ZERO`] while completions wait to be taken.
    pub fn next_deadline(&self) -> Time {
        if !self.done.is_empty() {
            return Time::ZERO;
        }
        if self.failed.is_some() {
            return Time::NEVER;
        }
        let silent = self.config.tuning.silent;
        let pgs = self.active.iter().map(|slot| self.pgs[*slot as usize].deadline(self.polled_at, silent));
        pgs.fold(Time::NEVER, Time::min)
            .min(self.scan_at)
            .min(self.expire_at)
            .min(self.policy_deadline())
            .min(self.rehearsal.as_ref().map_or(Time::NEVER, |rehearsal| rehearsal.wake()))
            .min(self.limiter.as_ref().map_or(Time::NEVER, |limiter| limiter.wake()))
            .min(self.ask_deadline())
            .min(self.fence_check.deadline())
    }

    /// Fails all requests with `errno`, now and for ever.
    pub fn fail(&mut self, errno: Errno) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(errno);
        for pending in self.requests.drain() {
            self.done.push(Completion { token: pending.token, result: Err(errno) });
        }
        self.parts.clear();
        self.fence_check = FenceCheck::default();
        self.overlaps.clear();
        self.unsplit.clear();
        if let Some(limiter) = &mut self.limiter {
            limiter.clear();
        }
        self.rehearsal = None;
        (self.expire_at, self.judge_at) = (Time::NEVER, Time::NEVER);
        self.pgs.iter_mut().for_each(|pg| pg.service.rests());
        self.active.clear();
        self.held_bytes = 0;
        self.scan_at = Time::NEVER;
    }

    /// Ends a part: frees its slot and its number, and lets the requests and writes go on that waited for it.
    pub(crate) fn end_part(&mut self, key: u32, result: Result<(), Errno>) {
        let part = self.parts.remove(key as usize);
        let pg = &mut self.pgs[part.pg as usize];
        pg.parts -= 1;
        match part.place {
            Place::Out => pg.out -= 1,
            Place::Waiting => self.unsplit.extend(pg.full.leave(self.config.tuning.pg_parts_max)),
            Place::Held | Place::Queued => {}
        }
        assert_ne!(part.place, Place::Queued, "a part in a queue has no end");
        if part.seq != 0 {
            pg.seqs.take_back(part.seq);
        }
        if let Some(request) = pg.paused.pop_front() {
            self.unsplit.push_front(request);
        }
        if part.is_write() {
            let mut freed = std::mem::take(&mut self.freed);
            self.overlaps.leave(key, &mut freed);
            for part in freed.drain(..) {
                self.enqueue(part);
            }
            self.freed = freed;
        }
        if self.parts.is_empty() {
            self.scan_at = Time::NEVER;
        }
        if let Some(request) = part.request {
            self.end_piece(request, result);
        }
    }

    /// Ends one piece of a request; with the last one, the request ends.
    pub(crate) fn end_piece(&mut self, request: u32, result: Result<(), Errno>) {
        let pending = &mut self.requests[request as usize];
        assert!(pending.open > 0, "a piece ends once");
        pending.open -= 1;
        if let Err(errno) = result {
            pending.error.get_or_insert(errno);
        }
        if pending.open == 0 && pending.next.is_none() {
            self.end_request(request);
        }
    }

    pub(crate) fn end_request(&mut self, request: u32) {
        let pending = self.requests.remove(request as usize);
        self.held_bytes -= pending.held_bytes;
        let result = match (pending.error, pending.kind) {
            (Some(errno), _) => Err(errno),
            (None, Kind::Read(buffers)) => Ok(Answer::Data(buffers)),
            (None, Kind::Extents { pieces, .. }) => {
                Ok(Answer::Extents(join_extents(self.stripe, &pending.range, &pieces)))
            }
            (None, Kind::Write { .. } | Kind::Fill | Kind::Zero) => Ok(Answer::Done),
        };
        self.done.push(Completion { token: pending.token, result });
    }

    /// Puts a part into the queue of its PG.
    pub(crate) fn enqueue(&mut self, key: u32) {
        let part = &mut self.parts[key as usize];
        let pg = &mut self.pgs[part.pg as usize];
        match part.place {
            Place::Out => pg.out -= 1,
            Place::Waiting => self.unsplit.extend(pg.full.leave(self.config.tuning.pg_parts_max)),
            Place::Held | Place::Queued => {}
        }
        part.place = Place::Queued;
        if part.seq != 0 || part.sends > 0 {
            pg.again.push_back(key);
        } else if part.is_write() {
            pg.writes.push_back(key);
        } else {
            pg.reads.push_back(key);
        }
        if !pg.active {
            pg.active = true;
            self.active.push(part.pg);
        }
    }

    /// Fails the requests whose time is over. Their writes that may be on their way are skipped (R7).
    fn expire(&mut self, now: Time) {
        if now < self.expire_at {
            return;
        }
        let late: Vec<u32> =
            self.requests.iter().filter(|(_, p)| p.deadline <= now).map(|(key, _)| key as u32).collect();
        for request in late {
            self.give_up(now, request);
        }
        self.expire_at = self.requests.iter().map(|(_, p)| p.deadline).fold(Time::NEVER, Time::min);
    }

    /// Answers a request with `TimedOut`. Its writes that may be on their way are skipped (R7).
    pub(crate) fn give_up(&mut self, now: Time, request: u32) {
        let mut mine: Vec<u32> = Vec::new();
        mine.extend(self.parts.iter().filter(|(_, p)| p.request == Some(request)).map(|(key, _)| key as u32));
        for key in mine {
            let part = &mut self.parts[key as usize];
            part.request = None;
            part.shelved = None;
            if part.seq != 0 {
                part.work = Work::Skip { why: Errno::TimedOut };
                continue;
            }
            if part.place == Place::Queued {
                self.pgs[part.pg as usize].unqueue(key);
                part.place = Place::Held;
            }
            let (slot, chunk) = (part.pg, part.chunk);
            self.end_part(key, Err(Errno::TimedOut));
            self.keep_searching(now, slot, chunk);
        }
        self.unsplit.retain(|r| *r != request);
        if let Some(limiter) = &mut self.limiter {
            limiter.forget(request);
        }
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.forget(request);
        }
        self.segments.unpark(request);
        self.fence_check.unpark(request);
        for pg in &mut self.pgs {
            let paused = pg.paused.drain(..).chain(pg.full.fills.drain(..));
            self.unsplit.extend(paused.filter(|r| *r != request));
        }
        let pending = &mut self.requests[request as usize];
        pending.error = Some(Errno::TimedOut);
        self.end_request(request);
    }

    /// Whether the limit allows one more part.
    pub(crate) fn has_part_room(&self) -> bool {
        self.parts.len() < PARTS_MAX
    }

    pub(crate) fn arm_scan(&mut self, now: Time) {
        if self.scan_at == Time::NEVER {
            self.scan_at = now + self.config.tuning.scan;
        }
    }

    /// Returns the amounts in flight now.
    pub fn fill(&self) -> VolumeFill {
        // The fence check, one at most, is no part of a request.
        let check = self.fence_check.part().map(|part| self.parts[part as usize].pg);
        let moving = |(slot, pg): (u32, &Pg)| pg.moving_parts() - u32::from(check == Some(slot));
        VolumeFill {
            requests: self.requests.len(),
            bytes: self.held_bytes,
            parts: self.parts.len() - usize::from(check.is_some()),
            pg_parts: (0..).zip(&self.pgs).map(moving).max().unwrap_or(0),
        }
    }

    /// Checks the invariants that hold between calls.
    ///
    /// # Panics
    /// When the counts do not agree.
    pub fn check_books(&self) {
        let writes = self.parts.iter().filter(|(_, p)| p.is_write()).count();
        assert_eq!(self.overlaps.len(), writes, "each write part is entered once");
        for (slot, pg) in self.pgs.iter().enumerate() {
            let mine = || self.parts.iter().filter(move |(_, p)| p.pg as usize == slot);
            let out = mine().filter(|(_, p)| p.place == Place::Out).count();
            let queued = mine().filter(|(_, p)| p.place == Place::Queued).count();
            assert!(
                self.failed.is_some() || (mine().count(), out) == (pg.parts as usize, pg.out as usize),
                "{}",
                pg.id
            );
            let waiting = mine().filter(|(_, p)| p.place == Place::Waiting).count();
            assert!(
                self.failed.is_some() || waiting == pg.full.waiting as usize,
                "{waiting} wait for space in {}",
                pg.id
            );
            let in_queues = pg.again.len() + pg.reads.len() + pg.writes.len();
            assert!(self.failed.is_some() || queued == in_queues, "queues of {}: {in_queues} of {queued}", pg.id);
            let low = mine().map(|(_, p)| p.seq).filter(|s| *s != 0).min();
            assert!(low.is_none_or(|low| low >= pg.seqs.low()), "a number below the watermark is out in {}", pg.id);
        }
        let limited = self.limiter.as_ref().map_or(0, |limiter| limiter.len());
        assert!(limited <= self.requests.len(), "{limited} requests wait for the limits");
        let parked = self.rehearsal.as_ref().map_or(0, |rehearsal| rehearsal.len());
        assert!(parked <= self.requests.len(), "{parked} requests wait for rehearsed faults");
        let held: u64 = self.requests.iter().map(|(_, p)| p.held_bytes).sum();
        assert_eq!(held, self.held_bytes, "bytes in flight");
    }
}
