//! `cargo xtask tidy`: the rules of the repository as a check. Each rule returns a list of faults; all are
//! printed.

mod codes;
mod determinism;
mod failpoints;
mod feature;
mod files;
mod functions;
mod nouns;
mod pages;
mod planted;
mod prose;
mod rings;

use crate::sh;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// Runs all rules.
pub fn run() -> Result<()> {
    let sources = sources()?;
    let mut faults = rings::check()?;
    faults.extend(files::check(&sources)?);
    faults.extend(functions::check(&sources)?);
    faults.extend(codes::check(&sources));
    faults.extend(determinism::check(&sources));
    faults.extend(planted::check(&sources)?);
    faults.extend(failpoints::check(&sources)?);
    faults.extend(prose::check(&sources)?);
    faults.extend(pages::check(&sources)?);
    faults.extend(nouns::check(&sources)?);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("tidy found {} faults", faults.len());
    }
    println!("tidy: {} files keep the rules", sources.len());
    Ok(())
}

/// One Rust file of the workspace.
pub struct Source {
    /// Path from the root, with forward slashes.
    pub path: String,
    pub text: String,
}

impl Source {
    /// Returns the crate's folder name, or `xtask`.
    pub fn package(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            other => other.unwrap_or(""),
        }
    }

    /// Whether the file holds only tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/testing/")
    }
}

fn sources() -> Result<Vec<Source>> {
    let root = sh::root();
    let mut files = Vec::new();
    for top in ["crates", "xtask"] {
        walk(&root.join(top), &mut files)?;
    }
    files.sort();
    let read = |path: PathBuf| -> Result<Source> {
        let text = std::fs::read_to_string(&path)?;
        Ok(Source { path: path.strip_prefix(&root)?.to_string_lossy().replace('\\', "/"), text })
    };
    files.into_iter().map(read).collect()
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                walk(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
