//! The devices of this OSD, as tools and metrics show them.

use engine::{DevicePart, Disks};
use env::{Capabilities, DiskInfo, WriteCache};
use telemetry::{Labels, Registry};

telemetry::families! {
    /// Properties of the devices of the OSD.
    pub struct DeviceFamilies => DeviceMetrics("basalt_osd_device") {
        gauge capabilities: "always 1; labels: part (whole, log or home), path, block_device, file_system, rotational, write_cache, \
            discard_max_bytes, write_zeroes_max_bytes and atomic_write_max_bytes, each `unknown` when the kernel does not tell";
    }
}

/// A device and the part of the OSD that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    pub part: DevicePart,
    pub disk: DiskInfo,
}

/// The devices of one OSD, that of the log first.
pub(crate) struct Devices(Vec<DeviceReport>);

impl Devices {
    pub fn new(disks: &Disks, registry: &Registry) -> Devices {
        let report = |(disk, part): (&DiskInfo, DevicePart)| DeviceReport { part, disk: disk.clone() };
        let reports: Vec<DeviceReport> = disks.each().into_iter().map(report).collect();
        let families = DeviceFamilies::new(registry);
        for report in &reports {
            families.add(&labels(report)).capabilities.set(1);
        }
        Devices(reports)
    }

    pub fn reports(&self) -> Vec<DeviceReport> {
        self.0.clone()
    }
}

fn labels(DeviceReport { part, disk }: &DeviceReport) -> Labels {
    fn word<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
    }
    let Capabilities { file_system, .. } = &disk.capabilities;
    let of = &disk.capabilities;
    let cache = of.write_cache.map(|cache| if cache == WriteCache::Back { "back" } else { "through" });
    let file_system = file_system.as_ref().map_or_else(|| "none".to_owned(), |of| word(of.name.as_ref()));
    vec![
        ("part", part.name().to_owned()),
        ("path", disk.path.display().to_string()),
        ("block_device", word(of.block_device.as_ref())),
        ("file_system", file_system),
        ("rotational", word(of.is_rotational)),
        ("write_cache", word(cache)),
        ("discard_max_bytes", word(of.discard_max_bytes)),
        ("write_zeroes_max_bytes", word(of.write_zeroes_max_bytes)),
        ("atomic_write_max_bytes", word(of.atomic_writes.map(|of| of.max_bytes))),
    ]
}
