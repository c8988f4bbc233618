//! Checks of the program against its pages: every flag of the help is in the manual, every code has a row.

mod json;

use crate::args::Cli;
use crate::explain;
use clap::CommandFactory;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use types::codes::{self, CODES};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Heading (`## basalt dev up`) → text of its section.
fn sections(page: &str) -> BTreeMap<String, String> {
    let parts = page.split("\n## ").skip(1);
    parts
        .map(|part| part.split_once('\n').map_or((part.into(), String::new()), |(h, t)| (h.into(), t.into())))
        .collect()
}

/// Calls `visit` with the words of every command that help shows, deepest last.
fn walk(command: &clap::Command, path: &str, visit: &mut impl FnMut(&str, &clap::Command)) {
    visit(path, command);
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        walk(sub, &format!("{path} {}", sub.get_name()), visit);
    }
}

#[test]
fn every_flag_that_help_names_is_in_the_section_of_its_command() {
    let page = read("docs/man/basalt.md");
    let sections = sections(&page);
    let mut missing = Vec::new();
    walk(&Cli::command(), "basalt", &mut |path, command| {
        // The flags of a command that only groups others are in their sections.
        let gathers = path != "basalt" && command.has_subcommands() && !command.get_positionals().any(|_| true);
        let Some(section) = sections.get(path) else {
            missing.extend((!gathers).then(|| format!("no section `## {path}`")));
            return;
        };
        let flags = command.get_arguments().filter(|a| !a.is_hide_set() && (path == "basalt" || !a.is_global_set()));
        for flag in flags.filter_map(|a| a.get_long()) {
            let named = section.contains(&format!("`--{flag}`")) || section.contains(&format!("`--{flag} "));
            missing.extend((!named).then(|| format!("`## {path}` lacks --{flag}")));
        }
    });
    assert!(missing.is_empty(), "docs/man/basalt.md: {}", missing.join("; "));
    assert!(page.find("```text").is_some_and(|at| at < page.find("\n## ").unwrap_or(0)), "examples come first");
}

#[test]
fn the_manual_names_no_flag_and_no_command_that_is_not_there() {
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    walk(&Cli::command(), "basalt", &mut |path, command| {
        let flags = command.get_arguments().filter(|a| !a.is_hide_set()).filter_map(|a| a.get_long());
        let own = flags.chain(["help", "version"]).map(str::to_owned).collect();
        known.insert(path.to_owned(), own);
    });
    for (heading, text) in sections(&read("docs/man/basalt.md")) {
        let flags = known.get(&heading).unwrap_or_else(|| panic!("`## {heading}` is no command"));
        let rows = text.lines().filter(|line| line.starts_with("| `--"));
        for row in rows {
            let first = row.split('|').nth(1).unwrap_or("");
            for flag in first.split("`--").skip(1) {
                let name: String = flag.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                assert!(flags.contains(&name), "`## {heading}` names --{name}, which it does not take");
            }
        }
    }
}

/// Returns the words of the first command of a line of shell. A comment, or a wide gap, ends it.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.split("  ").next().unwrap_or_default().chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '#' | '|' | '>' | '<' | ';' | '&' if !quoted => break,
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_example_is_a_command_line_that_this_program_takes() {
    let mut examples = Vec::new();
    walk(&Cli::command(), "basalt", &mut |path, command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        examples.extend(help.lines().map(|line| (format!("help of {path}"), line.trim().to_owned())));
    });
    for entry in std::fs::read_dir(root().join("docs/man")).expect("a folder").flatten() {
        let name = format!("docs/man/{}", entry.file_name().display());
        let page = read(&name).replace("\\\n", " ");
        let blocks = page.split("```").skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        examples.extend(blocks.iter().flat_map(|block| block.lines()).map(|line| (name.clone(), line.to_owned())));
    }
    let mut count = 0;
    for (place, line) in examples.iter().filter(|(_, line)| line.starts_with("basalt ")) {
        let parsed = Cli::command().try_get_matches_from(words(line));
        assert!(parsed.is_ok(), "{place}: `{line}`: {}", parsed.expect_err("it failed"));
        count += 1;
    }
    assert!(count > 200, "only {count} examples were found");
}

#[test]
fn every_metric_is_in_its_page_as_it_is_declared() {
    let old = read("docs/man/metrics.md");
    let mark = "| metric | kind | meaning |\n|---|---|---|\n";
    let head = old.split_once(mark).map_or("", |(head, _)| head);
    let mut page = format!("{head}{mark}");
    for row in explain::all_metrics() {
        writeln!(page, "| `{}` | {} | {} |", row.name, row.kind, row.help).expect("a string takes it");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(root().join("docs/man/metrics.md"), &page).expect("the page can be written");
    }
    assert_eq!(old, page, "UPDATE_GOLDEN=1 cargo test -p cli rewrites the page");
}

/// Checks a page with a table that the code declares: the rows stand between the head and the next blank
/// line.
fn check_table(path: &str, head: &str, rows: &str) {
    let page = read(path);
    let start = page.find(head).unwrap_or_else(|| panic!("{path} has no {head:?}")) + head.len();
    let end = page[start..].find("\n\n").map_or(page.len(), |at| start + at + 1);
    let wanted = format!("{}{rows}{}", &page[..start], &page[end..]);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(root().join(path), &wanted).expect("the page can be written");
    }
    assert_eq!(read(path), wanted, "UPDATE_GOLDEN=1 cargo test -p cli rewrites the page");
}

#[test]
fn every_health_check_is_in_its_page_as_it_is_declared() {
    let mut rows = String::new();
    for rule in control::health::RULES {
        let (severity, what, next) = (rule.severity.name(), rule.what, rule.next);
        writeln!(rows, "| `{}` | {severity} | {what} | {next} |", rule.code).expect("a string takes it");
    }
    check_table("docs/man/health.md", "| code | severity | holds when | what to do |\n|---|---|---|---|\n", &rows);
}

#[test]
fn every_kind_of_event_is_in_its_page_as_it_is_declared() {
    let mut rows = String::new();
    for kind in control::events::KINDS {
        writeln!(rows, "| `{}` | {} |", kind.name, kind.what).expect("a string takes it");
    }
    check_table("docs/man/events.md", "| kind | meaning |\n|---|---|\n", &rows);
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("crates can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns the numbers of four digits that follow `BSLT-`.
fn codes_in(text: &str) -> Vec<u32> {
    let digits = |rest: &str| -> String { rest.chars().take_while(char::is_ascii_digit).collect() };
    let all = text.match_indices("BSLT-").map(|(at, mark)| digits(&text[at + mark.len()..]));
    all.filter(|d| d.len() == 4).filter_map(|d| d.parse().ok()).collect()
}

#[test]
fn every_code_that_a_source_writes_has_a_row_in_the_registry() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let mut seen = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source is text");
        for code in codes_in(&text) {
            seen += 1;
            assert!(codes::lookup(code).is_some(), "{}: BSLT-{code} is not in the registry", file.display());
        }
    }
    assert!(seen > 50, "only {seen} codes were found: the search is broken");
}

#[test]
fn codes_that_no_source_raises_are_listed_as_such() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let registries = ["types/src/codes.rs", "explain/mod.rs"];
    files.retain(|file| {
        let path = file.to_string_lossy();
        !registries.iter().any(|end| path.ends_with(end)) && !path.contains("/tests") && !path.contains("fuzzing")
    });
    let texts: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).expect("a source is text")).collect();
    let is_named =
        |text: &String, name: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    let quiet = CODES.iter().filter(|code| !texts.iter().any(|text| is_named(text, code.name)));
    let quiet: Vec<u32> = quiet.map(|code| code.number).collect();
    assert_eq!(quiet, explain::NOT_RAISED, "explain::NOT_RAISED is the list of codes that no source names");
}
