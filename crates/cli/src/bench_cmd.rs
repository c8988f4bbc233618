//! `basalt bench`: the native client against a volume, or the baseline of this machine.

use crate::address::Address;
use crate::admin::Admin;
use crate::args::{BenchArgs, BenchSub, LoadArgs, LoadOp};
use crate::bench_engine;
use crate::bench_trace::{self, Steps};
use crate::errors::{Exit, UserError, advise, ended};
use crate::role::session::{Open, Session};
use crate::{output, size};
use anyhow::{Context, Result};
use bench::allocations;
use bench::cpu::{self, CpuSample};
use bench::floor::{self, FloorConfig, FloorMode, FloorRow};
use bench::load::{Load, LoadConfig, LoadReport, Pattern};
use clap::ValueEnum;
use env::Env;
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;
use types::codes;
use types::{Errno, Time};

/// Length of each of the floor's three log files.
const FLOOR_LOG: u64 = 512 << 20;
/// Interval at which a terminal shows the progress of a run.
const PROGRESS: Duration = Duration::from_secs(1);

/// Time after its end for which a run waits for answers: longer than a write waits for space, and than an election.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Runs a `bench` command. `metas` is evaluated only when a volume is measured; `daemons` are the cluster's, with their
/// pids.
pub fn run(
    args: BenchArgs,
    metas: impl FnOnce() -> Result<Vec<Address>>,
    daemons: &[(String, u32)],
    as_json: bool,
) -> Result<Exit> {
    match args.floor {
        Some(BenchSub::Floor { dir, seconds, depths, leaders, modes }) => {
            run_floor(dir, seconds, &depths, leaders, &modes, as_json).map(|()| Exit::Done)
        }
        Some(BenchSub::Engine(args)) => bench_engine::run(&args, as_json),
        Some(BenchSub::FloorNode { args }) => Ok(floor::node_main(&args).map(|()| Exit::Done)?),
        None => {
            let Some(volume) = args.load.volume.clone() else {
                return Err(UserError::new(
                    codes::BAD_USAGE,
                    "no volume was named",
                    "basalt bench main/demo, or basalt bench floor",
                )
                .into());
            };
            measure(&volume, &args.load, &metas()?, daemons, as_json)
        }
    }
}

fn measure(name: &str, args: &LoadArgs, metas: &[Address], daemons: &[(String, u32)], as_json: bool) -> Result<Exit> {
    let write = !matches!(args.op, LoadOp::Read | LoadOp::Randread);
    if args.trace && !write {
        let next = format!("basalt bench {name} --trace --op randwrite");
        return Err(UserError::new(codes::BAD_USAGE, "--trace shows a write, and this pattern only reads", next).into());
    }
    let admin = Admin::connect(metas)?;
    // The check precedes the open: a refusal must not take the volume from its holder.
    check_empty(&admin, name, write, args)?;
    let opened = Session::open(metas, Open { name, write, steal: args.steal }, args.ring);
    let mut session = opened.map_err(|error| advise(error, codes::VOLUME_HELD, || held_by_another(name)))?;
    let span = args.span.unwrap_or(session.info.len_bytes).min(session.info.len_bytes);
    let (pattern, read_percent) = match args.op {
        LoadOp::Randwrite => (Pattern::Random, 0),
        LoadOp::Randread => (Pattern::Random, 100),
        LoadOp::Write => (Pattern::Sequential, 0),
        LoadOp::Read => (Pattern::Sequential, 100),
        LoadOp::Randrw => (Pattern::Random, args.reads),
    };
    let config = LoadConfig {
        pattern,
        read_percent,
        block_bytes: u32::try_from(args.block).context("--block is too large")?,
        depth: args.depth as u32,
        duration: Duration::from_secs(args.seconds),
        ops_max: args.ops.unwrap_or_else(|| LoadConfig::default().ops_max),
        span_bytes: span - span % args.block.max(1),
        pieces: args.pieces.clone(),
        seed: args.seed,
        verify: args.verify,
        run: args.seed,
        ..LoadConfig::default()
    };
    if config.end_bytes() > session.info.len_bytes {
        session.close()?;
        let what = format!("the pieces end beyond {name}, which has {}", size::show(session.info.len_bytes));
        return Err(UserError::new(codes::BAD_USAGE, what, "choose other --pieces or a smaller --span").into());
    }
    let mut all = daemons.to_vec();
    all.push(("client".to_owned(), std::process::id()));
    let (before, allocated) = (living(&all), allocations::total());
    // The check is repeated: no other client can write to the volume from here on.
    let driven = check_empty(&admin, name, write, args).and_then(|()| drive(&mut session, config));
    let (after, allocated) = (living(&all), allocations::total() - allocated);
    // The volume is closed after a failure, too: the next opener need not wait for the lease of a holder that is gone.
    session.close()?;
    let Driven { report, kernel_entries, interrupted, unanswered } = driven?;
    let complete = after.len() == all.len() && before.len() == all.len();
    let shown = Shown {
        used: cpu::between(&before, &after),
        allocated,
        kernel_entries,
        complete,
        interrupted,
        overwrite: args.overwrite && write,
        trace: args.trace.then(|| bench_trace::find(&admin, &session.turns.client.ops())).transpose()?,
    };
    show(name, &report, &shown, as_json)?;
    if report.is_clean() && unanswered {
        let (requests, s) = (report.in_flight, ANSWER_MAX.as_secs());
        let what = format!("{name}: {requests} requests had no answer {s} s after the end of the run");
        return Err(UserError::new(codes::REQUESTS_NOT_ANSWERED, what, "basalt health detail").into());
    }
    if report.is_clean() {
        return Ok(if interrupted { Exit::Interrupted } else { Exit::Done });
    }
    Err(unclean(name, &report).into())
}

/// Returns the error of a run that was not clean. Data that differs comes before any refusal.
fn unclean(name: &str, report: &LoadReport) -> UserError {
    if report.violation_count > 0 {
        let what = format!("{name}: {} blocks hold wrong data", report.violation_count);
        return UserError::new(codes::DATA_DAMAGED, what, "basalt pg verify --deep");
    }
    let failed: Vec<String> = report.errors.iter().map(|(why, count)| format!("{count} × {why}")).collect();
    let what = format!("{name}: requests failed: {}", failed.join(", "));
    let has = |errno: Errno| report.errors.iter().any(|(why, _)| *why == errno.to_string());
    let worst =
        [Errno::Damaged, Errno::Fenced, Errno::Gone, Errno::NoSpace, Errno::ReadOnly].into_iter().find(|e| has(*e));
    UserError { what, ..ended(name, worst.unwrap_or(Errno::TimedOut)) }
}

/// Returns the advice for a volume that another client writes to: a measurement must not take it from there.
fn held_by_another(name: &str) -> String {
    let pool = name.split('/').next().unwrap_or(name);
    format!(
        "measure a volume of its own: `basalt volume create {pool}/bench 1GiB`, then `basalt bench {pool}/bench --op randwrite`; \
         `basalt volume info {name}` names the client of this one"
    )
}

/// Samples the CPU of the processes that are alive, under the names of their roles: a daemon may die during a run.
fn living(processes: &[(String, u32)]) -> Vec<CpuSample> {
    let sample = |(name, pid): &(String, u32)| {
        let sample = cpu::sample(&[*pid]).ok()?.pop()?;
        Some(CpuSample { name: name.clone(), ..sample })
    };
    processes.iter().filter_map(sample).collect()
}

/// Refuses to write over data.
fn check_empty(admin: &Admin, name: &str, write: bool, args: &LoadArgs) -> Result<()> {
    if !write || args.overwrite {
        return Ok(());
    }
    let volume = admin.volume_info(name)?;
    if volume.allocated_bytes == 0 {
        return Ok(());
    }
    let op = args.op.to_possible_value().map_or_else(String::new, |op| op.get_name().to_owned());
    let what =
        format!("{name} holds data ({} allocated), and --op {op} overwrites it", size::show(volume.allocated_bytes));
    let next = format!("basalt bench {name} --op randread, or add --overwrite if the data may be lost");
    Err(UserError::new(codes::VOLUME_NOT_EMPTY, what, next).into())
}

/// Result of a run.
struct Driven {
    report: LoadReport,
    /// Entries of this process's loop into the kernel.
    kernel_entries: u64,
    /// Whether a signal ended it before its time.
    interrupted: bool,
    /// Whether requests were in flight [`ANSWER_MAX`] after its time.
    unanswered: bool,
}

fn drive(session: &mut Session, config: LoadConfig) -> Result<Driven> {
    let duration = config.duration;
    let mut load = Load::new(config, session.turns.env.now())
        .map_err(|e| UserError::new(codes::BAD_USAGE, e.to_string(), "basalt bench --help"))?;
    let mut progress = Progress::new(session.turns.env.now());
    let answers_until = session.turns.env.now() + duration + ANSWER_MAX;
    let entries_before = session.turns.env.kernel_entries();
    let (mut requests, mut done, mut full) = (Vec::new(), Vec::new(), false);
    loop {
        let now = session.begin();
        session.turns.events.clear();
        session.device().completions(&mut done);
        for completion in done.drain(..) {
            // Its wait for space is over. Further writes would be refused, too, and the figures would be those of
            // refusals.
            full |= completion.result == Err(Errno::NoSpace);
            load.completed(now, completion.token, &completion.result);
        }
        let interrupted = session.interrupted();
        let unanswered = now >= answers_until;
        if interrupted || full || unanswered || load.is_done(now) {
            progress.end();
            let kernel_entries = session.turns.env.kernel_entries() - entries_before;
            return Ok(Driven { report: load.report(now), kernel_entries, interrupted, unanswered });
        }
        progress.show(now, &load);
        if let Some(errno) = session.failure() {
            return Err(ended(&session.info.name, errno).into());
        }
        load.next_requests(now, &mut requests);
        let device = session.device();
        for (request, token) in requests.drain(..) {
            if device.submit(now, request, token).is_err() {
                anyhow::bail!("the device takes fewer requests at once than --depth");
            }
        }
        session.finish(load.next_deadline(now).min(progress.next).min(answers_until))?;
    }
}

/// Prints a line a second at a terminal: a run whose requests hang must look different from one that works.
struct Progress {
    shown: bool,
    started: Time,
    next: Time,
    ops: u64,
}

impl Progress {
    fn new(now: Time) -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), started: now, next: now + PROGRESS, ops: 0 }
    }

    fn show(&mut self, now: Time, load: &Load) {
        if now < self.next {
            return;
        }
        self.next = now + PROGRESS;
        if self.shown {
            let report = load.report(now);
            let seconds = now.since(self.started).as_secs();
            let done = report.ops() - self.ops;
            self.ops = report.ops();
            eprint!("\r{seconds} s: {done} operations a second, {} in flight    ", report.in_flight);
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r{:60}\r", "");
        }
    }
}

/// Details that are printed with a report.
struct Shown {
    used: Vec<CpuSample>,
    /// Allocations of this process, in steps of some hundred.
    allocated: u64,
    /// Entries of this process's loop into the kernel during the run.
    kernel_entries: u64,
    /// Whether every daemon ran during the whole measurement.
    complete: bool,
    interrupted: bool,
    /// Whether the data of the volume could be overwritten.
    overwrite: bool,
    /// With `--trace`: the steps of one write, if one was found.
    trace: Option<Option<Steps>>,
}

fn show(name: &str, report: &LoadReport, shown: &Shown, as_json: bool) -> Result<()> {
    let ops = report.ops().max(1) as f64;
    let per_op = |sample: &CpuSample| sample.total_us() as f64 / ops;
    let total: f64 = shown.used.iter().map(per_op).sum();
    if as_json {
        let cpu: Vec<_> =
            shown.used.iter().map(|s| json!({ "pid": s.pid, "name": s.name, "us_per_op": per_op(s) })).collect();
        let mut body = json!({
            "volume": name, "report": report, "cpu_us_per_op": total, "cpu_complete": shown.complete, "cpu": cpu,
            "interrupted": shown.interrupted, "overwrite": shown.overwrite,
            "client_allocations_per_op": shown.allocated as f64 / ops,
            "client_kernel_entries_per_op": shown.kernel_entries as f64 / ops,
        });
        if let Some(trace) = &shown.trace {
            body["trace"] = serde_json::to_value(trace)?;
        }
        return output::json("bench", body);
    }
    if shown.overwrite {
        out!("{name} was overwritten (--overwrite)");
    }
    if shown.interrupted {
        let (seconds, waiting) = (report.elapsed_us as f64 / 1e6, report.in_flight);
        out!("interrupted after {seconds:.1} s; {waiting} requests had no answer yet");
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
    let parts: Vec<String> = shown.used.iter().map(|s| format!("{} {:.1}", s.name, per_op(s))).collect();
    let missing = if shown.complete { "" } else { "; a daemon ended during the run and is not included" };
    out!("cpu    {total:.1} us per operation ({}){missing}", parts.join(", "));
    out!("stall  {:.1} ms longest without a completion", report.longest_gap_us as f64 / 1000.0);
    if report.verified_blocks > 0 || report.violation_count > 0 {
        out!("verify {} blocks, {} violations", report.verified_blocks, report.violation_count);
    }
    if let Some(trace) = &shown.trace {
        bench_trace::show(trace.as_ref());
    }
    Ok(())
}

fn run_floor(
    dir: Option<std::path::PathBuf>,
    seconds: u64,
    depths: &[usize],
    leaders: Vec<u32>,
    modes: &[String],
    as_json: bool,
) -> Result<()> {
    let own = dir.is_none();
    let dir = dir
        .unwrap_or_else(|| std::path::PathBuf::from("/var/tmp").join(format!("basalt-floor.{}", std::process::id())));
    let unknown =
        |word: &String| UserError::new(codes::BAD_USAGE, format!("`{word}` is not a mode"), "--modes noflush,flush");
    let mode = |word: &String| FloorMode::from_word(word).ok_or_else(|| unknown(word));
    let config = FloorConfig {
        dir: dir.clone(),
        secs: seconds as f64,
        modes: modes.iter().map(mode).collect::<Result<_, _>>()?,
        depths: depths.iter().map(|d| *d as u32).collect(),
        leaders,
        log_bytes: FLOOR_LOG,
        node_command: vec![std::env::current_exe()?.into(), "bench".into(), "floor-node".into(), "--".into()],
    };
    let print = |row: &FloorRow| {
        if !as_json {
            out!(
                "{:<7} leaders {} depth {:<4} {:>8.0} IOPS  p50 {:.0} us  p99 {:.0} us  cpu {:.1} us per write",
                row.mode.word(),
                row.leaders,
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

    fn unclean_with(errors: &[Errno], violation_count: u64) -> UserError {
        let mut load = Load::new(LoadConfig::default(), types::Time::ZERO).expect("a load");
        let mut report = load.report(types::Time::ZERO);
        load.next_requests(types::Time::ZERO, &mut Vec::new());
        report.errors = errors.iter().map(|errno| (errno.to_string(), 3)).collect();
        report.violation_count = violation_count;
        unclean("main/a", &report)
    }

    #[test]
    fn a_full_pool_is_called_full_and_only_bad_bytes_are_called_damage() {
        let full = unclean_with(&[Errno::NoSpace], 0);
        assert_eq!(full.code, 5003);
        assert_eq!(full.what, "main/a: requests failed: 3 × no space left in the pool");
        assert_eq!(unclean_with(&[Errno::NoSpace, Errno::Damaged], 0).code, 5004);
        assert_eq!(unclean_with(&[Errno::NoSpace], 1).code, 5004);
        assert_eq!(unclean_with(&[Errno::TimedOut], 0).code, 5007);
    }
}
