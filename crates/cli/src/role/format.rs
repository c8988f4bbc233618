//! `basalt osd format`: gives a device an id, once.
//!
//! Invariants: a device that holds an OSD is erased only with `--force` and the typed uuid of that OSD, and never while it
//! holds PGs. The OSD is registered after its superblock is durable. An interrupted format is continued by the next one, with
//! the same ids. A superblock shows that the device is complete: only the registration is then repeated.

use super::memory;
use super::osd::{superblock_error, superblocks};
use crate::address::Address;
use crate::admin::Admin;
use crate::errors::{self, UserError};
use crate::role::{self, env_error};
use crate::{output, size};
use anyhow::Result;
use control::admin::{OsdRegister, OsdView};
use engine::{DeviceContents, DevicePart, Disks, FormatError, FormatParams};
use env::real::{RealConfig, RealEnv};
use env::{DiskError, DiskInfo, DiskKind, DiskSpec, Env};
use indicatif::{ProgressBar, ProgressStyle};
use layout::superblock::{DeviceIds, MARGIN, SEGMENT_LEN_MAX, SEGMENT_LEN_MIN, SEGMENTS_MAX, SEGMENTS_MIN, Superblock};
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use types::codes;
use types::{ClusterId, OsdId, OsdUuid};

/// Options of `osd format`.
pub struct Format {
    pub device: PathBuf,
    pub size: Option<u64>,
    /// The device of the log, when it has one of its own.
    pub log_device: Option<PathBuf>,
    pub log_size: Option<u64>,
    pub force: bool,
    /// The uuids of the OSDs that may be erased, as they were typed.
    pub erase_osd: Vec<String>,
    /// Whether a device that this cluster registered and that never started is taken as it is.
    pub reuse: bool,
    pub metas: Vec<Address>,
    pub quiet: bool,
    pub place: Place,
    /// `None`: the kernel tells, if the device is a disk.
    pub device_class: Option<String>,
    /// The OSD whose replicas it takes over.
    pub replaces: Option<OsdId>,
}

/// Failure domains that are registered at the format.
pub struct Place {
    pub host: String,
    pub rack: String,
    pub zone: String,
}

impl Default for Place {
    fn default() -> Place {
        Place { host: clientloop::host(), rack: "default".to_owned(), zone: "default".to_owned() }
    }
}

/// Bounds of the default log.
const LOG_MIN: u64 = 1 << 30;
const LOG_MAX: u64 = 4 << 30;
/// Least default log on a machine with little memory, or of a small device.
const LOG_FLOOR: u64 = 64 << 20;

/// Returns 1 % of the device within bounds, at most an eighth of it, and at most an eighth of the memory. The log's payload
/// is held in memory.
fn default_log(device_bytes: u64, memory_bytes: Option<u64>) -> u64 {
    let eighth = |bytes: u64| (bytes / 8).max(LOG_FLOOR) >> 20 << 20;
    let by_memory = memory_bytes.map_or(LOG_MAX, eighth);
    (device_bytes / 100).clamp(LOG_MIN, LOG_MAX).min(by_memory).min(eighth(device_bytes))
}

/// Returns the most that a log may have, of a device that holds nothing else.
fn default_log_device(device_bytes: u64, memory_bytes: Option<u64>) -> u64 {
    let by_memory = memory_bytes.map_or(LOG_MAX, |bytes| (bytes / 8).max(LOG_FLOOR) >> 20 << 20);
    (device_bytes.saturating_sub(2 * MARGIN) >> 20 << 20).min(LOG_MAX).min(by_memory)
}

/// A formatted device.
pub struct Formatted {
    device: PathBuf,
    log_device: Option<PathBuf>,
    pub osd: OsdId,
    cluster: ClusterId,
    uuid: OsdUuid,
    device_bytes: u64,
    log_bytes: u64,
    replaces: Option<OsdId>,
}

/// Prints the result of a format.
pub fn show(made: &Formatted, as_json: bool) -> Result<()> {
    let memory_bytes = memory::need(made.log_bytes);
    if as_json {
        let body = serde_json::json!({
            "device": made.device,
            "log_device": made.log_device,
            "osd": made.osd,
            "cluster": made.cluster,
            "uuid": made.uuid,
            "device_bytes": made.device_bytes,
            "log_bytes": made.log_bytes,
            "memory_bytes": memory_bytes,
            "replaces": made.replaces,
        });
        return output::json(if made.replaces.is_some() { "osd.replace" } else { "osd.format" }, body);
    }
    let (device, size) = (made.device.display(), size::show(made.device_bytes));
    out!("{device} is {} of cluster {}: {size}", made.osd, made.cluster);
    let (log, memory) = (size::show(made.log_bytes), size::show(memory_bytes));
    let mut run = format!("basalt osd run --device {device}");
    match &made.log_device {
        None => {
            let data = size::show(made.device_bytes.saturating_sub(made.log_bytes));
            out!("{log} of it are the log, {data} are for data; the OSD needs about {memory} of memory");
        }
        Some(path) => {
            out!("its log of {log} is on {}; the OSD needs about {memory} of memory", path.display());
            run.push_str(&format!(" --log-device {}", path.display()));
        }
    }
    if let Some(old) = made.replaces {
        out!("when it runs, the replicas of {old} move to it, and {old} is removed once it is empty and down");
    }
    out!("next: {run} --listen HOST:PORT --meta …");
    Ok(())
}

/// The ids that the device gets.
struct Ids {
    uuid: OsdUuid,
    /// `None`: meta reserves one.
    osd: Option<OsdId>,
    /// Whether the contents of the device may be erased.
    force: bool,
}

/// Gives the device an id, writes its superblock and an empty log, and registers it.
pub fn format(args: &Format) -> Result<Formatted> {
    on_device(args, true, |device| format_device(args, device))
}

/// Checks that the device can be formatted, and writes nothing.
pub fn check(args: &Format) -> Result<()> {
    on_device(args, false, |device| decide_format(args, device).map(drop))
}

/// An opened device, that of its log, and the metadata service.
struct Device {
    env: RealEnv,
    disks: Disks,
    admin: Admin,
}

/// Opens the device, which may have to be made.
fn on_device<T>(args: &Format, keeps: bool, f: impl FnOnce(&mut Device) -> Result<T>) -> Result<T> {
    let mut made = Vec::new();
    let ready = make_files(args, &mut made);
    let done = ready.and_then(|()| Device::open(args)).and_then(|mut device| f(&mut device));
    // The file is still sparse: this command created it, and wrote nothing.
    let is_untouched = |path: &Path| std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.blocks() == 0);
    for path in made.into_iter().filter(|path| (done.is_err() || !keeps) && is_untouched(path)) {
        let _ = std::fs::remove_file(path);
    }
    done
}

/// Makes the files that are to be devices, if --size says so; adds those that were missing.
fn make_files<'a>(args: &'a Format, made: &mut Vec<&'a Path>) -> Result<()> {
    let Some(size) = args.size else { return Ok(()) };
    if make_file(&args.device, size)? {
        made.push(&args.device);
    }
    // A log device that is there is used as it is.
    let is_missing = |log: &&Path| std::fs::metadata(log).map_or(true, |meta| meta.is_file() && meta.len() == 0);
    if let Some(log) = args.log_device.as_deref().filter(is_missing) {
        let log_bytes = args.log_size.unwrap_or_else(|| default_log(size, memory::total()));
        if make_file(log, log_bytes + 2 * MARGIN)? {
            made.push(log);
        }
    }
    Ok(())
}

impl Device {
    fn open(args: &Format) -> Result<Device> {
        let mut env = RealEnv::new(RealConfig::default()).map_err(env_error)?;
        let spec = |path: &Path| DiskSpec { path: path.to_owned(), assume_plp: false, read_only: false };
        let home = env.open_disk(&spec(&args.device)).map_err(env_error)?;
        let log = args.log_device.as_deref().map(|path| env.open_disk(&spec(path))).transpose().map_err(env_error)?;
        let disks = Disks { log: log.unwrap_or_else(|| home.clone()), home };
        Ok(Device { env, disks, admin: Admin::connect(&args.metas)? })
    }
}

/// The way in which a format goes on.
enum Next {
    /// The device is complete, and is to be registered once more.
    Register(Made),
    /// The device is this cluster's, and never started.
    Reuse(Made),
    /// The id is still to be reserved when it is 0. The second one is for the device of the log.
    Write(FormatParams, Option<FormatParams>),
}

/// Superblocks that are on the devices.
#[derive(Clone, Copy)]
struct Made {
    home: Superblock,
    /// The same, unless the log has a device of its own.
    log: Superblock,
}

/// Decides how to format the device. Writes nothing.
fn decide_format(args: &Format, Device { env, disks, admin }: &mut Device) -> Result<Next> {
    let failed = |e| format_error(&args.device, e);
    let cluster = admin.status()?.cluster;
    let contents = engine::inspect(env, &disks.home).map_err(failed)?;
    let log_path = args.log_device.as_ref().unwrap_or(&args.device);
    let of_log = match disks.are_apart() {
        true => Some(engine::inspect(env, &disks.log).map_err(|e| format_error(log_path, e))?),
        false => None,
    };
    check_erased(args, &[Some((&*args.device, contents)), of_log.map(|found| (&**log_path, found))])?;
    let registered = registered(admin, cluster, contents)?;
    if let DeviceContents::Osd { superblock, unfinished } = contents
        && superblock.cluster == cluster
    {
        let registers = unfinished && !args.force;
        if registers || args.reuse && registered.as_ref().is_some_and(|osd| osd.live == "new") {
            let (log, home) = superblocks(env, disks, (log_path, &args.device), format_error)?;
            let made = Made { home, log };
            return Ok(if registers { Next::Register(made) } else { Next::Reuse(made) });
        }
    }
    let ids = decide(args, &args.device, cluster, contents, registered.as_ref())?;
    if let Some(old) = args.replaces {
        may_replace(admin, old)?;
    }
    let params = FormatParams {
        cluster,
        osd: ids.osd.unwrap_or(OsdId(0)),
        uuid: ids.uuid,
        log_bytes: args.log_size.unwrap_or_else(|| default_log(disks.home.size_bytes, memory::total())),
        segment_bytes: 0,
        force: ids.force,
        prezero: true,
        unix_s: role::unix_now().as_secs(),
        part: if disks.are_apart() { DevicePart::Home } else { DevicePart::Whole },
    };
    engine::check_format(env, &disks.home, &params).map_err(failed)?;
    let of_log = of_log.map(|found| log_params(args, (log_path, env, &disks.log, admin), found, params)).transpose()?;
    Ok(Next::Write(params, of_log))
}

/// Checks that the command that erases an OSD names devices of it: another path may be a mistake.
fn check_erased(args: &Format, devices: &[Option<(&Path, DeviceContents)>]) -> Result<()> {
    let holds_osd = |found: &DeviceContents| matches!(found, DeviceContents::Osd { .. } | DeviceContents::Damaged(_));
    let mut found = devices.iter().flatten();
    let foreign = found.clone().find(|(_, found)| matches!(found, DeviceContents::Foreign { .. }));
    let path = match foreign {
        _ if args.erase_osd.is_empty() => return Ok(()),
        Some((path, _)) => path,
        None if found.any(|(_, found)| holds_osd(found)) => return Ok(()),
        None => &*args.device,
    };
    let what = format!("{} holds no OSD, and --erase-osd names one", path.display());
    let next = "check the path of the device, or leave --erase-osd out";
    Err(UserError::new(codes::DEVICE_NOT_EMPTY, what, next).into())
}

/// Returns the OSD that the metadata service knows by the superblock on a device.
fn registered(admin: &Admin, cluster: ClusterId, contents: DeviceContents) -> Result<Option<OsdView>> {
    Ok(match contents {
        DeviceContents::Osd { superblock, .. } if superblock.cluster == cluster => {
            admin.osds()?.into_iter().find(|osd| osd.uuid == superblock.uuid)
        }
        // Any bit of the ids may be wrong.
        DeviceContents::Damaged(ids) => {
            admin.osds()?.into_iter().find(|osd| osd.uuid == ids.uuid || osd.osd == ids.osd && ids.cluster == cluster)
        }
        _ => None,
    })
}

/// Decides how to format the device of the log, whose home is formatted like this.
fn log_params(
    args: &Format,
    (path, env, disk, admin): (&Path, &mut RealEnv, &DiskInfo, &Admin),
    contents: DeviceContents,
    home: FormatParams,
) -> Result<FormatParams> {
    let force = match contents {
        // This format has begun before, and was interrupted.
        DeviceContents::Osd { superblock, .. } if superblock.uuid == home.uuid => true,
        DeviceContents::Begun(intent) if intent.uuid == home.uuid => true,
        _ => {
            let known = registered(admin, home.cluster, contents)?;
            decide(args, path, home.cluster, contents, known.as_ref())?.force
        }
    };
    let log_bytes = args.log_size.unwrap_or_else(|| default_log_device(disk.size_bytes, memory::total()));
    let room = disk.size_bytes.saturating_sub(2 * MARGIN) >> 20 << 20;
    if log_bytes > room {
        let (has, log) = (size::show(disk.size_bytes), size::show(log_bytes));
        let what = format!("{}: the device is too small: {has} do not hold a log of {log}", path.display());
        let next = format!("use a larger device, or --log-size {}", size::show(room).replace(' ', ""));
        return Err(UserError::new(codes::DEVICE_TOO_SMALL, what, next).into());
    }
    let params = FormatParams { part: DevicePart::Log, log_bytes, force, ..home };
    engine::check_format(env, disk, &params).map_err(|e| format_error(path, e))?;
    Ok(params)
}

fn format_device(args: &Format, device: &mut Device) -> Result<Formatted> {
    let failed = |e| format_error(&args.device, e);
    let next = decide_format(args, device)?;
    let made = match next {
        Next::Reuse(made) => return Ok(formatted(args, made, device)),
        Next::Register(made) => made,
        Next::Write(params, log) => write(args, device, params, log)?,
    };
    register(args, &device.admin, &made.home, &device.disks.home)?;
    for (disk, _) in device.disks.each() {
        engine::finish_format(&mut device.env, disk).map_err(failed)?;
    }
    Ok(formatted(args, made, device))
}

/// Writes the superblock of the device last: when it is there, the log is complete.
fn write(args: &Format, device: &mut Device, mut params: FormatParams, log: Option<FormatParams>) -> Result<Made> {
    let Device { env, disks, admin } = device;
    if params.osd == OsdId(0) {
        params.osd = admin.reserve_osd()?;
    }
    let log = log.map(|log| FormatParams { osd: params.osd, ..log });
    engine::begin_format(env, &disks.home, &params).map_err(|e| format_error(&args.device, e))?;
    let of_log = match (log, &args.log_device) {
        (Some(log), Some(path)) => {
            engine::begin_format(env, &disks.log, &log).map_err(|e| format_error(path, e))?;
            Some(write_device(args, (path, env, &disks.log), log)?)
        }
        _ => None,
    };
    let home = write_device(args, (&args.device, env, &disks.home), params)?;
    Ok(Made { home, log: of_log.unwrap_or(home) })
}

fn write_device(
    args: &Format,
    (path, env, disk): (&Path, &mut RealEnv, &DiskInfo),
    mut params: FormatParams,
) -> Result<Superblock> {
    let bar = (!args.quiet).then(|| progress_bar(params.log_bytes));
    let mut progress = |done: u64, total: u64| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    params.force = true; // the intent page says that this format was let through
    let superblock = engine::format_device(env, disk, &params, &mut progress).map_err(|e| format_error(path, e))?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(superblock)
}

/// Returns the device class of a disk, if the kernel tells. A file may be on anything.
fn detected_class(disk: &DiskInfo) -> Option<String> {
    let rotates = disk.capabilities.is_rotational.filter(|_| disk.kind != DiskKind::File)?;
    Some(if rotates { "hdd" } else { "ssd" }.to_owned())
}

fn register(args: &Format, admin: &Admin, superblock: &Superblock, disk: &DiskInfo) -> Result<()> {
    let place = &args.place;
    admin.register_osd(OsdRegister {
        osd: Some(superblock.osd),
        uuid: superblock.uuid,
        host: place.host.clone(),
        rack: place.rack.clone(),
        zone: place.zone.clone(),
        capacity_bytes: disk.size_bytes,
        device_class: args.device_class.clone().or_else(|| detected_class(disk)),
        replaces: args.replaces,
    })?;
    let Some(old) = args.replaces else { return Ok(()) };
    let osds = admin.osds()?;
    // An old OSD that was empty and down may be removed by now.
    let is_told = |osd: &OsdView| osd.uuid == superblock.uuid && osd.replaces == Some(old);
    if osds.iter().any(is_told) || osds.iter().all(|osd| osd.osd != old) {
        return Ok(());
    }
    let what = format!("{} was registered, and the metadata server does not know replacements", superblock.osd);
    Err(UserError::new(codes::BAD_REPLACEMENT, what, "upgrade the metadata servers, then `basalt osd out`").into())
}

/// Checks that another OSD may take this one over, before anything is written.
fn may_replace(admin: &Admin, old: OsdId) -> Result<(), UserError> {
    let osds = admin.osds().map_err(|e| UserError::new(codes::META_UNAVAILABLE, format!("{e:#}"), "basalt meta ls"))?;
    let refused = |code, what: String| UserError::new(code, what, "basalt osd ls");
    let known = osds.iter().find(|osd| osd.osd == old);
    let known = known.ok_or_else(|| refused(codes::OSD_UNKNOWN, format!("{old} is not registered")))?;
    if let Some(other) = known.replaces {
        return Err(refused(codes::BAD_REPLACEMENT, format!("{old} takes over {other} and is not done")));
    }
    match osds.iter().find(|osd| osd.replaces == Some(old)) {
        Some(by) => Err(refused(codes::BAD_REPLACEMENT, format!("{} takes {old} over already", by.osd))),
        None => Ok(()),
    }
}

fn formatted(args: &Format, Made { home, log }: Made, device: &Device) -> Formatted {
    Formatted {
        device: args.device.clone(),
        log_device: args.log_device.clone(),
        osd: home.osd,
        cluster: home.cluster,
        uuid: home.uuid,
        device_bytes: device.disks.home.size_bytes,
        log_bytes: log.segment_bytes * u64::from(log.segment_count),
        replaces: args.replaces,
    }
}

/// Decides whether the contents of the device may be erased, and with which ids the format continues.
fn decide(
    args: &Format,
    path: &Path,
    cluster: ClusterId,
    contents: DeviceContents,
    known: Option<&OsdView>,
) -> Result<Ids> {
    let fresh = |force| Ids { uuid: OsdUuid(uuid::Uuid::new_v4().into_bytes()), osd: None, force };
    match contents {
        // The engine refuses foreign data without --force, and names its place.
        DeviceContents::Empty | DeviceContents::Foreign { .. } => Ok(fresh(args.force)),
        DeviceContents::Begun(intent) if intent.cluster == cluster => {
            Ok(Ids { uuid: intent.uuid, osd: Some(intent.osd), force: false })
        }
        DeviceContents::Begun(_) => Ok(fresh(args.force)),
        DeviceContents::Osd { superblock, .. } => {
            may_erase(args, path, (superblock.ids(), superblock.part), cluster, known).map(|()| fresh(true))
        }
        DeviceContents::Damaged(ids) => {
            let refused = match may_erase(args, path, (ids, DevicePart::Whole), cluster, known) {
                Ok(()) => return Ok(fresh(true)),
                Err(refused) => refused,
            };
            Err(UserError { what: format!("{}; its superblocks are damaged", refused.what), ..refused })
        }
    }
    .map_err(anyhow::Error::from)
}

/// Returns the advice for a device that holds an OSD of this cluster.
fn not_empty() -> String {
    format!("choose another device, or read `basalt explain {}`", codes::DEVICE_NOT_EMPTY)
}

/// Checks that the OSD on a device may be erased.
fn may_erase(
    args: &Format,
    path: &Path,
    (ids, part): (DeviceIds, DevicePart),
    cluster: ClusterId,
    known: Option<&OsdView>,
) -> Result<(), UserError> {
    let DeviceIds { cluster: found, osd, uuid } = ids;
    let device = path.display();
    let here = format!("{device} holds {osd} of this cluster");
    // The other device of the pair is lost, and the OSD with it: its replacement may take what is left.
    let is_half = |known: &OsdView| {
        let is_down = !matches!(known.live.as_str(), "up" | "unknown");
        part != DevicePart::Whole && args.replaces == Some(known.osd) && is_down
    };
    let refused = match known {
        Some(known) if is_half(known) => {
            let what = format!("{here}, which is to be replaced");
            let next = format!("if its other device is lost, add --force --erase-osd {uuid}");
            UserError::new(codes::DEVICE_NOT_EMPTY, what, next)
        }
        Some(known) if known.pgs > 0 => {
            let what = format!("{here}, with {} PGs", known.pgs);
            return Err(UserError::new(
                codes::DEVICE_NOT_EMPTY,
                what,
                "choose another device: an OSD that holds PGs is never erased",
            ));
        }
        Some(known) if matches!(known.live.as_str(), "up" | "unknown") => {
            let what = format!("{here}, which is not known to be down");
            return Err(UserError::new(codes::DEVICE_NOT_EMPTY, what, "stop that OSD first, or choose another device"));
        }
        Some(_) => UserError::new(codes::DEVICE_NOT_EMPTY, here, not_empty()),
        None if found == cluster => {
            let what = format!("{here}, which is not registered (any more)");
            let next = format!("choose another device; if its contents may be lost, add --force --erase-osd {uuid}");
            UserError::new(codes::DEVICE_NOT_EMPTY, what, next)
        }
        None => {
            let what = format!("{device} holds {osd} of another cluster, {found}");
            let next = format!("if that cluster does not need it any more, add --force --erase-osd {uuid}");
            UserError::new(codes::DEVICE_OF_OTHER_CLUSTER, what, next)
        }
    };
    was_typed(args, ids, refused)
}

/// Checks that the uuid of the erased OSD was typed, with the command or at the prompt.
fn was_typed(args: &Format, ids: DeviceIds, refused: UserError) -> Result<(), UserError> {
    let uuid = ids.uuid.to_string();
    let typed = match &args.erase_osd[..] {
        [_, ..] => args.erase_osd.iter().find(|typed| **typed == uuid).cloned(),
        [] if args.force && !args.quiet && std::io::stdin().is_terminal() => {
            let mut err = std::io::stderr();
            let _ = write!(err, "{}.\nType the uuid of {} to erase it: ", refused.what, ids.osd);
            let _ = err.flush();
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).ok().map(|_| line.trim().to_owned())
        }
        [] => None,
    };
    if args.force && typed.as_ref() == Some(&uuid) { Ok(()) } else { Err(refused) }
}

fn progress_bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "writing the log [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
    );
    ProgressBar::new(len).with_style(style.expect("a template of known fields").progress_chars("=> "))
}

/// Gives a missing or empty file its size; returns whether it was missing. A file with contents is never changed here.
fn make_file(path: &Path, size: u64) -> Result<bool> {
    let unusable = |e: std::io::Error| errors::unusable(path, &e);
    if std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device()) {
        let what = format!("--size is for files, and {} is a block device", path.display());
        return Err(UserError::new(codes::BAD_USAGE, what, "leave --size out: all of the device is used").into());
    }
    // Only a file that was made here is removed when the format fails.
    let new = !path.exists();
    let mut options = std::fs::File::options();
    let file = options.create(true).truncate(false).write(true).read(true).mode(0o600).open(path).map_err(unusable)?;
    let meta = file.metadata().map_err(unusable)?;
    match meta.len() {
        0 if meta.is_file() => file.set_len(size).map_err(unusable).map(|()| new).map_err(Into::into),
        len if meta.is_file() && len != size => {
            let (has, wanted) = (size::show_exactly(len), size::show_exactly(size));
            let what = format!("{} has {has}, and --size says {wanted}", path.display());
            Err(UserError::new(codes::BAD_USAGE, what, "leave --size out: the file is used as it is").into())
        }
        _ => Ok(false),
    }
}

pub fn format_error(device: &Path, error: FormatError) -> anyhow::Error {
    let (code, next) = match &error {
        FormatError::TooSmall { device_bytes, log_bytes, .. } => {
            return does_not_fit(device, *device_bytes, *log_bytes);
        }
        FormatError::Foreign { .. } => (codes::DEVICE_NOT_EMPTY, "if its contents may be lost, add --force".to_owned()),
        FormatError::OtherCluster { .. } => {
            (codes::DEVICE_OF_OTHER_CLUSTER, "if its contents may be lost, add --force".to_owned())
        }
        FormatError::Ours { .. } => (codes::DEVICE_NOT_EMPTY, not_empty()),
        FormatError::Superblock(why) => superblock_error(device, why),
        FormatError::Disk { source: DiskError::NoSpace, .. } => (codes::FILE_UNUSABLE, errors::make_room(device)),
        _ => (codes::FILE_UNUSABLE, format!("ls -l {}", device.display())),
    };
    let text = error.to_string();
    let what = text.split_once("; ").map_or(text.as_str(), |(what, _)| what);
    UserError::new(code, format!("{}: {what}", device.display()), next).into()
}

/// Returns the error for a device and a log that do not fit each other, and names the one to change.
fn does_not_fit(device: &Path, device_bytes: u64, log_bytes: u64) -> anyhow::Error {
    let least = SEGMENT_LEN_MIN * u64::from(SEGMENTS_MIN);
    let most = SEGMENT_LEN_MAX * u64::from(SEGMENTS_MAX);
    let (device, log) = (device.display(), size::show(log_bytes));
    let (what, next) = if log_bytes < least {
        let what = format!("{device}: a log of {log} is too small; the least is {}", size::show(least));
        (what, format!("use --log-size {} or more", size::show(least).replace(' ', "")))
    } else if log_bytes > most {
        let what = format!("{device}: a log of {log} is too large; the most is {}", size::show(most));
        (what, format!("use --log-size {} or less", size::show(most).replace(' ', "")))
    } else {
        let bytes = size::show(device_bytes);
        let what = format!("{device}: the device is too small: {bytes} do not hold a log of {log} and data");
        let fits = (device_bytes / 2).saturating_sub(2 * MARGIN) >> 20 << 20;
        let next = match fits >= least && fits < log_bytes {
            true => format!("use a larger device, or --log-size {}", size::show(fits).replace(' ', "")),
            false => "use a larger device".to_owned(),
        };
        (what, next)
    };
    UserError::new(codes::DEVICE_TOO_SMALL, what, next).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_log_follows_device_and_memory_within_bounds() {
        const GIB: u64 = 1 << 30;
        assert_eq!(default_log(200 * GIB, Some(64 * GIB)), 2 * GIB);
        assert_eq!(default_log(10 * GIB, Some(64 * GIB)), GIB);
        assert_eq!(default_log(8000 * GIB, Some(256 * GIB)), 4 * GIB);
        assert_eq!(default_log(8000 * GIB, Some(8 * GIB)), GIB);
        assert_eq!(default_log(8000 * GIB, Some(256 << 20)), LOG_FLOOR);
        assert_eq!(default_log(8000 * GIB, None), 4 * GIB);
        assert_eq!(default_log(2 * GIB, None), GIB / 4);
        assert_eq!(default_log(GIB / 8, None), LOG_FLOOR);
    }

    #[test]
    fn a_uuid_to_erase_is_refused_on_a_device_without_an_osd() {
        let args = |erase_osd: &[&str]| Format {
            device: "/d".into(),
            size: None,
            log_device: None,
            log_size: None,
            force: true,
            erase_osd: erase_osd.iter().map(|uuid| (*uuid).to_owned()).collect(),
            reuse: false,
            metas: Vec::new(),
            quiet: true,
            place: Place::default(),
            device_class: None,
            replaces: None,
        };
        let foreign = || DeviceContents::Foreign { place: "first" };
        let on = |path: &'static str, found| Some((Path::new(path), found));
        let refused = check_erased(&args(&["5a5a"]), &[on("/d", foreign()), None]).expect_err("refused").to_string();
        assert!(refused.contains("/d holds no OSD") && refused.contains("check the path"), "{refused}");
        assert!(check_erased(&args(&["5a5a"]), &[on("/d", DeviceContents::Empty), None]).is_err());
        assert!(check_erased(&args(&[]), &[on("/d", foreign()), None]).is_ok());
        // A pair: one of the two holds the OSD, and the other one no other data.
        let ids = DeviceIds { cluster: ClusterId([1; 16]), osd: OsdId(1), uuid: OsdUuid([2; 16]) };
        let half = |other| check_erased(&args(&["5a5a"]), &[on("/d", other), on("/log", DeviceContents::Damaged(ids))]);
        assert!(half(DeviceContents::Empty).is_ok() && half(foreign()).is_err());
        let cluster = ClusterId([1; 16]);
        assert!(decide(&args(&[]), Path::new("/d"), cluster, foreign(), None).is_ok_and(|ids| ids.force));
    }

    #[test]
    fn a_full_file_system_under_a_device_is_to_be_given_room() {
        let full = FormatError::Disk { during: "zeroing the log", source: DiskError::NoSpace };
        let said = format_error(Path::new("/nonexistent/d"), full).to_string();
        assert!(said.contains("zeroing the log: the device is full\n  next: make room"), "{said}");
        assert!(said.contains("(df -h /)"), "the folder that is there: {said}");
    }

    #[test]
    fn a_device_and_a_log_that_do_not_fit_name_the_one_to_change() {
        let said = |device: u64, log: u64| does_not_fit(Path::new("/d"), device, log).to_string();
        let tiny = said(1 << 40, 1 << 10);
        assert!(
            tiny.contains("a log of 1 KiB is too small; the least is 16 MiB\n  next: use --log-size 16MiB or more"),
            "{tiny}"
        );
        let small = said(100 << 20, 256 << 20);
        assert!(
            small.contains(
                "100 MiB do not hold a log of 256 MiB and data\n  next: use a larger device, or --log-size 48MiB"
            ),
            "{small}"
        );
        assert!(said(20 << 20, 64 << 20).ends_with("next: use a larger device"));
        assert!(said(1 << 50, 1 << 40).ends_with("use --log-size 64GiB or less"));
    }
}
