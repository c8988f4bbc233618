//! Recovery of records that went back in time (R17), and the backup of records.

use super::past::Standing;
use super::{Control, Now};
use crate::admin::{
    FoundAttach, FoundLength, FoundSegment, FoundSnapshot, RecoverAsk, RecoveryOsd, RecoveryReplica, StoreRecovery,
};
use crate::batch::PLAN_WRITES_MAX;
use crate::events::Note;
use crate::found::is_later;
use crate::plan;
use crate::records::{
    CountersRecord, Held, OsdRecord, PgRecord, Record, Resize, SegmentRecord, Shrink, SnapshotRecord, SnapshotState,
    StoredItem, Trash, VolumeRecord, VolumeState, Write,
};
use crate::refusal::refuse;
use placement::PgChoice;
use std::collections::BTreeMap;
use types::codes;
use types::control::{OsdHello, Refusal, SEGMENTS_PER_ASK_MAX, Watermarks};
use types::planted::{Bug, on};
use types::{CutId, Epoch, GenerationId, OsdId, PgId, ReplicaId, SEGMENT, SegmentIndex, VolumeId};

/// Distance by which a recovery moves 64-bit watermarks above what OSDs remember: an OSD that is away may remember more.
const LEAP: u64 = 1 << 20;
/// The same for pools, whose ids are part of the names of PGs.
const POOL_LEAP: u32 = 1 << 10;
/// Volumes whose holds one step ends, or that one step gives back.
const VOLUMES_PER_STEP: usize = 30;
/// The reason why the records are behind, in the middle of a recovery.
const UNDER_WAY: &str = "a recovery of the records is under way";
/// Most OSDs that one recovery registers again.
const STRANGERS_PER_STEP: usize = 40;
/// Most replicas that a report lists.
const REPLICAS_SHOWN: usize = 1024;

/// Most lengths of one request.
const LENGTHS_MAX: usize = 1 << 16;

/// Returns the record of a snapshot that PGs have. A length within the last chunk is lost.
fn recovered(volume: &VolumeRecord, found: &FoundSnapshot, state: SnapshotState) -> SnapshotRecord {
    let is_present = found.chunk_count == volume.chunk_count();
    let len_bytes = if is_present { volume.len_bytes } else { volume.len_of_chunks(found.chunk_count) };
    SnapshotRecord {
        volume: found.volume,
        snapshot: found.snapshot,
        name: format!("recovered-{}", found.snapshot.0),
        len_bytes,
        created_ms: found.created_ms,
        state,
        cut: CutId(found.snapshot.0),
        protected: false,
        by: "a recovery of the metadata".to_owned(),
        description: String::new(),
        labels: BTreeMap::new(),
    }
}

/// Columns with their PGs, by segment.
type Segments = BTreeMap<(VolumeId, SegmentIndex), Vec<(u32, PgId)>>;

fn columns_of_segments(found: &[FoundSegment]) -> Segments {
    let mut segments = Segments::new();
    for FoundSegment { volume, segment, column, pg } in found.iter().copied() {
        segments.entry((volume, segment)).or_default().push((column, pg));
    }
    segments
}

/// Returns the record of a volume whose PGs know another length: it is as long as they know. The bytes behind an end within
/// the last chunk are zeros. A shrink that the records do not know is ordered again, because not all PGs may have it.
fn lengthened(now: Now, volume: VolumeRecord, lengths: &[FoundLength]) -> VolumeRecord {
    let its = lengths.iter().filter(|found| found.volume == volume.id);
    let found = its.map(|found| (found.len_epoch, found.chunk_count)).max();
    match found.filter(|found| is_later(*found, &volume)) {
        Some((len_epoch, count)) if len_epoch > volume.len_epoch => {
            // An end within the last chunk is lost: nothing is wiped behind one that is only guessed.
            let len_bytes = volume.len_of_chunks(count);
            let shrink = Some(Shrink { discard: true, force: true, ordered: true });
            let resize = Some(Resize { len_bytes, since_ms: now.wall_ms, by: String::new(), shrink });
            VolumeRecord { len_bytes, len_epoch: len_epoch.saturating_add(1), resize, ..volume }
        }
        Some((_, count)) => {
            let len_bytes = volume.len_of_chunks(count).max(volume.len_bytes);
            let resize = volume.resize.clone().filter(|resize| resize.len_bytes > len_bytes && resize.shrink.is_none());
            VolumeRecord { len_bytes, resize, ..volume }
        }
        // It may have been taken back since, and no PG knows of it.
        None if volume.shrink().is_some_and(|shrink| !shrink.ordered) => plan::shrink_end(&volume),
        None => volume,
    }
}

impl Control {
    /// Shows what the records lack. Unless `dry_run` is set, it takes the next step of a recovery. First all holds end in the
    /// records, then every watermark moves above all that OSDs know, and changes are taken again. The memory of the OSDs in
    /// `without` no longer counts: they are lost, or were restored. The leap covers what only they remembered. The steps that
    /// follow fence the sessions of the ended holds, put segments back, and finish.
    ///
    /// # Errors
    /// BSLT-2024 for an unknown OSD in `without`. BSLT-2027 for too many lengths. BSLT-2031 when the standing is no longer the one that the administrator was
    /// shown, and before a majority of the OSDs that count said Hello. The errors of [`Control::put_segments_back`].
    pub(super) fn recover(&mut self, now: Now, ask: &RecoverAsk) -> Result<StoreRecovery, Refusal> {
        let RecoverAsk { dry_run, without, standing, .. } = ask;
        if let Some(osd) = without.iter().find(|osd| !self.records.osds.contains_key(osd)) {
            return Err(refuse(codes::OSD_UNKNOWN, format!("{osd} is not registered")));
        }
        if ask.lengths.len() > LENGTHS_MAX {
            return Err(refuse(codes::TOO_MANY, format!("{} lengths in one request", ask.lengths.len())));
        }
        let behind = self.standing() == Standing::Behind;
        let moves = behind || !without.is_empty();
        let after = self.above_all();
        let mut report = self.recovery_report(&after, moves);
        let repairs = ask.repairs() || !moves && !ask.lengths.is_empty();
        if *dry_run || !moves && !repairs {
            return Ok(report);
        }
        if *standing != report.standing {
            let text =
                format!("the records are {} by now, and you were shown that they are {standing}", report.standing);
            return Err(refuse(codes::NO_MAJORITY, text));
        }
        if repairs {
            self.repair_volumes(now, ask)?;
            report.recovering = self.recovering();
            return Ok(report);
        }
        self.heard_without(without)?;
        if self.end_holds(now, &ask.lengths) {
            return Ok(report);
        }
        if behind {
            self.hold_unproven();
        }
        let strangers: Vec<OsdHello> = self.past.strangers.values().take(STRANGERS_PER_STEP).cloned().collect();
        let mut writes = Vec::new();
        for hello in strangers {
            self.past.strangers.remove(&hello.osd);
            // The records gave the id to another device, which keeps it.
            if self.records.osds.contains_key(&hello.osd) {
                continue;
            }
            self.past.heard.insert(hello.osd, hello.seen);
            self.osds.entry(hello.osd).or_default();
            writes.push(Write::Put(Record::Osd(registered_again(hello, now.wall_ms))));
        }
        let room = PLAN_WRITES_MAX - 2 - writes.len();
        let mut removed = without.iter().filter_map(|osd| self.records.osds.get(osd)).filter(|osd| osd.elector);
        let remove = |osd: &OsdRecord| Write::Put(Record::Osd(OsdRecord { elector: false, ..osd.clone() }));
        writes.extend(removed.by_ref().take(room).map(remove));
        let rest = !self.past.strangers.is_empty() || removed.next().is_some();
        if rest {
            self.fall_behind(UNDER_WAY.to_owned());
        }
        writes.push(Write::Put(Record::Counters(CountersRecord { restored: rest, ..after })));
        self.write(writes);
        self.note_electorate();
        let text = format!(
            "the watermarks were moved by a recovery; {} volumes wait for its end; {} OSDs no longer count",
            self.recovering(),
            without.len()
        );
        self.note(now, Note::warning("meta.recovered", "meta", text));
        report.moved = true;
        if !rest {
            self.trust(now.mono);
        }
        Ok(report)
    }

    /// Ends the holds on some volumes in the records; returns whether it did. A client may have allocated segments since the copy
    /// was made, and may go on to write them: so no session from before a recovery stays. The records must not be changed
    /// otherwise meanwhile: the mark of a restored copy stays in them. A volume that is longer in its PGs gets that length here, before
    /// any attach record of the shorter one. One in the trash may have been restored since, so it has its whole time again.
    fn end_holds(&mut self, now: Now, lengths: &[FoundLength]) -> bool {
        if self.standing() == Standing::Sound {
            return false;
        }
        // An epoch never exceeds the revision of the records that gave it out. A copy may have been made in the middle of another
        // recovery, so the mark alone does not tell that the hold has ended.
        let epoch = Epoch(self.highest().revision.max(self.records.counters.revision).saturating_add(LEAP));
        let open = self.records.volumes.values();
        let open = open.filter(|v| v.state != VolumeState::Deleting && !(v.recovering && v.epoch >= epoch));
        let open: Vec<VolumeRecord> = open.take(VOLUMES_PER_STEP).cloned().collect();
        if open.is_empty() {
            return false;
        }
        self.fall_behind(UNDER_WAY.to_owned());
        let counters = CountersRecord { restored: true, ..self.records.counters.clone() };
        self.record(vec![Write::Put(Record::Counters(counters))]);
        for (head, volume) in (self.head_above_all()..).zip(open) {
            let id = volume.id;
            let holders: Vec<String> = volume.holders().map(|(_, holder)| holder.name.clone()).collect();
            let epoch = volume.epoch.max(epoch);
            let settled = self.records.is_in_no_pg(&volume);
            let trash = volume.trash.clone().map(|trash| self.kept_anew(now, trash));
            let volume = lengthened(now, VolumeRecord { trash, ..volume }, lengths);
            // A cut since the copy was made has named higher numbers than the record: a PG that gets the volume now has none of its
            // snapshots.
            let newest = if on(Bug::HeadFromRecords) { volume.newest } else { GenerationId(head) };
            let none = Held::by_none(volume.is_multi_writer());
            let ended = VolumeRecord { recovering: true, newest, ..volume.with_writers(none, epoch, settled) };
            let name = self.records.full_name(&ended);
            if !holders.is_empty() {
                let of = holders.join(", ");
                let text = format!("a recovery of the metadata ended the session of {of} on volume {name}");
                self.note_volume(now, id, Note::warning("volume.detached", format!("volume {name}"), text));
            }
            self.record(vec![Write::Put(Record::Volume(ended))]);
            self.forget_leases(id);
            self.attach_everywhere(id);
        }
        true
    }

    /// Returns a number above all that orders have named, for the head of a volume. A recovery moves the counter above it.
    fn head_above_all(&self) -> u64 {
        let newest = self.records.volumes.values().map(|v| v.newest.0.saturating_add(1)).max().unwrap_or(0);
        let all = self.highest().next_volume.max(self.records.counters.next_volume);
        newest.max(all.saturating_add(LEAP))
    }

    fn kept_anew(&self, now: Now, trash: Trash) -> Trash {
        // A client may have had the volume back, and the setting may be that of another time.
        let keep = self.records.config.trash_retention(&self.config).max(self.config.trash_retention);
        let until_ms = now.wall_ms.saturating_add(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        Trash { until_ms: until_ms.max(trash.until_ms), ..trash }
    }

    fn recovering(&self) -> u64 {
        self.records.volumes.values().filter(|v| v.recovering).count() as u64
    }

    /// Fences ended sessions in PGs that the records do not name for the volume, puts segments back, or finishes.
    ///
    /// # Errors
    /// BSLT-2030 and BSLT-2031 before the watermarks were moved; those of [`Control::put_segments_back`].
    fn repair_volumes(&mut self, now: Now, ask: &RecoverAsk) -> Result<(), Refusal> {
        if self.standing() != Standing::Sound {
            return Err(self.not_sound());
        }
        let segments = columns_of_segments(&ask.segments);
        let most = segments.len().max(ask.attached.len()).max(ask.snapshots.len());
        if most > SEGMENTS_PER_ASK_MAX {
            return Err(refuse(codes::TOO_MANY, format!("{most} segments or snapshots in one request")));
        }
        for FoundAttach { volume, pg } in ask.attached.iter().copied() {
            let is_its = self.records.volumes.get(&volume).is_some_and(|v| v.recovering && v.pool == pg.pool);
            if is_its && self.records.pgs.contains_key(&pg) {
                self.attaching.ensure(volume, pg);
            }
        }
        if self.lengthen(now, &ask.lengths) {
            return Ok(());
        }
        self.put_segments_back(segments)?;
        self.put_snapshots_back(&ask.snapshots);
        if ask.finish {
            // An open waits for the attach records by itself: a PG that is gone must not keep other volumes here.
            let recovering = self.records.volumes.values().filter(|v| v.recovering);
            let whole: Vec<VolumeRecord> = recovering.take(VOLUMES_PER_STEP).cloned().collect();
            let some = !whole.is_empty();
            for volume in whole {
                // The attach records of the recovery name no number of chunks.
                let settled = self.records.is_in_no_pg(&volume) && plan::wiped_end(&volume).is_none();
                let id = volume.id;
                // A copy from the middle of a flatten that was stopped since, and after which a snapshot was made.
                let has_snapshots = self.records.snapshots_of(id).any(|s| s.state != SnapshotState::Deleting);
                let flatten = volume.flatten.clone().filter(|_| !has_snapshots);
                let mut given_back = VolumeRecord { recovering: false, settled, flatten, ..volume };
                if settled {
                    given_back.let_out_in_each_pg();
                }
                self.write(vec![Write::Put(Record::Volume(given_back))]);
                self.attach_everywhere(id);
            }
            if some && self.recovering() == 0 {
                let text = "all volumes can be opened again: the recovery of the metadata is finished";
                self.note(now, Note::info("meta.recovered", "meta", text.to_owned()));
            }
        }
        Ok(())
    }

    /// Lengthens some volumes of the recovery; returns whether it did. Then the request does nothing else, and is repeated.
    fn lengthen(&mut self, now: Now, lengths: &[FoundLength]) -> bool {
        let of = |found: &FoundLength| self.records.volumes.get(&found.volume).filter(|v| v.recovering).cloned();
        let longer = |before: VolumeRecord| (before.clone(), lengthened(now, before, lengths));
        let all = lengths.iter().filter_map(of).map(longer).filter(|(before, after)| before != after);
        let some: Vec<_> = all.take(VOLUMES_PER_STEP).collect();
        let changes = !some.is_empty();
        for (before, after) in some {
            let id = after.id;
            self.write(vec![Write::Put(Record::Volume(after))]);
            self.note_resized(now, id, before.len_bytes, String::new());
        }
        changes
    }

    /// Puts back snapshots whose records are lost, and deletes those that a PG has deleted. Their names are lost.
    fn put_snapshots_back(&mut self, found: &[FoundSnapshot]) {
        for found in found {
            let key = (found.volume, found.snapshot);
            let Some(volume) = self.records.volumes.get(&found.volume).filter(|v| v.recovering) else { continue };
            let state = if found.ended { SnapshotState::Deleting } else { SnapshotState::Ready };
            let record = match self.records.snapshots.get(&key) {
                Some(known) if known.state != SnapshotState::Ready || !found.ended => continue,
                Some(known) => SnapshotRecord { state, ..known.clone() },
                None => recovered(volume, found, state),
            };
            self.write(vec![Write::Put(Record::Snapshot(record))]);
            if found.ended {
                self.begin_removal(key.0, key.1);
            }
        }
    }

    /// Puts back segments of known volumes whose records are lost. Without it their data would read as zeros, and the next write
    /// would put the segment into another PG. The attach record of the volume as the records know it goes into each PG before use
    /// (R6). A column of a striped segment that no PG has data of gets a PG as a new one does.
    ///
    /// # Errors
    /// BSLT-2011, BSLT-2019, BSLT-2022.
    fn put_segments_back(&mut self, segments: Segments) -> Result<(), Refusal> {
        let mut writes = Vec::new();
        let mut choices: BTreeMap<VolumeId, Vec<PgChoice>> = BTreeMap::new();
        for ((volume, index), found) in segments {
            let Some(known) = self.records.volumes.get(&volume) else {
                return Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} is not in the records")));
            };
            // A volume that is in use again, or goes, makes its own segments.
            if !known.recovering {
                continue;
            }
            let mut columns = vec![None; known.stripe.count() as usize];
            for (column, pg) in found {
                let inside = u64::from(index.0) < known.len_bytes.div_ceil(SEGMENT) && column < known.stripe.count();
                if !inside || known.pool != pg.pool || !self.records.pgs.contains_key(&pg) {
                    let text = format!("column {column} of {index} of {volume} cannot lie in PG {pg}");
                    return Err(refuse(codes::OUT_OF_RANGE, text));
                }
                if columns[column as usize].replace(pg).is_some_and(|other| other != pg) {
                    let text = format!("column {column} of {index} of {volume} cannot lie in two PGs");
                    return Err(refuse(codes::OUT_OF_RANGE, text));
                }
            }
            if self.records.segments.contains_key(&(volume, index)) {
                continue;
            }
            let hint = |pg: &PgRecord| self.pg_hint(pg);
            let choices = choices.entry(volume).or_insert_with(|| plan::choices(&self.records, known, &hint));
            let pgs = plan::choose(choices, known, &columns)?;
            pgs.iter().for_each(|pg| self.attaching.begin(volume, *pg));
            writes.push(Write::Put(Record::Segment(SegmentRecord::new(volume, index, &pgs, true))));
        }
        self.write(writes);
        Ok(())
    }

    fn highest(&self) -> Watermarks {
        let seen = self.past.heard.values().chain(self.past.strangers.values().map(|h| &h.seen));
        seen.fold(Watermarks::default(), |all, seen| all.max(*seen))
    }

    /// Returns counters above everything that is known.
    fn above_all(&self) -> CountersRecord {
        let old = &self.records.counters;
        let all = self.highest().max(old.watermarks());
        let strangers = self.past.strangers.keys().map(|osd| osd.0.saturating_add(1)).max().unwrap_or(0);
        let (pools, replicas) = self.unknown_replicas().fold((0, 0), |(pools, replicas), r| {
            (pools.max(r.pg.pool.0.saturating_add(1)), replicas.max(r.replica.0.saturating_add(1)))
        });
        let epoch = self.records.volumes.values().map(|v| v.epoch).max().unwrap_or_default().max(old.epoch_floor);
        let next_replica = all.next_replica.max(replicas).saturating_add(LEAP);
        let (behind, revision) = (self.standing() == Standing::Behind, all.revision.saturating_add(LEAP));
        let mut lost_replicas = old.lost_replicas.clone();
        lost_replicas.push((old.next_replica, next_replica));
        if on(Bug::RecoveryKeepsWatermarks) {
            return CountersRecord { revision, restored: false, ..old.clone() };
        }
        CountersRecord {
            next_osd: all.next_osd.max(strangers),
            next_pool: all.next_pool.max(pools).saturating_add(POOL_LEAP),
            next_replica,
            next_volume: self.head_above_all(),
            next_session: all.next_session.saturating_add(LEAP),
            map_epoch: Epoch(all.map_epoch.saturating_add(LEAP)),
            revision,
            restored: false,
            recovered_at: if behind { revision } else { old.recovered_at },
            proof: if behind { self.proof() } else { old.proof },
            // An epoch never exceeds the revision (each open raises both), and OSDs remember the revision. So a second
            // recovery from the same copy gives higher epochs than the first one.
            epoch_floor: epoch.max(Epoch(revision)),
            lost_replicas,
        }
    }

    fn unknown_replicas(&self) -> impl Iterator<Item = RecoveryReplica> {
        let live = self.osds.iter().map(|(osd, live)| (*osd, &live.replicas));
        let strangers = self.past.strangers.values().map(|hello| (hello.osd, &hello.replicas));
        let all = live.chain(strangers).flat_map(|(osd, held)| held.iter().map(move |(pg, r)| (osd, *pg, *r)));
        all.filter(|(osd, pg, replica)| !self.is_member(*osd, *pg, *replica))
            .map(|(osd, pg, replica)| RecoveryReplica { osd, pg, replica })
    }

    fn is_member(&self, osd: OsdId, pg: PgId, replica: ReplicaId) -> bool {
        let record = self.records.pgs.get(&pg);
        record.is_some_and(|record| record.everyone().any(|m| (m.osd, m.replica) == (osd, replica)))
    }

    fn recovery_report(&self, after: &CountersRecord, moves: bool) -> StoreRecovery {
        let mut osds: BTreeMap<OsdId, RecoveryOsd> = BTreeMap::new();
        for osd in self.records.osds.keys() {
            let seen = self.past.heard.get(osd);
            let remembers = seen.copied().unwrap_or_default();
            osds.insert(*osd, RecoveryOsd { osd: *osd, known: true, heard: seen.is_some(), remembers });
        }
        for (osd, hello) in &self.past.strangers {
            let stranger = RecoveryOsd { osd: *osd, known: false, heard: true, remembers: hello.seen };
            osds.entry(*osd).or_insert(stranger);
        }
        let records = self.records.counters.watermarks();
        StoreRecovery {
            cluster: self.records.cluster_id(),
            standing: match self.standing() {
                Standing::Waiting => "waiting",
                Standing::Sound => "sound",
                Standing::Behind => "behind",
            }
            .to_string(),
            reasons: self.behind_reasons().to_vec(),
            moved: false,
            records,
            highest: self.highest(),
            after: if moves { after.watermarks() } else { records },
            osds: osds.into_values().collect(),
            replicas: self.unknown_replicas().take(REPLICAS_SHOWN).collect(),
            held: self.records.volumes.values().filter(|v| v.is_held()).count() as u64,
            recovering: self.recovering(),
        }
    }

    /// Returns all records as the store holds them.
    pub(super) fn backup(&self) -> Vec<StoredItem> {
        self.records.items()
    }
}

/// Returns a new record of an OSD that the records knew before they went back in time. It is in, as after a format: the
/// administrator's settings for it are lost.
fn registered_again(hello: OsdHello, wall_ms: u64) -> OsdRecord {
    // An OSD that keeps its registered place does not report it: its address names the host.
    let host = hello.host.unwrap_or_else(|| hello.addr.ip().to_string());
    let [rack, zone] = [hello.rack, hello.zone].map(|name| name.unwrap_or_else(|| "default".to_owned()));
    OsdRecord::new(hello.osd, hello.uuid, [host, rack, zone], hello.capacity_bytes, wall_ms)
}
