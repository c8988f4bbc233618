//! Printing: tables for users, `{"schema": "basalt.THING/1", …}` for programs.
//!
//! Invariants: a closed pipe (`basalt pg ls | head -1`) ends the command quietly. Any other failed write ends it with
//! BSLT-1012 and exit code 1, so that a script never mistakes a cut output for a whole one.

use crate::errors::{Exit, UserError};
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::Write;
use types::codes;

/// Prints a line to standard output.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a line; the implementation of [`out!`].
pub fn line(text: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}") {
        unwritten(&error);
    }
}

/// Writes bytes as they are.
pub fn bytes(bytes: &[u8]) {
    if let Err(error) = std::io::stdout().write_all(bytes) {
        unwritten(&error);
    }
}

/// Writes buffered output.
pub fn flush() {
    if let Err(error) = std::io::stdout().flush() {
        unwritten(&error);
    }
}

/// Ends the process, because standard output cannot be written any more.
fn unwritten(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        // The reader, for example `head`, needs no more.
        std::process::exit(Exit::Done as i32);
    }
    let what = format!("standard output cannot be written: {error}");
    let next = "free space where the output goes (df -h .), and run the command again";
    complain(&UserError::new(codes::OUTPUT_FAILED, what, next).to_string());
    std::process::exit(Exit::Failed as i32);
}

/// Prints an error to standard error. A closed one is ignored, because there is no other place.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "basalt: {text}");
}

/// Prints a remark for the user beside the output.
pub fn remark(text: &str) {
    complain(text);
}

/// Prints an error as JSON to standard output.
pub fn error(error: &UserError) -> Result<()> {
    let code = codes::label(error.code);
    json("error", json!({ "code": code, "error": error.what, "next": error.next }))
}

/// A JSON object whose schema comes first, whatever its fields are called.
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

/// Prints one JSON object on one line, for outputs that go on.
pub fn json_line(thing: &str, body: Value) -> Result<()> {
    let Value::Object(fields) = body else { unreachable!("{thing} is an object") };
    let object = Object { schema: format!("basalt.{thing}/1"), fields };
    out!("{}", serde_json::to_string(&object)?);
    Ok(())
}

/// Prints as [`json_line`] does and flushes: a program waits for this line while the process goes on.
pub fn ready(thing: &str, body: Value) -> Result<()> {
    json_line(thing, body)?;
    flush();
    Ok(())
}

/// Prints a table without frames.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    table_lines(header, rows).iter().for_each(|line| out!("{line}"));
}

/// Returns the lines of a table without frames.
pub fn table_lines(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    table.to_string().lines().map(|line| line.trim_end().to_owned()).collect()
}
