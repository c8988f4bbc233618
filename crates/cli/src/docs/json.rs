//! Check of `docs/man/json.md` against the golden files: every field has a row in the section of its schema.

use super::{read, root, sections};
use serde_json::Value;

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
        missing.extend(
            wanted.into_iter().filter(|f| !section.contains(&format!("| `{f}` |"))).map(|f| format!("{name}: {f}")),
        );
    }
    assert!(missing.is_empty(), "docs/man/json.md lacks rows: {}", missing.join(", "));
    assert!(seen > 150, "only {seen} fields were found: the search is broken");
}
