//! `basalt osd run`.

use crate::address::Address;
use crate::args::OsdRun;
use crate::errors::{UserError, refused};
use crate::osd_args::HomeClass;
use crate::role::advertised::{self, Advertised};
use crate::role::format::format_error;
use crate::role::{self, Stop, env_error, http, memory, process, tools};
use crate::{output, version};
use anyhow::Result;
use engine::{DevicePart, Disks, EngineConfig, FormatError, MountError, Superblock};
use env::real::RealEnv;
use env::{DiskKind, DiskSpec, Env, NetAddr};
use layout::superblock::SuperblockError;
use osd::{Osd, OsdConfig, OsdError, OsdTuning, Restart};
use std::net::SocketAddr;
use std::path::Path;
use types::codes;
use types::{AU, ClusterId, Incarnation, OsdId, OsdUuid};

/// Returns code and advice for a device that cannot be served as it is.
pub fn superblock_error(device: &Path, why: &SuperblockError) -> (u32, String) {
    let format = format!("basalt osd format --device {}", device.display());
    match why {
        SuperblockError::Newer { .. } | SuperblockError::Features { .. } => {
            (codes::DEVICE_FORMAT_NEWER, "run the version that formatted it, or a newer one".to_owned())
        }
        SuperblockError::Older { .. } => (
            codes::DEVICE_FORMAT_OLDER,
            format!(
                "run the build that formatted it, or, if its data may be lost, `{format} --force`; a dev cluster: \
                 `basalt dev destroy`"
            ),
        ),
        SuperblockError::ForeignCluster { .. }
        | SuperblockError::OtherOsd { .. }
        | SuperblockError::OtherFormat { .. } => {
            (codes::DEVICE_OF_OTHER_CLUSTER, "use the right device, or the metas of its own cluster".to_owned())
        }
        SuperblockError::OtherPart { found, .. } => (
            codes::OTHER_PART,
            match found {
                DevicePart::Home => "name the device of its log, too: --log-device",
                DevicePart::Log => "name the device of its home with --device, and this one with --log-device",
                DevicePart::Whole => "leave --log-device out: this OSD has its log on the same device",
            }
            .to_owned(),
        ),
        SuperblockError::Absent => (codes::DEVICE_NOT_FORMATTED, format),
        SuperblockError::Damaged | SuperblockError::Geometry => (
            codes::MOUNT_FAILED,
            "check the device: dmesg, smartctl; its PGs go on with their other replicas".to_owned(),
        ),
    }
}

/// Returns the error that ended an OSD's loop, in the user's terms.
fn osd_error(device: &Path, error: OsdError) -> anyhow::Error {
    let error = match error {
        OsdError::Env(error) => return env_error(error),
        OsdError::Mount(error) => error,
    };
    let (code, next) = match &error {
        MountError::Superblock(why) => superblock_error(device, why),
        MountError::Poisoned { .. } => {
            (codes::STORE_POISONED, "check the device; if it is sound: the same command with --after-poison".to_owned())
        }
        _ => (codes::MOUNT_FAILED, "its PGs go on with their other replicas: basalt status".to_owned()),
    };
    UserError::new(code, format!("{}: {error}", device.display()), next).into()
}

/// Serves a device until asked to end.
pub fn run(args: &OsdRun, metas: &[Address], as_json: bool) -> Result<()> {
    // A start in place ends every task of the run before it, but not the one that waits for signals.
    let signals = role::runtime()?;
    let stop = Stop::on_signal(&signals);
    let mut untold = as_json;
    repeat(&stop, |again| serve(args, metas, again, &stop, &mut untold))
}

/// Serves again for as long as the last run asks for it, and the process is not asked to end.
fn repeat(stop: &Stop, mut serve: impl FnMut(Option<Restart>) -> Result<Option<Restart>>) -> Result<()> {
    let mut again = None;
    loop {
        again = serve(again)?;
        if again.is_none() || stop.is_set() {
            return Ok(());
        }
    }
}

/// Returns whether all replicas of the device fail at this start, and the mount number that it must exceed. The consent of
/// `--after-restore` covers the device as the process found it, not one that goes back later.
fn restore(asked: bool, again: Option<Restart>) -> (bool, u64) {
    match again {
        None => (asked, 0),
        Some(Restart::Marked) => (false, 0),
        Some(Restart::Restored { mount_above }) => (true, mount_above),
    }
}

fn open(args: &OsdRun, env: &mut RealEnv) -> Result<Disks> {
    if args.assume_plp {
        tracing::warn!(
            "--assume-plp: nothing is flushed; a power cut loses acknowledged writes unless the device has power-loss protection"
        );
    }
    let spec = |path: &Path| DiskSpec { path: path.to_owned(), assume_plp: args.assume_plp, read_only: false };
    let home = env.open_disk(&spec(&args.device)).map_err(env_error)?;
    let Some(log) = &args.log_device else { return Ok(Disks::from(home)) };
    let log = env.open_disk(&spec(log)).map_err(env_error)?;
    Ok(Disks { home, log })
}

/// Returns the error for a log device that holds no log.
fn no_log(path: &Path) -> anyhow::Error {
    let what = format!("{}: the device carries no Basalt superblock", path.display());
    let next = "name the device that `basalt osd format --log-device` was given";
    UserError::new(codes::DEVICE_NOT_FORMATTED, what, next).into()
}

/// Reads the superblocks of the log and of home, whose paths come in the same order. They are equal for an OSD on one device.
///
/// # Errors
/// The error that `told` makes of a superblock that cannot be used, is of another part of an OSD, or of another OSD than that of home.
pub fn superblocks(
    env: &mut RealEnv,
    disks: &Disks,
    (log_path, home_path): (&Path, &Path),
    told: impl Fn(&Path, FormatError) -> anyhow::Error,
) -> Result<(Superblock, Superblock)> {
    let mut found = Vec::new();
    for (disk, part) in disks.each() {
        let path = if part == DevicePart::Log { log_path } else { home_path };
        let superblock = engine::read_superblock(env, disk).map_err(|e| match e {
            FormatError::Superblock(SuperblockError::Absent) if part == DevicePart::Log => no_log(path),
            other => told(path, other),
        })?;
        superblock.is_part(part).map_err(|why| told(path, why.into()))?;
        found.push(superblock);
    }
    let (log, home) = (found[0], found[found.len() - 1]);
    let same = log.belongs_to(home.cluster, home.osd, home.uuid);
    same.map_err(|why| told(log_path, why.into()))?;
    Ok((log, home))
}

/// Serves a device until asked to end, or until the process must start again on it.
fn serve(
    args: &OsdRun,
    metas: &[Address],
    again: Option<Restart>,
    stop: &Stop,
    untold: &mut bool,
) -> Result<Option<Restart>> {
    advertised::check(&args.listen, args.advertise.as_ref())?;
    let listen = args.listen.resolve()?;
    let runtime = role::runtime()?;
    let mut env = RealEnv::new(args.ring.config()).map_err(env_error)?;
    let disks = open(args, &mut env)?;
    let http = http::bind(role::http_addr(listen, args.http.as_ref())?);
    let http_at = http.as_ref().map(|(_, addr)| *addr);
    let config = config(args, (listen, again), &mut env, &disks)?;
    let registry = process::registry("osd");
    process::osd_info(&registry, &config);
    let (counter, mut desk) = tools::desk(env.waker());
    if let Some((listener, addr)) = http {
        http::serve(runtime.handle(), listener, addr, (registry.clone(), counter, config.uuid));
    }
    let waker = env.waker();
    stop.wakes(env.waker());
    let waker_of_name = env.waker();
    let told = args.advertise.as_ref().unwrap_or(&args.listen).clone();
    let mut name = Advertised::follow(&runtime, told, listen, move || waker_of_name.wake());
    let Some(first) = name.first(&runtime, stop) else { return Ok(None) };
    // With port 0 only the OSD knows its bound address.
    let advertise = Some(first).filter(|addr| args.advertise.is_some() || addr.port() != 0);
    let config = OsdConfig { advertise, http: http_at.map(|at| reachable(at, first)), ..config };
    let addrs = metas.iter().map(Address::to_string).collect();
    let mut link = api::osd_link::start(runtime.handle(), addrs, Box::new(move || waker.wake()));
    let seed = env.random();
    let uuid = config.uuid;
    let ids = (config.osd, config.cluster, uuid);
    let mut osd = Osd::new(config, disks.clone(), &registry, seed);
    while !osd.has_stopped() {
        if stop.is_set() {
            osd.stop();
        }
        if let Some(addr) = name.changed().filter(|_| args.advertise.is_some()) {
            osd.set_advertised(addr, http_at.map(|at| reachable(at, addr)));
        }
        osd.work(&mut env).map_err(|e| osd_error(&args.device, e))?;
        for up in osd.take_reports() {
            // A full queue means that meta does not read; the next stream begins with a full report.
            let _ = link.try_send(up);
        }
        if let Some((code, reason)) = osd.refusal() {
            let error = refused(code, reason);
            let Some(again) = osd.starts_again() else { return Err(error.into()) };
            // Every start advances the position of a device: the next one must not be judged by that alone.
            let marked = engine::mark_behind(&mut env, &disks.log, uuid, &error.what);
            marked.map_err(|e| format_error(&args.device, e))?;
            return Ok(Some(again));
        }
        if let Some(bound) = osd.listening().filter(|_| std::mem::take(untold)) {
            ready(ids, bound, http_at)?;
        }
        osd.wait(&mut env).map_err(|e| osd_error(&args.device, e))?;
        while let Some(down) = link.try_recv() {
            osd.handle_control(down);
        }
        desk.pass(&mut osd);
    }
    Ok(None)
}

/// Prints one line of JSON for the program that started this OSD: the device is mounted, the address is bound.
fn ready((osd, cluster, uuid): (OsdId, ClusterId, OsdUuid), bound: &NetAddr, http: Option<SocketAddr>) -> Result<()> {
    let pid = std::process::id();
    let body = serde_json::json!({
        "osd": osd, "cluster": cluster, "uuid": uuid, "listen": bound.to_string(), "http": http, "pid": pid,
    });
    output::ready("osd.run", body)
}

/// Returns the address at which others reach an endpoint that listens on all interfaces.
fn reachable(at: SocketAddr, advertised: SocketAddr) -> SocketAddr {
    let ip = if at.ip().is_unspecified() { advertised.ip() } else { at.ip() };
    SocketAddr::new(ip, at.port())
}

fn config(
    args: &OsdRun,
    (listen, again): (SocketAddr, Option<Restart>),
    env: &mut RealEnv,
    disks: &Disks,
) -> Result<OsdConfig> {
    let log_path = args.log_device.as_ref().unwrap_or(&args.device);
    let (superblock, _) = superblocks(env, disks, (log_path, &args.device), format_error)?;
    // A mark that cannot be read back counts all the same.
    let behind = engine::behind_mark(env, &disks.log, superblock.uuid).is_some() || again.is_some();
    let (after_restore, mount_above) = restore(args.after_restore, again);
    for (disk, _) in disks.each() {
        engine::finish_format(env, disk).map_err(|e| format_error(&args.device, e))?;
    }
    memory::report(superblock.segment_bytes * u64::from(superblock.segment_count));
    Ok(OsdConfig {
        cluster: superblock.cluster,
        osd: superblock.osd,
        uuid: superblock.uuid,
        incarnation: Incarnation(role::unix_now().as_nanos() as u64),
        listen: NetAddr::Tcp(listen),
        advertise: None,
        http: None,
        host: args.host.clone(),
        rack: args.rack.clone(),
        zone: args.zone.clone(),
        version: version::LONG.to_owned(),
        engine: EngineConfig {
            after_poison: args.after_poison,
            after_restore,
            mount_above,
            redirect_min: redirect_min(args.redirect_min, disks.home.kind).filter(|_| !disks.are_apart()),
            ..home_config(args.home_class, disks)?
        },
        behind,
        timing: group::Timing::default(),
        tuning: OsdTuning::default(),
        lease_reads: !args.no_lease_reads,
    })
}

/// Returns the settings of the engine for this home. A rotating disk is slow for each write, so a round is as large as the log allows: it begins
/// at a quarter of the log, and admission leaves room for as much again (ADR 0035).
fn home_config(class: HomeClass, disks: &Disks) -> Result<EngineConfig> {
    let rotates = disks.home.capabilities.is_rotational == Some(true);
    let hdd_home = match class {
        HomeClass::Hdd if !disks.are_apart() => {
            let what = "--home-class hdd: the log is on the same device as home";
            let next = "format the OSD with --log-device on a faster device, or leave --home-class out";
            return Err(UserError::new(codes::BAD_USAGE, what.to_owned(), next).into());
        }
        HomeClass::Hdd => true,
        HomeClass::Auto => rotates && disks.are_apart(),
        HomeClass::Ssd => false,
    };
    let default = EngineConfig::default();
    if hdd_home {
        tracing::info!(
            "home counts as a rotating disk: rounds go over it in one direction, and writes have its pace (--home-class ssd ends that)"
        );
    }
    let round_pressure = if hdd_home { 0.25 } else { default.round_pressure };
    Ok(EngineConfig { hdd_home, round_pressure, ..default })
}

/// Returns the smallest payload that is written once, if any is. A file has holes, whose first writes are slow and need a flush.
fn redirect_min(asked: Option<u64>, kind: DiskKind) -> Option<u64> {
    let default = match kind {
        DiskKind::Block => AU,
        DiskKind::File => 0,
    };
    Some(asked.unwrap_or(default)).filter(|min| *min > 0)
}

#[cfg(test)]
mod tests {
    use super::{DiskKind, Restart, Stop, redirect_min, repeat, restore};

    #[test]
    fn large_writes_are_written_once_on_a_block_device_unless_told_otherwise() {
        let cases =
            [(None, Some(64 << 10), None), (Some(0), None, None), (Some(1 << 20), Some(1 << 20), Some(1 << 20))];
        for (asked, block, file) in cases {
            let min = |kind| redirect_min(asked, kind);
            assert_eq!((min(DiskKind::Block), min(DiskKind::File)), (block, file), "{asked:?}");
        }
    }

    #[test]
    fn a_request_to_end_that_comes_between_two_runs_is_kept() {
        let (stop, mut runs) = (Stop::default(), 0);
        let serve = |again| {
            runs += 1;
            assert!(runs == 1 || again == Some(Restart::Marked), "a later run knows why it starts");
            assert!(runs <= 3, "no run starts after the request");
            if runs == 3 {
                stop.set();
            }
            Ok(Some(Restart::Marked))
        };
        repeat(&stop, serve).expect("it ends");
        assert_eq!(runs, 3);
    }

    #[test]
    fn consent_of_after_restore_ends_with_the_first_run() {
        assert_eq!(restore(true, None), (true, 0));
        assert_eq!(restore(false, None), (false, 0));
        assert_eq!(restore(true, Some(Restart::Marked)), (false, 0));
        assert_eq!(restore(false, Some(Restart::Restored { mount_above: 7 })), (true, 7));
    }
}
