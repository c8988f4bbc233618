//! `basalt volume du`: the space of a volume and its snapshots.

use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::{json, table};
use crate::size::show;
use anyhow::Result;
use control::admin::{SnapshotView, VolumeView};
use osdpages::{Space, SpaceError};
use serde_json::{Value, json};
use types::codes;

/// Measures a volume.
///
/// # Errors
/// Meta's refusal, or BSLT-5007 when a PG has no leader that answers.
pub fn measure(admin: &Admin, volume: &VolumeView) -> Result<Space> {
    osdpages::measure(admin, volume).map_err(|error| match error {
        SpaceError::Directory(error) => error,
        SpaceError::Strange(_) => UserError::new(codes::BUG, error.to_string(), "basalt version").into(),
        SpaceError::Silent { .. } => {
            let next = "basalt status shows which PGs do not serve";
            UserError::new(codes::REQUESTS_NOT_ANSWERED, error.to_string(), next).into()
        }
    })
}

/// Prints the space of a volume.
///
/// # Errors
/// Those of [`measure`].
pub fn run(admin: &Admin, name: &str, as_json: bool) -> Result<()> {
    let volume = admin.volume_info(name)?;
    let measured = measure(admin, &volume)?;
    let snapshots = admin.snapshots(&volume.name)?;
    if as_json {
        return json("volume.du", body(&volume, &measured, &snapshots));
    }
    out!("volume       {} ({})", volume.name, volume.volume);
    out!("provisioned  {}", show(volume.len_bytes));
    out!("allocated    {}", show(measured.allocated_bytes()));
    out!("  exclusive  {} (shared with no snapshot and no other volume)", show(measured.exclusive_bytes()));
    out!("  shared     {}", show(measured.shared_bytes()));
    let (stored, replicas) = (measured.stored_bytes(), measured.replicas);
    let raw = show(stored * u64::from(replicas));
    out!("stored       {} with the snapshots, {raw} on {replicas} replicas", show(stored));
    if measured.removed_bytes() > 0 {
        out!("  removed    {} of deleted snapshots that clones need", show(measured.removed_bytes()));
    }
    if measured.reclaimable_bytes() > 0 {
        let freed = show(measured.reclaimable_bytes());
        out!("reclaimable  {freed} of deleted snapshots, being freed in the background");
    }
    if !snapshots.is_empty() {
        out!("");
        table(&["snapshot", "stored", "freed by its deletion"], snapshots.iter().map(|s| row(s, &measured)));
    }
    Ok(())
}

fn row(snapshot: &SnapshotView, measured: &Space) -> Vec<String> {
    let (stored, frees) = measured.of_snapshot(snapshot.snapshot);
    vec![snapshot.name.clone(), show(stored), show(frees)]
}

fn body(volume: &VolumeView, measured: &Space, snapshots: &[SnapshotView]) -> Value {
    let snapshot = |s: &SnapshotView| {
        let (stored, frees) = measured.of_snapshot(s.snapshot);
        json!({ "name": s.name, "snapshot": s.snapshot, "stored_bytes": stored, "frees_bytes": frees })
    };
    json!({
        "name": volume.name,
        "volume": volume.volume,
        "len_bytes": volume.len_bytes,
        "allocated_bytes": measured.allocated_bytes(),
        "exclusive_bytes": measured.exclusive_bytes(),
        "shared_bytes": measured.shared_bytes(),
        "stored_bytes": measured.stored_bytes(),
        "removed_bytes": measured.removed_bytes(),
        "reclaimable_bytes": measured.reclaimable_bytes(),
        "replicas": measured.replicas,
        "snapshots": snapshots.iter().map(snapshot).collect::<Vec<_>>(),
    })
}
