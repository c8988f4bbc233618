//! Finds the commit that is being built: `BASALT_COMMIT` of the environment, else the answer of git, else
//! `unknown`.
//!
//! No other crate names the commit, so only this one is rebuilt for another commit. A tarball has no `.git`, and a
//! package is built with `BASALT_COMMIT` set.

use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo:rerun-if-env-changed=BASALT_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let told = std::env::var("BASALT_COMMIT").ok().filter(|told| !told.is_empty());
    // A tarball that is unpacked inside another project's checkout is not that project's commit.
    let ours = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../.git").exists();
    if told.is_none() && ours {
        // The log of HEAD gets a line at every commit, checkout and rebase.
        for name in ["logs/HEAD", "HEAD"] {
            let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name]);
            if let Some(path) = path.filter(|path| Path::new(path).exists()) {
                println!("cargo:rerun-if-changed={path}");
            }
        }
    }
    let found = || git(&["describe", "--always", "--abbrev=12", "--exclude=*"]);
    let commit = told.or_else(|| ours.then(found).flatten()).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BASALT_COMMIT={commit}");
}
