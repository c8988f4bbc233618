//! Rules of the design that are cited have a section in `docs/design.md`, and tests that the page names exist.

use super::Source;
use crate::sh;
use anyhow::Result;
use std::collections::BTreeSet;

const PAGE: &str = "docs/design.md";

/// A word of the page with so many underscores is the name of a test.
const TEST_UNDERSCORES_MIN: usize = 4;

/// Gives one line a rule that is cited and has no section, or a test that is named and gone.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(sh::root().join(PAGE))?;
    let sections = sections(&page);
    let functions: BTreeSet<&str> = sources.iter().flat_map(|s| functions(&s.text)).collect();
    let gone = named(&page).filter(|name| !functions.contains(name));
    let mut faults: Vec<String> = gone.map(|name| format!("{PAGE}: there is no test {name}")).collect();
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

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next())
}

/// Names of tests, in backticks.
fn named(page: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= TEST_UNDERSCORES_MIN
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    page.split('`').filter(is_name)
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
    use super::{functions, named, rules, sections};

    #[test]
    fn a_cited_rule_is_told_from_other_words() {
        assert_eq!(rules("/// A lease (R3), see R11, not RAM, R2D2, R_1 or r4"), ["R3", "R11"]);
        assert!(rules("// rule R").is_empty());
        assert_eq!(functions("pub fn a(x: u8)\nfn b_c()").collect::<Vec<_>>(), ["a", "b_c"]);
        assert_eq!(named("see `a_b_c_d_e` and `a_b`, a_b_c_d_f").collect::<Vec<_>>(), ["a_b_c_d_e"]);
        let page = "# Design\n### R3. Lease and election\ntext R7\n### R11. Restart\n";
        assert_eq!(sections(page).into_iter().collect::<Vec<_>>(), ["R11", "R3"]);
    }
}
