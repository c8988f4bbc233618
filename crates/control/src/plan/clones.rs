//! Clones: volumes that begin with the contents of a snapshot, without copying.
//!
//! A clone has the segments of its parent in the same PGs. Each of these begins the clone on the snapshot, in the attach record that every
//! volume needs there. Until all have done so the clone is `cloning`, and openers wait. From then on it needs no record of its parent:
//! the PGs keep the blocks that it shows, whatever is deleted.

use super::changes::live;
use super::labels::changed;
use super::limits::changed_limits;
use super::quota::Provisioned;
use super::snapshots::ready;
use super::space::check_promise;
use super::volumes::check_recovered;
use super::{Plan, checked_size};
use crate::admin::VolumeText;
use crate::batch::PLAN_WRITES_MAX;
use crate::names;
use crate::records::{Faults, Held, Record, Records, SegmentRecord, SnapshotState, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use std::collections::BTreeMap;
use types::control::{Base, Refusal};
use types::planted::{Bug, on};
use types::{Epoch, GenerationId, SEGMENT, SegmentIndex, SnapshotId, VolumeId, codes};

/// Most ancestors of a volume.
pub const CLONE_DEPTH_MAX: u32 = 16;
/// Names of clones that a refusal shows.
const NAMES_SHOWN: usize = 4;

/// Makes a volume that begins with the contents of the snapshot `pool/volume@snapshot`; `name` is in the same pool. It has the layout of
/// its parent and the length of the snapshot.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2013, BSLT-2014, BSLT-2043, BSLT-2050, BSLT-2055, BSLT-2058 for too many ancestors, BSLT-2062, BSLT-2070,
/// BSLT-2072.
pub fn volume_clone(records: &Records, full: &str, name: &str, text: &VolumeText, wall_ms: u64) -> Plan<VolumeId> {
    let (parent_name, _) = names::split_snapshot(full)?;
    let parent = live(records, parent_name)?;
    check_recovered(parent_name, parent)?;
    let snapshot = ready(records, full)?;
    let (pool_name, volume_name) = names::split(name)?;
    let pool = records.pool(pool_name)?;
    if pool.id != parent.pool {
        let text = format!("a clone of {full:?} cannot become {name:?}: it stays in the pool of its parent");
        return Err(refuse(codes::BAD_NAME, text));
    }
    if records.volume_in(pool.id, volume_name).is_some() {
        return Err(refuse(codes::VOLUME_EXISTS, format!("volume {name:?} exists")));
    }
    let depth = parent.depth + 1;
    if depth > CLONE_DEPTH_MAX {
        let text = format!("volume {parent_name:?} has {} ancestors", depth - 1);
        return Err(refuse(codes::CLONE_DEPTH, text));
    }
    let (description, labels) = changed("", &BTreeMap::new(), text)?;
    let limits = changed_limits(None, &text.limits)?;
    check_promise(records, pool, Provisioned { bytes: snapshot.len_bytes, volumes: 1 })?;
    let mut counters = records.counters.clone();
    let id = VolumeId(counters.next_volume);
    counters.next_volume += 1;
    let mut record = VolumeRecord {
        id,
        name: volume_name.to_owned(),
        len_bytes: snapshot.len_bytes,
        epoch: Epoch(0),
        held: Held::by_none(text.multi_writer.unwrap_or(false)),
        leaving: Vec::new(),
        fenced: Vec::new(),
        settled: false,
        created_ms: wall_ms,
        description,
        labels,
        limits,
        when_full: text.when_full.unwrap_or_default(),
        resize: None,
        len_epoch: 0,
        newest: GenerationId::default(),
        rollback: None,
        clone_of: Some(Base { volume: parent.id, snapshot: snapshot.snapshot, to: GenerationId::first_of(id) }),
        depth,
        cloning: true,
        flatten: None,
        faults: Faults::default(),
        ..parent.clone()
    };
    if missing(records, &record, None).next().is_none() {
        (record.settled, record.cloning) = (true, false);
    }
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Volume(record))], id))
}

/// Returns the segments of the parent within the length of the snapshot that a clone does not have, those above `after`.
fn missing<'a>(
    records: &'a Records,
    clone: &'a VolumeRecord,
    after: Option<SegmentIndex>,
) -> impl Iterator<Item = &'a SegmentRecord> {
    let base = clone.clone_of.filter(|_| clone.cloning);
    let len = base.and_then(|base| records.snapshots.get(&(base.volume, base.snapshot))).map_or(0, |s| s.len_bytes);
    let end = SegmentIndex(u32::try_from(len.div_ceil(SEGMENT)).expect("VOLUME_LEN_MAX bounds it"));
    let first = after.map_or(SegmentIndex(0), |after| SegmentIndex(after.0.saturating_add(1)));
    let parents = base.into_iter().flat_map(move |base| records.segments_from(base.volume, first));
    parents.take_while(move |s| s.index < end).filter(move |s| !records.segments.contains_key(&(clone.id, s.index)))
}

/// Gives a clone some of the segments that it lacks. Nothing is left to write when it has all of them.
pub fn clone_step(records: &Records, clone: &VolumeRecord) -> Vec<Write> {
    let give = |s: &SegmentRecord| SegmentRecord { volume: clone.id, pending: false, ..s.clone() };
    let all = if on(Bug::CloneLacksSegments) { 0 } else { PLAN_WRITES_MAX };
    let last = records.segments_of(clone.id).next_back().map(|s| s.index);
    // They are given in order. The parent may have got one since that lies before the last.
    let mut next: Vec<&SegmentRecord> = missing(records, clone, last).take(all).collect();
    if next.is_empty() {
        next = missing(records, clone, None).take(all).collect();
    }
    checked_size((next.into_iter().map(|s| Write::Put(Record::Segment(give(s)))).collect(), ())).0
}

/// Whether the segments of the parent of a clone are known: a recovery may still put some of them back.
pub fn knows_parent(records: &Records, clone: &VolumeRecord) -> bool {
    let parent = clone.clone_of.and_then(|base| records.volumes.get(&base.volume));
    !clone.recovering && parent.is_none_or(|parent| !parent.recovering)
}

/// Returns the clones of the snapshots of a volume, or of one of them, that are not being deleted. A clone whose snapshot is gone is none.
pub fn clones_of(
    records: &Records,
    volume: VolumeId,
    snapshot: Option<SnapshotId>,
) -> impl Iterator<Item = &VolumeRecord> + Clone {
    let has_base = |base: Base| {
        let snapshot = records.snapshots.get(&(base.volume, base.snapshot));
        snapshot.is_some_and(|s| s.state != SnapshotState::Deleting)
    };
    let stands =
        move |clone: &&VolumeRecord| clone.state != VolumeState::Deleting && clone.clone_of.is_some_and(has_base);
    records.clones_of(volume, snapshot).filter(stands)
}

/// Checks that the clones of a volume, or of one of its snapshots, let it be deleted. They keep what they show in any case.
///
/// # Errors
/// BSLT-2057 unless they are to be detached; BSLT-2055 while one is being made.
pub(super) fn check_clones(
    records: &Records,
    name: &str,
    (volume, snapshot): (VolumeId, Option<SnapshotId>),
    detach: bool,
) -> Result<(), Refusal> {
    let clones = clones_of(records, volume, snapshot);
    if let Some(clone) = clones.clone().find(|clone| clone.cloning) {
        let text = format!("volume {:?} is being made as a clone of {name:?}", records.full_name(clone));
        return Err(refuse(codes::VOLUME_BUSY, text));
    }
    let count = clones.clone().count();
    if count == 0 || detach {
        return Ok(());
    }
    let names: Vec<String> = clones.take(NAMES_SHOWN).map(|clone| records.full_name(clone)).collect();
    let more = if count > names.len() { ", ..." } else { "" };
    let text = format!("{name:?} has {count} clones ({}{more})", names.join(", "));
    Err(refuse(codes::HAS_CLONES, text))
}
