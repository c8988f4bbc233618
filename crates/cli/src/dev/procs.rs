//! The processes of a dev cluster: started detached, found again by their pid files, stopped by signal.

use crate::dev::cluster::{self, Cluster};
use crate::errors::UserError;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use types::codes;

/// Longest time until a process ends after SIGTERM; then it is killed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// One daemon of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Daemon {
    Meta(u32),
    Osd(u32),
    Nbd(String),
}

impl Daemon {
    /// `meta.0`, `osd.2`, `nbd.main~demo`: also the name of its pid file and log.
    pub fn name(&self) -> String {
        match self {
            Daemon::Meta(i) => format!("meta.{i}"),
            Daemon::Osd(n) => format!("osd.{n}"),
            Daemon::Nbd(export) => format!("nbd.{}", cluster::file_name(export)),
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

/// Life cycle of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// None of its threads runs any more, but it may still hold its device and its ports.
    Dying,
    Gone,
}

/// Parses `/proc/PID/stat` and `/proc/PID/status`. A pending SIGKILL counts as the end, too.
fn life(stat: &str, status: &str) -> Life {
    const PF_EXITING: u64 = 0x4;
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    // The process name before it may contain any character, brackets too.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    let number = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let (flags, threads) = (number(6), number(17));
    match fields.first() {
        None | Some(&"X") => return Life::Gone,
        // Its first thread has ended; the others may still run.
        Some(&"Z") if threads <= 1 => return Life::Gone,
        Some(&"Z") => return Life::Dying,
        Some(_) => {}
    }
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let killed = status.lines().filter_map(pending).any(|mask| mask & SIGKILL != 0);
    if killed || flags & PF_EXITING != 0 { Life::Dying } else { Life::Running }
}

/// Returns the process that the daemon's pid file names, and its state; `None` for a process of another program.
fn look(cluster: &Cluster, daemon: &Daemon) -> Option<(u32, Life)> {
    let text = std::fs::read_to_string(pid_file(cluster, daemon)).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline")).ok()?.read_to_end(&mut line).ok()?;
    let ours = String::from_utf8_lossy(&line).split('\0').any(|w| w == cluster_mark(cluster));
    // A process has no command line at the moment of its exec, nor at its end.
    let nameless = line.is_empty();
    let life = life(&read("stat").ok()?, &read("status").ok()?);
    (ours || nameless).then_some((pid, life)).filter(|(_, life)| *life != Life::Gone)
}

/// Whether the daemon was started and not stopped by a command since.
pub fn was_started(cluster: &Cluster, daemon: &Daemon) -> bool {
    pid_file(cluster, daemon).exists()
}

/// Returns the daemon's pid, if it runs. A daemon that is being taken down does not.
pub fn pid(cluster: &Cluster, daemon: &Daemon) -> Option<u32> {
    look(cluster, daemon).filter(|(_, life)| *life == Life::Running).map(|(pid, _)| pid)
}

/// Waits until the daemon is gone, with its locks and ports.
fn wait_gone(cluster: &Cluster, daemon: &Daemon) -> Result<(), ()> {
    wait_until(STOP_MAX, || look(cluster, daemon).is_none())
}

fn does_not_end(daemon: &Daemon, pid: u32) -> UserError {
    UserError::new(codes::PROCESS_NOT_READY, format!("{} (pid {pid}) did not end in time", daemon.name()), "")
}

/// Returns an argument that every daemon of the cluster carries, so that a reused pid is never mistaken for one.
fn cluster_mark(cluster: &Cluster) -> String {
    format!("--dev-mark={}", cluster.record.mark)
}

/// The program `setsid` of util-linux.
const SETSID: &str = "/usr/bin/setsid";

fn has_setsid() -> bool {
    std::path::Path::new(SETSID).exists()
}

/// Starts a daemon in a session of its own; its output goes to its log. A previous process that is being taken down is
/// awaited first: it holds resources that the new one needs.
pub fn start(cluster: &Cluster, daemon: &Daemon, args: &[String]) -> Result<u32> {
    if let Some((pid, Life::Dying)) = look(cluster, daemon) {
        wait_gone(cluster, daemon).map_err(|()| does_not_end(daemon, pid))?;
    }
    let log = log_file(cluster, daemon);
    super::cluster::make_dir(log.parent().context("a log lies in a folder")?)?;
    let out = File::options().create(true).append(true).open(&log)?;
    let program = std::env::current_exe()?;
    // Without a session of its own a daemon gets the SIGHUP of the terminal that it was started at. `setsid` becomes the
    // daemon, so the pid stays. A system without util-linux gets a process group.
    let mut command = match has_setsid() {
        true => {
            let mut command = Command::new(SETSID);
            command.arg(program);
            command
        }
        false => {
            let mut command = Command::new(program);
            command.process_group(0);
            command
        }
    };
    command.args(args).arg(cluster_mark(cluster)).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let child = command.spawn().with_context(|| format!("starting {}", daemon.name()))?;
    std::fs::write(pid_file(cluster, daemon), child.id().to_string())?;
    Ok(child.id())
}

/// Sends a signal and waits for the end. Returns whether the daemon was alive.
pub fn stop(cluster: &Cluster, daemon: &Daemon, signal: Signal) -> Result<bool> {
    let Some((pid, life)) = look(cluster, daemon) else { return Ok(false) };
    if life == Life::Running {
        send(daemon, pid, signal)?;
    }
    if wait_gone(cluster, daemon).is_err() {
        send(daemon, pid, Signal::Kill)?;
        wait_gone(cluster, daemon).map_err(|()| does_not_end(daemon, pid))?;
    }
    match std::fs::remove_file(pid_file(cluster, daemon)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(true),
    }
}

/// Sends a signal; a process that has ended already needs none.
fn send(daemon: &Daemon, pid: u32, signal: Signal) -> Result<()> {
    let output =
        Command::new("kill").env("LC_ALL", "C").arg(format!("-{}", signal as i32)).arg(pid.to_string()).output();
    let output = output.context("running kill")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("not permitted") {
        let what = format!("{} (pid {pid}) belongs to another user: no signal may be sent to it", daemon.name());
        return Err(UserError::new(
            codes::PROCESS_OF_OTHER_USER,
            what,
            format!("ps -o user= -p {pid}   # run the command as that user"),
        )
        .into());
    }
    Ok(())
}

/// Checks `done` every 20 ms until it holds, for `max` at most.
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

/// Returns the last lines of a daemon's log, for an error message.
pub fn log_tail(cluster: &Cluster, daemon: &Daemon, lines: usize) -> String {
    let text = std::fs::read_to_string(log_file(cluster, daemon)).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line of `/proc/PID/stat`, up to the last field that is parsed.
    fn stat(state: char, flags: u64, threads: u64) -> String {
        format!("7 (a ) Z b) {state} 1 7 7 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 99")
    }

    #[test]
    fn a_process_that_is_being_taken_down_does_not_run() {
        let calm = "State:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n";
        let killed = "State:\tR (running)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n";
        assert_eq!(life(&stat('S', 0x0040_0040, 4), calm), Life::Running);
        assert_eq!(life(&stat('D', 0x0040_0044, 4), calm), Life::Dying, "it exits");
        assert_eq!(life(&stat('R', 0x0040_0040, 4), killed), Life::Dying, "the kill waits for it");
        assert_eq!(life(&stat('Z', 0x0040_004c, 3), calm), Life::Dying, "its other threads have not ended");
        assert_eq!(life(&stat('Z', 0x0040_004c, 1), calm), Life::Gone);
        assert_eq!(life(&stat('X', 0, 1), calm), Life::Gone);
        assert_eq!(life("", ""), Life::Gone);
    }

    #[test]
    fn killed_process_is_gone_before_it_is_reaped() {
        let read = |pid: u32| {
            let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
            life(&read("stat"), &read("status"))
        };
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        assert_eq!(read(child.id()), Life::Running);
        child.kill().expect("it is ours");
        assert_ne!(read(child.id()), Life::Running, "from the moment of the kill");
        assert_eq!(wait_until(STOP_MAX, || read(child.id()) == Life::Gone), Ok(()));
        child.wait().expect("it is ours");
    }
}
