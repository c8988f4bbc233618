//! Printing: tables for people, `{"schema": "basalt.THING/1", …}` for programs.

use anyhow::Result;
use serde_json::Value;

/// Prints one JSON object with its schema first.
pub fn json(thing: &str, body: Value) -> Result<()> {
    let mut object = serde_json::Map::new();
    object.insert("schema".to_owned(), Value::String(format!("basalt.{thing}/1")));
    match body {
        Value::Object(fields) => object.extend(fields),
        other => {
            object.insert("items".to_owned(), other);
        }
    }
    println!("{}", serde_json::to_string_pretty(&Value::Object(object))?);
    Ok(())
}

/// Prints a table without frames.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    let text = table.to_string();
    for line in text.lines() {
        println!("{}", line.trim_end());
    }
}
