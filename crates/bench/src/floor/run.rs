//! The parent: it makes the log files, starts four processes a case, and samples their CPU in the middle of the run.

use super::node::ClientResult;
use super::{DEPTH_MAX, FloorConfig, FloorError, FloorMode, FloorRow, SERVERS, io, journal};
use crate::cpu;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Start and end of the CPU measurement, as parts of the case.
const WINDOW: (f64, f64) = (0.1, 0.9);

/// Measures every mode with every number of leaders at every depth. `progress` gets each row as it comes.
///
/// # Errors
/// The configuration is out of range, or the machine refuses O_DIRECT, io_uring or a process.
pub fn run(config: &FloorConfig, mut progress: impl FnMut(&FloorRow)) -> Result<Vec<FloorRow>, FloorError> {
    validate(config)?;
    std::fs::create_dir_all(&config.dir).map_err(io(config.dir.display().to_string()))?;
    let logs: Vec<PathBuf> = (0..SERVERS).map(|n| config.dir.join(format!("floor.{n}.log"))).collect();
    for log in &logs {
        journal::prepare(log, config.log_bytes)?;
    }
    let mut rows = Vec::new();
    for mode in &config.modes {
        for leaders in &config.leaders {
            for depth in &config.depths {
                let row = case(config, &logs, *mode, *leaders, *depth)?;
                progress(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn validate(config: &FloorConfig) -> Result<(), FloorError> {
    let fault = if !(config.secs.is_finite() && config.secs >= 0.5) {
        format!("secs is {}, less than 0.5", config.secs)
    } else if let Some(depth) = config.depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
        format!("depth {depth} is not 1 to {DEPTH_MAX}")
    } else if let Some(leaders) = config.leaders.iter().find(|leaders| !(1..=SERVERS as u32).contains(*leaders)) {
        format!("leaders is {leaders}, not 1 to {SERVERS}")
    } else if config.log_bytes < 16 << 20 || !config.log_bytes.is_multiple_of(1 << 20) {
        format!("log_bytes is {}, not a multiple of 1 MiB from 16 MiB", config.log_bytes)
    } else if config.node_command.is_empty() {
        "node command is empty".into()
    } else {
        return Ok(());
    };
    Err(FloorError::Config(fault))
}

/// A child that dies with its owner.
struct Node {
    role: &'static str,
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Node {
    fn start<S: AsRef<OsStr>>(config: &FloorConfig, role: &'static str, args: &[S]) -> Result<Node, FloorError> {
        let (program, first) = config.node_command.split_first().expect("checked");
        let mut child = Command::new(program)
            .args(first)
            .arg(role)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io(format!("start {}", program.display())))?;
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Node { role, child, lines })
    }

    fn line(&mut self) -> Result<String, FloorError> {
        let mut line = String::new();
        self.lines.read_line(&mut line).map_err(io(self.role))?;
        if line.is_empty() { Err(FloorError::Node { role: self.role }) } else { Ok(line.trim_end().into()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Either call fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn case(
    config: &FloorConfig,
    logs: &[PathBuf],
    mode: FloorMode,
    leaders: u32,
    depth: u32,
) -> Result<FloorRow, FloorError> {
    let mut nodes = Vec::new();
    let mut addrs: Vec<OsString> = Vec::new();
    for (number, log) in logs.iter().enumerate() {
        let leads = (number < leaders as usize).to_string();
        let mut args = vec![log.clone().into_os_string(), mode.word().into(), leads.into()];
        args.extend_from_slice(&addrs);
        let mut server = Node::start(config, "server", &args)?;
        addrs.push(server.line()?.into());
        nodes.push(server);
    }
    for server in &mut nodes {
        server.line()?;
    }
    addrs.truncate(leaders as usize);
    let mut args: Vec<OsString> = vec![depth.to_string().into(), config.secs.to_string().into()];
    args.append(&mut addrs);
    let mut client = Node::start(config, "client", &args)?;
    client.line()?;
    let started = Instant::now();
    let mut pids = vec![client.child.id()];
    pids.extend(nodes.iter().map(|node| node.child.id()));
    wait_until(started + Duration::from_secs_f64(config.secs * WINDOW.0));
    let (before, from) = (cpu::sample(&pids)?, Instant::now());
    wait_until(started + Duration::from_secs_f64(config.secs * WINDOW.1));
    let (after, to) = (cpu::sample(&pids)?, Instant::now());
    let result: ClientResult =
        serde_json::from_str(&client.line()?).map_err(|_| FloorError::Node { role: "client" })?;
    if result.writes == 0 {
        return Err(FloorError::Node { role: "client" });
    }
    let iops = result.writes as f64 / result.secs;
    let writes_in_window = iops * (to - from).as_secs_f64();
    let mut cpu_us_by_role = [0.0; 1 + SERVERS];
    for (us, used) in cpu_us_by_role.iter_mut().zip(cpu::between(&before, &after)) {
        *us = used.total_us() as f64 / writes_in_window;
    }
    Ok(FloorRow {
        mode,
        leaders,
        depth,
        writes: result.writes,
        iops,
        p50_us: result.p50_us,
        p99_us: result.p99_us,
        cpu_us_per_write: cpu_us_by_role.iter().sum(),
        cpu_us_by_role,
    })
}

fn wait_until(when: Instant) {
    std::thread::sleep(when.saturating_duration_since(Instant::now()));
}
