//! Rules of the design that are cited have a section in `docs/design.md`.

use super::Source;
use crate::sh;
use anyhow::Result;
use std::collections::BTreeSet;

const PAGE: &str = "docs/design.md";

/// Gives one line a rule that is cited and has no section.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(sh::root().join(PAGE))?;
    let sections = sections(&page);
    let mut faults = Vec::new();
    // The tests of this module cite rules that do not exist.
    for s in sources.iter().filter(|s| s.package() != "xtask") {
        for (n, line) in s.text.lines().enumerate().filter(|(_, l)| l.contains("//")) {
            let cited = rules(line).into_iter().filter(|rule| !sections.contains(rule));
            faults.extend(cited.map(|rule| format!("{}:{}: {rule} has no section in {PAGE}", s.path, n + 1)));
        }
    }
    Ok(faults)
}

/// Rules with a heading of their own: `### R9. Log reclamation`.
fn sections(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    headings.filter_map(|line| Some(line.split_once(". ")?.0.to_owned())).collect()
}

/// Words of a line that name a rule: `R` and a number.
fn rules(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_rule = |word: &&str| {
        word.strip_prefix('R').is_some_and(|n| !n.is_empty() && n.len() <= 2 && n.bytes().all(|b| b.is_ascii_digit()))
    };
    words.filter(is_rule).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{rules, sections};

    #[test]
    fn a_cited_rule_is_told_from_other_words() {
        assert_eq!(rules("/// A lease (R3), see R11, not RAM, R2D2, R_1 or r4"), ["R3", "R11"]);
        assert!(rules("// rule R").is_empty());
        let page = "# Design\n### R3. Lease and election\ntext R7\n### R11. Restart\n";
        assert_eq!(sections(page).into_iter().collect::<Vec<_>>(), ["R11", "R3"]);
    }
}
