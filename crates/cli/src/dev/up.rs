//! `basalt dev up`: creates missing parts, starts daemons that do not run, and prints the next commands.

use crate::admin::Admin;
use crate::dev::cluster::Cluster;
use crate::dev::procs::{self, Daemon};
use crate::dev::{AFTER_POISON, LOG_SIZE, READY_MAX, after_poison, not_ready, servers, start_meta, start_osd, uri};
use crate::errors::{UserError, refused};
use crate::{hint, output, size};
use anyhow::Result;
use control::admin::{PoolCreate, VolumeText, VolumeView};
use serde_json::json;
use std::time::Duration;
use types::codes;
use types::{OsdId, Stripe};

/// The pool that `dev up` creates.
const POOL: &str = "main";
const POOL_PGS: u32 = 32;
const OSDS: u32 = 3;
const DEVICE_BYTES: u64 = 4 << 30;
/// Step in which the least size of a device is advised.
const DEVICE_STEP: u64 = 64 << 20;
const EXPORT_BYTES: u64 = 1 << 30;
/// Most bytes that the printed fio command covers.
const FIO_BYTES_MAX: u64 = 256 << 20;
/// Time that a serving cluster is given until all replicas are in sync.
const WHOLE_MAX: Duration = Duration::from_secs(2);

/// Choices of the command line; `None` is the default of a new cluster or volume.
pub struct Wanted {
    pub osds: Option<u32>,
    pub device_bytes: Option<u64>,
    pub export: Option<String>,
    pub export_bytes: Option<u64>,
}

/// Runs the command.
pub fn run(name: &str, wanted: &Wanted, json: bool) -> Result<()> {
    let mut cluster = match Cluster::open(name)? {
        Some(cluster) => cluster,
        None => {
            let device_bytes = wanted.device_bytes.unwrap_or(DEVICE_BYTES);
            check_device(device_bytes)?;
            Cluster::create(name, wanted.osds.unwrap_or(OSDS), device_bytes)?
        }
    };
    check_unchanged(&cluster, wanted)?;
    if !json {
        out!("cluster {name} in {}", cluster.dir.display());
    }
    let started = start(&cluster);
    // The log of a daemon that has ended tells more than the error of a command that waited for it.
    let admin = started.map_err(|error| ended(&cluster).unwrap_or(error))?;
    let replicas = cluster.record.osds.min(3);
    if !json {
        out!("ready: 1 meta, {} OSDs, pool {POOL} with {replicas} replicas", cluster.record.osds);
    }
    let exported = exports(&mut cluster, &admin, wanted, json)?;
    if json {
        let pair = |(volume, uri): &(String, String)| json!({ "volume": volume, "uri": uri });
        let asked = exported.iter().find(|(volume, _)| Some(volume) == wanted.export.as_ref());
        let all: Vec<_> = exported.iter().map(pair).collect();
        let (dir, meta) = (&cluster.dir, cluster.meta_addr(0));
        let body = json!({
            "name": name, "dir": dir, "meta": meta, "osds": cluster.record.osds, "export": asked.map(pair), "exports": all,
        });
        return output::json("dev.up", body);
    }
    match exported.last() {
        Some((volume, uri)) => print_next(&admin.volume_info(volume)?, uri),
        None => print_first(&admin)?,
    }
    Ok(())
}

/// Checks, before any change, that a device can hold data and its log, whose size `dev up` chooses.
fn check_device(device_bytes: u64) -> Result<(), UserError> {
    let log_bytes = size::parse(LOG_SIZE).expect("it is written here");
    let fits = |device_bytes| {
        let (cluster, osd, uuid) = (types::ClusterId([0; 16]), types::OsdId(1), types::OsdUuid([0; 16]));
        let (segment_bytes, force, prezero, unix_s) = (0, false, false, 0);
        let params = engine::FormatParams {
            cluster,
            osd,
            uuid,
            log_bytes,
            segment_bytes,
            force,
            prezero,
            unix_s,
            part: engine::DevicePart::Whole,
        };
        // Nothing of the image is written.
        engine::format_image(device_bytes, &params, engine::SaltKey::new([0; 16])).is_ok()
    };
    if fits(device_bytes) {
        return Ok(());
    }
    let least = (1..).map(|n| n * DEVICE_STEP).find(|bytes| fits(*bytes)).unwrap_or(DEVICE_BYTES);
    let what =
        format!("devices of {} do not hold a log of {} and data", size::show(device_bytes), size::show(log_bytes));
    Err(UserError::new(
        codes::DEVICE_TOO_SMALL,
        what,
        format!("use --device-size {} or more", size::show(least).replace(' ', "")),
    ))
}

/// Refuses flags that differ from the choices of an existing cluster, instead of ignoring them.
fn check_unchanged(cluster: &Cluster, wanted: &Wanted) -> Result<(), UserError> {
    let record = &cluster.record;
    let refuse = |flag: &str, has: String| {
        let what = format!("dev cluster {} exists with {has}; {flag} is for a new cluster", record.name);
        UserError::new(codes::BAD_USAGE, what, "leave the flag out, or give another --cluster NAME")
    };
    if wanted.osds.is_some_and(|osds| osds != record.osds) {
        return Err(refuse("--osds", format!("{} OSDs", record.osds)));
    }
    if wanted.device_bytes.is_some_and(|bytes| bytes != record.device_bytes) {
        return Err(refuse("--device-size", format!("devices of {}", size::show(record.device_bytes))));
    }
    Ok(())
}

fn start(cluster: &Cluster) -> Result<Admin> {
    start_meta(cluster)?;
    for n in 1..=cluster.record.osds {
        start_osd(cluster, n, false)?;
    }
    let admin = Admin::connect(&[cluster.meta_addr(0).into()])?;
    if admin.pool(POOL)?.is_none() {
        // An OSD that listens may not have said Hello yet.
        let up = || admin.status().is_ok_and(|status| status.osds_up >= cluster.record.osds);
        let _ = procs::wait_until(READY_MAX, || up() || ended(cluster).is_some());
        admin.create_pool(PoolCreate {
            name: POOL.to_owned(),
            replicas: cluster.record.osds.min(3),
            domain: "osd".to_owned(),
            pg_count: POOL_PGS,
            force: false,
            device_class: None,
        })?;
    }
    wait_active(cluster, &admin)?;
    // Followers match a new leader a moment later. A follower that must catch up first is not awaited.
    let _ = procs::wait_until(WHOLE_MAX, || admin.all_whole(POOL).unwrap_or(false));
    Ok(admin)
}

/// Returns the error of the first server that has ended, with the end of its log.
fn ended(cluster: &Cluster) -> Option<anyhow::Error> {
    let dead = servers(cluster)
        .find(|(daemon, _)| procs::was_started(cluster, daemon) && procs::pid(cluster, daemon).is_none());
    dead.map(|(daemon, _)| not_ready(cluster, &daemon))
}

fn wait_active(cluster: &Cluster, admin: &Admin) -> Result<()> {
    let mut last = None;
    let mut dead = None;
    let done = procs::wait_until(READY_MAX, || {
        // Records that went back in time take no changes: the administrator decides first.
        dead = ended(cluster).or_else(|| behind(admin));
        let active = admin.all_active(POOL);
        last = active.as_ref().err().map(ToString::to_string);
        active.unwrap_or(false) || dead.is_some()
    });
    // One stopped store of three is no cause: its PGs serve.
    match (dead.or_else(|| done.err().and_then(|()| stopped(admin))), done) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        (None, Err(())) => {
            let why = last.map_or_else(String::new, |why| format!(": {why}"));
            let what = format!("not all PGs of pool {POOL} were active after {} s{why}", READY_MAX.as_secs());
            Err(UserError::new(codes::PROCESS_NOT_READY, what, "basalt status").into())
        }
    }
}

fn behind(admin: &Admin) -> Option<anyhow::Error> {
    let code = codes::STORE_BEHIND;
    let said = admin
        .status()
        .ok()?
        .problems
        .into_iter()
        .find(|said| said.starts_with(&format!("{}: ", codes::label(code))))?;
    Some(refused(code, &said).into())
}

/// Returns the error of OSDs whose stores stopped: their processes run, and serve nothing.
fn stopped(admin: &Admin) -> Option<anyhow::Error> {
    let osds = admin.osds().ok()?;
    let stopped: Vec<_> = osds.iter().filter_map(|osd| Some((osd.osd, osd.poisoned.as_deref()?))).collect();
    stopped_error(&stopped).map(anyhow::Error::from)
}

fn stopped_error(stopped: &[(OsdId, &str)]) -> Option<UserError> {
    let (_, why) = stopped.first()?;
    let names: Vec<String> = stopped.iter().map(|(osd, _)| osd.to_string()).collect();
    let next: Vec<String> = stopped.iter().map(|(osd, _)| after_poison(osd.0)).collect();
    let stores = if names.len() == 1 { "store" } else { "stores" };
    let what = format!("the {stores} of {} stopped: {why}", names.join(", "));
    let next = format!("{}   # {AFTER_POISON}", next.join(" && "));
    Some(UserError::new(codes::STORE_POISONED, what, next))
}

/// Exports the volumes of earlier runs and the wanted one, the latter last. Returns each volume with its URI.
fn exports(cluster: &mut Cluster, admin: &Admin, wanted: &Wanted, json: bool) -> Result<Vec<(String, String)>> {
    let mut volumes = std::mem::take(&mut cluster.record.exports);
    volumes.retain(|volume| Some(volume) != wanted.export.as_ref());
    let mut exported = Vec::new();
    for volume in volumes {
        if admin.volume(&volume)?.is_some() {
            exported.push((volume.clone(), export(cluster, &volume)?));
        } else if !json {
            out!("volume {volume} does not exist any more; its export is removed");
        }
    }
    if let Some(volume) = &wanted.export {
        make(admin, volume, wanted.export_bytes)?;
        exported.push((volume.clone(), export(cluster, volume)?));
    }
    cluster.record.exports = exported.iter().map(|(volume, _)| volume.clone()).collect();
    cluster.save()?;
    Ok(exported)
}

/// Creates the volume if it does not exist; an existing one keeps its size.
fn make(admin: &Admin, volume: &str, bytes: Option<u64>) -> Result<()> {
    let Some(there) = admin.volume(volume)? else {
        admin.create_volume(volume, bytes.unwrap_or(EXPORT_BYTES), Stripe::NONE, VolumeText::default())?;
        return Ok(());
    };
    match bytes {
        Some(bytes) if bytes != there.len_bytes => {
            let what =
                format!("volume {volume} exists with {}; --size is for a new volume", size::show(there.len_bytes));
            Err(UserError::new(codes::BAD_USAGE, what, format!("basalt dev up --export {volume}")).into())
        }
        _ => Ok(()),
    }
}

/// Starts the export. Returns its URI.
fn export(cluster: &Cluster, volume: &str) -> Result<String> {
    let daemon = Daemon::Nbd(volume.to_owned());
    let socket = cluster.socket(volume);
    if procs::pid(cluster, &daemon).is_none() {
        let _ = std::fs::remove_file(&socket);
        let meta = cluster.meta_addr(0).to_string();
        // The holder of a killed run is gone with it, but its lease may still be valid.
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

fn next(line: &str) {
    out!("  {}", hint::paste(line));
}

/// Returns the fio command for an export: it fits into the volume and overwrites no data.
fn fio(volume: &VolumeView, uri: &str) -> String {
    let bytes = volume.len_bytes.min(FIO_BYTES_MAX);
    let size = if bytes.is_multiple_of(1 << 20) { format!("{}M", bytes >> 20) } else { bytes.to_string() };
    let how = match volume.allocated_bytes {
        0 => format!("--rw=randwrite --bs=4k --iodepth=32 --size={size} --verify=crc32c"),
        _ => format!("--rw=randread --bs=4k --iodepth=32 --size={size}"),
    };
    format!("fio --name=v --ioengine=nbd --uri='{uri}' {how}")
}

fn print_next(volume: &VolumeView, uri: &str) {
    out!("volume {} is exported; try:", volume.name);
    out!("  nbdinfo '{uri}'");
    if volume.allocated_bytes == 0 {
        out!("  qemu-img convert -n -O raw IMAGE '{uri}'");
    }
    out!("  qemu-img compare IMAGE '{uri}'");
    out!("  {}", fio(volume, uri));
    next("basalt status");
    next("basalt dev kill 1 && basalt dev start 1");
    if hint::paste("basalt status").starts_with('/') {
        out!(
            "(`basalt` is not in PATH: the commands name this program, and scripts/basalt in the sources starts it, too)"
        );
    }
}

/// Prints the next commands on a cluster without an export.
fn print_first(admin: &Admin) -> Result<()> {
    out!("next:");
    match admin.volumes(None)?.first() {
        Some(volume) => next(&format!("basalt dev up --export {}", volume.name)),
        None => {
            next(&format!("basalt volume create {POOL}/demo 1GiB"));
            next(&format!("basalt dev up --export {POOL}/demo"));
        }
    }
    next("basalt status");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_fio_command_fits_the_volume_and_writes_over_no_data() {
        let printed = |len_bytes: u64, allocated_bytes: u64| {
            let volume = VolumeView {
                volume: types::VolumeId(1),
                name: "main/a".into(),
                len_bytes,
                allocated_bytes,
                state: "ready".into(),
                epoch: types::Epoch(0),
                session: types::SessionId(0),
                holder: None,
                writers: Vec::new(),
                being_fenced: Vec::new(),
                multi_writer: false,
                created_ms: 0,
                stripe: None,
                description: String::new(),
                labels: Default::default(),
                resize_bytes: None,
                shrink_step: None,
                limits: types::QosLimits::NONE,
                limits_of: "none".into(),
                when_full: types::WhenFull::Client,
                snapshots: 0,
                rollback_to: None,
                parent: None,
                depth: 0,
                clones: 0,
                flatten: None,
                faults: Vec::new(),
            };
            fio(&volume, "U")
        };
        let writes = printed(8 << 30, 0);
        assert!(writes.contains("--rw=randwrite") && writes.contains("--size=256M --verify"), "{writes}");
        let reads = printed(8 << 20, 1 << 30);
        assert!(reads.contains("--rw=randread") && reads.ends_with("--size=8M"), "{reads}");
        assert!(printed(1_048_064, 0).contains("--size=1048064 "));
    }

    #[test]
    fn stopped_stores_are_named_with_the_commands_that_start_them_again() {
        assert!(stopped_error(&[]).is_none());
        let why = "writing home: the device is full";
        let error = stopped_error(&[(OsdId(1), why), (OsdId(3), why)]).expect("two stopped");
        assert_eq!(error.what, "the stores of osd.1, osd.3 stopped: writing home: the device is full");
        let next = "basalt dev start 1 --after-poison && basalt dev start 3 --after-poison   # ";
        assert!(error.code == 3010 && error.next.starts_with(next), "{error}");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_a_flag_that_dev_up_has() {
        let said = check_device(100 << 20).expect_err("100 MiB are less than the log").to_string();
        assert!(said.contains("devices of 100 MiB do not hold a log of 256 MiB and data"), "{said}");
        let least = said.split("next: use --device-size ").nth(1).expect("it names the flag");
        let least = size::parse(least.trim_end_matches(" or more")).expect("a size");
        check_device(least).expect("what is advised is enough");
        check_device(least - DEVICE_STEP).expect_err("and no more than that");
        check_device(DEVICE_BYTES).expect("the default fits");
    }
}
