//! A new noun of the inner layers is a decision: each public type of layers 0 to 3 stands in `docs/glossary.md`, or in the list
//! of exemptions `xtask/nouns.txt`. Types that are gone leave the list, so it says what there is.

use super::Source;
use crate::sh;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

const GLOSSARY: &str = "docs/glossary.md";
const EXEMPT: &str = "xtask/nouns.txt";
/// The outermost layer whose types are nouns of the design.
const LAYER_MAX: u64 = 3;

/// Gives one line a type without a meaning, and an exemption without a type.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let read = |path: &str| std::fs::read_to_string(sh::root().join(path)).with_context(|| path.to_owned());
    let (glossary, exempt) = (read(GLOSSARY)?, read(EXEMPT)?);
    let exempt: BTreeSet<&str> = exempt.lines().filter(|l| !l.starts_with('#')).map(str::trim).collect();
    let explained: BTreeSet<&str> = words(&glossary).collect();
    let mut layers = BTreeMap::new();
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for s in sources.iter().filter(|s| s.path.starts_with("crates/") && !s.is_test()) {
        let layer = match layers.get(s.package()) {
            Some(layer) => *layer,
            None => {
                let layer = layer_of(&read(&format!("crates/{}/Cargo.toml", s.package()))?);
                layers.insert(s.package().to_owned(), layer);
                layer
            }
        };
        if layer.is_some_and(|layer| layer <= LAYER_MAX) {
            for name in s.text.lines().filter_map(type_of) {
                found.entry(name).or_insert(&s.path);
            }
        }
    }
    let new = found.iter().filter(|(name, _)| !explained.contains(*name) && !exempt.contains(*name));
    let mut faults: Vec<String> =
        new.map(|(name, path)| format!("{path}: {name} stands neither in {GLOSSARY} nor in {EXEMPT}")).collect();
    let gone = exempt.iter().filter(|name| !name.is_empty() && !found.contains_key(**name));
    faults.extend(gone.map(|name| format!("{EXEMPT}: there is no type {name}")));
    Ok(faults)
}

/// The layer that a manifest states.
fn layer_of(manifest: &str) -> Option<u64> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("ring = "))?;
    line.trim().parse().ok()
}

/// The public type that a line declares.
fn type_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    words(rest).next()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{layer_of, type_of};

    #[test]
    fn declared_types_and_layers_are_read() {
        assert_eq!(type_of("pub struct Batch<'a> {"), Some("Batch"));
        assert_eq!(type_of("pub enum Seal { A }"), Some("Seal"));
        assert_eq!(type_of("    pub struct Inner;"), None);
        assert_eq!(type_of("pub(crate) struct Own;"), None);
        assert_eq!(layer_of("[package.metadata.basalt]\nring = 2\n"), Some(2));
    }
}
