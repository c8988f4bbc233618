//! A disk in memory: completions come in any order, and a power cut keeps, loses or tears writes that no flush covered.

use crate::Disks;
use env::{DiskError, DiskId, DiskInfo, DiskKind, Env, EnvError, Event, ListenerId, NetAddr, Op, Token, Waker};
use std::ops::Range;
use types::rng::Rng;
use types::{IoBuf, IoBufMut, Time};

const TEAR: usize = 512;

#[derive(Clone)]
struct Unflushed {
    disk: DiskId,
    offset: usize,
    bytes: Vec<u8>,
}

enum Pending {
    Read { token: Token, offset: usize, buf: IoBufMut },
    Write { token: Token, disk: DiskId, offset: usize, bytes: Vec<u8>, flush: bool },
    Flush { token: Token, disk: DiskId },
}

pub(crate) struct Disk {
    pub info: DiskInfo,
    /// Bytes from this one on are a second device, that of the home, with these properties.
    pub home_from: Option<usize>,
    pub home: Option<DiskInfo>,
    /// Bytes that reads return.
    cache: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<Unflushed>,
    pending: Vec<Pending>,
    pub rng: Rng,
    /// Choices of the test that owns the disk.
    pub choices: Rng,
    /// Writes in flight land in parts before they complete.
    pub in_parts: bool,
    /// Numbers of the writes and flushes that fail, by [`Disk::ended`].
    pub fails: Range<u64>,
    /// Writes from this byte on need a flush, even without a volatile cache: the extents of a file are unwritten there.
    pub sparse_from: Option<usize>,
    /// The next flush fails: the writes before it can still be read, and no later flush makes them durable.
    pub fail_flush: bool,
    /// Number of writes that were submitted, and of flushes of their own that completed.
    pub writes: u64,
    pub flushes: u64,
    /// Number of writes and flushes that completed.
    pub ended: u64,
    /// Number of operations that completed.
    pub completed: u64,
    pub reads: u64,
    pub longest_bytes: usize,
    pub most_in_flight: usize,
    /// The read with this number returns the bytes one page further on.
    pub astray: Option<u64>,
    /// Reads of this byte fail.
    pub unreadable: Option<usize>,
}

impl Disk {
    pub fn new(len: u64, seed: u64, volatile: bool) -> Disk {
        let info = DiskInfo {
            id: DiskId(0),
            path: "disk".into(),
            kind: DiskKind::Block,
            size_bytes: len,
            align_bytes: 512,
            volatile_cache: volatile,
            capabilities: env::Capabilities::default(),
        };
        Disk {
            info,
            home_from: None,
            home: None,
            cache: vec![0; len as usize],
            durable: vec![0; len as usize],
            unflushed: Vec::new(),
            pending: Vec::new(),
            rng: Rng::new(seed),
            choices: Rng::new(seed ^ 0xabcd),
            in_parts: false,
            fails: 0..0,
            sparse_from: None,
            fail_flush: false,
            writes: 0,
            flushes: 0,
            ended: 0,
            completed: 0,
            reads: 0,
            longest_bytes: 0,
            most_in_flight: 0,
            astray: None,
            unreadable: None,
        }
    }

    /// Returns the two devices of a disk that is divided.
    pub fn disks(&self) -> Disks {
        let Some(from) = self.home_from else { return Disks::from(&self.info) };
        let log = DiskInfo { size_bytes: from as u64, ..self.info.clone() };
        let size_bytes = (self.cache.len() - from) as u64;
        let home = self.home.clone().unwrap_or_else(|| self.info.clone());
        Disks { log, home: DiskInfo { id: DiskId(1), size_bytes, ..home } }
    }

    fn info_of(&self, disk: DiskId) -> &DiskInfo {
        self.home.as_ref().filter(|_| disk.0 == 1).unwrap_or(&self.info)
    }

    fn device(&self, disk: DiskId) -> Range<usize> {
        match (self.home_from, disk.0) {
            (None, 0) => 0..self.cache.len(),
            (Some(from), 0) => 0..from,
            (Some(from), 1) => from..self.cache.len(),
            _ => panic!("{disk:?} was never opened"),
        }
    }

    /// Returns the same disk with nothing in flight.
    pub fn copy(&self) -> Disk {
        Disk {
            info: self.info.clone(),
            home: self.home.clone(),
            cache: self.cache.clone(),
            durable: self.durable.clone(),
            unflushed: self.unflushed.clone(),
            pending: Vec::new(),
            rng: self.rng.clone(),
            choices: self.choices.clone(),
            fails: self.fails.clone(),
            ..*self
        }
    }

    /// Lets this many writes and flushes complete, and makes all later ones fail.
    pub fn fail_after(&mut self, count: u64) {
        self.fails = self.ended + count..u64::MAX;
    }

    pub fn submit(&mut self, ops: &mut Vec<Op>) {
        for op in ops.drain(..) {
            let (disk, offset, len) = match &op {
                Op::DiskRead { disk, offset, buf, .. } => (*disk, *offset, buf.len()),
                Op::DiskWrite { disk, offset, bufs, .. } => {
                    self.writes += 1;
                    let align = self.info_of(*disk).align_bytes as usize;
                    assert!(bufs.iter().all(|b| b.is_aligned(align) && b.len().is_multiple_of(align)), "alignment");
                    assert!(bufs.len() <= 1024, "the kernel takes at most 1024 buffers");
                    (*disk, *offset, bufs.iter().map(|b| b.len()).sum())
                }
                Op::DiskFlush { disk, .. } => (*disk, 0, 0),
                other => panic!("{other:?}"),
            };
            let align = self.info_of(disk).align_bytes as usize;
            assert!((offset as usize).is_multiple_of(align) && len.is_multiple_of(512), "{offset}+{len}");
            let device = self.device(disk);
            assert!(offset as usize + len <= device.len(), "{offset}+{len} leaves {disk:?}");
            let offset = device.start + offset as usize;
            self.longest_bytes = self.longest_bytes.max(len);
            self.pending.push(match op {
                Op::DiskRead { token, buf, .. } => Pending::Read { token, offset, buf },
                Op::DiskWrite { token, bufs, flush, .. } => {
                    let bytes = bufs.iter().flat_map(|b: &IoBuf| b.to_vec()).collect();
                    Pending::Write { token, disk, offset, bytes, flush }
                }
                Op::DiskFlush { token, .. } => Pending::Flush { token, disk },
                other => panic!("{other:?}"),
            });
            self.most_in_flight = self.most_in_flight.max(self.pending.len());
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Completes any one operation, or lets a part of a write land.
    pub fn step(&mut self) -> Option<Event> {
        if self.pending.is_empty() {
            return None;
        }
        let nth = self.rng.below(self.pending.len() as u64) as usize;
        let op = self.pending.swap_remove(nth);
        if let Pending::Write { disk, offset, bytes, .. } = &op
            && self.in_parts
            && self.rng.chance(1, 4)
        {
            self.land(*disk, *offset, bytes, true);
            self.pending.push(op);
            return None;
        }
        self.completed += 1;
        Some(match op {
            Pending::Read { token, offset, buf } => self.read(token, offset, buf),
            Pending::Write { token, disk, offset, bytes, flush } => {
                let result = self.outcome().and_then(|()| {
                    self.cache[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    let is_volatile = self.info_of(disk).volatile_cache;
                    let is_durable = !is_volatile && self.sparse_from.is_some_and(|from| offset < from);
                    if is_durable && !flush {
                        self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
                        return Ok(());
                    }
                    self.unflushed.push(Unflushed { disk, offset, bytes });
                    let waits = is_volatile || self.sparse_from.is_some();
                    if flush || !waits { self.flush(disk) } else { Ok(()) }
                });
                Event::DiskWrite { token, result }
            }
            Pending::Flush { token, disk } => {
                self.flushes += 1;
                self.fail_flush |= self.outcome().is_err();
                let result = self.flush(disk);
                Event::DiskFlush { token, result }
            }
        })
    }

    fn read(&mut self, token: Token, mut offset: usize, mut buf: IoBufMut) -> Event {
        if self.astray == Some(self.reads) {
            offset = if offset + buf.len() < self.cache.len() { offset + 4096 } else { offset - 4096 };
        }
        self.reads += 1;
        let end = offset + buf.len();
        let result = match self.cache.get(offset..end) {
            _ if self.unreadable.is_some_and(|at| (offset..end).contains(&at)) => Err(DiskError::Io(5)),
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(DiskError::OutOfRange { offset: offset as u64, len: buf.len() as u64 }),
        };
        Event::DiskRead { token, buf, result }
    }

    fn outcome(&mut self) -> Result<(), DiskError> {
        self.ended += 1;
        if self.fails.contains(&(self.ended - 1)) { Err(DiskError::Io(5)) } else { Ok(()) }
    }

    fn flush(&mut self, disk: DiskId) -> Result<(), DiskError> {
        let (flushed, others) = std::mem::take(&mut self.unflushed).into_iter().partition(|write| write.disk == disk);
        self.unflushed = others;
        let flushed: Vec<Unflushed> = flushed;
        if std::mem::take(&mut self.fail_flush) {
            for write in flushed {
                self.land(disk, write.offset, &write.bytes, false);
            }
            return Err(DiskError::Io(5));
        }
        for write in flushed {
            self.durable[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        Ok(())
    }

    /// Kills the process: operations in flight happen or not, the cache stays.
    pub fn kill(&mut self) {
        for op in std::mem::take(&mut self.pending) {
            if let Pending::Write { disk, offset, bytes, .. } = op {
                self.land(disk, offset, &bytes, true);
            }
        }
    }

    /// Cuts the power: each write without a flush is kept, lost, or torn.
    pub fn power_cut(&mut self) {
        let lost = std::mem::take(&mut self.unflushed);
        for op in std::mem::take(&mut self.pending) {
            if let Pending::Write { disk, offset, bytes, .. } = op {
                self.land(disk, offset, &bytes, false);
            }
        }
        for write in lost {
            self.land(write.disk, write.offset, &write.bytes, false);
        }
        self.cache.copy_from_slice(&self.durable);
    }

    fn land(&mut self, disk: DiskId, offset: usize, bytes: &[u8], cached: bool) {
        let fate = self.rng.below(3);
        for (n, piece) in bytes.chunks(TEAR).enumerate() {
            let keep = match fate {
                0 => true,
                1 => false,
                _ => self.rng.chance(1, 2),
            };
            if keep {
                let at = offset + n * TEAR;
                if cached {
                    self.cache[at..at + piece.len()].copy_from_slice(piece);
                    self.unflushed.push(Unflushed { disk, offset: at, bytes: piece.to_vec() });
                } else {
                    self.durable[at..at + piece.len()].copy_from_slice(piece);
                }
            }
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.cache
    }

    /// Flips one bit, in the durable bytes too.
    pub fn flip(&mut self, offset: usize) {
        self.cache[offset] ^= 0x40;
        self.durable[offset] = self.cache[offset];
    }

    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.durable[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub fn fill(&mut self, offset: usize, len: usize, byte: u8) {
        self.cache[offset..offset + len].fill(byte);
        self.durable[offset..offset + len].fill(byte);
    }
}

/// The disk as an env, for formatting.
impl Env for Disk {
    fn now(&self) -> Time {
        Time(1)
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn secret(&mut self) -> Result<[u8; 16], EnvError> {
        Ok(std::array::from_fn(|_| self.rng.next_u64() as u8))
    }

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, _: Time) -> Result<(), EnvError> {
        self.submit(ops);
        while let Some(event) = self.step() {
            events.push(event);
        }
        Ok(())
    }

    fn open_disk(&mut self, _: &env::DiskSpec) -> Result<DiskInfo, EnvError> {
        Ok(self.info.clone())
    }

    fn listen(&mut self, _: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        unreachable!("a disk has no sockets")
    }

    fn waker(&self) -> Waker {
        Waker::new(|| {})
    }
}
