//! A simulated disk: an image that reads see, the image that survives a power cut, and the writes between the two.
//!
//! It takes operations and the ends of processes, and returns completions after a seeded latency; an operation takes
//! effect at its delivery. Invariant: a write that a successful flush covered is in the durable image whole. A write
//! that none covered is kept, lost or torn at sector size by seed when the power goes. Each has its own fate, as a
//! device's cache reorders. It stays when only the process dies. A failed flush decides at once the fate of the writes
//! that it should have covered: no later flush saves them (R15).

use crate::image::{Image, PAGE, page_numbers};
use crate::lies::{Lie, is_due};
use crate::state::{Due, State};
use crate::trace::FaultCounts;
use crate::world::NodeId;
use env::{DiskError, DiskId, DiskKind, Event, Op, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use types::rng::Rng;
use types::units::SECTOR;
use types::{IoBuf, IoBufMut};

pub(crate) const EIO: i32 = 5;
const EROFS: i32 = 30;
/// Limits of a device's cache: above them it writes its oldest data back by itself.
const DIRTY_WRITES_MAX: usize = 1024;
const DIRTY_BYTES_MAX: u64 = 32 << 20;

/// Behaviour of a disk, and its faults. `World::disk_faults` changes it at any time.
#[derive(Clone, Debug)]
pub struct DiskFaults {
    /// Shortest and longest time of a read or write, besides `per_mib`.
    pub latency: (Duration, Duration),
    /// Shortest and longest time of a flush.
    pub flush_latency: (Duration, Duration),
    /// Transfer time of one MiB.
    pub per_mib: Duration,
    /// Multiplies all times.
    pub slow: u32,
    /// Multiplies the times of reads.
    pub slow_reads: u32,
    /// No operation completes until this is cleared.
    pub stuck: bool,
    /// Writes fail with `NoSpace`.
    pub full: bool,
    /// The n-th read, write or flush from now fails with EIO, once; 0 is the next.
    pub fail_read: Option<u64>,
    pub fail_write: Option<u64>,
    pub fail_flush: Option<u64>,
    /// The same for flushes that are operations of their own and not part of a write.
    pub fail_own_flush: Option<u64>,
    /// Chance of EIO for each read, in parts per million.
    pub read_error_ppm: u32,
    /// The n-th write from now is acknowledged and stored nowhere; 0 is the next.
    pub phantom_write: Option<u64>,
    /// The n-th write from now is acknowledged and stored elsewhere.
    pub misdirect_write: Option<u64>,
    /// The n-th read from now returns the bytes of another place.
    pub misdirect_read: Option<u64>,
    /// Range (from, to) of writes that [`crate::Lie::durable_after`] counts.
    pub watch: (u64, u64),
}

impl Default for DiskFaults {
    fn default() -> DiskFaults {
        DiskFaults {
            latency: (Duration::from_micros(20), Duration::from_micros(200)),
            flush_latency: (Duration::from_micros(50), Duration::from_millis(1)),
            per_mib: Duration::from_micros(500),
            slow: 1,
            slow_reads: 1,
            stuck: false,
            full: false,
            fail_read: None,
            fail_write: None,
            fail_flush: None,
            fail_own_flush: None,
            read_error_ppm: 0,
            phantom_write: None,
            misdirect_write: None,
            misdirect_read: None,
            watch: (0, 0),
        }
    }
}

/// Bytes on their way to the durable image.
enum Data {
    Bytes(Vec<IoBuf>),
    Zeros(u64),
}

struct Dirty {
    seq: u64,
    offset: u64,
    data: Data,
}

impl Dirty {
    fn len(&self) -> u64 {
        match &self.data {
            Data::Bytes(bufs) => bufs.iter().map(|b| b.len() as u64).sum(),
            Data::Zeros(len) => *len,
        }
    }

    /// Writes those sectors that `keep` selects (by number inside this write).
    fn apply(&self, image: &mut Image, mut keep: impl FnMut(u64) -> bool) {
        let mut sector = 0;
        let mut at = self.offset;
        let mut put = |bytes: &[u8]| {
            for piece in bytes.chunks(SECTOR as usize) {
                if keep(sector) {
                    image.write(at, piece);
                }
                sector += 1;
                at += piece.len() as u64;
            }
        };
        match &self.data {
            Data::Bytes(bufs) => bufs.iter().for_each(|b| put(b)),
            Data::Zeros(len) => (0..len / SECTOR).for_each(|_| put(&[0; SECTOR as usize])),
        }
    }

    fn apply_whole(&self, image: &mut Image) {
        match &self.data {
            Data::Bytes(bufs) => image.write_all(self.offset, bufs),
            Data::Zeros(len) => {
                let zeros = IoBuf::zeros(1 << 20);
                let mut at = self.offset;
                while at < self.offset + len {
                    let n = (self.offset + len - at).min(zeros.len() as u64);
                    image.write(at, &zeros[..n as usize]);
                    at += n;
                }
            }
        }
    }
}

enum Stage {
    Read {
        offset: u64,
        buf: IoBufMut,
    },
    Write {
        offset: u64,
        bufs: Vec<IoBuf>,
        flush: bool,
    },
    /// A flush of everything up to `mark`; the second half of a write, or an operation of its own.
    Sync {
        mark: u64,
        of_write: bool,
    },
    Discard {
        offset: u64,
        len_bytes: u64,
    },
}

struct Flight {
    token: Token,
    stage: Stage,
    error: Option<DiskError>,
}

/// Fate of one unflushed write.
enum Fate {
    Keep,
    Lose,
    Tear,
}

pub(crate) struct Disk {
    pub path: PathBuf,
    pub size_bytes: u64,
    pub volatile_cache: bool,
    /// Kind of the disk. Pages of a file that were never flushed have no extent yet: without a volatile cache, only
    /// writes to other pages are durable at once (R10).
    pub kind: DiskKind,
    /// Pages of a file that were written and flushed.
    settled: BTreeSet<u64>,
    pub lies: Vec<Lie>,
    /// Pages with bytes that the disk lost, moved or changed silently, and that no write has covered since.
    false_pages: BTreeSet<u64>,
    /// Sectors that cannot be read, by number.
    pub(crate) unreadable: BTreeSet<u64>,
    pub faults: DiskFaults,
    /// The process (by its count on the node) that holds the lock.
    pub held_by: Option<u32>,
    pub read_only: bool,
    /// Image that reads see.
    current: Image,
    /// Image that a power cut leaves at least.
    durable: Image,
    /// Writes that are completed and not flushed, in order of completion.
    dirty: Vec<Dirty>,
    dirty_bytes: u64,
    /// Pages where a failed flush left the two images different.
    doomed: BTreeSet<u64>,
    /// Number of the last completed write.
    completed: u64,
    flights: BTreeMap<u64, Flight>,
    stalled: Vec<u64>,
    pub rng: Rng,
}

impl Disk {
    pub fn new(path: PathBuf, size_bytes: u64, volatile_cache: bool, rng: Rng) -> Disk {
        assert!(size_bytes.is_multiple_of(SECTOR), "a disk is made of sectors");
        Disk {
            path,
            size_bytes,
            volatile_cache,
            kind: DiskKind::Block,
            settled: BTreeSet::new(),
            lies: Vec::new(),
            false_pages: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            faults: DiskFaults::default(),
            held_by: None,
            read_only: false,
            current: Image::default(),
            durable: Image::default(),
            dirty: Vec::new(),
            dirty_bytes: 0,
            doomed: BTreeSet::new(),
            completed: 0,
            flights: BTreeMap::new(),
            stalled: Vec::new(),
            rng,
        }
    }

    pub fn peek(&self, offset: u64, into: &mut [u8]) {
        assert!(offset + into.len() as u64 <= self.size_bytes, "a look beyond the disk");
        self.current.read(offset, into);
    }

    /// Returns the page of 4 KiB that a read at `offset` would return now.
    pub fn page_at(&self, offset: u64) -> IoBuf {
        assert!(offset < self.size_bytes, "a look beyond the disk");
        self.current.page_at(offset)
    }

    /// Returns the image that a power cut would leave.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Whether the page at `offset` may not hold the bytes that were last acknowledged there.
    pub fn has_lied_at(&self, offset: u64) -> bool {
        self.false_pages.contains(&(offset / PAGE))
    }

    pub(crate) fn lies_at(&mut self, offset: u64, len: u64) {
        self.false_pages.extend(page_numbers(offset, len));
    }

    /// Whether an unflushed write covers this sector.
    pub(crate) fn caches(&self, sector: u64) -> bool {
        let at = sector * SECTOR;
        self.dirty.iter().any(|write| (write.offset..write.offset + write.len()).contains(&at))
    }

    /// Changes stored bytes silently.
    pub fn poke(&mut self, offset: u64, bytes: &[u8]) {
        self.lies_at(offset, bytes.len() as u64);
        assert!(offset + bytes.len() as u64 <= self.size_bytes, "a change beyond the disk");
        self.current.write(offset, bytes);
        self.durable.write(offset, bytes);
    }

    /// Returns the offsets of the pages between two offsets that hold anything but zeros.
    pub fn stored_pages(&self, from: u64, to: u64) -> Vec<u64> {
        self.current.stored(from, to)
    }

    /// Takes the operations that waited for a stuck disk, once it is not stuck any more.
    pub fn take_stalled(&mut self) -> Vec<u64> {
        if self.faults.stuck { Vec::new() } else { std::mem::take(&mut self.stalled) }
    }

    fn latency(&mut self, range: (Duration, Duration), len: u64) -> Duration {
        let (low, high) = (range.0.as_nanos() as u64, range.1.as_nanos() as u64);
        let transfer = self.faults.per_mib.as_nanos() as u64 * len.div_ceil(1024) / 1024;
        Duration::from_nanos((self.rng.between(low, high.max(low)) + transfer) * u64::from(self.faults.slow.max(1)))
    }

    /// Takes a completed write in.
    fn complete(&mut self, offset: u64, data: Data) {
        self.completed += 1;
        let dirty = Dirty { seq: self.completed, offset, data };
        let covered = offset.div_ceil(PAGE)..(offset + dirty.len()) / PAGE;
        if !self.false_pages.is_empty() {
            self.false_pages.retain(|page| !covered.contains(page));
        }
        dirty.apply_whole(&mut self.current);
        self.dirty.push(dirty);
        self.dirty_bytes += self.dirty.last().map_or(0, Dirty::len);
        if !self.volatile_cache && self.kind == DiskKind::File {
            self.settle_known_pages();
        } else if !self.volatile_cache {
            self.commit(self.completed);
        } else if self.dirty.len() > DIRTY_WRITES_MAX || self.dirty_bytes > DIRTY_BYTES_MAX {
            self.commit(self.dirty[self.dirty.len() / 2].seq);
        }
    }

    /// Settles the last write to a file on a device without a volatile cache: its bytes on settled pages are durable,
    /// the rest waits for a flush of the file.
    fn settle_known_pages(&mut self) {
        let write = self.dirty.pop().expect("a write has just completed");
        self.dirty_bytes -= write.len();
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        for number in page_numbers(write.offset, write.len()) {
            let start = (number * PAGE).max(write.offset) - write.offset;
            let end = ((number + 1) * PAGE - write.offset).min(write.len());
            if self.settled.contains(&number) {
                self.durable.share(&self.current, number);
                self.note_stored(write.offset + start, end - start);
                continue;
            }
            match waiting.last_mut().filter(|(_, last)| *last == start) {
                Some((_, last)) => *last = end,
                None => waiting.push((start, end)),
            }
        }
        for (start, end) in waiting {
            let data = match &write.data {
                Data::Bytes(bufs) => Data::Bytes(
                    crate::stream::split(crate::stream::split(bufs.clone(), end as usize).0, start as usize).1,
                ),
                Data::Zeros(_) => Data::Zeros(end - start),
            };
            self.dirty.push(Dirty { seq: write.seq, offset: write.offset + start, data });
            self.dirty_bytes += end - start;
        }
    }

    /// Takes out the unflushed writes up to `mark`.
    fn take_dirty(&mut self, mark: u64) -> Vec<Dirty> {
        let later = self.dirty.split_off(self.dirty.partition_point(|d| d.seq <= mark));
        self.dirty_bytes = later.iter().map(Dirty::len).sum();
        std::mem::replace(&mut self.dirty, later)
    }

    /// Makes every write up to `mark` durable.
    fn commit(&mut self, mark: u64) {
        let covered = self.take_dirty(mark);
        if self.kind == DiskKind::File {
            self.settled.extend(covered.iter().flat_map(|d| page_numbers(d.offset, d.len())));
        }
        self.flushed_after_lies();
        let blurred: BTreeSet<u64> = self.dirty.iter().flat_map(|d| page_numbers(d.offset, d.len())).collect();
        for write in &covered {
            self.note_stored(write.offset, write.len());
            let numbers = page_numbers(write.offset, write.len());
            let apart = |pages: &BTreeSet<u64>| pages.range(numbers.clone()).next().is_some();
            if apart(&blurred) || apart(&self.doomed) {
                write.apply_whole(&mut self.durable);
            } else {
                // No other unflushed write lies on these pages, so the image that reads see becomes durable.
                for number in numbers {
                    self.durable.share(&self.current, number);
                }
            }
        }
    }

    /// Decides the fate of `writes` that no flush will cover any more.
    fn decide(&mut self, writes: &[Dirty], counts: &mut FaultCounts) {
        // There are three styles: all are lost, all are kept, or each has its own fate.
        let style = self.rng.below(4);
        let mut lost = false;
        for write in writes {
            let fate = match (style, self.rng.below(3)) {
                (0, _) | (2.., 0) => Fate::Lose,
                (1, _) | (2.., 1) => Fate::Keep,
                _ => Fate::Tear,
            };
            match fate {
                Fate::Keep => {
                    write.apply_whole(&mut self.durable);
                    self.note_stored(write.offset, write.len());
                    counts.writes_kept += 1;
                    counts.reordered += u64::from(lost);
                }
                Fate::Lose => {
                    counts.writes_lost += 1;
                    lost = true;
                }
                Fate::Tear => {
                    self.tear(write);
                    counts.writes_torn += 1;
                }
            }
        }
    }

    /// Applies a part of a write: a head, a tail, or any sectors.
    fn tear(&mut self, write: &Dirty) {
        let sectors = write.len() / SECTOR;
        let cut = self.rng.between(0, sectors);
        let mut coin = self.rng.fork();
        match self.rng.below(3) {
            0 => write.apply(&mut self.durable, |s| s < cut),
            1 => write.apply(&mut self.durable, |s| s >= cut),
            _ => write.apply(&mut self.durable, |_| coin.chance(1, 2)),
        }
    }

    /// Ends all operations in flight with the power: the cache is gone.
    pub fn power_cut(&mut self, counts: &mut FaultCounts) {
        let mut writes = self.take_dirty(u64::MAX);
        for write in self.take_writes_in_flight() {
            // A write in flight may have overtaken others: it takes any place among the unflushed ones.
            let place = self.rng.below(writes.len() as u64 + 1) as usize;
            writes.insert(place, write);
        }
        self.decide(&writes, counts);
        self.current = self.durable.clone();
        self.doomed.clear();
        self.held_by = None;
    }

    /// Ends all operations in flight with the process: completed writes stay, and each write in flight may.
    pub fn crash(&mut self, counts: &mut FaultCounts) {
        for write in self.take_writes_in_flight() {
            if self.rng.chance(3, 4) {
                self.complete(write.offset, write.data);
            } else {
                counts.writes_lost += 1;
            }
        }
        self.held_by = None;
    }

    fn take_writes_in_flight(&mut self) -> Vec<Dirty> {
        self.stalled.clear();
        let flights = std::mem::take(&mut self.flights);
        let writes = flights.into_values().filter(|f| f.error.is_none()).filter_map(|f| match f.stage {
            Stage::Write { offset, bufs, .. } => Some(Dirty { seq: 0, offset, data: Data::Bytes(bufs) }),
            _ => None,
        });
        writes.collect()
    }

    /// Draws the error, if any, that an operation will end with.
    fn draw_error(&mut self, stage: &Stage) -> Option<DiskError> {
        let io = Some(DiskError::Io(EIO));
        let counter = match stage {
            Stage::Read { .. } => &mut self.faults.fail_read,
            Stage::Write { .. } => &mut self.faults.fail_write,
            Stage::Sync { .. } => &mut self.faults.fail_flush,
            Stage::Discard { .. } => return None,
        };
        if is_due(counter) {
            return io;
        }
        if matches!(stage, Stage::Sync { of_write: false, .. }) && is_due(&mut self.faults.fail_own_flush) {
            return io;
        }
        match stage {
            Stage::Write { .. } if self.faults.full => Some(DiskError::NoSpace),
            Stage::Read { .. } if self.rng.chance(self.faults.read_error_ppm.into(), 1_000_000) => io,
            _ => None,
        }
    }

    /// Fails a flush: the fate of the writes that it covered is decided now, and reads go on seeing the cache.
    fn doom(&mut self, mark: u64, counts: &mut FaultCounts) {
        let doomed = self.take_dirty(mark);
        self.doomed.extend(doomed.iter().flat_map(|d| page_numbers(d.offset, d.len())));
        self.decide(&doomed, counts);
    }
}

impl State {
    /// Takes in a disk operation.
    pub fn submit_disk(&mut self, node: NodeId, op: Op) {
        let (token, disk, stage) = match op {
            Op::DiskRead { token, disk, offset, buf } => (token, disk, Stage::Read { offset, buf }),
            Op::DiskWrite { token, disk, offset, bufs, flush } => {
                for buf in &bufs {
                    assert!(buf.len().is_multiple_of(SECTOR as usize), "a part of {} B", buf.len());
                    assert!(buf.is_empty() || buf.is_aligned(SECTOR as usize), "a part that lies askew in memory");
                }
                for watch in &self.watches {
                    watch.borrow_mut().submitted((node, disk), offset, &bufs);
                }
                (token, disk, Stage::Write { offset, bufs, flush })
            }
            Op::DiskFlush { token, disk } => {
                let mark = self.disk_mut(node, disk).completed;
                (token, disk, Stage::Sync { mark, of_write: false })
            }
            Op::DiskDiscard { token, disk, offset, len_bytes } => (token, disk, Stage::Discard { offset, len_bytes }),
            other => panic!("no disk operation: {other:?}"),
        };
        let target = self.disk_mut(node, disk);
        let (offset, len) = match &stage {
            Stage::Read { offset, buf } => (*offset, buf.len() as u64),
            Stage::Write { offset, bufs, .. } => (*offset, bufs.iter().map(|b| b.len() as u64).sum()),
            Stage::Discard { offset, len_bytes } => (*offset, *len_bytes),
            Stage::Sync { .. } => (0, 0),
        };
        assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR), "{offset}+{len} is not made of sectors");
        let error = match offset.checked_add(len) {
            _ if target.read_only && !matches!(stage, Stage::Read { .. }) => Some(DiskError::Io(EROFS)),
            Some(end) if end <= target.size_bytes => target.draw_error(&stage),
            _ => Some(DiskError::OutOfRange { offset, len }),
        };
        self.launch(node, disk, Flight { token, stage, error }, len);
    }

    fn launch(&mut self, node: NodeId, disk: DiskId, flight: Flight, len: u64) {
        let op = self.next_seq();
        let target = self.disk_mut(node, disk);
        let is_read = matches!(flight.stage, Stage::Read { .. });
        let range = match flight.stage {
            Stage::Sync { .. } => target.faults.flush_latency,
            _ => target.faults.latency,
        };
        let slow = if is_read { target.faults.slow_reads.max(1) } else { 1 };
        let delay = target.latency(range, len) * slow;
        target.flights.insert(op, flight);
        self.schedule(delay, Due::Disk { node, disk, op });
    }

    /// Completes a disk operation whose latency has passed.
    pub fn disk_due(&mut self, node: NodeId, disk: DiskId, op: u64) {
        let mut counts = self.counts;
        let target = self.disk_mut(node, disk);
        if target.faults.stuck {
            if target.flights.contains_key(&op) {
                target.stalled.push(op);
            }
            return;
        }
        // An operation that is absent belongs to a process that has ended.
        let Some(Flight { token, stage, mut error }) = target.flights.remove(&op) else { return };
        if let (Stage::Read { offset, buf }, None) = (&stage, &error) {
            error = target.unreadable_at(*offset, buf.len() as u64, &mut counts);
        }
        let result = error.clone().map_or(Ok(()), Err);
        let event = match stage {
            Stage::Read { offset, mut buf } => {
                if error.is_none() {
                    let place = target.place_of_read(offset, buf.len() as u64, &mut counts);
                    target.current.read(place, &mut buf);
                }
                self.counts = counts;
                Event::DiskRead { token, buf, result }
            }
            Stage::Write { offset, bufs, flush } => {
                let len = bufs.iter().map(|b| b.len() as u64).sum();
                if error.is_none()
                    && let Some(place) = target.place_of_write(offset, len, &mut counts)
                {
                    target.complete(place, Data::Bytes(bufs));
                    if place != offset {
                        target.lies_at(place, len);
                    }
                }
                self.counts = counts;
                if !self.disk_mut(node, disk).volatile_cache {
                    self.tell_watch(node, disk);
                }
                let target = self.disk_mut(node, disk);
                if flush && error.is_none() {
                    let stage = Stage::Sync { mark: target.completed, of_write: true };
                    let error = target.draw_error(&stage);
                    return self.launch(node, disk, Flight { token, stage, error }, 0);
                }
                Event::DiskWrite { token, result }
            }
            Stage::Sync { mark, of_write } => {
                self.settle_sync(node, disk, mark, error.is_some());
                if of_write { Event::DiskWrite { token, result } } else { Event::DiskFlush { token, result } }
            }
            Stage::Discard { offset, len_bytes } => {
                // "Unspecified or zero": both happen.
                if error.is_none() && target.rng.chance(1, 2) {
                    target.complete(offset, Data::Zeros(len_bytes));
                }
                Event::DiskDiscard { token, result }
            }
        };
        if matches!(error, Some(DiskError::Io(_) | DiskError::NoSpace)) {
            self.counts.disk_errors += 1;
        }
        let life = self.node(node).life;
        self.deliver(node, life, event);
    }

    fn settle_sync(&mut self, node: NodeId, disk: DiskId, mark: u64, failed: bool) {
        let mut counts = self.counts;
        let target = self.disk_mut(node, disk);
        if failed {
            target.doom(mark, &mut counts)
        } else {
            target.commit(mark);
            self.tell_watch(node, disk);
        }
        self.counts = counts;
    }

    /// Shows the watchers the durable image: after a flush, after a write that needs none, and before a disk is
    /// replaced.
    pub fn tell_watch(&self, node: NodeId, disk: DiskId) {
        for watch in &self.watches {
            let durable = crate::watch::Durable(&self.nodes[node.0 as usize].disks[disk.0 as usize]);
            watch.borrow_mut().flushed((node, disk), durable);
        }
    }
}
