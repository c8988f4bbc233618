//! Changes of a volume that is in use: its name, its description and labels, and its length.

use super::Plan;
use super::labels::changed;
use super::limits::changed_limits;
use super::quota::Provisioned;
use super::space::check_promise;
use super::volumes::{check_recovered, is_len, shown};
use super::writers::{InUse, share};
use crate::admin::{Resizing, VolumeText};
use crate::names;
use crate::records::{Record, Records, Resize, Shrink, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use std::cmp::Ordering;
use types::control::Refusal;
use types::{VolumeId, codes};

/// Finds a volume that is not being removed.
pub(super) fn live<'a>(records: &'a Records, name: &str) -> Result<&'a VolumeRecord, Refusal> {
    let volume = records.volume(name)?;
    match volume.state {
        VolumeState::Ready => Ok(volume),
        VolumeState::Trashed | VolumeState::Deleting => {
            Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {name:?} is being removed")))
        }
    }
}

/// Returns the new name of a volume, which may be written with that of its pool.
///
/// # Errors
/// BSLT-2014, also for a name in another pool.
pub(super) fn new_name<'a>(records: &Records, volume: &VolumeRecord, new: &'a str) -> Result<&'a str, Refusal> {
    let pool = records.pools.get(&volume.pool).map_or("", |pool| pool.name.as_str());
    match new.split_once('/') {
        Some((of, new)) if of == pool => names::checked("volume", new),
        Some(_) => {
            let new: String = new.chars().take(140).collect();
            let text = format!("a volume of pool {pool:?} cannot become {new:?}: it stays in its pool");
            Err(refuse(codes::BAD_NAME, text))
        }
        None => names::checked("volume", new),
    }
}

/// Gives a volume another name in its pool. A client that has it open goes on: it knows the volume by its id.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2013, BSLT-2014.
pub fn volume_rename(records: &Records, name: &str, new: &str) -> Plan<VolumeId> {
    let volume = live(records, name)?;
    let new = new_name(records, volume, new)?;
    if new == volume.name {
        return Ok((Vec::new(), volume.id));
    }
    if records.volume_in(volume.pool, new).is_some() {
        return Err(refuse(codes::VOLUME_EXISTS, format!("the pool has a volume {new:?} already")));
    }
    let record = VolumeRecord { name: new.to_owned(), ..volume.clone() };
    Ok((vec![Write::Put(Record::Volume(record))], volume.id))
}

/// Changes description, labels and limits of a volume, what its writes do while the pool is full, and how many writers it may have.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2062, BSLT-2070; for the number of writers also BSLT-2020 and BSLT-2043.
pub fn volume_set(records: &Records, name: &str, text: &VolumeText, use_: &InUse) -> Plan<VolumeId> {
    let volume = live(records, name)?;
    let (description, labels) = changed(&volume.description, &volume.labels, text)?;
    let limits = changed_limits(volume.limits, &text.limits)?;
    let when_full = text.when_full.unwrap_or(volume.when_full);
    let multi_writer = text.multi_writer.unwrap_or(volume.is_multi_writer());
    let shared = share(records, name, volume, multi_writer, use_)?;
    let record = VolumeRecord { description, labels, limits, when_full, ..shared };
    let writes = if record == *volume { Vec::new() } else { vec![Write::Put(Record::Volume(record))] };
    Ok((writes, volume.id))
}

/// Begins to give a volume another length. The record of the intent comes first, then an attach record with the new number of chunks goes
/// into each PG of the volume, and then [`super::settle`] makes the length valid. A longer volume without segments has no PG that must know.
/// A repeated request joins the change that is under way. A shrink that the PGs do not know yet is taken back with the present length.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2015, BSLT-2043, BSLT-2055 during another change, BSLT-2059 for a shorter length without `shrink`,
/// BSLT-2072.
pub fn volume_resize(records: &Records, name: &str, to: &Resizing, wall_ms: u64, by: &str) -> Plan<VolumeId> {
    let volume = live(records, name)?;
    let len_bytes = to.len_bytes;
    check_recovered(name, volume)?;
    if !is_len(len_bytes) {
        return Err(refuse(codes::BAD_SIZE, format!("volume {name:?} cannot have {}", shown(len_bytes))));
    }
    if let Some(resize) = &volume.resize {
        return join(volume, name, resize, to);
    }
    match len_bytes.cmp(&volume.len_bytes) {
        Ordering::Equal => return Ok((Vec::new(), volume.id)),
        Ordering::Less if to.shrink => return super::shrink::shrink_begin(records, name, volume, to, wall_ms, by),
        Ordering::Less => {
            let (has, to) = (shown(volume.len_bytes), shown(len_bytes));
            let text = format!("volume {name:?} has {has}, more than {to}: --shrink makes it shorter");
            return Err(refuse(codes::SHRINK_UNSAFE, text));
        }
        Ordering::Greater if to.shrink => {
            let text = format!("volume {name:?} has only {}: --shrink makes no volume longer", shown(volume.len_bytes));
            return Err(refuse(codes::BAD_SIZE, text));
        }
        Ordering::Greater => {}
    }
    if super::shrink::wiped_end(volume).is_some() {
        // The bytes that the snapshot has behind the end must not show.
        return Err(refuse(codes::VOLUME_BUSY, format!("volume {name:?} is being turned back to a snapshot")));
    }
    let pool = records.pools.get(&volume.pool).ok_or_else(|| refuse(codes::POOL_UNKNOWN, "its pool is gone"))?;
    check_promise(records, pool, Provisioned { bytes: len_bytes - volume.len_bytes, volumes: 0 })?;
    let record = match records.segments_of(volume.id).next() {
        None => VolumeRecord { len_bytes, ..volume.clone() },
        Some(_) => {
            let resize = Some(Resize { len_bytes, since_ms: wall_ms, by: by.to_owned(), shrink: None });
            VolumeRecord { resize, settled: false, ..volume.clone() }
        }
    };
    Ok((vec![Write::Put(Record::Volume(record))], volume.id))
}

/// Joins a change of the length that is under way, or takes a shrink back.
fn join(volume: &VolumeRecord, name: &str, resize: &Resize, to: &Resizing) -> Plan<VolumeId> {
    let put = |record: VolumeRecord| Ok((vec![Write::Put(Record::Volume(record))], volume.id));
    match resize.shrink {
        None if resize.len_bytes == to.len_bytes => Ok((Vec::new(), volume.id)),
        Some(old) if resize.len_bytes == to.len_bytes && to.shrink => {
            let shrink = Shrink { discard: old.discard || to.discard, force: old.force || to.force, ..old };
            if shrink == old || old.ordered {
                return Ok((Vec::new(), volume.id));
            }
            put(VolumeRecord { resize: Some(Resize { shrink: Some(shrink), ..resize.clone() }), ..volume.clone() })
        }
        Some(Shrink { ordered: false, .. }) if to.len_bytes == volume.len_bytes => {
            put(super::shrink::shrink_end(volume))
        }
        _ => {
            let text = format!("volume {name:?} is being resized to {}", shown(resize.len_bytes));
            Err(refuse(codes::VOLUME_BUSY, text))
        }
    }
}
