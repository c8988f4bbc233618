//! The mount reads the payloads that records of the log name at home (ADR 0030), between the scan and its judgement (R11).
//!
//! Invariant: a batch above the last one known durable counts only with the payloads that it has placed.

use crate::engine::{Engine, State, key};
use crate::log::places::PlaceReads;
use crate::log::scan::Found;
use crate::mount::Mount;
use types::IoBufMut;

/// Most reads in flight.
const READS_MAX: usize = 16;

/// Reads of the phase.
#[derive(Debug)]
pub(crate) struct Placing {
    found: Box<Found>,
    pub reads: PlaceReads,
    in_flight: usize,
}

impl Engine {
    /// Begins the phase, after the last segment was scanned.
    pub(crate) fn read_places(&mut self, found: Box<Found>) {
        let home = self.home.as_ref().expect("made with the superblock").region();
        let reads = PlaceReads::new(&found.items, home);
        self.state = State::Mounting(Box::new(Mount::Places(Placing { found, reads, in_flight: 0 })));
        self.read_more_places();
    }

    fn read_more_places(&mut self) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Places(placing) = &mut **mount else { unreachable!("the caller saw it") };
        let mut submits = Vec::new();
        while placing.in_flight < READS_MAX
            && let Some(read) = placing.reads.next()
        {
            placing.in_flight += 1;
            let (offset, len) = placing.reads.place(read);
            submits.push((read, offset, len));
        }
        let is_done = placing.in_flight == 0;
        for (read, offset, len) in submits {
            self.read_home(key::MOUNT_PLACE, read, offset, len);
        }
        if is_done {
            let State::Mounting(mount) = std::mem::replace(&mut self.state, State::New) else {
                unreachable!("see above")
            };
            let Mount::Places(placing) = *mount else { unreachable!("see above") };
            let placed = placing.reads.finish();
            self.log_found(placing.found.judge(placed));
        }
    }

    /// Takes the result of a read; `None`: the medium does not give the bytes back.
    pub(crate) fn place_read(&mut self, read: u32, buf: Option<IoBufMut>) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Places(placing) = &mut **mount else { panic!("a payload at home was read in {mount:?}") };
        placing.in_flight -= 1;
        placing.reads.take(read, buf);
        self.read_more_places();
    }
}
