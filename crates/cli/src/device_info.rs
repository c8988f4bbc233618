//! Devices of an OSD as users see them: `disk info` shows those that it opens, `osd info` those that a running OSD tells of.

use crate::admin::Admin;
use crate::errors::UserError;
use crate::{output, size};
use anyhow::Result;
use engine::DevicePart;
use env::{AtomicWrites, DiskInfo, DiskKind, WriteCache};
use osd::DeviceReport;
use osdpages::http;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;
use types::codes;

/// A device in JSON. `None`: the kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The part of the OSD that it holds: `whole`, `log` or `home`.
    part: String,
    path: PathBuf,
    is_file: bool,
    size_bytes: u64,
    align_bytes: u32,
    volatile_cache: bool,
    block_device: Option<String>,
    file_system: Option<String>,
    file_atomic_write_min_bytes: Option<u64>,
    file_atomic_write_max_bytes: Option<u64>,
    rotational: Option<bool>,
    write_cache: Option<String>,
    logical_block_bytes: Option<u64>,
    physical_block_bytes: Option<u64>,
    discard_granularity_bytes: Option<u64>,
    discard_max_bytes: Option<u64>,
    write_zeroes_max_bytes: Option<u64>,
    atomic_write_min_bytes: Option<u64>,
    atomic_write_max_bytes: Option<u64>,
}

/// How long a device of a running OSD takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    #[serde(flatten)]
    device: DeviceInfo,
    /// Why the OSD calls it slow.
    slow: Option<String>,
    service: Vec<Service>,
}

/// Service times of the last 5 s, of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Service {
    op: String,
    median_us: u64,
    normal_us: Option<u64>,
}

impl Running {
    /// Returns what a running OSD tells of one of its devices.
    pub fn new(report: &DeviceReport) -> Running {
        let service = report.service.iter().map(|of| Service {
            op: of.kind.to_owned(),
            median_us: of.median_us,
            normal_us: of.normal_us,
        });
        let device = DeviceInfo::new(&report.disk, report.part);
        Running { device, slow: report.slow.clone(), service: service.collect() }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = self.device.rows();
        let one = |of: &Service| {
            let normal = of.normal_us.map_or_else(|| "unknown".to_owned(), |us| format!("{us} µs"));
            format!("{} {} µs (normally at most {normal})", of.op, of.median_us)
        };
        let times: Vec<String> = self.service.iter().map(one).collect();
        let times = if times.is_empty() { "too few requests in the last 5 s".to_owned() } else { times.join(", ") };
        rows.push(("service time", times));
        rows.extend(self.slow.as_ref().map(|why| ("SLOW", why.clone())));
        rows
    }
}

impl DeviceInfo {
    pub fn new(disk: &DiskInfo, part: DevicePart) -> DeviceInfo {
        let of = disk.capabilities.clone();
        let file = of.file_system.unwrap_or_default();
        let units = |told: Option<AtomicWrites>| (told.map(|of| of.min_bytes), told.map(|of| of.max_bytes));
        let cache = of.write_cache.map(|cache| match cache {
            WriteCache::Back => "write back",
            WriteCache::Through => "write through",
        });
        DeviceInfo {
            part: part.name().to_owned(),
            path: disk.path.clone(),
            is_file: disk.kind == DiskKind::File,
            size_bytes: disk.size_bytes,
            align_bytes: disk.align_bytes,
            volatile_cache: disk.volatile_cache,
            block_device: of.block_device,
            file_system: file.name,
            file_atomic_write_min_bytes: units(file.atomic_writes).0,
            file_atomic_write_max_bytes: units(file.atomic_writes).1,
            rotational: of.is_rotational,
            write_cache: cache.map(str::to_owned),
            logical_block_bytes: of.logical_block_bytes,
            physical_block_bytes: of.physical_block_bytes,
            discard_granularity_bytes: of.discard_granularity_bytes,
            discard_max_bytes: of.discard_max_bytes,
            write_zeroes_max_bytes: of.write_zeroes_max_bytes,
            atomic_write_min_bytes: units(of.atomic_writes).0,
            atomic_write_max_bytes: units(of.atomic_writes).1,
        }
    }

    /// Returns the rows for users, each with its name.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let words = |told: Option<String>| told.unwrap_or_else(|| "unknown".to_owned());
        let bytes = |told: Option<u64>| words(told.map(size::show));
        let most = |told: Option<u64>| match told {
            Some(0) => "none".to_owned(),
            told => words(told.map(|max| format!("at most {} each", size::show(max)))),
        };
        let units = |min: Option<u64>, max: Option<u64>| match (min, max) {
            (Some(_), Some(0)) => "none".to_owned(),
            (Some(min), Some(max)) => format!("{} to {}", size::show(min), size::show(max)),
            _ => words(None),
        };
        let on = words(self.block_device.clone());
        let what = match self.is_file {
            true => format!("a file on {} of block device {on}", words(self.file_system.clone())),
            false => format!("block device {on}"),
        };
        let media = words(self.rotational.map(|is| if is { "rotating" } else { "solid state" }.to_owned()));
        let flushed = if self.volatile_cache { "writes are flushed" } else { "writes need no flush" };
        let cache = format!("{}; {flushed}", words(self.write_cache.clone()));
        let blocks = [self.logical_block_bytes, self.physical_block_bytes].map(bytes);
        let discard = match (self.discard_max_bytes, self.discard_granularity_bytes) {
            (max @ None, _) | (max @ Some(0), _) => most(max),
            (max, of) => format!("{}, in units of {}", most(max), bytes(of)),
        };
        let mut rows = vec![
            ("device", format!("{} ({}): {what}, {}", self.path.display(), self.part, size::show(self.size_bytes))),
            ("media", media),
            ("write cache", cache),
            (
                "blocks",
                format!("{} logical, {} physical; requests in units of {} B", blocks[0], blocks[1], self.align_bytes),
            ),
            ("discards", discard),
            ("write zeroes", most(self.write_zeroes_max_bytes)),
            ("atomic writes", units(self.atomic_write_min_bytes, self.atomic_write_max_bytes)),
        ];
        if self.is_file {
            let of = units(self.file_atomic_write_min_bytes, self.file_atomic_write_max_bytes);
            rows.push(("... of the file", of));
        }
        rows
    }
}

/// The page of a running OSD about its devices.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    devices: Vec<Running>,
}

/// Runs `basalt osd info`.
pub fn osd(admin: &Admin, osd: u32, as_json: bool) -> Result<()> {
    let known = admin.osds()?.into_iter().find(|known| known.osd.0 == osd).ok_or_else(|| {
        UserError::new(codes::OSD_UNKNOWN, format!("osd.{osd} is not registered"), "see `basalt osd ls`")
    })?;
    let silent = |why: String| {
        let next = "start it, or see its log; `basalt disk info` shows the devices of an OSD that is stopped";
        UserError::new(codes::OSD_SILENT, format!("osd.{osd} does not tell of its devices: {why}"), next)
    };
    let addr = known.http.filter(|_| known.live == "up");
    let addr = addr.ok_or_else(|| silent(format!("it is {}, or has no HTTP address", known.live)))?;
    let (status, body) = http::get(addr, "/devices").map_err(|e| silent(e.to_string()))?;
    if status != 200 || body["osd"] != known.uuid.to_string() {
        return Err(silent(format!("{addr} answers with status {status}, or is the address of another OSD now")).into());
    }
    let page: Page = serde_json::from_value(body).map_err(|e| silent(format!("a strange answer: {e}")))?;
    if as_json {
        return output::json("osd.info", json!({ "osd": osd, "devices": page.devices }));
    }
    out!("osd.{osd} on {}", known.host);
    for device in &page.devices {
        device.rows().iter().for_each(|(name, text)| out!("  {name:<16} {text}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Capabilities, DiskId, FileSystem};

    fn disk(kind: DiskKind, capabilities: Capabilities) -> DiskInfo {
        let (id, path) = (DiskId(0), PathBuf::from("/dev/sdb"));
        DiskInfo { id, path, kind, size_bytes: 1 << 30, align_bytes: 512, volatile_cache: true, capabilities }
    }

    #[test]
    fn unknown_capabilities_are_shown_as_unknown() {
        let info = DeviceInfo::new(&disk(DiskKind::File, Capabilities::default()), DevicePart::Home);
        let rows = info.rows();
        let unsaid = ["media", "discards", "write zeroes", "atomic writes", "... of the file"];
        for name in unsaid {
            assert!(rows.contains(&(name, "unknown".to_owned())), "{name}: {rows:?}");
        }
        let json = serde_json::to_value(&info).expect("it prints");
        assert!(json["rotational"].is_null() && json["atomic_write_max_bytes"].is_null(), "{json}");
        assert_eq!(serde_json::from_value::<DeviceInfo>(json).expect("it is read back"), info);
    }

    #[test]
    fn file_shows_its_atomic_writes_beside_those_of_its_device() {
        let units = |max_bytes| Some(AtomicWrites { min_bytes: 4096.min(max_bytes), max_bytes });
        let capabilities = Capabilities {
            file_system: Some(FileSystem { name: Some("ext4".to_owned()), atomic_writes: units(0) }),
            atomic_writes: units(65536),
            discard_max_bytes: Some(0),
            ..Capabilities::default()
        };
        let rows = DeviceInfo::new(&disk(DiskKind::File, capabilities), DevicePart::Whole).rows();
        let row = |name: &str| rows.iter().find(|row| row.0 == name).expect("a row").1.clone();
        assert_eq!((row("atomic writes"), row("... of the file")), ("4 KiB to 64 KiB".to_owned(), "none".to_owned()));
        assert_eq!(row("discards"), "none");
        assert!(row("device").contains("a file on ext4 of block device unknown"), "{rows:?}");
    }
}
