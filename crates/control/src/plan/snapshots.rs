//! Snapshots: the steps of a cut, the deletion of a snapshot, its name and its labels (R14).
//!
//! A cut gives each of its volumes a new head, and the head before it becomes the snapshot. The numbers of both come from the counter of
//! volumes, so none is used again. The record of the intent comes before any PG is asked. A cut that does not end in time is given up:
//! its snapshots go from the records first, then from the PGs that have them.

use super::changes::live;
use super::clones::check_clones;
use super::flatten::check_not_flattened;
use super::labels::changed;
use super::volumes::check_recovered;
use super::{Plan, checked_size};
use crate::admin::VolumeText;
use crate::names;
use crate::records::{CutRecord, CutState, Key, Record, Records, SnapshotRecord, SnapshotState, VolumeRecord, Write};
use crate::refusal::refuse;
use std::collections::{BTreeMap, BTreeSet};
use types::control::Refusal;
use types::cut::CutItem;
use types::{CutId, GenerationId, PgId, SnapshotId, VolumeId, codes};

/// Most volumes of one cut: its first transaction has two records of each, and two more.
pub const VOLUMES_PER_CUT_MAX: usize = 32;

/// Most snapshots of one volume.
pub const SNAPSHOTS_PER_VOLUME_MAX: usize = 4096;

/// Snapshots of some volumes at one point in time, as an administrator asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutAsk {
    /// `pool/volume@snapshot`, each.
    pub names: Vec<String>,
    pub text: VolumeText,
    pub by: String,
}

/// Finds the volumes of a cut, with the names of their snapshots.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2004 for a volume that is named twice, BSLT-2027, BSLT-2043, BSLT-2051,
/// BSLT-2064 while a volume is being flattened.
pub fn cut_volumes<'a>(records: &Records, ask: &'a CutAsk) -> Result<BTreeMap<VolumeId, &'a str>, Refusal> {
    if ask.names.len() > VOLUMES_PER_CUT_MAX {
        let text = format!("{} volumes in one snapshot, more than {VOLUMES_PER_CUT_MAX}", ask.names.len());
        return Err(refuse(codes::TOO_MANY, text));
    }
    let mut volumes = BTreeMap::new();
    for full in &ask.names {
        let (name, snapshot) = names::split_snapshot(full)?;
        let volume = live(records, name)?;
        check_recovered(name, volume)?;
        check_not_flattened(name, volume)?;
        if records.snapshots_of(volume.id).count() >= SNAPSHOTS_PER_VOLUME_MAX {
            let text = format!("volume {name:?} has {SNAPSHOTS_PER_VOLUME_MAX} snapshots");
            return Err(refuse(codes::TOO_MANY, text));
        }
        if named(records, volume.id, snapshot).is_some() {
            return Err(refuse(codes::SNAPSHOT_EXISTS, format!("snapshot {full:?} exists")));
        }
        if volumes.insert(volume.id, snapshot).is_some() {
            return Err(refuse(codes::BAD_REQUEST, format!("volume {name:?} is named twice")));
        }
    }
    if volumes.is_empty() {
        return Err(refuse(codes::BAD_REQUEST, "no volume is named"));
    }
    changed("", &BTreeMap::new(), &ask.text)?;
    Ok(volumes)
}

/// Begins a cut: its record, the records of its snapshots, and the numbers that the volumes' orders have named.
///
/// # Errors
/// Those of [`cut_volumes`]; BSLT-2062.
pub fn cut_begin(records: &Records, ask: &CutAsk, wall_ms: u64) -> Plan<CutRecord> {
    let volumes = cut_volumes(records, ask)?;
    let (description, labels) = changed("", &BTreeMap::new(), &ask.text)?;
    let mut counters = records.counters.clone();
    let id = CutId(counters.next_volume);
    let mut cut = CutRecord { id, items: Vec::new(), since_ms: wall_ms, state: CutState::Holding };
    let mut writes = Vec::with_capacity(2 + 2 * volumes.len());
    for (volume, name) in volumes {
        let item = CutItem { volume, to: GenerationId(counters.next_volume) };
        counters.next_volume += 1;
        cut.items.push(item);
        let of = &records.volumes[&volume];
        let snapshot = SnapshotRecord {
            volume,
            snapshot: item.snapshot(),
            name: name.to_owned(),
            len_bytes: of.len_bytes,
            created_ms: wall_ms,
            state: SnapshotState::Cutting,
            cut: id,
            protected: false,
            by: ask.by.clone(),
            description: description.clone(),
            labels: labels.clone(),
        };
        writes.push(Write::Put(Record::Volume(VolumeRecord { newest: item.to, ..of.clone() })));
        writes.push(Write::Put(Record::Snapshot(snapshot)));
    }
    writes.push(Write::Put(Record::Counters(counters)));
    writes.push(Write::Put(Record::Cut(cut.clone())));
    Ok(checked_size((writes, cut)))
}

/// Returns the records of the snapshots that a cut makes.
pub fn snapshots_of_cut<'a>(
    records: &'a Records,
    cut: &'a CutRecord,
) -> impl Iterator<Item = &'a SnapshotRecord> + Clone {
    cut.items.iter().filter_map(|item| records.snapshots.get(&(item.volume, item.snapshot())))
}

/// Ends a cut that all PGs have released: its snapshots can be used from here on.
pub fn cut_end(records: &Records, cut: &CutRecord) -> Vec<Write> {
    let ready = |s: &SnapshotRecord| SnapshotRecord { state: SnapshotState::Ready, ..s.clone() };
    let mut writes: Vec<Write> =
        snapshots_of_cut(records, cut).map(|s| Write::Put(Record::Snapshot(ready(s)))).collect();
    writes.push(Write::Delete(Key::Cut(cut.id)));
    checked_size((writes, ())).0
}

/// Gives a cut up: its snapshots are none. PGs are told from here on.
pub fn cut_give_up(records: &Records, cut: &CutRecord) -> Vec<Write> {
    let mut writes: Vec<Write> =
        snapshots_of_cut(records, cut).map(|s| Write::Delete(Key::Snapshot(s.volume, s.snapshot))).collect();
    writes.push(Write::Put(Record::Cut(CutRecord { state: CutState::Aborting, ..cut.clone() })));
    checked_size((writes, ())).0
}

/// Returns the PGs of the volumes of a cut.
pub fn pgs_of_cut(records: &Records, cut: &CutRecord) -> BTreeSet<PgId> {
    cut.items.iter().flat_map(|item| super::pgs_of_volume(records, item.volume)).collect()
}

/// Returns the snapshot of a volume that has this name; one that is being deleted has none.
fn named<'a>(records: &'a Records, volume: VolumeId, name: &str) -> Option<&'a SnapshotRecord> {
    records.snapshots_of(volume).find(|s| s.name == name && s.state != SnapshotState::Deleting)
}

/// Finds a snapshot by `pool/volume@snapshot`.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2050.
pub fn snapshot<'a>(records: &'a Records, full: &str) -> Result<&'a SnapshotRecord, Refusal> {
    let (volume, name) = names::split_snapshot(full)?;
    let volume = records.volume(volume)?.id;
    let unknown = || refuse(codes::SNAPSHOT_UNKNOWN, format!("snapshot {full:?} does not exist"));
    named(records, volume, name).ok_or_else(unknown)
}

/// Finds a snapshot that is ready.
pub(super) fn ready<'a>(records: &'a Records, full: &str) -> Result<&'a SnapshotRecord, Refusal> {
    let found = snapshot(records, full)?;
    match found.state {
        SnapshotState::Cutting => Err(refuse(codes::VOLUME_BUSY, format!("snapshot {full:?} is being made"))),
        SnapshotState::Ready | SnapshotState::Deleting => Ok(found),
    }
}

/// Begins the deletion of a snapshot. A repeated request joins the deletion that is under way.
///
/// # Errors
/// Those of [`snapshot`]; BSLT-2052, BSLT-2055, BSLT-2057 with clones that are not to be detached.
pub fn snapshot_remove(records: &Records, full: &str, detach: bool) -> Plan<(VolumeId, SnapshotId)> {
    let (volume, name) = names::split_snapshot(full)?;
    let volume = records.volume(volume)?.id;
    if named(records, volume, name).is_none()
        && let Some(going) = records.snapshots_of(volume).find(|s| s.name == name)
    {
        return Ok((Vec::new(), (volume, going.snapshot)));
    }
    let found = ready(records, full)?;
    if found.protected {
        return Err(refuse(codes::SNAPSHOT_PROTECTED, format!("snapshot {full:?} is protected")));
    }
    if records.volumes[&volume].rollback.as_ref().is_some_and(|rollback| rollback.snapshot == found.snapshot) {
        return Err(refuse(codes::VOLUME_BUSY, format!("its volume is being rolled back to snapshot {full:?}")));
    }
    check_clones(records, full, (volume, Some(found.snapshot)), detach)?;
    let record = SnapshotRecord { state: SnapshotState::Deleting, ..found.clone() };
    Ok((vec![Write::Put(Record::Snapshot(record))], (found.volume, found.snapshot)))
}

/// Changes of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotChange {
    /// `None`: it stays.
    pub protect: Option<bool>,
    /// Another name: `snapshot`, or `pool/volume@snapshot`.
    pub name: Option<String>,
    pub text: VolumeText,
}

/// Changes name, protection, description and labels of a snapshot.
///
/// # Errors
/// Those of [`snapshot`]; BSLT-2051, BSLT-2055, BSLT-2062.
pub fn snapshot_set(records: &Records, full: &str, change: &SnapshotChange) -> Plan<(VolumeId, SnapshotId)> {
    let found = ready(records, full)?;
    let (description, labels) = changed(&found.description, &found.labels, &change.text)?;
    let name = match change.name.as_deref() {
        None => found.name.as_str(),
        Some(new) => renamed(records, full, found, new)?,
    };
    let protected = change.protect.unwrap_or(found.protected);
    let record = SnapshotRecord { name: name.to_owned(), protected, description, labels, ..found.clone() };
    let writes = if record == *found { Vec::new() } else { vec![Write::Put(Record::Snapshot(record))] };
    Ok((writes, (found.volume, found.snapshot)))
}

/// Returns another name that a snapshot can have.
fn renamed<'a>(records: &Records, full: &str, found: &SnapshotRecord, new: &'a str) -> Result<&'a str, Refusal> {
    let volume = full.split_once('@').map_or("", |(volume, _)| volume);
    let new = match new.split_once('@') {
        Some((of, new)) if of == volume => new,
        Some(_) => {
            let new: String = new.chars().take(140).collect();
            let text = format!("a snapshot of volume {volume:?} cannot become {new:?}: it stays with its volume");
            return Err(refuse(codes::BAD_NAME, text));
        }
        None => new,
    };
    let new = names::checked("snapshot", new)?;
    if new != found.name && named(records, found.volume, new).is_some() {
        return Err(refuse(codes::SNAPSHOT_EXISTS, format!("snapshot {:?} exists", format!("{volume}@{new}"))));
    }
    Ok(new)
}

/// Checks that the snapshots of a volume let it go: to the trash, or for good when `deletes`.
///
/// # Errors
/// BSLT-2052 with a protected one, BSLT-2053 when there are some and `with_them` is not set, BSLT-2055 during a cut.
pub(super) fn check_snapshots(
    records: &Records,
    name: &str,
    volume: VolumeId,
    (deletes, with_them): (bool, bool),
) -> Result<(), Refusal> {
    let mut all = records.snapshots_of(volume).filter(|s| s.state != SnapshotState::Deleting);
    if let Some(found) = all.clone().find(|s| s.protected) {
        let text = format!("snapshot {:?} is protected", format!("{name}@{}", found.name));
        return Err(refuse(codes::SNAPSHOT_PROTECTED, text));
    }
    if records.cut_of(volume).is_some_and(|cut| cut.state == CutState::Holding) {
        return Err(refuse(codes::VOLUME_BUSY, format!("a snapshot of volume {name:?} is being made")));
    }
    match all.next() {
        Some(_) if deletes && !with_them => {
            let text = format!("volume {name:?} has {} snapshots", 1 + all.count());
            Err(refuse(codes::HAS_SNAPSHOTS, text))
        }
        _ => Ok(()),
    }
}

/// Erases at most `room` snapshots of a removed volume: its PGs have dropped them with it. `true` when none is left.
pub(super) fn erase_snapshots(records: &Records, volume: VolumeId, room: usize) -> (Vec<Write>, bool) {
    let mut all = records.snapshots_of(volume);
    let some = all.by_ref().take(room);
    let writes = some.map(|s| Write::Delete(Key::Snapshot(s.volume, s.snapshot))).collect();
    (writes, all.next().is_none())
}
