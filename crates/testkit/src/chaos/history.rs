//! The requests and answers of one volume's clients, and the check whether a store could have answered so.
//!
//! A thread reads each client's lines. At the end of a round everything is judged at once, sector by sector, by the
//! simulator's checker of linearizability. The fence is checked as well (R6): once a client's open has returned, no
//! write that an earlier client submits afterwards may be acknowledged, and no unanswered one may still take effect. A
//! client is earlier if its open had returned before the other open was submitted. If two opens overlap, either may be
//! the later one.
//!
//! Invariant: intervals are never narrower than what happened, so a verdict against the store is a fact.

use anyhow::{Context, Result, bail};
use sim::check::linear::Linear;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Number of violations that are listed.
const LISTED_MAX: usize = 5;

#[derive(Clone, Copy, Debug)]
struct Write {
    sector: u64,
    count: u64,
    zeros: bool,
    start: u64,
    end: Option<u64>,
}

#[derive(Clone, Debug)]
struct ReadOp {
    sector: u64,
    start: u64,
    end: u64,
    /// (stamp or 0 for zeros, sectors).
    runs: Vec<(u64, u64)>,
}

/// One life of a client.
#[derive(Default, Debug)]
struct Life {
    /// Time at which its open was submitted; 0 when the client did not get so far.
    asked: u64,
    /// Time at which its open had returned.
    opened: Option<u64>,
    writes: BTreeMap<u64, Write>,
    reads: Vec<ReadOp>,
    /// Times of all answers.
    answers: Vec<u64>,
    errors: Vec<String>,
    wrong: Vec<String>,
    failed: bool,
    /// Whether its open was refused because a metadata server that had just started did not know enough yet.
    early: bool,
    ended: bool,
}

/// All lives of the clients of one volume; cheap to clone.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Vec<Life>>>);

/// Judgement of a history.
#[derive(Debug, Default)]
pub struct Verdict {
    pub requests: u64,
    pub sector_operations: u64,
    pub unanswered_writes: u64,
    pub violations: Vec<String>,
}

impl History {
    fn lives(&self) -> MutexGuard<'_, Vec<Life>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the lines of the next life until its pipe ends. Returns the number of the life, from 0.
    pub fn listen(&self, pipe: impl Read + Send + 'static) -> (usize, JoinHandle<Result<()>>) {
        let number = {
            let mut lives = self.lives();
            lives.push(Life::default());
            lives.len() - 1
        };
        let history = self.clone();
        let thread = std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = String::new();
            loop {
                line.clear();
                if pipe.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                // A cut last line says nothing: its request has not been submitted.
                let Some(whole) = line.strip_suffix('\n') else { return Ok(()) };
                history.lives()[number].hear(whole).with_context(|| format!("a client said {whole:?}"))?;
            }
        });
        (number, thread)
    }

    /// Whether this life has opened its volume.
    pub fn is_open(&self, life: usize) -> bool {
        self.lives()[life].opened.is_some()
    }

    /// Whether another client's open may have fenced this life.
    pub fn may_be_fenced(&self, life: usize) -> bool {
        first_rival(&self.lives(), life).is_some()
    }

    /// Whether this life found that its volume had failed, because it was fenced.
    pub fn has_failed(&self, life: usize) -> bool {
        self.lives()[life].failed
    }

    /// Whether the open of this life was refused by a metadata server that had just started.
    pub fn was_early(&self, life: usize) -> bool {
        self.lives()[life].early
    }

    /// Whether this life has read everything at its end.
    pub fn has_ended(&self, life: usize) -> bool {
        self.lives()[life].ended
    }

    /// Returns the longest time without any answer that overlaps `from..to`, in nanoseconds.
    pub fn longest_gap(&self, from: u64, to: u64) -> u64 {
        let lives = self.lives();
        let mut answers: Vec<u64> =
            lives.iter().flat_map(|life| life.opened.into_iter().chain(life.answers.iter().copied())).collect();
        answers.sort_unstable();
        let pairs = answers.windows(2).filter(|pair| pair[0] <= to && pair[1] >= from);
        pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// Judges everything.
    pub fn judge(&self) -> Verdict {
        let mut lives = self.lives();
        lives.sort_by_key(|life| life.asked);
        let mut verdict = Verdict::default();
        let mut linear = Linear::default();
        for (n, life) in lives.iter().enumerate() {
            // A life that never opened has submitted nothing else.
            let Some(opened) = life.opened else { continue };
            if lives[..n].iter().all(|earlier| earlier.opened.is_none_or(|at| at < life.asked)) {
                linear.abandon_older(1, opened);
            }
            let fenced = lives.iter().filter(|later| later.asked > opened).filter_map(|later| later.opened).min();
            enter(&mut linear, life, fenced, first_rival(&lives, n), &mut verdict);
        }
        verdict.sector_operations = linear.operations();
        let all = linear.violations();
        verdict.violations.extend(all.iter().take(LISTED_MAX).map(ToString::to_string));
        if all.len() > LISTED_MAX {
            verdict.violations.push(format!("and {} sectors more", all.len() - LISTED_MAX));
        }
        verdict
    }
}

/// Returns the submission time of the first open that may have come behind the open of life `n`.
fn first_rival(lives: &[Life], n: usize) -> Option<u64> {
    let before = |other: &Life| other.opened.is_some_and(|at| at < lives[n].asked);
    let rivals = lives.iter().enumerate().filter(|(m, other)| *m != n && other.asked > 0 && !before(other));
    rivals.map(|(_, other)| other.asked).min()
}

/// Enters one life, which was surely fenced at `fenced`, and perhaps from `perhaps` on.
fn enter(linear: &mut Linear, life: &Life, fenced: Option<u64>, perhaps: Option<u64>, verdict: &mut Verdict) {
    verdict.violations.extend(life.wrong.iter().take(LISTED_MAX).cloned());
    // Only a fenced client may get an error.
    if perhaps.is_none() {
        verdict.violations.extend(life.errors.iter().take(LISTED_MAX).cloned());
    }
    let mut landed = 0;
    for (stamp, write) in &life.writes {
        verdict.requests += 1;
        verdict.unanswered_writes += u64::from(write.end.is_none());
        let late = fenced.is_some_and(|at| write.start > at);
        landed += u32::from(late && write.end.is_some());
        if late && write.end.is_some() && landed <= LISTED_MAX as u32 {
            verdict
                .violations
                .push(format!("write {stamp} was asked after the next open had returned, and acknowledged"));
        }
        let sectors = write.sector..write.sector + write.count;
        linear.write_started(1, sectors.clone(), *stamp, write.zeros, write.start);
        match write.end {
            Some(end) => linear.write_ended(1, sectors, *stamp, end),
            None if late => linear.forbid(1, *stamp),
            None => {}
        }
    }
    for read in &life.reads {
        verdict.requests += 1;
        let mut sector = read.sector;
        for (stamp, count) in &read.runs {
            let saw = vec![(*stamp != 0).then_some(*stamp); *count as usize];
            linear.read(1, sector, &saw, read.start, read.end);
            sector += count;
        }
    }
}

impl Life {
    fn hear(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |n: usize| words.get(n).and_then(|w| w.parse::<u64>().ok()).with_context(|| format!("word {n}"));
        match words[0] {
            "asked" => self.asked = number(1)?,
            "opened" => self.opened = Some(number(1)?),
            "w" | "z" => {
                let zeros = words[0] == "z";
                let write = Write { sector: number(2)?, count: number(3)?, zeros, start: number(4)?, end: None };
                if self.writes.insert(number(1)?, write).is_some() {
                    bail!("a stamp was used twice");
                }
            }
            "f" | "drained" => {}
            "a" => {
                self.answers.push(number(2)?);
                // Flushes are answered, too.
                if let Some(write) = self.writes.get_mut(&number(1)?) {
                    write.end = Some(number(2)?);
                }
            }
            "r" => {
                self.answers.push(number(3)?);
                let runs = words[4..].iter().map(|run| {
                    let (stamp, count) = run.split_once('x').context("STAMPxCOUNT")?;
                    Ok((stamp.parse()?, count.parse()?))
                });
                let runs = runs.collect::<Result<_>>()?;
                self.reads.push(ReadOp { sector: number(1)?, start: number(2)?, end: number(3)?, runs });
            }
            "bad" => self.wrong.push(line.to_owned()),
            "e" => self.errors.push(format!("a request failed: {line}")),
            "failed" => self.failed = true,
            "early" => self.early = true,
            "ended" => self.ended = true,
            _ => bail!("an unknown word"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lives: &[&'static str]) -> Verdict {
        let history = History::default();
        for text in lives {
            history.listen(text.as_bytes()).1.join().unwrap().unwrap();
        }
        history.judge()
    }

    #[test]
    fn a_history_that_a_disk_can_have_passes() {
        let one = "asked 1\nopened 1\nw 11 8 2 10\na 11 20\nr 8 30 40 11x2\nz 12 9 1 50\na 12 60\nr 8 70 80 11x1 0x1\nf 13 0 0 81\na 13 82\n";
        let verdict = judged(&[one]);
        assert_eq!((verdict.violations.len(), verdict.requests, verdict.sector_operations), (0, 4, 7));
    }

    #[test]
    fn lost_and_stale_and_torn_sectors_are_violations() {
        assert_eq!(judged(&["asked 1\nopened 1\nw 11 8 1 10\na 11 20\nr 8 30 40 0x1\n"]).violations.len(), 1);
        let stale = "asked 1\nopened 1\nw 11 8 1 10\na 11 20\nw 12 8 1 30\na 12 40\nr 8 50 60 11x1\n";
        assert_eq!(judged(&[stale]).violations.len(), 1);
        assert_eq!(judged(&["asked 1\nopened 1\nbad sector 8 holds bytes\n"]).violations.len(), 1);
    }

    #[test]
    fn unanswered_write_may_be_there_and_must_not_appear_after_the_next_open() {
        let first = "asked 1\nopened 1\nw 9 8 1 2\na 9 5\nw 11 8 1 10\n";
        assert!(judged(&[first, "asked 90\nopened 100\nr 8 110 120 11x1\n"]).violations.is_empty());
        assert!(judged(&[first, "asked 90\nopened 100\nr 8 110 120 9x1\n"]).violations.is_empty());
        let appears = "asked 90\nopened 100\nr 8 110 120 9x1\nr 8 130 140 11x1\n";
        assert_eq!(judged(&[first, appears]).violations.len(), 1);
    }

    #[test]
    fn an_open_that_an_unanswered_one_overlaps_may_be_refused() {
        let refused = |first: &'static str| {
            let history = History::default();
            for text in [first, "asked 90\nfailed\n"] {
                history.listen(text.as_bytes()).1.join().unwrap().unwrap();
            }
            assert!(history.has_failed(1) && !history.is_open(1) && history.judge().violations.is_empty());
            history.may_be_fenced(1)
        };
        assert!(refused("asked 1\n") && refused("asked 1\nopened 100\n"));
        assert!(!refused("asked 1\nopened 80\n"));
    }

    #[test]
    fn a_fenced_client_may_be_refused_and_must_not_be_acknowledged() {
        let old = "asked 1\nopened 1\nw 11 8 1 110\ne 11 120 EIO\nfailed\n";
        let new = "asked 90\nopened 100\nr 8 130 140 0x1\n";
        assert!(judged(&[old, new]).violations.is_empty());
        assert_eq!(judged(&["asked 1\nopened 1\nw 11 8 1 110\na 11 120\n", new]).violations.len(), 2);
        assert_eq!(judged(&["asked 1\nopened 1\nw 11 8 1 110\ne 11 120 EIO\n"]).violations.len(), 1);
    }

    #[test]
    fn zeros_that_a_preempted_client_reads_are_judged_like_all_else() {
        let taker = "asked 90\nopened 100\nw 21 8 1 105\na 21 110\n";
        assert!(judged(&["asked 1\nopened 1\nr 8 104 140 0x1\n", taker]).violations.is_empty());
        assert_eq!(judged(&["asked 1\nopened 1\nr 8 130 140 0x1\n", taker]).violations.len(), 1);
    }

    #[test]
    fn of_two_opens_at_the_same_time_either_may_win() {
        let stopped = "asked 50\nopened 200\nw 11 8 1 210\na 11 220\n";
        let taker = "asked 60\nopened 100\ne 12 300 EIO\nfailed\n";
        assert!(judged(&[stopped, taker]).violations.is_empty());
        assert_eq!(
            judged(&["asked 50\nopened 55\nw 11 8 1 210\na 11 220\n", "asked 60\nopened 100\n"]).violations.len(),
            1
        );
    }

    #[test]
    fn gap_lies_between_two_answers_and_a_cut_last_line_is_ignored() {
        let history = History::default();
        let (life, thread) = history.listen("asked 1\nopened 1\na 1 10\na 2 500\na 3 510\nw 4 8 1 6".as_bytes());
        thread.join().unwrap().unwrap();
        assert_eq!((history.longest_gap(20, 30), history.longest_gap(505, 506)), (490, 10));
        assert!(history.is_open(life) && !history.has_failed(life) && !history.has_ended(life));
    }
}
