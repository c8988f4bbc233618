//! A counted run: it begins where the ledger ends or at `--start`, whichever is later, at a commit, and adds its seeds to the ledger while it runs.

use crate::{Args, batch_of};
use anyhow::{Context, Result, bail};
use sim::batch;
use sim::ledger::{Ledger, Line};
use sim::summary::Sum;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Path of the ledger in the tree.
const PATH: &str = "crates/sim/ledger.csv";
/// Seeds between two writes of the ledger: a run that is killed loses no more.
const BLOCK: u64 = 200;

/// Runs blocks of seeds until the number or the time is over.
///
/// # Errors
/// The tree is not as committed, the ledger cannot be read or written, or the run has overrides.
pub fn run(args: &Args) -> Result<Sum> {
    if !args.overrides.to_args().is_empty() {
        bail!("a counted run changes nothing of what its seeds decide: leave out {}", args.overrides.to_args());
    }
    let commit = commit()?;
    let path = root().join(PATH);
    let mut ledger = match std::fs::read_to_string(&path) {
        Ok(text) => Ledger::parse(&text).with_context(|| format!("reading {PATH}"))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ledger::default(),
        Err(error) => return Err(error).with_context(|| format!("reading {PATH}")),
    };
    let began = batch::clock();
    let limit = args.minutes.map(|m| Duration::from_secs(60 * m));
    let mut all = Sum::default();
    loop {
        let left = args.seeds.saturating_sub(all.seeds);
        if limit.map_or(left == 0, |limit| began.elapsed() >= limit) {
            break;
        }
        let mut block = batch_of(args);
        (block.known, block.time, block.keep_going) = (Vec::new(), None, true);
        block.first = ledger.next_seed(args.start);
        block.seeds = if limit.is_some() { BLOCK } else { BLOCK.min(left) };
        let sum = block.run();
        ledger.add(Line {
            commit: commit.clone(),
            first: block.first,
            last: sum.last_seed,
            hours: sum.simulated.as_secs_f64() / 3600.0,
            operations: sum.operations(),
            failed: sum.failures.iter().map(|f| f.seed).collect(),
        });
        std::fs::write(&path, ledger.to_text()).with_context(|| format!("writing {PATH}"))?;
        all.merge(sum);
    }
    all.took = began.elapsed();
    println!("ledger: {} seeds in all, the next run begins at {}", ledger.seeds(), ledger.next_seed(1));
    Ok(all)
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate lies two levels under the root").to_path_buf()
}

/// Returns the commit that runs.
fn commit() -> Result<String> {
    let dirty = git(&["status", "--porcelain", "--", ".", &format!(":!{PATH}")])?;
    if let Some(line) = dirty.lines().next() {
        bail!("the tree is not as committed ({}): commit first, so that the ledger says what ran", line.trim());
    }
    Ok(git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned())
}

fn git(args: &[&str]) -> Result<String> {
    let out = Command::new("git").args(args).current_dir(root()).output().context("starting git")?;
    if !out.status.success() {
        bail!("`git {}` failed: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
