//! Drives changes of the members of PGs (ADR 0016).
//!
//! A change is a record. While it stands, its order goes to the leader of the PG again and again, under any leader of meta. Only
//! the report of a leader ends it; then the replica that left is destroyed, and the next change of the queue begins.

use super::osds::Liveness;
use super::{Control, Now};
use crate::admin::{PgChangeView, PgMove, PlannedMove};
use crate::events::Note;
use crate::plan;
use crate::records::{ChangeReason, ChangeRecord, OsdRecord, PgRecord};
use placement::ReplicaMove;
use std::time::Duration;
use types::control::{OsdDown, PgReport, Refusal};
use types::map::{Member, MemberChange, Membership};
use types::planted::{Bug, on};
use types::{OsdId, PgId, ReplicaId, Time};

/// Most times that the pause between two replacements of replicas of one PG is doubled.
const REPLACE_DOUBLINGS_MAX: u32 = 6;

impl Control {
    /// Finds the changes that an earlier leader has begun or queued.
    pub(super) fn take_up_changes(&mut self) {
        let open =
            self.records.pgs.values().filter(|pg| pg.change.is_some() || !pg.queue.is_empty() || pg.forced.is_some());
        self.changing = open.map(|pg| (pg.pg, Time::ZERO)).collect();
    }

    /// Queues a move. Returns it, unless it is queued already.
    pub(super) fn move_pg(&mut self, now: Now, ask: &PgMove) -> Result<Vec<PlannedMove>, Refusal> {
        let takes = |osd: OsdId| self.takes_replicas(now.mono, osd);
        let (writes, ()) = plan::pg_move(&self.records, ask, &takes)?;
        let PgMove { pg, from, to, dry_run } = *ask;
        let bytes = || self.replica_sizes().get(&from).copied().unwrap_or(0);
        let planned = (!writes.is_empty()).then(|| PlannedMove { pg, from, to: Some(to), bytes: bytes() });
        if !writes.is_empty() && !dry_run {
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            let text = format!("the replica of PG {pg} on {from} is to move to {to}");
            self.note(now, Note::info("pg.move", format!("pg {pg}"), text));
        }
        Ok(planned.into_iter().collect())
    }

    pub(super) fn cancel_move(&mut self, now: Now, pg: PgId) -> Result<(), Refusal> {
        let (writes, ()) = plan::pg_move_cancel(&self.records, pg)?;
        if !writes.is_empty() {
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            let text = format!("the moves of PG {pg} are given up; one that is nearly done ends as ordered");
            self.note(now, Note::info("pg.move_cancelled", format!("pg {pg}"), text));
        }
        Ok(())
    }

    /// Queues the replacement of replicas that have failed (R4). A PG without a leader cannot change its members, and one of its
    /// changes at a time is enough.
    pub(super) fn replace_failed(&mut self, now: Now) {
        if self.replace_at > now.mono {
            return;
        }
        self.replace_at = now.mono + self.config.ensure_every;
        self.refill_vacant(now);
        let forgotten_after = self.replace_pause(REPLACE_DOUBLINGS_MAX) * 2;
        self.replaced.retain(|_, (at, _)| now.mono.since(*at) < forgotten_after);
        let failed: Vec<(PgId, ReplicaId)> =
            self.reports.values().filter(|r| r.quarantined).map(|r| (r.pg, r.replica)).collect();
        for (pg, replica) in failed {
            if self.batch.is_full() {
                self.replace_at = now.mono;
                return;
            }
            let Some(record) = self.records.pgs.get(&pg) else { continue };
            let Some(member) = record.everyone().find(|m| m.replica == replica) else { continue };
            if self.go_on_alone(now, pg, member) {
                continue;
            }
            let osd = member.osd;
            let is_move = |m: &ReplicaMove| (m.pg, m.from) == (pg, osd) && m.to.is_some();
            let moves = self.moves.iter().any(|planned| is_move(&planned.of));
            let waits = self.replaced.get(&(pg, osd)).is_some_and(|last| self.waits(now.mono, last));
            // An OSD without a connection makes no replica now, and a change that is given up counts for the pause.
            let connected = self.osds.get(&osd).is_some_and(|live| live.stream.is_some());
            let takes = connected && self.takes_replicas(now.mono, osd);
            if moves || waits || !takes || !self.is_led(now.mono, pg) {
                continue;
            }
            let record = self.records.pgs.get(&pg);
            let Some(writes) = record.and_then(|record| plan::replace_failed(record, replica)) else { continue };
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            self.note_replaced(now.mono, (pg, osd));
            let text = format!("the replica of PG {pg} on {osd} has failed, and is replaced by a new one");
            self.note(now, Note::warning("pg.replica_failed", format!("pg {pg}"), text));
        }
    }

    fn replace_pause(&self, times: u32) -> Duration {
        self.config.replace_pause * 2u32.pow(times.min(REPLACE_DOUBLINGS_MAX))
    }

    /// Whether the next replacement has to wait for the pause after this one.
    pub(super) fn waits(&self, now: Time, (at, times): &(Time, u32)) -> bool {
        now.since(*at) < self.replace_pause(*times)
    }

    /// Returns how long the failed replicas wait for their replacement, because others in their places have failed shortly before.
    pub fn replacement_pause_for_tools(&self, now: Time) -> Duration {
        let failed = self.reports.values().filter(|report| report.quarantined);
        let osd_of = |pg, replica| self.records.pgs.get(&pg)?.everyone().find(|m| m.replica == replica).map(|m| m.osd);
        let last = failed.filter_map(|r| self.replaced.get(&(r.pg, osd_of(r.pg, r.replica)?)));
        let ends = last.map(|(at, times)| *at + self.replace_pause(*times));
        ends.max().map_or(Duration::ZERO, |end| end.since(now))
    }

    /// Notes the replacement of a replica. One that fails again and again has a reason that no copy ends.
    pub(super) fn note_replaced(&mut self, now: Time, of: (PgId, OsdId)) {
        let times = self.replaced.get(&of).map_or(0, |(_, times)| times.saturating_add(1));
        self.replaced.insert(of, (now, times));
    }

    /// Whether a change cannot end, or is not needed any more. It begins again when it must, and other changes of the PG do not
    /// wait for it.
    fn is_in_vain(&self, now: Time, record: &PgRecord) -> bool {
        let Some(change) = record.change.as_ref().filter(|change| !change.cancel) else { return false };
        let Some(target) = self.records.osds.get(&change.to).filter(|osd| osd.poisoned.is_none()) else { return true };
        let report = self.reports.get(&change.remove);
        let runs = report.is_some_and(|report| !report.quarantined && !report.repairing);
        if change.from == change.to {
            // Its device had not recorded yet that it failed.
            return runs || self.liveness(now, change.to) == Liveness::Down;
        }
        let must_leave = |osd: &OsdRecord| self.records.must_leave(record.pg.pool, osd);
        let stays = change.reason == ChangeReason::Leaving
            && self.records.osds.get(&change.from).is_some_and(|osd| !must_leave(osd))
            && self.is_up(now, change.from)
            && runs;
        let is_gone = self.away_for(now, change.to).is_some_and(|time| time >= self.config.move_patience)
            && !self.is_up(now, change.to);
        let is_full = self.osds.get(&change.to).is_some_and(|live| live.full);
        stays || must_leave(target) && !on(Bug::MovesToLeaving) || is_gone || is_full
    }

    /// Whether a leader that can change the members serves the PG.
    pub(super) fn is_led(&self, now: Time, pg: PgId) -> bool {
        self.leads.get(&pg).is_some_and(|lead| lead.report.active && self.is_up(now, lead.osd))
    }

    /// Whether an OSD is up and has space.
    pub(super) fn takes_replicas(&self, now: Time, osd: OsdId) -> bool {
        let poisoned = self.records.osds.get(&osd).is_none_or(|record| record.poisoned.is_some());
        !poisoned && self.is_up(now, osd) && !self.osds.get(&osd).is_some_and(|live| live.full)
    }

    /// Takes over members that leaders report, begins changes that wait, and repeats the orders of those that stand.
    pub(super) fn drive_changes(&mut self, now: Now) {
        let due: Vec<PgId> = self.changing.iter().filter(|(_, at)| **at <= now.mono).map(|(pg, _)| *pg).collect();
        for pg in due {
            if self.batch.is_full() {
                return;
            }
            let record = self.records.pgs.get(&pg).cloned();
            let members = self.leads.get(&pg).map(|lead| lead.report.members.clone());
            match (record, members) {
                (Some(record), Some(members)) if self.take_members(now, &record, &members) => {}
                (Some(PgRecord { forced: Some(forced), .. }), _) if !self.batch.is_full() => {
                    let record = self.records.pgs.get(&pg).cloned();
                    record.into_iter().for_each(|record| self.drive_force(now, &record, &forced));
                }
                (Some(record), _) if self.is_in_vain(now.mono, &record) || self.is_cut_off(now.mono, &record) => {
                    self.give_up(now.mono, &record);
                }
                (Some(record), _) if record.change.is_some() => self.order_change(now.mono, &record),
                // A change that has begun cannot be taken back without a leader, and may leave open which members decide.
                (Some(record), _) if !record.queue.is_empty() && !self.is_led(now.mono, pg) => {
                    self.changing.insert(pg, now.mono + self.config.orders_every);
                }
                (Some(record), _) if !record.queue.is_empty() => self.begin_change(now, &record),
                _ => {
                    self.changing.remove(&pg);
                    self.cut_off.remove(&pg);
                }
            }
        }
    }

    fn begin_change(&mut self, now: Now, record: &PgRecord) {
        let pg = record.pg;
        let (writes, given_up) = plan::begin_change(&self.records, record, now.wall_ms);
        self.write(writes);
        for (from, to) in given_up {
            let text = format!("the move from {from} to {to} is not possible any more");
            self.note(now, Note::warning("pg.not_moved", format!("pg {pg}"), text));
        }
        self.expect_newcomer(pg);
    }

    /// Notes that the leader of a PG reports other members than the record has: [`Control::drive_changes`] takes them over when
    /// the records are trusted and the transaction has room.
    pub(super) fn note_members(&mut self, pg: PgId, members: &Membership) {
        let Some(record) = self.records.pgs.get(&pg).filter(|record| record.conf_epoch < members.epoch) else { return };
        // A change that stands goes on at its own pace.
        if members.is_settled() || record.change.is_none() {
            self.changing.insert(pg, Time::ZERO);
        }
    }

    /// Whether a replica that the records do not know leads its PG as a member: the records went back in time (R17).
    pub(super) fn is_newer_member(&self, osd: OsdId, report: &PgReport) -> bool {
        let Some(lead) = report.leading.as_ref().filter(|lead| lead.members.is_settled()) else { return false };
        let newer = self.records.pgs.get(&report.pg).is_some_and(|record| record.conf_epoch < lead.members.epoch);
        newer && lead.members.voters.contains(&Member { replica: report.replica, osd })
    }

    /// Lets the next upkeep request the replica that a change adds.
    pub(super) fn expect_newcomer(&mut self, pg: PgId) {
        let Some(add) = self.records.pgs.get(&pg).and_then(|record| record.change.as_ref()).map(|c| c.add) else {
            return;
        };
        let live = self.osds.entry(add.osd).or_default();
        live.missing.insert(add.replica, pg);
        live.ensure_at = Time::ZERO;
        self.say_peers(pg);
    }

    /// Lets the OSDs of a PG connect with each other.
    fn say_peers(&mut self, pg: PgId) {
        let osds: Vec<OsdId> =
            self.records.pgs.get(&pg).into_iter().flat_map(|r| r.everyone()).map(|m| m.osd).collect();
        for osd in &osds {
            if let Some(stream) = self.osds.get(osd).and_then(|live| live.stream) {
                let others = osds.iter().copied().filter(|other| other != osd).collect();
                self.say(stream, OsdDown::Peers(others));
            }
        }
    }

    fn order_change(&mut self, now: Time, record: &PgRecord) {
        self.changing.insert(record.pg, now + self.config.orders_every);
        let Some(change) = &record.change else { return };
        // A leader adds a replica that exists: one that does not would only cost the log of the PG.
        if !change.cancel && !self.reports.contains_key(&change.add.replica) {
            return;
        }
        let remove = (change.remove.0 != 0).then_some(change.remove);
        let (expected, add, cancel) = (change.expected, Some(change.add), change.cancel);
        self.say_change(record.pg, MemberChange { expected, add, remove, cancel });
    }

    fn say_change(&mut self, pg: PgId, change: MemberChange) {
        let stream = self.leads.get(&pg).and_then(|lead| self.osds.get(&lead.osd)).and_then(|live| live.stream);
        if let Some(stream) = stream {
            self.say(stream, OsdDown::ChangeMembers { pg, change });
        }
    }

    /// Takes over the members that the leader of a PG reports, or voids a change that the record does not know. True when
    /// nothing else is to be done now.
    fn take_members(&mut self, now: Now, record: &PgRecord, members: &Membership) -> bool {
        let pg = record.pg;
        let Some((writes, gone, done)) = plan::take_members(record, members) else {
            let added = record.change.as_ref().map(|change| change.add);
            let strange = members.learners.iter().any(|learner| Some(*learner) != added);
            if strange {
                // These records went back in time.
                self.changing.insert(pg, now.mono + self.config.ensure_every);
                let expected = members.change_base();
                self.say_change(pg, MemberChange { expected, add: None, remove: None, cancel: true });
            }
            return strange;
        };
        self.write(writes);
        // Moves that the cluster plans by itself have no event each: `osd.out` and `osd.emptied` frame them.
        let by_itself = |c: &&ChangeRecord| matches!(c.reason, ChangeReason::Leaving | ChangeReason::Balance) && done;
        if let Some(change) = record.change.as_ref().filter(|change| !by_itself(change)) {
            let (from, to) = (change.from, change.to);
            let note = match done {
                true => {
                    let by = if from == to { "a new one there".to_owned() } else { to.to_string() };
                    Note::info("pg.moved", format!("pg {pg}"), format!("the replica on {from} was replaced by {by}"))
                }
                false => {
                    let text = format!("the move from {from} to {to} was given up: the members are as before");
                    Note::warning("pg.not_moved", format!("pg {pg}"), text)
                }
            };
            self.note(now, note);
        }
        let is_forced = members.floor > record.floor;
        if is_forced {
            self.shown.retain(|(of, _), _| *of != pg);
            let osds = members.voters.iter().map(|m| m.osd.to_string()).collect::<Vec<_>>().join(", ");
            let text = format!("PG {pg} goes on from its replica on {osds}; its other replicas are made anew");
            self.note(now, Note::warning("pg.forced", format!("pg {pg}"), text));
        }
        let gone: Vec<_> = gone.into_iter().map(|member| (pg, member)).collect();
        // New replicas in their places are compared with what they had.
        self.drop_members(&gone, is_forced);
        self.changing.insert(pg, Time::ZERO);
        true
    }

    /// Returns the change of a PG, for display.
    pub(super) fn change_view(&self, record: &PgRecord) -> Option<PgChangeView> {
        let queued = u32::try_from(record.queue.len()).unwrap_or(u32::MAX);
        let Some(change) = &record.change else {
            let (from, to) = *record.queue.first()?;
            let reason = if from == to { ChangeReason::Failed } else { ChangeReason::Command };
            return Some(PgChangeView {
                from,
                to,
                step: "queued".to_owned(),
                queued,
                reason: reason.name().to_owned(),
            });
        };
        let members = self.leads.get(&record.pg).map(|lead| &lead.report.members);
        let members = members.filter(|members| members.change_base() == change.expected);
        let step = match members {
            Some(members) if members.is_joint() => "joint",
            Some(members) if members.left => "ending",
            _ if change.cancel => "cancelling",
            Some(members) if !members.learners.is_empty() => "learner",
            _ => "creating",
        };
        let (from, to, reason) = (change.from, change.to, change.reason.name().to_owned());
        Some(PgChangeView { from, to, step: step.to_owned(), queued, reason })
    }
}
