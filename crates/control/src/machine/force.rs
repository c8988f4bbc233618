//! Forced recovery of a PG that has lost its majority for good (ADR 0020).
//!
//! A command orders it. A PG of two of which one replica has failed gets the order by itself: nothing is lost, and joint consensus
//! cannot replace the failed replica, because each step needs both. The order is a record. While it stands, old sessions of the PG end if writes may be lost, and then the replica gets the order
//! again and again. Its report as the only member ends it: all others are dropped, and their places are filled like those of
//! replicas that have failed. A PG that is led again before that needs no forced recovery, and the order is given up.

use super::past::Standing;
use super::{Control, Now, StreamId};
use crate::admin::{ForceMemberView, ForceView, PgForce};
use crate::events::Note;
use crate::plan::{self, ForceOrder};
use crate::records::{ForceRecord, PgRecord, VolumeRecord};
use crate::refusal::refuse;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use types::codes;
use types::control::{OsdDown, PgReport, Refusal};
use types::map::{ForceMembers, Member};
use types::{Epoch, Index, OsdId, PgId, ReplicaId, Term, Time};

/// Volumes whose sessions one step ends.
const VOLUMES_PER_STEP: usize = 20;
/// Most volumes that a view names.
const VOLUMES_SHOWN: usize = 100;

/// State of a replica that has failed, in views.
const FAILED: &str = "failed";

fn cannot(why: String) -> Refusal {
    refuse(codes::BAD_FORCE, why)
}

/// A member of the PG, as forced recovery sees it.
struct Candidate {
    member: Member,
    is_up: bool,
    /// Reason why it has no full part in the PG.
    trouble: Option<&'static str>,
    /// Last entry of its log, if the PG can go on from it.
    end: Option<(Term, Index)>,
    /// Floor of its members, as it has reported.
    floor: ReplicaId,
    /// Its members are not from before a forced recovery that other replicas of the PG know.
    is_current: bool,
}

impl Candidate {
    fn is_whole(&self) -> bool {
        self.trouble.is_none() && self.end.is_some()
    }

    fn has_failed(&self) -> bool {
        self.trouble == Some(FAILED)
    }
}

impl Control {
    fn candidate(&self, now: Time, member: Member) -> Candidate {
        let Member { replica, osd } = member;
        // An OSD that said Hello without the replica has lost it: an older report says nothing.
        let is_missing = self.osds.get(&osd).is_some_and(|live| live.missing.contains_key(&replica));
        let report = self.reports.get(&replica).filter(|_| !is_missing);
        let is_up = self.is_up(now, osd);
        let trouble = match report {
            _ if !is_up => Some("down"),
            None => Some("not reported"),
            Some(report) if report.quarantined => Some(FAILED),
            Some(report) if report.repairing => Some("repairing"),
            Some(report) if report.floor < self.seen_floor(report.pg) => Some("ended"),
            Some(_) => None,
        };
        let is_current = report.is_some_and(|report| report.floor >= self.seen_floor(report.pg));
        // The log of a failed replica may be one of an earlier moment.
        let end = report.filter(|_| is_up).and_then(|report| report.end);
        let floor = report.map_or(ReplicaId(0), |report| report.floor);
        Candidate { member, is_up, trouble, end, floor, is_current }
    }

    fn candidates(&self, now: Time, record: &PgRecord) -> Vec<Candidate> {
        record.members.iter().map(|member| self.candidate(now, *member)).collect()
    }

    /// Whether a PG may be forced: it does not serve, and no member that may let it serve is about to report.
    ///
    /// # Errors
    /// The reason, in words.
    fn may_force(&self, now: Time, record: &PgRecord) -> Result<(), String> {
        let (pg, state) = (record.pg, self.pg_state(now, record));
        if state.contains(&"active") {
            return Err(format!("PG {pg} serves: nothing is to be recovered"));
        }
        if state.contains(&"waiting") || state.contains(&"creating") && self.is_young(now, record) {
            return Err(format!("PG {pg} is {}: it may serve by itself; try again later", state.join("+")));
        }
        // Reports of an earlier process say nothing about this one.
        match record.everyone().map(|m| m.osd).find(|osd| self.is_up(now, *osd) && !self.is_heard(*osd)) {
            Some(osd) => Err(format!("PG {pg} may serve by itself: {osd} left or came a moment ago; try again later")),
            None => Ok(()),
        }
    }

    /// Makes a replica the only member of its PG, or says what that would cost.
    ///
    /// # Errors
    /// BSLT-2044 for an unknown PG. BSLT-2048 when the PG serves or may serve soon, when no replica can be kept, when acknowledged
    /// writes may be lost and `accept_loss` is not set, and when more would be lost than the last dry run showed.
    pub(super) fn force_pg(&mut self, now: Now, ask: &PgForce) -> Result<ForceView, Refusal> {
        let pg = ask.pg;
        let record = self.records.pgs.get(&pg);
        let record = record.ok_or_else(|| refuse(codes::PG_UNKNOWN, format!("there is no PG {pg}")))?.clone();
        self.may_force(now.mono, &record).map_err(cannot)?;
        let candidates = self.candidates(now.mono, &record);
        let able = candidates.iter().filter(|c| c.end.is_some() && ask.osd.is_none_or(|osd| osd == c.member.osd));
        // The timeline that goes on comes before a further log, and a whole replica before a failed one with an equal log.
        let loses_nothing = |c: &Candidate| is_lossless(&record, &candidates, c);
        let keep =
            able.max_by_key(|c| (loses_nothing(c), c.is_current, c.end, c.is_whole(), Reverse(c.member.replica)));
        let Some(keep) = keep else {
            let of = ask.osd.map_or_else(|| "no member of it".to_owned(), |osd| osd.to_string());
            return Err(cannot(format!("PG {pg} cannot go on: {of} is up with contents that the PG had at some time")));
        };
        let volumes = self.records.volumes_of(pg.pool);
        let volumes: Vec<&VolumeRecord> = volumes
            .filter(|v| self.records.segments_of(v.id).any(|segment| segment.pgs().any(|of| of == pg)))
            .collect();
        let is_safe = loses_nothing(keep);
        let lossless = volumes.is_empty() || is_safe;
        let view = ForceView {
            pg,
            keep: keep.member.osd,
            lossless,
            members: candidates.iter().map(member_view).collect(),
            sessions: volumes.iter().map(|v| v.writers().len() as u64).sum(),
            volume_count: volumes.len() as u64,
            volumes: volumes.iter().take(VOLUMES_SHOWN).map(|v| self.records.full_name(v)).collect(),
            ordered: !ask.dry_run,
        };
        let end = keep.end.expect("only replicas with an end are able");
        if ask.dry_run {
            self.shown.insert((pg, ask.osd), end);
            return Ok(view);
        }
        if !lossless && !ask.accept_loss {
            return Err(cannot(format!("acknowledged writes of {} volumes may be lost", view.volume_count)));
        }
        if let Some(shown) = self.shown.get(&(pg, ask.osd)).filter(|shown| !lossless && end < **shown) {
            let (osd, shown, end) = (keep.member.osd, end_words(*shown), end_words(end));
            let text = format!(
                "a dry run showed a log that ends at {shown}, and that of {osd} ends at {end}; repeat the dry run"
            );
            return Err(cannot(text));
        }
        let done = self.reports.get(&keep.member.replica).and_then(void_floor_of(&record));
        // A replica ignores an order without a fence when its own log does not show that nothing is lost. Consent then helps.
        let stands_unfenced = record.forced.as_ref().is_some_and(|forced| !forced.force.fence);
        let fence = !is_safe || ask.accept_loss && stands_unfenced;
        let order = ForceOrder { keep: keep.member, end, fence, automatic: false, done };
        let (writes, ()) = plan::pg_force(&self.records, pg, order)?;
        if !writes.is_empty() {
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            let cost = if lossless { "no acknowledged write is lost" } else { "acknowledged writes may be lost" };
            let osd = keep.member.osd;
            let text = format!("by command PG {pg} is to go on from its replica on {osd} alone: {cost}");
            self.note(now, Note::warning("pg.force_recover", format!("pg {pg}"), text));
        }
        Ok(view)
    }

    /// Takes the next step of a forced recovery.
    pub(super) fn drive_force(&mut self, now: Now, record: &PgRecord, forced: &ForceRecord) {
        let (pg, force) = (record.pg, forced.force);
        self.changing.insert(pg, now.mono + self.config.orders_every);
        if self.is_led(now.mono, pg) {
            self.write(plan::give_up_force(record));
            let text = format!("PG {pg} has a leader again: its forced recovery is given up");
            return self.note(now, Note::info("pg.force_cancelled", format!("pg {pg}"), text));
        }
        if let Some(why) = self.has_lost(now.mono, &force) {
            self.write(plan::give_up_force(record));
            let text = format!("the forced recovery of PG {pg} is given up: {why}");
            return self.note(now, Note::warning("pg.force_cancelled", format!("pg {pg}"), text));
        }
        if !forced.fenced {
            let writes = if self.end_sessions(now, record, forced) { Vec::new() } else { plan::note_fenced(record) };
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            return;
        }
        if self.may_force(now.mono, record).is_err() || !self.is_in_order(now.mono, record, forced) {
            return;
        }
        let stream = self.osds.get(&force.keep.osd).and_then(|live| live.stream);
        if let Some(stream) = stream {
            self.say(stream, OsdDown::ForceMembers { pg, force });
        }
    }

    /// Whether what a forced recovery was ordered for still holds.
    fn is_in_order(&self, now: Time, record: &PgRecord, forced: &ForceRecord) -> bool {
        let candidates = self.candidates(now, record);
        let has_all = |c: &&Candidate| c.member == forced.force.keep && c.end >= Some(forced.force.end);
        match candidates.iter().find(has_all) {
            Some(keep) if forced.automatic => self.may_go_on_alone(now, record, &candidates, keep),
            Some(keep) => forced.force.fence || is_lossless(record, &candidates, keep),
            None => false,
        }
    }

    /// Says what the replica that is to be kept has lost since the order was made, as its present process reports.
    fn has_lost(&self, now: Time, force: &ForceMembers) -> Option<String> {
        let ForceMembers { keep, end, .. } = *force;
        let keep = Some(self.candidate(now, keep)).filter(|c| c.is_up && self.is_heard(c.member.osd))?;
        let osd = keep.member.osd;
        match keep.end {
            Some(now) if now < end => {
                let (end, now) = (end_words(end), end_words(now));
                Some(format!(
                    "the log of the replica on {osd} ended at {end} when it was ordered, and ends at {now} now"
                ))
            }
            None if keep.has_failed() => Some(format!("the replica on {osd} has no contents any more that the PG had")),
            _ => None,
        }
    }

    /// Whether the other replica of a PG of two has failed, as its present process reports, and the PG loses nothing when it goes
    /// on from this one. A PG of one that gets a second replica is one of two, too: the joint phase needs both.
    fn may_go_on_alone(&self, now: Time, record: &PgRecord, all: &[Candidate], keep: &Candidate) -> bool {
        let comes = record.change.as_ref().filter(|_| all.len() == 1).map(|change| change.add);
        let comes = comes.map(|add| self.candidate(now, add));
        let other = all.iter().chain(&comes).find(|c| c.member != keep.member);
        other.is_some_and(Candidate::has_failed) && is_lossless(record, all, keep)
    }

    /// Whether a PG of two, or of one that gets a second replica, goes on without a loss from the replica that is not on this OSD
    /// ([`Control::go_on_alone`]), as that one's present process reports.
    pub(super) fn goes_on_without(&self, now: Time, record: &PgRecord, osd: OsdId) -> bool {
        let all = self.candidates(now, record);
        let mut others = all.iter().filter(|c| c.member.osd != osd);
        let Some(twin) = others.next().filter(|_| all.len() <= 2 && others.next().is_none()) else { return false };
        self.is_heard(twin.member.osd) && is_lossless(record, &all, twin)
    }

    /// Whether the present process of an OSD has reported.
    pub(super) fn is_heard(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|live| live.stream.is_some() && live.reported)
    }

    /// Orders the forced recovery of a PG of two of which one replica has failed, unless the PG serves or may serve. True when a
    /// change of its members cannot replace the failed replica.
    pub(super) fn go_on_alone(&mut self, now: Now, pg: PgId, failed: Member) -> bool {
        let Some(record) = self.records.pgs.get(&pg).filter(|record| record.members.len() <= 2) else { return false };
        let is_voter = record.members.contains(&failed);
        if record.forced.is_some() || !self.has_settled(now.mono, record) || self.may_force(now.mono, record).is_err() {
            return is_voter;
        }
        let all = self.candidates(now.mono, record);
        let keep = all.iter().find(|c| self.may_go_on_alone(now.mono, record, &all, c));
        let Some((keep, end)) = keep.and_then(|c| Some((c.member, c.end?))) else { return is_voter };
        let order = ForceOrder { keep, end, fence: false, automatic: true, done: None };
        let Ok((writes, ())) = plan::pg_force(&self.records, pg, order) else { return is_voter };
        self.write(writes);
        self.changing.insert(pg, Time::ZERO);
        self.note_replaced(now.mono, (pg, failed.osd));
        let text = format!(
            "the replica of PG {pg} on {} has failed: the PG is to go on from its other replica on {} alone, and no \
             acknowledged write is lost",
            failed.osd, keep.osd
        );
        self.note(now, Note::warning("pg.force_recover", format!("pg {pg}"), text));
        true
    }

    /// Whether the OSDs of a PG that are up have been connected for long enough to elect a leader.
    fn has_settled(&self, now: Time, record: &PgRecord) -> bool {
        let connected = |osd: OsdId| self.osds.get(&osd).map(|live| live.connected);
        let up = record.everyone().map(|m| m.osd).filter(|osd| self.is_up(now, *osd));
        up.filter_map(connected).all(|at| now.since(at) >= self.config.election)
    }

    /// Ends some sessions from before a forced recovery that may lose writes; their clients must open the volumes again. False
    /// when none is left.
    fn end_sessions(&mut self, now: Now, record: &PgRecord, forced: &ForceRecord) -> bool {
        let old: Vec<VolumeRecord> = plan::unfenced(&self.records, record, forced, VOLUMES_PER_STEP).cloned().collect();
        for volume in &old {
            let writes = plan::fence_volume(&self.records, volume, forced.sessions_below);
            self.write(writes);
            let ended = volume.holders().filter(|(of, _)| of.session < forced.sessions_below);
            let ended: Vec<String> = ended.map(|(_, holder)| holder.to_string()).collect();
            if !ended.is_empty() {
                let (name, of) = (self.records.full_name(volume), ended.join(", "));
                let text =
                    format!("the forced recovery of PG {} ended the session of {of} on volume {name}", record.pg);
                self.note_volume(now, volume.id, Note::warning("volume.detached", format!("volume {name}"), text));
                self.forget_leases(volume.id);
            }
            self.attach_everywhere(volume.id);
        }
        !old.is_empty()
    }

    /// Queues new replicas in the places of those that forced recoveries have given up, on OSDs that serve again, as many as each
    /// may receive at once. Places on OSDs that are out are filled elsewhere, by the plan of moves.
    pub(super) fn refill_vacant(&mut self, now: Now) {
        let filled_on = |record: &PgRecord| {
            let change = record.change.as_ref().filter(|c| c.remove.0 == 0).map(|c| c.to);
            change.or_else(|| record.queue.first().filter(|(from, _)| record.vacant.contains(from)).map(|(_, to)| *to))
        };
        let mut filling: BTreeMap<OsdId, usize> = BTreeMap::new();
        for osd in self.records.pgs.values().filter_map(filled_on) {
            *filling.entry(osd).or_default() += 1;
        }
        let backfills = self.records.config.osd_backfills(&self.config);
        let vacant: Vec<PgId> = self.records.pgs.values().filter(|r| !r.vacant.is_empty()).map(|r| r.pg).collect();
        for pg in vacant {
            let Some(record) = self.records.pgs.get(&pg).filter(|_| self.is_led(now.mono, pg)) else { continue };
            let known = |osd: &OsdId| self.records.osds.get(osd);
            let stays = |osd: &OsdId| known(osd).is_some_and(|known| !self.records.must_leave(pg.pool, known));
            let has_room = |osd: &OsdId| filling.get(osd).copied().unwrap_or(0) < backfills;
            // A copy on a device whose replicas fail again and again takes the PG down each time.
            let waits =
                |osd: OsdId| self.replaced.get(&(pg, osd)).is_some_and(|last| last.1 > 0 && self.waits(now.mono, last));
            let ready =
                |osd: &&OsdId| has_room(osd) && stays(osd) && self.takes_replicas(now.mono, **osd) && !waits(**osd);
            let ready = record.vacant.iter().find(ready).copied();
            if let Some((osd, writes)) = ready.and_then(|osd| Some((osd, plan::refill(record, osd)?))) {
                *filling.entry(osd).or_default() += 1;
                self.write(writes);
                self.changing.insert(pg, Time::ZERO);
            }
            if self.batch.is_full() {
                return;
            }
        }
    }

    /// Whether a replica reports that it has carried out a forced recovery that was given up since. Its PG may have gone on without
    /// it, so it is not heard before a command names it again.
    pub(super) fn is_void(&self, report: &PgReport) -> bool {
        self.records.pgs.get(&report.pg).is_some_and(|record| void_floor_of(record)(report).is_some())
    }

    /// Takes the report of such a replica. When the PG is led by another one, it has failed, and is replaced.
    pub(super) fn take_void(&mut self, now: Time, stream: StreamId, osd: OsdId, report: PgReport) {
        let PgReport { pg, replica, .. } = report;
        let is_led = self.is_led(now, pg) && self.leads.get(&pg).is_some_and(|lead| lead.osd != osd);
        let record = self.records.pgs.get(&pg).filter(|_| is_led && self.standing() == Standing::Sound);
        let Some(record) = record.filter(|_| !self.batch.is_full()) else {
            self.reports.insert(replica, report);
            return;
        };
        // Its replacement is a record before the replica is gone.
        let writes = plan::replace_failed(record, replica).unwrap_or_default();
        self.write(writes);
        self.changing.insert(pg, Time::ZERO);
        let keep = self.may_keep(osd, pg, true);
        self.say(stream, OsdDown::DropReplica { pg, replica, keep });
        self.reports.insert(replica, PgReport { quarantined: true, leading: None, end: None, ..report });
    }
}

/// Returns the floor and the epoch of the members that a replica leads alone, after a forced recovery that was given up.
fn void_floor_of(record: &PgRecord) -> impl Fn(&PgReport) -> Option<(ReplicaId, Epoch)> {
    |report| {
        let members = &report.leading.as_ref()?.members;
        record.is_void(members.floor).then_some((members.floor, members.epoch))
    }
}

/// Whether the log of `keep` has every committed entry, and the others commit none without it.
///
/// Another member that an earlier order named may have gone on alone, unseen. Whether `keep` itself has done so, its floor tells.
/// A replica that is no member any more has not (ADR 0020).
fn is_lossless(record: &PgRecord, all: &[Candidate], keep: &Candidate) -> bool {
    let named = record.voided.iter().map(|void| void.keep).chain(record.forced.iter().map(|forced| forced.force.keep));
    let untouched = !named.into_iter().any(|of| of != keep.member && record.everyone().any(|m| m == of));
    let furthest = all.iter().filter(|c| c.is_whole()).map(|c| c.end).max();
    let is_sure = untouched && !record.is_void(keep.floor);
    is_sure && keep.is_whole() && is_needed(record, keep.member) && furthest == Some(keep.end)
}

/// Whether nothing commits without this member: it is one of at most two voters. A change of members that is under way may have
/// come to any step, so that holds before it and after it.
fn is_needed(record: &PgRecord, member: Member) -> bool {
    let is_one_of_two = |set: &[Member]| set.len() <= 2 && set.contains(&member);
    let after = record.change.as_ref().map(|change| {
        let stays = record.members.iter().copied().filter(|m| m.replica != change.remove);
        stays.chain([change.add]).collect::<Vec<Member>>()
    });
    is_one_of_two(&record.members) && after.is_none_or(|set| is_one_of_two(&set))
}

fn end_words((term, index): (Term, Index)) -> String {
    format!("entry {} of term {}", index.0, term.0)
}

fn member_view(candidate: &Candidate) -> ForceMemberView {
    ForceMemberView {
        osd: candidate.member.osd,
        replica: candidate.member.replica,
        up: candidate.is_up,
        state: candidate.trouble.unwrap_or("whole").to_owned(),
        end: candidate.end,
    }
}
