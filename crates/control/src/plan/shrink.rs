//! Shrink: a volume gets a shorter length, and what is behind the new end goes.
//!
//! First the client that holds the volume stops to use what is behind the end, or loses it; meta is told of that by its keepalive. Then no
//! client writes there, and the PGs are searched for data. Only then the shorter length goes into each PG, with an attach record that has a
//! higher `len_epoch`. The rest of the last chunk is zeroed, and the length is valid. `len_epoch` rises with each of the steps.

use super::Plan;
use crate::admin::Resizing;
use crate::records::{CutState, Record, Records, Resize, Shrink, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use std::sync::Arc;
use types::cut::Tail;
use types::{CHUNK, PgId, SECTOR, SEGMENT, SectorRange, SegmentIndex, VolumeId, codes};

/// Begins a shrink: from here on a client that opens the volume does not see what is behind the new end.
///
/// # Errors
/// BSLT-2055 while the volume is turned back, flattened or made, or a snapshot of it is being made.
pub(super) fn shrink_begin(
    records: &Records,
    name: &str,
    volume: &VolumeRecord,
    to: &Resizing,
    wall_ms: u64,
    by: &str,
) -> Plan<VolumeId> {
    let is_cut = records.cut_of(volume.id).is_some_and(|cut| cut.state == CutState::Holding);
    let other = match volume {
        _ if is_cut => Some("a snapshot of it is being made"),
        VolumeRecord { rollback: Some(_), .. } => Some("it is being turned back to a snapshot"),
        VolumeRecord { cloning: true, .. } => Some("it is being made"),
        VolumeRecord { flatten: Some(_), .. } => Some("it is being flattened"),
        _ => None,
    };
    if let Some(other) = other {
        return Err(refuse(codes::VOLUME_BUSY, format!("volume {name:?} cannot be made shorter now: {other}")));
    }
    let shrink = Some(Shrink { discard: to.discard, force: to.force, ordered: false });
    let resize = Some(Resize { len_bytes: to.len_bytes, since_ms: wall_ms, by: by.to_owned(), shrink });
    let record = VolumeRecord { resize, len_epoch: volume.len_epoch + 1, ..volume.clone() };
    Ok((vec![Write::Put(Record::Volume(record))], volume.id))
}

/// Orders the shorter length: no client uses what is behind the end.
pub fn shrink_order(records: &Records, volume: &VolumeRecord) -> VolumeRecord {
    let ordered = |resize: &Resize| {
        let shrink = resize.shrink.map(|shrink| Shrink { ordered: true, ..shrink });
        Resize { shrink, ..resize.clone() }
    };
    let resize = volume.resize.as_ref().map(ordered);
    let len_epoch = volume.len_epoch + 1;
    let record = VolumeRecord { resize, len_epoch, settled: false, ..volume.clone() };
    if records.is_in_no_pg(volume) { super::settle(&record) } else { record }
}

/// Takes a shrink back that was not ordered.
pub fn shrink_end(volume: &VolumeRecord) -> VolumeRecord {
    VolumeRecord { resize: None, len_epoch: volume.len_epoch + 1, ..volume.clone() }
}

/// Returns a volume of which a PG has a later length than the records, which went back in time. A shrink ends that was asked for without
/// knowledge of a greater length; one that was ordered goes on otherwise. No PG loses a chunk that it has by the later length, and no client
/// one that it was told.
pub fn length_above(volume: &VolumeRecord, (len_epoch, chunk_count): (u32, u32)) -> VolumeRecord {
    let len_epoch = len_epoch.max(volume.len_epoch) + 1;
    let above = VolumeRecord { len_epoch, settled: false, ..volume.clone() };
    let (found, is_ordered) = (volume.len_of_chunks(chunk_count), volume.shrink().is_some_and(|shrink| shrink.ordered));
    match &volume.resize {
        Some(resize) if is_ordered && resize.len_bytes >= found => above,
        _ if is_ordered => VolumeRecord { len_bytes: found, resize: None, ..above },
        _ => VolumeRecord { len_bytes: volume.len_bytes.max(found), resize: None, ..above },
    }
}

/// Returns a volume of which a PG may have gone back to a time before a shrink: its PGs are to take the length again, and zero what is behind
/// the end. A resize that was not ordered is given up for that.
pub(super) fn shortened_again(volume: VolumeRecord) -> VolumeRecord {
    if volume.len_epoch == 0 || volume.recovering || volume.state == VolumeState::Deleting {
        return volume;
    }
    let shrink = Some(Shrink { discard: true, force: true, ordered: true });
    let same = || Resize { len_bytes: volume.len_bytes, since_ms: volume.created_ms, by: String::new(), shrink };
    let ordered = volume.resize.clone().filter(|resize| resize.shrink.is_some_and(|shrink| shrink.ordered));
    let resize = ordered.or_else(|| volume.rollback.is_none().then(same));
    VolumeRecord { resize, len_epoch: volume.len_epoch + 1, ..volume }
}

/// Returns the end behind which the PGs of the volume must be wiped before they are settled: that of a shrink, or of a volume that is turned
/// back, because the snapshot may be longer.
pub fn wiped_end(volume: &VolumeRecord) -> Option<u64> {
    match (&volume.resize, &volume.rollback) {
        (Some(Resize { len_bytes, shrink: Some(Shrink { ordered: true, .. }), .. }), _) => Some(*len_bytes),
        // No volume has got shorter.
        (_, Some(_)) if volume.len_epoch > 0 => Some(volume.len_bytes),
        _ => None,
    }
}

/// Returns what is behind an end of the volume in the chunks of a PG.
pub fn tail_of(records: &Records, volume: &VolumeRecord, pg: PgId, end: u64) -> Tail {
    let from_chunk = volume.chunks_of(end);
    let whole = if volume.stripe.is_striped() { SEGMENT } else { CHUNK };
    let index = SegmentIndex((end / SEGMENT) as u32);
    let last = records.segments.get(&(volume.id, index));
    let is_its = |chunk: u32| {
        let column = volume.stripe.column_of(chunk) as usize;
        last.is_some_and(|segment| segment.pgs().nth(column) == Some(pg))
    };
    let range = end..end.next_multiple_of(whole);
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(run) = volume.stripe.run_from(&range, from) {
        let mut at = run.start;
        while at < run.end {
            let (chunk, next) = ((at / CHUNK) as u32, ((at / CHUNK + 1) * CHUNK).min(run.end));
            let (start, count) = ((at % CHUNK / SECTOR) as u32, ((next - at) / SECTOR) as u32);
            parts.extend(is_its(chunk).then(|| (chunk, SectorRange::new(start, count))));
            at = next;
        }
        from = run.end;
    }
    Tail { from_chunk, parts: Arc::from(parts) }
}
