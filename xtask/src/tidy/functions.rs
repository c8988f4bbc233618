//! Limits the length of functions. Relies on rustfmt: a function ends at the first `}` with its own indent.

use super::{Source, files};
use anyhow::Result;

/// A function longer than this needs a line in the ratchet.
const LINES_MAX: usize = 70;

/// Returns one line for each function that is too long.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let allowed = files::ratchet("fn")?;
    let mut faults = Vec::new();
    for s in sources.iter().filter(|s| !s.is_test()) {
        for (name, line, len) in functions(&s.text) {
            let key = format!("{}:{name}", s.path);
            let max = allowed.get(&key).copied().unwrap_or(LINES_MAX).max(LINES_MAX);
            if len > max {
                faults.push(format!("{}:{line}: fn {name} has {len} lines; at most {max} (ratchet key {key})", s.path));
            }
        }
    }
    Ok(faults)
}

/// Returns (name, first line, number of lines) of every function with a body.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[n..].iter().position(|l| *l == end);
        let next = lines[n + 1..]
            .iter()
            .position(|l| l.len() > indent && l[..=indent].trim() != "" && function_name(l).is_some());
        if let Some(len) = body
            && next.is_none_or(|next| len <= next + 1 || lines[n].trim_end().ends_with('{'))
        {
            found.push((name.to_owned(), n + 1, len + 1));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(['(', '<'])?;
    (!line.trim_end().ends_with(';')).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_function_ends_at_its_own_brace() {
        let text = "pub fn a(x: u8) {\n    if x {\n    }\n}\n\n    fn b() {}\nfn c(\n    x: u8,\n) {\n    y\n}\n";
        let got: Vec<_> = super::functions(text).into_iter().map(|(n, _, l)| (n, l)).collect();
        assert_eq!(got, vec![("a".to_owned(), 4), ("c".to_owned(), 5)]);
    }
}
