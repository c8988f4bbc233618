//! One run of a row or of its yardstick, and its figures.

use super::counters::{Counters, Figures};
use super::loopback;
use super::rows::{LARGE, LARGE_DEPTH, Layout, MIXED_READS, Op, Phase, Row, SMALL, Yardstick};
use super::stage::{Stage, Target};
use crate::basalt::Basalt;
use crate::clock;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const RAW_BYTES: u64 = 1 << 30;
/// Writes after which a burst ends: they fill a quarter of the log, and the log calls for a destage round at half.
const BURST_WRITES: u64 = super::LOG / 4 / SMALL as u64;
/// Windows of [`Figures`] key `iops_cv` that are enough for a deviation to mean something.
const SECONDS_MIN: usize = 5;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub seconds: u64,
    /// Requests of all clients, if that is earlier.
    pub ops: Option<u64>,
}

impl End {
    /// Returns the flags of fio for requests of so many bytes.
    fn flags(self, block: u32) -> Vec<String> {
        // A job that is `time_based` heeds no number of requests or bytes.
        let amount = match self.ops {
            Some(ops) => format!("--io_size={}", ops * u64::from(block)),
            None => "--time_based".to_owned(),
        };
        vec![amount, format!("--runtime={}", self.seconds)]
    }
}

/// Runs a row on the cluster.
///
/// # Errors
/// The cluster fails, or a request did.
pub fn row(stage: &mut Stage, row: &Row, seconds: u64) -> Result<Figures> {
    let is_burst = matches!(row.phase(), Phase::Burst | Phase::Nbd) && row.op == Op::RandWrite;
    let end = End { seconds, ops: is_burst.then_some(BURST_WRITES) };
    stage.find_leaders()?;
    let targets = stage.targets(row)?;
    let before = Counters::before(&stage.cluster)?;
    let mut figures = match row.layout {
        Layout::Nbd => nbd(stage, row, end)?,
        _ => native(&stage.cluster.basalt, row, &targets, end)?,
    };
    if row.layout == Layout::Beside {
        // The counters are of both clients.
        figures.remove("cpu_us.client");
        figures.remove("allocations.client");
        figures.remove("kernel_entries.client");
        return Ok(figures);
    }
    let after = Counters::after(&stage.cluster)?;
    let total = |name: &str| figures.get(name).copied().unwrap_or(0.0);
    let (ops, written) = (total("ops").max(1.0), total("written_bytes"));
    ensure!(
        end.ops.is_none_or(|most| ops <= most as f64),
        "{row}: {ops} requests, though the burst ends after {end:?}"
    );
    figures.append(&mut after.since(&before, ops, written, stage.cluster.shape.replicas));
    add_up(&mut figures);
    if row.layout == Layout::Nbd {
        // Those of the export are not counted.
        figures.remove("allocations");
    }
    figures.insert("osd_rss_mib".into(), super::counters::largest_osd(&stage.cluster)? as f64 / f64::from(1 << 20));
    Ok(figures)
}

/// Adds the sums over processes.
pub(super) fn add_up(figures: &mut Figures) {
    for (name, prefix) in [("cpu_us", "cpu_us."), ("cpu_us_osds", "cpu_us.osd."), ("allocations", "allocations.")] {
        let parts = figures.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, value)| *value);
        let parts: Vec<f64> = parts.collect();
        if !parts.is_empty() {
            figures.insert(name.into(), parts.iter().sum());
        }
    }
}

/// Runs one `basalt bench` for each target, all at once.
fn native(basalt: &Basalt, row: &Row, targets: &[Target], end: End) -> Result<Figures> {
    let end = End { ops: end.ops.map(|ops| ops / targets.len() as u64), ..end };
    let clients = targets.iter().map(|target| {
        let (basalt, target, row) = (basalt.clone(), target.clone(), *row);
        std::thread::spawn(move || client(&basalt, &row, &target, end))
    });
    let clients: Vec<_> = clients.collect();
    let reports: Vec<Value> =
        clients.into_iter().map(|client| client.join().expect("a client's thread")).collect::<Result<_>>()?;
    let (beside, reports): (Vec<_>, Vec<_>) = reports.into_iter().zip(targets).partition(|(_, of)| of.is_beside);
    let bodies = |pairs: Vec<(Value, &Target)>| pairs.into_iter().map(|(body, _)| body).collect::<Vec<_>>();
    let (beside, reports) = (bodies(beside), bodies(reports));
    let sum = |field: &dyn Fn(&Value) -> Option<f64>| reports.iter().filter_map(field).sum::<f64>();
    let both = |body: &Value, field: &str| -> Option<f64> {
        Some(body["report"]["writes"][field].as_f64()? + body["report"]["reads"][field].as_f64()?)
    };
    let mut figures = Figures::new();
    figures.insert("ops".into(), sum(&|body| both(body, "ops")));
    figures.insert("iops".into(), sum(&|body| both(body, "iops")));
    figures.insert("bytes_per_s".into(), sum(&|body| both(body, "bytes_per_s")));
    figures.insert("written_bytes".into(), sum(&|body| body["report"]["writes"]["bytes"].as_f64()));
    let side = if row.op.writes() { "writes" } else { "reads" };
    let latency = |field: &str| {
        let mut all: Vec<f64> =
            reports.iter().filter_map(|body| body["report"][side]["latency"][field].as_f64()).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    // With several clients: the median one, and the worst of the tails.
    for name in ["mean_us", "p50_us"] {
        let all = latency(name);
        figures.insert(name.into(), *all.get(all.len() / 2).context("a client has no latency")?);
    }
    for name in ["p99_us", "p999_us"] {
        figures.insert(name.into(), *latency(name).last().context("a client has no latency")?);
    }
    let client_us = |body: &Value| {
        let own = body["cpu"].as_array()?.iter().find(|process| process["name"] == "client")?;
        Some(own["us_per_op"].as_f64()? * both(body, "ops")?)
    };
    let ops = figures["ops"].max(1.0);
    figures.insert("cpu_us.client".into(), sum(&client_us) / ops);
    for (name, field) in
        [("allocations.client", "client_allocations_per_op"), ("kernel_entries.client", "client_kernel_entries_per_op")]
    {
        let total = |body: &Value| Some(body[field].as_f64()? * both(body, "ops")?);
        figures.insert(name.into(), sum(&total) / ops);
    }
    if !beside.is_empty() {
        figures.insert("beside_iops".into(), beside.iter().filter_map(|body| both(body, "iops")).sum());
    }
    if let [body] = &reports[..] {
        let counts = body["report"]["ops_by_second"].as_array().map_or(&[][..], Vec::as_slice);
        figures.extend(deviation(counts).map(|cv| ("iops_cv".to_owned(), cv)));
    }
    Ok(figures)
}

/// Returns the coefficient of variation of the operations of each second.
fn deviation(counts: &[Value]) -> Option<f64> {
    let counts: Vec<f64> = counts.iter().filter_map(Value::as_f64).collect();
    if counts.len() < SECONDS_MIN {
        return None;
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

fn client(basalt: &Basalt, row: &Row, target: &Target, end: End) -> Result<Value> {
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let (op, block) = if target.is_beside { (Op::Write, LARGE) } else { (row.op, row.block) };
    let (seconds, depth, block) = (end.seconds.to_string(), target.depth.to_string(), block.to_string());
    let ops = end.ops.map(|ops| ops.to_string());
    let (span, pieces, reads) = (target.span.to_string(), list(&target.pieces), MIXED_READS.to_string());
    let mut args = vec!["bench", &target.volume, "--op", op.word(), "--depth", &depth, "--block", &block];
    args.extend(["--seconds", &seconds, "--span", &span, "--pieces", &pieces, "--reads", &reads]);
    if let Some(ops) = ops.as_deref().filter(|_| !target.is_beside) {
        args.extend(["--ops", ops]);
    }
    if op.writes() {
        args.push("--overwrite");
    }
    basalt.json(&args)
}

fn nbd(stage: &Stage, row: &Row, end: End) -> Result<Figures> {
    let uri = stage.uri.as_ref().context("the volume is exported")?;
    let place = ["--ioengine=nbd".to_owned(), format!("--uri={uri}")];
    fio(None, &place, row.op, row.block, row.depth, end)
}

/// Runs a yardstick. `dir` is on the disk that holds the devices.
///
/// # Errors
/// A program is missing or fails.
pub fn yardstick(basalt: &Basalt, dir: &Path, what: Yardstick, plp: bool, seconds: u64) -> Result<Figures> {
    match what {
        Yardstick::Loopback => loopback::round_trips(seconds),
        Yardstick::Floor { depth, leaders } => floor(basalt, dir, (depth, leaders), plp, seconds),
        Yardstick::Raw { op, block, depth } => raw(dir, ("raw", RAW_BYTES, &[]), op, block, depth, seconds),
        Yardstick::Beside => beside(dir, plp, seconds),
    }
}

/// A file of the disk that holds the devices: its name, bytes, and further flags of fio.
type RawFile<'a> = (&'a str, u64, &'a [&'a str]);

fn raw(dir: &Path, file: RawFile, op: Op, block: u32, depth: u32, seconds: u64) -> Result<Figures> {
    let (name, size, flags) = file;
    let engine = ["--ioengine=io_uring", "--direct=1", "--overwrite=1"];
    let mut place = vec![format!("--filename={}", dir.join(name).display()), format!("--size={size}")];
    place.extend(engine.iter().chain(flags).map(|flag| (*flag).to_owned()));
    fio(None, &place, op, block, depth, End { seconds, ops: None })
}

/// Small writes beside large ones, which begin earlier and end later.
fn beside(dir: &Path, plp: bool, seconds: u64) -> Result<Figures> {
    // A flush behind each small write, and behind so many large ones as a log batch takes.
    let [each, batch]: [&[&str]; 2] = if plp { [&[]; 2] } else { [&["--sync=dsync"], &["--fdatasync=8"]] };
    let small = |seconds| raw(dir, ("raw-small", 64 << 20, each), Op::RandWrite, SMALL, 1, seconds);
    let large = |seconds| raw(dir, ("raw", RAW_BYTES, batch), Op::Write, LARGE, LARGE_DEPTH, seconds);
    // The first run of fio writes its file.
    small(1)?;
    large(1)?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| large(seconds + 2));
        clock::pause(Duration::from_secs(1));
        let mut figures = small(seconds)?;
        let other = other.join().expect("the thread of the large writes")?;
        figures.insert("beside_iops".into(), other["iops"]);
        Ok(figures)
    })
}

fn floor(basalt: &Basalt, dir: &Path, (depth, leaders): (u32, u32), plp: bool, seconds: u64) -> Result<Figures> {
    let (depth, leaders, seconds) = (depth.to_string(), leaders.to_string(), seconds.to_string());
    let dir = dir.display().to_string();
    let mode = if plp { "noflush" } else { "flush" };
    let shape = ["--depths", &depth, "--leaders", &leaders, "--modes", mode, "--seconds", &seconds];
    let body = basalt.json(&[&["bench", "floor", "--dir", &dir], &shape[..]].concat())?;
    let row = &body["rows"][0];
    let figure = |name: &str, field: &str| {
        row[field].as_f64().map(|value| (name.to_owned(), value)).with_context(|| format!("no {field} in {body}"))
    };
    let pairs = [("iops", "iops"), ("p50_us", "p50_us"), ("p99_us", "p99_us"), ("cpu_us", "cpu_us_per_write")];
    pairs.iter().map(|(name, field)| figure(name, field)).collect()
}

/// Runs one job of fio until its end, with a variable in its environment.
///
/// # Errors
/// fio is missing, or a request failed.
pub(super) fn fio(
    env: Option<(&str, &Path)>,
    place: &[String],
    op: Op,
    block: u32,
    depth: u32,
    end: End,
) -> Result<Figures> {
    let out = Command::new("timeout")
        .envs(env)
        .args(["-s", "KILL", &(end.seconds + 60).to_string(), "fio", "--name=bench", "--output-format=json"])
        .args(["--norandommap", "--randrepeat=0"])
        .args(end.flags(block))
        .args(place)
        .args([format!("--rw={}", op.word()), format!("--rwmixread={MIXED_READS}")])
        .args([format!("--bs={block}"), format!("--iodepth={depth}")])
        .output()
        .context("Debian's package fio")?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!("fio: {}: {text}{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    // Notes may stand before the JSON.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(json).with_context(|| format!("fio printed {text}"))?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    let number =
        |side: &str, path: &[&str]| path.iter().fold(&job[side], |value, name| &value[*name]).as_f64().unwrap_or(0.0);
    let both = |path: &[&str]| number("read", path) + number("write", path);
    let side = if op.writes() { "write" } else { "read" };
    let ops = both(&["total_ios"]);
    let us = |path: &[&str]| number(side, path) / 1e3;
    let percentile = |which: &str| us(&["clat_ns", "percentile", which]);
    let runtime_us = job["job_runtime"].as_f64().context("job_runtime")? * 1e3;
    let cpu = (job["usr_cpu"].as_f64().context("usr_cpu")? + job["sys_cpu"].as_f64().context("sys_cpu")?) / 100.0;
    let figures = [
        ("ops", ops),
        ("iops", both(&["iops"])),
        ("bytes_per_s", both(&["bw_bytes"])),
        ("written_bytes", number("write", &["io_bytes"])),
        ("mean_us", us(&["lat_ns", "mean"])),
        ("p50_us", percentile("50.000000")),
        ("p99_us", percentile("99.000000")),
        ("p999_us", percentile("99.900000")),
        ("cpu_us.fio", cpu * runtime_us / ops.max(1.0)),
        ("cpu_us", cpu * runtime_us / ops.max(1.0)),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_ends_after_a_time_or_after_its_requests() {
        assert_eq!(End { seconds: 5, ops: None }.flags(4096), ["--time_based", "--runtime=5"]);
        assert_eq!(End { seconds: 5, ops: Some(1000) }.flags(4096), ["--io_size=4096000", "--runtime=5"]);
    }

    #[test]
    fn the_deviation_is_relative_to_the_mean() {
        let counts = |numbers: &[u64]| numbers.iter().map(|n| Value::from(*n)).collect::<Vec<_>>();
        assert_eq!(deviation(&counts(&[5, 5, 5, 5])), None);
        assert_eq!(deviation(&counts(&[5, 5, 5, 5, 5])), Some(0.0));
        assert_eq!(deviation(&counts(&[0, 10, 0, 10, 0, 10])), Some(1.0));
        assert_eq!(deviation(&counts(&[0; 6])), None);
    }
}
