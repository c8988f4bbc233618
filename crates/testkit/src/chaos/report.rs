//! What a storm was, and what came of it.

use super::faults::Kind;
use crate::report::spread;
use std::collections::BTreeMap;
use std::time::Duration;

/// What happened of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub count: u64,
    /// The longest time without an answer on any volume that overlapped with one of them.
    pub longest_gap: Duration,
}

/// Everything about a run.
#[derive(Debug, Default)]
pub struct Summary {
    pub rounds: u32,
    pub requests: u64,
    pub sector_operations: u64,
    pub unanswered_writes: u64,
    /// Pieces of streams that something was done to, and those that were made wrong.
    pub pieces: (u64, u64),
    /// From the end of the faults until every client had its answers and every PG was whole.
    pub healed: Vec<Duration>,
    pub notes: Vec<String>,
    pub faults: Vec<String>,
}

impl Summary {
    /// Prints it; gives whether nothing was found.
    pub fn print(&self, seed: u64, tally: &BTreeMap<Kind, Tally>) -> bool {
        println!("\n{:<46} {:>6}  longest gap on a volume meanwhile", "fault", "times");
        for (kind, of) in tally {
            println!("{:<46} {:>6}  {} ms", kind.words(), of.count, of.longest_gap.as_millis());
        }
        let total: u64 = tally.values().map(|of| of.count).sum();
        println!("{:<46} {total:>6}  (faults overlap: a gap counts for each of them)", "together");
        println!("pieces of streams touched: {}, of which made wrong: {}", self.pieces.0, self.pieces.1);
        println!("healed after the storm, least/median/most: {}", spread(&self.healed));
        self.notes.iter().for_each(|note| println!("{note}"));
        println!(
            "seed {seed}: {} rounds, {} requests, {} sector operations judged, {} writes without an answer",
            self.rounds, self.requests, self.sector_operations, self.unanswered_writes
        );
        self.faults.iter().for_each(|fault| println!("FAULT: {fault}"));
        if self.faults.is_empty() {
            println!("0 lost writes, 0 stale reads, all replicas equal after every round");
        }
        self.faults.is_empty()
    }
}
