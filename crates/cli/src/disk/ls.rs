//! `basalt disk ls`: the replicas on a device, and their chunks.

use super::device::Device;
use super::view::{View, part_word, volume_of};
use crate::disk_args::DiskLs;
use crate::{output, size};
use anyhow::Result;
use engine::offline::Access;
use engine::{ChunkHeld, Part, ReplicaUse};
use serde_json::{Value, json};
use types::{AU, BLOCK, VolumeId};

/// Lists replicas.
pub fn run(args: &DiskLs, as_json: bool) -> Result<()> {
    let mut device = Device::open(&args.store, Access::Read)?;
    let view = View::open(&mut device, args.end)?;
    let listed = listed(&view, args);
    if as_json {
        let replicas: Vec<Value> =
            listed.iter().map(|(r, chunks)| replica_json(&view, r, chunks, args.chunks)).collect();
        return output::json(
            "disk.ls",
            json!({ "device": args.store.device, "osd": view.superblock.osd, "replicas": replicas }),
        );
    }
    let header =
        ["pg", "replica", "state", "checkpoint", "commit", "last term", "last", "chunks", "aus", "data", "in log"];
    output::table(&header, listed.iter().map(|(replica, _)| row(&view, replica)));
    for (replica, _) in &listed {
        if let Some(reason) = view.stale(replica.identity.replica) {
            out!("{} of PG {}: {reason}", replica.identity.replica, replica.identity.pg);
        }
    }
    for (replica, chunks) in listed.iter().filter(|_| args.chunks) {
        out!("");
        out!("{} of PG {}", replica.identity.replica, replica.identity.pg);
        let header = ["volume", "generation", "role", "chunk", "aus", "blocks", "data", "runs", "log"];
        output::table(&header, chunks.iter().map(chunk_row));
    }
    Ok(())
}

/// Returns the wanted replicas with their wanted chunks.
pub(super) fn listed(view: &View<'_>, args: &DiskLs) -> Vec<(ReplicaUse, Vec<ChunkHeld>)> {
    let replicas = view.replicas().into_iter().filter(|replica| args.pg.is_none_or(|pg| replica.identity.pg == pg));
    let with_chunks = replicas.map(|replica| (chunks_of(view, &replica, args.volume), replica));
    let wanted = with_chunks.filter(|(chunks, _)| args.volume.is_none() || !chunks.is_empty());
    wanted.map(|(chunks, replica)| (replica, chunks)).collect()
}

fn chunks_of(view: &View<'_>, replica: &ReplicaUse, volume: Option<VolumeId>) -> Vec<ChunkHeld> {
    let mut chunks = view.store.engine().chunks_for_tools(replica.identity.replica);
    chunks.retain(|held| volume.is_none_or(|volume| volume_of(held) == volume));
    chunks
}

fn row(view: &View<'_>, replica: &ReplicaUse) -> Vec<String> {
    let applied = view.applied.get(&replica.identity.replica);
    let (commit, last) = applied.map_or((replica.commit, replica.last), |applied| (applied.commit, applied.last));
    let last_term = applied.map_or(replica.checkpoint.1, |applied| applied.last_term);
    vec![
        replica.identity.pg.to_string(),
        replica.identity.replica.to_string(),
        part_word(&replica.part).to_owned(),
        replica.checkpoint.0.0.to_string(),
        commit.0.to_string(),
        last_term.0.to_string(),
        last.0.to_string(),
        replica.chunks.to_string(),
        replica.aus.to_string(),
        size::show(replica.blocks * BLOCK),
        size::show(replica.overlay_bytes),
    ]
}

/// Returns the role of the generation: `dissolved` when its blocks belong to another one.
fn role_of(held: &ChunkHeld) -> String {
    match held.owner {
        Some((owner, role)) if owner == held.chunk.generation => role.to_string(),
        Some(_) => "dissolved".to_owned(),
        None => "unknown".to_owned(),
    }
}

fn chunk_row(held: &ChunkHeld) -> Vec<String> {
    let home = held.home.map_or((0, 0, 0), |home| (home.aus, home.blocks, home.runs));
    vec![
        volume_of(held).to_string(),
        held.chunk.generation.to_string(),
        role_of(held),
        held.chunk.index.to_string(),
        home.0.to_string(),
        home.1.to_string(),
        size::show(u64::from(home.1) * BLOCK),
        home.2.to_string(),
        if held.in_log { "newer data" } else { "-" }.to_owned(),
    ]
}

fn replica_json(view: &View<'_>, replica: &ReplicaUse, chunks: &[ChunkHeld], listed: bool) -> Value {
    let applied = view.applied.get(&replica.identity.replica);
    let (commit, last) = applied.map_or((replica.commit, replica.last), |applied| (applied.commit, applied.last));
    let reason = match &replica.part {
        Part::Failed(failure) => Some(failure.reason.as_str()),
        _ => view.stale(replica.identity.replica),
    };
    let list: Vec<Value> = chunks.iter().filter(|_| listed).map(chunk_json).collect();
    json!({
        "pg": replica.identity.pg.to_string(),
        "replica": replica.identity.replica,
        "state": part_word(&replica.part),
        "reason": reason,
        "term": replica.term,
        "checkpoint_index": replica.checkpoint.0,
        "applied_index": replica.applied,
        "commit_index": commit,
        "last_index": last,
        "chunks": replica.chunks,
        "aus": replica.aus,
        "au_bytes": replica.aus * AU,
        "data_bytes": replica.blocks * BLOCK,
        "log_bytes": replica.payload_bytes,
        "overlay_bytes": replica.overlay_bytes,
        "chunk_list": list,
    })
}

pub(super) fn chunk_json(held: &ChunkHeld) -> Value {
    let home = held.home.map_or((0, 0, 0), |home| (home.aus, home.blocks, home.runs));
    json!({
        "volume": volume_of(held),
        "generation": held.chunk.generation,
        "role": role_of(held),
        "chunk": held.chunk.index,
        "aus": home.0,
        "data_bytes": u64::from(home.1) * BLOCK,
        "runs": home.2,
        "in_log": held.in_log,
    })
}
