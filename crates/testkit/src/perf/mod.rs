//! The benchmark suite (`make bench`): named rows in named layouts on a fresh cluster, beside the floor and raw fio.
//!
//! A round measures every row once, each group behind its yardstick, so that drift of the machine strikes both. The
//! record has all runs and their medians; the ratios are those of one round.
//!
//! Invariant: a figure comes from a release build, and each run of a row from an unhurt cluster: any failed request ends
//! the suite.

mod book;
mod ceph;
mod counters;
mod loopback;
mod measure;
mod model;
mod profile;
mod rows;
mod stage;
mod wide;

use crate::cluster::Shape;
use crate::devices::Devices;
use anyhow::{Context, Result, bail, ensure};
use book::{Record, RowRecord, compare, medians};
use ceph::PeerRow;
use counters::Figures;
use profile::Profile;
use rows::{Phase, Row, Yardstick};
use stage::Stage;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use types::AU;

/// Log of the rows that are to run without destaging, and of those that are to wrap it.
const LOG: u64 = 2 << 30;
const LOG_SUSTAINED: u64 = 256 << 20;
/// Length of a sustained run, and of the run before it that is not counted.
const SUSTAINED_SECONDS: u64 = 60;
const WARM_UP_SECONDS: u64 = 15;
/// Bytes of a device for large rows in addition: payloads go through the log when what has become free before the next destage round
/// does not hold them.
const LARGE_MORE: u64 = 4 << 30;
const REDIRECT_MIN: &str = "--redirect-min";
/// Idle share below which the machine is not quiet.
const IDLE_MIN: f64 = 0.9;

pub const USAGE: &str =
    "usage: testkit bench [--rows TEXT,...] [--modes flush,noflush] [--repeats N] [--seconds S] [--json FILE]
                     [--page FILE] [--check FILE] [--list] [--dir DIR] [--devices fresh|written|loop]
                     [--device-gib N] [--osd-flags FLAG,...] [--profile DIR] [--peer ceph]

Measures the rows on a fresh cluster of release builds, each beside the least cost of this machine.
  --rows TEXT     only rows whose names contain one of these texts; sustained rows by `sustained` [default: all]
  --modes LIST    flush, noflush or both [default: flush]
  --repeats N     rounds [default: 3]
  --seconds S     length of a run [default: 5]; sustained rows take 60 s
  --json FILE     write the record there
  --page FILE     put the tables between the marks of this page
  --check FILE    fail when a ratio is worse by 15 % than in this record
  --list          print the names of the rows
  --devices WORD  `written`: the files of the devices are written once before, so that they have no holes, and get the
                  `--redirect-min` of block devices; `loop`: block devices over such files, which needs root; `fresh`:
                  sparse files [default: those of the record of --check, or written]
  --device-gib N  size of each device, and 4 GiB more for rows of 512 KiB; all rows together need the default, a few
                  rows less [default: 12]
  --profile DIR   sample all stacks of one run of each row with `perf`, into files there; `make profile` draws them
  --osd-flags LIST  further flags of `osd run`, for example --redirect-min=64KiB
  --peer ceph     measure the rows `ceph/...` afterwards, on a throw-away Ceph from Debian's packages
";

/// Configuration of a suite.
#[derive(Debug)]
struct Config {
    base: PathBuf,
    rows: Vec<Row>,
    modes: Vec<String>,
    repeats: usize,
    seconds: u64,
    json: Option<PathBuf>,
    page: Option<PathBuf>,
    check: Option<PathBuf>,
    /// `None`: those of the record that it is compared with, or written files.
    devices: Option<Devices>,
    device_gib: u64,
    osd_flags: Vec<String>,
    profile: Option<PathBuf>,
    /// Rows of the peer; none without `--peer`.
    peer_rows: Vec<PeerRow>,
}

impl Config {
    fn devices(&self) -> Devices {
        self.devices.unwrap_or(Devices::Written)
    }
}

/// Runs `testkit bench` with these arguments. Returns whether no ratio is worse than in the baseline.
///
/// # Errors
/// Wrong arguments; a build for development; a request that failed.
pub fn main(args: &[String]) -> Result<bool> {
    let Some(mut config) = parse(args)? else { return Ok(true) };
    // A missing baseline is told before the measurement, which takes minutes.
    let baseline = config.check.as_deref().map(read_record).transpose()?;
    if !config.peer_rows.is_empty() {
        ceph::check_installed()?;
    }
    ensure!(!cfg!(debug_assertions), "figures need a release build: cargo build --release -p cli -p testkit");
    let idle_before = counters::idle_share(Duration::from_secs(1))?;
    if idle_before < IDLE_MIN {
        eprintln!("the machine is only {:.0} % idle: figures will be low", idle_before * 100.0);
    }
    if let Some(baseline) = &baseline {
        config.devices = config.devices.or_else(|| Devices::named(&baseline.devices));
        let same = (&baseline.devices, &baseline.osd_flags) == (&config.devices().to_string(), &osd_flags(&config));
        ensure!(same, "the record is of {} devices and the flags {:?}", baseline.devices, baseline.osd_flags);
    }
    let (record, peer) = run(&config, idle_before)?;
    println!("{}", record.tables());
    if let Some(path) = &config.json {
        std::fs::write(path, serde_json::to_string_pretty(&record)? + "\n").context(path.display().to_string())?;
    }
    if let Some(path) = &config.page {
        let page = std::fs::read_to_string(path).context(path.display().to_string())?;
        std::fs::write(path, book::insert(&page, &record.tables())?)?;
    }
    // Its failure does not cost the figures before it.
    peer?;
    let (Some(path), Some(baseline)) = (&config.check, baseline) else { return Ok(true) };
    let (worse, compared) = record.worse_than(&baseline);
    ensure!(compared > 0, "{} has none of these rows", path.display());
    worse.iter().for_each(|line| println!("WORSE: {line}"));
    println!("{compared} ratios compared with {}, {} worse", path.display(), worse.len());
    Ok(worse.is_empty())
}

/// Reads the record of an earlier suite.
fn read_record(path: &Path) -> Result<Record> {
    let next = || format!("{0}: make bench ARGS='--json {0}' writes a record", path.display());
    let text = std::fs::read_to_string(path).with_context(next)?;
    let record: Record = serde_json::from_str(&text).with_context(next)?;
    ensure!(record.schema == book::SCHEMA, "{} is of schema {}, not {}", next(), record.schema, book::SCHEMA);
    Ok(record)
}

fn parse(args: &[String]) -> Result<Option<Config>> {
    let base = std::env::var_os("TESTKIT_DIR").map_or_else(|| PathBuf::from("/var/tmp/basalt-testkit"), PathBuf::from);
    let mut config = Config {
        base,
        rows: rows::all(),
        modes: vec!["flush".to_owned()],
        repeats: 3,
        seconds: 5,
        json: None,
        page: None,
        check: None,
        devices: None,
        device_gib: 12,
        osd_flags: Vec::new(),
        profile: None,
        peer_rows: Vec::new(),
    };
    let (mut texts, mut list) = (Vec::new(), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--list" {
            list = true;
            continue;
        }
        let value = args.next().with_context(|| format!("{arg} wants a value, or is no flag\n{USAGE}"))?;
        let words = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
        match arg.as_str() {
            "--rows" => texts = words(),
            "--peer" => {
                ensure!(value == ceph::NAME, "`{value}` is no peer: the only one is {}", ceph::NAME);
                config.peer_rows = ceph::all();
            }
            "--modes" => {
                config.modes = words();
                ensure!(
                    config.modes.iter().all(|mode| mode == "flush" || mode == "noflush"),
                    "`{value}` is not a list of flush and noflush"
                );
            }
            "--repeats" => config.repeats = value.parse()?,
            "--seconds" => config.seconds = value.parse()?,
            "--json" => config.json = Some(PathBuf::from(value)),
            "--page" => config.page = Some(PathBuf::from(value)),
            "--check" => config.check = Some(PathBuf::from(value)),
            "--devices" => {
                let unknown = || format!("`{value}` is none of {}", Devices::ALL.map(|d| d.to_string()).join(", "));
                config.devices = Some(Devices::named(value).with_context(unknown)?);
            }
            "--device-gib" => config.device_gib = value.parse().context("--device-gib")?,
            "--osd-flags" => config.osd_flags = words(),
            "--profile" => config.profile = Some(PathBuf::from(value)),
            "--dir" => config.base = PathBuf::from(value),
            _ => bail!("`{arg}` is no flag\n{USAGE}"),
        }
    }
    ensure!(config.repeats > 0 && config.seconds > 0, "--repeats and --seconds are at least 1");
    ensure!((1..=1 << 14).contains(&config.device_gib), "--device-gib is 1 to {}", 1 << 14);
    choose(&mut config, &texts)?;
    if list {
        config.rows.iter().for_each(|row| println!("{row}"));
        config.peer_rows.iter().for_each(|row| println!("{row}"));
        return Ok(None);
    }
    Ok(Some(config))
}

/// Keeps the rows that a text chooses, or all rows without a text.
///
/// # Errors
/// No row is left of the peer, or of Basalt without a peer; the peer is not measured in these modes.
fn choose(config: &mut Config, texts: &[String]) -> Result<()> {
    let peer = !config.peer_rows.is_empty();
    if !texts.is_empty() {
        config.rows.retain(|row| texts.iter().any(|text| row.is_meant(text)));
        config.peer_rows.retain(|row| texts.iter().any(|text| row.is_meant(text)));
    }
    let none = if peer { config.peer_rows.is_empty() } else { config.rows.is_empty() };
    let flag = if peer { " --peer ceph" } else { "" };
    ensure!(!none, "no row{flag} is named `{}`: testkit bench --list{flag}", texts.join(","));
    let measured = !peer || config.modes.iter().any(|mode| mode == ceph::MODE);
    ensure!(measured, "--peer ceph is measured in the mode {} only", ceph::MODE);
    Ok(())
}

/// Returns the record, and whether the rows of the peer are in it.
fn run(config: &Config, idle_before: f64) -> Result<(Record, Result<()>)> {
    let mut record = Record {
        schema: book::SCHEMA.to_owned(),
        commit: commit(),
        machine: machine(),
        seconds: config.seconds,
        idle_before,
        devices: config.devices().to_string(),
        osd_flags: osd_flags(config),
        rows: Vec::new(),
        yardsticks: BTreeMap::new(),
    };
    let mut peer = Ok(());
    for mode in &config.modes {
        for of in Phase::ALL {
            let rows: Vec<Row> = config.rows.iter().filter(|row| row.phase() == of).copied().collect();
            if !rows.is_empty() {
                phase(config, mode, of, &rows, &mut record)?;
            }
        }
        if mode == ceph::MODE && !config.peer_rows.is_empty() {
            peer = ceph::phase(config, &mut record);
        }
    }
    Ok((record, peer))
}

/// Measures the rows of one mode and one phase, on a cluster of their own.
fn phase(config: &Config, mode: &str, of: Phase, rows: &[Row], record: &mut Record) -> Result<()> {
    let plp = mode == "noflush";
    let log = if of == Phase::Sustained { LOG_SUSTAINED } else { LOG };
    std::fs::create_dir_all(&config.base)?;
    let more = if of == Phase::Large { LARGE_MORE } else { 0 };
    let (devices, device_bytes) = (config.devices(), (config.device_gib << 30) + more);
    let osd_flags = osd_flags(config);
    let shape = Shape { log_bytes: log, assume_plp: plp, device_bytes, devices, osd_flags, ..Shape::default() };
    let less = "--dir names a folder on another disk, --device-gib and --devices fresh need less space";
    let mut stage = Stage::up(&config.base, shape).with_context(|| format!("no cluster for the bench: {less}"))?;
    let dir = stage.cluster.dir.join("yardsticks");
    std::fs::create_dir_all(&dir)?;
    let basalt = stage.cluster.basalt.clone();
    // The OSDs are idle meanwhile: a destage round of the row before would slow the disk down.
    let bare = |stage: &Stage, what| -> Result<Figures> {
        stage.destage()?;
        measure::yardstick(&basalt, &dir, what, plp, config.seconds)
    };
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); rows.len()];
    let mut yardsticks: BTreeMap<Yardstick, Vec<Figures>> = BTreeMap::new();
    for round in 1..=config.repeats {
        let mut last: Option<(Yardstick, Figures)> = None;
        for (row, runs) in rows.iter().zip(&mut runs) {
            let what = row.yardstick();
            if last.as_ref().is_none_or(|(of, _)| *of != what) {
                let figures = bare(&stage, what)?;
                eprintln!("round {round}, {mode}, {what}: {}", line(&figures));
                yardsticks.entry(what).or_default().push(figures.clone());
                last = Some((what, figures));
            }
            let profile = config.profile.as_deref().filter(|_| round == 1);
            let mut figures = one(&mut stage, row, config.seconds, profile)?;
            let yardstick = &last.as_ref().expect("just measured").1;
            compare(&mut figures, yardstick, "");
            if let Some(what) = row.shape_yardstick() {
                let part = bare(&stage, what)?;
                eprintln!("round {round}, {mode}, {what}: {}", line(&part));
                let read = (what == Yardstick::Loopback).then(|| loopback::read_over(yardstick, &part));
                compare(&mut figures, read.as_ref().unwrap_or(&part), "shape_");
                yardsticks.entry(what).or_default().push(part);
            }
            eprintln!("round {round}, {mode}, {row}: {}", line(&figures));
            runs.push(figures);
        }
    }
    for (row, runs) in rows.iter().zip(runs) {
        record.rows.push(RowRecord::new(row, mode, row.yardstick(), runs));
    }
    for (what, runs) in yardsticks {
        record.yardsticks.insert(format!("{mode} {what}"), medians(&runs));
    }
    Ok(())
}

/// Returns the flags of the OSDs. A file without holes is used like the disk that it stands for: large writes are written once (ADR 0030).
fn osd_flags(config: &Config) -> Vec<String> {
    let mut flags = config.osd_flags.clone();
    if config.devices() == Devices::Written && !flags.iter().any(|flag| flag.starts_with(REDIRECT_MIN)) {
        flags.push(format!("{REDIRECT_MIN}={AU}"));
    }
    flags
}

fn one(stage: &mut Stage, row: &Row, seconds: u64, profile: Option<&Path>) -> Result<Figures> {
    let seconds = if row.sustained {
        measure::row(stage, row, WARM_UP_SECONDS)?;
        SUSTAINED_SECONDS
    } else {
        // The volumes of a layout are made, and filled, when they are first asked for.
        stage.find_leaders()?;
        stage.targets(row)?;
        stage.destage()?;
        seconds
    };
    let Some(dir) = profile else { return measure::row(stage, row, seconds) };
    std::fs::create_dir_all(dir)?;
    let profile = Profile::begin(dir, row, seconds)?;
    let mut figures = measure::row(stage, row, seconds)?;
    let ops = figures.get("ops").copied().unwrap_or(0.0).max(1.0);
    match profile.end()? {
        Some(count) => _ = figures.insert("instructions".into(), count / ops),
        None => eprintln!("{row}: this machine does not count instructions"),
    }
    Ok(figures)
}

fn line(figures: &Figures) -> String {
    let names =
        ["iops", "p50_us", "p99_us", "cpu_us", "iops_ratio", "cpu_ratio", "turns", "instructions", "beside_iops"];
    let parts = names.iter().filter_map(|name| figures.get(*name).map(|value| format!("{name} {value:.2}")));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns the commit that was built, with a mark when the tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let dirty = git(&["status", "--porcelain"]).is_some_and(|lines| !lines.is_empty());
    let hash = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    if dirty { hash + "+" } else { hash }
}

fn machine() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("kernel".to_owned(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("processor".to_owned(), model.trim_start_matches([' ', '\t', ':']).to_owned()),
        ("cores".to_owned(), cores.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_missing_or_foreign_baseline_is_told_before_the_measurement() {
        let file = std::env::temp_dir().join(format!("basalt-record-{}", std::process::id()));
        let check = || main(&["--check".to_owned(), file.display().to_string()]).expect_err("no baseline");
        assert!(format!("{:#}", check()).contains("--json"), "{:#}", check());
        std::fs::write(&file, "{}").unwrap();
        assert!(format!("{:#}", check()).contains("--json"), "{:#}", check());
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn flags_choose_rows_and_modes_and_wrong_ones_are_refused() {
        let config =
            parse(&words("--rows spread/randwrite,nbd/read --modes flush,noflush --repeats 1")).unwrap().unwrap();
        assert!(
            config
                .rows
                .iter()
                .all(|row| row.to_string().contains("spread/randwrite") || row.to_string().contains("nbd/read"))
        );
        assert_eq!((config.modes.len(), config.repeats, config.seconds), (2, 1, 5));
        for wrong in ["--rows nothing", "--modes sync", "--repeats 0", "--fast 1", "--seconds"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
        assert!(parse(&words("--list")).unwrap().is_none());
    }

    #[test]
    fn files_without_holes_write_large_requests_once_as_disks_do() {
        let flags = |text: &str| osd_flags(&parse(&words(text)).unwrap().unwrap());
        assert_eq!(flags("--seconds 1"), ["--redirect-min=65536"]);
        assert_eq!(flags("--osd-flags --redirect-min=0"), ["--redirect-min=0"]);
        assert_eq!(flags("--osd-flags --no-lease-reads --devices written").len(), 2);
        assert!(flags("--devices fresh").is_empty() && flags("--devices loop").is_empty());
    }

    #[test]
    fn a_peer_adds_its_rows_in_one_mode_and_other_words_are_refused() {
        let chosen = |text: &str| {
            let config = parse(&words(text)).unwrap().unwrap();
            (config.rows.len(), config.peer_rows.iter().map(PeerRow::to_string).collect::<Vec<_>>())
        };
        assert_eq!(chosen("--seconds 1"), (rows::all().len(), Vec::new()));
        let all: Vec<String> = ceph::all().iter().map(PeerRow::to_string).collect();
        assert_eq!(chosen("--peer ceph"), (rows::all().len(), all));
        let (ours, theirs) = chosen("--rows spread/randwrite-4k/d1,ceph/randwrite-4k/d1 --peer ceph");
        assert_eq!((ours, theirs), (1, vec!["ceph/randwrite-4k/d1".to_owned()]));
        assert_eq!(chosen("--peer ceph --rows ceph/write").0, 0);
        for wrong in ["--peer zfs", "--peer", "--peer ceph --modes noflush", "--peer ceph --rows nbd", "--rows ceph"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
