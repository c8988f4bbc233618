//! `cargo xtask ci`: every check, and the sum of all tests at the end.
//!
//! Cheap checks come first. When all tests are built, two lanes run side by side: tests that start processes mostly
//! wait, so the others compute meanwhile.

use crate::{sh, tidy};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// Seeds that CI runs.
const CI_SEEDS: &str = "200";

/// Planted bugs that CI hunts: one for most rules, each found within a few seeds.
const CI_PLANTED: &[&str] = &[
    "decision-not-checkpointed",
    "completed-block-not-logged",
    "commit-beyond-match",
    "window-off-by-one",
    "hard-state-skipped",
    "log-without-flush",
    "commit-not-logged",
    "grant-counted-twice",
    "released-too-early",
];
/// Limits of seeds and seconds for each bug: seeds decide, and the seconds only end a run that hangs.
const CI_PLANTED_LIMITS: &[&str] = &["--seeds-max", "300", "--seconds-max", "240"];

/// Scenarios on real processes that CI runs in their short form: what users do with their volumes, under load.
const CI_SCENARIOS: &[&str] = &["snapshots", "bank", "steal", "backups"];

/// CI drives each fuzz target for a counted number of runs, and for these seconds at most on a slow machine.
const CI_FUZZ: &[&str] = &["--counted", "--seconds", "30"];

/// Longest time that one step of building or running tests may take.
const TEST_SECONDS_MAX: &str = "1800";

/// Runs all checks; stops at the first failure, and tells of two when both lanes fail.
pub fn run() -> Result<()> {
    clear_counts()?;
    sh::run("cargo", &["fmt", "--all", "--check"])?;
    tidy::run()?;
    sh::run("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    sh::run("timeout", &[TEST_SECONDS_MAX, "cargo", "test", "--workspace", "--no-run", "--quiet"])?;
    let (waiting, computing) = std::thread::scope(|scope| {
        let waiting = scope.spawn(waiting_lane);
        let computing = computing_lane();
        (waiting.join().unwrap_or_else(|_| bail!("a lane panicked")), computing)
    });
    match (waiting, computing) {
        (Err(one), Err(other)) => bail!("{one:#}; and {other:#}"),
        (one, other) => one.and(other)?,
    }
    python()?;
    deny()?;
    totals()
}

/// Runs the tests that start processes, the smoke test, and scenarios.
fn waiting_lane() -> Result<()> {
    test(&["--test", "*"])?;
    if sh::root().join("crates/cli/tests/smoke.sh").exists() {
        sh::run("bash", &["crates/cli/tests/smoke.sh"])?;
        add_counts("smoke", 1, 0)?;
    }
    scenarios()
}

/// Runs a few scenarios in their short form. One that skips a part fails: CI has all that they need.
fn scenarios() -> Result<()> {
    // No package is named: shared crates have the features of the other steps, and are not built again.
    let mut all = vec![TEST_SECONDS_MAX, "cargo", "run", "--quiet", "--bin", "testkit", "--", "--short"];
    all.extend(CI_SCENARIOS);
    let (ok, out) = sh::output("timeout", &all)?;
    print!("{out}");
    if !ok || out.contains("SKIPPED") {
        bail!("not every scenario passed whole");
    }
    add_counts("scenarios", CI_SCENARIOS.len() as u64, 0)
}

/// Runs unit tests, documentation, seeds, planted bugs and fuzz targets.
fn computing_lane() -> Result<()> {
    test(&["--lib", "--bins"])?;
    test(&["--doc"])?;
    docs()?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).to_string();
    simulate(&["--seeds", CI_SEEDS, "--jobs", &cores].map(String::from))?;
    plant_few()?;
    fuzz(&CI_FUZZ.iter().copied().map(String::from).collect::<Vec<_>>())
}

/// Runs the tests of the workspace that these flags choose.
fn test(which: &[&str]) -> Result<()> {
    // A test that hangs must end as a failure, not at the time limit of a build machine.
    let mut all = vec![TEST_SECONDS_MAX, "cargo", "test", "--workspace"];
    all.extend(which);
    let (ok, out) = sh::output("timeout", &all)?;
    print!("{out}");
    let (passed, failed) = count(&out);
    add_counts("cargo", passed, failed)?;
    if !ok {
        bail!("cargo test {} failed: {passed} passed, {failed} failed", which.join(" "));
    }
    if passed == 0 {
        bail!("cargo test {} ran no test", which.join(" "));
    }
    Ok(())
}

/// Sums the closing lines of libtest.
fn count(out: &str) -> (u64, u64) {
    let field = |line: &str, name: &str| -> u64 {
        line.split([';', '.'])
            .filter_map(|part| part.trim().strip_suffix(name))
            .filter_map(|n| n.trim().parse::<u64>().ok())
            .sum()
    };
    out.lines()
        .filter(|line| line.starts_with("test result:"))
        .fold((0, 0), |(p, f), line| (p + field(line, " passed"), f + field(line, " failed")))
}

/// Profiles of programs that run seeds: the `sim` profile pays off when they run for longer than it takes to
/// build.
const BRIEFLY: &[&str] = &["--profile", "dev"];
const FOR_LONG: &[&str] = &["--profile", "sim"];

/// Runs the simulator with these arguments.
pub fn simulate(args: &[String]) -> Result<()> {
    if !sh::root().join("crates/sim").exists() {
        bail!("there is no simulator in this tree");
    }
    let for_long = args.iter().any(|arg| arg == "--ledger" || arg.starts_with("--minutes"));
    let mut all = vec!["run", "--quiet", "--package", "sim", "--bin", "sim"];
    all.extend(if for_long { FOR_LONG } else { BRIEFLY });
    all.push("--");
    all.extend(args.iter().map(String::as_str));
    sh::run("cargo", &all)?;
    add_counts("sim", 1, 0)
}

/// Head of the table that `planted --save` writes.
const PLANTED_HEAD: &str = "# Planted bugs\n\n\
    A planted bug is a plausible mistake in the code that one run of the simulator switches on. The simulator must find\n\
    each of them. `crates/types/src/planted.rs` describes them; `cargo xtask planted --save` writes this page.\n\n\
    *found after*: seeds that ran until the bug was found, two at a time. *hits*: how often the mistake was made in\n\
    them. A seed counts only when it passes without the bug. Seeds from 1, from 100 000 and from 400 000 take turns,\n\
    because only the later ones are aimed at the newest classes of faults (`Class::LATE_AIMS`, `Class::LATER_AIMS`).\n\
    *nth of a class*: random schedules show the mistake at most once in a thousand seeds, so the search takes only\n\
    runs that are aimed at this class of faults. *observed*: the first failure, cut to 90 characters.\n\n";

/// Head of the hand-written section below the table, which is kept.
const PLANTED_NOTES: &str = "\n## How the last ones were found\n";

/// Plants bugs and hunts them with these arguments; `--save` writes the table to docs/planted.md.
pub fn planted(args: &[String]) -> Result<()> {
    plant(args, FOR_LONG)
}

fn plant(args: &[String], build: &[&str]) -> Result<()> {
    let mut all = vec!["run", "--quiet", "--package", "sim", "--features", "planted", "--bin", "planted"];
    all.extend(build);
    all.push("--");
    all.extend(args.iter().map(String::as_str).filter(|arg| *arg != "--save"));
    if !args.iter().any(|arg| arg == "--save") {
        return sh::run("cargo", &all);
    }
    let (_, commit) = sh::output("git", &["rev-parse", "--short", "HEAD"])?;
    let (ok, table) = sh::output("cargo", &all)?;
    let path = sh::root().join("docs/planted.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let notes = old.find(PLANTED_NOTES).map_or("", |at| &old[at..]);
    let text =
        format!("{PLANTED_HEAD}Commit {}, `cargo xtask planted {}`:\n\n{table}{notes}", commit.trim(), args.join(" "));
    std::fs::write(path, text)?;
    print!("{table}");
    if !ok {
        bail!("not every planted bug was found");
    }
    Ok(())
}

/// Hunts the bugs of [`CI_PLANTED`].
fn plant_few() -> Result<()> {
    let bugs = CI_PLANTED.iter().flat_map(|bug| ["--bug", bug]);
    let args: Vec<String> = bugs.chain(CI_PLANTED_LIMITS.iter().copied()).map(String::from).collect();
    plant(&args, BRIEFLY)?;
    add_counts("planted", CI_PLANTED.len() as u64, 0)
}

/// Drives every fuzz target, and the canaries, with these arguments.
pub fn fuzz(args: &[String]) -> Result<()> {
    let mut all = vec!["run", "--quiet", "--package", "fuzzing", "--", "all"];
    all.extend(args.iter().map(String::as_str));
    let (ok, out) = sh::output("cargo", &all)?;
    print!("{out}");
    let (passed, failed) = closing_count(&out, "fuzz: ");
    add_counts("fuzz", passed, failed)?;
    if !ok || passed == 0 {
        bail!("fuzzing failed: {passed} targets passed, {failed} failed");
    }
    Ok(())
}

/// Reads the closing line of a driver, for example `fuzz: N passed, N failed`.
fn closing_count(out: &str, name: &str) -> (u64, u64) {
    let summary = out.lines().rev().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    count(&format!("test result: ok. {}", summary.replace(',', ";")))
}

/// Builds the Python package, and runs its tests and examples with a cluster.
fn python() -> Result<()> {
    let (ok, out) = sh::output("scripts/python", &["test"])?;
    print!("{out}");
    let (passed, failed) = closing_count(&out, "python: ");
    add_counts("python", passed, failed)?;
    if !ok || passed == 0 {
        bail!("the tests of the Python package failed: {passed} passed, {failed} failed");
    }
    Ok(())
}

/// Crates whose pages a Rust program reads: the API, and the values in it.
const DOCUMENTED: &[&str] = &["client", "clientloop", "clientthread", "control", "device", "osdpages", "types"];

/// Builds the pages of the Rust API. A link without a target is a failure.
fn docs() -> Result<()> {
    let strict = "build.rustdocflags=[\"-Dwarnings\",\"-Drustdoc::broken_intra_doc_links\"]";
    // The binary has no page here. With it, shared crates have the features of the other steps, and are not checked again.
    let mut all = vec!["--config", strict, "doc", "--quiet", "--no-deps", "--lib", "--package", "cli"];
    all.extend(DOCUMENTED.iter().flat_map(|package| ["--package", package]));
    sh::run("cargo", &all)?;
    add_counts("docs", DOCUMENTED.len() as u64, 0)
}

fn deny() -> Result<()> {
    if !sh::exists("cargo-deny") {
        println!("deny: skipped, cargo-deny is not installed (`make deny` installs it)");
        return Ok(());
    }
    sh::run("cargo", &["deny", "check", "bans", "licenses", "sources"])
}

fn counts_file() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| sh::root().join("target"), PathBuf::from);
    std::fs::create_dir_all(&target)?;
    Ok(target.join("basalt-test-counts"))
}

fn clear_counts() -> Result<()> {
    match std::fs::remove_file(counts_file()?) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

/// Adds to the sum that [`totals`] prints.
pub fn add_counts(what: &str, passed: u64, failed: u64) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(counts_file()?)?;
    writeln!(file, "{what} {passed} {failed}")?;
    Ok(())
}

/// Prints `tests: N passed, N failed` over everything that was added.
pub fn totals() -> Result<()> {
    let text = std::fs::read_to_string(counts_file()?).context("no test has run yet")?;
    let (mut passed, mut failed) = (0u64, 0u64);
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1).filter_map(|w| w.parse::<u64>().ok());
        passed += words.next().unwrap_or(0);
        failed += words.next().unwrap_or(0);
    }
    println!("tests: {passed} passed, {failed} failed");
    if failed > 0 || passed == 0 {
        bail!("{failed} of {} failed", passed + failed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn passes_are_counted_from_the_closing_line_of_a_driver() {
        let out = "text 9 runs, 3 % got in\nfuzz: 20 passed, 1 failed\n";
        assert_eq!(super::closing_count(out, "fuzz: "), (20, 1));
        assert_eq!(super::closing_count("it broke\n", "fuzz: "), (0, 0));
        let out = "python: ok: 36 tests\npython: 40 passed, 0 failed\n";
        assert_eq!(super::closing_count(out, "python: "), (40, 0));
    }

    #[test]
    fn counts_are_summed_over_all_binaries() {
        let out = "test result: ok. 6 passed; 0 failed; 0 ignored; 0 measured\nx\n\
                   test result: FAILED. 2 passed; 3 failed; 1 ignored; 0 measured\n";
        assert_eq!(super::count(out), (8, 3));
    }
}
