//! A disk in memory with a volatile cache and a seed: it completes in any order and applies writes in pieces.

use env::{DiskError, DiskId, DiskInfo, DiskKind, Event, Op, Token};
use std::collections::BTreeMap;
use types::SECTOR;
use types::rng::Rng;

const S: usize = SECTOR as usize;

/// An operation in flight.
struct Queued {
    op: Op,
    /// Sectors of a write that are on the medium already.
    applied: Vec<bool>,
}

pub(super) struct TestDisk {
    pub(super) info: DiskInfo,
    /// Bytes that a read returns, by sector.
    view: BTreeMap<u64, [u8; S]>,
    /// Sectors written since the last flush, with their bytes before that.
    unflushed: BTreeMap<u64, Option<[u8; S]>>,
    queue: Vec<Queued>,
    rng: Rng,
    pub(super) writes: u64,
    pub(super) flushes: u64,
    pub(super) longest_bytes: usize,
    pub(super) most_in_flight: usize,
    /// The write or flush with this number (from 0) fails.
    pub(super) fail_at: Option<u64>,
    /// Reads that touch this byte fail.
    pub(super) unreadable: Option<u64>,
}

impl TestDisk {
    pub(super) fn new(seed: u64, size_bytes: u64, align_bytes: u32, kind: DiskKind, volatile_cache: bool) -> TestDisk {
        TestDisk {
            info: DiskInfo { id: DiskId(3), kind, size_bytes, align_bytes, volatile_cache },
            view: BTreeMap::new(),
            unflushed: BTreeMap::new(),
            queue: Vec::new(),
            rng: Rng::new(seed),
            writes: 0,
            flushes: 0,
            longest_bytes: 0,
            most_in_flight: 0,
            fail_at: None,
            unreadable: None,
        }
    }

    pub(super) fn submit(&mut self, ops: &mut Vec<Op>) {
        for op in ops.drain(..) {
            let (offset, len) = match &op {
                Op::DiskRead { offset, buf, .. } => (*offset, buf.len()),
                Op::DiskWrite { offset, bufs, .. } => {
                    let align = self.info.align_bytes as usize;
                    assert!(bufs.iter().all(|b| b.is_aligned(align) && b.len().is_multiple_of(align)), "alignment");
                    (*offset, bufs.iter().map(|b| b.len()).sum())
                }
                Op::DiskFlush { .. } => (0, 0),
                other => panic!("home does not do {other:?}"),
            };
            assert!(offset.is_multiple_of(u64::from(self.info.align_bytes)), "offset {offset}");
            assert!(offset + len as u64 <= self.info.size_bytes, "{offset}+{len} leaves the disk");
            self.longest_bytes = self.longest_bytes.max(len);
            self.queue.push(Queued { op, applied: vec![false; len / S] });
            self.most_in_flight = self.most_in_flight.max(self.queue.len());
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Advances any operation in flight: part of a write lands, or one completes.
    pub(super) fn step(&mut self) -> Option<Event> {
        assert!(!self.queue.is_empty(), "nothing is in flight");
        let at = self.rng.below(self.queue.len() as u64) as usize;
        if matches!(self.queue[at].op, Op::DiskWrite { .. }) && self.rng.chance(1, 4) {
            let mut queued = self.queue.swap_remove(at);
            self.apply(&mut queued, true);
            self.queue.push(queued);
            return None;
        }
        let mut queued = self.queue.swap_remove(at);
        self.apply(&mut queued, false);
        Some(self.complete(queued.op))
    }

    fn complete(&mut self, op: Op) -> Event {
        match op {
            Op::DiskRead { token, offset, mut buf, .. } => {
                for (sector, bytes) in (offset / SECTOR..).zip(buf.chunks_exact_mut(S)) {
                    bytes.copy_from_slice(self.view.get(&sector).unwrap_or(&[0xa5; S]));
                }
                let bad = self.unreadable.is_some_and(|at| (offset..offset + buf.len() as u64).contains(&at));
                Event::DiskRead { token, buf, result: if bad { Err(DiskError::Io(5)) } else { Ok(()) } }
            }
            Op::DiskWrite { token, .. } => Event::DiskWrite { token, result: self.outcome(token) },
            Op::DiskFlush { token, .. } => {
                self.flushes += 1;
                self.unflushed.clear();
                Event::DiskFlush { token, result: self.outcome(token) }
            }
            other => panic!("{other:?}"),
        }
    }

    fn outcome(&mut self, _token: Token) -> Result<(), DiskError> {
        self.writes += 1;
        if self.fail_at == Some(self.writes - 1) { Err(DiskError::Io(5)) } else { Ok(()) }
    }

    /// Puts the rest of a write on the medium, or some sectors of it.
    fn apply(&mut self, queued: &mut Queued, some: bool) {
        let Op::DiskWrite { offset, bufs, .. } = &queued.op else { return };
        let sectors = bufs.iter().flat_map(|buf| buf.chunks_exact(S));
        for ((sector, bytes), applied) in (*offset / SECTOR..).zip(sectors).zip(&mut queued.applied) {
            if *applied || some && self.rng.chance(1, 2) {
                continue;
            }
            *applied = true;
            let old = self.view.insert(sector, bytes.try_into().unwrap());
            if self.info.volatile_cache {
                self.unflushed.entry(sector).or_insert(old);
            }
        }
    }

    /// Cuts the power: each sector since the last flush is kept or lost, and so is each in flight.
    pub(super) fn power_cut(&mut self) {
        for mut queued in std::mem::take(&mut self.queue) {
            self.apply(&mut queued, true);
        }
        for (sector, old) in std::mem::take(&mut self.unflushed) {
            if self.rng.chance(1, 2) {
                match old {
                    Some(bytes) => self.view.insert(sector, bytes),
                    None => self.view.remove(&sector),
                };
            }
        }
    }

    /// Flips one bit at a byte offset.
    pub(super) fn flip_bit(&mut self, offset: u64) {
        self.view.entry(offset / SECTOR).or_insert([0xa5; S])[offset as usize % S] ^= 4;
    }
}
