//! A disk in memory: completions come in any order, and a power cut keeps, loses or tears writes that no flush covered.

use env::{DiskError, DiskId, DiskInfo, DiskKind, Env, EnvError, Event, ListenerId, NetAddr, Op, Token, Waker};
use types::rng::Rng;
use types::{IoBuf, Time};

const TEAR: usize = 512;

#[derive(Clone)]
struct Unflushed {
    offset: usize,
    bytes: Vec<u8>,
}

enum Pending {
    Read { token: Token, offset: usize, buf: types::IoBufMut },
    Write { token: Token, offset: usize, bytes: Vec<u8>, flush: bool },
    Flush { token: Token },
}

pub(super) struct Disk {
    /// Bytes that reads return.
    cache: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<Unflushed>,
    pending: Vec<Pending>,
    pub rng: Rng,
    pub volatile: bool,
    /// Fail the write that comes when this reaches 0.
    pub fail_in: Option<u32>,
    /// The next flush fails: the writes before it can still be read, and no later flush makes them durable.
    pub fail_flush: bool,
    pub writes: u64,
    pub reads: u64,
    /// The read with this number returns the bytes one page further on.
    pub astray: Option<u64>,
    /// Reads of this byte fail.
    pub unreadable: Option<usize>,
}

impl Disk {
    pub fn new(len: usize, seed: u64, volatile: bool) -> Disk {
        let (cache, durable) = (vec![0; len], vec![0; len]);
        let rng = Rng::new(seed);
        Disk {
            cache,
            durable,
            unflushed: Vec::new(),
            pending: Vec::new(),
            rng,
            volatile,
            fail_in: None,
            fail_flush: false,
            writes: 0,
            reads: 0,
            astray: None,
            unreadable: None,
        }
    }

    /// Returns the same disk with nothing in flight.
    pub fn copy(&self) -> Disk {
        Disk {
            cache: self.cache.clone(),
            durable: self.durable.clone(),
            unflushed: self.unflushed.clone(),
            pending: Vec::new(),
            rng: self.rng.clone(),
            ..*self
        }
    }

    pub fn info(&self) -> DiskInfo {
        DiskInfo {
            id: DiskId(0),
            kind: DiskKind::Block,
            size_bytes: self.cache.len() as u64,
            align_bytes: 512,
            volatile_cache: self.volatile,
        }
    }

    pub fn submit(&mut self, ops: &mut Vec<Op>) {
        for op in ops.drain(..) {
            self.pending.push(match op {
                Op::DiskRead { token, offset, buf, .. } => {
                    assert!(offset % 512 == 0 && buf.len() % 512 == 0, "read {offset}+{}", buf.len());
                    Pending::Read { token, offset: offset as usize, buf }
                }
                Op::DiskWrite { token, offset, bufs, flush, .. } => {
                    self.writes += 1;
                    for b in &bufs {
                        assert!(b.len().is_multiple_of(512) && b.is_aligned(512), "an unaligned write");
                    }
                    assert!(bufs.len() <= 1024, "the kernel takes at most 1024 buffers");
                    let bytes = bufs.iter().flat_map(|b: &IoBuf| b.to_vec()).collect();
                    Pending::Write { token, offset: offset as usize, bytes, flush }
                }
                Op::DiskFlush { token, .. } => Pending::Flush { token },
                other => panic!("{other:?}"),
            });
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Completes any one operation.
    pub fn step(&mut self) -> Option<Event> {
        if self.pending.is_empty() {
            return None;
        }
        let nth = self.rng.below(self.pending.len() as u64) as usize;
        Some(match self.pending.swap_remove(nth) {
            Pending::Read { token, mut offset, mut buf } => {
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
            Pending::Write { token, offset, bytes, flush } => {
                if let Some(left) = &mut self.fail_in {
                    if *left == 0 {
                        return Some(Event::DiskWrite { token, result: Err(DiskError::Io(5)) });
                    }
                    *left -= 1;
                }
                self.cache[offset..offset + bytes.len()].copy_from_slice(&bytes);
                self.unflushed.push(Unflushed { offset, bytes });
                let result = if flush || !self.volatile { self.flush() } else { Ok(()) };
                Event::DiskWrite { token, result }
            }
            Pending::Flush { token } => {
                let result = self.flush();
                Event::DiskFlush { token, result }
            }
        })
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        if std::mem::take(&mut self.fail_flush) {
            for write in std::mem::take(&mut self.unflushed) {
                self.land(write.offset, &write.bytes, false);
            }
            return Err(DiskError::Io(5));
        }
        for write in self.unflushed.drain(..) {
            self.durable[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        Ok(())
    }

    /// Kills the process: operations in flight happen or not, the cache stays.
    pub fn kill(&mut self) {
        for op in std::mem::take(&mut self.pending) {
            if let Pending::Write { offset, bytes, .. } = op {
                self.land(offset, &bytes, true);
            }
        }
    }

    /// Cuts the power: each write without a flush is kept, lost, or torn.
    pub fn power_cut(&mut self) {
        let lost = std::mem::take(&mut self.unflushed);
        for op in std::mem::take(&mut self.pending) {
            if let Pending::Write { offset, bytes, .. } = op {
                self.land(offset, &bytes, false);
            }
        }
        for write in lost {
            self.land(write.offset, &write.bytes, false);
        }
        self.cache.copy_from_slice(&self.durable);
    }

    fn land(&mut self, offset: usize, bytes: &[u8], cached: bool) {
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
                    self.unflushed.push(Unflushed { offset: at, bytes: piece.to_vec() });
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

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, _: Time) -> Result<(), EnvError> {
        self.submit(ops);
        while let Some(event) = self.step() {
            events.push(event);
        }
        Ok(())
    }

    fn open_disk(&mut self, _: &env::DiskSpec) -> Result<DiskInfo, EnvError> {
        Ok(self.info())
    }

    fn listen(&mut self, _: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        unreachable!("a disk has no sockets")
    }

    fn waker(&self) -> Waker {
        Waker::new(|| {})
    }
}
