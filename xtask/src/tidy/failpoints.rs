//! Failpoints stay out of what is shipped: the feature is declared by `types`, forwarded by `cli` and switched on by
//! nobody by default, and every point of the registry has its hook in the rooms.

use super::{Source, feature};
use crate::sh;
use anyhow::{Context, Result};

/// Crates whose manifest may speak of the feature.
const ALLOWED: &[&str] = &["types", "cli"];
/// Where the points are named.
const REGISTRY: &str = "crates/types/src/failpoint.rs";
/// What the feature gates beside the registry: reading the variable that arms a point.
const GATED: &[&str] = &["crates/cli/src/main.rs"];

/// Gives one line a fault.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let mut faults = feature::manifests("failpoints", ALLOWED)?;
    faults.extend(shipped()?);
    faults.extend(hooks(sources)?);
    Ok(faults)
}

/// What cargo itself says of a default build, of the binary alone and of the whole workspace.
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

/// Every point has a hook in a room, and nothing but the registry and the place that arms knows the feature.
fn hooks(sources: &[Source]) -> Result<Vec<String>> {
    let registry = sources.iter().find(|s| s.path == REGISTRY).context("the registry of failpoints is gone")?;
    let points = points(&registry.text);
    let mut faults = Vec::new();
    if points.is_empty() {
        faults.push(format!("{REGISTRY}: no point is named"));
    }
    let rooms: Vec<&Source> =
        sources.iter().filter(|s| s.path != REGISTRY && !["xtask", "testkit"].contains(&s.package())).collect();
    for point in points {
        // In a line that passes it: two points may share a place.
        let hook = format!("Point::{point}");
        let passes = |line: &str| line.contains("pass(") && line.contains(&hook);
        if !rooms.iter().any(|s| s.text.lines().any(passes)) {
            faults.push(format!("{REGISTRY}: {point} has no hook"));
        }
    }
    faults.extend(feature::gates(rooms.into_iter().filter(|s| !GATED.contains(&s.path.as_str())), "failpoints"));
    Ok(faults)
}

/// The names in the table: `Name, "name", Role, "says";` is a row.
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
