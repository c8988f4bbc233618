//! Compares recovered records with the contents of PGs (ADR 0011): the tables that OSDs show come in, what a recovery must
//! still do comes out. The command line and the simulator share it.

use crate::admin::{FoundAttach, FoundLength, FoundSegment, FoundSnapshot};
use crate::{PgRecord, Records, SnapshotState, VolumeRecord, VolumeState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use types::control::{AttachedVolume, CHUNKS_KEPT, HeldSnapshot, SEGMENTS_PER_ASK_MAX};
use types::limits::VOLUME_LEN_MAX;
use types::units::CHUNKS_PER_SEGMENT;
use types::{PgId, SegmentIndex, SnapshotId, VolumeChunk, VolumeId};

/// The contents of one PG, as one of its members shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub pg: PgId,
    /// The member leads the PG and has heard a majority of it lately: it has applied all that is committed.
    pub leading: bool,
    /// Chunks that these volumes and their snapshots show: of a clone, also those that its parent holds.
    pub chunks: Vec<VolumeChunk>,
    /// Volumes with an attach record in the PG.
    pub attached: Vec<AttachedVolume>,
    /// Snapshots that the PG has.
    pub snapshots: Vec<HeldSnapshot>,
}

/// A volume of which the PGs know another length than the records: it was resized after the copy of the records was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LongerVolume {
    pub volume: VolumeId,
    /// `pool/volume`.
    pub name: String,
    /// The length in the records.
    pub len_bytes: u64,
    /// The length that a recovery gives it: that of whole chunks, so the last one may be longer than it was.
    pub found_bytes: u64,
    #[serde(skip)]
    pub chunk_count: u32,
    #[serde(skip)]
    pub len_epoch: u32,
}

/// A volume whose chunks PGs hold and that the records do not know. PGs keep neither its name nor its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostVolume {
    pub volume: VolumeId,
    /// Chunks of 16 MiB that hold data.
    pub chunks: usize,
    /// Index of the last one: the volume reached at least into its segment, and behind it if it was not striped.
    pub last_chunk: u32,
    pub pgs: BTreeSet<PgId>,
}

/// A volume of the records that no PG of its segments knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EmptiedVolume {
    pub volume: VolumeId,
    /// `pool/volume`.
    pub name: String,
}

/// Differences between the records and the contents of PGs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub volumes: Vec<LostVolume>,
    /// Columns of segments of known volumes that the records lack; a recovery puts the segments back. A column without data is
    /// not among them.
    pub segments: Vec<FoundSegment>,
    /// Columns of known volumes that two PGs hold, or another PG than the records say, with the other columns of a segment that
    /// the records lack. They are left as they are.
    pub doubtful: Vec<FoundSegment>,
    /// Removed after the copy of the records was made, or never written to: these volumes read as zeros.
    pub emptied_volumes: Vec<EmptiedVolume>,
    /// A recovery gives these the length of their PGs.
    pub longer_volumes: Vec<LongerVolume>,
    /// Snapshots of known volumes that a recovery puts into the records, because each PG has them, or deletes, because one lacks them.
    pub snapshots: Vec<FoundSnapshot>,
    /// PGs of the records of which no leader showed its table.
    pub unread_pgs: Vec<PgId>,
    /// PGs in which a session from before the recovery may still write to a volume that waits for its end.
    #[serde(skip)]
    pub attached: Vec<FoundAttach>,
}

impl Found {
    /// Returns the lengths for the recovery.
    pub fn lengths(&self) -> Vec<FoundLength> {
        let length = |v: &LongerVolume| {
            let LongerVolume { volume, chunk_count, len_epoch, .. } = *v;
            FoundLength { volume, chunk_count, len_epoch }
        };
        self.longer_volumes.iter().map(length).collect()
    }

    /// Compares. `gone`: PGs that all their members say that they do not have.
    pub fn compare(records: &Records, tables: &[Table], gone: &BTreeSet<PgId>) -> Found {
        let mut found = Found::default();
        let mut led: BTreeMap<PgId, BTreeSet<VolumeId>> = BTreeMap::new();
        let mut chunks: BTreeMap<VolumeId, BTreeMap<PgId, BTreeSet<u32>>> = BTreeMap::new();
        let is_led: BTreeSet<PgId> = tables.iter().filter(|table| table.leading).map(|table| table.pg).collect();
        // A follower may not have applied the end of a volume. Without a leader, all that is known are its members.
        for table in tables.iter().filter(|table| table.leading || !is_led.contains(&table.pg)) {
            for key in &table.chunks {
                chunks.entry(key.volume).or_default().entry(table.pg).or_default().insert(key.index);
            }
            if table.leading {
                led.insert(table.pg, table.attached.iter().map(|attached| attached.volume).collect());
                let older = |attached: &&AttachedVolume| {
                    let known = records.volumes.get(&attached.volume);
                    known.is_some_and(|known| known.recovering && attached.epoch < known.epoch)
                };
                let older = table.attached.iter().filter(older);
                found.attached.extend(older.map(|attached| FoundAttach { volume: attached.volume, pg: table.pg }));
            }
        }
        let unread = records.pgs.keys().filter(|pg| !led.contains_key(pg) && !gone.contains(pg));
        found.unread_pgs = unread.copied().collect();
        found.emptied_volumes = emptied(records, &led, &chunks);
        found.longer_volumes = longer(records, tables, &chunks);
        found.snapshots = snapshots(records, tables);
        for (volume, pgs) in chunks {
            match records.volumes.get(&volume) {
                Some(known) => found.sort_segments(records, known, &pgs),
                None => found.volumes.push(LostVolume {
                    volume,
                    chunks: pgs.values().map(BTreeSet::len).sum(),
                    last_chunk: pgs.values().filter_map(BTreeSet::last).copied().max().unwrap_or(0),
                    pgs: pgs.into_keys().collect(),
                }),
            }
        }
        found
    }

    /// Sorts the segments of a known volume into those that the records know, lack, and contradict. The index of a chunk names
    /// its column, because the layout of a volume never changes.
    fn sort_segments(&mut self, records: &Records, volume: &VolumeRecord, pgs: &BTreeMap<PgId, BTreeSet<u32>>) {
        let mut places: BTreeMap<SegmentIndex, BTreeMap<u32, BTreeSet<PgId>>> = BTreeMap::new();
        for (pg, chunks) in pgs {
            for chunk in chunks {
                let columns = places.entry(SegmentIndex(chunk / CHUNKS_PER_SEGMENT)).or_default();
                columns.entry(volume.stripe.column_of(*chunk)).or_default().insert(*pg);
            }
        }
        let volume = volume.id;
        for (segment, columns) in places {
            let known = records.segments.get(&(volume, segment));
            let (mut sure, mut found) = (known.is_none(), Vec::new());
            for (column, mut at) in columns {
                if let Some(pg) = known.and_then(|known| known.pgs().nth(column as usize)) {
                    at.remove(&pg);
                }
                sure &= at.len() == 1;
                found.extend(at.into_iter().map(|pg| FoundSegment { volume, segment, column, pg }));
            }
            let list = if sure { &mut self.segments } else { &mut self.doubtful };
            list.append(&mut found);
        }
    }
}

/// Snapshots that the records of recovering volumes and the PGs do not both have. A PG lacks one that was deleted, or whose cut was given
/// up, where the volume came before it and an order of it has come. One without such an order has missed it, which proves nothing, and
/// neither does a PG that a forced recovery took back in time.
fn snapshots(records: &Records, tables: &[Table]) -> Vec<FoundSnapshot> {
    let mut held: BTreeMap<(VolumeId, SnapshotId), HeldSnapshot> = BTreeMap::new();
    let led = || tables.iter().filter(|table| table.leading);
    for snapshot in led().flat_map(|table| &table.snapshots) {
        held.insert((snapshot.volume, snapshot.snapshot), *snapshot);
    }
    let was_forced = |pg: PgId| records.pgs.get(&pg).is_some_and(PgRecord::was_forced);
    let is_lacking = |key: (VolumeId, SnapshotId)| {
        led().filter(|table| !was_forced(table.pg)).any(|table| {
            let should = |at: &&AttachedVolume| at.volume == key.0 && at.first.0 < key.1.0 && key.1.0 <= at.last.0;
            let has = || table.snapshots.iter().any(|held| (held.volume, held.snapshot) == key);
            table.attached.iter().find(should).is_some() && !has()
        })
    };
    let of_records = records.snapshots.values().filter(|known| known.state == SnapshotState::Ready);
    let mut keys: BTreeSet<(VolumeId, SnapshotId)> = held.keys().copied().collect();
    keys.extend(of_records.map(|known| (known.volume, known.snapshot)));
    keys.retain(|(volume, _)| records.volumes.get(volume).is_some_and(|volume| volume.recovering));
    let found = |key: (VolumeId, SnapshotId)| {
        let (known, ended) = (records.snapshots.get(&key), is_lacking(key));
        let differs =
            if ended { known.is_none_or(|known| known.state == SnapshotState::Ready) } else { known.is_none() };
        let (created_ms, chunk_count) = held.get(&key).map_or((0, 0), |held| (held.created_ms, held.chunk_count));
        differs.then_some(FoundSnapshot { volume: key.0, snapshot: key.1, created_ms, chunk_count, ended })
    };
    keys.into_iter().filter_map(found).collect()
}

/// Cuts found columns, which are in order, into requests. No request has a part of a segment, because the columns that a recovery
/// is not told of get new PGs.
pub fn segment_batches(found: &[FoundSegment]) -> Vec<Vec<FoundSegment>> {
    let segments: Vec<&[FoundSegment]> =
        found.chunk_by(|a, b| (a.volume, a.segment) == (b.volume, b.segment)).collect();
    segments.chunks(SEGMENTS_PER_ASK_MAX).map(<[&[FoundSegment]]>::concat).collect()
}

/// Volumes that the records know and none of their PGs does. An attach record goes into a PG ahead of the first write, and
/// leaves with the volume.
fn emptied(
    records: &Records,
    led: &BTreeMap<PgId, BTreeSet<VolumeId>>,
    chunks: &BTreeMap<VolumeId, BTreeMap<PgId, BTreeSet<u32>>>,
) -> Vec<EmptiedVolume> {
    let mut known: BTreeMap<VolumeId, bool> = BTreeMap::new();
    for ((volume, _), segment) in &records.segments {
        // A PG that could not be read may know the volume.
        let here = segment.pgs().any(|pg| led.get(&pg).is_none_or(|volumes| volumes.contains(volume)));
        *known.entry(*volume).or_default() |= here || chunks.contains_key(volume);
    }
    let gone = known.into_iter().filter(|(_, known)| !known).filter_map(|(volume, _)| records.volumes.get(&volume));
    gone.map(|volume| EmptiedVolume { volume: volume.id, name: records.full_name(volume) }).collect()
}

/// Volumes with a later length in attach records of their PGs than in the records, or with data in a higher chunk. Under the same epoch of the
/// length no volume gets shorter, so what a follower that is behind shows counts, too. Data tells nothing of a volume that was shortened:
/// its snapshots have what is behind its end.
fn longer(
    records: &Records,
    tables: &[Table],
    chunks: &BTreeMap<VolumeId, BTreeMap<PgId, BTreeSet<u32>>>,
) -> Vec<LongerVolume> {
    let mut lengths: BTreeMap<VolumeId, (u32, u32)> = BTreeMap::new();
    let attached =
        tables.iter().flat_map(|table| &table.attached).filter(|attached| attached.chunk_count != CHUNKS_KEPT);
    let in_records = attached.map(|attached| (attached.volume, (attached.len_epoch, attached.chunk_count)));
    let highest = |pgs: &BTreeMap<PgId, BTreeSet<u32>>| {
        pgs.values().filter_map(BTreeSet::last).max().map_or(0, |i| i.saturating_add(1))
    };
    let in_data = chunks.iter().map(|(volume, pgs)| (*volume, (0, highest(pgs))));
    for (volume, length) in in_records.chain(in_data) {
        let latest = lengths.entry(volume).or_default();
        *latest = length.max(*latest);
    }
    let mut longer = Vec::new();
    for (volume, (len_epoch, chunk_count)) in lengths {
        let known = records.volumes.get(&volume).filter(|known| known.state != VolumeState::Deleting);
        let Some(known) = known.filter(|known| is_later((len_epoch, chunk_count), known)) else { continue };
        // No volume has that many: an OSD errs.
        if u64::from(chunk_count) > known.stripe.chunk_count(VOLUME_LEN_MAX) {
            continue;
        }
        let found_bytes = known.len_of_chunks(chunk_count);
        let (name, len_bytes) = (records.full_name(known), known.len_bytes);
        longer.push(LongerVolume { volume, name, len_bytes, found_bytes, chunk_count, len_epoch });
    }
    longer
}

/// No volume was shortened so often: an OSD errs.
pub(crate) const LEN_EPOCH_MAX: u32 = 1 << 31;

/// Whether a length that PGs know is later than that of the records.
pub(crate) fn is_later((len_epoch, chunk_count): (u32, u32), known: &VolumeRecord) -> bool {
    len_epoch > known.len_epoch && len_epoch < LEN_EPOCH_MAX
        || len_epoch == known.len_epoch && chunk_count > known.chunk_count()
}
