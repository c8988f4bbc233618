//! `cargo xtask sim`: runs seeds, prints what they met, shrinks the first that fails and says how to replay it.

mod record;

use clap::Parser;
use sim::aim::{aimed_seeds, class_named};
use sim::batch::{self, Batch, guarded};
use sim::faults::Class;
use sim::overrides::Overrides;
use sim::run::Report;
use sim::shrink::{kind_of, shrink};
use sim::summary::Sum;
use std::process::ExitCode;
use std::time::Duration;

/// Seeds that have found something once: `seed what it found`, one a line.
const REGRESSIONS: &str = include_str!("../seeds.txt");

/// Runs the real OSD, client and control code under seeded faults, and checks what users were told.
#[derive(Parser)]
#[command(
    name = "sim",
    after_help = "Examples:\n  cargo xtask sim --seeds 200\n  cargo xtask sim --seed 17 --trace --until 3.5 2> log\n  \
                  cargo xtask sim --minutes 30 --start 1000000 --jobs 2\n  \
                  cargo xtask sim --seed 17 --only-faults 3,7 --operations 50\n  \
                  cargo xtask sim --ledger --minutes 60 --start 2000000 --jobs 2"
)]
struct Args {
    /// Run this many seeds, and those of crates/sim/seeds.txt
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// Run this seed alone, twice: it must do the same both times
    #[arg(long, conflicts_with_all = ["minutes", "start", "ledger"])]
    seed: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Only seeds whose runs are aimed at this (`Class` of the summary)
    #[arg(long, value_parser = class_named, conflicts_with_all = ["minutes", "ledger"])]
    aimed: Option<Class>,
    /// Run for this long instead of a number of seeds
    #[arg(long)]
    minutes: Option<u64>,
    /// Print what every node logs to standard error (BASALT_LOG chooses; default debug); runs once
    #[arg(long)]
    trace: bool,
    /// Run a seed once, and shrink nothing
    #[arg(long)]
    once: bool,
    /// Seeds at a time, each on its own core
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// Runs that shrinking the first failure may take; 0 shrinks nothing
    #[arg(long, default_value_t = 150)]
    shrink_runs: u32,
    /// Go on where crates/sim/ledger.csv ends, or at --start if that is later, and add to it; the tree must be as committed
    #[arg(long, conflicts_with = "keep_going")]
    ledger: bool,
    #[command(flatten)]
    overrides: Overrides,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.trace {
        sim::trace::on();
    } else {
        batch::keep_panics();
    }
    let sum = match args.seed {
        Some(seed) => one(seed, &args),
        None if args.ledger => match record::run(&args) {
            Ok(sum) => sum,
            Err(why) => {
                eprintln!("sim: {why:#}");
                return ExitCode::FAILURE;
            }
        },
        None => batch_of(&args).run(),
    };
    print!("{}", sum.to_text());
    let Some(first) = sum.failures.first() else { return ExitCode::SUCCESS };
    if !args.trace && !args.once && !args.ledger {
        smaller(first.seed, &args, first.report.clone());
    }
    ExitCode::FAILURE
}

fn batch_of(args: &Args) -> Batch {
    let first = (args.start > 1).then_some(args.start);
    let aimed = args.aimed.map(|class| aimed_seeds(class, first).take(args.seeds as usize).collect());
    let known = REGRESSIONS.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok());
    Batch {
        seeds: if aimed.is_some() { 0 } else { args.seeds },
        known: aimed.unwrap_or_else(|| if args.minutes.is_some() { Vec::new() } else { known.collect() }),
        first: args.start,
        time: args.minutes.map(|m| Duration::from_secs(60 * m)),
        jobs: args.jobs,
        keep_going: args.keep_going,
        overrides: args.overrides.clone(),
    }
}

fn one(seed: u64, args: &Args) -> Sum {
    let began = batch::clock();
    let mut sum = Sum::default();
    let mut first = guarded(seed, &args.overrides);
    println!("seed {seed}: trace hash {:016x}, {:?} simulated", first.trace_hash, first.simulated);
    first.tunables.iter().for_each(|line| println!("        {line}"));
    for struck in &first.schedule {
        println!("{:>6}  {:?}  {:?}", struck.number, struck.at, struck.class);
    }
    if !args.trace && !args.once {
        let again = guarded(seed, &args.overrides);
        if (again.trace_hash, &again.failure) != (first.trace_hash, &first.failure) {
            let what = format!("two runs differ: {:016x} and {:016x}", first.trace_hash, again.trace_hash);
            first.failure.get_or_insert(what);
        }
    }
    sum.add(seed, first);
    sum.took = began.elapsed();
    sum
}

/// Shrinks a failure and prints the command that replays what is left.
fn smaller(seed: u64, args: &Args, first: Report) {
    // A difference between two runs of one seed is no property of its faults.
    let again = guarded(seed, &args.overrides);
    let kind = |r: &Report| r.failure.as_deref().map(kind_of);
    if args.shrink_runs == 0 || kind(&again) != kind(&first) {
        return;
    }
    let shrunk = shrink(&args.overrides, first, args.shrink_runs, |overrides| guarded(seed, overrides));
    println!("shrunk in {} runs: {}", shrunk.runs, shrunk.report.failure.as_deref().unwrap_or_default());
    shrunk.report.tunables.iter().for_each(|line| println!("        {line}"));
    for struck in &shrunk.report.schedule {
        println!("{:>6}  {:?}  {:?}", struck.number, struck.at, struck.class);
    }
    println!("  replay: cargo xtask sim --seed {seed} {} --trace", shrunk.overrides.to_args());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_run_may_begin_at_a_later_seed_and_takes_no_single_one() {
        let args = Args::try_parse_from(["sim", "--ledger", "--start", "2000000"]).expect("the options fit");
        assert!(args.ledger && args.start == 2_000_000);
        assert!(Args::try_parse_from(["sim", "--ledger", "--seed", "3"]).is_err(), "one seed is no stretch");
    }
}
