//! Rules about whole files: a head that describes the module, length, forbidden words.

use super::Source;
use crate::sh;
use anyhow::Result;
use std::collections::BTreeMap;

/// A file longer than this needs a line in the ratchet.
const LINES_MAX: usize = 800;
/// Crates that may hold `unsafe`.
const UNSAFE: &[&str] = &["types", "env", "bench", "capi"];
/// Rings 1–3: no simulation switches inside.
const NO_CFG_SIM: &[&str] = &[
    "consensus",
    "placement",
    "group",
    "recovery",
    "volume",
    "control",
    "env",
    "telemetry",
    "engine",
    "bus",
    "api",
    "metastore",
    "osd",
    "meta",
    "client",
    "device",
];

/// Returns one line for each fault.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let allowed = ratchet("file")?;
    let mut faults = Vec::new();
    for s in sources {
        let lines = s.text.lines().count();
        let max = allowed.get(&s.path).copied().unwrap_or(LINES_MAX).max(LINES_MAX);
        if lines > max {
            faults.push(format!("{}: {lines} lines; at most {max}", s.path));
        }
        if !s.text.starts_with("//!") && s.package() != "xtask" {
            faults.push(format!("{}: does not open with `//!`", s.path));
        }
        faults.extend(words(s));
    }
    Ok(faults)
}

fn words(s: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    if s.package() == "xtask" {
        return faults;
    }
    let code = |line: &&str| !line.trim_start().starts_with("//");
    for (n, line) in s.text.lines().enumerate().filter(|(_, l)| code(l)) {
        let mut fault = |what: &str| faults.push(format!("{}:{}: {what}", s.path, n + 1));
        if line.contains("unsafe {") && !UNSAFE.contains(&s.package()) {
            fault("`unsafe` lives in types, env, bench and capi alone");
        }
        if line.contains("cfg(sim)") && NO_CFG_SIM.contains(&s.package()) {
            fault("no `cfg(sim)` in rings 1-3: the simulator runs the shipped code");
        }
        if line.contains("#[ignore") {
            fault("an ignored test proves nothing");
        }
    }
    faults
}

/// Reads the `kind path number` lines of xtask/ratchet.txt: today's excess, which may only shrink.
pub fn ratchet(kind: &str) -> Result<BTreeMap<String, usize>> {
    let text = std::fs::read_to_string(sh::root().join("xtask/ratchet.txt"))?;
    let mut map = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [k, path, n] = words[..]
            && k == kind
        {
            map.insert(path.to_owned(), n.parse()?);
        }
    }
    Ok(map)
}
