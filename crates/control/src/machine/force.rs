//! Forced recovery of a PG that has lost its majority for good (ADR 0020).
//!
//! The order is a record. While it stands, old sessions of the PG end if writes may be lost, and then the replica gets the order
//! again and again. Its report as the only member ends it: all others are dropped, and their places are filled like those of
//! replicas that have failed. A PG that is led again before that needs no forced recovery, and the order is given up.

use super::{Control, Now};
use crate::admin::{ForceMemberView, ForceView, PgForce};
use crate::events::Note;
use crate::plan;
use crate::records::{ForceRecord, PgRecord, VolumeRecord};
use crate::refusal::refuse;
use types::codes;
use types::control::{OsdDown, PgReport, Refusal};
use types::map::Member;
use types::planted::{Bug, on};
use types::{Index, OsdId, PgId, Term, Time};

/// Volumes whose sessions one step ends.
const VOLUMES_PER_STEP: usize = 20;
/// Most volumes that a view names.
const VOLUMES_SHOWN: usize = 100;

/// A member of the PG, as forced recovery sees it.
struct Candidate {
    member: Member,
    is_up: bool,
    /// What keeps it from a full part in the PG.
    trouble: Option<&'static str>,
    /// Last entry of its log, if the PG can go on from it.
    end: Option<(Term, Index)>,
}

impl Candidate {
    fn is_whole(&self) -> bool {
        self.trouble.is_none() && self.end.is_some()
    }
}

impl Control {
    fn candidates(&self, now: Time, record: &PgRecord) -> Vec<Candidate> {
        let candidate = |member: Member| {
            let report = self.reports.get(&member.replica);
            let is_up = self.is_up(now, member.osd);
            let is = |of: fn(&PgReport) -> bool| report.is_some_and(of);
            let trouble = match report {
                _ if !is_up => Some("down"),
                None => Some("not reported"),
                Some(_) if is(|r| r.quarantined) => Some("failed"),
                Some(_) if is(|r| r.repairing) => Some("repairing"),
                Some(_) => None,
            };
            let end = report.filter(|r| is_up && !r.quarantined).and_then(|r| r.end);
            Candidate { member, is_up, trouble, end }
        };
        record.everyone().map(candidate).collect()
    }

    /// Makes a replica the only member of its PG, or says what that would cost.
    ///
    /// # Errors
    /// BSLT-2044 for an unknown PG. BSLT-2048 when the PG serves or may serve soon, when no replica can be kept, and when
    /// acknowledged writes may be lost and `accept_loss` is not set.
    pub(super) fn force_pg(&mut self, now: Now, ask: &PgForce) -> Result<ForceView, Refusal> {
        let pg = ask.pg;
        let cannot = |why: String| refuse(codes::BAD_FORCE, why);
        let record = self.records.pgs.get(&pg);
        let record = record.ok_or_else(|| refuse(codes::PG_UNKNOWN, format!("there is no PG {pg}")))?.clone();
        let state = self.pg_state(now.mono, &record);
        if state.contains(&"active") {
            return Err(cannot(format!("PG {pg} serves: nothing is to be recovered")));
        }
        if state.contains(&"waiting") || state.contains(&"creating") {
            return Err(cannot(format!("PG {pg} is {}: it may serve by itself; try again later", state.join("+"))));
        }
        let lost_link = |osd: OsdId| self.osds.get(&osd).is_none_or(|live| live.stream.is_none());
        let leaving = record.everyone().map(|m| m.osd).find(|osd| self.is_up(now.mono, *osd) && lost_link(*osd));
        if let Some(osd) = leaving {
            return Err(cannot(format!("{osd} left a moment ago, and may return: try again when it counts as down")));
        }
        let candidates = self.candidates(now.mono, &record);
        let able = candidates.iter().filter(|c| c.end.is_some() && ask.osd.is_none_or(|osd| osd == c.member.osd));
        // Of two with equal logs the one that is whole.
        let keep = able.max_by_key(|c| (c.end, c.is_whole(), std::cmp::Reverse(c.member.replica)));
        let Some(keep) = keep else {
            let of = ask.osd.map_or_else(|| "no member of it".to_owned(), |osd| osd.to_string());
            return Err(cannot(format!("PG {pg} cannot go on: {of} is up with contents that the PG had at some time")));
        };
        let volumes = self.records.volumes_of(pg.pool);
        let volumes: Vec<&VolumeRecord> =
            volumes.filter(|v| self.records.segments_of(v.id).any(|segment| segment.pg == pg)).collect();
        let lossless = volumes.is_empty() || is_lossless(&record, &candidates, keep);
        let view = ForceView {
            pg,
            keep: keep.member.osd,
            lossless,
            members: candidates.iter().map(member_view).collect(),
            sessions: volumes.iter().filter(|v| v.session.0 != 0).count() as u64,
            volume_count: volumes.len() as u64,
            volumes: volumes.iter().take(VOLUMES_SHOWN).map(|v| self.records.full_name(v)).collect(),
            ordered: !ask.dry_run,
        };
        if ask.dry_run {
            return Ok(view);
        }
        if !lossless && !ask.accept_loss {
            return Err(cannot(format!("acknowledged writes of {} volumes may be lost", view.volume_count)));
        }
        let (writes, ()) = plan::pg_force(&self.records, pg, keep.member, !lossless)?;
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
        let lead = self.leads.get(&pg).filter(|_| self.is_led(now.mono, pg));
        if lead.is_some_and(|lead| lead.report.members.floor < force.floor) {
            self.write(plan::give_up_force(record));
            let text = format!("PG {pg} has a leader again: its forced recovery is given up");
            return self.note(now, Note::info("pg.force_cancelled", format!("pg {pg}"), text));
        }
        if force.fence && self.end_sessions(now, record, forced) && !on(Bug::ForcedWithoutFence) {
            self.changing.insert(pg, Time::ZERO);
            return;
        }
        let stream = self.osds.get(&force.keep.osd).and_then(|live| live.stream);
        if let Some(stream) = stream {
            self.say(stream, OsdDown::ForceMembers { pg, force });
        }
    }

    /// Ends some sessions from before a forced recovery that may lose writes; their clients must open the volumes again. False
    /// when none is left.
    fn end_sessions(&mut self, now: Now, record: &PgRecord, forced: &ForceRecord) -> bool {
        let old: Vec<VolumeRecord> = plan::unfenced(&self.records, record, forced, VOLUMES_PER_STEP).cloned().collect();
        for volume in &old {
            let writes = plan::fence_volume(&self.records, volume, forced.sessions_below);
            self.write(writes);
            if volume.session.0 != 0 && volume.session < forced.sessions_below {
                let name = self.records.full_name(volume);
                let text = format!("the forced recovery of PG {} ended the session on volume {name}", record.pg);
                self.note_volume(now, volume.id, Note::warning("volume.detached", format!("volume {name}"), text));
                self.forget_holder(volume.id);
            }
            self.attach_everywhere(volume.id);
        }
        !old.is_empty()
    }

    /// Queues new replicas in the places of those that forced recoveries have given up, on OSDs that serve again. Places on OSDs
    /// that are out are filled elsewhere, by the plan of moves.
    pub(super) fn refill_vacant(&mut self, now: Now) {
        let vacant = self.records.pgs.values().filter(|record| !record.vacant.is_empty());
        let due: Vec<PgRecord> = vacant.filter(|record| self.is_led(now.mono, record.pg)).cloned().collect();
        for record in due {
            if self.batch.is_full() {
                return;
            }
            let stays = |osd| self.records.osds.get(osd).is_some_and(|known| !known.leaves());
            let ready = record.vacant.iter().find(|osd| stays(osd) && self.takes_replicas(now.mono, **osd));
            if let Some(writes) = ready.and_then(|osd| plan::refill(&record, *osd)) {
                self.write(writes);
                self.changing.insert(record.pg, Time::ZERO);
            }
        }
    }

    /// Returns whether the forced recovery of a PG is under way.
    pub(super) fn is_forced(&self, pg: PgId) -> bool {
        self.records.pgs.get(&pg).is_some_and(|record| record.forced.is_some())
    }
}

/// Whether the log of `keep` has every committed entry: the members that cannot say what they have are too few to have committed
/// one by themselves, and no log of the others is further. Raft compares logs for votes in the same way. A change of members that
/// is under way leaves open which members commit.
fn is_lossless(record: &PgRecord, all: &[Candidate], keep: &Candidate) -> bool {
    let whole = all.iter().filter(|c| c.is_whole());
    let unknown = all.len() - whole.clone().count();
    record.change.is_none()
        && keep.is_whole()
        && unknown < all.len() / 2 + 1
        && whole.map(|c| c.end).max() == Some(keep.end)
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
