//! Drives shrinks: the holder stops to use what is behind the new end, the PGs are searched for data there, and, once they have the shorter
//! length, the rest of the last chunk is wiped.
//!
//! Input: keepalives of holders, and answers of PGs. Output: orders to the leaders of PGs, and the records of each step. The record tells
//! which step a shrink has reached; what is known beside it is learned again by another leader of meta, because holders repeat their length
//! and PGs answer again.
//!
//! Invariant: no PG gets a shorter length before the session that may write behind the end has said that it does not, or is fenced in each
//! PG of the volume.

use super::aim::Aim;
use super::{Control, Now};
use crate::events::{Note, size};
use crate::found::LEN_EPOCH_MAX;
use crate::plan;
use crate::records::{Holder, Record, VolumeRecord, VolumeState, Write};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::control::OsdDown;
use types::cut::{CutRefusal, SnapshotOrder, Tail, TailStep};
use types::planted::{Bug, on};
use types::{OsdId, PgId, SessionId, Time, VolumeId};

/// Interval of the looks at a client that has not answered.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The work that is left in the PGs of a volume: to search behind the new end, or to wipe there.
struct Left {
    /// The epoch of the length: each step has another one.
    len_epoch: u32,
    pgs: BTreeMap<PgId, (Aim, Tail)>,
}

/// The shrinks that go on.
#[derive(Default)]
pub(super) struct Shrinks {
    left: BTreeMap<VolumeId, Left>,
    /// Sessions that do not use what is behind the new end, with the epoch of the length.
    stopped: BTreeMap<(VolumeId, SessionId), u32>,
    /// The reasons why shrinks have ended without effect, until the next one of the volume.
    ended: BTreeMap<VolumeId, String>,
    wake: Option<Time>,
}

impl Shrinks {
    pub fn wake(&self) -> Time {
        self.wake.unwrap_or(Time::NEVER)
    }

    /// Makes the order for a PG due at once: it has a new leader.
    pub fn wake_pg(&mut self, pg: PgId) {
        let mut some = false;
        for (aim, _) in self.left.values_mut().filter_map(|left| left.pgs.get_mut(&pg)) {
            aim.again();
            some = true;
        }
        if some {
            self.wake_all();
        }
    }

    pub fn wake_all(&mut self) {
        self.wake = Some(Time::ZERO);
    }

    /// Forgets how the last shrink has ended: an administrator asks for another one.
    pub fn begin(&mut self, volume: VolumeId) {
        self.ended.remove(&volume);
        self.wake_all();
    }

    pub fn forget(&mut self, volume: VolumeId) {
        self.left.remove(&volume);
        self.stopped.retain(|(of, _), _| *of != volume);
        self.ended.remove(&volume);
    }

    /// The reason why the last shrink of a volume has ended without effect.
    pub fn ended(&self, volume: VolumeId) -> Option<&str> {
        self.ended.get(&volume).map(String::as_str)
    }

    /// Returns the PGs that have not answered about this length; `None`: they are not asked yet.
    fn waiting(&self, volume: &VolumeRecord) -> Option<usize> {
        let left = self.left.get(&volume.id).filter(|left| left.len_epoch == volume.len_epoch);
        left.map(|left| left.pgs.len())
    }
}

impl Control {
    /// Finds the shrinks of the leader before.
    pub(super) fn take_up_shrinks(&mut self) {
        self.shrinks.wake_all();
    }

    /// Takes the length that the holder of a volume says it uses.
    pub(super) fn take_used(&mut self, id: VolumeId, session: SessionId, (len_epoch, len_bytes): (u32, u64)) {
        let Some(volume) = self.records.volumes.get(&id) else { return };
        let (epoch, end) = volume.usable();
        let is_answer = len_epoch == epoch && len_bytes != 0 && len_bytes <= end;
        if volume.shrink().is_some_and(|shrink| !shrink.ordered) && is_answer {
            let before = self.shrinks.stopped.insert((id, session), epoch);
            if before != Some(epoch) {
                self.shrinks.wake_all();
            }
        }
    }

    /// Returns the writers of a volume that may use what is behind the new end.
    fn not_stopped<'a>(&'a self, volume: &'a VolumeRecord) -> impl Iterator<Item = (SessionId, &'a Holder)> {
        let stopped = move |session| self.shrinks.stopped.get(&(volume.id, session)) == Some(&volume.len_epoch);
        let one_has = volume.holders().any(|(of, _)| stopped(of.session));
        let left = volume.holders().filter(move |(of, _)| !stopped(of.session));
        left.filter(move |_| !(one_has && on(Bug::ShrinkAsksOneWriter))).map(|(of, holder)| (of.session, holder))
    }

    /// Advances the shrinks that are not ordered.
    pub(super) fn drive_shrinks(&mut self, now: Now) {
        if self.shrinks.wake() > now.mono {
            return;
        }
        let asked = |volume: &&VolumeRecord| {
            let goes_on = volume.state != VolumeState::Deleting && !volume.recovering;
            goes_on && volume.shrink().is_some_and(|shrink| !shrink.ordered)
        };
        let volumes: Vec<VolumeRecord> = self.records.volumes.values().filter(asked).cloned().collect();
        let mut due = Time::NEVER;
        for volume in volumes {
            due = due.min(self.drive_shrink(now, &volume));
        }
        let orders = self.shrinks.left.values().flat_map(|left| left.pgs.values()).map(|(aim, _)| aim.at);
        due = orders.fold(due, Time::min);
        self.shrinks.wake = (due != Time::NEVER).then_some(due);
    }

    /// Takes the next step of one shrink; returns when it is due again.
    fn drive_shrink(&mut self, now: Now, volume: &VolumeRecord) -> Time {
        let (id, retry) = (volume.id, now.mono + self.config.attach_retry);
        let shrink = volume.shrink().expect("the caller saw it");
        if self.batch.is_full() || self.holds(id) {
            return retry;
        }
        let slow: Vec<SessionId> = self.not_stopped(volume).map(|(session, _)| session).collect();
        if !slow.is_empty() && !on(Bug::ShrinkUnasked) {
            self.shrinks.left.remove(&id);
            let leases = slow.iter().filter_map(|session| self.leases.left(now.mono, id, *session));
            if let Some(left) = leases.max().filter(|_| !shrink.force) {
                // The answer to the command tells of the client.
                self.waits_due = true;
                return now.mono + left.min(LOOK_EVERY);
            }
            // An open that was not answered yet is told the shorter length alone. A client that repeats it whenever it is fenced would hold
            // the shrink up for ever.
            let told: Vec<SessionId> = slow.into_iter().filter(|session| !self.is_opening(id, *session)).collect();
            if !told.is_empty() {
                self.fence_for_shrink(now, volume, &told);
            }
            return retry;
        }
        // A session from before may write until each PG has the record of the present one.
        if !volume.settled || self.attaching.is_busy(id) {
            self.shrinks.left.remove(&id);
            return retry;
        }
        if !shrink.discard {
            self.ask_for_tails(volume, true);
            if !self.have_tails_answered(now.mono, volume) {
                return Time::NEVER;
            }
        }
        self.shrinks.left.remove(&id);
        let ordered = plan::shrink_order(&self.records, volume);
        let done = ordered.resize.is_none();
        self.write(vec![Write::Put(Record::Volume(ordered))]);
        match done {
            true => {
                let by = volume.resize.as_ref().map_or_else(String::new, |resize| resize.by.clone());
                self.note_resized(now, id, volume.len_bytes, by);
            }
            false => self.attach_everywhere(id),
        }
        Time::NEVER
    }

    /// Takes the volume from clients that have not stopped to use what is behind the new end.
    fn fence_for_shrink(&mut self, now: Now, volume: &VolumeRecord, slow: &[SessionId]) {
        let name = self.records.full_name(volume);
        let of = slow.iter().filter_map(|session| volume.holder_of(*session));
        let of = of.map(Holder::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{of} lost volume {name}: it did not confirm the shorter length");
        self.write(plan::fence(&self.records, volume, &|session| slow.contains(&session)));
        self.note_volume(now, volume.id, Note::warning("volume.detached", format!("volume {name}"), text));
        self.forget_leases(volume.id);
        self.attach_everywhere(volume.id);
    }

    /// Lists the PGs of a volume that are to be searched, or wiped, behind its new end, unless that was done for this length.
    fn ask_for_tails(&mut self, volume: &VolumeRecord, search: bool) {
        if self.shrinks.left.get(&volume.id).is_some_and(|left| left.len_epoch == volume.len_epoch) {
            return;
        }
        let end = if search { Some(volume.usable().1) } else { plan::wiped_end(volume) };
        let end = end.expect("the caller saw it");
        let pgs = plan::pgs_of_volume(&self.records, volume.id).into_iter();
        let tail = |pg: PgId| (pg, plan::tail_of(&self.records, volume, pg, end));
        let tails = pgs.map(tail).filter(|(_, tail)| search || !tail.parts.is_empty());
        let pgs = tails.map(|(pg, tail)| (pg, (Aim::default(), tail))).collect();
        self.shrinks.left.insert(volume.id, Left { len_epoch: volume.len_epoch, pgs });
        self.shrinks.wake_all();
    }

    /// Sends the orders to the PGs of a volume that are due; true when all have answered.
    fn have_tails_answered(&mut self, now: Time, volume: &VolumeRecord) -> bool {
        let Some(mut left) = self.shrinks.left.remove(&volume.id) else { return false };
        let searches = volume.shrink().is_some_and(|shrink| !shrink.ordered);
        left.pgs.retain(|pg, _| self.records.pgs.contains_key(pg));
        for (pg, (aim, tail)) in left.pgs.iter_mut().filter(|(_, (aim, _))| aim.at <= now) {
            let target = self.target(*pg, aim);
            aim.sent(now, target.is_some(), (self.config.attach_resend, self.config.attach_retry));
            let Some(stream) = target else { continue };
            let (volume, len_epoch) = (volume.id, left.len_epoch);
            let order = match tail.parts.first() {
                _ if searches => SnapshotOrder::Find { volume, len_epoch, tail: tail.clone() },
                Some((chunk, range)) => SnapshotOrder::Wipe { volume, len_epoch, chunk: *chunk, range: *range },
                None => continue,
            };
            self.say(stream, OsdDown::Snapshots { pg: *pg, order });
        }
        let done = left.pgs.is_empty();
        self.shrinks.left.insert(volume.id, left);
        done
    }

    /// Whether the PGs of a volume are wiped behind its new end. It is called again until they are.
    pub(super) fn is_wiped(&mut self, now: Time, volume: &VolumeRecord) -> bool {
        self.ask_for_tails(volume, false);
        let done = self.have_tails_answered(now, volume);
        if done {
            self.shrinks.left.remove(&volume.id);
        }
        done
    }

    /// Takes the answer of a PG about data behind a new end.
    pub(super) fn take_found(
        &mut self,
        now: Now,
        from: OsdId,
        (pg, id, len_epoch): (PgId, VolumeId, u32),
        result: Result<TailStep, CutRefusal>,
    ) {
        let Some(volume) = self.records.volumes.get(&id).filter(|volume| volume.len_epoch == len_epoch).cloned() else {
            return;
        };
        let searches = volume.shrink().is_some_and(|shrink| !shrink.ordered && !shrink.discard);
        let left = self.shrinks.left.get_mut(&id).filter(|left| searches && left.len_epoch == len_epoch);
        let Some((aim, tail)) = left.and_then(|left| left.pgs.get_mut(&pg)) else { return };
        match result {
            Ok(TailStep::Empty) => drop(self.shrinks.left.get_mut(&id).and_then(|left| left.pgs.remove(&pg))),
            Ok(TailStep::Searched { next }) if next > tail.from_chunk => {
                *tail = Tail { from_chunk: next, parts: Arc::from([]) };
                *aim = Aim::default();
            }
            Ok(TailStep::Searched { .. }) => aim.at = now.mono + self.config.attach_retry,
            Ok(TailStep::Data { chunk }) => return self.keep_length(now, &volume, chunk),
            Err(refusal) => self.tail_refused(now, from, (pg, id), refusal),
        }
        self.shrinks.wake_all();
    }

    /// Takes the answer of a PG that has zeroed a place behind the end.
    pub(super) fn take_wiped(
        &mut self,
        now: Now,
        from: OsdId,
        (pg, id, len_epoch): (PgId, VolumeId, u32),
        (chunk, result): (u32, Result<(), CutRefusal>),
    ) {
        let known = self.records.volumes.get(&id).filter(|volume| plan::wiped_end(volume).is_some());
        let left = self.shrinks.left.get_mut(&id).filter(|left| known.is_some() && left.len_epoch == len_epoch);
        let Some(left) = left else { return };
        let Some((aim, tail)) = left.pgs.get_mut(&pg) else { return };
        match result {
            Ok(()) if tail.parts.first().is_some_and(|(of, _)| *of == chunk) => {
                (tail.parts, *aim) = (Arc::from(&tail.parts[1..]), Aim::default());
                if tail.parts.is_empty() {
                    left.pgs.remove(&pg);
                }
            }
            // It answers an order that was repeated.
            Ok(()) => {}
            Err(refusal) => self.tail_refused(now, from, (pg, id), refusal),
        }
        self.shrinks.wake_all();
    }

    fn tail_refused(&mut self, now: Now, from: OsdId, (pg, id): (PgId, VolumeId), refusal: CutRefusal) {
        let retry = self.config.attach_retry;
        let aim = self.shrinks.left.get_mut(&id).and_then(|left| left.pgs.get_mut(&pg)).map(|(aim, _)| aim);
        match (refusal, aim) {
            (CutRefusal::NotLeader { hint }, Some(aim)) => aim.not_leader(now.mono, from, hint, retry),
            (_, Some(aim)) => aim.at = now.mono + retry,
            (_, None) => {}
        }
        match refusal {
            // A forced recovery went back to a time before the volume, or before its shorter length.
            CutRefusal::Absent if self.records.volumes.contains_key(&id) => self.attaching.ensure(id, pg),
            CutRefusal::LaterLength { len_epoch, chunk_count } => {
                self.take_later_length(now, id, pg, (len_epoch, chunk_count));
            }
            _ => {}
        }
    }

    /// Goes on above the later length of a PG, which the records lost when they went back in time.
    fn take_later_length(&mut self, now: Now, id: VolumeId, pg: PgId, (len_epoch, chunk_count): (u32, u32)) {
        let Some(volume) = self.records.volumes.get(&id).filter(|_| len_epoch < LEN_EPOCH_MAX) else { return };
        if self.batch.is_full() || len_epoch < volume.len_epoch {
            return;
        }
        let (name, after) = (self.records.full_name(volume), plan::length_above(volume, (len_epoch, chunk_count)));
        let text = format!(
            "volume {name} has {} and does not get shorter: pg {pg} has a later length than the records",
            size(after.len_bytes)
        );
        let ends = after.resize.is_none();
        self.write(vec![Write::Put(Record::Volume(after))]);
        self.shrinks.forget(id);
        self.tell_length(id);
        self.attach_everywhere(id);
        if ends {
            self.note(now, Note::warning("volume.shrink_refused", format!("volume {name}"), text));
        }
    }

    /// Ends a shrink without effect: there is data behind the new end.
    fn keep_length(&mut self, now: Now, volume: &VolumeRecord, chunk: u32) {
        if self.batch.is_full() {
            return;
        }
        let (name, end) = (self.records.full_name(volume), size(volume.usable().1));
        let text = format!("volume {name} has data behind {end}: the first that was found is in chunk {chunk}");
        self.write(vec![Write::Put(Record::Volume(plan::shrink_end(volume)))]);
        self.tell_length(volume.id);
        self.shrinks.forget(volume.id);
        self.shrinks.ended.insert(volume.id, text.clone());
        self.note(now, Note::warning("volume.shrink_refused", format!("volume {name}"), text));
    }

    /// Returns the step of a shrink for display: one word, and a sentence for the command that waits.
    pub(super) fn shrink_step(&self, now: Time, volume: &VolumeRecord) -> Option<(&'static str, String)> {
        let shrink = volume.shrink()?;
        let left = self.shrinks.waiting(volume);
        if shrink.ordered {
            return Some(match left {
                _ if self.attaching.is_busy(volume.id) => ("chunks", self.late_pgs(volume.id)),
                left => ("wipe", format!("{} of its PGs zero what is behind the new end", left.unwrap_or(0))),
            });
        }
        let slow: Vec<_> = self.not_stopped(volume).collect();
        if slow.is_empty() {
            return Some(match left {
                Some(left) if left > 0 => {
                    ("search", format!("{left} of its PGs are searched for data behind the new end"))
                }
                _ => ("search", self.late_pgs(volume.id)),
            });
        }
        let of = slow.iter().map(|(_, h)| format!("{:?} at {}", h.name, h.address)).collect::<Vec<_>>().join(" and ");
        let leases = slow.iter().filter_map(|(session, _)| self.leases.left(now, volume.id, *session));
        let lease = leases.max().map_or(0, |left| left.as_millis().div_ceil(1000));
        let text = format!(
            "{of} has not confirmed the shorter length; it loses the volume in {lease} s if it sends no keepalive, and at once \
             with --force"
        );
        Some(("client", text))
    }
}
