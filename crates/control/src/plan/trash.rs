//! The trash: volumes that were removed and whose data is still kept.
//!
//! A volume in the trash has no name in its pool and no session. Its segments, attach records and data stay as they are, so a
//! restore is one record. A purge, or the end of its time, begins the deletion that [`super::volume_remove`] begins at once.

use super::clones::check_clones;
use super::snapshots::check_snapshots;
use super::volumes::{check_recovered, deleting};
use super::writers::{InUse, check_free, let_out_all};
use super::{Plan, checked_size};
use crate::names;
use crate::records::{Record, Records, Trash, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use std::time::Duration;
use types::control::Refusal;
use types::{VolumeId, codes};

/// Volumes whose deletion one step begins.
const EXPIRED_PER_STEP: usize = 8;
/// Ids that a refusal names.
const IDS_SHOWN: usize = 8;

/// Longest time after its end for which a volume of the trash is deleted without a command.
const OVERDUE_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Returns milliseconds that a time takes.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Moves a volume to the trash for the time `keep`. A session ends as in a removal: its epoch is over, and each PG gets an attach
/// record without a session. `by` asked for it.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2043, BSLT-2052, BSLT-2055, and BSLT-2020 while the holder is alive, unless `use_.force`.
pub fn volume_trash(records: &Records, name: &str, use_: &InUse, keep: Duration, by: &str) -> Plan<VolumeId> {
    let volume = records.volume(name)?;
    if volume.state == VolumeState::Deleting {
        return Ok((Vec::new(), volume.id));
    }
    check_free(name, volume, use_)?;
    check_snapshots(records, name, volume.id, (false, false))?;
    let (since_ms, until_ms) = (use_.wall_ms, use_.wall_ms.saturating_add(millis(keep)));
    let trash = Trash { name: volume.name.clone(), since_ms, until_ms, by: by.to_owned() };
    let fenced = if volume.is_held() { let_out_all(records, volume) } else { volume.clone() };
    let (name, state) = (volume.trash_key(), VolumeState::Trashed);
    let record = VolumeRecord { name, state, trash: Some(trash), ..fenced };
    Ok((vec![Write::Put(Record::Volume(record))], volume.id))
}

/// Finds a volume of the trash by its id, or by the name that it had.
///
/// # Errors
/// BSLT-2010, BSLT-2014, BSLT-2060 when there is none, BSLT-2061 when more than one had this name.
pub fn in_trash<'a>(records: &'a Records, which: &str) -> Result<(&'a VolumeRecord, &'a Trash), Refusal> {
    let none = || {
        let shown: String = which.chars().take(140).collect();
        refuse(codes::NOT_IN_TRASH, format!("the trash holds no volume {shown:?}"))
    };
    let with_trash = |volume: &'a VolumeRecord| volume.trash.as_ref().map(|trash| (volume, trash));
    if !which.contains('/') {
        let id = which.strip_prefix('v').unwrap_or(which).parse().map(VolumeId).map_err(|_| none())?;
        return records.volumes.get(&id).and_then(with_trash).ok_or_else(none);
    }
    let (pool, name) = names::split(which)?;
    let pool = records.pool(pool)?.id;
    let mut named: Vec<_> = records.trash_of(pool).filter(|(_, trash)| trash.name == name).collect();
    // One whose deletion has begun is no choice beside others.
    if named.len() > 1 {
        named.retain(|(volume, _)| volume.state == VolumeState::Trashed);
    }
    match named[..] {
        [] => Err(none()),
        [only] => Ok(only),
        _ => {
            let ids: Vec<String> = named.iter().take(IDS_SHOWN).map(|(volume, _)| volume.id.0.to_string()).collect();
            let text = format!("{} volumes in the trash were called {which:?} (ids {})", named.len(), ids.join(", "));
            Err(refuse(codes::TRASH_NAME_AMBIGUOUS, text))
        }
    }
}

/// Gives a volume of the trash its name back, or the new name `new`.
///
/// # Errors
/// Those of [`in_trash`]; BSLT-2013 when the name is taken, BSLT-2014, BSLT-2060 when the deletion has begun.
pub fn trash_restore(records: &Records, which: &str, new: Option<&str>) -> Plan<VolumeId> {
    let (volume, trash) = in_trash(records, which)?;
    let full = records.full_name(volume);
    if volume.state == VolumeState::Deleting {
        return Err(refuse(codes::NOT_IN_TRASH, format!("the deletion of volume {full:?} has begun")));
    }
    let name = match new {
        Some(new) => super::changes::new_name(records, volume, new)?,
        None => &trash.name,
    };
    if records.volume_in(volume.pool, name).is_some() {
        return Err(refuse(
            codes::VOLUME_EXISTS,
            format!("volume {full:?} cannot be restored as {name:?}: that volume exists"),
        ));
    }
    let record = VolumeRecord { name: name.to_owned(), state: VolumeState::Ready, trash: None, ..volume.clone() };
    Ok((vec![Write::Put(Record::Volume(record))], volume.id))
}

/// Begins the deletion of a volume of the trash. Its clones keep what they show.
///
/// # Errors
/// Those of [`in_trash`]; BSLT-2043, BSLT-2055 while a clone is being made, BSLT-2061 when the deletion of another one that had the
/// name has begun.
pub fn trash_purge(records: &Records, which: &str) -> Plan<VolumeId> {
    let (volume, trash) = in_trash(records, which)?;
    if volume.state == VolumeState::Deleting {
        return Ok((Vec::new(), volume.id));
    }
    let goes = |(other, of): (&VolumeRecord, &Trash)| other.state == VolumeState::Deleting && of.name == trash.name;
    // A command that is repeated must not delete another volume.
    if which.contains('/') && records.trash_of(volume.pool).any(goes) {
        let text = format!(
            "the deletion of a volume that was called {which:?} has begun, and another one was called so, too (id {})",
            volume.id.0
        );
        return Err(refuse(codes::TRASH_NAME_AMBIGUOUS, text));
    }
    let full = records.full_name(volume);
    check_recovered(&full, volume)?;
    check_clones(records, &full, (volume.id, None), true)?;
    Ok((vec![Write::Put(Record::Volume(deleting(records, volume)))], volume.id))
}

/// Begins the deletion of some volumes whose time in the trash is over. When it has been over for very long, a clock is wrong, or was
/// wrong when the volume was removed: that one waits for a command. Those of a recovery that is not finished stay: a client
/// may have had one back when the records were lost.
pub fn trash_expire(records: &Records, wall_ms: u64) -> (Vec<Write>, Vec<VolumeId>) {
    let over = wall_ms.saturating_sub(millis(OVERDUE_MAX))..=wall_ms;
    let is_over = |volume: &&VolumeRecord| {
        volume.state == VolumeState::Trashed
            && !volume.recovering
            && volume.trash.as_ref().is_some_and(|trash| over.contains(&trash.until_ms))
            && check_clones(records, "", (volume.id, None), true).is_ok()
    };
    let over: Vec<&VolumeRecord> = records.volumes.values().filter(is_over).take(EXPIRED_PER_STEP).collect();
    let writes = over.iter().map(|volume| Write::Put(Record::Volume(deleting(records, volume)))).collect();
    checked_size((writes, over.iter().map(|volume| volume.id).collect()))
}
