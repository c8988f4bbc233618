//! Cuts: snapshots of some volumes at one point in all their PGs (R14).
//!
//! Steps: wait until nothing else changes the volumes; record the intent, and wait until a majority of the electors remembers it; `Cut`
//! to the leader of each PG, which holds the changes of the volumes from then on; when all PGs have their snapshots, `Release` to each;
//! when all have released, record the end. A PG that does not answer within [`ControlConfig::cut_hold_max`](crate::ControlConfig) ends
//! the cut: it is given up, and tried again a few times.
//!
//! A new leader asks the PGs what became of a cut that it finds in `holding`, and ends the holds that are left: where each PG says
//! `Released`, the snapshots are ready, also when the records are older ones in which that was lost.
//!
//! Invariant: no `Release` leaves before every PG has said `Snapped`, and no snapshot is ready before every PG has said `Released`. A
//! cut that is given up stays so: an abort leaves only after the records say `aborting`. From the intent to the end no segment of the
//! volumes is allocated and no attach record of theirs is sent.

use super::aim::Aim;
use super::{Control, ControlAction, Now, Token};
use crate::admin::AdminAnswer;
use crate::events::Note;
use crate::plan::{self, CutAsk};
use crate::records::{CutRecord, CutState, Key, Write};
use crate::refusal::refuse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::control::{ClientAnswer, OsdDown, Refusal};
use types::cut::{Cut, CutEnd, CutRefusal, CutStep, SnapshotOrder};
use types::planted::{Bug, on};
use types::{CutId, Epoch, OsdId, PgId, SegmentIndex, SessionId, Time, VolumeId, codes};

/// Most cuts that hold volumes at the same time: a PG takes 64.
const HOLDING_MAX: usize = 16;
/// Most requests that wait for their volumes.
const ASKED_MAX: usize = 256;
/// Most times that one request is tried.
const TRIES_MAX: u32 = 3;
/// Pause after which an order of a hold is sent again, and after a refusal: a hold is short.
const HOLD_PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(5));

/// A request of an administrator.
struct Asked {
    /// `None`: its asker is gone.
    token: Option<Token>,
    ask: CutAsk,
    volumes: Vec<VolumeId>,
    until: Time,
    tries: u32,
    /// Why the last try was given up.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Another leader has begun the cut, or the records went back in time since.
    Found,
    /// The PGs are asked what became of it; without an end while a recovery goes on.
    Asking {
        until: Time,
    },
    /// The intent has this revision.
    Confirming {
        revision: u64,
        until: Time,
    },
    Snapping {
        until: Time,
    },
    Releasing {
        until: Time,
    },
    Aborting,
}

/// A cut whose record is there.
struct Running {
    phase: Phase,
    pgs: BTreeSet<PgId>,
    /// PGs whose answer of this phase is missing.
    left: BTreeMap<PgId, Aim>,
    asked: Option<Asked>,
}

/// A client's request for segments of a volume that a cut holds.
struct Parked {
    token: Token,
    volume: VolumeId,
    holder: (SessionId, Epoch),
    segments: Vec<SegmentIndex>,
}

/// All cuts, and what waits for them.
#[derive(Default)]
pub(super) struct Cuts {
    asked: VecDeque<Asked>,
    running: BTreeMap<CutId, Running>,
    parked: Vec<Parked>,
    wake: Option<Time>,
}

impl Cuts {
    /// Returns when a cut is due.
    pub fn wake(&self) -> Time {
        self.wake.unwrap_or(Time::NEVER)
    }

    /// Makes the orders for a PG due at once: it has a new leader.
    pub fn wake_pg(&mut self, pg: PgId) {
        self.running.values_mut().filter_map(|running| running.left.get_mut(&pg)).for_each(Aim::again);
    }

    /// Drops a waiting answer whose asker is gone. A cut that has begun goes on.
    pub fn cancel(&mut self, token: Token) {
        self.asked.retain(|asked| asked.token != Some(token));
        self.parked.retain(|parked| parked.token != token);
        let its = self.running.values_mut().filter_map(|running| running.asked.as_mut());
        its.filter(|asked| asked.token == Some(token)).for_each(|asked| asked.token = None);
    }
}

impl Control {
    /// Finds the cuts of the leader before.
    pub(super) fn take_up_cuts(&mut self) {
        for cut in self.records.cuts.values() {
            let pgs = plan::pgs_of_cut(&self.records, cut);
            let phase = if cut.state == CutState::Holding { Phase::Found } else { Phase::Aborting };
            let left = pgs.iter().map(|pg| (*pg, Aim::default())).collect();
            self.cuts.running.insert(cut.id, Running { phase, pgs, left, asked: None });
        }
    }

    /// Whether a cut holds the volume, so that it comes to no PG and no attach record of it may be sent.
    pub(super) fn holds(&self, volume: VolumeId) -> bool {
        let holds = |cut: &CutRecord| cut.state == CutState::Holding && cut.has(volume);
        self.records.cuts.values().any(holds) && !on(Bug::AllocationDuringCut)
    }

    /// Takes a request for snapshots; it is answered when they are ready, or when they are given up.
    pub(super) fn ask_cut(&mut self, now: Now, token: Token, ask: CutAsk) -> Result<(), Refusal> {
        let volumes = plan::cut_volumes(&self.records, &ask)?.into_keys().collect();
        if self.cuts.asked.len() >= ASKED_MAX {
            return Err(refuse(codes::META_BUSY, "too many snapshots wait for their volumes"));
        }
        let until = now.mono + self.config.cut_patience;
        self.cuts.asked.push_back(Asked { token: Some(token), ask, volumes, until, tries: 0, why: None });
        Ok(())
    }

    /// Keeps a client's request for segments until the cut of the volume ends.
    pub(super) fn park(
        &mut self,
        token: Token,
        volume: VolumeId,
        holder: (SessionId, Epoch),
        segments: Vec<SegmentIndex>,
    ) {
        if self.cuts.parked.len() < self.config.waits_max {
            return self.cuts.parked.push(Parked { token, volume, holder, segments });
        }
        let refusal = refuse(codes::META_BUSY, "too many replies are queued");
        self.answer(token, ClientAnswer::Refused(refusal));
    }

    /// Advances all cuts, begins those whose volumes are free, and takes up what waited for a cut.
    pub(super) fn drive_cuts(&mut self, now: Now) {
        let ids: Vec<CutId> = self.cuts.running.keys().copied().collect();
        let due = ids.into_iter().map(|id| self.drive_cut(now, id)).min().unwrap_or(Time::NEVER);
        let due = due.min(self.admit_cuts(now)).min(self.unpark(now.mono));
        self.cuts.wake = Some(due);
    }

    /// Takes up the requests whose volumes no cut holds any more; returns when the rest is due.
    fn unpark(&mut self, now: Time) -> Time {
        let (held, mut free): (Vec<Parked>, VecDeque<Parked>) = {
            let (held, free): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.cuts.parked).into_iter().partition(|parked| self.holds(parked.volume));
            (held, free.into())
        };
        self.cuts.parked = held;
        while !self.batch.is_full()
            && let Some(Parked { token, volume, holder, segments }) = free.pop_front()
        {
            self.take_segments(token, volume, holder, segments, true);
        }
        let due = if free.is_empty() { Time::NEVER } else { now };
        self.cuts.parked.extend(free);
        due
    }

    /// Refuses what waits for a cut: the store went back in time. What became of a cut is asked when the records are trusted again.
    pub(super) fn drop_cuts(&mut self, refusal: &Refusal) {
        let mut asked: Vec<Asked> = std::mem::take(&mut self.cuts.asked).into();
        for running in self.cuts.running.values_mut().filter(|running| running.phase != Phase::Aborting) {
            running.phase = Phase::Found;
            asked.extend(running.asked.take());
        }
        for asked in asked {
            asked.token.into_iter().for_each(|token| self.answer_admin(token, Err(refusal.clone())));
        }
        for parked in std::mem::take(&mut self.cuts.parked) {
            self.answer(parked.token, ClientAnswer::Refused(refusal.clone()));
        }
    }

    /// Advances one cut; returns when it is due again.
    fn drive_cut(&mut self, now: Now, id: CutId) -> Time {
        loop {
            let Some(record) = self.records.cuts.get(&id).cloned() else {
                self.cuts.running.remove(&id);
                return Time::NEVER;
            };
            let running = self.cuts.running.get(&id).expect("each cut of the records runs");
            let (phase, answered) = (running.phase, running.left.is_empty());
            if self.batch.is_full() {
                return now.mono;
            }
            match phase {
                Phase::Found => self.begin_phase(id, Phase::Asking { until: Time::NEVER }),
                Phase::Asking { until: Time::NEVER } if !self.is_recovering(&record) => {
                    let running = self.cuts.running.get_mut(&id).expect("it was just seen");
                    running.phase = Phase::Asking { until: now.mono + self.config.grace };
                }
                Phase::Confirming { revision, until } => {
                    let is_recorded = self.records.counters.revision >= revision;
                    if is_recorded && self.agreed() >= revision {
                        self.begin_phase(id, Phase::Snapping { until: now.mono + self.config.cut_hold_max });
                    } else if now.mono >= until {
                        self.give_up_cut(now, &record, "fewer than a majority of the OSDs confirm it", true);
                    } else {
                        return until;
                    }
                }
                Phase::Snapping { .. } if answered => {
                    self.begin_phase(id, Phase::Releasing { until: now.mono + self.config.cut_release_max });
                }
                Phase::Releasing { .. } | Phase::Asking { .. } if answered => self.end_cut(now, &record),
                Phase::Snapping { until } | Phase::Releasing { until } | Phase::Asking { until }
                    if now.mono >= until =>
                {
                    let missing = self.cuts.running[&id].left.keys().next().map(PgId::to_string).unwrap_or_default();
                    self.give_up_cut(now, &record, &format!("PG {missing} did not answer in time"), true);
                }
                Phase::Aborting if answered => self.write(vec![Write::Delete(Key::Cut(id))]),
                Phase::Snapping { until } | Phase::Releasing { until } | Phase::Asking { until } => {
                    return self.send_cut(now.mono, &record, phase).min(until);
                }
                Phase::Aborting => return self.send_cut(now.mono, &record, phase),
            }
        }
    }

    /// Whether a recovery has a volume of the cut: the cut may have ended long ago, and its PGs may come late.
    fn is_recovering(&self, record: &CutRecord) -> bool {
        record.items.iter().any(|item| self.records.volumes.get(&item.volume).is_some_and(|v| v.recovering))
    }

    fn begin_phase(&mut self, id: CutId, phase: Phase) {
        let running = self.cuts.running.get_mut(&id).expect("it was just seen");
        running.phase = phase;
        running.left = running.pgs.iter().map(|pg| (*pg, Aim::default())).collect();
    }

    /// Sends the order of a phase to the PGs that have not answered; returns when one is sent next.
    fn send_cut(&mut self, now: Time, record: &CutRecord, phase: Phase) -> Time {
        let items: std::sync::Arc<[_]> = record.items.clone().into();
        let (cut, created_ms) = (record.id, record.since_ms);
        let order = match phase {
            Phase::Releasing { .. } => SnapshotOrder::Release { cut, end: CutEnd::Release, items },
            Phase::Aborting => SnapshotOrder::Release { cut, end: CutEnd::Abort, items },
            Phase::Asking { .. } => SnapshotOrder::Release { cut, end: CutEnd::TimedOut, items },
            _ => SnapshotOrder::Cut(Cut { id: cut, created_ms, items }),
        };
        let pauses = match phase {
            Phase::Aborting => (self.config.attach_resend, self.config.attach_retry),
            Phase::Asking { .. } => (self.config.attach_retry, self.config.attach_retry),
            _ => HOLD_PAUSES,
        };
        let mut left = std::mem::take(&mut self.cuts.running.get_mut(&cut).expect("it was just seen").left);
        // A PG goes with its pool.
        left.retain(|pg, _| self.records.pgs.contains_key(pg));
        for (pg, aim) in left.iter_mut().filter(|(_, aim)| aim.at <= now) {
            let target = self.target(*pg, aim);
            aim.sent(now, target.is_some(), pauses);
            let Some(stream) = target else { continue };
            let down = OsdDown::Snapshots { pg: *pg, order: order.clone() };
            match phase {
                Phase::Aborting => self.say(stream, down),
                // It rests on the intent alone, and a hold waits for no other transaction.
                _ => self.urgent.push(ControlAction::ToOsd { stream, down }),
            }
        }
        let due = left.values().map(|aim| aim.at).min().unwrap_or(now);
        self.cuts.running.get_mut(&cut).expect("it was just seen").left = left;
        due
    }

    /// Takes the answer of a PG about a cut.
    pub(super) fn take_cut(
        &mut self,
        now: Now,
        from: OsdId,
        pg: PgId,
        cut: CutId,
        result: Result<CutStep, CutRefusal>,
    ) {
        let Some(running) = self.cuts.running.get_mut(&cut) else { return };
        let phase = running.phase;
        let retry = if phase == Phase::Aborting { self.config.attach_retry } else { HOLD_PAUSES.1 };
        let Some(aim) = running.left.get_mut(&pg) else { return };
        let why = match (phase, result) {
            (Phase::Found | Phase::Confirming { .. }, _) => return,
            (Phase::Snapping { .. }, Ok(CutStep::Snapped)) if on(Bug::ReleasedTooEarly) => return running.left.clear(),
            (Phase::Snapping { .. }, Ok(CutStep::Snapped))
            | (Phase::Releasing { .. } | Phase::Asking { .. }, Ok(CutStep::Released))
            | (Phase::Aborting, Ok(CutStep::Aborted)) => {
                running.left.remove(&pg);
                return;
            }
            (Phase::Releasing { .. }, Ok(CutStep::Aborted | CutStep::Lapsed)) if on(Bug::AbortTakenForRelease) => {
                running.left.remove(&pg);
                return;
            }
            (_, Err(CutRefusal::NotLeader { hint })) => return aim.not_leader(now.mono, from, hint, retry),
            // A second `Cut` may come behind the end of the first one: only steps are verdicts.
            (_, Err(CutRefusal::Busy)) | (Phase::Aborting | Phase::Releasing { .. } | Phase::Asking { .. }, Err(_)) => {
                return aim.at = now.mono + retry;
            }
            (_, Ok(CutStep::Lapsed | CutStep::Aborted)) if phase != Phase::Aborting => {
                (format!("PG {pg} has held its writes for too long"), true)
            }
            // Another try ends like this one.
            (_, Err(refusal)) => (format!("PG {pg}: {refusal}"), refusal == CutRefusal::Open),
            // The answer to an order of an earlier phase that was sent twice.
            (_, Ok(_)) => return,
        };
        if let Some(record) = self.records.cuts.get(&cut).cloned() {
            let (why, again) = why;
            self.give_up_cut(now, &record, &why, again);
        }
    }

    /// Gives up a cut. Its request is tried `again` while it has time.
    fn give_up_cut(&mut self, now: Now, record: &CutRecord, why: &str, again: bool) {
        if self.batch.is_full() {
            // It ends at its time.
            return;
        }
        let (names, by) = self.names_of_cut(record, None);
        self.write(plan::cut_give_up(&self.records, record));
        self.begin_phase(record.id, Phase::Aborting);
        self.attaching.wake_all();
        let asked = self.cuts.running.get_mut(&record.id).and_then(|running| running.asked.take());
        let Some(asked) = asked.map(|asked| Asked { why: Some(why.to_owned()), ..asked }) else {
            // An earlier leader began it, and its asker is gone.
            return self.note_failed(now, &names, by, why);
        };
        match again && asked.tries < TRIES_MAX && now.mono < asked.until && asked.token.is_some() {
            true => self.cuts.asked.push_front(asked),
            false => self.refuse_cut(now, asked, refuse(codes::CUT_FAILED, why)),
        }
    }

    /// Answers a request whose snapshots will not be made.
    fn refuse_cut(&mut self, now: Now, asked: Asked, refusal: Refusal) {
        if refusal.code == codes::CUT_FAILED {
            let why = asked.why.as_deref().unwrap_or("its PGs did not take it");
            self.note_failed(now, &asked.ask.names, asked.ask.by.clone(), why);
        }
        if let Some(token) = asked.token {
            self.answer_admin(token, Err(refusal));
        }
    }

    fn note_failed(&mut self, now: Now, names: &[String], by: String, why: &str) {
        let text = format!("snapshot {} was given up: {why}", names.join(", "));
        self.note(now, Note { by, ..Note::warning("snapshot.failed", subject(names), text) });
    }

    /// Returns the names of the snapshots of a cut, and their asker; from the records if the request is gone.
    fn names_of_cut(&self, record: &CutRecord, asked: Option<&Asked>) -> (Vec<String>, String) {
        if let Some(Asked { ask, .. }) = asked {
            return (ask.names.clone(), ask.by.clone());
        }
        let all = plan::snapshots_of_cut(&self.records, record);
        let by = all.clone().next().map_or_else(String::new, |s| s.by.clone());
        (all.map(|s| self.snapshot_view(s).name).collect(), by)
    }

    /// Records the end of a cut that all PGs have released.
    fn end_cut(&mut self, now: Now, record: &CutRecord) {
        self.write(plan::cut_end(&self.records, record));
        self.attaching.wake_all();
        let running = self.cuts.running.remove(&record.id).expect("it was just seen");
        let (names, by) = self.names_of_cut(record, running.asked.as_ref());
        let note = Note::info("snapshot.created", subject(&names), format!("snapshot {} is made", names.join(", ")));
        self.note(now, Note { by, ..note });
        if let Some(token) = running.asked.and_then(|asked| asked.token) {
            let views = plan::snapshots_of_cut(&self.records, record).map(|s| self.snapshot_view(s)).collect();
            self.answer_admin(token, Ok(AdminAnswer::SnapshotsChanged(views)));
        }
    }

    /// Begins the cuts whose volumes are free; returns when the first request that waits has waited for too long.
    fn admit_cuts(&mut self, now: Now) -> Time {
        let (mut waiting, mut due) = (VecDeque::new(), Time::NEVER);
        for asked in std::mem::take(&mut self.cuts.asked) {
            if self.batch.is_full() {
                waiting.push_back(asked);
                continue;
            }
            match self.cut_waits_for(now, &asked) {
                None => match plan::cut_volumes(&self.records, &asked.ask) {
                    Ok(named) if named.keys().eq(&asked.volumes) => self.begin_cut(now, asked),
                    // Its names belong to other volumes by now.
                    Ok(named) => {
                        let volumes = named.into_keys().collect();
                        due = now.mono;
                        waiting.push_back(Asked { volumes, ..asked });
                    }
                    Err(refusal) => self.refuse_cut(now, asked, refusal),
                },
                Some(_) if now.mono < asked.until => waiting.push_back(asked),
                Some(reason) => {
                    let refusal = match &asked.why {
                        Some(why) => refuse(codes::CUT_FAILED, why),
                        None => refuse(codes::VOLUME_BUSY, format!("no snapshot was made: {reason}")),
                    };
                    self.refuse_cut(now, asked, refusal);
                }
            }
        }
        self.cuts.asked = waiting;
        self.cuts.asked.iter().map(|asked| asked.until).fold(due, Time::min)
    }

    /// Says what keeps a request waiting; `None` when its cut can begin, or is to be refused.
    fn cut_waits_for(&self, now: Now, asked: &Asked) -> Option<String> {
        let holding = self.records.cuts.values().filter(|cut| cut.state == CutState::Holding).count();
        if holding >= HOLDING_MAX {
            return Some(format!("{holding} other snapshots are being made"));
        }
        asked.volumes.iter().find_map(|volume| self.changes_now(now, *volume))
    }

    /// Whether the PG takes part in a cut that holds its volumes.
    pub(super) fn is_cutting(&self, pg: PgId) -> bool {
        let holds = |running: &Running| running.phase != Phase::Aborting && running.pgs.contains(&pg);
        self.cuts.running.values().any(holds)
    }

    /// Says what keeps a volume from a cut now.
    fn changes_now(&self, now: Now, volume: VolumeId) -> Option<String> {
        let known = self.records.volumes.get(&volume)?;
        let name = self.records.full_name(known);
        if known.resize.is_some() {
            return Some(format!("volume {name:?} is being resized"));
        }
        if self.records.cut_of(volume).is_some() {
            return Some(format!("another snapshot of volume {name:?} is being made, or given up"));
        }
        let pending = self.records.loads_of(volume).any(|(_, load)| load.pending > 0);
        if !known.settled || self.attaching.is_busy(volume) || pending {
            return Some(format!("PGs of volume {name:?} take an attach record"));
        }
        let is_led = |pg: PgId| self.is_led(now.mono, pg) && self.is_in_touch(pg);
        let unled = self.records.loads_of(volume).map(|(pg, _)| pg).find(|pg| !is_led(*pg));
        unled.map(|pg| format!("PG {pg} of volume {name:?} has no leader that serves"))
    }

    fn begin_cut(&mut self, now: Now, asked: Asked) {
        let (writes, record) = match plan::cut_begin(&self.records, &asked.ask, now.wall_ms) {
            Ok(planned) => planned,
            Err(refusal) => return self.refuse_cut(now, asked, refusal),
        };
        self.write(writes);
        let revision = self.records.counters.revision.saturating_add(1);
        let phase = Phase::Confirming { revision, until: now.mono + self.config.majority_patience };
        let pgs = plan::pgs_of_cut(&self.records, &record);
        let asked = Some(Asked { tries: asked.tries + 1, ..asked });
        self.cuts.running.insert(record.id, Running { phase, pgs, left: BTreeMap::new(), asked });
    }
}

/// Returns the subject of the event of a cut: its volume, or the first of them.
fn subject(names: &[String]) -> String {
    let name = names.first().map_or("", String::as_str);
    format!("volume {}", name.split_once('@').map_or(name, |(volume, _)| volume))
}
