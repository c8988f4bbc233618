//! The command line of the driver: one target in this process, or all of them in processes of their own.
//!
//! Each target has its own process, because a stack overflow or an abort ends the process. `all` runs two at a time by
//! default and prints a line for each. It fails when a target has a find or a canary has none.

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use fuzzing::drive::{self, FOUND, Limits};
use fuzzing::{TARGETS, Target, corpus, find};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;
use types::rng::Rng;

/// Time limit of a canary. The driver finds it in the first seconds, or never.
const CANARY_SECONDS: f64 = 20.0;
/// Time limit of one run of a canary: shorter than usual, because one canary never returns.
const CANARY_RUN_MAX_MS: u64 = 400;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// List the names of all targets
    List,
    /// Run one target, in this process
    Run(Run),
    /// Run a target on one input; fails if the target fails
    Replay { target: String, input: PathBuf },
    /// Write a smaller input that also fails, next to the given one
    Shrink { target: String, input: PathBuf },
    /// Run all targets, canaries included
    All {
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Stop each target after its number of CI runs, so that the inputs are the same on every machine
        #[arg(long)]
        counted: bool,
        /// Number of processes at a time
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Directory for finds
        #[arg(long, default_value = "target/fuzz-finds")]
        finds: PathBuf,
    },
    /// Write sound inputs of every target into `corpus/`
    Corpus {
        #[arg(long, default_value_t = 3)]
        each: usize,
    },
}

#[derive(Parser, Clone)]
struct Run {
    target: String,
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    #[arg(long, default_value_t = u64::MAX)]
    runs: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest run that is not a find, in milliseconds
    #[arg(long, default_value_t = 10_000)]
    run_max_ms: u64,
    /// Directory for finds
    #[arg(long, default_value = "target/fuzz-finds")]
    finds: PathBuf,
    /// Write every input before it is run: slow, but it finds the input that ends the process
    #[arg(long)]
    careful: bool,
}

fn named(name: &str) -> Result<&'static Target> {
    find(name).with_context(|| format!("no target is called {name}; see `fuzzing list`"))
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Cmd::List => TARGETS.iter().for_each(|t| println!("{:14} {}", t.name, t.what)),
        Cmd::Run(args) => run(&args)?,
        Cmd::Replay { target, input } => {
            let bytes = std::fs::read(&input).with_context(|| input.display().to_string())?;
            println!("{target}: {:?}", (named(&target)?.run)(&bytes));
        }
        Cmd::Shrink { target, input } => {
            let bytes = std::fs::read(&input).with_context(|| input.display().to_string())?;
            let small = drive::shrink(named(&target)?, bytes).context("it does not fail")?;
            let path = input.with_extension("small");
            std::fs::write(&path, &small)?;
            println!("{} bytes: {}", small.len(), path.display());
        }
        Cmd::All { seconds, seed, counted, jobs, finds } => {
            all(&Each { seconds, seed, counted, finds: &finds }, jobs)?;
        }
        Cmd::Corpus { each } => write_corpus(each)?,
    }
    Ok(())
}

fn run(args: &Run) -> Result<()> {
    let target = named(&args.target)?;
    let limits = Limits {
        time: Duration::from_secs_f64(args.seconds),
        runs_max: args.runs,
        seed: args.seed,
        run_max: Duration::from_millis(args.run_max_ms),
        finds: args.finds.clone(),
        careful: args.careful,
    };
    drive::arm(target.name, &limits);
    let report = drive::drive(target, &limits);
    let percent = report.taken * 100 / report.runs.max(1);
    let seconds = report.time.as_secs_f64();
    println!("{:14} {:>9} runs, {percent:>3} % got in, {seconds:.1} s", target.name, report.runs);
    Ok(())
}

/// The way in which a target's process ended.
enum End {
    Clean,
    Found,
    Broken,
}

/// Settings that `all` gives to each target.
struct Each<'a> {
    seconds: f64,
    seed: u64,
    counted: bool,
    finds: &'a Path,
}

fn all(each: &Each, jobs: usize) -> Result<()> {
    // Canaries are last in the registry, and they end early.
    let queue = Mutex::new(TARGETS.iter().rev().collect::<Vec<_>>());
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no worker panics").pop();
                    let Some(target) = next else { return };
                    if let Err(e) = one(target, each) {
                        faults.lock().expect("no worker panics").push(format!("{e:#}"));
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no worker panics");
    println!("fuzz: {} passed, {} failed", TARGETS.len() - faults.len(), faults.len());
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

fn one(target: &Target, each: &Each) -> Result<()> {
    let end = |seconds: f64, careful: bool| -> Result<(End, Output)> {
        let (seconds, finds) = match target.is_canary {
            true => (CANARY_SECONDS, each.finds.join("canaries")),
            false => (seconds, each.finds.to_path_buf()),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", target.name, "--seconds", &seconds.to_string(), "--seed", &each.seed.to_string()]);
        if each.counted && !target.is_canary {
            command.args(["--runs", &target.ci_runs.to_string()]);
        }
        command.arg("--finds").arg(finds);
        if target.is_canary {
            command.args(["--run-max-ms", &CANARY_RUN_MAX_MS.to_string()]);
        }
        if careful {
            command.arg("--careful");
        }
        let output = command.output()?;
        let end = match output.status.code() {
            Some(0) => End::Clean,
            Some(FOUND) => End::Found,
            _ => End::Broken,
        };
        Ok((end, output))
    };
    let (ended, output) = end(each.seconds, false)?;
    match (ended, target.is_canary) {
        (End::Clean, false) => print!("{}", String::from_utf8_lossy(&output.stdout)),
        (End::Clean, true) => bail!("{}: the canary lives: the driver does not see what it must see", target.name),
        (End::Found | End::Broken, true) => println!("{:14} was found", target.name),
        (End::Found, false) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            bail!("{}: a find", target.name);
        }
        (End::Broken, false) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            // No hook reported the input. The same inputs are run again, and each is written to disk first.
            end(each.seconds * 50.0, true)?;
            let last = each.finds.join(format!("{}-last", target.name));
            bail!("{}: the process ended with {}; its last input is {}", target.name, output.status, last.display());
        }
    }
    Ok(())
}

fn write_corpus(each: usize) -> Result<()> {
    for target in TARGETS.iter().filter(|t| !t.is_canary) {
        let folder = corpus::root().join("corpus").join(target.name);
        std::fs::create_dir_all(&folder)?;
        let mut rng = Rng::new(1);
        let mut written = std::fs::read_dir(&folder)?.count();
        let mut tries = 0;
        while written < each && tries < 2000 {
            tries += 1;
            let input = (target.seed)(&mut rng);
            if input.len() <= 2048 && (target.run)(&input) == fuzzing::Verdict::Taken {
                std::fs::write(folder.join(format!("seed-{:08x}", types::crc32c(&input))), input)?;
                written += 1;
            }
        }
    }
    Ok(())
}
