//! Rollback: a volume gets the contents of one of its snapshots again.
//!
//! The volume loses its session and gets a new head, which stands on the snapshot. An attach record with both goes into each of its PGs;
//! the old head goes there, and its space comes back. Openers wait until all PGs have it. Snapshots that are younger stay.

use super::Plan;
use super::changes::live;
use super::snapshots::ready;
use super::writers::{InUse, check_free, let_out_all};
use crate::names;
use crate::records::{CutState, Record, Records, Rollback, VolumeRecord, Write};
use crate::refusal::refuse;
use types::planted::{Bug, on};
use types::{GenerationId, VolumeId, codes};

/// Begins to turn a volume back to its snapshot `pool/volume@snapshot`. A repeated request joins the rollback that is under way; one to
/// another snapshot replaces it. `by` asked for it. The volume keeps its length.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2020 while a writer holds the volume, unless `use_.force`, BSLT-2043, BSLT-2050, BSLT-2055 during a cut.
pub fn snapshot_rollback(records: &Records, full: &str, use_: &InUse, by: &str) -> Plan<VolumeId> {
    let (name, _) = names::split_snapshot(full)?;
    let volume = live(records, name)?;
    let snapshot = ready(records, full)?.snapshot;
    if volume.rollback.as_ref().is_some_and(|rollback| rollback.snapshot == snapshot) {
        return Ok((Vec::new(), volume.id));
    }
    check_free(name, volume, use_)?;
    if volume.resize.is_some() && (volume.shrink().is_some() || volume.len_epoch > 0) {
        return Err(refuse(codes::VOLUME_BUSY, format!("volume {name:?} is being resized")));
    }
    if records.cut_of(volume.id).is_some_and(|cut| cut.state == CutState::Holding) {
        return Err(refuse(codes::VOLUME_BUSY, format!("a snapshot of volume {name:?} is being made")));
    }
    let mut counters = records.counters.clone();
    let to = GenerationId(counters.next_volume);
    counters.next_volume += 1;
    // Without segments the volume and its snapshots are empty.
    let settled = records.is_in_no_pg(volume);
    let rollback = Rollback { snapshot, to, since_ms: use_.wall_ms, by: by.to_owned() };
    let fenced = match on(Bug::RollbackKeepsSession) {
        true => volume.clone(),
        false => let_out_all(records, volume),
    };
    // The zeros behind the end for an earlier rollback lie below another head.
    let len_epoch = volume.len_epoch + u32::from(volume.len_epoch > 0);
    let record = VolumeRecord { settled, newest: to, len_epoch, rollback: (!settled).then_some(rollback), ..fenced };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Volume(record))], volume.id))
}
