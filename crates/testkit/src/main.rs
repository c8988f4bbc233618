//! `testkit`: runs one scenario of failures, or all, and prints a table; or the benchmark suite.

use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use testkit::chaos::ChaosConfig;
use testkit::report;
use testkit::scenario::{self, Settings};

const USAGE: &str = "usage: testkit [SCENARIO ...] [--rounds N] [--seed S] [--short] [--keep] [--dir DIR]

Runs the named scenarios of failures, or all, against real processes, and prints what came of them.
  --rounds N   how often a scenario repeats itself
  --seed S     what is drawn: moments, orders, lengths [default: 1]
  --short      few rounds, for CI
  --keep       keep the folder of a scenario that failed
  --dir DIR    where clusters live, not on tmpfs [default: $TESTKIT_DIR, or /var/tmp/basalt-testkit]

Examples:
  testkit                          all scenarios (make failure-report)
  testkit kill-all --rounds 3 --seed 7
  target/release/testkit streamed-kill     by name only: --release builds of cli and testkit, a quiet machine
  testkit chaos --minutes 10 --seed 7      random faults of all kinds (make chaos)
  target/release/testkit bench             figures beside the least cost of this machine (make bench)

Scenarios:";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "loader") {
        return end(testkit::loader::main(&args[1..]).map(|()| true));
    }
    if args.first().is_some_and(|arg| arg == "chaos-client") {
        return end(testkit::chaos::client::main(&args[1..]).map(|()| true));
    }
    if args.first().is_some_and(|arg| arg == "bench") {
        return end(testkit::perf::main(&args[1..]));
    }
    end(run(&args))
}

fn end(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("testkit: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool> {
    if let [first, args @ ..] = args
        && first == "chaos"
    {
        let (settings, seconds) = parse_chaos(args)?;
        std::fs::create_dir_all(&settings.base)?;
        let Settings { base, seed, keep, .. } = settings;
        return testkit::chaos::run(&ChaosConfig { base, seed, seconds, keep });
    }
    let (settings, names) = parse(args)?;
    std::fs::create_dir_all(&settings.base)?;
    let mut outcomes = Vec::new();
    let is_meant = |name: &str| names.iter().any(|n| n == name);
    let chosen = scenario::known().filter(|(name, ..)| is_meant(name));
    let all = scenario::ALL.iter().filter(|_| names.is_empty());
    for (name, done, function) in all.chain(chosen) {
        eprintln!("{name}: {done} ...");
        let outcome = scenario::run(name, done, *function, &settings);
        report::print(&outcome);
        outcomes.push(outcome);
    }
    Ok(report::table(&outcomes))
}

/// Parses the flags behind `chaos`: those of all scenarios, and the duration in `--minutes` or `--seconds`.
fn parse_chaos(args: &[String]) -> Result<(Settings, u64)> {
    let (mut rest, mut seconds) = (Vec::new(), 600);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let unit = match arg.as_str() {
            "--minutes" => 60,
            "--seconds" => 1,
            _ => {
                rest.push(arg.clone());
                continue;
            }
        };
        let value = args.next().ok_or_else(|| anyhow::anyhow!("{arg} wants a value"))?;
        seconds = value.parse::<u64>()? * unit;
    }
    let (settings, names) = parse(&rest)?;
    if let Some(name) = names.first() {
        bail!("`chaos` runs no scenario, but `{name}` is one");
    }
    Ok((settings, seconds))
}

fn parse(args: &[String]) -> Result<(Settings, Vec<String>)> {
    let base = std::env::var_os("TESTKIT_DIR").map_or_else(|| PathBuf::from("/var/tmp/basalt-testkit"), PathBuf::from);
    let mut settings = Settings { base, seed: 1, rounds: None, short: false, keep: false };
    let mut names = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| anyhow::anyhow!("{arg} wants a value"));
        match arg.as_str() {
            "--rounds" => settings.rounds = Some(value()?.parse()?),
            "--seed" => settings.seed = value()?.parse()?,
            "--dir" => settings.base = PathBuf::from(value()?),
            "--short" => settings.short = true,
            "--keep" => settings.keep = true,
            name if scenario::known().any(|(known, _, _)| *known == name) => names.push(name.to_owned()),
            other => {
                let list: Vec<String> =
                    scenario::known().map(|(name, done, _)| format!("  {name:<18} {done}")).collect();
                bail!("`{other}` is neither a flag nor a scenario\n{USAGE}\n{}", list.join("\n"));
            }
        }
    }
    Ok((settings, names))
}
