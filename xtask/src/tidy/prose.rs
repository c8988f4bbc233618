//! Comments speak the English of the field's manuals, and names of tests can be read at one glance.
//!
//! Two habits are counted per thousand comment lines and held by the ratchet: pronouns for persons, where replicas and data
//! are meant, and comment lines that open with a question word or with a preposition instead of their subject.

use super::{Source, files};
use anyhow::Result;

/// Words that stand for persons.
const PERSONIFIED: &[&str] = &["who", "nobody", "somebody", "everybody", "whoever", "whom", "anew"];
/// First words of a sentence without its subject.
const HEADLESS: &[&str] = &["What", "Who", "Whoever", "Of", "As", "Whom", "Nobody"];
/// Files that membership changes replace: their words go with them.
const LEAVING: &[&str] = &["crates/osd/src/tests/answers.rs"];
/// The longest name of a test.
const TEST_NAME_MAX: usize = 70;

/// Gives one line a habit that grew beyond its ratchet, or a name that is too long.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let allowed = files::ratchet("prose")?;
    let mut faults = Vec::new();
    let mut lines = 0;
    let mut habits = [("personified", 0, is_personified as fn(&str) -> bool), ("headless", 0, is_headless)];
    for s in sources {
        if LEAVING.iter().any(|leaving| s.path.starts_with(leaving)) {
            continue;
        }
        faults.extend(long_test_names(s));
        for text in s.text.lines().filter_map(comment) {
            lines += 1;
            habits.iter_mut().filter(|(_, _, has)| has(text)).for_each(|(_, count, _)| *count += 1);
        }
    }
    for (habit, count, _) in habits {
        let per_thousand = (count * 1000usize).div_ceil(lines.max(1));
        let max = allowed.get(habit).copied().unwrap_or(0);
        if per_thousand > max {
            faults
                .push(format!("{per_thousand} of 1,000 comment lines are {habit} ({count} of {lines}); at most {max}"));
        }
    }
    Ok(faults)
}

/// The text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}

fn is_personified(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| PERSONIFIED.iter().any(|w| word.eq_ignore_ascii_case(w)))
}

fn is_headless(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).next().is_some_and(|word| HEADLESS.contains(&word))
}

fn long_test_names(s: &Source) -> Vec<String> {
    let lines: Vec<&str> = s.text.lines().collect();
    let mut faults = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let Some(rest) = line.trim_start().trim_start_matches("async ").strip_prefix("fn ") else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or("");
        let before = lines[..n].iter().rev().take_while(|l| l.trim_start().starts_with("#["));
        let is_test = before.into_iter().any(|l| l.contains("test]") || l.contains("::test"));
        if is_test && name.len() > TEST_NAME_MAX {
            let (path, line, len) = (&s.path, n + 1, name.len());
            faults.push(format!("{path}:{line}: a test's name of {len} characters; at most {TEST_NAME_MAX}: {name}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_are_found_in_comments_and_nowhere_else() {
        assert_eq!(comment("    /// What waits."), Some("What waits."));
        assert_eq!(comment("let who = 1; // who"), None);
        assert!(is_headless("What waits.") && !is_headless("Whatever waits.") && !is_headless("A thing."));
        assert!(is_personified("a replica, who waits") && is_personified("Nobody waits"));
        assert!(!is_personified("the whole `who_knows`"));
    }

    #[test]
    fn a_long_name_is_found_of_tests_alone() {
        let name = "x".repeat(TEST_NAME_MAX + 1);
        let source = |text: String| Source { path: "crates/a/src/a.rs".into(), text };
        assert_eq!(long_test_names(&source(format!("#[test]\nfn {name}() {{}}\n"))).len(), 1);
        assert_eq!(long_test_names(&source(format!("#[tokio::test]\nasync fn {name}() {{}}\n"))).len(), 1);
        assert_eq!(long_test_names(&source(format!("fn {name}() {{}}\n"))).len(), 0);
    }
}
