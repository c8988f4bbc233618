//! The driver for stable Rust: inputs from the corpus and the encoders, mutated by seed, until a limit is reached.
//!
//! `main` calls it with a target and limits. A find ends the process: the hook catches a panic, and the watchdog
//! catches a run without end. A crash (stack overflow, abort) ends the process by itself. A panic or a hang leaves its
//! input on disk at once. A crash leaves it when the same seed is run again with `careful`.
//!
//! Invariant: the inputs depend on the seed alone. The clock only decides when to stop.
#![allow(clippy::disallowed_methods)] // a tool: it measures real time

use crate::{Target, Verdict, corpus, mutate};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::rng::Rng;

/// Exit code of a process that found something and kept the input.
pub const FOUND: i32 = 77;
/// Number of inputs that the encoders add to the pool before the first mutation.
const SEEDS: usize = 64;

/// Limits of one drive, and its output directory.
#[derive(Clone, Debug)]
pub struct Limits {
    pub time: Duration,
    pub runs_max: u64,
    pub seed: u64,
    /// Longest run that is not a find.
    pub run_max: Duration,
    /// Directory for finds; a find is named `DIR/TARGET-HASH`.
    pub finds: PathBuf,
    /// True to write every input before it is run: slow, for a crash that no hook catches.
    pub careful: bool,
}

/// Counts of a drive that ended without a find.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub runs: u64,
    pub taken: u64,
    pub time: Duration,
}

/// The input of the current run, for the hook and the watchdog.
static CURRENT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Number of the current run.
static RUNS: AtomicU64 = AtomicU64::new(0);

fn current() -> MutexGuard<'static, Vec<u8>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the input of the current run to disk and returns its path.
fn keep(finds: &Path, target: &str) -> PathBuf {
    let input = current().clone();
    let path = finds.join(format!("{target}-{:08x}", types::crc32c(&input)));
    let written = std::fs::create_dir_all(finds).and_then(|()| std::fs::write(&path, &input));
    if let Err(e) = written {
        eprintln!("{}: {e}; the input is {input:02x?}", path.display());
    }
    path
}

fn report_find(finds: &Path, target: &str, what: &str) -> ! {
    let path = keep(finds, target);
    eprintln!("FOUND {target}: {what}; run it again: cargo run -p fuzzing -- replay {target} {}", path.display());
    std::process::exit(FOUND)
}

/// Makes a panic and a run without end stop the process, with their input kept in `finds`.
pub fn arm(target: &'static str, limits: &Limits) {
    let finds = limits.finds.clone();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        report_find(&finds, target, "it panics");
    }));
    let (finds, run_max) = (limits.finds.clone(), limits.run_max);
    std::thread::spawn(move || {
        let mut last = (0, Instant::now());
        loop {
            std::thread::park_timeout(run_max / 4);
            let runs = RUNS.load(Ordering::Relaxed);
            if runs != last.0 {
                last = (runs, Instant::now());
            } else if runs > 0 && last.1.elapsed() > run_max {
                report_find(&finds, target, "it does not end");
            }
        }
    });
}

/// Runs the target on one input, and records the input for the hook and the watchdog.
pub fn run_one(target: &Target, input: &[u8]) -> Verdict {
    {
        let mut current = current();
        current.clear();
        current.extend_from_slice(input);
    }
    RUNS.fetch_add(1, Ordering::Relaxed);
    (target.run)(input)
}

/// Drives one target until a limit is reached.
pub fn drive(target: &Target, limits: &Limits) -> Report {
    let began = Instant::now();
    let mut rng = Rng::new(limits.seed ^ u64::from(types::crc32c(target.name.as_bytes())));
    let mut pool: Vec<Vec<u8>> = corpus::of(target.name).into_iter().map(|(_, bytes)| bytes).collect();
    pool.extend((0..SEEDS).map(|_| (target.seed)(&mut rng)));
    let mut report = Report::default();
    let mut input = Vec::new();
    while report.runs < limits.runs_max && began.elapsed() < limits.time {
        let n = report.runs as usize;
        if n < pool.len() {
            input.clone_from(&pool[n]);
        } else {
            draw(target, &mut rng, &pool, &mut input);
        }
        if limits.careful {
            std::fs::create_dir_all(&limits.finds).expect("a folder for finds");
            std::fs::write(limits.finds.join(format!("{}-last", target.name)), &input).expect("a file for an input");
        }
        report.taken += u64::from(run_one(target, &input) == Verdict::Taken);
        report.runs += 1;
    }
    report.time = began.elapsed();
    report
}

/// Draws the next input: one of the pool or a fresh one, mostly mutated, and mostly with checksums corrected
/// afterwards.
pub fn draw(target: &Target, rng: &mut Rng, pool: &[Vec<u8>], input: &mut Vec<u8>) {
    let pick = |rng: &mut Rng| &pool[rng.below(pool.len() as u64) as usize];
    if rng.chance(1, 4) {
        *input = (target.seed)(rng);
    } else {
        input.clone_from(pick(rng));
    }
    if rng.chance(31, 32) {
        let other = pick(rng);
        mutate::mutate(rng, input, other, target.len_max);
    }
    if rng.chance(15, 16) {
        (target.fix)(input);
    }
}

/// Returns a shorter or simpler input that also panics, or `None` if `input` does not panic.
pub fn shrink(target: &Target, input: Vec<u8>) -> Option<Vec<u8>> {
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |bytes: &[u8]| std::panic::catch_unwind(|| (target.run)(bytes)).is_err();
    let mut best = input;
    let mut step = fails(&best).then_some(best.len().next_power_of_two())?;
    while step > 0 {
        let mut at = 0;
        while at < best.len() {
            let end = (at + step).min(best.len());
            let without = [&best[..at], &best[end..]].concat();
            let mut zeroed = best.clone();
            zeroed[at..end].fill(0);
            if fails(&without) {
                best = without;
            } else {
                if zeroed != best && fails(&zeroed) {
                    best = zeroed;
                }
                at = end;
            }
        }
        step /= 2;
    }
    let _ = std::panic::take_hook();
    Some(best)
}
