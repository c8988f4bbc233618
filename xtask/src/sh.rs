//! Runs commands: each is printed before it runs, timed, and its failure is an error.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The workspace root: of the tree from which `cargo` runs this program. The tree that built it can be another one
/// when several share a target directory.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

#[allow(clippy::disallowed_methods, reason = "a tool of developers")]
fn now() -> Instant {
    Instant::now()
}

/// Tells how long a step took, if it was long: the sum has a limit.
fn tell_time(start: Instant) {
    let seconds = start.elapsed().as_secs();
    if seconds >= 5 {
        eprintln!("# took {seconds} s");
    }
}

/// Runs a command in the workspace root with its output shown.
///
/// # Errors
/// When it cannot start or fails.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    eprintln!("$ {program} {}", args.join(" "));
    let start = now();
    let status = Command::new(program).args(args).current_dir(root()).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("starting {program}"))?;
    if !status.success() {
        bail!("`{program} {}` failed: {status}", args.join(" "));
    }
    tell_time(start);
    Ok(())
}

/// Runs a command as [`run`] does, but captures standard output, and returns it with the success flag.
///
/// # Errors
/// When it cannot start.
pub fn output(program: &str, args: &[&str]) -> Result<(bool, String)> {
    let start = now();
    let out = Command::new(program)
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {program}"))?;
    tell_time(start);
    Ok((out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned()))
}

/// Whether a program is on the PATH.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}
