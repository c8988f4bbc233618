//! Flatten: a clone gets copies of all that it shows of its parent, and is a volume like any other then.
//!
//! The record says that it goes on. The leaders of its PGs copy, each for itself, and are asked again and again; nothing of their progress is
//! recorded. While it goes on the clone takes no snapshot: blocks of a snapshot are never copied, so its snapshot would need the parent for ever.

use super::Plan;
use super::changes::live;
use super::volumes::check_recovered;
use crate::records::{CutState, Flatten, Record, Records, SnapshotState, VolumeRecord, Write};
use crate::refusal::refuse;
use types::control::Refusal;
use types::{VolumeId, codes};

/// Begins to flatten a clone; a repeated request joins. `by` asked for it.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2043, BSLT-2055 while the clone or a snapshot of it is being made, BSLT-2063 when it is no clone,
/// BSLT-2064 when it has snapshots.
pub fn volume_flatten(records: &Records, name: &str, by: &str, wall_ms: u64) -> Plan<VolumeId> {
    let volume = live(records, name)?;
    check_recovered(name, volume)?;
    if volume.flatten.is_some() {
        return Ok((Vec::new(), volume.id));
    }
    if volume.clone_of.is_none() {
        return Err(refuse(codes::NOT_A_CLONE, format!("volume {name:?} has no parent")));
    }
    if volume.cloning || records.cut_of(volume.id).is_some_and(|cut| cut.state == CutState::Holding) {
        return Err(refuse(codes::VOLUME_BUSY, format!("volume {name:?}, or a snapshot of it, is being made")));
    }
    if volume.shrink().is_some() {
        return Err(refuse(codes::VOLUME_BUSY, format!("volume {name:?} is being made shorter")));
    }
    let snapshots = records.snapshots_of(volume.id).filter(|s| s.state != SnapshotState::Deleting).count();
    if snapshots > 0 {
        return Err(refuse(codes::FLATTEN_SNAPSHOTS, format!("volume {name:?} has {snapshots} snapshots")));
    }
    let flatten = Some(Flatten { since_ms: wall_ms, by: by.to_owned() });
    Ok((vec![Write::Put(Record::Volume(VolumeRecord { flatten, ..volume.clone() }))], volume.id))
}

/// Stops to flatten a clone. What was copied stays, and PGs that are done stay so.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014.
pub fn flatten_cancel(records: &Records, name: &str) -> Plan<VolumeId> {
    let volume = live(records, name)?;
    let stopped = VolumeRecord { flatten: None, ..volume.clone() };
    let writes = volume.flatten.iter().map(|_| Write::Put(Record::Volume(stopped.clone()))).collect();
    Ok((writes, volume.id))
}

/// Ends a flatten: no PG needs the parent any more.
pub fn flatten_end(volume: &VolumeRecord) -> Vec<Write> {
    let flat = VolumeRecord { flatten: None, clone_of: None, depth: 0, ..volume.clone() };
    vec![Write::Put(Record::Volume(flat))]
}

/// Checks that no flatten of a volume goes on.
///
/// # Errors
/// BSLT-2064.
pub(super) fn check_not_flattened(name: &str, volume: &VolumeRecord) -> Result<(), Refusal> {
    match &volume.flatten {
        Some(_) => Err(refuse(codes::FLATTEN_SNAPSHOTS, format!("volume {name:?} is being flattened"))),
        None => Ok(()),
    }
}
