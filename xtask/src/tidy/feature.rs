//! A feature for tests alone: the manifests and sources that may name it.
//!
//! Input: the feature's name, from `failpoints` and `planted`. Output: faults, one line each. Invariant: the hooks of
//! such a feature are plain calls, so that a build without it is the same code.

use super::Source;
use crate::sh;
use anyhow::{Context, Result};

/// Checks that no manifest but those of the allowed crates names the feature.
pub fn manifests(feature: &str, allowed: &[&str]) -> Result<Vec<String>> {
    let root = sh::root();
    let mut files = vec![root.join("Cargo.toml"), root.join("xtask/Cargo.toml")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        files.push(entry?.path().join("Cargo.toml"));
    }
    let mut faults = Vec::new();
    for file in files.iter().filter(|f| f.exists()) {
        let package = file.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        faults.extend(fault(&file.display().to_string(), &package, &text, feature, allowed));
    }
    Ok(faults)
}

fn fault(path: &str, package: &str, text: &str, feature: &str, allowed: &[&str]) -> Option<String> {
    let named = text.contains(feature) && !allowed.contains(&package);
    named.then(|| format!("{path}: only {} may name the feature `{feature}`", allowed.join(" and ")))
}

/// Checks that none of `sources` tests for the feature itself.
pub fn gates<'a>(sources: impl IntoIterator<Item = &'a Source>, feature: &str) -> Vec<String> {
    let gate = format!("feature = \"{feature}\"");
    let gated = sources.into_iter().filter(|s| s.text.lines().any(|line| line.contains(&gate)));
    gated.map(|s| format!("{}: hooks are plain calls, the feature is the registry's alone", s.path)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_manifest_that_names_the_feature_is_a_fault_unless_it_may() {
        let fault = |package, text| super::fault("Cargo.toml", package, text, "planted", &["types", "sim"]);
        let text = "[features]\nplanted = []";
        assert_eq!(fault("sim", text), None);
        assert_eq!(fault("osd", "[features]"), None);
        let told = "Cargo.toml: only types and sim may name the feature `planted`";
        assert_eq!(fault("osd", text).as_deref(), Some(told));
    }
}
