//! `basalt bench engine`: one replica of the engine, beside raw writes to a file of the same disk.

use crate::args::BenchEngine;
use crate::errors::{Exit, UserError};
use crate::output;
use anyhow::Result;
use bench::replica::{self, CASES, Case, ReplicaConfig, Row, SPAN};
use serde_json::json;
use std::path::{Path, PathBuf};
use types::codes;

/// Measures the rows that were asked for. Exit code 1: `--check`, and a row is below its target.
///
/// # Errors
/// BSLT-1001 for an unknown mode or row; a file cannot be made, or a write fails.
pub fn run(args: &BenchEngine, as_json: bool) -> Result<Exit> {
    let cases = chosen(&args.rows)?;
    let flushes = args.modes.iter().map(|word| flushes(word)).collect::<Result<Vec<bool>, _>>()?;
    let own = args.dir.is_none();
    let temporary = || PathBuf::from("/var/tmp").join(format!("basalt-engine.{}", std::process::id()));
    let dir = args.dir.clone().unwrap_or_else(temporary);
    std::fs::create_dir_all(&dir)?;
    let rows = measure(&dir, args, (&cases, &flushes), as_json);
    if own {
        let _ = std::fs::remove_dir_all(&dir);
    }
    let rows = rows?;
    if as_json {
        output::json("bench.engine", json!({ "rows": rows }))?;
    }
    let below: Vec<String> = rows.iter().filter(|row| row.share < row.target).map(|row| row.name.clone()).collect();
    if !args.check || below.is_empty() {
        return Ok(Exit::Done);
    }
    if !as_json {
        out!("below the target: {}; a debug build or a busy machine says little", below.join(", "));
    }
    Ok(Exit::Failed)
}

fn chosen(texts: &[String]) -> Result<Vec<Case>, UserError> {
    let names_it =
        |case: &Case, text: &str| case.name().contains(text) && (!case.sustained || text.contains("sustained"));
    let is_chosen = |case: &&Case| texts.is_empty() || texts.iter().any(|text| names_it(case, text));
    let cases: Vec<Case> = CASES.iter().filter(is_chosen).copied().collect();
    if cases.is_empty() {
        let names: Vec<String> = CASES.iter().map(Case::name).collect();
        let what = format!("no row has one of these texts: {}", texts.join(", "));
        return Err(UserError::new(codes::BAD_USAGE, what, format!("rows: {}", names.join(", "))));
    }
    Ok(cases)
}

fn flushes(word: &str) -> Result<bool, UserError> {
    match word {
        "flush" => Ok(true),
        "noflush" => Ok(false),
        _ => Err(UserError::new(codes::BAD_USAGE, format!("`{word}` is not a mode"), "--modes noflush,flush")),
    }
}

/// Runs each case once a round, so that drift of the machine strikes all; returns the median run of each.
fn measure(
    dir: &Path,
    args: &BenchEngine,
    (cases, modes): (&[Case], &[bool]),
    as_json: bool,
) -> Result<Vec<Row>, replica::ReplicaError> {
    let cells: Vec<(&Case, bool)> = modes.iter().flat_map(|flush| cases.iter().map(|case| (case, *flush))).collect();
    let mut runs: Vec<Vec<Row>> = cells.iter().map(|_| Vec::new()).collect();
    for round in 1..=args.repeats {
        for ((case, flush), runs) in cells.iter().zip(&mut runs) {
            let redirect_min = (args.redirect_min > 0).then_some(args.redirect_min);
            let config = ReplicaConfig {
                dir: dir.to_owned(),
                seconds: args.seconds,
                flush: *flush,
                redirect_min,
                span_bytes: SPAN,
            };
            let row = replica::run(&config, case)?;
            if !as_json && args.repeats > 1 {
                show(&format!("round {round}"), &row);
            }
            runs.push(row);
        }
    }
    let rows: Vec<Row> = runs.into_iter().filter_map(replica::median).collect();
    if !as_json {
        rows.iter().for_each(|row| show(if args.repeats > 1 { "median " } else { "" }, row));
    }
    Ok(rows)
}

fn show(head: &str, row: &Row) {
    let (engine, raw) = (&row.engine, &row.raw);
    out!(
        "{head:<8}{:<33} {:<7} {:>7.0} IOPS  p50 {} us  p99 {} us  cpu {:.1} us  device bytes {:.2}  rounds {}  raw {:.0} IOPS, {:.1} us  share {:.0} % of {:.0} %",
        row.name,
        row.mode,
        engine.iops,
        engine.p50_us,
        engine.p99_us,
        engine.cpu_us_per_write,
        engine.device_bytes,
        engine.rounds,
        raw.iops,
        raw.cpu_us_per_write,
        row.share * 100.0,
        row.target * 100.0
    );
}
