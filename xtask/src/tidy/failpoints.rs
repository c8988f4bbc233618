//! Failpoints stay out of the shipped binary. `types` declares the feature, `cli` forwards it, and no default build
//! enables it. Every point of the registry has a hook.

use super::{Source, feature};
use crate::sh;
use anyhow::{Context, Result};

/// Crates whose manifest may name the feature.
const ALLOWED: &[&str] = &["types", "cli"];
/// The registry of the points.
const REGISTRY: &str = "crates/types/src/failpoint.rs";
/// The code besides the registry that the feature gates: reading the variable that arms a point.
const GATED: &[&str] = &["crates/cli/src/main.rs"];

/// Returns one line for each fault.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let mut faults = feature::manifests("failpoints", ALLOWED)?;
    faults.extend(shipped()?);
    faults.extend(hooks(sources)?);
    Ok(faults)
}

/// Checks with cargo that a default build lacks the feature, for the binary alone and for the whole workspace.
fn shipped() -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for what in [&["--package", "cli"][..], &["--workspace"]] {
        let tree = [&["tree", "--locked", "--edges", "features"][..], what].concat();
        let (ok, out) = sh::output("cargo", &tree)?;
        if !ok || !out.contains("types v") {
            faults.push(format!("`cargo {}` does not tell what is built", tree.join(" ")));
        } else if out.lines().any(|line| line.contains("feature \"failpoints\"")) {
            faults.push(format!("a default build has failpoints: cargo {}", tree.join(" ")));
        }
    }
    Ok(faults)
}

/// Checks that every point has a hook, and that only the registry and the gated code name the feature.
fn hooks(sources: &[Source]) -> Result<Vec<String>> {
    let registry = sources.iter().find(|s| s.path == REGISTRY).context("the registry of failpoints is gone")?;
    let points = points(&registry.text);
    let mut faults = Vec::new();
    if points.is_empty() {
        faults.push(format!("{REGISTRY}: no point is named"));
    }
    let sources: Vec<&Source> =
        sources.iter().filter(|s| s.path != REGISTRY && !["xtask", "testkit"].contains(&s.package())).collect();
    for point in points {
        // The hook is in a line that calls `pass`: two points may share a place.
        let hook = format!("Point::{point}");
        let passes = |line: &str| line.contains("pass(") && line.contains(&hook);
        if !sources.iter().any(|s| s.text.lines().any(passes)) {
            faults.push(format!("{REGISTRY}: {point} has no hook"));
        }
    }
    faults.extend(feature::gates(sources.into_iter().filter(|s| !GATED.contains(&s.path.as_str())), "failpoints"));
    Ok(faults)
}

/// Returns the names in the table: `Name, "name", Role, "says";` is a row.
fn points(text: &str) -> Vec<&str> {
    let row = |line: &'_ str| -> bool { line.trim_end().ends_with("\";") && line.matches('"').count() == 4 };
    text.lines().filter(|line| row(line)).filter_map(|line| line.trim().split(',').next()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_of_the_registry_are_found_and_nothing_else() {
        let text =
            "registry! {\n    One, \"one\", Osd, \"It is.\";\n    Two, \"two\", Meta, \"Too.\";\n}\nlet a = \"b\";";
        assert_eq!(super::points(text), ["One", "Two"]);
    }
}
