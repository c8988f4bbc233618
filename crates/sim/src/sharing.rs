//! One volume with several writers (ADR 0039): machines that write to it at the same time, and that die, leave, and are fenced meanwhile.
//!
//! ```text
//! an administrator makes the volume → each machine opens it and works; they die, close it, open it again, steal it from each other, and are
//!      fenced by commands → calm: all open it again, one leaves and comes back while the others go on → all of it is read back → removed
//! ```
//!
//! All writes go to one history, so a read of one machine must see what was acknowledged to another. A life of a machine that the records do
//! not name any more writes nothing when each PG has such a record, or when the command that fenced it has said so: the checker drops its
//! unanswered writes there. Once nothing is broken, no machine may lose the volume. In some runs snapshots are made meanwhile, and each must
//! show what all machines wrote up to one moment.
//!
//! Invariant: the dice are its own; a run without it is the same as before.

use crate::check::linear::Linear;
use crate::client::ClientNode;
use crate::cluster::Cluster;
use crate::snapshots::Snapshots;
use crate::tenants::left_on;
use crate::workload::{Block, Pattern, Shape};
use ::client::ClientTuning;
use control::Standing;
use control::admin::{AdminAsk, VolumeRemove, VolumeText, WriterName};
use simenv::World;
use std::collections::BTreeMap;
use std::time::Duration;
use types::rng::Rng;
use types::units::SEGMENT;
use types::{SessionId, Time, VolumeId, codes};

const NAME: &str = "main/shared";
/// Number of machines.
const MACHINES: usize = 3;
const SEGMENTS: u64 = 4;
/// Time between two looks at the records, and between two submissions of a command.
const LOOK: Duration = Duration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Making,
    /// Under faults.
    Sharing,
    /// Nothing is broken any more, and each machine opens the volume once more.
    Gathering,
    /// One machine leaves, and the others go on.
    Leaving,
    /// It comes back, and all is read.
    Reading,
    Removing,
    Gone,
}

/// A session of a machine, as the records show it. An open that was refused is asked for again in the same life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    machine: usize,
    life: u32,
    is_fenced: bool,
    /// When it was first seen.
    since: Time,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharingCounts {
    /// Lives of machines that were writers, and those that were seen fenced.
    pub writers: u64,
    pub fenced: u64,
}

/// The administrator and the machines of the volume.
pub struct Sharing {
    stage: Stage,
    rng: Rng,
    /// Number of the first machine.
    first: usize,
    over: Duration,
    volume: VolumeId,
    sessions: BTreeMap<SessionId, Session>,
    at: Time,
    asked_at: Time,
    closing: bool,
    /// Fences that were ordered, each with the life that it fences, and when.
    fences: BTreeMap<u64, ((usize, u32), Time)>,
    snapshots: Option<Snapshots>,
    counts: SharingCounts,
}

impl Sharing {
    pub fn new(rng: Rng, first: usize, over: Duration, now: Time) -> Sharing {
        Sharing {
            stage: Stage::Making,
            rng,
            first,
            over,
            volume: VolumeId(0),
            sessions: BTreeMap::new(),
            at: now,
            asked_at: Time::ZERO,
            closing: false,
            fences: BTreeMap::new(),
            snapshots: None,
            counts: SharingCounts::default(),
        }
    }

    /// Returns the machines, and behind them the one that reads snapshots.
    pub fn machines(world: &World, tuning: ClientTuning, first: usize, rng: &mut Rng) -> Vec<ClientNode> {
        let machine = |n| {
            let node = world.add_node(&format!("writer.{n}"));
            let mut machine = ClientNode::new(node, first + n, true, rng.fork());
            machine.tuning = tuning;
            machine.share();
            machine
        };
        let mut machines: Vec<ClientNode> = (0..MACHINES).map(machine).collect();
        machines.push(Snapshots::reader(world, tuning, first + MACHINES, rng));
        machines
    }

    pub fn next(&self) -> Option<Time> {
        Some(self.at).filter(|at| *at != Time::NEVER)
    }

    pub fn close(&mut self, now: Time) {
        (self.closing, self.at) = (true, now);
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.close(now);
        }
    }

    pub fn counts(&self) -> SharingCounts {
        self.counts
    }

    /// Returns a number that grows with the requests that its machines have seen answered, and with the snapshots that were read.
    pub fn progress(&self, cluster: &Cluster) -> u64 {
        let machines = &cluster.clients()[self.first..=self.first + MACHINES];
        let answered = machines.iter().filter_map(|machine| machine.workload.as_ref()).map(|work| work.answered());
        answered.chain(self.snapshots.iter().map(Snapshots::read_last)).sum()
    }

    /// Checks what was read of its snapshots.
    ///
    /// # Errors
    /// A snapshot that no consistent store can make.
    pub fn hold(&self, linear: &Linear) -> Result<(), String> {
        self.snapshots.as_ref().map_or(Ok(()), |snapshots| snapshots.hold(linear))
    }

    /// Whether the volume is gone from all OSDs.
    pub fn is_gone(&self, cluster: &Cluster) -> bool {
        self.stage == Stage::Gone && (self.volume.0 == 0 || left_on(cluster, self.volume).is_none())
    }

    /// Describes it, for a failure's text.
    pub fn describe(&self, cluster: &Cluster) -> String {
        let machines = &cluster.clients()[self.first..self.first + MACHINES];
        let open: Vec<bool> = machines.iter().map(ClientNode::is_open).collect();
        let work: Vec<String> =
            machines.iter().filter_map(|machine| machine.workload.as_ref()).map(|work| work.waiting()).collect();
        let snapshots = self.snapshots.as_ref().map(Snapshots::describe);
        format!("{NAME} ({}): {:?}, open {open:?}, waiting {work:?}, {snapshots:?}", self.volume, self.stage)
    }

    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        if self.at > now {
            return;
        }
        self.at = now + LOOK;
        self.look(now, cluster);
        // At the end they go with the volume.
        let going = matches!(self.stage, Stage::Removing | Stage::Gone);
        if let Some(snapshots) = self.snapshots.as_mut().filter(|_| !going) {
            snapshots.act(now, cluster);
        }
        let all_open = (0..MACHINES).all(|n| cluster.client(self.first + n).is_open());
        match self.stage {
            Stage::Making => self.make(now, cluster),
            Stage::Sharing if self.closing => {
                self.stage = Stage::Gathering;
                (0..MACHINES).for_each(|n| cluster.restart_writer(self.first + n));
            }
            Stage::Sharing => (0..MACHINES).for_each(|n| self.disturb(n, cluster)),
            Stage::Gathering if all_open => {
                (0..MACHINES).for_each(|n| cluster.client(self.first + n).keep());
                cluster.close_writer(self.first);
                self.stage = Stage::Leaving;
            }
            Stage::Gathering => self.return_lost(cluster),
            Stage::Leaving if !cluster.client(self.first).is_leaving() && self.rng.chance(1, 4) => {
                cluster.restart_writer(self.first);
                self.stage = Stage::Reading;
                (0..MACHINES).for_each(|n| self.finish(n, cluster));
            }
            Stage::Leaving => {}
            Stage::Reading => {
                let done = |machine: &ClientNode| machine.workload.as_ref().is_none_or(|work| work.is_done());
                let read = self.snapshots.as_ref().is_none_or(|snapshots| snapshots.are_done(cluster));
                if all_open && read && cluster.clients()[self.first..self.first + MACHINES].iter().all(done) {
                    (0..MACHINES).for_each(|n| cluster.client(self.first + n).hang_up());
                    (self.stage, self.asked_at) = (Stage::Removing, Time::ZERO);
                }
            }
            Stage::Removing => self.remove(now, cluster),
            Stage::Gone => self.at = Time::NEVER,
        }
    }

    /// Compares the writers of the records with the lives of the machines.
    fn look(&mut self, now: Time, cluster: &mut Cluster) {
        if cluster.meta.control().is_none_or(|control| control.standing() != Standing::Sound) {
            return;
        }
        let known = cluster.meta.records().and_then(|records| records.volumes.get(&self.volume));
        let Some(known) = known else { return };
        let named: Vec<(SessionId, String)> =
            known.holders().map(|(of, holder)| (of.session, holder.name.clone())).collect();
        // Each PG has the record of this epoch.
        let is_certain = known.settled && !known.recovering;
        let mut doubtful = Vec::new();
        for n in 0..MACHINES {
            let machine = self.first + n;
            for life in 1..=cluster.client(machine).life() {
                let name = crate::process::holder(machine, life);
                self.note_writers(now, &named, (machine, life, &name));
                let is_named = named.iter().any(|(_, of)| *of == name);
                let at = self.told_at((machine, life), cluster).or(is_certain.then_some(now));
                match at {
                    _ if is_named => {}
                    Some(at) => self.fence((machine, life), at, cluster),
                    None => doubtful.push((machine, life, name)),
                }
            }
        }
        if self.stage == Stage::Sharing {
            self.fence_doubtful(doubtful, cluster);
        }
    }

    /// Fences lives that were let out, perhaps, while a PG may still take their writes.
    fn fence_doubtful(&mut self, doubtful: Vec<(usize, u32, String)>, cluster: &mut Cluster) {
        for (machine, life, name) in doubtful {
            let is_open = self.sessions.values().any(|of| (of.machine, of.life) == (machine, life) && !of.is_fenced);
            let is_asked = self.fences.values().any(|(of, _)| *of == (machine, life));
            if is_open && !is_asked && self.rng.chance(1, 2) {
                self.order_fence((machine, life), name, cluster);
            }
        }
    }

    fn order_fence(&mut self, of: (usize, u32), name: String, cluster: &mut Cluster) {
        tracing::info!(name, "a writer is fenced by a command");
        let which = WriterName::Client(name);
        let command = cluster.admin_followed(AdminAsk::VolumeFence { name: NAME.to_owned(), which });
        self.fences.extend(command.map(|command| (command, (of, cluster.world.now()))));
    }

    /// Returns when a command has said that a life is fenced, or that no client of its name writes, if the life has opened nothing since.
    fn told_at(&self, of: (usize, u32), cluster: &Cluster) -> Option<Time> {
        let has_ended = of.1 < cluster.clients()[of.0].life();
        let tells = |code: Option<u32>| code.is_none() || has_ended && code == Some(codes::WRITER_UNKNOWN);
        let its = self.sessions.values().filter(|writer| (writer.machine, writer.life) == of);
        let last = its.map(|writer| writer.since).max().unwrap_or(Time::ZERO);
        // A fence says nothing of sessions that the life opens behind its order.
        let commands = self.fences.iter().filter(|(_, (fenced, ordered))| *fenced == of && *ordered >= last);
        let answers = commands.filter_map(|(command, _)| cluster.meta.answer_to(*command));
        answers.filter(|(_, code)| tells(*code)).map(|(at, _)| at).min()
    }

    /// Notes that a life of a machine, which was a writer, writes nothing after `at`.
    fn fence(&mut self, of: (usize, u32), at: Time, cluster: &mut Cluster) {
        let its = self.sessions.values_mut().filter(|writer| (writer.machine, writer.life) == of && !writer.is_fenced);
        let count = its.map(|writer| writer.is_fenced = true).count();
        if count > 0 {
            self.counts.fenced += 1;
            tracing::info!(machine = of.0, life = of.1, at = at.0, "a life writes no more");
            cluster.fence_life(of.0, of.1, self.volume, at);
        }
    }

    /// Notes the sessions under which a life of a machine is named.
    fn note_writers(&mut self, now: Time, named: &[(SessionId, String)], (machine, life, name): (usize, u32, &str)) {
        for (session, _) in named.iter().filter(|(_, of)| of == name) {
            if !self.sessions.contains_key(session) {
                self.counts.writers += 1;
                tracing::info!(session = session.0, name, "a life is a writer");
                self.sessions.insert(*session, Session { machine, life, is_fenced: false, since: now });
            }
        }
    }

    fn make(&mut self, now: Time, cluster: &mut Cluster) {
        let Some(records) = cluster.meta.records() else { return };
        let Ok(known) = records.volume(NAME) else {
            if self.closing {
                self.stage = Stage::Gone;
            } else if self.is_to_ask(now) {
                let text = VolumeText { multi_writer: Some(true), ..VolumeText::default() };
                let (name, len_bytes) = (NAME.to_owned(), SEGMENTS * SEGMENT);
                cluster.admin(AdminAsk::VolumeCreate { name, len_bytes, stripe: types::Stripe::NONE, text });
            }
            return;
        };
        (self.volume, self.stage) = (known.id, Stage::Sharing);
        if self.rng.chance(1, 2) {
            let (rng, of) = (self.rng.fork(), vec![(NAME.to_owned(), self.volume)]);
            self.snapshots = Some(Snapshots::new(rng, of, None, self.first + MACHINES, now));
        }
        for n in 0..MACHINES {
            let shape = Shape {
                pattern: Pattern::Random,
                len_bytes: SEGMENTS * SEGMENT,
                window: [4 << 10, 32 << 10, 128 << 10][self.rng.below(3) as usize],
                depth: self.rng.between(1, 6) as usize,
                sectors_max: [1, 16, 64][self.rng.below(3) as usize],
                read_pct: self.rng.between(30, 70),
                trim_pct: self.rng.between(0, 15),
                operations: self.rng.between(50, 400),
                forger: None,
                whole_blocks: false,
                whole_aus_pct: 0,
                may_be_full: false,
                spread: SEGMENTS,
            };
            let machine = self.first + n;
            let work = Block::on(NAME, self.volume.0, machine as u64, shape, self.rng.fork());
            cluster.client(machine).begin(Box::new(work), self.over);
            cluster.restart_writer(machine);
        }
    }

    /// Does something to a machine, perhaps.
    fn disturb(&mut self, n: usize, cluster: &mut Cluster) {
        let machine = self.first + n;
        let client = cluster.client(machine);
        if client.has_left() {
            if self.rng.chance(1, 8) {
                cluster.restart_writer(machine);
            }
            return;
        }
        if !client.is_open() || !self.rng.chance(1, 16) {
            return;
        }
        let life = client.life();
        match self.rng.below(9) {
            0..=2 => cluster.restart_writer(machine),
            3..=5 => cluster.close_writer(machine),
            6 => {
                self.hold_some(cluster);
                cluster.steal_shared(machine);
            }
            _ => {
                self.hold_some(cluster);
                self.order_fence((machine, life), crate::process::holder(machine, life), cluster);
            }
        }
    }

    /// Perhaps lets the PGs that one OSD leads hear late of what comes now.
    fn hold_some(&mut self, cluster: &mut Cluster) {
        if self.rng.chance(1, 2) {
            let osd = self.rng.below(cluster.osd_count() as u64) as usize;
            let until = cluster.world.now() + Duration::from_millis(self.rng.between(100, 2000));
            cluster.post().hold_osd(osd, until);
        }
    }

    /// Lets machines come back that have lost the volume before everything was mended.
    fn return_lost(&mut self, cluster: &mut Cluster) {
        for n in 0..MACHINES {
            if cluster.client(self.first + n).has_left() {
                cluster.restart_writer(self.first + n);
            }
        }
    }

    fn finish(&self, n: usize, cluster: &mut Cluster) {
        cluster.client(self.first + n).workload.iter_mut().for_each(|work| work.finish());
    }

    fn remove(&mut self, now: Time, cluster: &mut Cluster) {
        let Some(records) = cluster.meta.records() else { return };
        if !records.volumes.contains_key(&self.volume) {
            self.stage = Stage::Gone;
        } else if self.is_to_ask(now) {
            let name = NAME.to_owned();
            cluster.admin(AdminAsk::VolumeRemove(VolumeRemove {
                name,
                force: true,
                now: true,
                snapshots: true,
                detach: false,
            }));
        }
    }

    /// Whether it is time to submit the command (again).
    fn is_to_ask(&mut self, now: Time) -> bool {
        let due = self.asked_at == Time::ZERO || now >= self.asked_at + ASK_AGAIN;
        if due {
            self.asked_at = now;
        }
        due
    }
}
