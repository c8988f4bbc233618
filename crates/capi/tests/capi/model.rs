//! Threads that write, read, discard and zero ranges of one volume, each against a model of its part.
//!
//! Requests in flight have no order, so a thread keeps their ranges apart. Every read is compared when its event is taken, and the
//! whole part at the end.

use crate::c::{self, Handle};
use types::rng::Rng;

const THREADS: u64 = 4;
const REQUESTS: usize = 2500;
const DEPTH: usize = 16;
/// Part of each thread.
const SPAN: u64 = 16 << 20;
const SECTOR: u64 = 512;
/// Longest request: two parts of the volume's own cut.
const LEN_MAX: u64 = 640 << 10;

enum Kind {
    Read(Vec<u8>),
    /// The model has the new bytes already: no other request of the range is in flight.
    Change,
}

struct InFlight {
    offset: u64,
    len: u64,
    kind: Kind,
}

struct Thread {
    volume: Handle,
    queue: Handle,
    base: u64,
    rng: Rng,
    model: Vec<u8>,
    in_flight: Vec<Option<InFlight>>,
}

/// Runs the threads on a fresh volume.
pub fn threads_against_a_model(cluster: Handle) {
    let volume = c::open(cluster, "main/model", 0).expect("a volume");
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            scope.spawn(move || Thread::new(volume, n).run());
        }
    });
    assert_eq!(c::close(volume), 0, "{}", c::last_error());
}

impl Thread {
    fn new(volume: Handle, n: u64) -> Thread {
        Thread {
            volume,
            queue: c::queue(DEPTH as u32),
            base: n * SPAN,
            rng: Rng::new(7 + n),
            model: vec![0; SPAN as usize],
            in_flight: (0..DEPTH).map(|_| None).collect(),
        }
    }

    fn run(mut self) {
        let mut started = 0;
        while started < REQUESTS || self.in_flight.iter().any(Option::is_some) {
            while started < REQUESTS && self.start() {
                started += 1;
            }
            for (slot, result) in c::wait(self.queue, 1, DEPTH as u32, None).expect("events") {
                assert_eq!(result, 0, "request {started}");
                self.end(slot);
            }
        }
        let mut all = vec![0xee; SPAN as usize];
        assert_eq!(c::pread(self.volume, &mut all, self.base), 0, "{}", c::last_error());
        assert!(all == self.model, "the part at {} differs from its model", self.base);
        assert_eq!(c::destroy(self.queue), 0, "{}", c::last_error());
    }

    /// Draws a range that no request in flight has.
    fn range(&mut self) -> (u64, u64) {
        loop {
            let len =
                if self.rng.chance(1, 8) { self.rng.between(1, LEN_MAX / SECTOR) } else { self.rng.between(1, 32) };
            let offset = self.rng.below(SPAN / SECTOR - len) * SECTOR;
            let len = len * SECTOR;
            let meets = |other: &InFlight| offset < other.offset + other.len && other.offset < offset + len;
            if !self.in_flight.iter().flatten().any(meets) {
                return (offset, len);
            }
        }
    }

    fn start(&mut self) -> bool {
        let Some(slot) = self.in_flight.iter().position(Option::is_none) else {
            let refused = c::write(self.volume, self.queue, self.base, &self.model[..512], 1, 0);
            assert_eq!(refused, -libc::EAGAIN, "the queue is full");
            return false;
        };
        let (offset, len) = self.range();
        let (at, range) = (self.base + offset, offset as usize..(offset + len) as usize);
        let cut = self.rng.below(len + 1) as usize;
        let (volume, queue) = (self.volume, self.queue);
        let (kind, result) = match self.rng.below(10) {
            0..=3 => {
                let mut buffer = vec![0xee; len as usize];
                let result = c::read(volume, queue, at, &mut buffer, cut, slot);
                (Kind::Read(buffer), result)
            }
            4..=7 => {
                self.model[range.clone()].chunks_mut(8).for_each(|word| {
                    word.copy_from_slice(&self.rng.next_u64().to_le_bytes()[..word.len()]);
                });
                let mut bytes = self.model[range].to_vec();
                let result = c::write(volume, queue, at, &bytes, cut, slot);
                // The header says that the buffer belongs to the program again.
                bytes.fill(0xdd);
                (Kind::Change, result)
            }
            8 => {
                self.model[range].fill(0);
                (Kind::Change, c::discard(volume, queue, at, len, slot))
            }
            _ => {
                self.model[range].fill(0);
                let flags = self.rng.below(2) as u32;
                (Kind::Change, c::write_zeroes(volume, queue, (at, len), flags, slot))
            }
        };
        assert_eq!(result, 0, "{}", c::last_error());
        self.in_flight[slot] = Some(InFlight { offset, len, kind });
        true
    }

    fn end(&mut self, slot: usize) {
        let ended = self.in_flight[slot].take().expect("one event for each request");
        if let Kind::Read(buffer) = ended.kind {
            let expected = &self.model[ended.offset as usize..][..ended.len as usize];
            assert!(buffer == expected, "{}+{} differs from the model", self.base + ended.offset, ended.len);
        }
    }
}
