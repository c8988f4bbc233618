//! `basalt bench`: the native client against a volume, or the floor of this machine.

use crate::args::{BenchArgs, BenchSub, LoadArgs, LoadOp};
use crate::errors::{UserError, advise};
use crate::role::session::Session;
use crate::{output, size};
use anyhow::{Context, Result};
use bench::cpu::{self, CpuSample};
use bench::floor::{self, FloorConfig, FloorMode, FloorRow};
use bench::load::{Load, LoadConfig, LoadReport, Pattern};
use control::codes::{READ_ONLY, VOLUME_HELD, VOLUME_UNKNOWN};
use env::Env;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use types::Errno;

/// Length of each of the floor's three log files.
const FLOOR_LOG: u64 = 512 << 20;

/// Runs a `bench` command. `metas` is asked only when a volume is measured; `pids` are the cluster's daemons.
pub fn run(
    args: BenchArgs,
    metas: impl FnOnce() -> Result<Vec<SocketAddr>>,
    pids: &[u32],
    as_json: bool,
) -> Result<()> {
    match args.floor {
        Some(BenchSub::Floor { dir, seconds, depths, modes }) => run_floor(dir, seconds, &depths, &modes, as_json),
        Some(BenchSub::FloorNode { args }) => Ok(floor::node_main(&args)?),
        None => {
            let Some(volume) = args.load.volume.clone() else {
                return Err(UserError::new(1001, "no volume was named", "basalt bench main/demo").into());
            };
            measure(&volume, &args.load, &metas()?, pids, as_json)
        }
    }
}

fn measure(name: &str, args: &LoadArgs, metas: &[SocketAddr], pids: &[u32], as_json: bool) -> Result<()> {
    let write = !matches!(args.op, LoadOp::Read | LoadOp::Randread);
    let opened = Session::open(metas, name, write, args.steal);
    let mut session = opened.map_err(|error| advise(error, VOLUME_HELD, || held_by_another(name)))?;
    let span = args.span.unwrap_or(session.info.len_bytes).min(session.info.len_bytes);
    let (pattern, read_percent) = match args.op {
        LoadOp::Randwrite => (Pattern::Random, 0),
        LoadOp::Randread => (Pattern::Random, 100),
        LoadOp::Write => (Pattern::Sequential, 0),
        LoadOp::Read => (Pattern::Sequential, 100),
        LoadOp::Randrw => (Pattern::Random, 50),
    };
    let config = LoadConfig {
        pattern,
        read_percent,
        block_bytes: u32::try_from(args.block).context("--block is too large")?,
        depth: args.depth as u32,
        duration: Duration::from_secs(args.seconds),
        span_bytes: span - span % args.block.max(1),
        seed: args.seed,
        verify: args.verify,
        run: args.seed,
        ..LoadConfig::default()
    };
    let mut all = pids.to_vec();
    all.push(std::process::id());
    let before = living(&all);
    let driven = drive(&mut session, config);
    let after = living(&all);
    // Also after a failure: nobody should wait for the lease of a holder that is gone.
    session.close()?;
    let report = driven?;
    let complete = after.len() == all.len() && before.len() == all.len();
    show(name, &report, &cpu::between(&before, &after), complete, as_json)?;
    if report.is_clean() {
        return Ok(());
    }
    Err(unclean(name, &report).into())
}

/// What a run that was not clean ended with. Data that differs comes before any refusal.
fn unclean(name: &str, report: &LoadReport) -> UserError {
    if report.violation_count > 0 {
        let what = format!("{name}: {} blocks hold what was not written to them", report.violation_count);
        return UserError::new(5004, what, "basalt pg verify --deep");
    }
    let failed: Vec<String> = report.errors.iter().map(|(why, count)| format!("{count} × {why}")).collect();
    let what = format!("{name}: requests failed: {}", failed.join(", "));
    let has = |errno: Errno| report.errors.iter().any(|(why, _)| *why == errno.to_string());
    let worst =
        [Errno::Damaged, Errno::Fenced, Errno::Gone, Errno::NoSpace, Errno::ReadOnly].into_iter().find(|e| has(*e));
    UserError { what, ..failure(name, worst.unwrap_or(Errno::TimedOut)) }
}

/// The error that stands for an outcome of requests.
fn failure(name: &str, errno: Errno) -> UserError {
    let (code, next) = match errno {
        Errno::Fenced => (5002, "basalt volume ls   # shows which client holds it now"),
        Errno::NoSpace => {
            (5003, "basalt osd ls   # shows which OSD is full; delete volumes of the pool to get space back")
        }
        Errno::Damaged => (5004, "basalt pg verify --deep"),
        Errno::Gone => (VOLUME_UNKNOWN, "basalt volume ls"),
        Errno::ReadOnly => (READ_ONLY, "basalt volume ls"),
        Errno::Invalid => (1001, "basalt bench --help"),
        Errno::TimedOut | Errno::Shutdown => (5007, "basalt status"),
    };
    UserError::new(code, format!("{name}: {errno}"), next)
}

/// The advice for a volume that another client writes to: not to take it from there for a measurement.
fn held_by_another(name: &str) -> String {
    let pool = name.split('/').next().unwrap_or(name);
    format!(
        "measure a volume of its own: `basalt volume create {pool}/bench 1GiB`, then `basalt bench {pool}/bench --op randwrite`; \
         `basalt volume info {name}` names the holder of this one"
    )
}

/// CPU of the processes that are alive: a daemon may be killed while a volume is measured.
fn living(pids: &[u32]) -> Vec<CpuSample> {
    pids.iter().filter_map(|pid| cpu::sample(&[*pid]).ok()).flatten().collect()
}

fn drive(session: &mut Session, config: LoadConfig) -> Result<LoadReport> {
    let mut load =
        Load::new(config, session.env.now()).map_err(|e| UserError::new(1001, e.to_string(), "basalt bench --help"))?;
    let (mut requests, mut done) = (Vec::new(), Vec::new());
    loop {
        let now = session.begin();
        session.events.clear();
        session.device().completions(&mut done);
        for completion in done.drain(..) {
            load.completed(now, completion.token, &completion.result);
        }
        if load.is_done(now) || session.interrupted() {
            return Ok(load.report(now));
        }
        if let Some(errno) = session.failure() {
            return Err(failure(&session.info.name, errno).into());
        }
        load.next_requests(now, &mut requests);
        let device = session.device();
        for (request, token) in requests.drain(..) {
            if device.submit(now, request, token).is_err() {
                anyhow::bail!("the device takes fewer requests at once than --depth");
            }
        }
        session.finish(load.next_deadline(now))?;
    }
}

fn show(name: &str, report: &LoadReport, used: &[CpuSample], complete: bool, as_json: bool) -> Result<()> {
    let ops = report.ops().max(1) as f64;
    let per_op = |sample: &CpuSample| sample.total_us() as f64 / ops;
    let total: f64 = used.iter().map(per_op).sum();
    if as_json {
        let cpu: Vec<_> =
            used.iter().map(|s| json!({ "pid": s.pid, "name": s.name, "us_per_op": per_op(s) })).collect();
        return output::json(
            "bench",
            json!({ "volume": name, "report": report, "cpu_us_per_op": total, "cpu_complete": complete, "cpu": cpu }),
        );
    }
    for (what, side) in [("write", &report.writes), ("read", &report.reads)] {
        if side.ops > 0 {
            let l = &side.latency;
            out!(
                "{what:<6} {:>8.0} IOPS  {:>10}/s  p50 {:.0} us  p90 {:.0}  p99 {:.0}  p99.9 {:.0}  max {:.0}",
                side.iops,
                size::show(side.bytes_per_s as u64),
                l.p50_us,
                l.p90_us,
                l.p99_us,
                l.p999_us,
                l.max_us
            );
        }
    }
    let parts: Vec<String> = used.iter().map(|s| format!("{} {:.1}", s.pid, per_op(s))).collect();
    let missing = if complete { "" } else { "; a daemon ended meanwhile and is not in it" };
    out!("cpu    {total:.1} us per operation ({}){missing}", parts.join(", "));
    out!("gap    {} us longest without a completion", report.longest_gap_us);
    if report.verified_blocks > 0 || report.violation_count > 0 {
        out!("verify {} blocks, {} violations", report.verified_blocks, report.violation_count);
    }
    Ok(())
}

fn run_floor(
    dir: Option<std::path::PathBuf>,
    seconds: u64,
    depths: &[usize],
    modes: &[String],
    as_json: bool,
) -> Result<()> {
    let own = dir.is_none();
    let dir = dir
        .unwrap_or_else(|| std::path::PathBuf::from("/var/tmp").join(format!("basalt-floor.{}", std::process::id())));
    let mode = |word: &String| match word.as_str() {
        "flush" => Ok(FloorMode::Sync),
        "noflush" => Ok(FloorMode::Plp),
        other => Err(UserError::new(1001, format!("`{other}` is no mode"), "--modes noflush,flush")),
    };
    let config = FloorConfig {
        dir: dir.clone(),
        secs: seconds as f64,
        modes: modes.iter().map(mode).collect::<Result<_, _>>()?,
        depths: depths.iter().map(|d| *d as u32).collect(),
        log_bytes: FLOOR_LOG,
        node_command: vec![std::env::current_exe()?.into(), "bench".into(), "floor-node".into(), "--".into()],
    };
    let print = |row: &FloorRow| {
        if !as_json {
            out!(
                "{:?} depth {:<4} {:>8.0} IOPS  p50 {:.0} us  p99 {:.0} us  cpu {:.1} us per write",
                row.mode,
                row.depth,
                row.iops,
                row.p50_us,
                row.p99_us,
                row.cpu_us_per_write
            );
        }
    };
    let rows = floor::run(&config, print)?;
    if own {
        let _ = std::fs::remove_dir_all(&dir);
    }
    if as_json {
        return output::json("bench.floor", json!({ "rows": rows }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(errors: &[Errno], violation_count: u64) -> UserError {
        let mut load = Load::new(LoadConfig::default(), types::Time::ZERO).expect("a load");
        let mut report = load.report(types::Time::ZERO);
        load.next_requests(types::Time::ZERO, &mut Vec::new());
        report.errors = errors.iter().map(|errno| (errno.to_string(), 3)).collect();
        report.violation_count = violation_count;
        unclean("main/a", &report)
    }

    #[test]
    fn a_full_pool_is_called_full_and_only_bad_bytes_are_called_damage() {
        let full = ended(&[Errno::NoSpace], 0);
        assert_eq!(full.code, 5003);
        assert_eq!(full.what, "main/a: requests failed: 3 × no space left in the pool");
        assert_eq!(ended(&[Errno::NoSpace, Errno::Damaged], 0).code, 5004);
        assert_eq!(ended(&[Errno::NoSpace], 1).code, 5004);
        assert_eq!(ended(&[Errno::TimedOut], 0).code, 5007);
    }
}
