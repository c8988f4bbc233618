//! What the users of the cluster do: one small trait, and a kind for each way of using volumes.
//!
//! ```text
//! set-up: Kind::volumes → an administrator makes them
//! start:  Kind::client → one Workload for each client machine; a process opens its volumes and asks
//! check:  each answer at once, histories in Linear, and Workload::check when all is answered
//! ```
//!
//! A workload knows what it asked and what it was told; it never looks inside the system.

mod bank;
mod block;

pub use block::{Block, Pattern, Shape, next_frontier};

use crate::check::linear::Linear;
use device::{Answer, Request};
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
    /// As [`Kind::Random`], beside many small volumes that come and go with I/O of their own (`tenants`).
    Many,
    /// Segments that were never written, one after the other. No seed draws it but for its aim.
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
    /// What [`Kind::draw`] chooses from. [`Kind::Many`] came later and has dice of its own ([`Kind::draw_many`]), so that
    /// every other seed kept its meaning.
    const DRAWN: usize = 7;

    /// Its name on a command line.
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

    /// One by seed.
    pub fn draw(rng: &mut Rng) -> Kind {
        // Half of all runs do a little of everything.
        let kind = Kind::ALL[rng.below(Kind::DRAWN as u64) as usize];
        if rng.chance(1, 2) { Kind::Random } else { kind }
    }

    /// Some of the runs that do a little of everything have tenants besides.
    pub fn draw_many(self, rng: &mut Rng) -> Kind {
        if rng.chance(1, 6) && self == Kind::Random { Kind::Many } else { self }
    }

    /// Names and lengths of the volumes that must be there; the first is [`VOLUME`].
    pub fn volumes(self, shape: &Shape) -> Vec<(&'static str, u64)> {
        let mut all = vec![(VOLUME, shape.len_bytes)];
        if self == Kind::Bank {
            all.push((bank::SECOND, shape.len_bytes));
        }
        all
    }

    /// The work of every client machine, of which the first `writers` may write; the others read, or have none.
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

/// One moment of a client machine.
pub struct Turn<'a> {
    /// Global time.
    pub now: u64,
    /// Another opener has the volumes: what is asked from now on must never take effect.
    pub fenced: bool,
    /// Another opener has asked for them, so this one may be fenced.
    pub stolen: bool,
    /// More disks have lied than the budget allows: requests may fail, and still never lie.
    pub lenient: bool,
    /// The administrator was asked to remove them.
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

/// The work of one client machine; it outlives the machine's processes.
pub trait Workload {
    /// Volumes that a new process opens, in order of their slots.
    fn volumes(&self) -> Vec<String>;

    /// A process has the volume of this slot open.
    fn opened(&mut self, _slot: usize) {}

    /// Whether [`Workload::next`] would give something.
    fn wants_more(&self) -> bool;

    /// The next request, while the depth allows one.
    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask>;

    /// An answer came.
    ///
    /// # Errors
    /// What a user must never be told.
    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String>;

    /// The process died: nothing in flight will ever be answered.
    fn forget_inflight(&mut self);

    /// Asks for at most this many more.
    fn limit(&mut self, more: u64);

    /// Gives back what it has written, between its other requests.
    fn give_back(&mut self) {}

    /// Whether some of that is not asked for yet.
    fn is_giving_back(&self) -> bool {
        false
    }

    /// Asks for nothing more but what the last check needs to read.
    fn finish(&mut self);

    /// Whether it was told to finish.
    fn is_finishing(&self) -> bool;

    /// Whether everything was asked and answered.
    fn is_done(&self) -> bool;

    /// Requests without an answer.
    fn inflight(&self) -> usize;

    /// Requests that it means to ask.
    fn operations(&self) -> u64;

    /// Requests that were answered.
    fn answered(&self) -> u64;

    /// When the oldest request without an answer was asked; global time.
    fn oldest(&self) -> Option<u64>;

    /// What is in flight, for a failure's text.
    fn waiting(&self) -> String;

    /// The last word, when everything was read back.
    ///
    /// # Errors
    /// What cannot be.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// What an errno is called in a failure's text.
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
    }
}
