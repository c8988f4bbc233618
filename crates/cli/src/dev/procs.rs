//! The processes of a dev cluster: started detached, found again by their pid files, stopped by signal.

use crate::dev::cluster::Cluster;
use crate::errors::UserError;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM before it is killed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// One daemon of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Daemon {
    Meta(u32),
    Osd(u32),
    Nbd(String),
}

impl Daemon {
    /// `meta.0`, `osd.2`, `nbd.main-demo`: also the name of its pid file and log.
    pub fn name(&self) -> String {
        match self {
            Daemon::Meta(i) => format!("meta.{i}"),
            Daemon::Osd(n) => format!("osd.{n}"),
            Daemon::Nbd(export) => format!("nbd.{}", export.replace('/', "-")),
        }
    }
}

/// A signal to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Term = libc::SIGTERM as isize,
    Kill = libc::SIGKILL as isize,
}

fn pid_file(cluster: &Cluster, daemon: &Daemon) -> PathBuf {
    cluster.dir.join("pids").join(daemon.name())
}

/// The daemon's log.
pub fn log_file(cluster: &Cluster, daemon: &Daemon) -> PathBuf {
    match daemon {
        Daemon::Osd(n) => cluster.osd_dir(*n).join("log.txt"),
        Daemon::Meta(i) => cluster.dir.join(format!("meta.{i}")).join("log.txt"),
        Daemon::Nbd(_) => cluster.dir.join("logs").join(format!("{}.txt", daemon.name())),
    }
}

/// The daemon's pid, if it is alive. A pid that now belongs to another program does not count.
pub fn pid(cluster: &Cluster, daemon: &Daemon) -> Option<u32> {
    let text = std::fs::read_to_string(pid_file(cluster, daemon)).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline")).ok()?.read_to_end(&mut line).ok()?;
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let zombie = state.rsplit(") ").next().is_some_and(|s| s.starts_with('Z'));
    let ours = String::from_utf8_lossy(&line).split('\0').any(|w| w == cluster_mark(cluster));
    // In the moment of its exec a process has no command line yet.
    let starting = line.is_empty();
    ((ours || starting) && !zombie).then_some(pid)
}

/// An argument that every daemon of the cluster carries, so that a pid is never mistaken.
fn cluster_mark(cluster: &Cluster) -> String {
    format!("--dev-mark={}", cluster.record.mark)
}

/// Starts a daemon in a session of its own; its output goes to its log.
pub fn start(cluster: &Cluster, daemon: &Daemon, args: &[String]) -> Result<u32> {
    let log = log_file(cluster, daemon);
    std::fs::create_dir_all(log.parent().context("a log lies in a folder")?)?;
    let out = File::options().create(true).append(true).open(&log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).arg(cluster_mark(cluster)).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    command.process_group(0);
    let child = command.spawn().with_context(|| format!("starting {}", daemon.name()))?;
    std::fs::write(pid_file(cluster, daemon), child.id().to_string())?;
    Ok(child.id())
}

/// Sends a signal and waits for the end. Gives whether the daemon was alive.
pub fn stop(cluster: &Cluster, daemon: &Daemon, signal: Signal) -> Result<bool> {
    let Some(pid) = pid(cluster, daemon) else { return Ok(false) };
    send(pid, signal)?;
    if wait_until(STOP_MAX, || self::pid(cluster, daemon).is_none()).is_err() {
        send(pid, Signal::Kill)?;
        wait_until(STOP_MAX, || self::pid(cluster, daemon).is_none())
            .map_err(|()| UserError::new(1004, format!("{} (pid {pid}) does not end", daemon.name()), ""))?;
    }
    match std::fs::remove_file(pid_file(cluster, daemon)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(true),
    }
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let status = Command::new("kill").arg(format!("-{}", signal as i32)).arg(pid.to_string()).status();
    status.context("running kill")?;
    Ok(())
}

/// Looks every 20 ms until `done`, at most `max`.
pub fn wait_until(max: Duration, mut done: impl FnMut() -> bool) -> Result<(), ()> {
    #[allow(clippy::disallowed_methods, reason = "a command waits for other processes; there is no event to wait for")]
    let (now, sleep) = (Instant::now, std::thread::sleep);
    let end = now() + max;
    while !done() {
        if now() > end {
            return Err(());
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The last lines of a daemon's log, for an error message.
pub fn log_tail(cluster: &Cluster, daemon: &Daemon, lines: usize) -> String {
    let text = std::fs::read_to_string(log_file(cluster, daemon)).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
