//! Makes a failing run small: fewer faults (delta debugging, Zeller and Hildebrandt 2002), fewer requests, fewer
//! PGs and replicas, plainer clocks, network and tunables, all under the same seed.
//!
//! Invariant: the result was run, and failed in the same way as the first run.

use crate::overrides::{Numbers, Overrides};
use crate::run::Report;
use std::collections::BTreeSet;

/// The smallest failing run that was found.
pub struct Shrunk {
    pub overrides: Overrides,
    pub report: Report,
    /// Runs that it took.
    pub runs: u32,
}

/// Returns a failure's text without its numbers: two runs fail alike when this is equal.
pub fn kind_of(failure: &str) -> String {
    let head = failure.split(';').next().unwrap_or_default();
    let mut kind = String::new();
    for c in head.chars().take(160) {
        match (c.is_ascii_digit(), kind.ends_with('#')) {
            (true, true) => {}
            (true, false) => kind.push('#'),
            _ => kind.push(c),
        }
    }
    kind
}

/// Shrinks a run that failed with `first`, with at most `runs_max` runs.
///
/// # Panics
/// When `first` did not fail.
pub fn shrink(start: &Overrides, first: Report, runs_max: u32, run: impl FnMut(&Overrides) -> Report) -> Shrunk {
    let kind = kind_of(first.failure.as_deref().expect("only a failure is shrunk"));
    let shrunk = Shrunk { overrides: start.clone(), report: first, runs: 0 };
    let mut search = Search { run, kind, runs_max, best: shrunk };
    loop {
        let before = search.best.overrides.clone();
        search.faults();
        search.sizes();
        if search.best.overrides == before || search.is_over() {
            return search.best;
        }
    }
}

struct Search<F> {
    run: F,
    kind: String,
    runs_max: u32,
    best: Shrunk,
}

impl<F: FnMut(&Overrides) -> Report> Search<F> {
    fn is_over(&self) -> bool {
        self.best.runs >= self.runs_max
    }

    /// Runs with a change, and keeps it when the run still fails in the same way.
    fn try_with(&mut self, change: impl FnOnce(&mut Overrides)) -> bool {
        let mut overrides = self.best.overrides.clone();
        change(&mut overrides);
        if self.is_over() || overrides == self.best.overrides {
            return false;
        }
        self.best.runs += 1;
        let report = (self.run)(&overrides);
        let fails = report.failure.as_deref().is_some_and(|what| kind_of(what) == self.kind);
        if fails {
            (self.best.overrides, self.best.report) = (overrides, report);
        }
        fails
    }

    /// Keeps only the faults that the failure needs.
    fn faults(&mut self) {
        let mut kept: Vec<u64> = self.best.report.schedule.iter().map(|s| s.number).collect();
        let only = |numbers: &[u64]| Some(Numbers(numbers.iter().copied().collect::<BTreeSet<u64>>()));
        if !self.try_with(|o| o.only_faults = only(&kept)) && self.best.overrides.only_faults != only(&kept) {
            return;
        }
        let mut parts = 1;
        while !kept.is_empty() && !self.is_over() {
            let size = kept.len().div_ceil(parts);
            let without = |n: usize| -> Vec<u64> {
                let inside = n * size..(n + 1) * size;
                kept.iter().enumerate().filter(|(i, _)| !inside.contains(i)).map(|(_, f)| *f).collect()
            };
            let candidates: Vec<Vec<u64>> = (0..kept.len().div_ceil(size)).map(without).collect();
            match candidates.into_iter().find(|rest| self.try_with(|o| o.only_faults = only(rest))) {
                Some(rest) => {
                    kept = rest;
                    parts = (parts - 1).max(1);
                }
                None if size == 1 => return,
                None => parts = (parts * 2).min(kept.len()),
            }
        }
    }

    /// Makes everything smaller that has a size.
    fn sizes(&mut self) {
        self.try_with(|o| o.never_away = true);
        self.try_with(|o| o.pgs = Some(1));
        self.try_with(|o| o.replicas = Some(3));
        self.try_with(|o| o.no_drift = true);
        self.try_with(|o| o.plain_net = true);
        self.try_with(|o| o.default_tunables = true);
        let mut operations = self.best.overrides.operations.unwrap_or(self.best.report.asked_per_client);
        while operations > 1 && self.try_with(|o| o.operations = Some(operations / 2)) {
            operations /= 2;
        }
        let mut depth = self.best.overrides.depth.unwrap_or(self.best.report.depth);
        while depth > 1 && self.try_with(|o| o.depth = Some(depth / 2)) {
            depth /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Class, Struck};
    use types::Time;

    /// A made-up system: fails iff faults 3 and 8 strike and at least 5 requests are asked.
    fn made_up(overrides: &Overrides) -> Report {
        let strikes = |n| overrides.strikes(n, Class::Crash);
        let operations = overrides.operations.unwrap_or(100);
        let failure = (strikes(3) && strikes(8) && operations >= 5)
            .then(|| format!("sector {operations} was lost; and {operations} more"));
        let struck = (1..=10).filter(|n| strikes(*n));
        let schedule = struck.map(|number| Struck { number, at: Time::ZERO, class: Class::Crash }).collect();
        Report { failure, schedule, asked_per_client: 100, depth: 16, ..Report::default() }
    }

    #[test]
    fn what_is_left_is_what_the_failure_needs() {
        let start = Overrides::default();
        let shrunk = shrink(&start, made_up(&start), 200, made_up);
        let o = &shrunk.overrides;
        assert_eq!(o.only_faults, Some("3,8".parse().expect("numbers")), "after {} runs", shrunk.runs);
        assert_eq!((o.operations, o.depth, o.pgs), (Some(6), Some(1), Some(1)));
        assert!(shrunk.report.failure.is_some());
    }

    #[test]
    fn another_failure_is_not_taken_for_the_same() {
        let run = |o: &Overrides| match o.only_faults.as_ref().is_some_and(|f| f.0.is_empty()) {
            true => Report { failure: Some("not within 30 s: all PGs are active".to_owned()), ..Report::default() },
            false => made_up(o),
        };
        let shrunk = shrink(&Overrides::default(), made_up(&Overrides::default()), 200, run);
        assert_eq!(shrunk.overrides.only_faults, Some("3,8".parse().expect("numbers")));
    }

    #[test]
    fn it_ends_after_its_runs() {
        let mut runs = 0;
        let shrunk = shrink(&Overrides::default(), made_up(&Overrides::default()), 7, |o| {
            runs += 1;
            made_up(o)
        });
        assert_eq!((shrunk.runs, runs), (7, 7));
    }

    #[test]
    fn failures_are_alike_whatever_their_numbers() {
        assert_eq!(kind_of("volume 3 sector 17: lost; x"), kind_of("volume 12 sector 9: lost; y 4"));
        assert_ne!(kind_of("pg 1.0: lost"), kind_of("pg 1.0: differs"));
    }
}
