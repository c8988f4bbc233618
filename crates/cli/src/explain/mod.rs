//! `basalt explain`: the meaning of a code, a health check or a metric, or a list of them.

mod why;

use crate::args::Cli;
use crate::errors::{Exit, UserError};
use crate::output;
use crate::role::process;
use anyhow::Result;
use clap::CommandFactory;
use control::health::{Rule, find_rule};
use serde_json::json;

/// Codes that no part of this version raises. Their numbers stay reserved; a test compares the list with the
/// sources.
pub const NOT_RAISED: &[u32] = &[1003, 4005, 5001];

/// Returns title, reason and advice of a code.
pub fn lookup(code: u32) -> Option<(String, String, String)> {
    let ours = types::codes::lookup(code).map(|c| (c.title.to_owned(), c.why.to_owned(), c.fix.to_owned()));
    let metas =
        || control::codes::explain(code).map(|c| (c.what.to_owned(), why::of(code).to_owned(), c.next.to_owned()));
    ours.or_else(metas)
}

/// Returns every code of both registries, ascending.
pub fn all_codes() -> Vec<u32> {
    let ours = types::codes::CODES.iter().map(|c| c.number);
    let mut all: Vec<u32> = ours.chain(control::codes::REGISTRY.iter().map(|c| c.code)).collect();
    all.sort_unstable();
    all
}

/// Explains a word; without one it lists the codes.
pub fn run(word: Option<&str>, as_json: bool) -> Result<Exit> {
    match word.unwrap_or("list") {
        "metrics" => metrics(as_json)?,
        "list" | "codes" => list(as_json)?,
        word => match (number_of(word), metric_of(word), find_rule(&word.to_uppercase())) {
            (Some(number), ..) => explain_code(number, as_json)?,
            (None, Some(row), _) => explain_metric(row, as_json)?,
            (None, None, Some(rule)) => explain_check(rule, as_json)?,
            (None, None, None) => {
                let what = format!("`{word}` is neither a code, nor a health check, nor a metric of this version");
                return Err(UserError::new(1001, what, "basalt explain list, or basalt explain metrics").into());
            }
        },
    }
    Ok(Exit::Done)
}

/// Parses `BSLT-2020`, `bslt-2020` or `2020`; `None` for anything that is no code.
fn number_of(word: &str) -> Option<u32> {
    let digits = match word.get(..5) {
        Some(head) if head.eq_ignore_ascii_case("bslt-") => &word[5..],
        _ => word,
    };
    digits.trim_end_matches(':').parse().ok().filter(|number| lookup(*number).is_some())
}

/// Returns a metric by its declared name, with or without the suffixes that Prometheus shows.
fn metric_of(word: &str) -> Option<&'static telemetry::Row> {
    let ends = ["_total", "_bucket", "_sum", "_count"];
    let base = |name: &str| ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned();
    all_metrics().into_iter().find(|row| base(row.name) == base(word))
}

fn explain_code(number: u32, as_json: bool) -> Result<()> {
    let Some((title, why, fix)) = lookup(number) else { unreachable!("{number} was looked up") };
    let code = format!("BSLT-{number:04}");
    let raised = !NOT_RAISED.contains(&number);
    if as_json {
        let body = json!({ "code": code, "title": title, "why": why, "fix": fix, "raised": raised });
        return output::json("explain", body);
    }
    out!("{code}: {title}");
    for (label, text) in [("why", &why), ("fix", &fix)] {
        if !text.is_empty() {
            out!("  {label}: {text}");
        }
    }
    if !raised {
        out!("  This version never raises it.");
    }
    Ok(())
}

fn list(as_json: bool) -> Result<()> {
    let rows = all_codes().into_iter().filter_map(|number| lookup(number).map(|row| (number, row)));
    if as_json {
        let code = |(number, (title, why, fix)): (u32, (String, String, String))| {
            let raised = !NOT_RAISED.contains(&number);
            json!({ "code": format!("BSLT-{number:04}"), "title": title, "why": why, "fix": fix, "raised": raised })
        };
        return output::json("explain.list", json!({ "codes": rows.map(code).collect::<Vec<_>>() }));
    }
    output::table(&["code", "meaning"], rows.map(|(number, (title, ..))| vec![format!("BSLT-{number:04}"), title]));
    out!("`basalt explain CODE` tells why and what to do; `basalt explain metrics` lists the metrics");
    Ok(())
}

fn explain_metric(row: &telemetry::Row, as_json: bool) -> Result<()> {
    if as_json {
        return output::json("explain.metric", json!({ "name": row.name, "kind": row.kind, "help": row.help }));
    }
    out!("{} ({}): {}", row.name, row.kind, row.help);
    Ok(())
}

fn explain_check(rule: &Rule, as_json: bool) -> Result<()> {
    let severity = rule.severity.name();
    if as_json {
        let body = json!({ "code": rule.code, "severity": severity, "what": rule.what, "next": rule.next });
        return output::json("explain.check", body);
    }
    out!("{} ({severity}): {}", rule.code, rule.what);
    out!("  fix: {}", rule.next);
    Ok(())
}

/// Returns every metric of all processes of a cluster, by the name that a query uses.
pub fn all_metrics() -> Vec<&'static telemetry::Row> {
    let info = process::INFO_ROWS.iter().chain(process::ProcessMetrics::ROWS);
    osd::metric_rows().chain(meta::metric_rows()).chain(nbd::metric_rows()).chain(info).collect()
}

fn metrics(as_json: bool) -> Result<()> {
    let rows = all_metrics();
    if as_json {
        let list: Vec<_> = rows.iter().map(|r| json!({ "name": r.name, "kind": r.kind, "help": r.help })).collect();
        return output::json("explain.metrics", json!({ "metrics": list }));
    }
    let cells = rows.iter().map(|r| [r.name, r.kind, r.help].map(str::to_owned).to_vec());
    output::table(&["metric", "kind", "meaning"], cells);
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_and_a_metric_are_found_however_they_are_written() {
        for word in ["BSLT-2020", "bslt-2020", "2020", "BSLT-2020:"] {
            assert_eq!(number_of(word), Some(2020), "{word}");
        }
        for word in ["BSLT-1", "1", "bslt", "", "metrics", "ä"] {
            assert_eq!(number_of(word), None, "{word}");
        }
        for word in ["basalt_osd_writes", "basalt_osd_writes_total"] {
            assert_eq!(metric_of(word).map(|row| row.name), Some("basalt_osd_writes_total"), "{word}");
        }
        assert!(metric_of("basalt_osd").is_none());
    }

    #[test]
    fn every_code_has_a_reason_of_its_own() {
        let mut seen = Vec::new();
        for code in all_codes() {
            let (title, why, _) = lookup(code).expect("it is listed");
            assert!(!why.is_empty() && why != title, "BSLT-{code} has no reason (crates/cli/src/explain/why.rs)");
            assert!(!seen.contains(&why), "BSLT-{code} has the reason of another code: {why}");
            seen.push(why);
        }
    }
}
