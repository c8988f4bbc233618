//! `basalt disk info`: what the superblock, the marks and the last checkpoint of a device say.

use super::device::Device;
use super::view::{View, part_word};
use crate::device_info::DeviceInfo;
use crate::disk_args::{DiskDevice, LogEnd};
use crate::{duration, output, size};
use anyhow::Result;
use engine::SpaceUse;
use engine::offline::Access;
use layout::poison::{self, BEHIND_AT, POISON_AT, POISON_LEN};
use serde_json::json;
use std::collections::BTreeMap;

/// The end of the year 9999: later moments are no dates.
const UNIX_S_MAX: u64 = 253_402_300_799;

/// States of replicas, in the order of the output.
const STATES: [&str; 4] = ["running", "filling", "repairing", "failed"];

/// Prints the properties of a device.
pub fn run(store: &DiskDevice, as_json: bool) -> Result<()> {
    let path = &store.device;
    let mut device = Device::open(store, Access::Read)?;
    let (of_log, of) = device.superblocks()?;
    let mark = |page: Option<types::IoBuf>| page.and_then(|page| poison::decode(&page, of.uuid));
    let poisoned = mark(device.read_log(POISON_AT, POISON_LEN).ok());
    let poisoned = poisoned.or_else(|| mark(device.read_home(POISON_AT, POISON_LEN).ok()));
    let behind = mark(device.read_log(BEHIND_AT, POISON_LEN).ok());
    let each = device.disks.each().into_iter();
    let devices: Vec<DeviceInfo> = each.map(|(disk, part)| DeviceInfo::new(disk, part)).collect();
    let view = View::open(&mut device, LogEnd { uncommitted: false })?;
    let engine = view.store.engine();
    let (log, space) = (engine.log_for_tools().unwrap_or_default(), engine.space_for_tools().unwrap_or_default());
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    counts.extend(STATES.map(|word| (word, 0)));
    for replica in view.replicas() {
        *counts.entry(part_word(&replica.part)).or_default() += 1;
    }
    let SpaceUse { slot_count, au_count, .. } = space;
    let (mount, _, _) = engine.position();
    if as_json {
        let body = json!({
            "device": path, "log_device": store.log_device,
            "osd": of.osd, "cluster": of.cluster, "uuid": of.uuid,
            "format_version": of.format_version,
            "features_compat": of.compat, "features_incompat": of.incompat,
            "formatted_unix_s": of.formatted_unix_s,
            "device_bytes": of.device_bytes,
            "log": {
                "start_bytes": of_log.log_start, "segment_bytes": of_log.segment_bytes, "segments": of_log.segment_count,
                "segments_in_use": log.segments_in_use, "first_batch": log.tail_seq, "last_batch": log.last_seq,
            },
            "home": {
                "start_bytes": of.home_start, "len_bytes": of.home_bytes, "slots": slot_count, "aus": au_count,
                "checkpoint_sequence": engine.checkpoint_sequence(),
            },
            // The mount of this command is in memory alone.
            "mount": mount.saturating_sub(1),
            "replicas": counts,
            "tombstones": engine.tombstone_count(),
            "poisoned": poisoned, "behind": behind,
            "lost_records": engine.lost_records(),
            "devices": devices,
        });
        return output::json("disk.info", body);
    }
    out!("{}: {} of cluster {}", path.display(), of.osd, of.cluster);
    let row = |name: &str, text: String| out!("  {name:<15} {text}");
    row("uuid", format!("{} (one format of one device)", of.uuid));
    row("format", format!("version {}, features {:#x} and {:#x} (needed)", of.format_version, of.compat, of.incompat));
    row("formatted", duration::moment(of.formatted_unix_s.min(UNIX_S_MAX) * 1000));
    row("size", size::show_exactly(of.device_bytes));
    let (count, len) = (of_log.segment_count, size::show(of_log.segment_bytes));
    let on = store.log_device.as_ref().map_or_else(String::new, |path| format!(" of {}", path.display()));
    row("log", format!("{count} segments of {len} at {}{on}, {} in use", of_log.log_start, log.segments_in_use));
    row("batches", format!("{} to {}, the last of mount {}", log.tail_seq, log.last_seq, mount.saturating_sub(1)));
    let len = size::show(of.home_bytes);
    row("home", format!("{len} at {}: {slot_count} slots of 4 KiB, {au_count} AUs of 64 KiB", of.home_start));
    row("checkpoint", format!("sequence {}", engine.checkpoint_sequence()));
    let words: Vec<String> = STATES.iter().map(|word| format!("{} {word}", counts[word])).collect();
    row("replicas", format!("{}; {} tombstones", words.join(", "), engine.tombstone_count()));
    for (name, mark) in [("poison mark", poisoned), ("older copy", behind)] {
        mark.iter().for_each(|reason| row(name, reason.clone()));
    }
    engine.lost_records().iter().for_each(|lost| row("log gap", (*lost).to_owned()));
    devices.iter().flat_map(DeviceInfo::rows).for_each(|(name, text)| row(name, text));
    Ok(())
}
