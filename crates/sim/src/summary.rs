//! Sums over many runs, and their text: seeds, simulated time, faults by class, checks, and the states of PGs when each
//! class struck.

use crate::faults::Class;
use crate::run::Report;
use crate::states::PgState;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// A failed run.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    pub report: Report,
}

/// Sums over seeds.
#[derive(Default)]
pub struct Sum {
    pub seeds: u64,
    pub last_seed: u64,
    pub simulated: Duration,
    pub took: Duration,
    totals: BTreeMap<&'static str, u64>,
    classes: BTreeMap<Class, u64>,
    states: BTreeMap<(Class, PgState), u64>,
    /// The longest time for which each condition was waited for.
    waits: BTreeMap<&'static str, Duration>,
    /// Highest fill of each queue, in thousandths of its limit.
    fullest: BTreeMap<&'static str, u64>,
    pub failures: Vec<Failure>,
}

impl Sum {
    pub fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.last_seed = self.last_seed.max(seed);
        self.simulated += report.simulated;
        for (what, n) in counts(&report) {
            *self.totals.entry(what).or_default() += n;
        }
        for struck in &report.schedule {
            *self.classes.entry(struck.class).or_default() += 1;
        }
        for (key, n) in &report.states {
            *self.states.entry(*key).or_default() += n;
        }
        for (what, took) in &report.waits {
            self.waited(what, *took);
        }
        for (what, most) in &report.fullest {
            self.filled(what, *most);
        }
        if let Some(what) = report.failure.clone() {
            println!("seed {seed} FAILED: {what}\n  replay: cargo xtask sim --seed {seed} --trace");
            if !report.tunables.is_empty() {
                println!("  tunables: {}", report.tunables.join(", "));
            }
            self.failures.push(Failure { seed, what, report });
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: Sum) {
        self.seeds += other.seeds;
        self.last_seed = self.last_seed.max(other.last_seed);
        self.simulated += other.simulated;
        for (what, n) in other.totals {
            *self.totals.entry(what).or_default() += n;
        }
        for (class, n) in other.classes {
            *self.classes.entry(class).or_default() += n;
        }
        for (key, n) in other.states {
            *self.states.entry(key).or_default() += n;
        }
        for (what, took) in other.waits {
            self.waited(what, took);
        }
        for (what, most) in other.fullest {
            self.filled(what, most);
        }
        self.failures.extend(other.failures);
    }

    fn waited(&mut self, what: &'static str, took: Duration) {
        let longest = self.waits.entry(what).or_default();
        *longest = (*longest).max(took);
    }

    fn filled(&mut self, what: &'static str, most: u64) {
        let fullest = self.fullest.entry(what).or_default();
        *fullest = (*fullest).max(most);
    }

    /// Returns the number of sector operations whose histories were checked.
    pub fn operations(&self) -> u64 {
        self.totals.get("sector operations checked").copied().unwrap_or(0)
    }

    /// Returns the table.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let rate = self.seeds as f64 / self.took.as_secs_f64().max(1e-9);
        let _ = writeln!(text, "{:>14}  seeds, {rate:.2} a second, {} failed", self.seeds, self.failures.len());
        let _ = writeln!(text, "{:>14.3}  simulated hours", self.simulated.as_secs_f64() / 3600.0);
        for (what, n) in self.totals.iter().filter(|(_, n)| **n > 0) {
            let _ = writeln!(text, "{n:>14}  {what}");
        }
        for (what, took) in &self.waits {
            let _ = writeln!(text, "{:>14.3}  simulated seconds at most until {what}", took.as_secs_f64());
        }
        for (what, most) in &self.fullest {
            let _ = writeln!(text, "{:>12.1} %  of their limit at most: {what}", *most as f64 / 10.0);
        }
        self.matrix(&mut text);
        text
    }

    /// Writes the faults by class, with the states of all PGs at that moment.
    fn matrix(&self, text: &mut String) {
        let _ = write!(text, "{:<20}{:>9}", "fault", "struck");
        for state in PgState::ALL {
            let _ = write!(text, "{:>12}", format!("{state:?}").to_lowercase());
        }
        text.push('\n');
        for class in Class::every() {
            let struck = self.classes.get(&class).copied().unwrap_or(0);
            let _ = write!(text, "{:<20}{struck:>9}", format!("{class:?}"));
            for state in PgState::ALL {
                let _ = write!(text, "{:>12}", self.states.get(&(class, state)).copied().unwrap_or(0));
            }
            text.push('\n');
        }
    }
}

fn counts(report: &Report) -> Vec<(&'static str, u64)> {
    let struck = report.struck;
    let mut all = vec![
        ("requests answered", report.requests),
        ("sector operations checked", report.sectors),
        ("replica bytes compared", report.compared),
        ("followers streamed to", report.streams),
        ("turns", report.turns),
        ("sectors durable at reply", report.majorities),
        ("raft logs looked at", report.looks),
        ("claims compared with logs", report.claims),
        ("elections of metadata servers", report.elections.0),
        ("commits checked against their election", report.elections.1),
        ("volumes come and gone", report.tenancies),
        ("snapshots made", report.snapshots.0),
        ("clones made", report.families.clones),
        ("clones flattened", report.families.flattens),
        ("volumes shortened", report.families.shrinks),
        ("volumes rolled back", report.families.rollbacks),
        ("writers of shared volumes", report.sharing.writers),
        ("of them fenced or closed", report.sharing.fenced),
        ("runs with drawn tunables", (!report.tunables.is_empty()).into()),
        ("runs with striped volumes", report.striped.into()),
    ];
    all.extend(struck.named());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Struck;
    use types::Time;

    #[test]
    fn a_fault_is_counted_under_its_class_and_the_states_that_it_met() {
        let mut sum = Sum::default();
        let schedule = vec![Struck { number: 1, at: Time::ZERO, class: Class::Crash }];
        let states = BTreeMap::from([((Class::Crash, PgState::Leaderless), 2)]);
        sum.add(7, Report { schedule, states, ..Report::default() });
        let text = sum.to_text();
        let line = text.lines().find(|l| l.starts_with("Crash")).expect("a line for each class");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["Crash", "1", "0", "0", "0", "0", "0", "2", "0"]);
        assert_eq!(sum.last_seed, 7);
    }
}
