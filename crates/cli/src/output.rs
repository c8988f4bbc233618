//! Printing: tables for people, `{"schema": "basalt.THING/1", …}` for programs.
//!
//! Invariant: a reader that went away (`basalt pg ls | head -1`) ends the command quietly.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::Write;

/// Prints a line to standard output.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// What [`out!`] calls.
pub fn line(text: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if writeln!(stdout, "{text}").is_err() {
        // Nobody reads any more: that is how `head` says that it has seen enough.
        std::process::exit(0);
    }
}

/// The schema comes first, whatever the fields are called.
#[derive(Serialize)]
struct Object {
    schema: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Prints one JSON object with its schema first.
pub fn json(thing: &str, body: Value) -> Result<()> {
    let Value::Object(fields) = body else { unreachable!("{thing} is an object") };
    let object = Object { schema: format!("basalt.{thing}/1"), fields };
    out!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

/// Prints a table without frames.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    for line in table.to_string().lines() {
        out!("{}", line.trim_end());
    }
}
