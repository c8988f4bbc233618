//! The streams of OSDs: liveness, replicas held, leaders of PGs.

use super::flow::Flow;
use super::past::Weighed;
use super::{Control, ControlAction, Now, Standing, StreamId};
use crate::events::Note;
use crate::plan;
use crate::records::{OsdRecord, PgRecord};
use crate::refusal::refuse;
use std::collections::{BTreeMap, BTreeSet};
use types::codes;
use types::control::{LeadReport, OsdDown, OsdHeartbeat, OsdHello, OsdUp, PgReport, Refusal};
use types::map::Member;
use types::planted::{Bug, on};
use types::{OsdId, PgId, ReplicaId, Term, Time};

/// Characters of a version that are kept.
const VERSION_LEN_MAX: usize = 64;

/// Volatile state of a running OSD; lost when another meta leads.
#[derive(Default)]
pub(super) struct OsdLive {
    pub stream: Option<StreamId>,
    pub heard: Option<Time>,
    pub used_bytes: u64,
    pub free_bytes: u64,
    pub full: bool,
    pub destage_stuck: Option<String>,
    pub slow_device: Option<String>,
    /// Whether a heartbeat came on this stream.
    pub reported: bool,
    /// Since when its stream is open.
    pub connected: Time,
    /// Since when a process on an older device asks while its PGs are served without it, and when it asked last.
    pub asked_as_older: Option<(Time, Time)>,
    pub flow: Flow,
    /// Version named at the start of its stream, cut at [`VERSION_LEN_MAX`].
    pub version: String,
    pub unreachable: Vec<OsdId>,
    /// Replicas that it should hold and has not reported.
    pub missing: BTreeMap<ReplicaId, PgId>,
    pub ensure_at: Time,
    /// The floor of replica ids that was last sent on this stream.
    pub floor: ReplicaId,
    /// Replicas that its Hello listed.
    pub replicas: Vec<(PgId, ReplicaId)>,
    /// PGs of which it keeps the contents of a removed replica.
    pub kept: BTreeSet<PgId>,
    /// Log position of this run, as last heard, and the time when it is recorded next (R17).
    pub log_seq: u64,
    pub position_at: Time,
    /// The revision that its Hello remembered; `None` when its device no longer needs a proof.
    pub unproven: Option<u64>,
}

/// The latest leader of a PG, by its own report.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub osd: OsdId,
    pub term: Term,
    pub report: LeadReport,
    /// Since when it leads; for a leader that ceased to serve, since then.
    pub since: Time,
}

/// Whether an OSD lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    Up,
    Down,
    /// This leader is new and has not heard the OSD yet.
    Unknown,
}

/// Whether only the revision that the device remembers can show that it is the current one.
fn needs_proof(hello: &OsdHello) -> bool {
    !hello.device.let_in && !hello.device.restored
}

impl Control {
    pub(super) fn liveness(&self, now: Time, osd: OsdId) -> Liveness {
        match self.osds.get(&osd).and_then(|live| live.heard) {
            Some(heard) if now.since(heard) < self.config.down_after => Liveness::Up,
            Some(_) => Liveness::Down,
            None if now.since(self.started.mono) < self.config.grace => Liveness::Unknown,
            None => Liveness::Down,
        }
    }

    pub(super) fn take_osd(&mut self, now: Now, stream: StreamId, up: OsdUp, at: Time) {
        if let OsdUp::Hello(hello) = up {
            return self.take_hello(now, stream, &hello, at);
        }
        let Some(osd) = self.streams.get(&stream).copied() else {
            // The stream was refused or replaced before this message was read.
            return self.held.push(ControlAction::CloseOsd { stream });
        };
        if let Some(live) = self.osds.get_mut(&osd) {
            live.heard = live.heard.max(Some(at));
        }
        match up {
            OsdUp::Hello(_) => unreachable!("taken above"),
            OsdUp::Heartbeat(heartbeat) => self.take_heartbeat(now, stream, osd, heartbeat),
            OsdUp::Remembers(seen) => self.take_remembers(osd, seen),
            OsdUp::Attached { pg, order, result } => self.take_attached(now.mono, osd, pg, order, result),
            OsdUp::Snapshots { pg, answer } => self.take_snapshots(now, osd, pg, answer),
        }
    }

    /// Refuses a second process of one OSD: the one that is alive stays. The newcomer, which may run on a copy of the
    /// device, asks again. A process that died without closing its stream counts as alive until it has been silent for
    /// `ControlConfig::down_after`.
    fn check_rival(&self, stream: StreamId, hello: &OsdHello, now: Time) -> Result<(), Refusal> {
        let Some(known) = self.records.osds.get(&hello.osd).filter(|k| k.uuid == hello.uuid) else { return Ok(()) };
        let Some(live) = self.osds.get(&hello.osd).filter(|l| l.stream.is_some_and(|old| old != stream)) else {
            return Ok(());
        };
        let alive = live.heard.is_some_and(|heard| now.since(heard) < self.config.down_after);
        if known.incarnation == hello.incarnation || !alive {
            return Ok(());
        }
        let addr = known.addr.map_or_else(|| "an unknown address".to_owned(), |addr| addr.to_string());
        let text = format!("another process serves {} from {addr}; is this device a copy?", hello.osd);
        Err(refuse(codes::OSD_OTHER_LIFE, text))
    }

    /// Records the log position of the last run: this leader may have heard a newer one than the record holds.
    fn record_position(&mut self, osd: OsdId) {
        let heard = self.osds.get(&osd).map_or(0, |live| live.log_seq);
        let writes = plan::osd_position(&self.records, osd, heard);
        self.record(writes);
    }

    /// Whether the records can judge this Hello now. If not, the OSD is told so, and its stream is closed.
    fn can_judge(&mut self, now: Time, stream: StreamId, hello: &OsdHello) -> bool {
        let weighed = self.weigh(now, hello);
        if self.standing() == Standing::Behind {
            self.hold_unproven();
        }
        match weighed {
            Weighed::Judge if self.is_unproven(hello) => self.hold(stream, hello.seen.revision),
            Weighed::Judge => return true,
            Weighed::Later if self.is_unproven(hello) => self.hold(stream, hello.seen.revision),
            Weighed::Later => self.held.push(ControlAction::CloseOsd { stream }),
            Weighed::Malformed => {
                let text = format!("{} reports watermarks that this cluster never reached", hello.osd);
                self.refuse_osd(stream, refuse(codes::BAD_REQUEST, text));
            }
        }
        false
    }

    fn take_hello(&mut self, now: Now, stream: StreamId, hello: &OsdHello, at: Time) {
        if !self.can_judge(now.mono, stream, hello) {
            return;
        }
        self.record_position(hello.osd);
        let planned = self.check_rival(stream, hello, at).and_then(|()| plan::osd_hello(&self.records, hello));
        let (writes, plan) = match planned {
            Ok(planned) => planned,
            Err(refusal) if refusal.code == codes::DEVICE_BEHIND => {
                return self.take_older_device(now, stream, hello, refusal);
            }
            Err(refusal) => return self.refuse_osd(stream, refusal),
        };
        self.note_restart(now, hello);
        let is_new_run = self.records.osds.get(&hello.osd).is_none_or(|o| o.incarnation != hello.incarnation);
        self.hear(hello);
        self.record(writes);
        if let Some(old) = self.osds.get(&hello.osd).and_then(|l| l.stream).filter(|old| *old != stream) {
            self.streams.remove(&old);
            let reason = "a newer connection of this OSD replaced this one".to_string();
            self.say(old, OsdDown::Refused { code: codes::OSD_OTHER_LIFE, reason });
            self.held.push(ControlAction::CloseOsd { stream: old });
        }
        self.streams.insert(stream, hello.osd);
        self.leads.retain(|_, lead| lead.osd != hello.osd);
        let there: BTreeSet<ReplicaId> = hello.replicas.iter().map(|(_, replica)| *replica).collect();
        let mut missing = BTreeMap::new();
        for pg in self.records.pgs.values() {
            let here = pg.everyone().filter(|m| m.osd == hello.osd && !there.contains(&m.replica));
            missing.extend(here.map(|m| (m.replica, pg.pg)));
        }
        let live = self.osds.entry(hello.osd).or_default();
        if is_new_run {
            live.kept.clear();
        }
        live.stream = Some(stream);
        live.version = hello.version.chars().take(VERSION_LEN_MAX).collect();
        live.heard = Some(at);
        live.reported = false;
        live.connected = at;
        live.asked_as_older = None;
        live.missing = missing;
        live.ensure_at = Time::ZERO;
        live.floor = ReplicaId(0);
        live.log_seq = hello.device.durable_seq;
        live.position_at = at + self.config.position_every;
        live.replicas.clone_from(&hello.replicas);
        live.unproven = needs_proof(hello).then_some(hello.seen.revision);
        self.moves_at = self.moves_at.min(now.mono + self.config.moves_every);
        if self.standing() == Standing::Behind && needs_proof(hello) {
            // It may have been held before enough OSDs showed that it remembers as much as a current device.
            let reason = self.behind_reasons().join("; ");
            self.say(stream, OsdDown::Behind { reason, hold: false });
        }
        if self.standing() != Standing::Sound {
            return self.judge(now.mono);
        }
        if let Some((from, to)) = &plan.moved {
            let text = format!("{} moved: it was registered at {from} and reports from {to}", hello.osd);
            self.note(now, Note::warning("osd.moved", hello.osd, text));
        }
        if plan.map_changed {
            self.say_osds();
        }
        self.welcome(hello.osd);
    }

    /// Tells the OSD the reason and closes its stream.
    pub(super) fn refuse_osd(&mut self, stream: StreamId, refusal: Refusal) {
        self.say(stream, OsdDown::Refused { code: refusal.code, reason: refusal.message });
        self.held.push(ControlAction::CloseOsd { stream });
    }

    /// Whether the device of this Hello may be an older copy. Records that went back hold old positions, too (R17). Until
    /// they are recovered, a process that no meta has let in is held when other OSDs remember more than it does.
    fn is_unproven(&self, hello: &OsdHello) -> bool {
        let ours = hello.cluster == self.records.cluster_id();
        ours && self.standing() == Standing::Behind && needs_proof(hello) && hello.seen.revision < self.proof()
    }

    fn hold(&mut self, stream: StreamId, seen: u64) {
        let reason = format!(
            "the metadata store went back in time, this device has recorded revision {seen}, others {}: \
             it may be an older copy",
            self.proof()
        );
        self.say(stream, OsdDown::Behind { reason, hold: true });
        self.held.push(ControlAction::CloseOsd { stream });
    }

    /// Holds OSDs that said Hello before one that remembers more did ([`Control::is_unproven`]).
    pub(super) fn hold_unproven(&mut self) {
        let proof = self.proof();
        let unproven = |(osd, live): (&OsdId, &mut OsdLive)| {
            let seen = live.unproven.filter(|seen| *seen < proof)?;
            Some((*osd, live.stream.take()?, seen))
        };
        let held: Vec<(OsdId, StreamId, u64)> = self.osds.iter_mut().filter_map(unproven).collect();
        for (osd, stream, seen) in held {
            self.streams.remove(&stream);
            self.past.heard.remove(&osd);
            self.hold(stream, seen);
        }
    }

    /// Sends the address map to an OSD and drops its stray replicas, once the records are trusted.
    pub(super) fn welcome(&mut self, osd: OsdId) {
        let Some((stream, replicas)) = self.osds.get(&osd).and_then(|live| Some((live.stream?, live.replicas.clone())))
        else {
            return;
        };
        if let Some(live) = self.osds.get_mut(&osd) {
            live.unproven = None;
        }
        let (map_epoch, osds) = (self.records.counters.map_epoch, self.records.addresses());
        self.say(stream, OsdDown::Welcome { map_epoch, osds });
        self.say(stream, OsdDown::Remember(self.records.counters.watermarks()));
        let shared = self.records.pgs.values().filter(|pg| pg.everyone().any(|m| m.osd == osd));
        let peers: BTreeSet<OsdId> = shared.flat_map(PgRecord::everyone).map(|m| m.osd).filter(|o| *o != osd).collect();
        self.say(stream, OsdDown::Peers(peers.into_iter().collect()));
        self.say_all_limits(stream);
        for (pg, replica) in replicas {
            self.drop_if_stray(stream, osd, (pg, replica), true);
        }
        self.attaching.wake_all();
    }

    /// Records that a new process took the place of another before that one was called down.
    fn note_restart(&mut self, now: Now, hello: &OsdHello) {
        let osd = hello.osd;
        let Some(known) = self.records.osds.get(&osd) else { return };
        let again = known.addr.is_some() && known.incarnation != hello.incarnation;
        let words = self.records.watch.osds.get(&osd).map_or("", String::as_str);
        // Otherwise an `osd.up` event reports it, again or for the first time.
        let told = words.split(' ').any(|w| matches!(w, "down" | "new"));
        if again && !told && self.watch.take(now.mono, &format!("{osd} restarted")) {
            let text = format!("{osd} on {} ({}) runs again, as a new process", known.host, hello.addr);
            self.note(now, Note::info("osd.restarted", osd, text));
        }
    }

    /// Sends the address map to every connected OSD.
    fn say_osds(&mut self) {
        let map_epoch = self.records.counters.map_epoch;
        let osds = self.records.addresses();
        let streams: Vec<StreamId> = self.osds.values().filter_map(|l| l.stream).collect();
        for stream in streams {
            self.say(stream, OsdDown::Osds { map_epoch, osds: osds.clone() });
        }
    }

    fn member(&self, osd: OsdId, pg: PgId, replica: ReplicaId) -> Option<Member> {
        let wanted = Member { replica, osd };
        self.records.pgs.get(&pg).and_then(|pg| pg.everyone().find(|m| *m == wanted))
    }

    /// Whether an OSD keeps the contents of a removed replica, which is noted. It does when it was away while the members
    /// changed, or is out: it may be in again, and get a replica of the PG.
    pub(super) fn may_keep(&mut self, osd: OsdId, pg: PgId, was_away: bool) -> bool {
        let records = &self.records;
        let goes_on = records.pgs.get(&pg).is_some_and(|record| record.everyone().all(|m| m.osd != osd));
        let is_replaced = records.osds.values().any(|other| other.replaces == Some(osd));
        let returns = |known: &OsdRecord| !known.drain && (was_away || !known.is_in);
        let stays = records.osds.get(&osd).is_some_and(returns) && !is_replaced;
        let keep = goes_on && stays;
        if let Some(live) = self.osds.get_mut(&osd) {
            let _ = if keep { live.kept.insert(pg) } else { live.kept.remove(&pg) };
        }
        keep
    }

    /// Drops a replica that is no member, but only when these records gave out its id themselves. A store that lost its
    /// past must not order data away.
    fn drop_if_stray(
        &mut self,
        stream: StreamId,
        osd: OsdId,
        (pg, replica): (PgId, ReplicaId),
        was_away: bool,
    ) -> bool {
        if self.member(osd, pg, replica).is_some() {
            return false;
        }
        let counters = &self.records.counters;
        let lost = counters.lost_replicas.iter().any(|(from, below)| (*from..*below).contains(&replica.0));
        let given = replica.0 < counters.next_replica && pg.pool.0 < counters.next_pool && !lost;
        if given && self.standing() == Standing::Sound {
            // The order may have been given before, and this report sent before it came.
            let is_kept = self.osds.get(&osd).is_some_and(|live| live.kept.contains(&pg));
            let keep = self.may_keep(osd, pg, was_away || is_kept);
            self.say(stream, OsdDown::DropReplica { pg, replica, keep });
        }
        true
    }

    fn take_heartbeat(&mut self, now: Now, stream: StreamId, osd: OsdId, heartbeat: OsdHeartbeat) {
        let recorded = self.records.osds.get(&osd).map_or(0, |known| known.log_seq);
        let reported = self.osds.get(&osd).map_or(0, |live| live.log_seq).max(recorded);
        if heartbeat.log_seq < reported {
            // A virtual machine was set back to a snapshot with its memory: the process is the same, its device is
            // older.
            self.take_osd_gone(stream);
            return self.refuse_osd(stream, plan::log_is_behind(osd, heartbeat.log_seq, reported));
        }
        if let Some(reason) = &heartbeat.poisoned {
            let writes = plan::osd_poisoned(&self.records, osd, reason);
            self.record(writes);
        }
        let known: BTreeSet<OsdId> =
            heartbeat.unreachable.iter().copied().filter(|o| self.records.osds.contains_key(o)).collect();
        let live = self.osds.entry(osd).or_default();
        live.used_bytes = heartbeat.used_bytes;
        live.free_bytes = heartbeat.free_bytes;
        live.full = heartbeat.full;
        live.destage_stuck = heartbeat.destage_stuck;
        live.slow_device = heartbeat.slow_device;
        live.reported = true;
        live.flow.take(now.mono, heartbeat.io, heartbeat.recovery);
        live.unreachable = known.into_iter().collect();
        live.log_seq = heartbeat.log_seq;
        if live.position_at <= now.mono {
            live.position_at = now.mono + self.config.position_every;
            self.record_position(osd);
        }
        for report in heartbeat.pgs {
            self.take_report(now, stream, osd, report);
        }
    }

    fn take_report(&mut self, now: Now, stream: StreamId, osd: OsdId, mut report: PgReport) {
        self.heed_floor(now, &mut report);
        if !self.is_newer_member(osd, &report) && self.drop_if_stray(stream, osd, (report.pg, report.replica), false) {
            return;
        }
        if let Some(live) = self.osds.get_mut(&osd) {
            live.missing.remove(&report.replica);
        }
        let pg = report.pg;
        if self.is_void(&report) {
            return self.take_void(now.mono, stream, osd, report);
        }
        if let Some(lead) = &report.leading {
            self.note_members(pg, &lead.members);
        }
        match (&report.leading, self.leads.get_mut(&pg)) {
            (Some(lead), Some(known)) if known.osd == osd && known.term == report.term => {
                // The leader hands over: the election that follows is given its time.
                known.since = if known.report.active && !lead.active { now.mono } else { known.since };
                known.report = lead.clone();
            }
            // The terms of a timeline that a forced recovery has ended say nothing.
            (Some(lead), Some(known))
                if (known.report.members.floor, known.term) > (lead.members.floor, report.term) => {}
            (Some(lead), _) => {
                let lead = Lead { osd, term: report.term, report: lead.clone(), since: now.mono };
                self.leads.insert(pg, lead);
                self.unled.remove(&pg);
                self.attaching.wake_pg(pg);
                self.cuts.wake_pg(pg);
                self.removals.wake_pg(pg);
                self.flattens.wake_pg(pg);
                self.shrinks.wake_pg(pg);
            }
            (None, Some(known)) if known.osd == osd => {
                self.leads.remove(&pg);
                self.unled.insert(pg, now.mono);
            }
            (None, _) => {}
        }
        self.reports.insert(report.replica, report);
    }

    pub(super) fn take_osd_gone(&mut self, stream: StreamId) {
        let Some(osd) = self.streams.remove(&stream) else { return };
        if let Some(live) = self.osds.get_mut(&osd)
            && live.stream == Some(stream)
        {
            live.stream = None;
        }
    }

    /// Forgets a removed OSD.
    pub(super) fn forget_osd(&mut self, osd: OsdId, map_changed: bool) {
        if let Some(stream) = self.osds.remove(&osd).and_then(|live| live.stream) {
            self.streams.remove(&stream);
            self.held.push(ControlAction::CloseOsd { stream });
        }
        if map_changed {
            self.say_osds();
        }
    }

    /// Takes note of new PGs: the next upkeep requests their replicas.
    pub(super) fn expect_members(&mut self, now: Time, pgs: &[PgId]) {
        self.born.retain(|_, at| now.since(*at) < self.config.grace);
        for pg in pgs {
            self.born.insert(*pg, now);
            let members = self.records.pgs.get(pg).map(|r| r.members.clone()).unwrap_or_default();
            for member in members {
                let live = self.osds.entry(member.osd).or_default();
                live.missing.insert(member.replica, *pg);
                live.ensure_at = Time::ZERO;
            }
        }
    }

    /// Forgets the replicas of a removed pool, and drops them.
    pub(super) fn forget_members(&mut self, gone: &[(PgId, Member)]) {
        for (pg, _) in gone {
            self.leads.remove(pg);
            self.unled.remove(pg);
            self.cuts.wake_pg(*pg);
            self.removals.wake_pg(*pg);
            self.flattens.wake_pg(*pg);
            self.shrinks.wake_pg(*pg);
            self.shown.retain(|(of, _), _| of != pg);
        }
        self.drop_members(gone, false);
        // OSDs with contents of a PG that is no more are no members of it.
        let gone: BTreeMap<PgId, ReplicaId> = gone.iter().map(|(pg, member)| (*pg, member.replica)).collect();
        let mut orders = Vec::new();
        for live in self.osds.values_mut() {
            let kept = live.kept.extract_if(.., |pg| gone.contains_key(pg));
            orders.extend(kept.filter_map(|pg| Some((live.stream?, pg, *gone.get(&pg)?))));
        }
        for (stream, pg, replica) in orders {
            self.say(stream, OsdDown::DropReplica { pg, replica, keep: false });
        }
    }

    /// Forgets replicas that are no members any more, and drops them. `was_away`: their OSDs may get other ones.
    pub(super) fn drop_members(&mut self, gone: &[(PgId, Member)], was_away: bool) {
        for (pg, member) in gone {
            self.reports.remove(&member.replica);
            let Some(live) = self.osds.get_mut(&member.osd) else { continue };
            live.missing.remove(&member.replica);
            if let Some(stream) = live.stream {
                let keep = self.may_keep(member.osd, *pg, was_away);
                self.say(stream, OsdDown::DropReplica { pg: *pg, replica: member.replica, keep });
            }
        }
    }

    /// Tells each OSD below which id it lacks no replica (ADR 0015). The lowest replica that the OSD has not reported yet
    /// is not below that floor, and neither is any id that will be drawn.
    pub(super) fn say_floors(&mut self) {
        let next = ReplicaId(self.records.counters.next_replica);
        let mut risen = Vec::new();
        for live in self.osds.values_mut() {
            let floor = live.missing.keys().next().copied().unwrap_or(next).min(next);
            let floor = ReplicaId(floor.0 + u64::from(on(Bug::FloorTooHigh)));
            if let Some(stream) = live.stream.filter(|_| floor > live.floor) {
                live.floor = floor;
                risen.push((stream, floor));
            }
        }
        for (stream, floor) in risen {
            self.say(stream, OsdDown::ReplicaFloor(floor));
        }
    }

    /// Requests replicas that an OSD should hold and has not reported.
    pub(super) fn ensure_members(&mut self, now: Time) {
        let due = |live: &OsdLive| !live.missing.is_empty() && live.stream.is_some() && live.ensure_at <= now;
        let osds: Vec<OsdId> = self.osds.iter().filter(|(_, live)| due(live)).map(|(osd, _)| *osd).collect();
        for osd in osds {
            let live = self.osds.get_mut(&osd).expect("it was just listed");
            live.ensure_at = now + self.config.ensure_every;
            let stream = live.stream.expect("only connected ones are due");
            let missing: Vec<(ReplicaId, PgId)> =
                live.missing.iter().map(|(replica, pg)| (*replica, *pg)).take(self.config.ensure_burst).collect();
            for (replica, pg) in missing {
                if let Some(created) = self.records.pgs.get(&pg).map(PgRecord::created_map) {
                    self.say(stream, OsdDown::EnsureReplica { created, replica });
                }
            }
        }
    }
}
