//! Checks that no dependency points up: a crate uses lower rings, and of its own ring only the crates
//! that the architecture names.

use crate::sh;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;

/// Same-ring edges that the architecture allows; for frontends, all edges above ring 0.
const SAME_RING: &[(&str, &[&str])] = &[
    ("device", &["types"]),
    ("wire", &["types"]),
    ("layout", &["types"]),
    ("group", &["consensus"]),
    ("control", &["placement"]),
    ("engine", &["env", "telemetry"]),
    ("bus", &["env", "telemetry"]),
    ("clientloop", &["client"]),
    ("clientthread", &["client", "clientloop"]),
];
/// Crates that a frontend may use (ring 0 is free to all).
const FRONTEND_USES: &[&str] = &["device", "env", "telemetry"];
const FRONTENDS: &[&str] = &["nbd"];
/// Crates of rings from here on are tests and tools: a product crate depends on them only as dev-dependencies.
const TESTING: u64 = 8;

/// Returns one line for each wrong edge.
pub fn check() -> Result<Vec<String>> {
    let (ok, out) = sh::output("cargo", &["metadata", "--no-deps", "--format-version", "1", "--offline"])?;
    if !ok {
        bail!("cargo metadata failed");
    }
    let meta: Value = serde_json::from_str(&out)?;
    let packages = meta["packages"].as_array().context("packages")?;
    let mut rings = BTreeMap::new();
    let mut faults = Vec::new();
    for p in packages {
        let name = p["name"].as_str().context("name")?;
        match p["metadata"]["basalt"]["ring"].as_u64() {
            Some(ring) => {
                rings.insert(name, ring);
            }
            None => faults.push(format!("{name}: Cargo.toml has no [package.metadata.basalt] ring")),
        }
    }
    for p in packages {
        let name = p["name"].as_str().context("name")?;
        for dep in p["dependencies"].as_array().context("dependencies")? {
            let to = dep["name"].as_str().context("dependency")?;
            let is_dev = dep["kind"].as_str() == Some("dev");
            let (Some(from_ring), Some(to_ring)) = (rings.get(name), rings.get(to)) else { continue };
            if !is_dev && !allowed(name, *from_ring, to, *to_ring) {
                faults.push(format!("{name} (ring {from_ring}) must not depend on {to} (ring {to_ring})"));
            }
        }
    }
    Ok(faults)
}

fn allowed(from: &str, from_ring: u64, to: &str, to_ring: u64) -> bool {
    if from_ring >= TESTING {
        return true;
    }
    if to_ring >= TESTING {
        return from == "cli" && to == "bench";
    }
    if FRONTENDS.contains(&from) {
        return to_ring == 0 || FRONTEND_USES.contains(&to);
    }
    let same = SAME_RING.iter().any(|(f, list)| *f == from && list.contains(&to));
    to_ring < from_ring || same || (from == "cli" && to_ring == from_ring)
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn an_edge_that_points_up_is_refused() {
        assert!(!allowed("types", 0, "env", 2));
        assert!(!allowed("engine", 2, "bus", 2));
        assert!(!allowed("nbd", 4, "client", 3));
        assert!(allowed("group", 1, "consensus", 1));
        assert!(allowed("osd", 3, "engine", 2));
        assert!(!allowed("osd", 3, "sim", 8));
        assert!(!allowed("osd", 3, "simenv", 8));
        assert!(allowed("sim", 8, "simenv", 8));
    }
}
