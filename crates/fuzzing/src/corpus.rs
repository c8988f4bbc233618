//! Inputs that are kept with the source.
//!
//! `corpus/TARGET/*` holds initial inputs, and `regressions/TARGET/*` holds inputs that once failed. The driver and the
//! tests ask by a target's name, and get paths and bytes in a fixed order.

use std::path::{Path, PathBuf};

/// Returns the folder of this crate.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every kept input of a target.
pub fn of(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = folder(&root().join("corpus").join(target));
    all.extend(folder(&root().join("regressions").join(target)));
    all
}

/// Returns the files of a folder in name order, or nothing if the folder does not exist.
fn folder(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_file()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}
