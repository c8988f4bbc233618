//! `basalt explain`: the meaning of a code, a health check or a metric, or a list of them; and the hops of a volume's requests.

mod hops;
mod volume;

use crate::admin::Admin;
use crate::args::{Cli, ExplainArgs};
use crate::errors::{Exit, UserError};
use crate::output;
use crate::role::process;
use anyhow::Result;
use clap::CommandFactory;
use control::health::{Rule, find_rule};
use serde_json::json;
use types::codes::{self, Code};

/// Codes that no part of this version raises. Their numbers stay reserved; a test compares the list with the
/// sources.
pub const NOT_RAISED: &[u32] =
    &[codes::CLUSTER_RUNS_ALREADY, codes::TOO_MANY_CONNECTIONS, codes::VOLUME_OPEN_ELSEWHERE];

/// Explains a word; without one it lists the codes. Only a volume needs the cluster.
///
/// # Errors
/// BSLT-1001 for an unknown word; those of [`volume::run`].
pub fn run(args: &ExplainArgs, connect: impl FnOnce() -> Result<Admin>, as_json: bool) -> Result<Exit> {
    match (args.word.as_deref(), &args.volume) {
        (Some("volume"), Some(name)) => return volume::run(&connect()?, name, args.time, as_json),
        (Some("volume"), None) => {
            let next = "basalt explain volume POOL/VOLUME";
            return Err(UserError::new(codes::BAD_USAGE, "`explain volume` needs the name of a volume", next).into());
        }
        (_, Some(extra)) => {
            let what = format!("`{extra}` is one word too many: only `explain volume` takes a second one");
            return Err(UserError::new(codes::BAD_USAGE, what, "basalt explain --help").into());
        }
        (word, None) => explain_word(word.unwrap_or("list"), as_json)?,
    }
    Ok(Exit::Done)
}

fn explain_word(word: &str, as_json: bool) -> Result<()> {
    match word {
        "metrics" => metrics(as_json)?,
        "list" | "codes" => list(as_json)?,
        word => match (code_of(word), metric_of(word), find_rule(&word.to_uppercase())) {
            (Some(code), ..) => explain_code(code, as_json)?,
            (None, Some(row), _) => explain_metric(row, as_json)?,
            (None, None, Some(rule)) => explain_check(rule, as_json)?,
            (None, None, None) => {
                let what = format!("`{word}` is neither a code, nor a health check, nor a metric of this version");
                return Err(
                    UserError::new(codes::BAD_USAGE, what, "basalt explain list, or basalt explain metrics").into()
                );
            }
        },
    }
    Ok(())
}

/// Parses `BSLT-2020`, `bslt-2020` or `2020`; `None` for anything that is no code.
fn code_of(word: &str) -> Option<&'static Code> {
    let digits = match word.get(..5) {
        Some(head) if head.eq_ignore_ascii_case("bslt-") => &word[5..],
        _ => word,
    };
    digits.trim_end_matches(':').parse().ok().and_then(codes::lookup)
}

/// Returns a metric by its declared name, with or without the suffixes that Prometheus shows.
fn metric_of(word: &str) -> Option<&'static telemetry::Row> {
    let ends = ["_total", "_bucket", "_sum", "_count"];
    let base = |name: &str| ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned();
    all_metrics().into_iter().find(|row| base(row.name) == base(word))
}

/// Returns a row of the registry as JSON.
fn row_json(row: &Code) -> serde_json::Value {
    let (code, raised) = (codes::label(row.number), is_raised(row));
    json!({ "code": code, "title": row.title, "why": row.why, "fix": row.fix, "raised": raised })
}

fn is_raised(row: &Code) -> bool {
    !NOT_RAISED.contains(&row.number)
}

fn explain_code(row: &Code, as_json: bool) -> Result<()> {
    if as_json {
        return output::json("explain", row_json(row));
    }
    out!("{}: {}", codes::label(row.number), row.title);
    out!("  why: {}", row.why);
    out!("  fix: {}", row.fix);
    if !is_raised(row) {
        out!("  This version never raises it.");
    }
    Ok(())
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let rows: Vec<_> = codes::CODES.iter().map(row_json).collect();
        return output::json("explain.list", json!({ "codes": rows }));
    }
    let rows = codes::CODES.iter().map(|row| vec![codes::label(row.number), row.title.to_owned()]);
    output::table(&["code", "meaning"], rows);
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
    let info = process::INFO_ROWS.iter().chain(process::ProcessMetrics::ROWS).chain(process::ProgramMetrics::ROWS);
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
            assert_eq!(code_of(word).map(|row| row.number), Some(2020), "{word}");
        }
        for word in ["BSLT-1", "1", "bslt", "", "metrics", "ä"] {
            assert_eq!(code_of(word), None, "{word}");
        }
        for word in ["basalt_osd_writes", "basalt_osd_writes_total"] {
            assert_eq!(metric_of(word).map(|row| row.name), Some("basalt_osd_writes_total"), "{word}");
        }
        assert!(metric_of("basalt_osd").is_none());
    }

    #[test]
    fn every_code_has_a_reason_of_its_own() {
        let mut seen = Vec::new();
        for row in codes::CODES {
            assert!(row.why != row.title, "{} has no reason", row.name);
            assert!(!seen.contains(&row.why), "{} has the reason of another code: {}", row.name, row.why);
            seen.push(row.why);
        }
    }
}
