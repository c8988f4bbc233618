//! `cargo xtask planted`: plants one bug after another, runs seeds until each is found, and prints how many
//! that took.
//!
//! A find counts only when the same seed passes without the bug: the seed is run again, clean. Seeds of all ages take
//! turns, because only later seeds are aimed at the classes that were added last. A bug of [`AIMED`] is hunted in the runs
//! of its class alone.
//!
//! Invariant: the bug changes only while no seed runs.

use clap::Parser;
use sim::aim::{
    DAMAGE_FROM, FAMILIES_FROM, FILLED_FROM, FLATTEN_FROM, LATE_FROM, REDIRECT_FROM, SHARING_FROM, SHRINK_FROM,
    SNAPSHOTS_FROM, aimed_seeds, class_named,
};
use sim::faults::Class;
use sim::run::run;
use sim::tuned::CONTENTS_FIRST_FROM;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use types::planted::{self, Bug, REGISTRY, Row, UNREACHED};

/// Longest text of a finding in the table.
const SAID_MAX: usize = 90;
/// Bugs that random schedules find about once in a thousand seeds, or less: they are hunted in runs aimed at their class.
const AIMED: [(Bug, Class); 35] = [
    (Bug::ReleasedTooEarly, Class::CutPoints),
    (Bug::AbortTakenForRelease, Class::CutPoints),
    (Bug::HoldEndsWithSnap, Class::CutPoints),
    (Bug::TimeoutAfterRelease, Class::CutPoints),
    (Bug::CutsNotCheckpointed, Class::CutPoints),
    (Bug::UseOfOthersIgnored, Class::LimitedVolumes),
    (Bug::LimitChangesUntold, Class::LimitedVolumes),
    (Bug::OlderLetIn, Class::OlderDevices),
    (Bug::MarkForgotten, Class::OlderDevices),
    (Bug::CommitUnfenced, Class::ManyMetas),
    (Bug::LostCommitRefused, Class::ManyMetas),
    (Bug::LostCommitBelieved, Class::ManyMetas),
    (Bug::LeaseUnchecked, Class::ManyMetas),
    (Bug::SearchStopsOthers, Class::StuckPg),
    (Bug::LeaderlessStopsOsd, Class::StuckPg),
    (Bug::ReplacedStaysIn, Class::ReplacedOsds),
    (Bug::MovesToLeaving, Class::EmptiedOsds),
    (Bug::ReplacedTooEarly, Class::EmptiedOsds),
    (Bug::FailureNotLogged, Class::FailedReplicas),
    (Bug::FailedAcknowledges, Class::FailedReplicas),
    (Bug::LeftNotCheckpointed, Class::MovedReplicas),
    (Bug::OldMajorityCounted, Class::MovedReplicas),
    (Bug::LearnerCounted, Class::MovedReplicas),
    (Bug::ConfigurationUsedEarly, Class::MovedReplicas),
    (Bug::PromotedBeforeWhole, Class::MovedReplicas),
    (Bug::VoteAfterRestart, Class::RestartInLease),
    (Bug::AuReusedEarly, Class::CrashInInstall),
    (Bug::ReadStampLate, Class::SlowStream),
    (Bug::FillingServes, Class::FillingCounts),
    (Bug::FilledFromLate, Class::SlowStream),
    (Bug::InstallOfNothing, Class::FilledBehind),
    (Bug::LogBeginsAnywhere, Class::CutStateBlock),
    (Bug::ForgedHeaderBelieved, Class::ForgedHeaders),
    (Bug::RepairFromBehind, Class::RottenBlocks),
    (Bug::RepairOverNewer, Class::RottenBlocks),
];

/// The first seed that can show a bug, where only later ones do: they place payloads at home, damage sectors for good, have
/// contents come before the log, or make snapshots and clones.
const LATER: [(Bug, u64); 24] = [
    (Bug::AuReusedEarly, CONTENTS_FIRST_FROM),
    (Bug::InstallOfNothing, CONTENTS_FIRST_FROM),
    (Bug::PlaceAdoptedInPart, REDIRECT_FROM),
    (Bug::PlaceNotClaimed, REDIRECT_FROM),
    (Bug::PlaceFlushLinked, REDIRECT_FROM),
    (Bug::PlaceUnverified, REDIRECT_FROM),
    (Bug::UnreadableLogAsZeros, DAMAGE_FROM),
    (Bug::MergeTakesOlder, SNAPSHOTS_FROM),
    (Bug::MergeDropsOpen, SNAPSHOTS_FROM),
    (Bug::MergedWhileDirty, SNAPSHOTS_FROM),
    (Bug::HiddenInherited, SNAPSHOTS_FROM),
    (Bug::WrittenInherited, SNAPSHOTS_FROM),
    (Bug::StreamMissesMerge, SNAPSHOTS_FROM),
    (Bug::BaseIgnored, FAMILIES_FROM),
    (Bug::CloneLacksSegments, FAMILIES_FROM),
    (Bug::RollbackKeepsSession, FAMILIES_FROM),
    (Bug::DetachTooEarly, FLATTEN_FROM),
    (Bug::TailNotWiped, SHRINK_FROM),
    (Bug::OpenDropsWriters, SHARING_FROM),
    (Bug::CloseFencesWriters, SHARING_FROM),
    (Bug::FenceKeepsWriter, SHARING_FROM),
    (Bug::FenceForgetsThoseLetOut, SHARING_FROM),
    (Bug::WindowOfAnotherWriter, SHARING_FROM),
    (Bug::HoleOfAnotherWriter, SHARING_FROM),
];

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
    #[arg(long, value_parser = class_named)]
    aimed: Option<Class>,
    /// Print the registry and end
    #[arg(long)]
    list: bool,
}

/// Result of the hunt for one bug.
struct Outcome {
    seeds: usize,
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
    // Bugs that no run finds yet are hunted by name alone.
    let named = |row: &&Row| args.bug.iter().any(|name| name == row.name);
    let chosen = REGISTRY.iter().filter(|row| args.bug.is_empty() || named(row)).chain(UNREACHED.iter().filter(named));
    println!("| bug | rule | found after | first seed | hits | seconds | observed |");
    println!("|---|---|---|---|---|---|---|");
    let (mut found, mut missed) = (0, Vec::new());
    let mut unsound = BTreeSet::new();
    for row in chosen {
        let outcome = hunt(row, &args, &mut unsound);
        print(row, &outcome, aim_of(row.bug, &args));
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

/// Returns the class whose runs the bug is hunted in.
fn aim_of(bug: Bug, args: &Args) -> Option<Class> {
    args.aimed.or_else(|| AIMED.iter().find(|(aimed, _)| *aimed == bug).map(|(_, class)| *class))
}

/// Returns the seeds to try. Only later seeds draw later aims.
fn seeds(bug: Bug, args: &Args) -> Vec<u64> {
    let count = args.seeds_max as usize;
    let later = LATER.iter().find(|(later, _)| *later == bug).map(|(_, from)| *from);
    match (args.start.or(later), aim_of(bug, args)) {
        (start, Some(class)) => aimed_seeds(class, start).take(count).collect(),
        (Some(start), None) => (start..).take(count).collect(),
        (None, None) => (0..args.seeds_max).map(|n| [1, LATE_FROM, FILLED_FROM][(n % 3) as usize] + n / 3).collect(),
    }
}

/// Runs seeds with the bug until one fails that passes without it. `unsound`: seeds that fail without it, too.
fn hunt(row: &Row, args: &Args, unsound: &mut BTreeSet<u64>) -> Outcome {
    let began = clock();
    let limit = Duration::from_secs(args.seconds_max);
    let next = AtomicUsize::new(0);
    let all = seeds(row.bug, args);
    let mut hits = 0;
    loop {
        planted::plant(Some(row.bug));
        let found = first_failure(&all, &next, args.jobs, unsound, &|| began.elapsed() >= limit);
        hits += planted::hits();
        planted::plant(None);
        let seeds = next.load(Ordering::SeqCst).min(all.len());
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
    seeds: &[u64],
    next: &AtomicUsize,
    jobs: usize,
    unsound: &BTreeSet<u64>,
    over: &(dyn Fn() -> bool + Sync),
) -> Option<(u64, String)> {
    let (stop, found) = (AtomicBool::new(false), Mutex::new(None::<(u64, String)>));
    let work = || {
        while !stop.load(Ordering::SeqCst) && !over() {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::SeqCst)).copied() else { break };
            if unsound.contains(&seed) {
                continue;
            }
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
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    found.into_inner().expect("all threads are done")
}

/// Returns an ordinal, as the table uses it in "3rd of `OldTail`".
fn nth(n: usize) -> String {
    let end = match (n % 10, n % 100) {
        (1, not) if not != 11 => "st",
        (2, not) if not != 12 => "nd",
        (3, not) if not != 13 => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}

fn print(row: &Row, outcome: &Outcome, aimed: Option<Class>) {
    let Outcome { seeds, hits, took, found } = outcome;
    let (after, seed, said) = match found {
        Some((seed, said)) => {
            let after = aimed.map_or(format!("{seeds} seeds"), |class| format!("{} of `{class:?}`", nth(*seeds)));
            (after, seed.to_string(), said.as_str())
        }
        None => (
            aimed.map_or(format!("not in {seeds} seeds"), |c| format!("not in {seeds} of `{c:?}`")),
            "–".to_owned(),
            "",
        ),
    };
    let said: String = said.replace(['|', '\n'], " ").chars().take(SAID_MAX).collect();
    println!("| {} | {} | {after} | {seed} | {hits} | {:.0} | {said} |", row.name, row.rule, took.as_secs_f64());
}
