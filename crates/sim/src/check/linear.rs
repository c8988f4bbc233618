//! Linearizability of every sector, as a register whose written values are unique.
//!
//! Every write stamps its sectors with its own number, so a read names the write that it saw. With unique
//! values the test is exact and cheap (Gibbons and Korach, "Testing shared memories", 1997): all operations
//! of one value form a cluster; let `f` be the earliest end and `s` the latest start in it. The history is
//! linearizable iff no read ends before its write starts, no two forward zones (`f < s`) overlap, and no
//! backward zone (`s < f`) lies inside a forward one. A write without an answer ends never: it may take
//! effect at any later time, or not at all.
//!
//! Zeros are not unique (the initial contents, and every trim), so a read of zeros is checked alone: some write of
//! zeros, or the beginning, must not have been surely overwritten before the read began. A write has surely taken
//! effect at its answer, or at the end of the first read that saw it.
//!
//! Each sector alone may be right and a block still be a mixture of two versions: see `blocks`.
//!
//! Durability across power loss needs nothing more: an acknowledged write that vanishes is a later read
//! of an older value, and such a history is not linearizable.

use crate::check::blocks;
use crate::check::durable::{Span, Watch};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use types::units::SECTORS_PER_BLOCK;

/// Global simulated time, in nanoseconds; known only to the observer.
pub type At = u64;
/// The number of a write. 0 stands for zeros that were there at the beginning.
pub type Stamp = u64;
const NEVER: At = At::MAX;

/// One write: when it was asked, and when its answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub stamp: Stamp,
    pub start: At,
    pub end: At,
    pub zeros: bool,
    /// Time at which the session of an unanswered write was fenced: the write took effect before, or never.
    pub dead: At,
}

/// One answered read.
#[derive(Clone, Copy, Debug)]
struct Read {
    start: At,
    end: At,
    /// `None`: zeros.
    saw: Option<Stamp>,
}

/// Answer of a read for one sector.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Saw {
    /// Number of the read.
    read: u32,
    /// The stamp; 0 stands for zeros.
    stamp: Stamp,
}

/// History of one sector, with the numbers of requests. Neighbours mostly have equal ones.
#[derive(Default, PartialEq, Eq)]
struct Sector {
    /// In the order of their submission, which is the order of their numbers.
    writes: Vec<u32>,
    reads: Vec<Saw>,
}

/// Number of consecutive sectors that are stored together.
const STRIP: u64 = 64;

const BLOCK_SECTORS: u64 = SECTORS_PER_BLOCK as u64;
const _: () = assert!(STRIP.is_multiple_of(BLOCK_SECTORS), "a block lies in one strip");

type Strip = [Sector; STRIP as usize];

/// The histories of all sectors of all volumes.
#[derive(Default)]
pub struct Linear {
    /// All writes, by number.
    writes: Vec<Write>,
    /// The number of each write, by volume and stamp.
    numbers: BTreeMap<(u64, Stamp), u32>,
    /// Start and end of all answered reads, by number.
    reads: Vec<(At, At)>,
    /// By volume and number of the strip.
    strips: BTreeMap<(u64, u64), Box<Strip>>,
    operations: u64,
    /// The first violation that shows at once: a read that mixed two versions of a block, an answer to a session that was fenced before.
    at_once: Option<Violation>,
    /// Checks that no reply comes before the disks have the bytes.
    pub durable: Option<Watch>,
}

/// A history that no correct store can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub volume: u64,
    pub sector: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {} sector {}: {}", self.volume, self.sector, self.what)
    }
}

/// A cluster's zone: forward when `low` is its earliest end and `high` its latest start.
struct Zone {
    stamp: Stamp,
    low: At,
    high: At,
    forward: bool,
}

impl Linear {
    /// Calls `with` for every sector of a range and its history.
    fn each(
        strips: &mut BTreeMap<(u64, u64), Box<Strip>>,
        volume: u64,
        sectors: Range<u64>,
        mut with: impl FnMut(u64, &mut Sector),
    ) {
        let mut at = sectors.start;
        while at < sectors.end {
            let number = at / STRIP;
            let new = || Box::new(std::array::from_fn(|_| Sector::default()));
            let strip = strips.entry((volume, number)).or_insert_with(new);
            let end = sectors.end.min((number + 1) * STRIP);
            (at..end).for_each(|sector| with(sector, &mut strip[(sector % STRIP) as usize]));
            at = end;
        }
    }

    /// Notes that a write (or trim, with `zeros`) of these sectors was submitted.
    pub fn write_started(&mut self, volume: u64, sectors: Range<u64>, stamp: Stamp, zeros: bool, at: At) {
        assert_ne!(stamp, 0, "stamp 0 is the beginning");
        let (first, count) = (sectors.start, sectors.end - sectors.start);
        self.operations += count;
        let number = u32::try_from(self.writes.len()).expect("fewer than 2^32 writes");
        self.writes.push(Write { stamp, start: at, end: NEVER, zeros, dead: NEVER });
        let twice = self.numbers.insert((volume, stamp), number);
        assert!(twice.is_none(), "stamp {stamp} was used twice on volume {volume}");
        Linear::each(&mut self.strips, volume, sectors, |_, sector| sector.writes.push(number));
        if let Some(durable) = self.durable.as_ref().filter(|_| !zeros) {
            durable.asked(Span { volume, first, count, stamp });
        }
    }

    /// Returns a write that was submitted.
    fn asked(&mut self, volume: u64, stamp: Stamp) -> &mut Write {
        let number = self.numbers.get(&(volume, stamp)).expect("a write is asked before all else");
        &mut self.writes[*number as usize]
    }

    /// Notes that the write was acknowledged. A write that failed without certainty never ends.
    pub fn write_ended(&mut self, volume: u64, sectors: Range<u64>, stamp: Stamp, at: At) {
        let (first, count) = (sectors.start, sectors.end - sectors.start);
        self.asked(volume, stamp).end = at;
        if let Some(durable) = &mut self.durable {
            durable.replied(Span { volume, first, count, stamp });
        }
    }

    /// Notes that the session of this write had been fenced before: the write must never take effect.
    pub fn forbid(&mut self, volume: u64, stamp: Stamp) {
        self.asked(volume, stamp).dead = 0;
    }

    /// Notes that the session of the volume is fenced (R6): no write that is unanswered so far takes effect after `at`. A caller that knows
    /// of later ones judges their answers itself.
    pub fn abandon_older(&mut self, volume: u64, at: At) {
        for number in self.numbers.range((volume, 0)..=(volume, Stamp::MAX)).map(|(_, number)| *number) {
            let write = &mut self.writes[number as usize];
            if write.end == NEVER {
                write.dead = write.dead.min(at);
            }
        }
    }

    /// Notes that a session is fenced that asked for writes with these stamps, which began within this time: those that are unanswered so
    /// far take no effect after `at`. One that was asked for later is never acknowledged.
    pub fn abandon(&mut self, volume: u64, stamps: Range<Stamp>, began: Range<At>, at: At) {
        let its = self.numbers.range((volume, stamps.start)..(volume, stamps.end));
        for number in its.map(|(_, number)| *number) {
            let write = &mut self.writes[number as usize];
            if write.end != NEVER && write.start > at && began.contains(&write.start) {
                let what = format!(
                    "a write that began at {} was acknowledged, though its session was fenced at {at}",
                    write.start
                );
                self.at_once.get_or_insert(Violation { volume, sector: 0, what });
            } else if write.end == NEVER && began.contains(&write.start) {
                write.dead = write.dead.min(at);
            }
        }
    }

    /// Takes back that a write is dead: it belongs to no session.
    pub fn keep(&mut self, volume: u64, stamp: Stamp) {
        self.asked(volume, stamp).dead = NEVER;
    }

    /// Notes an answered read, with what it saw of each sector from `first` on. Unanswered reads say nothing.
    pub fn read(&mut self, volume: u64, first: u64, saw: &[Option<Stamp>], start: At, end: At) {
        assert!(start <= end, "a read ends after it starts");
        self.operations += saw.len() as u64;
        let read = u32::try_from(self.reads.len()).expect("fewer than 2^32 reads");
        self.reads.push((start, end));
        Linear::each(&mut self.strips, volume, first..first + saw.len() as u64, |at, sector| {
            let stamp = saw[(at - first) as usize];
            assert_ne!(stamp, Some(0), "stamp 0 is the beginning");
            sector.reads.push(Saw { read, stamp: stamp.unwrap_or(0) });
        });
        self.look_at_blocks(volume, first, saw, end);
    }

    /// Checks that what a read saw of each block is one version of it.
    fn look_at_blocks(&mut self, volume: u64, first: u64, saw: &[Option<Stamp>], end: At) {
        let mut left = saw;
        while !left.is_empty() && self.at_once.is_none() {
            let sector = first + (saw.len() - left.len()) as u64;
            let in_block = BLOCK_SECTORS - sector % BLOCK_SECTORS;
            let (shown, rest) = left.split_at(left.len().min(in_block as usize));
            left = rest;
            let at = (sector % STRIP) as usize;
            let strip = self.strips.get(&(volume, sector / STRIP)).expect("the read was just noted");
            let sectors = InBlock { all: self, volume, sectors: &strip[at..at + shown.len()] };
            let what = blocks::mixture(&sectors, shown, end);
            self.at_once = what.map(|what| Violation { volume, sector, what });
        }
    }

    /// Begins the history of a volume with what another one showed at a moment within this time. Of a write that may have been there, it is
    /// unknown whether it was.
    pub fn branch(&mut self, volume: u64, from: u64, within: Range<At>) {
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let strips = self.strips.range((from, 0)..=(from, u64::MAX));
        for number in strips.flat_map(|(_, strip)| strip.iter()).flat_map(|sector| &sector.writes) {
            if self.writes[*number as usize].start < within.end {
                numbers.insert(*number, 0);
            }
        }
        // In the order of their submission.
        for (old, new) in &mut numbers {
            let mut write = self.writes[*old as usize];
            if write.end >= within.start {
                (write.end, write.dead) = (NEVER, write.dead.min(within.end));
            }
            *new = u32::try_from(self.writes.len()).expect("fewer than 2^32 writes");
            let twice = self.numbers.insert((volume, write.stamp), *new);
            assert!(twice.is_none(), "stamp {} was used twice on volume {volume}", write.stamp);
            self.writes.push(write);
        }
        let strips = self.strips.range((from, 0)..=(from, u64::MAX));
        let copy = |sector: &Sector| Sector {
            writes: sector.writes.iter().filter_map(|number| numbers.get(number).copied()).collect(),
            reads: Vec::new(),
        };
        let strips: Vec<(u64, Box<Strip>)> =
            strips.map(|((_, at), strip)| (*at, Box::new(std::array::from_fn(|n| copy(&strip[n]))))).collect();
        self.strips.extend(strips.into_iter().map(|(at, strip)| ((volume, at), strip)));
    }

    /// Returns the strips of a volume in which something was written or read: first sector, and number of sectors.
    pub fn strips_of(&self, volume: u64) -> Vec<(u64, u64)> {
        self.strips.range((volume, 0)..=(volume, u64::MAX)).map(|((_, n), _)| (n * STRIP, STRIP)).collect()
    }

    /// Checks that the values of some sectors of a volume can all have been there at one moment within this time.
    ///
    /// # Errors
    /// A value that began after another one was surely overwritten.
    pub fn one_moment(
        &self,
        volume: u64,
        seen: impl Iterator<Item = (u64, Option<Stamp>)>,
        within: Range<At>,
    ) -> Result<(), String> {
        // Latest begin and earliest end, each with its sector.
        let (mut low, mut high) = ((within.start, None), (within.end, None));
        for (sector, stamp) in seen {
            let Some(strip) = self.strips.get(&(volume, sector / STRIP)) else { continue };
            let writes = || strip[(sector % STRIP) as usize].writes.iter().map(|number| &self.writes[*number as usize]);
            let shown = stamp.and_then(|stamp| writes().find(|w| w.stamp == stamp));
            low = low.max((shown.map_or(0, |w| w.start), Some(sector)));
            // A value is surely gone when a write that began behind its end was acknowledged; zeros may hide no zeros.
            let hides = |w: &&Write| shown.is_some() || !w.zeros;
            let over =
                |since: At| writes().filter(hides).filter(|w| w.start > since).map(|w| w.end).min().unwrap_or(NEVER);
            let end = match shown {
                Some(w) => over(w.end),
                None => writes().filter(|w| w.zeros).map(|z| over(z.end)).fold(over(0), At::max),
            };
            high = high.min((end, Some(sector)));
        }
        if low.0 < high.0 {
            return Ok(());
        }
        Err(format!(
            "sector {:?} shows what began at {}, and sector {:?} what was over at {}",
            low.1, low.0, high.1, high.0
        ))
    }

    /// Returns the number of sector operations recorded.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns the first violation that showed at once, and every sector whose history is impossible.
    pub fn violations(&self) -> Vec<Violation> {
        let mut all = Vec::from_iter(self.at_once.clone());
        // A history that equals that of the sector before has the same verdict.
        let mut before: Option<(&Sector, Option<String>)> = None;
        for ((volume, number), strip) in &self.strips {
            for (sector, history) in (number * STRIP..).zip(strip.iter()) {
                let (_, what) = match before.take() {
                    Some(known) if known.0 == history => before.insert(known),
                    _ => before.insert((history, self.violation(history))),
                };
                all.extend(what.clone().map(|what| Violation { volume: *volume, sector, what }));
            }
        }
        all
    }

    fn violation(&self, history: &Sector) -> Option<String> {
        if history.reads.is_empty() && history.writes.len() < 2 {
            return None;
        }
        let mut writes: Vec<Write> = history.writes.iter().map(|number| self.writes[*number as usize]).collect();
        writes.sort_unstable_by_key(|w| w.stamp);
        let read = |Saw { read, stamp }: &Saw| {
            let (start, end) = self.reads[*read as usize];
            Read { start, end, saw: Some(*stamp).filter(|stamp| *stamp != 0) }
        };
        let reads: Vec<Read> = history.reads.iter().map(read).collect();
        History::new(&writes, &reads).violation()
    }
}

/// Histories of consecutive sectors of one block.
pub(super) struct InBlock<'a> {
    all: &'a Linear,
    volume: u64,
    sectors: &'a [Sector],
}

impl<'a> InBlock<'a> {
    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    fn write(&self, number: u32) -> Numbered<'a> {
        Numbered { number, write: &self.all.writes[number as usize] }
    }

    /// Returns the writes of the i-th sector.
    pub fn writes(&self, i: usize) -> impl Iterator<Item = Numbered<'a>> {
        self.sectors[i].writes.iter().map(|number| self.write(*number))
    }

    /// Whether this write covers the i-th sector.
    pub fn has(&self, i: usize, write: Numbered<'_>) -> bool {
        self.sectors[i].writes.binary_search(&write.number).is_ok()
    }

    /// Returns the write of each sector that a read saw; `None`: zeros, or a stamp that was never written there.
    pub fn writes_of(&self, saw: &[Option<Stamp>]) -> Vec<Option<Numbered<'a>>> {
        // Neighbours mostly show one write.
        let mut last: (Option<Stamp>, Option<Numbered<'a>>) = (None, None);
        let write = |(i, saw): (usize, &Option<Stamp>)| {
            if *saw != last.0 {
                let number = saw.and_then(|stamp| self.all.numbers.get(&(self.volume, stamp)));
                last = (*saw, number.map(|number| self.write(*number)));
            }
            last.1.filter(|write| self.has(i, *write))
        };
        saw.iter().enumerate().map(write).collect()
    }
}

/// A write with its number.
#[derive(Clone, Copy)]
pub(super) struct Numbered<'a> {
    number: u32,
    write: &'a Write,
}

impl Deref for Numbered<'_> {
    type Target = Write;

    fn deref(&self) -> &Write {
        self.write
    }
}

/// A sector's history, ready for the check.
struct History<'a> {
    /// In the order of their stamps.
    writes: &'a [Write],
    reads: &'a [Read],
    /// Time at which each of the writes had surely taken effect.
    sure: Vec<At>,
}

impl<'a> History<'a> {
    fn new(writes: &'a [Write], reads: &'a [Read]) -> History<'a> {
        let mut sure: Vec<At> = writes.iter().map(|w| w.end).collect();
        for read in reads {
            if let Some(n) = read.saw.and_then(|stamp| writes.binary_search_by_key(&stamp, |w| w.stamp).ok()) {
                // A later read that sees the value shows that it took effect before its session was fenced.
                sure[n] = sure[n].min(read.end).min(writes[n].dead);
            }
        }
        History { writes, reads, sure }
    }

    fn write(&self, stamp: Stamp) -> Option<Write> {
        self.writes.binary_search_by_key(&stamp, |w| w.stamp).ok().map(|n| self.writes[n])
    }

    fn violation(&self) -> Option<String> {
        self.impossible_read().or_else(|| self.clashing_zones())
    }

    fn impossible_read(&self) -> Option<String> {
        let trimmed = self.writes.iter().any(|w| w.zeros);
        let overwritten = self.sure_ones().map(|(_, sure)| sure).min().unwrap_or(NEVER);
        for read in self.reads {
            match read.saw {
                Some(stamp) => match self.write(stamp) {
                    None => return Some(format!("a read saw {stamp}, which was never written here")),
                    Some(w) if w.start >= read.end => {
                        return Some(format!("a read ended at {} with {stamp}, written from {}", read.end, w.start));
                    }
                    Some(w) if w.start > w.dead => {
                        return Some(format!("a read saw {stamp}, written by a fenced opener"));
                    }
                    Some(w) if trimmed && self.surely_trimmed(w, read) => {
                        return Some(format!("a read from {} saw {stamp}, which was trimmed before", read.start));
                    }
                    Some(_) => {}
                },
                None if overwritten < read.start && !self.trim_possible(read) => {
                    return Some(format!("a read from {} saw zeros, which were overwritten before", read.start));
                }
                None => {}
            }
        }
        None
    }

    /// Returns the writes of bytes, and when each had surely taken effect.
    fn sure_ones(&self) -> impl Iterator<Item = (&Write, At)> {
        self.writes.iter().zip(self.sure.iter().copied()).filter(|(w, _)| !w.zeros)
    }

    /// Whether a trim came wholly between the write, which the read saw, and the read.
    fn surely_trimmed(&self, write: Write, read: &Read) -> bool {
        let n = self.writes.binary_search_by_key(&write.stamp, |w| w.stamp).expect("it is one of them");
        self.writes.iter().any(|z| z.zeros && z.start > self.sure[n] && z.end < read.start)
    }

    /// Whether some trim's zeros could still be there when the read took place.
    fn trim_possible(&self, read: &Read) -> bool {
        let survives = |end: At| !self.sure_ones().any(|(w, sure)| w.start > end && sure < read.start);
        let alive = |w: &Write| w.zeros && w.start < read.end && w.start <= w.dead;
        self.writes.iter().any(|w| alive(w) && survives(w.end.min(w.dead)))
    }

    fn zones(&self) -> Vec<Zone> {
        let mut zones = Vec::new();
        // Earliest end and latest start of the reads that saw each value.
        let mut seen: BTreeMap<Stamp, (At, At)> = BTreeMap::new();
        for read in self.reads {
            let Some(stamp) = read.saw else { continue };
            let (end, start) = seen.entry(stamp).or_insert((read.end, read.start));
            (*end, *start) = ((*end).min(read.end), (*start).max(read.start));
        }
        for write in self.writes.iter().filter(|w| !w.zeros) {
            let (mut first_end, mut last_start) = (write.end.min(write.dead), write.start);
            let seen = seen.get(&write.stamp);
            if let Some((end, start)) = seen {
                (first_end, last_start) = (first_end.min(*end), last_start.max(*start));
            }
            let seen = seen.is_some();
            // It is unknown whether the write took effect, so it constrains nothing.
            if write.end == NEVER && !seen {
                continue;
            }
            let forward = first_end < last_start;
            let (low, high) = if forward { (first_end, last_start) } else { (last_start, first_end) };
            zones.push(Zone { stamp: write.stamp, low, high, forward });
        }
        zones
    }

    fn clashing_zones(&self) -> Option<String> {
        let zones = self.zones();
        let mut forward: Vec<&Zone> = zones.iter().filter(|z| z.forward).collect();
        forward.sort_by_key(|z| z.low);
        for pair in forward.windows(2) {
            if pair[1].low < pair[0].high {
                let (a, b) = (pair[0], pair[1]);
                return Some(format!(
                    "{} was surely there in {}..{} and {} in {}..{}",
                    a.stamp, a.low, a.high, b.stamp, b.low, b.high
                ));
            }
        }
        for z in zones.iter().filter(|z| !z.forward) {
            // The only forward zone that can hold it is the last one that begins before it.
            let before = forward.partition_point(|f| f.low < z.low);
            let Some(f) = before.checked_sub(1).map(|i| forward[i]) else { continue };
            if z.high < f.high {
                return Some(format!(
                    "{} took effect in {}..{}, inside {}..{} when {} was surely there",
                    z.stamp, z.low, z.high, f.low, f.high, f.stamp
                ));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Script: `w1 0 5` write 1 from 0 to 5 (`-` never ends), `z2 ..` a trim, `r1 6 7` a read of 1, `r0` of zeros,
    /// `f0 9 -` everything before is fenced at 9, `x1 ..` write 1 of an opener that is fenced already.
    fn check(script: &str) -> bool {
        let mut linear = Linear::default();
        for line in script.split(',') {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (kind, stamp) = words[0].split_at(1);
            let stamp: u64 = stamp.parse().expect("a number");
            let start: u64 = words[1].parse().expect("a number");
            let end: Option<u64> = words[2].parse().ok();
            match kind {
                "f" => linear.abandon_older(1, start),
                "r" => linear.read(1, 0, &[(stamp != 0).then_some(stamp)], start, end.expect("reads end")),
                _ => {
                    linear.write_started(1, 0..1, stamp, kind == "z", start);
                    if kind == "x" {
                        linear.forbid(1, stamp);
                    }
                    if let Some(end) = end {
                        linear.write_ended(1, 0..1, stamp, end);
                    }
                }
            }
        }
        linear.violations().is_empty()
    }

    #[test]
    fn histories_that_a_register_can_have_pass() {
        for script in [
            "w1 0 5, r1 6 7",
            "w1 0 5, w2 1 6, r1 7 8",
            "w1 0 5, w2 6 -, r1 7 8, r2 9 10",
            "w1 0 5, w2 6 -, r1 7 8, r1 9 10",
            "r0 0 1, w1 2 3, z2 4 5, r0 6 7",
            "w1 0 9, r0 1 2, r1 3 4",
            "w1 0 5, z2 6 -, r0 7 8",
            "w1 0 5, w2 0 5, w3 0 5, r3 6 7, r3 8 9",
            "w1 0 -, f0 5 -, w2 3 9, r1 10 11",
            "w1 0 -, f0 5 -, w2 6 7, r2 8 9",
            "w1 0 -, r0 1 2, r1 3 4",
            "w1 0 -, r1 2 3, z2 4 -, r0 5 6",
            "z1 0 -, w2 6 -, r2 7 8, r0 9 10",
            "w1 0 -, f0 5 -, z2 6 9, r1 7 8",
        ] {
            assert!(check(script), "{script}");
        }
    }

    #[test]
    fn each_of_several_equal_histories_is_reported() {
        let mut linear = Linear::default();
        linear.write_started(1, 62..66, 1, false, 0);
        linear.write_ended(1, 62..66, 1, 5);
        linear.read(1, 62, &[None, None, Some(1), None], 6, 7);
        let wrong: Vec<u64> = linear.violations().iter().map(|v| v.sector).collect();
        assert_eq!(wrong, [64, 62, 63, 65], "the mixture first");
    }

    #[test]
    fn answer_to_a_request_of_a_session_that_was_fenced_before_is_found() {
        let begin = || {
            let mut linear = Linear::default();
            for (stamp, start, end) in [(1, 5, 7), (2, 9, 25), (3, 15, 30)] {
                linear.write_started(1, 0..8, stamp, false, start);
                linear.write_ended(1, 0..8, stamp, end);
            }
            linear
        };
        let mut linear = begin();
        // An answer may come later than the fence.
        linear.abandon(1, 0..3, 0..At::MAX, 10);
        assert_eq!(linear.violations(), []);
        // It says nothing about another session and another life.
        linear.abandon(1, 7..9, 0..At::MAX, 10);
        linear.abandon(1, 0..9, 0..15, 10);
        assert_eq!(linear.violations(), []);
        linear.abandon(1, 0..9, 0..At::MAX, 10);
        assert!(linear.violations()[0].what.contains("began at 15 was acknowledged"), "{:?}", linear.violations());
    }

    #[test]
    fn lost_stale_foreign_and_flickering_values_are_found() {
        for script in [
            "w1 0 5, r0 6 7",
            "w1 0 5, w2 6 7, r1 8 9",
            "w1 0 5, r7 6 7",
            "w1 0 5, w2 6 -, r2 7 8, r1 9 10",
            "w1 0 5, w2 0 5, r1 6 7, r2 8 9, r1 10 11",
            "r1 0 1, w1 2 3",
            "z1 0 1, w2 2 3, r0 4 5",
            "w1 0 5, z2 6 7, r1 8 9",
            "w1 0 2, r1 3 4, r1 20 21, w2 6 8",
            "w1 0 -, f0 5 -, w2 6 7, r1 8 9",
            "x1 1 -, r1 8 9",
            "z1 0 -, f0 5 -, w2 6 7, r0 8 9",
            "w1 0 -, r1 2 3, r0 5 6",
            "w1 0 -, r1 2 3, z2 6 7, r1 8 9",
            "w1 0 -, f0 5 -, z2 6 7, r1 8 9",
            "z1 0 5, w2 6 -, r2 7 8, r0 9 10",
        ] {
            assert!(!check(script), "{script}");
        }
    }
}
