//! `cargo xtask planted`: plants one bug after another, runs seeds until each is found, and prints how many
//! that took.
//!
//! A find counts only when the same seed passes without the bug: the seed is run again, clean. Seeds of all ages take
//! turns, because only later seeds are aimed at the classes that were added last.
//!
//! Invariant: the bug changes only while no seed runs.

use clap::Parser;
use sim::aim::{FILLED_FROM, LATE_FROM, first_seed};
use sim::faults::Class;
use sim::run::run;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use types::planted::{self, REGISTRY, Row};

/// Longest text of a finding in the table.
const SAID_MAX: usize = 90;

/// Shows that the simulator finds every planted bug, and in how many seeds.
#[derive(Parser)]
#[command(
    name = "planted",
    after_help = "Examples:\n  cargo xtask planted\n  cargo xtask planted --bug fence-ignored --seeds-max 50\n  cargo xtask planted --list"
)]
struct Args {
    /// Only these; may be given several times
    #[arg(long)]
    bug: Vec<String>,
    /// A bug that is not found in so many seeds counts as not found
    #[arg(long, default_value_t = 500)]
    seeds_max: u64,
    /// A bug that is not found in so many seconds counts as not found
    #[arg(long, default_value_t = 3600)]
    seconds_max: u64,
    /// The first seed; without it seeds from 1, 100000 and 400000 on take turns, or all can be aimed as asked
    #[arg(long)]
    start: Option<u64>,
    /// Seeds at a time, each on its own core
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Only seeds whose runs are aimed at this (`Class` of the summary), whatever lies between them
    #[arg(long)]
    aimed: Option<String>,
    /// Print the registry and end
    #[arg(long)]
    list: bool,
}

/// Result of the hunt for one bug.
struct Outcome {
    seeds: u64,
    hits: u64,
    took: Duration,
    found: Option<(u64, String)>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        REGISTRY.iter().for_each(|row| println!("{:28} {:5} {}", row.name, row.rule, row.says));
        return ExitCode::SUCCESS;
    }
    let unknown: Vec<&String> = args.bug.iter().filter(|name| planted::Bug::named(name).is_none()).collect();
    if !unknown.is_empty() {
        eprintln!("no such bug: {unknown:?}; --list names them");
        return ExitCode::from(2);
    }
    std::panic::set_hook(Box::new(|_| {}));
    let chosen = |row: &&Row| args.bug.is_empty() || args.bug.iter().any(|name| name == row.name);
    println!("| bug | rule | found after | first seed | hits | seconds | what was said |");
    println!("|---|---|---|---|---|---|---|");
    let (mut found, mut missed) = (0, Vec::new());
    let mut unsound = BTreeSet::new();
    for row in REGISTRY.iter().filter(chosen) {
        let outcome = hunt(row, &args, &mut unsound);
        print(row, &outcome, args.aimed.as_deref());
        match outcome.found {
            Some(_) => found += 1,
            None => missed.push(row.name),
        }
    }
    if args.bug.is_empty() {
        println!("\nNot planted:\n");
        planted::NOT_PLANTED.iter().for_each(|(mistake, why)| println!("- {mistake}: {why}."));
    }
    println!("\nplanted: {found} found, {} not found: {}", missed.len(), missed.join(", "));
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[allow(clippy::disallowed_methods)] // how long it took is no part of a run
fn clock() -> Instant {
    Instant::now()
}

/// Returns the failure of a run with this seed.
fn verdict(seed: u64) -> Option<String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
    match outcome {
        Ok(report) => report.failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Returns the n-th seed to try. Only later seeds draw later aims.
fn nth_seed(args: &Args, n: u64) -> u64 {
    let aimed = Class::every().find(|class| args.aimed == Some(format!("{class:?}")));
    match (args.start, aimed) {
        (Some(start), _) => start + n,
        (None, Some(class)) => first_seed(class) + n,
        (None, None) => [1, LATE_FROM, FILLED_FROM][(n % 3) as usize] + n / 3,
    }
}

/// Returns the name of the class that the run of this seed is aimed at.
fn aimed_at(seed: u64) -> Option<String> {
    sim::aim::Aim::draw(seed).map(|aim| format!("{:?}", aim.class))
}

/// Runs seeds with the bug until one fails that passes without it. `unsound`: seeds that fail without it, too.
fn hunt(row: &Row, args: &Args, unsound: &mut BTreeSet<u64>) -> Outcome {
    let began = clock();
    let limit = Duration::from_secs(args.seconds_max);
    let next = AtomicU64::new(0);
    let seed_of = |n| Some(nth_seed(args, n)).filter(|seed| args.aimed.is_none() || aimed_at(*seed) == args.aimed);
    let mut hits = 0;
    loop {
        planted::plant(Some(row.bug));
        let found = first_failure(&next, args, unsound, &seed_of, &|| began.elapsed() >= limit);
        hits += planted::hits();
        planted::plant(None);
        let seeds = (0..next.load(Ordering::SeqCst).min(args.seeds_max)).filter_map(seed_of).count() as u64;
        match found {
            Some((seed, what)) => match verdict(seed) {
                None => return Outcome { seeds, hits, took: began.elapsed(), found: Some((seed, what)) },
                Some(clean) => {
                    eprintln!("seed {seed} fails without {} as well, it proves nothing: {clean}", row.name);
                    unsound.insert(seed);
                }
            },
            None => return Outcome { seeds, hits, took: began.elapsed(), found: None },
        }
    }
}

/// Returns the first seed from `next` on that fails. Several seeds run at a time, and all have ended at the return.
fn first_failure(
    next: &AtomicU64,
    args: &Args,
    unsound: &BTreeSet<u64>,
    seed_of: &(dyn Fn(u64) -> Option<u64> + Sync),
    over: &(dyn Fn() -> bool + Sync),
) -> Option<(u64, String)> {
    let (stop, found) = (AtomicBool::new(false), Mutex::new(None::<(u64, String)>));
    let work = || {
        while !stop.load(Ordering::SeqCst) && !over() {
            let n = next.fetch_add(1, Ordering::SeqCst);
            if n >= args.seeds_max {
                break;
            }
            let Some(seed) = seed_of(n).filter(|seed| !unsound.contains(seed)) else { continue };
            if let Some(what) = verdict(seed) {
                stop.store(true, Ordering::SeqCst);
                let mut found = found.lock().expect("no thread panics while it holds this");
                if found.as_ref().is_none_or(|(first, _)| seed < *first) {
                    *found = Some((seed, what));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    found.into_inner().expect("all threads are done")
}

/// Returns an ordinal, as the table uses it in "3rd of `OldTail`".
fn nth(n: u64) -> String {
    let end = match (n % 10, n % 100) {
        (1, not) if not != 11 => "st",
        (2, not) if not != 12 => "nd",
        (3, not) if not != 13 => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}

fn print(row: &Row, outcome: &Outcome, aimed: Option<&str>) {
    let Outcome { seeds, hits, took, found } = outcome;
    let (after, seed, said) = match found {
        Some((seed, said)) => {
            let after = aimed.map_or(format!("{seeds} seeds"), |class| format!("{} of `{class}`", nth(*seeds)));
            (after, seed.to_string(), said.as_str())
        }
        None => {
            (aimed.map_or(format!("not in {seeds} seeds"), |c| format!("not in {seeds} of `{c}`")), "–".to_owned(), "")
        }
    };
    let said: String = said.replace(['|', '\n'], " ").chars().take(SAID_MAX).collect();
    println!("| {} | {} | {after} | {seed} | {hits} | {:.0} | {said} |", row.name, row.rule, took.as_secs_f64());
}
