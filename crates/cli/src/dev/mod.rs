//! `basalt dev`: a cluster of separate processes on this machine.
//!
//! Everything lies in one folder; nothing needs root; what runs is found by pid files. A step that fails
//! names the log that says why.

mod cluster;
mod procs;

use crate::admin::Admin;
use crate::args::Dev;
use crate::errors::UserError;
use crate::{output, size};
use anyhow::Result;
pub use cluster::Cluster;
use procs::{Daemon, Signal};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The pool that `dev up` makes.
const POOL: &str = "main";
const POOL_PGS: u32 = 32;
/// Log of a dev OSD.
const LOG_SIZE: &str = "256MiB";
/// How long a cluster that serves is given to have all its replicas.
const WHOLE_MAX: Duration = Duration::from_secs(2);
/// How long a daemon may take to be ready.
const READY_MAX: Duration = Duration::from_secs(20);

/// Runs a `dev` command.
pub fn run(command: Dev, name: &str, json: bool) -> Result<()> {
    match command {
        Dev::Up { osds, device_size, export, size } => {
            up(name, osds, device_size, export.as_deref().map(|e| (e, size)), json)
        }
        Dev::Status => status(&Cluster::expect(name)?, json),
        Dev::Socket { volume } => {
            let socket = Cluster::expect(name)?.socket(&volume);
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

/// `export` is a volume with the size that it gets when it is not there.
fn up(name: &str, osds: u32, device_bytes: u64, export: Option<(&str, u64)>, json: bool) -> Result<()> {
    let cluster = match Cluster::open(name)? {
        Some(cluster) => cluster,
        None => Cluster::create(name, osds, device_bytes)?,
    };
    if !json {
        out!("cluster {name} in {}", cluster.dir.display());
    }
    start_meta(&cluster)?;
    for n in 1..=cluster.record.osds {
        start_osd(&cluster, n, false)?;
    }
    let admin = Admin::connect(&[cluster.meta_addr(0)])?;
    let replicas = match cluster.record.osds {
        n @ 1..=2 => n,
        _ => 3,
    };
    if admin.pool(POOL)?.is_none() {
        admin.create_pool(POOL, replicas, POOL_PGS, crate::args::Domain::Osd)?;
    }
    wait_ready("all PGs to be active", || admin.all_active(POOL))?;
    // Followers are with a new leader a moment later. One that must catch up first is no reason to wait.
    let _ = procs::wait_until(WHOLE_MAX, || admin.all_whole(POOL).unwrap_or(false));
    if !json {
        out!("ready: 1 meta, {} OSDs, pool {POOL} with {replicas} replicas", cluster.record.osds);
    }
    let exported = match export {
        Some((volume, bytes)) => Some((volume, export_volume(&cluster, &admin, volume, bytes)?)),
        None => None,
    };
    if json {
        let export = exported.map(|(volume, uri)| json!({ "volume": volume, "uri": uri }));
        let (dir, meta) = (&cluster.dir, cluster.meta_addr(0));
        let body = json!({ "name": name, "dir": dir, "meta": meta, "osds": cluster.record.osds, "export": export });
        return output::json("dev.up", body);
    }
    match exported {
        Some((volume, uri)) => print_next(volume, &uri),
        None => {
            out!("next:\n  basalt volume create {POOL}/demo 1GiB\n  basalt nbd {POOL}/demo --socket /tmp/demo.sock");
        }
    }
    Ok(())
}

fn start_meta(cluster: &Cluster) -> Result<()> {
    let daemon = Daemon::Meta(0);
    let addr = cluster.meta_addr(0);
    if procs::pid(cluster, &daemon).is_none() {
        let dir = cluster.dir.join("meta.0");
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
        std::fs::create_dir_all(cluster.osd_dir(n))?;
        crate::role::osd::format(&crate::role::osd::Format {
            device: device.clone(),
            size: Some(cluster.record.device_bytes),
            log_size: Some(size::parse(LOG_SIZE).map_err(anyhow::Error::msg)?),
            force: true,
            metas: vec![cluster.meta_addr(0)],
            quiet: true,
            place: crate::role::osd::Place { host: format!("dev{n}"), ..Default::default() },
        })?;
        std::fs::write(cluster.osd_dir(n).join("formatted"), "")?;
    }
    let addr = cluster.osd_addr(n);
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

/// Gives the URI of the export.
fn export_volume(cluster: &Cluster, admin: &Admin, volume: &str, bytes: u64) -> Result<String> {
    if admin.volume(volume)?.is_none() {
        admin.create_volume(volume, bytes)?;
    }
    let daemon = Daemon::Nbd(volume.to_owned());
    let socket = cluster.socket(volume);
    if procs::pid(cluster, &daemon).is_none() {
        let _ = std::fs::remove_file(&socket);
        let meta = cluster.meta_addr(0).to_string();
        // The holder of a killed run is gone with it, but its lease may still stand.
        let args =
            ["nbd", volume, "--socket", &socket.to_string_lossy(), "--meta", &meta, "--steal"].map(str::to_owned);
        procs::start(cluster, &daemon, &args)?;
    }
    let listening = || greets(&socket);
    if procs::wait_until(READY_MAX, || listening() || procs::pid(cluster, &daemon).is_none()).is_err() || !listening() {
        return Err(not_ready(cluster, &daemon));
    }
    Ok(uri(volume, &socket))
}

/// Whether an NBD server greets at the socket: it does so once its volume is open.
fn greets(socket: &std::path::Path) -> bool {
    let greeting = || -> std::io::Result<[u8; 8]> {
        let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut word = [0; 8];
        std::io::Read::read_exact(&mut stream, &mut word)?;
        Ok(word)
    };
    greeting().is_ok_and(|word| &word == b"NBDMAGIC")
}

fn print_next(volume: &str, uri: &str) {
    out!("volume {volume} is exported; try:");
    out!("  nbdinfo '{uri}'");
    out!("  qemu-img convert -n -O raw IMAGE '{uri}'");
    out!("  qemu-img compare IMAGE '{uri}'");
    out!("  fio --name=v --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=32 --size=256M --verify=crc32c");
    out!("  basalt status");
    out!("  basalt dev kill 1 && basalt dev start 1");
    out!("(`basalt` is scripts/basalt here)");
}

fn wait_listening(cluster: &Cluster, daemon: &Daemon, addr: SocketAddr) -> Result<()> {
    let listening = || std::net::TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok();
    let done = procs::wait_until(READY_MAX, || listening() || procs::pid(cluster, daemon).is_none());
    if done.is_ok() && procs::pid(cluster, daemon).is_some() { Ok(()) } else { Err(not_ready(cluster, daemon)) }
}

fn not_ready(cluster: &Cluster, daemon: &Daemon) -> anyhow::Error {
    let log = procs::log_file(cluster, daemon);
    let tail = procs::log_tail(cluster, daemon, 5);
    UserError::new(
        1004,
        format!("{} did not become ready; its log ends with:\n{tail}", daemon.name()),
        format!("less {}", log.display()),
    )
    .into()
}

fn wait_ready(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut last = None;
    let done = procs::wait_until(READY_MAX, || match ready() {
        Ok(ready) => ready,
        Err(error) => {
            last = Some(error);
            false
        }
    });
    match (done, last) {
        (Ok(()), _) => Ok(()),
        (Err(()), Some(error)) => Err(error),
        (Err(()), None) => {
            Err(UserError::new(1004, format!("waited {READY_MAX:?} for {what}"), "basalt status").into())
        }
    }
}

fn daemons(cluster: &Cluster) -> Vec<(Daemon, String)> {
    let mut all = vec![(Daemon::Meta(0), cluster.meta_addr(0).to_string())];
    all.extend((1..=cluster.record.osds).map(|n| (Daemon::Osd(n), cluster.osd_addr(n).to_string())));
    let Ok(entries) = std::fs::read_dir(cluster.dir.join("pids")) else { return all };
    let exports = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    for name in exports.filter_map(|n| n.strip_prefix("nbd.").map(str::to_owned)) {
        let export = name.replacen('-', "/", 1);
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

/// Pids of the cluster's metas and OSDs, for measuring; none when there is no such cluster.
pub fn pids(name: &str) -> Vec<u32> {
    let Ok(Some(cluster)) = Cluster::open(name) else { return Vec::new() };
    let daemons = daemons(&cluster).into_iter().filter(|(d, _)| !matches!(d, Daemon::Nbd(_)));
    daemons.filter_map(|(daemon, _)| procs::pid(&cluster, &daemon)).collect()
}

fn check_osd(cluster: &Cluster, n: u32) -> Result<()> {
    if (1..=cluster.record.osds).contains(&n) {
        return Ok(());
    }
    let what = format!("osd.{n} is no OSD of dev cluster {}; it has 1 to {}", cluster.record.name, cluster.record.osds);
    Err(UserError::new(1007, what, "basalt dev status").into())
}

fn signal(cluster: &Cluster, n: u32, signal: Signal, json: bool) -> Result<()> {
    check_osd(cluster, n)?;
    let was_running = procs::stop(cluster, &Daemon::Osd(n), signal)?;
    if json {
        let thing = if signal == Signal::Kill { "dev.kill" } else { "dev.stop" };
        return output::json(thing, json!({ "osd": n, "was_running": was_running }));
    }
    if was_running {
        out!("osd.{n} is down; `basalt dev start {n}` starts it again");
    } else {
        out!("osd.{n} was down already");
    }
    Ok(())
}

fn down(cluster: &Cluster) -> Result<()> {
    let mut all = daemons(cluster);
    // Doors first, metas last: a client that is stopped closes its volume.
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

fn destroy(name: &str, yes: bool, json: bool) -> Result<()> {
    let cluster = Cluster::expect(name)?;
    if !yes {
        let next = format!("basalt dev destroy --yes --cluster {name}");
        return Err(UserError::new(1001, format!("this deletes all data in {}", cluster.dir.display()), next).into());
    }
    down(&cluster)?;
    std::fs::remove_dir_all(&cluster.dir)?;
    if json {
        return output::json("dev.destroy", json!({ "name": name }));
    }
    out!("cluster {name} is gone");
    Ok(())
}
