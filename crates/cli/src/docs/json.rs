//! Checks of `docs/man/json.md`: each field of the golden files has a row in the section of its schema, each field of a printed
//! type has a row, and each schema has a section.

use super::{read, root, rust_files, sections};
use serde_json::Value;
use std::collections::BTreeSet;

/// Paths of all fields: `a.b` of objects, `a[].b` of lists of objects, `a[]` of lists of values.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            if !path.is_empty() {
                found.push(path.to_owned());
            }
            for (key, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                fields(value, &format!("{path}{dot}{key}"), found);
            }
        }
        Value::Array(items) => match items.first() {
            None => found.push(path.to_owned()),
            Some(Value::Object(object)) => {
                found.push(path.to_owned());
                for (key, value) in object {
                    fields(value, &format!("{path}[].{key}"), found);
                }
            }
            Some(_) => found.push(format!("{path}[]")),
        },
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn every_json_field_is_in_the_section_of_its_schema() {
    let page = read("docs/man/json.md");
    let sections = sections(&page);
    let mut missing = Vec::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("crates/cli/tests/golden")).expect("golden files").flatten() {
        let name = entry.file_name().to_string_lossy().trim_end_matches(".json").to_owned();
        let text = std::fs::read_to_string(entry.path()).expect("text");
        let Value::Object(mut golden) = serde_json::from_str(&text).expect("JSON") else {
            panic!("{name} is an object")
        };
        golden.remove("schema");
        let mut wanted = Vec::new();
        fields(&Value::Object(golden), "", &mut wanted);
        let section = sections.get(&format!("basalt.{name}/1")).map_or("", String::as_str);
        seen += wanted.len();
        // An empty list in a golden file has elements of an unknown kind.
        let has_row = |f: &String| section.contains(&format!("| `{f}` |")) || section.contains(&format!("| `{f}[]` |"));
        missing.extend(wanted.into_iter().filter(|f| !has_row(f)).map(|f| format!("{name}: {f}")));
    }
    assert!(missing.is_empty(), "docs/man/json.md lacks rows: {}", missing.join(", "));
    assert!(seen > 150, "only {seen} fields were found: the search is broken");
}

/// Sources of the types that commands print.
const PRINTED: &[&str] = &[
    "crates/bench/src/floor.rs",
    "crates/bench/src/load/config.rs",
    "crates/bench/src/load/report.rs",
    "crates/cli/src/device_info.rs",
    "crates/cli/src/verify/mod.rs",
    "crates/control/src/admin.rs",
    "crates/control/src/admin/faults.rs",
    "crates/control/src/admin/pools.rs",
    "crates/control/src/events.rs",
    "crates/control/src/found.rs",
    "crates/control/src/health.rs",
];

/// Returns the fields of the structs that this source serializes. The golden files lack those inside lists that are
/// empty in a healthy cluster.
fn serialized(source: &str) -> Vec<&str> {
    let derives =
        source.split("#[derive(").skip(1).filter(|part| part.split(')').next().unwrap_or("").contains("Serialize"));
    let bodies =
        derives.filter_map(|part| part.split_once("\n}").map(|(body, _)| body)).filter(|b| b.contains("struct "));
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let mut found = Vec::new();
    for body in bodies {
        let mut skipped = false;
        for line in body.lines().map(str::trim) {
            let name = line.strip_prefix("pub ").unwrap_or(line).split_once(": ").map(|(name, _)| name);
            let is_field = !line.starts_with(['/', '#']);
            found.extend(name.filter(|name| is_field && !skipped && is_name(name)));
            skipped = line == "#[serde(skip)]";
        }
    }
    found
}

#[test]
fn every_field_of_a_printed_type_has_a_row() {
    let page = read("docs/man/json.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names: BTreeSet<&str> =
        rows.filter_map(|row| row.rsplit('.').next()).map(|name| name.trim_end_matches("[]")).collect();
    let mut seen = 0;
    for path in PRINTED {
        let source = read(path);
        let fields = serialized(&source);
        assert!(!fields.is_empty(), "{path}: no field was found: the search is broken");
        seen += fields.len();
        let missing: Vec<&str> = fields.into_iter().filter(|field| !names.contains(field)).collect();
        assert!(missing.is_empty(), "docs/man/json.md lacks fields of {path}: {}", missing.join(", "));
    }
    assert!(seen > 150, "only {seen} fields were found: the search is broken");
}

#[test]
fn every_schema_that_a_command_prints_has_a_section() {
    let page = read("docs/man/json.md");
    let sections = sections(&page);
    let mut names = BTreeSet::new();
    let mut files = Vec::new();
    rust_files(&root().join("crates/cli/src"), &mut files);
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a source is text");
        let calls = ["json(\"", "json_line(\""].into_iter().flat_map(|call| source.split(call).skip(1));
        let named = calls.filter_map(|rest| rest.split('"').next());
        let is_schema = |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'.');
        names.extend(named.filter(is_schema).map(str::to_owned));
    }
    assert!(names.len() > 30, "only {} schemas were found: the search is broken", names.len());
    let missing: Vec<_> = names.iter().filter(|name| !sections.contains_key(&format!("basalt.{name}/1"))).collect();
    assert!(missing.is_empty(), "docs/man/json.md lacks sections: {missing:?}");
}
