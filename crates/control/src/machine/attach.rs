//! Commits attach records in PGs (R6).
//!
//! A job is one volume in one PG. It draws an order in a transaction, under the epoch and session of that
//! moment. Once that is committed, meta sends the record to the PG's leader until the leader reports it
//! as committed there. When the drawn record becomes old (another epoch, a refused order), the job draws
//! again. The PG refuses records that come late, because orders only grow.

use super::aim::Aim;
use super::clients::WaitFor;
use super::{Control, Now};
use crate::plan;
use crate::records::VolumeRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::control::{Attach, AttachRefusal, OsdDown};
use types::planted::{Bug, on};
use types::writers::Writers;
use types::{Epoch, OsdId, PgId, SegmentIndex, SessionId, Time, VolumeId};

#[derive(Default)]
struct Job {
    /// Drawn order, and the epoch it was drawn under.
    drawn: Option<(u64, Epoch)>,
    /// The highest order that the PG has seen, as its refusal says.
    seen: u64,
    aim: Aim,
    /// The PG does not have the snapshot on which the head is to stand.
    lacks_base: bool,
}

/// All jobs, and the PGs whose record was just committed.
#[derive(Default)]
pub(super) struct Attaching {
    jobs: BTreeMap<(VolumeId, PgId), Job>,
    orders: BTreeMap<(PgId, u64), VolumeId>,
    finished: VecDeque<(VolumeId, PgId)>,
    wake: Option<Time>,
}

impl Attaching {
    /// Begins a job: the volume's record must be committed (again) in this PG.
    pub fn begin(&mut self, volume: VolumeId, pg: PgId) {
        self.end(volume, pg);
        self.jobs.insert((volume, pg), Job::default());
        self.wake_all();
    }

    /// Begins a job as [`Attaching::begin`] does, unless one is under way.
    pub fn ensure(&mut self, volume: VolumeId, pg: PgId) {
        if !self.jobs.contains_key(&(volume, pg)) {
            self.begin(volume, pg);
        }
    }

    /// Whether the volume's record is being committed in this PG, or `pending` is not cleared yet after it was.
    pub fn is_under_way(&self, volume: VolumeId, pg: PgId) -> bool {
        self.jobs.contains_key(&(volume, pg)) || self.finished.contains(&(volume, pg))
    }

    fn end(&mut self, volume: VolumeId, pg: PgId) {
        if let Some(Job { drawn: Some((order, _)), .. }) = self.jobs.remove(&(volume, pg))
            && !on(Bug::StaleAttachCounts)
        {
            self.orders.remove(&(pg, order));
        }
    }

    /// Whether a job is left for the volume, or a finished one whose `pending` is not cleared yet.
    pub fn is_busy(&self, volume: VolumeId) -> bool {
        let whole = (volume, PgId::default())..=(volume, PgId { pool: types::PoolId(u32::MAX), n: u32::MAX });
        self.jobs.range(whole).next().is_some() || self.finished.iter().any(|(v, _)| *v == volume)
    }

    /// Returns the PGs that have not committed the volume's record yet.
    pub fn pgs_of(&self, volume: VolumeId) -> impl Iterator<Item = PgId> {
        let whole = (volume, PgId::default())..=(volume, PgId { pool: types::PoolId(u32::MAX), n: u32::MAX });
        self.jobs.range(whole).map(|((_, pg), _)| *pg)
    }

    /// Returns the PGs of the volume that lack the snapshot on which its head is to stand.
    pub fn lacking_base(&self, volume: VolumeId) -> impl Iterator<Item = PgId> {
        let whole = (volume, PgId::default())..=(volume, PgId { pool: types::PoolId(u32::MAX), n: u32::MAX });
        self.jobs.range(whole).filter(|(_, job)| job.lacks_base).map(|((_, pg), _)| *pg)
    }

    /// Returns when a job is due; `NEVER` without jobs.
    pub fn wake(&self) -> Time {
        if self.jobs.is_empty() && self.finished.is_empty() { Time::NEVER } else { self.wake.unwrap_or(Time::ZERO) }
    }

    /// Makes every job due: the condition that it waits for may have changed.
    pub fn wake_all(&mut self) {
        self.wake = None;
    }

    /// Makes the jobs of a PG due at once: it has a new leader, and what was sent to the old one is sent
    /// again.
    pub fn wake_pg(&mut self, pg: PgId) {
        let its = self.jobs.iter_mut().filter(|((_, of), _)| *of == pg);
        its.for_each(|(_, job)| job.aim.again());
        self.wake_all();
    }
}

impl Control {
    pub(super) fn take_attached(
        &mut self,
        now: Time,
        from: OsdId,
        pg: PgId,
        order: u64,
        result: Result<(), AttachRefusal>,
    ) {
        let is_member = self.records.pgs.get(&pg).is_some_and(|p| p.everyone().any(|m| m.osd == from));
        let volume = self.attaching.orders.get(&(pg, order)).copied().filter(|_| is_member);
        let Some(volume) = volume else { return };
        let job = self.attaching.jobs.get_mut(&(volume, pg)).expect("every order belongs to a job");
        match result {
            Ok(()) => {
                let (_, epoch) = job.drawn.expect("an order was drawn");
                if self.records.volumes.get(&volume).is_some_and(|v| v.epoch == epoch) {
                    self.attaching.end(volume, pg);
                    self.attaching.finished.push_back((volume, pg));
                }
            }
            Err(AttachRefusal::NotLeader { hint }) => {
                job.aim.not_leader(now, from, hint, self.config.attach_retry);
            }
            Err(AttachRefusal::StaleOrder { last }) => {
                job.drawn = None;
                job.seen = job.seen.max(last);
                job.aim.at = now;
                self.attaching.orders.remove(&(pg, order));
            }
            Err(AttachRefusal::Busy) => job.aim.at = now + self.config.attach_retry,
            Err(AttachRefusal::NoBase) => {
                job.lacks_base = true;
                job.aim.at = now + self.config.attach_retry;
            }
        }
        self.attaching.wake_all();
    }

    /// Draws orders, sends records, and clears `pending` where they are committed.
    pub(super) fn drive_attaches(&mut self, now: Now) {
        self.finish_attaches();
        if self.attaching.wake() > now.mono || self.attaching.jobs.is_empty() {
            return;
        }
        let keys: Vec<(VolumeId, PgId)> = self.attaching.jobs.keys().copied().collect();
        let mut wake = Time::NEVER;
        for (volume, pg) in keys {
            wake = wake.min(self.drive_attach(now.mono, volume, pg));
        }
        self.attaching.wake = Some(wake);
    }

    /// Advances one job; returns when it is due again.
    fn drive_attach(&mut self, now: Time, volume: VolumeId, pg: PgId) -> Time {
        let (Some(record), Some(pg_record)) = (self.records.volumes.get(&volume), self.records.pgs.get(&pg)) else {
            self.attaching.end(volume, pg);
            return Time::NEVER;
        };
        let (record, pg_record) = (record.clone(), pg_record.clone());
        if self.holds(volume) {
            // It begins when the cut has ended.
            return Time::NEVER;
        }
        let job = self.attaching.jobs.get_mut(&(volume, pg)).expect("its key was just listed");
        if job.drawn.is_none_or(|(_, epoch)| epoch != record.epoch) {
            if self.batch.is_full() {
                return Time::ZERO;
            }
            let (write, order) = plan::draw_order(&pg_record, job.seen);
            let old = job.drawn.replace((order, record.epoch));
            job.aim.at = Time::ZERO;
            if let Some((old, _)) = old {
                self.attaching.orders.remove(&(pg, old));
            }
            self.attaching.orders.insert((pg, order), volume);
            self.write(vec![write]);
        }
        let job = self.attaching.jobs.get(&(volume, pg)).expect("it is still there");
        if job.aim.at > now {
            return job.aim.at;
        }
        let (order, _) = job.drawn.expect("drawn above");
        let target = self.target(pg, &job.aim);
        let job = self.attaching.jobs.get_mut(&(volume, pg)).expect("it is still there");
        job.aim.sent(now, target.is_some(), (self.config.attach_resend, self.config.attach_retry));
        let due = job.aim.at;
        if let Some(stream) = target {
            let attach = self.attach_now(&record, pg, order);
            let job = &self.attaching.jobs[&(volume, pg)];
            // The PG has lost the contents of a clone, or its snapshot is deleted and the PG is new to it.
            let base = attach.base.filter(|_| !job.lacks_base || record.changes_contents());
            let attach = Attach { base, ..attach };
            self.say(stream, OsdDown::Attach { pg, attach });
        }
        due
    }

    /// Returns the record to send. It always names the present holder of the volume, also when an earlier
    /// one asked for the segment.
    fn attach_now(&self, record: &VolumeRecord, pg: PgId, order: u64) -> Attach {
        let attach = plan::attach_for(record, order);
        match self.asker(record, pg) {
            Some((session, epoch)) if on(Bug::AllocationAfterEpochRose) => {
                Attach { writers: Writers::one(session, epoch), epoch, ..attach }
            }
            _ => attach,
        }
    }

    /// Returns the session and epoch of a waiting request for a segment of this PG, when its epoch is
    /// older than the present one.
    fn asker(&self, record: &VolumeRecord, pg: PgId) -> Option<(SessionId, Epoch)> {
        let found = |s: &SegmentIndex| self.records.segments.get(&(record.id, *s));
        let in_pg = |s: &SegmentIndex| found(s).is_some_and(|s| s.pgs().any(|of| of == pg));
        self.waits.iter().find_map(|wait| match &wait.what {
            WaitFor::Segments { volume, session, epoch, segments }
                if *volume == record.id && session.0 != 0 && *epoch < record.epoch =>
            {
                segments.iter().any(in_pg).then_some((*session, *epoch))
            }
            _ => None,
        })
    }

    /// Clears `pending` in the segments whose record was committed in each of their PGs.
    fn finish_attaches(&mut self) {
        let mut again = VecDeque::new();
        while let Some((volume, pg)) = self.attaching.finished.pop_front() {
            if self.batch.is_full() {
                again.push_back((volume, pg));
                break;
            }
            if self.attaching.jobs.contains_key(&(volume, pg)) {
                continue;
            }
            let open = |pg| self.attaching.jobs.contains_key(&(volume, pg));
            let (writes, done) = plan::unpend(&self.records, volume, pg, &open);
            self.write(writes);
            self.waits_due = true;
            if !done {
                again.push_back((volume, pg));
            }
        }
        self.attaching.finished.extend(again);
    }

    /// Begins a job in every PG of the volume: each must carry its record of the present epoch.
    pub(super) fn attach_everywhere(&mut self, volume: VolumeId) {
        let pgs: BTreeSet<PgId> = plan::pgs_of_volume(&self.records, volume);
        for pg in pgs {
            self.attaching.begin(volume, pg);
        }
        if self.records.volumes.get(&volume).is_some_and(|v| !v.settled) {
            self.unsettled.insert(volume);
        }
    }
}
