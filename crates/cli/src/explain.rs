//! `basalt explain`: what a code means, or what the metrics are.

use crate::args::Cli;
use crate::errors::{Exit, UserError};
use crate::output;
use crate::role::process;
use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

/// Title, why, what to do.
pub fn lookup(code: u32) -> Option<(String, String, String)> {
    let ours = types::codes::lookup(code).map(|c| (c.title.to_owned(), c.why.to_owned(), c.fix.to_owned()));
    ours.or_else(|| control::codes::explain(code).map(|c| (c.what.to_owned(), String::new(), c.next.to_owned())))
}

pub fn run(word: &str, as_json: bool) -> Result<Exit> {
    if word == "metrics" {
        return metrics(as_json);
    }
    let number = word.trim_start_matches("BSLT-").parse().ok();
    let Some((number, (title, why, fix))) = number.and_then(|n| lookup(n).map(|row| (n, row))) else {
        let next = "write it as the message does: basalt explain BSLT-1001";
        return Err(UserError::new(1001, format!("`{word}` is no known code"), next).into());
    };
    if as_json {
        let code = format!("BSLT-{number:04}");
        output::json("explain", json!({ "code": code, "title": title, "why": why, "fix": fix }))?;
        return Ok(Exit::Done);
    }
    out!("BSLT-{number:04}: {title}");
    for line in [why, fix].iter().filter(|l| !l.is_empty()) {
        out!("  {line}");
    }
    Ok(Exit::Done)
}

/// Every metric that some process of a cluster has, by the name that a query uses.
pub fn all_metrics() -> Vec<&'static telemetry::Row> {
    let info = process::INFO_ROWS.iter().chain(process::ProcessMetrics::ROWS);
    osd::metric_rows().chain(meta::metric_rows()).chain(nbd::metric_rows()).chain(info).collect()
}

fn metrics(as_json: bool) -> Result<Exit> {
    let rows = all_metrics();
    if as_json {
        let list: Vec<_> = rows.iter().map(|r| json!({ "name": r.name, "kind": r.kind, "help": r.help })).collect();
        output::json("explain.metrics", json!({ "metrics": list }))?;
    } else {
        output::table(
            &["metric", "kind", "meaning"],
            rows.iter().map(|r| [r.name, r.kind, r.help].map(str::to_owned).to_vec()),
        );
    }
    Ok(Exit::Done)
}

/// `basalt completion`.
pub fn completion(shell: clap_complete::Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "basalt", &mut script);
    out!("{}", String::from_utf8_lossy(&script).trim_end());
}

/// `basalt version`.
pub fn version(as_json: bool) -> Result<()> {
    let text = Cli::command().render_version();
    let version = text.trim().trim_start_matches("basalt ");
    if as_json {
        return output::json("version", json!({ "version": version }));
    }
    out!("basalt {version}");
    Ok(())
}
