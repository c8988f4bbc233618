//! The ledger of all counted seeds: `crates/sim/ledger.csv`, with one line for each stretch of seeds at one commit. A
//! run begins where the last line ends or at a later seed, at a commit and with a clean tree.
//!
//! Invariant: no seed is counted twice, and a line says exactly what ran: it never covers a gap.

use std::fmt::Write;

/// Columns, in order.
pub const HEAD: &str = "commit,first_seed,last_seed,seeds,simulated_hours,operations_checked,failed,failed_seeds";

/// One stretch of seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub commit: String,
    pub first: u64,
    pub last: u64,
    pub hours: f64,
    pub operations: u64,
    pub failed: Vec<u64>,
}

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LedgerError {
    #[error("line {line} is not made of the ledger's columns: `{text}`")]
    Malformed { line: usize, text: String },
    #[error("line {line} begins at seed {first}, and the one before ends at {last}")]
    Overlap { line: usize, first: u64, last: u64 },
}

/// All lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger(pub Vec<Line>);

impl Ledger {
    /// Parses the text of a ledger.
    ///
    /// # Errors
    /// The first line that is no line of a ledger, or counts a seed again.
    pub fn parse(text: &str) -> Result<Ledger, LedgerError> {
        let mut ledger = Ledger::default();
        for (n, text) in text.lines().enumerate().filter(|(_, l)| !l.is_empty() && *l != HEAD) {
            let line = n + 1;
            let parsed = parse_line(text).ok_or_else(|| LedgerError::Malformed { line, text: text.to_owned() })?;
            let last = ledger.next_seed(1) - 1;
            if parsed.first <= last {
                return Err(LedgerError::Overlap { line, first: parsed.first, last });
            }
            ledger.0.push(parsed);
        }
        Ok(ledger)
    }

    /// Returns the first seed of the next run, which begins at `start` or later.
    pub fn next_seed(&self, start: u64) -> u64 {
        self.0.last().map_or(1, |line| line.last + 1).max(start)
    }

    /// Adds a stretch. A stretch that begins at the end of the last line and at its commit makes that line longer.
    ///
    /// # Panics
    /// When it begins before the end of the last line.
    pub fn add(&mut self, line: Line) {
        assert!(line.first >= self.next_seed(1), "a ledger counts nothing twice");
        match self.0.last_mut().filter(|last| last.commit == line.commit && last.last + 1 == line.first) {
            Some(last) => {
                last.last = line.last;
                last.hours += line.hours;
                last.operations += line.operations;
                last.failed.extend(line.failed);
            }
            None => self.0.push(line),
        }
    }

    /// Returns the number of seeds over all lines.
    pub fn seeds(&self) -> u64 {
        self.0.iter().map(|l| l.last - l.first + 1).sum()
    }

    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for l in &self.0 {
            let failed: Vec<String> = l.failed.iter().map(u64::to_string).collect();
            let (seeds, count) = (l.last - l.first + 1, l.failed.len());
            let _ = writeln!(
                text,
                "{},{},{},{seeds},{:.3},{},{count},{}",
                l.commit,
                l.first,
                l.last,
                l.hours,
                l.operations,
                failed.join(" ")
            );
        }
        text
    }
}

fn parse_line(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split(',').collect();
    let [commit, first, last, seeds, hours, operations, count, failed] = words[..] else { return None };
    let failed: Vec<u64> = failed.split_whitespace().map(|w| w.parse().ok()).collect::<Option<_>>()?;
    let line = Line {
        commit: commit.to_owned(),
        first: first.parse().ok()?,
        last: last.parse().ok()?,
        hours: hours.parse().ok()?,
        operations: operations.parse().ok()?,
        failed,
    };
    let sound = line.first >= 1
        && line.last >= line.first
        && seeds.parse() == Ok(line.last - line.first + 1)
        && count.parse() == Ok(line.failed.len());
    sound.then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(commit: &str, first: u64, last: u64) -> Line {
        Line { commit: commit.to_owned(), first, last, hours: 1.5, operations: 10, failed: vec![last] }
    }

    #[test]
    fn a_ledger_reads_back_as_written_and_goes_on_where_it_ended() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.next_seed(1), 1);
        ledger.add(line("a", 1, 500));
        ledger.add(line("a", 501, 1000));
        ledger.add(line("b", 1001, 1001));
        assert_eq!((ledger.0.len(), ledger.next_seed(1), ledger.seeds()), (2, 1002, 1001));
        assert_eq!(ledger.0[0].failed, vec![500, 1000]);
        assert_eq!(Ledger::parse(&ledger.to_text()), Ok(ledger));
    }

    #[test]
    fn run_from_a_later_seed_begins_a_line_and_no_line_covers_the_gap() {
        let mut ledger = Ledger::default();
        ledger.add(line("a", 1, 500));
        assert_eq!((ledger.next_seed(300), ledger.next_seed(800_000)), (501, 800_000));
        ledger.add(line("a", 800_000, 800_199));
        ledger.add(line("a", 800_200, 800_399));
        let stretches: Vec<(u64, u64)> = ledger.0.iter().map(|l| (l.first, l.last)).collect();
        assert_eq!(stretches, [(1, 500), (800_000, 800_399)]);
        assert_eq!((ledger.seeds(), ledger.next_seed(1)), (900, 800_400));
        assert_eq!(Ledger::parse(&ledger.to_text()), Ok(ledger));
    }

    #[test]
    fn a_line_that_counts_seeds_twice_or_is_cut_off_is_refused() {
        let text = format!("{HEAD}\na,1,10,10,0.1,5,0,\nb,10,11,2,0.1,5,0,\n");
        assert_eq!(Ledger::parse(&text), Err(LedgerError::Overlap { line: 3, first: 10, last: 10 }));
        for bad in ["a,1,10,9,0.1,5,0,", "a,1,10,10,0.1,5,1,", "a,1,10", "a,0,0,1,0.1,5,0,", "a,1,10,10,0.1,5,1,x"] {
            assert!(matches!(Ledger::parse(bad), Err(LedgerError::Malformed { .. })), "{bad}");
        }
    }
}
