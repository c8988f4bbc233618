//! The yardstick: writes of the case to a file of the same disk, by the same event loop.
//!
//! Invariant: as many writes are in flight as in the case. With flushes, a write counts once a flush that began after it has
//! ended; one flush is under way at a time, and covers all writes that ended before it.

use super::{Case, Figures, Meter, Offsets, ReplicaConfig, ReplicaError, open};
use env::{DiskId, Env, Event, Op, Token};
use std::time::Duration;
use types::{IoBuf, Time};

/// `Token.key` of a flush; writes have the microsecond of their submission.
const FLUSH: u32 = u32::MAX;

struct Raw {
    disk: DiskId,
    buf: IoBuf,
    /// Submission of each write in flight, by its slot.
    slots: Vec<Time>,
    free: Vec<u32>,
    ops: Vec<Op>,
    /// Submission of the writes that wait for a flush, and of those that the running one covers.
    unflushed: Vec<Time>,
    covered: Option<Vec<Time>>,
    flush: bool,
}

fn token(key: u32) -> Token {
    Token { owner: 0, key, generation: 0 }
}

impl Raw {
    fn submit(&mut self, now: Time, offset: u64) {
        let slot = self.free.pop().expect("the caller saw one");
        self.slots[slot as usize] = now;
        let bufs = vec![self.buf.clone()];
        self.ops.push(Op::DiskWrite { token: token(slot), disk: self.disk, offset, bufs, flush: false });
    }

    /// Takes a completion; returns the submissions of the writes that are done with it.
    fn handle(&mut self, event: Event) -> Result<Vec<Time>, ReplicaError> {
        match event {
            Event::DiskWrite { token, result } => {
                result?;
                let since = self.slots[token.key as usize];
                self.free.push(token.key);
                if !self.flush {
                    return Ok(vec![since]);
                }
                self.unflushed.push(since);
                Ok(Vec::new())
            }
            Event::DiskFlush { result, .. } => {
                result?;
                Ok(self.covered.take().unwrap_or_default())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn flush_if_due(&mut self) {
        if self.covered.is_none() && !self.unflushed.is_empty() {
            self.covered = Some(std::mem::take(&mut self.unflushed));
            self.ops.push(Op::DiskFlush { token: token(FLUSH), disk: self.disk });
        }
    }

    /// Counts the writes that are not done.
    fn in_flight(&self) -> usize {
        let covered = self.covered.as_ref().map_or(0, Vec::len);
        self.slots.len() - self.free.len() + self.unflushed.len() + covered
    }
}

/// Writes for the length of a run.
pub fn run(config: &ReplicaConfig, case: &Case) -> Result<Figures, ReplicaError> {
    let path = config.dir.join("basalt-bench.raw");
    let (mut env, disk) = open(&path, config.span_bytes, config.flush)?;
    let depth = case.depth as usize;
    let mut raw = Raw {
        disk: disk.id,
        buf: IoBuf::copy_of(&vec![0xB5; case.block as usize]),
        slots: vec![Time::ZERO; depth],
        free: (0..case.depth).collect(),
        ops: Vec::new(),
        unflushed: Vec::new(),
        covered: None,
        flush: config.flush,
    };
    let (mut offsets, end) =
        (Offsets::new(case.block, config.span_bytes), env.now() + Duration::from_secs(config.seconds));
    let mut meter = Meter::new(env.now())?;
    let mut events = Vec::new();
    loop {
        let now = env.now();
        for event in events.drain(..) {
            raw.handle(event)?.into_iter().for_each(|since| meter.done(now.since(since)));
        }
        while now < end && raw.in_flight() < depth && !raw.free.is_empty() {
            raw.submit(now, offsets.take());
        }
        raw.flush_if_due();
        if raw.in_flight() == 0 {
            return meter.figures(now);
        }
        let mut ops = std::mem::take(&mut raw.ops);
        env.turn(&mut ops, &mut events, Time::NEVER)?;
        raw.ops = ops;
    }
}
