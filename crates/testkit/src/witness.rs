//! The writes of a loader that were begun, acknowledged or seen, kept by a process that outlives it.
//!
//! The loader reports a write *before* it is submitted, and its acknowledgement when that came. A pipe keeps the bytes
//! of a writer that is killed. So the witness knows at least every acknowledged write, and every write that may be
//! there without an acknowledgement. A value that a read has returned counts as acknowledged from then on: it must not
//! vanish again.
//!
//! Invariant: per block `acked ≤ latest`.

use crate::clock;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: u64 = types::BLOCK;
/// Gaps between completions below this are not kept.
const GAP_KEPT_MIN: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Default, Debug)]
struct Block {
    acked: u64,
    latest: u64,
}

/// The writes of all blocks of a volume at one moment.
#[derive(Clone, Debug)]
pub struct Moment(Vec<Vec<Block>>);

/// A time without any completion, or of one request.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub from: Instant,
    pub len: Duration,
}

/// State of the witness; behind a lock because a thread reads the pipe.
#[derive(Default, Debug)]
pub struct Known {
    areas: Vec<Vec<Block>>,
    pub acked: u64,
    pub begun: u64,
    /// Blocks whose content was checked by loaders.
    pub checked: u64,
    pub violations: Vec<String>,
    pub errors: Vec<String>,
    pub gaps: Vec<Gap>,
    /// Times of slow requests, from their submission to their answer.
    pub slow: Vec<Gap>,
    /// Times at which the volume was open, the first read was answered, everything was checked, and the load was over.
    pub opened: Option<Instant>,
    pub first_read: Option<Instant>,
    pub verified: Option<Instant>,
    pub ended: Option<Instant>,
    last: Option<Instant>,
}

/// The witness of one volume over all lives of its loader.
#[derive(Clone, Debug)]
pub struct Witness {
    known: Arc<Mutex<Known>>,
    volume: u64,
    run: u64,
}

impl Witness {
    /// Creates a witness of `areas` areas of `span_bytes`, in which nothing was written yet.
    pub fn new(run: u64, areas: usize, span_bytes: u64) -> Witness {
        let blocks = vec![Block::default(); (span_bytes / BLOCK) as usize];
        let known = Known { areas: vec![blocks; areas], ..Known::default() };
        Witness { known: Arc::new(Mutex::new(known)), volume: 1, run }
    }

    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the writes of each block so far.
    pub fn moment(&self) -> Moment {
        Moment(self.known().areas.clone())
    }

    /// Returns the witness of a snapshot: it has what was acknowledged when it was asked for, and nothing that was begun after its end.
    pub fn of_snapshot(&self, asked: &Moment, ended: &Moment) -> Witness {
        let block = |(asked, ended): (&Block, &Block)| Block { acked: asked.acked, latest: ended.latest };
        let area = |(asked, ended): (&Vec<Block>, &Vec<Block>)| asked.iter().zip(ended).map(block).collect();
        let areas = asked.0.iter().zip(&ended.0).map(area).collect();
        let known = Known { areas, ..Known::default() };
        Witness { known: Arc::new(Mutex::new(known)), volume: self.volume, run: self.run }
    }

    /// Writes the file for the next loader: one `bench` ledger for each area.
    pub fn store(&self, path: &Path) -> Result<()> {
        let known = self.known();
        let block = |b: &Block| json!({ "acked": b.acked, "latest": b.latest });
        let ledger = |area: &Vec<Block>| {
            let blocks: Vec<Value> = area.iter().map(block).collect();
            json!({ "volume": self.volume, "run": self.run, "blocks": blocks })
        };
        let ledgers: Vec<Value> = known.areas.iter().map(ledger).collect();
        std::fs::write(path, serde_json::to_vec(&ledgers)?).with_context(|| path.display().to_string())
    }

    /// Reads the lines of a loader until its pipe ends: then it is dead, and all its lines have been read.
    pub fn listen(&self, pipe: impl Read + Send + 'static) -> JoinHandle<Result<()>> {
        {
            let mut known = self.known();
            (known.opened, known.first_read, known.verified, known.ended) = (None, None, None, None);
            known.last = None;
        }
        let witness = self.clone();
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = String::new();
            loop {
                line.clear();
                if pipe.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                // The last line of a killed loader may be cut. Its write was not submitted then, because a write is
                // submitted only after its whole line has left.
                let Some(whole) = line.strip_suffix('\n') else { return Ok(()) };
                witness.known().hear(whole).with_context(|| format!("the loader said {whole:?}"))?;
            }
        })
    }

    /// Returns the longest gap that overlaps the time from `from` to `to`; one that is still open counts.
    pub fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let known = self.known();
        let open = known.last.map(|last| Gap { from: last, len: clock::now() - last });
        let inside = known.gaps.iter().copied().chain(open).filter(|gap| gap.from <= to && gap.from + gap.len >= from);
        inside.map(|gap| gap.len).max().unwrap_or_default()
    }

    /// Returns the longest time of an answered request that overlaps the time from `from` to `to`, and how long after `from` the
    /// answer came. Short ones are not kept.
    pub fn longest_request(&self, from: Instant, to: Instant) -> (Duration, Duration) {
        let known = self.known();
        let inside = known.slow.iter().filter(|slow| slow.from <= to && slow.from + slow.len >= from);
        let longest = inside.max_by_key(|slow| slow.len);
        longest.map_or_else(Default::default, |slow| (slow.len, slow.from + slow.len - from))
    }

    /// Fails when a loader has found anything wrong.
    pub fn clean(&self) -> Result<()> {
        let known = self.known();
        if let Some(first) = known.violations.first() {
            bail!("{} violations, the first: {first}", known.violations.len());
        }
        match known.errors.first() {
            Some(first) => bail!("I/O errors: {first}"),
            None => Ok(()),
        }
    }
}

impl Known {
    fn hear(&mut self, line: &str) -> Result<()> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "b" | "a" | "r" => self.hear_write(verb, rest)?,
            "c" => self.completion(),
            "s" => {
                let len = Duration::from_millis(rest.parse()?);
                self.slow.push(Gap { from: clock::now().checked_sub(len).context("a time after the boot")?, len });
            }
            "checked" => self.checked += rest.parse::<u64>()?,
            "violation" => self.violations.push(rest.to_owned()),
            "error" => self.errors.push(rest.to_owned()),
            "opened" => self.opened = Some(clock::now()),
            "first" => self.first_read = Some(clock::now()),
            "verified" => self.verified = Some(clock::now()),
            "ended" => {
                self.ended = Some(clock::now());
                self.last = None;
            }
            _ => bail!("an unknown word"),
        }
        Ok(())
    }

    fn completion(&mut self) {
        let now = clock::now();
        if let Some(from) = self.last.replace(now)
            && now - from >= GAP_KEPT_MIN
        {
            self.gaps.push(Gap { from, len: now - from });
        }
    }

    /// Reads the words `area offset len sequence`.
    fn hear_write(&mut self, verb: &str, rest: &str) -> Result<()> {
        let words: Vec<u64> = rest.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [area, offset, len, sequence] = words[..] else { bail!("{} words", words.len()) };
        let blocks = self.areas.get_mut(area as usize).context("no such area")?;
        let range = (offset / BLOCK) as usize..((offset + len) / BLOCK) as usize;
        for block in blocks.get_mut(range).context("outside of the area")? {
            match verb {
                "b" => block.latest = block.latest.max(sequence),
                "a" => block.acked = block.acked.max(sequence),
                _ => block.acked = block.acked.max(sequence.min(block.latest)),
            }
            assert!(block.acked <= block.latest, "acknowledged before it was begun");
        }
        match verb {
            "b" => self.begun += 1,
            "a" => self.acked += 1,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &'static str) -> Witness {
        let witness = Witness::new(7, 2, 4 * BLOCK);
        witness.listen(lines.as_bytes()).join().unwrap().unwrap();
        witness
    }

    #[test]
    fn an_acknowledgement_binds_and_a_begun_write_may_be_there() {
        let witness = heard("opened\nb 1 4096 8192 5\na 1 4096 8192 5\nb 1 4096 4096 6\nc\n");
        let known = witness.known();
        assert_eq!((known.begun, known.acked), (2, 1));
        let of = |block: usize| (known.areas[1][block].acked, known.areas[1][block].latest);
        assert_eq!([of(0), of(1), of(2), of(3)], [(0, 0), (5, 6), (5, 5), (0, 0)]);
    }

    #[test]
    fn what_a_read_gave_must_not_vanish_again() {
        let witness = heard("b 0 0 4096 1\na 0 0 4096 1\nb 0 0 4096 2\nr 0 0 4096 2\n");
        assert_eq!(witness.known().areas[0][0].acked, 2);
    }

    #[test]
    fn the_cut_last_word_of_a_killed_loader_says_nothing() {
        let witness = heard("b 0 0 4096 1\na 0 0 4096 1\nb 0 4096 40");
        let known = witness.known();
        assert_eq!((known.begun, known.acked), (1, 1));
    }

    #[test]
    fn longest_request_is_the_slowest_one_of_the_time_in_question() {
        let witness = heard("s 30\ns 200\ns 50\n");
        let now = clock::now();
        assert_eq!(witness.longest_request(now, now).0, Duration::ZERO, "all were answered before");
        let before = now.checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(witness.longest_request(before, now).0, Duration::from_millis(200));
    }

    #[test]
    fn nonsense_is_an_error() {
        let witness = Witness::new(7, 1, BLOCK);
        assert!(witness.listen("b 0 4096 4096 1\n".as_bytes()).join().unwrap().is_err());
        assert!(witness.listen("hello\n".as_bytes()).join().unwrap().is_err());
    }

    #[test]
    fn a_stored_ledger_is_one_that_bench_reads() {
        let path = std::env::temp_dir().join(format!("basalt-witness-{}", std::process::id()));
        heard("b 1 4096 4096 5\na 1 4096 4096 5\n").store(&path).unwrap();
        let ledgers: Vec<bench::load::Ledger> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ledgers.iter().map(bench::load::Ledger::acked_blocks).collect::<Vec<_>>(), [0, 1]);
        assert!(ledgers[0].fits(1, 4 * BLOCK));
    }
}
