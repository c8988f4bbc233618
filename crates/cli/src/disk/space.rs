//! `basalt disk usage`: space of a device by owner.

use super::device::Device;
use super::view::{View, volume_of};
use crate::disk_args::{DiskDevice, LogEnd};
use crate::{output, size};
use anyhow::Result;
use engine::offline::Access;
use engine::{LogUse, SpaceUse};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use types::{AU, BLOCK, OsdId, VolumeId};

/// Space of one volume on this device, with its snapshots.
#[derive(Default)]
pub(super) struct OfVolume {
    pub chunks: u64,
    pub aus: u64,
    blocks: u64,
    runs: u64,
}

/// Space of a device by owner.
pub(super) struct Found {
    space: SpaceUse,
    log: LogUse,
    /// AUs of removed replicas, which maps name until a checkpoint releases them.
    removed_aus: u64,
    pub volumes: BTreeMap<VolumeId, OfVolume>,
}

/// Prints the space of a device.
pub fn run(store: &DiskDevice, as_json: bool) -> Result<()> {
    let path = &store.device;
    let mut device = Device::open(store, Access::Read)?;
    let view = View::open(&mut device, LogEnd { uncommitted: false })?;
    let found = find(&view);
    if as_json {
        return found.json(path, view.superblock.osd);
    }
    found.show();
    Ok(())
}

pub(super) fn find(view: &View<'_>) -> Found {
    let engine = view.store.engine();
    let mut volumes: BTreeMap<VolumeId, OfVolume> = BTreeMap::new();
    for replica in view.replicas() {
        for held in engine.chunks_for_tools(replica.identity.replica) {
            let Some(home) = held.home else { continue };
            let of = volumes.entry(volume_of(&held)).or_default();
            (of.chunks, of.aus) = (of.chunks + 1, of.aus + u64::from(home.aus));
            (of.blocks, of.runs) = (of.blocks + u64::from(home.blocks), of.runs + u64::from(home.runs));
        }
    }
    let space = engine.space_for_tools().unwrap_or_default();
    let removed_aus: u64 = engine.leftovers_for_tools().iter().map(|(_, aus, _)| aus).sum();
    let removed_aus = removed_aus.min(space.data_aus.into());
    Found { space, log: engine.log_for_tools().unwrap_or_default(), removed_aus, volumes }
}

impl Found {
    fn data_aus(&self) -> u64 {
        u64::from(self.space.data_aus) - self.removed_aus
    }

    fn json(&self, path: &Path, osd: OsdId) -> Result<()> {
        let Found { space, log, .. } = self;
        let volumes: Vec<Value> = self.volumes.iter().map(|(volume, of)| volume_json(*volume, of)).collect();
        let body = json!({
            "device": path, "osd": osd,
            "aus": {
                "all": space.au_count, "data": self.data_aus(), "removed": self.removed_aus, "log": space.logged_aus,
                "pending_free": space.pending_aus, "two_owners": space.double_owned_aus, "free": space.free_aus,
            },
            "slots": {
                "all": space.slot_count, "maps": space.map_slots, "checksums": space.crc_slots,
                "directory": space.directory_slots, "decision": space.decision_slots,
                "pending_free": space.pending_slots, "two_owners": space.double_owned_slots, "free": space.free_slots,
            },
            "log": {
                "segments": log.segments, "in_use": log.segments_in_use, "free": log.segments - log.segments_in_use,
                "segment_bytes": log.segment_bytes, "used_bytes": log.used_bytes,
            },
            "chunks": space.chunks, "runs": space.runs, "volumes": volumes,
        });
        output::json("disk.usage", body)
    }

    fn show(&self) {
        let Found { space, log, .. } = self;
        let aus = [
            ("data", self.data_aus()),
            ("removed replicas", self.removed_aus),
            ("payloads of the log", space.logged_aus.into()),
            ("pending free", space.pending_aus.into()),
            ("two owners", space.double_owned_aus.into()),
            ("free", space.free_aus.into()),
        ];
        let slots = [
            ("maps", space.map_slots.into()),
            ("checksums", space.crc_slots.into()),
            ("directory", space.directory_slots.into()),
            ("decision states", space.decision_slots.into()),
            ("pending free", space.pending_slots.into()),
            ("two owners", space.double_owned_slots.into()),
            ("free", space.free_slots.into()),
        ];
        let segments =
            [("in use", log.segments_in_use.into()), ("free", u64::from(log.segments - log.segments_in_use))];
        let mut table = rows("AUs", &aus, AU, space.au_count);
        table.extend(rows("slots", &slots, BLOCK, space.slot_count));
        table.extend(rows("log segments", &segments, log.segment_bytes, log.segments));
        output::table(&["kind", "owner", "number", "bytes", "share"], table);
        out!("");
        let rows = self.volumes.iter().map(|(volume, of)| {
            let (data, held) = (size::show(of.blocks * BLOCK), size::show(of.aus * AU));
            vec![volume.to_string(), of.chunks.to_string(), of.aus.to_string(), held, data, of.runs.to_string()]
        });
        output::table(&["volume", "chunks", "aus", "space", "data", "runs"], rows);
    }
}

/// Returns the rows of one kind of space: its owners with their numbers, the length of one, and the number of all.
fn rows(kind: &str, owners: &[(&str, u64)], len_bytes: u64, all: u32) -> Vec<Vec<String>> {
    let share = |n: u64| format!("{:.1} %", n as f64 * 100.0 / f64::from(all.max(1)));
    let row = |(owner, n): &(&str, u64)| {
        vec![kind.to_owned(), (*owner).to_owned(), n.to_string(), size::show(n * len_bytes), share(*n)]
    };
    owners.iter().map(row).collect()
}

fn volume_json(volume: VolumeId, of: &OfVolume) -> Value {
    json!({
        "volume": volume, "chunks": of.chunks, "aus": of.aus, "au_bytes": of.aus * AU,
        "data_bytes": of.blocks * BLOCK, "runs": of.runs,
    })
}
