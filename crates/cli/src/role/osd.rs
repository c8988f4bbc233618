//! `basalt osd format` and `basalt osd run`.

use crate::admin::{Admin, registration};
use crate::args::OsdRun;
use crate::errors::UserError;
use crate::role::{self, Stop, env_error, http, tools};
use crate::size;
use anyhow::{Context, Result};
use engine::{EngineConfig, FormatError, FormatParams};
use env::real::{RealConfig, RealEnv};
use env::{DiskInfo, DiskSpec, Env, NetAddr};
use osd::{Osd, OsdConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use telemetry::Registry;
use types::{Incarnation, OsdUuid};

/// What `osd format` is told.
pub struct Format {
    pub device: PathBuf,
    pub size: Option<u64>,
    pub log_size: Option<u64>,
    pub force: bool,
    pub metas: Vec<SocketAddr>,
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

/// Gives the device an id and writes its superblock and an empty log.
pub fn format(args: &Format) -> Result<()> {
    if let Some(size) = args.size {
        make_file(&args.device, size)?;
    }
    let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
    let spec = DiskSpec { path: args.device.clone(), assume_plp: false, read_only: false };
    let disk = env.open_disk(&spec).map_err(env_error)?;
    let uuid = OsdUuid(uuid::Uuid::new_v4().into_bytes());
    let admin = Admin::connect(&args.metas)?;
    let (cluster, id) = admin.register_osd(registration(
        uuid,
        &args.place.host,
        &args.place.rack,
        &args.place.zone,
        disk.size_bytes,
    ))?;
    let params = FormatParams {
        cluster,
        osd: id,
        uuid,
        log_bytes: args.log_size.unwrap_or_else(|| (disk.size_bytes / 100).max(LOG_MIN)),
        segment_bytes: 0,
        force: args.force,
        prezero: true,
        unix_s: role::unix_now().as_secs(),
    };
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
        println!("{} is {id} of cluster {cluster}: {}", args.device.display(), size::show(disk.size_bytes));
    }
    Ok(())
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
    let (code, next) = match &error {
        FormatError::Foreign { .. } => (3003, "add --force if its contents may go"),
        FormatError::OtherCluster { .. } => (3005, "add --force if its contents may go"),
        FormatError::TooSmall { .. } => (3006, "use a larger device, or a smaller --log-size"),
        _ => (1006, ""),
    };
    UserError::new(code, format!("{}: {error}", device.display()), next).into()
}

/// Serves a device until asked to end.
pub fn run(args: &OsdRun, metas: &[SocketAddr]) -> Result<()> {
    let runtime = role::runtime()?;
    let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
    let spec = DiskSpec { path: args.device.clone(), assume_plp: args.assume_plp, read_only: false };
    let disk = env.open_disk(&spec).map_err(env_error)?;
    if args.assume_plp {
        tracing::warn!(
            "--assume-plp: nothing is flushed; a power cut loses acknowledged writes unless the device has power-loss protection"
        );
    }
    let config = config(args, &mut env, &disk)?;
    let registry = Registry::default();
    let (counter, mut desk) = tools::desk(env.waker());
    http::serve(&runtime, http_addr(args), registry.clone(), counter);
    let waker = env.waker();
    let stop = Stop::on_signal(&runtime, env.waker());
    let addrs = metas.iter().map(SocketAddr::to_string).collect();
    let mut link = api::osd_link::start(runtime.handle(), addrs, Box::new(move || waker.wake()));
    let seed = env.random();
    let mut osd = Osd::new(config, disk, &registry, seed);
    while !stop.is_set() {
        osd.work(&mut env).context("the OSD cannot go on")?;
        for up in osd.take_reports() {
            // A full queue means that meta does not listen; the next stream begins with everything.
            let _ = link.try_send(up);
        }
        osd.wait(&mut env).context("the OSD cannot go on")?;
        while let Some(down) = link.try_recv() {
            osd.handle_control(down);
        }
        desk.pass(&mut osd);
    }
    tracing::info!("asked to end");
    Ok(())
}

/// Where metrics and tools are served.
fn http_addr(args: &OsdRun) -> SocketAddr {
    args.http.unwrap_or_else(|| SocketAddr::new(args.listen.ip(), args.listen.port() + 1))
}

fn config(args: &OsdRun, env: &mut RealEnv, disk: &DiskInfo) -> Result<OsdConfig> {
    let superblock = engine::read_superblock(env, disk)
        .map_err(|e| UserError::new(3004, format!("{}: {e}", args.device.display()), "basalt osd format --help"))?;
    Ok(OsdConfig {
        cluster: superblock.cluster,
        osd: superblock.osd,
        uuid: superblock.uuid,
        incarnation: Incarnation(role::unix_now().as_nanos() as u64),
        listen: NetAddr::Tcp(args.listen),
        http: Some(http_addr(args)),
        host: args.host.clone(),
        rack: args.rack.clone(),
        zone: args.zone.clone(),
        engine: EngineConfig::default(),
        timing: group::Timing::default(),
        lease_reads: !args.no_lease_reads,
    })
}
