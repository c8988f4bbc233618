//! Commands about snapshots, and their removal from PGs.

use super::aim::Aim;
use super::clients::WaitFor;
use super::{Control, Now, Standing, Token};
use crate::admin::{AdminAnswer, SnapshotView};
use crate::events::Note;
use crate::plan::{self, CutAsk, InUse, SnapshotChange};
use crate::records::{Key, SnapshotRecord, SnapshotState, VolumeState, Write};
use crate::refusal::refuse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::codes;
use types::control::{OsdDown, Refusal};
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder};
use types::{GenerationId, OsdId, PgId, SnapshotId, Time, VolumeId};

/// Removals whose orders are out at the same time.
const REMOVALS_AT_ONCE: usize = 8;
/// Time after which a removal makes room for one that waits: a PG may be busy for long.
const TURN: Duration = Duration::from_secs(2);

/// The removals that PGs have not all answered. A few are driven at a time, and those that wait for a leader make room for others.
#[derive(Default)]
pub(super) struct Removals {
    /// The PGs that have not answered.
    left: BTreeMap<Removal, BTreeMap<PgId, Aim>>,
    waiting: VecDeque<Removal>,
    /// With the time since when each is driven.
    driven: Vec<(Removal, Time)>,
    /// By one of the PGs without a leader that they wait for.
    blocked: BTreeMap<PgId, Vec<Removal>>,
    wake: Option<Time>,
}

type Removal = (VolumeId, SnapshotId);

impl Removals {
    pub fn wake(&self) -> Time {
        self.wake.unwrap_or(Time::NEVER)
    }

    /// Makes the orders for a PG due at once: it has a new leader.
    pub fn wake_pg(&mut self, pg: PgId) {
        self.waiting.extend(self.blocked.remove(&pg).unwrap_or_default());
        for (removal, _) in &self.driven {
            self.left.get_mut(removal).and_then(|left| left.get_mut(&pg)).into_iter().for_each(Aim::again);
        }
        self.wake = None;
    }
}

impl Control {
    /// Finds the removals of the leader before.
    pub(super) fn take_up_removals(&mut self) {
        let deleting = self.records.snapshots.values().filter(|s| s.state == SnapshotState::Deleting);
        let deleting: Vec<_> = deleting.map(|s| (s.volume, s.snapshot)).collect();
        deleting.into_iter().for_each(|(volume, snapshot)| self.begin_removal(volume, snapshot));
    }

    pub(super) fn begin_removal(&mut self, volume: VolumeId, snapshot: SnapshotId) {
        let pgs = plan::pgs_of_volume(&self.records, volume).into_iter();
        self.removals.left.insert((volume, snapshot), pgs.map(|pg| (pg, Aim::default())).collect());
        self.removals.waiting.push_back((volume, snapshot));
    }

    /// Sends `Remove` to the PGs of a few removals, and erases the records of those that all PGs have answered.
    pub(super) fn drive_removals(&mut self, now: Time) {
        let mut due = Time::NEVER;
        let mut driven = std::mem::take(&mut self.removals.driven);
        let (mut kept, mut late) = (Vec::with_capacity(driven.len()), Vec::new());
        loop {
            let room = REMOVALS_AT_ONCE.saturating_sub(kept.len() + driven.len());
            let next = self.removals.waiting.len().min(room);
            driven.extend(self.removals.waiting.drain(..next).map(|removal| (removal, now)));
            let Some((removal, since)) = driven.pop() else { break };
            let Some(mut left) = self.removals.left.remove(&removal) else { continue };
            left.retain(|pg, _| self.records.pgs.contains_key(pg));
            if !self.records.snapshots.contains_key(&removal) {
                // It went with its volume.
                continue;
            }
            if left.is_empty() && !self.batch.is_full() {
                self.write(vec![Write::Delete(Key::Snapshot(removal.0, removal.1))]);
                continue;
            }
            due = due.min(self.send_removal(now, removal, &mut left));
            let unled = left.keys().next().copied().filter(|_| !left.keys().any(|pg| self.is_in_touch(*pg)));
            self.removals.left.insert(removal, left);
            let is_over = now.since(since) >= TURN && !self.removals.waiting.is_empty();
            match unled {
                Some(pg) => self.removals.blocked.entry(pg).or_default().push(removal),
                None if is_over => late.push(removal),
                None => kept.push((removal, since)),
            }
        }
        self.removals.driven = kept;
        if !late.is_empty() {
            due = now;
        }
        self.removals.waiting.extend(late);
        self.removals.wake = Some(due);
    }

    /// Sends the order to each PG for which it is due; returns when it is due next.
    fn send_removal(&mut self, now: Time, (volume, snapshot): Removal, left: &mut BTreeMap<PgId, Aim>) -> Time {
        for (pg, aim) in left.iter_mut().filter(|(_, aim)| aim.at <= now) {
            let target = self.target(*pg, aim);
            aim.sent(now, target.is_some(), (self.config.attach_resend, self.config.attach_retry));
            if let Some(stream) = target {
                let order = SnapshotOrder::Remove { volume, snapshot };
                self.say(stream, OsdDown::Snapshots { pg: *pg, order });
            }
        }
        left.values().map(|aim| aim.at).min().unwrap_or(now)
    }

    /// Whether a PG has a leader with a stream, as far as is known.
    pub(super) fn is_in_touch(&self, pg: PgId) -> bool {
        let lead = self.leads.get(&pg).and_then(|lead| self.osds.get(&lead.osd));
        lead.is_some_and(|live| live.stream.is_some())
    }

    /// Takes the answer of a PG about a cut or a removal.
    pub(super) fn take_snapshots(&mut self, now: Now, from: OsdId, pg: PgId, answer: SnapshotAnswer) {
        let is_member = self.records.pgs.get(&pg).is_some_and(|p| p.everyone().any(|m| m.osd == from));
        if !is_member || self.standing() != Standing::Sound {
            return;
        }
        let (volume, snapshot, result) = match answer {
            SnapshotAnswer::Cut { cut, result } => return self.take_cut(now, from, pg, cut, result),
            SnapshotAnswer::Removed { volume, snapshot, result } => (volume, snapshot, result),
            SnapshotAnswer::Flatten { volume, result } => {
                return self.take_flatten(now.mono, from, (pg, volume), result);
            }
            SnapshotAnswer::Found { volume, len_epoch, result } => {
                return self.take_found(now, from, (pg, volume, len_epoch), result);
            }
            SnapshotAnswer::Wiped { volume, len_epoch, chunk, result } => {
                return self.take_wiped(now, from, (pg, volume, len_epoch), (chunk, result));
            }
        };
        let Some(left) = self.removals.left.get_mut(&(volume, snapshot)) else { return };
        let (Some(aim), retry) = (left.get_mut(&pg), self.config.attach_retry) else { return };
        match result {
            Ok(()) => drop(left.remove(&pg)),
            Err(CutRefusal::NotLeader { hint }) => aim.not_leader(now.mono, from, hint, retry),
            Err(_) => aim.at = now.mono + retry,
        }
    }

    pub(super) fn create_snapshots(&mut self, now: Now, token: Token, ask: CutAsk) -> Result<(), Refusal> {
        let by = self.asker.clone();
        self.ask_cut(now, token, CutAsk { by, ..ask })
    }

    /// Begins the deletion of a snapshot; the answer waits until no PG has it.
    pub(super) fn remove_snapshot(&mut self, now: Now, token: Token, name: &str, detach: bool) -> Result<(), Refusal> {
        let (writes, (volume, snapshot)) = plan::snapshot_remove(&self.records, name, detach)?;
        if !writes.is_empty() {
            self.write(writes);
            self.begin_removal(volume, snapshot);
            let text = format!("snapshot {name} is deleted");
            self.note(now, Note::info("snapshot.removed", self.volume_subject(volume), text));
        }
        let until = now.mono + self.config.resize_patience;
        self.wait(token, WaitFor::SnapshotGone { volume, snapshot, until });
        Ok(())
    }

    /// Begins to turn a volume back to a snapshot; the answer waits until all its PGs have done so.
    pub(super) fn roll_back(&mut self, now: Now, token: Token, name: &str, force: bool) -> Result<(), Refusal> {
        let volume = name.split_once('@').map_or(name, |(volume, _)| volume);
        let lease = self.records.volume(volume).ok().and_then(|v| self.lease_left(now.mono, v.id));
        let in_use = InUse { force, lease, wall_ms: now.wall_ms, ..InUse::default() };
        let by = self.asker.clone();
        let (writes, id) = plan::snapshot_rollback(&self.records, name, &in_use, &by)?;
        if !writes.is_empty() {
            self.write(writes);
            self.forget_leases(id);
            match self.records.volumes[&id].settled {
                true => self.note_rolled_back(now, id, name, by),
                false => self.attach_everywhere(id),
            }
        }
        let to = self.records.volumes[&id].rollback.as_ref().map_or_else(GenerationId::default, |rollback| rollback.to);
        let until = now.mono + self.config.resize_patience;
        self.wait(token, WaitFor::RolledBack { volume: id, to, until });
        Ok(())
    }

    /// Records the event of a rollback that is done with this turn's transaction.
    pub(super) fn note_rolled_back(&mut self, now: Now, volume: VolumeId, snapshot: &str, by: String) {
        let text = format!("the volume has the contents of snapshot {snapshot}");
        let note = Note::info("volume.rolled_back", self.volume_subject(volume), text);
        self.note(now, Note { by, ..note });
    }

    /// Returns the answer to a rollback to the head `to`; `None` while it waits.
    pub(super) fn rolled_back(
        &self,
        now: Time,
        (volume, to): (VolumeId, GenerationId),
        until: Time,
    ) -> Option<Result<AdminAnswer, Refusal>> {
        let Some(known) = self.records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready) else {
            return Some(Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile"))));
        };
        match &known.rollback {
            None => return Some(Ok(AdminAnswer::Volume(self.volume_view(now, known)))),
            Some(rollback) if rollback.to != to => {
                let text =
                    format!("another rollback of volume {:?} has begun meanwhile", self.records.full_name(known));
                return Some(Err(refuse(codes::VOLUME_BUSY, text)));
            }
            Some(_) => {}
        }
        if now < until {
            return None;
        }
        let text =
            format!("the rollback of volume {:?} goes on: {}", self.records.full_name(known), self.late_pgs(volume));
        Some(Err(refuse(codes::VOLUME_BUSY, text)))
    }

    fn volume_subject(&self, volume: VolumeId) -> String {
        self.records.volumes.get(&volume).map_or_else(String::new, |v| format!("volume {}", self.records.full_name(v)))
    }

    /// Returns the answer to the deletion of a snapshot; `None` while it waits.
    pub(super) fn snapshot_gone(
        &self,
        now: Time,
        (volume, snapshot): (VolumeId, SnapshotId),
        until: Time,
    ) -> Option<Result<AdminAnswer, Refusal>> {
        if !self.records.snapshots.contains_key(&(volume, snapshot)) {
            return Some(Ok(AdminAnswer::Done));
        }
        if now < until {
            return None;
        }
        let left = self.removals.left.get(&(volume, snapshot)).map_or(0, BTreeMap::len);
        let text = format!("the deletion of {snapshot} of {volume} goes on: {left} of its PGs have not answered");
        Some(Err(refuse(codes::VOLUME_BUSY, text)))
    }

    pub(super) fn set_snapshot(
        &mut self,
        now: Now,
        name: &str,
        change: &SnapshotChange,
    ) -> Result<AdminAnswer, Refusal> {
        let (writes, key) = plan::snapshot_set(&self.records, name, change)?;
        if !writes.is_empty() {
            let before = self.records.snapshots[&key].clone();
            self.write(writes);
            let after = &self.records.snapshots[&key];
            let mut words =
                plan::text_changes((&before.description, &before.labels), (&after.description, &after.labels));
            if before.name != after.name {
                words.push(format!("it is now @{}", after.name));
            }
            if before.protected != after.protected {
                words.push(if after.protected { "protected" } else { "no longer protected" }.to_owned());
            }
            let text = format!("snapshot {name}: {}", words.join(", "));
            self.note(now, Note::info("snapshot.changed", self.volume_subject(key.0), text));
        }
        Ok(AdminAnswer::SnapshotsChanged(vec![self.snapshot_view(&self.records.snapshots[&key])]))
    }

    /// Returns the snapshots of one volume, of the volumes of one pool, or of all when `of` is empty.
    pub(super) fn snapshot_views(&self, of: &str) -> Result<Vec<SnapshotView>, Refusal> {
        if of.contains('@') {
            return Ok(vec![self.snapshot_view(plan::snapshot(&self.records, of)?)]);
        }
        if of.contains('/') {
            let volume = self.records.volume(of)?.id;
            return Ok(self.records.snapshots_of(volume).map(|s| self.snapshot_view(s)).collect());
        }
        let pool = if of.is_empty() { None } else { Some(self.records.pool(of)?.id) };
        let is_in = |s: &&SnapshotRecord| {
            let volume = self.records.volumes.get(&s.volume);
            volume.is_some_and(|v| v.trash.is_none() && pool.is_none_or(|pool| v.pool == pool))
        };
        Ok(self.records.snapshots.values().filter(is_in).map(|s| self.snapshot_view(s)).collect())
    }

    pub(super) fn snapshot_view(&self, snapshot: &SnapshotRecord) -> SnapshotView {
        let volume = self.records.volumes.get(&snapshot.volume);
        let volume_name = volume.map_or_else(|| "?".to_owned(), |volume| self.records.full_name(volume));
        SnapshotView {
            volume: snapshot.volume,
            snapshot: snapshot.snapshot,
            name: format!("{volume_name}@{}", snapshot.name),
            len_bytes: snapshot.len_bytes,
            created_ms: snapshot.created_ms,
            state: snapshot.state.name().to_owned(),
            cut: snapshot.cut,
            protected: snapshot.protected,
            by: snapshot.by.clone(),
            description: snapshot.description.clone(),
            labels: snapshot.labels.clone(),
            clones: plan::clones_of(&self.records, snapshot.volume, Some(snapshot.snapshot)).count() as u32,
        }
    }
}
