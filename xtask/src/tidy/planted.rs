//! Planted bugs stay out of the shipped binary. `sim` alone forwards the feature, the binary `basalt` is
//! built without it, and every bug of the registry has a hook.

use super::{Source, feature};
use crate::sh;
use anyhow::{Context, Result};

/// Crates whose manifest may name the feature.
const ALLOWED: &[&str] = &["types", "sim"];
/// The registry of the bugs.
const REGISTRY: &str = "crates/types/src/planted.rs";

/// Returns one line for each fault.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let mut faults = feature::manifests("planted", ALLOWED)?;
    faults.extend(shipped()?);
    faults.extend(hooks(sources)?);
    Ok(faults)
}

/// Checks with cargo that the shipped binary lacks the feature, with every other feature enabled.
fn shipped() -> Result<Vec<String>> {
    let tree = ["tree", "--locked", "--edges", "features", "--package", "cli", "--all-features"];
    let (ok, out) = sh::output("cargo", &tree)?;
    if !ok || !out.contains("types v") {
        return Ok(vec!["`cargo tree` does not tell what the shipped binary is made of".to_owned()]);
    }
    let planted = out.lines().any(|line| line.contains("feature \"planted\""));
    Ok(planted.then(|| "the shipped binary is built with planted bugs".to_owned()).into_iter().collect())
}

/// Checks that every bug has a hook, `on(Bug::Name)`, and that no hook tests for the feature itself.
fn hooks(sources: &[Source]) -> Result<Vec<String>> {
    let registry = sources.iter().find(|s| s.path == REGISTRY).context("the registry of planted bugs is gone")?;
    let bugs = bugs(&registry.text);
    let mut faults = Vec::new();
    if bugs.is_empty() {
        faults.push(format!("{REGISTRY}: no bug is named"));
    }
    let sources: Vec<&Source> = sources.iter().filter(|s| s.path != REGISTRY && s.package() != "xtask").collect();
    for bug in bugs {
        let hook = format!("on(Bug::{bug})");
        if !sources.iter().any(|s| s.text.contains(&hook)) {
            faults.push(format!("{REGISTRY}: {bug} has no hook"));
        }
    }
    faults.extend(feature::gates(sources, "planted"));
    Ok(faults)
}

/// Returns the names in the table: `Name, "name", "rule",` opens a row.
fn bugs(text: &str) -> Vec<&str> {
    let row = |line: &'_ str| -> bool { line.trim_end().ends_with("\",") && line.matches('"').count() == 4 };
    let rows = text.lines().filter(|line| row(line));
    rows.filter_map(|line| line.trim().split(',').next()).filter(|name| !name.contains('"')).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_of_the_registry_are_found_and_nothing_else() {
        let text =
            "registry! {\n    OneBug, \"one-bug\", \"R1\",\n        \"it is wrong\";\n    Two, \"two\", \"R2\",\n}";
        assert_eq!(super::bugs(text), ["OneBug", "Two"]);
    }
}
