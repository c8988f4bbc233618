//! `basalt osd format` and `basalt osd run`.

use crate::address::Address;
use crate::admin::{Admin, registration};
use crate::args::OsdRun;
use crate::errors::{UserError, refused};
use crate::role::advertised::{self, Advertised};
use crate::role::{self, Stop, env_error, http, process, tools};
use crate::{output, size, version};
use anyhow::Result;
use engine::{EngineConfig, FormatError, FormatParams, MountError};
use env::real::{RealConfig, RealEnv};
use env::{DiskInfo, DiskSpec, Env, NetAddr};
use layout::superblock::SuperblockError;
use osd::{Osd, OsdConfig, OsdError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use types::{ClusterId, Incarnation, OsdId, OsdUuid};

/// What `osd format` is told.
pub struct Format {
    pub device: PathBuf,
    pub size: Option<u64>,
    pub log_size: Option<u64>,
    pub force: bool,
    pub metas: Vec<Address>,
    pub quiet: bool,
    pub place: Place,
}

/// Failure domains, as known at format; `osd run` may say better.
pub struct Place {
    pub host: String,
    pub rack: String,
    pub zone: String,
}

impl Default for Place {
    fn default() -> Place {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().to_owned();
        Place { host, rack: "default".to_owned(), zone: "default".to_owned() }
    }
}

/// Least log of a production device.
const LOG_MIN: u64 = 1 << 30;

/// What became of a device.
pub struct Formatted {
    device: PathBuf,
    osd: OsdId,
    cluster: ClusterId,
    uuid: OsdUuid,
    device_bytes: u64,
    log_bytes: u64,
}

/// Says what became of a device.
pub fn show(made: &Formatted, as_json: bool) -> Result<()> {
    if as_json {
        let body = serde_json::json!({
            "device": made.device,
            "osd": made.osd,
            "cluster": made.cluster,
            "uuid": made.uuid,
            "device_bytes": made.device_bytes,
            "log_bytes": made.log_bytes,
        });
        return output::json("osd.format", body);
    }
    let (device, size) = (made.device.display(), size::show(made.device_bytes));
    out!("{device} is {} of cluster {}: {size}", made.osd, made.cluster);
    out!("next: basalt osd run --device {device} --listen HOST:PORT --meta …");
    Ok(())
}

/// Gives the device an id and writes its superblock and an empty log.
pub fn format(args: &Format) -> Result<Formatted> {
    if let Some(size) = args.size {
        make_file(&args.device, size)?;
    }
    let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
    let spec = DiskSpec { path: args.device.clone(), assume_plp: false, read_only: false };
    let disk = env.open_disk(&spec).map_err(env_error)?;
    let uuid = OsdUuid(uuid::Uuid::new_v4().into_bytes());
    let admin = Admin::connect(&args.metas)?;
    let mut params = FormatParams {
        cluster: admin.status()?.cluster,
        osd: OsdId(0),
        uuid,
        log_bytes: args.log_size.unwrap_or_else(|| (disk.size_bytes / 100).max(LOG_MIN)),
        segment_bytes: 0,
        force: args.force,
        prezero: true,
        unix_s: role::unix_now().as_secs(),
    };
    // Before it gets an id: a device that is refused leaves no OSD behind that never was.
    engine::check_format(&mut env, &disk, &params).map_err(|e| format_error(&args.device, e))?;
    let place = &args.place;
    let (cluster, id) =
        admin.register_osd(registration(uuid, &place.host, &place.rack, &place.zone, disk.size_bytes))?;
    (params.cluster, params.osd) = (cluster, id);
    let bar = (!args.quiet).then(|| indicatif::ProgressBar::new(params.log_bytes));
    let mut progress = |done: u64, total: u64| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    engine::format_device(&mut env, &disk, &params, &mut progress).map_err(|e| format_error(&args.device, e))?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(Formatted {
        device: args.device.clone(),
        osd: id,
        cluster,
        uuid,
        device_bytes: disk.size_bytes,
        log_bytes: params.log_bytes,
    })
}

fn make_file(path: &Path, size: u64) -> Result<()> {
    let unusable = |e: std::io::Error| UserError::new(1006, format!("{}: {e}", path.display()), "");
    let file =
        std::fs::File::options().create(true).truncate(false).write(true).read(true).open(path).map_err(unusable)?;
    let meta = file.metadata().map_err(unusable)?;
    if meta.is_file() && meta.len() < size {
        file.set_len(size).map_err(unusable)?;
    }
    Ok(())
}

fn format_error(device: &Path, error: FormatError) -> anyhow::Error {
    let force = "if its contents may go, add --force";
    let (code, next) = match &error {
        FormatError::Foreign { .. } => (3003, force.to_owned()),
        FormatError::OtherCluster { .. } => (3005, force.to_owned()),
        FormatError::TooSmall { .. } => (3006, "use a larger device, or a smaller --log-size".to_owned()),
        FormatError::Superblock(why) => superblock_error(device, why),
        _ => (1006, format!("ls -l {}", device.display())),
    };
    let text = error.to_string();
    let what = text.split_once("; ").map_or(text.as_str(), |(what, _)| what);
    UserError::new(code, format!("{}: {what}", device.display()), next).into()
}

/// Code and advice for a device that cannot be served as it is.
fn superblock_error(device: &Path, why: &SuperblockError) -> (u32, String) {
    let format = format!("basalt osd format --device {}", device.display());
    match why {
        SuperblockError::Newer { .. } | SuperblockError::Features { .. } => {
            (3007, "run the version that formatted it, or a newer one".to_owned())
        }
        SuperblockError::ForeignCluster { .. }
        | SuperblockError::OtherOsd { .. }
        | SuperblockError::OtherFormat { .. } => {
            (3005, "give the right device, or the metas of its own cluster".to_owned())
        }
        SuperblockError::Absent => (3004, format),
        SuperblockError::Damaged | SuperblockError::Geometry => {
            (3004, format!("{format} --force   # its data is lost"))
        }
    }
}

/// Why an OSD's loop ended.
fn osd_error(device: &Path, error: OsdError) -> anyhow::Error {
    let error = match error {
        OsdError::Env(error) => return env_error(error),
        OsdError::Mount(error) => error,
    };
    let (code, next) = match &error {
        MountError::Superblock(why) => superblock_error(device, why),
        MountError::Poisoned { .. } => {
            (3010, "look at the device; if it is sound: the same command with --after-poison".to_owned())
        }
        _ => (3013, "its PGs live on in their other replicas: basalt status".to_owned()),
    };
    UserError::new(code, format!("{}: {error}", device.display()), next).into()
}

/// Serves a device until asked to end.
pub fn run(args: &OsdRun, metas: &[Address]) -> Result<()> {
    advertised::check(&args.listen, args.advertise.as_ref())?;
    let listen = args.listen.resolve()?;
    let runtime = role::runtime()?;
    let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
    let spec = DiskSpec { path: args.device.clone(), assume_plp: args.assume_plp, read_only: false };
    let disk = env.open_disk(&spec).map_err(env_error)?;
    if args.assume_plp {
        tracing::warn!(
            "--assume-plp: nothing is flushed; a power cut loses acknowledged writes unless the device has power-loss protection"
        );
    }
    let http = http::bind(role::http_addr(listen, args.http.as_ref())?);
    let http_at = http.as_ref().map(|(_, addr)| *addr);
    let config = config(args, listen, &mut env, &disk)?;
    let registry = process::registry("osd");
    process::osd_info(&registry, &config);
    let (counter, mut desk) = tools::desk(env.waker());
    if let Some((listener, addr)) = http {
        http::serve(runtime.handle(), listener, addr, registry.clone(), counter);
    }
    let waker = env.waker();
    let stop = Stop::on_signal(&runtime, env.waker());
    let waker_of_name = env.waker();
    let told = args.advertise.as_ref().unwrap_or(&args.listen).clone();
    let mut name = Advertised::follow(&runtime, told, listen, move || waker_of_name.wake());
    let Some(first) = name.first(&runtime, &stop) else { return Ok(()) };
    // With port 0 only the OSD knows where it listens.
    let advertise = Some(first).filter(|addr| args.advertise.is_some() || addr.port() != 0);
    let config = OsdConfig { advertise, http: http_at.map(|at| reachable(at, first)), ..config };
    let addrs = metas.iter().map(Address::to_string).collect();
    let mut link = api::osd_link::start(runtime.handle(), addrs, Box::new(move || waker.wake()));
    let seed = env.random();
    let mut osd = Osd::new(config, disk, &registry, seed);
    while !osd.has_stopped() {
        if stop.is_set() {
            osd.stop();
        }
        if let Some(addr) = name.changed().filter(|_| args.advertise.is_some()) {
            osd.set_advertised(addr, http_at.map(|at| reachable(at, addr)));
        }
        osd.work(&mut env).map_err(|e| osd_error(&args.device, e))?;
        for up in osd.take_reports() {
            // A full queue means that meta does not listen; the next stream begins with everything.
            let _ = link.try_send(up);
        }
        if let Some((code, reason)) = osd.refusal() {
            return Err(refused(code, reason).into());
        }
        osd.wait(&mut env).map_err(|e| osd_error(&args.device, e))?;
        while let Some(down) = link.try_recv() {
            osd.handle_control(down);
        }
        desk.pass(&mut osd);
    }
    Ok(())
}

/// An endpoint that listens on all interfaces, as others reach it.
fn reachable(at: SocketAddr, advertised: SocketAddr) -> SocketAddr {
    let ip = if at.ip().is_unspecified() { advertised.ip() } else { at.ip() };
    SocketAddr::new(ip, at.port())
}

fn config(args: &OsdRun, listen: SocketAddr, env: &mut RealEnv, disk: &DiskInfo) -> Result<OsdConfig> {
    let superblock = engine::read_superblock(env, disk).map_err(|e| format_error(&args.device, e))?;
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
        engine: EngineConfig { after_poison: args.after_poison, ..EngineConfig::default() },
        timing: group::Timing::default(),
        lease_reads: !args.no_lease_reads,
    })
}
