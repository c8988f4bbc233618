//! Volumes and segments, and the attach records that R6 asks for.
//!
//! The epoch rises in the transaction that lets a writer in or out. The orders of the attach records are drawn
//! afterwards, PG by PG, always under the epoch and session of that moment. So no allocation or attach of an older
//! opener can come after them.

use super::clones::check_clones;
use super::labels::changed;
use super::limits::changed_limits;
use super::quota::Provisioned;
use super::snapshots::{check_snapshots, erase_snapshots};
use super::space::check_promise;
use super::writers::{InUse, check_free, let_out_all};
use super::{Plan, checked_size};
use crate::admin::VolumeText;
use crate::batch::PLAN_WRITES_MAX;
use crate::names;
use crate::records::{
    Faults, Held, Key, PgRecord, PoolState, Record, Records, Resize, SegmentRecord, Shrink, VolumeRecord, VolumeState,
    Write,
};
use crate::refusal::refuse;
use placement::PgChoice;
use std::collections::{BTreeMap, BTreeSet};
use types::codes;
use types::control::{Attach, Refusal, SEGMENTS_PER_ASK_MAX};
use types::limits::{VOLUME_LEN_MAX, VOLUME_LEN_MIN};
use types::planted::{Bug, on};
use types::{Epoch, GenerationId, OsdId, PgId, SECTOR, SEGMENT, SegmentIndex, SessionId, Stripe, VolumeId};

/// Segments that one step clears or erases.
const SEGMENTS_PER_STEP: usize = 48;

/// Makes a volume, without segments.
///
/// # Errors
/// BSLT-2010, BSLT-2013, BSLT-2014, BSLT-2015, BSLT-2019, BSLT-2062, BSLT-2070; BSLT-2049 when the pool has fewer PGs than `stripe` has
/// columns; BSLT-2072.
pub fn volume_create(
    records: &Records,
    name: &str,
    (len_bytes, stripe): (u64, Stripe),
    text: &VolumeText,
    wall_ms: u64,
) -> Plan<VolumeId> {
    let (pool_name, volume_name) = names::split(name)?;
    let pool = records.pool(pool_name)?;
    if pool.state != PoolState::Ready {
        return Err(refuse(codes::POOL_NOT_READY, format!("pool {pool_name:?} is not ready")));
    }
    if records.volume_in(pool.id, volume_name).is_some() {
        return Err(refuse(codes::VOLUME_EXISTS, format!("volume {name:?} exists")));
    }
    if !is_len(len_bytes) {
        return Err(refuse(codes::BAD_SIZE, format!("a volume of {} cannot be created", shown(len_bytes))));
    }
    let (description, labels) = changed("", &BTreeMap::new(), text)?;
    let limits = changed_limits(None, &text.limits)?;
    if stripe.count() > pool.pg_count {
        let (columns, pgs) = (stripe.count(), pool.pg_count);
        let text = format!("{columns} columns of volume {name:?} need a PG each, and pool {pool_name:?} has {pgs} PGs");
        return Err(refuse(codes::BAD_STRIPE, text));
    }
    check_promise(records, pool, Provisioned { bytes: len_bytes, volumes: 1 })?;
    let mut counters = records.counters.clone();
    let id = VolumeId(counters.next_volume);
    counters.next_volume += 1;
    let record = VolumeRecord {
        id,
        pool: pool.id,
        name: volume_name.to_string(),
        len_bytes,
        epoch: Epoch(0),
        held: Held::by_none(text.multi_writer.unwrap_or(false)),
        leaving: Vec::new(),
        fenced: Vec::new(),
        settled: true,
        state: VolumeState::Ready,
        created_ms: wall_ms,
        recovering: false,
        stripe,
        description,
        labels,
        resize: None,
        len_epoch: 0,
        trash: None,
        limits,
        when_full: text.when_full.unwrap_or_default(),
        newest: GenerationId::default(),
        rollback: None,
        clone_of: None,
        depth: 0,
        cloning: false,
        flatten: None,
        faults: Faults::default(),
    };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Volume(record))], id))
}

/// Whether a volume can have this length.
pub(super) fn is_len(len_bytes: u64) -> bool {
    (VOLUME_LEN_MIN..=VOLUME_LEN_MAX).contains(&len_bytes) && len_bytes.is_multiple_of(SECTOR)
}

/// Returns a size as the advice of BSLT-2015 writes it; bytes where the units do not divide it.
pub(crate) fn shown(bytes: u64) -> String {
    let unit = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")].into_iter();
    let unit = unit.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// Begins the removal of a volume: from here on it cannot be opened or written.
///
/// # Errors
/// BSLT-2020 while a writer is alive, unless `use_.force`, BSLT-2043; BSLT-2052, BSLT-2053, BSLT-2055, BSLT-2057 for its snapshots and clones.
pub fn volume_remove(records: &Records, name: &str, use_: &InUse) -> Plan<VolumeId> {
    let volume = records.volume(name)?;
    if volume.state == VolumeState::Deleting {
        return Ok((Vec::new(), volume.id));
    }
    check_free(name, volume, use_)?;
    check_snapshots(records, name, volume.id, (true, use_.snapshots))?;
    check_clones(records, name, (volume.id, None), use_.detach)?;
    Ok((vec![Write::Put(Record::Volume(deleting(records, volume)))], volume.id))
}

/// Returns the record of a volume whose deletion begins.
pub(super) fn deleting(records: &Records, volume: &VolumeRecord) -> VolumeRecord {
    VolumeRecord {
        state: VolumeState::Deleting,
        settled: false,
        resize: None,
        rollback: None,
        cloning: false,
        flatten: None,
        ..let_out_all(records, volume)
    }
}

pub(super) fn check_recovered(name: &str, volume: &VolumeRecord) -> Result<(), Refusal> {
    let text = || format!("volume {name:?} waits for the end of a recovery of the metadata");
    if volume.recovering { Err(refuse(codes::VOLUME_RECOVERING, text())) } else { Ok(()) }
}

fn may_place<'a>(
    records: &'a Records,
    volume: VolumeId,
    holder: (SessionId, Epoch),
    segments: &[SegmentIndex],
    wants: bool,
) -> Result<&'a VolumeRecord, Refusal> {
    let known = records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready);
    let known = known.ok_or_else(|| refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} does not exist")))?;
    if segments.len() > SEGMENTS_PER_ASK_MAX {
        return Err(refuse(codes::TOO_MANY, format!("{} segments in one request", segments.len())));
    }
    // While the holder of a volume that gets shorter ends its requests, these may need segments behind the new end.
    let end = if known.shrink().is_some_and(|shrink| shrink.ordered) { known.usable().1 } else { known.len_bytes };
    let count = end.div_ceil(SEGMENT);
    if let Some(bad) = segments.iter().find(|s| u64::from(s.0) >= count) {
        return Err(refuse(codes::OUT_OF_RANGE, format!("{bad} of {volume}, which has {count} segments")));
    }
    let passed = !known.writers().has(holder.0, holder.1);
    if holder.0.0 != 0 && passed && !on(Bug::AllocationAfterEpochRose) {
        let text = format!("{} no longer holds volume {:?}", holder.0, records.full_name(known));
        return Err(refuse(codes::SESSION_FENCED, text));
    }
    if holder.0.0 == 0 && wants {
        return Err(refuse(
            codes::READ_ONLY,
            format!("volume {:?} is open for reading only", records.full_name(known)),
        ));
    }
    Ok(known)
}

/// Volatile state of a PG, for the choice of PGs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgHint {
    /// The leader of the PG, or its preferred leader.
    pub leader: OsdId,
    /// Whether the PG serves and has space; others are taken only when there is no such PG.
    pub good: bool,
}

/// Gives PGs to those of `segments` that have none: one, or one for each column of the volume's stripe layout. Returns the PGs
/// in which the attach record of the volume is not known to be committed.
///
/// # Errors
/// BSLT-2011, BSLT-2019, BSLT-2021 for another session or epoch, BSLT-2022, BSLT-2023, BSLT-2027, BSLT-2043.
pub fn allocate(
    records: &Records,
    volume: VolumeId,
    holder: (SessionId, Epoch),
    segments: &[SegmentIndex],
    wants: bool,
    hint: &dyn Fn(&PgRecord) -> PgHint,
) -> Plan<BTreeSet<PgId>> {
    let known = may_place(records, volume, holder, segments, wants)?;
    if segments.iter().any(|segment| !records.segments.contains_key(&(volume, *segment))) {
        // A recovery may still put it back: until then it does not read as zeros (R17).
        check_recovered(&records.full_name(known), known)?;
    }
    let fresh: BTreeSet<SegmentIndex> =
        segments.iter().copied().filter(|s| wants && !records.segments.contains_key(&(volume, *s))).collect();
    if fresh.is_empty() {
        return Ok((Vec::new(), BTreeSet::new()));
    }
    let attached: BTreeSet<PgId> = match known.settled {
        true => records.loads_of(volume).filter(|(_, load)| load.segments > load.pending).map(|(pg, _)| pg).collect(),
        false => BTreeSet::new(),
    };
    let mut choices = choices(records, known, hint);
    let (mut writes, mut unattached) = (Vec::with_capacity(fresh.len()), BTreeSet::new());
    for index in fresh {
        let pgs = choose(&mut choices, known, &vec![None; known.stripe.count() as usize])?;
        // Where the volume's attach record of this epoch is committed already, writing may begin at once.
        let pending = !pgs.iter().all(|pg| attached.contains(pg));
        unattached.extend(pgs.iter().copied().filter(|pg| !attached.contains(pg)));
        writes.push(Write::Put(Record::Segment(SegmentRecord::new(volume, index, &pgs, pending))));
    }
    Ok(checked_size((writes, unattached)))
}

/// Returns the PGs of the pool of a volume, for the choice among them.
pub fn choices(records: &Records, volume: &VolumeRecord, hint: &dyn Fn(&PgRecord) -> PgHint) -> Vec<PgChoice> {
    let choice = |pg: &PgRecord| {
        let PgHint { leader, good } = hint(pg);
        let chunks_of_volume = records.load_of_volume(volume.id, pg.pg).chunks;
        PgChoice { pg: pg.pg, leader, good, chunks: records.load_of(pg.pg).chunks, chunks_of_volume }
    };
    records.pgs_of(volume.pool).map(choice).collect()
}

/// Chooses PGs for the columns of one more segment that have none yet, and counts them in `choices`.
///
/// # Errors
/// BSLT-2019 when the pool has too few PGs.
pub fn choose(choices: &mut [PgChoice], volume: &VolumeRecord, columns: &[Option<PgId>]) -> Result<Vec<PgId>, Refusal> {
    let pgs = match columns {
        [None] => placement::choose_pg(choices).map(|pg| vec![pg]),
        _ => placement::choose_columns(choices, columns),
    };
    let pgs = pgs.ok_or_else(|| refuse(codes::POOL_NOT_READY, "the pool has too few PGs"))?;
    for choice in choices.iter_mut().filter(|choice| pgs.contains(&choice.pg)) {
        choice.chunks += volume.stripe.chunks_per_column();
        choice.chunks_of_volume += volume.stripe.chunks_per_column();
    }
    Ok(pgs)
}

/// Returns every PG that holds a segment of the volume.
pub fn pgs_of_volume(records: &Records, volume: VolumeId) -> BTreeSet<PgId> {
    records.loads_of(volume).map(|(pg, _)| pg).collect()
}

/// Draws the next order of a PG, also above `at_least`: the PG may have seen more than the records say.
pub fn draw_order(pg: &PgRecord, at_least: u64) -> (Write, u64) {
    let order = pg.order.max(at_least) + 1;
    assert!(order > pg.order, "orders only grow");
    (Write::Put(Record::Pg(PgRecord { order, ..pg.clone() })), order)
}

/// Returns the attach record that a PG must carry for a volume at this moment.
pub fn attach_for(volume: &VolumeRecord, order: u64) -> Attach {
    let (chunk_count, len_epoch) = (volume.attached_chunks(), volume.len_epoch);
    let (id, head, base) = (volume.id, volume.head(), volume.base());
    Attach { order, volume: id, writers: volume.writers(), epoch: volume.epoch, chunk_count, len_epoch, head, base }
}

/// Clears `pending` of segments of the volume in `pg`; `true` when none is left. A segment stays pending while one of its PGs is
/// `open`: that has not committed the attach record.
pub fn unpend(records: &Records, volume: VolumeId, pg: PgId, open: &dyn Fn(PgId) -> bool) -> (Vec<Write>, bool) {
    if records.load_of_volume(volume, pg).pending == 0 {
        return (Vec::new(), true);
    }
    let is_due = |s: &&SegmentRecord| s.pending && s.pgs().any(|of| of == pg) && !s.pgs().any(open);
    let mut pending = records.segments_of(volume).filter(is_due);
    let clear = |s: &SegmentRecord| Write::Put(Record::Segment(SegmentRecord { pending: false, ..s.clone() }));
    let writes: Vec<Write> = pending.by_ref().take(SEGMENTS_PER_STEP).map(clear).collect();
    let done = pending.next().is_none();
    checked_size((writes, done))
}

/// Marks that the volume's attach record is committed in all its PGs. A length that these have taken is valid from here on; a rollback or
/// a clone is done. Behind a shorter length, and behind a rollback, the PGs have been wiped: a late order to wipe has another epoch.
pub fn settle(volume: &VolumeRecord) -> VolumeRecord {
    assert!(!volume.settled || volume.changes_contents(), "{} is settled already", volume.id);
    if volume.recovering {
        // The attach records name no length, and more PGs of the volume may be found.
        return VolumeRecord { settled: true, ..volume.clone() };
    }
    let mut settled = VolumeRecord { settled: true, rollback: None, cloning: false, ..volume.clone() };
    settled.let_out_in_each_pg();
    let wiped = super::shrink::wiped_end(volume).is_some();
    let len_epoch = volume.len_epoch + u32::from(wiped);
    match &volume.resize {
        // Its holder has not answered.
        Some(Resize { shrink: Some(Shrink { ordered: false, .. }), .. }) => VolumeRecord { len_epoch, ..settled },
        Some(Resize { len_bytes, shrink: Some(_), .. }) => {
            VolumeRecord { len_bytes: *len_bytes, len_epoch, resize: None, ..settled }
        }
        resize => {
            let len_bytes = resize.as_ref().map_or(0, |resize| resize.len_bytes).max(volume.len_bytes);
            VolumeRecord { len_bytes, len_epoch, resize: None, ..settled }
        }
    }
}

/// Takes the next step of erasing a removed volume whose PGs all dropped it: some segments and snapshots go, and with the last
/// of them the volume. `true` when it is gone.
pub fn erase(records: &Records, volume: &VolumeRecord) -> (Vec<Write>, bool) {
    assert_eq!(volume.state, VolumeState::Deleting, "{} is not being removed", volume.id);
    let mut segments = records.segments_of(volume.id);
    let mut writes: Vec<Write> =
        segments.by_ref().take(SEGMENTS_PER_STEP).map(|s| Write::Delete(Key::Segment(s.volume, s.index))).collect();
    let mut done = segments.next().is_none();
    if done {
        let (more, all) = erase_snapshots(records, volume.id, PLAN_WRITES_MAX - 1 - writes.len());
        writes.extend(more);
        done = all;
    }
    if done {
        writes.push(Write::Delete(Key::Volume(volume.id)));
    }
    checked_size((writes, done))
}
