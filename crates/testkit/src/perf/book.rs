//! The record of a suite: medians as JSON and as tables, and the comparison with an earlier record.

use super::counters::Figures;
use super::rows::Yardstick;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

pub const SCHEMA: &str = "basalt.bench.suite/1";

/// Most that a ratio may be worse than in the baseline.
const WORSE_MAX: f64 = 0.15;

/// One row with all its runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowRecord {
    /// `LAYOUT/OP-BLOCK/dDEPTH`, with `/sustained` for a long run on a small log.
    pub row: String,
    /// `flush` or `noflush`.
    pub mode: String,
    pub yardstick: String,
    /// Medians of the runs, figure by figure.
    pub medians: Figures,
    pub runs: Vec<Figures>,
}

impl RowRecord {
    pub fn new(row: &dyn Display, mode: &str, yardstick: Yardstick, runs: Vec<Figures>) -> RowRecord {
        let (row, yardstick, medians) = (row.to_string(), yardstick.to_string(), medians(&runs));
        RowRecord { row, mode: mode.to_owned(), yardstick, medians, runs }
    }
}

/// A whole suite.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub schema: String,
    pub commit: String,
    /// Kernel, processor and number of cores.
    pub machine: BTreeMap<String, String>,
    pub seconds: u64,
    /// Idle share of the machine before the first run.
    pub idle_before: f64,
    /// `fresh`: sparse files; `written`: files that were written once before; `loop`: block devices over those.
    #[serde(default = "fresh")]
    pub devices: String,
    /// Further flags of `osd run`.
    #[serde(default)]
    pub osd_flags: Vec<String>,
    pub rows: Vec<RowRecord>,
    /// Medians of the yardsticks, by mode and name.
    pub yardsticks: BTreeMap<String, Figures>,
}

fn fresh() -> String {
    "fresh".to_owned()
}

/// Returns the medians of all figures that every run has.
pub fn medians(runs: &[Figures]) -> Figures {
    let Some(first) = runs.first() else { return Figures::new() };
    let median = |name: &String| {
        let mut all: Vec<f64> = runs.iter().filter_map(|run| run.get(name).copied()).collect();
        all.sort_by(f64::total_cmp);
        (all.len() == runs.len()).then(|| (name.clone(), all[all.len() / 2]))
    };
    first.keys().filter_map(median).collect()
}

/// Adds the ratios of a run to a yardstick of the same round, under names that begin with `prefix`.
pub fn compare(run: &mut Figures, yardstick: &Figures, prefix: &str) {
    for (ratio, figure) in [("iops_ratio", "iops"), ("p50_ratio", "p50_us"), ("cpu_ratio", "cpu_us")] {
        if let (Some(ours), Some(theirs)) = (run.get(figure), yardstick.get(figure))
            && *theirs > 0.0
        {
            run.insert(format!("{prefix}{ratio}"), ours / theirs);
        }
    }
}

/// Column of a table: head, figure, decimals.
type Column = (&'static str, &'static str, usize);

/// Results that a client sees, and their cost.
const FIGURES: [Column; 12] = [
    ("IOPS", "iops", 0),
    ("mean µs", "mean_us", 0),
    ("p50", "p50_us", 0),
    ("p99", "p99_us", 0),
    ("p99.9", "p999_us", 0),
    ("CPU µs", "cpu_us", 1),
    ("IOPS ÷ yardstick", "iops_ratio", 2),
    ("p50 ÷ yardstick", "p50_ratio", 2),
    ("CPU ÷ yardstick", "cpu_ratio", 1),
    ("IOPS ÷ shape", "shape_iops_ratio", 2),
    ("p50 ÷ shape", "shape_p50_ratio", 2),
    ("CPU ÷ shape", "shape_cpu_ratio", 1),
];

/// Work behind them.
const COUNTS: [Column; 12] = [
    ("CPU µs of OSDs", "cpu_us_osds", 1),
    ("turns", "turns", 2),
    ("longest turn ms <=", "turn_ms_max", 1),
    ("kernel entries", "kernel_entries", 2),
    ("flushes", "flushes", 2),
    ("faults", "minor_faults", 2),
    ("allocations", "allocations", 1),
    ("copied bytes", "copied_bytes", 0),
    ("device bytes", "device_bytes_per_user_byte", 2),
    ("rounds", "destage_rounds", 0),
    ("RSS MiB", "osd_rss_mib", 0),
    ("variation", "iops_cv", 2),
];

fn cell(figures: &Figures, name: &str, decimals: usize) -> String {
    figures.get(name).map_or_else(String::new, |value| format!("{value:.decimals$}"))
}

fn table(title: &str, columns: &[Column], rows: &[&RowRecord]) -> String {
    let head: Vec<&str> = columns.iter().map(|(head, ..)| *head).collect();
    let mut text = format!("{title}:\n\n| row | {} |\n|---|{}\n", head.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> =
            columns.iter().map(|(_, name, decimals)| cell(&row.medians, name, *decimals)).collect();
        text.push_str(&format!("| {} | {} |\n", row.row, cells.join(" | ")));
    }
    text + "\n"
}

impl Record {
    /// Returns the tables in Markdown.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut modes: Vec<&str> = self.rows.iter().map(|row| row.mode.as_str()).collect();
        modes.dedup();
        for mode in modes {
            let rows: Vec<&RowRecord> = self.rows.iter().filter(|row| row.mode == mode).collect();
            text.push_str(&table(&format!("Mode `{mode}`"), &FIGURES, &rows));
            text.push_str(&table(&format!("Work in mode `{mode}`"), &COUNTS, &rows));
            text.push_str(&super::model::tables(&rows));
        }
        text.push_str(
            "Yardsticks:\n\n| yardstick | IOPS | mean µs | p50 | p99 | CPU µs |\n|---|---|---|---|---|---|\n",
        );
        for (name, figures) in &self.yardsticks {
            let columns = [("iops", 0), ("mean_us", 0), ("p50_us", 0), ("p99_us", 0), ("cpu_us", 1)];
            let cells = columns.map(|(figure, decimals)| cell(figures, figure, decimals));
            text.push_str(&format!("| {name} | {} |\n", cells.join(" | ")));
        }
        text
    }

    /// Returns what is worse than in `baseline` by more than [`WORSE_MAX`], and the number of ratios compared. Only
    /// ratios are compared: machines differ.
    pub fn worse_than(&self, baseline: &Record) -> (Vec<String>, usize) {
        let (mut worse, mut compared) = (Vec::new(), 0);
        // The peer is no product of ours: that it became slower is no fault.
        for row in self.rows.iter().filter(|row| !super::ceph::is_row(&row.row)) {
            let was = baseline.rows.iter().find(|was| (&was.row, &was.mode) == (&row.row, &row.mode));
            for (ratio, more_is_better) in [("iops_ratio", true), ("cpu_ratio", false)] {
                let both = was.and_then(|was| Some((*row.medians.get(ratio)?, *was.medians.get(ratio)?)));
                let Some((now, was)) = both else { continue };
                compared += 1;
                let bad = if more_is_better { now < was * (1.0 - WORSE_MAX) } else { now > was * (1.0 + WORSE_MAX) };
                if bad {
                    worse.push(format!("{} ({}): {ratio} was {was:.2} and is {now:.2}", row.row, row.mode));
                }
            }
        }
        (worse, compared)
    }
}

/// Puts the tables between the marks of a page.
///
/// # Errors
/// The page has no marks.
pub fn insert(page: &str, tables: &str) -> anyhow::Result<String> {
    let (begin, end) = ("<!-- bench: begin -->\n", "<!-- bench: end -->");
    let from = page.find(begin).map(|at| at + begin.len());
    let to = page.find(end);
    match (from, to) {
        (Some(from), Some(to)) if from <= to => Ok(format!("{}\n{tables}\n{}", &page[..from], &page[to..])),
        _ => anyhow::bail!("the page has no `{}` before `{end}`", begin.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(pairs: &[(&str, f64)]) -> Figures {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn record(iops_ratio: f64, cpu_ratio: f64) -> Record {
        let medians = figures(&[("iops", 10.0), ("iops_ratio", iops_ratio), ("cpu_ratio", cpu_ratio)]);
        let row = RowRecord {
            row: "spread/randwrite-4k/d32".into(),
            mode: "flush".into(),
            yardstick: "floor/d32".into(),
            runs: vec![medians.clone()],
            medians,
        };
        Record {
            schema: SCHEMA.into(),
            commit: "c".into(),
            machine: BTreeMap::new(),
            seconds: 5,
            idle_before: 1.0,
            devices: "fresh".to_owned(),
            osd_flags: Vec::new(),
            rows: vec![row],
            yardsticks: BTreeMap::from([("flush floor/d32".into(), figures(&[("iops", 20.0)]))]),
        }
    }

    #[test]
    fn a_median_needs_its_figure_in_every_run() {
        let runs = [figures(&[("a", 3.0), ("b", 1.0)]), figures(&[("a", 1.0)]), figures(&[("a", 2.0)])];
        assert_eq!(medians(&runs), figures(&[("a", 2.0)]));
        assert_eq!(medians(&[]), Figures::new());
    }

    #[test]
    fn a_run_is_compared_with_the_yardstick_of_its_round() {
        let mut run = figures(&[("iops", 10.0), ("cpu_us", 30.0)]);
        compare(&mut run, &figures(&[("iops", 40.0), ("cpu_us", 10.0), ("p50_us", 1.0)]), "");
        assert_eq!(run["iops_ratio"], 0.25);
        assert_eq!(run["cpu_ratio"], 3.0);
        assert!(!run.contains_key("p50_ratio"));
    }

    #[test]
    fn only_ratios_that_are_worse_by_more_than_a_seventh_are_reported() {
        let baseline = record(0.5, 2.0);
        assert_eq!(record(0.43, 2.29).worse_than(&baseline), (Vec::new(), 2));
        let (worse, _) = record(0.42, 2.31).worse_than(&baseline);
        assert_eq!(worse.len(), 2);
        assert_eq!(worse[0], "spread/randwrite-4k/d32 (flush): iops_ratio was 0.50 and is 0.42");
        assert_eq!(record(9.0, 0.1).worse_than(&baseline).0.len(), 0);
        let peer = |iops_ratio| {
            let mut record = record(iops_ratio, 2.0);
            record.rows[0].row = "ceph/randwrite-4k/d32".into();
            record
        };
        assert_eq!(peer(0.1).worse_than(&peer(0.5)), (Vec::new(), 0), "a peer is only shown");
    }

    #[test]
    fn tables_replace_what_stands_between_the_marks() {
        let page = "a\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nb\n";
        let tables = record(0.5, 2.0).tables();
        assert!(tables.contains("| spread/randwrite-4k/d32 | 10 |"), "{tables}");
        assert!(tables.contains("| flush floor/d32 | 20 |"), "{tables}");
        let text = insert(page, &tables).unwrap();
        assert!(
            text.starts_with("a\n<!-- bench: begin -->\n\nMode `flush`") && text.ends_with("<!-- bench: end -->\nb\n")
        );
        assert!(!text.contains("old"));
        assert_eq!(insert(&text, &tables).unwrap(), text);
        assert!(insert("a", &tables).is_err());
    }
}
