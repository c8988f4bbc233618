//! The work of the cluster's users: one small trait, and a kind for each way of using volumes.
//!
//! ```text
//! set-up: Kind::volumes → an administrator makes them
//! start:  Kind::client → one Workload for each client machine; a process opens its volumes and asks
//! check:  each answer at once, histories in Linear, and Workload::check when all is answered
//! ```
//!
//! A workload knows its requests and their answers; it never looks inside the system.

mod audit;
mod bank;
mod block;

pub use audit::Audit;
pub use block::{AU_SECTORS, AUS_MAX, Block, Pattern, Shape, next_frontier};

use crate::check::linear::Linear;
use device::{Answer, Request};
use std::ops::Range;
use types::rng::Rng;
use types::{Errno, VolumeId};

/// The volume that every kind has.
pub const VOLUME: &str = "main/v";

/// A way of using volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Requests of any size over a few windows, each laid over a border where splitting could go wrong.
    Random,
    Sequential,
    HotSpot,
    /// Trims and zeros among the writes.
    Zeros,
    /// A register per block.
    Registers,
    /// Up to 8 MiB a request, with overlaps.
    Large,
    /// Money that moves between accounts on two volumes.
    Bank,
    /// Like [`Kind::Random`], beside many small volumes that come and go with I/O of their own (`tenants`).
    Many,
    /// Segments that were never written, one after the other. A seed draws it only for its aim.
    Frontier,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Random,
        Kind::Sequential,
        Kind::HotSpot,
        Kind::Zeros,
        Kind::Registers,
        Kind::Large,
        Kind::Bank,
        Kind::Many,
        Kind::Frontier,
    ];
    /// Number of kinds from which [`Kind::draw`] chooses. [`Kind::Many`] was added later and has dice of its own
    /// ([`Kind::draw_many`]), so that every other seed kept its meaning.
    const DRAWN: usize = 7;

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Random => "random",
            Kind::Sequential => "sequential",
            Kind::HotSpot => "hotspot",
            Kind::Zeros => "zeros",
            Kind::Registers => "registers",
            Kind::Large => "large",
            Kind::Bank => "bank",
            Kind::Many => "many",
            Kind::Frontier => "frontier",
        }
    }

    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Draws a kind.
    pub fn draw(rng: &mut Rng) -> Kind {
        // Half of all runs do a little of everything.
        let kind = Kind::ALL[rng.below(Kind::DRAWN as u64) as usize];
        if rng.chance(1, 2) { Kind::Random } else { kind }
    }

    /// Adds tenants to some of the runs that do a little of everything.
    pub fn draw_many(self, rng: &mut Rng) -> Kind {
        if rng.chance(1, 6) && self == Kind::Random { Kind::Many } else { self }
    }

    /// Returns names and lengths of the volumes that must be there; the first is [`VOLUME`].
    pub fn volumes(self, shape: &Shape) -> Vec<(&'static str, u64)> {
        let mut all = vec![(VOLUME, shape.len_bytes)];
        if self == Kind::Bank {
            all.push((bank::SECOND, shape.len_bytes));
        }
        all
    }

    /// Returns the work of every client machine. The first `writers` may write; the others read, or have none.
    pub fn clients(
        self,
        volumes: &[VolumeId],
        (writers, machines): (usize, usize),
        shape: &Shape,
        rng: &mut Rng,
    ) -> Vec<Option<Box<dyn Workload>>> {
        let ledger = bank::Ledger::default();
        let pattern = match self {
            Kind::Random | Kind::Bank | Kind::Many => Pattern::Random,
            Kind::Sequential => Pattern::Sequential,
            Kind::HotSpot => Pattern::HotSpot,
            Kind::Zeros => Pattern::Zeros,
            Kind::Registers => Pattern::Registers,
            Kind::Large => Pattern::Large,
            Kind::Frontier => Pattern::Frontier,
        };
        let client = |number: usize| -> Option<Box<dyn Workload>> {
            let rng = rng.fork();
            if self == Kind::Bank {
                let moves = shape.operations / 6 + 1;
                return (number < writers).then(|| {
                    Box::new(bank::Bank::new(ledger.clone(), moves, shape.len_bytes, rng)) as Box<dyn Workload>
                });
            }
            let mut shape = shape.clone();
            pattern.shape(&mut shape);
            if number >= writers {
                (shape.read_pct, shape.trim_pct) = (100, 0);
            }
            Some(Box::new(Block::on(VOLUME, volumes[0].0, number as u64, shape, rng)))
        };
        (0..machines).map(client).collect()
    }
}

/// State of a client machine at one moment.
pub struct Turn<'a> {
    /// Global time.
    pub now: u64,
    /// Another opener has the volumes: writes that are submitted from now on must never take effect.
    pub fenced: bool,
    /// Another opener has asked for them, so this one may be fenced.
    pub stolen: bool,
    /// More disks have lied than the budget allows: requests may fail, and still never lie.
    pub lenient: bool,
    /// The administrator was asked to remove the volumes.
    pub removed: bool,
    pub linear: &'a mut Linear,
}

/// A request for the volume that was opened as number `slot`.
pub struct Ask {
    pub slot: usize,
    pub request: Request,
    /// Never used twice by one machine.
    pub token: u64,
}

/// Work of one client machine; it outlives the machine's processes.
pub trait Workload {
    /// Returns the volumes that a new process opens, in order of their slots.
    fn volumes(&self) -> Vec<String>;

    /// Returns the number of the history that requests on this volume belong to.
    fn history_of(&self, volume: VolumeId) -> u64 {
        volume.0
    }

    /// Notes that a process has the volume of this slot open.
    fn opened(&mut self, _slot: usize) {}

    /// Notes that the volume of this slot has another length.
    fn grown(&mut self, _slot: usize, _len_bytes: u64) {}

    /// Whether [`Workload::next`] would give something.
    fn wants_more(&self) -> bool;

    /// Returns the next request, while the depth allows one.
    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask>;

    /// Takes an answer.
    ///
    /// # Errors
    /// An answer that a user must never get.
    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String>;

    /// Forgets the requests in flight: their process died, and they will never be answered.
    fn forget_inflight(&mut self);

    /// Submits at most this many more requests.
    fn limit(&mut self, more: u64);

    /// Its volumes get other contents while they are in use: it goes on with writes, whose fate is known by their answers, and looks at nothing.
    fn be_surprised(&mut self) {}

    /// The volume gets shorter: requests behind this end may fail.
    fn be_cut(&mut self, _end: u64) {}

    /// Returns the ranges of sectors that it may write.
    fn areas(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Gives back the space that it has written, between its other requests.
    fn give_back(&mut self) {}

    /// Whether some of these trims are not submitted yet.
    fn is_giving_back(&self) -> bool {
        false
    }

    /// Submits nothing more but the reads of the last check.
    fn finish(&mut self);

    /// Whether it was told to finish.
    fn is_finishing(&self) -> bool;

    /// Whether everything was submitted and answered.
    fn is_done(&self) -> bool;

    /// Returns the number of unanswered requests.
    fn inflight(&self) -> usize;

    /// Returns how many requests it means to submit.
    fn operations(&self) -> u64;

    /// Returns the number of answered requests.
    fn answered(&self) -> u64;

    /// Returns when the oldest unanswered request was submitted; global time.
    fn oldest(&self) -> Option<u64>;

    /// Returns the same for the requests on places (volume, first sector, sectors) that `which` chooses.
    fn oldest_of(&self, _which: &dyn Fn(u64, u64, u64) -> bool) -> Option<u64> {
        None
    }

    /// Describes the requests in flight, for a failure's text.
    fn waiting(&self) -> String;

    /// Makes the last check, when everything was read back.
    ///
    /// # Errors
    /// A result that no correct store can have.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Returns the name of an errno in a failure's text.
pub fn name(errno: Errno) -> &'static str {
    match errno {
        Errno::Invalid => "invalid",
        Errno::Fenced => "fenced",
        Errno::NoSpace => "no space",
        Errno::Damaged => "damaged",
        Errno::ReadOnly => "read-only",
        Errno::Gone => "gone",
        Errno::TimedOut => "timed out",
        Errno::Shutdown => "shutdown",
        Errno::Rehearsed => "rehearsed",
    }
}
