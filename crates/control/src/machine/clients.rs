//! Requests of clients, and the answers that wait until an attach record is committed.

use super::osds::Liveness;
use super::{ClientReq, Control, Now, Standing, Token};
use crate::admin::AdminAnswer;
use crate::events::Note;
use crate::plan::{self, Opener, PgHint};
use crate::records::{Holder, OsdRecord, PgRecord, PoolState, SegmentRecord, SnapshotState, VolumeRecord, VolumeState};
use crate::refusal::refuse;
use std::collections::BTreeSet;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, PGS_PER_ASK_MAX, Refusal, SegmentPlace};
use types::limits::{HOLDER_LEN_MAX, clip};
use types::planted::{Bug, on};
use types::{Epoch, GenerationId, OsdId, PgId, PoolId, SEGMENT, SegmentIndex, SessionId, SnapshotId, Time, VolumeId};

/// An answer that waits for a condition.
pub(super) struct Wait {
    pub token: Token,
    pub what: WaitFor,
}

pub(super) enum WaitFor {
    /// The volume is attached under this session in all its PGs. With `session` 0 (a reader) no segment may be pending, and its
    /// contents must be its own.
    Open {
        volume: VolumeId,
        snapshot: Option<SnapshotId>,
        session: SessionId,
        epoch: Epoch,
        /// The request has taken the session: it was not answered before.
        fresh: bool,
    },
    /// The records are trusted; a pending segment is named as such.
    Segments {
        volume: VolumeId,
        session: SessionId,
        epoch: Epoch,
        segments: Vec<SegmentIndex>,
    },
    /// The attach record without a session is committed in all PGs, or a later epoch of the volume has begun.
    Close {
        volume: VolumeId,
        epoch: Epoch,
    },
    /// The writers that a command has fenced write nothing any more, or `until` has come.
    Fenced {
        volume: VolumeId,
        until: Time,
    },
    VolumeGone {
        volume: VolumeId,
    },
    /// The volume is in the trash, and no session can write to it.
    Trashed {
        volume: VolumeId,
        epoch: Epoch,
    },
    /// The volume has the length, or `until` has come.
    Resized {
        volume: VolumeId,
        len_bytes: u64,
        shrinks: bool,
        until: Time,
    },
    /// The clone can be opened, or `until` has come.
    Cloned {
        volume: VolumeId,
        until: Time,
    },
    /// The volume has this head on a snapshot in all its PGs, or another rollback has begun, or `until` has come.
    RolledBack {
        volume: VolumeId,
        to: GenerationId,
        until: Time,
    },
    /// No PG has the snapshot, or `until` has come.
    SnapshotGone {
        volume: VolumeId,
        snapshot: SnapshotId,
        until: Time,
    },
    PoolReady {
        pool: PoolId,
        warning: Option<String>,
    },
    PoolGone {
        pool: PoolId,
    },
}

#[allow(clippy::large_enum_variant)] // short-lived
enum Outcome {
    Client(ClientAnswer),
    Admin(Result<AdminAnswer, Refusal>),
}

fn refused(code: u32, what: impl std::fmt::Display) -> ClientAnswer {
    ClientAnswer::Refused(refuse(code, what))
}

impl Control {
    pub(super) fn take_client(&mut self, now: Now, req: ClientReq) {
        let token = req.token;
        match req.ask {
            ClientAsk::Open { name, write, steal, holder } => {
                let holder = Holder {
                    name: clip(&holder, HOLDER_LEN_MAX).to_owned(),
                    address: req.address,
                    since_ms: now.wall_ms,
                    client: req.client,
                    ask: req.id,
                };
                self.take_open(now, token, &name, Opener { holder, write, steal });
            }
            ClientAsk::Segments { volume, session, epoch, segments, allocate } => {
                self.take_segments(token, volume, (session, epoch), segments, allocate);
            }
            ClientAsk::Refresh { pgs } => {
                let answer = if pgs.len() > PGS_PER_ASK_MAX {
                    refused(codes::TOO_MANY, format!("{} PGs in one request", pgs.len()))
                } else {
                    ClientAnswer::Refreshed(self.map_view(pgs.into_iter().collect()))
                };
                self.answer(token, answer);
            }
            ClientAsk::Keepalive { volume, session, unreached, len_epoch, len_bytes } => {
                let used = (len_epoch, len_bytes);
                let answer = self.take_keepalive(now, (volume, session), req.address, &unreached, used);
                self.answer(token, answer);
            }
            ClientAsk::Close { volume, session } => self.take_close(now, token, volume, session),
        }
    }

    fn take_keepalive(
        &mut self,
        now: Now,
        (volume, session): (VolumeId, SessionId),
        address: String,
        unreached: &[OsdId],
        used: (u32, u64),
    ) -> ClientAnswer {
        let known = self.records.volumes.get(&volume);
        if known.is_none_or(|v| v.holder_of(session).is_none()) {
            return match known.is_some_and(|v| v.trash.is_none()) {
                true => refused(codes::SESSION_FENCED, format!("{session} no longer holds volume {volume}")),
                false => refused(codes::VOLUME_UNKNOWN, format!("volume {volume} does not exist")),
            };
        }
        let unreached = self.known_osds(unreached);
        self.leases.renew(now.mono, (volume, session), Some(address)).unreached = unreached;
        self.take_used(volume, session, used);
        let (len_epoch, len_bytes) = self.length_told(volume);
        ClientAnswer::Alive {
            len_epoch,
            len_bytes,
            limits: self.limits_told(volume),
            faults: self.faults_told(now, volume),
            when_full: self.records.volumes[&volume].when_full,
        }
    }

    fn take_close(&mut self, now: Now, token: Token, volume: VolumeId, session: SessionId) {
        let held = self.records.volumes.get(&volume).cloned();
        let (writes, epoch) = plan::close(&self.records, volume, session);
        self.write(writes);
        let Some((held, epoch)) = held.zip(epoch) else { return self.answer(token, ClientAnswer::Closed) };
        let (name, by) =
            (self.records.full_name(&held), held.holder_of(session).map_or_else(String::new, Holder::to_string));
        let note = Note::info("volume.detached", format!("volume {name}"), format!("{by} closed volume {name}"));
        self.note_volume(now, volume, Note { by, ..note });
        self.forget_leases(volume);
        self.attach_everywhere(volume);
        self.wait(token, WaitFor::Close { volume, epoch });
    }

    fn take_open(&mut self, now: Now, token: Token, name: &str, opener: Opener) {
        let before = self.records.volume(name).ok().cloned();
        let left = |volume, session| self.leases.left(now.mono, volume, session);
        let (writes, plan) = match plan::open(&self.records, name, &opener, &left) {
            Ok(planned) => planned,
            Err(refusal) => return self.answer(token, ClientAnswer::Refused(refusal)),
        };
        let fresh = before.filter(|_| plan.fresh);
        let lived = fresh.as_ref().is_some_and(|before| self.living(now.mono, before).next().is_some());
        self.write(writes);
        if let Some(before) = fresh {
            self.note_opened(now, &before, lived, &opener);
            self.forget_leases(plan.volume);
            self.attach_everywhere(plan.volume);
        }
        if plan.session.0 != 0 {
            self.leases.renew(now.mono, (plan.volume, plan.session), Some(opener.holder.address));
        }
        let plan::OpenPlan { volume, snapshot, session, epoch, fresh } = plan;
        self.wait(token, WaitFor::Open { volume, snapshot, session, epoch, fresh });
    }

    /// Records the event of an open. `lived`: a writer of the record before was alive.
    fn note_opened(&mut self, now: Now, before: &VolumeRecord, lived: bool, opener: &Opener) {
        let (name, by) = (self.records.full_name(before), opener.holder.to_string());
        let stays = |session| self.records.volumes[&before.id].holder_of(session).is_some();
        let gone: Vec<String> =
            before.holders().filter(|(of, _)| !stays(of.session)).map(|(_, holder)| holder.to_string()).collect();
        let (gone, subject) = (gone.join(", "), format!("volume {name}"));
        let note = match gone.is_empty() {
            true => Note::info("volume.attached", subject, format!("{by} opened volume {name}")),
            false if lived && opener.steal => {
                let text = format!("{by} force-attached volume {name} and fenced {gone}");
                Note::warning("volume.stolen", subject, text)
            }
            false => {
                let text = format!("{by} opened volume {name}, which {gone} had left without closing it");
                Note::info("volume.attached", subject, text)
            }
        };
        self.note_volume(now, before.id, Note { by, ..note });
    }

    pub(super) fn take_segments(
        &mut self,
        token: Token,
        volume: VolumeId,
        holder: (SessionId, Epoch),
        segments: Vec<SegmentIndex>,
        allocate: bool,
    ) {
        let is_fresh = |s: &SegmentIndex| !self.records.segments.contains_key(&(volume, *s));
        if allocate && self.holds(volume) && segments.iter().any(is_fresh) {
            return self.park(token, volume, holder, segments);
        }
        let hint = |pg: &PgRecord| self.pg_hint(pg);
        let planned = plan::allocate(&self.records, volume, holder, &segments, allocate, &hint);
        let (writes, mut pgs) = match planned {
            Ok(planned) => planned,
            Err(refusal) => return self.answer(token, ClientAnswer::Refused(refusal)),
        };
        self.write(writes);
        // A segment is pending for one of its PGs: the others are not asked to commit the record again.
        let pending = segments.iter().filter_map(|s| self.records.segments.get(&(volume, *s))).filter(|s| s.pending);
        let idle = pending.filter(|s| !s.pgs().any(|pg| self.attaching.is_under_way(volume, pg)));
        pgs.extend(idle.flat_map(SegmentRecord::pgs));
        for pg in pgs {
            self.attaching.ensure(volume, pg);
        }
        let (session, epoch) = holder;
        self.wait(token, WaitFor::Segments { volume, session, epoch, segments });
    }

    pub(super) fn pg_hint(&self, pg: &PgRecord) -> PgHint {
        let lead = self.leads.get(&pg.pg);
        let preferred = pg.members.first().map_or(OsdId(0), |m| m.osd);
        let full = pg.everyone().any(|m| self.osds.get(&m.osd).is_some_and(|live| live.full));
        let active = lead.is_some_and(|lead| lead.report.active);
        PgHint { leader: lead.map_or(preferred, |lead| lead.osd), good: active && !full }
    }

    pub(super) fn wait(&mut self, token: Token, what: WaitFor) {
        self.waits.push(Wait { token, what });
        self.waits_due = true;
        if self.waits.len() > self.config.waits_max {
            let oldest = self.waits.remove(0);
            let refusal = refuse(codes::META_BUSY, "too many replies are queued");
            match oldest.what {
                WaitFor::Open { .. } | WaitFor::Segments { .. } | WaitFor::Close { .. } => {
                    self.answer(oldest.token, ClientAnswer::Refused(refusal));
                }
                WaitFor::Fenced { .. }
                | WaitFor::VolumeGone { .. }
                | WaitFor::Trashed { .. }
                | WaitFor::Resized { .. }
                | WaitFor::Cloned { .. }
                | WaitFor::RolledBack { .. }
                | WaitFor::SnapshotGone { .. }
                | WaitFor::PoolReady { .. }
                | WaitFor::PoolGone { .. } => {
                    self.answer_admin(oldest.token, Err(refusal));
                }
            }
        }
    }

    /// Gives the answers whose condition holds; they go out when this turn's transaction is committed.
    pub(super) fn answer_waits(&mut self, now: Now) {
        // While the records are not trusted, no condition counts as true.
        if self.standing() != Standing::Sound || !std::mem::take(&mut self.waits_due) {
            return self.keep_openers(now.mono);
        }
        let waits = std::mem::take(&mut self.waits);
        for wait in waits {
            match self.outcome(now, &wait.what) {
                Some(Outcome::Client(answer)) => {
                    if let ClientAnswer::Opened(opened) = &answer
                        && opened.write
                    {
                        self.leases.renew(now.mono, (opened.volume, opened.session), None);
                        // The session was told no longer length, so it need not confirm a shorter one.
                        if matches!(wait.what, WaitFor::Open { fresh: true, .. }) {
                            let length = (opened.len_epoch, opened.len_bytes);
                            self.take_used(opened.volume, opened.session, length);
                        }
                    }
                    self.answer(wait.token, answer);
                }
                Some(Outcome::Admin(answer)) => self.answer_admin(wait.token, answer),
                None => self.waits.push(wait),
            }
        }
        self.keep_openers(now.mono);
    }

    /// Renews the holds of openers that wait for their attach: they cannot send keepalives yet.
    fn keep_openers(&mut self, now: Time) {
        let opening = |w: &Wait| match w.what {
            WaitFor::Open { volume, session, .. } if session.0 != 0 => Some((volume, session)),
            _ => None,
        };
        let held = |(volume, session): &(VolumeId, SessionId)| {
            self.records.volumes.get(volume).is_some_and(|v| v.holder_of(*session).is_some())
        };
        for of in self.waits.iter().filter_map(opening).filter(held) {
            self.leases.renew(now, of, None);
        }
    }

    /// Whether the open that took this session was not answered yet.
    pub(super) fn is_opening(&self, id: VolumeId, of: SessionId) -> bool {
        let is_it = |wait: &Wait| match wait.what {
            WaitFor::Open { volume, session, fresh, .. } => fresh && (volume, session) == (id, of),
            _ => false,
        };
        self.waits.iter().any(is_it)
    }

    fn outcome(&self, now: Now, what: &WaitFor) -> Option<Outcome> {
        match what {
            WaitFor::Open { volume, snapshot, session, epoch, .. } => {
                self.opened(now, (*volume, *snapshot), *session, *epoch).map(Outcome::Client)
            }
            WaitFor::Segments { volume, session, epoch, segments } => {
                Some(Outcome::Client(self.placed(*volume, (*session, *epoch), segments)))
            }
            WaitFor::Close { volume, epoch } => {
                // The epoch of a multi-writer volume rises while others come and go.
                let passed = |v: &VolumeRecord| v.epoch > *epoch && !v.is_multi_writer();
                let done = self.records.volumes.get(volume).is_none_or(|v| v.settled || passed(v));
                done.then_some(Outcome::Client(ClientAnswer::Closed))
            }
            WaitFor::Fenced { volume, until } => self.fenced(now.mono, *volume, *until).map(Outcome::Admin),
            WaitFor::VolumeGone { volume } => {
                let gone = !self.records.volumes.contains_key(volume);
                gone.then_some(Outcome::Admin(Ok(AdminAnswer::Done)))
            }
            WaitFor::Trashed { volume, epoch } => {
                let Some(known) = self.records.volumes.get(volume) else {
                    return Some(Outcome::Admin(Ok(AdminAnswer::Done)));
                };
                let answer = match &known.trash {
                    Some(trash) => AdminAnswer::Trashed(self.trash_view(now.wall_ms, known, trash)),
                    // It was restored meanwhile.
                    None => AdminAnswer::Done,
                };
                (known.settled || known.epoch > *epoch).then_some(Outcome::Admin(Ok(answer)))
            }
            WaitFor::Resized { volume, len_bytes, shrinks, until } => {
                self.resized(now.mono, *volume, (*len_bytes, *shrinks), *until).map(Outcome::Admin)
            }
            WaitFor::Cloned { volume, until } => self.cloned(now.mono, *volume, *until).map(Outcome::Admin),
            WaitFor::RolledBack { volume, to, until } => {
                self.rolled_back(now.mono, (*volume, *to), *until).map(Outcome::Admin)
            }
            WaitFor::SnapshotGone { volume, snapshot, until } => {
                self.snapshot_gone(now.mono, (*volume, *snapshot), *until).map(Outcome::Admin)
            }
            WaitFor::PoolGone { pool } => {
                let gone = !self.records.pools.contains_key(pool);
                gone.then_some(Outcome::Admin(Ok(AdminAnswer::Done)))
            }
            WaitFor::PoolReady { pool, warning } => match self.records.pools.get(pool) {
                Some(pool) if pool.state == PoolState::Creating => None,
                Some(pool) => {
                    let pool = self.pool_view(now.mono, pool);
                    Some(Outcome::Admin(Ok(AdminAnswer::PoolCreated { pool, warning: warning.clone() })))
                }
                None => Some(Outcome::Admin(Err(refuse(codes::POOL_UNKNOWN, "the pool was removed meanwhile")))),
            },
        }
    }

    fn opened(
        &self,
        now: Now,
        (volume, snapshot): (VolumeId, Option<SnapshotId>),
        session: SessionId,
        epoch: Epoch,
    ) -> Option<ClientAnswer> {
        let known = self.records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready);
        let Some(known) = known else {
            return Some(refused(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile")));
        };
        if known.recovering {
            let name = self.records.full_name(known);
            return Some(refused(codes::VOLUME_RECOVERING, format!("volume {name:?} waits for the end of a recovery")));
        }
        let of_snapshot = snapshot.map(|snapshot| self.records.snapshots.get(&(volume, snapshot)));
        if of_snapshot.is_some_and(|found| found.is_none_or(|found| found.state == SnapshotState::Deleting)) {
            return Some(refused(codes::SNAPSHOT_UNKNOWN, format!("a snapshot of {volume} was deleted meanwhile")));
        }
        let write = session.0 != 0;
        if write && !known.writers().has(session, epoch) {
            return Some(refused(codes::SESSION_FENCED, "the session was fenced while this request waited"));
        }
        // No segment is pending during a cut, so none that is pending now belongs to a snapshot.
        let pending = snapshot.is_none() && self.records.segments_of(volume).any(|s| s.pending);
        let turns_back = snapshot.is_none() && known.changes_contents();
        if write && !known.settled && !on(Bug::OpenWithoutFence) || pending || turns_back {
            return None;
        }
        let (len_epoch, len_bytes) = known.usable();
        let len_bytes = of_snapshot.flatten().map_or(len_bytes, |found| found.len_bytes);
        let end = len_bytes.div_ceil(SEGMENT);
        // A volume that was longer keeps its segments.
        let places = self.records.segments_of(volume).filter(|s| !s.pending && u64::from(s.index.0) < end);
        let place = |s: &SegmentRecord| SegmentPlace { segment: s.index, pgs: s.pgs().collect() };
        let segments: Vec<SegmentPlace> = places.map(place).collect();
        let pgs = segments.iter().flat_map(|s| s.pgs.iter().copied()).collect();
        Some(ClientAnswer::Opened(Opened {
            cluster: self.records.cluster_id(),
            volume,
            session,
            epoch: if write { epoch } else { known.epoch },
            multi_writer: known.is_multi_writer(),
            snapshot,
            len_epoch,
            len_bytes,
            stripe: known.stripe,
            limits: self.limits_told(volume),
            // A copy of a snapshot, such as a backup, is no part of the rehearsal.
            faults: if snapshot.is_none() { self.faults_told(now, volume) } else { Vec::new() },
            when_full: known.when_full,
            write,
            segments,
            view: self.map_view(pgs),
        }))
    }

    fn placed(&self, volume: VolumeId, holder: (SessionId, Epoch), segments: &[SegmentIndex]) -> ClientAnswer {
        let Some(known) = self.records.volumes.get(&volume).filter(|v| v.state == VolumeState::Ready) else {
            return refused(codes::VOLUME_UNKNOWN, format!("volume {volume} was removed meanwhile"));
        };
        let passed = !known.writers().has(holder.0, holder.1);
        if holder.0.0 != 0 && passed && !on(Bug::AllocationAfterEpochRose) {
            return refused(codes::SESSION_FENCED, "the session was fenced while this request waited");
        }
        let found = |s: &SegmentIndex| self.records.segments.get(&(volume, *s));
        let pgs_of = |s: &SegmentIndex| found(s).map_or_else(Vec::new, |s| s.pgs().collect());
        // A PG without a quorum keeps no client from the segments of other PGs.
        let (pending, attached): (Vec<_>, Vec<_>) =
            segments.iter().copied().partition(|s| found(s).is_some_and(|s| s.pending));
        let segments: Vec<SegmentPlace> =
            attached.iter().map(|s| SegmentPlace { segment: *s, pgs: pgs_of(s) }).collect();
        let view = self.map_view(segments.iter().flat_map(|s| s.pgs.iter().copied()).collect());
        ClientAnswer::Segments { segments, pending, view }
    }

    /// Returns the part of the map about these PGs; unknown PGs are left out.
    fn map_view(&self, pgs: BTreeSet<PgId>) -> MapView {
        let mut view = MapView::default();
        let mut osds = BTreeSet::new();
        for pg in pgs {
            let Some(record) = self.records.pgs.get(&pg) else { continue };
            osds.extend(record.everyone().map(|m| m.osd));
            view.pgs.push(record.map());
            if let Some(lead) = self.leads.get(&pg) {
                view.leaders.push((pg, lead.osd));
            }
        }
        view.osds = self.records.addresses().into_iter().filter(|a| osds.contains(&a.osd)).collect();
        view
    }

    /// Whether an OSD serves and may get new replicas: this leader hears it, and its store has not stopped (R15).
    pub(super) fn is_up(&self, now: Time, osd: OsdId) -> bool {
        let stopped = |o: &OsdRecord| o.poisoned.as_ref().is_some_and(|p| p.incarnation == o.incarnation);
        self.liveness(now, osd) == Liveness::Up && !self.records.osds.get(&osd).is_some_and(stopped)
    }
}
