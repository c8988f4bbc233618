//! The cost model: CPU of a 4 KiB request as a sum of counts times constants.
//!
//! The constants are those for which the sum of the squared relative errors over all rows of one kind is least. Where the model is far from a
//! row, that row has a cost which the counts do not tell.

use super::book::RowRecord;
use super::counters::Figures;

/// Text of a term, and its value in a row.
type Term = (&'static str, fn(&str, &Figures) -> f64);

const TERMS: [Term; 6] = [
    ("for each request", |_, _| 1.0),
    ("for each context switch of a daemon", |_, figures| figure(figures, "switches")),
    // It stands for the messages and entries that the OSDs handle: each allocates.
    ("for each allocation of an OSD", |_, figures| figure(figures, "allocations.osds")),
    ("for each kernel entry of the native client", |_, figures| figure(figures, "kernel_entries.client")),
    ("through NBD", |row, _| f64::from(row.starts_with("nbd/"))),
    ("for 4 KiB written to the home", |row, figures| {
        let logged = if row.ends_with("/sustained") { 1.0 } else { f64::INFINITY };
        (figure(figures, "device_bytes_per_user_byte") - logged).max(0.0)
    }),
];

/// Kinds of rows that have a model of their own, by the text in their names.
const KINDS: [&str; 2] = ["randwrite-4k", "randread-4k"];

fn figure(figures: &Figures, name: &str) -> f64 {
    figures.get(name).copied().unwrap_or(0.0)
}

/// Solves the linear equations `left * x = right`; `None` when they have no single solution.
fn solve(mut left: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| left[*a][i].abs().total_cmp(&left[*b][i].abs()))?;
        if left[pivot][i].abs() < 1e-9 {
            return None;
        }
        left.swap(i, pivot);
        right.swap(i, pivot);
        let (above, from) = (left[i].clone(), right[i]);
        for row in (0..n).filter(|row| *row != i) {
            let factor = left[row][i] / above[i];
            left[row].iter_mut().zip(&above).for_each(|(value, above)| *value -= factor * above);
            right[row] -= factor * from;
        }
    }
    Some((0..n).map(|i| right[i] / left[i][i]).collect())
}

/// Returns the constants of the terms that occur in these rows. `None`: there are too few rows.
fn fit(terms: &[Term], rows: &[(&str, &Figures)]) -> Option<Vec<f64>> {
    if rows.len() <= terms.len() {
        return None;
    }
    let (mut left, mut right) = (vec![vec![0.0; terms.len()]; terms.len()], vec![0.0; terms.len()]);
    for (row, figures) in rows {
        let cpu = figure(figures, "cpu_us");
        let values: Vec<f64> = terms.iter().map(|(_, value)| value(row, figures) / cpu).collect();
        for i in 0..terms.len() {
            (0..terms.len()).for_each(|j| left[i][j] += values[i] * values[j]);
            right[i] += values[i];
        }
    }
    solve(left, right)
}

/// Returns the models of a mode's rows in Markdown; empty where there are too few rows.
pub fn tables(rows: &[&RowRecord]) -> String {
    let mut text = String::new();
    // The terms are counts of Basalt, which a peer does not have. A row beside another load has no CPU of its own.
    let ours = rows.iter().filter(|row| !super::ceph::is_row(&row.row) && figure(&row.medians, "cpu_us") > 0.0);
    for kind in KINDS {
        let own: Vec<(&str, &Figures)> =
            ours.clone().filter(|row| row.row.contains(kind)).map(|row| (row.row.as_str(), &row.medians)).collect();
        let terms: Vec<Term> =
            TERMS.into_iter().filter(|(_, value)| own.iter().any(|(row, f)| value(row, f) != 0.0)).collect();
        let Some(constants) = fit(&terms, &own) else { continue };
        let sum: Vec<String> = constants.iter().zip(&terms).map(|(us, (text, _))| format!("{us:.1} {text}")).collect();
        text.push_str(&format!("Cost model of `{kind}` in µs of CPU: {}.\n\n", sum.join(" + ")));
        text.push_str("| row | measured | model | difference |\n|---|---|---|---|\n");
        for (row, figures) in &own {
            let model: f64 = constants.iter().zip(&terms).map(|(us, (_, value))| us * value(row, figures)).sum();
            let cpu = figure(figures, "cpu_us");
            text.push_str(&format!("| {row} | {cpu:.1} | {model:.1} | {:+.0} % |\n", (model / cpu - 1.0) * 100.0));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a row with so many context switches, allocations, kernel entries of the client, and device bytes.
    fn row(name: &str, counts: [f64; 4], cpu_us: f64) -> RowRecord {
        let names = ["switches", "allocations.osds", "kernel_entries.client", "device_bytes_per_user_byte"];
        let mut medians: Figures = names.map(str::to_owned).into_iter().zip(counts).collect();
        medians.insert("cpu_us".to_owned(), cpu_us);
        RowRecord { row: name.into(), mode: "flush".into(), yardstick: String::new(), medians, runs: Vec::new() }
    }

    #[test]
    fn constants_are_found_again() {
        let write = |name: &str, counts: [f64; 4], nbd, home| {
            let [switches, allocations, entries, _] = counts;
            row(name, counts, 16.0 + 23.0 * switches + allocations + 52.0 * entries + 20.0 * nbd + 4.0 * home)
        };
        let rows = [
            write("one-pg/randwrite-4k/d1", [8.0, 70.0, 1.0, 1.9], 0.0, 0.0),
            write("one-pg/randwrite-4k/d32", [0.3, 6.0, 0.04, 1.1], 0.0, 0.0),
            write("spread/randwrite-4k/d32", [0.9, 33.0, 0.2, 1.1], 0.0, 0.0),
            write("volumes/randwrite-4k/d32", [0.8, 20.0, 0.5, 1.1], 0.0, 0.0),
            write("nbd/randwrite-4k/d32", [0.7, 20.0, 0.0, 1.1], 1.0, 0.0),
            write("one-pg/randwrite-4k/d32/sustained", [0.6, 9.0, 0.05, 2.1], 0.0, 1.1),
            write("spread/randwrite-4k/d32/sustained", [1.0, 35.0, 0.2, 2.2], 0.0, 1.2),
            row("spread/randread-4k/d32", [0.4, 8.0, 0.2, 0.0], 30.0),
        ];
        let text = tables(&rows.iter().collect::<Vec<_>>());
        let head = "16.0 for each request + 23.0 for each context switch of a daemon + 1.0 for each allocation of an OSD + 52.0 for each \
                    kernel entry of the native client + 20.0 through NBD + 4.0 for 4 KiB written to the home.";
        assert!(text.contains(head), "{text}");
        assert_eq!(text.matches("+0 %").count() + text.matches("-0 %").count(), 7, "{text}");
        assert!(!text.contains("randread"), "one row has no model: {text}");
        let peer = row("ceph/randwrite-4k/d32", [0.0; 4], 999.0);
        let mut beside = row("beside/randwrite-4k/d1", [0.0; 4], 0.0);
        beside.medians.remove("cpu_us");
        assert_eq!(tables(&rows.iter().chain([&peer, &beside]).collect::<Vec<_>>()), text);
        assert_eq!(tables(&[]), "");
    }
}
