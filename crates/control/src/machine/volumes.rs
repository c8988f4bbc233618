//! Commands about volumes and the trash, and the work that follows from them.

use super::clients::WaitFor;
use super::{Control, Now, Standing, Token};
use crate::admin::{
    AdminAnswer, PoolSet, Resizing, TrashView, VolumeClone, VolumeRemove, VolumeText, VolumeView, WriterName,
};
use crate::events::{Note, size};
use crate::plan::{self, InUse};
use crate::records::{Record, Trash, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use crate::settings::time_words;
use types::codes;
use types::control::Refusal;
use types::planted::{Bug, on};
use types::{PgId, SEGMENT, Stripe, Time, VolumeId};

/// PGs that a refusal names.
const PGS_NAMED: usize = 8;

/// The answer to a command; `None` when it waits.
type Planned = Result<Option<AdminAnswer>, Refusal>;

impl Control {
    pub(super) fn create_volume(
        &mut self,
        now: Now,
        name: &str,
        layout: (u64, Stripe),
        text: &VolumeText,
    ) -> Result<AdminAnswer, Refusal> {
        let (writes, id) = plan::volume_create(&self.records, name, layout, text, now.wall_ms)?;
        self.write(writes);
        let text = format!("volume {name} is created: {}", size(layout.0));
        self.note(now, Note::info("volume.created", format!("volume {name}"), text));
        Ok(self.volume_answer(now.mono, id))
    }

    /// Begins a clone of a snapshot; the answer waits until it can be opened.
    pub(super) fn clone_volume(&mut self, now: Now, token: Token, ask: &VolumeClone) -> Result<(), Refusal> {
        let (of, name) = (ask.snapshot.as_str(), ask.name.as_str());
        let (writes, id) = plan::volume_clone(&self.records, of, name, &ask.text, now.wall_ms)?;
        self.write(writes);
        if self.volume_of(id).cloning {
            self.unsettled.insert(id);
        }
        let text = format!("volume {name} is created as a clone of {of}: {}", size(self.volume_of(id).len_bytes));
        self.note(now, Note::info("volume.created", format!("volume {name}"), text));
        self.wait(token, WaitFor::Cloned { volume: id, until: now.mono + self.config.resize_patience });
        Ok(())
    }

    /// Returns the answer to the creation of a clone; `None` while it waits.
    pub(super) fn cloned(&self, now: Time, volume: VolumeId, until: Time) -> Option<Result<AdminAnswer, Refusal>> {
        let Some(known) = self.records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready) else {
            return Some(Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile"))));
        };
        if !known.cloning {
            return Some(Ok(self.volume_answer(now, volume)));
        }
        let text =
            format!("the clone {:?} is still being made: {}", self.records.full_name(known), self.late_pgs(volume));
        (now >= until).then(|| Err(refuse(codes::VOLUME_BUSY, text)))
    }

    pub(super) fn volume_answer(&self, now: Time, id: VolumeId) -> AdminAnswer {
        AdminAnswer::Volume(self.volume_view(now, self.volume_of(id)))
    }

    fn volume_of(&self, id: VolumeId) -> &VolumeRecord {
        self.records.volumes.get(&id).expect("a plan names a volume that exists")
    }

    /// Moves a volume to the trash, or begins its deletion when it is to go at once or the trash is not used.
    pub(super) fn remove_volume(&mut self, now: Now, token: Token, ask: &VolumeRemove) -> Planned {
        let name = ask.name.as_str();
        let lease = self.records.volume(name).ok().and_then(|v| self.lease_left(now.mono, v.id));
        let in_use =
            InUse { force: ask.force, snapshots: ask.snapshots, detach: ask.detach, lease, wall_ms: now.wall_ms };
        let keep = self.records.config.trash_retention(&self.config);
        let deletes = ask.now || keep.is_zero();
        let (writes, id) = match deletes {
            true => plan::volume_remove(&self.records, name, &in_use)?,
            false => plan::volume_trash(&self.records, name, &in_use, keep, &self.asker)?,
        };
        if !writes.is_empty() {
            self.write(writes);
            let (kind, text) = match deletes {
                true => ("volume.removed", format!("volume {name} is removed")),
                false => {
                    let keep = time_words(keep);
                    ("volume.trashed", format!("volume {name} ({id}) is in the trash for {keep}"))
                }
            };
            self.note(now, Note::info(kind, format!("volume {name}"), text));
            self.forget_leases(id);
            if !self.volume_of(id).settled {
                self.attach_everywhere(id);
            }
        }
        let volume = self.volume_of(id);
        let what = match volume.state {
            VolumeState::Trashed => WaitFor::Trashed { volume: id, epoch: volume.epoch },
            VolumeState::Ready | VolumeState::Deleting => WaitFor::VolumeGone { volume: id },
        };
        self.wait(token, what);
        Ok(None)
    }

    pub(super) fn rename_volume(&mut self, now: Now, name: &str, new: &str) -> Result<AdminAnswer, Refusal> {
        let (writes, id) = plan::volume_rename(&self.records, name, new)?;
        if !writes.is_empty() {
            self.write(writes);
            let now_called = self.records.full_name(self.volume_of(id));
            let text = format!("volume {name} is now {now_called}");
            self.note(now, Note::info("volume.renamed", format!("volume {now_called}"), text));
        }
        Ok(self.volume_answer(now.mono, id))
    }

    pub(super) fn set_volume(&mut self, now: Now, name: &str, text: &VolumeText) -> Result<AdminAnswer, Refusal> {
        let lease = self.records.volume(name).ok().and_then(|v| self.lease_left(now.mono, v.id));
        let in_use = InUse { lease, wall_ms: now.wall_ms, ..InUse::default() };
        let (writes, id) = plan::volume_set(&self.records, name, text, &in_use)?;
        if !writes.is_empty() {
            let before = self.volume_of(id).clone();
            self.write(writes);
            if self.volume_of(id).epoch != before.epoch {
                self.forget_leases(id);
                self.attach_everywhere(id);
            }
            let after = self.volume_of(id);
            let words = [plan::label_changes(&before, after), plan::limit_changes(&before, after)];
            let words =
                words.iter().filter(|words| !words.is_empty()).map(String::as_str).collect::<Vec<_>>().join(", ");
            let note = Note::info("volume.changed", format!("volume {name}"), format!("volume {name}: {words}"));
            self.note_volume(now, id, note);
        }
        Ok(self.volume_answer(now.mono, id))
    }

    /// Fences writers of a volume. The answer waits until none of their requests can take effect any more.
    pub(super) fn fence_writers(&mut self, now: Now, token: Token, name: &str, which: &WriterName) -> Planned {
        let (writes, (volume, fenced)) = plan::volume_fence(&self.records, name, which)?;
        if !writes.is_empty() {
            self.write(writes);
            let of = fenced.iter().map(|of| of.holder.to_string()).collect::<Vec<_>>().join(", ");
            let text = format!("{of} lost volume {name}: fenced by command");
            self.note_volume(now, volume, Note::warning("volume.fenced", format!("volume {name}"), text));
            self.forget_leases(volume);
            self.attach_everywhere(volume);
        }
        self.wait(token, WaitFor::Fenced { volume, until: now.mono + self.config.resize_patience });
        Ok(None)
    }

    /// Returns the answer to a fence; `None` while it waits.
    pub(super) fn fenced(&self, now: Time, volume: VolumeId, until: Time) -> Option<Result<AdminAnswer, Refusal>> {
        let Some(known) = self.records.volumes.get(&volume) else {
            return Some(Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile"))));
        };
        if known.refuses_others() || on(Bug::FenceAnsweredEarly) {
            return Some(Ok(self.volume_answer(now, volume)));
        }
        let late = self.late_pgs(volume);
        let text = format!(
            "the writers of volume {:?} are not fenced in all its PGs yet: {late}",
            self.records.full_name(known)
        );
        (now >= until).then(|| Err(refuse(codes::VOLUME_BUSY, text)))
    }

    pub(super) fn rename_pool(&mut self, now: Now, name: &str, new: &str) -> Result<AdminAnswer, Refusal> {
        let (writes, id) = plan::pool_rename(&self.records, name, new)?;
        if !writes.is_empty() {
            self.write(writes);
            let text = format!("pool {name} is now {new}");
            self.note(now, Note::info("pool.renamed", format!("pool {new}"), text));
        }
        Ok(AdminAnswer::Pool(self.pool_view(now.mono, &self.records.pools[&id])))
    }

    pub(super) fn set_pool(&mut self, now: Now, ask: &PoolSet) -> Result<AdminAnswer, Refusal> {
        let up = |osd| self.is_up(now.mono, osd);
        let (writes, id) = plan::pool_set(&self.records, ask, &up)?;
        let before = self.records.pools.get(&id).expect("a plan names a pool that exists").clone();
        self.write(writes);
        let pool = &self.records.pools[&id];
        let mut words = Vec::new();
        if pool.limits != before.limits {
            words.push(format!("{} for volumes without limits of their own", plan::limit_words(&pool.limits)));
        }
        if pool.quota != before.quota {
            words.push(plan::quota_words(&pool.quota));
        }
        if pool.device_class != before.device_class {
            words.push(match &pool.device_class {
                Some(class) => format!("on OSDs of device class {class}"),
                None => "on OSDs of any device class".to_owned(),
            });
            self.moves_at = Time::ZERO;
        }
        if pool.backup_compression != before.backup_compression {
            words.push(format!("compression {} for backups", pool.backup_compression));
        }
        let view = self.pool_view(now.mono, pool);
        if !words.is_empty() {
            let text = format!("pool {}: {}", ask.name, words.join(", "));
            self.note(now, Note::info("pool.changed", format!("pool {}", ask.name), text));
        }
        Ok(AdminAnswer::Pool(view))
    }

    /// Begins to give a volume another length; the answer waits until the length is valid.
    pub(super) fn resize_volume(&mut self, now: Now, token: Token, name: &str, to: &Resizing) -> Planned {
        let (writes, id) = plan::volume_resize(&self.records, name, to, now.wall_ms, &self.asker)?;
        if !writes.is_empty() {
            let before = self.volume_of(id).clone();
            self.write(writes);
            let volume = self.volume_of(id).clone();
            match (before.shrink(), volume.shrink()) {
                (None, None) if volume.settled && volume.len_bytes != before.len_bytes => {
                    let by = self.asker.clone();
                    self.note_resized(now, id, before.len_bytes, by);
                }
                (None, None) => self.attach_everywhere(id),
                (before, after) => self.note_shrink(now, &volume, before.is_none(), after.is_some()),
            }
        }
        let (len_bytes, shrinks) = (to.len_bytes, to.shrink);
        let until = now.mono + self.config.resize_patience;
        self.wait(token, WaitFor::Resized { volume: id, len_bytes, shrinks, until });
        Ok(None)
    }

    /// Records the event of a shrink that an administrator begins or takes back, and has its holder told.
    fn note_shrink(&mut self, now: Now, volume: &VolumeRecord, began: bool, goes_on: bool) {
        let (name, has, to) = (self.records.full_name(volume), size(volume.len_bytes), size(volume.usable().1));
        self.tell_length(volume.id);
        self.shrinks.begin(volume.id);
        let (kind, text) = match (began, goes_on) {
            (true, _) => ("volume.shrink_began", format!("volume {name} is to have {to} (has {has})")),
            (false, false) => ("volume.shrink_cancelled", format!("volume {name} keeps {has}")),
            // It joins.
            (false, true) => return,
        };
        self.note(now, Note::info(kind, format!("volume {name}"), text));
    }

    /// Has the holder of a volume told of its length, as this turn's transaction has it, when a majority remembers that (R17).
    pub(super) fn tell_length(&mut self, id: VolumeId) {
        self.lengthened.insert(id, self.records.counters.revision.saturating_add(1));
    }

    /// Records the event of a length that is valid with this turn's transaction.
    pub(super) fn note_resized(&mut self, now: Now, id: VolumeId, before: u64, by: String) {
        self.tell_length(id);
        let volume = self.volume_of(id);
        let (name, len_bytes) = (self.records.full_name(volume), volume.len_bytes);
        let text = format!("volume {name} has {} (had {})", size(len_bytes), size(before));
        self.note(now, Note { by, ..Note::info("volume.resized", format!("volume {name}"), text) });
    }

    /// Notes that each PG of the volume has committed its attach record. A resize and a rollback end with it.
    pub(super) fn settle_volume(&mut self, now: Now, volume: &VolumeRecord) {
        let settled = plan::settle(volume);
        let resized = settled.len_bytes != volume.len_bytes;
        self.write(vec![Write::Put(Record::Volume(settled))]);
        if resized {
            let by = volume.resize.as_ref().map_or_else(String::new, |resize| resize.by.clone());
            self.note_resized(now, volume.id, volume.len_bytes, by);
        }
        // In a recovery more of its PGs may be found.
        if let Some(rollback) = volume.rollback.as_ref().filter(|_| !volume.recovering) {
            let snapshot = self.records.snapshots.get(&(volume.id, rollback.snapshot));
            let name = snapshot.map_or_else(|| rollback.snapshot.to_string(), |s| self.snapshot_view(s).name);
            self.note_rolled_back(now, volume.id, &name, rollback.by.clone());
        }
    }

    /// Returns the length that the holder of a volume may work with, and its epoch; 0 while a majority of the electors does not remember
    /// it. A store that went back in time could have another one.
    pub(super) fn length_told(&self, volume: VolumeId) -> (u32, u64) {
        let since = self.lengthened.get(&volume).copied().unwrap_or(self.lengths_from);
        let stands = self.standing() == Standing::Sound && self.agreed() >= since;
        self.records.volumes.get(&volume).filter(|_| stands).map_or((0, 0), VolumeRecord::usable)
    }

    /// Returns the answer to a resize; `None` while it waits.
    pub(super) fn resized(
        &self,
        now: Time,
        volume: VolumeId,
        (len_bytes, shrinks): (u64, bool),
        until: Time,
    ) -> Option<Result<AdminAnswer, Refusal>> {
        let Some(known) = self.records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready) else {
            return Some(Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile"))));
        };
        let is_there = if shrinks { known.len_bytes == len_bytes } else { known.len_bytes >= len_bytes };
        if known.resize.is_none() && is_there {
            return Some(Ok(self.volume_answer(now, volume)));
        }
        if known.resize.is_none() {
            let refusal = match self.shrinks.ended(volume).filter(|_| shrinks) {
                Some(why) => refuse(codes::SHRINK_DATA, why),
                None => refuse(codes::VOLUME_BUSY, "the resize was taken back meanwhile; `basalt events` tells why"),
            };
            return Some(Err(refusal));
        }
        if now < until {
            return None;
        }
        let (name, len) = (self.records.full_name(known), size(len_bytes));
        let waits_for = self.shrink_step(now, known).map_or_else(|| self.late_pgs(volume), |(_, text)| text);
        let text = format!("the resize of volume {name:?} to {len} goes on: {waits_for}");
        Some(Err(refuse(codes::VOLUME_BUSY, text)))
    }

    /// Describes the PGs that have not committed the volume's attach record yet.
    pub(super) fn late_pgs(&self, volume: VolumeId) -> String {
        let named = |pgs: &[PgId]| pgs.iter().take(PGS_NAMED).map(PgId::to_string).collect::<Vec<_>>().join(" ");
        let pgs: Vec<PgId> = self.attaching.pgs_of(volume).collect();
        let lacking: Vec<PgId> = self.attaching.lacking_base(volume).collect();
        match (&pgs[..], &lacking[..]) {
            ([], _) => "its records are still being written".to_owned(),
            (_, []) => format!("{} of its PGs have not taken it ({})", pgs.len(), named(&pgs)),
            (_, lacking) => {
                format!("PGs do not have the snapshot ({}): a forced recovery has lost it there", named(lacking))
            }
        }
    }

    pub(super) fn trash_view(&self, wall_ms: u64, volume: &VolumeRecord, trash: &Trash) -> TrashView {
        TrashView {
            volume: volume.id,
            name: self.records.full_name(volume),
            len_bytes: volume.len_bytes,
            allocated_bytes: self.records.segments_of(volume.id).count() as u64 * SEGMENT,
            state: if volume.state == VolumeState::Deleting { "deleting" } else { "trashed" }.to_owned(),
            since_ms: trash.since_ms,
            until_ms: trash.until_ms,
            expired: trash.until_ms <= wall_ms,
            by: trash.by.clone(),
            description: volume.description.clone(),
            labels: volume.labels.clone(),
        }
    }

    /// Returns the trash of one pool, or of all when `pool` is empty.
    pub(super) fn trash_views(&self, now: Now, pool: &str) -> Result<Vec<TrashView>, Refusal> {
        let only = if pool.is_empty() { None } else { Some(self.records.pool(pool)?.id) };
        let volumes = self.records.volumes.values().filter(|v| only.is_none_or(|pool| v.pool == pool));
        let view = |v: &VolumeRecord| v.trash.as_ref().map(|trash| self.trash_view(now.wall_ms, v, trash));
        Ok(volumes.filter_map(view).collect())
    }

    pub(super) fn restore_volume(&mut self, now: Now, which: &str, new: Option<&str>) -> Result<AdminAnswer, Refusal> {
        let (writes, id) = plan::trash_restore(&self.records, which, new)?;
        let was = self.records.full_name(self.volume_of(id));
        self.write(writes);
        let name = self.records.full_name(self.volume_of(id));
        let renamed = if was == name { String::new() } else { format!("; it was {was}") };
        let text = format!("volume {name} is back from the trash{renamed}");
        self.note(now, Note::info("volume.restored", format!("volume {name}"), text));
        Ok(self.volume_answer(now.mono, id))
    }

    pub(super) fn purge_volume(&mut self, now: Now, token: Token, which: &str) -> Planned {
        let (writes, id) = plan::trash_purge(&self.records, which)?;
        if !writes.is_empty() {
            self.write(writes);
            self.note_purged(now, id, "");
        }
        self.wait(token, WaitFor::VolumeGone { volume: id });
        Ok(None)
    }

    fn note_purged(&mut self, now: Now, id: VolumeId, why: &str) {
        let name = self.records.full_name(self.volume_of(id));
        let text = format!("volume {name} ({id}) in the trash is deleted{why}");
        self.note(now, Note::info("volume.purged", format!("volume {name}"), text));
        self.forget_leases(id);
        self.attach_everywhere(id);
    }

    /// Begins the deletion of volumes whose time in the trash is over, by the clock now and by the clock at the start of this leader: a jump
    /// in either direction, forward or from a wrong time back, deletes nothing. A leader whose clock stays wrong is given time to be noticed.
    pub(super) fn expire_trash(&mut self, now: Now) {
        let is_new = now.mono < self.started.mono + self.config.trash_grace;
        if is_new || now.mono < self.trash_at || self.batch.is_full() {
            return;
        }
        self.trash_at = now.mono + self.config.trash_every;
        let wall_ms = self.wall_ms(now.mono).min(now.wall_ms);
        let (writes, ids) = plan::trash_expire(&self.records, wall_ms);
        self.write(writes);
        ids.into_iter().for_each(|id| self.note_purged(now, id, ": its time is over"));
    }

    /// Returns the volumes of one pool, or of all when `pool` is empty; without those of the trash.
    pub(super) fn volume_views(&self, now: Time, pool: &str) -> Result<Vec<VolumeView>, Refusal> {
        let only = if pool.is_empty() { None } else { Some(self.records.pool(pool)?.id) };
        let volumes = self.records.volumes.values().filter(|v| v.trash.is_none());
        let volumes = volumes.filter(|v| only.is_none_or(|pool| v.pool == pool));
        Ok(volumes.map(|v| self.volume_view(now, v)).collect())
    }
}
