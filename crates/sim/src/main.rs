//! `cargo xtask sim`: runs seeds, prints what they met, and how to replay the first that fails.

use clap::Parser;
use sim::run::{Report, run};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeds that have found something once: `seed what it found`, one a line.
const REGRESSIONS: &str = include_str!("../seeds.txt");

/// Runs the real OSD, client and control code under seeded faults, and checks what users were told.
#[derive(Parser)]
#[command(
    name = "sim",
    after_help = "Examples:\n  cargo xtask sim --seeds 200\n  cargo xtask sim --seed 17 --trace 2> log\n  cargo xtask sim --minutes 30 --start 1000000 --jobs 2"
)]
struct Args {
    /// Run this many seeds, and those of crates/sim/seeds.txt
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// Run this seed alone, twice: it must do the same both times
    #[arg(long, conflicts_with_all = ["minutes", "start"])]
    seed: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Run for this long instead of a number of seeds
    #[arg(long)]
    minutes: Option<u64>,
    /// Print what every node logs to standard error (BASALT_LOG chooses; default debug); runs once
    #[arg(long)]
    trace: bool,
    /// Seeds at a time, each on its own core
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
}

/// Sums over all seeds.
#[derive(Default)]
struct Sum {
    seeds: u64,
    simulated: Duration,
    totals: BTreeMap<&'static str, u64>,
    classes: BTreeMap<String, u64>,
    failures: Vec<(u64, String)>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.trace {
        sim::trace::on();
    } else {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let began = clock();
    let sum = match args.seed {
        Some(seed) => one(seed, args.trace),
        None => many(&args, began),
    };
    print(&sum, began.elapsed());
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[allow(clippy::disallowed_methods)] // how fast it ran is no part of the run
fn clock() -> Instant {
    Instant::now()
}

/// A run whose panic is a failure as any other.
fn guarded(seed: u64) -> Report {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_default()));
        Report { failure, ..Report::default() }
    })
}

fn one(seed: u64, once: bool) -> Sum {
    let mut sum = Sum::default();
    let first = guarded(seed);
    println!("seed {seed}: trace hash {:016x}, {:?} simulated", first.trace_hash, first.simulated);
    if !once {
        let again = guarded(seed);
        if (again.trace_hash, &again.failure) != (first.trace_hash, &first.failure) {
            let what = format!("two runs differ: {:016x} and {:016x}", first.trace_hash, again.trace_hash);
            sum.failures.push((seed, what));
        }
    }
    sum.add(seed, first);
    sum
}

fn many(args: &Args, began: Instant) -> Sum {
    let regressions: Vec<u64> = match args.minutes {
        Some(_) => Vec::new(),
        None => REGRESSIONS.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect(),
    };
    let known = regressions.len() as u64;
    let limit = args.minutes.map(|m| Duration::from_secs(60 * m));
    let (next, stop, sum) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Sum::default()));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let over = limit.map_or(n >= known + args.seeds, |limit| began.elapsed() >= limit);
            if over {
                break;
            }
            let seed = regressions.get(n as usize).copied().unwrap_or(args.start + n.saturating_sub(known));
            let report = guarded(seed);
            if report.failure.is_some() && !args.keep_going {
                stop.store(true, Ordering::Relaxed);
            }
            sum.lock().expect("no thread panics while it holds the sum").add(seed, report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    sum.into_inner().expect("all threads are done")
}

impl Sum {
    fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        let struck = report.struck;
        for (what, n) in [
            ("requests answered", report.requests),
            ("sector operations checked", report.sectors),
            ("replica bytes compared", report.compared),
            ("followers streamed to", report.streams),
            ("turns", report.turns),
            ("crashes", struck.crashes),
            ("power cuts", struck.power_cuts),
            ("writes lost", struck.writes_lost),
            ("writes torn", struck.writes_torn),
            ("writes kept", struck.writes_kept),
            ("partitions", struck.partitions),
            ("resets", struck.resets),
            ("segments late", struck.losses),
            ("timeouts", struck.timeouts),
            ("clock changes", struck.clock_changes),
        ] {
            *self.totals.entry(what).or_default() += n;
        }
        for (class, n) in report.classes {
            *self.classes.entry(format!("{class:?}")).or_default() += n;
        }
        if let Some(what) = report.failure {
            println!("seed {seed} FAILED: {what}\n  replay: cargo xtask sim --seed {seed} --trace");
            self.failures.push((seed, what));
        }
    }
}

fn print(sum: &Sum, took: Duration) {
    let seconds = took.as_secs_f64();
    println!("{:>12}  seeds, {:.2} a second, {} failed", sum.seeds, sum.seeds as f64 / seconds, sum.failures.len());
    println!("{:>12.3}  simulated hours", sum.simulated.as_secs_f64() / 3600.0);
    for (what, n) in &sum.totals {
        println!("{n:>12}  {what}");
    }
    let classes: Vec<String> = sum.classes.iter().map(|(class, n)| format!("{class} {n}")).collect();
    println!("faults ordered: {}", classes.join(", "));
}
