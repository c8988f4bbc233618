//! Summary of a storm: its faults and their effects.

use super::faults::Kind;
use super::points::Points;
use crate::report::spread;
use std::collections::BTreeMap;
use std::time::Duration;

/// Count and effect of one kind of fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub count: u64,
    /// The longest time without an answer on any volume that overlapped with such a fault.
    pub longest_gap: Duration,
}

/// Summary of a run.
#[derive(Debug, Default)]
pub struct Summary {
    pub rounds: u32,
    pub requests: u64,
    pub sector_operations: u64,
    pub unanswered_writes: u64,
    /// Number of pieces of streams that rules have struck, and of those that were damaged.
    pub pieces: (u64, u64),
    /// Times from the end of the faults until every client had its answers and every PG was whole.
    pub healed: Vec<Duration>,
    /// Times from the loss of a device until the record of its OSD was gone.
    pub replaced: Vec<Duration>,
    /// Kinds that this machine or build cannot do, and the reason.
    pub missing: Vec<(Kind, String)>,
    /// Number of bits flipped on a device while its OSD was down, and while it ran.
    pub stopped_flips: u64,
    pub live_flips: u64,
    /// Number of violations that the judge of histories found; `faults` contains them.
    pub violations: usize,
    pub notes: Vec<String>,
    pub faults: Vec<String>,
}

impl Summary {
    /// Prints the summary; returns whether there was no fault.
    pub fn print(&self, seed: u64, tally: &BTreeMap<Kind, Tally>, points: &Points) -> bool {
        println!("\n{:<46} {:>6}  longest gap on a volume meanwhile", "fault", "times");
        for kind in Kind::ALL {
            let missing = self.missing.iter().find(|(of, _)| of == kind);
            match (tally.get(kind), missing) {
                (Some(of), _) => {
                    println!("{:<46} {:>6}  {} ms", kind.words(), of.count, of.longest_gap.as_millis());
                }
                (None, Some((_, why))) => println!("{:<46} {:>6}  not available here: {why}", kind.words(), "-"),
                (None, None) => println!("{:<46} {:>6}", kind.words(), 0),
            }
        }
        println!("{:<46} {:>6}", "a bit flipped on a stopped OSD's device", self.stopped_flips);
        println!("{:<46} {:>6}", "a bit flipped on a running OSD's device", self.live_flips);
        let total = tally.values().map(|of| of.count).sum::<u64>() + self.stopped_flips + self.live_flips;
        println!("{:<46} {total:>6}  (faults overlap: a gap counts for each of them)", "together");
        points.print();
        println!("pieces of streams touched: {}, of which made wrong: {}", self.pieces.0, self.pieces.1);
        println!("healed after the storm, least/median/most: {}", spread(&self.healed));
        println!("from a lost device until its OSD was replaced: {}", spread(&self.replaced));
        self.notes.iter().for_each(|note| println!("{note}"));
        println!(
            "seed {seed}: {} rounds, {} requests, {} sector operations judged, {} writes without an answer",
            self.rounds, self.requests, self.sector_operations, self.unanswered_writes
        );
        self.faults.iter().for_each(|fault| println!("FAULT: {fault}"));
        if self.faults.is_empty() {
            println!("0 lost writes, 0 stale reads, all replicas equal after every round");
        } else {
            println!(
                "FAILED: {} writes lost, or reads stale or wrong; {} faults in all",
                self.violations,
                self.faults.len()
            );
        }
        self.faults.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_good_only_when_nothing_was_found() {
        let mut summary = Summary::default();
        assert!(summary.print(1, &BTreeMap::new(), &Points::default()));
        summary.faults.push("volume 1 sector 8: a read was stale".to_owned());
        assert!(!summary.print(1, &BTreeMap::new(), &Points::default()));
    }
}
