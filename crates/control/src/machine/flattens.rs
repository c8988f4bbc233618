//! Drives flattens: orders to the leaders of the PGs of clones, until no PG needs the parent.
//!
//! A PG is asked again and again, so that a leader goes on as long as the record stands, whichever leader that is. Nothing of the progress is
//! recorded: another leader of meta asks again, and PGs that are done say so.

use super::aim::Aim;
use super::{Control, Now};
use crate::admin::FlattenView;
use crate::events::Note;
use crate::plan;
use crate::records::{VolumeRecord, VolumeState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::{OsdDown, Refusal};
use types::cut::{CutRefusal, FlattenStep, SnapshotOrder};
use types::{OsdId, PgId, Time, VolumeId};

/// Interval of the orders to a PG whose leader copies. It is far below the patience of leaders.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Flattening {
    /// The PGs that are not done, with the chunks that their leaders have looked at.
    left: BTreeMap<PgId, (Aim, (u32, u32))>,
    flat: BTreeSet<PgId>,
}

/// The flattens that go on.
#[derive(Default)]
pub(super) struct Flattens {
    volumes: BTreeMap<VolumeId, Flattening>,
    wake: Option<Time>,
}

impl Flattens {
    pub fn wake(&self) -> Time {
        self.wake.unwrap_or(Time::NEVER)
    }

    /// Makes the order for a PG due at once: it has a new leader.
    pub fn wake_pg(&mut self, pg: PgId) {
        let aims = self.volumes.values_mut().filter_map(|flattening| flattening.left.get_mut(&pg));
        let mut some = false;
        for (aim, _) in aims {
            aim.again();
            some = true;
        }
        if some {
            self.wake = Some(Time::ZERO);
        }
    }
}

impl Control {
    /// Finds the flattens of the leader before.
    pub(super) fn take_up_flattens(&mut self) {
        let flattened = self.records.volumes.values().filter(|volume| volume.flatten.is_some());
        self.flattens.volumes = flattened.map(|volume| (volume.id, Flattening::default())).collect();
        self.flattens.wake = (!self.flattens.volumes.is_empty()).then_some(Time::ZERO);
    }

    /// Begins to flatten a clone, or stops it.
    pub(super) fn flatten_volume(&mut self, now: Now, name: &str, cancel: bool) -> Result<VolumeId, Refusal> {
        let (writes, id) = match cancel {
            true => plan::flatten_cancel(&self.records, name)?,
            false => plan::volume_flatten(&self.records, name, &self.asker, now.wall_ms)?,
        };
        if !writes.is_empty() {
            self.write(writes);
            let (kind, text) = match cancel {
                true => (
                    "volume.flatten_cancelled",
                    format!("the flatten of volume {name} is stopped: it keeps its parent"),
                ),
                false => {
                    ("volume.flatten_began", format!("volume {name} gets copies of all that it shows of its parent"))
                }
            };
            self.note(now, Note::info(kind, format!("volume {name}"), text));
        }
        if !cancel {
            self.flattens.volumes.entry(id).or_default();
            self.flattens.wake = Some(Time::ZERO);
        }
        Ok(id)
    }

    /// Sends the orders that are due, and ends the flattens of which no PG is left.
    pub(super) fn drive_flattens(&mut self, now: Now) {
        if self.flattens.wake() > now.mono {
            return;
        }
        let mut due = Time::NEVER;
        for (id, mut flattening) in std::mem::take(&mut self.flattens.volumes) {
            let Some(volume) = self.records.volumes.get(&id).filter(|volume| volume.flatten.is_some()).cloned() else {
                continue;
            };
            // In the trash it waits, and goes on when the volume is restored.
            let goes_on = volume.state == VolumeState::Ready && !volume.recovering;
            if goes_on && self.is_flat(now, &volume, &mut flattening) {
                continue;
            }
            let next = flattening.left.values().map(|(aim, _)| aim.at).min().filter(|_| goes_on);
            due = due.min(next.unwrap_or(now.mono + EVERY));
            self.flattens.volumes.insert(id, flattening);
        }
        self.flattens.wake = (due != Time::NEVER).then_some(due);
    }

    /// Sends the orders of one flatten; true when it has ended.
    fn is_flat(&mut self, now: Now, volume: &VolumeRecord, flattening: &mut Flattening) -> bool {
        flattening.left.retain(|pg, _| self.records.pgs.contains_key(pg));
        if flattening.left.is_empty() {
            // The volume may have got segments since.
            let pgs = plan::pgs_of_volume(&self.records, volume.id).into_iter();
            let left = pgs.filter(|pg| !flattening.flat.contains(pg));
            flattening.left = left.map(|pg| (pg, (Aim::default(), (0, 0)))).collect();
            if flattening.left.is_empty() && volume.settled && !self.batch.is_full() {
                self.write(plan::flatten_end(volume));
                let (name, by) =
                    (self.records.full_name(volume), volume.flatten.as_ref().map(|flatten| flatten.by.clone()));
                let text = format!("volume {name} needs its parent no longer");
                let note = Note::info("volume.flattened", format!("volume {name}"), text);
                self.note(now, Note { by: by.unwrap_or_default(), ..note });
                return true;
            }
        }
        for (pg, (aim, _)) in flattening.left.iter_mut().filter(|(_, (aim, _))| aim.at <= now.mono) {
            let target = self.target(*pg, aim);
            aim.sent(now.mono, target.is_some(), (EVERY, self.config.attach_retry));
            if let Some(stream) = target {
                let order = SnapshotOrder::Flatten { volume: volume.id };
                self.say(stream, OsdDown::Snapshots { pg: *pg, order });
            }
        }
        false
    }

    /// Takes the answer of a PG about a flatten.
    pub(super) fn take_flatten(
        &mut self,
        now: Time,
        from: OsdId,
        (pg, volume): (PgId, VolumeId),
        result: Result<FlattenStep, CutRefusal>,
    ) {
        let retry = self.config.attach_retry;
        let Some(flattening) = self.flattens.volumes.get_mut(&volume) else { return };
        let Some((aim, progress)) = flattening.left.get_mut(&pg) else { return };
        match result {
            Ok(FlattenStep::Flat) => {
                flattening.left.remove(&pg);
                flattening.flat.insert(pg);
            }
            Ok(FlattenStep::Copying { done, chunks }) => {
                *progress = (done, chunks);
                aim.at = now + EVERY;
                return;
            }
            Err(CutRefusal::NotLeader { hint }) => aim.not_leader(now, from, hint, retry),
            Err(refusal) => {
                aim.at = now + retry;
                // A forced recovery went back to a time before the clone.
                if refusal == CutRefusal::Absent && self.records.volumes.contains_key(&volume) {
                    self.attaching.ensure(volume, pg);
                }
            }
        }
        self.flattens.wake = Some(Time::ZERO);
    }

    /// Returns the progress of a flatten, for display.
    pub(super) fn flatten_view(&self, volume: &VolumeRecord) -> Option<FlattenView> {
        let flatten = volume.flatten.as_ref()?;
        let known = self.flattens.volumes.get(&volume.id);
        let part = |(done, chunks): (u32, u32)| if chunks == 0 { 0.0 } else { f64::from(done) / f64::from(chunks) };
        let (flat, pgs, done) = known.map_or((0, 0, 0.0), |known| {
            let flat = known.flat.len();
            let parts: f64 = known.left.values().map(|(_, progress)| part(*progress)).sum();
            (flat, flat + known.left.len(), parts + flat as f64)
        });
        let percent = if pgs == 0 { 0 } else { (done * 100.0 / pgs as f64) as u32 };
        let (pgs, flat_pgs) = (u32::try_from(pgs).unwrap_or(u32::MAX), u32::try_from(flat).unwrap_or(u32::MAX));
        Some(FlattenView { since_ms: flatten.since_ms, by: flatten.by.clone(), percent, pgs, flat_pgs })
    }
}
