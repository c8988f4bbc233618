//! Block I/O on one volume: every sector carries a stamp, and every answer goes to the checker.
//!
//! Patterns differ in where the next request lies and how large it is. Windows are laid over borders where
//! splitting could go wrong.

use super::{Ask, Turn, Workload, name};
use crate::check::linear::Linear;
use crate::forge::Forger;
use crate::stamp;
use device::{Answer, Request};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use types::rng::Rng;
use types::units::{AU, CHUNK, SECTOR, SEGMENT};
use types::{Errno, IoBuf, IoBufMut, VolumeId};

/// Places of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere in the windows.
    Random,
    /// One request behind the other, over and over.
    Sequential,
    /// Nearly all on one block.
    HotSpot,
    /// Mostly trims and zeros between the writes.
    Zeros,
    /// Whole blocks of a few: a register each.
    Registers,
    /// Up to 8 MiB, one over the other.
    Large,
    /// In a segment that moves on with time, for all openers alike, and in the one before. An opener that slept takes
    /// for holes what another has filled.
    Frontier,
}

/// Most whole AUs of one request, and sectors of an AU.
pub const AUS_MAX: u64 = 8;
pub const AU_SECTORS: u64 = AU / SECTOR;
/// Number of sectors that all requests of [`Pattern::Large`] may have together: each is a line of the history.
const LARGE_SECTORS: u64 = 250_000;
/// Time for which [`Pattern::Frontier`] stays in a segment.
const FRONTIER_NS: u64 = 300_000_000;
/// Number of registers of a window.
const REGISTERS: u64 = 4;

/// Returns when [`Pattern::Frontier`] moves on next, after this global time.
pub fn next_frontier(now: u64) -> u64 {
    (now / FRONTIER_NS + 1) * FRONTIER_NS
}

impl Pattern {
    /// Turns a drawn shape into one of this pattern.
    pub fn shape(self, shape: &mut Shape) {
        shape.pattern = self;
        match self {
            Pattern::Random | Pattern::Frontier => {}
            Pattern::Sequential => shape.window = shape.window.max(1 << 20),
            Pattern::HotSpot => shape.sectors_max = shape.sectors_max.min(16),
            Pattern::Zeros => (shape.read_pct, shape.trim_pct) = (30, 40),
            Pattern::Registers => (shape.window, shape.sectors_max, shape.trim_pct) = (REGISTERS * 4096, 8, 0),
            Pattern::Large => {
                (shape.window, shape.sectors_max) = (12 << 20, (8 << 20) / SECTOR);
                (shape.depth, shape.operations) = (shape.depth.min(6), shape.operations.min(400));
            }
        }
    }
}

/// Settings, drawn by seed.
#[derive(Clone, Debug)]
pub struct Shape {
    pub pattern: Pattern,
    pub len_bytes: u64,
    /// Bytes of each hot window.
    pub window: u64,
    pub depth: usize,
    /// Largest request, in sectors.
    pub sectors_max: u64,
    /// Out of 100: reads, trims; the rest are writes.
    pub read_pct: u64,
    pub trim_pct: u64,
    pub operations: u64,
    /// Writes are whole blocks that look like batches of the log.
    pub forger: Option<Forger>,
    /// Requests begin and end with blocks.
    pub whole_blocks: bool,
    /// Out of 100: requests that begin and end with AUs.
    pub whole_aus_pct: u64,
    /// The stores may run full: a write may fail for lack of space.
    pub may_be_full: bool,
    /// Number of further windows, each in a chunk of its own.
    pub spread: u64,
}

/// One generator over one volume.
pub struct Block {
    name: String,
    volume: u64,
    /// Number of its history, followed by those of the histories that it began from.
    histories: Vec<u64>,
    shape: Shape,
    windows: Vec<u64>,
    /// Windows that were given back: the workload no longer writes there.
    given: Vec<u64>,
    rng: Rng,
    next_stamp: u64,
    next_token: u64,
    inflight: BTreeMap<u64, Op>,
    asked: u64,
    /// Ranges that are trimmed between other requests.
    unwanted: VecDeque<(u64, u64)>,
    /// Ranges that are read at the very end.
    last_reads: VecDeque<(u64, u64)>,
    answered: u64,
    /// Where the next request of a sequence lies in its window, in sectors.
    head: u64,
    /// Number of sectors in requests so far.
    sectors: u64,
    finishing: bool,
    /// Its reads are not looked at any more.
    surprised: bool,
    /// Requests behind this end may fail.
    cut: Option<u64>,
}

#[derive(Debug)]
struct Op {
    sector: u64,
    count: u64,
    kind: Kind,
    start: u64,
}

#[derive(Debug)]
enum Kind {
    Write { stamp: u64, fenced: bool },
    Read,
    Flush,
}

impl Block {
    /// Makes a generator for the volume of this name and number. `client` tells the stamps of several openers apart.
    pub fn on(name: &str, volume: u64, client: u64, shape: Shape, mut rng: Rng) -> Block {
        let half = shape.window / 2;
        let mut windows = vec![0, CHUNK - half, SEGMENT - half];
        windows.push(rng.below(shape.len_bytes / SECTOR) * SECTOR);
        windows.extend((0..shape.spread).map(|n| n * (shape.len_bytes / CHUNK) / shape.spread * CHUNK));
        if shape.pattern == Pattern::Large {
            windows = vec![CHUNK - half];
        }
        windows.iter_mut().for_each(|w| *w = (*w).min(shape.len_bytes - shape.window));
        let next_stamp = client << 40 | 1;
        Block {
            name: name.to_owned(),
            volume,
            histories: vec![volume],
            shape,
            windows,
            given: Vec::new(),
            rng,
            next_stamp,
            next_token: 0,
            inflight: BTreeMap::new(),
            asked: 0,
            unwanted: VecDeque::new(),
            last_reads: VecDeque::new(),
            answered: 0,
            head: 0,
            sectors: 0,
            finishing: false,
            surprised: false,
            cut: None,
        }
    }

    /// Gives the volume another history than that of its number: it began with the contents of a snapshot.
    pub fn go_on_from(&mut self, history: u64, ancestors: &[u64]) {
        self.histories = std::iter::once(history).chain(ancestors.iter().copied()).collect();
    }

    fn history(&self) -> u64 {
        self.histories[0]
    }

    fn draw(&mut self, now: u64, fenced: bool, linear: &mut Linear) -> Option<(Request, u64)> {
        if self.inflight.len() >= self.shape.depth {
            return None;
        }
        if let Some((sector, count)) = self.last_reads.pop_front() {
            let op = Op { sector, count, kind: Kind::Read, start: now };
            let request = Request::Read { offset: sector * SECTOR, len: count * SECTOR };
            return Some(self.ask(request, op));
        }
        if !self.unwanted.is_empty()
            && self.rng.chance(1, 2)
            && let Some((sector, count)) = self.unwanted.pop_front()
        {
            let stamp = self.new_stamp((sector, count), true, (now, fenced), linear);
            let op = Op { sector, count, kind: Kind::Write { stamp, fenced }, start: now };
            return Some(self.ask(Request::Trim { offset: sector * SECTOR, len: count * SECTOR }, op));
        }
        if self.asked >= self.shape.operations {
            self.unwanted.clear();
            return None;
        }
        self.asked += 1;
        let (sector, count) = self.place(now);
        self.sectors += count;
        if self.shape.pattern == Pattern::Large && self.sectors > LARGE_SECTORS {
            self.asked = self.shape.operations;
        }
        let dice = self.rng.below(100);
        if self.rng.chance(1, 50) {
            return Some(self.ask(Request::Flush, Op { sector: 0, count: 0, kind: Kind::Flush, start: now }));
        }
        let (offset, len) = (sector * SECTOR, count * SECTOR);
        if dice < self.shape.read_pct {
            let op = Op { sector, count, kind: Kind::Read, start: now };
            return Some(self.ask(Request::Read { offset, len }, op));
        }
        let zeros = dice < self.shape.read_pct + self.shape.trim_pct;
        let stamp = self.new_stamp((sector, count), zeros, (now, fenced), linear);
        let op = Op { sector, count, kind: Kind::Write { stamp, fenced }, start: now };
        let request = if zeros && self.shape.pattern == Pattern::Zeros && self.rng.chance(1, 2) {
            Request::Trim { offset, len }
        } else if zeros {
            let no_hole = self.shape.pattern == Pattern::Zeros && self.rng.chance(1, 2);
            Request::WriteZeroes { offset, len, no_hole }
        } else {
            Request::Write { offset, buf: self.payload(sector, count, stamp, linear), fua: false }
        };
        Some(self.ask(request, op))
    }

    fn wants_anything(&self) -> bool {
        self.asked < self.shape.operations || !self.last_reads.is_empty() || !self.unwanted.is_empty()
    }

    /// Returns the stamp of a write that begins now.
    fn new_stamp(
        &mut self,
        (sector, count): (u64, u64),
        zeros: bool,
        (now, fenced): (u64, bool),
        linear: &mut Linear,
    ) -> u64 {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        linear.write_started(self.history(), sector..sector + count, stamp, zeros, now);
        if fenced {
            linear.forbid(self.history(), stamp);
        }
        stamp
    }

    /// Returns where the next request lies: first sector, and number of sectors.
    fn place(&mut self, now: u64) -> (u64, u64) {
        if self.shape.pattern == Pattern::Frontier {
            self.follow_frontier(now);
        }
        let sectors = self.shape.window / SECTOR;
        let most = self.shape.sectors_max.min(sectors);
        let window = self.windows[self.rng.below(self.windows.len() as u64) as usize] / SECTOR;
        let count = self.rng.between(1, most);
        match self.shape.pattern {
            Pattern::Sequential => {
                let window = self.windows[1] / SECTOR;
                let at = if self.head + count > sectors { 0 } else { self.head };
                self.head = at + count;
                return (window + at, count);
            }
            Pattern::HotSpot if self.rng.chance(9, 10) => {
                let from = self.rng.below(8);
                return (self.windows[1] / SECTOR / 8 * 8 + from, count.min(8 - from));
            }
            Pattern::Registers => return (window / 8 * 8 + 8 * self.rng.below(REGISTERS), 8),
            _ => {}
        }
        if self.shape.whole_aus_pct > 0 && self.rng.chance(self.shape.whole_aus_pct, 100) {
            let first = window.next_multiple_of(AU_SECTORS);
            let end = (window + sectors).min(self.shape.len_bytes / SECTOR);
            let room = end.saturating_sub(first) / AU_SECTORS;
            if room > 0 {
                let at = self.rng.below(room);
                return (first + at * AU_SECTORS, self.rng.between(1, AUS_MAX.min(room - at)) * AU_SECTORS);
            }
        }
        // Sizes have every order of magnitude, not only the largest.
        let count = if self.shape.pattern == Pattern::Large { (count >> self.rng.below(14)).max(1) } else { count };
        let mut sector = window + self.rng.below(sectors.saturating_sub(count).max(1));
        let mut count = count.min(self.shape.len_bytes / SECTOR - sector);
        // Half of all requests are whole blocks, as real file systems send them.
        if self.rng.chance(1, 2) && count >= 8 {
            sector -= sector % 8;
            count -= count % 8;
        }
        if self.shape.forger.is_some() || self.shape.whole_blocks {
            (sector, count) = (sector - sector % 8, count.next_multiple_of(8));
        }
        (sector, count)
    }

    /// Sets the windows to the frontier of this time and of the time before.
    fn follow_frontier(&mut self, now: u64) {
        let segments = self.shape.len_bytes / SEGMENT;
        let at = |turn: u64| turn % segments * SEGMENT;
        let turn = now / FRONTIER_NS;
        self.windows = vec![at(turn), at(turn.saturating_sub(1))];
    }

    fn payload(&mut self, sector: u64, count: u64, stamp: u64, linear: &Linear) -> IoBuf {
        let mut buf = IoBufMut::new((count * SECTOR) as usize);
        let seen = linear.durable.as_ref().map(|watch| watch.shared.borrow());
        let guess = self.shape.forger.as_ref().zip(seen).and_then(|(f, seen)| f.guess(&seen, &mut self.rng));
        for (i, bytes) in (0..).zip(buf.chunks_exact_mut(SECTOR as usize)) {
            match guess.filter(|_| i % 8 == 0) {
                Some(guess) => {
                    stamp::forge(bytes, self.history(), sector + i, stamp, &guess.head(i / 8, &mut self.rng));
                }
                None => stamp::write(bytes, self.history(), sector + i, stamp),
            }
        }
        stamp::seal(&mut buf);
        buf.freeze()
    }

    fn ask(&mut self, request: Request, op: Op) -> (Request, u64) {
        let token = self.next_token;
        self.next_token += 1;
        self.inflight.insert(token, op);
        (request, token)
    }

    fn is_cut_off(&self, sector: u64) -> bool {
        self.cut.is_some_and(|cut| sector * SECTOR > cut)
    }

    fn check_read(
        &self,
        sector: u64,
        count: u64,
        bufs: &[IoBuf],
        start: u64,
        end: u64,
        linear: &mut Linear,
    ) -> Result<(), String> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total as u64 != count * SECTOR {
            return Err(format!("a read of {count} sectors was answered with {total} bytes"));
        }
        let mut saw = Vec::with_capacity(count as usize);
        for buf in bufs {
            let at = sector + saw.len() as u64;
            for (at, read) in (at..).zip(stamp::read(buf, &self.histories, at)) {
                saw.push(read.map_err(|e| format!("volume {} sector {at} {e}", self.volume))?);
            }
        }
        linear.read(self.history(), sector, &saw, start, end);
        Ok(())
    }
}

impl Workload for Block {
    fn volumes(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn history_of(&self, _volume: VolumeId) -> u64 {
        self.history()
    }

    fn wants_more(&self) -> bool {
        self.inflight.len() < self.shape.depth && self.wants_anything()
    }

    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask> {
        let (request, token) = self.draw(turn.now, turn.fenced, turn.linear)?;
        Some(Ask { slot: 0, request, token })
    }

    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String> {
        let op =
            self.inflight.remove(&token).ok_or_else(|| format!("token {token} was answered twice or never asked"))?;
        self.answered += 1;
        match (op.kind, result) {
            (Kind::Write { fenced: true, .. }, Ok(_)) => {
                return Err("a write that a fenced opener asked for was acknowledged".to_owned());
            }
            (Kind::Write { stamp, .. }, Ok(_)) => {
                turn.linear.write_ended(self.history(), op.sector..op.sector + op.count, stamp, turn.now);
            }
            (Kind::Read, Ok(_)) if self.surprised => {}
            (Kind::Read, Ok(Answer::Data(bufs))) => {
                self.check_read(op.sector, op.count, &bufs, op.start, turn.now, turn.linear)?
            }
            (Kind::Flush, Ok(_)) => {}
            (Kind::Read, Ok(other)) => return Err(format!("a read was answered with {other:?}")),
            (_, Err(Errno::Fenced)) if turn.stolen => {}
            // Parts of the write may have taken effect.
            (Kind::Write { .. }, Err(Errno::NoSpace)) if self.shape.may_be_full => {}
            (_, Err(Errno::Damaged)) if turn.lenient => {}
            (_, Err(Errno::Fenced | Errno::Gone)) if turn.removed => {}
            // The volume is shorter for a while. Parts of a write may have taken effect.
            (_, Err(Errno::Invalid | Errno::NoSpace)) if self.is_cut_off(op.sector + op.count) => {}
            (_, Err(errno)) => return Err(format!("a request failed: {}", name(errno))),
        }
        Ok(())
    }

    fn grown(&mut self, _slot: usize, len_bytes: u64) {
        if self.cut.is_some() {
            assert!(len_bytes <= self.shape.len_bytes, "it gets back what it had");
            return;
        }
        assert!(len_bytes > self.shape.len_bytes, "it was not told of a shrink");
        self.shape.len_bytes = len_bytes;
        self.windows.push(len_bytes - self.shape.window);
    }

    fn forget_inflight(&mut self) {
        self.inflight.clear();
    }

    fn limit(&mut self, more: u64) {
        self.shape.operations = self.shape.operations.min(self.asked + more);
    }

    fn areas(&self) -> Vec<Range<u64>> {
        self.windows.iter().map(|at| at / SECTOR..(at + self.shape.window) / SECTOR + 8).collect()
    }

    fn be_cut(&mut self, end: u64) {
        self.cut = Some(self.cut.map_or(end, |cut| cut.min(end)));
    }

    fn be_surprised(&mut self) {
        (self.surprised, self.shape.read_pct) = (true, 0);
        self.last_reads.clear();
    }

    /// Trims what it may have written in its first segment. From then on the workload keeps to the second one.
    fn give_back(&mut self) {
        const STEP: u64 = 512;
        let sectors = self.shape.window / SECTOR;
        for window in self.windows.iter().filter(|at| **at < SEGMENT) {
            let (first, end) = (window / SECTOR, (window / SECTOR + sectors).min(SEGMENT / SECTOR));
            self.unwanted.extend((first..end).step_by(STEP as usize).map(|at| (at, STEP.min(end - at))));
        }
        self.given = std::mem::replace(&mut self.windows, vec![SEGMENT]);
    }

    fn is_giving_back(&self) -> bool {
        !self.unwanted.is_empty()
    }

    /// Reads every sector once that it may have written.
    fn finish(&mut self) {
        self.finishing = true;
        self.unwanted.clear();
        self.asked = self.shape.operations;
        const STEP: u64 = 128;
        if self.shape.pattern == Pattern::Frontier {
            self.windows = (0..self.shape.len_bytes / SEGMENT).map(|segment| segment * SEGMENT).collect();
        }
        for window in self.given.iter().chain(&self.windows) {
            let (first, sectors) = (window / SECTOR / 8 * 8, self.shape.window / SECTOR + 8);
            let sectors = sectors.min(self.shape.len_bytes / SECTOR - first);
            self.last_reads
                .extend((0..sectors.div_ceil(STEP)).map(|n| (first + n * STEP, STEP.min(sectors - n * STEP))));
        }
    }

    fn is_finishing(&self) -> bool {
        self.finishing
    }

    fn oldest(&self) -> Option<u64> {
        self.inflight.values().map(|op| op.start).min()
    }

    fn oldest_of(&self, which: &dyn Fn(u64, u64, u64) -> bool) -> Option<u64> {
        let all = self.inflight.values().filter(|op| op.count > 0);
        all.filter(|op| which(self.volume, op.sector, op.count)).map(|op| op.start).min()
    }

    fn is_done(&self) -> bool {
        !self.wants_anything() && self.inflight.is_empty()
    }

    fn inflight(&self) -> usize {
        self.inflight.len()
    }

    fn operations(&self) -> u64 {
        self.shape.operations
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn waiting(&self) -> String {
        let all: Vec<String> = self.inflight.values().take(5).map(|op| format!("{op:?}")).collect();
        format!("{} [{}]", self.inflight.len(), all.join(", "))
    }
}
