//! An administrator that makes and deletes snapshots of the volumes under load, and a machine that reads them.
//!
//! ```text
//! ask for a snapshot → ready (its point in time lies between) → read again and again → delete
//! ```
//!
//! A read of a snapshot is a read of the volume at a moment between the request and the end of the command: [`Linear`] checks it as such,
//! whenever it took place. Besides, all that is read of one snapshot must be of one moment, and the same each time.
//!
//! Invariant: the dice are its own; a run without snapshots is the same as before.

use crate::check::linear::{At, Linear, Stamp};
use crate::client::ClientNode;
use crate::cluster::Cluster;
use crate::stamp;
use crate::workload::{Ask, Audit, Turn, Workload, name};
use ::client::ClientTuning;
use control::admin::{AdminAsk, CutAsk};
use control::{Records, SnapshotState};
use device::{Answer, Request};
use simenv::World;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use types::rng::Rng;
use types::units::SECTOR;
use types::{Errno, Time, VolumeId};

/// Time between two looks at meta's records, and between two submissions of a deletion.
const LOOK: Duration = Duration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A command that has no effect after this time was lost with its metadata server.
const LOST_AFTER: Duration = Duration::from_secs(8);
/// Longest time for which the machine reads one snapshot while others are made.
const READ_MAX: Duration = Duration::from_secs(3);
/// Most snapshots at one time.
const LIVE_MAX: usize = 5;
/// Most ranges that one visit reads.
const RANGES_MAX: usize = 60;
/// Requests in flight.
const DEPTH: usize = 4;

/// The values that were read of one snapshot.
#[derive(Debug)]
struct Taken {
    volume: VolumeId,
    /// `pool/volume@snapshot`, of each volume of its cut.
    names: Vec<String>,
    /// The command was submitted at the first time, and its end was seen at the last.
    within: Range<At>,
    seen: BTreeMap<u64, Option<Stamp>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Ready,
    Deleting { asked_at: Time },
    Gone,
}

struct Shot {
    stage: Stage,
    asked_at: Time,
    taken: Rc<RefCell<Taken>>,
}

/// The administrator, and its machine.
pub struct Snapshots {
    rng: Rng,
    /// The volumes of each cut.
    volumes: Vec<(String, VolumeId)>,
    /// Length of the volumes of a bank, whose snapshots are audited.
    bank: Option<u64>,
    all: Vec<Shot>,
    at: Time,
    /// Number of the machine among the clients.
    machine: usize,
    /// The snapshot that is being read, and until when.
    reading: Option<(usize, Time)>,
    closing: bool,
    /// Snapshots that were read once more at the end.
    read_last: usize,
    /// A snapshot was ready and has vanished.
    failure: Option<String>,
}

impl Snapshots {
    pub fn new(
        mut rng: Rng,
        volumes: Vec<(String, VolumeId)>,
        bank: Option<u64>,
        machine: usize,
        now: Time,
    ) -> Snapshots {
        let at = now + Duration::from_millis(rng.below(500));
        Snapshots {
            rng,
            volumes,
            bank,
            all: Vec::new(),
            at,
            machine,
            reading: None,
            closing: false,
            read_last: 0,
            failure: None,
        }
    }

    /// Returns the machine that reads.
    pub fn reader(world: &World, tuning: ClientTuning, number: usize, rng: &mut Rng) -> ClientNode {
        let mut machine = ClientNode::new(world.add_node("snapshots"), number, false, rng.fork());
        machine.tuning = tuning;
        machine
    }

    pub fn next(&self) -> Option<Time> {
        Some(self.at).filter(|at| *at != Time::NEVER)
    }

    /// Makes no more snapshots. Those that are there are read once more, and most are deleted.
    pub fn close(&mut self, now: Time) {
        (self.closing, self.at) = (true, now);
    }

    /// Returns the number of snapshots that were looked at for the last time.
    pub fn read_last(&self) -> u64 {
        self.read_last as u64
    }

    /// Returns the number of snapshots that were ready, and of sectors that were read of them.
    pub fn counts(&self) -> (u64, u64) {
        let ready = self.all.iter().filter(|shot| shot.taken.borrow().within.end != At::MAX);
        let sectors = ready.clone().map(|shot| shot.taken.borrow().seen.len() as u64).sum();
        (ready.count() as u64, sectors)
    }

    /// Whether all are read, and the last cut and deletion has ended.
    pub fn are_done(&self, cluster: &Cluster) -> bool {
        let ends = |stage: Stage| matches!(stage, Stage::Ready | Stage::Gone);
        let rest = self.all.iter().all(|shot| ends(shot.stage)) && self.reading.is_none();
        let deleting = |records: &Records| records.snapshots.values().any(|s| s.state != SnapshotState::Ready);
        self.closing
            && rest
            && self.read_last >= self.all.len()
            && cluster.meta.records().is_some_and(|records| records.cuts.is_empty() && !deleting(records))
    }

    /// Describes the snapshots, for a failure's text.
    pub fn describe(&self) -> String {
        let one = |shot: &Shot| format!("{:?} {:?}", shot.taken.borrow().names, shot.stage);
        let all: Vec<String> = self.all.iter().filter(|shot| shot.stage != Stage::Gone).map(one).collect();
        format!("snapshots: {}; reading {:?}, read {}", all.join(", "), self.reading, self.read_last)
    }

    /// Checks that what was read of each snapshot was there at one moment.
    ///
    /// # Errors
    /// A snapshot that no consistent store can make.
    pub fn hold(&self, linear: &Linear) -> Result<(), String> {
        if let Some(what) = &self.failure {
            return Err(what.clone());
        }
        for shot in &self.all {
            let taken = shot.taken.borrow();
            let seen = taken.seen.iter().map(|(sector, stamp)| (*sector, *stamp));
            linear
                .one_moment(taken.volume.0, seen, taken.within.clone())
                .map_err(|what| format!("{:?}: {what}", taken.names))?;
        }
        Ok(())
    }

    /// Acts if an action is due.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        if self.at > now {
            return;
        }
        self.at = now + LOOK;
        let Some(records) = cluster.meta.records() else { return };
        for shot in &mut self.all {
            if let Err(what) = shot.look(now, &self.volumes, records) {
                self.failure.get_or_insert(what);
            }
        }
        self.end_reading(now, cluster);
        self.delete_again(now, cluster);
        if self.closing {
            return self.read_the_rest(now, cluster);
        }
        let live = self.all.iter().filter(|shot| shot.stage != Stage::Gone).count();
        if live < LIVE_MAX && self.rng.chance(1, 8) {
            self.ask(now, cluster);
        }
        let Some(n) = self.some_ready() else { return };
        match self.rng.below(8) {
            0 if self.reading.is_none() => self.read(n, now + READ_MAX, cluster),
            1 => self.delete(n, now, cluster),
            _ => {}
        }
    }

    fn some_ready(&mut self) -> Option<usize> {
        let ready: Vec<usize> = (0..self.all.len()).filter(|n| self.all[*n].stage == Stage::Ready).collect();
        (!ready.is_empty()).then(|| ready[self.rng.below(ready.len() as u64) as usize])
    }

    fn ask(&mut self, now: Time, cluster: &mut Cluster) {
        let names: Vec<String> =
            self.volumes.iter().map(|(volume, _)| format!("{volume}@s{}", self.all.len())).collect();
        let ask = CutAsk { names: names.clone(), ..CutAsk::default() };
        let taken = Taken { volume: self.volumes[0].1, names, within: now.0..At::MAX, seen: BTreeMap::new() };
        self.all.push(Shot { stage: Stage::Asked, asked_at: now, taken: Rc::new(RefCell::new(taken)) });
        cluster.admin(AdminAsk::SnapshotCreate(ask));
    }

    fn delete(&mut self, n: usize, now: Time, cluster: &mut Cluster) {
        if self.reading.is_some_and(|(reading, _)| reading == n) {
            cluster.client(self.machine).removed();
        }
        self.all[n].stage = Stage::Deleting { asked_at: now };
        self.all[n].delete(cluster);
    }

    /// Submits again what may have been lost.
    fn delete_again(&mut self, now: Time, cluster: &mut Cluster) {
        for shot in &mut self.all {
            if let Stage::Deleting { asked_at } = &mut shot.stage
                && now >= *asked_at + ASK_AGAIN
            {
                *asked_at = now;
                shot.delete(cluster);
            }
        }
    }

    fn read(&mut self, n: usize, until: Time, cluster: &mut Cluster) {
        let taken = Rc::clone(&self.all[n].taken);
        let work: Box<dyn Workload> = match self.bank {
            Some(len_bytes) => Box::new(Audit::new(taken.borrow().names.clone(), len_bytes)),
            None => self.reading_of(taken, cluster),
        };
        let client = cluster.client(self.machine);
        client.begin(work, Duration::ZERO);
        cluster.restart_reader(self.machine);
        self.reading = Some((n, until));
    }

    fn reading_of(&mut self, taken: Rc<RefCell<Taken>>, cluster: &Cluster) -> Box<dyn Workload> {
        let mut ranges = cluster.linear.strips_of(taken.borrow().volume.0);
        while ranges.len() > RANGES_MAX {
            ranges.swap_remove(self.rng.below(ranges.len() as u64) as usize);
        }
        Box::new(Reading { taken, left: ranges.into(), inflight: BTreeMap::new(), next_token: 0, answered: 0 })
    }

    fn end_reading(&mut self, now: Time, cluster: &mut Cluster) {
        let Some((_, until)) = self.reading else { return };
        let client = cluster.client(self.machine);
        if client.workload.as_ref().is_none_or(|work| work.is_done()) || now >= until {
            client.hang_up();
            client.workload = None;
            self.reading = None;
        }
    }

    /// Reads one after the other once more, and deletes two of three.
    fn read_the_rest(&mut self, now: Time, cluster: &mut Cluster) {
        if self.reading.is_some() || self.all.iter().any(|shot| shot.stage == Stage::Asked) {
            return;
        }
        let n = self.read_last;
        if n >= self.all.len() {
            return;
        }
        self.read_last += 1;
        if self.all[n].stage == Stage::Ready {
            self.read(n, Time::NEVER, cluster);
        }
        if n > 0 && self.all[n - 1].stage == Stage::Ready && !n.is_multiple_of(3) {
            self.delete(n - 1, now, cluster);
        }
    }
}

impl Shot {
    /// Takes note of the records.
    fn look(&mut self, now: Time, volumes: &[(String, VolumeId)], records: &Records) -> Result<(), String> {
        let mut taken = self.taken.borrow_mut();
        let own = taken.names[0].rsplit_once('@').map_or("", |(_, own)| own);
        let found =
            |(_, volume): &(String, VolumeId)| records.snapshots_of(*volume).find(|s| s.name == own).map(|s| s.state);
        let found: Vec<Option<SnapshotState>> = volumes.iter().map(found).collect();
        let all = |state| found.iter().all(|found| *found == state);
        self.stage = match self.stage {
            Stage::Asked if all(Some(SnapshotState::Ready)) => {
                taken.within.end = now.0;
                Stage::Ready
            }
            Stage::Asked if all(None) && now < self.asked_at + LOST_AFTER => Stage::Asked,
            Stage::Ready if found.contains(&None) => return Err(format!("{:?} was ready, and is gone", taken.names)),
            _ if all(None) => Stage::Gone,
            stage => stage,
        };
        Ok(())
    }

    fn delete(&self, cluster: &mut Cluster) {
        for name in &self.taken.borrow().names {
            cluster.admin(AdminAsk::SnapshotRemove { name: name.clone(), detach: false });
        }
    }
}

/// Reads of one snapshot.
struct Reading {
    taken: Rc<RefCell<Taken>>,
    /// First sector and number of sectors of the ranges that are left.
    left: VecDeque<(u64, u64)>,
    inflight: BTreeMap<u64, (u64, u64, u64)>,
    next_token: u64,
    answered: u64,
}

impl Reading {
    fn take(&mut self, (sector, count): (u64, u64), bufs: &[types::IoBuf], linear: &mut Linear) -> Result<(), String> {
        let mut taken = self.taken.borrow_mut();
        let (volume, within) = (taken.volume.0, taken.within.clone());
        let mut saw = Vec::with_capacity(count as usize);
        for buf in bufs {
            let at = sector + saw.len() as u64;
            for (at, read) in (at..).zip(stamp::read(buf, &[volume], at)) {
                saw.push(read.map_err(|what| format!("{:?} sector {at} {what}", taken.names))?);
            }
        }
        if saw.len() as u64 != count {
            return Err(format!("a read of {count} sectors was answered with {}", saw.len()));
        }
        for (at, saw) in (sector..).zip(&saw) {
            if let Some(before) = taken.seen.insert(at, *saw).filter(|before| before != saw) {
                return Err(format!("{:?} showed {before:?} in sector {at}, and shows {saw:?} now", taken.names));
            }
        }
        linear.read(volume, sector, &saw, within.start, within.end);
        Ok(())
    }
}

impl Workload for Reading {
    fn volumes(&self) -> Vec<String> {
        self.taken.borrow().names.clone()
    }

    fn wants_more(&self) -> bool {
        !self.left.is_empty() && self.inflight.len() < DEPTH
    }

    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask> {
        if self.inflight.len() >= DEPTH {
            return None;
        }
        let (sector, count) = self.left.pop_front()?;
        let token = self.next_token;
        self.next_token += 1;
        self.inflight.insert(token, (sector, count, turn.now));
        Some(Ask { slot: 0, request: Request::Read { offset: sector * SECTOR, len: count * SECTOR }, token })
    }

    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String> {
        let asked = self.inflight.remove(&token).ok_or_else(|| format!("token {token} was never asked"))?;
        let (sector, count, _) = asked;
        self.answered += 1;
        match result {
            Ok(Answer::Data(bufs)) => self.take((sector, count), &bufs, turn.linear),
            Ok(other) => Err(format!("a read was answered with {other:?}")),
            Err(Errno::Damaged) if turn.lenient => Ok(()),
            Err(Errno::Gone) if turn.removed => {
                self.left.clear();
                Ok(())
            }
            Err(errno) => Err(format!("a read of {:?} failed: {}", self.taken.borrow().names, name(errno))),
        }
    }

    fn forget_inflight(&mut self) {
        let again = std::mem::take(&mut self.inflight).into_values().map(|(sector, count, _)| (sector, count));
        self.left.extend(again);
    }

    fn limit(&mut self, _more: u64) {}

    fn finish(&mut self) {}

    fn is_finishing(&self) -> bool {
        true
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() && self.inflight.is_empty()
    }

    fn inflight(&self) -> usize {
        self.inflight.len()
    }

    fn operations(&self) -> u64 {
        self.left.len() as u64
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn oldest(&self) -> Option<u64> {
        self.inflight.values().map(|(.., since)| *since).min()
    }

    fn waiting(&self) -> String {
        format!("{} of {:?}", self.inflight.len(), self.taken.borrow().names)
    }
}
