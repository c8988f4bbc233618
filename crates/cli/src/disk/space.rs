//! `basalt disk usage`: space of a device by owner.

use super::device::Device;
use super::view::View;
use crate::disk_args::LogEnd;
use crate::{output, size};
use anyhow::Result;
use engine::offline::Access;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use types::{AU, BLOCK, VolumeId};

/// Space of one volume on this device.
#[derive(Default)]
struct OfVolume {
    chunks: u64,
    aus: u64,
    blocks: u64,
    runs: u64,
}

/// Prints the space of a device.
pub fn run(path: &Path, as_json: bool) -> Result<()> {
    let mut device = Device::open(path, Access::Read)?;
    let view = View::open(&mut device, LogEnd { uncommitted: false })?;
    let engine = view.store.engine();
    let (space, log) = (engine.space_for_tools().unwrap_or_default(), engine.log_for_tools().unwrap_or_default());
    let mut volumes: BTreeMap<VolumeId, OfVolume> = BTreeMap::new();
    for replica in view.replicas() {
        for held in engine.chunks_for_tools(replica.identity.replica) {
            let Some(home) = held.home else { continue };
            let of = volumes.entry(held.chunk.volume).or_default();
            (of.chunks, of.aus) = (of.chunks + 1, of.aus + u64::from(home.aus));
            (of.blocks, of.runs) = (of.blocks + u64::from(home.blocks), of.runs + u64::from(home.runs));
        }
    }
    let leftovers = engine.leftovers_for_tools();
    let leftover_aus: u64 = leftovers.iter().map(|(_, aus, _)| aus).sum();
    // Maps name the AUs of leftovers, too: they count to the data until a checkpoint releases them.
    let aus = [
        ("data", u64::from(space.data_aus) - leftover_aus.min(u64::from(space.data_aus))),
        ("removed replicas", leftover_aus),
        ("payloads of the log", u64::from(space.logged_aus)),
        ("pending free", u64::from(space.pending_aus)),
        ("two owners", u64::from(space.double_owned_aus)),
        ("free", u64::from(space.free_aus)),
    ];
    let slots = [
        ("maps", space.map_slots),
        ("checksums", space.crc_slots),
        ("directory", space.directory_slots),
        ("decision states", space.decision_slots),
        ("pending free", space.pending_slots),
        ("two owners", space.double_owned_slots),
        ("free", space.free_slots),
    ];
    if as_json {
        let list: Vec<Value> = volumes.iter().map(|(volume, of)| volume_json(*volume, of)).collect();
        let body = json!({
            "device": path, "osd": view.superblock.osd,
            "aus": {
                "all": space.au_count, "data": aus[0].1, "removed": aus[1].1, "log": aus[2].1, "pending_free": aus[3].1,
                "two_owners": aus[4].1, "free": aus[5].1,
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
            "chunks": space.chunks, "runs": space.runs, "volumes": list,
        });
        return output::json("disk.usage", body);
    }
    let share = |n: u64, of: u64| format!("{:.1} %", n as f64 * 100.0 / of.max(1) as f64);
    let rows = aus.iter().map(|(owner, n)| {
        vec!["AUs".to_owned(), (*owner).to_owned(), n.to_string(), size::show(n * AU), share(*n, space.au_count.into())]
    });
    let slot_rows = slots.iter().map(|(owner, n)| {
        let n = u64::from(*n);
        vec![
            "slots".to_owned(),
            (*owner).to_owned(),
            n.to_string(),
            size::show(n * BLOCK),
            share(n, space.slot_count.into()),
        ]
    });
    let segments = [("in use", log.segments_in_use), ("free", log.segments - log.segments_in_use)];
    let log_rows = segments.iter().map(|(state, n)| {
        let (n, all) = (u64::from(*n), log.segments.into());
        let bytes = size::show(n * log.segment_bytes);
        vec!["log segments".to_owned(), (*state).to_owned(), n.to_string(), bytes, share(n, all)]
    });
    output::table(&["kind", "owner", "number", "bytes", "share"], rows.chain(slot_rows).chain(log_rows));
    out!("");
    let rows = volumes.iter().map(|(volume, of)| {
        let (data, held) = (size::show(of.blocks * BLOCK), size::show(of.aus * AU));
        vec![volume.to_string(), of.chunks.to_string(), of.aus.to_string(), held, data, of.runs.to_string()]
    });
    output::table(&["volume", "chunks", "aus", "space", "data", "runs"], rows);
    Ok(())
}

fn volume_json(volume: VolumeId, of: &OfVolume) -> Value {
    json!({
        "volume": volume, "chunks": of.chunks, "aus": of.aus, "au_bytes": of.aus * AU,
        "data_bytes": of.blocks * BLOCK, "runs": of.runs,
    })
}
