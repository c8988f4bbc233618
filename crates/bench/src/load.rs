//! A load for a block device: the next requests, the measurements, and the check of all bytes read.
//!
//! The load is sans-IO: the owner asks [`Load::next_requests`], submits, and reports each end to [`Load::completed`]. A
//! closed loop keeps `depth` requests in flight. An open loop starts them at a rate whatever the device does, and
//! counts latency from the time when a request was *due*. Otherwise a stall would hide the requests that it kept from
//! starting.
//!
//! Invariant: equal configuration and equal completions give equal requests; never more than `depth` are in flight.

mod config;
mod report;
pub mod stamp;
#[cfg(test)]
mod tests;
mod verify;

pub use config::{LoadConfig, LoadError, Pattern};
pub use report::{Latency, LoadReport, SideReport};
pub use verify::{Ledger, Violation};

use device::{Answer, Request};
use report::{Seconds, Side};
use std::time::Duration;
use types::rng::Rng;
use types::{Errno, IoBuf, IoBufMut, Time};

/// Number of violations that are kept word for word; more are only counted.
const VIOLATIONS_KEPT_MAX: usize = 16;

#[derive(Debug)]
struct InFlight {
    generation: u32,
    due: Time,
    offset: u64,
    /// The write's sequence number. For a verified read, `floors` holds the least sequence number of each block.
    write: Option<u64>,
    floors: Vec<u64>,
}

/// One run of a load.
pub struct Load {
    config: LoadConfig,
    rng: Rng,
    started: Time,
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    generation: u32,
    issued: u64,
    /// Next sequence number of a write; 0 is "never written".
    sequence: u64,
    next_block: u64,
    /// Number of requests that have come due in an open loop.
    due: u64,
    filler: IoBuf,
    ledger: Option<Ledger>,
    reads: Side,
    writes: Side,
    by_second: Seconds,
    last_completion: Time,
    longest_gap: Duration,
    longest_gap_at: Time,
    errors: Vec<(Errno, u64)>,
    violations: Vec<Violation>,
    violation_count: u64,
}

impl Load {
    /// Makes a load that starts now, on blocks with unknown contents.
    ///
    /// # Errors
    /// All faults of the configuration at once.
    pub fn new(config: LoadConfig, now: Time) -> Result<Load, LoadError> {
        let ledger = config.verify.then(|| Ledger::new(config.volume, config.run, config.span_bytes));
        Load::start(config, ledger, now)
    }

    /// Makes a load that goes on from the ledger of an earlier one of the same volume and span.
    ///
    /// # Errors
    /// All faults of the configuration at once; a ledger of another volume or span.
    pub fn resume(config: LoadConfig, ledger: Ledger, now: Time) -> Result<Load, LoadError> {
        if !config.verify || !ledger.fits(config.volume, config.span_bytes) {
            return Err(LoadError(vec!["the ledger is of another volume or span, or verify is off".into()]));
        }
        Load::start(config, Some(ledger), now)
    }

    fn start(config: LoadConfig, ledger: Option<Ledger>, now: Time) -> Result<Load, LoadError> {
        config.validate()?;
        let mut rng = Rng::new(config.seed);
        let mut filler = IoBufMut::new(config.block_bytes as usize);
        filler.chunks_mut(8).for_each(|eight| eight.copy_from_slice(&rng.next_u64().to_le_bytes()[..eight.len()]));
        Ok(Load {
            rng,
            started: now,
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            issued: 0,
            sequence: ledger.as_ref().map_or(1, Ledger::next_sequence),
            next_block: 0,
            due: 0,
            filler: filler.freeze(),
            ledger,
            reads: Side::new(),
            writes: Side::new(),
            by_second: Seconds::default(),
            last_completion: now,
            longest_gap: Duration::ZERO,
            longest_gap_at: now,
            errors: Vec::new(),
            violations: Vec::new(),
            violation_count: 0,
            config,
        })
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the load submits no more requests.
    pub fn is_spent(&self, now: Time) -> bool {
        let counted_out = self.config.ops_max > 0 && self.issued >= self.config.ops_max;
        counted_out || now >= self.end()
    }

    /// Whether the run is over: the load submits no more requests, and none is in flight.
    pub fn is_done(&self, now: Time) -> bool {
        self.is_spent(now) && self.in_flight() == 0
    }

    fn end(&self) -> Time {
        self.started + self.config.duration
    }

    /// Returns when the next request comes due, or the run ends.
    pub fn next_deadline(&self, now: Time) -> Time {
        if self.is_spent(now) {
            return Time::NEVER;
        }
        if self.config.rate_per_s == 0 || self.in_flight() >= self.config.depth as usize {
            return self.end();
        }
        self.due_at(self.due).min(self.end())
    }

    fn due_at(&self, n: u64) -> Time {
        let ns = u128::from(n) * 1_000_000_000 / u128::from(self.config.rate_per_s.max(1));
        self.started + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Appends the requests that are due now, with the tokens under which to report their ends.
    pub fn next_requests(&mut self, now: Time, out: &mut Vec<(Request, u64)>) {
        while !self.is_spent(now) && self.in_flight() < self.config.depth as usize {
            let due = if self.config.rate_per_s == 0 { now } else { self.due_at(self.due) };
            if due > now {
                return;
            }
            let read = self.rng.below(100) < u64::from(self.config.read_percent);
            let Some(offset) = self.pick(read) else { return };
            self.due += 1;
            self.issued += 1;
            out.push(if read { self.read(offset, due) } else { self.write(offset, due) });
        }
    }

    /// Returns the offset of the next request. With verification no two writes of a block are in flight at once,
    /// because either could win then. `None` when all of the span is being written.
    fn pick(&mut self, read: bool) -> Option<u64> {
        let block = u64::from(self.config.block_bytes);
        let count = self.config.span_bytes / block;
        let first = match self.config.pattern {
            Pattern::Random => self.rng.below(count),
            Pattern::Sequential => self.next_block % count,
        };
        let busy = |index: u64| match &self.ledger {
            Some(ledger) if !read => ledger.is_writing(index * block, block),
            _ => false,
        };
        let index = (0..count).map(|step| (first + step) % count).find(|index| !busy(*index))?;
        if self.config.pattern == Pattern::Sequential {
            self.next_block = index + 1;
        }
        Some(index * block)
    }

    fn read(&mut self, offset: u64, due: Time) -> (Request, u64) {
        let len = u64::from(self.config.block_bytes);
        let floors = self.ledger.as_ref().map_or_else(Vec::new, |ledger| ledger.floors(offset, len));
        let token = self.insert(InFlight { generation: 0, due, offset, write: None, floors });
        (Request::Read { offset: self.config.on_device(offset), len }, token)
    }

    fn write(&mut self, offset: u64, due: Time) -> (Request, u64) {
        let sequence = self.sequence;
        self.sequence += 1;
        let at = self.config.on_device(offset);
        let buf = match &mut self.ledger {
            None => self.filler.clone(),
            Some(ledger) => {
                ledger.begin(offset, u64::from(self.config.block_bytes), sequence);
                let mut buf = IoBufMut::new(self.config.block_bytes as usize);
                stamp::fill(&mut buf, self.config.volume, self.config.run, at, sequence);
                buf.freeze()
            }
        };
        let token = self.insert(InFlight { generation: 0, due, offset, write: Some(sequence), floors: Vec::new() });
        (Request::Write { offset: at, buf, fua: false }, token)
    }

    fn insert(&mut self, mut entry: InFlight) -> u64 {
        self.generation = self.generation.wrapping_add(1);
        entry.generation = self.generation;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Some(entry);
        u64::from(self.generation) << 32 | u64::from(index)
    }

    /// Takes the end of a request.
    ///
    /// # Panics
    /// When `token` is of no request in flight: the owner mixed something up.
    pub fn completed(&mut self, now: Time, token: u64, result: &Result<Answer, Errno>) {
        let index = token as u32;
        let entry = self.slots.get_mut(index as usize).and_then(Option::take).expect("a request in flight");
        assert_eq!(u64::from(entry.generation), token >> 32, "the token of an earlier request");
        self.free.push(index);
        let gap = now.since(self.last_completion);
        if gap > self.longest_gap {
            (self.longest_gap, self.longest_gap_at) = (gap, self.last_completion);
        }
        self.last_completion = now;
        if let Err(errno) = result {
            match self.errors.iter_mut().find(|(kind, _)| kind == errno) {
                Some((_, count)) => *count += 1,
                None => self.errors.push((*errno, 1)),
            }
        }
        let len = u64::from(self.config.block_bytes);
        let side = if entry.write.is_some() { &mut self.writes } else { &mut self.reads };
        if result.is_ok() {
            side.count(len, now.since(entry.due));
            self.by_second.count(now.since(self.started));
        }
        let Some(ledger) = &mut self.ledger else { return };
        match (entry.write, result) {
            (Some(sequence), result) => ledger.end(entry.offset, len, sequence, result.is_ok()),
            (None, Ok(Answer::Data(pieces))) => {
                // A request lies in one piece, and no piece lies before its place in the span.
                let shift = self.config.on_device(entry.offset) - entry.offset;
                for violation in ledger.check(shift, entry.offset, &entry.floors, pieces) {
                    self.violation_count += 1;
                    if self.violations.len() < VIOLATIONS_KEPT_MAX {
                        self.violations.push(violation);
                    }
                }
            }
            (None, _) => {}
        }
    }

    /// Returns the ledger of all blocks, for [`Load::resume`]. `None` without verification.
    pub fn into_ledger(self) -> Option<Ledger> {
        self.ledger
    }

    /// Figures so far. The gap from the last completion until now counts while the run is on.
    pub fn report(&self, now: Time) -> LoadReport {
        let until = if self.is_done(now) { self.last_completion } else { now };
        let open_gap = until.since(self.last_completion);
        let (gap, at) = if open_gap > self.longest_gap {
            (open_gap, self.last_completion)
        } else {
            (self.longest_gap, self.longest_gap_at)
        };
        let elapsed = until.since(self.started);
        LoadReport {
            schema: report::SCHEMA.into(),
            elapsed_us: report::us(elapsed),
            in_flight: self.in_flight() as u64,
            reads: self.reads.report(elapsed),
            writes: self.writes.report(elapsed),
            ops_by_second: self.by_second.whole(now.min(self.end()).since(self.started)),
            longest_gap_us: report::us(gap),
            longest_gap_at_us: report::us(at.since(self.started)),
            errors: self.errors.iter().map(|(errno, count)| (errno.to_string(), *count)).collect(),
            verified_blocks: self.ledger.as_ref().map_or(0, Ledger::verified_blocks),
            violation_count: self.violation_count,
            violations: self.violations.iter().map(ToString::to_string).collect(),
            config: self.config.clone(),
        }
    }
}
