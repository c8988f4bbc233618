//! Outcome of a scenario, and the table of all outcomes.

use std::time::Duration;

/// Outcome of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: String,
    /// Description of the scenario, in one line.
    pub done: String,
    /// Faults that were found; empty when there was none.
    pub faults: Vec<String>,
    /// Missed aims: they are shown, but are no failure.
    pub missed: Vec<String>,
    /// Key figures.
    pub figures: Vec<String>,
    pub took: Duration,
}

impl Outcome {
    pub fn new(name: &str, done: impl Into<String>) -> Outcome {
        Outcome {
            name: name.to_owned(),
            done: done.into(),
            faults: Vec::new(),
            missed: Vec::new(),
            figures: Vec::new(),
            took: Duration::ZERO,
        }
    }

    pub fn figure(&mut self, text: impl Into<String>) {
        self.figures.push(text.into());
    }

    /// Notes a fault unless `holds`.
    pub fn need(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    /// Notes a missed aim unless `holds`.
    pub fn aim(&mut self, holds: bool, miss: impl FnOnce() -> String) {
        if !holds {
            self.missed.push(miss());
        }
    }

    /// Notes that a part was not run: that shows nothing, so no aim is met.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.missed.push(format!("SKIPPED: {}", why.into()));
    }

    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Prints the outcome of one scenario.
pub fn print(outcome: &Outcome) {
    let result = if outcome.passed() { "passed" } else { "FAILED" };
    println!("{:<18} {result} in {:.0} s: {}", outcome.name, outcome.took.as_secs_f64(), outcome.done);
    for line in &outcome.figures {
        println!("    {line}");
    }
    for line in &outcome.missed {
        println!("    aim missed: {line}");
    }
    for line in &outcome.faults {
        println!("    FAULT: {line}");
    }
}

/// Prints the closing table; returns whether all scenarios passed.
pub fn table(outcomes: &[Outcome]) -> bool {
    println!();
    println!("{:<18} {:<7} {:>7} {:>5} {:>7}  what was done", "scenario", "result", "seconds", "aims", "faults");
    for o in outcomes {
        println!(
            "{:<18} {:<7} {:>7.0} {:>5} {:>7}  {}",
            o.name,
            if o.passed() { "passed" } else { "FAILED" },
            o.took.as_secs_f64(),
            if o.missed.is_empty() { "met" } else { "miss" },
            o.faults.len(),
            o.done
        );
    }
    outcomes.iter().all(Outcome::passed)
}

/// Returns least, median and greatest of some times, in milliseconds.
pub fn spread(times: &[Duration]) -> String {
    let mut ms: Vec<u128> = times.iter().map(Duration::as_millis).collect();
    ms.sort_unstable();
    match (ms.first(), ms.get(ms.len() / 2), ms.last()) {
        (Some(least), Some(median), Some(most)) => format!("{least} / {median} / {most} ms"),
        _ => "none".to_owned(),
    }
}
