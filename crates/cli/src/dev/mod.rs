//! `basalt dev`: a cluster of separate processes on this machine.
//!
//! Everything lies in one folder, nothing needs root, and running daemons are found by their pid files. A
//! step that fails names the log with the cause.

mod cluster;
mod ports;
mod procs;
mod up;

use crate::args::Dev;
use crate::errors::UserError;
use crate::{hint, output, size};
use anyhow::Result;
pub use cluster::{Cluster, missing};
use procs::{Daemon, Signal};
use serde_json::json;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use types::codes;

/// Log of a dev OSD.
const LOG_SIZE: &str = "256MiB";
/// Condition for starting an OSD whose store stopped.
const AFTER_POISON: &str = "once the file system of the device is sound and has room";
/// Longest time until a daemon is ready.
const READY_MAX: Duration = Duration::from_secs(20);

/// Runs a `dev` command.
pub fn run(command: Dev, name: &str, json: bool) -> Result<()> {
    match command {
        Dev::Up { osds, device_size, export, size } => {
            up::run(name, &up::Wanted { osds, device_bytes: device_size, export, export_bytes: size }, json)
        }
        Dev::Status => status(&Cluster::expect(name)?, json),
        Dev::Socket { volume } => {
            let cluster = Cluster::expect(name)?;
            let socket = cluster.socket(&volume);
            if procs::pid(&cluster, &Daemon::Nbd(volume.clone())).is_none() {
                let what = format!("volume {volume} is not exported by dev cluster {name}");
                let next = format!("basalt dev up --export {volume}");
                return Err(UserError::new(codes::VOLUME_NOT_EXPORTED, what, next).into());
            }
            if json {
                let body = json!({ "volume": volume, "socket": socket, "uri": uri(&volume, &socket) });
                return output::json("dev.socket", body);
            }
            out!("{}", socket.display());
            Ok(())
        }
        Dev::Kill { osd } => signal(&Cluster::expect(name)?, osd, Signal::Kill, json),
        Dev::Stop { osd } => signal(&Cluster::expect(name)?, osd, Signal::Term, json),
        Dev::Start { osd, after_poison } => {
            let cluster = Cluster::expect(name)?;
            check_osd(&cluster, osd)?;
            if after_poison {
                // The process of a stopped store still runs: only a new one serves the device again.
                procs::stop(&cluster, &Daemon::Osd(osd), Signal::Term)?;
            }
            start_osd(&cluster, osd, after_poison)?;
            if json {
                return output::json("dev.start", json!({ "osd": osd }));
            }
            out!("osd.{osd} is running");
            Ok(())
        }
        Dev::Down => {
            let cluster = Cluster::expect(name)?;
            down(&cluster)?;
            if json {
                return output::json("dev.down", json!({ "name": name, "dir": cluster.dir }));
            }
            out!("cluster {name} is down; its data stays in {}", cluster.dir.display());
            Ok(())
        }
        Dev::Destroy { yes } => destroy(name, yes, json),
    }
}

fn uri(volume: &str, socket: &Path) -> String {
    format!("nbd+unix:///{volume}?socket={}", socket.display())
}

fn start_meta(cluster: &Cluster) -> Result<()> {
    let daemon = Daemon::Meta(0);
    let addr = cluster.meta_addr(0);
    if procs::pid(cluster, &daemon).is_none() {
        let dir = cluster.dir.join("meta.0");
        ports::free(&daemon.name(), addr)?;
        let args = ["meta", "--dir", &dir.to_string_lossy(), "--listen", &addr.to_string()].map(str::to_owned);
        procs::start(cluster, &daemon, &args)?;
    }
    wait_listening(cluster, &daemon, addr)
}

fn start_osd(cluster: &Cluster, n: u32, after_poison: bool) -> Result<()> {
    let daemon = Daemon::Osd(n);
    if procs::pid(cluster, &daemon).is_some() {
        return Ok(());
    }
    let device = cluster.device(n);
    let meta = cluster.meta_addr(0).to_string();
    if !cluster.osd_dir(n).join("formatted").exists() {
        cluster::make_dir(&cluster.osd_dir(n))?;
        crate::role::format::format(&crate::role::format::Format {
            device: device.clone(),
            size: Some(cluster.record.device_bytes),
            log_device: None,
            log_size: Some(size::parse(LOG_SIZE).map_err(anyhow::Error::msg)?),
            force: false,
            erase_osd: Vec::new(),
            reuse: true,
            metas: vec![cluster.meta_addr(0).into()],
            quiet: true,
            place: crate::role::format::Place { host: format!("dev{n}"), ..Default::default() },
            device_class: None,
            replaces: None,
        })?;
        std::fs::write(cluster.osd_dir(n).join("formatted"), "")?;
    }
    let addr = cluster.osd_addr(n);
    ports::free(&daemon.name(), addr)?;
    let host = format!("dev{n}");
    let mut args: Vec<String> = [
        "osd",
        "run",
        "--device",
        &device.to_string_lossy(),
        "--listen",
        &addr.to_string(),
        "--meta",
        &meta,
        "--host",
        &host,
    ]
    .map(str::to_owned)
    .into();
    args.extend(after_poison.then(|| "--after-poison".to_owned()));
    procs::start(cluster, &daemon, &args)?;
    wait_listening(cluster, &daemon, addr)
}

fn wait_listening(cluster: &Cluster, daemon: &Daemon, addr: SocketAddr) -> Result<()> {
    let listening = || std::net::TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok();
    let done = procs::wait_until(READY_MAX, || listening() || procs::pid(cluster, daemon).is_none());
    if done.is_ok() && procs::pid(cluster, daemon).is_some() { Ok(()) } else { Err(not_ready(cluster, daemon)) }
}

fn not_ready(cluster: &Cluster, daemon: &Daemon) -> anyhow::Error {
    let log = procs::log_file(cluster, daemon);
    let tail = procs::log_tail(cluster, daemon, 5);
    let next = match daemon {
        Daemon::Osd(n) if tail.contains(&codes::label(codes::STORE_POISONED)) => {
            format!("{}   # {AFTER_POISON}", after_poison(*n))
        }
        _ => format!("less {}", log.display()),
    };
    UserError::new(
        codes::PROCESS_NOT_READY,
        format!("{} did not become ready; its log ends with:\n{tail}", daemon.name()),
        next,
    )
    .into()
}

/// Returns the command that starts an OSD whose store stopped.
fn after_poison(n: u32) -> String {
    format!("basalt dev start {n} --after-poison")
}

/// Meta and the OSDs.
fn servers(cluster: &Cluster) -> impl Iterator<Item = (Daemon, SocketAddr)> {
    let osds = (1..=cluster.record.osds).map(|n| (Daemon::Osd(n), cluster.osd_addr(n)));
    std::iter::once((Daemon::Meta(0), cluster.meta_addr(0))).chain(osds)
}

fn daemons(cluster: &Cluster) -> Vec<(Daemon, String)> {
    let mut all: Vec<(Daemon, String)> = servers(cluster).map(|(daemon, addr)| (daemon, addr.to_string())).collect();
    let Ok(entries) = std::fs::read_dir(cluster.dir.join("pids")) else { return all };
    let exports = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    for name in exports.filter_map(|n| n.strip_prefix("nbd.").map(str::to_owned)) {
        let export = cluster::volume_name(&name);
        let socket = cluster.socket(&export).display().to_string();
        all.push((Daemon::Nbd(export), socket));
    }
    all
}

fn status(cluster: &Cluster, json: bool) -> Result<()> {
    let rows: Vec<_> = daemons(cluster)
        .into_iter()
        .map(|(daemon, at)| {
            let pid = procs::pid(cluster, &daemon);
            let log = procs::log_file(cluster, &daemon);
            (daemon.name(), pid, at, log.display().to_string())
        })
        .collect();
    if json {
        let list: Vec<_> = rows
            .iter()
            .map(|(name, pid, at, log)| json!({"name": name, "pid": pid, "address": at, "log": log}))
            .collect();
        return output::json("dev.status", json!({"name": cluster.record.name, "daemons": list}));
    }
    let cells = rows
        .into_iter()
        .map(|(name, pid, at, log)| vec![name, pid.map_or_else(|| "down".to_owned(), |p| p.to_string()), at, log]);
    output::table(&["daemon", "pid", "address", "log"], cells);
    Ok(())
}

/// Returns the running metas and OSDs of a cluster with their pids, for a measurement; none when the cluster
/// does not exist.
pub fn pids(name: &str) -> Vec<(String, u32)> {
    let Ok(Some(cluster)) = Cluster::open(name) else { return Vec::new() };
    let daemons = daemons(&cluster).into_iter().filter(|(d, _)| !matches!(d, Daemon::Nbd(_)));
    daemons.filter_map(|(daemon, _)| Some((daemon.name(), procs::pid(&cluster, &daemon)?))).collect()
}

/// Whether the cluster exists and its metadata server does not run.
pub fn is_down(name: &str) -> bool {
    matches!(Cluster::open(name), Ok(Some(cluster)) if procs::pid(&cluster, &Daemon::Meta(0)).is_none())
}

fn check_osd(cluster: &Cluster, n: u32) -> Result<()> {
    if (1..=cluster.record.osds).contains(&n) {
        return Ok(());
    }
    let what =
        format!("osd.{n} is not an OSD of dev cluster {}; it has 1 to {}", cluster.record.name, cluster.record.osds);
    Err(UserError::new(codes::DAEMON_UNKNOWN, what, "basalt dev status").into())
}

fn signal(cluster: &Cluster, n: u32, signal: Signal, json: bool) -> Result<()> {
    check_osd(cluster, n)?;
    let was_running = procs::stop(cluster, &Daemon::Osd(n), signal)?;
    if json {
        let thing = if signal == Signal::Kill { "dev.kill" } else { "dev.stop" };
        return output::json(thing, json!({ "osd": n, "was_running": was_running }));
    }
    if was_running {
        let start = hint::paste(&format!("basalt dev start {n}"));
        out!("osd.{n} is down; `{start}` starts it again");
    } else {
        out!("osd.{n} was down already");
    }
    Ok(())
}

fn down(cluster: &Cluster) -> Result<()> {
    let mut all = daemons(cluster);
    // Exports are stopped first, metas last: a client that is stopped closes its volume.
    all.sort_by_key(|(d, _)| match d {
        Daemon::Nbd(_) => 0,
        Daemon::Osd(_) => 1,
        Daemon::Meta(_) => 2,
    });
    for (daemon, _) in all {
        procs::stop(cluster, &daemon, Signal::Term)?;
    }
    Ok(())
}

/// Asks for confirmation at a terminal. Without a terminal the answer is no.
fn confirmed(cluster: &Cluster, json: bool) -> Result<bool> {
    if json || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    let name = &cluster.record.name;
    eprint!("Delete cluster {name} and all data in {}? Type its name to confirm: ", cluster.dir.display());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim() == name)
}

fn destroy(name: &str, yes: bool, json: bool) -> Result<()> {
    let cluster = Cluster::expect(name)?;
    if !yes && !confirmed(&cluster, json)? {
        let what = format!("this deletes all data in {}", cluster.dir.display());
        return Err(UserError::new(codes::BAD_USAGE, what, "basalt dev destroy --yes").into());
    }
    down(&cluster)?;
    std::fs::remove_dir_all(&cluster.dir)?;
    if json {
        return output::json("dev.destroy", json!({ "name": name }));
    }
    out!("cluster {name} is deleted");
    Ok(())
}
